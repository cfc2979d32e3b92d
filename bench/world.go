package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// world is what a blocking call goes through, as internal/app puts it together, without sessions' manager and subagents'
// pool: their turns are begun by hand.
type world struct {
	store session.Store
	calls *tracker.Tracker
	relay *a2a.Relay
	http  *a2ahttp.Transport
	loop  *agentloop.Loop
	life  context.Context //nolint:containedctx // of the trees
	end   context.CancelCauseFunc
	wg    sync.WaitGroup

	closing []func()     // in the end
	blocked atomic.Int64 // turns in the tool that only blocks
}

var quiet = slog.New(slog.DiscardHandler)

// modelFunc is a model that is asked for the nth answer of a turn, from 1.
type modelFunc func(ctx context.Context, turn *session.Turn, n int) []llm.Chunk

// newWorld puts a world together on a store, which it closes in the end. peers are base URLs by name.
func newWorld(ctx context.Context, store session.Store, peers map[string]string) (*world, error) {
	var list []a2a.Peer
	for name, url := range peers {
		list = append(list, a2a.Peer{Name: name, Card: url})
	}
	return newWorldOf(ctx, store, list, nil)
}

// newWorldOf is newWorld with peers of any kind, those behind queues by the transport given.
func newWorldOf(ctx context.Context, store session.Store, peers []a2a.Peer, queue a2a.Transport) (w *world, err error) {
	w = &world{store: store}
	w.life, w.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if w.calls, err = tracker.New(tracker.Config{Store: store, Logger: quiet}); err != nil {
		return nil, err
	}
	if w.http, err = a2ahttp.New(a2ahttp.Config{}); err != nil {
		return nil, err
	}
	registry, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: peers, Transport: w.http, Queue: queue, Logger: quiet})
	if err != nil {
		return nil, err
	}
	if w.relay, err = a2a.New(a2a.Config{
		Tracker: w.calls, Store: store, Registry: registry, Logger: quiet, Self: a2a.Identity{Name: "bench"},
		Limits: a2a.Limits{MaxWait: time.Hour, CallTimeout: time.Hour}, // ten thousand calls begin slowly on a busy machine
	}); err != nil {
		return nil, err
	}
	tools := tool.NewSet(append(w.relay.Tools(), blocker{w}), nil)
	if w.loop, err = agentloop.New(agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return turnModel{}, "bench", nil },
		Tools:  func(context.Context, *session.Turn) (*tool.Set, error) { return tools, nil },
		Limits: agentloop.Limits{ModelCalls: 1 << 20, ContextTokens: 1 << 30},
		Logger: quiet,
	}); err != nil {
		return nil, err
	}
	w.wg.Go(func() { _ = w.calls.Run(w.life) }) // its only end is the context's
	return w, nil
}

// stop ends the world and closes its store.
func (w *world) stop() error { return w.stopAfter(func() {}) }

// stopAfter is stop for who has turns running, which are waited for.
func (w *world) stopAfter(wait func()) error {
	w.end(session.ErrStopping)
	wait()
	w.relay.Drain()
	w.wg.Wait()
	w.http.Close()
	for _, f := range w.closing {
		f()
	}
	return w.store.Close()
}

// turn begins a turn of a subagent in a tree of its own.
func (w *world) turn(ctx context.Context) (*session.Turn, error) {
	root, child := session.NewID(), session.NewID()
	scope := session.Scope{Root: root, Agent: child, Parent: root, Turn: session.NewTurnID(), OriginTurn: session.NewTurnID()}
	now := time.Now().UTC()
	_, err := w.store.Commit(ctx, session.Batch{
		Tree: root, Create: true,
		Changes: []session.Change{
			session.Insert(session.KindSession, string(root), root, "", session.StateOpen, session.SessionBody{Agent: "primary", Created: now}, time.Time{}),
			session.Insert(session.KindSession, string(child), child, scope.OriginTurn, session.StateOpen,
				session.SessionBody{Agent: "subagent", Parent: root, Depth: 1, Title: "ask a peer", Created: now}, time.Time{}),
		},
		Events: []session.Event{session.Scope{Root: root, Agent: root}.Event(session.EventSessionCreated, session.SessionCreated{Agent: "primary"})},
	})
	if err != nil {
		return nil, fmt.Errorf("make a tree: %w", err)
	}
	lease, err := w.store.Claim(ctx, root, "bench", time.Hour)
	if err != nil {
		return nil, err
	}
	tree := session.NewTree(w.life, w.store, lease, nil)
	queued := session.QueueTurn(scope, session.TurnBody{Origin: session.OriginTask, Input: "ask a peer"}, time.Time{})
	done, err := tree.Commit(ctx, queued)
	if err != nil {
		return nil, fmt.Errorf("queue a turn: %w", err)
	}
	return tree.StartTurn(ctx, done.Records[0], session.Setup{Agent: "subagent", Model: "bench"}, session.Batch{})
}

