package sessiontest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"orchestrator/session"
)

// testBehavesLikeTheModel runs random operations on the store and on a model that is too simple to be wrong, and
// compares what they say.
func testBehavesLikeTheModel(t *testing.T, s *suite) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{s: s, ids: []session.ID{session.NewID(), session.NewID(), session.NewID()}, trees: make(map[session.ID]*modelTree)}
		defer m.clear(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.compare,
			"commit":  m.commit,
			"commit2": m.commit, // as likely as three others
			"commit3": m.commit,
			"create":  m.create,
			"claim":   m.claim,
			"renew":   m.renew,
			"release": m.release,
			"delete":  m.delete,
			"read":    m.read,
		})
	})
}

// modelTree is a tree; its records and events are in slices, in their order.
type modelTree struct {
	owner     string
	expired   bool
	epoch     uint64
	events    []session.Event
	artifacts map[session.ArtifactKey]string
}

// machine runs the same operations on a store and on the model.
type machine struct {
	s       *suite
	ids     []session.ID
	trees   map[session.ID]*modelTree
	order   []session.ID // of creation
	records []session.Record
	leases  []session.Lease
}

var (
	modelKinds  = rapid.SampledFrom([]session.Kind{"call", "turn"})
	modelKeys   = rapid.SampledFrom([]string{"1", "2", "3", "4"})
	modelOwners = rapid.SampledFrom([]session.ID{agentA, agentB})
	modelStates = rapid.SampledFrom([]session.State{"open", "waiting", "done"})
	modelTypes  = rapid.SampledFrom([]session.EventType{session.EventToolStarted, session.EventToolCompleted, session.EventTurnStarted})
	modelFiles  = rapid.SampledFrom([]session.ArtifactKey{"x_1", "x_2"})
	modelStart  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	modelTimes  = rapid.Custom(func(t *rapid.T) time.Time {
		if n := rapid.IntRange(0, 5).Draw(t, "due"); n > 0 {
			return modelStart.Add(time.Duration(n) * time.Hour)
		}
		return time.Time{}
	})
	modelRevs = rapid.Custom(func(t *rapid.T) uint64 { return rapid.SampledFrom([]uint64{0, 0, 0, 1, 2}).Draw(t, "rev") })
)

func (m *machine) id(t *rapid.T) session.ID { return rapid.SampledFrom(m.ids).Draw(t, "tree") }

func (m *machine) find(kind session.Kind, key string) int {
	return slices.IndexFunc(m.records, func(r session.Record) bool { return r.Kind == kind && r.Key == key })
}

// fits says whether a record is as a check or change wants it.
func (m *machine) fits(tree session.ID, kind session.Kind, key string, states []session.State, rev uint64) bool {
	i := m.find(kind, key)
	if len(states) == 0 {
		return i < 0
	}
	return i >= 0 && m.records[i].Tree == tree && slices.Contains(states, m.records[i].State) && (rev == 0 || m.records[i].Rev == rev)
}

