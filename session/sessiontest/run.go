package sessiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orchestrator/session"
)

// Run checks that what open returns keeps every promise of [session.Store]. Each subtest opens a store of its own, which
// must be empty; open sees to it that it is closed.
func Run(t *testing.T, open func(t testing.TB) session.Store) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *suite)
	}{
		{"RefusedCommitLeavesNothing", testRefusedCommitLeavesNothing},
		{"BadBatchIsRefused", testBadBatchIsRefused},
		{"ConflictCarriesTheRow", testConflictCarriesTheRow},
		{"RecordOfAnotherTreeConflicts", testRecordOfAnotherTreeConflicts},
		{"InsertTakesAllUpdateKeepsTheRest", testInsertTakesAllUpdateKeepsTheRest},
		{"ChecksAreJudgedBeforeTheChanges", testChecksAreJudgedBeforeTheChanges},
		{"GuardsCountAfterTheChanges", testGuardsCountAfterTheChanges},
		{"GuardsCountByOwnerOrTree", testGuardsCountByOwnerOrTree},
		{"EpochFencesWhateverTheTime", testEpochFencesWhateverTheTime},
		{"InboxWriteNeedsNoEpoch", testInboxWriteNeedsNoEpoch},
		{"TreeIsCreatedOnce", testTreeIsCreatedOnce},
		{"ConcurrentChangesHaveOneWinner", testConcurrentChangesHaveOneWinner},
		{"ConcurrentInsertsKeepTheGuard", testConcurrentInsertsKeepTheGuard},
		{"ConcurrentCommitsLeaveNoGap", testConcurrentCommitsLeaveNoGap},
		{"CallerKeepsItsBuffers", testCallerKeepsItsBuffers},
		{"LargeBodiesAreSpilledAndResolved", testLargeBodiesAreSpilledAndResolved},
		{"ArtifactsAreKeptOnceInTheirTree", testArtifactsAreKeptOnceInTheirTree},
		{"EnvelopeComesBackWhole", testEnvelopeComesBackWhole},
		{"EventsArePagedAndFiltered", testEventsArePagedAndFiltered},
		{"RecordsComeInTheOrderOfInsertion", testRecordsComeInTheOrderOfInsertion},
		{"DueRecordsComeInTheOrderOfDue", testDueRecordsComeInTheOrderOfDue},
		{"TreesComeNewestFirst", testTreesComeNewestFirst},
		{"LeaseKeepsOthersOut", testLeaseKeepsOthersOut},
		{"ClaimSaysWhetherTheLastOwnerCrashed", testClaimSaysWhetherTheLastOwnerCrashed},
		{"RenewNamesLostLeases", testRenewNamesLostLeases},
		{"ConcurrentClaimsHaveOneWinner", testConcurrentClaimsHaveOneWinner},
		{"DeleteRemovesOneTree", testDeleteRemovesOneTree},
		{"WatchersAreWoken", testWatchersAreWoken},
		{"EndedContextWritesNothing", testEndedContextWritesNothing},
		{"ClosedStoreSaysSo", testClosedStoreSaysSo},
		{"CloseWaitsForCommits", testCloseWaitsForCommits},
		{"BehavesLikeTheModel", testBehavesLikeTheModel},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, &suite{Store: open(t), t: t})
		})
	}
}

// suite is a store under test with the shorthands of its tests.
type suite struct {
	session.Store
	t *testing.T
}

const (
	testKind session.Kind = "call"
	agentA   session.ID   = "s_a"
	agentB   session.ID   = "s_b"
)

// newTree makes a tree.
func (s *suite) newTree() session.ID {
	s.t.Helper()
	id := session.NewID()
	s.mustCommit(session.Batch{Tree: id, Create: true})
	return id
}

func (s *suite) commit(b session.Batch) (session.Committed, error) {
	return s.Commit(s.t.Context(), b)
}

func (s *suite) mustCommit(b session.Batch) session.Committed {
	s.t.Helper()
	done, err := s.commit(b)
	if err != nil {
		s.t.Fatalf("Commit() = %v", err)
	}
	return done
}

// put inserts a record and returns it.
func (s *suite) put(tree session.ID, key string, owner session.ID, state session.State) session.Record {
	s.t.Helper()
	return s.mustCommit(session.Batch{Tree: tree, Changes: []session.Change{insert(key, owner, state)}}).Records[0]
}

