package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// peerName is what our agents know the peer as.
const peerName = "peer"

// ours calls a peer with a blocking invoke_agent of our agent loop, put together as internal/app does it, without
// sessions' manager: turns are begun by hand. A call is what ../ measures: from the end of the commit that logs the
// model's wish to the end of the one that logs the result.
type ours struct {
	store *meter
	calls *tracker.Tracker
	relay *a2a.Relay
	http  *a2ahttp.Transport
	loop  *agentloop.Loop
	model *wisher
	life  context.Context //nolint:containedctx // of the trees
	end   context.CancelCauseFunc
	wg    sync.WaitGroup
}

// newOurs opens a store in memory, or a database in dir.
func newOurs(ctx context.Context, dir, url string) (o *ours, err error) {
	var store session.Store = session.NewMemory()
	if dir != "" {
		dir, err := os.MkdirTemp(dir, "db-")
		if err != nil {
			return nil, err
		}
		if store, err = sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "orchestrator.db"), Synchronous: "normal"}); err != nil {
			return nil, err
		}
	}
	o = &ours{store: &meter{Store: store}, model: new(wisher)}
	o.life, o.end = context.WithCancelCause(context.WithoutCancel(ctx))
	quiet := slog.New(slog.DiscardHandler)
	if o.calls, err = tracker.New(tracker.Config{Store: o.store, Logger: quiet}); err != nil {
		return nil, err
	}
	if o.http, err = a2ahttp.New(a2ahttp.Config{}); err != nil {
		return nil, err
	}
	registry, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: []a2a.Peer{{Name: peerName, Card: url}}, Transport: o.http, Logger: quiet})
	if err != nil {
		return nil, err
	}
	if o.relay, err = a2a.New(a2a.Config{Tracker: o.calls, Store: o.store, Registry: registry, Logger: quiet, Self: a2a.Identity{Name: "bench"}}); err != nil {
		return nil, err
	}
	tools := tool.NewSet(o.relay.Tools(), nil)
	if o.loop, err = agentloop.New(agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return o.model, "bench", nil },
		Tools:  func(context.Context, *session.Turn) (*tool.Set, error) { return tools, nil },
		Limits: agentloop.Limits{ModelCalls: 1 << 20, ContextTokens: 1 << 30},
		Logger: quiet,
	}); err != nil {
		return nil, err
	}
	o.wg.Go(func() { _ = o.calls.Run(o.life) }) // its only end is the context's
	return o, nil
}

func (o *ours) close() error {
	o.end(session.ErrStopping)
	o.relay.Drain()
	o.wg.Wait()
	o.http.Close()
	return o.store.Close()
}

// block implements contender. The calls are those of one turn.
func (o *ours) block(ctx context.Context, n int, allocs bool) (s sample, err error) {
	turn, err := o.turn(ctx)
	if err != nil {
		return s, err
	}
	o.model.steps = steps{left: n}
	o.store.take(allocs)
	out, err := o.loop.RunTurn(ctx, turn)
	switch {
	case err != nil:
		return s, err
	case out.State != session.StateCompleted:
		return s, errors.New(out.Error)
	}
	s = o.store.take(false)
	if s.step, err = o.model.took(n); err != nil {
		return s, err
	}
	if len(s.took) != n {
		return s, fmt.Errorf("%d of %d calls were measured", len(s.took), n)
	}
	events, err := o.store.Events(ctx, session.EventQuery{Tree: turn.Root, Agent: turn.Agent, Types: []session.EventType{session.EventToolCompleted}, Limit: n + 1})
	if err != nil {
		return s, err
	}
	if len(events) != n {
		return s, fmt.Errorf("%d of %d calls were answered", len(events), n)
	}
	for _, e := range events {
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			return s, err
		}
		if err := answered(done.Content); err != nil {
			return s, err
		}
	}
	return s, nil
}

