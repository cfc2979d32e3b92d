package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/store/sqlite"
)

// errNoDatabase says that there is nothing to look at yet.
var errNoDatabase = errors.New("there are no sessions yet")

// readStore gives a command the store to look at, beside a running process if there is one.
func (c *cli) readStore(cmd *cobra.Command, look func(ctx context.Context, cfg app.Config, s session.Store) error) error {
	cfg, err := c.sqliteConfig(cmd)
	if err != nil {
		return err
	}
	s, err := sqlite.Open(cmd.Context(), sqlite.Config{Path: cfg.Store.Path, ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return noDatabase(cfg)
	}
	if err != nil {
		return storeError(err)
	}
	return errors.Join(look(cmd.Context(), cfg, s), s.Close())
}

// isStoreError reports whether an error is the store's.
func isStoreError(err error) bool {
	var hinted hintError
	return errors.As(storeError(err), &hinted)
}

// storeError adds to an error of a store its exit code and what to do next.
func storeError(err error) error {
	var locked *sqlite.LockedError
	var path *sqlite.PathError
	var corrupt *sqlite.CorruptError
	var schema *sqlite.SchemaError
	switch {
	case errors.Is(err, sqlite.ErrFull):
		return withHint(err, "make room on the disk; nothing of what was written before is lost")
	case errors.As(err, &locked):
		return withHint(unreachableError{err}, "if that is a serve, let it do the work: orchestrator ask --server URL; else stop it first, or use another database with --data-dir")
	case errors.As(err, &path):
		return withHint(configError{err}, "set data_dir or store.path to a place that can be written, or use --data-dir")
	case errors.As(err, &corrupt):
		return withHint(err, "move the file away to begin anew, or put a backup in its place")
	case errors.As(err, &schema):
		if schema.Have < schema.Want {
			return withHint(err, "make a copy of the file, then: orchestrator migrate")
		}
		return withHint(err, "it was written by a newer orchestrator; use that one, or another database with --data-dir")
	}
	return err
}

// eachEvent calls f with every durable event of a tree after a seq, with its body in place.
func eachEvent(ctx context.Context, s session.Store, root session.ID, after uint64, f func(session.Event) error) error {
	const page = 500
	for {
		events, err := s.Events(ctx, session.EventQuery{Tree: root, After: after, Limit: page})
		if err != nil {
			return fmt.Errorf("read session %s: %w", root, err)
		}
		for _, e := range events {
			if err := session.Resolve(ctx, s, &e); err != nil {
				return err
			}
			if err := f(e); err != nil {
				return err
			}
			after = e.Seq
		}
		if len(events) < page {
			return nil
		}
	}
}
