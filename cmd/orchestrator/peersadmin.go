package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"orchestrator/a2a"
	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/store/sqlite"
)

func (c *cli) addPeerCommand() *cobra.Command {
	g := a2a.Registration{By: "the operator"}
	cmd := &cobra.Command{
		Use: "add NAME --card-url URL", Short: "Make a peer known, also to a server that runs", Args: takes("NAME"),
		Long: `add fetches a peer's card and, if the peer can be asked, keeps its name and URL in peers.registered.json in data_dir. A
serve or ask that runs on the same data_dir knows it within a second. The same again renews the description.

Such a peer is asked without credentials, and only at public addresses unless a2a.allow_private lists its own. One that
needs more than that belongs in peers.yaml, whose peers this command doesn't change.

It exits with 3 when the card can't be fetched, and with 1 when the name is taken, or the peer can't be asked.`,
		Example: `  orchestrator peers add advisor --card-url https://advisor.example.com
  orchestrator peers add archivist --card-url https://example.com/agents/archivist/agent-card.json --description "Knows old cases."`,
		RunE: func(cmd *cobra.Command, args []string) error {
			g.Name = args[0]
			if g.URL == "" {
				return withHint(usageError{errors.New("--card-url is required: the peer's base URL, or that of its card")},
					"orchestrator peers add %s --card-url https://...", printable(g.Name))
			}
			return c.inspect(cmd, func(ctx context.Context, a *app.App) error { return c.addPeer(ctx, a, g) })
		},
	}
	cmd.Flags().StringVar(&g.URL, "card-url", "", "the peer's base URL, or that of its card")
	cmd.Flags().StringVar(&g.Description, "description", "", "what the peer is for (default what its card says)")
	return cmd
}

func (c *cli) addPeer(ctx context.Context, a *app.App, g a2a.Registration) error {
	if err := keepsPeers(a); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cardBudget, fmt.Errorf("the card did not come within %s", cardBudget))
	defer cancel()
	_, err := a.Peers.Lookup(g.Name)
	known := err == nil
	p := c.progress("fetching the card of " + g.Name)
	in, err := a.Peers.Add(ctx, g)
	p.Stop()
	if err != nil {
		return addError(g, err)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, in)
	}
	verb := "added"
	if known {
		verb = "kept"
	}
	_, err = fmt.Fprintf(c.stdout, "peer %s is %s: %s\n", in.Name, verb, shortText(in.Description, 100))
	return err
}

// addError says why a peer was not added, and what to do.
func addError(g a2a.Registration, err error) error {
	_, notSent := errors.AsType[*a2a.NotSentError](err)
	_, status := errors.AsType[*a2a.StatusError](err)
	_, address := errors.AsType[*a2a.AddressError](err)
	invalid, isInvalid := errors.AsType[*a2a.RegistrationError](err)
	err = fmt.Errorf("peer %s is not added: %w", printable(g.Name), err)
	switch {
	case isInvalid:
		return withHint(usageError{err}, "correct the %s", invalid.Field)
	case address:
		return withHint(err, "if it is yours, list its address in a2a.allow_private, or the peer in peers.yaml")
	case notSent, status:
		return withHint(unreachableError{err}, "check the address, and whether the peer runs: curl %s", printable(g.URL))
	case errors.Is(err, a2a.ErrListed):
		return withHint(err, "edit peers.yaml, or choose another name")
	}
	return err
}

func (c *cli) removePeerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Forget a peer that was added, also in a server that runs", Args: takes("NAME"),
		Long: `remove forgets a peer that "peers add" or an agent's register_agent has added. A serve or ask that runs on the same
data_dir forgets it within a second. Peers of peers.yaml are removed there.

A call to the peer that still wants a reply isn't cancelled; it gets none unless the peer is added again. remove says how
many there are.`,
		Example: `  orchestrator peers remove advisor`,
		ValidArgsFunction: firstArg(func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			_ = c.inspect(cmd, func(_ context.Context, a *app.App) error { // nothing is offered then
				for _, p := range a.Peers.Peers() {
					if p.Registered {
						names = append(names, p.Name+"\t"+shortText(p.Description, 60))
					}
				}
				return nil
			})
			return names, cobra.ShellCompDirectiveNoFileComp
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.inspect(cmd, func(ctx context.Context, a *app.App) error { return c.removePeer(ctx, a, args[0]) })
		},
	}
}

func (c *cli) removePeer(ctx context.Context, a *app.App, name string) error {
	if err := keepsPeers(a); err != nil {
		return err
	}
	if err := a.Peers.Remove(ctx, name); err != nil {
		if _, unknown := errors.AsType[*a2a.UnknownPeerError](err); unknown {
			return withHint(usageError{err}, "orchestrator peers list names the peers there are")
		}
		err = fmt.Errorf("peer %s is not removed: %w", printable(name), err)
		if errors.Is(err, a2a.ErrListed) {
			return withHint(err, "remove it from peers.yaml, and start serve again")
		}
		return err
	}
	open := openCallsTo(ctx, a.Config(), name)
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"name": name, "removed": true, "openCalls": open})
	}
	if _, err := fmt.Fprintf(c.stdout, "peer %s is removed\n", name); err != nil {
		return err
	}
	if open > 0 {
		fmt.Fprintf(c.stderr, "%s to it still wants a reply and gets none; orchestrator calls list --all names the calls, calls cancel ends one\n", count(open, "call"))
	}
	return nil
}

// openCallsTo counts the calls to a peer whose reply is still wanted. It is for information only: where the database can't
// be looked at there are none to tell of.
func openCallsTo(ctx context.Context, cfg app.Config, peer string) int {
	s, err := sqlite.Open(ctx, sqlite.Config{Path: cfg.Store.Path, ReadOnly: true})
	if err != nil {
		return 0
	}
	defer s.Close()
	rows, err := callRows(ctx, s, session.RecordQuery{Kind: session.KindCall, States: wantedCalls})
	if err != nil {
		return 0
	}
	n := 0
	for _, r := range rows {
		if r.Peer == peer {
			n++
		}
	}
	return n
}

// keepsPeers refuses to change peers that would be forgotten when the command ends.
func keepsPeers(a *app.App) error {
	if a.Config().RegisteredPeers() == "" {
		return withHint(configError{errors.New("store.driver is memory, which keeps no peers")}, "list the peer in peers.yaml")
	}
	return nil
}
