package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/tracker"
)

// redraw is how often the times on a terminal are brought up to date.
const redraw = 200 * time.Millisecond

// newView returns the view that fits where the output goes: what the root says to standard output and the rest to
// standard error, or, when both are one terminal, everything there with the tree below. together sends all to standard
// output.
func (c *cli) newView(together bool) *view {
	out, ok := c.stdout.(*os.File)
	live := ok && isatty.IsTerminal(out.Fd()) && (together || c.terminal != nil && isatty.IsTerminal(c.terminal.Fd()))
	env := environment(c.environ)
	live = live && env["TERM"] != "dumb"
	cfg := viewConfig{Out: c.stdout, Notes: c.stderr, Together: together, Live: live, Colour: live && env["NO_COLOR"] == ""}
	if together {
		cfg.Notes = c.stdout
	}
	if live {
		cfg.Size = func() (int, int) {
			if columns, lines, ok := terminalSize(out); ok {
				return columns, lines
			}
			return 80, 24
		}
	}
	return newView(cfg)
}

// shower is told of the events of a session as they come.
type shower interface {
	Event(e session.Event, now time.Time)
	Tick(now time.Time)
	Note(text string, now time.Time)
	// Failed returns the first error of a write: nobody is there to be shown more.
	Failed() error
}

// jsonShower prints the durable events, one envelope a line, and nothing else.
type jsonShower struct {
	w   io.Writer
	err error
}

func (s *jsonShower) Event(e session.Event, _ time.Time) {
	if s.err == nil && !e.Type.Ephemeral() {
		s.err = printJSON(s.w, e)
	}
}

func (s *jsonShower) Tick(time.Time)         {}
func (s *jsonShower) Note(string, time.Time) {}
func (s *jsonShower) Failed() error          { return s.err }

// followed is a session with something that is waited for.
type followed interface {
	// events yields the session's events behind a seq, with their bodies in place, until ctx ends.
	events(ctx context.Context, after uint64) iter.Seq2[session.Event, error]
	// wait blocks until what is waited for is over, and returns the calls whose reply is still wanted then. It tells the
	// user what it waits for.
	wait(ctx context.Context, tell func(text string)) ([]wantedCall, error)
	// head returns the seq of the last event.
	head(ctx context.Context) (uint64, error)
	// full is told when the session can't go on for want of room. It may be nil.
	full() <-chan error
}

// wantedCall is a call whose reply is still wanted.
type wantedCall struct {
	id          session.CallID
	peer, asker string
	sentAt      time.Time
}

// follow shows a session's events after a seq until what is waited for is over and shown. It returns the calls whose reply is
// still wanted then.
func follow(ctx context.Context, f followed, show shower, after uint64) (open []wantedCall, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	news := make(chan string, 1)
	events, subscribed := make(chan session.Event), make(chan error, 1)
	wg.Go(func() {
		for e, err := range f.events(ctx, after) {
			if err != nil {
				subscribed <- err
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				subscribed <- context.Cause(ctx)
				return
			}
		}
	})
	type result struct {
		head uint64
		open []wantedCall
		err  error
	}
	over := make(chan result, 1)
	wg.Go(func() {
		open, err := f.wait(ctx, func(text string) {
			select {
			case news <- text:
			case <-ctx.Done():
			}
		})
		if err != nil {
			over <- result{err: err}
			return
		}
		head, err := f.head(ctx)
		over <- result{head, open, err}
	})
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	seen := after
	var end *result
	for {
		if err := show.Failed(); err != nil {
			return nil, err
		}
		if end != nil && seen >= end.head {
			return end.open, end.err
		}
		select {
		case text := <-news:
			show.Note(text, time.Now())
		case e := <-events:
			seen = max(seen, e.Seq)
			show.Event(e, time.Now())
		case now := <-tick.C:
			show.Tick(now)
		case r := <-over:
			if end = &r; r.err != nil {
				return nil, r.err
			}
		case err := <-f.full():
			return nil, err // it could take for ever
		case err := <-subscribed:
			return nil, err
		}
	}
}

// localTurn is a turn of a session of this process.
type localTurn struct {
	app    *app.App
	root   session.ID
	turn   session.TurnID
	origin session.TurnID // whose work is waited for; empty: that of all the session's turns
	noWait bool           // wait for the turn only, not for what it leaves running
	late   time.Duration  // how long to wait for calls that nobody waits for any more
}

func (f *localTurn) events(ctx context.Context, after uint64) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for e, err := range f.app.Manager.Subscribe(ctx, session.SubscribeRequest{Session: f.root, After: after, Ephemeral: true}) {
			if err == nil {
				err = session.Resolve(ctx, f.app.Manager.Store(), &e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func (f *localTurn) head(ctx context.Context) (uint64, error) {
	info, err := f.app.Manager.Store().Tree(ctx, f.root)
	return info.HeadSeq, err
}

func (f *localTurn) full() <-chan error { return f.app.Full() }

func (f *localTurn) wait(ctx context.Context, tell func(text string)) ([]wantedCall, error) {
	if f.noWait {
		if err := f.waitTurn(ctx); err != nil {
			return nil, err
		}
		return f.wanted(ctx, wantedCalls)
	}
	open, err := comeHome(ctx, f, f.late, tell)
	if err == nil {
		err = f.told(ctx)
	}
	return open, err
}

func (f *localTurn) settle(ctx context.Context) error {
	return f.app.Manager.WaitQuiescent(ctx, f.root, f.origin)
}

func (f *localTurn) settled(ctx context.Context) (bool, error) {
	return f.app.Manager.Quiescent(ctx, f.root, f.origin)
}

func (f *localTurn) detached(ctx context.Context) ([]wantedCall, error) {
	return f.wanted(ctx, tracker.FollowStates)
}

func (f *localTurn) changed(ctx context.Context, until time.Time) error {
	return rest(ctx, min(localPause, time.Until(until)))
}

// homeward is work whose results come home to a session.
type homeward interface {
	// settle blocks until nothing of it is at work.
	settle(ctx context.Context) error
	// settled reports whether nothing of it is at work now: no turn, no subagent, no answer that is not worked in.
	settled(ctx context.Context) (bool, error)
	// detached returns the calls whose reply is still wanted though nothing waits for it.
	detached(ctx context.Context) ([]wantedCall, error)
	// changed blocks until there may be something new, at most until a time.
	changed(ctx context.Context, until time.Time) error
}

// comeHome blocks until all work is over, and then up to late longer until the answers that nothing waits for any more have
// come and are worked in. It returns the calls whose answer is still out.
func comeHome(ctx context.Context, h homeward, late time.Duration, tell func(text string)) ([]wantedCall, error) {
	var deadline time.Time
	for {
		if err := h.settle(ctx); err != nil {
			return nil, err
		}
		open, err := h.detached(ctx)
		if err != nil {
			return nil, err
		}
		if len(open) == 0 || late <= 0 || !deadline.IsZero() && !time.Now().Before(deadline) {
			// An answer that came between the two looks is at work now, and what comes of it is still to be told.
			settled, err := h.settled(ctx)
			if err != nil || settled {
				return open, err
			}
			continue
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(late)
			peers := make([]string, len(open))
			for i, call := range open {
				peers[i] = call.peer
			}
			tell(fmt.Sprintf("all else is done; waiting up to %s for the late answer of %s", formatLeft(late), list(peers)))
		}
		if err := h.changed(ctx, deadline); err != nil {
			return nil, err
		}
	}
}

// localPause is how long to rest before the database is looked into again.
const localPause = 100 * time.Millisecond

// told waits until the log says what the session has come to, so that what is shown ends with it.
func (f *localTurn) told(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := f.until(bound, func() (bool, error) {
		last, err := f.app.Manager.Store().Events(bound, session.EventQuery{
			Tree: f.root, Types: []session.EventType{session.EventSessionState}, Limit: 1, Last: true,
		})
		if err != nil || len(last) == 0 {
			return true, err
		}
		var s session.SessionState
		err = last[0].Decode(&s)
		return s.State == "idle" && len(s.Background)+len(s.PendingCalls) == 0, err
	})
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		return nil // other turns of the session may be at work
	}
	return err
}

// waitTurn waits for the turn alone.
func (f *localTurn) waitTurn(ctx context.Context) error {
	return f.until(ctx, func() (bool, error) {
		rec, err := f.app.Manager.Store().Record(ctx, session.KindTurn, string(f.turn))
		if err != nil {
			return false, fmt.Errorf("turn %s: %w", f.turn, err)
		}
		return rec.State != session.StateQueued && rec.State != session.StateRunning && rec.State != session.StateSuspended, nil
	})
}

// until asks again whenever something was committed, and every second, until done says true.
func (f *localTurn) until(ctx context.Context, done func() (bool, error)) error {
	wake, stop := f.app.Manager.Store().Watch(f.root)
	defer stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		reread := time.NewTimer(time.Second)
		select {
		case <-wake:
		case <-reread.C:
		case <-ctx.Done():
			reread.Stop()
			return context.Cause(ctx)
		}
		reread.Stop()
	}
}

// wanted returns the turn's calls in the states.
func (f *localTurn) wanted(ctx context.Context, states []session.State) ([]wantedCall, error) {
	calls, err := f.app.Calls.List(ctx, session.RecordQuery{Tree: f.root, Origin: f.origin, States: states})
	open := make([]wantedCall, len(calls))
	for i, p := range calls {
		open[i] = wantedCall{id: p.ID, peer: p.Peer, asker: p.AskerName, sentAt: p.SentAt}
	}
	return open, err
}
