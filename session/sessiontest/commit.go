package sessiontest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"orchestrator/session"
)

func testRefusedCommitLeavesNothing(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	rec := s.put(tree, "k", agentA, "open")
	s.put(tree, "taken", agentA, "open")
	s.claim(tree, "p", time.Minute)
	const artifact session.ArtifactKey = "x_1"
	good := session.Batch{
		Tree:      tree,
		Changes:   []session.Change{insert("new", agentA, "open"), rec.Update("done", "body").At(time.Now())},
		Events:    []session.Event{event(agentA, session.EventToolStarted)},
		Artifacts: []session.Artifact{{Key: artifact, Data: []byte("data")}},
	}
	before := s.contents(tree, artifact)
	for name, refused := range map[string]struct {
		spoil func(b *session.Batch)
		want  error
	}{
		"check of a state": {func(b *session.Batch) {
			b.Checks = []session.Check{{Kind: testKind, Key: "taken", States: []session.State{"done"}}}
		}, session.ErrConflict},
		"check of a revision": {func(b *session.Batch) {
			b.Checks = []session.Check{{Kind: testKind, Key: "taken", States: []session.State{"open"}, Rev: 2}}
		}, session.ErrConflict},
		"check that there is none": {func(b *session.Batch) { b.Checks = []session.Check{{Kind: testKind, Key: "taken"}} }, session.ErrConflict},
		"check of one that isn't there": {func(b *session.Batch) {
			b.Checks = []session.Check{{Kind: testKind, Key: "none", States: []session.State{"open"}}}
		}, session.ErrConflict},
		"insert of one that is there": {func(b *session.Batch) { b.Changes = append(b.Changes, insert("taken", agentA, "open")) }, session.ErrConflict},
		"change of one that isn't there": {func(b *session.Batch) {
			b.Changes = append(b.Changes, session.Change{Kind: testKind, Key: "none", From: []session.State{"open"}, To: "done"})
		}, session.ErrConflict},
		"change from another state": {func(b *session.Batch) {
			b.Changes = append(b.Changes, session.Change{Kind: testKind, Key: "taken", From: []session.State{"done"}, To: "open"})
		}, session.ErrConflict},
		"guard": {func(b *session.Batch) {
			b.Guards = []session.Guard{{Kind: testKind, Owner: agentA, States: []session.State{"open"}, Max: 1}}
		}, session.ErrGuard},
		"epoch":     {func(b *session.Batch) { b.Epoch = 7 }, session.ErrFenced},
		"no tree":   {func(b *session.Batch) { b.Tree = "s_none" }, session.ErrNotFound},
		"same tree": {func(b *session.Batch) { b.Create = true }, session.ErrConflict},
		"new tree, but a taken key": {func(b *session.Batch) {
			b.Tree, b.Create, b.Changes = "s_new", true, []session.Change{insert("taken", agentA, "open")}
		}, session.ErrConflict},
	} {
		b := good
		refused.spoil(&b)
		done, err := s.commit(b)
		isErr(t, name+": Commit()", refused.want, err)
		equal(t, name+": what a refused commit returns", session.Committed{}, done)
		equal(t, name+": the tree after a refused commit", before, s.contents(tree, artifact))
	}
	for _, id := range []session.ID{"s_none", "s_new"} {
		_, err := s.Tree(t.Context(), id)
		isErr(t, "Tree() of a tree whose creation was refused", session.ErrNotFound, err)
	}
	equal(t, "another tree", 0, len(s.records(session.RecordQuery{Tree: other})))
	if _, err := s.commit(good); err != nil {
		t.Errorf("Commit() of what is left when nothing is wrong = %v", err)
	}
}

