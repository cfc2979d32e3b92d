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

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/subagent"
	"orchestrator/tool"
)

var subagentEvents = []session.EventType{
	session.EventSubagentSpawned, session.EventSubagentConfigured, session.EventSubagentStarted, session.EventSubagentSuspended,
	session.EventSubagentResumed, session.EventSubagentCompleted, session.EventSubagentFailed,
}

func wantList(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestResultsOfOneTurnComeHomeTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		l.spawn(2)
		synctest.Wait()
		g.open(w.child(1))
		synctest.Wait()
		w.wantStates("ended running")
		l.endRoot(session.StateCompleted)
		w.wantStates("ended running")
		wantList(t, "items before the last has ended", w.items())
		g.open(w.child(2))
		synctest.Wait()
		w.wantStates("folded folded")
		wantList(t, "items", w.items(), "child 1 completed", "child 2 completed")
		wantList(t, "events", w.events(subagentEvents...), "spawned 1", "configured 1", "started 1",
			"spawned 2", "configured 2", "started 2", "completed 1", "completed 2")
		if got := w.batchState(); got != subagent.BatchDone {
			t.Errorf("batch is %s, want done", got)
		}
		l.stop()
	})
}

func TestBatchCompletesWithTheTurnWhenItsChildrenHaveEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		w.wantStates("ended")
		l.endRoot(session.StateFailed)
		wantList(t, "items", w.items(), "child 1 completed")
		l.stop()
	})
}

func TestThirdSubagentStartsOnALentSlot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 2}), &gates{}
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if turn.Agent != w.child(1) {
				return g.play(ctx, turn)
			}
			parking := &gates{parked: true, byID: map[session.ID]chan struct{}{turn.Agent: g.of(turn.Agent)}}
			return parking.play(ctx, turn)
		}
		l := w.begin()
		for n := range 3 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		w.wantStates("suspended running running")
		g.open(w.child(1)) // its answer is there, but there is no slot
		synctest.Wait()
		w.wantStates("suspended running running")
		g.open(w.child(3))
		synctest.Wait()
		w.wantStates("ended running ended")
		wantList(t, "events", w.events(session.EventSubagentStarted, session.EventSubagentSuspended, session.EventSubagentResumed,
			session.EventSubagentCompleted),
			"started 1", "suspended 1 awaiting_peer", "started 2", "started 3", "completed 3", "resumed 1", "completed 1")
		l.stop()
	})
}

func TestSlotStaysWithAWaitingSubagentWhenItIsNotLent(t *testing.T) {
	no := false
	for name, limits := range map[string]subagent.Limits{
		"lend_slot false": {RunningPerTree: 1, LendSlot: &no},
		"alive bound":     {RunningPerTree: 1, Alive: 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, g := newWorld(t, limits), &gates{parked: true}
				w.play = g.play
				l := w.begin()
				l.spawn(1)
				l.spawn(2)
				synctest.Wait()
				w.wantStates("suspended queued")
				g.open(w.child(1))
				synctest.Wait()
				w.wantStates("ended suspended")
				l.stop()
			})
		})
	}
}

func TestResumedSubagentGoesBeforeQueuedSpawns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1}), &gates{}
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if turn.Agent != w.child(1) {
				return g.play(ctx, turn)
			}
			parking := &gates{parked: true, byID: map[session.ID]chan struct{}{turn.Agent: g.of(turn.Agent)}}
			return parking.play(ctx, turn)
		}
		l := w.begin()
		for n := range 4 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		w.wantStates("suspended running queued queued")
		g.open(w.child(1))
		synctest.Wait()
		for _, n := range []int{3, 4} {
			g.open(w.child(n))
		}
		g.open(w.child(2))
		synctest.Wait()
		wantList(t, "events", w.events(session.EventSubagentStarted, session.EventSubagentResumed),
			"started 1", "started 2", "resumed 1", "started 3", "started 4")
		l.stop()
	})
}

func TestTimeoutCountsTheTimeInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawnFor(1, `,"timeout_seconds":60`)
		l.spawnFor(2, `,"timeout_seconds":30`)
		l.spawnFor(3, `,"timeout_seconds":61`)
		time.Sleep(30*time.Second + time.Millisecond)
		synctest.Wait()
		w.wantStates("running ended queued")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.wantStates("ended ended running")
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantStates("ended ended ended")
		wantList(t, "ends", w.ends(), "failed 2 timeout", "failed 1 timeout", "failed 3 timeout")
		wantList(t, "starts", w.events(session.EventSubagentStarted), "started 1", "started 3")
		for n := range 3 {
			if w.endCalls[w.child(n+1)] {
				t.Errorf("the calls of child %d were cancelled; a timeout lets them go on", n+1)
			}
		}
		l.stop()
	})
}

func TestCancelEndsAChildWhateverItDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{RunningPerTree: 2, Alive: 3})
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			parking := &gates{parked: turn.Agent == w.child(1)}
			return parking.play(ctx, turn)
		}
		l := w.begin()
		for n := range 4 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		w.wantStates("suspended running running queued")
		for _, n := range []int{4, 1, 2} {
			done := l.must(10+n, "cancel_subagent", fmt.Sprintf(`{"id":%q}`, w.child(n)))
			if done.IsError || !strings.Contains(done.Content, ": cancelled\n") {
				t.Errorf("cancel child %d = %q", n, done.Content)
			}
		}
		w.wantStates("consumed consumed running consumed")
		wantList(t, "ends", w.ends(), "failed 4 cancelled", "failed 1 cancelled", "failed 2 cancelled")
		wantList(t, "starts", w.events(session.EventSubagentStarted), "started 1", "started 2", "started 3")
		// A door's cancel that another process wrote is noticed too, and its result comes home with the batch.
		l.endRoot(session.StateCompleted)
		if err := w.cancelFromOutside(w.child(3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantStates("consumed consumed folded consumed")
		wantList(t, "items", w.items(), "child 3 cancelled")
		for n := range 4 {
			if !w.endCalls[w.child(n+1)] {
				t.Errorf("the calls of child %d were not cancelled", n+1)
			}
		}
		l.stop()
	})
}

// cancelFromOutside writes the wish as another process would.
func (w *world) cancelFromOutside(id session.ID) error {
	rec, body := w.record(id)
	body.Cancel = "a user wants it"
	_, err := w.store.Commit(context.Background(), session.Batch{Tree: w.root, Changes: []session.Change{rec.Update(rec.State, body)}})
	return err
}

func TestFailuresOfARunAreFailuresOfTheSubagent(t *testing.T) {
	for name, tc := range map[string]struct {
		play func(context.Context, *session.Turn) (session.Outcome, error)
		want string
	}{
		"panic": {func(context.Context, *session.Turn) (session.Outcome, error) { panic("boom") }, "failed 1 error"},
		"error": {func(context.Context, *session.Turn) (session.Outcome, error) {
			return session.Outcome{}, errors.New("disk on fire")
		}, "failed 1 error"},
		"failed turn": {func(context.Context, *session.Turn) (session.Outcome, error) {
			return session.Outcome{State: session.StateFailed}, nil
		}, "failed 1 error"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, subagent.Limits{RunningPerTree: 1})
				play := w.play
				w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
					if turn.Agent == w.child(1) {
						return tc.play(ctx, turn)
					}
					return play(ctx, turn)
				}
				l := w.begin()
				l.spawn(1)
				l.spawn(2)
				synctest.Wait()
				wantList(t, "ends", w.ends(), tc.want, "completed 2")
				l.stop()
			})
		})
	}
}

func TestWaitTakesTheResultAndNothingIsFolded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		time.AfterFunc(time.Second, func() { g.open(w.child(1)) })
		time.AfterFunc(2*time.Second, func() { g.open(w.child(2)) })
		waited := l.must(2, "spawn_subagent", `{"description":"second","prompt":"work","wait":true}`)
		if !strings.Contains(waited.Content, "<agent_data from=\"researcher\">\ndone\n</agent_data>") || waited.IsError {
			t.Errorf("spawn with wait = %q", waited.Content)
		}
		w.wantStates("ended consumed")
		both := l.must(3, "wait_subagents", `{"timeout_seconds":10}`)
		if !strings.Contains(both.Content, string(w.child(1))) || strings.Contains(both.Content, string(w.child(2))) {
			t.Errorf("wait_subagents = %q, want child 1 only", both.Content)
		}
		if again := l.must(4, "wait_subagents", `{"timeout_seconds":10}`); again.Content != "There is no subagent to wait for." {
			t.Errorf("a second wait = %q", again.Content)
		}
		w.wantStates("consumed consumed")
		l.endRoot(session.StateCompleted)
		wantList(t, "items", w.items())
		if got := w.batchState(); got != subagent.BatchDone {
			t.Errorf("batch is %s, want done", got)
		}
		l.stop()
	})
}

