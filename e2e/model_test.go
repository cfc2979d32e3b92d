package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"orchestrator/foldback"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/subagent"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// The steps of one run of the model, and how many all runs must take.
const (
	stepsPerRun = 105
	minSteps    = 10000
)

// TestModelOfCallsAndChildren takes random steps on calls and children: every operation of the tracker, with one of them
// held between its read and its write while others go on, the ends of children and turns, fold-backs, time passing, and a
// crash before or in any commit. After each step the rules of who owns a reply hold.
func TestModelOfCallsAndChildren(t *testing.T) {
	steps, did := 0, make(map[string]int)
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt)
		defer m.stop()
		for range stepsPerRun {
			did[m.step()]++
			steps++
			m.check()
		}
		m.finish()
	})
	for _, name := range slices.Sorted(maps.Keys(did)) {
		t.Logf("%-20s %d", name, did[name])
	}
	fmt.Printf("steps=%d\n", steps)
	if steps < minSteps {
		t.Errorf("the model took %d steps, want at least %d", steps, minSteps)
	}
}

// model is a store, the process over it, and what the outside has seen of both.
type model struct {
	*rapid.T
	mem  *session.Memory
	root session.ID
	now  time.Time // as far as deadlines go

	// of the process
	gate   *sessiontest.Gate
	calls  *tracker.Tracker
	pool   *subagent.Pool
	tree   *session.Tree
	cancel context.CancelCauseFunc
	kids   map[session.ID]*kid
	turn   *session.Turn // of the root session; nil between two
	starts chan *kid
	held   *heldStep

	// seen from outside
	replies map[session.CallID]string
	words   int
	taken   int // steps
	bodies  map[bodyKey]any
	seq     uint64
	events  map[session.CallID]map[session.EventType]int
	done    map[session.ToolCallID]bool // tool calls with a result
	results map[session.CallID][]string // replies in tool.completed
	ends    map[session.ID]int
	folded  map[string]session.TurnID // which turn bound an item
}

// kid is a child's turn in the hands of its runner.
type kid struct {
	turn *session.Turn
	end  chan func() (session.Outcome, error)
}

// heldStep is a step that has read what it goes by and not yet written.
type heldStep struct {
	hold *sessiontest.Hold
	done chan error
}

func newModel(rt *rapid.T) *model {
	m := &model{
		T: rt, mem: session.NewMemory(), root: session.NewID(), now: time.Now().UTC(), replies: make(map[session.CallID]string),
		events: make(map[session.CallID]map[session.EventType]int), results: make(map[session.CallID][]string),
		ends: make(map[session.ID]int), folded: make(map[string]session.TurnID),
		done: make(map[session.ToolCallID]bool), bodies: make(map[bodyKey]any),
	}
	_, err := m.mem.Commit(context.Background(), session.Batch{
		Tree: m.root, Create: true,
		Changes: []session.Change{session.Insert(session.KindSession, string(m.root), m.root, "", session.StateOpen,
			session.SessionBody{Agent: "primary"}, time.Time{})},
	})
	m.must(err)
	m.boot()
	m.must(m.userTurn())
	return m
}

func (m *model) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatalf("%v", err)
	}
}

// boot is the start of a process.
func (m *model) boot() {
	m.gate, m.kids, m.starts, m.turn = sessiontest.NewGate(m.mem), make(map[session.ID]*kid), make(chan *kid, 100), nil
	var err error
	m.calls, err = tracker.New(tracker.Config{Store: m.gate})
	m.must(err)
	starts := m.starts
	m.pool, err = subagent.New(subagent.Config{
		Store: m.gate, Agents: []string{"researcher"}, EndCalls: m.calls.EndPart, Logger: slog.New(slog.DiscardHandler),
		Prepare: func(context.Context, session.Record, session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: "researcher", Model: "none"}, nil
		},
		Runner: script(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			k := &kid{turn: turn, end: make(chan func() (session.Outcome, error), 1)}
			starts <- k
			select {
			case f := <-k.end:
				return f()
			case <-ctx.Done():
				return session.Outcome{}, context.Cause(ctx)
			}
		}),
	})
	m.must(err)
	ctx, cancel := context.WithCancelCause(context.Background())
	m.cancel = cancel
	lease, err := m.mem.Claim(ctx, m.root, "the model", 1000*time.Hour)
	m.must(err)
	m.tree = session.NewTree(ctx, m.gate, lease, nil)
	m.must(m.pool.Recover(ctx, m.tree))
	m.must(m.meet())
	for _, rec := range m.records(session.KindTurn, session.StartedStates...) {
		if rec.Owner != m.root {
			continue
		}
		turn, out, err := m.tree.ResumeTurn(ctx, rec, false, session.Batch{})
		m.must(err)
		m.turn = turn
		if out != nil {
			m.must(m.endTurn(*out))
		}
	}
}

// stop ends the process without ending anything it does.
func (m *model) stop() {
	m.gate.CrashAfter(0)
	m.cancel(session.ErrStopping)
	m.pool.Drain()
	if m.held != nil {
		m.held.hold.Release()
		<-m.held.done
		m.held = nil
	}
}

func (m *model) ctx() context.Context { return m.tree.Context() }

func (m *model) records(kind session.Kind, states ...session.State) []session.Record {
	m.Helper()
	recs, err := m.mem.Records(context.Background(), session.RecordQuery{Tree: m.root, Kind: kind, States: states})
	m.must(err)
	return recs
}

func (m *model) tasks(states ...session.State) []tracker.PendingA2ATask {
	m.Helper()
	var tasks []tracker.PendingA2ATask
	for _, rec := range m.records(session.KindCall, states...) {
		p := decoded[tracker.PendingA2ATask](m, rec)
		p.State, p.Rev = rec.State, rec.Rev
		tasks = append(tasks, p)
	}
	return tasks
}

// decoded returns a record's body, which is decoded once a revision.
func decoded[T any](m *model, rec session.Record) T {
	m.Helper()
	key := bodyKey{rec.Kind, rec.Key, rec.Rev}
	if v, ok := m.bodies[key]; ok {
		return v.(T)
	}
	var v T
	m.must(rec.Decode(&v))
	m.bodies[key] = v
	return v
}

type bodyKey struct {
	kind session.Kind
	key  string
	rev  uint64
}

// meet waits until the runner has every child that its record says runs, and until none runs whose record doesn't.
func (m *model) meet() error {
	wake, stop := m.mem.Watch(m.root)
	defer stop()
	deadline := time.After(20 * time.Second)
	for {
		missing := ""
		live := make(map[session.ID]bool)
		for _, rec := range m.records(session.KindChild, subagent.LiveStates...) {
			id := session.ID(rec.Key)
			live[id] = true
			if m.kids[id] == nil {
				missing = rec.Key
			}
		}
		for id := range m.kids {
			if !live[id] {
				delete(m.kids, id)
			}
		}
		if missing == "" {
			return nil
		}
		select {
		case k := <-m.starts:
			m.kids[k.turn.Agent] = k
		case <-wake:
		case <-m.gate.Crashed():
			return sessiontest.ErrCrashed
		case <-deadline:
			m.Fatalf("subagent %s doesn't start", missing)
		}
	}
}

// ended waits for a child's end.
func (m *model) ended(id session.ID) error {
	wake, stop := m.mem.Watch(m.root)
	defer stop()
	deadline := time.After(20 * time.Second)
	for {
		rec, err := m.mem.Record(context.Background(), session.KindChild, string(id))
		m.must(err)
		if !slices.Contains(subagent.LiveStates, rec.State) {
			return m.meet()
		}
		select {
		case <-wake:
		case <-m.gate.Crashed():
			return sessiontest.ErrCrashed
		case <-deadline:
			m.Fatalf("subagent %s doesn't end", id)
		}
	}
}

