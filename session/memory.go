package session

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Memory is a [Store] that lives and dies with the process. It starts no goroutine, so it can be used in a synctest
// bubble. It copies what it is given.
type Memory struct {
	mu      sync.Mutex
	closed  bool
	ordinal uint64 // of the last tree or record made
	trees   map[ID]*memoryTree
	records map[recordKey]*memoryRecord
	groups  map[groupKey]map[State]memorySet
	due     map[Kind]*dueSet

	wakes Wakes
}

var _ Store = (*Memory)(nil)

type memoryTree struct {
	info      TreeInfo
	ordinal   uint64
	events    eventLog
	seqs      map[eventKey][]uint64
	records   []*memoryRecord
	artifacts map[ArtifactKey]Artifact
}

// eventLog is a tree's events in blocks, so that a long log is never copied when it grows.
type eventLog [][]Event

const eventBlock = 256

func (l *eventLog) append(e Event) {
	if n := len(*l); n == 0 || len((*l)[n-1]) == eventBlock {
		*l = append(*l, nil)
	}
	last := &(*l)[len(*l)-1]
	*last = append(*last, e)
}

// at returns the event with a seq, counted from 1.
func (l eventLog) at(seq uint64) *Event { return &l[(seq-1)/eventBlock][(seq-1)%eventBlock] }

type memoryRecord struct {
	Record
	ordinal uint64
}

type memorySet map[*memoryRecord]struct{}

// dueSet is the records of a kind with a due time. None is due before first.
type dueSet struct {
	set   memorySet
	first time.Time
}

type recordKey struct {
	kind Kind
	key  string
}

// groupKey names the records of a kind, all of them or those of a tree or an owner.
type groupKey struct {
	kind  Kind
	tree  ID
	owner ID
}

// eventKey names the events of a tree by agent, by type, or by both.
type eventKey struct {
	agent ID
	typ   EventType
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{
		trees:   make(map[ID]*memoryTree),
		records: make(map[recordKey]*memoryRecord),
		groups:  make(map[groupKey]map[State]memorySet),
		due:     make(map[Kind]*dueSet),
	}
}

