package sessionclient_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// bubble runs a test of a client of a server in a synctest bubble.
func bubble(t *testing.T, srv *server, f func(t *testing.T, c *sessionclient.Session)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv.changed = make(chan struct{}) // of this bubble
		c, err := sessionclient.New(sessionclient.Config{Backend: srv, Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f(t, c)
	})
}

// withTurns is a server of ours.
func withTurns() *server {
	srv := newServer()
	srv.ids, srv.named = true, true
	return srv
}

func ends(turn session.TurnID, output string) session.Event {
	return session.Event{Type: session.EventTurnCompleted, AgentID: theRoot, TurnID: turn, Data: []byte(`{"output":"` + output + `"}`)}
}

func TestTimeoutNamesTheTurnAndCancelsNothing(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		began := time.Now()
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: 90 * time.Second}})
		late, ok := errors.AsType[*sessionclient.TimeoutError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("SendAndWait() = %v, want a *TimeoutError", err)
		}
		if late.Turn != "mine" || late.Session != "s" || late.Key == "" || turn.ID != "mine" {
			t.Errorf("it names turn %q of session %q, key %q, and returns turn %q", late.Turn, late.Session, late.Key, turn.ID)
		}
		if want := "wait for turn mine of session s: not over after 1m30s"; err.Error() != want {
			t.Errorf("it says %q, want %q", err, want)
		}
		if took := time.Since(began); took != 90*time.Second {
			t.Errorf("it took %s", took)
		}
		if len(srv.cancels) > 0 {
			t.Errorf("turns %v were cancelled", srv.cancels)
		}
		srv.emit(ends("mine", "my answer"), true)
		synctest.Wait() // no event will tell of it any more
		if turn, err := c.Wait(t.Context(), late.Turn, sessionclient.WaitRequest{Timeout: time.Second}); err != nil || turn.Output != "my answer" || time.Since(began) > 90*time.Second {
			t.Errorf("Wait() = %q, %v, want at once what came later", turn.Output, err)
		}
	})
}

func TestTimeoutCancelsWhenAsked(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		_, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Second, CancelOnTimeout: true}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("SendAndWait() = %v", err)
		}
		if diff := cmp.Diff([]session.TurnID{"mine"}, srv.cancels); diff != "" {
			t.Errorf("cancelled turns (-want +got):\n%s", diff)
		}
	})
}

func TestCancelledWaitCancelsNothing(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the user has gone")
		time.AfterFunc(time.Second, func() { cancel(gone) })
		_, err := c.SendAndWait(ctx, sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{CancelOnTimeout: true}})
		if !errors.Is(err, gone) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "turn mine of session s") {
			t.Errorf("SendAndWait() = %v, want the cause", err)
		}
		if len(srv.cancels) > 0 {
			t.Errorf("turns %v were cancelled", srv.cancels)
		}
	})
}

// The end is known to the server alone: no event tells of it, and the deadline is the last occasion to look.
func TestDeadlineLooksOnceMore(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		time.AfterFunc(time.Second, func() {
			srv.mu.Lock()
			defer srv.mu.Unlock()
			srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
		})
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Minute, CancelOnTimeout: true}})
		if err != nil || turn.Output != "my answer" {
			t.Errorf("SendAndWait() = %q, %v", turn.Output, err)
		}
	})
}

// The level says that nothing is at work any more, so an end that was never told must be looked for.
func TestIdleSessionIsAReasonToReadTheTurn(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		time.AfterFunc(time.Second, func() {
			srv.mu.Lock()
			srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateFailed, Ended: true, Error: "my fault"}
			srv.mu.Unlock()
			srv.emit(session.Event{Type: session.EventSessionState, AgentID: theRoot, Data: []byte(`{"state":"idle"}`)}, true)
		})
		began := time.Now()
		_, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Minute}})
		if failed, ok := errors.AsType[*sessionclient.TurnError](err); !ok || failed.Message != "my fault" || failed.Turn != "mine" || time.Since(began) > 2*time.Second {
			t.Errorf("SendAndWait() = %v", err)
		}
	})
}

