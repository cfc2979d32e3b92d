package a2a_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
	"orchestrator/a2a/bindingtest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store with one tree, peers on a network of pipes, and one life of a process after another.
type world struct {
	t      *testing.T
	store  session.Store
	net    *a2atest.Network
	peers  []a2a.Peer
	limits a2a.Limits
	self   a2a.Identity
	in     func(*session.Turn) a2a.Lineage
	http   a2ahttp.Config
	queue  *bindingtest.Queue // nil: there is none
	root   session.ID

	tracker  *tracker.Tracker
	relay    *a2a.Relay
	registry *a2a.Registry
	tree     *session.Tree
	stop     func()
	lose     func() // loses the tree

	mu       sync.Mutex
	progress []session.ToolProgress
}

// inBubble runs a test in a synctest bubble with a world whose first life has begun.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin()
		defer func() { w.stop() }() // of the last life
		test(w)
	})
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: session.NewMemory(), net: a2atest.NewNetwork(), root: session.NewID(), stop: func() {}}
	_, err := w.store.Commit(t.Context(), session.Batch{
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

// peer adds a scripted peer; change may edit how it is configured. It is known from the next life on.
func (w *world) peer(cfg a2atest.Config, change ...func(*a2a.Peer)) *a2atest.Peer {
	p := w.net.Peer(w.t, cfg)
	conf := a2a.Peer{Name: cfg.Name, Card: p.URL()}
	for _, f := range change {
		f(&conf)
	}
	w.peers = append(w.peers, conf)
	w.stop()
	w.begin()
	return p
}

// begin begins a life: it claims the tree and takes up its calls.
func (w *world) begin() {
	w.t.Helper()
	tr, err := tracker.New(tracker.Config{Store: w.store, Logger: w.logger()})
	w.ok(err)
	w.http.DialContext = w.net.DialContext
	transport, err := a2ahttp.New(w.http)
	w.ok(err)
	cfg := a2a.RegistryConfig{Peers: w.peers, Transport: transport, Logger: w.logger()}
	if w.queue != nil {
		cfg.Queue = w.queue
	}
	registry, err := a2a.NewRegistry(cfg)
	w.ok(err)
	relay, err := a2a.New(a2a.Config{
		Tracker: tr, Store: w.store, Registry: registry, Limits: w.limits, Self: w.self, Inbound: w.in, Logger: w.logger(),
	})
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
	w.tracker, w.relay, w.registry, w.tree = tr, relay, registry, tree
	w.ok(relay.Recover(w.t.Context(), tree))
	w.lose = func() { cancel(session.ErrFenced) }
	w.stop = sync.OnceFunc(func() {
		cancel(session.ErrStopping)
		relay.Drain()
		transport.Close()
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

// turn starts a turn of the primary or of a new subagent, with a deadline that far away (0: none).
func (w *world) turn(kind tool.Kind, left time.Duration) *session.Turn {
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
	body := session.TurnBody{Root: w.root, Parent: parent, Origin: session.OriginUser}
	if left > 0 {
		body.Deadline = time.Now().Add(left)
	}
	raw, err := json.Marshal(body)
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

func (w *world) tool(name string) tool.Tool {
	for _, t := range w.relay.Tools() {
		if t.Spec().Name == name {
			return t
		}
	}
	w.t.Fatalf("there is no tool %s", name)
	return nil
}

// outcome is what a tool returned.
type outcome struct {
	res tool.Result
	err error
}

// run runs a call in a goroutine.
func (w *world) run(ctx context.Context, c *tool.Call) <-chan outcome {
	out := make(chan outcome, 1)
	t := w.tool(c.Name)
	go func() {
		res, err := t.Run(ctx, c)
		out <- outcome{res, err}
	}()
	return out
}

// ask runs a call to its end.
func (w *world) ask(c *tool.Call) tool.Result {
	w.t.Helper()
	res, err := w.tool(c.Name).Run(w.t.Context(), c)
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

// events returns the types of the events of a call.
func (w *world) events(c *tool.Call) []string {
	w.t.Helper()
	all, err := w.store.Events(w.t.Context(), session.EventQuery{Tree: w.root})
	w.ok(err)
	var out []string
	for _, e := range all {
		if e.ToolCallID == c.ID {
			out = append(out, string(e.Type))
		}
	}
	return out
}

func wantText(t *testing.T, res tool.Result, want string, isError bool) {
	t.Helper()
	if res.Content != want || res.IsError != isError {
		t.Errorf("the result is %q (error %v), want %q (error %v)", res.Content, res.IsError, want, isError)
	}
}

func data(peer, text string) string { return session.AsData(peer, text) }

func methods(p *a2atest.Peer) []string {
	var out []string
	for _, r := range p.Requests() {
		if r.Method != a2atest.MethodCard {
			out = append(out, r.Method)
		}
	}
	return out
}

func wantMethods(t *testing.T, p *a2atest.Peer, want ...string) {
	t.Helper()
	if got := methods(p); !slices.Equal(got, want) {
		t.Errorf("the peer was asked %v, want %v", got, want)
	}
}

// again returns a turn's handle in this life.
func (w *world) again(t *session.Turn) *session.Turn {
	w.t.Helper()
	rec, err := w.store.Record(w.t.Context(), session.KindTurn, string(t.Turn))
	w.ok(err)
	turn, err := session.NewTurn(w.tree, rec)
	w.ok(err)
	return turn
}
