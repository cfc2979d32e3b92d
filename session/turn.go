package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Origin says what a turn is for.
type Origin string

// The origins of a turn.
const (
	OriginUser     Origin = "user"     // a user's input
	OriginFoldback Origin = "foldback" // items that came home
	OriginTask     Origin = "task"     // a subagent's prompt
)

// The states of turn and child records. Queued, running and suspended ones are live; a session has at most one turn that
// is running or suspended.
const (
	StateQueued    State = "queued"
	StateRunning   State = "running"
	StateSuspended State = "suspended"
	StateCompleted State = "completed"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
)

// StartedStates are the states of a turn that has started and not ended.
var StartedStates = []State{StateRunning, StateSuspended}

// The states of a session record.
const (
	StateOpen   State = "open"
	StateClosed State = "closed"
)

// The states of an item record: ready until a fold-back turn's start binds it.
const (
	StateReady State = "ready"
	StateBound State = "bound"
)

// SessionBody is the body of a session record.
type SessionBody struct {
	Agent     string    `json:"agent"`            // name in the config's list of agents
	Parent    ID        `json:"parent,omitempty"` // empty for a root
	Depth     int       `json:"depth,omitempty"`  // 0 for a root
	Title     string    `json:"title,omitempty"`
	Principal string    `json:"principal,omitempty"` // whose session it is
	Created   time.Time `json:"created"`
	// Tools are the names of the parent's tools when a child was spawned: what a child may have at most.
	Tools []string `json:"tools,omitempty"`
}

// Setup is what a turn runs with. It is fixed when the turn starts, and a continuation after a crash keeps it, but for
// tools that no longer exist or are no longer allowed.
type Setup struct {
	Agent        string   `json:"agent"`
	Model        string   `json:"model"`
	Instructions string   `json:"instructions"`
	Tools        []string `json:"tools"` // names, in the order shown to the model
}

// TurnBody is the body of a turn record.
type TurnBody struct {
	Root       ID         `json:"root"`
	Parent     ID         `json:"parent,omitempty"`
	Origin     Origin     `json:"origin"`
	CausedBy   []string   `json:"causedBy,omitempty"`
	Generation int        `json:"generation"`
	Input      string     `json:"input,omitempty"` // until it starts; then it is the turn's first message
	InputHash  string     `json:"inputHash,omitempty"`
	Items      []string   `json:"items,omitempty"` // keys of the items a fold-back turn bound
	Setup      Setup      `json:"setup"`
	Attempt    int        `json:"attempt"`
	Crashes    int        `json:"crashes,omitempty"`  // in a row, without a new message or result
	Progress   uint64     `json:"progress,omitempty"` // seq of the agent's last message or result when it was last continued
	Cancel     string     `json:"cancel,omitempty"`   // why somebody asked to cancel it
	Deadline   time.Time  `json:"deadline,omitzero"`  // absolute end of the turn; zero: none of its own
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	Ended      *TurnEnded `json:"ended,omitempty"`
	Trace      string     `json:"trace,omitempty"` // W3C traceparent of what caused the turn
	Links      []string   `json:"links,omitempty"` // those of what it folds back
}

// TurnRunner runs one turn until it ends. agentloop.Loop implements it.
type TurnRunner interface {
	// RunTurn runs the turn and says how it ended; whoever called it commits the end. A returned error means the turn has
	// not ended: the process stops ([ErrStopping]), the tree was fenced, the turn was ended by somebody else
	// ([ErrTurnEnded]), or the store failed. It returns only when everything it started has returned. When ctx is
	// cancelled with a cause of [*TurnCancelledError] the outcome is cancelled; with a *[TurnTimeoutError] it is failed.
	RunTurn(ctx context.Context, t *Turn) (Outcome, error)
}

// Outcome is how a turn ended.
type Outcome struct {
	State State // StateCompleted, StateFailed or StateCancelled
	TurnEnded
}

// The reasons a turn stops other than by itself.
var (
	ErrStopping  = errors.New("the process is stopping")
	ErrTurnEnded = errors.New("the turn has ended")
)

// TurnCancelledError is the cause of a context whose turn somebody cancelled.
type TurnCancelledError struct{ Reason string }

