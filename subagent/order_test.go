package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
	"orchestrator/subagent"
)

// hooked is a store that does something else right before a commit of its choice: what the commit was built on is then
// no longer what there is.
type hooked struct {
	session.Store

	mu     sync.Mutex
	before func(b session.Batch) func() // what to do before this commit; it is not asked again
}

func (h *hooked) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	h.mu.Lock()
	var first func()
	if h.before != nil {
		if first = h.before(b); first != nil {
			h.before = nil
		}
	}
	h.mu.Unlock()
	if first != nil {
		first()
	}
	return h.Store.Commit(ctx, b)
}

// when does something right before the commit that holds an event of the type, of the agent.
func (h *hooked) when(typ session.EventType, agent session.ID, do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = func(b session.Batch) func() {
		if slices.ContainsFunc(b.Events, func(e session.Event) bool { return e.Type == typ && e.AgentID == agent }) {
			return do
		}
		return nil
	}
}

func newHookedWorld(t *testing.T, limits subagent.Limits) (*world, *hooked, *gates) {
	w, g := newWorld(t, limits), &gates{}
	w.play = g.play
	return w, &hooked{Store: w.store}, g
}

func TestCancelBetweenAnEndAndItsCommitEndsTheChildOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		store.when(session.EventSubagentCompleted, w.child(1), func() {
			if err := l.pool.Cancel(context.Background(), w.child(1), "too late"); err != nil {
				t.Error(err)
			}
		})
		l.spawn(1)
		g.open(w.child(1))
		synctest.Wait()
		wantList(t, "ends", w.ends(), "completed 1")
		if _, body := w.record(w.child(1)); body.Cancel != "too late" {
			t.Errorf("the cancel did not come between: %+v", body)
		}
		l.stop()
	})
}

func TestCancelTimeoutAndCompletionAtOnceEndTheChildOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{Timeout: time.Minute})
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			select {
			case <-time.After(time.Minute):
				return completed("done"), nil
			case <-ctx.Done():
				return session.Outcome{}, context.Cause(ctx)
			}
		}
		l := w.begin()
		for n := range 4 {
			l.spawn(n + 1)
		}
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() {
				time.Sleep(time.Minute)
				if err := l.pool.Cancel(t.Context(), w.child(n+1), "cancelled"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		ended := make(map[string]int)
		for _, e := range w.ends() {
			ended[strings.Fields(e)[1]]++
		}
		if len(ended) != 4 {
			t.Errorf("ends = %v, want one each", w.ends())
		}
		for n, times := range ended {
			if times != 1 {
				t.Errorf("child %s ended %d times: %v", n, times, w.ends())
			}
		}
		w.wantStates("ended ended ended ended")
		l.stop()
	})
}

func TestChildThatEndsAsItsWaitRunsOutIsTakenByTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		l.spawn(1)
		store.when(session.EventToolCompleted, w.root, func() {
			g.open(w.child(1))
			synctest.Wait()
			w.wantStates("ended")
		})
		done := l.must(2, "wait_subagents", `{"timeout_seconds":1}`)
		if !strings.Contains(done.Content, "<agent_data") {
			t.Errorf("wait_subagents = %q, want the result", done.Content)
		}
		l.endRoot(session.StateCompleted)
		w.wantStates("consumed")
		wantList(t, "items", w.items())
		l.stop()
	})
}

func TestChildThatEndsBetweenALookAtTheBatchAndTheTurnsEndIsFolded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		l.spawn(1)
		l.spawn(2)
		g.open(w.child(2))
		synctest.Wait()
		store.when(session.EventTurnCompleted, w.root, func() {
			g.open(w.child(1))
			synctest.Wait()
			w.wantStates("ended ended")
		})
		l.endRoot(session.StateCompleted)
		w.wantStates("folded folded")
		wantList(t, "items", w.items(), "child 1 completed", "child 2 completed")
		l.stop()
	})
}

