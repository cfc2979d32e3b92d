package sqlite_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/store/sqlite"
)

// eachStore runs a benchmark on every store there is, SQLite with both of its promises.
func eachStore(b *testing.B, run func(b *testing.B, store session.Store)) {
	b.Run("memory", func(b *testing.B) { run(b, session.NewMemory()) })
	for _, synchronous := range []string{"normal", "full"} {
		b.Run("sqlite-"+synchronous, func(b *testing.B) {
			run(b, open(b, sqlite.Config{Path: filepath.Join(b.TempDir(), "bench.db"), Synchronous: synchronous}))
		})
	}
}

// step is what a turn's step writes: a compare-and-set with a guard, and two events.
func step(turn *session.Turn, rec session.Record) session.Batch {
	return session.Batch{
		Changes: []session.Change{rec.Update(rec.State, map[string]string{"text": "two hundred bytes or so of what a call knows of itself"})},
		Guards:  []session.Guard{{Kind: session.KindCall, Owner: turn.Agent, States: []session.State{"waiting"}, Max: 1}},
		Events: []session.Event{
			turn.Event(session.EventToolStarted, session.ToolStarted{Name: "invoke_agent", Args: []byte(`{"agent_name":"advisor"}`)}),
			turn.Event(session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "an answer of a sentence or two, as peers give"}),
		},
	}
}

func newCall(b *testing.B, turn *session.Turn) session.Record {
	b.Helper()
	done, err := turn.Commit(b.Context(), session.Batch{Changes: []session.Change{
		session.Insert(session.KindCall, string(session.CallIDFor(session.MintToolCallID(turn.Agent, 1))), turn.Agent, turn.OriginTurn, "waiting", nil, time.Time{}),
	}})
	if err != nil {
		b.Fatal(err)
	}
	return done.Records[0]
}

// BenchmarkCommit measures the time of one commit that nobody shares: a change, a check, a guard and two events.
func BenchmarkCommit(b *testing.B) {
	eachStore(b, func(b *testing.B, store session.Store) {
		turn := sessiontest.NewTurn(b, store)
		rec := newCall(b, turn)
		b.ReportAllocs()
		for b.Loop() {
			done, err := turn.Commit(b.Context(), step(turn, rec))
			if err != nil {
				b.Fatal(err)
			}
			rec = done.Records[0]
		}
	})
}

// BenchmarkAppendAt64Sessions measures how many events a second 64 sessions append, each in a tree and goroutine of its
// own.
func BenchmarkAppendAt64Sessions(b *testing.B) {
	const sessions = 64
	eachStore(b, func(b *testing.B, store session.Store) {
		turns, recs := make([]*session.Turn, sessions), make([]session.Record, sessions)
		for i := range turns {
			turns[i] = sessiontest.NewTurn(b, store)
			recs[i] = newCall(b, turns[i])
		}
		var left, events atomic.Int64
		left.Store(int64(b.N))
		b.ResetTimer()
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					done, err := turns[i].Commit(b.Context(), step(turns[i], recs[i]))
					if err != nil {
						b.Error(err)
						return
					}
					recs[i] = done.Records[0]
					events.Add(int64(len(done.Events)))
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(events.Load())/b.Elapsed().Seconds(), "events/s")
	})
}

// BenchmarkLastEvent measures how the reads of a turn's start depend on the length of the log: the last message of an
// agent, a summary that isn't there, and the last state of the session.
func BenchmarkLastEvent(b *testing.B) {
	eachStore(b, func(b *testing.B, store session.Store) {
		for _, length := range []int{500, 50_000} {
			turn := sessiontest.NewTurn(b, store)
			for range length / 500 {
				var batch session.Batch
				for range 500 {
					batch.Events = append(batch.Events, turn.Event(session.EventToolStarted, session.ToolStarted{Name: "now", Args: []byte(`{}`)}))
				}
				if _, err := turn.Commit(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(fmt.Sprintf("events=%d", length), func(b *testing.B) {
				for b.Loop() {
					for _, q := range []session.EventQuery{
						{Tree: turn.Root, Agent: turn.Agent, Types: []session.EventType{session.EventMessageCompleted, session.EventToolCompleted}, Limit: 1, Last: true},
						{Tree: turn.Root, Agent: turn.Agent, Types: []session.EventType{session.EventContextCompacted}, Limit: 1, Last: true},
						{Tree: turn.Root, Agent: turn.Agent, Limit: 20, Last: true},
					} {
						if _, err := store.Events(b.Context(), q); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	})
}
