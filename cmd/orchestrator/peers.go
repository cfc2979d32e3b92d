package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/a2a"
	"orchestrator/internal/app"
)

// cardBudget bounds how long a command waits for peers to show their cards.
const cardBudget = 10 * time.Second

func (c *cli) peersCommand() *cobra.Command {
	return group("peers", "Look at the peer agents, ask them, add and remove some",
		c.addPeerCommand(), c.callPeerCommand(), c.removePeerCommand(),
		&cobra.Command{
			Use: "list", Short: "List the peers and whether they can be reached", Args: noArgs,
			Example: `  orchestrator peers list
  orchestrator peers list -o json | jq -r 'select(.reachable | not).name'`,
			RunE: func(cmd *cobra.Command, _ []string) error { return c.inspect(cmd, c.listPeers) },
		},
		&cobra.Command{
			Use: "show NAME", Short: "Show what a peer's card says; exits with 3 if it can't be reached", Args: takes("NAME"),
			Example:           `  orchestrator peers show advisor`,
			ValidArgsFunction: firstArg(c.completePeers),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.inspect(cmd, func(ctx context.Context, a *app.App) error { return c.showPeer(ctx, a, args[0]) })
			},
		})
}

// inspect gives a command the product to look at, without a database or a model.
func (c *cli) inspect(cmd *cobra.Command, look func(ctx context.Context, a *app.App) error) error {
	cfg, _, err := c.config(cmd)
	if err != nil {
		return err
	}
	a, err := app.Inspect(cfg)
	if err != nil {
		return configError{err}
	}
	err = look(cmd.Context(), a)
	return errors.Join(err, a.Stop(cmd.Context()))
}

func (c *cli) listPeers(ctx context.Context, a *app.App) error {
	ctx, cancel := context.WithTimeout(ctx, cardBudget)
	defer cancel()
	p := c.progress("fetching the cards of " + count(len(a.Peers.Peers()), "peer"))
	infos := a.Peers.Infos(ctx)
	p.Stop()
	if c.output == outputJSON {
		for _, in := range infos {
			if err := printJSON(c.stdout, in); err != nil {
				return err
			}
		}
		return nil
	}
	if len(infos) == 0 {
		_, err := fmt.Fprintln(c.stdout, "no peers are configured; list some in peers.yaml beside the config file")
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PEER\tREACHABLE\tBINDING\tSKILLS\tDESCRIPTION")
	for _, in := range infos {
		reachable, about := "yes", in.Description
		if !in.Reachable {
			reachable, about = "no", in.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", in.Name, reachable, cmp.Or(printable(in.Binding), "-"), shortText(skills(in), 40), shortText(about, 100))
	}
	return w.Flush()
}

func (c *cli) showPeer(ctx context.Context, a *app.App, name string) error {
	ctx, cancel := context.WithTimeout(ctx, cardBudget)
	defer cancel()
	p := c.progress("fetching the card of " + name)
	in, err := a.Peers.Info(ctx, name)
	p.Stop()
	if err != nil {
		if _, unknown := errors.AsType[*a2a.UnknownPeerError](err); unknown {
			err = withHint(usageError{err}, "orchestrator peers list names the peers there are")
		}
		return err
	}
	if !in.Reachable {
		return withHint(unreachableError{fmt.Errorf("peer %s can't be reached: %s", in.Name, in.Problem)},
			"check its address in peers.yaml: %s", cmp.Or(in.Card, in.Queue))
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, in)
	}
	fmt.Fprintf(c.stdout, "%s %s\n%s\n\n", in.Name, printable(in.Version), printable(in.Description))
	if in.Card != "" {
		fmt.Fprintf(c.stdout, "card       %s\n", in.Card)
	}
	if in.Queue != "" {
		fmt.Fprintf(c.stdout, "queue      %s\n", in.Queue)
	}
	fmt.Fprintf(c.stdout, "binding    %s\n", printable(in.Binding))
	fmt.Fprintf(c.stdout, "streaming  %v\n", in.Streaming)
	for _, e := range in.Endpoints {
		fmt.Fprintf(c.stdout, "endpoint   %s (%s %s)\n", printable(e.URL), printable(e.Binding), printable(e.Version))
	}
	for _, s := range in.Skills {
		fmt.Fprintf(c.stdout, "skill      %s: %s\n", printable(s.ID), shortText(s.Description, 160))
	}
	return nil
}

func skills(in a2a.Info) string {
	text := ""
	for _, s := range in.Skills {
		if text != "" {
			text += ", "
		}
		text += s.ID
	}
	if text == "" {
		return "-"
	}
	return text
}
