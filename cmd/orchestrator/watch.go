package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// follow is one turn that is waited for and shown.
type follow struct {
	app    *app.App
	show   shower
	root   session.ID
	turn   session.TurnID
	origin session.TurnID // whose work is waited for; empty: that of all the session's turns
	after  uint64         // events up to here are not shown
	noWait bool           // wait for the turn only, not for what it leaves running
	late   time.Duration  // how long to wait for calls that nobody waits for any more

	news chan string // what the waiting has to tell
}

// run shows the session's events until the turn and, unless noWait, all it left running is over and shown. It returns the
// calls whose reply is still wanted then.
func (f *follow) run(ctx context.Context) (open []tracker.PendingA2ATask, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	f.news = make(chan string, 1)
	events, subscribed := make(chan session.Event), make(chan error, 1)
	wg.Go(func() {
		for e, err := range f.app.Manager.Subscribe(ctx, session.SubscribeRequest{Session: f.root, After: f.after, Ephemeral: true}) {
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
		open []tracker.PendingA2ATask
		err  error
	}
	over := make(chan result, 1)
	wg.Go(func() {
		open, err := f.wait(ctx)
		if err == nil && !f.noWait {
			err = f.told(ctx)
		}
		info, terr := f.app.Manager.Store().Tree(ctx, f.root)
		over <- result{info.HeadSeq, open, errors.Join(err, terr)}
	})
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	seen := f.after
	var end *result
	for {
		if err := f.show.Failed(); err != nil {
			return nil, err
		}
		if end != nil && seen >= end.head {
			return end.open, end.err
		}
		select {
		case text := <-f.news:
			f.show.Note(text, time.Now())
		case e := <-events:
			if err := session.Resolve(ctx, f.app.Manager.Store(), &e); err != nil {
				return nil, err
			}
			seen = max(seen, e.Seq)
			f.show.Event(e, time.Now())
		case now := <-tick.C:
			f.show.Tick(now)
		case r := <-over:
			if end = &r; r.err != nil {
				return nil, r.err
			}
		case err := <-f.app.Full():
			return nil, err // it could take for ever
		case err := <-subscribed:
			return nil, err
		}
	}
}

// wait blocks until what is waited for is over.
func (f *follow) wait(ctx context.Context) ([]tracker.PendingA2ATask, error) {
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
	f.news <- fmt.Sprintf("all else is done; waiting up to %s for the late answer of %s", formatLeft(f.late), list(peers))
	return f.waitLate(ctx)
}

// told waits until the log says what the session has come to, so that what is shown ends with it.
func (f *follow) told(ctx context.Context) error {
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
func (f *follow) waitTurn(ctx context.Context) error {
	return f.until(ctx, func() (bool, error) {
		rec, err := f.app.Manager.Store().Record(ctx, session.KindTurn, string(f.turn))
		if err != nil {
			return false, fmt.Errorf("turn %s: %w", f.turn, err)
		}
		return rec.State != session.StateQueued && rec.State != session.StateRunning && rec.State != session.StateSuspended, nil
	})
}

// waitLate waits until the calls that nobody waits for are answered too, and the answers worked in.
func (f *follow) waitLate(ctx context.Context) (open []tracker.PendingA2ATask, err error) {
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
func (f *follow) until(ctx context.Context, done func() (bool, error)) error {
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
func (f *follow) wanted(ctx context.Context, states []session.State) ([]tracker.PendingA2ATask, error) {
	return f.app.Calls.List(ctx, session.RecordQuery{Tree: f.root, Origin: f.origin, States: states})
}
