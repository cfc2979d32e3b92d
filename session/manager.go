package session

import (
	"context"
	"log/slog"
	"time"
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
	// Recover takes up what a tree left running when it is claimed. It must not block for long; what it starts lives
	// until the tree's context ends, and Drain waits for it.
	Recover []func(ctx context.Context, t *Tree) error
	// Close ends a closing session's background work: its calls and its children.
	Close []func(ctx context.Context, t *Tree) error
	// Live are the states, by kind, that keep an origin turn from being quiescent; turns and items need not be named.
	Live map[Kind][]State
	// Follow are the states, by kind, that make a tree worth owning though nothing runs; Live states need not be named.
	Follow map[Kind][]State
	// Drain waits for what Recover and the turns started, after every tree's context has ended.
	Drain []func()
}

// Folded is the input of a fold-back turn.
type Folded struct {
	Text       string
	CausedBy   []string // call ids and agent ids
	Generation int
	// Events returns the events that stand before turn.started, for the turn that folds.
	Events func(turn TurnID) []Event
}
