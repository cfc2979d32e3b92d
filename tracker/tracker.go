package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/session"
)

// Config configures a [Tracker].
type Config struct {
	Store  session.Store
	Logger *slog.Logger // nil logs nothing
	// ReplyRetention is how long after its deadline a call's late reply is wanted. Defaults to 24 hours.
	ReplyRetention time.Duration
	// GuardPrimary and GuardSubagent bound the waiting and open calls of one session. They default to 4 and 1.
	GuardPrimary  int
	GuardSubagent int
	// SweepGrace is how long after its deadline the sweeper leaves a blocking call to its waiter. Defaults to 2 seconds.
	SweepGrace time.Duration
	// Registry takes the metrics; nil: there are none.
	Registry prometheus.Registerer
}

// Tracker holds the calls of all trees of a store. Its methods may be called from any goroutine; several Trackers, also
// in several processes, may share a store.
type Tracker struct {
	cfg      Config
	metrics  *metrics
	waiters  waiters
	onChange []func(PendingA2ATask)

	mu sync.Mutex
	// ending are calls that a terminal commit built by EndPart changes; Run looks whether it did.
	ending map[session.CallID]time.Time
}

// New returns a Tracker.
func New(cfg Config) (*Tracker, error) {
	if cfg.Store == nil {
		return nil, errors.New("tracker: Config.Store is required")
	}
	if cfg.ReplyRetention < 0 || cfg.GuardPrimary < 0 || cfg.GuardSubagent < 0 || cfg.SweepGrace < 0 {
		return nil, errors.New("tracker: Config has a negative bound; zero is the default, anything above is allowed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.ReplyRetention = cmp.Or(cfg.ReplyRetention, 24*time.Hour)
	cfg.GuardPrimary = cmp.Or(cfg.GuardPrimary, 4)
	cfg.GuardSubagent = cmp.Or(cfg.GuardSubagent, 1)
	cfg.SweepGrace = cmp.Or(cfg.SweepGrace, 2*time.Second)
	t := &Tracker{cfg: cfg, metrics: newMetrics(), ending: make(map[session.CallID]time.Time)}
	if cfg.Registry != nil {
		if err := t.metrics.register(cfg.Registry, t); err != nil {
			return nil, fmt.Errorf("tracker: %w", err)
		}
	}
	return t, nil
}

// OnChange adds a function that is told of every call whose reply is no longer wanted (answered, folded, expired,
// cancelled), after the commit of this Tracker that made it so; of calls that ended with their turn, soon after, from
// Run. It runs in the goroutine that made the commit and must not block. Set it before the first call is registered.
func (t *Tracker) OnChange(f func(PendingA2ATask)) { t.onChange = append(t.onChange, f) }

// Register makes a call durable before anything is sent: its record (waiting when it blocks, else open), the guard and
// invocation.dispatched are one commit of the turn. The id derives from the tool call: a call that is registered already
// is returned as it is, and existed is true. A blocking call's waiter exists when Register returns, so that no reply can
// miss it. The errors are *[FullError], and [session.ErrTurnEnded] when the turn that asks has ended.
func (t *Tracker) Register(ctx context.Context, turn *session.Turn, r Request) (task PendingA2ATask, existed bool, err error) {
	if r.ToolCall == "" || r.Peer == "" || r.Deadline.IsZero() || (r.Mode != session.ModeBlocking && r.Mode != session.ModeAsync) {
		return task, false, fmt.Errorf("register a call: tool call %q, peer %q, mode %q and deadline %v are all required", r.ToolCall, r.Peer, r.Mode, r.Deadline)
	}
	id := session.CallIDFor(r.ToolCall)
	p := PendingA2ATask{
		ID: id, RootID: turn.Root, SessionID: turn.Agent, ParentID: turn.Parent, TurnID: turn.Turn, OriginTurn: turn.OriginTurn,
		ToolCallID: r.ToolCall, Peer: r.Peer, Transport: r.Transport, Mode: r.Mode, State: StateOpen,
		SentAt: time.Now().UTC(), Deadline: r.Deadline.UTC(), ReplyBy: r.ReplyBy.UTC(), ContextID: r.ContextID, Attempt: 1,
		Generation: turn.Body.Generation, AskerName: r.AskerName, Question: session.Shorten(r.Question, questionBudget, ""),
		CancelOnTimeout: r.CancelOnTimeout, Request: r.Message, Trace: r.Trace,
	}
	if r.ReplyBy.IsZero() {
		p.ReplyBy = p.Deadline.Add(t.cfg.ReplyRetention)
	}
	guard := t.cfg.GuardPrimary
	if turn.Subagent() {
		guard = t.cfg.GuardSubagent
	}
	var w *waiter
	if r.Mode == session.ModeBlocking {
		p.State = StateWaiting
		w = t.waiters.add(id, p.Deadline)
	}
	done, err := turn.Commit(ctx, session.Batch{
		Changes: []session.Change{session.Insert(session.KindCall, string(id), p.SessionID, p.OriginTurn, p.State, p, t.due(p))},
		Guards:  []session.Guard{{Kind: session.KindCall, Owner: p.SessionID, States: guardStates, Max: guard}},
		Events:  []session.Event{p.Scope().Event(session.EventInvocationDispatched, p.Invocation())},
	})
	if err == nil {
		p.Rev = done.Records[0].Rev
		t.metrics.registered(p)
		return p, false, nil
	}
	if w != nil {
		t.waiters.drop(id, w)
	}
	switch {
	case errors.Is(err, session.ErrConflict):
		p, err = t.Get(ctx, id)
		return p, err == nil, err
	case errors.Is(err, session.ErrGuard):
		return task, false, t.full(ctx, turn, guard)
	}
	return task, false, fmt.Errorf("register call %s to %s: %w", id, r.Peer, err)
}

// questionBudget is how many bytes of a question are kept.
const questionBudget = 600

func (t *Tracker) full(ctx context.Context, turn *session.Turn, limit int) error {
	open, err := t.List(ctx, session.RecordQuery{Tree: turn.Root, Owner: turn.Agent, States: guardStates, Limit: 1})
	if err != nil {
		return err
	}
	full := &FullError{Max: limit}
	if len(open) > 0 {
		full.Peer = open[0].Peer
	}
	return full
}

// Sent notes what a send made known: the peer's task id, the context id, and the attempt that is being made. An empty
// string or 0 keeps what is there. What changes nothing, and what comes after the call's reply, is no commit.
func (t *Tracker) Sent(ctx context.Context, id session.CallID, peerTaskID, contextID string, attempt int) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, _ *session.Batch) (session.State, error) {
		if !p.Wanted() && !p.CancelOwed() {
			return "", nil
		}
		before := [...]any{p.PeerTaskID, p.ContextID, p.Attempt}
		p.PeerTaskID, p.ContextID = cmp.Or(peerTaskID, p.PeerTaskID), cmp.Or(contextID, p.ContextID)
		p.Attempt = max(p.Attempt, attempt)
		if before == [...]any{p.PeerTaskID, p.ContextID, p.Attempt} {
			return "", nil
		}
		return p.State, nil
	})
	return p, err
}

