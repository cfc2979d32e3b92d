package subagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/subagent"
	"orchestrator/tool"
)

// world is one store with one tree, over as many lives of the process as a test wants.
type world struct {
	t      *testing.T
	store  session.Store
	root   session.ID
	turn   session.TurnID
	limits subagent.Limits
	// timeouts are those of agents.
	timeouts map[string]time.Duration
	// play is what a child's turn does; it is called again when the turn goes on in another life.
	play func(ctx context.Context, t *session.Turn) (session.Outcome, error)
	// endCalls notes how the children's calls were ended.
	mu       sync.Mutex
	endCalls map[session.ID]bool
}

func newWorld(t *testing.T, limits subagent.Limits) *world {
	w := &world{t: t, store: session.NewMemory(), limits: limits, endCalls: make(map[session.ID]bool)}
	turn := sessiontest.NewTurn(t, w.store)
	w.root, w.turn = turn.Root, turn.Turn
	w.play = func(context.Context, *session.Turn) (session.Outcome, error) { return completed("done"), nil }
	return w
}

// life is one life of the process.
type life struct {
	*world
	tree *session.Tree
	pool *subagent.Pool
	die  context.CancelCauseFunc
	root *session.Turn
}

// begin claims the tree for a new process and takes up what is there.
func (w *world) begin() *life { return w.beginOn(w.store) }

func (w *world) beginOn(store session.Store) *life {
	w.t.Helper()
	ctx, die := context.WithCancelCause(context.Background())
	lease, err := w.store.Claim(ctx, w.root, "sessiontest", time.Hour)
	if err != nil {
		w.t.Fatalf("claim: %v", err)
	}
	l := &life{world: w, tree: session.NewTree(ctx, store, lease, nil), die: die}
	rec, err := w.store.Record(ctx, session.KindTurn, string(w.turn))
	if err != nil {
		w.t.Fatalf("read the root's turn: %v", err)
	}
	if l.root, err = session.NewTurn(l.tree, rec); err != nil {
		w.t.Fatal(err)
	}
	l.pool, err = subagent.New(subagent.Config{
		Store: store, Runner: w, Logger: testLogger(w.t), Limits: w.limits, Timeouts: w.timeouts,
		Agents: []string{"researcher", "writer"},
		Prepare: func(_ context.Context, rec session.Record, body session.SessionBody) (session.Setup, error) {
			if body.Agent == "writer" {
				return session.Setup{}, errors.New("its model is not configured")
			}
			return session.Setup{Agent: body.Agent, Model: "scripted", Tools: []string{"invoke_agent"}}, nil
		},
		EndCalls: func(cancel bool) session.EndPart {
			return func(_ context.Context, t *session.Turn, _ session.Outcome, _ *session.Batch) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.endCalls[t.Agent] = cancel
				return nil
			}
		},
	})
	if err != nil {
		w.t.Fatalf("New: %v", err)
	}
	if err := l.pool.Recover(ctx, l.tree); err != nil {
		w.t.Fatalf("Recover: %v", err)
	}
	return l
}

// stop ends the life as a signal does.
func (l *life) stop() {
	l.die(session.ErrStopping)
	l.pool.Drain()
}

// RunTurn implements session.TurnRunner.
func (w *world) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	return w.play(ctx, t)
}

func completed(text string) session.Outcome {
	return session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: text, StopReason: "end_turn"}}
}

// child is the id of the child that the root's nth tool call spawns.
func (w *world) child(n int) session.ID { return session.ChildIDFor(session.MintToolCallID(w.root, n)) }

// number is the n of child.
func (w *world) number(id session.ID) int {
	for n := range 300 {
		if w.child(n+1) == id {
			return n + 1
		}
	}
	w.t.Fatalf("%s is no child of the root's", id)
	return 0
}

// call makes the root's nth tool call.
func (l *life) call(n int, name string, args string) (session.ToolCompleted, error) {
	return callTool(context.Background(), l.pool, l.root, n, name, args, time.Now())
}

// must makes a call that has to work.
func (l *life) must(n int, name string, args string) session.ToolCompleted {
	l.t.Helper()
	done, err := l.call(n, name, args)
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	return done
}

func (l *life) spawn(n int) { l.spawnFor(n, "") }

// spawnFor spawns a child without waiting for it; extra are more arguments.
func (l *life) spawnFor(n int, extra string) {
	l.t.Helper()
	done := l.must(n, "spawn_subagent", fmt.Sprintf(`{"description":"task %d","prompt":"do task %d"%s}`, n, n, extra))
	if done.IsError {
		l.t.Fatalf("spawn %d: %s", n, done.Content)
	}
}