func TestServerThatIsAwayIsTriedAgain(t *testing.T) {
	srv := withTurns()
	srv.down = true
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		time.AfterFunc(time.Minute, func() { srv.cut(false, false) })
		time.AfterFunc(2*time.Minute, func() { srv.emit(ends("mine", "my answer"), true) })
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})
		if err != nil || turn.Output != "my answer" || len(srv.sends) != 1 {
			t.Errorf("SendAndWait() = %q, %v, with %d inputs", turn.Output, err, len(srv.sends))
		}
	})
}

func TestTimeoutBeforeTheInputIsTakenNamesTheKey(t *testing.T) {
	srv := withTurns()
	srv.down = true
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		_, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", Key: "k", WaitRequest: sessionclient.WaitRequest{Timeout: time.Second}})
		late, ok := errors.AsType[*sessionclient.TimeoutError](err)
		if !ok || late.Turn != "" || late.Key != "k" || !strings.HasPrefix(err.Error(), "send to session s: not over after 1s") {
			t.Errorf("SendAndWait() = %v", err)
		}
	})
}

// The answer to the input is lost on its way, so it is sent again: with the same key, which is the same turn.
func TestInputIsSentAgainWithItsKey(t *testing.T) {
	srv := withTurns()
	srv.refuse = errors.New("connection reset by peer")
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		time.AfterFunc(50*time.Millisecond, func() {
			srv.mu.Lock()
			defer srv.mu.Unlock()
			srv.refuse = nil
			srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
		})
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})
		if err != nil || turn.Output != "my answer" {
			t.Fatalf("SendAndWait() = %q, %v", turn.Output, err)
		}
		if len(srv.sends) < 2 || srv.sends[0].Key == "" || srv.sends[0].Key != srv.sends[len(srv.sends)-1].Key {
			t.Errorf("it was sent %d times, with other keys: %v", len(srv.sends), srv.sends)
		}
	})
}

func TestRefusedInputIsNotSentAgain(t *testing.T) {
	srv := withTurns()
	srv.refuse = &sessionclient.APIError{Status: 409, Code: "busy"}
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"}); !errors.Is(err, session.ErrBusy) || len(srv.sends) != 1 {
			t.Errorf("SendAndWait() = %v after %d tries, want the session to be busy", err, len(srv.sends))
		}
	})
}

// The turn ends before the server's answer to the input is here.
func TestEndBeforeTheInputIsAcknowledged(t *testing.T) {
	for name, srv := range map[string]*server{"with turn ids": withTurns(), "without": newServer()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
				srv.hold = make(chan struct{})
				srv.unread = true
				var got sent
				var wg sync.WaitGroup
				wg.Go(func() { got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})) })
				synctest.Wait()
				if srv.ids {
					srv.emit(ends("other", "another's answer"), false)
					srv.emit(ends("mine", "my answer"), false)
				} else {
					srv.emit(session.Event{Type: sessionclient.EventAssistantMessage, Data: []byte(`{"content":"my answer"}`)}, true)
					srv.emit(session.Event{Type: sessionclient.EventSessionIdle}, true)
				}
				synctest.Wait()
				if got.outcome() != "open" {
					t.Fatalf("the wait is over: %s", got.outcome())
				}
				close(srv.hold)
				wg.Wait()
				if got.outcome() != "reply: my answer" {
					t.Errorf("the wait: %s", got.outcome())
				}
			})
		})
	}
}