// Abandon ends the wait for a blocking call: waiting becomes detached (cancelled, when the call says so), with why in
// invocation.timed_out. A call in another state is returned as it is: that is the waiter's second look.
func (t *Tracker) Abandon(ctx context.Context, id session.CallID, why string) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		if p.State != StateWaiting {
			return "", nil
		}
		return p.detach(b, why), nil
	})
	return p, err
}

// detach is the step of a call from waiting or open to nobody's.
func (p *PendingA2ATask) detach(b *session.Batch, why string) session.State {
	p.Why = why
	inv := p.Invocation()
	inv.State = why
	b.Events = append(b.Events, p.Scope().Event(session.EventInvocationTimedOut, inv))
	if p.CancelOnTimeout && why != WhyAuthRequired {
		return p.cancel(b, why)
	}
	return StateDetached
}

func (p *PendingA2ATask) cancel(b *session.Batch, reason string) session.State {
	p.CancelReason = reason
	b.Events = append(b.Events, p.Scope().Event(session.EventInvocationCancelled, p.Invocation()))
	return StateCancelled
}

// Cancel ends the wish for a reply: waiting, open and detached become cancelled, and the relay owes the peer a
// CancelTask. A call in another state is returned as it is.
func (t *Tracker) Cancel(ctx context.Context, id session.CallID, reason string) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		if !p.Wanted() {
			return "", nil
		}
		return p.cancel(b, reason), nil
	})
	return p, err
}

// CancelTree cancels every call of a tree whose reply is still wanted: the session closes.
func (t *Tracker) CancelTree(ctx context.Context, root session.ID, reason string) error {
	calls, err := t.List(ctx, session.RecordQuery{Tree: root, States: []session.State{StateWaiting, StateOpen, StateDetached}})
	if err != nil {
		return err
	}
	for _, p := range calls {
		if _, err := t.Cancel(ctx, p.ID, reason); err != nil {
			return err
		}
	}
	return nil
}

// CancelAnswered notes that the peer answered our CancelTask, or that there is nothing left to cancel.
func (t *Tracker) CancelAnswered(ctx context.Context, id session.CallID) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, _ *session.Batch) (session.State, error) {
		if !p.CancelOwed() {
			return "", nil
		}
		p.CancelAnswered = true
		return p.State, nil
	})
	return p, err
}

// Overdue says of an asynchronous call that it has no answer yet: open becomes detached (cancelled, when the call says
// so), and the item overdue:<id> is ready, in one commit. A call in another state is returned as it is.
func (t *Tracker) Overdue(ctx context.Context, id session.CallID) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		if p.State != StateOpen {
			return "", nil
		}
		to := p.detach(b, WhyOverdue)
		b.Changes = append(b.Changes, p.item(session.ItemOverdue, Reply{State: WhyOverdue, At: time.Now().UTC()}, false, false))
		return to, nil
	})
	return p, err
}

