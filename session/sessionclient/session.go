package sessionclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"orchestrator/session"
)

// Config configures a [Session].
type Config struct {
	// Backend is whose client it is. Required.
	Backend Backend
	// Session is the root session. Required.
	Session session.ID
	// Root names the root agent, where the caller knows. Defaults to what the stream says.
	Root session.ID
	// Policy says how root events are told from others while the root has no name. Defaults to [PolicyObserved].
	Policy Policy
	// MaxPause is the longest pause between two tries to reach the server. Defaults to 5 seconds; the first is 100 ms.
	MaxPause time.Duration
	// Logger is told of cut streams, at debug. May be nil.
	Logger *slog.Logger
}

// Session is a client of one session. It keeps what it learned of the session's agents for as long as it lives, so a
// program keeps one rather than making one for each input. Its methods may be called from any goroutine.
type Session struct {
	cfg Config
	log *slog.Logger

	ctx    context.Context //nolint:containedctx // the client's own lifetime
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	// sending holds a value while an input is on its way and, where turns have no ids, while it is waited for: there the
	// next one's events could not be told from this one's.
	sending chan struct{}

	mu      sync.Mutex
	closed  bool
	running bool // the stream is being read
	gate    Gate
	look    Look
	looked  bool
	seen    uint64        // seq of the last durable event
	changed chan struct{} // closed and renewed when seen, live or failed change
	live    bool          // the stream is open
	failed  error         // why the stream is not read any more
	waits   map[*wait]struct{}
	readers map[*reader]struct{}
}

// New returns a client of a session. It does nothing until it is used; [Session.Close] frees it.
func New(cfg Config) (*Session, error) {
	switch {
	case cfg.Backend == nil:
		return nil, errors.New("sessionclient: Config.Backend is required")
	case cfg.Session == "":
		return nil, errors.New("sessionclient: Config.Session is required")
	case cfg.Policy != "" && cfg.Policy != PolicyObserved && cfg.Policy != PolicyStrict:
		return nil, fmt.Errorf("sessionclient: Config.Policy is %q; observed and strict are allowed", cfg.Policy)
	case cfg.MaxPause < 0:
		return nil, fmt.Errorf("sessionclient: Config.MaxPause is %s; it must be positive", cfg.MaxPause)
	}
	cfg.Policy = cmp.Or(cfg.Policy, PolicyObserved)
	cfg.MaxPause = cmp.Or(cfg.MaxPause, 5*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Session{
		cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel, sending: make(chan struct{}, 1), gate: Gate{Policy: cfg.Policy},
		changed: make(chan struct{}), waits: make(map[*wait]struct{}), readers: make(map[*reader]struct{}),
	}
	s.gate.Name(cfg.Root)
	return s, nil
}

// Close ends all waits and readers with [ErrClosed], and returns when the stream has been left. It cancels nothing of the
// session. It may be called twice.
func (s *Session) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(ErrClosed)
	s.wg.Wait()
}

// SendAndWait sends an input and waits for its turn: until it has ended, or until nothing it set going is on its way home
// any more. Only the root agent's events of this very turn end it. It goes on over cut connections and restarts of the
// server until ctx ends. A turn that failed or was cancelled is a *[TurnError], a wait that ran out of time a
// *[TimeoutError], beside the turn as far as it is known. A disconnect, a timeout and a cancelled ctx cancel nothing.
//
// Where turns have no ids, the root's last message is the output, its session.idle the end, and its session.error, unless
// it will retry, the failure; a second SendAndWait waits for the first to be over.
func (s *Session) SendAndWait(ctx context.Context, r SendRequest) (Turn, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	r.Session, r.Key = s.cfg.Session, cmp.Or(r.Key, string(session.NewEventID()))
	w := newWait()
	sent, release, err := s.send(ctx, r, w)
	defer release()
	if err != nil {
		return sent, s.outOfTime(ctx, w, r.Key, err)
	}
	defer s.forget(w)
	return s.await(ctx, w, r.Key, r.WaitRequest)
}

// Send sends an input and returns its turn without waiting for it. It tries until the server has said yes or no, or ctx
// ends.
func (s *Session) Send(ctx context.Context, r SendRequest) (session.TurnInfo, error) {
	r.Session, r.Key = s.cfg.Session, cmp.Or(r.Key, string(session.NewEventID()))
	turn, err := try(ctx, s, func(ctx context.Context) (session.TurnInfo, error) { return s.cfg.Backend.Send(ctx, r) })
	s.named(turn.Root)
	return turn, err
}

// Wait waits for a turn that was sent before, as [Session.SendAndWait] does.
func (s *Session) Wait(ctx context.Context, turn session.TurnID, r WaitRequest) (Turn, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	w := newWait()
	w.isFor(turn)
	w.doubt() // it may have ended
	if err := s.begin(ctx, w); err != nil {
		return s.turn(turn), s.outOfTime(ctx, w, "", err)
	}
	defer s.forget(w)
	return s.await(ctx, w, "", r)
}

