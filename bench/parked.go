package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"orchestrator/a2a"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/tracker"
)

// parkedAim is what a call that waits may take, in KiB.
const parkedAim = 8

// usage is the heap and the stacks in use, in bytes.
type usage struct{ heap, stack float64 }

func (u usage) minus(o usage) usage { return usage{u.heap - o.heap, u.stack - o.stack} }

func (u usage) per(n int) usage { return usage{u.heap / float64(n), u.stack / float64(n)} }

func (u usage) kib() float64 { return (u.heap + u.stack) / 1024 }

// inUse collects garbage until the stacks have shrunk to what they need, which takes a few rounds, and reads.
func inUse() usage {
	var m runtime.MemStats
	for range 6 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return usage{float64(m.HeapAlloc), float64(m.StackInuse)}
}

// measureParked measures the memory of blocking calls that wait: all that is held between the model's wish and the
// answer, the turn and its goroutine included, less what as many plain HTTP connections hold on each of which the answer
// to a POST is open and nothing reads. What a store in memory holds of them is data, so the calls are on SQLite.
func measureParked(ctx context.Context, b *bench) error {
	b.table.head("Memory of a blocking call that waits, beyond its HTTP connection (heap and stack)")
	for i, n := range b.sizes.parked {
		connection, err := parkConnections(ctx, b, n)
		if err != nil {
			return err
		}
		call, err := parkTurns(ctx, b, n, a2a.InvokeAgent)
		if err != nil {
			return err
		}
		beyond := call.minus(connection)
		f := figure{
			Part: "parked", Name: number(float64(n)) + " calls, each with its turn", Value: beyond.kib(), Unit: "KiB", Aim: parkedAim,
			Note: fmt.Sprintf("heap %.1f, stack %.1f; the connection %.1f", beyond.heap/1024, beyond.stack/1024, connection.kib()),
		}
		b.table.add(f)
		if i > 0 {
			continue
		}
		turn, err := parkTurns(ctx, b, n, blocks)
		if err != nil {
			return err
		}
		raw, err := parkRaw(ctx, b, n)
		if err != nil {
			return err
		}
		alone := beyond.minus(turn)
		b.table.add(figure{
			Part: "parked", Name: "  without the turn", Value: alone.kib(), Unit: "KiB", Aim: parkedAim,
			Note: fmt.Sprintf("heap %.1f, stack %.1f; the turn in a tool that only blocks %.1f; a raw a2a-go call %.1f",
				alone.heap/1024, alone.stack/1024, turn.kib(), raw.minus(connection).kib()),
		})
	}
	return nil
}

// parkConnections opens connections with an answer each and returns what one takes.
func parkConnections(ctx context.Context, b *bench, n int) (usage, error) {
	url := b.peers.url(holder)
	transport := &http.Transport{}
	client := &http.Client{Transport: transport}
	bodies := make([]io.Closer, 0, n)
	before := inUse()
	for i := range n {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"SubscribeToTask","params":{"id":"t"}}`, i)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/a2a", strings.NewReader(body))
		if err != nil {
			return usage{}, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return usage{}, err
		}
		bodies = append(bodies, resp.Body)
	}
	after := inUse()
	for _, body := range bodies {
		body.Close()
	}
	transport.CloseIdleConnections()
	return after.minus(before).per(n), waitHeld(ctx, url, func(h holding) bool { return h == holding{} })
}

// parkRaw has calls of the SDK's client wait and returns what one takes.
func parkRaw(ctx context.Context, b *bench, n int) (per usage, err error) {
	url := b.peers.url(holder)
	raw, err := newRawClient(ctx, bindings[0], url)
	if err != nil {
		return usage{}, err
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := inUse()
	var wg sync.WaitGroup
	for range n {
		req := raw.request()
		wg.Go(func() {
			for _, err := range raw.client.SendStreamingMessage(ctx, req) {
				if err != nil {
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	if err := waitHeld(ctx, url, func(h holding) bool { return h.Sent == int64(n) }); err != nil {
		return usage{}, err
	}
	after := inUse()
	cancel()
	wg.Wait()
	return after.minus(before).per(n), waitHeld(context.WithoutCancel(ctx), url, func(h holding) bool { return h == holding{} })
}

// parkTurns has turns wait in a tool, each in its own, and returns what one takes.
func parkTurns(ctx context.Context, b *bench, n int, tool string) (per usage, err error) {
	url := b.peers.url(holder)
	per, err = parkWorld(ctx, b, n, tool, func(ctx context.Context, store session.Store) (*world, error) {
		return newWorld(ctx, store, map[string]string{holder: url})
	}, func(ctx context.Context, w *world) error {
		if tool == blocks {
			return w.waitBlocked(ctx, n)
		}
		if err := waitHeld(ctx, url, func(h holding) bool { return h.Sent == int64(n) }); err != nil {
			return err
		}
		return waitTasks(ctx, w.calls, n)
	})
	if err != nil {
		return per, err
	}
	return per, waitHeld(ctx, url, func(h holding) bool { return h == holding{} })
}

// parkWorld has the turns of a world wait in a tool until they do, and returns what one takes.
func parkWorld(
	ctx context.Context, b *bench, n int, tool string, open func(context.Context, session.Store) (*world, error), parked func(context.Context, *world) error,
) (per usage, err error) {
	store, err := b.openStore(ctx, sqliteNormal)
	if err != nil {
		return per, err
	}
	w, err := open(ctx, store)
	if err != nil {
		return per, errors.Join(err, store.Close())
	}
	var wg sync.WaitGroup
	err = func() error {
		turns, err := w.turns(ctx, n)
		if err != nil {
			return err
		}
		if err := w.warm(ctx); err != nil {
			return err
		}
		before := inUse()
		for _, turn := range turns {
			wg.Go(func() {
				// It ends with the world, as a turn does that goes on in the next life of the process.
				_ = w.run(ctx, turn, func(context.Context, *session.Turn, int) []llm.Chunk { return uses(tool, holder) })
			})
		}
		err = parked(ctx, w)
		per = inUse().minus(before).per(n)
		return err
	}()
	return per, errors.Join(err, w.stopAfter(wg.Wait))
}

// waitTasks waits until so many calls know their peer's task: nothing more is written then.
func waitTasks(ctx context.Context, tracked *tracker.Tracker, n int) error {
	return waitFor(ctx, "the calls don't know their tasks", func() (bool, error) {
		calls, err := tracked.List(ctx, session.RecordQuery{})
		known := 0
		for _, c := range calls {
			if c.PeerTaskID != "" {
				known++
			}
		}
		return known >= n, err
	})
}

// waitFor looks again and again until it is so, five minutes at most.
func waitFor(ctx context.Context, what string, look func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New(what+" after five minutes"))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if so, err := look(); so || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
