package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// Config configures a [Manager].
type Config struct {
	Store  Store
	Logger *slog.Logger
	// Owner names this process in leases. Defaults to a fresh id.
	Owner string
	// LeaseTTL is how long a tree stays owned after the owner's last sign of life. Defaults to 15 seconds; leases are
	// renewed at a third of it.
	LeaseTTL time.Duration
	// SweepEvery is how often due records are looked for. Defaults to 250 milliseconds.
	SweepEvery time.Duration
	// TurnTimeout bounds a root turn's wall time. Defaults to 30 minutes.
	TurnTimeout time.Duration
	// MaxQueued bounds the queued turns of a session. Defaults to 100.
	MaxQueued int
	// MaxInput bounds the bytes of one input. Defaults to 1 MiB.
	MaxInput int
	// Retention is how long a closed tree is kept. Defaults to 30 days.
	Retention time.Duration
	// Registry takes the metrics of running sessions; nil: there are none. Those of the store are [Measure]'s.
	Registry prometheus.Registerer
}

// Hooks is what other packages give the Manager. They are set once, before [Manager.Start].
type Hooks struct {
	// Runner runs root turns.
	Runner TurnRunner
	// Prepare says what a session's next turn runs with.
	Prepare func(ctx context.Context, session Record, body SessionBody) (Setup, error)
	// Fold says what the fold-back turn of these items, all ready and of one origin turn, looks like.
	Fold func(ctx context.Context, root ID, items []Record) (Folded, error)
	// FoldFailed is the plain message a session gets when the fold-back turn of these items failed.
	FoldFailed func(ctx context.Context, root ID, items []Record, cause string) string
	// EndTurn are the parts of every root turn's terminal commit.
	EndTurn []EndPart
	// Sweep handles due records by kind. A handler's writes are compare-and-sets: another process may sweep too.
	Sweep map[Kind]func(ctx context.Context, r Record) error
	// Recover takes up what a tree left running when it is claimed, in order. It must not block for long; what it starts
	// lives until the tree's context ends, and Drain waits for it.
	Recover []func(ctx context.Context, t *Tree) error
	// Close ends a closing session's background work: its calls and its children. It may be called more than once.
	Close []func(ctx context.Context, t *Tree) error
	// Live are the states, by kind, that keep an origin turn from being quiescent; turns and items need not be named.
	Live map[Kind][]State
	// Follow names the records, of any tree, that make their tree worth owning though nothing runs; Live states need not be
	// named. Those it names by due time don't keep a closing session from being closed.
	Follow []RecordQuery
	// Pending are the states of calls that session.state names.
	Pending []State
	// DescribeAgent and DescribeCall say what a child and a call record hold, for the doors. Nil: there are none.
	DescribeAgent func(r Record) (AgentInfo, error)
	DescribeCall  func(r Record) (CallInfo, error)
	// CancelAgent asks for the end of a subagent, CancelCall ends the wish for a call's reply. They return when the wish is
	// durable, and do nothing to what is over.
	CancelAgent func(ctx context.Context, id ID, reason string) error
	CancelCall  func(ctx context.Context, id CallID, reason string) error
	// Drain waits for what Recover and the turns started, after every tree's context has ended.
	Drain []func()
}

// Folded is the input of a fold-back turn.
type Folded struct {
	Text       string
	CausedBy   []string // call ids and agent ids
	Generation int
	// Events returns the events that stand before turn.started, for the turn that folds. May be nil.
	Events func(turn TurnID) []Event
}

// The errors of a Manager's callers.
var (
	ErrSessionClosed = errors.New("the session is closed")
	ErrBusy          = errors.New("the session is busy")
	ErrQueueFull     = errors.New("too many queued turns")
	ErrKeyReused     = errors.New("the idempotency key was used with another input")
	ErrBadInput      = errors.New("bad input")
)

// closing is the state of a session that is being closed: it starts no turns.
const closing State = "closing"

// Manager runs the sessions of this process: it owns their trees, runs the turns of root sessions in order, sweeps due
// records, and is what every door calls. Its methods may be called from any goroutine.
type Manager struct {
	cfg   Config
	hooks Hooks
	log   *slog.Logger
	hub   hub
	tails tails

	ctx    context.Context //nolint:containedctx // the Manager's own lifetime
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	started bool
	stopped bool
	trees   map[ID]*owned
}

