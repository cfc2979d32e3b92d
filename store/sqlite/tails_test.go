package sqlite_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/store/sqlite"
)

// Whether a tree is watched decides where its events are read from, and nothing else.
func TestAWatchedTreeReadsAsItsDatabaseDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Synchronous: "normal"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	turn := sessiontest.NewTurn(t, store)
	beside, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, ReadOnly: true}) // has nothing but the database
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	random := rand.New(rand.NewPCG(1, 2))
	stop := func() {}
	watched := false
	head := uint64(0)
	for range 300 {
		if random.IntN(20) == 0 { // somebody comes or goes
			if watched {
				stop()
			} else {
				_, stop = store.Watch(turn.Root)
			}
			watched = !watched
		}
		var b session.Batch
		for i := range random.IntN(4) {
			text := strings.Repeat("x", random.IntN(4000))
			b.Events = append(b.Events, turn.Event(session.EventToolCompleted, session.ToolCompleted{Name: fmt.Sprint(i), Content: text}))
		}
		done, err := turn.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(done.Events); n > 0 {
			head = done.Events[n-1].Seq
		}
		q := session.EventQuery{Tree: turn.Root, After: uint64(max(0, int64(head)-random.Int64N(12)+1)), Limit: random.IntN(8)}
		got, err := store.Events(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		want, err := beside.Events(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			t.Fatalf("events after %d, watched %v, head %d (-database +got):\n%s", q.After, watched, head, diff)
		}
	}
	stop()
}

// Whoever has read a log's head finds all events up to it: a page of the log ends at the head that was read before it.
func TestEventsReachTheHeadThatWasRead(t *testing.T) {
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "a.db"), Synchronous: "normal"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	turn := sessiontest.NewTurn(t, store)
	_, stop := store.Watch(turn.Root)
	defer stop()
	m, err := session.NewManager(session.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	say := func() uint64 {
		done, err := turn.Commit(t.Context(), session.Batch{Events: []session.Event{
			turn.Event(session.EventToolCompleted, session.ToolCompleted{Name: "x"}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return done.Events[0].Seq
	}
	read := say()
	var page session.EventPage
	store.OnCommitted(func() {
		page, err = m.Page(t.Context(), session.EventQuery{Tree: turn.Root, After: read})
	})
	say()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(page.Events); n == 0 || page.Events[n-1].Seq != page.Head || page.Next != page.Head {
		t.Errorf("a page of %d events says that the log's head is %d and the next page begins behind %d", n, page.Head, page.Next)
	}
}