func TestTwoLastChildrenThatEndAtOnceCompleteTheBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		l.spawn(1)
		l.spawn(2)
		l.endRoot(session.StateCompleted)
		inside := make(chan struct{})
		store.when(session.EventSubagentCompleted, w.child(1), func() {
			g.open(w.child(2))
			<-inside // until child 2 has ended
		})
		g.open(w.child(1))
		synctest.Wait()
		w.wantStates("running ended")
		close(inside)
		synctest.Wait()
		w.wantStates("folded folded")
		wantList(t, "items", w.items(), "child 1 completed", "child 2 completed")
		l.stop()
	})
}

func TestResultThatSomebodyWaitsForIsNotFolded(t *testing.T) {
	for _, overdue := range []bool{false, true} {
		t.Run(fmt.Sprintf("overdue %v", overdue), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, store, g := newHookedWorld(t, subagent.Limits{})
				l := w.beginOn(store)
				l.spawn(1)
				synctest.Wait()
				l.endRoot(session.StateCompleted)
				later := l.nextTurn(0)
				time.AfterFunc(time.Second, func() {
					if overdue {
						rec, err := w.store.Record(t.Context(), session.KindBatch, string(w.turn))
						if err == nil {
							err = l.pool.Sweep(t.Context(), rec)
						}
						if err != nil {
							t.Error(err)
						}
					}
					g.open(w.child(1))
				})
				store.when(session.EventToolCompleted, w.root, func() {
					w.wantStates("ended")
					wantList(t, "items while a call waits", w.items())
					want := subagent.BatchOpen
					if overdue {
						want = subagent.BatchDone
					}
					if got := w.batchState(); got != want {
						t.Errorf("batch is %s, want %s", got, want)
					}
				})
				done, err := callTool(t.Context(), l.pool, later, 2, "wait_subagents", `{"timeout_seconds":60}`, time.Now())
				if err != nil || !strings.Contains(done.Content, "<agent_data") {
					t.Errorf("wait_subagents = %+v, %v, want the result", done, err)
				}
				w.wantStates("consumed")
				wantList(t, "items", w.items())
				l.stop()
			})
		})
	}
}

func TestSweepThatMeetsAnEndLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		l.spawn(1)
		l.spawn(2)
		synctest.Wait()
		l.endRoot(session.StateCompleted)
		rec, err := w.store.Record(t.Context(), session.KindBatch, string(w.turn))
		if err != nil {
			t.Fatal(err)
		}
		store.when(session.EventSubagentCompleted, w.child(1), func() {
			if err := l.pool.Sweep(context.Background(), rec); err != nil {
				t.Error(err)
			}
		})
		g.open(w.child(1))
		synctest.Wait()
		wantList(t, "items", w.items(), "pending 1 running", "pending 2 running", "child 1 completed")
		w.wantStates("folded running")
		g.open(w.child(2))
		synctest.Wait()
		wantList(t, "items", w.items(), "pending 1 running", "pending 2 running", "child 1 completed", "child 2 completed")
		l.stop()
	})
}

func TestSpawnsOfOneMessageRunAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		l := w.begin()
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				if done, err := l.call(n+1, "spawn_subagent", `{"description":"task","prompt":"work"}`); err != nil || done.IsError {
					t.Errorf("spawn %d = %+v, %v", n+1, done, err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		l.endRoot(session.StateCompleted)
		if got := len(w.items()); got != 20 {
			t.Errorf("%d items, want 20", got)
		}
		l.stop()
	})
}

func TestEndIsWrittenWhenTheStoreWorksAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		store := &flaky{Store: w.store}
		l := w.beginOn(store)
		w.play = func(context.Context, *session.Turn) (session.Outcome, error) {
			store.fail(true)
			return completed("done"), nil
		}
		l.spawn(1)
		time.Sleep(10 * time.Second)
		w.wantStates("running")
		store.fail(false)
		time.Sleep(10 * time.Second)
		w.wantStates("ended")
		l.stop()
	})
}

// flaky is a store that refuses commits while it is told to.
type flaky struct {
	session.Store

	mu      sync.Mutex
	failing bool
}

func (f *flaky) fail(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = on
}

func (f *flaky) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	f.mu.Lock()
	failing := f.failing
	f.mu.Unlock()
	if failing {
		return session.Committed{}, errors.New("no space left on device")
	}
	return f.Store.Commit(ctx, b)
}
