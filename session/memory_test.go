package session_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
)

func TestMemoryKeepsTheStoresPromises(t *testing.T) {
	sessiontest.Run(t, func(t testing.TB) session.Store {
		s := session.NewMemory()
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		return s
	})
}

func TestMemoryGoesByTheBubblesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session.NewMemory()
		turn := sessiontest.NewTurn(t, s) // leases the tree for an hour
		wake, stop := s.Watch(turn.Root)
		defer stop()
		start := time.Now()
		var waited time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			<-wake
			waited = time.Since(start)
		})
		time.Sleep(59 * time.Minute)
		if _, err := s.Claim(t.Context(), turn.Root, "other", time.Minute); err == nil {
			t.Error("a lease of an hour is over after 59 minutes")
		}
		time.Sleep(time.Minute)
		lease, err := s.Claim(t.Context(), turn.Root, "other", time.Minute)
		if err != nil || !lease.Crashed {
			t.Errorf("Claim() after an hour = %+v, %v, want the lease of an owner that crashed", lease, err)
		}
		if _, err := s.Commit(t.Context(), session.Batch{Tree: turn.Root, Epoch: lease.Epoch}); err != nil {
			t.Error(err)
		}
		if wg.Wait(); waited != time.Hour {
			t.Errorf("the watcher was woken after %v, want %v", waited, time.Hour)
		}
	})
}