// Commit implements [Store].
func (m *Memory) Commit(ctx context.Context, b Batch) (Committed, error) {
	if err := b.Prepare(); err != nil {
		return Committed{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return Committed{}, err
	}
	tree, exists := m.trees[b.Tree]
	switch {
	case b.Create && exists:
		return Committed{}, fmt.Errorf("tree %s exists: %w", b.Tree, ErrConflict)
	case b.Create:
		tree = &memoryTree{
			info: TreeInfo{ID: b.Tree, Created: plainTime(time.Now())},
			seqs: make(map[eventKey][]uint64), artifacts: make(map[ArtifactKey]Artifact),
		}
	case !exists:
		return Committed{}, fmt.Errorf("tree %s: %w", b.Tree, ErrNotFound)
	}
	if b.Epoch != 0 && b.Epoch != tree.info.Epoch {
		return Committed{}, fmt.Errorf("tree %s is at epoch %d, the write is of %d: %w", b.Tree, tree.info.Epoch, b.Epoch, ErrFenced)
	}
	for _, c := range b.Checks {
		if err := c.Holds(b.Tree, m.rowLocked(c.Kind, c.Key)); err != nil {
			return Committed{}, err
		}
	}
	changed := make([]Record, len(b.Changes))
	for i, c := range b.Changes {
		rec, err := c.Apply(b.Tree, m.rowLocked(c.Kind, c.Key))
		if err != nil {
			return Committed{}, err
		}
		changed[i] = rec
	}
	for _, g := range b.Guards {
		if n := m.countLocked(b.Tree, g, changed); n > g.Max {
			return Committed{}, &GuardError{Guard: g, Count: n}
		}
	}
	if b.Create {
		m.ordinal++
		tree.ordinal = m.ordinal
		m.trees[b.Tree] = tree
	}
	for _, rec := range changed {
		m.putLocked(tree, rec)
	}
	for _, a := range b.Artifacts {
		if _, exists := tree.artifacts[a.Key]; !exists {
			tree.artifacts[a.Key] = a
		}
	}
	for i := range b.Events {
		e := &b.Events[i]
		tree.info.HeadSeq++
		e.Seq = tree.info.HeadSeq
		tree.events.append(*e)
		for _, k := range []eventKey{{e.AgentID, e.Type}, {e.AgentID, ""}, {"", e.Type}} {
			tree.seqs[k] = append(tree.seqs[k], e.Seq)
		}
	}
	m.wakes.Wake(b.Tree)
	return Committed{Events: b.Events, Records: changed}, nil
}

// Events implements [Store].
func (m *Memory) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return nil, err
	}
	tree, ok := m.trees[q.Tree]
	if !ok {
		return nil, fmt.Errorf("tree %s: %w", q.Tree, ErrNotFound)
	}
	limit := cmp.Or(q.Limit, 1000)
	if q.Agent == "" && len(q.Types) == 0 {
		first, last := min(q.After, tree.info.HeadSeq), tree.info.HeadSeq
		if last-first > uint64(limit) {
			if q.Last {
				first = last - uint64(limit)
			} else {
				last = first + uint64(limit)
			}
		}
		events := make([]Event, 0, last-first)
		for seq := first + 1; seq <= last; seq++ {
			events = append(events, *tree.events.at(seq))
		}
		return events, nil
	}
	types := q.Types
	if len(types) == 0 {
		types = []EventType{""}
	}
	var seqs []uint64
	for _, typ := range types {
		of := tree.seqs[eventKey{q.Agent, typ}]
		from, _ := slices.BinarySearch(of, after(q.After))
		of = of[from:]
		if q.Last {
			of = of[max(0, len(of)-limit):]
		} else {
			of = of[:min(limit, len(of))]
		}
		seqs = append(seqs, of...)
	}
	slices.Sort(seqs)
	seqs = slices.Compact(seqs) // a type may be named twice
	if q.Last {
		seqs = seqs[max(0, len(seqs)-limit):]
	} else {
		seqs = seqs[:min(limit, len(seqs))]
	}
	events := make([]Event, len(seqs))
	for i, seq := range seqs {
		events[i] = *tree.events.at(seq)
	}
	return events, nil
}

// Record implements [Store].
func (m *Memory) Record(ctx context.Context, kind Kind, key string) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return Record{}, err
	}
	rec, ok := m.records[recordKey{kind, key}]
	if !ok {
		return Record{}, fmt.Errorf("%s %s: %w", kind, key, ErrNotFound)
	}
	return rec.Record, nil
}

// Records implements [Store].
func (m *Memory) Records(ctx context.Context, q RecordQuery) ([]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return nil, err
	}
	kinds := []Kind{q.Kind}
	if q.Kind == "" {
		kinds = kinds[:0]
		for kind := range m.due {
			kinds = append(kinds, kind)
		}
	}
	var found []*memoryRecord
	for _, kind := range kinds {
		if q.DueBefore.IsZero() || q.Tree != "" {
			found = m.inStatesLocked(found, q, kind)
		} else {
			found = m.dueLocked(found, q, kind)
		}
	}
	slices.SortFunc(found, func(a, b *memoryRecord) int {
		if !q.DueBefore.IsZero() {
			if c := a.Due.Compare(b.Due); c != 0 {
				return c
			}
		}
		if q.NewestBefore != nil {
			if c := cmp.Compare(b.Tree, a.Tree); c != 0 {
				return c
			}
		}
		return cmp.Compare(a.ordinal, b.ordinal)
	})
	if q.Limit > 0 {
		found = found[:min(q.Limit, len(found))]
	}
	records := make([]Record, len(found))
	for i, rec := range found {
		records[i] = rec.Record
		if q.NoBody {
			records[i].Body = nil
		}
	}
	return records, nil
}

func (m *Memory) inStatesLocked(found []*memoryRecord, q RecordQuery, kind Kind) []*memoryRecord {
	group := groupKey{kind: kind, tree: q.Tree}
	if q.Owner != "" {
		group = groupKey{kind: kind, owner: q.Owner}
	}
	for state, set := range m.groups[group] {
		if len(q.States) > 0 && !slices.Contains(q.States, state) {
			continue
		}
		for rec := range set {
			if q.names(rec.Record) && (q.DueBefore.IsZero() || !rec.Due.IsZero() && rec.Due.Before(q.DueBefore)) {
				found = append(found, rec)
			}
		}
	}
	return found
}

