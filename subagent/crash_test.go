package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
	"orchestrator/subagent"
	"orchestrator/tool"
)

// mortal is a store whose process dies at one of its commits: the commit happens or not, and nothing works afterwards.
type mortal struct {
	session.Store

	mu      sync.Mutex
	left    int  // commits until the process dies; below 0 it doesn't
	written bool // the last commit happens, though nobody learns of it
	dead    bool
	die     func()
}

var errDead = errors.New("the process is dead")

func (m *mortal) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return session.Committed{}, errDead
	}
	last := m.left == 0
	m.left--
	m.dead = last
	m.mu.Unlock()
	if !last {
		return m.Store.Commit(ctx, b)
	}
	if m.written {
		if _, err := m.Store.Commit(ctx, b); err != nil {
			return session.Committed{}, err
		}
	}
	m.die()
	return session.Committed{}, errDead
}

func (m *mortal) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// story is a root's turn with children of every fate, as a loop would go on with it in a later life.
type story struct {
	*world
	asked map[int]time.Time // when a call was accepted, in whichever life
}

func newStory(t *testing.T) *story {
	s := &story{world: newWorld(t, subagent.Limits{RunningPerTree: 2, ConsolidationTimeout: time.Hour}), asked: make(map[int]time.Time)}
	s.play = func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
		work := func(d time.Duration) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		switch s.number(turn.Agent) {
		case 1:
			if err := work(time.Second); err != nil {
				return session.Outcome{}, err
			}
		case 2: // waits for a peer
			if err := turn.Parker.Park(ctx, tool.AwaitingPeer); err != nil {
				return session.Outcome{}, err
			}
			if err := work(4 * time.Second); err != nil {
				return session.Outcome{}, err
			}
			if err := turn.Parker.Unpark(ctx); err != nil {
				return session.Outcome{}, err
			}
		case 3:
			return session.Outcome{State: session.StateFailed, TurnEnded: session.TurnEnded{Error: "no luck"}}, nil
		default:
			if err := work(time.Hour); err != nil {
				return session.Outcome{}, err
			}
		}
		return completed("done"), nil
	}
	return s
}

// run is one life: it makes the calls the log has no result of, ends the turn, and reports whether it came to the end.
func (s *story) run(l *life) bool {
	for i, step := range []struct{ name, args string }{
		{"spawn_subagent", `{"description":"short","prompt":"work"}`},
		{"spawn_subagent", `{"description":"parked","prompt":"work"}`},
		{"spawn_subagent", `{"description":"failing","prompt":"work","wait":true}`},
		{"spawn_subagent", `{"description":"cancelled","prompt":"work"}`},
		{"wait_subagents", fmt.Sprintf(`{"ids":[%q],"timeout_seconds":30}`, s.child(1))},
		{"spawn_subagent", `{"description":"timed out","prompt":"work","timeout_seconds":20}`},
		{"cancel_subagent", fmt.Sprintf(`{"id":%q}`, s.child(4))},
	} {
		n := i + 1
		if _, asked := s.asked[n]; !asked {
			s.asked[n] = time.Now()
		}
		if len(s.results(n)) > 0 {
			continue
		}
		if _, err := callTool(l.tree.Context(), l.pool, l.root, n, step.name, step.args, s.asked[n]); err != nil {
			return false
		}
	}
	rec, err := s.store.Record(context.Background(), session.KindTurn, string(s.turn))
	if err != nil {
		s.t.Fatal(err)
	}
	if rec.State == session.StateRunning {
		if _, err := l.tree.EndTurn(l.tree.Context(), l.root, completed("done"), l.pool.EndPart()); err != nil {
			return false
		}
	}
	time.Sleep(time.Minute)
	return l.tree.Context().Err() == nil
}

