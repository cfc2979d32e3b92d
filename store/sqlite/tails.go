package sqlite

import (
	"cmp"
	"slices"
	"sync"

	"orchestrator/session"
)

// tails holds the last events of trees as they are in the database, for readers who follow them: what is committed is read
// by every stream of its tree, and a stream that is silent asks now and then. As with [committed], only the writing goroutine
// fills it, after the commit, and until then readers ask the database, which may know of the commit already. Trees that
// nobody watches have none.
type tails struct {
	watched func(tree session.ID) bool

	mu    sync.RWMutex
	trees map[session.ID]tail
	size  int                 // about how many bytes it holds
	held  map[session.ID]bool // trees whose end is being committed
}

// tail is the end of a log: events without a gap, up to the last.
type tail struct {
	events []session.Event
	size   int
}

const (
	// maxTail and maxTailSize bound how many events of one tree are held, and about how many bytes.
	maxTail     = 256
	maxTailSize = 256 << 10
	// maxTails is about how many bytes tails may hold.
	maxTails = 4 << 20
)

// after returns the events that a query of a whole log asks for, and whether it knows.
func (t *tails) after(q session.EventQuery) ([]session.Event, bool) {
	if q.Agent != "" || len(q.Types) > 0 || q.Last {
		return nil, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	events := t.trees[q.Tree].events
	if t.held[q.Tree] || len(events) == 0 || q.After+1 < events[0].Seq {
		return nil, false
	}
	from := min(q.After+1-events[0].Seq, uint64(len(events)))
	events = events[from:]
	return slices.Clone(events[:min(len(events), cmp.Or(q.Limit, 1000))]), true
}

// hold has readers ask the database from before a commit of events, a batch each, until free.
func (t *tails) hold(batches [][]session.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, events := range batches {
		if len(events) == 0 {
			continue
		}
		if t.held == nil {
			t.held = make(map[session.ID]bool)
		}
		t.held[events[0].SessionID] = true
	}
}

// free ends what hold began: what was committed is added, or nothing was.
func (t *tails) free() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.held)
}

// add takes in what was committed to one tree.
func (t *tails) add(events []session.Event) {
	if len(events) == 0 {
		return
	}
	tree := events[0].SessionID
	watched := t.watched(tree)
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.trees[tree]
	if !watched { // what is held is no longer the end
		t.size -= old.size
		delete(t.trees, tree)
		return
	}
	next := old
	if n := len(old.events); n == 0 || old.events[n-1].Seq+1 != events[0].Seq {
		next = tail{}
	}
	for _, e := range events {
		next.events = append(next.events, e)
		next.size += eventSize(e)
	}
	for len(next.events) > 1 && (len(next.events) > maxTail || next.size > maxTailSize) {
		next.size -= eventSize(next.events[0])
		next.events[0] = session.Event{}
		next.events = next.events[1:]
	}
	if t.size += next.size - old.size; t.trees == nil || t.size > maxTails {
		t.trees, t.size = make(map[session.ID]tail), next.size
	}
	t.trees[tree] = next
}

// clear forgets everything.
func (t *tails) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trees, t.size = nil, 0
}

func eventSize(e session.Event) int { return 400 + len(e.Data) }