// drawBatch draws a batch that may or may not go through.
func (m *machine) drawBatch(t *rapid.T) session.Batch {
	b := session.Batch{Tree: m.id(t)}
	if rapid.IntRange(0, 3).Draw(t, "owner's") == 0 {
		b.Epoch = uint64(rapid.IntRange(1, 3).Draw(t, "epoch"))
	}
	states := func() []session.State { return rapid.SliceOfNDistinct(modelStates, 1, 2, rapid.ID).Draw(t, "states") }
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		c := session.Change{
			Kind: modelKinds.Draw(t, "kind"), Key: modelKeys.Draw(t, "key"), Owner: modelOwners.Draw(t, "owner"), Origin: "t_1",
			To: modelStates.Draw(t, "to"), Body: number(rapid.IntRange(0, 99).Draw(t, "body")), Due: modelTimes.Draw(t, "due"),
			SetBody: rapid.Bool().Draw(t, "set body"), SetDue: rapid.Bool().Draw(t, "set due"),
		}
		exists := m.find(c.Kind, c.Key) >= 0
		if rapid.IntRange(0, 9).Draw(t, "wrong") == 0 {
			exists = !exists
		}
		if exists {
			c.From, c.Rev = states(), modelRevs.Draw(t, "rev")
			if rapid.IntRange(0, 3).Draw(t, "state stays") == 0 {
				c.To = ""
			}
		}
		if !slices.ContainsFunc(b.Changes, func(o session.Change) bool { return o.Kind == c.Kind && o.Key == c.Key }) {
			b.Changes = append(b.Changes, c)
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "check") == 0 {
		c := session.Check{Kind: modelKinds.Draw(t, "kind"), Key: modelKeys.Draw(t, "key")}
		if m.find(c.Kind, c.Key) >= 0 {
			c.States, c.Rev = states(), modelRevs.Draw(t, "rev")
		}
		b.Checks = append(b.Checks, c)
	}
	if rapid.Bool().Draw(t, "guard") {
		g := session.Guard{Kind: modelKinds.Draw(t, "kind"), States: states(), Max: rapid.IntRange(0, 3).Draw(t, "max")}
		if rapid.Bool().Draw(t, "by owner") {
			g.Owner = modelOwners.Draw(t, "owner")
		}
		b.Guards = append(b.Guards, g)
	}
	for range rapid.IntRange(0, 3).Draw(t, "events") {
		e := event(modelOwners.Draw(t, "agent"), modelTypes.Draw(t, "type"))
		b.Events = append(b.Events, e)
	}
	if rapid.IntRange(0, 4).Draw(t, "file") == 0 {
		b.Artifacts = append(b.Artifacts, session.Artifact{Key: modelFiles.Draw(t, "key"), Data: number(rapid.IntRange(0, 99).Draw(t, "data"))})
	}
	return b
}

func (m *machine) create(t *rapid.T) {
	b := m.drawBatch(t)
	b.Create = true
	m.run(t, b)
}

func (m *machine) commit(t *rapid.T) { m.run(t, m.drawBatch(t)) }

func (m *machine) run(t *rapid.T, b session.Batch) {
	want := m.apply(b)
	done, err := m.s.commit(b)
	if !errors.Is(err, want) {
		t.Fatalf("Commit(%+v) = %v, want %v", b, err, want)
	}
	if err != nil {
		return
	}
	tree := m.trees[b.Tree]
	if d := diff(tree.events[len(tree.events)-len(b.Events):], done.Events); d != "" {
		t.Fatalf("committed events (-want +got):\n%s", d)
	}
	var records []session.Record
	for _, c := range b.Changes {
		records = append(records, m.records[m.find(c.Kind, c.Key)])
	}
	if d := diff(records, done.Records); d != "" {
		t.Fatalf("committed records (-want +got):\n%s", d)
	}
}

