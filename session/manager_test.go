package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
)

// runner is a TurnRunner whose turns do what the test says.
type runner struct {
	run func(ctx context.Context, t *session.Turn) (session.Outcome, error)

	mu   sync.Mutex
	runs []string // inputs by turn origin, in order
}

func (r *runner) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	r.mu.Lock()
	r.runs = append(r.runs, fmt.Sprintf("%s %d", t.Body.Origin, t.Body.Attempt))
	r.mu.Unlock()
	if r.run != nil {
		return r.run(ctx, t)
	}
	return completed("done"), nil
}

func completed(output string) session.Outcome {
	return session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: output, StopReason: "end_turn"}}
}

func hooks(r *runner) session.Hooks {
	return session.Hooks{
		Runner: r,
		Prepare: func(_ context.Context, _ session.Record, body session.SessionBody) (session.Setup, error) {
			if body.Agent == "nobody" {
				return session.Setup{}, errors.New("there is no agent 'nobody'")
			}
			return session.Setup{Agent: body.Agent, Model: "m"}, nil
		},
		Fold: func(_ context.Context, _ session.ID, items []session.Record) (session.Folded, error) {
			var f session.Folded
			for _, item := range items {
				f.Text += item.Key + "\n"
				f.CausedBy = append(f.CausedBy, item.Key)
			}
			return f, nil
		},
		FoldFailed: func(_ context.Context, _ session.ID, items []session.Record, cause string) string {
			return fmt.Sprintf("%d raw results, since: %s", len(items), cause)
		},
	}
}

// start runs a Manager over the store; stop ends it as a signal would.
func start(t *testing.T, store session.Store, h session.Hooks) (m *session.Manager, stop func()) {
	t.Helper()
	m, err := session.NewManager(session.Config{Store: store, Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m.Use(h)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m, func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := m.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
}

func open(t *testing.T, m *session.Manager) session.ID {
	t.Helper()
	id, err := m.Open(t.Context(), session.OpenRequest{Agent: "primary"})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func submit(t *testing.T, m *session.Manager, id session.ID, input string) session.TurnID {
	t.Helper()
	turn, err := m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func putItem(t *testing.T, store session.Store, root session.ID, origin session.TurnID, keys ...string) {
	t.Helper()
	b := session.Batch{Tree: root}
	for _, k := range keys {
		b.Changes = append(b.Changes, session.NewItem(k, root, origin, session.ItemBody{Kind: session.ItemReply}))
	}
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// story is the log of a tree without session.state, as "type" or "type text".
func story(t *testing.T, store session.Store, root session.ID) []string {
	t.Helper()
	events, err := store.Events(t.Context(), session.EventQuery{Tree: root})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, e := range events {
		if e.Seq != uint64(i)+1 {
			t.Errorf("event %d has seq %d", i, e.Seq)
		}
		var data struct{ Text, Output, Error, Origin string }
		if e.Data != nil {
			if err := e.Decode(&data); err != nil {
				t.Fatal(err)
			}
		}
		if e.Type != session.EventSessionState {
			got = append(got, strings.Join(strings.Fields(strings.Join([]string{string(e.Type), data.Origin, data.Text, data.Output, data.Error}, " ")), " "))
		}
	}
	return got
}

func TestTurnsRunInOrderAndEndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{}))
		defer stop()
		id := open(t, m)
		submit(t, m, id, "one")
		submit(t, m, id, "two")
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"session.created", "turn.queued user", "turn.queued user",
			"turn.started user", "message.completed one", "turn.completed done",
			"turn.started user", "message.completed two", "turn.completed done",
		}
		got := story(t, store, id)
		// The second input may be queued before or after the first turn starts; here only the turns' own order counts.
		trim := func(s []string) (out []string) {
			for _, x := range s {
				if !strings.HasPrefix(x, "turn.queued") {
					out = append(out, x)
				}
			}
			return out
		}
		if diff := cmp.Diff(trim(want), trim(got)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestUserTurnsGoFirstButAFoldBackWaitsForTwoAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		gate := make(chan struct{})
		r := &runner{run: func(context.Context, *session.Turn) (session.Outcome, error) {
			<-gate
			return completed("ok"), nil
		}}
		m, stop := start(t, store, hooks(r))
		defer stop()
		id := open(t, m)
		first := submit(t, m, id, "1")
		synctest.Wait()
		putItem(t, store, id, first, "call:a", "call:b")
		putItem(t, store, id, "t_other", "call:c")
		for range 3 {
			submit(t, m, id, "more")
		}
		close(gate)
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		want := []string{"user 1", "user 1", "foldback 1", "user 1", "user 1", "foldback 1"}
		if diff := cmp.Diff(want, r.runs); diff != "" {
			t.Errorf("turns (-want +got):\n%s", diff)
		}
		log := strings.Join(story(t, store, id), "\n")
		if !strings.Contains(log, "message.completed call:a call:b") {
			t.Errorf("the two items of one origin are not one turn:\n%s", log)
		}
	})
}

func TestTurnThatFindsNoRoomSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{run: func(context.Context, *session.Turn) (session.Outcome, error) {
			return session.Outcome{}, fmt.Errorf("commit: %w", session.ErrFull)
		}}))
		defer stop()
		id := open(t, m)
		turn, err := m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: "go"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.WaitTurn(t.Context(), turn, session.UntilTurn)
		if err != nil || got.State != session.StateFailed || got.Code != session.CodeStorageFull || got.Error != "no space is left for the database; ask again when there is" {
			t.Errorf("the turn is %s, %q, code %q (%v)", got.State, got.Error, got.Code, err)
		}
	})
}

func TestFailedFoldBackStillTellsTheRawResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{run: func(context.Context, *session.Turn) (session.Outcome, error) {
			panic("boom")
		}}))
		defer stop()
		id := open(t, m)
		putItem(t, store, id, "t_1", "call:a")
		if _, err := m.Tree(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		log := strings.Join(story(t, store, id), "\n")
		for _, want := range []string{"message.completed 1 raw results, since: internal error: boom", "turn.failed"} {
			if !strings.Contains(log, want) {
				t.Errorf("no %q in:\n%s", want, log)
			}
		}
	})
}

func TestSubmitIsIdempotentByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := start(t, session.NewMemory(), hooks(&runner{}))
		defer stop()
		id := open(t, m)
		send := func(input string) (session.TurnID, error) {
			return m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: input, Key: "k"})
		}
		a, err := send("x")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := send("x"); err != nil || a != b {
			t.Errorf("second Submit = %v, %v, want %v", b, err, a)
		}
		if _, err := send("y"); !errors.Is(err, session.ErrKeyReused) {
			t.Errorf("Submit of another input = %v, want ErrKeyReused", err)
		}
	})
}

func TestSubmitSaysWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		gate := make(chan struct{})
		m, stop := start(t, store, hooks(&runner{run: func(context.Context, *session.Turn) (session.Outcome, error) {
			<-gate
			return completed(""), nil
		}}))
		defer stop()
		id := open(t, m)
		submit(t, m, id, "busy")
		for _, tc := range []struct {
			name string
			req  session.SubmitRequest
			want error
		}{
			{"empty", session.SubmitRequest{Session: id}, session.ErrBadInput},
			{"huge", session.SubmitRequest{Session: id, Input: strings.Repeat("x", 1<<20+1)}, session.ErrBadInput},
			{"unknown busy rule", session.SubmitRequest{Session: id, Input: "x", OnBusy: "drop"}, session.ErrBadInput},
			{"no such session", session.SubmitRequest{Session: "s_0", Input: "x"}, session.ErrNotFound},
			{"busy", session.SubmitRequest{Session: id, Input: "x", OnBusy: session.BusyReject}, session.ErrBusy},
		} {
			if _, err := m.Submit(t.Context(), tc.req); !errors.Is(err, tc.want) {
				t.Errorf("%s: Submit = %v, want %v", tc.name, err, tc.want)
			}
		}
		for i := 0; ; i++ {
			_, err := m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: "x"})
			if errors.Is(err, session.ErrQueueFull) {
				break
			}
			if err != nil || i > 101 {
				t.Fatalf("Submit %d = %v, want ErrQueueFull at last", i, err)
			}
		}
		close(gate)
	})
}