// callTool makes a tool call as the loop does.
func callTool(
	ctx context.Context, p *subagent.Pool, t *session.Turn, n int, name, args string, accepted time.Time,
) (session.ToolCompleted, error) {
	c := &tool.Call{
		ID: session.MintToolCallID(t.Agent, n), Name: name, Args: json.RawMessage(args), Turn: t, Accepted: accepted, Progress: func(string) {},
		Park: func(reason string) {
			if t.Parker != nil {
				if err := t.Parker.Park(ctx, reason); err != nil {
					panic(err)
				}
			}
		},
	}
	tools := p.Tools()
	tl := tools[slices.IndexFunc(tools, func(tl tool.Tool) bool { return tl.Spec().Name == name })]
	res, err := tl.Run(ctx, c)
	for err == nil {
		done := session.ToolCompleted{Name: name, Content: res.Content, IsError: res.IsError}
		b := res.Batch
		b.Events = append(slices.Clone(b.Events), c.Scope().Event(session.EventToolCompleted, done))
		var made session.Committed
		made, err = t.Commit(ctx, b)
		if err == nil {
			if res.Committed != nil {
				res.Committed(made)
			}
			return done, nil
		}
		if res.Conflict == nil || !errors.Is(err, session.ErrConflict) && !errors.Is(err, session.ErrGuard) {
			break
		}
		res, err = res.Conflict(ctx, err)
	}
	return session.ToolCompleted{}, err
}

// endRoot ends the root's turn.
func (l *life) endRoot(state session.State) {
	l.t.Helper()
	if _, err := l.tree.EndTurn(context.Background(), l.root, session.Outcome{State: state}, l.pool.EndPart()); err != nil {
		l.t.Fatalf("end the root's turn: %v", err)
	}
}

// record returns the record and body of a child.
func (w *world) record(id session.ID) (session.Record, subagent.Child) {
	w.t.Helper()
	rec, err := w.store.Record(context.Background(), session.KindChild, string(id))
	if err != nil {
		w.t.Fatalf("read child: %v", err)
	}
	var body subagent.Child
	if err := rec.Decode(&body); err != nil {
		w.t.Fatal(err)
	}
	return rec, body
}

// states returns the states of children 1 to n.
func (w *world) states(n int) string {
	w.t.Helper()
	var states []string
	for i := range n {
		rec, _ := w.record(w.child(i + 1))
		states = append(states, string(rec.State))
	}
	return strings.Join(states, " ")
}

func (w *world) wantStates(want string) {
	w.t.Helper()
	if got := w.states(len(strings.Fields(want))); got != want {
		w.t.Errorf("children are %q, want %q", got, want)
	}
}

// batchState returns the state of the batch of the root's turn.
func (w *world) batchState() session.State {
	w.t.Helper()
	rec, err := w.store.Record(context.Background(), session.KindBatch, string(w.turn))
	if err != nil {
		w.t.Fatalf("read batch: %v", err)
	}
	return rec.State
}

// events returns the events of the types, as "type child", with the reason when there is one.
func (w *world) events(types ...session.EventType) []string {
	w.t.Helper()
	events, err := w.store.Events(context.Background(), session.EventQuery{Tree: w.root, Types: types, Limit: 10000})
	if err != nil {
		w.t.Fatalf("read events: %v", err)
	}
	var list []string
	for _, e := range events {
		var data struct{ Reason string }
		if e.Data != nil {
			if err := e.Decode(&data); err != nil {
				w.t.Fatal(err)
			}
		}
		line := fmt.Sprintf("%s %d", strings.TrimPrefix(string(e.Type), "subagent."), w.number(e.AgentID))
		list = append(list, strings.TrimSpace(line+" "+data.Reason))
	}
	return list
}

// ends returns how the children ended.
func (w *world) ends() []string {
	w.t.Helper()
	return w.events(session.EventSubagentCompleted, session.EventSubagentFailed)
}

// items returns the items ready for the root, as "kind child state".
func (w *world) items() []string {
	w.t.Helper()
	recs, err := w.store.Records(context.Background(), session.RecordQuery{Tree: w.root, Kind: session.KindItem, Owner: w.root})
	if err != nil {
		w.t.Fatalf("read items: %v", err)
	}
	var list []string
	for _, rec := range recs {
		var body session.ItemBody
		if err := rec.Decode(&body); err != nil {
			w.t.Fatal(err)
		}
		if rec.Key != session.ChildItemKey(body.Kind, body.Child, 1) || rec.State != session.StateReady || rec.Origin != w.turn {
			w.t.Errorf("item %s is %s, of %s", rec.Key, rec.State, rec.Origin)
		}
		list = append(list, fmt.Sprintf("%s %d %s", body.Kind, w.number(body.Child), body.State))
	}
	return list
}

// gates makes each child wait for a gate of its own, parked if it is told so.
type gates struct {
	mu     sync.Mutex
	byID   map[session.ID]chan struct{}
	parked bool
}

func (g *gates) of(id session.ID) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byID == nil {
		g.byID = make(map[session.ID]chan struct{})
	}
	if g.byID[id] == nil {
		g.byID[id] = make(chan struct{})
	}
	return g.byID[id]
}

func (g *gates) open(id session.ID) { close(g.of(id)) }

// play is a turn that waits for its gate.
func (g *gates) play(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	if g.parked {
		if err := t.Parker.Park(ctx, tool.AwaitingPeer); err != nil {
			return session.Outcome{}, err
		}
	}
	select {
	case <-g.of(t.Agent):
	case <-ctx.Done():
		return session.Outcome{}, context.Cause(ctx)
	}
	if g.parked {
		if err := t.Parker.Unpark(ctx); err != nil {
			return session.Outcome{}, err
		}
	}
	return completed("done"), nil
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func testLogger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
