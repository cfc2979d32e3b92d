package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"orchestrator/session"
)

// The errors of a store that aren't session's.
var (
	// ErrFull is [session.ErrFull].
	ErrFull = session.ErrFull
	// ErrReadOnly says that the store was opened for reading only.
	ErrReadOnly = errors.New("the database is open for reading only")
)

// LockedError says that another process has the database open.
type LockedError struct {
	Path string
	PID  int // 0 if it isn't known
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("database %s is in use by another process", e.Path)
	}
	return fmt.Sprintf("database %s is in use by process %d", e.Path, e.PID)
}

// PathError says that there can be no database at a path: its folder can't be made or isn't one, the file system is
// read-only, or permissions are missing.
type PathError struct {
	Path string
	Err  error
}

func (e *PathError) Error() string {
	return fmt.Sprintf("database %s can't be opened: %v", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *PathError) Unwrap() error { return e.Err }

// CorruptError says that a file is damaged or is no database of ours.
type CorruptError struct {
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("database %s is damaged or is not one of orchestrator's: %v", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// SchemaError says that a database's schema is not this program's: newer, or older and opened for reading only.
type SchemaError struct {
	Path string
	Have int64 // the database's version
	Want int64 // the program's
}

func (e *SchemaError) Error() string {
	if e.Have > e.Want {
		return fmt.Sprintf("database %s has schema version %d, newer than the %d this program knows: use a newer program", e.Path, e.Have, e.Want)
	}
	return fmt.Sprintf("database %s has schema version %d, older than this program's %d: open it for writing once", e.Path, e.Have, e.Want)
}

// explain gives an error of SQLite or of the file system the type that callers know it by.
func explain(path string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch code := e.Code(); code & 0xff {
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqlite3.SQLITE_IOERR:
		if code == sqlite3.SQLITE_IOERR_SHMSIZE { // there is no room for the index beside the write-ahead log
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return &CorruptError{Path: path, Err: err}
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return &PathError{Path: path, Err: err}
	}
	return err
}

// noIndex reports whether an error says that the index beside the write-ahead log can't be made.
func noIndex(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() {
	case sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_READONLY_CANTINIT, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return false
}