func TestCancelEndsAQueuedTurnAtOnceAndARunningOneSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{run: func(ctx context.Context, _ *session.Turn) (session.Outcome, error) {
			<-ctx.Done()
			var cancelled *session.TurnCancelledError
			if !errors.As(context.Cause(ctx), &cancelled) {
				return session.Outcome{}, context.Cause(ctx)
			}
			return session.Outcome{State: session.StateCancelled, TurnEnded: session.TurnEnded{Error: cancelled.Reason}}, nil
		}}))
		defer stop()
		id := open(t, m)
		running := submit(t, m, id, "running")
		synctest.Wait()
		queued := submit(t, m, id, "queued")
		for range 2 { // the second time is a no-op
			for turn, reason := range map[session.TurnID]string{queued: "not needed", running: "enough"} {
				if err := m.Cancel(t.Context(), turn, reason); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		log := strings.Join(story(t, store, id), "\n")
		for _, want := range []string{"turn.cancelled not needed", "turn.cancelled enough"} {
			if strings.Count(log, want) != 1 {
				t.Errorf("%q is not there once:\n%s", want, log)
			}
		}
	})
}

func TestAStopCancelsNothingAndTheNextStartGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		r := &runner{run: func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if turn.Body.Attempt < 6 {
				<-ctx.Done()
				return session.Outcome{}, context.Cause(ctx)
			}
			return completed("at last"), nil
		}}
		var id session.ID
		for i := range 6 {
			m, stop := start(t, store, hooks(r))
			if i == 0 {
				id = open(t, m)
				submit(t, m, id, "long")
			}
			synctest.Wait()
			stop()
		}
		log := story(t, store, id)
		if got := log[len(log)-1]; got != "turn.completed at last" {
			t.Errorf("last event = %q, want turn.completed; stops count as crashes?\n%s", got, strings.Join(log, "\n"))
		}
	})
}

func TestThreeCrashesInARowFailATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		hang := &runner{run: func(ctx context.Context, _ *session.Turn) (session.Outcome, error) {
			<-ctx.Done()
			return session.Outcome{}, context.Cause(ctx)
		}}
		m, stop := start(t, store, hooks(hang))
		id := open(t, m)
		submit(t, m, id, "poison")
		synctest.Wait()
		for range 3 {
			// A crash is an owner that goes without a word: another one claims when the lease is over.
			info, err := store.Tree(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			session.StopWithoutRelease(m)
			time.Sleep(time.Until(info.LeaseUntil) + time.Minute)
			m, stop = start(t, store, hooks(hang))
			synctest.Wait()
		}
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		stop()
		log := story(t, store, id)
		if got := log[len(log)-1]; !strings.HasPrefix(got, "turn.failed the process crashed 3 times in a row") {
			t.Errorf("last event = %q\n%s", got, strings.Join(log, "\n"))
		}
	})
}

func TestCloseEndsEverythingAndIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		h := hooks(&runner{run: func(ctx context.Context, _ *session.Turn) (session.Outcome, error) {
			<-ctx.Done()
			return session.Outcome{State: session.StateCancelled}, nil
		}})
		m, stop := start(t, store, h)
		defer stop()
		id := open(t, m)
		submit(t, m, id, "one")
		submit(t, m, id, "two")
		synctest.Wait()
		for range 2 {
			if err := m.Close(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		log := strings.Join(story(t, store, id), "\n")
		if strings.Count(log, "turn.cancelled") != 2 || strings.Count(log, "session.closed") != 1 {
			t.Errorf("log:\n%s", log)
		}
		if _, err := m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: "x"}); !errors.Is(err, session.ErrSessionClosed) {
			t.Errorf("Submit to a closed session = %v, want ErrSessionClosed", err)
		}
		time.Sleep(2 * time.Hour)
		if _, err := store.Tree(t.Context(), id); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("after its retention the tree is still there: %v", err)
		}
	})
}

func TestAnAgentThatIsGoneFailsTheTurnAndNotTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{}))
		defer stop()
		id, err := m.Open(t.Context(), session.OpenRequest{Agent: "nobody"})
		if err != nil {
			t.Fatal(err)
		}
		submit(t, m, id, "hello")
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		log := story(t, store, id)
		if got := log[len(log)-1]; got != "turn.failed there is no agent 'nobody'" {
			t.Errorf("last event = %q", got)
		}
	})
}

func TestASubscriberHasEveryEventOnceHoweverSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{}))
		defer stop()
		id := open(t, m)
		const turns = 40
		var after uint64
		read := func(n int) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for e, err := range m.Subscribe(ctx, session.SubscribeRequest{Session: id, After: after, Ephemeral: true}) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Seq != after+1 {
					t.Fatalf("event %d follows %d", e.Seq, after)
				}
				after = e.Seq
				if n--; n == 0 {
					return
				}
				time.Sleep(3 * time.Millisecond)
			}
		}
		for i := range turns {
			submit(t, m, id, fmt.Sprint(i))
			if i%7 == 0 {
				read(3)
			}
		}
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		info, err := store.Tree(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		read(int(info.HeadSeq - after))
		if after != info.HeadSeq {
			t.Errorf("read up to %d of %d", after, info.HeadSeq)
		}
	})
}

// TestWhatIsToldInPassingStandsWhereItWasTold: a reader that lags behind gets the pieces of a message before the message
// and after the one before it.
func TestWhatIsToldInPassingStandsWhereItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 5
		var want []string
		r := &runner{run: func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			for i := range messages {
				text := fmt.Sprint("message ", i)
				for _, piece := range []string{"a", "b"} {
					turn.Tree().Publish(turn.Event(session.EventMessageDelta, session.Delta{MessageID: text, Text: piece}))
				}
				if _, err := turn.Commit(ctx, session.Batch{Events: []session.Event{
					turn.Event(session.EventMessageCompleted, session.Message{MessageID: text, Role: session.RoleAssistant}),
				}}); err != nil {
					return session.Outcome{}, err
				}
				want = append(want, text+" a", text+" b", text)
			}
			return completed("done"), nil
		}}
		m, stop := start(t, session.NewMemory(), hooks(r))
		defer stop()
		id := open(t, m)
		for _, lag := range []int{0, 1, 3, 4, 6, 7} { // where the reader stops until all is said
			want = nil
			info, err := m.Store().Tree(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var got []string
			seen := -1
			var reading sync.WaitGroup
			reading.Go(func() {
				for e, err := range m.Subscribe(ctx, session.SubscribeRequest{Session: id, After: info.HeadSeq, Ephemeral: true}) {
					if err != nil {
						return
					}
					var d session.Delta
					var msg session.Message
					switch {
					case e.Type == session.EventMessageDelta && e.Decode(&d) == nil:
						got = append(got, d.MessageID+" "+d.Text)
					case e.Type == session.EventMessageCompleted && e.Decode(&msg) == nil && msg.Role == session.RoleAssistant:
						got = append(got, msg.MessageID)
					}
					if seen++; seen == lag {
						time.Sleep(time.Second)
					}
				}
			})
			synctest.Wait()
			submit(t, m, id, "talk")
			time.Sleep(2 * time.Second)
			cancel()
			reading.Wait()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("with a reader that stops at event %d (-want +got):\n%s", lag, diff)
			}
		}
	})
}

