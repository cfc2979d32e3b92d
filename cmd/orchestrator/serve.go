package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
)

func (c *cli) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the session API and go on with every session's work until stopped",
		Long: `serve takes up what earlier runs left unfinished: turns, subagents, and calls whose reply is still wanted. It answers
the session API (/v1, described by /openapi.json), /healthz, /readyz and /metrics on the address of listen, and reads the tool
profiles anew on SIGHUP. Without auth.required requests without an API key are yours, and only a loopback address is allowed;
keys create makes API keys.

SIGTERM and SIGINT stop it: streams end with a position to resume from, and nothing is cancelled. The next run goes on. A stop
takes at most stop_timeout; a second signal ends the process at once.`,
		Example: `  orchestrator serve
  orchestrator serve --config /etc/orchestrator/orchestrator.yaml --log-format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.serve(cmd) },
	}
	cmd.Flags().String("listen", "", "address to listen on")
	return cmd
}

func (c *cli) serve(cmd *cobra.Command) (err error) {
	cfg, _, err := c.config(cmd)
	if err != nil {
		return err
	}
	log, err := c.logger(cfg, false)
	if err != nil {
		return configError{err}
	}
	cfg.Version = readBuildInfo().Version
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // until the end: one that comes while it starts or stops must not end it
	defer signal.Stop(hangups)
	ctx := cmd.Context()
	a, stop, err := startApp(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { reloadOn(ctx, hangups, a, log) })
	err = a.Serve(ctx, func(addr net.Addr) {
		log.InfoContext(ctx, "serving", "address", addr.String(), "database", cfg.Store.Path, "version", readBuildInfo().Version)
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return withHint(fmt.Errorf("address %s is in use by another process", cfg.Listen), "set another with --listen, or stop what uses it")
	}
	if err == nil {
		log.InfoContext(ctx, "stopping; what is unfinished goes on with the next start")
	}
	return err
}

// reloadOn reads the profiles anew at every hangup until ctx ends.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, a *app.App, log *slog.Logger) {
	for {
		select {
		case <-hangups:
			if err := a.Profiles.Reload(); err != nil {
				log.ErrorContext(ctx, "reload", "err", err)
				continue
			}
			log.InfoContext(ctx, "profiles are reloaded")
		case <-ctx.Done():
			return
		}
	}
}
