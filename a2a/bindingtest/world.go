package bindingtest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// world is a store with one tree, a site with one peer, and one life of a process after another.
type world struct {
	t         *testing.T
	binding   Binding
	behaviour string
	site      Site
	store     session.Store
	peers     []a2a.Peer
	root      session.ID

	traced  traced
	asked   *asked // nil: see at the peer
	tracker *tracker.Tracker
	relay   *a2a.Relay
	tree    *session.Tree
	stop    func()

	mu       sync.Mutex
	progress []session.ToolProgress
}

func newWorld(t *testing.T, b Binding, v behaviour) *world {
	store := session.NewMemory()
	w := &world{t: t, binding: b, behaviour: v.name, site: b.Site(t, v.maxBody), store: store, root: session.NewID(), stop: func() {}}
	_, err := store.Commit(t.Context(), session.Batch{
		Tree: w.root, Create: true,
		Changes: []session.Change{session.Insert(session.KindSession, string(w.root), w.root, "", session.StateOpen, session.SessionBody{Agent: "primary"}, time.Time{})},
		Events:  []session.Event{session.Scope{Root: w.root, Agent: w.root}.Event(session.EventSessionCreated, session.SessionCreated{Agent: "primary"})},
	})
	w.ok(err)
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// begin begins a life: it claims the tree and takes up its calls.
func (w *world) begin() {
	w.t.Helper()
	log := w.logger()
	tr, err := tracker.New(tracker.Config{Store: w.store, Logger: log})
	w.ok(err)
	life := w.site.Begin()
	if life.Queue != nil {
		w.asked = &asked{Transport: life.Queue}
		life.Queue = w.asked
	}
	registry, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: w.peers, Transport: life.HTTP, Queue: life.Queue, Logger: log})
	w.ok(err)
	relay, err := a2a.New(a2a.Config{Tracker: tr, Store: w.store, Registry: registry, Limits: life.Limits, Logger: log, Tracer: w.traced.tracer()})
	w.ok(err)
	lease, err := w.store.Claim(w.t.Context(), w.root, "test", time.Hour)
	w.ok(err)
	ctx, cancel := context.WithCancelCause(context.Background())
	tree := session.NewTree(ctx, w.store, lease, func(e session.Event) {
		var p session.ToolProgress
		if e.Decode(&p) == nil {
			w.mu.Lock()
			w.progress = append(w.progress, p)
			w.mu.Unlock()
		}
	})
	w.tracker, w.relay, w.tree = tr, relay, tree
	if life.Serve != nil {
		life.Serve(relay)
	}
	w.ok(relay.Recover(w.t.Context(), tree))
	w.stop = sync.OnceFunc(func() {
		cancel(session.ErrStopping)
		relay.Drain()
		life.End()
	})
}

func (w *world) logger() *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: level}))
}

// restart ends this life and begins the next.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.begin()
}

// turn starts a turn of the primary or of a new subagent.
func (w *world) turn(kind tool.Kind) *session.Turn {
	w.t.Helper()
	agent, parent := w.root, session.ID("")
	id := session.NewTurnID()
	if kind == tool.Subagent {
		agent, parent = session.NewID(), w.root
		_, err := w.tree.Commit(w.t.Context(), session.Batch{Changes: []session.Change{
			session.Insert(session.KindSession, string(agent), w.root, "", session.StateOpen, session.SessionBody{Agent: "researcher", Parent: w.root, Depth: 1, Title: "look it up"}, time.Time{}),
		}})
		w.ok(err)
	}
	raw, err := json.Marshal(session.TurnBody{Root: w.root, Parent: parent, Origin: session.OriginUser})
	w.ok(err)
	turn, err := w.tree.StartTurn(w.t.Context(), session.Record{
		Tree: w.root, Kind: session.KindTurn, Key: string(id), Owner: agent, Origin: id, State: session.StateQueued, Body: raw,
	}, session.Setup{Agent: "primary"}, session.Batch{})
	w.ok(err)
	return turn
}

// call returns the nth tool call of a turn.
func (w *world) call(turn *session.Turn, n int, args map[string]any) *tool.Call {
	w.t.Helper()
	raw, err := json.Marshal(args)
	w.ok(err)
	return &tool.Call{
		ID: session.MintToolCallID(turn.Agent, n), Name: a2a.InvokeAgent, Args: raw, Turn: turn, Accepted: time.Now(),
		Park: func(string) {}, Progress: func(string) {},
	}
}