// Where turns have no ids, an idle would end both.
func TestWithoutTurnIDsASecondInputWaitsForTheFirst(t *testing.T) {
	srv := newServer()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var first, second sent
		var wg sync.WaitGroup
		wg.Go(func() { first.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "1"})) })
		synctest.Wait()
		wg.Go(func() { second.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "2"})) })
		synctest.Wait()
		if len(srv.sends) != 1 {
			t.Fatalf("%d inputs are sent", len(srv.sends))
		}
		say := func(text string) {
			srv.emit(session.Event{Type: sessionclient.EventAssistantMessage, Data: []byte(`{"content":"` + text + `"}`)}, true)
			srv.emit(session.Event{Type: sessionclient.EventSessionIdle}, true)
			synctest.Wait()
		}
		say("one")
		if first.outcome() != "reply: one" || second.outcome() != "open" {
			t.Fatalf("first: %s, second: %s", first.outcome(), second.outcome())
		}
		say("two")
		wg.Wait()
		if second.outcome() != "reply: two" {
			t.Errorf("second: %s", second.outcome())
		}
	})
}

func TestSlowReaderOfAStreamThatCantBeResumedIsDropped(t *testing.T) {
	srv := newServer()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var end error
		n := 0
		var wg sync.WaitGroup
		go1 := make(chan struct{})
		wg.Go(func() {
			for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
				if err != nil {
					end = err
					return
				}
				n++
				<-go1
			}
		})
		synctest.Wait()
		for range 2000 {
			srv.emit(session.Event{Type: sessionclient.EventAssistantMessage}, true)
		}
		synctest.Wait()
		close(go1)
		wg.Wait()
		if !errors.Is(end, sessionclient.ErrSlow) || n < 1024 || n == 2000 {
			t.Errorf("the reader has %d events and ends with %v", n, end)
		}
	})
}

func TestSlowReaderOfAResumableStreamMissesNothing(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		for range 3000 {
			srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
		}
		after := uint64(1000)
		for e, err := range c.Events(t.Context(), sessionclient.EventsRequest{After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq != after+1 {
				t.Fatalf("event %d comes behind %d", e.Seq, after)
			}
			if after = e.Seq; after == 3000 {
				break
			}
			if after%100 == 0 {
				srv.cut(false, false)
				time.Sleep(time.Minute)
			}
		}
		if srv.opened < 20 {
			t.Errorf("%d streams were opened; they were not cut", srv.opened)
		}
	})
}

func TestPositionThatIsGoneEndsTheEvents(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{After: 7}) {
			if reset, ok := errors.AsType[*sessionclient.ResetError](err); !ok || reset.HeadSeq != 0 {
				t.Fatalf("Events() = %v, want a *ResetError", err)
			}
			return
		}
		t.Error("Events() ends without an error")
	})
}

func TestClosedClientLetsEverybodyGo(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var wait, read error
		var wg sync.WaitGroup
		wg.Go(func() { _, wait = c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"}) })
		wg.Go(func() {
			for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
				read = err
			}
		})
		synctest.Wait()
		c.Close()
		c.Close()
		wg.Wait()
		_, later := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})
		_, waited := c.Wait(t.Context(), "mine", sessionclient.WaitRequest{})
		for what, err := range map[string]error{
			"a wait": wait, "a reader": read, "a later wait": later, "a later Wait": waited, "Cancel": c.Cancel(t.Context(), "mine", ""),
		} {
			if what == "Cancel" && err == nil {
				continue // it needs no stream
			}
			if !errors.Is(err, sessionclient.ErrClosed) {
				t.Errorf("%s ends with %v, want ErrClosed", what, err)
			}
		}
	})
}

func TestUnusedClientCloses(t *testing.T) {
	c, err := sessionclient.New(sessionclient.Config{Backend: newServer(), Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  sessionclient.Config
		want string
	}{
		{sessionclient.Config{Session: "s"}, "Config.Backend is required"},
		{sessionclient.Config{Backend: newServer()}, "Config.Session is required"},
		{sessionclient.Config{Backend: newServer(), Session: "s", Policy: "lax"}, "observed and strict are allowed"},
		{sessionclient.Config{Backend: newServer(), Session: "s", MaxPause: -1}, "it must be positive"},
	} {
		if _, err := sessionclient.New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New() = %v, want %q", err, c.want)
		}
	}
}

// What a turn left running comes home in turns of its own, while connections are cut.
func TestQuiescentWaitOverCutsHasEveryFoldBack(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() {
			got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent}}))
		})
		synctest.Wait()
		srv.emit(ends("mine", "my answer"), true)
		synctest.Wait()
		if got.outcome() != "open" {
			t.Fatalf("the wait is over at the turn's end: %s", got.outcome())
		}
		fold := func(turn session.TurnID, origin session.TurnID) {
			e := ends(turn, "by "+string(turn))
			e.OriginTurn = origin
			srv.emit(e, true)
		}
		fold("fold1", "mine")
		srv.mu.Lock()
		srv.events = append(srv.events, srv.events[len(srv.events)-1]) // told twice
		srv.mu.Unlock()
		srv.cut(true, true)
		fold("fold2", "mine")
		fold("fold3", "other")
		child := ends("childs", "the child's")
		child.AgentID, child.OriginTurn = "A", "mine"
		srv.emit(child, false)
		time.Sleep(time.Minute)
		srv.cut(true, false) // turns can be read before the stream is back
		srv.mu.Lock()
		quiet := srv.turns["mine"]
		quiet.Quiescent = true
		srv.turns["mine"] = quiet
		srv.mu.Unlock()
		time.Sleep(time.Minute)
		if got.outcome() != "open" {
			t.Fatalf("the wait is over before all was told: %s", got.outcome())
		}
		srv.cut(false, false)
		wg.Wait()
		if got.outcome() != "reply: my answer" || !got.turn.Quiescent {
			t.Fatalf("the wait: %s, %+v", got.outcome(), got.turn)
		}
		var folded []string
		for _, f := range got.turn.FoldBacks {
			folded = append(folded, f.Output)
		}
		if diff := cmp.Diff([]string{"by fold1", "by fold2"}, folded); diff != "" {
			t.Errorf("fold-backs (-want +got):\n%s", diff)
		}
	})
}

func TestTimeoutUntilQuiescentBringsWhatIsKnown(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		time.AfterFunc(time.Second, func() { srv.emit(ends("mine", "my answer"), true) })
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{
			Until: session.UntilQuiescent, Timeout: time.Minute, CancelOnTimeout: true,
		}})
		if !errors.Is(err, context.DeadlineExceeded) || turn.Output != "my answer" || !turn.Ended {
			t.Errorf("SendAndWait() = %+v, %v", turn, err)
		}
		if len(srv.cancels) > 0 {
			t.Errorf("turns %v were cancelled, which have ended", srv.cancels)
		}
	})
}

// A server that tells an event twice, or leaves one out.
func TestEventsDropWhatComesTwiceAndRefuseAGap(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		for range 5 {
			srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
		}
		srv.events[2] = srv.events[1] // told twice, and the third never
		var seqs []uint64
		var end error
		for e, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
			if end = err; err == nil {
				seqs = append(seqs, e.Seq)
			}
		}
		reset, ok := errors.AsType[*sessionclient.ResetError](end)
		if diff := cmp.Diff([]uint64{1, 2}, seqs); diff != "" || !ok || reset.HeadSeq != 3 {
			t.Errorf("events %v, then %v", seqs, end)
		}
		if srv.opened != 2 {
			t.Errorf("%d streams were opened; a gap is worth another look", srv.opened)
		}
	})
}

func TestEventsOfTheRootAlone(t *testing.T) {
	for name, srv := range map[string]*server{"that can't be resumed": newServer(), "of a session of ours": withTurns()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
				live := make(chan struct{})
				var got []session.EventType
				var wg sync.WaitGroup
				wg.Go(func() {
					req := sessionclient.EventsRequest{RootOnly: true, Live: sync.OnceFunc(func() { close(live) })}
					for e, err := range c.Events(t.Context(), req) {
						if err != nil {
							t.Error(err)
							return
						}
						if got = append(got, e.Type); len(got) == 2 {
							return
						}
					}
				})
				<-live
				srv.emit(session.Event{Type: session.EventSubagentStarted, AgentID: "A"}, false)
				srv.emit(session.Event{Type: session.EventToolStarted}, true)
				srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
				srv.emit(session.Event{Type: session.EventToolCompleted}, true)
				wg.Wait()
				if diff := cmp.Diff([]session.EventType{session.EventToolStarted, session.EventToolCompleted}, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A stream that fails for good fails the wait, and a later wait tries again.
func TestSessionThatIsGoneFailsTheWait(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		gone := &sessionclient.PermanentError{Err: session.ErrNotFound}
		srv.broken = gone
		if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"}); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("SendAndWait() = %v, want that there is no such session", err)
		}
		srv.broken = nil
		time.AfterFunc(time.Second, func() { srv.emit(ends("mine", "my answer"), true) })
		var first, second sent
		var wg sync.WaitGroup
		wg.Go(func() { first.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})) })
		wg.Go(func() { second.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "other"})) })
		time.Sleep(time.Minute)
		if first.outcome() != "reply: my answer" || second.outcome() != "open" {
			t.Fatalf("first: %s, second: %s", first.outcome(), second.outcome())
		}
		srv.mu.Lock()
		srv.broken = gone
		srv.mu.Unlock()
		srv.cut(false, false)
		wg.Wait()
		if !errors.Is(second.err, session.ErrNotFound) {
			t.Errorf("the wait ends with %v", second.err)
		}
	})
}

// The server asks for a pause before the next try.
func TestTriesAreAsFarApartAsTheServerAsks(t *testing.T) {
	srv := withTurns()
	srv.refuse = &sessionclient.APIError{Status: 429, Code: "rate_limited", RetryAfter: 30 * time.Second}
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		_, err := c.Send(boundTo(t, 100*time.Second), sessionclient.SendRequest{Input: "mine"})
		if err == nil || len(srv.sends) != 4 {
			t.Errorf("Send() = %v after %d tries in 100s, want 4", err, len(srv.sends))
		}
	})
}

// boundTo returns a context that ends after d.
func boundTo(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestGapInTheStreamIsAReasonToReadTheTurn(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() { got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})) })
		synctest.Wait()
		srv.mu.Lock()
		srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
		srv.events = append(srv.events, session.Event{Seq: 2, Type: session.EventToolStarted, AgentID: "A"}) // the first is missing
		srv.changedLocked()
		srv.mu.Unlock()
		synctest.Wait()
		if got.outcome() != "reply: my answer" {
			t.Errorf("the wait: %s", got.outcome())
		}
		c.Close()
		wg.Wait()
	})
}

// late is a server whose answer to an input takes until the gate is open; the input is taken at once.
type late struct {
	*server

	gate chan struct{}
}

func (s late) Send(ctx context.Context, r sessionclient.SendRequest) (session.TurnInfo, error) {
	turn, err := s.server.Send(ctx, r)
	<-s.gate
	return turn, err
}

// What is missing in the stream may be the end of the turn whose input is still on its way.
func TestGapBeforeTheInputIsAcknowledgedIsAReasonToReadTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := late{withTurns(), make(chan struct{})}
		c, err := sessionclient.New(sessionclient.Config{Backend: srv, Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() {
			got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Hour}}))
		})
		synctest.Wait()
		srv.mu.Lock()
		srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
		srv.events = append(srv.events, session.Event{Seq: 2, Type: session.EventToolStarted, AgentID: "A"}) // the first is missing
		srv.changedLocked()
		srv.mu.Unlock()
		synctest.Wait()
		began := time.Now()
		close(srv.gate)
		wg.Wait()
		if got.outcome() != "reply: my answer" || time.Since(began) > time.Minute {
			t.Errorf("the wait: %s after %s", got.outcome(), time.Since(began))
		}
	})
}

