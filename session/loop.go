package session

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"time"
)

// stateEvery bounds how often session.state is told while a turn runs.
const stateEvery = 100 * time.Millisecond

// lookEvery is the shortest time between two looks at a tree whose root has no turn.
const lookEvery = 10 * time.Millisecond

// rootLoop runs the root session of one owned tree.
type rootLoop struct {
	m    *Manager
	o    *owned
	tree *Tree

	current   *running
	userTurns int // in a row since the last fold-back
	told      *SessionState
	toldAt    time.Time
}

// running is the turn a loop runs.
type running struct {
	id     TurnID
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// loop runs until the tree is lost, the process stops, or there has been nothing to do for a while.
func (m *Manager) loop(o *owned) {
	l := &rootLoop{m: m, o: o, tree: o.tree}
	defer func() {
		if l.current != nil {
			<-l.current.done
		}
	}()
	wake, stop := m.cfg.Store.Watch(o.tree.ID)
	defer stop()
	idleSince := time.Now()
	for {
		busy, err := l.step()
		switch {
		case o.tree.ctx.Err() != nil:
			return
		case errors.Is(err, ErrFenced), errors.Is(err, ErrNotFound):
			m.log.WarnContext(m.ctx, "tree no longer owned", "session", o.tree.ID, "err", err)
			m.forget(o)
			o.cancel(err)
			return
		case errors.Is(err, ErrConflict), errors.Is(err, ErrGuard):
			// Somebody else changed what this look went by; the next look goes by what is there now.
		case err != nil:
			m.logFailure("run a session", err, "session", o.tree.ID)
		case busy:
			idleSince = time.Now()
		case time.Since(idleSince) > m.cfg.LeaseTTL:
			if l.leave() {
				return
			}
			idleSince = time.Now()
		}
		var ended chan struct{}
		if l.current != nil {
			ended = l.current.done
		}
		reread := time.NewTimer(time.Second)
		select {
		case <-ended:
			l.current = nil
		case <-wake:
		case <-o.nudge:
		case <-reread.C:
		case <-o.tree.ctx.Done():
		}
		reread.Stop()
		// Wakes come with every commit of the tree, and a look costs some reads; while a turn runs there is nothing to start.
		every := lookEvery
		if err != nil || l.current != nil {
			every = stateEvery
		}
		if err != nil || time.Since(l.toldAt) < every {
			pause := time.NewTimer(every)
			select {
			case <-ended:
				l.current = nil
			case <-o.nudge:
			case <-pause.C:
			case <-o.tree.ctx.Done():
			}
			pause.Stop()
		}
	}
}

// leave gives the tree back when nothing of it needs an owner.
func (l *rootLoop) leave() bool {
	for _, q := range l.m.follow() {
		q.Tree, q.Limit, q.NoBody = l.tree.ID, 1, true
		recs, err := l.m.cfg.Store.Records(l.m.ctx, q)
		if err != nil || len(recs) > 0 {
			return false
		}
	}
	l.m.forget(l.o)
	l.o.cancel(errors.New("the session is idle"))
	if err := l.m.cfg.Store.Release(l.m.ctx, l.tree.lease); err != nil {
		l.m.logFailure("release a tree", err, "session", l.tree.ID)
	}
	// What came in between the look and the release is found by the next scan, or by this one.
	if err := l.m.scan(l.m.ctx); err != nil {
		l.m.logFailure("look for unfinished work", err)
	}
	return true
}

// step looks once at the tree and does what is next. It reports whether there is anything going on.
func (l *rootLoop) step() (busy bool, err error) {
	ctx := l.tree.ctx
	rec, err := l.m.cfg.Store.Record(ctx, KindSession, string(l.tree.ID))
	if err != nil {
		return false, err
	}
	if rec.State == closing {
		return true, l.close(ctx)
	}
	if l.current != nil {
		err = l.watchCancel(ctx)
	} else if rec.State == StateOpen {
		err = l.next(ctx, rec)
	}
	if err != nil {
		return true, err
	}
	state, err := l.tellState(ctx)
	return l.current != nil || state.State != "idle" || len(state.Background) > 0 || len(state.PendingCalls) > 0, err
}

// watchCancel ends the running turn when its record says that somebody wants it.
func (l *rootLoop) watchCancel(ctx context.Context) error {
	rec, err := l.m.cfg.Store.Record(ctx, KindTurn, string(l.current.id))
	if err != nil {
		return err
	}
	var body TurnBody
	if err := rec.Decode(&body); err != nil {
		return err
	}
	if body.Cancel != "" {
		l.current.cancel(&TurnCancelledError{Reason: body.Cancel})
	}
	return nil
}

// next starts the next turn of the root session, if there is one: a started turn is continued; user turns go before
// fold-backs, but after two of them the oldest ready fold-back goes first.
func (l *rootLoop) next(ctx context.Context, session Record) error {
	root, store := l.tree.ID, l.m.cfg.Store
	started, err := store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn, Owner: root, States: StartedStates, Limit: 1})
	if err != nil {
		return err
	}
	if len(started) > 0 {
		return l.resume(ctx, started[0])
	}
	queued, err := store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn, Owner: root, States: []State{StateQueued}, Limit: 1})
	if err != nil {
		return err
	}
	items, err := store.Records(ctx, RecordQuery{Tree: root, Kind: KindItem, Owner: root, States: []State{StateReady}})
	if err != nil {
		return err
	}
	var body SessionBody
	if err := session.Decode(&body); err != nil {
		return err
	}
	switch {
	case len(items) > 0 && (len(queued) == 0 || l.userTurns >= 2):
		return l.foldBack(ctx, session, body, items)
	case len(queued) > 0:
		setup, failure := l.prepare(ctx, session, body)
		turn, err := l.tree.StartTurn(ctx, queued[0], setup, Batch{})
		if err != nil {
			return err
		}
		l.userTurns++
		l.run(turn, failure, nil)
	}
	return nil
}

