package sqlite_test

import (
	"path/filepath"
	"testing"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/store/sqlite"
)

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

func TestSQLiteKeepsTheStoresPromises(t *testing.T) {
	sessiontest.Run(t, func(t testing.TB) session.Store {
		return open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db"), Synchronous: "normal"})
	})
}
