package e2e_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/foldback"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/store/sqlite"
	"orchestrator/subagent"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// stores are what the orders are forced on. open makes a store; reopen is what a new process finds of it.
var stores = []struct {
	name string
	open func(t *testing.T) (store session.Store, reopen func(t *testing.T) session.Store)
}{
	{"memory", func(*testing.T) (session.Store, func(*testing.T) session.Store) {
		m := session.NewMemory()
		return m, func(*testing.T) session.Store { return m }
	}},
	{"sqlite", func(t *testing.T) (session.Store, func(*testing.T) session.Store) {
		path := filepath.Join(t.TempDir(), "orchestrator.db")
		open := func(t *testing.T) session.Store {
			t.Helper()
			s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Synchronous: "normal"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() }) // closed twice when it was reopened
			return s
		}
		s := open(t)
		return s, func(t *testing.T) session.Store {
			t.Helper()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t)
			return s
		}
	}},
}

// script is what a turn does instead of asking a model.
type script func(ctx context.Context, turn *session.Turn) (session.Outcome, error)

// RunTurn implements [session.TurnRunner].
func (s script) RunTurn(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
	return s(ctx, turn)
}

// tree is one user's turn whose children are run by the real pool and whose calls are held by the real tracker, over a
// gate. What a model would do is done by scripts.
type tree struct {
	t      *testing.T
	gate   *sessiontest.Gate
	calls  *tracker.Tracker
	pool   *subagent.Pool
	root   *session.Turn
	life   context.Context //nolint:containedctx // of the process this stands for
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	scripts map[session.ID]script
	numbers map[session.ID]int // of the last tool call
}

// newTree starts a user's turn in an empty store.
func newTree(t *testing.T, store session.Store) *tree {
	t.Helper()
	w := &tree{t: t, scripts: make(map[session.ID]script), numbers: make(map[session.ID]int)}
	root := sessiontest.NewTurn(t, store)
	w.boot(store, root.Root, root.Turn)
	t.Cleanup(func() { w.stop() })
	return w
}

