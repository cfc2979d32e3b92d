package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/tracker"
)

// liveTurns are the states of a turn that has not ended.
var liveTurns = []session.State{session.StateQueued, session.StateRunning, session.StateSuspended}

// sessionRow is what sessions list says of a session.
type sessionRow struct {
	ID        session.ID    `json:"id"`
	State     session.State `json:"state"` // open or closed
	Agent     string        `json:"agent"`
	Title     string        `json:"title,omitempty"`
	Created   time.Time     `json:"created"`
	Turns     int           `json:"turns"`     // that have not ended, of the root and its subagents
	Subagents int           `json:"subagents"` // that have not ended
	Calls     int           `json:"calls"`     // whose reply is still wanted
	Events    uint64        `json:"events"`
}

func (c *cli) sessionsCommand() *cobra.Command {
	var all bool
	var listFrom, showFrom serverFlags
	list := &cobra.Command{
		Use: "list", Short: "List the sessions, the newest first", Args: noArgs,
		Example: `  orchestrator sessions list
  orchestrator sessions list --all -o json | jq -r 'select(.turns > 0).id'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit := 50
			if all {
				limit = 0
			}
			return listFrom.or(cmd, func() error {
				return c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error { return c.listSessions(ctx, s, limit) })
			}, func(s *server) error {
				rows, err := s.rows(cmd.Context(), limit)
				if err != nil {
					return err
				}
				return c.printSessions(rows)
			})
		},
	}
	list.Flags().BoolVar(&all, "all", false, "list all, not only the last 50")
	c.serverFlags(list, &listFrom)
	show := &cobra.Command{
		Use: "show ID", Short: "Tell what happened in a session; -o json prints its log", Args: takes("ID"),
		Example: `  orchestrator sessions show s_01K...
  orchestrator sessions show s_01K... -o json > log.jsonl`,
		ValidArgsFunction: firstArg(c.completeSessions),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showFrom.or(cmd, func() error {
				return c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error {
					return c.showSession(ctx, s, session.ID(args[0]))
				})
			}, func(s *server) error { return c.showServed(cmd.Context(), s, session.ID(args[0])) })
		},
	}
	c.serverFlags(show, &showFrom)
	return group("sessions", "Look at sessions and close them", c.closeSessionCommand(), list, c.tailSessionCommand(), show)
}

func (c *cli) listSessions(ctx context.Context, s session.Store, limit int) error {
	trees, err := s.Trees(ctx, limit)
	if err != nil {
		return fmt.Errorf("list sessions: %w", err)
	}
	rows := make([]sessionRow, 0, len(trees))
	for _, t := range trees {
		row, err := sessionOf(ctx, s, t)
		if errors.Is(err, session.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return c.printSessions(rows)
}

func (c *cli) printSessions(rows []sessionRow) error {
	if c.output == outputJSON {
		for _, row := range rows {
			if err := printJSON(c.stdout, row); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(c.stdout, `no sessions yet; begin one with: orchestrator ask "..."`)
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tCREATED\tAGENT\tSTATE\tAT WORK\tTITLE")
	for _, r := range rows {
		state := string(r.State)
		if r.State == session.StateOpen {
			state = "idle"
			if r.Turns > 0 {
				state = "running"
			}
		}
		work := "-"
		if r.Subagents > 0 || r.Calls > 0 {
			work = fmt.Sprintf("%s, %s", count(r.Subagents, "subagent"), count(r.Calls, "call"))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Created.Local().Format("2006-01-02 15:04"), printable(r.Agent), state, work, shortText(r.Title, 60))
	}
	return w.Flush()
}

func sessionOf(ctx context.Context, s session.Store, t session.TreeInfo) (sessionRow, error) {
	rec, err := s.Record(ctx, session.KindSession, string(t.ID))
	if err != nil {
		return sessionRow{}, fmt.Errorf("read session %s: %w", t.ID, err)
	}
	var body session.SessionBody
	if err := rec.Decode(&body); err != nil {
		return sessionRow{}, err
	}
	row := sessionRow{ID: t.ID, State: rec.State, Agent: body.Agent, Title: body.Title, Created: t.Created, Events: t.HeadSeq}
	for _, c := range []struct {
		kind   session.Kind
		states []session.State
		n      *int
	}{
		{session.KindTurn, liveTurns, &row.Turns},
		{session.KindChild, liveTurns, &row.Subagents},
		{session.KindCall, wantedCalls, &row.Calls},
	} {
		recs, err := s.Records(ctx, session.RecordQuery{Tree: t.ID, Kind: c.kind, States: c.states})
		if err != nil {
			return row, fmt.Errorf("read session %s: %w", t.ID, err)
		}
		*c.n = len(recs)
	}
	return row, nil
}

// wantedCalls are the states of a call whose reply somebody waits for or would still take.
var wantedCalls = slices.Concat(tracker.LiveStates, tracker.FollowStates)

func (c *cli) showSession(ctx context.Context, s session.Store, id session.ID) error {
	root, err := rootOf(ctx, s, id)
	if err != nil {
		return err
	}
	return c.tellSession(func(f func(session.Event) error) error { return eachEvent(ctx, s, root, 0, f) }, func() (sessionRow, error) {
		info, err := s.Tree(ctx, root)
		if err != nil {
			return sessionRow{}, fmt.Errorf("read session %s: %w", root, err)
		}
		return sessionOf(ctx, s, info)
	})
}

// tellSession tells what happened in a session, given its events and, after them, its row.
func (c *cli) tellSession(each func(func(session.Event) error) error, rowOf func() (sessionRow, error)) error {
	if c.output == outputJSON {
		return each(func(e session.Event) error { return printJSON(c.stdout, e) })
	}
	v := newView(viewConfig{Out: c.stdout, Notes: c.stdout, Together: true})
	var last time.Time
	err := each(func(e session.Event) error {
		v.Event(e, e.Time)
		last = e.Time
		return v.err
	})
	if err != nil {
		return err
	}
	row, err := rowOf()
	if err != nil {
		return err
	}
	now := last
	if row.Turns+row.Subagents+row.Calls > 0 {
		now = time.Now() // something still goes on, so times left are from now
	}
	v.note("")
	for _, spans := range v.board.tree(now, 110, 200) {
		v.note(lineText(spans) + "\n")
	}
	return v.Close()
}

// rootOf returns the root session of a session's tree.
func rootOf(ctx context.Context, s session.Store, id session.ID) (session.ID, error) {
	rec, err := s.Record(ctx, session.KindSession, string(id))
	if err != nil {
		return "", fmt.Errorf("session %s: %w", printable(string(id)), err)
	}
	return rec.Tree, nil
}
