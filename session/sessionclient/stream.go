package sessionclient

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"orchestrator/session"
)

// errCut says that a stream ended without saying why.
var errCut = errors.New("the stream was cut")

// run reads the session's stream until the client is closed or the stream fails for good, and takes every event in.
func (s *Session) run() {
	pause := s.pause()
	for {
		err := s.follow(func() { pause.Reset() })
		s.mu.Lock()
		s.live = false
		over := s.ctx.Err() != nil || Permanent(err)
		if over {
			s.failed = err
			if s.ctx.Err() != nil {
				s.failed = ErrClosed
			}
			s.failLocked(s.failed)
			s.running = false
		}
		s.changedLocked()
		s.doubtLocked()
		s.mu.Unlock()
		if over {
			return
		}
		s.log.DebugContext(s.ctx, "stream cut", "session", s.cfg.Session, "err", err)
		_ = sleep(s.ctx, pauseAfter(pause, err)) // the next try says that the client is closed
	}
}

// follow reads the stream once, from where it was left.
func (s *Session) follow(going func()) error {
	look, err := s.lookOnce(s.ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.seen = max(s.seen, look.LastSeq)
	after := s.seen
	s.mu.Unlock()
	for e, err := range s.cfg.Backend.Stream(s.ctx, StreamRequest{Session: s.cfg.Session, After: after}) {
		if err != nil {
			return err
		}
		going()
		s.take(e)
	}
	return errCut
}

// lookOnce returns how the session was when it was first looked at.
func (s *Session) lookOnce(ctx context.Context) (Look, error) {
	s.mu.Lock()
	look, looked := s.look, s.looked
	s.mu.Unlock()
	if looked {
		return look, nil
	}
	look, err := s.cfg.Backend.Look(ctx, s.cfg.Session)
	if err != nil {
		return look, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.looked {
		s.look, s.looked = look, true
		s.gate.Name(look.RootAgentID)
	}
	return s.look, nil
}

// take takes an event of the stream in: the gate learns from it, and waits and readers are told. It never blocks.
func (s *Session) take(e session.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate.Observe(e)
	switch e.Type {
	case EventStreamOpen:
		s.live = true
		s.changedLocked()
		s.doubtLocked() // what came while there was no stream may never be told
		return
	case EventStreamReset:
		var reset StreamReset
		if len(e.Data) > 0 && e.Decode(&reset) == nil {
			s.seen = reset.HeadSeq
			s.changedLocked()
		}
		s.doubtLocked()
		return
	}
	if e.Seq > 0 {
		if e.Seq <= s.seen {
			return // it was told before
		}
		if e.Seq != s.seen+1 {
			s.doubtLocked() // something is missing, and won't come
		}
		s.seen = e.Seq
		s.changedLocked()
	}
	root := s.gate.IsRoot(e)
	for w := range s.waits {
		w.event(e, root)
	}
	for r := range s.readers {
		if !r.wants(e, root) {
			continue
		}
		select {
		case r.events <- e:
		default:
			s.dropLocked(r, ErrSlow)
		}
	}
}

// doubtLocked has every wait's turn read.
func (s *Session) doubtLocked() {
	for w := range s.waits {
		w.doubt() // one whose input is still on its way reads its turn when that is known
	}
}

// failLocked ends all waits and readers.
func (s *Session) failLocked(err error) {
	for w := range s.waits {
		w.fail(fmt.Errorf("follow session %s: %w", s.cfg.Session, err))
	}
	for r := range s.readers {
		s.dropLocked(r, err)
	}
}

// EventsRequest names the events that a reader wants.
type EventsRequest struct {
	// After is the seq behind which to begin. Where streams can't be resumed they begin with what comes next.
	After uint64
	// Ephemeral asks for deltas and progress too. They may be missing all the same.
	Ephemeral bool
	// Types, when not empty, are the only ones wanted.
	Types []session.EventType
	// RootOnly leaves out the events of subagents.
	RootOnly bool
	// Live is called whenever a stream is open, from within the loop: what is sent from then on is seen, the ephemeral too. May
	// be nil.
	Live func()
}

// Events yields the session's events, the subagents' too, until the loop is left or an error ends it. Where streams can be
// resumed, every durable event comes exactly once and in order, over cut connections and restarts of the server, however
// slow the reader is; a position that is gone ends it with a *[ResetError]. Elsewhere events are lost while there is no
// connection, and a reader more than 1,024 behind is dropped with [ErrSlow].
func (s *Session) Events(ctx context.Context, r EventsRequest) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		ctx, stop := s.bind(ctx)
		defer stop()
		look, err := try(ctx, s, func(ctx context.Context) (Look, error) { return s.lookOnce(ctx) })
		req := StreamRequest{Session: s.cfg.Session, After: r.After, Ephemeral: r.Ephemeral, Types: r.Types, RootOnly: r.RootOnly}
		switch {
		case err != nil:
		case look.Resumable:
			err = s.resumed(ctx, req, r.live, yield)
		default:
			err = s.shared(ctx, req, r.live, yield)
		}
		if err != nil {
			yield(session.Event{}, fmt.Errorf("follow session %s: %w", s.cfg.Session, err))
		}
	}
}

