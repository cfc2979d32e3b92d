package sqlite_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"orchestrator/session"
	"orchestrator/store/sqlite"
)

func TestBackupBesideAWriterIsWholeAndItsOwn(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	path, to := filepath.Join(dir, "live.db"), filepath.Join(dir, "copy.db")
	live, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := live.Close(); err != nil {
			t.Error(err)
		}
	}()
	add := func() session.ID {
		t.Helper()
		id := session.NewID()
		event := session.Scope{Root: id, Agent: id}.Event(session.EventSessionState, session.SessionState{State: "idle"})
		if _, err := live.Commit(ctx, session.Batch{Tree: id, Create: true, Events: []session.Event{event}}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	before := add()
	if err := sqlite.Backup(ctx, path, to); err != nil {
		t.Fatal(err)
	}
	after := add()

	info, err := os.Stat(to)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy's mode is %v (%v), want 0600: it holds conversations", info.Mode(), err)
	}
	copied, err := sqlite.Open(ctx, sqlite.Config{Path: to})
	if err != nil {
		t.Fatalf("the copy can't be opened as a database: %v", err)
	}
	defer func() {
		if err := copied.Close(); err != nil {
			t.Error(err)
		}
	}()
	if events, err := copied.Events(ctx, session.EventQuery{Tree: before}); err != nil || len(events) != 1 {
		t.Errorf("the copy has %d events of the session (%v), want 1", len(events), err)
	}
	if _, err := copied.Tree(ctx, after); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("a session made after the copy: Tree() = %v, want ErrNotFound", err)
	}
}

func TestBackupLeavesAFileInItsPlaceAlone(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	path, to := filepath.Join(dir, "live.db"), filepath.Join(dir, "copy.db")
	live, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Backup(ctx, path, to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Backup() = %v, want fs.ErrExist", err)
	}
	if data, err := os.ReadFile(to); string(data) != "mine" {
		t.Errorf("the file in its place is %q now (%v)", data, err)
	}
	if err := sqlite.Backup(ctx, filepath.Join(dir, "none.db"), filepath.Join(dir, "copy2.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Backup() of no database = %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "copy2.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a copy that failed leaves a file behind: %v", err)
	}
}
