package subagent

import (
	"context"
	"slices"
	"sync"

	"orchestrator/session"
)

// slots hands out the right to run. A seat is taken in the process and in its tree at once or not at all. Seats that come
// back go before new ones; in each of the two queues the order is that of arrival, but for seats whose tree is at its own
// cap, which others may pass: a tree can't hold up another.
type slots struct {
	process int // running at once
	perTree int
	bound   int // alive at once

	mu        sync.Mutex
	running   int
	inTree    map[session.ID]int // running
	alive     int                // running, lent or coming back
	returning []*seat
	arriving  []*seat
}

// seat is one subagent's place among the slots.
type seat struct {
	tree   session.ID
	nested bool // spawned by a subagent, which waits for it

	// state and ready are guarded by the mutex of the slots.
	state seatState
	ready chan struct{} // closed when the slot is held
}

type seatState int

const (
	seatArriving  seatState = iota // waits for its first slot
	seatHolding                    // holds a slot
	seatLent                       // gave its slot away while it only waits
	seatReturning                  // waits for a slot to go on
	seatLeft
)

func newSlots(l Limits) *slots {
	return &slots{process: l.Running, perTree: l.RunningPerTree, bound: l.Alive, inTree: make(map[session.ID]int)}
}

// arrive queues a new subagent. It is alive from when it gets its slot.
func (s *slots) arrive(tree session.ID, nested bool) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &seat{tree: tree, nested: nested, ready: make(chan struct{})}
	s.arriving = append(s.arriving, st)
	s.dispatchLocked()
	return st
}

// takeUp queues a subagent that an earlier life of the process had started.
func (s *slots) takeUp(tree session.ID) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &seat{tree: tree, state: seatReturning, ready: make(chan struct{})}
	s.alive++
	s.returning = append(s.returning, st)
	s.dispatchLocked()
	return st
}

// lend gives the slot back while the subagent only waits, and reports whether it did: with as many alive as are allowed
// a slot stays where it is, unless the subagent always lends.
func (s *slots) lend(st *seat, always bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.state != seatHolding || s.alive >= s.bound && !always {
		return false
	}
	st.state = seatLent
	s.freeLocked(st)
	s.dispatchLocked()
	return true
}

// reclaim queues a subagent that lent its slot, before those that never ran.
func (s *slots) reclaim(st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.state != seatLent {
		return
	}
	st.state, st.ready = seatReturning, make(chan struct{})
	s.returning = append(s.returning, st)
	s.dispatchLocked()
}

// leave ends a seat in whatever state it is. It may be called twice.
func (s *slots) leave(st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := st.state
	st.state = seatLeft
	switch was {
	case seatArriving:
		s.arriving = slices.DeleteFunc(s.arriving, func(o *seat) bool { return o == st })
	case seatReturning:
		s.returning = slices.DeleteFunc(s.returning, func(o *seat) bool { return o == st })
		s.alive--
	case seatLent:
		s.alive--
	case seatHolding:
		s.alive--
		s.freeLocked(st)
	case seatLeft:
		return
	}
	s.dispatchLocked()
}

// wait blocks until the seat holds a slot. The error is the context's cause; the seat then keeps its place.
func (s *slots) wait(ctx context.Context, st *seat) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	ready := st.ready
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// full reports whether a new subagent of the tree would have to wait.
func (s *slots) full(tree session.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running+len(s.arriving)+len(s.returning) >= s.process || s.inTree[tree] >= s.perTree || s.alive >= s.bound
}

func (s *slots) freeLocked(st *seat) {
	s.running--
	s.inTree[st.tree]--
	if s.inTree[st.tree] == 0 {
		delete(s.inTree, st.tree)
	}
}

// dispatchLocked gives the free slots to those that wait.
func (s *slots) dispatchLocked() {
	s.returning = slices.DeleteFunc(s.returning, func(st *seat) bool { return s.takeLocked(st) })
	s.arriving = slices.DeleteFunc(s.arriving, func(st *seat) bool {
		if s.alive >= s.bound && !st.nested || !s.takeLocked(st) {
			return false
		}
		s.alive++
		return true
	})
}

func (s *slots) takeLocked(st *seat) bool {
	if s.running >= s.process || s.inTree[st.tree] >= s.perTree {
		return false
	}
	s.running++
	s.inTree[st.tree]++
	st.state = seatHolding
	close(st.ready)
	return true
}
