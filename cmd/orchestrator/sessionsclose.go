package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/session"
	"orchestrator/store/sqlite"
)

func (c *cli) closeSessionCommand() *cobra.Command {
	var from serverFlags
	cmd := &cobra.Command{
		Use: "close ID", Short: "Close a session, which is deleted after sessions.retention", Args: takes("ID"),
		Long: `close ends a session: its turns, subagents and calls to peers are cancelled, and it takes no input any more. It can be
looked at until sessions.retention is over; then serve deletes it, with all its subagents, calls and artifacts.

With --server a running serve closes it at once. Without, the command changes the database itself, so it needs every other
process stopped, and what the session has running is ended, and its peers are told, by the next serve or ask.`,
		Example: `  orchestrator sessions close s_01K...
  orchestrator sessions close s_01K... --server http://127.0.0.1:8420`,
		ValidArgsFunction: firstArg(c.completeSessions),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := session.ID(args[0])
			return from.or(cmd, func() error {
				retention := time.Duration(0)
				if cfg, _, err := c.config(cmd); err == nil {
					retention = cfg.Sessions.Retention
				}
				err := c.writeStore(cmd, func(ctx context.Context, s *sqlite.Store) error { return c.closeSession(ctx, s, id, retention) })
				if _, locked := errors.AsType[*sqlite.LockedError](err); locked {
					return withHint(err, "if that is a serve, let it close the session: --server URL; else stop the process, which loses nothing, and start it again")
				}
				return err
			}, func(s *server) error { return c.closeServed(cmd.Context(), s, id) })
		},
	}
	c.serverFlags(cmd, &from)
	return cmd
}

func (c *cli) closeSession(ctx context.Context, s session.Store, id session.ID, retention time.Duration) error {
	wished, err := session.WishClosed(ctx, s, id)
	if errors.Is(err, session.ErrNotFound) {
		return withHint(usageError{fmt.Errorf("there is no session %s", printable(string(id)))}, "orchestrator sessions list names the sessions there are")
	}
	if errors.Is(err, session.ErrBadInput) {
		return usageError{err}
	}
	if err != nil {
		return storeError(err)
	}
	rec, err := s.Record(ctx, session.KindSession, string(id))
	if err != nil {
		return storeError(err)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"id": id, "state": rec.State})
	}
	if !wished {
		_, err = fmt.Fprintf(c.stdout, "session %s is %s already\n", id, rec.State)
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "session %s is closing; the next serve or ask ends what it has running, and serve deletes it %s later\n", id,
		strings.TrimSuffix(strings.TrimSuffix(retention.String(), "0s"), "0m"))
	return err
}

func (c *cli) closeServed(ctx context.Context, s *server, id session.ID) error {
	info, err := s.CloseSession(ctx, id)
	if err != nil {
		return err
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"id": info.ID, "state": info.Status})
	}
	_, err = fmt.Fprintf(c.stdout, "session %s is %s\n", info.ID, info.Status)
	return err
}