func TestWaitThatRunsOutLeavesTheResultToTheBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		l.spawn(2)
		time.AfterFunc(time.Second, func() { g.open(w.child(2)) })
		began := time.Now()
		done := l.must(3, "wait_subagents", fmt.Sprintf(`{"ids":[%q,%q],"timeout_seconds":5}`, w.child(1), w.child(2)))
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("waited %s, want 5s", waited)
		}
		if !strings.Contains(done.Content, fmt.Sprintf("Subagent %s (agent \"researcher\", \"task 1\") is still running after 5s", w.child(1))) {
			t.Errorf("wait_subagents = %q", done.Content)
		}
		w.wantStates("running consumed")
		l.endRoot(session.StateCompleted)
		g.open(w.child(1))
		synctest.Wait()
		wantList(t, "items", w.items(), "child 1 completed")
		l.stop()
	})
}

func TestWaiterIsClearedWithTheTurn(t *testing.T) {
	for state, want := range map[session.State]string{
		session.StateFailed:    "child 1 completed", // goes on without its waiter
		session.StateCancelled: "child 1 cancelled", // a cancelled turn cancels what it blocks on
	} {
		t.Run(string(state), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, g := newWorld(t, subagent.Limits{}), &gates{}
				w.play = g.play
				l := w.begin()
				ctx, cancel := context.WithCancel(t.Context())
				waited := make(chan error, 1)
				var wg sync.WaitGroup
				wg.Go(func() {
					_, err := callTool(ctx, l.pool, l.root, 1, "spawn_subagent", `{"description":"first","prompt":"work","wait":true}`, time.Now())
					waited <- err
				})
				synctest.Wait()
				cancel()
				wg.Wait()
				if err := <-waited; !errors.Is(err, context.Canceled) {
					t.Fatalf("the wait = %v, want its context's end", err)
				}
				l.endRoot(state)
				time.Sleep(time.Second)
				if state == session.StateFailed {
					g.open(w.child(1))
				}
				synctest.Wait()
				wantList(t, "items", w.items(), want)
				l.stop()
			})
		})
	}
}

func TestStragglersAreNamedAndFollowSingly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{ConsolidationTimeout: time.Minute}), &gates{}
		w.play = g.play
		l := w.begin()
		for n := range 3 {
			l.spawn(n + 1)
		}
		g.open(w.child(2))
		l.endRoot(session.StateCompleted)
		time.Sleep(time.Minute)
		due, err := w.store.Records(t.Context(), session.RecordQuery{Kind: session.KindBatch, DueBefore: time.Now().Add(time.Nanosecond)})
		if err != nil || len(due) != 1 {
			t.Fatalf("due batches = %v, %v, want one", due, err)
		}
		if err := l.pool.Sweep(t.Context(), due[0]); err != nil {
			t.Fatal(err)
		}
		wantList(t, "items", w.items(), "pending 1 running", "pending 3 running", "child 2 completed")
		if err := l.pool.Sweep(t.Context(), due[0]); err != nil {
			t.Errorf("a second sweep = %v", err)
		}
		g.open(w.child(3))
		synctest.Wait()
		g.open(w.child(1))
		synctest.Wait()
		w.wantStates("folded folded folded")
		wantList(t, "items", w.items(), "pending 1 running", "pending 3 running", "child 2 completed", "child 3 completed", "child 1 completed")
		due, err = w.store.Records(t.Context(), session.RecordQuery{Kind: session.KindBatch, DueBefore: time.Now().Add(time.Hour)})
		if err != nil || len(due) != 0 {
			t.Errorf("due batches = %v, %v, want none", due, err)
		}
		l.stop()
	})
}