func testBadBatchIsRefused(t *testing.T, s *suite) {
	tree := s.newTree()
	for name, b := range map[string]session.Batch{
		"no tree":           {Changes: []session.Change{insert("k", agentA, "open")}},
		"no kind":           {Tree: tree, Changes: []session.Change{{Key: "k", To: "open"}}},
		"no key":            {Tree: tree, Changes: []session.Change{{Kind: testKind, To: "open"}}},
		"no state":          {Tree: tree, Changes: []session.Change{{Kind: testKind, Key: "k"}}},
		"one change twice":  {Tree: tree, Changes: []session.Change{insert("k", agentA, "open"), insert("k", agentA, "open")}},
		"ephemeral event":   {Tree: tree, Events: []session.Event{event(agentA, session.EventMessageDelta)}},
		"event of nobody":   {Tree: tree, Events: []session.Event{event("", session.EventToolStarted)}},
		"event of no type":  {Tree: tree, Events: []session.Event{event(agentA, "")}},
		"event without id":  {Tree: tree, Events: []session.Event{{Type: session.EventToolStarted, AgentID: agentA}}},
		"artifact, no key":  {Tree: tree, Artifacts: []session.Artifact{{Data: []byte("x")}}},
		"second thing is.":  {Tree: tree, Changes: []session.Change{insert("k", agentA, "open"), {Kind: testKind}}},
		"event, but change": {Tree: tree, Events: []session.Event{event(agentA, session.EventToolStarted)}, Changes: []session.Change{{Kind: testKind}}},
	} {
		if _, err := s.commit(b); err == nil {
			t.Errorf("%s: Commit() = nil, want an error", name)
		}
	}
	got := s.contents(tree)
	equal(t, "records", 0, len(got.Records))
	equal(t, "events", 0, len(got.Events))
}

func testConflictCarriesTheRow(t *testing.T, s *suite) {
	tree := s.newTree()
	rec := s.put(tree, "k", agentA, "open")
	now := s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{rec.Update("done", map[string]int{"n": 1})}}).Records[0]
	for name, b := range map[string]session.Batch{
		"stale revision": {Changes: []session.Change{rec.Update("open", nil)}},
		"right state, stale revision": {Changes: []session.Change{
			{Kind: testKind, Key: "k", From: []session.State{"done"}, Rev: 1, To: "open"},
		}},
		"other state": {Changes: []session.Change{{Kind: testKind, Key: "k", From: []session.State{"open", "waiting"}, To: "done"}}},
		"insert":      {Changes: []session.Change{insert("k", agentA, "open")}},
		"check":       {Checks: []session.Check{{Kind: testKind, Key: "k", States: []session.State{"open"}}}},
		"no such":     {Checks: []session.Check{{Kind: testKind, Key: "none", States: []session.State{"open"}}}},
	} {
		b.Tree = tree
		_, err := s.commit(b)
		want := &session.ConflictError{Kind: testKind, Key: "k", Row: &now}
		if name == "no such" {
			want.Key, want.Row = "none", nil
		}
		got, ok := errors.AsType[*session.ConflictError](err)
		if !ok {
			t.Errorf("%s: Commit() = %v, want a conflict", name, err)
			continue
		}
		equal(t, name+": the conflict", want, got)
	}
}

func testRecordOfAnotherTreeConflicts(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	rec := s.put(other, "k", agentA, "open")
	for name, b := range map[string]session.Batch{
		"update": {Changes: []session.Change{rec.Update("done", nil)}},
		"insert": {Changes: []session.Change{insert("k", agentA, "open")}},
		"check":  {Checks: []session.Check{{Kind: testKind, Key: "k", States: []session.State{"open"}}}},
	} {
		b.Tree = tree
		_, err := s.commit(b)
		isErr(t, name+": Commit()", session.ErrConflict, err)
	}
	equal(t, "the record", []session.Record{rec}, s.records(session.RecordQuery{Kind: testKind}))
	same := session.Insert(session.KindItem, "k", agentA, "", "ready", nil, time.Time{})
	if _, err := s.commit(session.Batch{Tree: tree, Changes: []session.Change{same}}); err != nil {
		t.Errorf("Commit() of the same key of another kind = %v", err)
	}
}

