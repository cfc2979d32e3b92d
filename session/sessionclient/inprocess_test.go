package sessionclient_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// echo answers an input with itself. It thinks "aloud", of "work" it leaves an item to come home, "fail" fails, and "long"
// works until it is cancelled.
type echo struct{ store session.Store }

func (r echo) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	last, err := r.store.Events(ctx, session.EventQuery{Tree: t.Root, Types: []session.EventType{session.EventMessageCompleted}, Limit: 1, Last: true})
	if err != nil {
		return session.Outcome{}, err
	}
	var m session.Message
	if err := session.Resolve(ctx, r.store, &last[0]); err != nil {
		return session.Outcome{}, err
	}
	if err := last[0].Decode(&m); err != nil {
		return session.Outcome{}, err
	}
	switch m.Text {
	case "aloud":
		t.Tree().Publish(t.Event(session.EventMessageDelta, session.Delta{MessageID: session.NewMessageID(), Text: m.Text}))
	case "work":
		item := session.NewItem("call:c_1", t.Root, t.OriginTurn, session.ItemBody{Kind: session.ItemReply})
		if _, err := r.store.Commit(ctx, session.Batch{Tree: t.Root, Changes: []session.Change{item}}); err != nil {
			return session.Outcome{}, err
		}
	case "fail":
		return session.Outcome{State: session.StateFailed, TurnEnded: session.TurnEnded{Error: "no model"}}, nil
	case "long":
		<-ctx.Done()
		cancelled, ok := errors.AsType[*session.TurnCancelledError](context.Cause(ctx))
		if !ok {
			return session.Outcome{}, context.Cause(ctx)
		}
		return session.Outcome{State: session.StateCancelled, TurnEnded: session.TurnEnded{Error: cancelled.Reason}}, nil
	}
	return session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: "you said: " + m.Text}}, nil
}

// newManager starts a Manager whose turns [echo] runs. stop stops it.
func newManager(ctx context.Context) (m *session.Manager, stop func() error, err error) {
	store := session.NewMemory()
	if m, err = session.NewManager(session.Config{Store: store}); err != nil {
		return nil, nil, err
	}
	m.Use(session.Hooks{
		Runner: echo{store},
		Prepare: func(_ context.Context, _ session.Record, body session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: body.Agent, Model: "echo"}, nil
		},
		Fold: func(_ context.Context, _ session.ID, items []session.Record) (session.Folded, error) {
			return session.Folded{Text: fmt.Sprintf("%d came home", len(items))}, nil
		},
		FoldFailed: func(context.Context, session.ID, []session.Record, string) string { return "" },
	})
	return m, func() error {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return m.Stop(bound)
	}, m.Start(ctx)
}

// inProcess runs a test of a client of a Manager in a bubble.
func inProcess(t *testing.T, f func(t *testing.T, c *sessionclient.Session, m *session.Manager, id session.ID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, stop, err := newManager(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}()
		id, err := m.Open(t.Context(), session.OpenRequest{Agent: "primary"})
		if err != nil {
			t.Fatal(err)
		}
		c, err := sessionclient.New(sessionclient.Config{Backend: sessionclient.NewInProcess(m), Session: id})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f(t, c, m, id)
	})
}

func TestInProcessTurnIsWaitedFor(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, _ *session.Manager, id session.ID) {
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "hello", Key: "k"})
		if err != nil || turn.Output != "you said: hello" || turn.Session != id || turn.State != session.StateCompleted {
			t.Errorf("SendAndWait() = %+v, %v", turn, err)
		}
		again, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "hello", Key: "k"})
		if err != nil || again.ID != turn.ID || again.Output != turn.Output {
			t.Errorf("the same key again = %+v, %v, want turn %s", again, err, turn.ID)
		}
		if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "other", Key: "k"}); !errors.Is(err, session.ErrKeyReused) {
			t.Errorf("the same key for another input = %v", err)
		}
		_, err = c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "fail"})
		if failed, ok := errors.AsType[*sessionclient.TurnError](err); !ok || failed.Message != "no model" {
			t.Errorf("a turn that fails = %v", err)
		}
	})
}

func TestInProcessQuiescentWaitBringsTheFoldBack(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, _ *session.Manager, _ session.ID) {
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "work"})
		if err != nil || turn.Output != "you said: work" {
			t.Fatalf("until the turn's end = %+v, %v", turn, err)
		}
		if turn, err = c.Wait(t.Context(), turn.ID, sessionclient.WaitRequest{Until: session.UntilQuiescent}); err != nil || !turn.Quiescent {
			t.Fatalf("Wait() until quiescent = %+v, %v", turn, err)
		}
		turn, err = c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "hello", WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent}})
		if err != nil || turn.Output != "you said: hello" || len(turn.FoldBacks) != 0 {
			t.Fatalf("of a turn that leaves nothing = %+v, %v", turn, err)
		}
	})
	inProcess(t, func(t *testing.T, c *sessionclient.Session, _ *session.Manager, _ session.ID) {
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "work", WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent}})
		if err != nil || turn.Output != "you said: work" || !turn.Quiescent {
			t.Fatalf("SendAndWait() = %+v, %v", turn, err)
		}
		if len(turn.FoldBacks) != 1 || turn.FoldBacks[0].Output != "you said: 1 came home" || turn.FoldBacks[0].OriginTurn != turn.ID {
			t.Errorf("it folds back %+v", turn.FoldBacks)
		}
	})
}

