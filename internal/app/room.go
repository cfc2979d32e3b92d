package app

import (
	"context"
	"errors"

	"orchestrator/session"
	"orchestrator/store/sqlite"
)

// roomWatch is a store that tells when there was no room for a write.
type roomWatch struct {
	session.Store
	full chan<- error // has room for one error; further ones are dropped
}

// Commit implements [session.Store].
func (w roomWatch) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	done, err := w.Store.Commit(ctx, b)
	if errors.Is(err, sqlite.ErrFull) {
		select {
		case w.full <- err:
		default:
		}
	}
	return done, err
}
