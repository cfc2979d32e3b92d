package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"orchestrator/session"
)

// TestMain lets the test binary be the processes that the demonstration starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "demo-") {
		main()
	}
	os.Exit(m.Run())
}

func demoEvents(t *testing.T, args ...string) []session.Event {
	t.Helper()
	code, stdout, stderr := orchestrator(t, nil, append([]string{"demo", "-o", "json"}, args...)...)
	if code != exitOK {
		t.Fatalf("demo %v: exit code %d: %s", args, code, stderr)
	}
	var events []session.Event
	dec := json.NewDecoder(strings.NewReader(stdout))
	for dec.More() {
		var e session.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			t.Fatalf("event %d has seq %d: the log has a gap or a repetition", i+1, e.Seq)
		}
	}
	return events
}

// find returns the index of the first event from an index on that fits, and fails if there is none.
func find(t *testing.T, events []session.Event, from int, what string, fits func(session.Event) bool) int {
	t.Helper()
	i := slices.IndexFunc(events[from:], fits)
	if i < 0 {
		t.Fatalf("after event %d there is no %s", from, what)
	}
	return from + i
}

func callOf(e session.Event) session.Invocation { return decode[session.Invocation](e) }

// checkDemoStory fails unless the log tells the demonstration's story.
func checkDemoStory(t *testing.T, events []session.Event) {
	t.Helper()
	asked := find(t, events, 0, "blocking call of a subagent to the advisor", func(e session.Event) bool {
		return e.Type == session.EventInvocationDispatched && !e.Root && callOf(e).Mode == session.ModeBlocking && callOf(e).Peer == "advisor"
	})
	call := events[asked]
	replied := find(t, events, asked, "reply to it", func(e session.Event) bool {
		return e.Type == session.EventInvocationReplied && callOf(e).CallID == callOf(call).CallID
	})
	find(t, events, replied, "result that holds the advisor's words", func(e session.Event) bool {
		return e.Type == session.EventToolCompleted && e.AgentID == call.AgentID && strings.Contains(decode[session.ToolCompleted](e).Content, "Start with night-crossings")
	})

	suspended := find(t, events, 0, "suspended subagent", func(e session.Event) bool { return e.Type == session.EventSubagentSuspended })
	resumed := find(t, events, suspended, "resumption of it", func(e session.Event) bool {
		return e.Type == session.EventSubagentResumed && e.AgentID == events[suspended].AgentID
	})
	lent := find(t, events, suspended, "third subagent", func(e session.Event) bool { return e.Type == session.EventSubagentStarted })
	if lent > resumed {
		t.Errorf("the third subagent starts at event %d, after the first that lent its slot has it back at %d", lent, resumed)
	}

	timedOut := find(t, events, 0, "call that timed out", func(e session.Event) bool { return e.Type == session.EventInvocationTimedOut })
	late := callOf(events[timedOut]).CallID
	find(t, events, timedOut, "result that says so", func(e session.Event) bool {
		return e.Type == session.EventToolCompleted && strings.Contains(decode[session.ToolCompleted](e).Content, "peer 'archivist' did not respond within")
	})
	at := find(t, events, timedOut, "late reply", func(e session.Event) bool {
		return e.Type == session.EventInvocationLate && callOf(e).CallID == late
	})
	at = find(t, events, at, "fold-back of it", func(e session.Event) bool {
		return e.Type == session.EventInvocationFoldedBack && callOf(e).CallID == late
	})
	at = find(t, events, at, "fold-back turn that it caused", func(e session.Event) bool {
		d := decode[session.TurnStarted](e)
		return e.Type == session.EventTurnStarted && d.Origin == session.OriginFoldback && slices.Contains(d.CausedBy, string(late))
	})
	find(t, events, at, "end of that turn", func(e session.Event) bool {
		return e.Type == session.EventTurnCompleted && e.TurnID == events[at].TurnID
	})
	home := find(t, events, 0, "fold-back turn of the subagents", func(e session.Event) bool {
		return e.Type == session.EventTurnStarted && slices.Contains(decode[session.TurnStarted](e).CausedBy, string(call.AgentID))
	})
	if got := len(decode[session.TurnStarted](events[home]).CausedBy); got < 3 || home > at {
		t.Errorf("the subagents come home with %d causes at event %d, want all three in one turn before event %d", got, home, at)
	}
}

func lastRootMessage(t *testing.T, events []session.Event) string {
	t.Helper()
	for _, e := range slices.Backward(events) {
		if e.Root && e.Type == session.EventMessageCompleted {
			if m := decode[session.Message](e); m.Role == session.RoleAssistant {
				return m.Text
			}
		}
	}
	t.Fatal("the primary says nothing")
	return ""
}

func TestDemoTellsItsStoryAlsoWhenItIsKilledInTheMiddle(t *testing.T) {
	whole, killed := make(chan []session.Event, 1), make(chan []session.Event, 1)
	t.Run("lives", func(t *testing.T) {
		t.Run("one", func(t *testing.T) {
			t.Parallel()
			events := demoEvents(t)
			checkDemoStory(t, events)
			whole <- events
		})
		t.Run("two", func(t *testing.T) {
			t.Parallel()
			events := demoEvents(t, "--crash")
			checkDemoStory(t, events)
			find(t, events, 0, "turn that goes on after the crash", func(e session.Event) bool {
				return e.Type == session.EventTurnResumed && decode[session.TurnResumed](e).Attempt > 1
			})
			killed <- events
		})
	})
	if t.Failed() {
		return
	}
	a, b := lastRootMessage(t, <-whole), lastRootMessage(t, <-killed)
	if a != b || !strings.Contains(a, "The archive has three earlier cases") {
		t.Errorf("last message = %q without the crash, %q with it; want the archivist's words, the same", a, b)
	}
}

func TestDemoForPeopleEndsWithASummaryAndWhatToTryNext(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	// The user's own settings are not the demonstration's.
	code, stdout, stderr := orchestrator(t, []string{"ORCHESTRATOR_SUBAGENTS_PER_TREE_RUNNING=1", "OPENAI_API_KEY=k"}, "demo")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, stderr %q, want 0 and nothing", code, stderr)
	}
	for _, want := range []string{
		"planner: starts, while ", "archivist answers late", "follow-up: archivist's answer",
		"3 subagents shared two slots", "Try next:  orchestrator demo --crash",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output misses %q:\n%s", want, stdout)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the demo leaves %v behind (%v)", left, err)
	}
}

func TestDemoPeerWithoutANameThatIsKnownFails(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"demo-peer", "nobody"}, nil, &out, &errs); code != exitFailed || !strings.Contains(errs.String(), `"nobody"`) {
		t.Errorf("exit code %d, message %q, want 1 and the name", code, &errs)
	}
}