// step takes one step and returns its name. The process may crash in it; then the next one is started.
func (m *model) step() string {
	m.Helper()
	type op struct {
		name string
		do   func() error
	}
	var can []op
	add := func(weight int, name string, do func() error) {
		for range weight {
			can = append(can, op{name, do})
		}
	}
	all := m.tasks()
	if len(all) > 0 {
		p := rapid.SampledFrom(all).Draw(m.T, "call")
		if rapid.Bool().Draw(m.T, "recent") {
			p = all[len(all)-1]
		}
		add(14, "deliver", func() error { return m.deliver(p.ID) })
		add(3, "register again", func() error { return m.registerAgain(p) })
		add(3, "sent", func() error { return m.sent(p.ID) })
		add(2, "abandon", func() error { return m.abandon(p.ID) })
		add(1, "overdue", func() error { return m.overdue(p.ID) })
		add(1, "expire", func() error { return m.expire(p.ID) })
		add(1, "cancel", func() error { return m.cancelCall(p.ID) })
		add(1, "cancel answered", func() error { return m.cancelAnswered(p.ID) })
		add(2, "auth required", func() error { return m.authRequired(p.ID) })
		if m.held == nil {
			add(12, "hold", func() error { return m.hold(p.ID) })
		}
		if k := m.kids[p.SessionID]; k != nil {
			add(8, "the waiter looks", func() error { return m.look(k.turn, p) })
			add(3, "the wait is cancelled", func() error { return m.giveUp(k.turn, p) })
		}
	}
	if m.held != nil {
		add(25, "release", m.release)
	}
	if len(m.kids) > 0 {
		kid := m.kids[rapid.SampledFrom(slices.Sorted(maps.Keys(m.kids))).Draw(m.T, "child")]
		id := kid.turn.Agent
		add(8, "register blocking", func() error { return m.register(kid.turn) })
		add(2, "child ends", func() error {
			out := m.outcome()
			kid.end <- func() (session.Outcome, error) { return out, nil }
			return m.ended(id)
		})
		add(1, "child panics", func() error {
			kid.end <- func() (session.Outcome, error) { panic("a bug") }
			return m.ended(id)
		})
		add(1, "child is cancelled", func() error {
			if err := m.pool.Cancel(m.ctx(), id, "no longer needed"); err != nil {
				return err
			}
			return m.ended(id)
		})
		add(1, "child times out", func() error {
			rec, err := m.mem.Record(m.ctx(), session.KindChild, string(id))
			m.must(err)
			if err := m.pool.Sweep(m.ctx(), rec); err != nil {
				return err
			}
			return m.ended(id)
		})
		add(2, "park", func() error { return kid.turn.Parker.Park(m.ctx(), tool.AwaitingPeer) })
		add(2, "unpark", func() error { return kid.turn.Parker.Unpark(m.ctx()) })
	}
	if m.turn == nil {
		add(4, "user turn", m.userTurn)
		if len(m.records(session.KindItem, session.StateReady)) > 0 {
			add(12, "fold-back", m.foldBack)
		}
	} else {
		if len(m.records(session.KindChild, subagent.LiveStates...)) < 4 {
			add(6, "spawn", m.spawn)
		}
		add(4, "register async", func() error { return m.register(m.turn) })
		add(2, "turn ends", func() error { return m.endTurn(m.outcome()) })
		if len(m.records(session.KindChild, subagent.UnsettledStates...)) > 0 {
			add(1, "wait for children", m.waitForChildren)
		}
	}
	add(4, "time passes", m.timePasses)
	add(3, "crash is near", func() error {
		n := rapid.IntRange(0, 5).Draw(m.T, "commits")
		if rapid.Bool().Draw(m.T, "in a commit") {
			m.gate.CrashAtCommit(n)
		} else {
			m.gate.CrashAfter(n)
		}
		return nil
	})
	// Small numbers are drawn more often than others; what they mean differs from step to step.
	m.taken++
	o := can[(rapid.IntRange(0, len(can)-1).Draw(m.T, "step")+m.taken*7)%len(can)]
	m.Logf("%s", o.name)
	err := o.do()
	select {
	case <-m.gate.Crashed():
		m.Logf("crash")
		m.stop()
		m.boot()
		return "crash in " + o.name
	default:
	}
	if err != nil {
		m.Fatalf("%s: %v", o.name, err)
	}
	return o.name
}

func (m *model) outcome() session.Outcome {
	return session.Outcome{
		State:     rapid.SampledFrom([]session.State{session.StateCompleted, session.StateFailed, session.StateCancelled}).Draw(m.T, "outcome"),
		TurnEnded: session.TurnEnded{Error: "over"},
	}
}

// userTurn starts a user's turn.
func (m *model) userTurn() error {
	id := session.NewTurnID()
	return m.start(session.Record{Key: string(id), Owner: m.root, Origin: id}, session.TurnBody{Origin: session.OriginUser, Input: "go on"}, session.Batch{})
}

func (m *model) start(rec session.Record, body session.TurnBody, b session.Batch) error {
	body.Root = m.root
	data, err := json.Marshal(body)
	m.must(err)
	rec.Tree, rec.Kind, rec.Body = m.root, session.KindTurn, data
	turn, err := m.tree.StartTurn(m.ctx(), rec, session.Setup{Agent: "primary", Model: "none"}, b)
	if err == nil {
		m.turn = turn
	}
	return err
}

