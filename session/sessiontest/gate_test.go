package sessiontest_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
)

func TestGateHoldsACommitUntilItIsReleased(t *testing.T) {
	ctx := t.Context()
	gate := sessiontest.NewGate(session.NewMemory())
	turn := sessiontest.NewTurn(t, gate)
	insert := func(key string) error {
		_, err := gate.Commit(ctx, session.Batch{
			Tree: turn.Root, Changes: []session.Change{session.Insert(session.KindCall, key, turn.Root, "", "open", nil, time.Time{})},
		})
		return err
	}
	hold := gate.Hold(sessiontest.Changing(session.KindCall, "held", "open"))
	done := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer hold.Release()
	wg.Go(func() { done <- insert("held") })
	hold.Wait(t)
	if err := insert("other"); err != nil {
		t.Fatalf("Commit(other) = %v while another is held, want it to go through", err)
	}
	if _, err := gate.Record(ctx, session.KindCall, "held"); !errors.Is(err, session.ErrNotFound) {
		t.Fatalf("Record(held) = %v, want ErrNotFound before the release", err)
	}
	hold.Release()
	if err := <-done; err != nil {
		t.Fatalf("Commit(held) = %v after the release", err)
	}
	if _, err := gate.Record(ctx, session.KindCall, "held"); err != nil {
		t.Fatalf("Record(held) = %v after the release", err)
	}
	gate.CrashAfter(1)
	if err := insert("last"); err != nil {
		t.Fatalf("Commit(last) = %v, want it through before the crash", err)
	}
	if err := insert("never"); !errors.Is(err, sessiontest.ErrCrashed) {
		t.Fatalf("Commit(never) = %v, want ErrCrashed", err)
	}
	select {
	case <-gate.Crashed():
	default:
		t.Error("Crashed() is open after a commit failed")
	}
	gate = sessiontest.NewGate(gate.Store)
	gate.CrashAtCommit(0)
	if err := insert("unheard"); !errors.Is(err, sessiontest.ErrCrashed) {
		t.Fatalf("Commit(unheard) = %v, want ErrCrashed", err)
	}
	if _, err := gate.Record(ctx, session.KindCall, "unheard"); err != nil {
		t.Errorf("Record(unheard) = %v, want it written", err)
	}
	if err := insert("never"); !errors.Is(err, sessiontest.ErrCrashed) {
		t.Errorf("Commit(never) = %v, want ErrCrashed", err)
	}
	if _, err := gate.Record(ctx, session.KindCall, "never"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("Record(never) = %v, want ErrNotFound", err)
	}
}