func ask(peer, message string, more ...any) map[string]any {
	args := map[string]any{"agent_name": peer, "message": message}
	for i := 0; i < len(more); i += 2 {
		args[more[i].(string)] = more[i+1]
	}
	return args
}

func (w *world) invoke() tool.Tool {
	return w.relay.Tools()[slices.IndexFunc(w.relay.Tools(), func(t tool.Tool) bool { return t.Spec().Name == a2a.InvokeAgent })]
}

// outcome is what a tool returned.
type outcome struct {
	res tool.Result
	err error
}

// run runs a call in a goroutine, which ends with it.
func (w *world) run(c *tool.Call) <-chan outcome {
	out := make(chan outcome, 1)
	t, ctx := w.invoke(), w.traced.tool(w.t.Context())
	go func() {
		res, err := t.Run(ctx, c)
		out <- outcome{res, err}
	}()
	return out
}

// ask runs a call to its end.
func (w *world) ask(c *tool.Call) tool.Result {
	w.t.Helper()
	res, err := w.invoke().Run(w.traced.tool(w.t.Context()), c)
	w.ok(err)
	return res
}

// complete commits a result as the loop does.
func (w *world) complete(c *tool.Call, res tool.Result) {
	w.t.Helper()
	b := res.Batch
	b.Events = append(b.Events, c.Scope().Event(session.EventToolCompleted, session.ToolCompleted{Name: c.Name, Content: res.Content, IsError: res.IsError}))
	_, err := c.Turn.Commit(w.t.Context(), b)
	w.ok(err)
}

// pass lets time pass: in a bubble none, over real connections as long as it says.
func (w *world) pass(d time.Duration) { time.Sleep(d) }

func (w *world) get(c *tool.Call) tracker.PendingA2ATask {
	w.t.Helper()
	p, err := w.tracker.Get(w.t.Context(), session.CallIDFor(c.ID))
	w.ok(err)
	return p
}

func (w *world) wantState(c *tool.Call, want session.State) tracker.PendingA2ATask {
	w.t.Helper()
	p := w.get(c)
	if p.State != want {
		w.t.Errorf("the call is %s, want %s (reply %+v)", p.State, want, p.Reply)
	}
	return p
}

// until waits until the call is as it should be, and returns it.
func (w *world) until(c *tool.Call, bound time.Duration, is func(tracker.PendingA2ATask) bool) tracker.PendingA2ATask {
	w.t.Helper()
	for end := time.Now().Add(bound); ; {
		p := w.get(c)
		if is(p) {
			return p
		}
		if time.Now().After(end) {
			w.t.Fatalf("after %s the call is %s (reply %+v)", bound, p.State, p.Reply)
		}
		w.pass(20 * time.Millisecond)
	}
}

func inState(want session.State) func(tracker.PendingA2ATask) bool {
	return func(p tracker.PendingA2ATask) bool { return p.State == want }
}

// item returns an item of the primary session.
func (w *world) item(kind session.ItemKind, c *tool.Call) (session.ItemBody, bool) {
	w.t.Helper()
	rec, err := w.store.Record(w.t.Context(), session.KindItem, session.CallItemKey(kind, session.CallIDFor(c.ID)))
	if errors.Is(err, session.ErrNotFound) {
		return session.ItemBody{}, false
	}
	w.ok(err)
	var body session.ItemBody
	w.ok(rec.Decode(&body))
	return body, true
}

func (w *world) wantText(res tool.Result, want string, isError bool) {
	w.t.Helper()
	if res.Content != want || res.IsError != isError {
		w.t.Errorf("the result is %q (error %v), want %q (error %v)", res.Content, res.IsError, want, isError)
	}
}

func data(peer, text string) string { return session.AsData(peer, text) }

// methods returns what the peer was asked, over a queue in this life and without repetitions.
func (w *world) methods(p *a2atest.Peer) []string {
	if w.asked != nil {
		w.asked.mu.Lock()
		defer w.asked.mu.Unlock()
		return slices.Compact(slices.Clone(w.asked.methods))
	}
	var out []string
	for _, r := range p.Requests() {
		if r.Method != a2atest.MethodCard {
			out = append(out, r.Method)
		}
	}
	return out
}

func (w *world) wantMethods(p *a2atest.Peer, want ...string) {
	w.t.Helper()
	if own, ok := w.binding.Methods[w.behaviour]; ok {
		want = own
	}
	if w.asked != nil {
		want = slices.Compact(slices.Clone(want))
	}
	if got := w.methods(p); !slices.Equal(got, want) {
		w.t.Errorf("the peer was asked %v, want %v", got, want)
	}
}
