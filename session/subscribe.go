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
}

// Subscribe returns a tree's events: every durable one exactly once, in order, from the log, and then as they are
// committed. It ends with an error: the context's, [ErrNotFound], or the store's. A slow reader slows nobody but itself.
func (m *Manager) Subscribe(ctx context.Context, r SubscribeRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if _, err := m.cfg.Store.Tree(ctx, r.Session); err != nil {
			yield(Event{}, fmt.Errorf("session %s: %w", r.Session, err))
			return
		}
		wake, stop := m.cfg.Store.Watch(r.Session)
		defer stop()
		var ephemeral <-chan Event
		if r.Ephemeral {
			ch, leave := m.hub.subscribe(r.Session)
			defer leave()
			ephemeral = ch
		}
		const page = 256
		after := r.After
		for {
			// What is told in passing belongs before the durable event that completes it.
			for n := len(ephemeral); n > 0; n-- {
				if !yield(<-ephemeral, nil) {
					return
				}
			}
			events, err := m.cfg.Store.Events(ctx, EventQuery{Tree: r.Session, After: after, Limit: page})
			if err != nil {
				yield(Event{}, fmt.Errorf("session %s: read events: %w", r.Session, err))
				return
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if len(events) == page {
				continue
			}
			reread := time.NewTimer(time.Second) // Watch is a hint
			select {
			case <-wake:
			case <-reread.C:
			case e := <-ephemeral:
				if !yield(e, nil) {
					reread.Stop()
					return
				}
			case <-ctx.Done():
				reread.Stop()
				yield(Event{}, context.Cause(ctx))
				return
			}
			reread.Stop()
		}
	}
}
