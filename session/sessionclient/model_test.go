package sessionclient_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// The rules as the design words them, over a whole history rather than step by step.

// lifecycle are the events that tell of a subagent.
var lifecycle = []session.EventType{
	session.EventSubagentSpawned, session.EventSubagentConfigured, session.EventSubagentStarted, session.EventSubagentCompleted, session.EventSubagentFailed,
}

// rootByTheRules reports whether the event at i of a history is the root's.
func rootByTheRules(policy sessionclient.Policy, history []session.Event, i int) bool {
	e := history[i]
	root, known := session.ID(""), map[session.ID]bool{}
	for _, before := range history[:i+1] {
		if before.Type == sessionclient.EventStreamOpen {
			var open sessionclient.StreamOpen
			if json.Unmarshal(before.Data, &open) == nil && root == "" {
				root = open.RootAgentID
			}
		}
		if slices.Contains(lifecycle, before.Type) && before.AgentID != "" {
			known[before.AgentID] = true
		}
	}
	if e.AgentID == "" {
		return true
	}
	if root != "" {
		return e.AgentID == root
	}
	if policy == sessionclient.PolicyStrict {
		return false
	}
	return len(known) > 0 && !known[e.AgentID]
}

// endByTheRules returns how the wait for a turn ends over a history (empty turn: turns have no ids), or nil.
func endByTheRules(policy sessionclient.Policy, history []session.Event, turn session.TurnID) *session.TurnInfo {
	reply := ""
	for i, e := range history {
		if !rootByTheRules(policy, history, i) {
			continue
		}
		var body map[string]any
		_ = json.Unmarshal(e.Data, &body)
		text := func(key string) string { s, _ := body[key].(string); return s }
		switch {
		case turn == "" && e.Type == "assistant.message":
			reply = text("content")
		case turn == "" && e.Type == "session.idle" && body["mode"] != "autopilot":
			return &session.TurnInfo{Agent: e.AgentID, State: "completed", Ended: true, Quiescent: true, Output: reply}
		case turn == "" && e.Type == "session.error" && body["willRetry"] != true:
			return &session.TurnInfo{Agent: e.AgentID, State: "failed", Ended: true, Quiescent: true, Output: reply, Error: text("message")}
		case turn != "" && e.TurnID == turn && e.Type == "turn.completed":
			return &session.TurnInfo{ID: turn, Agent: e.AgentID, OriginTurn: e.OriginTurn, State: "completed", Ended: true, Output: text("output")}
		case turn != "" && e.TurnID == turn && e.Type == "turn.failed":
			return &session.TurnInfo{ID: turn, Agent: e.AgentID, OriginTurn: e.OriginTurn, State: "failed", Ended: true, Error: text("error")}
		}
	}
	return nil
}

// drawEvent draws an event of a stream that may say anything, in any order.
func drawEvent(t *rapid.T) session.Event {
	words := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "words")
	e := session.Event{AgentID: rapid.SampledFrom([]session.ID{"", "", "R", "A", "B", "X"}).Draw(t, "agent")}
	body := map[string]any{}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		e.Type = rapid.SampledFrom(lifecycle).Draw(t, "lifecycle")
	case 1:
		e.Type = rapid.SampledFrom([]session.EventType{session.EventSubagentSuspended, session.EventSubagentResumed, "session.resumed"}).Draw(t, "other")
	case 2, 3:
		e.Type, body["content"] = sessionclient.EventAssistantMessage, words
	case 4:
		e.Type = sessionclient.EventSessionIdle
		if rapid.Bool().Draw(t, "autopilot") {
			body["mode"] = "autopilot"
		}
	case 5:
		e.Type, body["message"], body["willRetry"] = session.EventSessionError, words, rapid.Bool().Draw(t, "willRetry")
	case 6:
		e.Type = sessionclient.EventStreamOpen
		e.AgentID = ""
		body["rootAgentId"] = rapid.SampledFrom([]string{"", "R"}).Draw(t, "name")
	default:
		e.TurnID = rapid.SampledFrom([]session.TurnID{"mine", "other", "fold"}).Draw(t, "turn")
		e.Type, body["output"] = session.EventTurnCompleted, words
		if rapid.Bool().Draw(t, "failed") {
			e.Type, body["error"] = session.EventTurnFailed, words
			delete(body, "output")
		}
	}
	e.Data, _ = json.Marshal(body)
	return e
}

func TestGateFollowsTheRulesOverAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]sessionclient.Policy{sessionclient.PolicyObserved, sessionclient.PolicyStrict, ""}).Draw(t, "policy")
		turn := rapid.SampledFrom([]session.TurnID{"mine", ""}).Draw(t, "turn")
		history := rapid.SliceOfN(rapid.Custom(drawEvent), 1, 30).Draw(t, "history")
		known := rapid.IntRange(0, len(history)).Draw(t, "events before the answer to the input") // the rest come after it

		j := sessionclient.NewJudge(policy)
		for i, e := range history {
			if i == known {
				j.Sent(turn)
			}
			j.Take(e)
			if got, want := j.IsRoot(e), rootByTheRules(policy, history, i); got != want {
				t.Fatalf("event %d is the root's: %t, want %t", i, got, want)
			}
			if i < known {
				continue
			}
			got, doubt := j.Outcome()
			if diff := cmp.Diff(endByTheRules(policy, history[:i+1], turn), got); diff != "" {
				t.Fatalf("after event %d (-want +got):\n%s", i, diff)
			}
			// An end of this turn that isn't the root's is never believed, and never ignored.
			_, end := map[session.EventType]bool{session.EventTurnCompleted: true, session.EventTurnFailed: true}[e.Type]
			if end && i > known && got == nil && turn != "" && e.TurnID == turn && !doubt {
				t.Fatalf("event %d ends turn %s by its own word, and the turn is not read", i, turn)
			}
		}
	})
}

// What is fed twice, as after a reconnect, changes nothing.
func TestGateLearnsNothingFromWhatItKnows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.SliceOfN(rapid.Custom(drawEvent), 1, 30).Draw(t, "history")
		probe := rapid.Custom(drawEvent).Draw(t, "probe")
		var once, twice sessionclient.Gate
		for _, e := range history {
			once.Observe(e)
			twice.Observe(e)
		}
		for _, e := range history[rapid.IntRange(0, len(history)).Draw(t, "from"):] {
			twice.Observe(e)
		}
		if once.IsRoot(probe) != twice.IsRoot(probe) || once.Named() != twice.Named() {
			t.Fatalf("%s of %q is the root's: %t, and %t when the stream is told again", probe.Type, probe.AgentID, once.IsRoot(probe), twice.IsRoot(probe))
		}
	})
}
