package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"orchestrator/session"
)

// Config configures a [Store].
type Config struct {
	// Path of the database file. Its folder is made (0700) if it is missing, and the files in it (0600): the database,
	// its write-ahead log, and the lock file.
	Path string
	// Synchronous says what a returned Commit survives: "full" a crash of the machine, "normal" a crash of the process
	// only, not of the machine, at about a tenth of the time. Either way the database stays whole. Defaults to "full".
	Synchronous string
	// ReadOnly opens a database beside the process that has it open, or when none has. Writes return [ErrReadOnly], and
	// watchers are not woken.
	ReadOnly bool
	// Logger defaults to none.
	Logger *slog.Logger
}

// Store is a [session.Store] on a SQLite database.
type Store struct {
	cfg     Config
	lock    *lock
	writeDB *sql.DB
	readDB  *sql.DB
	params  string  // that readDB was opened with, of a store that only reads
	writer  *writer // the writing goroutine's own
	queue   chan *request
	reap    chan struct{} // a deleted tree waits for its events to go
	closing chan struct{}
	wakes   session.Wakes

	committed committed
	tails     tails

	users   sync.WaitGroup // calls in flight, and the reaper
	writing sync.WaitGroup
	close   func() error

	found, schema int64 // versions of the schema: when the database was opened, and now

	mu     sync.Mutex
	closed bool
	reads  statements
}

var _ session.Store = (*Store)(nil)

// readers is how many reads run at the same time; further ones wait.
const readers = 8

// Open opens the database, and makes or migrates it if it must. It takes the lock file, then every tree from its last
// owner: it raises all epochs and ends all leases, so that a restart waits for none. The error is a *[LockedError],
// *[PathError], *[CorruptError] or *[SchemaError] when it is one the operator can act on.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg.Synchronous = cmp.Or(cfg.Synchronous, "full")
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	switch {
	case cfg.Path == "":
		return nil, errors.New("sqlite: Path is empty")
	case cfg.Synchronous != "full" && cfg.Synchronous != "normal":
		return nil, fmt.Errorf("sqlite: Synchronous is %q, want full or normal", cfg.Synchronous)
	}
	s := &Store{
		cfg: cfg, queue: make(chan *request, maxGroup), reap: make(chan struct{}, 1), closing: make(chan struct{}),
		reads: make(statements),
	}
	s.tails.watched = s.wakes.Watched
	s.close = sync.OnceValue(s.shut)
	var err error
	if cfg.ReadOnly {
		err = s.openToRead(ctx)
	} else {
		err = s.openToWrite(ctx)
	}
	if err != nil {
		s.release()
		return nil, explain(cfg.Path, err)
	}
	return s, nil
}

func (s *Store) openToRead(ctx context.Context) error {
	if _, err := os.Stat(s.cfg.Path); err != nil {
		return &PathError{Path: s.cfg.Path, Err: err}
	}
	have, want, err := s.openReadOnly(ctx, "mode=ro")
	if noIndex(err) && !s.hasLog() {
		// On a full disk, or in a folder that can't be written, there is no room for the index that readers and the writer
		// share. Without a write-ahead log all of the database is in its file, which can be read by itself.
		if err := s.readDB.Close(); err != nil {
			return err
		}
		have, want, err = s.openReadOnly(ctx, "mode=ro&immutable=1")
	}
	if err != nil {
		return err
	}
	if have < want {
		return &SchemaError{Path: s.cfg.Path, Have: have, Want: want}
	}
	return nil
}

func (s *Store) openReadOnly(ctx context.Context, params string) (have, want int64, err error) {
	s.params = params
	if s.readDB, err = openDB(s.cfg.Path, params, readers, "query_only(1)"); err != nil {
		return 0, 0, err
	}
	return checkSchema(ctx, s.readDB, s.cfg.Path)
}

// hasLog reports whether the database has a write-ahead log with anything in it, or may have one.
func (s *Store) hasLog() bool {
	info, err := os.Stat(s.cfg.Path + "-wal")
	return err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

func (s *Store) openToWrite(ctx context.Context) error {
	if err := s.openFile(); err != nil {
		return err
	}
	var err error
	s.writeDB, err = openDB(s.cfg.Path, "", 1, "journal_mode(WAL)", "foreign_keys(1)", "synchronous("+s.cfg.Synchronous+")",
		"journal_size_limit(67108864)")
	if err != nil {
		return err
	}
	have, want, err := checkSchema(ctx, s.writeDB, s.cfg.Path)
	if err != nil {
		return err
	}
	s.found, s.schema = have, want
	if have < want {
		if err := migrate(ctx, s.writeDB); err != nil {
			return err
		}
		s.cfg.Logger.InfoContext(ctx, "database migrated", "path", s.cfg.Path, "from", have, "to", want)
	}
	_, err = s.writeDB.ExecContext(ctx, `UPDATE trees SET epoch = epoch + 1, crashed = crashed OR owner <> '', owner = '', lease_until = 0`)
	if err != nil {
		return fmt.Errorf("end the leases: %w", err)
	}
	if s.readDB, err = openDB(s.cfg.Path, "", readers, "query_only(1)"); err != nil {
		return err
	}
	if s.writer, err = newWriter(ctx, s.writeDB, &s.committed, &s.tails); err != nil {
		return err
	}
	s.writing.Go(s.write)
	s.reap <- struct{}{} // an earlier life may have left something
	s.users.Go(s.reapDeleted)
	return nil
}

// openFile makes the folder and the file, and takes the lock.
func (s *Store) openFile() error {
	path := s.cfg.Path
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return &PathError{Path: path, Err: err}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // so that two names of one database share a lock
	} else if !errors.Is(err, fs.ErrNotExist) {
		return &PathError{Path: path, Err: err}
	}
	var err error
	if s.lock, err = takeLock(path); err != nil {
		return err
	}
	// SQLite would make it readable to all; the files it makes beside it take its mode.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return &PathError{Path: path, Err: err}
	}
	return file.Close()
}

// openDB opens a pool of connections; the parameters are SQLite's own of a file name, and the driver's pragmas.
func openDB(path, params string, size int, pragmas ...string) (*sql.DB, error) {
	query := url.Values{"_pragma": append([]string{"busy_timeout(5000)"}, pragmas...)}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, &PathError{Path: path, Err: err}
	}
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String()
	db, err := sql.Open("sqlite", name+"?"+query.Encode()+"&"+params)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

// Schema returns the version of the schema that the database had when it was opened for writing, 0 if it was new, and the
// one it has now.
func (s *Store) Schema() (found, now int64) { return s.found, s.schema }

// Close implements [session.Store]. It ends the store's goroutines and gives back the lock.
func (s *Store) Close() error { return s.close() }

func (s *Store) shut() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.closing)
	s.wakes.WakeAll()
	s.users.Wait()
	close(s.queue)
	s.writing.Wait()
	return s.release()
}

// release frees what Open took.
func (s *Store) release() error {
	var errs []error
	if s.readDB != nil {
		errs = append(errs, s.readDB.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	if s.writeDB != nil {
		errs = append(errs, s.writeDB.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.release())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close database %s: %w", s.cfg.Path, err)
	}
	return nil
}

// enter begins a call; unless it fails the caller ends it with s.users.Done.
func (s *Store) enter(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return session.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.users.Add(1)
	return nil
}

// Watch implements [session.Store]. Commits of other processes wake nobody.
func (s *Store) Watch(tree session.ID) (<-chan struct{}, func()) { return s.wakes.Watch(tree) }