func testInsertTakesAllUpdateKeepsTheRest(t *testing.T, s *suite) {
	tree := s.newTree()
	due := time.Now().Add(time.Hour)
	step := func(name string, c session.Change, want session.Record) session.Record {
		t.Helper()
		got := s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{c}}).Records[0]
		equal(t, name, want, got)
		read, err := s.Record(t.Context(), testKind, "k")
		if err != nil {
			t.Fatalf("%s: Record() = %v", name, err)
		}
		equal(t, name+", read", want, read)
		return got
	}
	want := session.Record{
		Tree: tree, Kind: testKind, Key: "k", Owner: agentA, Origin: "t_1", State: "open", Body: json.RawMessage(`{"a":1}`),
		Due: due.UTC().Round(0), Rev: 1,
	}
	// An insert takes body and due whether or not it says so.
	rec := step("insert", session.Change{
		Kind: testKind, Key: "k", Owner: agentA, Origin: "t_1", To: "open", Body: json.RawMessage(`{"a":1}`), Due: due,
	}, want)
	want.State, want.Rev = "done", 2
	rec = step("state alone", rec.Update("done", nil), want)
	want.Body, want.Rev = json.RawMessage(`{"a":2}`), 3
	rec = step("body alone", rec.Update("", map[string]int{"a": 2}), want)
	want.Due, want.Rev = due.Add(time.Hour).UTC().Round(0), 4
	rec = step("due alone", rec.Update("", nil).At(due.Add(time.Hour)), want)
	want.Due, want.Rev = time.Time{}, 5
	step("no due", rec.Update("", nil).At(time.Time{}), want)
	want.Rev = 6
	step("owner and origin stay", session.Change{
		Kind: testKind, Key: "k", Owner: agentB, Origin: "t_2", From: []session.State{"done"}, To: "done",
	}, want)
	want.Body, want.Rev = nil, 7
	step("no body", session.Change{Kind: testKind, Key: "k", From: []session.State{"done"}, SetBody: true}, want)
}

func testChecksAreJudgedBeforeTheChanges(t *testing.T, s *suite) {
	tree := s.newTree()
	rec := s.put(tree, "k", agentA, "open")
	_, err := s.commit(session.Batch{
		Tree: tree,
		Checks: []session.Check{
			{Kind: testKind, Key: "k", States: []session.State{"open"}, Rev: 1}, {Kind: testKind, Key: "new"},
			{Kind: testKind, Key: "k", States: []session.State{"waiting", "open"}},
		},
		Changes: []session.Change{rec.Update("done", nil), insert("new", agentA, "open")},
	})
	if err != nil {
		t.Errorf("Commit() = %v", err)
	}
}

func testGuardsCountAfterTheChanges(t *testing.T, s *suite) {
	tree := s.newTree()
	guard := session.Guard{Kind: testKind, Owner: agentA, States: []session.State{"waiting", "open"}, Max: 2}
	try := func(changes ...session.Change) error {
		_, err := s.commit(session.Batch{Tree: tree, Changes: changes, Guards: []session.Guard{guard}})
		return err
	}
	if err := try(insert("1", agentA, "open"), insert("2", agentA, "waiting")); err != nil {
		t.Fatalf("two inserts: %v", err)
	}
	got, ok := errors.AsType[*session.GuardError](try(insert("3", agentA, "open")))
	if !ok {
		t.Fatal("a third is let in")
	}
	equal(t, "the guard's error", &session.GuardError{Guard: guard, Count: 3}, got)
	if err := try(insert("4", agentA, "done")); err != nil {
		t.Errorf("one in another state: %v", err)
	}
	one := s.records(session.RecordQuery{Kind: testKind})[0]
	if err := try(one.Update("waiting", nil)); err != nil {
		t.Errorf("one that goes from a counted state to another: %v", err)
	}
	one.Rev, one.State = 2, "waiting"
	if err := try(one.Update("done", nil), insert("5", agentA, "open")); err != nil {
		t.Errorf("one that takes another's place: %v", err)
	}
	guard.States = []session.State{"open", "open"}
	guard.Max = 1
	if err := try(); err != nil {
		t.Errorf("a state that is named twice is counted twice: %v", err)
	}
	guard.Max = 0
	isErr(t, "a guard without a change", session.ErrGuard, try())
	guard.States = nil
	if err := try(); err != nil {
		t.Errorf("a guard without states: %v", err)
	}
}