// Cancel cancels a turn: a queued one at once, a started one as soon as its runner notices. Background work goes on, and a
// turn that has ended stays as it is.
func (s *Session) Cancel(ctx context.Context, turn session.TurnID, reason string) error {
	_, err := try(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.cfg.Backend.Cancel(ctx, s.cfg.Session, turn, reason)
	})
	return err
}

// bound returns ctx with the request's timeout.
func (r WaitRequest) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("not over after %s", r.Timeout))
}

// send sends an input for a wait, which is told of events from before on. release must be called when the wait is over.
func (s *Session) send(ctx context.Context, r SendRequest, w *wait) (sent Turn, release func(), err error) {
	sent = Turn{TurnInfo: session.TurnInfo{Session: s.cfg.Session}}
	select {
	case s.sending <- struct{}{}:
	case <-ctx.Done():
		return sent, func() {}, context.Cause(ctx)
	case <-s.ctx.Done():
		return sent, func() {}, ErrClosed
	}
	release = sync.OnceFunc(func() { <-s.sending })
	if err := s.begin(ctx, w); err != nil {
		return sent, release, err
	}
	w.trust() // what was missed until now is nothing of a turn that is yet to be
	got, err := try(ctx, s, func(ctx context.Context) (session.TurnInfo, error) { return s.cfg.Backend.Send(ctx, r) })
	if err != nil {
		s.forget(w)
		return sent, release, err
	}
	s.mu.Lock()
	s.gate.Name(got.Root)
	w.isFor(got.ID)
	if got.Ended {
		w.end(got) // the key was used before
	}
	s.mu.Unlock()
	if got.ID != "" {
		release()
	}
	return Turn{TurnInfo: got}, release, nil
}

// begin tells a wait of events from now on, reading the stream first if nobody does. It returns when the stream is open.
func (s *Session) begin(ctx context.Context, w *wait) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.waits[w] = struct{}{}
	s.runLocked()
	s.mu.Unlock()
	err := s.until(ctx, func() bool { return s.live })
	if err != nil {
		s.forget(w)
	}
	return err
}

// runLocked makes sure that the stream is read.
func (s *Session) runLocked() {
	if s.running || s.closed {
		return
	}
	s.running, s.failed = true, nil
	s.wg.Go(s.run)
}

// until waits until a condition, asked with mu held, is true, the stream has failed, or ctx or the client ends.
func (s *Session) until(ctx context.Context, holds func() bool) error {
	for {
		s.mu.Lock()
		ok, failed, changed := holds(), s.failed, s.changed
		s.mu.Unlock()
		switch {
		case ok:
			return nil
		case failed != nil:
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return ErrClosed
		}
	}
}

func (s *Session) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// turn is all that is known of a turn by its id.
func (s *Session) turn(id session.TurnID) Turn {
	return Turn{TurnInfo: session.TurnInfo{ID: id, Session: s.cfg.Session}}
}

func (s *Session) forget(w *wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waits, w)
}

func (s *Session) named(root session.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate.Name(root)
}

// await waits until the wait's turn, and all that r asks for, is over.
func (s *Session) await(ctx context.Context, w *wait, key string, r WaitRequest) (Turn, error) {
	if err := s.turnEnd(ctx, w); err != nil {
		return s.giveUp(ctx, w, key, r, err)
	}
	s.mu.Lock()
	turn, err := w.ended, w.err
	s.mu.Unlock()
	if err != nil {
		return s.turn(w.turn), err
	}
	if r.Until != session.UntilQuiescent || w.turn == "" {
		return Turn{TurnInfo: *turn}, failure(*turn)
	}
	whole, err := s.quiescent(ctx, w)
	if err != nil {
		return s.giveUp(ctx, w, key, r, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Turn{TurnInfo: whole, FoldBacks: w.foldBacks}, failure(whole)
}

// turnEnd returns when the wait is over. Whenever there is a doubt, the turn is read.
func (s *Session) turnEnd(ctx context.Context, w *wait) error {
	reading, stop := context.WithCancel(ctx)
	var reads sync.WaitGroup
	defer reads.Wait()
	defer stop()
	var (
		pause = s.pause()
		done  = make(chan error, 1)
		again <-chan time.Time
		busy  bool
	)
	for {
		doubts := w.doubts
		if busy || again != nil {
			doubts = nil // it is asked for again when this one is through
		}
		select {
		case <-w.over:
			return nil
		case <-doubts:
			busy = true
		case <-again:
			busy, again = true, nil
		case err := <-done:
			busy = false
			if err == nil {
				pause = s.pause()
			} else {
				again = time.After(pauseAfter(pause, err))
			}
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return ErrClosed
		}
		reads.Go(func() { done <- s.readTurn(reading, w) })
	}
}

// readTurn reads the wait's turn, and ends the wait by what it says. An error asks for another try.
func (s *Session) readTurn(ctx context.Context, w *wait) error {
	s.mu.Lock()
	turn := w.turn
	s.mu.Unlock()
	t, err := s.cfg.Backend.Turn(ctx, TurnRequest{Session: s.cfg.Session, Turn: turn})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, ErrUnsupported):
		return nil // there are only the events
	case err != nil && Permanent(err):
		w.fail(fmt.Errorf("read turn %s of session %s: %w", turn, s.cfg.Session, err))
		return nil
	case err != nil:
		return err
	}
	s.gate.Name(t.Root)
	if t.Ended {
		w.end(t)
	}
	return nil
}

