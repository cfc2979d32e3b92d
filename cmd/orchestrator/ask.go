package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/internal/telemetry"
	"orchestrator/session"
)

type askFlags struct {
	late    time.Duration
	noWait  bool
	session string
	server  serverFlags
}

func (c *cli) askCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use:   `ask "..."`,
		Short: "Ask the primary agent and wait for everything it sets going",
		Long: `ask runs a primary agent on the question, with its subagents and its calls to peers, and prints what it says as it comes:
the agent's words on standard output, what happens meanwhile on standard error (on a terminal, as a tree).

It ends when everything the question set going has come home, and waits up to --late for peers that were given up on.
What is still open then stays in the database and is followed by the next ask or serve.

With --server a running serve does the work, and ask shows it: it needs no configuration and no model, goes on when the
connection or the server is lost and found again, and may be interrupted, which cancels nothing.

It exits with 1 when the turn fails, and with 3 when it does since nothing answers at the model's address.`,
		Example: `  orchestrator ask "Compare the three ways to cross the bay."
  orchestrator ask --session s_01K... "And the cheapest?"
  orchestrator ask --no-wait "Plan the move." && orchestrator serve
  ORCHESTRATOR_API_KEY=... orchestrator ask --server https://agents.example.com "Compare ..."`,
		Args: takes(`"..."`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(args[0]) == "" {
				return withHint(usageError{errors.New("the question is empty")}, `orchestrator ask "..."`)
			}
			if f.late < 0 {
				return usageError{fmt.Errorf("--late is %s: it must not be negative", f.late)}
			}
			return f.server.or(cmd, func() error { return c.ask(cmd, args[0], f) }, func(s *server) error { return c.askServer(cmd.Context(), s, args[0], f) })
		},
	}
	cmd.Flags().DurationVar(&f.late, "late", time.Minute, "how long to wait for late answers")
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "end with the first answer, and say how to look later")
	cmd.Flags().StringVar(&f.session, "session", "", "go on with this session")
	c.complete(cmd, "session", c.completeSessions)
	c.serverFlags(cmd, &f.server)
	return cmd
}

// logger returns a logger to standard error. quiet leaves out what only an operator of a server wants to read.
func (c *cli) logger(cfg app.Config, quiet bool) (*slog.Logger, error) {
	level := cfg.Log.Level
	if quiet && level == "info" {
		level = "warn"
	}
	return telemetry.NewLogger(telemetry.LogConfig{Writer: c.stderr, Level: level, Format: cfg.Log.Format})
}

// startApp starts the product. The caller stops it with what is returned.
func startApp(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.App, func() error, error) {
	tracing, flush, err := telemetry.NewTracing(ctx, telemetry.TraceConfig{
		Endpoint: cfg.Telemetry.OTLPEndpoint, Version: version, Getenv: cfg.Getenv, Logger: log,
	})
	if err != nil {
		return nil, nil, configError{err}
	}
	cfg.Tracing = tracing
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		if isStoreError(err) {
			return nil, nil, storeError(err)
		}
		return nil, nil, configError{err} // all but the store is built from the configuration alone
	}
	stop := func() error {
		bound, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cfg.StopTimeout, fmt.Errorf("not stopped after %s", cfg.StopTimeout))
		defer cancel()
		err := a.Stop(bound)
		if lost := flush(bound); lost != nil { // of no weight beside the work itself
			log.WarnContext(bound, "spans are lost", "err", lost)
		}
		return err
	}
	if err := a.Start(ctx); err != nil {
		return nil, nil, errors.Join(storeError(err), stop())
	}
	return a, stop, nil
}

