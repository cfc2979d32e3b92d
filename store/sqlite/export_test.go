package sqlite

import (
	"context"
	"fmt"

	"orchestrator/session"
)

// LimitPages lets the database grow by so many pages and no further; less than 0 is no limit.
func (s *Store) LimitPages(more int) error {
	return s.submit(context.Background(), "", func(w *writer) error {
		pages := int64(1<<32 - 2)
		if more >= 0 {
			if err := w.conn.QueryRowContext(context.Background(), `PRAGMA page_count`).Scan(&pages); err != nil {
				return err
			}
			pages += int64(more)
		}
		return w.conn.QueryRowContext(context.Background(), fmt.Sprintf(`PRAGMA max_page_count = %d`, pages)).Scan(&pages)
	})
}

// Pragma returns a pragma's value on the connection that writes.
func (s *Store) Pragma(name string) (value string, err error) {
	err = s.submit(context.Background(), "", func(w *writer) error {
		return w.conn.QueryRowContext(context.Background(), `PRAGMA `+name).Scan(&value)
	})
	return value, err
}

// Rows counts what is in a table.
func (s *Store) Rows(table string) (n int, err error) {
	err = s.readDB.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n)
	return n, err
}

// Reap frees the space of deleted trees now.
func (s *Store) Reap() error { return s.reapAll() }

// Hold keeps the writing goroutine busy until release is called.
func (s *Store) Hold() (release func()) {
	held, end, done := make(chan struct{}), make(chan struct{}), make(chan error)
	s.users.Go(func() {
		done <- s.submit(context.Background(), "", func(*writer) error {
			close(held)
			<-end
			return nil
		})
	})
	<-held
	return func() {
		close(end)
		<-done
	}
}

// Queued is how many writes wait.
func (s *Store) Queued() int { return len(s.queue) }

// OnCommitted has f called by the writing goroutine whenever events are in the database and [tails] is about to be told.
func (s *Store) OnCommitted(f func()) {
	watched := s.tails.watched
	s.tails.watched = func(tree session.ID) bool {
		f()
		return watched(tree)
	}
}