func (r EventsRequest) live() {
	if r.Live != nil {
		r.Live()
	}
}

// resumed yields the events of a stream of its own. It returns nil when the loop was left.
func (s *Session) resumed(ctx context.Context, r StreamRequest, live func(), yield func(session.Event, error) bool) error {
	pause := s.pause()
	whole := len(r.Types) == 0 && !r.RootOnly // then no seq is left out
	var gap uint64                            // where something was missing already
	for {
		cut := errCut
		for e, err := range s.cfg.Backend.Stream(ctx, r) {
			if err != nil {
				cut = err
				break
			}
			s.mu.Lock()
			s.gate.Observe(e)
			s.mu.Unlock()
			if e.Type == EventStreamOpen {
				live()
				continue
			}
			if e.Type == EventStreamReset {
				var reset StreamReset
				if err := e.Decode(&reset); err != nil {
					return err
				}
				return &ResetError{Reason: reset.Reason, HeadSeq: reset.HeadSeq}
			}
			if e.Seq > 0 {
				if e.Seq <= r.After {
					continue
				}
				if whole && e.Seq != r.After+1 {
					if gap == e.Seq {
						return &ResetError{Reason: fmt.Sprintf("event %d is missing", r.After+1), HeadSeq: e.Seq - 1}
					}
					gap, cut = e.Seq, fmt.Errorf("event %d is missing", r.After+1)
					break
				}
				r.After = e.Seq
			}
			pause.Reset()
			if !yield(e, nil) {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case Permanent(cut):
			return cut
		}
		s.log.DebugContext(ctx, "stream cut", "session", s.cfg.Session, "after", r.After, "err", cut)
		if err := sleep(ctx, pauseAfter(pause, cut)); err != nil {
			return err
		}
	}
}

// reader is told of the events of the session's own stream.
type reader struct {
	StreamRequest
	events chan session.Event // closed when it is told no more
	err    error              // then why
}

// readAhead is how many events a reader of a stream that can't be resumed may lag behind.
const readAhead = 1024

// shared yields the events of the session's own stream from now on. It returns nil when the loop was left.
func (s *Session) shared(ctx context.Context, req StreamRequest, live func(), yield func(session.Event, error) bool) error {
	r := &reader{StreamRequest: req, events: make(chan session.Event, readAhead)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.readers[r] = struct{}{}
	s.runLocked()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.readers, r)
	}()
	if err := s.until(ctx, func() bool { return s.live }); err != nil {
		return err
	}
	live()
	for {
		select {
		case e, ok := <-r.events:
			if !ok {
				return r.err
			}
			if !yield(e, nil) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// dropLocked tells a reader no more.
func (s *Session) dropLocked(r *reader, err error) {
	if _, there := s.readers[r]; there {
		delete(s.readers, r)
		r.err = err
		close(r.events)
	}
}