func testGuardsCountByOwnerOrTree(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	s.put(tree, "1", agentA, "open")
	s.put(tree, "2", agentB, "open")
	s.put(other, "3", agentA, "open")
	s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{session.Insert(session.KindItem, "1", agentA, "", "open", nil, time.Time{})}})
	for owner, count := range map[session.ID]int{agentA: 1, agentB: 1, "s_c": 0, "": 2} {
		guard := session.Guard{Kind: testKind, Owner: owner, States: []session.State{"open"}, Max: count}
		if _, err := s.commit(session.Batch{Tree: tree, Guards: []session.Guard{guard}}); err != nil {
			t.Errorf("owner %q: %v, want %d counted", owner, err, count)
		}
		guard.Max--
		_, err := s.commit(session.Batch{Tree: tree, Guards: []session.Guard{guard}})
		isErr(t, fmt.Sprintf("owner %q with one less allowed", owner), session.ErrGuard, err)
	}
	// What the batch itself does to others' records doesn't count either.
	theirs := session.Insert(session.KindItem, "2", agentA, "", "open", nil, time.Time{})
	_, err := s.commit(session.Batch{
		Tree: tree, Changes: []session.Change{insert("4", agentB, "open"), theirs, insert("5", agentA, "done")},
		Guards: []session.Guard{{Kind: testKind, Owner: agentA, States: []session.State{"open"}, Max: 1}},
	})
	if err != nil {
		t.Errorf("inserts of another owner, kind and state: %v", err)
	}
}

func testEpochFencesWhateverTheTime(t *testing.T, s *suite) {
	tree := s.newTree()
	write := func(epoch uint64) error {
		_, err := s.commit(session.Batch{Tree: tree, Epoch: epoch, Events: []session.Event{event(agentA, session.EventToolStarted)}})
		return err
	}
	isErr(t, "an owner's write to a tree nobody claimed", session.ErrFenced, write(1))
	first := s.claim(tree, "p1", -time.Hour)
	if err := write(first.Epoch); err != nil {
		t.Errorf("write under a lease that has run out but that nobody took: %v", err)
	}
	second := s.claim(tree, "p2", time.Hour)
	if second.Epoch <= first.Epoch {
		t.Errorf("epoch %d follows %d", second.Epoch, first.Epoch)
	}
	isErr(t, "the write of the owner before", session.ErrFenced, write(first.Epoch))
	isErr(t, "a write of an epoch to come", session.ErrFenced, write(second.Epoch+1))
	if err := write(second.Epoch); err != nil {
		t.Errorf("the owner's write: %v", err)
	}
	third := s.claim(tree, "p2", time.Hour)
	isErr(t, "the write of the owner's earlier self", session.ErrFenced, write(second.Epoch))
	if err := write(third.Epoch); err != nil {
		t.Errorf("the owner's write: %v", err)
	}
}

func testInboxWriteNeedsNoEpoch(t *testing.T, s *suite) {
	tree := s.newTree()
	s.claim(tree, "p1", time.Hour)
	s.claim(tree, "p1", time.Hour)
	s.put(tree, "k", agentA, "open")
}

func testTreeIsCreatedOnce(t *testing.T, s *suite) {
	tree := session.NewID()
	_, err := s.commit(session.Batch{Tree: tree, Events: []session.Event{event(agentA, session.EventToolStarted)}})
	isErr(t, "Commit() to a tree that isn't there", session.ErrNotFound, err)
	var wg sync.WaitGroup
	var won atomic.Int32
	for range 8 {
		wg.Go(func() {
			_, err := s.commit(session.Batch{Tree: tree, Create: true, Events: []session.Event{event(tree, session.EventSessionCreated)}})
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, session.ErrConflict) {
				t.Errorf("Commit() = %v, want a conflict", err)
			}
		})
	}
	wg.Wait()
	equal(t, "creations that went through", int32(1), won.Load())
	equal(t, "seqs", []uint64{1}, seqsOf(s.events(session.EventQuery{Tree: tree})))
}

