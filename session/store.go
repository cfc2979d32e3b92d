package session

import (
	"context"
	"time"
)

// Store holds the logs, the records and the artifacts of all trees. Memory and store/sqlite implement it and pass
// sessiontest. Its methods may be called from any goroutine. What they return may be shared and isn't changed in place.
// After Close every method returns [ErrClosed].
type Store interface {
	// Commit makes one write: all of the batch or nothing. Checks, changes and guards are judged against the state before
	// the batch (guards: after its changes). The errors are *[ConflictError], *[GuardError], [ErrFenced] (the batch carries
	// an epoch other than the tree's), [ErrNotFound] (no such tree), or the database's. It returns when the write is as
	// durable as the store makes it; when the error is the context's, nothing was written. A batch that [Batch.Prepare]
	// refuses is refused. Creating a tree that exists is [ErrConflict]; a record of another tree is one that conflicts.
	Commit(ctx context.Context, b Batch) (Committed, error)

	// Events returns up to q.Limit durable events of a tree in the order of seq, or [ErrNotFound] (no such tree).
	Events(ctx context.Context, q EventQuery) ([]Event, error)

	// Record returns a record by kind and key, or [ErrNotFound].
	Record(ctx context.Context, kind Kind, key string) (Record, error)

	// Records returns the records a query names, in the order they were inserted; with DueBefore, in the order of Due; with
	// NewestBefore, in descending order of their tree.
	Records(ctx context.Context, q RecordQuery) ([]Record, error)

	// Artifact returns an artifact of a tree with its data, or [ErrNotFound].
	Artifact(ctx context.Context, tree ID, key ArtifactKey) (Artifact, error)

	// Tree returns a tree's state, or [ErrNotFound].
	Tree(ctx context.Context, tree ID) (TreeInfo, error)

	// Trees returns all trees, newest first; limit 0 is no limit.
	Trees(ctx context.Context, limit int) ([]TreeInfo, error)

	// Claim makes owner the tree's owner until ttl from now, by the store's clock, and raises its epoch. It returns
	// [ErrLeased] while another owner's lease runs. Claiming one's own tree raises the epoch too.
	Claim(ctx context.Context, tree ID, owner string, ttl time.Duration) (Lease, error)

	// Renew prolongs leases and returns those that are lost: their epoch is no longer the tree's.
	Renew(ctx context.Context, leases []Lease, ttl time.Duration) (lost []Lease, err error)

	// Release ends a lease now, so that the next claim need not wait. A lost lease is no error.
	Release(ctx context.Context, l Lease) error

	// Delete removes a tree with all it holds. A missing tree is no error.
	Delete(ctx context.Context, tree ID) error

	// Watch returns a channel that gets a value soon after a commit to the tree (empty: to any tree). It is a hint: wakes
	// are coalesced, and may be lost when another process commits; the reader rereads at least every second. stop frees
	// it and may be called twice.
	Watch(tree ID) (wake <-chan struct{}, stop func())

	// Close waits for commits in flight and frees everything. It may be called twice.
	Close() error
}

// EventQuery names events of one tree.
type EventQuery struct {
	Tree  ID
	After uint64      // only events with a greater seq
	Agent ID          // when set, only events with this agentId
	Types []EventType // when set, only these
	Limit int         // 0: 1,000
	Last  bool        // the last Limit events that match rather than the first, still in ascending order
}

// RecordQuery names records. Zero fields don't restrict.
type RecordQuery struct {
	Tree      ID
	Kind      Kind
	Owner     ID
	Origin    TurnID
	States    []State
	DueBefore time.Time // only records with a due time before it
	Limit     int
	// NewestBefore, when not nil, names only records of trees with a smaller id (empty: of all trees), in descending order of
	// the tree's id, which is the newest first.
	NewestBefore *ID
	// NoBody leaves the records' bodies out, for who only counts or wants keys and states.
	NoBody bool
}

// TreeInfo is what a store knows of a tree.
type TreeInfo struct {
	ID         ID
	Created    time.Time
	HeadSeq    uint64
	Owner      string // empty when released
	Epoch      uint64
	LeaseUntil time.Time
	// Crashed says that the last owner didn't release the tree: its lease ran out, or the database was opened again, and
	// nobody has claimed the tree since.
	Crashed bool
}

// Lease is the right to make owner writes to a tree. Fencing compares the epoch only, never the time.
type Lease struct {
	Tree  ID
	Owner string
	Epoch uint64
	Until time.Time
	// Crashed says that the lease before this one was not released, be it another owner's or one's own.
	Crashed bool
}