func TestLaterTurnMayTakeAResultOfAnEarlierOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		l.spawn(2)
		l.endRoot(session.StateCompleted)
		second := l.nextTurn(0)
		time.AfterFunc(time.Second, func() { g.open(w.child(2)) })
		time.AfterFunc(2*time.Second, func() { g.open(w.child(1)) }) // the last one, which somebody waits for
		done, err := callTool(t.Context(), l.pool, second, 3, "wait_subagents",
			fmt.Sprintf(`{"ids":[%q],"timeout_seconds":60}`, w.child(1)), time.Now())
		if err != nil || !strings.Contains(done.Content, "completed") {
			t.Fatalf("wait = %v, %v", done, err)
		}
		wantList(t, "items", w.items(), "child 2 completed")
		if got := w.batchState(); got != subagent.BatchDone {
			t.Errorf("batch is %s, want done", got)
		}
		l.stop()
	})
}

// nextTurn starts another turn of the root, of a generation of fold-backs.
func (l *life) nextTurn(generation int) *session.Turn {
	l.t.Helper()
	ctx := context.Background()
	scope := session.Scope{Root: l.world.root, Agent: l.world.root, Turn: session.NewTurnID()}
	scope.OriginTurn = scope.Turn
	b := session.QueueTurn(scope, session.TurnBody{Origin: session.OriginUser, Input: "and then", Generation: generation}, time.Time{})
	b.Tree = l.world.root
	done, err := l.store.Commit(ctx, b)
	if err != nil {
		l.t.Fatal(err)
	}
	turn, err := l.tree.StartTurn(ctx, done.Records[0], session.Setup{Agent: "primary"}, session.Batch{})
	if err != nil {
		l.t.Fatal(err)
	}
	return turn
}

func TestSpawnIsRefusedInAPlainSentence(t *testing.T) {
	const args = `{"description":"task","prompt":"work"}`
	refused := func(t *testing.T, done session.ToolCompleted, want string) {
		t.Helper()
		if !done.IsError || !strings.Contains(done.Content, want) {
			t.Errorf("spawn = %+v, want a refusal with %q", done, want)
		}
	}
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1, Queued: 2, Spawned: 4}), &gates{}
		w.play = g.play
		l := w.begin()
		refused(t, l.must(90, "spawn_subagent", `{"agent":"resarcher","description":"x","prompt":"y"}`), `did you mean "researcher"?`)
		refused(t, l.must(91, "spawn_subagent", `{"agent":"writer","description":"x","prompt":"y"}`), "its model is not configured")
		refused(t, l.must(92, "spawn_subagent", `{"description":"x","prompt":"y","inputs":["x_none"]}`), `no artifact "x_none"`)
		for n := range 3 {
			l.spawn(n + 1)
			synctest.Wait()
		}
		refused(t, l.must(93, "spawn_subagent", args), "2 subagents already wait for a slot")
		refused(t, l.must(94, "spawn_subagent", strings.Replace(args, "}", `,"wait":true}`, 1)), "2 subagents already wait for a slot")
		g.open(w.child(1))
		synctest.Wait()
		l.spawn(4)
		g.open(w.child(2))
		synctest.Wait()
		refused(t, l.must(95, "spawn_subagent", args), "has spawned 4 subagents")
		refused(t, l.must(96, "cancel_subagent", `{"id":"s_other"}`), `no subagent "s_other"`)
		l.endRoot(session.StateCompleted)
		late, err := callTool(t.Context(), l.pool, l.nextTurn(5), 97, "spawn_subagent", args, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		refused(t, late, "5th turn in a row")
		l.stop()
	})
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1, OnFull: subagent.OnFullReject}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		refused(t, l.must(2, "spawn_subagent", args), "every slot for subagents is taken")
		g.open(w.child(1))
		synctest.Wait()
		l.spawn(3)
		l.stop()
	})
}

func TestNestedSpawnAlwaysWaitsAndLendsItsSlot(t *testing.T) {
	no := false
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{RunningPerTree: 1, Depth: 2, Alive: 1, LendSlot: &no})
		var l *life
		var inner, innermost session.ToolCompleted
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			var err error
			if turn.Parent == w.root {
				inner, err = callTool(ctx, l.pool, turn, 1, "spawn_subagent", `{"description":"part","prompt":"work"}`, time.Now())
				if err == nil {
					err = turn.Parker.Unpark(ctx)
				}
			} else {
				innermost, err = callTool(ctx, l.pool, turn, 1, "spawn_subagent", `{"description":"part","prompt":"work"}`, time.Now())
			}
			return completed("from " + string(turn.Agent)), err
		}
		l = w.begin()
		l.spawn(1)
		synctest.Wait()
		grandchild := session.ChildIDFor(session.MintToolCallID(w.child(1), 1))
		if want := "from " + string(grandchild); !strings.Contains(inner.Content, want) {
			t.Errorf("nested spawn = %q, want it to hold %q", inner.Content, want)
		}
		if !innermost.IsError || !strings.Contains(innermost.Content, "do the task yourself") {
			t.Errorf("spawn below the depth = %q", innermost.Content)
		}
		w.wantStates("ended")
		if rec, _ := w.record(grandchild); rec.State != subagent.StateConsumed {
			t.Errorf("grandchild is %s, want consumed", rec.State)
		}
		l.stop()
	})
}