func testConcurrentChangesHaveOneWinner(t *testing.T, s *suite) {
	tree := s.newTree()
	rec := s.put(tree, "k", agentA, "open")
	var wg sync.WaitGroup
	var mu sync.Mutex
	won, rows := []session.Record{}, []session.Record{}
	for i := range 16 {
		wg.Go(func() {
			done, err := s.commit(session.Batch{
				Tree: tree, Changes: []session.Change{rec.Update("done", i)}, Events: []session.Event{event(agentA, session.EventToolCompleted)},
			})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, done.Records[0])
			} else if conflict, ok := errors.AsType[*session.ConflictError](err); ok && conflict.Row != nil {
				rows = append(rows, *conflict.Row)
			} else {
				t.Errorf("Commit() = %v, want a conflict with its row", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of 16 changes of one revision went through", len(won))
	}
	for _, row := range rows {
		equal(t, "the row a loser is shown", won[0], row)
	}
	equal(t, "the record", won, s.records(session.RecordQuery{Tree: tree}))
	equal(t, "events", 1, len(s.events(session.EventQuery{Tree: tree})))
}

func testConcurrentInsertsKeepTheGuard(t *testing.T, s *suite) {
	tree := s.newTree()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := s.commit(session.Batch{
				Tree: tree, Changes: []session.Change{insert(fmt.Sprint(i), agentA, "open")},
				Guards: []session.Guard{{Kind: testKind, Owner: agentA, States: []session.State{"open"}, Max: 3}},
			})
			if err != nil && !errors.Is(err, session.ErrGuard) {
				t.Errorf("Commit() = %v, want a guard's error", err)
			}
		})
	}
	wg.Wait()
	equal(t, "records let in", 3, len(s.records(session.RecordQuery{Tree: tree})))
}

func testConcurrentCommitsLeaveNoGap(t *testing.T, s *suite) {
	trees := []session.ID{s.newTree(), s.newTree()}
	const writers, commits = 8, 12
	var wg sync.WaitGroup
	var want [2]atomic.Int64
	for i := range writers {
		wg.Go(func() {
			which := i % len(trees)
			tree := trees[which]
			for n := range commits {
				b := session.Batch{Tree: tree, Changes: []session.Change{insert(fmt.Sprintf("%d/%d", i, n), agentA, "open")}}
				for range 1 + n%3 {
					b.Events = append(b.Events, event(agentA, session.EventToolStarted))
				}
				if n%4 == 3 { // one that is refused must not use up a seq
					b.Changes[0].Key = fmt.Sprintf("%d/0", i)
					_, err := s.commit(b)
					isErr(t, "Commit()", session.ErrConflict, err)
					continue
				}
				done, err := s.commit(b)
				if err != nil {
					t.Errorf("Commit() = %v", err)
					return
				}
				want[which].Add(int64(len(done.Events)))
				// What a commit returned is there for everyone at once.
				first := done.Events[0].Seq
				for k, e := range done.Events {
					if e.Seq != first+uint64(k) {
						t.Errorf("the events of one commit have seqs %v", seqsOf(done.Events))
					}
				}
				got, err := s.Events(t.Context(), session.EventQuery{Tree: tree, After: first - 1, Limit: len(done.Events)})
				if err != nil {
					t.Errorf("Events() = %v", err)
					return
				}
				equal(t, "a commit's events, read after it returned", done.Events, got)
				if _, err := s.Record(t.Context(), testKind, b.Changes[0].Key); err != nil {
					t.Errorf("Record() after its commit returned = %v", err)
				}
			}
		})
	}
	wg.Wait()
	for i, tree := range trees {
		events := s.events(session.EventQuery{Tree: tree})
		equal(t, "events of the tree", want[i].Load(), int64(len(events)))
		equal(t, "head", uint64(len(events)), s.tree(tree).HeadSeq)
		for k, e := range events {
			if e.Seq != uint64(k+1) {
				t.Fatalf("event %d has seq %d", k+1, e.Seq)
			}
		}
	}
}