// prepare returns a turn's setup, or why it can't run: then the turn starts all the same and fails with that sentence.
func (l *rootLoop) prepare(ctx context.Context, session Record, body SessionBody) (Setup, *Outcome) {
	setup, err := l.m.hooks.Prepare(ctx, session, body)
	if err != nil {
		setup.Agent = body.Agent
		return setup, &Outcome{State: StateFailed, TurnEnded: TurnEnded{StopReason: "error", Error: err.Error()}}
	}
	return setup, nil
}

// foldBack starts a turn whose input is all ready items of the oldest item's origin turn.
func (l *rootLoop) foldBack(ctx context.Context, session Record, body SessionBody, items []Record) error {
	origin := items[0].Origin
	items = slices.DeleteFunc(items, func(r Record) bool { return r.Origin != origin })
	folded, err := l.m.hooks.Fold(ctx, l.tree.ID, items)
	if err != nil {
		return fmt.Errorf("compose a fold-back: %w", err)
	}
	setup, failure := l.prepare(ctx, session, body)
	id := NewTurnID()
	keys := make([]string, len(items))
	var links []string
	var b Batch
	for i, item := range items {
		keys[i] = item.Key
		var body ItemBody
		if err := item.Decode(&body); err != nil {
			return err
		}
		if body.Trace != "" && !slices.Contains(links, body.Trace) {
			links = append(links, body.Trace)
		}
		b.Changes = append(b.Changes, item.Update(StateBound, nil))
	}
	if folded.Events != nil {
		b.Events = folded.Events(id)
	}
	rec := Record{Tree: l.tree.ID, Kind: KindTurn, Key: string(id), Owner: l.tree.ID, Origin: origin, Body: mustJSON(TurnBody{
		Root: l.tree.ID, Origin: OriginFoldback, CausedBy: folded.CausedBy, Generation: folded.Generation,
		Input: folded.Text, Items: keys, Links: links,
	})}
	turn, err := l.tree.StartTurn(ctx, rec, setup, b)
	if err != nil {
		return err
	}
	l.userTurns = 0
	l.run(turn, failure, items)
	return nil
}

// resume continues the root's started turn after a crash or a stop.
func (l *rootLoop) resume(ctx context.Context, rec Record) error {
	turn, failed, err := l.tree.ResumeTurn(ctx, rec, !l.tree.Crashed(), Batch{})
	if err != nil {
		return err
	}
	var items []Record
	for _, key := range turn.Body.Items {
		item, err := l.m.cfg.Store.Record(ctx, KindItem, key)
		if err != nil {
			return fmt.Errorf("resume turn %s: item %s: %w", turn.Turn, key, err)
		}
		items = append(items, item)
	}
	l.run(turn, failed, items)
	return nil
}

