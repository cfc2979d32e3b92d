package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
)

// The values of -o.
const (
	outputText = "text"
	outputJSON = "json"
)

// cli is one run of the program.
type cli struct {
	stdout, stderr io.Writer // stderr may be written to from any goroutine
	terminal       *os.File  // standard error, if it is a file
	environ        []string

	configFile string
	output     string
	started    bool // a command's own work has begun: from here on a failure is no misuse of the command line
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c := &cli{stdout: stdout, stderr: &lockedWriter{w: stderr}, environ: environ}
	c.terminal, _ = stderr.(*os.File)
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !c.started {
		err = usageError{err}
	}
	code := exitCode(ctx, err)
	if err != nil {
		report(stderr, err, code)
	}
	return code
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "orchestrator",
		Short: "A primary agent, its subagents, and peer agents that may answer late",
		Long: `orchestrator runs a primary agent that spawns subagents and asks peer agents over A2A.

Start with:  orchestrator demo                 the whole story, offline
             orchestrator ask "..."            with OPENAI_API_KEY or ANTHROPIC_API_KEY set, or an orchestrator.yaml

Exit codes:  0 ok, 1 failed, 2 usage or configuration, 3 something needed can't be reached, 130 interrupted`,
		Example: `  orchestrator demo
  OPENAI_API_KEY=... orchestrator ask "Compare the three ways to ..."`,
		Version:       readBuildInfo().String(),
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if c.output != outputText && c.output != outputJSON {
				return usageError{fmt.Errorf("-o is %q: allowed: text, json", c.output)}
			}
			c.started = true
			return nil
		},
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&c.configFile, "config", "", "config file (default ./orchestrator.yaml, then ~/.config/orchestrator/orchestrator.yaml)")
	flags.StringVarP(&c.output, "output", "o", outputText, "text or json")
	flags.String("data-dir", "", "where the database is kept")
	flags.String("log-level", "", "debug, info, warn or error")
	flags.String("log-format", "", "text or json")
	for flag, values := range map[string][]string{"output": {outputText, outputJSON}, "log-format": {"text", "json"}, "log-level": {"debug", "info", "warn", "error"}} {
		c.complete(root, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	root.AddCommand(c.demoCommand(), c.demoPeerCommand(), c.demoRunCommand(), c.serveCommand(), c.askCommand(), c.sessionsCommand(), c.callsCommand(), c.peersCommand(), c.profilesCommand(), c.keysCommand(), c.configCommand(),
		c.healthCommand(), c.backupCommand(), c.migrateCommand(), c.versionCommand())
	return root
}

// config loads the configuration for a command.
func (c *cli) config(cmd *cobra.Command) (cfg app.Config, file string, err error) {
	return loadConfig(c.configFile, c.environ, cmd.Flags())
}

// noArgs refuses arguments, naming the nearest command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args)
	}
	return errors.New(unknownKey("command", args[0], args[0], names))
}

// takes wants the arguments that a command's usage names, as many as there are names.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		usage := cmd.CommandPath() + " " + strings.Join(names, " ")
		err := fmt.Errorf("%s: %s is missing", cmd.CommandPath(), names[min(len(args), len(names)-1)])
		if len(args) > len(names) {
			err = fmt.Errorf("%s takes %s, got %d", cmd.CommandPath(), count(len(names), "argument"), len(args))
			if quoted := names[len(names)-1]; strings.HasPrefix(quoted, `"`) {
				err = fmt.Errorf("%w; put the question in quotes", err)
			}
		}
		return withHint(usageError{err}, "%s", usage)
	}
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// lockedWriter makes one write at a time: the logger, the view and the processes we start share standard error.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// printJSON writes one line of JSON.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printable returns text from outside as it may be shown on a terminal: control characters, which could move the cursor
// or set the window's title, are replaced, but for the line end and the tab.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r >= 0x7f && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200b:
			return '\uFFFD'
		}
		return r
	}, s)
}
