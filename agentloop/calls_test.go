package agentloop_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

func TestCallsThatDoNotRunHaveAResultThatSaysWhy(t *testing.T) {
	ran := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Text("ran"), nil })
	ran.spec.Schema = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
	broken, outside := returns("broken", "never"), returns("outside", "never")
	broken.spec.Schema = json.RawMessage(`{"type":"nonsense"}`)
	file := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(file, []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	outside.spec.Schema = mustJSON(t, map[string]string{"$ref": "file://" + filepath.ToSlash(file)})
	later := returns("later", "never")
	var denied []string
	model := says(asks(
		"lokk", `{}`, "zzzzzz", `{}`, "secret", `{}`, "later", `{}`, "look", `{"n":"x","m":1,"k":1,"l":1,"j":1}`, "look", `[1]`, "look", `{"n":`, "look", ``,
		"broken", `{}`, "outside", `{}`, "look", `{"n":1}`,
	), text("ok"))
	loop := newLoopWith(t, agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return model, "fake-1", nil },
		Tools: func(context.Context, *session.Turn) (*tool.Set, error) {
			return tool.NewSet([]tool.Tool{later, outside, broken, ran}, func(name string) (string, bool) {
				return `the profile of "primary" denies secret`, name == "secret"
			}), nil
		},
		Denied: func(agent, tool string) { denied = append(denied, agent+" "+tool) },
		Limits: agentloop.Limits{ParallelTools: 1},
	})
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	turn.Body.Setup.Tools = []string{"look", "broken", "outside"}
	if out := mustRun(t, loop, turn); out.Output != "ok" {
		t.Fatalf("RunTurn() = %+v, want ok", out)
	}
	want := []string{
		`1:lokk: there is no tool "lokk"; did you mean "look"?`,
		`2:zzzzzz: there is no tool "zzzzzz"; there are: look, broken, outside`,
		`3:secret: the profile of "primary" denies secret`,
		`4:later: tool "later" is not among those this turn started with`,
		`5:look: the arguments of "look" don't fit: at '': additional properties 'j', 'k', 'l', 'm' not allowed; at '/n': got string, want integer`,
		`6:look: the arguments of "look" don't fit: they are not a JSON object`,
		`7:look: the arguments of "look" don't fit: they are not valid JSON`,
		`8:look: the arguments of "look" don't fit: at '': missing property 'n'`,
		`9:broken: the tool "broken" can't be called: its own schema is broken`,
		`10:outside: the tool "outside" can't be called: its own schema is broken`,
		`11:look: ran`,
	}
	if diff := cmp.Diff(want, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"primary secret", "primary later"}, denied); diff != "" {
		t.Errorf("counted as denied (-want +got):\n%s", diff)
	}
	for i, e := range logOf(t, store, turn, session.EventToolCompleted) {
		done := decode[session.ToolCompleted](t, e)
		if done.IsError != (i != 10) || done.Denied != (i == 2 || i == 3) {
			t.Errorf("result %d: error %t, denied %t", i+1, done.IsError, done.Denied)
		}
	}
	var shown []string
	for _, s := range model.asked()[0].Tools {
		shown = append(shown, s.Name)
	}
	if diff := cmp.Diff(turn.Body.Setup.Tools, shown); diff != "" {
		t.Errorf("shown to the model (-want +got):\n%s", diff)
	}
}

func TestPanicInAToolIsAResult(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	loop := newLoop(t, says(asks("look", `{}`), text("ok")), agentloop.Limits{},
		newTool("look", func(context.Context, *tool.Call) (tool.Result, error) { panic("boom") }))
	if out := mustRun(t, loop, turn); out.Output != "ok" {
		t.Errorf("RunTurn() = %+v, want the turn to go on", out)
	}
	if diff := cmp.Diff([]string{`1:look: the tool "look" crashed with an internal error`}, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestErrorOfAToolEndsTheTurnAndTheOtherCalls(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	waits := make(chan struct{})
	var ended atomic.Bool
	loop := newLoop(t, says(asks("wait", `{}`, "fail", `{}`)), agentloop.Limits{},
		newTool("wait", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			close(waits)
			<-ctx.Done()
			ended.Store(true)
			return tool.Result{}, ctx.Err()
		}),
		newTool("fail", func(context.Context, *tool.Call) (tool.Result, error) {
			<-waits
			return tool.Result{}, errCut
		}))
	wantFailed(t, mustRun(t, loop, turn), "error", `the tool "fail" failed with an internal error`)
	if !ended.Load() {
		t.Error("RunTurn() returned before the other call did")
	}
	if got := results(t, store, turn); len(got) != 0 {
		t.Errorf("results = %v, want none: they are completed with the turn's end", got)
	}
}

func TestToolCallsRunAtOnceWithinTheirBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		loop := newLoop(t, says(asks("look", `{}`, "look", `{}`, "look", `{}`, "look", `{}`, "look", `{}`), text("ok")),
			agentloop.Limits{ParallelTools: 2},
			newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				time.Sleep(time.Second)
				return tool.Text("seen"), nil
			}))
		began := time.Now()
		mustRun(t, loop, sessiontest.NewTurn(t, session.NewMemory()))
		if got := most.Load(); got != 2 {
			t.Errorf("%d calls ran at once, want 2", got)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("five calls of 1s took %s, want 3s", took)
		}
	})
}

