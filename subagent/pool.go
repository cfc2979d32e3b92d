package subagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"orchestrator/session"
)

// Pool runs the subagents of this process.
type Pool struct {
	cfg    Config
	limits Limits
	store  session.Store
	log    *slog.Logger
	slots  *slots
	ends   *bell
	m      *metrics
	wg     sync.WaitGroup

	mu      sync.Mutex
	runs    map[session.ID]*run
	unwatch chan struct{} // while there are runs: ends the goroutine that looks for cancel requests
	drained bool
}

// New returns a pool that runs nothing yet.
func New(cfg Config) (*Pool, error) {
	cfg.Limits.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.DefaultAgent = cmp.Or(cfg.DefaultAgent, cfg.Agents[0])
	if cfg.EndCalls == nil {
		cfg.EndCalls = func(bool) session.EndPart {
			return func(context.Context, *session.Turn, session.Outcome, *session.Batch) error { return nil }
		}
	}
	p := &Pool{
		cfg: cfg, limits: cfg.Limits, store: cfg.Store, log: cfg.Logger, slots: newSlots(cfg.Limits), ends: newBell(),
		m: newMetrics(), runs: make(map[session.ID]*run),
	}
	if cfg.Registry != nil {
		if err := p.m.register(cfg.Registry, p.slots); err != nil {
			return nil, fmt.Errorf("subagent: %w", err)
		}
	}
	return p, nil
}

// Live returns the states, by kind, that keep an origin turn from being quiescent and make a tree worth owning; it is for
// session.Hooks.Live.
func (p *Pool) Live() map[session.Kind][]session.State {
	return map[session.Kind][]session.State{session.KindChild: UnsettledStates}
}

// EndPart returns the part of a turn's terminal commit that releases the children the turn waits for and completes the
// batch of those it spawned. It is for root turns; the Pool's own turns have it.
func (p *Pool) EndPart() session.EndPart {
	return func(ctx context.Context, t *session.Turn, out session.Outcome, b *session.Batch) error {
		f, err := loadFamily(ctx, p.store, t.Root, t.Agent)
		if err != nil {
			return err
		}
		if err := f.endTurn(ctx, t.Turn, out.State == session.StateCancelled); err != nil {
			return err
		}
		f.settle()
		f.write(t.Turn, b, p.limits.ConsolidationTimeout)
		return nil
	}
}

// Recover takes up the children an earlier owner of the tree left: those that had started go on with a slot, in their
// order, before those in the queue. A child whose deadline has passed ends at once.
func (p *Pool) Recover(ctx context.Context, t *session.Tree) error {
	recs, err := p.store.Records(ctx, session.RecordQuery{Tree: t.ID, Kind: session.KindChild, States: LiveStates})
	if err != nil {
		return fmt.Errorf("recover the subagents of %s: %w", t.ID, err)
	}
	for _, queued := range []bool{false, true} {
		for _, rec := range recs {
			if queued == (rec.State == session.StateQueued) {
				p.start(t, rec)
			}
		}
	}
	batches, err := p.store.Records(ctx, session.RecordQuery{Tree: t.ID, Kind: session.KindBatch, States: []session.State{BatchOpen}})
	if err != nil {
		return fmt.Errorf("recover the batches of %s: %w", t.ID, err)
	}
	for _, rec := range batches {
		if err := p.complete(ctx, t, rec); err != nil {
			return err
		}
	}
	return nil
}

// complete sends an open batch home when nothing of it is left to wait for.
func (p *Pool) complete(ctx context.Context, t *session.Tree, rec session.Record) error {
	f, err := loadFamily(ctx, p.store, t.ID, rec.Owner)
	if err != nil {
		return err
	}
	row, err := f.touch(ctx, session.TurnID(rec.Key))
	if err != nil || row == nil {
		return err
	}
	f.settle()
	if row.state == BatchOpen {
		return nil
	}
	var b session.Batch
	f.write("", &b, 0)
	if _, err := t.Commit(ctx, b); err != nil && !errors.Is(err, session.ErrConflict) {
		return fmt.Errorf("complete the batch of turn %s: %w", rec.Key, err)
	}
	return nil
}

// Sweep handles due child and batch records. A batch that is due goes home with what there is. A child that is due has
// outlived its deadline by a while: its supervisor is told again, if it runs here.
func (p *Pool) Sweep(ctx context.Context, rec session.Record) error {
	switch rec.Kind {
	case session.KindBatch:
		return p.sweepBatch(ctx, rec)
	case session.KindChild:
		return p.sweepChild(ctx, rec)
	}
	return nil
}

func (p *Pool) sweepBatch(ctx context.Context, rec session.Record) error {
	f, err := loadFamily(ctx, p.store, rec.Tree, rec.Owner)
	if err != nil {
		return err
	}
	row, err := f.touch(ctx, session.TurnID(rec.Key))
	if err != nil || row == nil || row.state != BatchOpen || row.body.TurnEnded.IsZero() {
		return err
	}
	if f.settle(); row.state == BatchOpen {
		f.overdue(row)
	}
	b := session.Batch{Tree: rec.Tree}
	f.write("", &b, 0)
	// On a conflict the record is still due, and looked at again.
	if _, err := p.store.Commit(ctx, b); err != nil && !errors.Is(err, session.ErrConflict) {
		return fmt.Errorf("send the overdue batch of turn %s home: %w", rec.Key, err)
	}
	return nil
}

// childGrace is how long after a child's deadline the sweeper looks at it. The supervisor's own timer comes first.
const childGrace = 10 * time.Second

func (p *Pool) sweepChild(ctx context.Context, rec session.Record) error {
	change := rec.Update(rec.State, nil).At(time.Time{})
	if live(rec.State) {
		var body Child
		if err := rec.Decode(&body); err != nil {
			return err
		}
		p.mu.Lock()
		r := p.runs[session.ID(rec.Key)]
		p.mu.Unlock()
		if r != nil {
			r.cancel(&session.TurnTimeoutError{After: body.Timeout})
		}
		change = change.At(time.Now().Add(time.Minute))
	}
	_, err := p.store.Commit(ctx, session.Batch{Tree: rec.Tree, Changes: []session.Change{change}})
	if err != nil && !errors.Is(err, session.ErrConflict) {
		return fmt.Errorf("look at subagent %s again later: %w", rec.Key, err)
	}
	return nil
}

// Cancel asks for the end of a child, whatever it does; its calls to peers are cancelled with it. It returns when the
// wish is durable. A child that has ended stays as it is.
func (p *Pool) Cancel(ctx context.Context, child session.ID, reason string) error {
	for {
		rec, err := p.store.Record(ctx, session.KindChild, string(child))
		if err != nil {
			return fmt.Errorf("cancel subagent %s: %w", child, err)
		}
		var body Child
		if err := rec.Decode(&body); err != nil {
			return err
		}
		if !live(rec.State) {
			return nil
		}
		if body.Cancel == "" {
			body.Cancel = reason
			_, err = p.store.Commit(ctx, session.Batch{Tree: rec.Tree, Changes: []session.Change{rec.Update(rec.State, body)}})
			if errors.Is(err, session.ErrConflict) {
				continue
			}
			if err != nil {
				return fmt.Errorf("cancel subagent %s: %w", child, err)
			}
		}
		p.wake(child, body.Cancel)
		return nil
	}
}

// wake tells a child's supervisor, if it runs here, that somebody wants the child's end.
func (p *Pool) wake(child session.ID, reason string) {
	p.mu.Lock()
	r := p.runs[child]
	p.mu.Unlock()
	if r != nil {
		r.cancel(&session.TurnCancelledError{Reason: reason})
	}
}

// CloseTree cancels every child of a closing session. It doesn't wait for their ends; it may be called again.
func (p *Pool) CloseTree(ctx context.Context, t *session.Tree) error {
	recs, err := p.store.Records(ctx, session.RecordQuery{Tree: t.ID, Kind: session.KindChild, States: LiveStates})
	if err != nil {
		return fmt.Errorf("close the subagents of %s: %w", t.ID, err)
	}
	for _, rec := range recs {
		if err := p.Cancel(ctx, session.ID(rec.Key), "the session was closed"); err != nil {
			return err
		}
		p.start(t, rec)
	}
	return nil
}

// Drain waits for every supervisor. It is for when the trees' contexts have ended; nothing starts after it.
func (p *Pool) Drain() {
	p.mu.Lock()
	p.drained = true
	p.mu.Unlock()
	p.wg.Wait()
}

// watch notices the cancel requests that other processes make, for all children at once, until there are none.
func (p *Pool) watch(stop <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		trees := make(map[session.ID]*session.Tree)
		for _, r := range p.runs {
			trees[r.tree.ID] = r.tree
		}
		p.mu.Unlock()
		for id, tree := range trees {
			if err := p.lookForCancels(tree.Context(), id); err != nil && tree.Context().Err() == nil {
				p.log.WarnContext(tree.Context(), "cancel requests not read", "session", id, "err", err)
			}
		}
	}
}

func (p *Pool) lookForCancels(ctx context.Context, tree session.ID) error {
	recs, err := p.store.Records(ctx, session.RecordQuery{Tree: tree, Kind: session.KindChild, States: LiveStates})
	if err != nil {
		return err
	}
	for _, rec := range recs {
		var body Child
		if err := rec.Decode(&body); err != nil {
			return err
		}
		if body.Cancel != "" {
			p.wake(session.ID(rec.Key), body.Cancel)
		}
	}
	return nil
}

// bell wakes those that wait for the end of children in this process.
type bell struct {
	mu      sync.Mutex
	waiters map[chan struct{}][]session.ID
}

func newBell() *bell { return &bell{waiters: make(map[chan struct{}][]session.ID)} }

// join returns a channel that gets a value when one of the children ends; the value says no more than that.
func (b *bell) join(ids []session.ID) (wake <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters[ch] = ids
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waiters, ch)
	}
}

func (b *bell) ring(id session.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch, ids := range b.waiters {
		for _, want := range ids {
			if want == id {
				select {
				case ch <- struct{}{}:
				default:
				}
			}
		}
	}
}
