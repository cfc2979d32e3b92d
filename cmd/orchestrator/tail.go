package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/tracker"
)

// tailPause is how often tail looks for what another process has written, which wakes nobody here.
const tailPause = 300 * time.Millisecond

func (c *cli) tailSessionCommand() *cobra.Command {
	var last int
	var untilIdle bool
	var from serverFlags
	cmd := &cobra.Command{
		Use: "tail ID", Short: "Follow what happens in a session; -o json prints its log", Args: takes("ID"),
		Long: `tail prints the last of what happened in a session and its subagents, and then what happens, as it is written. It only
reads, beside the process that runs the session if there is one, until it is interrupted; with --until-idle until nothing
of the session is at work and no reply is waited for.

With --server it follows a session of a running serve as it happens, on a terminal with the tree of who runs and who waits,
and goes on when the connection or the server is lost and found again.`,
		Example: `  orchestrator sessions tail s_01K...
  orchestrator sessions tail s_01K... -n 0 --until-idle
  orchestrator sessions tail s_01K... -o json | jq -r .type`,
		ValidArgsFunction: firstArg(c.completeSessions),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return usageError{fmt.Errorf("-n is %d: it must not be negative", last)}
			}
			return from.or(cmd, func() error {
				return c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error {
					return c.tailSession(ctx, s, session.ID(args[0]), last, untilIdle)
				})
			}, func(s *server) error { return c.tailServed(cmd.Context(), s, session.ID(args[0]), last, untilIdle) })
		},
	}
	cmd.Flags().IntVarP(&last, "lines", "n", 20, "how many of the events there are already to begin with")
	cmd.Flags().BoolVar(&untilIdle, "until-idle", false, "end when nothing is at work")
	c.serverFlags(cmd, &from)
	return cmd
}

func (c *cli) tailSession(ctx context.Context, s session.Store, id session.ID, last int, untilIdle bool) error {
	root, err := rootOf(ctx, s, id)
	if err != nil {
		return err
	}
	info, err := s.Tree(ctx, root)
	if err != nil {
		return fmt.Errorf("read session %s: %w", root, err)
	}
	from := info.HeadSeq - min(info.HeadSeq, uint64(last)) // events up to here are known, not shown
	v := newView(viewConfig{Out: c.stdout, Notes: c.stdout, Together: true})
	var after uint64
	show := func(e session.Event) error {
		after = e.Seq
		switch {
		case c.output == outputJSON && e.Seq > from:
			return printJSON(c.stdout, e)
		case e.Seq > from:
			v.Event(e, e.Time)
		default:
			v.Replay(e)
		}
		return v.Failed()
	}
	tick := time.NewTicker(tailPause)
	defer tick.Stop()
	for {
		// Looked at before the log is read, so that what ended it is read.
		idle := false
		if untilIdle {
			if idle, err = isIdle(ctx, s, root); err != nil {
				return err
			}
		}
		if err := eachEvent(ctx, s, root, after, show); err != nil {
			return err
		}
		if idle {
			return v.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errInterrupted
		}
		if _, err := s.Tree(ctx, root); err != nil {
			return fmt.Errorf("follow session %s: %w", root, err) // it was deleted
		}
	}
}

// isIdle reports whether nothing of a session is at work and no reply is waited for. A reply that would still be taken, but
// nobody waits for, doesn't count.
func isIdle(ctx context.Context, s session.Store, root session.ID) (bool, error) {
	info, err := s.Tree(ctx, root)
	if err != nil {
		return false, fmt.Errorf("follow session %s: %w", root, err)
	}
	row, err := sessionOf(ctx, s, info)
	if err != nil {
		return false, err
	}
	late, err := s.Records(ctx, session.RecordQuery{Tree: root, Kind: session.KindCall, States: tracker.FollowStates})
	if err != nil {
		return false, fmt.Errorf("follow session %s: %w", root, err)
	}
	items, err := s.Records(ctx, session.RecordQuery{Tree: root, Kind: session.KindItem, States: []session.State{session.StateReady}})
	if err != nil {
		return false, fmt.Errorf("follow session %s: %w", root, err)
	}
	now, err := s.Tree(ctx, root)
	if err != nil {
		return false, fmt.Errorf("follow session %s: %w", root, err)
	}
	// What has moved on between the looks may be in none of them.
	return now.HeadSeq == info.HeadSeq && row.Turns+row.Subagents+row.Calls-len(late)+len(items) == 0, nil
}