func TestWhatAToolChangesIsCommittedWithItsResult(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	var committed session.Committed
	loop := newLoop(t, says(asks("keep", `{}`), text("ok")), agentloop.Limits{},
		newTool("keep", func(_ context.Context, c *tool.Call) (tool.Result, error) {
			return tool.Result{
				Content: "kept",
				Batch: session.Batch{
					Changes: []session.Change{session.Insert(session.KindItem, "item", turn.Agent, turn.OriginTurn, session.StateReady, 1, time.Time{})},
					Events:  []session.Event{c.Scope().Event(session.EventInvocationReplied, session.Invocation{Peer: "advisor"})},
				},
				Committed: func(done session.Committed) { committed = done },
			}, nil
		}))
	mustRun(t, loop, turn)
	if len(committed.Records) != 1 || len(committed.Events) != 2 || committed.Events[1].Type != session.EventToolCompleted {
		t.Fatalf("Committed was called with %+v, want the record and two events, the result last", committed)
	}
	if committed.Events[0].Seq+1 != committed.Events[1].Seq || committed.Events[0].ToolCallID != session.MintToolCallID(turn.Agent, 1) {
		t.Errorf("events = %+v, want neighbours of the same call", committed.Events)
	}
}

func TestResultThatConflictsIsAskedForAgain(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	insert := session.Insert(session.KindItem, "taken", turn.Agent, turn.OriginTurn, session.StateReady, 1, time.Time{})
	if _, err := store.Commit(t.Context(), session.Batch{Tree: turn.Root, Changes: []session.Change{insert}}); err != nil {
		t.Fatal(err)
	}
	var conflicts []error
	loop := newLoop(t, says(asks("keep", `{}`), text("ok")), agentloop.Limits{},
		newTool("keep", func(context.Context, *tool.Call) (tool.Result, error) {
			full := session.Guard{Kind: session.KindItem, Owner: turn.Agent, States: []session.State{session.StateReady}, Max: 0}
			return tool.Result{
				Content: "first", Batch: session.Batch{Changes: []session.Change{insert}},
				Conflict: func(_ context.Context, err error) (tool.Result, error) {
					conflicts = append(conflicts, err)
					return tool.Result{
						Content: "second", Batch: session.Batch{Guards: []session.Guard{full}},
						Conflict: func(_ context.Context, err error) (tool.Result, error) {
							conflicts = append(conflicts, err)
							return tool.Text("third"), nil
						},
					}, nil
				},
			}, nil
		}))
	mustRun(t, loop, turn)
	if diff := cmp.Diff([]string{"1:keep: third"}, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if len(conflicts) != 2 || !errors.Is(conflicts[0], session.ErrConflict) || !errors.Is(conflicts[1], session.ErrGuard) {
		t.Errorf("Conflict was called with %v, want a conflict, then a guard", conflicts)
	}
	conflict, ok := errors.AsType[*session.ConflictError](conflicts[0])
	if !ok || conflict.Row == nil || conflict.Row.Key != "taken" {
		t.Errorf("the first conflict = %#v, want the row as it is", conflicts[0])
	}
}

func TestConflictNobodyAnswersFailsTheTurn(t *testing.T) {
	for name, conflict := range map[string]func(context.Context, error) (tool.Result, error){
		"no func":   nil,
		"an error":  func(_ context.Context, err error) (tool.Result, error) { return tool.Result{}, err },
		"unbounded": nil,
	} {
		t.Run(name, func(t *testing.T) {
			turn := sessiontest.NewTurn(t, session.NewMemory())
			res := tool.Result{Content: "x", Conflict: conflict, Batch: session.Batch{
				Checks: []session.Check{{Kind: session.KindItem, Key: "missing", States: []session.State{session.StateReady}}},
			}}
			asked := 0
			if name == "unbounded" {
				res.Conflict = func(context.Context, error) (tool.Result, error) {
					asked++
					return res, nil
				}
			}
			loop := newLoop(t, says(asks("keep", `{}`)), agentloop.Limits{},
				newTool("keep", func(context.Context, *tool.Call) (tool.Result, error) { return res, nil }))
			wantFailed(t, mustRun(t, loop, turn), "error", `the tool "keep" failed`)
			if asked > 200 {
				t.Errorf("Conflict was called %d times", asked)
			}
		})
	}
}

func TestLongResultIsKeptWholeAsAnArtifact(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	long := strings.Repeat("0123456789", 10_000)
	loop := newLoop(t, says(asks("look", `{}`), text("ok")), agentloop.Limits{ResultBytes: 1000}, returns("look", long))
	mustRun(t, loop, turn)
	key := session.ArtifactKeyFor(session.MintToolCallID(turn.Agent, 1), "result")
	done := decode[session.ToolCompleted](t, logOf(t, store, turn, session.EventToolCompleted)[0])
	if done.Content != session.Shorten(long, 1000, key) {
		t.Errorf("result in the log = %q, want it shortened with the artifact's key", done.Content)
	}
	a, err := store.Artifact(t.Context(), turn.Root, key)
	if err != nil || string(a.Data) != long {
		t.Errorf("Artifact() = %d bytes, %v, want all %d", len(a.Data), err, len(long))
	}
}

func TestIdenticalFailingCallIsNotedThenFailsTheTurn(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	var ran atomic.Int32
	long := strings.Repeat("it failed; ", 100) // is shortened, with the key of each call's own artifact in it
	failing := newTool("fail", func(context.Context, *tool.Call) (tool.Result, error) {
		ran.Add(1)
		return tool.Failure(long), nil
	})
	// Twice in one message is once; other arguments are another call.
	answers := []([]llm.Chunk){asks("fail", `{ "n": 1 }`, "fail", `{"n":1}`, "fail", `{"n":2}`), asks("fail", `{"n":1}`)}
	out := mustRun(t, newLoop(t, says(answers...), agentloop.Limits{ModelCalls: 4, ResultBytes: 500}, failing), turn)
	if got := ran.Load(); out.StopReason != "max_model_calls" || got != 6 {
		t.Fatalf("RunTurn() = %+v after %d calls, want the bound on model calls after 6", out, got)
	}
	var noted []int
	for i, e := range logOf(t, store, turn, session.EventToolCompleted) {
		if strings.Contains(decode[session.ToolCompleted](t, e).Content, "this call has now failed") {
			noted = append(noted, i+1)
		}
	}
	// Calls 1 to 3 are the first message's, 4 the second failure, 5 the third.
	if diff := cmp.Diff([]int{5, 6}, noted); diff != "" {
		t.Errorf("results with a note (-want +got):\n%s", diff)
	}

	// The count is the turn's, over all its attempts.
	store = session.NewMemory()
	turn = sessiontest.NewTurn(t, store)
	cut := &cutStore{Store: store, left: 9} // four messages, each with its result, and the fifth's message
	if _, err := newLoop(t, says(answers[1]), agentloop.Limits{ResultBytes: 500}, failing).RunTurn(t.Context(), reopen(t, cut, turn, nil)); !errors.Is(err, errCut) {
		t.Fatalf("RunTurn() = %v, want the store's error", err)
	}
	model := says(answers[1])
	out = mustRun(t, newLoop(t, model, agentloop.Limits{ResultBytes: 500}, repeatable(failing)), resume(t, store, turn))
	wantFailed(t, out, "repeated_failure", `the tool "fail" failed 6 times with the same arguments and the same result`)
	if got := len(model.asked()); got != 1 {
		t.Errorf("the model was asked %d times after the restart, want 1", got)
	}
	// Had the process died before the turn's end was written, no other call is made.
	out = mustRun(t, newLoop(t, model, agentloop.Limits{ResultBytes: 500}, repeatable(failing)), resume(t, store, turn))
	wantFailed(t, out, "repeated_failure", "failed 6 times")
	if got := len(model.asked()); got != 1 {
		t.Errorf("the model was asked %d times, want no more", got)
	}
}
