package agentloop_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

// story is what happened, in order; safe for concurrent use.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *story) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

// fakeParker tells what it is asked for.
type fakeParker struct {
	story  *story
	parked chan struct{} // gets a value with each Park
	err    error
}

func newParker(s *story) *fakeParker { return &fakeParker{story: s, parked: make(chan struct{}, 10)} }

func (p *fakeParker) Park(_ context.Context, reason string) error {
	p.story.add("park " + reason)
	p.parked <- struct{}{}
	return p.err
}

func (p *fakeParker) Unpark(ctx context.Context) error {
	p.story.add("unpark")
	return ctx.Err()
}

// parkTurn returns a turn whose story tells of its parking, its results and its model calls.
func parkTurn(t *testing.T, s *story, before func(b session.Batch) error) (*session.Turn, *fakeParker) {
	store := session.NewMemory()
	parker := newParker(s)
	turn := reopen(t, &hookStore{Store: store, before: func(b session.Batch) error {
		if before != nil {
			if err := before(b); err != nil {
				return err
			}
		}
		for _, e := range b.Events {
			if e.Type == session.EventToolCompleted {
				s.add("result of " + decode[session.ToolCompleted](t, e).Name)
			}
		}
		return nil
	}}, sessiontest.NewTurn(t, store), nil)
	turn.Parker = parker
	return turn, parker
}

func telling(s *story, answers ...[]llm.Chunk) *fakeModel {
	return &fakeModel{answer: func(_ context.Context, n int, _ llm.Request) ([]llm.Chunk, error) {
		s.add("model")
		return answers[n-1], nil
	}}
}

func TestTurnParksWhenAllItsUnfinishedCallsWait(t *testing.T) {
	var s story
	turn, parker := parkTurn(t, &s, nil)
	firstWaits := make(chan struct{})
	waits := newTool("peer", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		close(firstWaits)
		c.Park(tool.AwaitingPeer)
		c.Park(tool.AwaitingPeer) // saying so twice is no difference
		<-parker.parked
		return tool.Text("replied"), nil
	})
	works := newTool("work", func(context.Context, *tool.Call) (tool.Result, error) {
		<-firstWaits
		return tool.Text("worked"), nil
	})
	out := mustRun(t, newLoop(t, telling(&s, asks("peer", `{}`, "work", `{}`), text("ok")), agentloop.Limits{}, waits, works), turn)
	if out.Output != "ok" {
		t.Errorf("RunTurn() = %+v, want ok", out)
	}
	// It parks only when the result of the call that worked is committed, and is back before the model is asked.
	want := []string{"model", "result of work", "park awaiting_peer", "result of peer", "unpark", "model"}
	if diff := cmp.Diff(want, s.told()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

func TestTurnParksOnceWhenTheLastOfSeveralCallsWaits(t *testing.T) {
	var s story
	turn, parker := parkTurn(t, &s, nil)
	release := make(chan struct{})
	var oneAfterTheOther sync.Mutex
	waits := newTool("peer", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		oneAfterTheOther.Lock()
		s.add("waits")
		c.Park(tool.AwaitingSubagent)
		oneAfterTheOther.Unlock()
		<-release
		return tool.Text("replied"), nil
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		<-parker.parked
		close(release)
	})
	mustRun(t, newLoop(t, telling(&s, asks("peer", `{}`, "peer", `{}`, "peer", `{}`), text("ok")), agentloop.Limits{}, waits), turn)
	want := []string{
		"model", "waits", "waits", "waits", "park awaiting_subagent", "result of peer", "result of peer", "result of peer", "unpark", "model",
	}
	if diff := cmp.Diff(want, s.told()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

func TestCallThatHasReturnedIsUnfinishedUntilItsResultIsCommitted(t *testing.T) {
	var s story
	committing, release := make(chan struct{}), make(chan struct{})
	turn, parker := parkTurn(t, &s, func(b session.Batch) error {
		if isResultOf(b, 1) {
			close(committing)
			<-release
		}
		return nil
	})
	first := newTool("first", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		c.Park(tool.AwaitingPeer)
		return tool.Text("replied"), nil
	})
	second := newTool("second", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		<-committing
		c.Park(tool.AwaitingSubagent)
		s.add("second waits")
		close(release)
		<-parker.parked
		return tool.Text("ended"), nil
	})
	mustRun(t, newLoop(t, telling(&s, asks("first", `{}`, "second", `{}`), text("ok")), agentloop.Limits{}, first, second), turn)
	want := []string{"model", "second waits", "result of first", "park awaiting_subagent", "result of second", "unpark", "model"}
	if diff := cmp.Diff(want, s.told()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

func TestTurnThatNeverParkedIsNotUnparked(t *testing.T) {
	var s story
	turn, _ := parkTurn(t, &s, nil)
	mustRun(t, newLoop(t, telling(&s, asks("look", `{}`), text("ok")), agentloop.Limits{}, returns("look", "seen")), turn)
	if diff := cmp.Diff([]string{"model", "result of look", "model"}, s.told()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

func TestParkedTurnTakesItsSlotBackBeforeItFails(t *testing.T) {
	var s story
	turn, parker := parkTurn(t, &s, nil)
	waits := newTool("peer", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		c.Park(tool.AwaitingPeer)
		<-parker.parked
		return tool.Result{}, errCut
	})
	wantFailed(t, mustRun(t, newLoop(t, telling(&s, asks("peer", `{}`)), agentloop.Limits{}, waits), turn), "error", `the tool "peer"`)
	if diff := cmp.Diff([]string{"model", "park awaiting_peer", "unpark"}, s.told()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

func TestParkedTurnThatStopsOrIsCancelledTakesNothingBack(t *testing.T) {
	for _, cause := range []error{session.ErrStopping, &session.TurnCancelledError{Reason: "no more"}} {
		var s story
		turn, parker := parkTurn(t, &s, nil)
		waits := newTool("peer", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			c.Park(tool.AwaitingPeer)
			<-ctx.Done()
			return tool.Result{}, context.Cause(ctx)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			<-parker.parked
			cancel(cause)
		})
		out, err := newLoop(t, telling(&s, asks("peer", `{}`)), agentloop.Limits{}, waits).RunTurn(ctx, turn)
		if stopping := errors.Is(cause, session.ErrStopping); stopping != errors.Is(err, session.ErrStopping) ||
			!stopping && out.State != session.StateCancelled {
			t.Errorf("RunTurn() = %+v, %v, want what %v says", out, err, cause)
		}
		wg.Wait()
		if diff := cmp.Diff([]string{"model", "park awaiting_peer"}, s.told()); diff != "" {
			t.Errorf("story (-want +got):\n%s", diff)
		}
	}
}

func TestFailureToParkEndsTheRun(t *testing.T) {
	var s story
	turn, parker := parkTurn(t, &s, nil)
	parker.err = session.ErrFenced
	waits := newTool("peer", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		c.Park(tool.AwaitingPeer)
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	_, err := newLoop(t, telling(&s, asks("peer", `{}`)), agentloop.Limits{}, waits).RunTurn(t.Context(), turn)
	if !errors.Is(err, session.ErrFenced) {
		t.Errorf("RunTurn() = %v, want %v", err, session.ErrFenced)
	}
}
