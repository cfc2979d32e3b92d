package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/store/sqlite"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role, os.Getenv(childPath)))
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, cfg sqlite.Config) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open() = %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return s
}

func shut(t testing.TB, s *sqlite.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close() = %v", err)
	}
}

func mustCommit(t testing.TB, s session.Store, b session.Batch) session.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("Commit() = %v", err)
	}
	return done
}

func newTree(t testing.TB, s session.Store) session.ID {
	t.Helper()
	id := session.NewID()
	mustCommit(t, s, session.Batch{Tree: id, Create: true})
	return id
}

func event(tree session.ID) session.Event {
	return session.Scope{Root: tree, Agent: tree}.Event(session.EventToolStarted, session.ToolStarted{Name: "now"})
}

func insert(key string) session.Change {
	return session.Insert(session.KindCall, key, "s_a", "", "open", nil, time.Time{})
}

func TestSQLiteKeepsTheStoresPromises(t *testing.T) {
	sessiontest.Run(t, func(t testing.TB) session.Store {
		return open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db"), Synchronous: "normal"})
	})
}

func TestOpenMakesWhatIsMissingForItsUserOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there yet?")
	s := open(t, sqlite.Config{Path: filepath.Join(dir, "a#b%41.db")})
	newTree(t, s)
	for name, want := range map[string]fs.FileMode{
		"": 0o700 | fs.ModeDir, "a#b%41.db": 0o600, "a#b%41.db-wal": 0o600, "a#b%41.db-shm": 0o600, "a#b%41.db.lock": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != want {
			t.Errorf("mode of %q is %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestSynchronousIsSet(t *testing.T) {
	for config, want := range map[string]string{"": "2", "full": "2", "normal": "1"} {
		s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db"), Synchronous: config})
		for pragma, want := range map[string]string{"synchronous": want, "journal_mode": "wal", "foreign_keys": "1", "busy_timeout": "5000"} {
			if got, err := s.Pragma(pragma); err != nil || got != want {
				t.Errorf("Synchronous %q: pragma %s is %q, %v, want %q", config, pragma, got, err, want)
			}
		}
	}
}

func TestWhatCannotBeOpenedIsNamed(t *testing.T) {
	file := func(content string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	statement := func(query string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			shut(t, open(t, sqlite.Config{Path: path}))
			execSQL(t, path, query)
		}
	}
	is := func(err error, target any) bool { return errors.As(err, target) }
	for name, test := range map[string]struct {
		cfg   sqlite.Config
		make  func(t *testing.T, path string)
		is    func(err error) bool
		words string
	}{
		"text file": {
			make: file(strings.Repeat("this is a letter, not a database. ", 400)),
			is:   func(err error) bool { return is(err, new(*sqlite.CorruptError)) }, words: "not a database",
		},
		"header, then nothing": {
			make: file("SQLite format 3\x00 and then the disk broke"),
			is:   func(err error) bool { return is(err, new(*sqlite.CorruptError)) }, words: "damaged",
		},
		"another program's": {
			make: func(t *testing.T, path string) { execSQL(t, path, `CREATE TABLE bookmarks (url TEXT)`) },
			is:   func(err error) bool { return is(err, new(*sqlite.CorruptError)) }, words: "another program's",
		},
		"newer": {
			make: statement(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`),
			is: func(err error) bool {
				e, ok := errors.AsType[*sqlite.SchemaError](err)
				return ok && e.Have == 99 && e.Want == 1
			}, words: "newer than the 1 this program knows",
		},
		"newer, to read": {
			cfg:  sqlite.Config{ReadOnly: true},
			make: statement(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`),
			is:   func(err error) bool { return is(err, new(*sqlite.SchemaError)) }, words: "newer",
		},
		"older, to read": {
			cfg:  sqlite.Config{ReadOnly: true},
			make: file(""),
			is:   func(err error) bool { return is(err, new(*sqlite.SchemaError)) }, words: "older",
		},
		"none, to read": {
			cfg: sqlite.Config{ReadOnly: true},
			is:  func(err error) bool { return is(err, new(*sqlite.PathError)) && errors.Is(err, fs.ErrNotExist) }, words: "no such file",
		},
		"a folder": {
			make: func(t *testing.T, path string) { _ = os.Mkdir(path, 0o700) },
			is:   func(err error) bool { return is(err, new(*sqlite.PathError)) }, words: "is a directory",
		},
		"below a file": {
			cfg: sqlite.Config{Path: "file/below.db"},
			is:  func(err error) bool { return is(err, new(*sqlite.PathError)) }, words: "not a directory",
		},
		"far below a file": {
			cfg: sqlite.Config{Path: "file/far/below.db"},
			is:  func(err error) bool { return is(err, new(*sqlite.PathError)) }, words: "not a directory",
		},
		"bad synchronous": {
			cfg: sqlite.Config{Synchronous: "off"},
			is:  func(err error) bool { return true }, words: `"off", want full or normal`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file("a file")(t, filepath.Join(dir, "file"))
			if test.cfg.Path == "" {
				test.cfg.Path = "test.db"
			}
			test.cfg.Path = filepath.Join(dir, test.cfg.Path)
			if test.make != nil {
				test.make(t, test.cfg.Path)
			}
			for range 2 { // a refusal keeps nothing, no lock either
				s, err := sqlite.Open(t.Context(), test.cfg)
				if err == nil {
					shut(t, s)
				}
				if err == nil || !test.is(err) || !strings.Contains(err.Error(), test.words) {
					t.Fatalf("Open() = %v, want an error of its type that says %q", err, test.words)
				}
			}
		})
	}
	if _, err := sqlite.Open(t.Context(), sqlite.Config{}); err == nil {
		t.Error("Open() without a path = nil, want an error")
	}
}

func execSQL(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
}

func TestDamageFoundLaterIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, sqlite.Config{Path: path})
	tree := newTree(t, s)
	for range 10 {
		b := session.Batch{Tree: tree}
		for range 100 {
			b.Events = append(b.Events, event(tree))
		}
		mustCommit(t, s, b)
	}
	shut(t, s)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(content) / 2; i < len(content); i++ {
		content[i] = 0xa5
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if err == nil {
		_, err = s.Events(t.Context(), session.EventQuery{Tree: tree})
		shut(t, s)
	}
	if _, ok := errors.AsType[*sqlite.CorruptError](err); !ok {
		t.Errorf("reading a damaged database = %v, want a CorruptError", err)
	}
}

func TestOpeningTakesTreesFromTheirLastOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, sqlite.Config{Path: path})
	crashed, released, fresh := newTree(t, s), newTree(t, s), newTree(t, s)
	var leases []session.Lease
	for _, tree := range []session.ID{crashed, released} {
		lease, err := s.Claim(t.Context(), tree, "first life", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	if err := s.Release(t.Context(), leases[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what a life that claims nothing finds, the next one finds too
		shut(t, s)
		s = open(t, sqlite.Config{Path: path})
	}
	for tree, want := range map[session.ID]session.TreeInfo{
		crashed: {Epoch: 3, Crashed: true}, released: {Epoch: 3}, fresh: {Epoch: 2},
	} {
		got, err := s.Tree(t.Context(), tree)
		if err != nil {
			t.Fatal(err)
		}
		want.ID, want.Created = tree, got.Created
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("a tree after two restarts (-want +got):\n%s", diff)
		}
	}
	if lost, err := s.Renew(t.Context(), leases, time.Hour); err != nil || len(lost) != 2 {
		t.Errorf("Renew() of the first life's leases = %v, %v, want them lost", lost, err)
	}
	_, err := s.Commit(t.Context(), session.Batch{Tree: crashed, Epoch: leases[0].Epoch})
	if !errors.Is(err, session.ErrFenced) {
		t.Errorf("Commit() of the first life = %v, want %v", err, session.ErrFenced)
	}
	for tree, want := range map[session.ID]bool{crashed: true, released: false, fresh: false} {
		lease, err := s.Claim(t.Context(), tree, "third life", time.Hour)
		if err != nil || lease.Crashed != want {
			t.Errorf("Claim() = %+v, %v, want Crashed %v and no wait", lease, err, want)
		}
	}
	if info, err := s.Tree(t.Context(), crashed); err != nil || info.Crashed {
		t.Errorf("Tree() after the claim = %+v, %v, want Crashed false", info, err)
	}
}

func TestReadOnlyReadsAndRefusesWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, sqlite.Config{Path: path})
	tree := newTree(t, s)
	lease, err := s.Claim(t.Context(), tree, "owner", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	look := func() {
		t.Helper()
		ro := open(t, sqlite.Config{Path: path, ReadOnly: true})
		defer shut(t, ro)
		if trees, err := ro.Trees(t.Context(), 0); err != nil || len(trees) != 1 {
			t.Errorf("Trees() = %v, %v, want one", trees, err)
		}
		_, commit := ro.Commit(t.Context(), session.Batch{Tree: tree})
		_, claim := ro.Claim(t.Context(), tree, "p", time.Hour)
		_, renew := ro.Renew(t.Context(), []session.Lease{lease}, time.Hour)
		for method, err := range map[string]error{
			"Commit": commit, "Claim": claim, "Renew": renew, "Release": ro.Release(t.Context(), lease), "Delete": ro.Delete(t.Context(), tree),
		} {
			if !errors.Is(err, sqlite.ErrReadOnly) {
				t.Errorf("%s() = %v, want %v", method, err, sqlite.ErrReadOnly)
			}
		}
	}
	look()
	if info, err := s.Tree(t.Context(), tree); err != nil || info.Owner != "owner" || info.Epoch != lease.Epoch {
		t.Errorf("the tree after somebody looked = %+v, %v, want it as it was", info, err)
	}
	mustCommit(t, s, session.Batch{Tree: tree, Epoch: lease.Epoch})
	shut(t, s)
	look()
}

