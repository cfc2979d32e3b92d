package sessiontest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"orchestrator/session"
)

func testEnvelopeComesBackWhole(t *testing.T, s *suite) {
	tree := s.newTree()
	at := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.FixedZone("somewhere", 3600))
	child := session.Event{
		ID: "e_1", Type: session.EventSubagentStarted, Time: at, SessionID: "s_wrong", AgentID: agentA, Root: true, ParentAgentID: tree,
		TurnID: "t_1", OriginTurn: "t_0", ToolCallID: "s_a:1", Data: json.RawMessage(`{"text":"grüße <&> \u0000"}`), Seq: 77,
	}
	bare := session.Event{ID: "e_2", Type: session.EventSessionClosed, AgentID: tree}
	done := s.mustCommit(session.Batch{Tree: tree, Events: []session.Event{child, bare}}).Events
	child.Seq, child.SessionID, child.Root, child.Time = 1, tree, false, at.UTC()
	bare.Seq, bare.SessionID, bare.Root = 2, tree, true
	want := []session.Event{child, bare}
	equal(t, "events as committed", want, done)
	equal(t, "events as read", want, s.events(session.EventQuery{Tree: tree}))
}

func testEventsArePagedAndFiltered(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	agents := []session.ID{tree, agentA, agentB}
	types := []session.EventType{session.EventToolStarted, session.EventToolCompleted, session.EventMessageCompleted, session.EventTurnStarted}
	var all []session.Event
	for n := 0; n < 1200; {
		var b, elsewhere session.Batch
		b.Tree, elsewhere.Tree = tree, other
		for range 100 {
			e := event(agents[n%3], types[n%4])
			e.Data = number(n)
			b.Events = append(b.Events, e)
			elsewhere.Events = append(elsewhere.Events, event(agents[n%3], types[n%4]))
			n++
		}
		all = append(all, s.mustCommit(b).Events...)
		s.mustCommit(elsewhere)
	}
	for _, q := range []session.EventQuery{
		{}, {Limit: 10}, {After: 5, Limit: 10}, {After: 1195}, {After: 1200}, {After: 5000}, {After: math.MaxUint64}, {Limit: 5000},
		{Last: true}, {Last: true, Limit: 3}, {Last: true, After: 1198, Limit: 5},
		{Agent: agentA}, {Agent: agentA, Limit: 7}, {Agent: agentA, After: 600, Limit: 7}, {Agent: agentA, Last: true, Limit: 7},
		{Agent: "s_none"}, {Types: types[:1], Limit: 7}, {Types: types[1:3], After: 300, Limit: 7},
		{Types: types[1:3], Last: true, Limit: 7}, {Types: []session.EventType{"no.such"}},
		{Types: []session.EventType{types[0], types[0], "no.such"}, Limit: 7},
		{Agent: agentB, Types: types[:1]}, {Agent: agentB, Types: types[:2], Limit: 7}, {Agent: agentB, Types: types, Last: true, Limit: 7},
		{Agent: agentB, Types: []session.EventType{types[2], types[0], types[2]}, Last: true, Limit: 7, After: 1100},
		{Agent: agentB, Types: types[1:2], Last: true, Limit: 1}, {Agent: agentB, Types: []session.EventType{"no.such"}, Last: true, Limit: 1},
	} {
		q.Tree = tree
		equal(t, fmt.Sprintf("events of %+v", q), selectEvents(all, q), s.events(q))
	}
	_, err := s.Events(t.Context(), session.EventQuery{Tree: "s_none"})
	isErr(t, "Events() of a tree that isn't there", session.ErrNotFound, err)
}

// selectEvents is what a query means, said plainly.
func selectEvents(all []session.Event, q session.EventQuery) []session.Event {
	var found []session.Event
	for _, e := range all {
		if e.Seq > q.After && (q.Agent == "" || e.AgentID == q.Agent) && (len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) {
			found = append(found, e)
		}
	}
	limit := q.Limit
	if limit == 0 {
		limit = 1000
	}
	if len(found) <= limit {
		return found
	}
	if q.Last {
		return found[len(found)-limit:]
	}
	return found[:limit]
}