// foldBack starts the turn that binds all ready items of the oldest one's origin.
func (m *model) foldBack() error {
	items := m.records(session.KindItem, session.StateReady)
	origin := items[0].Origin
	items = slices.DeleteFunc(items, func(r session.Record) bool { return r.Origin != origin })
	folded, err := foldback.Compose(m.ctx(), m.root, items)
	m.must(err)
	id := session.NewTurnID()
	b := session.Batch{Events: folded.Events(id)}
	body := session.TurnBody{Origin: session.OriginFoldback, Input: folded.Text, CausedBy: folded.CausedBy, Generation: folded.Generation}
	for _, item := range items {
		body.Items = append(body.Items, item.Key)
		b.Changes = append(b.Changes, item.Update(session.StateBound, nil))
	}
	return m.start(session.Record{Key: string(id), Owner: m.root, Origin: origin}, body, b)
}

func (m *model) endTurn(out session.Outcome) error {
	_, err := m.tree.EndTurn(m.ctx(), m.turn, out, m.calls.EndPart(false), m.pool.EndPart())
	if err == nil {
		m.turn = nil
		err = m.meet()
	}
	return err
}

// run is a tool call of the root's turn: the message that asks for it, the tool, its result with what it changes.
func (m *model) run(name, args string) error {
	id := m.number(m.turn.Agent)
	if err := m.ask(m.turn, id, name, args); err != nil {
		return err
	}
	for _, tl := range m.pool.Tools() {
		if tl.Spec().Name != name {
			continue
		}
		res, err := tl.Run(m.ctx(), &tool.Call{
			ID: id, Name: name, Args: json.RawMessage(args), Turn: m.turn, Accepted: time.Now(),
			Park: func(string) {}, Progress: func(string) {},
		})
		if err != nil {
			return err
		}
		res.Batch.Events = append(res.Batch.Events, m.turn.WithToolCall(id).Event(session.EventToolCompleted, session.ToolCompleted{Name: name, Content: res.Content}))
		done, err := m.turn.Commit(m.ctx(), res.Batch)
		if err == nil && res.Committed != nil {
			res.Committed(done)
		}
		if err == nil {
			err = m.meet()
		}
		return err
	}
	m.Fatalf("there is no %s", name)
	return nil
}

func (m *model) spawn() error {
	return m.run("spawn_subagent", `{"description":"look it up","prompt":"find the answer"}`)
}

func (m *model) waitForChildren() error {
	return m.run("wait_subagents", `{"timeout_seconds":0.000001}`)
}

// number mints the next tool call id of an agent.
func (m *model) number(agent session.ID) session.ToolCallID {
	m.words++
	return session.MintToolCallID(agent, m.words)
}

func (m *model) ask(turn *session.Turn, id session.ToolCallID, name, args string) error {
	_, err := turn.Commit(m.ctx(), session.Batch{Events: []session.Event{
		turn.Event(session.EventMessageCompleted, session.Message{
			MessageID: session.NewMessageID(), Role: session.RoleAssistant,
			ToolCalls: []session.ToolCall{{ID: id, Name: name, Args: json.RawMessage(args)}},
		}),
		turn.WithToolCall(id).Event(session.EventToolStarted, session.ToolStarted{Name: name, Args: json.RawMessage(args)}),
	}})
	return err
}

// register makes a call, which is refused exactly when the session has as many as it may.
func (m *model) register(turn *session.Turn) error {
	limit, r := 4, tracker.Request{
		ToolCall: m.number(turn.Agent), Peer: "advisor", Mode: session.ModeAsync, Question: "what is it?", AskerName: "the primary",
		Deadline:        m.now.Add(time.Duration(rapid.IntRange(1, 100).Draw(m.T, "minutes")) * time.Minute),
		CancelOnTimeout: rapid.IntRange(0, 9).Draw(m.T, "cancel on timeout") == 0,
	}
	if turn.Subagent() {
		limit, r.Mode, r.AskerName = 1, session.ModeBlocking, "look it up"
	}
	open := 0
	for _, p := range m.tasks(tracker.StateWaiting, tracker.StateOpen) {
		if p.SessionID == turn.Agent {
			open++
		}
	}
	if err := m.ask(turn, r.ToolCall, "invoke_agent", `{}`); err != nil {
		return err
	}
	p, existed, err := m.calls.Register(m.ctx(), turn, r)
	if _, full := errors.AsType[*tracker.FullError](err); full != (open >= limit) && !errors.Is(err, sessiontest.ErrCrashed) {
		m.Fatalf("Register() with %d calls open = %v, want it refused from %d", open, err, limit)
	} else if full {
		return nil
	}
	if err == nil && (existed || p.SessionID != turn.Agent) {
		m.Fatalf("Register() = existed %v, a call of %s", existed, p.SessionID)
	}
	return err
}