// turns begins many turns.
func (w *world) turns(ctx context.Context, n int) ([]*session.Turn, error) {
	var (
		wg    sync.WaitGroup
		turns = make([]*session.Turn, n)
		errs  = make([]error, n)
		slots = make(chan struct{}, 32) // what comes together is written together
	)
	for i := range turns {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			turns[i], errs[i] = w.turn(ctx)
		})
	}
	wg.Wait()
	return turns, errors.Join(errs...)
}

// run runs a turn with a model.
func (w *world) run(ctx context.Context, turn *session.Turn, model modelFunc) error {
	out, err := w.loop.RunTurn(context.WithValue(ctx, turnKey{}, &asked{turn: turn, model: model}), turn)
	switch {
	case err != nil:
		return err
	case out.State != session.StateCompleted:
		return errors.New(out.Error)
	}
	return nil
}

// warm fetches the cards and makes what is made once: a call that is refused.
func (w *world) warm(ctx context.Context) error {
	turn, err := w.turn(ctx)
	if err != nil {
		return err
	}
	return w.run(ctx, turn, func(_ context.Context, _ *session.Turn, n int) []llm.Chunk {
		if n > 1 {
			return ends()
		}
		return uses(a2a.InvokeAgent, "nobody")
	})
}

// asked is a turn's model and how often it was asked.
type asked struct {
	turn  *session.Turn
	model modelFunc
	n     int
}

type turnKey struct{}

// turnModel asks the model that its turn's context holds.
type turnModel struct{}

var _ llm.Model = turnModel{}

// Stream implements [llm.Model].
func (turnModel) Stream(ctx context.Context, _ llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		a, ok := ctx.Value(turnKey{}).(*asked)
		if !ok {
			yield(llm.Chunk{}, errors.New("a turn without a model"))
			return
		}
		a.n++
		for _, c := range a.model(ctx, a.turn, a.n) {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// question is what peers are asked.
const question = "What is to be thought of before a service is moved to another region, and in which order?"

// uses is an answer of a model that calls invoke_agent, or a tool that takes the same.
func uses(tool, peer string) []llm.Chunk {
	return []llm.Chunk{
		{Kind: llm.ChunkToolStart, ToolID: "call_1", ToolName: tool},
		{Kind: llm.ChunkToolArgs, Text: fmt.Sprintf(`{"agent_name":%q,"message":%q}`, peer, question)},
		{Kind: llm.ChunkToolEnd},
		{Kind: llm.ChunkStop, Stop: llm.StopToolCalls},
	}
}

// ends is the last answer of a turn.
func ends() []llm.Chunk {
	return []llm.Chunk{{Kind: llm.ChunkText, Text: "done"}, {Kind: llm.ChunkStop, Stop: llm.StopEnd}}
}

// blocks is the name of a tool that does nothing but block.
const blocks = "block"

type blocker struct{ w *world }

var _ tool.Tool = blocker{}

// Spec implements [tool.Tool].
func (blocker) Spec() tool.Spec {
	return tool.Spec{Name: blocks, Source: tool.SourceBuiltin, Description: func(tool.Kind) string { return "block" }}
}

// Run implements [tool.Tool].
func (b blocker) Run(ctx context.Context, _ *tool.Call) (tool.Result, error) {
	b.w.blocked.Add(1)
	<-ctx.Done()
	return tool.Result{}, context.Cause(ctx)
}

// waitBlocked waits until so many turns are in the tool that only blocks.
func (w *world) waitBlocked(ctx context.Context, n int) error {
	return waitFor(ctx, "the turns are not in their tool", func() (bool, error) { return w.blocked.Load() == int64(n), nil })
}
