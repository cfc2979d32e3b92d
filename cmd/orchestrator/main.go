// Command orchestrator runs a primary agent, the subagents it spawns and the calls it makes to peer agents.
//
// It is the outermost part of the product: flags, the config file, signals, what people see, and the exit code. All else
// is wired by internal/app.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE) // a reader that goes away is an error of the write, so that we stop in order
	context.AfterFunc(ctx, stop)   // the first signal asks us to stop, a second one ends the process
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
