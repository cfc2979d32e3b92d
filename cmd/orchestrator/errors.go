package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"orchestrator/internal/app"
	"orchestrator/session"
)

// The exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitInterrupted = 130
)

// usageError is a command line that can't be run. It exits with 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// configError is a configuration that can't be used. It exits with 2.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// unreachableError is something we depend on that doesn't answer: a peer, a model, a locked database. It exits with 3.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

// hintError adds what to do next.
type hintError struct {
	error
	hint string
}

func (e hintError) Unwrap() error { return e.error }

// withHint returns the error with a line that says what to do next.
func withHint(err error, format string, args ...any) error {
	return hintError{err, fmt.Sprintf(format, args...)}
}

// errInterrupted is what a command returns when a signal ended it before its work was done.
var errInterrupted = errors.New("interrupted")

// exitCode returns the exit code of an error.
func exitCode(ctx context.Context, err error) int {
	var usage usageError
	var config configError
	var unreachable unreachableError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted), ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &usage), errors.As(err, &config), errors.Is(err, app.ErrNoModel):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitUnreachable
	}
	return exitFailed
}

// report writes an error for people: each fault on a line of its own, then a line that says what to do next.
func report(w io.Writer, err error, code int) {
	text := strings.TrimSpace(err.Error())
	if errors.Is(err, syscall.EPIPE) {
		return // whoever read our output has gone on purpose
	}
	if code == exitInterrupted {
		text = errInterrupted.Error() // what it stopped in the middle of is of no use
	}
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(w, "orchestrator: %s\n", printable(line))
	}
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(w, "  → %s\n", hint)
	}
}

func hintOf(err error) string {
	var hinted hintError
	var usage usageError
	var config configError
	switch {
	case errors.As(err, &hinted):
		return hinted.hint
	case errors.Is(err, app.ErrNoModel):
		return "" // it says what to do
	case errors.As(err, &usage):
		return "orchestrator --help lists the commands; orchestrator <command> --help its flags"
	case errors.As(err, &config):
		return "correct it, then try: orchestrator config check"
	case errors.Is(err, session.ErrNotFound):
		return "orchestrator sessions list names the sessions there are"
	}
	return ""
}
