package sessionclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// The agents of the scripts. theRoot is the root's id, whether its stream says so or not.
const theRoot = session.ID("R")

// server is somebody's event stream, and what stands behind it.
type server struct {
	ids    bool // its turns have ids, its events a seq, and its streams can be resumed
	named  bool // it names its root
	unread bool // its turns can't be read

	mu      sync.Mutex
	changed chan struct{} // closed and renewed with every change
	events  []session.Event
	lives   int  // of the connections: each cut ends one
	down    bool // it can't be reached
	closed  bool // it takes no streams
	forgot  int  // events up to here are gone from the log
	turns   map[session.TurnID]session.TurnInfo
	sends   []sessionclient.SendRequest
	reads   int
	opened  int
	cancels []session.TurnID
	refuse  error // what Send says
	broken  error // what Stream says
	hold    chan struct{}
}

func newServer() *server {
	return &server{changed: make(chan struct{}), turns: make(map[session.TurnID]session.TurnInfo)}
}

var errDown = errors.New("connection refused")

func (s *server) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Look implements sessionclient.Backend.
func (s *server) Look(context.Context, session.ID) (sessionclient.Look, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l sessionclient.Look
	if s.down {
		return l, errDown
	}
	if s.named {
		l.RootAgentID = theRoot
	}
	if s.ids {
		l.Resumable, l.LastSeq = true, uint64(len(s.events))
	}
	return l, nil
}

// Stream implements sessionclient.Backend.
func (s *server) Stream(ctx context.Context, r sessionclient.StreamRequest) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		s.mu.Lock()
		broken := s.broken
		life, down, at := s.lives, s.down || s.closed, len(s.events)
		var first []session.Event
		open := sessionclient.StreamOpen{HeadSeq: uint64(at)}
		if s.named {
			open.RootAgentID = theRoot
		}
		first = append(first, open.Event("s"))
		if s.ids {
			if at = int(r.After); at < s.forgot || at > len(s.events) {
				at = len(s.events)
				first = append(first, sessionclient.StreamReset{Reason: "unknown_position", HeadSeq: uint64(at)}.Event("s"))
			}
		}
		if !down {
			s.opened++
		}
		s.changedLocked()
		s.mu.Unlock()
		if broken != nil {
			yield(session.Event{}, broken)
			return
		}
		if down {
			yield(session.Event{}, errDown)
			return
		}
		for _, e := range first {
			if !yield(e, nil) {
				return
			}
		}
		for {
			s.mu.Lock()
			var next *session.Event
			if at < len(s.events) {
				next = &s.events[at]
			}
			cut, changed := s.lives != life, s.changed
			s.mu.Unlock()
			switch {
			case cut:
				yield(session.Event{}, errors.New("connection reset by peer"))
				return
			case next != nil:
				at++
				if r.RootOnly && next.AgentID != "" && next.AgentID != theRoot {
					continue
				}
				if !yield(*next, nil) {
					return
				}
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(session.Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// Send implements sessionclient.Backend.
func (s *server) Send(ctx context.Context, r sessionclient.SendRequest) (session.TurnInfo, error) {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return session.TurnInfo{}, context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends = append(s.sends, r)
	switch {
	case s.down:
		return session.TurnInfo{}, errDown
	case s.refuse != nil:
		return session.TurnInfo{}, s.refuse
	case !s.ids:
		return session.TurnInfo{}, nil
	}
	id := session.TurnID(r.Input) // a script names its turns
	if _, known := s.turns[id]; !known {
		s.turns[id] = session.TurnInfo{ID: id, State: session.StateQueued}
	}
	return s.turns[id], nil
}

// Turn implements sessionclient.Backend.
func (s *server) Turn(_ context.Context, r sessionclient.TurnRequest) (session.TurnInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	switch {
	case s.down:
		return session.TurnInfo{}, errDown
	case s.unread || !s.ids:
		return session.TurnInfo{}, sessionclient.ErrUnsupported
	}
	t, ok := s.turns[r.Turn]
	if !ok {
		return t, &sessionclient.PermanentError{Err: session.ErrNotFound}
	}
	return t, nil
}

// Cancel implements sessionclient.Backend.
func (s *server) Cancel(_ context.Context, _ session.ID, turn session.TurnID, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels = append(s.cancels, turn)
	return nil
}

// emit commits an event, and the turn's end if the root tells of one.
func (s *server) emit(e session.Event, ofRoot bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids {
		e.Seq = uint64(len(s.events)) + 1
	}
	e.SessionID, e.ID = "s", session.EventID(fmt.Sprintf("e_%d", len(s.events)+1))
	s.events = append(s.events, e)
	if state, ok := strings.CutPrefix(string(e.Type), "turn."); ok && ofRoot {
		t := s.turns[e.TurnID]
		t.ID, t.State = e.TurnID, session.State(state)
		switch t.State {
		case session.StateCompleted, session.StateFailed, session.StateCancelled:
			var body session.TurnEnded
			_ = json.Unmarshal(e.Data, &body)
			t.Ended, t.Output, t.Error = true, body.Output, body.Error
		}
		s.turns[e.TurnID] = t
	}
	s.changedLocked()
}

// cut ends every stream, and says whether new ones are taken, and whether it can be reached at all.
func (s *server) cut(closed, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives++
	s.closed, s.down = closed, down
	s.changedLocked()
}

// forget drops the log so far: a position in it is gone.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot = len(s.events)
}

// seen are the events there were, as a reader must have them.
func (s *server) seen() []session.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]session.Event(nil), s.events...)
}
