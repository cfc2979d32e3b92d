package subagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"orchestrator/session"
)

// run is the supervision of one child in this process: from when it is queued or taken up until it has ended, or the tree
// is no longer ours.
type run struct {
	id       session.ID
	tree     *session.Tree
	seat     *seat
	ctx      context.Context //nolint:containedctx // the run's own lifetime
	cancel   context.CancelCauseFunc
	previous *run // of the same child, under an earlier lease
	done     chan struct{}
}

// start supervises a child, once. The order of the calls is the order of the slots.
func (p *Pool) start(t *session.Tree, rec session.Record) {
	id := session.ID(rec.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	previous := p.runs[id]
	if p.drained || t.Context().Err() != nil || previous != nil && previous.tree == t {
		return
	}
	r := &run{id: id, tree: t, previous: previous, done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(t.Context())
	if rec.State == session.StateQueued {
		r.seat = p.slots.arrive(t.ID, rec.Owner != t.ID)
	} else {
		r.seat = p.slots.takeUp(t.ID)
	}
	p.runs[id] = r
	if p.unwatch == nil {
		stop := make(chan struct{})
		p.unwatch = stop
		p.wg.Go(func() { p.watch(stop) })
	}
	p.wg.Go(func() { p.run(r) })
}

// run supervises a child, which waits for most of its life, next to thousands of others: run, supervise and work keep little
// on the stack, and what is done before and after the turn has functions of its own.
func (p *Pool) run(r *run) {
	defer p.forget(r)
	if r.previous != nil {
		<-r.previous.done
	}
	if err := p.supervise(r); err != nil {
		p.leftAlone(r, err)
	}
}

// leftAlone tells of a child that was left as it is, unless it is no longer ours.
func (p *Pool) leftAlone(r *run, err error) {
	if !left(r.tree, err) {
		p.log.ErrorContext(r.tree.Context(), "subagent left as it is", "session", r.tree.ID, "agent", r.id, "err", err)
	}
}

func (p *Pool) forget(r *run) {
	p.slots.leave(r.seat)
	r.cancel(nil)
	p.mu.Lock()
	if p.runs[r.id] == r {
		delete(p.runs, r.id)
	}
	if len(p.runs) == 0 && p.unwatch != nil {
		close(p.unwatch)
		p.unwatch = nil
	}
	p.mu.Unlock()
	close(r.done)
	p.ends.ring(r.id)
}

// left reports whether an error means that the child is no longer ours to end: the process stops, the tree has another
// owner, or somebody else ended the turn.
func left(t *session.Tree, err error) bool {
	for _, final := range []error{
		session.ErrStopping, session.ErrFenced, session.ErrTurnEnded, session.ErrClosed, session.ErrNotFound,
	} {
		if errors.Is(err, final) {
			return true
		}
	}
	return t.Context().Err() != nil
}

// supervise takes a child from where its record says it is to its end. The error says why it was left as it is.
func (p *Pool) supervise(r *run) error {
	ctx, stop, err := p.bounded(r)
	if err != nil || ctx == nil {
		return err
	}
	defer stop()
	turn, out, err := p.work(ctx, r)
	return p.over(ctx, r, turn, out, err)
}

// bounded returns a context that ends with the child's deadline, or nil when the child has ended.
func (p *Pool) bounded(r *run) (context.Context, context.CancelFunc, error) {
	var child session.Record
	var body Child
	// A child that isn't read now would be left alone: nobody comes again while this process has the tree.
	err := p.persist(r.tree.Context(), r, "take up a subagent", func(context.Context) (err error) {
		child, body, err = p.read(r)
		return err
	})
	if err != nil || !live(child.State) {
		return nil, nil, err
	}
	if body.Cancel != "" {
		r.cancel(&session.TurnCancelledError{Reason: body.Cancel})
	}
	ctx, stop := context.WithDeadlineCause(r.ctx, body.Deadline, &session.TurnTimeoutError{After: body.Timeout})
	return ctx, stop, nil
}

// over ends a child whose turn is over, or broke off with err. The turn is nil when it has not started here.
func (p *Pool) over(ctx context.Context, r *run, turn *session.Turn, out *session.Outcome, err error) error {
	if r.tree.Context().Err() != nil && (err != nil || out.State != session.StateCompleted) {
		return context.Cause(r.tree.Context()) // a stop ends nothing
	}
	if err != nil {
		out = stopped(ctx)
		if out == nil {
			for _, theirs := range []error{session.ErrStopping, session.ErrFenced, session.ErrClosed} {
				if errors.Is(err, theirs) {
					return err
				}
			}
			if !errors.Is(err, session.ErrTurnEnded) { // else the end below finds it ended
				p.log.ErrorContext(ctx, "subagent broke off", "session", r.tree.ID, "agent", r.id, "err", err)
			}
			out = failure(reasonError, "internal error")
		}
	}
	return p.end(ctx, r, turn, *out)
}

// work runs a child's turn, when a slot is free for it. An error means that the turn has not ended by itself. The turn is
// nil when it has not started here.
func (p *Pool) work(ctx context.Context, r *run) (*session.Turn, *session.Outcome, error) {
	turn, over, err := p.ready(ctx, r)
	if err != nil || over != nil {
		return turn, over, err
	}
	out, err := session.RunGuarded(ctx, p.cfg.Runner, turn, func(stack []byte, cause any) {
		p.log.ErrorContext(ctx, "subagent panicked", "session", r.tree.ID, "agent", r.id, "err", cause, "stack", string(stack))
	})
	return turn, out, err
}

// ready waits for a slot and begins a child's turn in it. It may return an outcome: then the turn is over before it ran.
func (p *Pool) ready(ctx context.Context, r *run) (turn *session.Turn, over *session.Outcome, err error) {
	began := time.Now()
	if err := p.slots.wait(ctx, r.seat); err != nil {
		return nil, nil, err
	}
	p.m.slotWait.WithLabelValues(waitStart).Observe(time.Since(began).Seconds())
	err = p.persist(ctx, r, "start a subagent", func(ctx context.Context) (err error) {
		turn, over, err = p.begin(ctx, r)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if over == nil {
		turn.Parker = newParker(p, r, turn)
	}
	return turn, over, nil
}

// begin starts a child's turn, or continues the one that an earlier life of the process had started. It may return an
// outcome instead: then the turn is over before it ran.
func (p *Pool) begin(ctx context.Context, r *run) (*session.Turn, *session.Outcome, error) {
	child, body, err := p.read(r)
	if err != nil {
		return nil, nil, err
	}
	turn, err := p.store.Record(ctx, session.KindTurn, string(body.Turn))
	if err != nil {
		return nil, nil, err
	}
	scope := scopeOf(child, body)
	if child.State != session.StateQueued {
		var extra session.Batch
		if child.State == session.StateSuspended {
			extra.Changes = []session.Change{child.Update(session.StateRunning, nil)}
			extra.Events = []session.Event{scope.Event(session.EventSubagentResumed, session.SubagentStarted{Run: body.Run})}
		}
		return r.tree.ResumeTurn(ctx, turn, !r.tree.Crashed(), extra)
	}
	if body.Cancel != "" {
		return nil, cancelled(body.Cancel), nil
	}
	rec, err := p.store.Record(ctx, session.KindSession, string(r.id))
	if err != nil {
		return nil, nil, err
	}
	var sess session.SessionBody
	if err := rec.Decode(&sess); err != nil {
		return nil, nil, err
	}
	setup, err := p.cfg.Prepare(ctx, rec, sess)
	if err != nil {
		return nil, failure(reasonError, err.Error()), nil
	}
	started, err := r.tree.StartTurn(ctx, turn, setup, session.Batch{
		Changes: []session.Change{child.Update(session.StateRunning, nil)},
		Events:  []session.Event{scope.Event(session.EventSubagentStarted, session.SubagentStarted{Run: body.Run})},
	})
	return started, nil, err
}

// end makes the one commit that ends a child: its record, its turn, its calls, and what that means for its siblings and
// its own children.
func (p *Pool) end(ctx context.Context, r *run, turn *session.Turn, out session.Outcome) error {
	reason := reasonOf(ctx, out)
	// The end is written though the run is over and its context may have ended.
	ctx = context.WithoutCancel(ctx)
	err := p.persist(ctx, r, "end a subagent", func(ctx context.Context) error {
		done, err := readWork(ctx, p.store, r.tree.ID, r.id)
		if err != nil {
			return err
		}
		parts := []session.EndPart{p.cfg.EndCalls(reason == reasonCancelled), p.EndPart(), p.endPart(r, done, reason)}
		t := turn
		if t == nil {
			_, body, err := p.read(r)
			if err != nil {
				return err
			}
			rec, err := p.store.Record(ctx, session.KindTurn, string(body.Turn))
			if err != nil {
				return err
			}
			if t, err = session.NewTurn(r.tree, rec); err != nil {
				return err
			}
			if rec.State == session.StateQueued {
				return p.endQueued(ctx, t, rec, out, parts)
			}
		}
		_, err = r.tree.EndTurn(ctx, t, out, parts...)
		return err
	})
	if err != nil {
		return fmt.Errorf("end subagent %s: %w", r.id, err)
	}
	p.m.ended.WithLabelValues(cmp.Or(reason, string(session.StateCompleted))).Inc()
	return nil
}

// endPart is the part of a child's terminal commit that is about the child itself.
func (p *Pool) endPart(r *run, done work, reason string) session.EndPart {
	return func(ctx context.Context, t *session.Turn, out session.Outcome, b *session.Batch) error {
		f, err := loadFamily(ctx, p.store, t.Root, t.Parent)
		if err != nil {
			return err
		}
		row, ok := f.child(r.id)
		if !ok || !live(row.state) {
			return session.ErrTurnEnded
		}
		env, artifacts := done.envelope(r.id, row.body, reason, out)
		row.state, row.body.Ended, row.body.Result, row.dirty = StateEnded, f.now, &env, true
		if _, err := f.touch(ctx, row.body.Batch); err != nil {
			return err
		}
		f.settle()
		f.write("", b, 0)
		typ, ended := session.EventSubagentCompleted, session.SubagentEnded{Usage: out.Usage}
		if reason == "" {
			ended.Summary = env.Text
		} else {
			typ, ended.Reason, ended.Error = session.EventSubagentFailed, reason, out.Error
		}
		b.Artifacts = append(b.Artifacts, artifacts...)
		b.Events = append(b.Events, scopeOf(row.rec, row.body).Event(typ, ended))
		return nil
	}
}

// endQueued ends a turn that never started.
func (p *Pool) endQueued(
	ctx context.Context, turn *session.Turn, rec session.Record, out session.Outcome, parts []session.EndPart,
) error {
	body := turn.Body
	body.Ended = &out.TurnEnded
	b := session.Batch{Changes: []session.Change{rec.Update(out.State, body)}}
	for _, part := range parts {
		if err := part(ctx, turn, out, &b); err != nil {
			return err
		}
	}
	typ := session.EventTurnFailed
	if out.State == session.StateCancelled {
		typ = session.EventTurnCancelled
	}
	b.Events = append(b.Events, turn.Event(typ, out.TurnEnded))
	_, err := turn.Tree().Commit(ctx, b)
	return err
}

// persist reads or writes until it succeeds, the context ends, or the tree is no longer ours: at once when somebody else
// changed what it goes by, after a pause when the store fails. A read or write itself is not cut off by ctx.
func (p *Pool) persist(ctx context.Context, r *run, what string, write func(context.Context) error) error {
	pause := 50 * time.Millisecond
	for try := 0; ; try++ {
		err := write(context.WithoutCancel(ctx))
		switch {
		case err == nil:
			return nil
		case left(r.tree, err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, session.ErrConflict) && try < 1000:
			continue
		}
		p.log.ErrorContext(ctx, "the store failed; trying again", "what", what, "session", r.tree.ID, "agent", r.id, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.tree.Context().Done():
		}
		timer.Stop()
		pause = min(2*pause, 5*time.Second)
	}
}

func (p *Pool) read(r *run) (session.Record, Child, error) {
	var body Child
	rec, err := p.store.Record(context.WithoutCancel(r.ctx), session.KindChild, string(r.id))
	if err != nil {
		return rec, body, fmt.Errorf("read subagent %s: %w", r.id, err)
	}
	return rec, body, rec.Decode(&body)
}

// scopeOf is the scope of a child's subagent events.
func scopeOf(rec session.Record, c Child) session.Scope {
	return session.Scope{Root: rec.Tree, Agent: session.ID(rec.Key), Parent: c.Parent, Turn: c.Turn, OriginTurn: rec.Origin}
}

// The reasons a subagent fails for.
const (
	reasonError       = "error"
	reasonTimeout     = "timeout"
	reasonCancelled   = "cancelled"
	reasonInterrupted = "interrupted"
)

// reasonOf says why an outcome is a failure; empty: it is none.
func reasonOf(ctx context.Context, out session.Outcome) string {
	switch {
	case out.State == session.StateCompleted:
		return ""
	case out.State == session.StateCancelled:
		return reasonCancelled
	case out.StopReason == "crashed":
		return reasonInterrupted
	}
	if _, ok := errors.AsType[*session.TurnTimeoutError](context.Cause(ctx)); ok {
		return reasonTimeout
	}
	return reasonError
}

// stopped returns the outcome of a turn whose context somebody ended for a reason that ends the turn, or nil.
func stopped(ctx context.Context) *session.Outcome {
	cause := context.Cause(ctx)
	if c, ok := errors.AsType[*session.TurnCancelledError](cause); ok {
		return cancelled(c.Reason)
	}
	if t, ok := errors.AsType[*session.TurnTimeoutError](cause); ok {
		return failure(reasonTimeout, t.Error()+", the time in the queue included")
	}
	return nil
}

func cancelled(reason string) *session.Outcome {
	return &session.Outcome{State: session.StateCancelled, TurnEnded: session.TurnEnded{StopReason: reasonCancelled, Error: reason}}
}

func failure(stop, text string) *session.Outcome {
	return &session.Outcome{State: session.StateFailed, TurnEnded: session.TurnEnded{StopReason: stop, Error: text}}
}