func TestFullDiskRefusesTheBatchAlone(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	tree := newTree(t, s)
	mustCommit(t, s, session.Batch{Tree: tree, Changes: []session.Change{insert("before")}, Events: []session.Event{event(tree)}})
	if err := s.LimitPages(8); err != nil {
		t.Fatal(err)
	}
	large := session.Batch{
		Tree: tree, Changes: []session.Change{insert("large")}, Events: []session.Event{event(tree)},
		Artifacts: []session.Artifact{{Key: "x_1", Data: make([]byte, 1<<20)}},
	}
	// The large one shares its transaction with two that fit.
	var wg sync.WaitGroup
	errs := make([]error, 3)
	release := s.Hold()
	for i, b := range []session.Batch{
		{Tree: tree, Changes: []session.Change{insert("small 0")}, Events: []session.Event{event(tree)}}, large,
		{Tree: tree, Changes: []session.Change{insert("small 2")}, Events: []session.Event{event(tree)}},
	} {
		wg.Go(func() { _, errs[i] = s.Commit(t.Context(), b) })
		waitQueued(s, i+1)
	}
	release()
	wg.Wait()
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("Commit() of what fits = %v, %v", errs[0], errs[2])
	}
	if !errors.Is(errs[1], sqlite.ErrFull) || !strings.Contains(errs[1].Error(), "no space is left") {
		t.Errorf("Commit() of what doesn't = %v, want %v", errs[1], sqlite.ErrFull)
	}
	check := func(records, events int) {
		t.Helper()
		r, err := s.Records(t.Context(), session.RecordQuery{Tree: tree})
		if err != nil || len(r) != records {
			t.Errorf("Records() = %d, %v, want %d", len(r), err, records)
		}
		e, err := s.Events(t.Context(), session.EventQuery{Tree: tree})
		if err != nil || len(e) != events || e[len(e)-1].Seq != uint64(events) {
			t.Errorf("Events() = %d, %v, want %d without a gap", len(e), err, events)
		}
	}
	check(3, 3)
	if _, err := s.Artifact(t.Context(), tree, "x_1"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("Artifact() of the refused batch = %v, want %v", err, session.ErrNotFound)
	}
	if err := s.LimitPages(-1); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, large)
	check(4, 4)
}

// What is refused stays refused when the transaction it shares fails for another's sake and each is tried again.
func TestFullDiskMakesNoSuccessOfARefusal(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	tree := newTree(t, s)
	mustCommit(t, s, session.Batch{Tree: tree, Changes: []session.Change{insert("before")}, Events: []session.Event{event(tree)}})
	if err := s.LimitPages(8); err != nil {
		t.Fatal(err)
	}
	batches := []session.Batch{
		{Tree: tree, Artifacts: []session.Artifact{{Key: "x_1", Data: make([]byte, 1<<20)}}}, // too large
		{Tree: tree, Changes: []session.Change{insert("before")}},                            // there is one
		{Tree: tree, Epoch: 7, Changes: []session.Change{insert("fenced")}},
		{Tree: tree, Changes: []session.Change{insert("given up")}}, // by then nobody waits for it
	}
	want := []error{sqlite.ErrFull, session.ErrConflict, session.ErrFenced, context.Canceled}
	var wg sync.WaitGroup
	errs := make([]error, len(batches))
	release := s.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	for i, b := range batches {
		ctx := ctx
		if i < 3 {
			ctx = t.Context()
		}
		wg.Go(func() { _, errs[i] = s.Commit(ctx, b) })
		waitQueued(s, i+1)
	}
	cancel()
	release()
	wg.Wait()
	for i, err := range errs {
		if !errors.Is(err, want[i]) {
			t.Errorf("Commit() of batch %d = %v, want %v", i, err, want[i])
		}
	}
}

// waitQueued waits until so many writes wait for the writing goroutine, which is held.
func waitQueued(s *sqlite.Store, n int) {
	for s.Queued() < n {
		runtime.Gosched()
	}
}

