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
	wanted, err := f.over(ctx, tell)
	if err == nil && !f.noWait {
		err = f.told(ctx)
	}
	open := make([]wantedCall, len(wanted))
	for i, p := range wanted {
		open[i] = wantedCall{id: p.ID, peer: p.Peer, asker: p.AskerName, sentAt: p.SentAt}
	}
	return open, err
}

// over blocks until what is waited for is over.
func (f *localTurn) over(ctx context.Context, tell func(text string)) ([]tracker.PendingA2ATask, error) {
	if f.noWait {
		if err := f.waitTurn(ctx); err != nil {
			return nil, err
		}
		return f.wanted(ctx, wantedCalls)
	}
	if err := f.app.Manager.WaitQuiescent(ctx, f.root, f.origin); err != nil {
		return nil, err
	}
	open, err := f.wanted(ctx, tracker.FollowStates)
	if err != nil || len(open) == 0 || f.late <= 0 {
		return open, err
	}
	peers := make([]string, len(open))
	for i, p := range open {
		peers[i] = p.Peer
	}
	tell(waitingLate(f.late, peers))
	return f.waitLate(ctx)
}

// waitingLate says that only answers are waited for that were given up on.
func waitingLate(late time.Duration, peers []string) string {
	return fmt.Sprintf("all else is done; waiting up to %s for the late answer of %s", formatLeft(late), list(peers))
}

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

// waitLate waits until the calls that nobody waits for are answered too, and the answers worked in.
func (f *localTurn) waitLate(ctx context.Context) (open []tracker.PendingA2ATask, err error) {
	bound, cancel := context.WithTimeout(ctx, f.late)
	defer cancel()
	err = f.until(bound, func() (bool, error) {
		quiet, err := f.app.Manager.Quiescent(bound, f.root, f.origin)
		if err != nil || !quiet {
			return false, err
		}
		// Asked after it was quiet: a reply that came in between has made an item and a turn, which is seen next time.
		open, err = f.wanted(bound, tracker.FollowStates)
		if err != nil || len(open) > 0 {
			return false, err
		}
		return f.app.Manager.Quiescent(bound, f.root, f.origin)
	})
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		if err := f.app.Manager.WaitQuiescent(ctx, f.root, f.origin); err != nil { // what came in the last moment is worked in
			return nil, err
		}
		return f.wanted(ctx, tracker.FollowStates)
	}
	return open, err
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
func (f *localTurn) wanted(ctx context.Context, states []session.State) ([]tracker.PendingA2ATask, error) {
	return f.app.Calls.List(ctx, session.RecordQuery{Tree: f.root, Origin: f.origin, States: states})
}
