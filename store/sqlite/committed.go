package sqlite

import (
	"sync"

	"orchestrator/session"
)

// committed holds records as they are in the database, for readers: a read of a row that was just written needs no
// statement. Only the writing goroutine fills it. What a transaction touches is taken out before the commit and put in
// after it, so that in between readers ask the database, and nobody sees a row go back in time.
type committed struct {
	mu      sync.RWMutex
	records map[recordKey]session.Record
	size    int // about how many bytes it holds
}

func (c *committed) get(kind session.Kind, key string) (session.Record, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	r, ok := c.records[recordKey{kind, key}]
	return r, ok
}

// drop takes records out; all says every one.
func (c *committed) drop(records []session.Record, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all {
		c.records, c.size = nil, 0
		return
	}
	for _, r := range records {
		c.dropLocked(r)
	}
}

func (c *committed) dropLocked(r session.Record) {
	key := recordKey{r.Kind, r.Key}
	if old, ok := c.records[key]; ok {
		c.size -= recordSize(old)
		delete(c.records, key)
	}
}

// put takes records in; of two of one key the last counts. Over its bound everything else goes.
func (c *committed) put(records []session.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range records {
		c.dropLocked(r)
		if c.records == nil || c.size+recordSize(r) > maxCommitted {
			c.records, c.size = make(map[recordKey]session.Record), 0
		}
		c.records[recordKey{r.Kind, r.Key}] = r
		c.size += recordSize(r)
	}
}

// maxCommitted is about how many bytes committed may hold.
const maxCommitted = 16 << 20

func recordSize(r session.Record) int { return 400 + len(r.Body) }
