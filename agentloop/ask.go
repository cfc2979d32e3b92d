package agentloop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"

	"orchestrator/llm"
	"orchestrator/session"
)

// errOverflow says that the provider found the context too large.
var errOverflow = errors.New("the context is larger than the model takes")

// ask asks the model for the turn's next answer. When the provider finds the context too large it is compacted once and
// the model asked once more; no tool runs again.
func (r *run) ask(ctx context.Context) (id string, answer llm.Answer, err error) {
	if err := r.fit(ctx); err != nil {
		return "", llm.Answer{}, err
	}
	id, answer, err = r.call(ctx, r.request(), true)
	if !errors.Is(err, errOverflow) {
		return id, answer, err
	}
	if err := r.compact(ctx, true); err != nil {
		return "", llm.Answer{}, err
	}
	id, answer, err = r.call(ctx, r.request(), true)
	if errors.Is(err, errOverflow) {
		return "", llm.Answer{}, failf(stopError, "the conversation is larger than the model %q takes, even summarised", r.t.Body.Setup.Model)
	}
	return id, answer, err
}

func (r *run) request() llm.Request {
	if missing := r.conv.complete(); missing > 0 {
		r.log.Error("tool calls without a result in the log", "count", missing)
	}
	n := len(r.conv.messages)
	return llm.Request{
		Model: r.modelName, Agent: r.t.Body.Setup.Agent, System: r.t.Body.Setup.Instructions,
		Messages: r.conv.messages[:n:n], Tools: r.shown, MaxTokens: r.maxTokens,
	}
}

// summarize is how a turn ends that has asked the model as often as it may.
func (r *run) summarize(ctx context.Context) (stopReason string, err error) {
	if err := r.fit(ctx); err != nil {
		return "", err
	}
	req := r.request()
	req.Tools = nil
	req.Messages = append(req.Messages, llm.Message{Role: llm.RoleUser, Text: fmt.Sprintf(
		"[This turn has reached its limit of %d model calls and ends now; no more tools can be called. "+
			"Say in a few sentences what was asked, what was done and found, and what is left undone.]", r.limits.ModelCalls)})
	id, answer, err := r.call(ctx, req, true)
	if errors.Is(err, errOverflow) {
		err = failf(stopMaxModelCalls, "the conversation is larger than the model takes")
	}
	if fail, ok := errors.AsType[*failure](err); ok {
		return "", failf(stopMaxModelCalls, "the turn reached its limit of %d model calls, and asking for a summary failed: %s",
			r.limits.ModelCalls, fail.sentence)
	}
	if err != nil {
		return "", err
	}
	answer.ToolCalls = nil
	answer.Text = cmp.Or(answer.Text, fmt.Sprintf("I stopped at the limit of %d model calls for one turn.", r.limits.ModelCalls))
	if _, err := r.commitAnswer(ctx, id, answer, stopMaxModelCalls); err != nil {
		return "", err
	}
	return stopMaxModelCalls, nil
}

// call makes a model call, again when it fails for a passing reason. The id is that of the attempt that succeeded. Deltas
// are published when the answer is for the reader.
func (r *run) call(ctx context.Context, req llm.Request, publish bool) (id string, answer llm.Answer, err error) {
	waits := backoff.NewExponentialBackOff()
	for try := 1; ; try++ {
		id, answer, err := r.attempt(ctx, req, publish)
		if err == nil {
			return id, answer, nil
		}
		if ctx.Err() != nil {
			return "", answer, context.Cause(ctx)
		}
		failed, ok := errors.AsType[*llm.Error](err)
		switch { // what ends the turn is told by its end; the log has what is not for its readers
		case !ok:
			r.log.ErrorContext(ctx, "model call failed", "model", r.modelName, "err", err)
			return "", answer, failf(stopError, "the model call failed with an internal error; the operator's log says which")
		case failed.Overflow:
			r.log.InfoContext(ctx, "context too large for the model", "model", r.modelName, "err", err)
			return "", answer, errOverflow
		case !failed.Retryable:
			r.log.InfoContext(ctx, "model call failed", "model", r.modelName, "err", err)
			return "", answer, modelFailed(failed, "the model call failed: %s", failed.Message)
		case try > max(0, r.limits.Retries):
			r.log.InfoContext(ctx, "model call failed", "model", r.modelName, "tries", try, "err", err)
			return "", answer, modelFailed(failed, "the model call failed %d times, the last time: %s", try, failed.Message)
		case failed.RetryAfter > r.limits.MaxRetryAfter:
			r.log.InfoContext(ctx, "model call failed", "model", r.modelName, "err", err)
			return "", answer, modelFailed(failed, "the model call failed: %s; the provider asks to wait %s", failed.Message, failed.RetryAfter)
		}
		r.log.InfoContext(ctx, "model call failed, trying again", "model", r.modelName, "try", try, "err", err)
		if _, err := r.commit(ctx, session.Batch{Events: []session.Event{
			r.t.Event(session.EventSessionError, session.SessionError{Message: failed.Message, WillRetry: true}),
		}}); err != nil {
			return "", answer, err
		}
		timer := time.NewTimer(max(waits.NextBackOff(), failed.RetryAfter))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", answer, context.Cause(ctx)
		}
	}
}

// attempt makes one model call. An error that is no *[llm.Error] is our own fault, or the context's.
func (r *run) attempt(ctx context.Context, req llm.Request, publish bool) (id string, answer llm.Answer, err error) {
	id = session.NewMessageID()
	ctx, done := r.watchModel(ctx)
	defer func() { done(answer, err) }()
	ctx, cancel := context.WithTimeoutCause(ctx, r.limits.ModelCallTime, &llm.Error{
		Provider: r.modelName, Retryable: true, Message: fmt.Sprintf("the model did not finish its answer within %s", r.limits.ModelCallTime),
	})
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			r.log.ErrorContext(ctx, "model panicked", "model", r.modelName, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("model %s panicked: %v", r.modelName, p)
		}
	}()
	var assembler llm.Assembler
	for chunk, err := range r.model.Stream(ctx, req) {
		if err != nil {
			if ctx.Err() != nil {
				return "", llm.Answer{}, context.Cause(ctx)
			}
			return "", llm.Answer{}, err
		}
		assembler.Add(chunk)
		if !publish || chunk.Text == "" {
			continue
		}
		switch chunk.Kind {
		case llm.ChunkText:
			r.t.Tree().Publish(r.t.Event(session.EventMessageDelta, session.Delta{MessageID: id, Text: chunk.Text}))
		case llm.ChunkReasoning:
			r.t.Tree().Publish(r.t.Event(session.EventReasoningDelta, session.Delta{MessageID: id, Text: chunk.Text}))
		}
	}
	answer = assembler.Answer()
	if answer.Stopped {
		return id, answer, nil
	}
	if ctx.Err() != nil {
		return "", llm.Answer{}, context.Cause(ctx)
	}
	return "", llm.Answer{}, &llm.Error{Provider: r.modelName, Retryable: true, Message: "the model's answer was cut off"}
}
