package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) healthCommand() *cobra.Command {
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the serve of this machine whether it is ready; exits with 3 if it isn't", Args: noArgs,
		Long: `health asks /readyz of the serve that listens on the address of listen, or with --live its /healthz. A container or a
supervisor that can't ask over the network probes by running this command inside.`,
		Example: `  orchestrator health
  orchestrator health --live --timeout 1s`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError{fmt.Errorf("--timeout is %s: it must be more than 0", timeout)}
			}
			cfg, _, err := c.config(cmd)
			if err != nil {
				return err
			}
			return c.health(cmd.Context(), cfg.Listen, live, timeout)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process answers, not whether its database does")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	cmd.Flags().String("listen", "", "address that serve listens on")
	return cmd
}

func (c *cli) health(ctx context.Context, listen string, live bool, timeout time.Duration) error {
	path := "/readyz"
	if live {
		path = "/healthz"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+path, nil)
	if err != nil {
		return configError{fmt.Errorf("listen is %q: %w", listen, err)}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: it is this machine
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op
		}
		return withHint(unreachableError{fmt.Errorf("serve doesn't answer on %s: %w", listen, err)}, "start it with: orchestrator serve")
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return unreachableError{fmt.Errorf("read the answer of serve on %s: %w", listen, err)}
	}
	if res.StatusCode != http.StatusOK {
		return withHint(unreachableError{fmt.Errorf("serve on %s is not ready: %s %s", listen, res.Status, shortText(strings.TrimSpace(string(body)), 200))},
			"its log on standard error says why")
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]string{"status": "ok", "address": listen})
	}
	_, err = fmt.Fprintln(c.stdout, "ok")
	return err
}
