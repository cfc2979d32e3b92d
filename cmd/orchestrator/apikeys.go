package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"orchestrator/httpapi"
)

func (c *cli) keysCommand() *cobra.Command {
	return group("keys", "Make, list and revoke the API keys of the session API", c.createKeyCommand(), c.listKeysCommand(), c.revokeKeyCommand())
}

// apiKeys returns the keys in the file that the configuration names.
func (c *cli) apiKeys(cmd *cobra.Command) (*httpapi.Keys, error) {
	cfg, _, err := c.config(cmd)
	if err != nil {
		return nil, err
	}
	keys, err := httpapi.OpenKeys(cfg.Auth.KeysFile, nil)
	if err != nil {
		return nil, configError{err}
	}
	return keys, nil
}

func (c *cli) createKeyCommand() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "create PRINCIPAL", Short: "Make an API key for a principal and print it, once", Args: takes("PRINCIPAL"),
		Long: `create prints a new API key on standard output. It is shown this once; the file of auth.keys_file keeps its hash. Whoever
has the key sees the sessions of its principal and no others. A running serve takes it within a second.`,
		Example: `  orchestrator keys create alice --note laptop
  export ORCHESTRATOR_API_KEY=$(orchestrator keys create ci)`,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := c.apiKeys(cmd)
			if err != nil {
				return err
			}
			secret, key, err := keys.Create(args[0], note)
			if errors.Is(err, httpapi.ErrBadKey) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return printJSON(c.stdout, map[string]any{"id": key.ID, "principal": key.Principal, "note": key.Note, "created": key.Created, "key": secret})
			}
			fmt.Fprintf(c.stderr, "key %s of %s, in %s; it is not shown again:\n", key.ID, key.Principal, keys.Path())
			_, err = fmt.Fprintln(c.stdout, secret)
			return err
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "what the key is for")
	return cmd
}

func (c *cli) listKeysCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the API keys, without what makes them work", Args: noArgs,
		Example: "  orchestrator keys list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := c.apiKeys(cmd)
			if err != nil {
				return err
			}
			all, err := keys.List()
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				for _, k := range all {
					k.Hash = ""
					if err := printJSON(c.stdout, k); err != nil {
						return err
					}
				}
				return nil
			}
			if len(all) == 0 {
				_, err := fmt.Fprintln(c.stdout, "no keys yet; make one with: orchestrator keys create PRINCIPAL")
				return err
			}
			w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KEY\tPRINCIPAL\tCREATED\tSTATE\tNOTE")
			for _, k := range all {
				state := "valid"
				if k.Revoked != nil {
					state = "revoked " + k.Revoked.Local().Format("2006-01-02 15:04")
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.ID, printable(k.Principal), k.Created.Local().Format("2006-01-02 15:04"), state, shortText(k.Note, 60))
			}
			return w.Flush()
		},
	}
}

func (c *cli) revokeKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke KEY", Short: "Revoke an API key by its id", Args: takes("KEY"),
		Long: `revoke makes a key worth nothing. A running serve refuses it within a second, and ends its event streams at their next
heartbeat. The principal's sessions and other keys stay.`,
		Example: `  orchestrator keys list
  orchestrator keys revoke k1f2e3d4c5b`,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := c.apiKeys(cmd)
			if err != nil {
				return err
			}
			key, err := keys.Revoke(args[0])
			if errors.Is(err, httpapi.ErrNoKey) {
				return withHint(usageError{fmt.Errorf("there is no key %s", printable(args[0]))}, "orchestrator keys list names them")
			}
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				key.Hash = ""
				return printJSON(c.stdout, key)
			}
			_, err = fmt.Fprintf(c.stdout, "key %s of %s is revoked\n", key.ID, key.Principal)
			return err
		},
	}
}
