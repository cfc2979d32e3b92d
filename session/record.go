package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Kind says what a record is. The store knows nothing of a kind but its name; the package that owns the kind gives its
// states their meaning.
type Kind string

// The kinds. Session, turn and access belong to this package, item to this package and foldback, call to tracker, child and batch
// to subagent.
const (
	KindSession Kind = "session" // key: session id
	KindTurn    Kind = "turn"    // key: turn id; owner: its session
	KindItem    Kind = "item"    // key: call:<id>, overdue:<id>, auth:<id>, child:<id>:<run>; owner: the session it goes to
	KindCall    Kind = "call"    // key: call id; owner: the session that called
	KindChild   Kind = "child"   // key: child's session id; owner: its parent
	KindBatch   Kind = "batch"   // key: turn id; owner: the turn's session
	KindAccess  Kind = "access"  // key: root session id; its state says whose session it is
)

// State is the state of a record.
type State string

// Record is one row whose State changes only by compare-and-set.
type Record struct {
	Tree   ID
	Kind   Kind
	Key    string // unique for its kind over the whole store
	Owner  ID     // what guards count by
	Origin TurnID // the user turn at the head of the chain
	State  State
	Body   json.RawMessage
	Due    time.Time // when the sweeper looks at it; zero: never
	Rev    uint64    // 1 when inserted, one more with each change
}

// Decode unmarshals the record's body into v, naming the record when it doesn't fit.
func (r Record) Decode(v any) error {
	if err := json.Unmarshal(r.Body, v); err != nil {
		return fmt.Errorf("decode %s record %s: %w", r.Kind, r.Key, err)
	}
	return nil
}

// Change is one compare-and-set on a record.
type Change struct {
	Kind   Kind
	Key    string
	Owner  ID      // taken on insert
	Origin TurnID  // taken on insert
	From   []State // the states it may be in; empty: the record must not exist, and is inserted
	Rev    uint64  // when not zero, the revision it must have
	To     State   // empty: the state stays
	Body   json.RawMessage
	Due    time.Time // with SetDue
	// SetBody and SetDue say that Body and Due replace what is there (an insert always takes them).
	SetBody bool
	SetDue  bool
}

// Insert returns the change that makes a record.
func Insert(kind Kind, key string, owner ID, origin TurnID, state State, body any, due time.Time) Change {
	return Change{Kind: kind, Key: key, Owner: owner, Origin: origin, To: state, Body: mustJSON(body), Due: due, SetBody: true, SetDue: true}
}

// Update returns the change of a record as it was read: it fails if the record has changed since. A nil body keeps the
// body. Due is kept: see [Change.At].
func (r Record) Update(to State, body any) Change {
	c := Change{Kind: r.Kind, Key: r.Key, From: []State{r.State}, Rev: r.Rev, To: to}
	if body != nil {
		c.Body, c.SetBody = mustJSON(body), true
	}
	return c
}

// At returns the change with the record's due time set; the zero time takes it off the sweeper's list.
func (c Change) At(due time.Time) Change {
	c.Due, c.SetDue = due, true
	return c
}

// Check is a precondition on a record the batch doesn't change.
type Check struct {
	Kind   Kind
	Key    string
	States []State // it must be in one of these; empty: it must not exist
	Rev    uint64  // when not zero, the revision it must have
}

// Guard bounds a count: with the batch's changes made, at most Max records of the kind and owner are in one of the
// states. An empty Owner counts over the tree.
type Guard struct {
	Kind   Kind
	Owner  ID
	States []State
	Max    int
}

// Artifact is a body too large for the log, or a file, scoped to its tree. Putting an artifact whose key exists is a
// no-op: keys are fresh, or derived from the tool call that made them.
type Artifact struct {
	Key       ArtifactKey
	Name      string
	MediaType string
	Size      int // of Data; filled by the store
	Data      []byte
}

// Batch is one write: all of it happens, or none.
type Batch struct {
	Tree      ID
	Create    bool   // the tree is new
	Epoch     uint64 // the owner's; 0 is an inbox write, which any process may make
	Checks    []Check
	Changes   []Change
	Guards    []Guard
	Events    []Event // durable ones; Seq and SessionID are set by the store
	Artifacts []Artifact
}

// Add appends what another batch holds, but for its tree and epoch.
func (b *Batch) Add(o Batch) {
	b.Checks = append(b.Checks, o.Checks...)
	b.Changes = append(b.Changes, o.Changes...)
	b.Guards = append(b.Guards, o.Guards...)
	b.Events = append(b.Events, o.Events...)
	b.Artifacts = append(b.Artifacts, o.Artifacts...)
}

// Committed is what a commit did: the events with their seq, the changed records as they are now, in the batch's order.
type Committed struct {
	Events  []Event
	Records []Record
}

// The errors of a store.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
	ErrGuard    = errors.New("guard")
	ErrFenced   = errors.New("another process owns the tree")
	ErrLeased   = errors.New("the tree is leased")
	ErrClosed   = errors.New("the store is closed")
	ErrFull     = errors.New("no space is left for the database") // nothing of the write was written; reads go on
)

// ConflictError says which precondition failed, with the row as it is (nil: it doesn't exist). It is [ErrConflict].
type ConflictError struct {
	Kind Kind
	Key  string
	Row  *Record
}

func (e *ConflictError) Error() string {
	if e.Row == nil {
		return fmt.Sprintf("%s %s doesn't exist", e.Kind, e.Key)
	}
	return fmt.Sprintf("%s %s is %s at revision %d", e.Kind, e.Key, e.Row.State, e.Row.Rev)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// GuardError says which guard failed. It is [ErrGuard].
type GuardError struct {
	Guard Guard
	Count int
}

func (e *GuardError) Error() string {
	return fmt.Sprintf("%d %s records of %s are %v, %d are allowed", e.Count, e.Guard.Kind, e.Guard.Owner, e.Guard.States, e.Guard.Max)
}

// Is makes errors.Is(err, ErrGuard) true.
func (e *GuardError) Is(target error) bool { return target == ErrGuard }