// registerAgain is what a continued turn does with a call that has no result.
func (m *model) registerAgain(p tracker.PendingA2ATask) error {
	turn := m.turn
	if p.Mode == session.ModeBlocking {
		if m.kids[p.SessionID] == nil {
			return nil
		}
		turn = m.kids[p.SessionID].turn
	}
	if turn == nil {
		return nil
	}
	again, existed, err := m.calls.Register(m.ctx(), turn, tracker.Request{ToolCall: p.ToolCallID, Peer: p.Peer, Mode: p.Mode, Deadline: m.now})
	if errors.Is(err, sessiontest.ErrCrashed) {
		return err
	}
	if err != nil || !existed || again.Rev != p.Rev || again.State != p.State {
		m.Fatalf("Register() again = %s at %d, existed %v, %v, want it as it is: %s at %d", again.State, again.Rev, existed, err, p.State, p.Rev)
	}
	return nil
}

// deliver hands in a reply, and sees that its fate fits the state the call was in.
func (m *model) deliver(id session.CallID) error {
	before, err := m.calls.Get(m.ctx(), id)
	m.must(err)
	words := m.reply()
	fate, _, err := m.calls.Deliver(m.ctx(), id, words)
	if err != nil {
		return err
	}
	want := map[session.State]tracker.Delivery{
		tracker.StateWaiting: tracker.Claimed, tracker.StateOpen: tracker.Folded, tracker.StateDetached: tracker.Folded,
		tracker.StateAnswered: tracker.Duplicate, tracker.StateConsumed: tracker.Duplicate, tracker.StateFolded: tracker.Duplicate,
		tracker.StateExpired: tracker.Discarded, tracker.StateCancelled: tracker.Discarded,
	}[before.State]
	if fate != want {
		m.Fatalf("Deliver() to a call that is %s = %s, want %s", before.State, fate, want)
	}
	return nil
}

func (m *model) reply() tracker.Reply {
	m.words++
	r := tracker.Reply{State: "completed", Text: fmt.Sprintf("reply-%d.", m.words), TaskID: "task"}
	if rapid.IntRange(0, 4).Draw(m.T, "asks back") == 0 {
		r.State = tracker.StateInputRequired
	}
	return r
}

func (m *model) sent(id session.CallID) error {
	_, err := m.calls.Sent(m.ctx(), id, fmt.Sprint("task-", rapid.IntRange(0, 2).Draw(m.T, "task")), "", rapid.IntRange(0, 5).Draw(m.T, "attempt"))
	return err
}

func (m *model) abandon(id session.CallID) error {
	_, err := m.calls.Abandon(m.ctx(), id, tracker.WhyDeadline)
	return err
}

func (m *model) overdue(id session.CallID) error {
	_, err := m.calls.Overdue(m.ctx(), id)
	return err
}

func (m *model) expire(id session.CallID) error {
	_, err := m.calls.Expire(m.ctx(), id)
	return err
}

func (m *model) cancelCall(id session.CallID) error {
	_, err := m.calls.Cancel(m.ctx(), id, "no longer needed")
	return err
}

func (m *model) cancelAnswered(id session.CallID) error {
	_, err := m.calls.CancelAnswered(m.ctx(), id)
	return err
}

func (m *model) authRequired(id session.CallID) error {
	_, err := m.calls.AuthRequired(m.ctx(), id, tracker.Reply{Text: "log in"})
	return err
}

// look is the waiter of a call that was woken: it uses what is there, unless its tool call has a result.
func (m *model) look(turn *session.Turn, p tracker.PendingA2ATask) error {
	if p.State == tracker.StateWaiting || m.hasResult(p.ToolCallID) {
		return nil
	}
	p, err := m.calls.Wait(m.ctx(), p.ID)
	if err != nil {
		return err
	}
	return m.settle(turn, p)
}