// Expire gives up on a late reply: detached becomes expired. A call in another state is returned as it is.
func (t *Tracker) Expire(ctx context.Context, id session.CallID) (PendingA2ATask, error) {
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		if p.State != StateDetached {
			return "", nil
		}
		p.Request = nil
		b.Events = append(b.Events, p.Scope().Event(session.EventInvocationExpired, p.Invocation()))
		return StateExpired, nil
	})
	return p, err
}

// Consume returns the change that uses an answered call's reply. It belongs into the batch of the tool.completed that
// holds the reply, and fails when the call has been folded since it was read.
func (t *Tracker) Consume(p PendingA2ATask) session.Change {
	return session.Change{
		Kind: session.KindCall, Key: string(p.ID), From: []session.State{StateAnswered}, Rev: p.Rev, To: StateConsumed,
	}
}

// Get returns a call, or [session.ErrNotFound].
func (t *Tracker) Get(ctx context.Context, id session.CallID) (PendingA2ATask, error) {
	rec, err := t.cfg.Store.Record(ctx, session.KindCall, string(id))
	if err != nil {
		return PendingA2ATask{}, fmt.Errorf("read call %s: %w", id, err)
	}
	return taskOf(rec)
}

// List returns the calls a query names, oldest first; the query's Kind is set by List.
func (t *Tracker) List(ctx context.Context, q session.RecordQuery) ([]PendingA2ATask, error) {
	q.Kind = session.KindCall
	recs, err := t.cfg.Store.Records(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	calls := make([]PendingA2ATask, 0, len(recs))
	for _, rec := range recs {
		p, err := taskOf(rec)
		if err != nil {
			return nil, err
		}
		calls = append(calls, p)
	}
	return calls, nil
}

// Follow returns the calls of a tree (empty: of all trees) that the relay has to take up: those whose reply is wanted,
// and those of which the peer doesn't know yet that they are cancelled.
func (t *Tracker) Follow(ctx context.Context, root session.ID) ([]PendingA2ATask, error) {
	calls, err := t.List(ctx, session.RecordQuery{Tree: root, States: []session.State{StateWaiting, StateOpen, StateDetached}})
	if err != nil {
		return nil, err
	}
	owing := owed
	owing.Tree = root
	cancelled, err := t.List(ctx, owing)
	if err != nil {
		return nil, err
	}
	return append(calls, cancelled...), nil
}

func taskOf(rec session.Record) (PendingA2ATask, error) {
	var p PendingA2ATask
	if err := rec.Decode(&p); err != nil {
		return p, err
	}
	p.State, p.Rev = rec.State, rec.Rev
	return p, nil
}

// due is when the sweeper looks at a call.
func (t *Tracker) due(p PendingA2ATask) time.Time {
	switch {
	case p.State == StateWaiting:
		return p.Deadline.Add(t.cfg.SweepGrace)
	case p.State == StateOpen:
		return p.Deadline
	case p.State == StateDetached, p.CancelOwed():
		return p.ReplyBy
	}
	return time.Time{}
}

// change reads a call and commits what decide makes of it, again from the start when the row has changed in between.
// decide changes the task, adds to the batch, and returns the call's next state; none means that there is nothing to do,
// and the call is returned as it is.
func (t *Tracker) change(ctx context.Context, id session.CallID, decide func(*PendingA2ATask, *session.Batch) (session.State, error)) (PendingA2ATask, error) {
	var refused uint64 // the revision at which something but the call was in the way
	for {
		rec, err := t.cfg.Store.Record(ctx, session.KindCall, string(id))
		if err != nil {
			return PendingA2ATask{}, fmt.Errorf("read call %s: %w", id, err)
		}
		was, err := taskOf(rec)
		if err != nil {
			return PendingA2ATask{}, err
		}
		p := was
		b := session.Batch{Tree: p.RootID}
		to, err := decide(&p, &b)
		if err != nil || to == "" {
			return was, err
		}
		p.State = to
		b.Changes = append(b.Changes, rec.Update(to, p).At(t.due(p)))
		_, err = t.cfg.Store.Commit(ctx, b)
		if errors.Is(err, session.ErrConflict) {
			conflict, ok := errors.AsType[*session.ConflictError](err)
			if ok && conflict.Kind == session.KindCall {
				continue
			}
			// Whoever came first may have made the item too, which is then what the store names. If the call has not changed
			// at the second look, it is something else.
			if rec.Rev != refused {
				refused = rec.Rev
				continue
			}
		}
		if err != nil {
			return was, fmt.Errorf("change call %s from %s to %s: %w", id, was.State, to, err)
		}
		p.Rev = rec.Rev + 1
		t.metrics.changed(was.State, p)
		t.changed(was.State, p)
		return p, nil
	}
}

// changed tells who has to know of a commit on a call.
func (t *Tracker) changed(was session.State, p PendingA2ATask) {
	if p.State != StateWaiting {
		t.waiters.wake(p.ID, &p)
	}
	if p.State == was || p.Wanted() {
		return
	}
	for _, f := range t.onChange {
		f(p)
	}
}
