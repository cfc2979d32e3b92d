// Command sidebyside measures one call to the same peer through our blocking invoke_agent and through the remote agents
// of two agent frameworks for Go, adk-go and trpc-agent-go, as ratios over the raw call of a2a-go within one run.
//
// It is a module of its own, so that the product doesn't depend on those frameworks. `make bench-sidebyside` runs it and
// `make bench` does so at its end. The peers are plain a2a-go servers in a process of their own, which this binary is
// too, and which ends with it. What is measured, and what isn't, is in docs/design/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(peerEnv) != "" {
		if err := servePeers(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "sidebyside peer:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sidebyside:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("sidebyside", flag.ContinueOnError)
	var (
		rows  = flags.String("rows", "", "regular expression of the rows to measure; raw calls are always made")
		calls = flags.Int("calls", 200, "calls of one run of a row")
		quick = flags.Bool("quick", false, "measure little, to see that it works")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	want, err := regexp.Compile(*rows)
	if err != nil {
		return fmt.Errorf("flag -rows: %w", err)
	}
	size := sizes{rounds: 5, calls: *calls}
	if *quick {
		size = sizes{rounds: 1, calls: 3}
	}
	dir, err := os.MkdirTemp("", "orchestrator-sidebyside-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	peers, err := startPeers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peers.stop()) }()
	began := time.Now()
	t := &table{out: out}
	t.print("\nSide by side, %s, %s/%s, %d CPUs, %s\n", time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if err := compare(ctx, size, want, dir, peers, t); err != nil {
		return err
	}
	t.print("\n%.0f s in all\n", time.Since(began).Seconds())
	return t.err
}
