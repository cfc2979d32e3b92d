package tracker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"orchestrator/session"
)

// waiter is the wake-up of one waiting call. Its channel is closed when the call may have left waiting.
type waiter struct {
	wake     chan struct{}
	settled  *PendingA2ATask // what this process made of the call; set before wake is closed, nil when another did
	deadline time.Time
	waits    int // how many Waits are on it
}

// waiters are the waiters of this process.
type waiters struct {
	mu sync.Mutex
	m  map[session.CallID]*waiter
}

// add makes a call's waiter without waiting on it.
func (ws *waiters) add(id session.CallID, deadline time.Time) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w, ok := ws.m[id]
	if !ok {
		if ws.m == nil {
			ws.m = make(map[session.CallID]*waiter)
		}
		w = &waiter{wake: make(chan struct{}), deadline: deadline}
		ws.m[id] = w
	}
	return w
}

// acquire returns a call's waiter, and whether it was there: then the call was waiting when it was made, and whatever
// has changed that since wakes it.
func (ws *waiters) acquire(id session.CallID) (w *waiter, existed bool) {
	ws.mu.Lock()
	w, existed = ws.m[id]
	if existed {
		w.waits++
	}
	ws.mu.Unlock()
	if existed {
		return w, true
	}
	w = ws.add(id, time.Time{})
	ws.mu.Lock()
	w.waits++
	ws.mu.Unlock()
	return w, false
}

// release ends one wait, and drops the waiter with its last.
func (ws *waiters) release(id session.CallID, w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.waits--
	if w.waits == 0 && ws.m[id] == w {
		delete(ws.m, id)
	}
}

// drop forgets a waiter nobody waits on: its call was not registered.
func (ws *waiters) drop(id session.CallID, w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.waits == 0 && ws.m[id] == w {
		delete(ws.m, id)
	}
}

// wake wakes whoever waits for a call and forgets the waiter. settled is the call as it has just been committed, nil when
// that has to be read.
func (ws *waiters) wake(id session.CallID, settled *PendingA2ATask) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w, ok := ws.m[id]; ok {
		delete(ws.m, id)
		w.settled = settled
		close(w.wake)
	}
}

func (ws *waiters) ids() []session.CallID {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ids := make([]session.CallID, 0, len(ws.m))
	for id := range ws.m {
		ids = append(ids, id)
	}
	return ids
}

// Wait blocks until a call is no longer waiting and returns it as it is then: answered, detached or cancelled. At the
// call's deadline, and when ctx is cancelled with a *[WaitCancelledError], it abandons the call, and by the same
// compare-and-set takes a reply that came first. When ctx ends for any other cause (the process stops, the turn is
// cancelled or out of time, the tree is no longer ours) it returns that cause and leaves the call alone: the turn's
// terminal commit, or the next life of the turn, decides.
func (t *Tracker) Wait(ctx context.Context, id session.CallID) (PendingA2ATask, error) {
	p, err := t.Await(ctx, id)
	if err != nil {
		return PendingA2ATask{}, err
	}
	return *p, nil
}

// Await is [Tracker.Wait] for who waits by the thousand: as long as it blocks there is little on the stack, which is what
// a goroutine holds of memory.
func (t *Tracker) Await(ctx context.Context, id session.CallID) (*PendingA2ATask, error) {
	for {
		p, w, deadline, err := t.join(ctx, id)
		if w != nil {
			settled, late := w.block(ctx, deadline)
			t.waiters.release(id, w)
			p, err = t.after(ctx, id, settled, late)
		}
		if p != nil || err != nil {
			return p, err
		}
	}
}

// join returns the waiter of a waiting call, or the call when it is no longer waiting.
func (t *Tracker) join(ctx context.Context, id session.CallID) (*PendingA2ATask, *waiter, time.Time, error) {
	w, registered := t.waiters.acquire(id)
	if registered && !w.deadline.IsZero() {
		return nil, w, w.deadline, nil
	}
	p, err := t.Get(ctx, id)
	if err == nil && p.State == StateWaiting {
		return nil, w, p.Deadline, nil
	}
	t.waiters.release(id, w)
	switch {
	case err != nil && ctx.Err() != nil:
		p, err := t.waitEnded(ctx, id)
		return p, nil, time.Time{}, err
	case err != nil:
		return nil, nil, time.Time{}, err
	}
	return &p, nil, time.Time{}, nil
}