// quiescent waits until nothing of the turn is on its way home, and the stream has told all of it.
func (s *Session) quiescent(ctx context.Context, w *wait) (session.TurnInfo, error) {
	ctx, stop := s.bind(ctx)
	defer stop()
	pause := s.pause()
	for {
		asked := time.Now()
		t, err := s.cfg.Backend.Turn(ctx, TurnRequest{Session: s.cfg.Session, Turn: w.turn, Wait: lookAtOnce, Until: session.UntilQuiescent})
		switch {
		case err == nil && t.Quiescent:
			look, err := try(ctx, s, func(ctx context.Context) (Look, error) { return s.cfg.Backend.Look(ctx, s.cfg.Session) })
			if err != nil {
				return t, err
			}
			return t, s.until(ctx, func() bool { return s.seen >= look.LastSeq })
		case err != nil && (Permanent(err) || errors.Is(err, ErrUnsupported)):
			return t, err
		case err != nil && ctx.Err() != nil:
			return t, context.Cause(ctx)
		case err == nil && time.Since(asked) >= lookAtOnce/2: // the server has held it: ask again at once
			pause = s.pause()
			continue
		}
		if err := sleep(ctx, pauseAfter(pause, err)); err != nil {
			return t, err
		}
	}
}

// giveUp ends a wait that has failed. One that is out of time looks once more: the end may have come in that moment, or be
// known to the server alone.
func (s *Session) giveUp(ctx context.Context, w *wait, key string, r WaitRequest, err error) (Turn, error) {
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	s.mu.Lock()
	ended, failed, turn := w.ended, w.err, w.turn
	s.mu.Unlock()
	if late && ended == nil && failed == nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = s.readTurn(last, w) // it was tried
		cancel()
		s.mu.Lock()
		ended, failed = w.ended, w.err
		s.mu.Unlock()
	}
	s.forget(w)
	t := s.turn(turn)
	if ended != nil {
		t.TurnInfo = *ended
	}
	switch {
	case failed != nil:
		return t, failed
	case ended != nil && ended.Met(r.Until):
		return t, failure(*ended)
	}
	if late && r.CancelOnTimeout && ended == nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if cerr := s.cfg.Backend.Cancel(last, s.cfg.Session, turn, "the wait for it timed out"); cerr != nil {
			err = fmt.Errorf("%w; cancel it: %w", err, cerr)
		}
	}
	return t, s.outOfTime(ctx, w, key, err)
}

// outOfTime returns an error of a wait as the caller gets it.
func (s *Session) outOfTime(ctx context.Context, w *wait, key string, err error) error {
	s.mu.Lock()
	seen, turn := s.seen, w.turn
	s.mu.Unlock()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &TimeoutError{Session: s.cfg.Session, Turn: turn, Key: key, LastSeq: seen, Cause: err}
	}
	if turn == "" {
		return fmt.Errorf("send to session %s: %w", s.cfg.Session, err)
	}
	return fmt.Errorf("wait for turn %s of session %s: %w", turn, s.cfg.Session, err)
}

// bind returns a context that ends with the client too.
func (s *Session) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unbind := context.AfterFunc(s.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		unbind()
		cancel(nil)
	}
}

// try makes a call until it succeeds, fails for good, or ctx ends.
func try[T any](ctx context.Context, s *Session, call func(context.Context) (T, error)) (T, error) {
	ctx, stop := s.bind(ctx)
	defer stop()
	pause := s.pause()
	for {
		v, err := call(ctx)
		switch {
		case err == nil, Permanent(err), errors.Is(err, ErrUnsupported):
			return v, err
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
			return v, err
		}
		if cause := sleep(ctx, pauseAfter(pause, err)); cause != nil {
			return v, fmt.Errorf("%w; the last try: %w", cause, err)
		}
	}
}

func (s *Session) pause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = min(100*time.Millisecond, s.cfg.MaxPause), s.cfg.MaxPause, 2, 0.3
	b.Reset()
	return b
}

// pauseAfter returns how long to pause after a failed try: longer each time, and at least as long as the server asks.
func pauseAfter(b *backoff.ExponentialBackOff, err error) time.Duration {
	d := b.NextBackOff()
	if api, ok := errors.AsType[*APIError](err); ok {
		d = max(d, min(api.RetryAfter, time.Minute))
	}
	return d
}

// sleep pauses, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
