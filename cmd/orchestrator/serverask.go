package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
	"orchestrator/tracker"
)

// askServer asks the primary of a running serve, and shows what comes of it.
func (c *cli) askServer(ctx context.Context, s *server, input string, f askFlags) (err error) {
	var id session.ID
	var after uint64
	if f.session == "" {
		opened, err := s.Open(ctx, sessionclient.OpenRequest{Title: shortText(input, 80)})
		if err != nil {
			return err
		}
		id = opened.ID
	} else {
		snap, err := s.Session(ctx, session.ID(f.session))
		if err != nil {
			return err
		}
		id, after = snap.ID, snap.LastSeq
	}
	client, err := s.client(id)
	if err != nil {
		return err
	}
	defer client.Close()
	fol := &servedTurn{
		server: s, client: client, id: id, input: input, noWait: f.noWait, late: f.late, live: make(chan struct{}),
		all: f.session != "", // what earlier turns left comes home too
	}
	show := shower(&jsonShower{w: c.stdout})
	if c.output == outputText {
		v := c.newView(false)
		defer func() { err = errors.Join(err, v.Close()) }()
		if err := s.eachEvent(ctx, id, 0, func(e session.Event) error {
			if e.Seq <= after {
				v.Replay(e)
			}
			return nil
		}); err != nil {
			return err
		}
		show = &untold{view: v, turn: &fol.turn}
	}
	open, err := follow(ctx, fol, show, after)
	if err != nil {
		if ctx.Err() != nil {
			return withHint(errInterrupted, "the server goes on; follow it with: orchestrator sessions tail %s%s", id, s.flag())
		}
		return err
	}
	tellOpen(show, id, open, f.noWait, "the server follows", s.flag())
	return fol.failed
}

// servedTurn is a turn of a session of a running serve.
type servedTurn struct {
	server *server
	client *sessionclient.Session
	id     session.ID
	input  string
	all    bool // wait for the work of all the session's turns
	noWait bool
	late   time.Duration

	live   chan struct{} // closed once events come: what is sent then is seen
	once   sync.Once
	turn   atomic.Value // the session.TurnID of the input, once it is sent
	failed error        // how the turn failed, once wait has returned
}

// untold is a view that leaves it to the caller to tell how the asked turn fails.
type untold struct {
	*view
	turn *atomic.Value
}

func (u *untold) Event(e session.Event, now time.Time) {
	if turn, ok := u.turn.Load().(session.TurnID); ok {
		u.silent = turn
	}
	u.view.Event(e, now)
}

// turnFailure is the error of a turn that failed.
func turnFailure(failed *sessionclient.TurnError) error {
	err := fmt.Errorf("the turn %s: %s", failed.State, failed.Message)
	if failed.State == session.StateCancelled {
		err = errors.New("the turn is cancelled")
	}
	if failed.Code == session.CodeModelUnreachable {
		return withHint(unreachableError{err}, "check that the model's server runs, and that the base_url in the server's configuration is right")
	}
	return err
}

// asked is the turn of the input.
func (f *servedTurn) asked() session.TurnID {
	turn, _ := f.turn.Load().(session.TurnID)
	return turn
}

func (f *servedTurn) events(ctx context.Context, after uint64) iter.Seq2[session.Event, error] {
	return f.client.Events(ctx, sessionclient.EventsRequest{After: after, Ephemeral: true, Live: func() { f.once.Do(func() { close(f.live) }) }})
}

func (f *servedTurn) head(ctx context.Context) (uint64, error) {
	return again(ctx, func() (uint64, error) {
		snap, err := f.server.Session(ctx, f.id)
		return snap.LastSeq, err
	})
}

func (f *servedTurn) full() <-chan error { return nil }

func (f *servedTurn) wait(ctx context.Context, tell func(text string)) ([]wantedCall, error) {
	open, err := f.over(ctx, tell)
	if err == nil && !f.noWait {
		err = f.told(ctx)
	}
	return open, err
}

// told waits until the log says what the session has come to, so that what is shown ends with it.
func (f *servedTurn) told(ctx context.Context) error {
	for end := time.Now().Add(time.Second); time.Now().Before(end); { // other turns of the session may be at work
		events, err := again(ctx, func() ([]session.Event, error) {
			snap, err := f.server.Session(ctx, f.id)
			if err != nil {
				return nil, err
			}
			events, _, err := f.server.Page(ctx, f.id, snap.LastSeq-min(snap.LastSeq, 100), 100)
			return events, err
		})
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(events) {
			if e.Type == session.EventSessionState && decode[session.SessionState](e).State == "idle" {
				return nil
			} else if e.Type == session.EventSessionState {
				break
			}
		}
		if err := rest(ctx, serverPause/3); err != nil {
			return err
		}
	}
	return nil
}

// over blocks until what is waited for is over.
func (f *servedTurn) over(ctx context.Context, tell func(text string)) ([]wantedCall, error) {
	select {
	case <-f.live:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	turn, err := f.client.Send(ctx, sessionclient.SendRequest{Input: f.input})
	if err != nil {
		return nil, err
	}
	f.turn.Store(turn.ID)
	until := session.UntilQuiescent
	if f.noWait {
		until = session.UntilTurn
	}
	_, err = f.client.Wait(ctx, turn.ID, sessionclient.WaitRequest{Until: until})
	if failed, ok := errors.AsType[*sessionclient.TurnError](err); ok {
		f.failed, err = turnFailure(failed), nil
	}
	if err != nil {
		return nil, err
	}
	if f.noWait {
		return f.wanted(ctx, wantedCalls)
	}
	return comeHome(ctx, f, f.late, tell)
}

func (f *servedTurn) settle(ctx context.Context) error {
	for {
		settled, err := f.look(ctx, 20*time.Second)
		if err != nil || settled {
			return err
		}
		if err := rest(ctx, serverPause); err != nil {
			return err
		}
	}
}

func (f *servedTurn) settled(ctx context.Context) (bool, error) { return f.look(ctx, 0) }

// look asks the server whether nothing is at work; it may wait for the turn's work to end.
func (f *servedTurn) look(ctx context.Context, wait time.Duration) (bool, error) {
	return again(ctx, func() (bool, error) {
		if f.all {
			snap, err := f.server.Session(ctx, f.id)
			return idle(snap), err
		}
		turn, err := f.server.Turn(ctx, sessionclient.TurnRequest{Session: f.id, Turn: f.asked(), Wait: wait, Until: session.UntilQuiescent})
		return turn.Quiescent, err
	})
}

func (f *servedTurn) detached(ctx context.Context) ([]wantedCall, error) {
	return f.wanted(ctx, tracker.FollowStates)
}

func (f *servedTurn) changed(ctx context.Context, until time.Time) error {
	return rest(ctx, min(serverPause, time.Until(until)))
}

// serverPause is how long to rest before a server is asked again for something that no event tells.
const serverPause = 300 * time.Millisecond

// again makes a call to a server until it answers: it may be starting anew.
func again[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err == nil || sessionclient.Permanent(err) {
			return v, err
		}
		if cause := rest(ctx, serverPause); cause != nil {
			return v, cause
		}
	}
}

// rest pauses, or returns why ctx has ended.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// idle reports whether nothing of a session is at work and no reply is waited for.
func idle(snap session.Snapshot) bool {
	alive := len(snap.Queue) + len(snap.PendingCalls) + len(snap.Background)
	for _, a := range snap.Agents {
		if !a.Root && a.State != session.StateEnded {
			alive++
		}
	}
	return snap.ActiveTurn == nil && alive == 0 && snap.State != "running"
}

// wanted returns the calls of what is waited for that are in the states.
func (f *servedTurn) wanted(ctx context.Context, states []session.State) ([]wantedCall, error) {
	calls, err := again(ctx, func() ([]session.CallInfo, error) { return f.server.Calls(ctx, f.id, false) })
	if err != nil {
		return nil, err
	}
	var open []wantedCall
	for _, call := range calls {
		if (f.all || call.OriginTurn == f.asked()) && slices.Contains(states, call.State) {
			open = append(open, wantedCall{id: call.ID, peer: call.Peer, asker: call.AskerName, sentAt: call.SentAt})
		}
	}
	return open, nil
}