func TestAnIdleTreeIsGivenBackAndTakenUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		m, stop := start(t, store, hooks(&runner{}))
		defer stop()
		id := open(t, m)
		for range 3 {
			submit(t, m, id, "hello")
			if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			info, err := store.Tree(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if info.Owner != "" {
				t.Fatalf("an idle tree is owned by %s", info.Owner)
			}
		}
	})
}

func TestALostTreeIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		causes := make(chan error, 1)
		m, stop := start(t, store, hooks(&runner{run: func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return session.Outcome{}, context.Cause(ctx)
		}}))
		defer stop()
		id := open(t, m)
		submit(t, m, id, "long")
		synctest.Wait()
		info, err := store.Tree(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		// Another process takes the tree over, as it may once the lease has run out.
		if err := store.Release(t.Context(), session.Lease{Tree: id, Owner: info.Owner, Epoch: info.Epoch}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Claim(t.Context(), id, "another", time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := <-causes; !errors.Is(err, session.ErrFenced) {
			t.Errorf("the turn ended with %v, want ErrFenced", err)
		}
		time.Sleep(time.Minute)
		rec, err := store.Records(t.Context(), session.RecordQuery{Tree: id, Kind: session.KindTurn})
		if err != nil || rec[0].State != session.StateRunning {
			t.Errorf("turn is %v (%v), want it left running for its new owner", rec, err)
		}
	})
}

func TestAStopWhileATreeIsTakenUpIsNoCrash(t *testing.T) {
	// What a process that stops leaves must be released: a lease that isn't counts as a crash of its turns.
	released := func(t *testing.T, store session.Store, id session.ID) {
		t.Helper()
		info, err := store.Tree(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if info.Epoch == 0 || info.Owner != "" {
			t.Errorf("the tree is at epoch %d and owned by %q, want it claimed and released", info.Epoch, info.Owner)
		}
	}
	t.Run("recovering", func(t *testing.T) {
		store := session.NewMemory()
		id := session.NewID()
		if _, err := store.Commit(t.Context(), session.Batch{
			Tree: id, Create: true, Changes: []session.Change{
				session.Insert(session.KindSession, string(id), id, "", session.StateOpen, session.SessionBody{Agent: "primary"}, time.Time{}),
				session.NewItem("call:c", id, "t_1", session.ItemBody{}),
			},
		}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		h := hooks(&runner{})
		h.Recover = []func(context.Context, *session.Tree) error{func(ctx context.Context, _ *session.Tree) error {
			cancel()
			return ctx.Err()
		}}
		m, err := session.NewManager(session.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		m.Use(h)
		if err := m.Start(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Start() = %v, want it cancelled", err)
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		released(t, store, id)
	})
	t.Run("claiming", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := slowClaim{Store: session.NewMemory(), gate: make(chan struct{})}
			m, stop := start(t, store, hooks(&runner{}))
			id := open(t, m)
			var wg sync.WaitGroup
			wg.Go(func() { submit(t, m, id, "hello") })
			synctest.Wait()
			wg.Go(stop)
			synctest.Wait()
			close(store.gate)
			wg.Wait()
			released(t, store, id)
		})
	})
}

// slowClaim is a store whose claims take until the gate is open.
type slowClaim struct {
	session.Store

	gate chan struct{}
}

func (s slowClaim) Claim(ctx context.Context, tree session.ID, owner string, ttl time.Duration) (session.Lease, error) {
	<-s.gate
	return s.Store.Claim(ctx, tree, owner, ttl)
}

func TestATreeIsOwnedForWhatIsFollowedAndForNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		h := hooks(&runner{})
		h.Follow = []session.RecordQuery{
			{Kind: session.KindCall, States: []session.State{"cancelled"}, DueBefore: time.Now().AddDate(1, 0, 0)},
		}
		put := func(due time.Time) session.ID {
			id := session.NewID()
			_, err := store.Commit(t.Context(), session.Batch{Tree: id, Create: true, Changes: []session.Change{
				session.Insert(session.KindSession, string(id), id, "", session.StateOpen, session.SessionBody{Agent: "primary"}, time.Time{}),
				session.Insert(session.KindCall, "c_"+string(id), id, "t_1", "cancelled", nil, due),
			}})
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		owing, settled := put(time.Now().Add(time.Hour)), put(time.Time{})
		m, stop := start(t, store, h)
		defer stop()
		time.Sleep(5 * time.Minute) // longer than an idle tree is kept
		for id, want := range map[session.ID]bool{owing: true, settled: false} {
			info, err := store.Tree(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if owned := info.Owner != ""; owned != want {
				t.Errorf("tree with due work %t is owned: %t", want, owned)
			}
		}
		if err := m.Close(t.Context(), owing); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		rec, err := store.Record(t.Context(), session.KindSession, string(owing))
		if err != nil || rec.State != session.StateClosed {
			t.Errorf("the session is %s (%v), want it closed though something is owed", rec.State, err)
		}
	})
}