// giveUp is the waiter of a call whose wait alone is cancelled.
func (m *model) giveUp(turn *session.Turn, p tracker.PendingA2ATask) error {
	if m.hasResult(p.ToolCallID) {
		return nil
	}
	ctx, cancel := context.WithCancelCause(m.ctx())
	cancel(&tracker.WaitCancelledError{Reason: "a change of mind"})
	p, err := m.calls.Wait(ctx, p.ID)
	if err != nil {
		return err
	}
	now, err := m.calls.Get(m.ctx(), p.ID)
	m.must(err)
	if p.State != now.State || p.State == tracker.StateWaiting {
		m.Fatalf("Wait() returned a call that is %s as %s", now.State, p.State)
	}
	return m.settle(turn, p)
}

func (m *model) settle(turn *session.Turn, p tracker.PendingA2ATask) error {
	b, content := session.Batch{}, "no answer"
	if p.State == tracker.StateAnswered {
		content = p.Reply.Content()
		b.Changes = append(b.Changes, m.calls.Consume(p))
	}
	b.Events = append(b.Events, turn.WithToolCall(p.ToolCallID).Event(session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: content}))
	_, err := turn.Commit(m.ctx(), b)
	if errors.Is(err, session.ErrConflict) || errors.Is(err, session.ErrTurnEnded) {
		return nil // the same result, held, came before, or the turn's end did
	}
	return err
}

func (m *model) hasResult(id session.ToolCallID) bool {
	m.read()
	return m.done[id]
}

// hold begins an operation on a call, or a fold-back's rival for its items, and stops it before its first commit.
func (m *model) hold(id session.CallID) error {
	h := &heldStep{done: make(chan error, 1)}
	var do func() error
	ctx, calls := m.ctx(), m.calls
	switch op := rapid.SampledFrom([]string{"deliver", "use", "sent", "abandon", "overdue", "expire", "cancel", "auth"}).Draw(m.T, "held"); op {
	case "deliver":
		r := m.reply()
		do = func() error { _, _, err := calls.Deliver(ctx, id, r); return err }
	case "use":
		p, err := calls.Get(ctx, id)
		m.must(err)
		if m.kids[p.SessionID] == nil || p.State != tracker.StateAnswered || m.hasResult(p.ToolCallID) {
			return nil
		}
		turn := m.kids[p.SessionID].turn
		do = func() error { return m.settle(turn, p) }
	case "sent":
		do = func() error { _, err := calls.Sent(ctx, id, "task-held", "", 9); return err }
	case "abandon":
		do = func() error { _, err := calls.Abandon(ctx, id, tracker.WhyDeadline); return err }
	case "overdue":
		do = func() error { _, err := calls.Overdue(ctx, id); return err }
	case "expire":
		do = func() error { _, err := calls.Expire(ctx, id); return err }
	case "cancel":
		do = func() error { _, err := calls.Cancel(ctx, id, "held"); return err }
	default:
		do = func() error { _, err := calls.AuthRequired(ctx, id, tracker.Reply{Text: "log in"}); return err }
	}
	h.hold = m.gate.Hold(func(b session.Batch) bool {
		return slices.ContainsFunc(b.Changes, func(c session.Change) bool { return c.Kind == session.KindCall && c.Key == string(id) })
	})
	var wg sync.WaitGroup
	wg.Go(func() { h.done <- do() })
	select {
	case <-h.hold.Reached():
		m.held = h
		return nil
	case err := <-h.done: // there was nothing to write
		h.hold.Release()
		wg.Wait()
		return err
	}
}

func (m *model) release() error {
	h := m.held
	m.held = nil
	h.hold.Release()
	return <-h.done
}