// owned is a tree this process owns, and the loop that runs its root session.
type owned struct {
	tree   *Tree
	cancel context.CancelCauseFunc
	ready  chan struct{} // closed once Recover has run
	nudge  chan struct{}
}

// NewManager returns a Manager that does nothing until [Manager.Start].
func NewManager(cfg Config) (*Manager, error) {
	if cfg.Store == nil {
		return nil, errors.New("session: Config.Store is required")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Owner = cmp.Or(cfg.Owner, "o_"+ulid.Make().String())
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, 15*time.Second)
	cfg.SweepEvery = cmp.Or(cfg.SweepEvery, 250*time.Millisecond)
	cfg.TurnTimeout = cmp.Or(cfg.TurnTimeout, 30*time.Minute)
	cfg.MaxQueued = cmp.Or(cfg.MaxQueued, 100)
	cfg.MaxInput = cmp.Or(cfg.MaxInput, 1<<20)
	cfg.Retention = cmp.Or(cfg.Retention, 30*24*time.Hour)
	for name, d := range map[string]time.Duration{
		"LeaseTTL": cfg.LeaseTTL, "SweepEvery": cfg.SweepEvery, "TurnTimeout": cfg.TurnTimeout, "Retention": cfg.Retention,
	} {
		if d < 0 {
			return nil, fmt.Errorf("session: Config.%s is %s; it must be positive", name, d)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	m := &Manager{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel, trees: make(map[ID]*owned)}
	if cfg.Registry != nil {
		if err := cfg.Registry.Register(newGauges(m)); err != nil {
			cancel(err)
			return nil, fmt.Errorf("session: %w", err)
		}
	}
	return m, nil
}

// Use sets the hooks. It panics after Start.
func (m *Manager) Use(h Hooks) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		panic("session: Manager.Use after Start")
	}
	m.hooks = h
}

// Store returns the store the Manager writes to.
func (m *Manager) Store() Store { return m.cfg.Store }

// Start takes up what the store says is unfinished and begins to run turns and to sweep. It returns when every such tree
// is owned and recovered.
func (m *Manager) Start(ctx context.Context) error {
	m.mu.Lock()
	if m.started || m.stopped {
		m.mu.Unlock()
		return errors.New("session: Manager.Start called twice, or after Stop")
	}
	if m.hooks.Runner == nil || m.hooks.Prepare == nil || m.hooks.Fold == nil || m.hooks.FoldFailed == nil {
		m.mu.Unlock()
		return errors.New("session: Manager.Start before Use: Runner, Prepare, Fold and FoldFailed are required")
	}
	m.started = true
	m.mu.Unlock()
	if err := m.scan(ctx); err != nil {
		return err
	}
	m.wg.Go(m.sweep)
	m.wg.Go(m.renew)
	return nil
}

