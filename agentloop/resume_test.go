package agentloop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

func TestOpenCallsAreRunAgainOrInterruptedAfterARestart(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	var accepted []*tool.Call
	again := func(content string) tool.Tool {
		return repeatable(newTool("again", func(_ context.Context, c *tool.Call) (tool.Result, error) {
			accepted = append(accepted, c)
			return tool.Text(content), nil
		}))
	}
	model := byPosition(func(pos int, r llm.Request) []llm.Chunk {
		if pos == 0 {
			return asks("done", `{}`, "once", `{}`, "again", `{}`, "secret", `{}`)
		}
		return text(strings.Join(toolTexts(r), ", "))
	})
	cut := &cutStore{Store: store, left: 2} // the message and the first result
	loop := newLoop(t, model, agentloop.Limits{ParallelTools: 1}, returns("done", "done"), returns("once", "once"), again("first life"), returns("secret", "x"))
	if _, err := loop.RunTurn(t.Context(), reopen(t, cut, turn, nil)); !errors.Is(err, errCut) {
		t.Fatalf("RunTurn() = %v, want the store's error", err)
	}
	loop = newLoopWith(t, agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return model, "fake-1", nil },
		Tools: func(context.Context, *session.Turn) (*tool.Set, error) {
			return tool.NewSet([]tool.Tool{returns("done", "twice"), returns("once", "twice"), again("second life")}, func(string) (string, bool) {
				return "no longer allowed", true
			}), nil
		},
		Limits: agentloop.Limits{ParallelTools: 1},
	})
	out := mustRun(t, loop, resume(t, store, turn))
	if want := "done, interrupted by a restart; it may or may not have taken effect, second life, no longer allowed"; out.Output != want {
		t.Errorf("RunTurn() = %q, want %q", out.Output, want)
	}
	message := logOf(t, store, turn, session.EventMessageCompleted)[1]
	last := accepted[len(accepted)-1]
	if !last.Resumed || !last.Accepted.Equal(message.Time) || last.ID != session.MintToolCallID(turn.Agent, 3) {
		t.Errorf("call after the restart = resumed %t, accepted %s, id %s; want resumed, %s, the third", last.Resumed, last.Accepted, last.ID, message.Time)
	}
	if out.Usage.ModelCalls != 2 {
		t.Errorf("the turn made %d model calls, want 2 over both lives", out.Usage.ModelCalls)
	}
}

func TestFinalAnswerInTheLogEndsTheTurnWithoutTheModel(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	model := says(stopped("the end", llm.StopMaxTokens))
	want := mustRun(t, newLoop(t, model, agentloop.Limits{}), turn)
	got := mustRun(t, newLoop(t, model, agentloop.Limits{}), resume(t, store, turn))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome after a restart (-want +got):\n%s", diff)
	}
	if n := len(model.asked()); n != 1 {
		t.Errorf("the model was asked %d times, want 1", n)
	}
}

func TestModelCallsAreCountedOverAllAttempts(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		if r.Tools == nil {
			return text("enough"), nil
		}
		return asks("look", `{}`), nil
	}}
	limits := agentloop.Limits{ModelCalls: 3}
	if _, err := newLoop(t, model, limits, returns("look", "seen")).RunTurn(t.Context(), reopen(t, &cutStore{Store: store, left: 4}, turn, nil)); !errors.Is(err, errCut) {
		t.Fatalf("RunTurn() = %v, want the store's error", err)
	}
	out := mustRun(t, newLoop(t, model, limits, returns("look", "seen")), resume(t, store, turn))
	if out.StopReason != "max_model_calls" || out.Usage.ModelCalls != 4 {
		t.Errorf("RunTurn() = %+v, want the bound after three calls in all, and the summary", out)
	}
}

// TestTurnGoesOnFromEveryCommit kills the process after each commit of a turn, once before the next one is made and once
// before its answer arrives, and continues the turn in another life.
func TestTurnGoesOnFromEveryCommit(t *testing.T) {
	newModel := func() *fakeModel {
		return byPosition(func(pos int, r llm.Request) []llm.Chunk {
			switch pos {
			case 0:
				return asks("look", `{"n":1}`, "look", `{"n":2}`, "missing", `{}`, "look", `{"n":3}`)
			case 1:
				return asks("look", `{"n":4}`, "look", `{"n":5}`)
			}
			return text(strings.Join(toolTexts(r), ", "))
		})
	}
	// life runs the turn and returns which calls ran.
	life := func(t *testing.T, turn *session.Turn) (out session.Outcome, ran []session.ToolCallID, err error) {
		var mu sync.Mutex
		loop := newLoop(t, newModel(), agentloop.Limits{}, repeatable(newTool("look", func(_ context.Context, c *tool.Call) (tool.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, c.ID)
			return tool.Text("seen " + string(c.Args)), nil
		})))
		out, err = loop.RunTurn(t.Context(), turn)
		return out, ran, err
	}
	whole := &cutStore{Store: session.NewMemory(), left: -1}
	began := sessiontest.NewTurn(t, whole)
	before := whole.commits
	want, _, err := life(t, began)
	if err != nil {
		t.Fatal(err)
	}
	commits := whole.commits - before
	if commits != 9 { // three messages and six results
		t.Fatalf("the turn made %d commits, want 9", commits)
	}
	for k := range commits {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("after commit %d, next applied %t", k, applied), func(t *testing.T) {
				store := session.NewMemory()
				turn := sessiontest.NewTurn(t, store)
				cut := &cutStore{Store: store, left: k, applied: applied}
				if _, _, err := life(t, reopen(t, cut, turn, nil)); !errors.Is(err, errCut) {
					t.Fatalf("RunTurn() = %v, want the store's error", err)
				}
				logged := make(map[session.ToolCallID]bool)
				for _, e := range logOf(t, store, turn, session.EventToolCompleted) {
					logged[e.ToolCallID] = true
				}
				got, ran, err := life(t, resume(t, store, turn))
				if err != nil {
					t.Fatalf("RunTurn() = %v, want no error", err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("outcome (-without the crash +with it):\n%s", diff)
				}
				for _, id := range ran {
					if logged[id] {
						t.Errorf("call %s ran again though its result was in the log", id)
					}
				}
				seen := make(map[session.ToolCallID]bool)
				for _, e := range logOf(t, store, turn, session.EventToolCompleted) {
					if seen[e.ToolCallID] {
						t.Errorf("call %s has two results", e.ToolCallID)
					}
					seen[e.ToolCallID] = true
				}
				if len(seen) != 6 {
					t.Errorf("%d calls have a result, want 6", len(seen))
				}
			})
		}
	}
}