// blinks is a store in which whoever looks whether a turn runs sees it a second later.
type blinks struct{ session.Store }

func (s blinks) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	if q.Kind == session.KindTurn && q.NoBody && slices.Equal(q.States, session.StartedStates) {
		time.Sleep(time.Second) // of the bubble
	}
	return s.Store.Records(ctx, q)
}

func TestASessionWhoseFirstTurnNobodySawRunningTellsItsStateAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := start(t, blinks{session.NewMemory()}, hooks(&runner{}))
		defer stop()
		id := open(t, m)
		submit(t, m, id, "one")
		if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // of the bubble
		events, err := m.Store().Events(t.Context(), session.EventQuery{Tree: id, Types: []session.EventType{session.EventSessionState}, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, e := range events {
			var s session.SessionState
			if err := e.Decode(&s); err != nil {
				t.Fatal(err)
			}
			told = append(told, s.State)
		}
		if want := []string{"idle"}; !slices.Equal(told, want) {
			t.Errorf("session.state tells %q, want %q", told, want)
		}
	})
}

// between is a store in which something happens just before somebody reads records.
type between struct {
	session.Store

	reads atomic.Pointer[func(q session.RecordQuery)]
}

func (s *between) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	if happens := s.reads.Load(); happens != nil {
		(*happens)(q)
	}
	return s.Store.Records(ctx, q)
}

// home makes the work of a record come home to the session, as an item, in one commit.
func home(t *testing.T, store session.Store, rec session.Record) {
	t.Helper()
	_, err := store.Commit(t.Context(), session.Batch{
		Tree: rec.Tree,
		Changes: []session.Change{
			rec.Update("folded", nil), session.NewItem("item:"+rec.Key, rec.Tree, rec.Origin, session.ItemBody{Kind: session.ItemReply}),
		},
		Events: []session.Event{session.Scope{Root: rec.Tree, Agent: rec.Tree}.Event(session.EventInvocationReplied, session.Invocation{})},
	})
	if err != nil {
		t.Error(err)
	}
}

