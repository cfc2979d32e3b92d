package subagent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/subagent"
)

func TestStopCancelsNothingAndTheNextLifeGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 2}), &gates{}
		parking := &gates{parked: true}
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if turn.Agent == w.child(1) {
				return parking.play(ctx, turn)
			}
			return g.play(ctx, turn)
		}
		l := w.begin()
		for n := range 4 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		w.wantStates("suspended running running queued")
		before := w.events(subagentEvents...)
		l.stop()
		l.stop() // it may be said twice
		w.wantStates("suspended running running queued")
		wantList(t, "events after a stop", w.events(subagentEvents...), before...)

		l = w.begin()
		synctest.Wait()
		// The three that had started come first, in their order: 1 parks again, so that 2 and 3 have the slots.
		w.wantStates("suspended running running queued")
		resumed := w.events(session.EventTurnResumed)
		slices.Sort(resumed)
		wantList(t, "turns that go on", resumed, "turn.resumed 1", "turn.resumed 2", "turn.resumed 3")
		wantList(t, "events of the parked one", slices.DeleteFunc(w.events(subagentEvents...), func(e string) bool {
			return !strings.HasPrefix(e, "suspended") && !strings.HasPrefix(e, "resumed")
		}), "suspended 1 awaiting_peer", "resumed 1", "suspended 1 awaiting_peer")
		for n := range 4 {
			if n > 0 {
				g.open(w.child(n + 1))
			}
		}
		parking.open(w.child(1))
		synctest.Wait()
		w.wantStates("ended ended ended ended")
		l.stop()
	})
}

func TestQueueKeepsItsOrderOverARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1}), &gates{}
		w.play = g.play
		l := w.begin()
		for n := range 4 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		g.open(w.child(1))
		synctest.Wait()
		l.stop()
		w.limits.RunningPerTree = 1
		l = w.begin()
		for n := range 3 {
			g.open(w.child(n + 2))
		}
		synctest.Wait()
		wantList(t, "starts", w.events(session.EventSubagentStarted), "started 1", "started 2", "started 3", "started 4")
		l.stop()
	})
}

func TestStartedChildrenGoOnBeforeEarlierSpawnsThatQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1}), &gates{}
		w.play = g.play
		l := w.begin()
		for n := range 3 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		w.wantStates("running queued queued")
		l.stop()
		// What the last life left when it had other slots: the first has gone, the third has started.
		set := func(n int, child, turn session.State) {
			rec, body := w.record(w.child(n))
			task, err := w.store.Record(t.Context(), session.KindTurn, string(body.Turn))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.store.Commit(t.Context(), session.Batch{Tree: w.root, Changes: []session.Change{
				rec.Update(child, nil), task.Update(turn, nil),
			}}); err != nil {
				t.Fatal(err)
			}
		}
		set(1, subagent.StateFolded, session.StateCompleted)
		set(3, session.StateRunning, session.StateRunning)
		l = w.begin()
		synctest.Wait()
		w.wantStates("folded queued running")
		l.stop()
	})
}

func TestDeadlineThatPassedMeanwhileEndsTheChildAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1, Timeout: time.Minute}), &gates{}
		ran := 0
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			ran++
			return g.play(ctx, turn)
		}
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		l.spawn(2)
		l.endRoot(session.StateCompleted)
		l.stop()
		time.Sleep(2 * time.Minute)
		l = w.begin()
		synctest.Wait()
		ends := w.ends()
		slices.Sort(ends)
		wantList(t, "ends", ends, "failed 1 timeout", "failed 2 timeout")
		w.wantStates("folded folded")
		if ran != 1 {
			t.Errorf("turns ran %d times, want once, before the stop", ran)
		}
		l.stop()
	})
}

func TestTurnThatCrashesAgainAndAgainIsInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		for range session.MaxCrashes + 1 {
			w.wantStates("running")
			l.stop() // the lease is not released: for the next owner that is a crash
			l = w.begin()
			synctest.Wait()
		}
		wantList(t, "ends", w.ends(), "failed 1 interrupted")
		l.stop()
	})
}

func TestTreeThatIsClaimedAgainGoesOnWhenTheOldRunsAreOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		slow := make(chan struct{})
		running, most := 0, 0
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			running++
			most = max(most, running)
			defer func() { running-- }()
			out, err := g.play(ctx, turn)
			if err != nil {
				<-slow
			}
			return out, err
		}
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		l.die(session.ErrFenced)
		ctx, die := context.WithCancelCause(context.Background())
		lease, err := w.store.Claim(ctx, w.root, "sessiontest", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.pool.Recover(ctx, session.NewTree(ctx, w.store, lease, nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(slow)
		synctest.Wait()
		w.wantStates("running")
		g.open(w.child(1))
		synctest.Wait()
		wantList(t, "ends", w.ends(), "completed 1")
		if most != 1 {
			t.Errorf("%d runs of one child at a time, want 1", most)
		}
		die(session.ErrStopping)
		l.pool.Drain()
	})
}

func TestSpawnThatComesBetweenALookAndTheTurnsEndIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, store, g := newHookedWorld(t, subagent.Limits{})
		l := w.beginOn(store)
		store.when(session.EventTurnCompleted, w.root, func() { l.spawn(1) })
		l.endRoot(session.StateCompleted)
		g.open(w.child(1))
		synctest.Wait()
		wantList(t, "items", w.items(), "child 1 completed")
		l.stop()
	})
}

func TestOpenBatchWithNothingLeftIsCompletedOnRecovery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		// The end of the turn, written by something that knew nothing of subagents.
		if _, err := l.tree.EndTurn(t.Context(), l.root, completed("done")); err != nil {
			t.Fatal(err)
		}
		rec, err := w.store.Record(t.Context(), session.KindBatch, string(w.turn))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Commit(t.Context(), session.Batch{Tree: w.root, Changes: []session.Change{
			rec.Update(subagent.BatchOpen, map[string]any{"turnEnded": time.Now()}),
		}}); err != nil {
			t.Fatal(err)
		}
		l.stop()
		l = w.begin()
		wantList(t, "items", w.items(), "child 1 completed")
		l.stop()
	})
}

func TestResultOfAnotherSessionCannotBeTaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		stranger := sessiontest.NewChildTurn(t, l.root, 50)
		for _, call := range []struct{ name, args string }{
			{"wait_subagents", `{"ids":["` + string(w.child(1)) + `"],"timeout_seconds":1}`},
			{"cancel_subagent", `{"id":"` + string(w.child(1)) + `"}`},
		} {
			done, err := callTool(t.Context(), l.pool, stranger, 1, call.name, call.args, time.Now())
			if err != nil || !done.IsError || !strings.Contains(done.Content, "you have no subagent") {
				t.Errorf("%s = %+v, %v, want a refusal", call.name, done, err)
			}
		}
		w.wantStates("ended")
		l.stop()
	})
}

// stutters is a store whose next reads of child records fail.
type stutters struct {
	session.Store

	fails atomic.Int32
}

var errStutter = errors.New("disk I/O error")

func (s *stutters) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	if kind == session.KindChild && s.fails.Add(-1) >= 0 {
		return session.Record{}, errStutter
	}
	return s.Store.Record(ctx, kind, key)
}

// A child that is taken up while its record can't be read is read again: nobody else will.
func TestAReadThatFailsLeavesNoChildBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		l.stop()
		store := &stutters{Store: w.store}
		store.fails.Store(2)
		l = w.beginOn(store)
		g.open(w.child(1))
		time.Sleep(time.Minute)
		w.wantStates("ended")
		l.stop()
	})
}
