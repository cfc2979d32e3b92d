package agentloop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

func TestEndOfTheContextSaysWhatBecomesOfTheTurn(t *testing.T) {
	other := errors.New("something else")
	for _, tt := range []struct {
		cause      error
		state      session.State
		stopReason string
		sentence   string
	}{
		{&session.TurnCancelledError{Reason: "the user said so"}, session.StateCancelled, "cancelled", "cancelled: the user said so"},
		{&session.TurnTimeoutError{After: time.Minute}, session.StateFailed, "timeout", "the turn timed out after 1m0s"},
		{session.ErrStopping, "", "", ""},
		{other, "", "", ""},
	} {
		for _, where := range []string{"model", "tool", "retry", "start"} {
			t.Run(where+" "+tt.cause.Error(), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				model := &fakeModel{answer: func(ctx context.Context, n int, _ llm.Request) ([]llm.Chunk, error) {
					switch {
					case where == "model" && n == 2:
						cancel(tt.cause)
						<-ctx.Done()
						return nil, ctx.Err()
					case where == "retry" && n == 2:
						cancel(tt.cause)
						return nil, &llm.Error{Message: "again", Retryable: true, RetryAfter: time.Minute}
					}
					return append([]llm.Chunk{{Kind: llm.ChunkText, Text: "thinking"}}, asks("look", `{}`)...), nil
				}}
				look := newTool("look", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
					if where == "tool" {
						cancel(tt.cause)
						<-ctx.Done()
						return tool.Result{}, context.Cause(ctx)
					}
					return tool.Text("seen"), nil
				})
				if where == "start" {
					cancel(tt.cause)
				}
				out, err := newLoop(t, model, agentloop.Limits{}, look).RunTurn(ctx, sessiontest.NewTurn(t, session.NewMemory()))
				if tt.state == "" {
					if !errors.Is(err, tt.cause) {
						t.Errorf("RunTurn() = %+v, %v, want the error %v", out, err, tt.cause)
					}
					return
				}
				if err != nil || out.State != tt.state || out.StopReason != tt.stopReason || out.Error != tt.sentence {
					t.Errorf("RunTurn() = %+v, %v, want %s, %s, %q", out, err, tt.state, tt.stopReason, tt.sentence)
				}
				if where != "start" && (out.Output != "thinking" || out.Usage.ModelCalls != 1) {
					t.Errorf("RunTurn() = %+v, want the last text and one model call", out)
				}
			})
		}
	}
}

func TestTurnStopsWhenItsTreeIsNoLongerOwned(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	lease, err := store.Claim(t.Context(), turn.Root, "sessiontest", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	owned, lose := context.WithCancelCause(t.Context())
	rec, err := store.Record(t.Context(), session.KindTurn, string(turn.Turn))
	if err != nil {
		t.Fatal(err)
	}
	turn, err = session.NewTurn(session.NewTree(owned, store, lease, nil), rec)
	if err != nil {
		t.Fatal(err)
	}
	lost := errors.New("the lease is lost")
	look := newTool("look", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		lose(lost)
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	if out, err := newLoop(t, says(asks("look", `{}`)), agentloop.Limits{}, look).RunTurn(t.Context(), turn); !errors.Is(err, lost) {
		t.Errorf("RunTurn() = %+v, %v, want the error %v", out, err, lost)
	}
}

func TestTurnThatSomebodyElseEndedOrOwnsIsLeft(t *testing.T) {
	for _, want := range []error{session.ErrTurnEnded, session.ErrFenced} {
		store := session.NewMemory()
		turn := sessiontest.NewTurn(t, store)
		look := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
			if errors.Is(want, session.ErrFenced) {
				claim(t, store, turn, nil)
			} else if _, err := turn.Tree().EndTurn(t.Context(), turn, session.Outcome{State: session.StateCancelled}); err != nil {
				t.Error(err)
			}
			return tool.Text("seen"), nil
		})
		if out, err := newLoop(t, says(asks("look", `{}`)), agentloop.Limits{}, look).RunTurn(t.Context(), turn); !errors.Is(err, want) {
			t.Errorf("RunTurn() = %+v, %v, want the error %v", out, err, want)
		}
	}
}

func TestWhatIsDoneWhenTheProcessStopsIsWritten(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	ctx, cancel := context.WithCancelCause(t.Context())
	look := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
		cancel(session.ErrStopping)
		return tool.Text("seen"), nil
	})
	if _, err := newLoop(t, says(asks("look", `{}`)), agentloop.Limits{}, look).RunTurn(ctx, turn); !errors.Is(err, session.ErrStopping) {
		t.Errorf("RunTurn() = %v, want %v", err, session.ErrStopping)
	}
	if diff := cmp.Diff([]string{"1:look: seen"}, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestToolCallsOfAnAnswerThatComesAsTheProcessStopsAreNotBegun(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	ctx, cancel := context.WithCancelCause(t.Context())
	model := &fakeModel{answer: func(context.Context, int, llm.Request) ([]llm.Chunk, error) {
		cancel(session.ErrStopping)
		return asks("look", `{}`), nil
	}}
	if _, err := newLoop(t, model, agentloop.Limits{}, returns("look", "seen")).RunTurn(ctx, turn); !errors.Is(err, session.ErrStopping) {
		t.Errorf("RunTurn() = %v, want %v", err, session.ErrStopping)
	}
	if got := logOf(t, store, turn, session.EventToolStarted); len(got) != 0 {
		t.Errorf("%d tool calls are in the log, want none: they would count as interrupted", len(got))
	}
}