// work puts a record of something that is at work into a session.
func work(t *testing.T, store session.Store, root session.ID, kind session.Kind, origin session.TurnID) session.Record {
	t.Helper()
	done, err := store.Commit(t.Context(), session.Batch{Tree: root, Changes: []session.Change{
		session.Insert(kind, "w_1", root, origin, session.StateRunning, nil, time.Time{}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return done.Records[0]
}

func TestAClosedSessionHasNothingReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &between{Store: session.NewMemory()}
		h := hooks(&runner{})
		h.Live = map[session.Kind][]session.State{session.KindChild: {session.StateRunning}}
		m, stop := start(t, store, h)
		defer stop()
		id := open(t, m)
		turn := submit(t, m, id, "one")
		time.Sleep(time.Second)
		child := work(t, store.Store, id, session.KindChild, turn)
		time.Sleep(time.Second)
		var once sync.Once
		happens := func(q session.RecordQuery) {
			rec, err := store.Record(t.Context(), session.KindSession, string(id))
			if err == nil && rec.State == "closing" && q.Tree == id && q.Kind == child.Kind && !q.NoBody {
				once.Do(func() { home(t, store.Store, child) })
			}
		}
		store.reads.Store(&happens)
		if err := m.Close(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ready, err := store.Records(t.Context(), session.RecordQuery{Tree: id, Kind: session.KindItem, States: []session.State{session.StateReady}})
		if err != nil || len(ready) > 0 {
			t.Errorf("in the closed session %d items are ready (%v), and nobody will take them", len(ready), err)
		}
		s, err := m.Snapshot(t.Context(), id)
		if err != nil || s.Status != session.StateClosed || s.State != "idle" {
			t.Errorf("the session is %s and %s (%v), want it closed and idle", s.Status, s.State, err)
		}
	})
}

func TestAResultOnItsWayHomeIsNeverToldAsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []session.Kind{session.KindCall, session.KindChild} {
			store := &between{Store: session.NewMemory()}
			h := hooks(&runner{run: func(context.Context, *session.Turn) (session.Outcome, error) {
				time.Sleep(time.Second)
				return completed("done"), nil
			}})
			h.Pending = []session.State{session.StateRunning}
			m, stop := start(t, store, h)
			id := open(t, m)
			turn := submit(t, m, id, "one")
			time.Sleep(500 * time.Millisecond)
			rec := work(t, store.Store, id, kind, turn)
			time.Sleep(5 * time.Second)
			var once sync.Once
			happens := func(q session.RecordQuery) {
				if q.Tree == id && q.Kind == kind && q.NoBody {
					once.Do(func() { home(t, store.Store, rec) })
				}
			}
			store.reads.Store(&happens)
			time.Sleep(10 * time.Second)
			stop()
			events, err := store.Events(t.Context(), session.EventQuery{Tree: id})
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, e := range events {
				var s session.SessionState
				if e.Type != session.EventSessionState {
					continue
				}
				if err := e.Decode(&s); err != nil {
					t.Fatal(err)
				}
				told = append(told, fmt.Sprintf("%s %d", s.State, len(s.Background)+len(s.PendingCalls)))
			}
			if want := []string{"running 0", "running 1", "idle 1", "running 0", "idle 0"}; !slices.Equal(told, want) {
				t.Errorf("with a result of a %s session.state tells %q, want %q", kind, told, want)
			}
		}
	})
}

// looks is a store in which something happens once, just after somebody looked for a turn.
type looks struct {
	session.Store

	then func()
}

func (s *looks) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	rec, err := s.Store.Record(ctx, kind, key)
	if then := s.then; kind == session.KindTurn && then != nil {
		s.then = nil
		then()
	}
	return rec, err
}

// The same input comes twice, since the first time its answer was lost, and the session is closed in between.
func TestTheSameKeyIsTheSameTurnThoughTheSessionCloses(t *testing.T) {
	store := &looks{Store: session.NewMemory()}
	m, err := session.NewManager(session.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	id := open(t, m)
	r := session.SubmitRequest{Session: id, Input: "one", Key: "k"}
	var first session.TurnID
	store.then = func() {
		var err error
		if first, err = m.Submit(t.Context(), r); err != nil {
			t.Error(err)
		}
		if err := m.Close(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	second, err := m.Submit(t.Context(), r)
	if err != nil || second != first {
		t.Errorf("Submit() of the same = %q, %v, want %q", second, err, first)
	}
}