// turn begins a turn of a subagent in a tree of its own.
func (o *ours) turn(ctx context.Context) (*session.Turn, error) {
	root, child := session.NewID(), session.NewID()
	scope := session.Scope{Root: root, Agent: child, Parent: root, Turn: session.NewTurnID(), OriginTurn: session.NewTurnID()}
	now := time.Now().UTC()
	if _, err := o.store.Commit(ctx, session.Batch{
		Tree: root, Create: true,
		Changes: []session.Change{
			session.Insert(session.KindSession, string(root), root, "", session.StateOpen, session.SessionBody{Agent: "primary", Created: now}, time.Time{}),
			session.Insert(session.KindSession, string(child), child, scope.OriginTurn, session.StateOpen,
				session.SessionBody{Agent: "subagent", Parent: root, Depth: 1, Title: "ask a peer", Created: now}, time.Time{}),
		},
		Events: []session.Event{session.Scope{Root: root, Agent: root}.Event(session.EventSessionCreated, session.SessionCreated{Agent: "primary"})},
	}); err != nil {
		return nil, fmt.Errorf("make a tree: %w", err)
	}
	lease, err := o.store.Claim(ctx, root, "bench", time.Hour)
	if err != nil {
		return nil, err
	}
	tree := session.NewTree(o.life, o.store, lease, nil)
	done, err := tree.Commit(ctx, session.QueueTurn(scope, session.TurnBody{Origin: session.OriginTask, Input: "ask a peer"}, time.Time{}))
	if err != nil {
		return nil, fmt.Errorf("queue a turn: %w", err)
	}
	return tree.StartTurn(ctx, done.Records[0], session.Setup{Agent: "subagent", Model: "bench"}, session.Batch{})
}

// wisher is a model that wishes to call the peer so often and then ends its turn.
type wisher struct{ steps }

var _ llm.Model = (*wisher)(nil)

// Stream implements [llm.Model].
func (w *wisher) Stream(_ context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	chunks := []llm.Chunk{{Kind: llm.ChunkText, Text: "done"}, {Kind: llm.ChunkStop, Stop: llm.StopEnd}}
	if w.next(strings.Contains(req.Messages[len(req.Messages)-1].Text, answer)) {
		chunks = []llm.Chunk{
			{Kind: llm.ChunkToolStart, ToolID: "call_1", ToolName: a2a.InvokeAgent},
			{Kind: llm.ChunkToolArgs, Text: fmt.Sprintf(`{"agent_name":%q,"message":%q}`, peerName, question)},
			{Kind: llm.ChunkToolEnd},
			{Kind: llm.ChunkStop, Stop: llm.StopToolCalls},
		}
	}
	return func(yield func(llm.Chunk, error) bool) {
		for _, c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// meter is a store that measures the tool calls that go through it, one at a time.
type meter struct {
	session.Store

	mu     sync.Mutex
	allocs bool
	open   bool
	began  time.Time
	stats  runtime.MemStats // not on the stack, which is the measured call's
	now    sample
}

// Commit implements [session.Store].
func (m *meter) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	done, err := m.Store.Commit(ctx, b)
	at := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range b.Events {
		switch {
		case e.Type == session.EventToolStarted:
			m.open = true
			if m.allocs {
				runtime.ReadMemStats(&m.stats)
			}
			m.began = time.Now()
		case e.Type == session.EventToolCompleted && m.open:
			m.open = false
			m.now.took = append(m.now.took, micros(at.Sub(m.began)))
			if m.allocs {
				mallocs, bytes := m.stats.Mallocs, m.stats.TotalAlloc
				runtime.ReadMemStats(&m.stats)
				m.now.mallocs += float64(m.stats.Mallocs - mallocs)
				m.now.bytes += float64(m.stats.TotalAlloc - bytes)
			}
		}
	}
	return done, err
}

// take returns what was measured since the last take, and says whether allocations are counted from now on.
func (m *meter) take(allocs bool) sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.now
	if n := float64(len(s.took)); n > 0 {
		s.mallocs, s.bytes = s.mallocs/n, s.bytes/n
	}
	m.now, m.allocs = sample{}, allocs
	return s
}
