package sessiontest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"orchestrator/session"
)

// Gate is a store that keeps commits a test names from happening until the test says so. That is how a test forces the
// order of writes which race: both have read, one is held, the other goes through.
type Gate struct {
	session.Store

	mu      sync.Mutex
	holds   []*Hold
	left    int  // commits before the crash; below zero: there is none
	unheard bool // one more is written at the crash, and nobody hears of it
	crashed chan struct{}
}

// NewGate returns a gate that holds nothing.
func NewGate(s session.Store) *Gate { return &Gate{Store: s, left: -1, crashed: make(chan struct{})} }

// ErrCrashed is what a store says after the crash that [Gate.CrashAfter] simulates.
var ErrCrashed = errors.New("the process has crashed")

// CrashAfter lets n more commits through; every later one fails with [ErrCrashed] and changes nothing, as if the process
// had been killed there. The store below goes on: another Gate over it is the next life.
func (g *Gate) CrashAfter(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left, g.unheard = n, false
}

// CrashAtCommit is [Gate.CrashAfter], but the process dies while the next commit is made: it is written, and fails with
// [ErrCrashed].
func (g *Gate) CrashAtCommit(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left, g.unheard = n, true
}

// Crashed is closed by the first commit that fails with [ErrCrashed].
func (g *Gate) Crashed() <-chan struct{} { return g.crashed }

// Hold holds the next commit that matches, once. Commits are tried against holds in the order these were made.
func (g *Gate) Hold(matches func(session.Batch) bool) *Hold {
	h := &Hold{matches: matches, reached: make(chan struct{}), release: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds = append(g.holds, h)
	return h
}

// Commit implements [session.Store]. A held commit whose context ends fails with its error.
func (g *Gate) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	g.mu.Lock()
	i := slices.IndexFunc(g.holds, func(h *Hold) bool { return h.matches(b) })
	var h *Hold
	if i >= 0 {
		h = g.holds[i]
		g.holds = slices.Delete(g.holds, i, i+1)
	}
	g.mu.Unlock()
	if h != nil {
		close(h.reached)
		select {
		case <-h.release:
		case <-ctx.Done():
			return session.Committed{}, ctx.Err()
		}
	}
	g.mu.Lock()
	through, write := g.left != 0, g.left != 0 || g.unheard
	switch {
	case g.left > 0:
		g.left--
	case g.left == 0:
		g.unheard = false
		select {
		case <-g.crashed:
		default:
			close(g.crashed)
		}
	}
	g.mu.Unlock()
	if !write {
		return session.Committed{}, ErrCrashed
	}
	done, err := g.Store.Commit(ctx, b)
	if !through {
		return session.Committed{}, ErrCrashed
	}
	return done, err
}

// Hold is one commit that is held.
type Hold struct {
	matches func(session.Batch) bool
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

// Wait blocks until the commit is held, and fails the test when it isn't within ten seconds.
func (h *Hold) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-h.reached:
	case <-time.After(10 * time.Second):
		t.Fatal("the commit that should be held was not made")
	}
}

// Reached is closed when the commit is held.
func (h *Hold) Reached() <-chan struct{} { return h.reached }

// Release lets the commit go on. It may be called twice, and before the commit is held.
func (h *Hold) Release() { h.once.Do(func() { close(h.release) }) }

// Changing matches the batch that takes a record of the kind to the state. An empty key is any record.
func Changing(kind session.Kind, key string, to session.State) func(session.Batch) bool {
	return func(b session.Batch) bool {
		return slices.ContainsFunc(b.Changes, func(c session.Change) bool {
			return c.Kind == kind && (key == "" || c.Key == key) && c.To == to
		})
	}
}
