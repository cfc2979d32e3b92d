package tracker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tracker"
)

// BenchmarkParkedCall reports the memory that a call takes of whoever waits for it, the store's row apart.
func BenchmarkParkedCall(b *testing.B) {
	const calls = 2000
	store := session.NewMemory()
	tr, err := tracker.New(tracker.Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	root := sessiontest.NewTurn(b, store)
	var ids []session.CallID
	for n := range calls {
		turn := sessiontest.NewChildTurn(b, root, n+1)
		p, _, err := tr.Register(b.Context(), turn, tracker.Request{
			ToolCall: session.MintToolCallID(turn.Agent, 1), Peer: "advisor", Mode: session.ModeBlocking, Deadline: time.Now().Add(time.Hour),
		})
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	for b.Loop() {
		before := inUse()
		ctx, cancel := context.WithCancelCause(b.Context())
		var wg, parked sync.WaitGroup
		parked.Add(calls)
		for _, id := range ids {
			wg.Go(func() {
				parked.Done()
				if _, err := tr.Await(ctx, id); !errors.Is(err, session.ErrStopping) {
					b.Errorf("Await() = %v, want ErrStopping", err)
				}
			})
		}
		parked.Wait()
		b.ReportMetric(float64(inUse()-before)/calls, "B/call")
		cancel(session.ErrStopping)
		wg.Wait()
	}
}

// BenchmarkCall is the life of a blocking call: registered, answered, waited for, used.
func BenchmarkCall(b *testing.B) {
	store := session.NewMemory()
	tr, err := tracker.New(tracker.Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	turn := sessiontest.NewChildTurn(b, sessiontest.NewTurn(b, store), 1)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		p, _, err := tr.Register(b.Context(), turn, tracker.Request{
			ToolCall: session.MintToolCallID(turn.Agent, n), Peer: "advisor", Mode: session.ModeBlocking, Deadline: time.Now().Add(time.Hour),
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := tr.Deliver(b.Context(), p.ID, tracker.Reply{State: "completed", Text: "forty-two"}); err != nil {
			b.Fatal(err)
		}
		if p, err = tr.Wait(b.Context(), p.ID); err != nil {
			b.Fatal(err)
		}
		if _, err := turn.Commit(b.Context(), session.Batch{Changes: []session.Change{tr.Consume(p)}}); err != nil {
			b.Fatal(err)
		}
	}
}

// inUse is the heap and the stacks that live.
func inUse() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapInuse + s.StackInuse
}