// Stop ends all work without cancelling any: turns, children and calls stay as they are, for the next start. It waits
// until everything has returned or ctx ends, and releases the leases of what has. It may be called twice.
func (m *Manager) Stop(ctx context.Context) error {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.cancel(ErrStopping)
	done := make(chan struct{})
	var drained sync.WaitGroup // waited for below, unless the bound is hit: then the process ends
	drained.Go(func() {
		m.wg.Wait()
		for _, drain := range m.hooks.Drain {
			drain()
		}
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("stop sessions: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	trees := slices.Collect(maps.Values(m.trees))
	clear(m.trees)
	m.mu.Unlock()
	var errs []error
	for _, o := range trees {
		if err := m.cfg.Store.Release(ctx, o.tree.lease); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", o.tree.ID, err))
		}
	}
	return errors.Join(errs...)
}

// follow names the records that make a tree worth owning.
func (m *Manager) follow() []RecordQuery {
	all := []RecordQuery{
		{Kind: KindTurn, States: []State{StateQueued, StateRunning, StateSuspended}},
		{Kind: KindItem, States: []State{StateReady}},
		{Kind: KindSession, States: []State{closing}},
	}
	for kind, states := range m.hooks.Live {
		all = append(all, RecordQuery{Kind: kind, States: states})
	}
	return append(all, m.hooks.Follow...)
}

// scan owns every tree that has something to do and no owner.
func (m *Manager) scan(ctx context.Context) error {
	trees := make(map[ID]bool)
	var order []ID
	for _, q := range m.follow() {
		q.NoBody = true
		recs, err := m.cfg.Store.Records(ctx, q)
		if err != nil {
			return fmt.Errorf("look for unfinished work: %w", err)
		}
		for _, r := range recs {
			if !trees[r.Tree] {
				trees[r.Tree] = true
				order = append(order, r.Tree)
			}
		}
	}
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, takenUpAtOnce)
		errs  = make([]error, len(order))
	)
	for i, id := range order {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if _, err := m.own(ctx, id); err != nil && !errors.Is(err, ErrLeased) && !errors.Is(err, ErrNotFound) {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// takenUpAtOnce is how many trees are claimed at the same time: a store writes what comes together in one go.
const takenUpAtOnce = 16

// Tree returns the handle of a tree, owning it first if need be. It returns [ErrLeased] when another process owns it.
func (m *Manager) Tree(ctx context.Context, root ID) (*Tree, error) {
	o, err := m.own(ctx, root)
	if err != nil {
		return nil, err
	}
	select {
	case <-o.ready:
		return o.tree, nil
	case <-o.tree.ctx.Done():
		return nil, context.Cause(o.tree.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// own claims a tree and starts its loop, unless this process has it.
func (m *Manager) own(ctx context.Context, root ID) (*owned, error) {
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return nil, ErrStopping
	}
	if o, ok := m.trees[root]; ok {
		m.mu.Unlock()
		return o, nil
	}
	if !m.started {
		m.mu.Unlock()
		return nil, errors.New("session: the manager has not started")
	}
	tctx, cancel := context.WithCancelCause(m.ctx)
	o := &owned{
		tree:   &Tree{ID: root, Store: m.cfg.Store, ctx: tctx, publish: m.hub.publish},
		cancel: cancel, ready: make(chan struct{}), nudge: make(chan struct{}, 1),
	}
	m.trees[root] = o
	m.wg.Add(1) // Stop releases what is claimed here
	m.mu.Unlock()
	defer m.wg.Done()

	lease, err := m.cfg.Store.Claim(ctx, root, m.cfg.Owner, m.cfg.LeaseTTL)
	if err != nil {
		m.forget(o)
		cancel(err)
		return nil, fmt.Errorf("claim %s: %w", root, err)
	}
	o.tree.lease = lease
	for _, recover := range m.hooks.Recover {
		if err := recover(ctx, o.tree); err != nil {
			m.forget(o)
			cancel(err)
			m.release(ctx, lease)
			return nil, fmt.Errorf("recover %s: %w", root, err)
		}
	}
	m.mu.Lock()
	stopped := m.stopped
	if !stopped {
		m.wg.Go(func() { m.loop(o) })
	}
	m.mu.Unlock()
	if stopped {
		return nil, ErrStopping
	}
	close(o.ready)
	return o, nil
}

// release gives a claimed tree back that is not taken up after all. Left to run out, its lease would look like a crash.
func (m *Manager) release(ctx context.Context, l Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := m.cfg.Store.Release(ctx, l); err != nil {
		m.log.ErrorContext(ctx, "release a tree", "session", l.Tree, "err", err)
	}
}

func (m *Manager) forget(o *owned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trees[o.tree.ID] == o {
		delete(m.trees, o.tree.ID)
	}
}

// leased returns the trees whose lease is held: claimed and recovered.
func (m *Manager) leased() map[ID]*owned {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := make(map[ID]*owned, len(m.trees))
	for id, o := range m.trees {
		select {
		case <-o.ready:
			held[id] = o
		default:
		}
	}
	return held
}

// renew keeps the leases, drops trees whose lease is lost, and takes up trees whose owner has gone.
func (m *Manager) renew() {
	tick := time.NewTicker(m.cfg.LeaseTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		held := m.leased()
		leases := make([]Lease, 0, len(held))
		for _, o := range held {
			leases = append(leases, o.tree.lease)
		}
		lost, err := m.cfg.Store.Renew(m.ctx, leases, m.cfg.LeaseTTL)
		if err != nil {
			m.logFailure("renew leases", err)
			continue
		}
		for _, l := range lost {
			m.log.WarnContext(m.ctx, "tree lost to another process", "session", l.Tree)
			m.forget(held[l.Tree])
			held[l.Tree].cancel(ErrFenced)
		}
		if err := m.scan(m.ctx); err != nil {
			m.logFailure("look for unfinished work", err)
		}
	}
}

// sweep hands due records to the handlers of their kind.
func (m *Manager) sweep() {
	tick := time.NewTicker(m.cfg.SweepEvery)
	defer tick.Stop()
	type id struct {
		kind Kind
		key  string
	}
	const again = 2 * time.Second // a record that is still due after its handler is left alone that long
	seen := make(map[id]time.Time)
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		maps.DeleteFunc(seen, func(_ id, until time.Time) bool { return now.After(until) })
		due, err := m.cfg.Store.Records(m.ctx, RecordQuery{DueBefore: now, Limit: 1000 + len(seen)})
		if err != nil {
			m.logFailure("look for due records", err)
			continue
		}
		for _, r := range due {
			k := id{r.Kind, r.Key}
			if _, ok := seen[k]; ok {
				continue
			}
			seen[k] = now.Add(again)
			handle := m.hooks.Sweep[r.Kind]
			if r.Kind == KindSession {
				handle = m.expire
			}
			if handle == nil {
				continue
			}
			if err := handle(m.ctx, r); err != nil {
				m.logFailure("sweep a due record", err, "kind", r.Kind, "key", r.Key, "session", r.Tree)
			}
		}
	}
}

// expire deletes a closed tree whose retention is over.
func (m *Manager) expire(ctx context.Context, r Record) error {
	if r.State != StateClosed || r.Key != string(r.Tree) {
		return nil
	}
	m.mu.Lock()
	o := m.trees[r.Tree]
	m.mu.Unlock()
	if o != nil {
		m.forget(o)
		o.cancel(ErrSessionClosed)
	}
	return m.cfg.Store.Delete(ctx, r.Tree)
}

// logFailure logs an error unless it only says that the process stops.
func (m *Manager) logFailure(what string, err error, attrs ...any) {
	if m.ctx.Err() != nil || errors.Is(err, ErrStopping) {
		return
	}
	m.log.ErrorContext(m.ctx, what, append([]any{"err", err}, attrs...)...)
}

// OpenRequest opens a root session.
type OpenRequest struct {
	Agent     string // the agent's name in the config
	Title     string
	Principal string
}

// Open makes a root session and returns its id. Whether the agent exists is Prepare's to say, when a turn starts; the
// doors check before.
func (m *Manager) Open(ctx context.Context, r OpenRequest) (ID, error) {
	id := NewID()
	body := SessionBody{Agent: r.Agent, Title: r.Title, Principal: r.Principal, Created: time.Now().UTC()}
	_, err := m.cfg.Store.Commit(ctx, Batch{
		Tree: id, Create: true,
		Changes: []Change{
			Insert(KindSession, string(id), id, "", StateOpen, body, time.Time{}),
			Insert(KindAccess, string(id), id, "", principalState(r.Principal), nil, time.Time{}),
		},
		Events: []Event{Scope{Root: id, Agent: id}.Event(EventSessionCreated, SessionCreated{Agent: r.Agent, Title: r.Title})},
	})
	if err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	return id, nil
}

// OnBusy says what becomes of an input for a session that has a live turn.
type OnBusy string

// What a busy session does with an input. Defaults to queue.
const (
	BusyQueue  OnBusy = "queue"
	BusyReject OnBusy = "reject" // with [ErrBusy]
)

// SubmitRequest is one input for a root session.
type SubmitRequest struct {
	Session ID
	Input   string
	// Key makes the request idempotent: the same key, input and OnBusy give the same turn, the same key with others
	// [ErrKeyReused]. Empty: every request is a new turn.
	Key    string
	OnBusy OnBusy
	// Trace is the W3C traceparent of what submits. Empty: the turn begins a trace of its own.
	Trace string
}

// Submit queues a turn for a root session and returns its id once it is durable. Running turns and background work go on.
// The errors are [ErrNotFound], [ErrSessionClosed], [ErrBusy], [ErrQueueFull], [ErrKeyReused] and [ErrBadInput].
func (m *Manager) Submit(ctx context.Context, r SubmitRequest) (TurnID, error) {
	switch {
	case r.Input == "":
		return "", fmt.Errorf("%w: input is empty", ErrBadInput)
	case len(r.Input) > m.cfg.MaxInput:
		return "", fmt.Errorf("%w: input has %d bytes, at most %d are allowed", ErrBadInput, len(r.Input), m.cfg.MaxInput)
	case r.OnBusy != "" && r.OnBusy != BusyQueue && r.OnBusy != BusyReject:
		return "", fmt.Errorf("%w: onBusy is %q; queue and reject are allowed", ErrBadInput, r.OnBusy)
	}
	m.mu.Lock()
	stopped := m.stopped
	m.mu.Unlock()
	if stopped {
		return "", ErrStopping
	}
	rec, err := m.cfg.Store.Record(ctx, KindSession, string(r.Session))
	if err != nil {
		return "", fmt.Errorf("session %s: %w", r.Session, err)
	}
	if rec.Tree != r.Session {
		return "", fmt.Errorf("%w: %s is a subagent's session; inputs go to its root %s", ErrBadInput, r.Session, rec.Tree)
	}
	asked := r.Input
	if r.OnBusy == BusyReject {
		asked += "\x00" + string(BusyReject) // another request than one that may queue
	}
	sum := sha256.Sum256([]byte(asked))
	hash := hex.EncodeToString(sum[:8])
	id := NewTurnID()
	if r.Key != "" {
		id = TurnID("t_" + derive("turn "+r.Key, ToolCallID(string(r.Session)+":1")))
		if known, err := m.cfg.Store.Record(ctx, KindTurn, string(id)); err == nil {
			return id, sameInput(known, hash)
		} else if !errors.Is(err, ErrNotFound) {
			return "", fmt.Errorf("session %s: %w", r.Session, err)
		}
	}
	b := QueueTurn(Scope{Root: r.Session, Agent: r.Session, Turn: id, OriginTurn: id},
		TurnBody{Origin: OriginUser, Input: r.Input, InputHash: hash, Trace: r.Trace}, time.Time{})
	b.Tree = r.Session
	b.Checks = []Check{{Kind: KindSession, Key: string(r.Session), States: []State{StateOpen}}}
	b.Guards = []Guard{{Kind: KindTurn, Owner: r.Session, States: []State{StateQueued}, Max: m.cfg.MaxQueued}}
	if r.OnBusy == BusyReject {
		b.Guards = append(b.Guards, Guard{Kind: KindTurn, Owner: r.Session, States: []State{StateQueued, StateRunning, StateSuspended}, Max: 1})
	}
	if _, err := m.cfg.Store.Commit(ctx, b); err != nil {
		conflict, _ := errors.AsType[*ConflictError](err)
		guard, _ := errors.AsType[*GuardError](err)
		switch {
		case conflict != nil && conflict.Kind == KindSession:
			if known, err := m.cfg.Store.Record(ctx, KindTurn, string(id)); err == nil {
				return id, sameInput(known, hash) // the same request came first, and then the session was closed
			}
			return "", fmt.Errorf("session %s: %w", r.Session, ErrSessionClosed)
		case conflict != nil && conflict.Row != nil && conflict.Key == string(id):
			return id, sameInput(*conflict.Row, hash)
		case guard != nil && len(guard.Guard.States) > 1:
			return "", fmt.Errorf("session %s: %w", r.Session, ErrBusy)
		case guard != nil:
			return "", fmt.Errorf("session %s: %w", r.Session, ErrQueueFull)
		}
		return "", fmt.Errorf("submit to session %s: %w", r.Session, err)
	}
	m.nudge(ctx, r.Session)
	return id, nil
}

func sameInput(rec Record, hash string) error {
	var body TurnBody
	if err := rec.Decode(&body); err != nil {
		return err
	}
	if body.InputHash != hash {
		return ErrKeyReused
	}
	return nil
}

// nudge makes sure that somebody looks at the tree soon. A failure is no loss: the next scan looks again.
func (m *Manager) nudge(ctx context.Context, root ID) {
	o, err := m.own(context.WithoutCancel(ctx), root)
	if err != nil {
		if !errors.Is(err, ErrLeased) && !errors.Is(err, ErrStopping) {
			m.log.WarnContext(ctx, "tree not taken up now", "session", root, "err", err)
		}
		return
	}
	select {
	case o.nudge <- struct{}{}:
	default:
	}
}

// Cancel cancels one turn of a root session: a queued one at once, a started one as soon as its runner notices, with the
// reason given. Background work goes on. Cancelling a turn that has ended is a no-op.
func (m *Manager) Cancel(ctx context.Context, turn TurnID, reason string) error {
	for {
		rec, err := m.cfg.Store.Record(ctx, KindTurn, string(turn))
		if err != nil {
			return fmt.Errorf("turn %s: %w", turn, err)
		}
		var body TurnBody
		if err := rec.Decode(&body); err != nil {
			return err
		}
		b := Batch{Tree: rec.Tree}
		switch rec.State {
		case StateQueued:
			ended := TurnEnded{StopReason: "cancelled", Error: reason}
			body.Ended = &ended
			b.Changes = []Change{rec.Update(StateCancelled, body)}
			b.Events = []Event{Scope{Root: rec.Tree, Agent: rec.Owner, Parent: body.Parent, Turn: turn, OriginTurn: rec.Origin}.
				Event(EventTurnCancelled, ended)}
		case StateRunning, StateSuspended:
			if body.Cancel != "" {
				return nil
			}
			body.Cancel = cmp.Or(reason, "by request")
			b.Changes = []Change{rec.Update("", body)}
		default:
			return nil
		}
		_, err = m.cfg.Store.Commit(ctx, b)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cancel turn %s: %w", turn, err)
		}
		m.nudge(ctx, rec.Tree)
		return nil
	}
}

// Close closes a root session: its turns, children and calls are cancelled, and no input is taken any more. It returns
// when the wish is durable; session.closed tells the end. Closing twice is a no-op.
func (m *Manager) Close(ctx context.Context, root ID) error {
	wished, err := WishClosed(ctx, m.cfg.Store, root)
	if wished {
		m.nudge(ctx, root)
	}
	return err
}

// WishClosed makes it durable that a root session is to be closed, which the next [Manager] that takes the tree does. It
// reports whether the session was open.
func WishClosed(ctx context.Context, s Store, root ID) (wished bool, err error) {
	rec, err := s.Record(ctx, KindSession, string(root))
	if err != nil {
		return false, fmt.Errorf("session %s: %w", root, err)
	}
	if rec.Tree != root {
		return false, fmt.Errorf("%w: %s is a subagent's session; close its root %s", ErrBadInput, root, rec.Tree)
	}
	if rec.State != StateOpen {
		return false, nil
	}
	_, err = s.Commit(ctx, Batch{Tree: root, Changes: []Change{
		{Kind: KindSession, Key: string(root), From: []State{StateOpen}, To: closing},
	}})
	if err != nil && !errors.Is(err, ErrConflict) {
		return false, fmt.Errorf("close session %s: %w", root, err)
	}
	return true, nil
}

// Quiescent reports whether nothing of an origin turn (empty: of the whole session) is still on its way: no queued or
// started turn, no live subagent, no result that is neither consumed nor folded, no ready item, no open call.
func (m *Manager) Quiescent(ctx context.Context, root ID, origin TurnID) (bool, error) {
	// Work moves from calls and children to items to turns, and only a live turn makes new calls and children: looking in
	// that order, while no event is committed, misses nothing.
	kinds := slices.Sorted(maps.Keys(m.hooks.Live))
	kinds = append(kinds, KindItem, KindTurn)
	states := func(k Kind) []State {
		switch k {
		case KindItem:
			return []State{StateReady}
		case KindTurn:
			return []State{StateQueued, StateRunning, StateSuspended}
		}
		return m.hooks.Live[k]
	}
	for {
		before, err := m.cfg.Store.Tree(ctx, root)
		if err != nil {
			return false, fmt.Errorf("session %s: %w", root, err)
		}
		for _, kind := range kinds {
			recs, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: kind, Origin: origin, States: states(kind), Limit: 1, NoBody: true})
			if err != nil {
				return false, fmt.Errorf("session %s: %w", root, err)
			}
			if len(recs) > 0 {
				return false, nil
			}
		}
		after, err := m.cfg.Store.Tree(ctx, root)
		if err != nil {
			return false, fmt.Errorf("session %s: %w", root, err)
		}
		if after.HeadSeq == before.HeadSeq {
			return true, nil
		}
	}
}

// WaitQuiescent blocks until [Manager.Quiescent] is true, or ctx ends.
func (m *Manager) WaitQuiescent(ctx context.Context, root ID, origin TurnID) error {
	wake, stop := m.cfg.Store.Watch(root)
	defer stop()
	for {
		quiet, err := m.Quiescent(ctx, root, origin)
		if err != nil || quiet {
			return err
		}
		reread := time.NewTimer(time.Second)
		select {
		case <-wake:
		case <-reread.C:
		case <-ctx.Done():
			reread.Stop()
			return context.Cause(ctx)
		}
		reread.Stop()
	}
}
