package session_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
)

func TestSessionsOfAPrincipalAreListedTheNewestFirst(t *testing.T) {
	store := session.NewMemory()
	m, stop := start(t, store, hooks(&runner{}))
	defer stop()
	open := func(principal string) session.ID {
		id, err := m.Open(t.Context(), session.OpenRequest{Agent: "primary", Principal: principal, Title: "of " + principal})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	var alices []session.ID
	for range 5 {
		alices = append(alices, open("alice"))
		open("bob")
		open("")
	}
	slices.Reverse(alices)
	var got []session.ID
	for {
		q := session.SessionQuery{Principal: "alice", Limit: 2}
		if len(got) > 0 {
			q.Before = got[len(got)-1]
		}
		page, err := m.Sessions(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, s := range page {
			if s.Principal != "alice" || s.Title != "of alice" || s.Status != session.StateOpen || s.Root != s.ID {
				t.Errorf("session = %+v", s)
			}
			got = append(got, s.ID)
		}
	}
	if diff := cmp.Diff(alices, got); diff != "" {
		t.Errorf("alice's sessions (-want +got):\n%s", diff)
	}
	if none, err := m.Sessions(t.Context(), session.SessionQuery{Principal: "alic"}); err != nil || len(none) != 0 {
		t.Errorf("sessions of nobody = %v, %v", none, err)
	}
	if err := store.Delete(t.Context(), alices[0]); err != nil {
		t.Fatal(err)
	}
	if left, err := m.Sessions(t.Context(), session.SessionQuery{Principal: "alice"}); err != nil || len(left) != 4 {
		t.Errorf("after one is deleted there are %d, %v", len(left), err)
	}
}

// restless is a store in which an event is committed while a snapshot is being read.
type restless struct {
	session.Store
	times int
	tree  session.ID
	said  []uint64
}

func (r *restless) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	recs, err := r.Store.Records(ctx, q)
	if q.Kind == session.KindTurn && q.Tree == r.tree && r.times > 0 && err == nil && len(q.States) == 0 {
		r.times--
		done, err := r.Store.Commit(ctx, session.Batch{Tree: r.tree, Events: []session.Event{
			session.Scope{Root: r.tree, Agent: r.tree}.Event(session.EventSessionError, session.SessionError{Message: "meanwhile"}),
		}})
		if err != nil {
			return nil, err
		}
		r.said = append(r.said, done.Events[0].Seq)
	}
	return recs, err
}

// forgetful is a store that deletes a tree just before its session is read.
type forgetful struct {
	session.Store

	tree session.ID
}

func (s *forgetful) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	if kind == session.KindSession && key == string(s.tree) {
		if err := s.Delete(ctx, s.tree); err != nil {
			return session.Record{}, err
		}
	}
	return s.Store.Record(ctx, kind, key)
}

// A page that isn't full is the last one: a session that is deleted while the page is made leaves no hole in it.
func TestAPageOfSessionsIsFullThoughOneIsDeletedMeanwhile(t *testing.T) {
	store := &forgetful{Store: session.NewMemory()}
	m, stop := start(t, store, hooks(&runner{}))
	defer stop()
	var ids []session.ID
	for range 4 {
		ids = append(ids, open(t, m))
	}
	store.tree = ids[2]
	infos, err := m.Sessions(t.Context(), session.SessionQuery{Limit: 2})
	var got []session.ID
	for _, info := range infos {
		got = append(got, info.ID)
	}
	if want := []session.ID{ids[3], ids[1]}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Sessions() = %v, %v, want %v", got, err, want)
	}
}