// boot is the start of a process that takes up the tree.
func (w *tree) boot(store session.Store, root session.ID, turn session.TurnID) {
	w.t.Helper()
	w.gate = sessiontest.NewGate(store)
	w.life, w.cancel = context.WithCancelCause(context.Background())
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	if w.calls, err = tracker.New(tracker.Config{Store: w.gate, Logger: log}); err != nil {
		w.t.Fatal(err)
	}
	w.pool, err = subagent.New(subagent.Config{
		Store: w.gate, Logger: log, Agents: []string{"researcher"}, EndCalls: w.calls.EndPart,
		Runner: script(w.play),
		Prepare: func(context.Context, session.Record, session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: "researcher", Model: "none"}, nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	lease, err := store.Claim(w.life, root, "sessiontest", time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	rec, err := store.Record(w.life, session.KindTurn, string(turn))
	if err != nil {
		w.t.Fatal(err)
	}
	if w.root, err = session.NewTurn(session.NewTree(w.life, w.gate, lease, nil), rec); err != nil {
		w.t.Fatal(err)
	}
}

// play runs a child's script.
func (w *tree) play(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
	w.mu.Lock()
	s := w.scripts[turn.Agent]
	w.mu.Unlock()
	return s(ctx, turn)
}

// plays says what a child's turn does when it is run next.
func (w *tree) plays(child session.ID, s script) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scripts[child] = s
}

// stop ends the process this stands for, without ending anything it does.
func (w *tree) stop() {
	w.cancel(session.ErrStopping)
	w.pool.Drain()
	w.wg.Wait()
}

// restart is a crash and the next start: nothing more is written, and a new process finds what is there.
func (w *tree) restart(reopen func(*testing.T) session.Store) {
	w.t.Helper()
	w.gate.CrashAfter(0)
	w.stop()
	w.boot(reopen(w.t), w.root.Root, w.root.Turn)
}

// spawn starts a child that plays a script, by the tool a model would call, and returns its session.
func (w *tree) spawn(s script) session.ID {
	w.t.Helper()
	for _, tl := range w.pool.Tools() {
		if tl.Spec().Name != "spawn_subagent" {
			continue
		}
		call := w.askFor(w.life, w.root, "spawn_subagent", `{"description":"look it up","prompt":"find the answer"}`)
		w.plays(session.ChildIDFor(call.ID), s)
		res, err := tl.Run(w.life, call)
		if err != nil || res.IsError {
			w.t.Fatalf("spawn_subagent = %q, %v", res.Content, err)
		}
		done, err := w.completed(w.life, w.root, call.ID, res.Content, res.Batch)
		if err != nil {
			w.t.Fatalf("commit the spawn: %v", err)
		}
		res.Committed(done)
		return session.ChildIDFor(call.ID)
	}
	w.t.Fatal("there is no spawn_subagent")
	return ""
}

// askFor commits a message of the turn's agent that asks for a tool call.
func (w *tree) askFor(ctx context.Context, turn *session.Turn, name, args string) *tool.Call {
	w.mu.Lock()
	w.numbers[turn.Agent]++
	id := session.MintToolCallID(turn.Agent, w.numbers[turn.Agent])
	w.mu.Unlock()
	_, err := turn.Commit(ctx, session.Batch{Events: []session.Event{
		turn.Event(session.EventMessageCompleted, session.Message{
			MessageID: session.NewMessageID(), Role: session.RoleAssistant,
			ToolCalls: []session.ToolCall{{ID: id, Name: name, Args: json.RawMessage(args)}},
		}),
		turn.WithToolCall(id).Event(session.EventToolStarted, session.ToolStarted{Name: name, Args: json.RawMessage(args)}),
	}})
	if err != nil {
		w.t.Errorf("ask for %s: %v", name, err)
	}
	return &tool.Call{ID: id, Name: name, Args: json.RawMessage(args), Turn: turn, Accepted: time.Now(), Park: func(string) {}, Progress: func(string) {}}
}

// completed commits the result of a tool call with what the result changes.
func (w *tree) completed(ctx context.Context, turn *session.Turn, id session.ToolCallID, content string, b session.Batch) (session.Committed, error) {
	b.Events = append(b.Events, turn.WithToolCall(id).Event(session.EventToolCompleted, session.ToolCompleted{Name: "a tool", Content: content}))
	return turn.Commit(ctx, b)
}

// invoke makes the nth call to the peer "advisor": the message that asks for it and its registration. Its deadline is
// that long from now; below zero it has passed.
func (w *tree) invoke(ctx context.Context, turn *session.Turn, deadline time.Duration) (tracker.PendingA2ATask, error) {
	call := w.askFor(ctx, turn, "invoke_agent", `{"agent_name":"advisor","message":"what is it?"}`)
	return w.register(ctx, turn, call.ID, deadline)
}

func (w *tree) register(ctx context.Context, turn *session.Turn, id session.ToolCallID, deadline time.Duration) (tracker.PendingA2ATask, error) {
	mode, asker := session.ModeAsync, "the primary"
	if turn.Subagent() {
		mode, asker = session.ModeBlocking, "look it up"
	}
	p, _, err := w.calls.Register(ctx, turn, tracker.Request{
		ToolCall: id, Peer: "advisor", Mode: mode, Deadline: time.Now().Add(deadline), Question: "what is it?", AskerName: asker,
	})
	return p, err
}

// settle is what invoke_agent makes of a call that is no longer waiting: its tool.completed.
func (w *tree) settle(ctx context.Context, turn *session.Turn, p tracker.PendingA2ATask) error {
	var b session.Batch
	content := "peer 'advisor' did not respond in time; proceeding without it"
	switch p.State {
	case tracker.StateAnswered:
		content = p.Reply.Content()
		b.Changes = []session.Change{w.calls.Consume(p)}
	case tracker.StateCancelled:
		content = "the call to peer 'advisor' was cancelled"
	}
	_, err := w.completed(ctx, turn, p.ToolCallID, content, b)
	return err
}

var completed = session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: "done"}}

// deliver hands in a peer's reply.
func (w *tree) deliver(id session.CallID, text string) tracker.Delivery {
	w.t.Helper()
	d, _, err := w.calls.Deliver(w.life, id, tracker.Reply{State: "completed", Text: text, TaskID: "task"})
	if err != nil {
		w.t.Errorf("Deliver(%s) = %v", id, err)
	}
	return d
}