func testRecordsComeInTheOrderOfInsertion(t *testing.T, s *suite) {
	trees := []session.ID{s.newTree(), s.newTree()}
	owners, states := []session.ID{agentA, agentB, "s_c"}, []session.State{"open", "waiting", "done"}
	kinds, origins := []session.Kind{testKind, session.KindItem}, []session.TurnID{"t_1", "t_2"}
	var all []session.Record
	for n := range 60 {
		// Keys fall as insertion goes on, so that an order by key would show.
		c := session.Insert(kinds[n%2], fmt.Sprintf("k%03d", 999-n), owners[n%3], origins[n/2%2], states[n/3%3], n, time.Time{})
		all = append(all, s.mustCommit(session.Batch{Tree: trees[n/4%2], Changes: []session.Change{c}}).Records...)
	}
	for n := 0; n < 60; n += 7 { // a change keeps a record's place
		r := all[n]
		all[n] = s.mustCommit(session.Batch{Tree: r.Tree, Changes: []session.Change{r.Update(states[n%3], nil)}}).Records[0]
	}
	for _, q := range []session.RecordQuery{
		{}, {Limit: 5}, {Tree: trees[1]}, {Tree: trees[1], Limit: 5}, {Kind: testKind}, {Tree: trees[0], Kind: testKind},
		{Kind: testKind, States: states[:1]}, {Kind: testKind, States: states[:2], Limit: 4}, {States: states[1:]},
		{Tree: trees[0], Kind: testKind, States: states[:2]}, {Owner: agentA}, {Owner: agentA, Kind: session.KindItem},
		{Owner: agentB, Kind: testKind, States: states[:1]}, {Tree: trees[0], Owner: agentB, Kind: testKind, States: states},
		{Origin: "t_1"}, {Tree: trees[0], Kind: testKind, Origin: "t_2", States: states[:2]}, {States: []session.State{"open", "open"}},
		{Kind: "none"}, {Tree: "s_none"}, {Owner: "s_none"}, {States: []session.State{"none"}}, {Kind: testKind, States: []session.State{"none"}},
		{NoBody: true}, {Tree: trees[0], Kind: testKind, States: states[:2], Limit: 3, NoBody: true},
		{Kind: testKind, States: states[:1], NewestBefore: new(session.ID)}, {NewestBefore: &trees[1]}, {NewestBefore: &trees[0]},
		{Kind: testKind, States: states[:2], NewestBefore: &trees[1], Limit: 4}, {Kind: testKind, NewestBefore: new(session.ID), Limit: 7},
	} {
		equal(t, fmt.Sprintf("records of %+v", q), selectRecords(all, q), s.records(q))
	}
	_, err := s.Record(t.Context(), testKind, "none")
	isErr(t, "Record() of one that isn't there", session.ErrNotFound, err)
	_, err = s.Record(t.Context(), "none", all[0].Key)
	isErr(t, "Record() of another kind", session.ErrNotFound, err)
}

// selectRecords is what a query means, said plainly; all are in the order of insertion.
func selectRecords(all []session.Record, q session.RecordQuery) []session.Record {
	var found []session.Record
	for _, r := range all {
		if (q.Tree == "" || r.Tree == q.Tree) && (q.Kind == "" || r.Kind == q.Kind) && (q.Owner == "" || r.Owner == q.Owner) &&
			(q.Origin == "" || r.Origin == q.Origin) && (len(q.States) == 0 || slices.Contains(q.States, r.State)) &&
			(q.NewestBefore == nil || *q.NewestBefore == "" || r.Tree < *q.NewestBefore) &&
			(q.DueBefore.IsZero() || !r.Due.IsZero() && r.Due.Before(q.DueBefore)) {
			if q.NoBody {
				r.Body = nil
			}
			found = append(found, r)
		}
	}
	if !q.DueBefore.IsZero() {
		slices.SortStableFunc(found, func(a, b session.Record) int { return a.Due.Compare(b.Due) })
	}
	if q.NewestBefore != nil {
		slices.SortStableFunc(found, func(a, b session.Record) int { return cmp.Compare(b.Tree, a.Tree) })
	}
	if q.Limit > 0 && len(found) > q.Limit {
		return found[:q.Limit]
	}
	return found
}