func TestASnapshotIsOfOneMomentAndMissesNothing(t *testing.T) {
	for _, times := range []int{0, 2, 100} { // the last is never at rest
		store := &restless{Store: session.NewMemory()}
		m, stop := start(t, store, hooks(&runner{}))
		id := open(t, m)
		store.tree, store.times = id, times
		s, err := m.Snapshot(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := store.Tree(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		last := tree.HeadSeq
		if times == 100 {
			last = store.said[len(store.said)-1] - 1 // before the last event, so that it is read behind the snapshot
		}
		if s.LastSeq != last || s.ID != id || s.State != "idle" || len(s.Agents) != 1 {
			t.Errorf("with %d events meanwhile the snapshot is at %d, want %d: %+v", times, s.LastSeq, last, s)
		}
		stop()
	}
}

func TestWhatIsAboutToBeFoldedBackIsWork(t *testing.T) {
	store := session.NewMemory()
	h := hooks(&runner{})
	folding, goOn := make(chan struct{}), make(chan struct{})
	fold := h.Fold
	h.Fold = func(ctx context.Context, id session.ID, items []session.Record) (session.Folded, error) {
		close(folding)
		<-goOn
		return fold(ctx, id, items)
	}
	m, stop := start(t, store, h)
	defer stop()
	id := open(t, m)
	turn := submit(t, m, id, "one")
	if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	putItem(t, store, id, turn, "item")
	<-folding // no turn runs, none is queued, and no call is open
	s, err := m.Snapshot(t.Context(), id)
	close(goOn)
	if err != nil || s.State != "running" || s.ActiveTurn != nil {
		t.Errorf("while a result waits for its turn the session is %q, %v, want running without a turn", s.State, err)
	}
	if err := m.WaitQuiescent(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	if s, err := m.Snapshot(t.Context(), id); err != nil || s.State != "idle" {
		t.Errorf("after the turn the session is %q, %v, want idle", s.State, err)
	}
}

func TestWaitTurnReturnsTheTurnAtItsEndOrWhenTheTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := &runner{run: func(ctx context.Context, _ *session.Turn) (session.Outcome, error) {
			select {
			case <-gate:
				return completed("done"), nil
			case <-ctx.Done():
				return session.Outcome{}, session.ErrStopping
			}
		}}
		m, stop := start(t, session.NewMemory(), hooks(r))
		defer stop()
		id := open(t, m)
		turn := submit(t, m, id, "hello")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		got, err := m.WaitTurn(ctx, turn, session.UntilTurn)
		if !errors.Is(err, context.DeadlineExceeded) || got.State != session.StateRunning || got.Ended || time.Since(began) != time.Minute {
			t.Errorf("WaitTurn() after %s = %+v, %v", time.Since(began), got, err)
		}
		close(gate)
		got, err = m.WaitTurn(t.Context(), turn, session.UntilQuiescent)
		if err != nil || got.State != session.StateCompleted || !got.Quiescent || got.Output != "done" || got.Root != id {
			t.Errorf("WaitTurn() = %+v, %v", got, err)
		}
		if _, err := m.WaitTurn(t.Context(), "t_none", session.UntilTurn); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("WaitTurn() of none = %v", err)
		}
		if _, err := m.TurnOf(t.Context(), open(t, m), turn); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("TurnOf() in another session = %v", err)
		}
	})
}

func TestASubscriberIsToldWhenItHasHadAllThereIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := start(t, session.NewMemory(), hooks(&runner{}))
		defer stop()
		id := open(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		type told struct {
			what session.EventType
			at   time.Duration
		}
		var got []told
		began := time.Now()
		for e, err := range m.Subscribe(ctx, session.SubscribeRequest{Session: id, Beat: 15 * time.Second}) {
			if err != nil {
				break
			}
			got = append(got, told{e.Type, time.Since(began)})
			switch len(got) {
			case 3: // behind the beat of a silence: let something happen
				if _, err := m.Store().Commit(ctx, session.Batch{Tree: id, Events: []session.Event{
					session.Scope{Root: id, Agent: id}.Event(session.EventSessionError, session.SessionError{}),
				}}); err != nil {
					t.Fatal(err)
				}
			case 6:
				cancel()
			}
		}
		s := time.Second
		want := []told{{"session.created", 0}, {"", 0}, {"", 15 * s}, {"session.error", 15 * s}, {"", 15 * s}, {"", 30 * s}}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(told{})); diff != "" {
			t.Errorf("what the subscriber is told (-want +got):\n%s", diff)
		}
	})
}

func TestPagesOfTheLogGoThroughAllOfItOnce(t *testing.T) {
	m, stop := start(t, session.NewMemory(), hooks(&runner{}))
	defer stop()
	id := open(t, m)
	for range 20 {
		if _, err := m.Store().Commit(t.Context(), session.Batch{Tree: id, Events: []session.Event{
			session.Scope{Root: id, Agent: id}.Event(session.EventSessionError, session.SessionError{}),
			session.Scope{Root: id, Agent: "s_child"}.Event(session.EventSubagentStarted, nil),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		q    session.EventQuery
		want int
	}{
		{session.EventQuery{}, 41}, {session.EventQuery{Limit: 41}, 41}, {session.EventQuery{Agent: id}, 21},
		{session.EventQuery{Types: []session.EventType{session.EventSessionCreated}, Limit: 2}, 1}, {session.EventQuery{Types: []session.EventType{session.EventTurnFailed}}, 0},
	} {
		tc.q.Tree = id
		if tc.q.Limit == 0 {
			tc.q.Limit = 7
		}
		n, last := 0, uint64(0)
		for {
			page, err := m.Page(t.Context(), tc.q)
			if err != nil || page.Head != 41 {
				t.Fatalf("page = %+v, %v", page, err)
			}
			for _, e := range page.Events {
				if e.Seq <= last {
					t.Errorf("seq %d comes after %d", e.Seq, last)
				}
				last = e.Seq
			}
			n += len(page.Events)
			tc.q.After = page.Next
			if !page.More {
				break
			}
		}
		if n != tc.want || tc.q.After != 41 {
			t.Errorf("%+v: %d events and the position %d, want %d and 41", tc.q, n, tc.q.After, tc.want)
		}
	}
	if _, err := m.Page(t.Context(), session.EventQuery{Tree: id, After: 42}); !errors.Is(err, session.ErrPosition) {
		t.Errorf("a page behind the head = %v", err)
	}
}