// promise runs f on its own and returns how to wait for its result.
func promise[T any](w *tree, f func() T) func() T {
	result := make(chan T, 1)
	w.wg.Go(func() { result <- f() })
	return func() T {
		w.t.Helper()
		return receive(w.t, result)
	}
}

// receive waits for a value, but not for ever.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came within 20 seconds")
		panic("unreachable")
	}
}

// ended waits for a child's end and returns its record's state and its end's reason.
func (w *tree) ended(child session.ID) (reason string) {
	w.t.Helper()
	wake, stop := w.gate.Watch(w.root.Root)
	defer stop()
	deadline := time.After(20 * time.Second)
	for {
		rec, err := w.gate.Record(w.life, session.KindChild, string(child))
		if err != nil {
			w.t.Fatal(err)
		}
		if rec.State != session.StateQueued && rec.State != session.StateRunning && rec.State != session.StateSuspended {
			break
		}
		select {
		case <-wake:
		case <-time.After(time.Second):
		case <-deadline:
			w.t.Fatalf("subagent %s is still %s", child, rec.State)
		}
	}
	ends := 0
	for _, e := range w.events() {
		if e.AgentID != child || e.Type != session.EventSubagentCompleted && e.Type != session.EventSubagentFailed {
			continue
		}
		ends++
		var data session.SubagentEnded
		if err := e.Decode(&data); err != nil {
			w.t.Fatal(err)
		}
		reason = data.Reason
	}
	if ends != 1 {
		w.t.Errorf("subagent %s has %d ends, want one", child, ends)
	}
	return reason
}

func (w *tree) events() []session.Event {
	w.t.Helper()
	events, err := w.gate.Events(w.life, session.EventQuery{Tree: w.root.Root, Limit: 100000})
	if err != nil {
		w.t.Fatal(err)
	}
	return events
}

// told returns the invocation events of a call, as type and data.state.
func (w *tree) told(id session.CallID) string {
	w.t.Helper()
	var told []string
	for _, e := range w.events() {
		name, ok := strings.CutPrefix(string(e.Type), "invocation.")
		if !ok {
			continue
		}
		var inv session.Invocation
		if err := e.Decode(&inv); err != nil {
			w.t.Fatal(err)
		}
		if inv.CallID == id {
			told = append(told, strings.TrimSpace(name+" "+inv.State))
		}
	}
	return strings.Join(told, ", ")
}

// places returns where a reply's words ended up: in the tool.completed of its call ("result"), or in its item.
func (w *tree) places(id session.CallID, words string) string {
	w.t.Helper()
	var places []string
	for _, e := range w.events() {
		if e.Type != session.EventToolCompleted {
			continue
		}
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			w.t.Fatal(err)
		}
		if strings.Contains(done.Content, words) {
			if session.CallIDFor(e.ToolCallID) != id {
				w.t.Errorf("the reply %q is the result of %s, which is another call", words, e.ToolCallID)
			}
			places = append(places, "result")
		}
	}
	for _, rec := range w.items() {
		var item session.ItemBody
		if err := rec.Decode(&item); err != nil {
			w.t.Fatal(err)
		}
		if !strings.Contains(item.Text, words) || item.Kind == session.ItemChild {
			continue
		}
		place := "item"
		if rec.Key != "call:"+string(id) {
			w.t.Errorf("the reply %q is the item %s", words, rec.Key)
		}
		if item.Late {
			place = "late item"
		}
		if item.AskerEnded {
			place += " of an ended subagent"
		}
		places = append(places, place)
	}
	return strings.Join(places, ", ")
}

func (w *tree) items() []session.Record {
	w.t.Helper()
	recs, err := w.gate.Records(w.life, session.RecordQuery{Tree: w.root.Root, Kind: session.KindItem})
	if err != nil {
		w.t.Fatal(err)
	}
	return recs
}

func (w *tree) state(id session.CallID) session.State {
	w.t.Helper()
	p, err := w.calls.Get(w.life, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return p.State
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// compose makes the input of the turn that folds all ready items.
func (w *tree) compose() session.Folded {
	w.t.Helper()
	folded, err := foldback.Compose(w.life, w.root.Root, w.items())
	if err != nil {
		w.t.Fatal(err)
	}
	return folded
}