// timePasses moves the clock and lets the sweeper see what is due.
func (m *model) timePasses() error {
	m.now = m.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 60, 60 * 12}).Draw(m.T, "minutes")) * time.Minute)
	for _, kind := range []session.Kind{session.KindCall, session.KindBatch} {
		due, err := m.mem.Records(m.ctx(), session.RecordQuery{Tree: m.root, Kind: kind, DueBefore: m.now})
		m.must(err)
		for _, rec := range due {
			if kind == session.KindCall {
				err = m.calls.SweepAt(m.ctx(), rec, m.now)
			} else {
				err = m.pool.Sweep(m.ctx(), rec)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// check asks whether the rules hold.
func (m *model) check() {
	m.Helper()
	m.read()
	started := make(map[session.ID]bool)
	for _, rec := range m.records(session.KindTurn, session.StartedStates...) {
		started[rec.Owner] = true
	}
	items := make(map[string]session.Record)
	bodies := make(map[string]session.ItemBody)
	for _, rec := range m.records(session.KindItem) {
		items[rec.Key], bodies[rec.Key] = rec, decoded[session.ItemBody](m, rec)
		if _, bound := m.folded[rec.Key]; bound != (rec.State == session.StateBound) {
			m.Fatalf("item %s is %s, but a turn has it: %v", rec.Key, rec.State, bound)
		}
	}
	open := make(map[session.ID]int)
	for _, p := range m.tasks() {
		ev := m.events[p.ID]
		item, hasItem := items["call:"+string(p.ID)]
		results := m.results[p.ID]
		// 1: exactly one owner.
		if hasItem != (p.State == tracker.StateFolded) || (len(results) == 1) != (p.State == tracker.StateConsumed) || len(results) > 1 {
			m.Fatalf("call %s is %s with the item %v and the results %q", p.ID, p.State, hasItem, results)
		}
		answered := p.State == tracker.StateAnswered || p.State == tracker.StateConsumed || p.State == tracker.StateFolded
		if answered {
			text := p.Reply.Text
			if first, ok := m.replies[p.ID]; ok && first != text {
				m.Fatalf("call %s had the reply %q and has %q", p.ID, first, text)
			}
			m.replies[p.ID] = text
			if hasItem && bodies[item.Key].Text != text || len(results) == 1 && results[0] != text {
				m.Fatalf("call %s was answered with %q, its item says %q, its result %q", p.ID, text, bodies[item.Key].Text, results)
			}
		} else if _, ok := m.replies[p.ID]; ok {
			m.Fatalf("call %s had a reply and is %s", p.ID, p.State)
		}
		// 2: the guard.
		if p.State == tracker.StateWaiting || p.State == tracker.StateOpen {
			open[p.SessionID]++
		}
		// 3: nothing waits for whom nobody is there.
		if (p.State == tracker.StateWaiting || p.State == tracker.StateAnswered) && !started[p.SessionID] {
			m.Fatalf("call %s is %s, but its session has no started turn", p.ID, p.State)
		}
		// 5: an overdue call's reply is another item.
		_, overdue := items["overdue:"+string(p.ID)]
		if overdue != (p.Why == tracker.WhyOverdue) {
			m.Fatalf("call %s was detached for %q, its overdue item: %v", p.ID, p.Why, overdue)
		}
		if hasItem && bodies[item.Key].Late != (ev[session.EventInvocationLate] == 1) {
			m.Fatalf("call %s: the item is late %v, the event %d", p.ID, bodies[item.Key].Late, ev[session.EventInvocationLate])
		}
		// The log tells the same story.
		replied := ev[session.EventInvocationReplied] + ev[session.EventInvocationLate] + ev[session.EventInvocationInputRequired]
		if p.Auth != nil {
			replied--
		}
		told := map[string][2]int{
			"dispatched": {ev[session.EventInvocationDispatched], 1},
			"replied":    {replied, count(answered)},
			"timed_out":  {ev[session.EventInvocationTimedOut], count(p.Why != "")},
			"cancelled":  {ev[session.EventInvocationCancelled], count(p.State == tracker.StateCancelled)},
			"expired":    {ev[session.EventInvocationExpired], count(p.State == tracker.StateExpired)},
			"folded":     {ev[session.EventInvocationFoldedBack], count(hasItem && item.State == session.StateBound)},
		}
		for what, n := range told {
			if n[0] != n[1] {
				m.Fatalf("call %s is %s (%s): the log tells %d times that it was %s, want %d", p.ID, p.State, p.Why, n[0], what, n[1])
			}
		}
	}
	for id, n := range open {
		if limit := map[bool]int{true: 4, false: 1}[id == m.root]; n > limit {
			m.Fatalf("session %s has %d calls open, want at most %d", id, n, limit)
		}
	}
	m.checkChildren(items)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// checkChildren: every child ends once, its result goes to one place, and a batch goes home when nothing of it is left.
func (m *model) checkChildren(items map[string]session.Record) {
	m.Helper()
	left := make(map[session.TurnID]int)
	for _, rec := range m.records(session.KindChild) {
		c := decoded[subagent.Child](m, rec)
		live := slices.Contains(subagent.LiveStates, rec.State)
		if m.ends[session.ID(rec.Key)] != count(!live) {
			m.Fatalf("subagent %s is %s and has ended %d times", rec.Key, rec.State, m.ends[session.ID(rec.Key)])
		}
		if _, folded := items[session.ChildItemKey(session.ItemChild, session.ID(rec.Key), c.Run)]; folded != (rec.State == subagent.StateFolded) {
			m.Fatalf("subagent %s is %s, its item: %v", rec.Key, rec.State, folded)
		}
		if live || c.Waiter != "" {
			left[c.Batch]++
		}
	}
	for _, rec := range m.records(session.KindBatch) {
		turn, err := m.mem.Record(context.Background(), session.KindTurn, rec.Key)
		m.must(err)
		over := !slices.Contains(session.StartedStates, turn.State)
		if rec.State == subagent.BatchOpen && over && left[session.TurnID(rec.Key)] == 0 {
			m.Fatalf("the batch of turn %s is open, but its turn and all its children have ended", rec.Key)
		}
	}
}

// read takes in what the log says since the last look.
func (m *model) read() {
	m.Helper()
	events, err := m.mem.Events(context.Background(), session.EventQuery{Tree: m.root, After: m.seq, Limit: 1 << 20})
	m.must(err)
	for _, e := range events {
		if e.Seq != m.seq+1 {
			m.Fatalf("seq %d follows %d", e.Seq, m.seq)
		}
		m.seq = e.Seq
		switch {
		case strings.HasPrefix(string(e.Type), "invocation."):
			var inv session.Invocation
			m.must(e.Decode(&inv))
			if m.events[inv.CallID] == nil {
				m.events[inv.CallID] = make(map[session.EventType]int)
			}
			m.events[inv.CallID][e.Type]++
		case e.Type == session.EventToolCompleted:
			var done session.ToolCompleted
			m.must(e.Decode(&done))
			m.done[e.ToolCallID] = true
			if strings.HasPrefix(done.Content, "reply-") {
				id := session.CallIDFor(e.ToolCallID)
				m.results[id] = append(m.results[id], done.Content)
			}
		case e.Type == session.EventSubagentCompleted || e.Type == session.EventSubagentFailed:
			m.ends[e.AgentID]++
		}
	}
	for _, rec := range m.records(session.KindTurn) {
		for _, key := range decoded[session.TurnBody](m, rec).Items {
			if other, ok := m.folded[key]; ok && other != session.TurnID(rec.Key) {
				m.Fatalf("item %s was bound by the turns %s and %s", key, other, rec.Key)
			}
			m.folded[key] = session.TurnID(rec.Key)
			item, err := m.mem.Record(context.Background(), session.KindItem, key)
			m.must(err)
			if item.Origin != rec.Origin {
				m.Fatalf("turn %s of %s bound item %s of %s", rec.Key, rec.Origin, key, item.Origin)
			}
		}
	}
}

// finish ends everything: then every reply that was taken is somewhere.
func (m *model) finish() {
	m.Helper()
	m.gate.CrashAfter(-1)
	if m.held != nil {
		m.must(m.release())
	}
	for len(m.kids) > 0 {
		id := slices.Min(slices.Collect(maps.Keys(m.kids)))
		m.kids[id].end <- func() (session.Outcome, error) { return completed, nil }
		m.must(m.ended(id))
	}
	if m.turn != nil {
		m.must(m.endTurn(completed))
	}
	m.now = m.now.AddDate(1, 0, 0)
	for range 3 {
		m.must(m.timePasses())
	}
	for len(m.records(session.KindItem, session.StateReady)) > 0 {
		m.must(m.foldBack())
		m.must(m.endTurn(completed))
	}
	m.check()
	for _, p := range m.tasks(tracker.StateWaiting, tracker.StateOpen, tracker.StateDetached, tracker.StateAnswered) {
		m.Fatalf("call %s is still %s at the end", p.ID, p.State)
	}
	for id := range m.replies {
		places := len(m.results[id])
		if _, bound := m.folded["call:"+string(id)]; bound {
			places++
		}
		if places != 1 {
			m.Fatalf("the reply of call %s is in %d places, want one", id, places)
		}
	}
}
