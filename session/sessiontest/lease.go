package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"orchestrator/session"
)

func testLeaseKeepsOthersOut(t *testing.T, s *suite) {
	tree := s.newTree()
	start := time.Now()
	lease := s.claim(tree, "p1", time.Hour)
	if lease.Tree != tree || lease.Owner != "p1" || lease.Epoch != 1 || lease.Until.Before(start.Add(time.Hour-time.Second)) ||
		lease.Until.After(time.Now().Add(time.Hour+time.Second)) {
		t.Errorf("Claim() = %+v", lease)
	}
	info := s.tree(tree)
	equal(t, "the tree", session.TreeInfo{ID: tree, Created: info.Created, Owner: "p1", Epoch: 1, LeaseUntil: lease.Until}, info)
	_, err := s.Claim(t.Context(), tree, "p2", time.Hour)
	isErr(t, "Claim() while another owner's lease runs", session.ErrLeased, err)
	equal(t, "the epoch after a refused claim", uint64(1), s.tree(tree).Epoch)

	if err := s.Release(t.Context(), lease); err != nil {
		t.Fatalf("Release() = %v", err)
	}
	info = s.tree(tree)
	if info.Owner != "" || info.Epoch != 1 || info.Crashed {
		t.Errorf("a released tree is %+v", info)
	}
	second := s.claim(tree, "p2", time.Hour)
	equal(t, "the next epoch", uint64(2), second.Epoch)
	if err := s.Release(t.Context(), lease); err != nil {
		t.Errorf("Release() of a lost lease = %v", err)
	}
	equal(t, "the owner after the release of a lost lease", "p2", s.tree(tree).Owner)
	if err := s.Release(t.Context(), session.Lease{Tree: "s_none", Owner: "p", Epoch: 1}); err != nil {
		t.Errorf("Release() of a tree that isn't there = %v", err)
	}

	_, err = s.Claim(t.Context(), "s_none", "p", time.Hour)
	isErr(t, "Claim() of a tree that isn't there", session.ErrNotFound, err)
	if _, err := s.Claim(t.Context(), tree, "", time.Hour); err == nil {
		t.Error("Claim() without an owner = nil, want an error")
	}
}

func testClaimSaysWhetherTheLastOwnerCrashed(t *testing.T, s *suite) {
	tree := s.newTree()
	check := func(what string, lease session.Lease, crashed bool) session.Lease {
		t.Helper()
		if lease.Crashed != crashed {
			t.Errorf("%s: Claim().Crashed = %v, want %v", what, lease.Crashed, crashed)
		}
		return lease
	}
	lease := check("the first claim", s.claim(tree, "p1", time.Hour), false)
	if err := s.Release(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check("after a release", s.claim(tree, "p2", -time.Second), false)
	if !s.tree(tree).Crashed {
		t.Error("Tree().Crashed = false after the lease ran out")
	}
	check("after a lease ran out", s.claim(tree, "p3", time.Hour), true)
	if s.tree(tree).Crashed {
		t.Error("Tree().Crashed = true while a lease runs")
	}
	lease = check("over one's own", s.claim(tree, "p3", time.Hour), true)
	if err := s.Release(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check("after its release", s.claim(tree, "p1", time.Hour), false)
}

func testRenewNamesLostLeases(t *testing.T, s *suite) {
	var leases []session.Lease
	for range 5 {
		leases = append(leases, s.claim(s.newTree(), "p1", -time.Second))
	}
	taken := s.claim(leases[1].Tree, "p2", -time.Second)
	if err := s.Release(t.Context(), leases[2]); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), leases[3].Tree); err != nil {
		t.Fatal(err)
	}
	again := s.claim(leases[4].Tree, "p1", -time.Second)
	s.put(leases[0].Tree, "k", agentA, "open") // a store that remembers the tree must not remember the lease's old end
	lost, err := s.Renew(t.Context(), leases, time.Hour)
	if err != nil {
		t.Fatalf("Renew() = %v", err)
	}
	equal(t, "lost leases: taken, released, deleted, claimed again", leases[1:], lost)
	if until := s.tree(leases[0].Tree).LeaseUntil; until.Before(time.Now().Add(time.Hour - time.Minute)) {
		t.Errorf("a renewed lease runs until %v", until)
	}
	_, err = s.Claim(t.Context(), leases[0].Tree, "p2", time.Hour)
	isErr(t, "Claim() of a renewed lease's tree", session.ErrLeased, err)
	for _, l := range []session.Lease{taken, again} {
		equal(t, "the lease of whoever took a tree, untouched", l.Until, s.tree(l.Tree).LeaseUntil)
	}
	if lost, err := s.Renew(t.Context(), nil, time.Hour); err != nil || len(lost) != 0 {
		t.Errorf("Renew() of none = %v, %v", lost, err)
	}
}