func (s *suite) claim(tree session.ID, owner string, ttl time.Duration) session.Lease {
	s.t.Helper()
	lease, err := s.Claim(s.t.Context(), tree, owner, ttl)
	if err != nil {
		s.t.Fatalf("Claim(%s) = %v", owner, err)
	}
	return lease
}

func (s *suite) tree(tree session.ID) session.TreeInfo {
	s.t.Helper()
	info, err := s.Tree(s.t.Context(), tree)
	if err != nil {
		s.t.Fatalf("Tree() = %v", err)
	}
	return info
}

func (s *suite) events(q session.EventQuery) []session.Event {
	s.t.Helper()
	events, err := s.Events(s.t.Context(), q)
	if err != nil {
		s.t.Fatalf("Events(%+v) = %v", q, err)
	}
	return events
}

func (s *suite) records(q session.RecordQuery) []session.Record {
	s.t.Helper()
	records, err := s.Records(s.t.Context(), q)
	if err != nil {
		s.t.Fatalf("Records(%+v) = %v", q, err)
	}
	return records
}

func (s *suite) keys(q session.RecordQuery) []string {
	s.t.Helper()
	return keysOf(s.records(q))
}

func keysOf(records []session.Record) []string {
	keys := []string{}
	for _, r := range records {
		keys = append(keys, r.Key)
	}
	return keys
}

func seqsOf(events []session.Event) []uint64 {
	seqs := []uint64{}
	for _, e := range events {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// contents is all that a store tells of a tree.
type contents struct {
	Info      session.TreeInfo
	Events    []session.Event
	Records   []session.Record
	Artifacts map[session.ArtifactKey]session.Artifact
}

// contents reads a tree, with those of the artifacts that exist.
func (s *suite) contents(tree session.ID, artifacts ...session.ArtifactKey) contents {
	s.t.Helper()
	c := contents{
		Info: s.tree(tree), Events: s.events(session.EventQuery{Tree: tree}), Records: s.records(session.RecordQuery{Tree: tree}),
		Artifacts: make(map[session.ArtifactKey]session.Artifact),
	}
	for _, key := range artifacts {
		a, err := s.Artifact(s.t.Context(), tree, key)
		if err == nil {
			c.Artifacts[key] = a
		} else if !errors.Is(err, session.ErrNotFound) {
			s.t.Fatalf("Artifact(%s) = %v", key, err)
		}
	}
	return c
}

func insert(key string, owner session.ID, state session.State) session.Change {
	return session.Insert(testKind, key, owner, "t_1", state, map[string]string{"key": key}, time.Time{})
}

func event(agent session.ID, typ session.EventType) session.Event {
	return session.Scope{Agent: agent}.Event(typ, map[string]string{"for": string(agent)})
}

// diff compares what stores return: they may say nothing by nil or by an empty slice.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) { // a lot faster than to find out how they differ
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

func equal(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func isErr(t testing.TB, what string, want, got error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// everyMethod calls every method of a store that returns an error, on a tree, and says which is which.
func everyMethod(ctx context.Context, s session.Store, tree session.ID) map[string]error {
	lease := session.Lease{Tree: tree, Owner: "p", Epoch: 1}
	errs := make(map[string]error)
	_, errs["Commit"] = s.Commit(ctx, session.Batch{Tree: tree, Events: []session.Event{event(agentA, session.EventSessionError)}})
	_, errs["Events"] = s.Events(ctx, session.EventQuery{Tree: tree})
	_, errs["Record"] = s.Record(ctx, testKind, "k")
	_, errs["Records"] = s.Records(ctx, session.RecordQuery{Tree: tree})
	_, errs["Artifact"] = s.Artifact(ctx, tree, "x_1")
	_, errs["Tree"] = s.Tree(ctx, tree)
	_, errs["Trees"] = s.Trees(ctx, 0)
	_, errs["Claim"] = s.Claim(ctx, tree, "p", time.Minute)
	_, errs["Renew"] = s.Renew(ctx, []session.Lease{lease}, time.Minute)
	errs["Release"] = s.Release(ctx, lease)
	errs["Delete"] = s.Delete(ctx, tree)
	return errs
}

func number(n int) json.RawMessage { return fmt.Appendf(nil, `{"n":%d}`, n) }
