package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"orchestrator/a2a"
	"orchestrator/internal/brokertest"
	"orchestrator/session"
	"orchestrator/tracker"
)

// What a subagent's call goes through must not depend on the way to the peer: it waits, at its deadline it goes on without,
// and the late reply becomes a turn of the primary.
func TestBlockingCallItsDeadlineAndTheLateReplyOverAQueue(t *testing.T) {
	w := newWorld(t, plan{vhost: brokertest.Vhost(t), patient: 1, quick: 1})
	l := w.ask(w.calls)
	gone := func(typ session.EventType, n int) func(session.Store) bool {
		return func(store session.Store) bool {
			trees, err := store.Trees(t.Context(), 1)
			if err != nil || len(trees) == 0 {
				return false
			}
			events, err := store.Events(t.Context(), session.EventQuery{Tree: trees[0].ID, Types: []session.EventType{typ}, Limit: 10})
			return err == nil && len(events) == n
		}
	}
	// The subagent that waits with patience is the only one that does when the answers come.
	if !l.until(patience, gone(session.EventInvocationTimedOut, 1)) || !l.until(patience, gone(session.EventSubagentResumed, 1)) {
		t.Fatalf("the quick call does not time out\n%s", l.tail())
	}
	w.release()
	w.comesHome(l)
	v := w.verdict(l)
	if v.answered != 1 || v.folded != 1 {
		t.Errorf("verdict = %v, want one call answered and one folded", v)
	}
	tree := gather(t, w.database(), w.peers).trees[0]
	for _, rec := range tree.records {
		var call tracker.PendingA2ATask
		if rec.Kind != session.KindCall {
			continue
		}
		if err := rec.Decode(&call); err != nil {
			t.Fatal(err)
		}
		if call.Transport != a2a.BindingAMQP || call.Mode != session.ModeBlocking {
			t.Errorf("call %s went by %q, %s; want AMQP, blocking", rec.Key, call.Transport, call.Mode)
		}
		want := []string{"invocation.dispatched", "invocation.replied", "tool.completed"}
		if rec.State == tracker.StateFolded {
			want = []string{"invocation.dispatched", "invocation.timed_out", "tool.completed", "invocation.late", "invocation.folded_back", "turn.started", "turn.completed"}
		}
		if got := storyOf(t, tree.events, rec.Key, call.ToolCallID); !slices.Equal(got, want) {
			t.Errorf("the story of call %s, which is %s:\n%q, want\n%q", rec.Key, rec.State, got, want)
		}
	}
}

// storyOf returns the types of the events that a call went through, to the end of the turn that folded it.
func storyOf(t *testing.T, events []session.Event, call string, tool session.ToolCallID) []string {
	t.Helper()
	var story []string
	var fold session.TurnID
	for _, e := range events {
		var about struct {
			CallID   string   `json:"callId"`
			CausedBy []string `json:"causedBy"`
			Origin   string   `json:"origin"`
		}
		if err := e.Decode(&about); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(string(e.Type), "invocation.") && e.Type != session.EventInvocationProgress && about.CallID == call,
			e.Type == session.EventToolCompleted && e.ToolCallID == tool:
		case e.Type == session.EventTurnStarted && about.Origin == "foldback" && slices.Contains(about.CausedBy, call):
			fold = e.TurnID
		case e.Type == session.EventTurnCompleted && e.TurnID == fold:
		default:
			continue
		}
		story = append(story, string(e.Type))
	}
	return story
}