func testConcurrentClaimsHaveOneWinner(t *testing.T, s *suite) {
	tree := s.newTree()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []session.Lease
	for i := range 8 {
		wg.Go(func() {
			lease, err := s.Claim(t.Context(), tree, fmt.Sprintf("p%d", i), time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, lease)
			} else if !errors.Is(err, session.ErrLeased) {
				t.Errorf("Claim() = %v, want %v", err, session.ErrLeased)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 || s.tree(tree).Owner != won[0].Owner {
		t.Errorf("claims that went through: %+v, the owner is %s", won, s.tree(tree).Owner)
	}
}

func testDeleteRemovesOneTree(t *testing.T, s *suite) {
	fill := func(tree session.ID, key string) {
		s.mustCommit(session.Batch{
			Tree:      tree,
			Changes:   []session.Change{insert(key, agentA, "open").At(time.Now())},
			Events:    []session.Event{event(agentA, session.EventToolStarted), event(agentA, session.EventToolCompleted)},
			Artifacts: []session.Artifact{{Key: "x_1", Data: []byte(key)}},
		})
	}
	tree, other := s.newTree(), s.newTree()
	fill(tree, "k")
	fill(other, "other")
	s.claim(tree, "p", time.Hour)
	before := s.contents(other, "x_1")
	for range 2 {
		if err := s.Delete(t.Context(), tree); err != nil {
			t.Fatalf("Delete() = %v", err)
		}
		_, err := s.Tree(t.Context(), tree)
		isErr(t, "Tree()", session.ErrNotFound, err)
		_, err = s.Events(t.Context(), session.EventQuery{Tree: tree})
		isErr(t, "Events()", session.ErrNotFound, err)
		_, err = s.Record(t.Context(), testKind, "k")
		isErr(t, "Record()", session.ErrNotFound, err)
		_, err = s.Artifact(t.Context(), tree, "x_1")
		isErr(t, "Artifact()", session.ErrNotFound, err)
		_, err = s.commit(session.Batch{Tree: tree})
		isErr(t, "Commit()", session.ErrNotFound, err)
		equal(t, "all records", []string{"other"}, s.keys(session.RecordQuery{}))
		equal(t, "due records", []string{"other"}, s.keys(session.RecordQuery{DueBefore: time.Now().Add(time.Hour)}))
		equal(t, "records by state", []string{"other"}, s.keys(session.RecordQuery{Kind: testKind, Owner: agentA, States: []session.State{"open"}}))
		equal(t, "trees", []session.TreeInfo{before.Info}, s.trees(0))
	}
	equal(t, "the other tree", before, s.contents(other, "x_1"))

	// A tree of the same name starts from nothing.
	s.mustCommit(session.Batch{Tree: tree, Create: true})
	got := s.contents(tree, "x_1")
	equal(t, "a tree made again", contents{Info: session.TreeInfo{ID: tree, Created: got.Info.Created}}, got)
	fill(tree, "k")
	equal(t, "its events", []uint64{1, 2}, seqsOf(s.events(session.EventQuery{Tree: tree, Agent: agentA})))
}

func testWatchersAreWoken(t *testing.T, s *suite) {
	tree, other := s.newTree(), s.newTree()
	mine, stopMine := s.Watch(tree)
	all, stopAll := s.Watch("")
	gone, stopGone := s.Watch(tree)
	stopGone()
	stopGone()
	woken := func(what string, wake <-chan struct{}) {
		t.Helper()
		select {
		case <-wake:
		case <-time.After(10 * time.Second):
			t.Errorf("%s isn't woken", what)
		}
	}
	for n := range 3 {
		s.put(tree, fmt.Sprintf("k%d", n), agentA, "open")
	}
	woken("who watches the tree", mine)
	woken("who watches all trees", all)
	s.put(other, "other", agentA, "open")
	woken("who watches all trees", all)
	select {
	case <-gone:
		t.Error("a watcher is woken after it stopped")
	default:
	}
	if cap(mine) != 1 {
		t.Errorf("a watcher's channel holds %d wakes, want them coalesced to 1", cap(mine))
	}
	stopMine()
	stopAll()
	s.put(tree, "k", agentA, "open")
	stopMine()
}

func testEndedContextWritesNothing(t *testing.T, s *suite) {
	tree := s.newTree()
	s.claim(tree, "p0", time.Hour)
	before := s.contents(tree)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for method, err := range everyMethod(ctx, s, tree) {
		isErr(t, method+"() with an ended context", context.Canceled, err)
	}
	equal(t, "the tree", before, s.contents(tree))
}

func testClosedStoreSaysSo(t *testing.T, s *suite) {
	tree := s.newTree()
	wake, stop := s.Watch(tree)
	defer stop()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("Close() = %v", err)
		}
	}
	select {
	case <-wake:
	case <-time.After(10 * time.Second):
		t.Error("who waits isn't woken by Close")
	}
	for method, err := range everyMethod(t.Context(), s, tree) {
		isErr(t, method+"() after Close", session.ErrClosed, err)
	}
	_, stop = s.Watch(tree)
	stop()
}

func testCloseWaitsForCommits(t *testing.T, s *suite) {
	tree := s.newTree()
	started := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				_, err := s.commit(session.Batch{Tree: tree, Changes: []session.Change{insert(fmt.Sprintf("%d/%d", i, n), agentA, "open")}})
				if n == 0 {
					started <- struct{}{}
				}
				if errors.Is(err, session.ErrClosed) {
					return
				}
				if err != nil {
					t.Errorf("Commit() while the store closes = %v, want nil or %v", err, session.ErrClosed)
					return
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() { errs[i] = s.Close() })
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		t.Errorf("Close() = %v", errs[i])
	}
}