// A log that was restored from a copy goes on behind an earlier event, with numbers that were told before.
func TestWaitGoesOnWithALogThatIsShorter(t *testing.T) {
	srv := withTurns()
	srv.unread = true
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		for range 10 {
			srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
		}
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() { got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})) })
		synctest.Wait()
		srv.cut(true, true)
		srv.mu.Lock()
		srv.events = srv.events[:3]
		srv.mu.Unlock()
		srv.cut(false, false)
		time.Sleep(time.Minute)
		srv.emit(ends("mine", "my answer"), true)
		synctest.Wait()
		if got.outcome() != "reply: my answer" {
			t.Errorf("the wait: %s", got.outcome())
		}
		c.Close()
		wg.Wait()
	})
}

// What a reader of events was told of before the first wait counts in it.
func TestGateLearnsFromReadersToo(t *testing.T) {
	srv := newServer()
	srv.ids, srv.unread = true, true // resumable, and nobody names the root
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		srv.emit(session.Event{Type: session.EventSubagentStarted, AgentID: "A"}, false)
		for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		time.AfterFunc(time.Second, func() {
			srv.emit(session.Event{Type: session.EventTurnFailed, AgentID: "A", TurnID: "mine", Data: []byte(`{"error":"the child's"}`)}, false)
			srv.emit(ends("mine", "my answer"), true) // stamped with an unknown id: the root's, since A is known
		})
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Minute}})
		if err != nil || turn.Output != "my answer" {
			t.Errorf("SendAndWait() = %q, %v", turn.Output, err)
		}
	})
}

// A backend that leaves bodies where they are.
func TestEndWithoutItsBodyIsReadFromTheTurn(t *testing.T) {
	for name, data := range map[string]string{"elsewhere": `{"artifact":"x_1","size":100000}`, "missing": ``, "broken": `{"output":7}`} {
		t.Run(name, func(t *testing.T) {
			srv := withTurns()
			bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
				time.AfterFunc(time.Second, func() {
					srv.mu.Lock()
					srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
					srv.mu.Unlock()
					srv.emit(session.Event{Type: session.EventTurnCompleted, AgentID: theRoot, TurnID: "mine", Data: []byte(data)}, false)
				})
				began := time.Now()
				turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: time.Minute}})
				if err != nil || turn.Output != "my answer" || time.Since(began) > 2*time.Second {
					t.Errorf("SendAndWait() = %q, %v after %s", turn.Output, err, time.Since(began))
				}
			})
		})
	}
}

func TestWaitThatIsOverIsForgotten(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		for i := range 3 {
			time.AfterFunc(time.Second, func() { srv.emit(ends("mine", "my answer"), true) })
			if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"}); err != nil {
				t.Fatal(err)
			}
			_, err := c.Wait(t.Context(), "mine", sessionclient.WaitRequest{Timeout: time.Second})
			if n := sessionclient.Waiting(c); err != nil || n != 0 {
				t.Fatalf("after round %d: %v, and %d waits are told of events", i, err, n)
			}
		}
	})
}

// All has come home by the time the turn is read, which the stream is yet to tell.
func TestQuiescentWaitHearsTheStreamOut(t *testing.T) {
	srv := withTurns()
	bubble(t, srv, func(t *testing.T, c *sessionclient.Session) {
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() {
			got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent}}))
		})
		synctest.Wait()
		srv.cut(true, false) // turns can be read, streams not
		srv.emit(ends("mine", "my answer"), true)
		fold := ends("fold", "what came home")
		fold.OriginTurn = "mine"
		srv.emit(fold, true)
		srv.mu.Lock()
		quiet := srv.turns["mine"]
		quiet.Quiescent = true
		srv.turns["mine"] = quiet
		srv.mu.Unlock()
		time.Sleep(time.Minute)
		srv.cut(false, false)
		wg.Wait()
		if got.outcome() != "reply: my answer" || len(got.turn.FoldBacks) != 1 {
			t.Errorf("the wait: %s, folded back: %+v", got.outcome(), got.turn.FoldBacks)
		}
	})
}