func TestResultOfANestedSubagentGoesToTheRootWhenItsParentIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(l *life)
		want string
	}{
		"parent times out":    {func(*life) { time.Sleep(time.Minute) }, "completed"},
		"parent is cancelled": {func(l *life) { _ = l.pool.Cancel(context.Background(), l.child(1), "no need") }, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, g := newWorld(t, subagent.Limits{Depth: 2}), &gates{}
				var l *life
				w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
					if turn.Parent != w.root {
						return g.play(ctx, turn)
					}
					// Not told of its deadline, so that the child doesn't get the shorter one.
					turn.Body.Deadline = time.Time{}
					_, err := callTool(ctx, l.pool, turn, 1, "spawn_subagent", `{"description":"part","prompt":"work"}`, time.Now())
					return session.Outcome{}, err
				}
				l = w.begin()
				l.spawnFor(1, `,"timeout_seconds":60`)
				synctest.Wait()
				grandchild := session.ChildIDFor(session.MintToolCallID(w.child(1), 1))
				tc.end(l)
				time.Sleep(2 * time.Second)
				if tc.want == "completed" {
					g.open(grandchild)
				}
				synctest.Wait()
				rec, err := w.store.Record(t.Context(), session.KindItem, session.ChildItemKey(session.ItemChild, grandchild, 1))
				if err != nil {
					t.Fatal(err)
				}
				var item session.ItemBody
				if err := rec.Decode(&item); err != nil {
					t.Fatal(err)
				}
				if rec.Owner != w.root || item.State != tc.want || item.Asker != w.child(1) || !item.AskerEnded {
					t.Errorf("item of %s = %+v, want it %s and the root's", rec.Owner, item, tc.want)
				}
				l.stop()
			})
		})
	}
}

func TestAgentMayHaveATimeoutOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		w.timeouts = map[string]time.Duration{"researcher": time.Minute}
		l := w.begin()
		l.spawn(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantList(t, "ends", w.ends(), "failed 1 timeout")
		l.stop()
	})
}

func TestClosingTheSessionCancelsEveryChild(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{RunningPerTree: 1}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		l.spawn(2)
		l.endRoot(session.StateCancelled)
		for range 2 {
			if err := l.pool.CloseTree(t.Context(), l.tree); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		ends := w.ends()
		slices.Sort(ends)
		wantList(t, "ends", ends, "failed 1 cancelled", "failed 2 cancelled")
		w.wantStates("folded folded")
		l.stop()
	})
}

func TestLateSweepOfAChildTimesItOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		l.spawn(1)
		synctest.Wait()
		rec, _ := w.record(w.child(1))
		if err := l.pool.Sweep(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantList(t, "ends", w.ends(), "failed 1 timeout")
		if rec, _ := w.record(w.child(1)); !rec.Due.IsZero() {
			t.Errorf("an ended child is due at %s", rec.Due)
		}
		l.stop()
	})
}

func TestListNamesStateAndTimeLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, g := newWorld(t, subagent.Limits{}), &gates{}
		w.play = g.play
		l := w.begin()
		if got := l.must(9, "list_subagents", `{}`).Content; got != "You have spawned no subagents." {
			t.Errorf("list = %q", got)
		}
		l.spawnFor(1, `,"timeout_seconds":90`)
		l.spawn(2)
		g.open(w.child(2))
		time.Sleep(30 * time.Second)
		want := fmt.Sprintf("%s: agent \"researcher\", \"task 1\", running, 1m0s left\n"+
			"%s: agent \"researcher\", \"task 2\", completed; the result has not been delivered yet", w.child(1), w.child(2))
		if diff := cmp.Diff(want, l.must(10, "list_subagents", `{}`).Content); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		l.stop()
	})
}