// apply commits a batch to the model and returns what is wrong with it.
func (m *machine) apply(b session.Batch) error {
	tree := m.trees[b.Tree]
	if tree == nil && !b.Create {
		return session.ErrNotFound
	}
	if tree != nil && b.Create {
		return session.ErrConflict
	}
	if tree == nil {
		tree = &modelTree{artifacts: make(map[session.ArtifactKey]string)}
	}
	if b.Epoch != 0 && b.Epoch != tree.epoch {
		return session.ErrFenced
	}
	for _, c := range b.Checks {
		if !m.fits(b.Tree, c.Kind, c.Key, c.States, c.Rev) {
			return session.ErrConflict
		}
	}
	for _, c := range b.Changes {
		if !m.fits(b.Tree, c.Kind, c.Key, c.From, c.Rev) {
			return session.ErrConflict
		}
	}
	was := m.records
	m.records = slices.Clone(was)
	for _, c := range b.Changes {
		i := m.find(c.Kind, c.Key)
		if i < 0 {
			m.records = append(m.records, session.Record{
				Tree: b.Tree, Kind: c.Kind, Key: c.Key, Owner: c.Owner, Origin: c.Origin, State: c.To, Body: c.Body, Due: c.Due, Rev: 1,
			})
			continue
		}
		r := &m.records[i]
		r.Rev++
		if c.To != "" {
			r.State = c.To
		}
		if c.SetBody {
			r.Body = c.Body
		}
		if c.SetDue {
			r.Due = c.Due
		}
	}
	for _, g := range b.Guards {
		if len(selectRecords(m.records, session.RecordQuery{Tree: b.Tree, Kind: g.Kind, Owner: g.Owner, States: g.States})) > g.Max {
			m.records = was
			return session.ErrGuard
		}
	}
	if b.Create {
		m.trees[b.Tree] = tree
		m.order = append(m.order, b.Tree)
	}
	for _, e := range b.Events {
		e.SessionID, e.Root, e.Seq = b.Tree, false, uint64(len(tree.events)+1)
		tree.events = append(tree.events, e)
	}
	for _, a := range b.Artifacts {
		if _, exists := tree.artifacts[a.Key]; !exists {
			tree.artifacts[a.Key] = string(a.Data)
		}
	}
	return nil
}

func (m *machine) claim(t *rapid.T) {
	id, owner := m.id(t), rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "owner")
	ttl := rapid.SampledFrom([]time.Duration{time.Hour, -time.Hour}).Draw(t, "ttl")
	lease, err := m.s.Claim(m.s.t.Context(), id, owner, ttl)
	tree := m.trees[id]
	switch {
	case tree == nil:
		m.want(t, "Claim()", session.ErrNotFound, err)
	case tree.owner != "" && tree.owner != owner && !tree.expired:
		m.want(t, "Claim()", session.ErrLeased, err)
	default:
		m.want(t, "Claim()", nil, err)
		want := session.Lease{Tree: id, Owner: owner, Epoch: tree.epoch + 1, Until: lease.Until, Crashed: tree.owner != ""}
		if d := diff(want, lease); d != "" {
			t.Fatalf("lease (-want +got):\n%s", d)
		}
		tree.owner, tree.epoch, tree.expired = owner, tree.epoch+1, ttl < 0
		m.leases = append(m.leases, lease)
	}
}

func (m *machine) lost(l session.Lease) bool {
	tree := m.trees[l.Tree]
	return tree == nil || tree.epoch != l.Epoch || tree.owner == ""
}

func (m *machine) renew(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip()
	}
	leases := rapid.SliceOfN(rapid.SampledFrom(m.leases), 1, 3).Draw(t, "leases")
	lost, err := m.s.Renew(m.s.t.Context(), leases, time.Hour)
	m.want(t, "Renew()", nil, err)
	var want []session.Lease
	for _, l := range leases {
		if m.lost(l) {
			want = append(want, l)
		} else {
			m.trees[l.Tree].expired = false
		}
	}
	if d := diff(want, lost); d != "" {
		t.Fatalf("lost leases (-want +got):\n%s", d)
	}
}

func (m *machine) release(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip()
	}
	l := rapid.SampledFrom(m.leases).Draw(t, "lease")
	m.want(t, "Release()", nil, m.s.Release(m.s.t.Context(), l))
	if !m.lost(l) {
		m.trees[l.Tree].owner = ""
	}
}

func (m *machine) delete(t *rapid.T) {
	id := m.id(t)
	m.want(t, "Delete()", nil, m.s.Delete(m.s.t.Context(), id))
	delete(m.trees, id)
	m.order = slices.DeleteFunc(m.order, func(o session.ID) bool { return o == id })
	m.records = slices.DeleteFunc(slices.Clone(m.records), func(r session.Record) bool { return r.Tree == id })
	// A tree of the same name starts at epoch 0 again, so its old leases would be confused with new ones.
	m.leases = slices.DeleteFunc(m.leases, func(l session.Lease) bool { return l.Tree == id })
}