// run runs a started turn in a goroutine of the loop's. A turn that already failed is only ended.
func (l *rootLoop) run(turn *Turn, failed *Outcome, items []Record) {
	ctx, cancel := context.WithCancelCause(l.tree.ctx)
	r := &running{id: turn.Turn, cancel: cancel, done: make(chan struct{})}
	l.current = r
	turn.Parker = &rootParker{turn: turn}
	l.m.wg.Go(func() {
		defer close(r.done)
		defer cancel(nil)
		limit := l.m.cfg.TurnTimeout
		tctx, stop := context.WithDeadlineCause(ctx, turn.Body.StartedAt.Add(limit), &TurnTimeoutError{After: limit})
		defer stop()
		out, err := failed, error(nil)
		if failed == nil {
			out, err = RunGuarded(tctx, l.m.hooks.Runner, turn, func(stack []byte, cause any) {
				l.m.log.ErrorContext(ctx, "turn panicked", "session", turn.Agent, "turn", turn.Turn, "err", cause, "stack", string(stack))
			})
		}
		switch {
		case l.tree.ctx.Err() != nil, errors.Is(err, ErrTurnEnded):
			return // not ended here: the next owner goes on with it, or somebody ended it
		case errors.Is(err, ErrFenced):
			l.o.cancel(ErrFenced)
			return
		case err != nil:
			l.m.log.ErrorContext(ctx, "turn broke off", "session", turn.Agent, "turn", turn.Turn, "err", err)
			out = &Outcome{State: StateFailed, TurnEnded: TurnEnded{StopReason: "error", Error: "internal error"}}
			if errors.Is(err, ErrFull) {
				out.Error, out.Code = ErrFull.Error()+"; ask again when there is", CodeStorageFull
			}
		}
		l.end(turn, *out, items)
	})
}

// RunGuarded runs a turn and turns a panic into a failed outcome, with its stack given to report. The outcome is by
// reference, since whoever runs a turn may wait for it next to thousands of others, and what is on the stack meanwhile
// counts that often.
func RunGuarded(ctx context.Context, r TurnRunner, turn *Turn, report func(stack []byte, cause any)) (out *Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			report(debug.Stack(), p)
			out, err = &Outcome{State: StateFailed, TurnEnded: TurnEnded{StopReason: "error", Error: fmt.Sprintf("internal error: %v", p)}}, nil
		}
	}()
	out = new(Outcome)
	*out, err = r.RunTurn(ctx, turn)
	return out, err
}

// end makes the terminal commit, again and again while the store fails and the tree is ours: an end is never dropped.
func (l *rootLoop) end(turn *Turn, out Outcome, items []Record) {
	parts := l.m.hooks.EndTurn
	if turn.Body.Origin == OriginFoldback && out.State != StateCompleted {
		text := l.m.hooks.FoldFailed(l.tree.ctx, l.tree.ID, items, out.Error)
		parts = append(slices.Clone(parts), func(_ context.Context, t *Turn, _ Outcome, b *Batch) error {
			b.Events = append(b.Events, t.Event(EventMessageCompleted, Message{
				MessageID: NewMessageID(), Role: RoleAssistant, Text: text, Synthetic: true,
			}))
			return nil
		})
	}
	wait := 50 * time.Millisecond
	for {
		_, err := l.tree.EndTurn(l.tree.ctx, turn, out, parts...)
		switch {
		case err == nil, errors.Is(err, ErrTurnEnded), l.tree.ctx.Err() != nil:
			return
		case errors.Is(err, ErrFenced), errors.Is(err, ErrNotFound):
			l.o.cancel(err)
			return
		}
		l.m.log.ErrorContext(l.tree.ctx, "turn's end not written; trying again", "session", turn.Agent, "turn", turn.Turn, "err", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-l.tree.ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, 5*time.Second)
	}
}

// close ends what a closing session still has, one look at a time, and closes it when nothing is left.
func (l *rootLoop) close(ctx context.Context) error {
	root, store := l.tree.ID, l.m.cfg.Store
	if l.current != nil {
		l.current.cancel(&TurnCancelledError{Reason: "the session was closed"})
	}
	turns, err := store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn, Owner: root, States: []State{StateQueued, StateRunning, StateSuspended}})
	if err != nil {
		return err
	}
	for _, rec := range turns {
		if rec.State != StateQueued && l.current == nil { // left by an earlier life of the process
			turn, err := NewTurn(l.tree, rec)
			if err != nil {
				return err
			}
			l.run(turn, &Outcome{State: StateCancelled, TurnEnded: TurnEnded{StopReason: "cancelled", Error: "the session was closed"}}, nil)
			continue
		}
		if rec.State == StateQueued {
			if err := l.m.Cancel(ctx, TurnID(rec.Key), "the session was closed"); err != nil {
				return err
			}
		}
	}
	for _, end := range l.m.hooks.Close {
		if err := end(ctx, l.tree); err != nil {
			return fmt.Errorf("close session %s: %w", root, err)
		}
	}
	b := Batch{Events: []Event{Scope{Root: root, Agent: root}.Event(EventSessionClosed, nil)}}
	for _, q := range l.m.follow() {
		if q.Kind == KindSession || !q.DueBefore.IsZero() {
			continue
		}
		q.Tree = root
		recs, err := store.Records(ctx, q)
		if err != nil {
			return err
		}
		// What ends between these looks leaves an item, or begins something else: then the commit fails.
		b.Guards = append(b.Guards, Guard{Kind: q.Kind, States: q.States, Max: 0})
		for _, rec := range recs {
			if q.Kind != KindItem {
				return nil // still ending; the next look goes on
			}
			b.Changes = append(b.Changes, rec.Update(StateBound, nil)) // nobody will read it
		}
	}
	b.Changes = append(b.Changes, Change{
		Kind: KindSession, Key: string(root), From: []State{closing}, To: StateClosed,
		Due: time.Now().Add(l.m.cfg.Retention), SetDue: true,
	})
	_, err = l.tree.Commit(ctx, b)
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrGuard) {
		return nil // the next look goes on
	}
	return err
}