func TestEnvelopeTellsWhatTheSubagentDid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, subagent.Limits{})
		long := strings.Repeat("word ", 4000)
		w.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			call := turn.WithToolCall(session.MintToolCallID(turn.Agent, 1))
			other := turn.WithToolCall(session.MintToolCallID(turn.Agent, 2))
			_, err := turn.Commit(ctx, session.Batch{Events: []session.Event{
				turn.Event(session.EventMessageCompleted, session.Message{Role: session.RoleAssistant, Text: "I will ask."}),
				call.Event(session.EventInvocationReplied, session.Invocation{Peer: "advisor"}),
				call.Event(session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "the answer is 42"}),
				other.Event(session.EventToolCompleted, session.ToolCompleted{
					Name: "invoke_agent", Content: "see x_01ARZ3NDEKTSV4RRFFQ69G5FAV", IsError: true,
				}),
			}})
			if err != nil {
				return session.Outcome{}, err
			}
			if turn.Agent == w.child(2) {
				return completed(long), nil
			}
			return session.Outcome{State: session.StateFailed, TurnEnded: session.TurnEnded{
				Error: "the model is gone", Usage: session.Usage{ModelCalls: 2, InputTokens: 10, OutputTokens: 5},
			}}, nil
		}
		l := w.begin()
		l.spawn(1)
		l.spawn(2)
		synctest.Wait()
		_, first := w.record(w.child(1))
		want := &subagent.Envelope{
			ID: w.child(1), Agent: "researcher", State: "error", Error: "the model is gone",
			Artifacts: []session.ArtifactKey{"x_01ARZ3NDEKTSV4RRFFQ69G5FAV"},
			Usage:     session.Usage{ModelCalls: 2, InputTokens: 10, OutputTokens: 5},
			Tools:     []subagent.ToolUse{{Name: "invoke_agent", Calls: 2, Errors: 1}},
			Text: "It ended without finishing (error): the model is gone\nIts last words were:\nI will ask.\n\n" +
				"After that, \"advisor\" had answered it:\nthe answer is 42\n\n" +
				"artifacts: x_01ARZ3NDEKTSV4RRFFQ69G5FAV\ntool calls: invoke_agent 2 (1 failed)\n" +
				"usage: 2 model calls, 10 input and 5 output tokens",
		}
		if diff := cmp.Diff(want, first.Result); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
		_, second := w.record(w.child(2))
		if n := len(second.Result.Text); n > session.InlineBudget || n < session.InlineBudget/2 {
			t.Errorf("a long result has %d bytes inline, want at most %d", n, session.InlineBudget)
		}
		key := second.Result.Artifacts[len(second.Result.Artifacts)-1]
		all, err := w.store.Artifact(t.Context(), w.root, key)
		if err != nil || !strings.HasPrefix(string(all.Data), long) {
			t.Errorf("artifact %s = %d bytes, %v, want the whole text", key, len(all.Data), err)
		}
		if !strings.Contains(second.Result.Text, string(key)) {
			t.Errorf("the inline text doesn't name the artifact %s", key)
		}
		l.stop()
	})
}

func TestNewNamesTheFieldThatIsWrong(t *testing.T) {
	_, err := subagent.New(subagent.Config{})
	if err == nil || !strings.Contains(err.Error(), "Store") {
		t.Errorf("New without a store = %v", err)
	}
	w := newWorld(t, subagent.Limits{})
	prepare := func(context.Context, session.Record, session.SessionBody) (session.Setup, error) {
		return session.Setup{}, nil
	}
	l := w.begin()
	defer l.stop()
	_, err = subagent.New(subagent.Config{
		Store: w.store, Runner: w, Prepare: prepare, Agents: []string{"a"}, Limits: subagent.Limits{OnFull: "drop"}, Logger: testLogger(t),
	})
	if err == nil || !strings.Contains(err.Error(), `"queue" or "reject"`) {
		t.Errorf("New with on_full drop = %v", err)
	}
	for _, tl := range l.pool.Tools() {
		if spec := tl.Spec(); spec.Source != tool.SourceSubagent || !spec.Repeatable {
			t.Errorf("tool %s is of source %s, repeatable %v", spec.Name, spec.Source, spec.Repeatable)
		}
	}
}