func (m *Memory) dueLocked(found []*memoryRecord, q RecordQuery, kind Kind) []*memoryRecord {
	due := m.due[kind]
	if due == nil || len(due.set) == 0 || !due.first.Before(q.DueBefore) {
		return found
	}
	due.first = time.Time{}
	for rec := range due.set {
		if due.first.IsZero() || rec.Due.Before(due.first) {
			due.first = rec.Due
		}
		if rec.Due.Before(q.DueBefore) && q.names(rec.Record) {
			found = append(found, rec)
		}
	}
	return found
}

// Artifact implements [Store].
func (m *Memory) Artifact(ctx context.Context, tree ID, key ArtifactKey) (Artifact, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return Artifact{}, err
	}
	if t, ok := m.trees[tree]; ok {
		if a, ok := t.artifacts[key]; ok {
			return a, nil
		}
	}
	return Artifact{}, fmt.Errorf("artifact %s of tree %s: %w", key, tree, ErrNotFound)
}

// Tree implements [Store].
func (m *Memory) Tree(ctx context.Context, tree ID) (TreeInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return TreeInfo{}, err
	}
	t, ok := m.trees[tree]
	if !ok {
		return TreeInfo{}, fmt.Errorf("tree %s: %w", tree, ErrNotFound)
	}
	return t.infoAt(time.Now()), nil
}

// Trees implements [Store].
func (m *Memory) Trees(ctx context.Context, limit int) ([]TreeInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return nil, err
	}
	trees := make([]*memoryTree, 0, len(m.trees))
	for _, t := range m.trees {
		trees = append(trees, t)
	}
	slices.SortFunc(trees, func(a, b *memoryTree) int { return cmp.Compare(b.ordinal, a.ordinal) })
	if limit > 0 {
		trees = trees[:min(limit, len(trees))]
	}
	infos, now := make([]TreeInfo, len(trees)), time.Now()
	for i, t := range trees {
		infos[i] = t.infoAt(now)
	}
	return infos, nil
}

// Claim implements [Store].
func (m *Memory) Claim(ctx context.Context, tree ID, owner string, ttl time.Duration) (Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return Lease{}, err
	}
	if owner == "" {
		return Lease{}, fmt.Errorf("claim tree %s: no owner is named", tree)
	}
	t, ok := m.trees[tree]
	if !ok {
		return Lease{}, fmt.Errorf("claim tree %s: %w", tree, ErrNotFound)
	}
	now := time.Now()
	if t.info.Owner != "" && t.info.Owner != owner && now.Before(t.info.LeaseUntil) {
		return Lease{}, fmt.Errorf("claim tree %s, owned by %s: %w", tree, t.info.Owner, ErrLeased)
	}
	crashed := t.info.Owner != ""
	t.info.Owner, t.info.Epoch, t.info.LeaseUntil = owner, t.info.Epoch+1, plainTime(now.Add(ttl))
	return Lease{Tree: tree, Owner: owner, Epoch: t.info.Epoch, Until: t.info.LeaseUntil, Crashed: crashed}, nil
}

// Renew implements [Store].
func (m *Memory) Renew(ctx context.Context, leases []Lease, ttl time.Duration) ([]Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return nil, err
	}
	var lost []Lease
	until := plainTime(time.Now().Add(ttl))
	for _, l := range leases {
		if t, ok := m.trees[l.Tree]; ok && t.info.Epoch == l.Epoch && t.info.Owner != "" {
			t.info.LeaseUntil = until
		} else {
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// Release implements [Store].
func (m *Memory) Release(ctx context.Context, l Lease) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return err
	}
	if t, ok := m.trees[l.Tree]; ok && t.info.Epoch == l.Epoch {
		t.info.Owner, t.info.LeaseUntil = "", time.Time{}
	}
	return nil
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, tree ID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return err
	}
	t, ok := m.trees[tree]
	if !ok {
		return nil
	}
	for _, rec := range t.records {
		m.ungroupLocked(rec)
		delete(m.due[rec.Kind].set, rec)
		delete(m.records, recordKey{rec.Kind, rec.Key})
	}
	delete(m.trees, tree)
	m.wakes.Wake(tree)
	return nil
}