// read asks both for what a random query names.
func (m *machine) read(t *rapid.T) {
	q := session.EventQuery{
		Tree: m.id(t), After: uint64(rapid.IntRange(0, 10).Draw(t, "after")), Limit: rapid.IntRange(0, 4).Draw(t, "limit"),
		Types: rapid.SliceOfN(modelTypes, 0, 2).Draw(t, "types"), Last: rapid.Bool().Draw(t, "last"),
	}
	if rapid.Bool().Draw(t, "by agent") {
		q.Agent = modelOwners.Draw(t, "agent")
	}
	events, err := m.s.Events(m.s.t.Context(), q)
	if tree := m.trees[q.Tree]; tree == nil {
		m.want(t, "Events()", session.ErrNotFound, err)
	} else if d := diff(selectEvents(tree.events, q), events); err != nil || d != "" {
		t.Fatalf("Events(%+v): %v (-want +got):\n%s", q, err, d)
	}
	r := session.RecordQuery{
		States: rapid.SliceOfN(modelStates, 0, 2).Draw(t, "states"), DueBefore: modelTimes.Draw(t, "before"),
		Limit: rapid.IntRange(0, 4).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "by tree") {
		r.Tree = m.id(t)
	}
	if rapid.Bool().Draw(t, "by kind") {
		r.Kind = modelKinds.Draw(t, "kind")
	}
	if rapid.Bool().Draw(t, "by owner") {
		r.Owner = modelOwners.Draw(t, "owner")
	}
	records, err := m.s.Records(m.s.t.Context(), r)
	if d := diff(selectRecords(m.records, r), records); err != nil || d != "" {
		t.Fatalf("Records(%+v): %v (-want +got):\n%s", r, err, d)
	}
}

// compare compares all there is.
func (m *machine) compare(t *rapid.T) {
	ctx := m.s.t.Context()
	records, err := m.s.Records(ctx, session.RecordQuery{})
	if d := diff(m.records, records); err != nil || d != "" {
		t.Fatalf("all records: %v (-want +got):\n%s", err, d)
	}
	trees, err := m.s.Trees(ctx, 0)
	m.want(t, "Trees()", nil, err)
	var ids []session.ID
	for _, info := range trees {
		ids = append(ids, info.ID)
	}
	slices.Reverse(ids)
	if d := diff(m.order, ids); d != "" {
		t.Fatalf("trees (-want +got):\n%s", d)
	}
	for _, info := range trees {
		tree := m.trees[info.ID]
		want := session.TreeInfo{
			ID: info.ID, Created: info.Created, HeadSeq: uint64(len(tree.events)), Owner: tree.owner, Epoch: tree.epoch,
			LeaseUntil: info.LeaseUntil, Crashed: tree.owner != "" && tree.expired,
		}
		if d := diff(want, info); d != "" {
			t.Fatalf("tree (-want +got):\n%s", d)
		}
		events, err := m.s.Events(ctx, session.EventQuery{Tree: info.ID})
		if d := diff(tree.events, events); err != nil || d != "" {
			t.Fatalf("events: %v (-want +got):\n%s", err, d)
		}
		for _, key := range []session.ArtifactKey{"x_1", "x_2"} {
			a, err := m.s.Artifact(ctx, info.ID, key)
			data, exists := tree.artifacts[key]
			if exists != (err == nil) || string(a.Data) != data {
				t.Fatalf("artifact %s is %q, %v, want %q", key, a.Data, err, data)
			}
		}
	}
}

func (m *machine) want(t *rapid.T, what string, want, got error) {
	if !errors.Is(got, want) {
		t.Fatalf("%s = %v, want %v", what, got, want)
	}
}

// clear empties the store for the next run.
func (m *machine) clear(t *rapid.T) {
	for _, id := range m.ids {
		if err := m.s.Delete(m.s.t.Context(), id); err != nil {
			t.Fatal(fmt.Errorf("delete tree %s: %w", id, err))
		}
	}
}