func (e *TurnCancelledError) Error() string { return "cancelled: " + e.Reason }

// TurnTimeoutError is the cause of a context whose turn ran out of time.
type TurnTimeoutError struct{ After time.Duration }

func (e *TurnTimeoutError) Error() string { return fmt.Sprintf("timed out after %s", e.After) }

// Parker lends what a turn holds while all it has started only waits. The subagent runner gives one to its turns.
type Parker interface {
	// Park says that every unfinished tool call of the turn only waits. It doesn't block for long.
	Park(ctx context.Context, reason string) error
	// Unpark blocks until the turn may work again. It is a no-op on a turn that isn't parked.
	Unpark(ctx context.Context) error
}

// Turn is a started turn in the hands of its runner.
type Turn struct {
	Scope // of the turn: root, agent, parent, turn and origin turn
	Body  TurnBody
	// Resumed says that an earlier attempt may have left messages and tool calls in the log.
	Resumed bool
	// Parker may be nil.
	Parker Parker

	tree *Tree
}

// NewTurn returns the handle of a started turn's record.
func NewTurn(tree *Tree, rec Record) (*Turn, error) {
	t := &Turn{tree: tree}
	if err := rec.Decode(&t.Body); err != nil {
		return nil, err
	}
	t.Scope = Scope{Root: tree.ID, Agent: rec.Owner, Parent: t.Body.Parent, Turn: TurnID(rec.Key), OriginTurn: rec.Origin}
	return t, nil
}

// Tree returns the tree the turn belongs to.
func (t *Turn) Tree() *Tree { return t.tree }

// Subagent reports whether the turn belongs to a subagent session. It is read from the record, never from what a caller
// says.
func (t *Turn) Subagent() bool { return t.Agent != t.Root }

// Commit makes an owner write that holds only while the turn is started; else the error is [ErrTurnEnded].
func (t *Turn) Commit(ctx context.Context, b Batch) (Committed, error) {
	b.Checks = append(slices.Clip(b.Checks), Check{Kind: KindTurn, Key: string(t.Turn), States: StartedStates})
	done, err := t.tree.Commit(ctx, b)
	if conflict, ok := errors.AsType[*ConflictError](err); ok && conflict.Kind == KindTurn && conflict.Key == string(t.Turn) &&
		(conflict.Row == nil || !slices.Contains(StartedStates, conflict.Row.State)) {
		return done, fmt.Errorf("turn %s: %w", t.Turn, ErrTurnEnded)
	}
	return done, err
}

// Tree is an owned tree: the right to make owner writes until its context ends.
type Tree struct {
	ID    ID
	Store Store

	lease   Lease
	ctx     context.Context //nolint:containedctx // the owner's own lifetime
	publish func(told)
	head    atomic.Uint64 // the highest seq committed through the handle
}

// NewTree returns the handle of a tree whose lease is held. ctx ends when the ownership does; publish may be nil.
func NewTree(ctx context.Context, store Store, l Lease, publish func(Event)) *Tree {
	t := &Tree{ID: l.Tree, Store: store, lease: l, ctx: ctx}
	if publish != nil {
		t.publish = func(e told) { publish(e.Event) }
	}
	return t
}

// Context ends when the tree is no longer owned; its cause says why.
func (t *Tree) Context() context.Context { return t.ctx }

// Crashed reports whether the owner before this one went without releasing the tree: it crashed, or was lost.
func (t *Tree) Crashed() bool { return t.lease.Crashed }

// Commit makes an owner write: it carries the lease's epoch.
func (t *Tree) Commit(ctx context.Context, b Batch) (Committed, error) {
	b.Tree, b.Epoch = t.ID, t.lease.Epoch
	done, err := t.Store.Commit(ctx, b)
	if n := len(done.Events); n > 0 && err == nil {
		for last, seen := done.Events[n-1].Seq, t.head.Load(); seen < last && !t.head.CompareAndSwap(seen, last); {
			seen = t.head.Load()
		}
	}
	return done, err
}

// Publish tells subscribers of an ephemeral event. It never blocks; a slow subscriber misses it.
func (t *Tree) Publish(e Event) {
	if t.publish != nil {
		t.publish(told{Event: e, after: t.head.Load()})
	}
}