func testDueRecordsComeInTheOrderOfDue(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	base := time.Now().UTC().Round(0)
	after := func(n time.Duration) time.Time { return base.Add(n * time.Second) }
	put := func(tree session.ID, key string, kind session.Kind, due time.Time) session.Record {
		t.Helper()
		return s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{
			session.Insert(kind, key, agentA, "", "open", nil, due),
		}}).Records[0]
	}
	never := put(tree, "never", testKind, time.Time{})
	put(tree, "30", testKind, after(30))
	put(tree, "10", testKind, after(10))
	moves := put(other, "20", testKind, after(20))
	put(tree, "item", session.KindItem, after(15))
	put(tree, "10 again", testKind, after(10))
	put(tree, "in a thousand years", testKind, base.AddDate(1000, 0, 0))
	due := func(q session.RecordQuery, want ...string) {
		t.Helper()
		equal(t, fmt.Sprintf("keys of %+v", q), want, s.keys(q))
	}
	due(session.RecordQuery{Kind: testKind, DueBefore: after(10)})
	due(session.RecordQuery{Kind: testKind, DueBefore: after(10).Add(1)}, "10", "10 again")
	due(session.RecordQuery{Kind: testKind, DueBefore: after(60)}, "10", "10 again", "20", "30")
	due(session.RecordQuery{DueBefore: after(60)}, "10", "10 again", "item", "20", "30")
	due(session.RecordQuery{DueBefore: after(60), Limit: 3}, "10", "10 again", "item")
	due(session.RecordQuery{Tree: other, DueBefore: after(60)}, "20")
	due(session.RecordQuery{DueBefore: after(60), States: []session.State{"done"}})
	change := func(r session.Record, due time.Time) session.Record {
		t.Helper()
		return s.mustCommit(session.Batch{Tree: r.Tree, Changes: []session.Change{r.Update("", nil).At(due)}}).Records[0]
	}
	moves = change(moves, after(5))
	due(session.RecordQuery{Kind: testKind, DueBefore: after(12)}, "20", "10", "10 again")
	change(moves, time.Time{})
	due(session.RecordQuery{Kind: testKind, DueBefore: after(12)}, "10", "10 again")
	change(never, after(1))
	due(session.RecordQuery{Kind: testKind, DueBefore: after(12)}, "never", "10", "10 again")
}

func testTreesComeNewestFirst(t *testing.T, s *suite) {
	equal(t, "trees of an empty store", 0, len(s.trees(0)))
	before := time.Now()
	var want []session.TreeInfo
	for range 5 {
		id := s.newTree()
		s.mustCommit(session.Batch{Tree: id, Events: []session.Event{event(id, session.EventSessionCreated), event(id, session.EventSessionState)}})
		info := s.tree(id)
		if info.Created.Before(before.Add(-time.Millisecond)) || info.Created.After(time.Now().Add(time.Millisecond)) {
			t.Errorf("a tree made now was created at %v", info.Created)
		}
		equal(t, "a new tree", session.TreeInfo{ID: id, Created: info.Created, HeadSeq: 2}, info)
		want = append([]session.TreeInfo{info}, want...)
	}
	equal(t, "all trees", want, s.trees(0))
	equal(t, "two trees", want[:2], s.trees(2))
	equal(t, "more than there are", want, s.trees(50))
	_, err := s.Tree(t.Context(), "s_none")
	isErr(t, "Tree() of one that isn't there", session.ErrNotFound, err)
}

func (s *suite) trees(limit int) []session.TreeInfo {
	s.t.Helper()
	trees, err := s.Trees(s.t.Context(), limit)
	if err != nil {
		s.t.Fatalf("Trees(%d) = %v", limit, err)
	}
	return trees
}
