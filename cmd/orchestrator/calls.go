package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/tracker"
)

// callRow is what calls list says of a call.
type callRow struct {
	ID       session.CallID   `json:"id"`
	Session  session.ID       `json:"sessionId"` // the root
	Agent    session.ID       `json:"agentId"`   // who called
	Asker    string           `json:"asker"`
	Peer     string           `json:"peer"`
	Mode     session.CallMode `json:"mode"`
	State    session.State    `json:"state"`
	SentAt   time.Time        `json:"sentAt"`
	Deadline time.Time        `json:"deadline"`
	ReplyBy  time.Time        `json:"replyBy"`
	TaskID   string           `json:"peerTaskId,omitempty"`
	Attempt  int              `json:"attempt"`
	Question string           `json:"question,omitempty"`
	Reply    *tracker.Reply   `json:"reply,omitempty"`
}

func (c *cli) callsCommand() *cobra.Command {
	var all bool
	var in string
	list := &cobra.Command{
		Use: "list", Short: "List the calls to peers whose reply is still wanted", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.readStore(cmd, func(ctx context.Context, _ app.Config, s session.Store) error {
				return c.listCalls(ctx, s, session.ID(in), all)
			})
		},
	}
	list.Flags().BoolVar(&all, "all", false, "list the calls that are over too")
	list.Flags().StringVar(&in, "session", "", "list the calls of one session and its subagents")
	return group("calls", "Look at calls to peers", list)
}

func (c *cli) listCalls(ctx context.Context, s session.Store, in session.ID, all bool) error {
	q := session.RecordQuery{Kind: session.KindCall, States: wantedCalls}
	if all {
		q.States = nil
	}
	if in != "" {
		root, err := rootOf(ctx, s, in)
		if err != nil {
			return err
		}
		q.Tree = root
	}
	recs, err := s.Records(ctx, q)
	if err != nil {
		return fmt.Errorf("list calls: %w", err)
	}
	rows := make([]callRow, 0, len(recs))
	for _, rec := range recs {
		var p tracker.PendingA2ATask
		if err := rec.Decode(&p); err != nil {
			return err
		}
		rows = append(rows, callRow{
			ID: p.ID, Session: p.RootID, Agent: p.SessionID, Asker: p.AskerName, Peer: p.Peer, Mode: p.Mode, State: rec.State,
			SentAt: p.SentAt, Deadline: p.Deadline, ReplyBy: p.ReplyBy, TaskID: p.PeerTaskID, Attempt: p.Attempt,
			Question: p.Question, Reply: p.Reply,
		})
	}
	slices.SortStableFunc(rows, func(a, b callRow) int { return a.SentAt.Compare(b.SentAt) })
	if c.output == outputJSON {
		for _, row := range rows {
			if err := printJSON(c.stdout, row); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(c.stdout, "no calls", map[bool]string{true: "were made", false: "are waiting for a reply; --all lists those that are over"}[all])
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CALL\tPEER\tSTATE\tASKED\tASKED BY\tREPLY\tQUESTION")
	now := time.Now()
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s ago\t%s\t%s\t%s\n", r.ID, r.Peer, r.State, formatLeft(now.Sub(r.SentAt)), shortText(r.Asker, 24), r.wanted(now), shortText(r.Question, 50))
	}
	return w.Flush()
}

// wanted says how long the reply is waited for.
func (r callRow) wanted(now time.Time) string {
	switch {
	case r.State == tracker.StateWaiting, r.State == tracker.StateOpen:
		return "due in " + formatLeft(r.Deadline.Sub(now))
	case r.State == tracker.StateDetached:
		return "wanted for " + formatLeft(r.ReplyBy.Sub(now))
	case r.Reply != nil:
		return "came after " + formatLeft(r.Reply.At.Sub(r.SentAt))
	}
	return "none"
}