func TestCommitsThatShareATransactionKeepToThemselves(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	trees := []session.ID{newTree(t, s), newTree(t, s)}
	release := s.Hold()
	var wg sync.WaitGroup
	const n = 20
	done, errs := make([]session.Committed, n), make([]error, n)
	for i := range n {
		b := session.Batch{Tree: trees[i%2], Changes: []session.Change{insert(fmt.Sprint(i))}, Events: []session.Event{event(trees[i%2])}}
		switch i % 5 {
		case 3: // refused: the one before it in the same transaction has the key
			b.Changes[0].Key = fmt.Sprint(i - 1)
		case 4:
			b.Guards = []session.Guard{{Kind: session.KindCall, States: []session.State{"open"}, Max: 0}}
		}
		wg.Go(func() { done[i], errs[i] = s.Commit(t.Context(), b) })
		waitQueued(s, i+1)
	}
	release()
	wg.Wait()
	heads := map[session.ID]uint64{}
	for i, err := range errs {
		want := map[int]error{3: session.ErrConflict, 4: session.ErrGuard}[i%5]
		if !errors.Is(err, want) {
			t.Errorf("Commit() %d = %v, want %v", i, err, want)
		}
		if err == nil {
			heads[trees[i%2]]++
			if got := done[i].Events[0].Seq; got != heads[trees[i%2]] {
				t.Errorf("Commit() %d gave seq %d, want %d", i, got, heads[trees[i%2]])
			}
		}
	}
	for tree, head := range heads {
		if info, err := s.Tree(t.Context(), tree); err != nil || info.HeadSeq != head {
			t.Errorf("Tree() = %+v, %v, want head %d", info, err, head)
		}
	}
}

func TestCloseLetsInWhoeverWaitsForTheQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, sqlite.Config{Path: path})
	tree := newTree(t, s)
	release := s.Hold()
	var wg sync.WaitGroup
	var started atomic.Int32
	const n = 64 + 8 // the queue holds 64
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			started.Add(1)
			_, errs[i] = s.Commit(t.Context(), session.Batch{Tree: tree, Changes: []session.Change{insert(fmt.Sprint(i))}})
		})
	}
	waitQueued(s, 64)
	for started.Load() < n {
		runtime.Gosched()
	}
	wg.Go(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	for {
		if _, err := s.Tree(t.Context(), tree); errors.Is(err, session.ErrClosed) {
			break
		}
		runtime.Gosched()
	}
	release()
	wg.Wait()
	written := 0
	for i, err := range errs {
		if err == nil {
			written++
		} else if !errors.Is(err, session.ErrClosed) {
			t.Errorf("Commit() %d = %v, want nil or %v", i, err, session.ErrClosed)
		}
	}
	records, err := open(t, sqlite.Config{Path: path}).Records(t.Context(), session.RecordQuery{Tree: tree})
	if err != nil || len(records) != written || written < 64 {
		t.Errorf("%d records, %v, of %d commits that returned nil", len(records), err, written)
	}
}

func TestContextThatEndsInTheQueueWritesNothing(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	tree := newTree(t, s)
	release := s.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() { _, errs[0] = s.Commit(ctx, session.Batch{Tree: tree, Events: []session.Event{event(tree)}}) })
	waitQueued(s, 1)
	wg.Go(func() {
		_, errs[1] = s.Commit(t.Context(), session.Batch{Tree: tree, Events: []session.Event{event(tree)}})
	})
	waitQueued(s, 2)
	cancel()
	release()
	wg.Wait()
	if !errors.Is(errs[0], ctx.Err()) || errs[1] != nil {
		t.Errorf("Commit() = %v and %v, want %v and nil", errs[0], errs[1], ctx.Err())
	}
	if info, err := s.Tree(t.Context(), tree); err != nil || info.HeadSeq != 1 {
		t.Errorf("Tree() = %+v, %v, want one event", info, err)
	}
}

func TestDeletedTreeFreesItsSpaceInSteps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, sqlite.Config{Path: path, Synchronous: "normal"})
	kept := newTree(t, s)
	mustCommit(t, s, session.Batch{Tree: kept, Events: []session.Event{event(kept)}, Artifacts: []session.Artifact{{Key: "x_1"}}})
	for range 2 {
		tree := newTree(t, s)
		for i := range 5 {
			b := session.Batch{Tree: tree, Changes: []session.Change{insert(fmt.Sprint(i))}}
			for n := range 500 {
				b.Events = append(b.Events, event(tree))
				if n < 10 {
					b.Artifacts = append(b.Artifacts, session.Artifact{Key: session.NewArtifactKey(), Data: []byte("data")})
				}
			}
			mustCommit(t, s, b)
		}
		if err := s.Delete(t.Context(), tree); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, s, session.Batch{Tree: kept})
		shut(t, s) // maybe in the middle of it
		s = open(t, sqlite.Config{Path: path, Synchronous: "normal"})
	}
	if err := s.Reap(); err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]int{"trees": 1, "events": 1, "artifacts": 1, "records": 0} {
		if got, err := s.Rows(table); err != nil || got != want {
			t.Errorf("%s has %d rows, %v, want %d", table, got, err, want)
		}
	}
}
