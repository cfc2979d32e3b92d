package agentloop

import (
	"context"
	"errors"
	"fmt"

	"orchestrator/llm"
	"orchestrator/session"
)

// failure ends a turn as failed. Its sentence is for the user and the model; what the operator needs is in the log.
type failure struct {
	stopReason string
	sentence   string
	code       string // of session.TurnEnded; mostly none
}

func (f *failure) Error() string { return f.sentence }

// The stop reasons of our own; the others are the model's ([llm.StopReason]).
const (
	stopMaxModelCalls = "max_model_calls"
	stopError         = "error"
	stopTimeout       = "timeout"
	stopCancelled     = "cancelled"
	stopRepeated      = "repeated_failure"
	stopBudget        = "budget"
)

func failf(stopReason, format string, args ...any) error {
	return &failure{stopReason: stopReason, sentence: fmt.Sprintf(format, args...)}
}

// modelFailed is a failure for a model call that isn't made again.
func modelFailed(cause *llm.Error, format string, args ...any) error {
	f := &failure{stopReason: stopError, sentence: fmt.Sprintf(format, args...)}
	if cause.Unreachable {
		f.code = session.CodeModelUnreachable
	}
	return f
}

// leaves reports whether an error means that the turn goes on elsewhere, or later, or has ended without us.
func leaves(err error) bool {
	return errors.Is(err, session.ErrTurnEnded) || errors.Is(err, session.ErrFenced) || errors.Is(err, session.ErrStopping) ||
		errors.Is(err, session.ErrClosed)
}

// outcome says how the turn ended, from how its steps did. Its error means that the turn hasn't.
func (r *run) outcome(ctx context.Context, stopReason string, err error) (session.Outcome, error) {
	out := session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{
		Output: r.output, StopReason: stopReason, Usage: r.usage,
	}}
	if err == nil {
		return out, nil
	}
	if leaves(err) {
		return out, err
	}
	fail, failed := errors.AsType[*failure](err)
	if failed {
		// The turn's end is its runner's work: a lent slot is taken back first. When ctx ends meanwhile, that counts.
		if err := r.unpark(ctx); err != nil && ctx.Err() == nil {
			return out, err
		}
	}
	cause := context.Cause(ctx)
	if cancelled, ok := errors.AsType[*session.TurnCancelledError](cause); ok {
		out.State, out.StopReason, out.Error = session.StateCancelled, stopCancelled, cancelled.Error()
		return out, nil
	}
	if timeout, ok := errors.AsType[*session.TurnTimeoutError](cause); ok {
		out.State, out.StopReason, out.Error = session.StateFailed, stopTimeout, "the turn "+timeout.Error()
		return out, nil
	}
	if failed {
		out.State, out.StopReason, out.Error, out.Code = session.StateFailed, fail.stopReason, fail.sentence, fail.code
		return out, nil
	}
	if cause != nil {
		return out, cause
	}
	return out, err
}
