package session

import (
	"context"
	"sync"
	"sync/atomic"
)

// What a tail keeps at most, in events and in bytes of their bodies.
const (
	tailEvents = 256
	tailBytes  = 1 << 20
)

// tails are the ends of the logs that more than one subscriber of this process reads.
type tails struct {
	mu    sync.Mutex
	trees map[ID]*tail
}

// tail is the end of a tree's log as its subscribers have read it from the store, so that each commit is read once for all
// of them and not once for each. One reader alone reads the store and nothing is kept.
type tail struct {
	readers atomic.Int32
	turn    chan struct{} // holds a value while somebody uses what is below
	started atomic.Uint64 // how many readings of the store have begun; more begin only by whose turn it is

	events []Event // those through last; what was handed out of it isn't changed
	last   uint64
	size   int
	atHead bool // the last reading found all there was
}

// join returns the tail of a tree for a reader, until leave is called.
func (t *tails) join(root ID) (*tail, func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trees == nil {
		t.trees = make(map[ID]*tail)
	}
	of := t.trees[root]
	if of == nil {
		of = &tail{turn: make(chan struct{}, 1)}
		t.trees[root] = of
	}
	of.readers.Add(1)
	return of, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if of.readers.Add(-1) == 0 {
			delete(t.trees, root)
		}
	}
}

// ticket returns what a reader that was just woken gives to read: a reading that begins later knows what it was woken for.
func (t *tail) ticket() uint64 { return t.started.Load() }

// read returns what q names, which is all events of the tree after a seq up to a limit, as they were when the ticket was
// taken or later.
func (t *tail) read(ctx context.Context, s Store, q EventQuery, ticket uint64) ([]Event, error) {
	if t.readers.Load() < 2 {
		return s.Events(ctx, q)
	}
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	first := t.last - uint64(len(t.events))
	if q.After < first {
		<-t.turn
		return s.Events(ctx, q) // a reader that is behind, by itself
	}
	defer func() { <-t.turn }()
	if fresh := t.atHead && t.started.Load() > ticket; fresh || q.After < t.last && t.last-q.After >= uint64(q.Limit) {
		from := int(min(q.After, t.last) - first)
		to := min(len(t.events), from+q.Limit)
		return t.events[from:to:to], nil
	}
	t.started.Add(1)
	after := max(q.After, t.last)
	events, err := s.Events(ctx, EventQuery{Tree: q.Tree, After: after, Limit: q.Limit})
	t.atHead = err == nil && len(events) < q.Limit
	if err != nil {
		return nil, err
	}
	from := int(t.last - first)
	if q.After < t.last {
		from = int(q.After - first) // what is kept comes before what was read
	}
	known := t.events[from:]
	t.keep(after, events)
	if len(known) == 0 {
		return events, nil
	}
	both := append(append(make([]Event, 0, len(known)+len(events)), known...), events...)
	return both[:min(len(both), q.Limit)], nil
}

// keep adds the events behind a seq and drops the oldest that are too many.
func (t *tail) keep(after uint64, events []Event) {
	if after != t.last {
		t.events, t.last, t.size = nil, after, 0
	}
	if len(events) == 0 {
		return
	}
	t.events = append(t.events, events...)
	t.last = events[len(events)-1].Seq
	for _, e := range events {
		t.size += len(e.Data)
	}
	drop := 0
	for ; len(t.events)-drop > tailEvents || t.size > tailBytes; drop++ {
		t.size -= len(t.events[drop].Data)
	}
	if drop > 0 {
		t.events = append([]Event(nil), t.events[drop:]...) // so that what was dropped is let go of
	}
}