// block waits for the wake, the end of ctx or the deadline, and reports whether it was the deadline. It returns the call
// when whoever woke it said what it has become.
func (w *waiter) block(ctx context.Context, deadline time.Time) (settled *PendingA2ATask, late bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-w.wake:
		return w.settled, false
	case <-ctx.Done():
	case <-timer.C:
		return nil, true
	}
	return nil, false
}

// after returns a call after its waiter has waited, nil if it goes on waiting.
func (t *Tracker) after(ctx context.Context, id session.CallID, settled *PendingA2ATask, late bool) (*PendingA2ATask, error) {
	if late {
		p, err := t.Abandon(ctx, id, WhyDeadline)
		if err != nil && ctx.Err() != nil {
			return t.waitEnded(ctx, id)
		}
		return pointerTo(p, err)
	}
	if ctx.Err() != nil {
		return t.waitEnded(ctx, id)
	}
	if settled != nil {
		p := *settled // others may have waited, too
		return &p, nil
	}
	p, err := t.Get(ctx, id)
	switch {
	case err != nil && ctx.Err() != nil:
		return t.waitEnded(ctx, id)
	case err == nil && p.State == StateWaiting:
		return nil, nil //nolint:nilnil // that is what it says
	}
	return pointerTo(p, err)
}

func pointerTo(p PendingA2ATask, err error) (*PendingA2ATask, error) {
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// abandonBudget bounds the commit that abandons a call whose wait was cancelled.
const abandonBudget = 5 * time.Second

func (t *Tracker) waitEnded(ctx context.Context, id session.CallID) (*PendingA2ATask, error) {
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[*WaitCancelledError](cause); !ok {
		return nil, cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonBudget)
	defer cancel()
	return pointerTo(t.Abandon(ctx, id, WhyWaitCancelled))
}

// Run looks each second, and soon after other commits, whether calls somebody here waits for were settled elsewhere: by
// another process, or by the terminal commit of a turn. It returns when ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	wake, stop := t.cfg.Store.Watch("")
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	// A store that commits all the time wakes all the time: there is one look in a while, and the scan takes a twentieth of
	// the time at most.
	next := time.NewTimer(0)
	defer next.Stop()
	armed := true
	for {
		listen := wake
		if armed {
			listen = nil // the look that is to come sees it
		}
		select {
		case <-ctx.Done():
			return nil
		case <-listen:
			t.lookAfterEnded(ctx)
			next.Reset(scanEvery)
			armed = true
			continue
		case <-next.C:
			armed = false
		case <-tick.C:
		}
		t.lookAfterEnded(ctx)
		began := time.Now()
		if err := t.scan(ctx); err != nil && ctx.Err() == nil {
			t.cfg.Logger.WarnContext(ctx, "can't look for calls settled elsewhere", "err", err)
		}
		if cost := time.Since(began); cost*20 > scanEvery {
			next.Reset(min(cost*20, time.Second))
			armed = true
		}
	}
}

// scanEvery is the shortest time between two scans.
const scanEvery = 50 * time.Millisecond

// scan wakes the waiters of calls that are no longer waiting.
func (t *Tracker) scan(ctx context.Context) error {
	ids := t.waiters.ids()
	if len(ids) == 0 {
		return nil
	}
	recs, err := t.cfg.Store.Records(ctx, session.RecordQuery{Kind: session.KindCall, States: []session.State{StateWaiting}, NoBody: true})
	if err != nil {
		return err
	}
	waiting := make(map[session.CallID]bool, len(recs))
	for _, rec := range recs {
		waiting[session.CallID(rec.Key)] = true
	}
	for _, id := range ids {
		if !waiting[id] {
			t.waiters.wake(id, nil)
		}
	}
	return nil
}

// lookAfterEnded tells of calls that ended with their turn.
func (t *Tracker) lookAfterEnded(ctx context.Context) {
	t.mu.Lock()
	ids := make(map[session.CallID]time.Time, len(t.ending))
	maps.Copy(ids, t.ending)
	t.mu.Unlock()
	for id, since := range ids {
		p, err := t.Get(ctx, id)
		if err != nil && !errors.Is(err, session.ErrNotFound) {
			return
		}
		settled := err == nil && p.State != StateWaiting && p.State != StateAnswered
		if !settled && err == nil && time.Since(since) < time.Minute {
			continue
		}
		t.mu.Lock()
		delete(t.ending, id)
		t.mu.Unlock()
		if settled {
			t.metrics.ended(p)
			t.changed(StateWaiting, p)
		}
	}
}