// Watch implements [Store].
func (m *Memory) Watch(tree ID) (<-chan struct{}, func()) { return m.wakes.Watch(tree) }

// Close implements [Store]. It wakes all watchers, who find the store closed.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.wakes.WakeAll()
	return nil
}

func (m *Memory) usableLocked(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// rowLocked returns a copy of a record, or nil.
func (m *Memory) rowLocked(kind Kind, key string) *Record {
	rec, ok := m.records[recordKey{kind, key}]
	if !ok {
		return nil
	}
	row := rec.Record
	return &row
}

// countLocked counts a guard's records as they are once the changed ones are put.
func (m *Memory) countLocked(tree ID, g Guard, changed []Record) int {
	group := groupKey{kind: g.Kind, owner: g.Owner}
	if g.Owner == "" {
		group.tree = tree
	}
	n := 0
	for state, set := range m.groups[group] {
		if !slices.Contains(g.States, state) {
			continue
		}
		for rec := range set {
			if g.Counts(tree, rec.Record) {
				n++
			}
		}
	}
	for _, r := range changed {
		if old := m.records[recordKey{r.Kind, r.Key}]; old != nil && g.Counts(tree, old.Record) {
			n--
		}
		if g.Counts(tree, r) {
			n++
		}
	}
	return n
}

// putLocked writes a record as it is now.
func (m *Memory) putLocked(tree *memoryTree, r Record) {
	rec, ok := m.records[recordKey{r.Kind, r.Key}]
	switch {
	case !ok:
		m.ordinal++
		rec = &memoryRecord{Record: r, ordinal: m.ordinal}
		m.records[recordKey{r.Kind, r.Key}] = rec
		tree.records = append(tree.records, rec)
	case r.State == rec.State && r.Due.Equal(rec.Due):
		rec.Record = r // it stays where it is
		return
	default:
		m.ungroupLocked(rec)
		rec.Record = r
	}
	for _, k := range rec.groups() {
		states := m.groups[k]
		if states == nil {
			states = make(map[State]memorySet)
			m.groups[k] = states
		}
		if states[rec.State] == nil {
			states[rec.State] = make(memorySet)
		}
		states[rec.State][rec] = struct{}{}
	}
	due := m.due[r.Kind]
	if due == nil {
		due = &dueSet{set: make(memorySet)}
		m.due[r.Kind] = due
	}
	if r.Due.IsZero() {
		delete(due.set, rec)
		return
	}
	if len(due.set) == 0 || r.Due.Before(due.first) {
		due.first = r.Due
	}
	due.set[rec] = struct{}{}
}

func (m *Memory) ungroupLocked(rec *memoryRecord) {
	for _, k := range rec.groups() {
		set := m.groups[k][rec.State]
		delete(set, rec)
		if len(set) == 0 {
			delete(m.groups[k], rec.State)
		}
		if len(m.groups[k]) == 0 {
			delete(m.groups, k)
		}
	}
}

func (r *memoryRecord) groups() [3]groupKey {
	return [3]groupKey{{kind: r.Kind}, {kind: r.Kind, tree: r.Tree}, {kind: r.Kind, owner: r.Owner}}
}

func (t *memoryTree) infoAt(now time.Time) TreeInfo {
	info := t.info
	info.Crashed = info.Owner != "" && !now.Before(info.LeaseUntil)
	return info
}

// names reports whether the query names the record, its due time apart.
func (q RecordQuery) names(r Record) bool {
	return (q.Tree == "" || r.Tree == q.Tree) && (q.Owner == "" || r.Owner == q.Owner) &&
		(q.NewestBefore == nil || *q.NewestBefore == "" || r.Tree < *q.NewestBefore) &&
		(q.Origin == "" || r.Origin == q.Origin) && (len(q.States) == 0 || slices.Contains(q.States, r.State))
}

// after returns the first seq behind another.
func after(seq uint64) uint64 {
	if seq == math.MaxUint64 {
		return seq
	}
	return seq + 1
}