func (c *cli) ask(cmd *cobra.Command, input string, f askFlags) (err error) {
	cfg, _, err := c.config(cmd)
	if err != nil {
		return err
	}
	log, err := c.logger(cfg, true)
	if err != nil {
		return configError{err}
	}
	ctx := cmd.Context()
	a, stop, err := startApp(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		p := c.progress("stopping; nothing is lost")
		defer p.Stop()
		err = errors.Join(err, stop())
	}()
	root, after, err := openSession(ctx, a, cfg, f.session, input)
	if err != nil {
		return err
	}
	turn, err := a.Manager.Submit(ctx, session.SubmitRequest{Session: root, Input: input})
	if err != nil {
		return storeError(err)
	}
	show := shower(&jsonShower{w: c.stdout})
	if c.output == outputText {
		v := c.newView(false)
		v.silent = turn
		defer func() { err = errors.Join(err, v.Close()) }()
		if err := eachEvent(ctx, a.Manager.Store(), root, 0, func(e session.Event) error {
			if e.Seq <= after {
				v.Replay(e)
			}
			return nil
		}); err != nil {
			return err
		}
		show = v
	}
	fol := &localTurn{app: a, root: root, turn: turn, origin: turn, noWait: f.noWait, late: f.late}
	if f.session != "" {
		fol.origin = "" // what earlier turns left comes home too
	}
	open, err := follow(ctx, fol, show, after)
	if err != nil {
		if ctx.Err() != nil {
			return withHint(errInterrupted, "what was begun goes on with the next run: orchestrator ask --session %s \"...\", or orchestrator serve", root)
		}
		return storeError(err)
	}
	tellOpen(show, root, open, f.noWait, "the next ask or serve follows", "")
	return turnError(ctx, a, turn)
}

// openSession returns the session to go on with, or a new one, and the seq of its last event.
func openSession(ctx context.Context, a *app.App, cfg app.Config, id, input string) (root session.ID, head uint64, err error) {
	if id == "" {
		root, err = a.Manager.Open(ctx, session.OpenRequest{Agent: cfg.Primary, Title: shortText(input, 80)})
		if err != nil {
			return "", 0, storeError(err)
		}
		return root, 0, nil
	}
	info, err := a.Manager.Store().Tree(ctx, session.ID(id))
	if errors.Is(err, session.ErrNotFound) {
		return "", 0, usageError{withHint(fmt.Errorf("there is no session %s", printable(id)), "orchestrator sessions list names the sessions there are")}
	}
	if err != nil {
		return "", 0, storeError(err)
	}
	return info.ID, info.HeadSeq, nil
}

// tellOpen names the calls whose reply is still wanted, who follows them, and how to look at them later.
func tellOpen(show shower, root session.ID, open []wantedCall, noWait bool, follower, server string) {
	now := time.Now()
	for _, p := range open {
		show.Note(fmt.Sprintf("still open: %s's answer to %s, asked %s ago (%s); %s it",
			p.peer, cmp.Or(shortText(p.asker, 40), "the primary"), formatLeft(now.Sub(p.sentAt)), p.id, follower), now)
	}
	if len(open) > 0 || noWait {
		show.Note(fmt.Sprintf(`look later with: orchestrator sessions show %s%s, go on with: orchestrator ask --session %s%s "..."`, root, server, root, server), now)
	}
}

// turnError returns why a turn failed, or nil.
func turnError(ctx context.Context, a *app.App, turn session.TurnID) error {
	rec, err := a.Manager.Store().Record(ctx, session.KindTurn, string(turn))
	if err != nil {
		return fmt.Errorf("turn %s: %w", turn, err)
	}
	var body session.TurnBody
	if err := rec.Decode(&body); err != nil {
		return err
	}
	switch {
	case rec.State == session.StateFailed && body.Ended != nil:
		err := fmt.Errorf("the turn failed: %s", body.Ended.Error)
		if body.Ended.Code == session.CodeModelUnreachable {
			return withHint(unreachableError{err}, "check that the model's server runs and its base_url is right: orchestrator config print; "+
				"then go on with: orchestrator ask --session %s \"...\"", rec.Tree)
		}
		return err
	case rec.State == session.StateFailed, rec.State == session.StateCancelled:
		return fmt.Errorf("the turn is %s", rec.State)
	}
	return nil
}
