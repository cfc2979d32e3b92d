package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"orchestrator/session"
	"orchestrator/store/sqlite"
)

// The stores that are measured.
const (
	memory       = "memory"
	sqliteNormal = "sqlite normal"
	sqliteFull   = "sqlite full"
)

var stores = []string{memory, sqliteNormal, sqliteFull}

var databases int

// openStore opens a new, empty store.
func (b *bench) openStore(ctx context.Context, name string) (session.Store, error) {
	if name == memory {
		return session.NewMemory(), nil
	}
	synchronous := "full"
	if name == sqliteNormal {
		synchronous = "normal"
	}
	databases++
	return sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(b.dir, fmt.Sprintf("%d.db", databases)), Synchronous: synchronous})
}

// call is what one invoke_agent cost: from the commit that logs the model's wish to the one that logs the result.
type call struct {
	took    time.Duration
	commits int
	parking int // commits that suspend or resume the caller, apart
	reads   int
	writing time.Duration // in the commits
	reading time.Duration
	mallocs uint64
	bytes   uint64
}

// meter is a store that measures the tool calls that go through it, one at a time.
type meter struct {
	session.Store

	mu     sync.Mutex
	allocs bool // count allocations, which takes time of its own
	open   bool
	began  time.Time
	stats  runtime.MemStats // not on the stack, which is the measured call's
	now    call
	calls  []call
}

// Commit implements [session.Store].
func (m *meter) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	from := time.Now()
	done, err := m.Store.Commit(ctx, b)
	at := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	asked, answered, parked := false, false, false
	for _, e := range b.Events {
		switch e.Type {
		case session.EventToolStarted:
			asked = true
		case session.EventToolCompleted:
			answered = true
		case session.EventSubagentSuspended, session.EventSubagentResumed, session.EventTurnSuspended, session.EventTurnResumed:
			parked = true
		}
	}
	switch {
	case asked:
		m.now, m.open = call{}, true
		if m.allocs {
			runtime.ReadMemStats(&m.stats)
		}
		m.began = time.Now()
	case m.open && parked:
		m.now.parking++
	case m.open:
		m.now.commits++
		m.now.writing += at.Sub(from)
	}
	if answered && m.open {
		m.now.took, m.open = at.Sub(m.began), false
		if m.allocs {
			mallocs, bytes := m.stats.Mallocs, m.stats.TotalAlloc
			runtime.ReadMemStats(&m.stats)
			m.now.mallocs, m.now.bytes = m.stats.Mallocs-mallocs, m.stats.TotalAlloc-bytes
		}
		m.calls = append(m.calls, m.now)
	}
	return done, err
}

// Record implements [session.Store].
func (m *meter) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	defer m.read(time.Now())
	return m.Store.Record(ctx, kind, key)
}

// Records implements [session.Store].
func (m *meter) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	defer m.read(time.Now())
	return m.Store.Records(ctx, q)
}

func (m *meter) read(from time.Time) {
	took := time.Since(from)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.reads++
	m.now.reading += took
}

// take returns what was measured since the last take.
func (m *meter) take() []call {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	return calls
}