// tellState commits session.state when it is other than the last one told.
func (l *rootLoop) tellState(ctx context.Context) (SessionState, error) {
	s, err := l.m.state(ctx, l.tree.ID)
	if err != nil {
		return s, err
	}
	l.toldAt = time.Now()
	if l.told == nil {
		last, err := l.m.cfg.Store.Events(ctx, EventQuery{Tree: l.tree.ID, Types: []EventType{EventSessionState}, Limit: 1, Last: true})
		if err != nil {
			return s, err
		}
		l.told = new(SessionState) // none was told: the first look tells it, also when a turn was too quick to be seen running
		if len(last) > 0 {
			if err := last[0].Decode(l.told); err != nil {
				return s, err
			}
		}
	}
	if reflect.DeepEqual(*l.told, s) {
		return s, nil
	}
	_, err = l.tree.Commit(ctx, Batch{Events: []Event{Scope{Root: l.tree.ID, Agent: l.tree.ID}.Event(EventSessionState, s)}})
	if err == nil {
		l.told = &s
	}
	return s, err
}

// state is what session.state says of a tree now.
func (m *Manager) state(ctx context.Context, root ID) (SessionState, error) {
	s := SessionState{State: "idle", Background: []ID{}, PendingCalls: []CallID{}}
	turns, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn, Owner: root, States: StartedStates, Limit: 1, NoBody: true})
	if err != nil {
		return s, err
	}
	// Without a turn that makes new ones, calls and children become items: looking in that order misses nothing on its way
	// home.
	if len(m.hooks.Pending) > 0 {
		calls, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindCall, States: m.hooks.Pending, NoBody: true})
		if err != nil {
			return s, err
		}
		for _, r := range calls {
			s.PendingCalls = append(s.PendingCalls, CallID(r.Key))
		}
	}
	children, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindChild, States: []State{StateQueued, StateRunning, StateSuspended}, NoBody: true})
	if err != nil {
		return s, err
	}
	for _, r := range children {
		s.Background = append(s.Background, ID(r.Key))
	}
	if len(turns) > 0 {
		s.State = "running"
		return s, nil
	}
	// What has come home and isn't worked in yet is work: its turn is about to start.
	items, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindItem, Owner: root, States: []State{StateReady}, Limit: 1, NoBody: true})
	if err != nil {
		return s, err
	}
	if len(items) > 0 {
		s.State = "running"
	}
	return s, nil
}

// rootParker records that a root turn only waits, so that a crash meanwhile doesn't count against it.
type rootParker struct {
	turn   *Turn
	parked bool
}

var _ Parker = (*rootParker)(nil)

func (p *rootParker) Park(ctx context.Context, reason string) error {
	if p.parked {
		return nil
	}
	err := p.change(ctx, StateRunning, StateSuspended, p.turn.Event(EventTurnSuspended, TurnSuspended{Reason: reason}))
	p.parked = err == nil
	return err
}

func (p *rootParker) Unpark(ctx context.Context) error {
	if !p.parked {
		return nil
	}
	err := p.change(ctx, StateSuspended, StateRunning, p.turn.Event(EventTurnResumed, TurnResumed{Attempt: p.turn.Body.Attempt}))
	p.parked = err != nil
	return err
}

func (p *rootParker) change(ctx context.Context, from, to State, e Event) error {
	_, err := p.turn.Commit(ctx, Batch{
		Changes: []Change{{Kind: KindTurn, Key: string(p.turn.Turn), From: []State{from}, To: to}},
		Events:  []Event{e},
	})
	return err
}