func testCallerKeepsItsBuffers(t *testing.T, s *suite) {
	tree := s.newTree()
	body, data, file := []byte(`{"a":1}`), []byte(`{"b":2}`), []byte("file")
	e := event(agentA, session.EventToolStarted)
	e.Data = data
	s.mustCommit(session.Batch{
		Tree:      tree,
		Changes:   []session.Change{{Kind: testKind, Key: "k", To: "open", Body: body}},
		Events:    []session.Event{e},
		Artifacts: []session.Artifact{{Key: "x_1", Data: file}},
	})
	for _, b := range [][]byte{body, data, file} {
		clear(b)
	}
	got := s.contents(tree, "x_1")
	equal(t, "body", `{"a":1}`, string(got.Records[0].Body))
	equal(t, "event", `{"b":2}`, string(got.Events[0].Data))
	equal(t, "artifact", "file", string(got.Artifacts["x_1"].Data))
}

func testLargeBodiesAreSpilledAndResolved(t *testing.T, s *suite) {
	tree := s.newTree()
	quoted := func(size int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`) }
	for _, test := range []struct {
		size    int
		spilled bool
	}{{session.MaxInline, false}, {session.MaxInline + 1, true}, {1 << 20, true}} {
		e := event(agentA, session.EventToolCompleted)
		e.Data = quoted(test.size)
		b := session.Batch{Tree: tree, Events: []session.Event{e}, Guards: []session.Guard{{Kind: testKind, Max: -1}}}
		_, err := s.commit(b)
		isErr(t, "Commit() with a guard nothing passes", session.ErrGuard, err)
		b.Guards = nil // what was refused can be committed again
		got := s.mustCommit(b).Events[0]
		if spilled := len(got.Data) < 200; spilled != test.spilled {
			t.Errorf("a body of %d bytes: spilled = %v, want %v", test.size, spilled, test.spilled)
		}
		read := s.events(session.EventQuery{Tree: tree, After: got.Seq - 1})[0]
		equal(t, "the event as committed and as read", got, read)
		if err := session.Resolve(t.Context(), s, &read); err != nil {
			t.Fatalf("Resolve() = %v", err)
		}
		if !bytes.Equal(read.Data, e.Data) {
			t.Errorf("a resolved body has %d bytes, want the %d it had", len(read.Data), len(e.Data))
		}
	}
	body := quoted(1 << 20)
	s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{{Kind: testKind, Key: "k", To: "open", Body: body}}})
	if got := s.records(session.RecordQuery{Tree: tree})[0].Body; !bytes.Equal(got, body) {
		t.Errorf("a record's large body has %d bytes, want %d", len(got), len(body))
	}
}

func testArtifactsAreKeptOnceInTheirTree(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	put := func(tree session.ID, data string) {
		t.Helper()
		s.mustCommit(session.Batch{Tree: tree, Artifacts: []session.Artifact{{
			Key: "x_1", Name: "report " + data, MediaType: "text/plain", Size: 99, Data: []byte(data),
		}}})
	}
	put(tree, "first")
	put(tree, "second, which is ignored")
	got, err := s.Artifact(t.Context(), tree, "x_1")
	if err != nil {
		t.Fatalf("Artifact() = %v", err)
	}
	equal(t, "artifact", session.Artifact{Key: "x_1", Name: "report first", MediaType: "text/plain", Size: 5, Data: []byte("first")}, got)
	_, err = s.Artifact(t.Context(), other, "x_1")
	isErr(t, "Artifact() of another tree", session.ErrNotFound, err)
	_, err = s.Artifact(t.Context(), "s_none", "x_1")
	isErr(t, "Artifact() of no tree", session.ErrNotFound, err)
	put(other, "theirs")
	if got, err := s.Artifact(t.Context(), other, "x_1"); err != nil || string(got.Data) != "theirs" {
		t.Errorf("Artifact() = %q, %v, want the other tree's own", got.Data, err)
	}
	s.mustCommit(session.Batch{Tree: tree, Artifacts: []session.Artifact{{Key: "x_2"}}})
	if got, err := s.Artifact(t.Context(), tree, "x_2"); err != nil || got.Size != 0 || len(got.Data) != 0 {
		t.Errorf("Artifact() = %+v, %v, want an empty one", got, err)
	}
}
