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
	"orchestrator/store/sqlite"
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
	// DeadLetter is its message, or the answer to it, when a broker has given that up.
	DeadLetter *app.DeadLetter `json:"deadLetter,omitempty"`
}

func (c *cli) callsCommand() *cobra.Command {
	var all bool
	var in string
	var from serverFlags
	list := &cobra.Command{
		Use: "list", Short: "List the calls to peers whose reply is still wanted", Args: noArgs,
		Long: `list prints the calls to peers whose reply is still wanted. With a broker configured, it says of a call over a queue when
its message, or the answer to it, is among the broker's dead letters.`,
		Example: `  orchestrator calls list
  orchestrator calls list --all --session s_01K... -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return from.or(cmd, func() error {
				return c.readStore(cmd, func(ctx context.Context, cfg app.Config, s session.Store) error {
					return c.listCalls(ctx, cfg, s, session.ID(in), all)
				})
			}, func(s *server) error {
				rows, err := s.callRows(cmd.Context(), session.ID(in), all)
				if err != nil {
					return err
				}
				return c.printCalls(rows, all)
			})
		},
	}
	list.Flags().BoolVar(&all, "all", false, "list the calls that are over too")
	list.Flags().StringVar(&in, "session", "", "list the calls of one session and its subagents")
	c.complete(list, "session", c.completeSessions)
	c.serverFlags(list, &from)
	return group("calls", "Look at calls to peers and cancel them", list, c.cancelCallCommand(), c.deadLettersCommand())
}

func (c *cli) cancelCallCommand() *cobra.Command {
	var reason string
	var from serverFlags
	cmd := &cobra.Command{
		Use: "cancel ID", Short: "Cancel a call to a peer", Args: takes("ID"),
		Long: `cancel ends the wish for a peer's reply: whoever waits for it goes on without, and a reply that comes all the same is
kept on the call and told to nobody.

With --server a running serve cancels it, and tells the peer to stop at once. Without, the command changes the database
itself, so it needs every other process stopped, and the peer is told by the next serve or ask.`,
		Example: `  orchestrator calls list
  orchestrator calls cancel c_01K...
  orchestrator calls cancel c_01K... --server http://127.0.0.1:8080`,
		ValidArgsFunction: c.completeCalls,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := session.CallID(args[0])
			return from.or(cmd, func() error {
				err := c.writeStore(cmd, func(ctx context.Context, s *sqlite.Store) error { return c.cancelCall(ctx, s, id, reason) })
				if _, locked := errors.AsType[*sqlite.LockedError](err); locked {
					return withHint(err, "if that is a serve, let it cancel the call: --server URL; else stop the process, which loses nothing, and start it again, which tells the peer")
				}
				return err
			}, func(s *server) error { return c.cancelServed(cmd.Context(), s, id, reason) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "cancelled by the operator", "why, for the log")
	c.serverFlags(cmd, &from)
	return cmd
}

// overStates are what a call whose reply is no longer wanted has come to, in words.
var overStates = map[session.State]string{
	tracker.StateAnswered: "its reply is there", tracker.StateConsumed: "its reply was used", tracker.StateFolded: "its reply came home",
	tracker.StateExpired: "its reply was given up on",
}

func (c *cli) cancelCall(ctx context.Context, s session.Store, id session.CallID, reason string) error {
	calls, err := tracker.New(tracker.Config{Store: s})
	if err != nil {
		return err
	}
	before, err := calls.Get(ctx, id)
	if errors.Is(err, session.ErrNotFound) {
		return withHint(usageError{fmt.Errorf("there is no call %s", printable(string(id)))}, "orchestrator calls list names the calls whose reply is still wanted")
	}
	if err != nil {
		return storeError(err)
	}
	p, err := calls.Cancel(ctx, id, reason)
	if err != nil {
		return storeError(err)
	}
	if over := overStates[p.State]; over != "" {
		return fmt.Errorf("call %s to %s can't be cancelled: %s", id, p.Peer, over)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"id": p.ID, "peer": p.Peer, "before": before.State, "state": p.State, "peerTold": !p.CancelOwed()})
	}
	told := "; the next serve or ask tells it so"
	if !p.CancelOwed() {
		told = ""
	}
	if before.State == tracker.StateCancelled {
		_, err = fmt.Fprintf(c.stdout, "call %s to %s was cancelled before%s\n", p.ID, p.Peer, told)
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "call %s to %s is cancelled%s\n", p.ID, p.Peer, told)
	return err
}

func (c *cli) listCalls(ctx context.Context, cfg app.Config, s session.Store, in session.ID, all bool) error {
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
	rows, err := callRows(ctx, s, q)
	if err != nil {
		return err
	}
	c.markDeadLetters(ctx, cfg, rows)
	return c.printCalls(rows, all)
}

func (c *cli) printCalls(rows []callRow, all bool) error {
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

// callRows returns the calls that a query finds, the earliest first.
func callRows(ctx context.Context, s session.Store, q session.RecordQuery) ([]callRow, error) {
	recs, err := s.Records(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	rows := make([]callRow, 0, len(recs))
	for _, rec := range recs {
		var p tracker.PendingA2ATask
		if err := rec.Decode(&p); err != nil {
			return nil, err
		}
		rows = append(rows, callRow{
			ID: p.ID, Session: p.RootID, Agent: p.SessionID, Asker: p.AskerName, Peer: p.Peer, Mode: p.Mode, State: rec.State,
			SentAt: p.SentAt, Deadline: p.Deadline, ReplyBy: p.ReplyBy, TaskID: p.PeerTaskID, Attempt: p.Attempt,
			Question: p.Question, Reply: p.Reply,
		})
	}
	slices.SortStableFunc(rows, func(a, b callRow) int { return a.SentAt.Compare(b.SentAt) })
	return rows, nil
}

// wanted says how long the reply is waited for.
func (r callRow) wanted(now time.Time) string {
	if r.DeadLetter != nil {
		return "a dead letter: " + shortText(r.DeadLetter.Reason, 60)
	}
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