// results returns the results of the root's nth call.
func (s *story) results(n int) []string {
	events, err := s.store.Events(context.Background(), session.EventQuery{
		Tree: s.root, Agent: s.root, Types: []session.EventType{session.EventToolCompleted},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	var list []string
	for _, e := range events {
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			s.t.Fatal(err)
		}
		if e.ToolCallID == session.MintToolCallID(s.root, n) {
			list = append(list, done.Content)
		}
	}
	return list
}

// check says what is lost, left open or told twice.
func (s *story) check() (faults []string) {
	fault := func(format string, a ...any) { faults = append(faults, fmt.Sprintf(format, a...)) }
	var all []string
	for n := range 7 {
		results := s.results(n + 1)
		if len(results) != 1 {
			fault("call %d has %d results", n+1, len(results))
		}
		all = append(all, results...)
	}
	count := func(list []string, prefix string) (times int) {
		for _, e := range list {
			if e == prefix || strings.HasPrefix(e, prefix+" ") {
				times++
			}
		}
		return times
	}
	spawned, ends, items := s.events(session.EventSubagentSpawned), s.ends(), s.items()
	for n, want := range map[int]string{
		1: "completed", 2: "completed", 3: "failed error", 4: "failed cancelled", 6: "failed timeout",
	} {
		rec, body := s.record(s.child(n))
		if rec.State != subagent.StateConsumed && rec.State != subagent.StateFolded || body.Waiter != "" || !rec.Due.IsZero() {
			fault("child %d is %s, waited for by %q, due %s", n, rec.State, body.Waiter, rec.Due)
		}
		if got := count(spawned, fmt.Sprintf("spawned %d", n)); got != 1 {
			fault("child %d was spawned %d times", n, got)
		}
		told := count(items, fmt.Sprintf("child %d", n))
		for _, result := range all {
			told += strings.Count(result, fmt.Sprintf("Subagent %s (agent \"researcher\", %q): ", s.child(n), body.Description))
		}
		if told != 1 {
			fault("child %d's result was told %d times", n, told)
		}
		verb, reason, _ := strings.Cut(want, " ")
		if end := strings.TrimSpace(fmt.Sprintf("%s %d %s", verb, n, reason)); count(ends, end) != 1 {
			fault("child %d has no one end %q: %v", n, end, ends)
		}
	}
	if len(ends) != 5 {
		fault("ends are %v, want 5", ends)
	}
	if state := s.batchState(); state != subagent.BatchDone {
		fault("batch is %s", state)
	}
	turns, err := s.store.Records(context.Background(), session.RecordQuery{Tree: s.root, Kind: session.KindTurn, States: []session.State{
		session.StateQueued, session.StateRunning, session.StateSuspended,
	}})
	if err != nil || len(turns) > 0 {
		fault("%d turns are left open, %v", len(turns), err)
	}
	return faults
}

// crash plays the story, with a crash at the given commit of each life but the last. It reports whether every crash came.
func crash(t *testing.T, written bool, at ...int) (came bool) {
	bubble(t, func(t *testing.T) {
		s := newStory(t)
		came = true
		for nth := 0; ; nth++ {
			store := &mortal{Store: s.store, left: -1, written: written}
			if nth < len(at) {
				store.left = at[nth]
			}
			ready := make(chan struct{})
			var l *life
			store.die = func() { <-ready; l.die(errDead) }
			l = s.beginOn(store)
			close(ready)
			whole := s.run(l)
			dead := store.gone()
			l.stop()
			synctest.Wait()
			if nth < len(at) {
				came = came && dead
			}
			if whole && !dead {
				break
			}
			if !dead {
				t.Errorf("crash at %v: life %d broke off without a crash", at, nth)
				break
			}
		}
		for _, fault := range s.check() {
			t.Errorf("crash at %v (last commit written: %v): %s", at, written, fault)
		}
	})
	return came
}

func TestCrashAtEveryCommitLosesNothing(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %v", written), func(t *testing.T) {
			crashes := 0
			for at := 0; crash(t, written, at); at++ {
				crashes++
			}
			if crashes < 20 {
				t.Errorf("the story was cut at %d commits, want at least 20", crashes)
			}
			t.Logf("cut at each of %d commits", crashes)
		})
	}
}

func TestCrashWhileRecoveringLosesNothing(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %v", written), func(t *testing.T) {
			for first := 0; crash(t, written, first); first += 3 {
				for second := 0; crash(t, written, first, second); second += 2 {
				}
			}
		})
	}
}
