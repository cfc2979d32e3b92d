package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"orchestrator/session"
)

// maxGroup bounds how many writes share a transaction, and how many wait; beyond it callers block.
const maxGroup = 64

// request is one write on its way through the writing goroutine. run may be called more than once, each time in a fresh
// transaction. It makes sure that it can go through before its first write.
type request struct {
	ctx  context.Context
	wake session.ID // the tree whose watchers it wakes, if any
	run  func(w *writer) error
	err  error
	done chan struct{}
}

// submit hands a write to the writing goroutine and waits for its end. A context that ends before the write has begun
// ends it; after that it is as quick as the disk.
func (s *Store) submit(ctx context.Context, wake session.ID, run func(w *writer) error) error {
	r := &request{ctx: ctx, wake: wake, run: run, done: make(chan struct{})}
	select {
	case s.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-r.done
	return explain(s.cfg.Path, r.err)
}

// write is the writing goroutine: it takes what is there, never waiting for more, and writes it in one transaction.
func (s *Store) write() {
	group := make([]*request, 0, maxGroup)
	for r := range s.queue {
		group = append(group[:0], r)
		for more := true; more && len(group) < maxGroup; {
			select {
			case r, ok := <-s.queue:
				if more = ok; ok {
					group = append(group, r)
				}
			default:
				more = false
			}
		}
		s.writeGroup(group)
		for _, r := range group {
			if r.err == nil && r.wake != "" {
				s.wakes.Wake(r.wake)
			}
			close(r.done)
		}
		clear(group)
	}
}

// writeGroup runs requests in one transaction. One that is refused has written nothing and doesn't touch the others; when
// the database itself fails, each is tried again alone, so that one that is too large for the disk fails alone.
func (s *Store) writeGroup(group []*request) {
	err := s.writer.transact(group)
	if err == nil {
		return
	}
	if len(group) == 1 {
		group[0].err = err
		return
	}
	for _, r := range group {
		if err := s.writer.transact([]*request{r}); err != nil {
			r.err = err // else it is what was made of the request, which may have been refused
		}
	}
}

// writer is the one connection that writes.
type writer struct {
	conn  *sql.Conn
	stmts statements
	known known
	dirty bool // the request that runs has written something

	// What the transaction that runs has read and written of records, for committed: all says that a tree is deleted.
	committed *committed
	touched   []session.Record
	all       bool

	// What it has appended to logs, a batch each, for tails.
	tails    *tails
	appended [][]session.Event
}

// statements caches prepared statements by their text.
type statements map[string]*sql.Stmt

func newWriter(ctx context.Context, db *sql.DB, c *committed, t *tails) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &writer{conn: conn, stmts: make(statements), known: newKnown(), committed: c, tails: t}, nil
}

func (w *writer) close() error {
	var errs []error
	for _, stmt := range w.stmts {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// transact runs requests in one transaction and sets their errors. Its own error is the database's: nothing was written.
func (w *writer) transact(group []*request) error {
	w.touched, w.all, w.appended = nil, false, nil
	if err := w.control("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, r := range group {
		if r.err = r.ctx.Err(); r.err != nil {
			continue
		}
		w.dirty = false
		if r.err = r.run(w); r.err != nil && w.dirty {
			return w.rollback(r.err)
		}
	}
	w.committed.drop(w.touched, w.all)
	if w.all {
		w.tails.clear()
	}
	w.tails.hold(w.appended)
	defer w.tails.free()
	if err := w.control("COMMIT"); err != nil {
		return w.rollback(err)
	}
	if !w.all {
		w.committed.put(w.touched)
		for _, events := range w.appended {
			w.tails.add(events)
		}
	}
	return nil
}

// rollback ends a transaction that failed with err; SQLite may have ended it itself.
func (w *writer) rollback(err error) error {
	_ = w.control("ROLLBACK") // fails when there is no transaction any more
	w.known = newKnown()
	return err
}

func (w *writer) control(query string) error {
	stmt, err := w.stmt(query)
	if err != nil {
		return err
	}
	_, err = stmt.Exec()
	return err
}

// exec runs a statement that writes.
func (w *writer) exec(query string, args ...any) (int64, error) {
	stmt, err := w.stmt(query)
	if err != nil {
		return 0, err
	}
	w.dirty = true
	res, err := stmt.Exec(args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row reads one row.
func (w *writer) row(query string, args ...any) rowScanner {
	stmt, err := w.stmt(query)
	if err != nil {
		return failedRow{err}
	}
	return stmt.QueryRow(args...)
}

// stmt prepares a statement. The writer's own contexts never end: a statement that is cut off would take the
// transaction of others with it.
func (w *writer) stmt(query string) (*sql.Stmt, error) {
	if stmt, ok := w.stmts[query]; ok {
		return stmt, nil
	}
	stmt, err := w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	w.stmts[query] = stmt
	return stmt, nil
}

type rowScanner interface{ Scan(dest ...any) error }

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// marks returns the parameters of an IN list: n of them.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }
