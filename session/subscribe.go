package session

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// SubscribeRequest names what a subscriber wants of one tree.
type SubscribeRequest struct {
	Session   ID
	After     uint64 // durable events with a greater seq
	Ephemeral bool   // deltas and progress too, as far as the reader keeps up
	// Beat, when not zero, yields an event without a type whenever the reader has had all there is, before waiting for more,
	// and then each time Beat has passed in waiting.
	Beat time.Duration
}

// Subscribe returns a tree's events: every durable one exactly once, in order, from the log, and then as they are
// committed. Ephemeral ones stand where they were told: after the durable events there were then, before those that came
// later. It ends with an error: the context's cause, [ErrNotFound], or the store's. A slow reader slows nobody but itself.
func (m *Manager) Subscribe(ctx context.Context, r SubscribeRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if _, err := m.cfg.Store.Tree(ctx, r.Session); err != nil {
			yield(Event{}, ended(ctx, fmt.Errorf("session %s: %w", r.Session, err)))
			return
		}
		wake, stop := m.cfg.Store.Watch(r.Session)
		defer stop()
		p := passing{yield: yield}
		if r.Ephemeral {
			told, leave := m.hub.subscribe(r.Session)
			defer leave()
			p.told = told
		}
		tail, leave := m.tails.join(r.Session)
		defer leave()
		const page = 256
		after := r.After
		var beaten time.Time
		look, ticket := true, tail.ticket() // whether there may be durable events that were not read, and since when
		for {
			var events []Event
			if look {
				var err error
				if events, err = tail.read(ctx, m.cfg.Store, EventQuery{Tree: r.Session, After: after, Limit: page}, ticket); err != nil {
					yield(Event{}, ended(ctx, fmt.Errorf("session %s: read events: %w", r.Session, err)))
					return
				}
			}
			p.yielded = p.yielded || len(events) > 0
			for _, e := range events {
				if !p.before(e.Seq) || !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if len(events) == page {
				ticket = tail.ticket()
				continue
			}
			if !p.before(after + 1) {
				return
			}
			if look = p.held != nil; look {
				ticket = tail.ticket()
				continue // it was told after a commit that can be read by now
			}
			wait := time.Second // Watch is a hint
			if r.Beat > 0 {
				now := time.Now()
				if p.yielded || now.Sub(beaten) >= r.Beat {
					if !yield(Event{}, nil) {
						return
					}
					beaten, p.yielded = now, false
				}
				wait = min(wait, r.Beat-now.Sub(beaten))
			}
			reread := time.NewTimer(wait)
			select {
			case <-wake:
				look = true
			case <-reread.C:
				look = true
			case e := <-p.told:
				p.held = e
				if !p.before(after + 1) {
					reread.Stop()
					return
				}
				look = p.held != nil
			case <-ctx.Done():
				reread.Stop()
				yield(Event{}, context.Cause(ctx))
				return
			}
			reread.Stop()
			ticket = tail.ticket()
		}
	}
}

// ended returns why a subscription ends: the context's cause, if the store was interrupted by its end, and else err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// passing gives a reader what is told in passing at its place among the durable events.
type passing struct {
	told  <-chan *told // nil: nothing of it is wanted
	held  *told        // taken from the channel; its turn has not come
	yield func(Event, error) bool
	// yielded says that something was yielded since it was last set to false.
	yielded bool
}

// before yields what was told before the durable event of a seq, and reports whether the reader wants more.
func (p *passing) before(seq uint64) bool {
	for {
		if p.held == nil {
			select {
			case e := <-p.told:
				p.held = e
			default:
				return true
			}
		}
		if p.held.after >= seq {
			return true
		}
		e := p.held.Event
		p.held, p.yielded = nil, true
		if !p.yield(e, nil) {
			return false
		}
	}
}
