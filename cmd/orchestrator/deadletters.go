package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
)

const (
	// brokerBudget bounds how long a command waits for the broker.
	brokerBudget = 5 * time.Second
	// markedLetters is how many dead letters calls list looks through.
	markedLetters = 1000
)

func (c *cli) deadLettersCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "dead", Short: "List the dead letters of the broker: what it gave up, or nobody could understand", Args: noArgs,
		Long: `dead lists messages to and from peers behind queues that were given up: nobody took them in time, they came back too often,
they can't be understood, or no call is known that they answer. They stay where they are, in the queue a2a.dead of the
broker, for two weeks.

Others who use the broker's virtual host have their dead letters there, too.`,
		Example: `  orchestrator calls dead
  orchestrator calls dead -o json | jq -r .reason | sort | uniq -c`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usageError{fmt.Errorf("--limit is %d: it must be 1 or more", limit)}
			}
			return c.inspect(cmd, func(ctx context.Context, a *app.App) error { return c.listDeadLetters(ctx, a, limit) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "list so many, the oldest")
	return cmd
}

func (c *cli) listDeadLetters(ctx context.Context, a *app.App, limit int) error {
	bound, cancel := context.WithTimeoutCause(ctx, brokerBudget, fmt.Errorf("no answer within %s", brokerBudget))
	defer cancel()
	letters, total, err := a.DeadLetters(bound, limit)
	switch {
	case errors.Is(err, app.ErrNoBroker):
		return configError{err}
	case err != nil:
		return unreachableError{err}
	}
	if c.output == outputJSON {
		for _, l := range letters {
			if err := printJSON(c.stdout, l); err != nil {
				return err
			}
		}
		return nil
	}
	if len(letters) == 0 {
		_, err := fmt.Fprintln(c.stdout, "there are no dead letters")
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DIED\tIN QUEUE\tWHAT\tMESSAGE\tREASON")
	for _, l := range letters {
		died := "-"
		if !l.At.IsZero() {
			died = formatLeft(time.Since(l.At)) + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", died, shortText(l.Queue, 60), cmp.Or(shortText(l.Type, 40), "-"),
			cmp.Or(shortText(l.MessageID, 60), "-"), shortText(l.Reason, 160))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if total > len(letters) {
		_, err = fmt.Fprintf(c.stderr, "%d more; --limit shows them\n", total-len(letters))
	}
	return err
}

// markDeadLetters says of calls that their messages are dead. A broker that doesn't answer is no reason to say nothing of
// the calls.
func (c *cli) markDeadLetters(ctx context.Context, cfg app.Config, rows []callRow) {
	if len(rows) == 0 || cfg.Queue.URLEnv+cfg.Queue.URLFile == "" {
		return
	}
	bound, cancel := context.WithTimeoutCause(ctx, brokerBudget, fmt.Errorf("no answer within %s", brokerBudget))
	defer cancel()
	a, err := app.Inspect(cfg)
	if err == nil {
		var letters []app.DeadLetter
		letters, _, err = a.DeadLetters(bound, markedLetters)
		for _, l := range letters {
			for i := range rows {
				if l.MessageID == string(rows[i].ID) && l.Type != "" {
					rows[i].DeadLetter = &l
				}
			}
		}
		err = errors.Join(err, a.Stop(bound))
	}
	if err != nil && !errors.Is(err, app.ErrNoBroker) {
		fmt.Fprintf(c.stderr, "the broker's dead letters can't be looked at: %s\n", printable(err.Error()))
	}
}