func TestInProcessCancelEndsTheWait(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, _ *session.Manager, _ session.ID) {
		turn, err := c.Send(t.Context(), sessionclient.SendRequest{Input: "long"})
		if err != nil {
			t.Fatal(err)
		}
		if turn, err := c.Wait(t.Context(), turn.ID, sessionclient.WaitRequest{Timeout: time.Minute}); !errors.Is(err, context.DeadlineExceeded) || turn.ID == "" {
			t.Fatalf("Wait() = %+v, %v", turn, err)
		}
		if err := c.Cancel(t.Context(), turn.ID, "enough"); err != nil {
			t.Fatal(err)
		}
		_, err = c.Wait(t.Context(), turn.ID, sessionclient.WaitRequest{})
		if failed, ok := errors.AsType[*sessionclient.TurnError](err); !ok || failed.State != session.StateCancelled || failed.Message != "enough" {
			t.Errorf("Wait() = %v", err)
		}
	})
}

func TestInProcessEventsAreTheLogInFull(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, m *session.Manager, id session.ID) {
		long := strings.Repeat("long ", 40_000) // more than stands in the log
		if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: long}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want, err := m.Store().Events(t.Context(), session.EventQuery{Tree: id})
		if err != nil {
			t.Fatal(err)
		}
		var got []session.Event
		for e, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, e); e.Seq == want[len(want)-1].Seq {
				break
			}
		}
		for i := range want {
			if err := session.Resolve(t.Context(), m.Store(), &want[i]); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		var types []session.EventType
		for e, err := range c.Events(t.Context(), sessionclient.EventsRequest{Types: []session.EventType{session.EventTurnQueued, session.EventTurnCompleted}}) {
			if err != nil {
				t.Fatal(err)
			}
			if types = append(types, e.Type); len(types) == 2 {
				break
			}
		}
		if diff := cmp.Diff([]session.EventType{session.EventTurnQueued, session.EventTurnCompleted}, types); diff != "" {
			t.Errorf("two types only (-want +got):\n%s", diff)
		}
	})
}

// What is sent once the stream is live is seen, what is told in passing too: here it is over before the reader looks again.
func TestInProcessStreamIsLiveWhenItSaysSo(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, m *session.Manager, id session.ID) {
		live := func() {
			turn, err := m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: "aloud"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.WaitTurn(t.Context(), turn, session.UntilTurn); err != nil {
				t.Fatal(err)
			}
		}
		var types []session.EventType
		for e, err := range c.Events(t.Context(), sessionclient.EventsRequest{
			Ephemeral: true, Live: live, Types: []session.EventType{session.EventMessageDelta, session.EventTurnCompleted},
		}) {
			if err != nil {
				t.Fatal(err)
			}
			if types = append(types, e.Type); e.Type == session.EventTurnCompleted {
				break
			}
		}
		if diff := cmp.Diff([]session.EventType{session.EventMessageDelta, session.EventTurnCompleted}, types); diff != "" {
			t.Errorf("what was sent from the stream's opening on (-want +got):\n%s", diff)
		}
	})
}

func TestInProcessErrorsAreTheManagers(t *testing.T) {
	inProcess(t, func(t *testing.T, c *sessionclient.Session, m *session.Manager, id session.ID) {
		if _, err := c.Wait(t.Context(), "t_nobody", sessionclient.WaitRequest{}); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("Wait() for no turn = %v", err)
		}
		if err := c.Cancel(t.Context(), "t_nobody", ""); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("Cancel() of no turn = %v", err)
		}
		for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{After: 1000}) {
			if reset, ok := errors.AsType[*sessionclient.ResetError](err); !ok || reset.HeadSeq != 1 {
				t.Errorf("Events() behind the head = %v", err)
			}
		}
		other, err := sessionclient.New(sessionclient.Config{Backend: sessionclient.NewInProcess(m), Session: "s_nobody"})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := other.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "hello"}); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("SendAndWait() to no session = %v", err)
		}
		if err := m.Close(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "hello"}); !errors.Is(err, session.ErrSessionClosed) {
			t.Errorf("SendAndWait() to a closed session = %v", err)
		}
	})
}
