package agentloop

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/tool"
)

// run is one turn in work.
type run struct {
	l         *Loop
	t         *session.Turn
	limits    Limits
	maxTokens int // of one answer; 0 is the model's
	log       *slog.Logger

	model     llm.Model
	modelName string // the provider's
	tools     *tool.Set
	shown     []llm.Tool
	limit     int // tokens of a request, room for the answer left

	calls      int // tool calls the agent has ever made
	modelCalls int // answers in this turn
	usage      session.Usage
	output     string // the last text the model wrote in this turn
	input      string // the turn's input
	inputSeq   uint64
	parked     bool

	mu      sync.Mutex // guards what tool calls share
	conv    conversation
	repeats repeats
}

// call is one tool call to be run.
type call struct {
	session.ToolCall
	message  uint64    // seq of the message that asks for it
	accepted time.Time // when that was committed
	cutOff   bool      // the message hit the bound of its length
	resumed  bool
}

// steps runs the turn and returns why it stopped.
func (r *run) steps(ctx context.Context) (stopReason string, err error) {
	open, stopReason, err := r.begin(ctx)
	if err != nil || stopReason != "" {
		return stopReason, err
	}
	if err := r.runCalls(ctx, open); err != nil {
		return "", err
	}
	if worst := r.repeats.worst(); worst >= r.limits.RepeatFail {
		return "", failf(stopRepeated, "a tool call failed %d times with the same arguments and the same result", worst)
	}
	for {
		calls, stopReason, err := r.step(ctx)
		if err != nil || len(calls) == 0 {
			return stopReason, err
		}
		if err := r.runCalls(ctx, calls); err != nil {
			return "", err
		}
	}
}

// begin prepares the turn. It returns why the turn stopped, if it had, or the calls of its last message that have no result:
// an earlier life of the process may have begun them.
func (r *run) begin(ctx context.Context) (open []call, stopReason string, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, "", err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, "", err
	}
	last, err := r.load(ctx)
	if err != nil || last == nil || last.message.Role != session.RoleAssistant {
		return nil, "", err
	}
	if len(last.message.ToolCalls) == 0 {
		return nil, cmp.Or(last.message.StopReason, string(llm.StopEnd)), nil
	}
	for _, unanswered := range last.open {
		open = append(open, call{
			ToolCall: unanswered, message: last.seq, accepted: last.time, resumed: true,
			cutOff: last.message.StopReason == string(llm.StopMaxTokens),
		})
	}
	return open, "", nil
}

// step asks the model once and returns the calls it asks for, or why it stopped.
func (r *run) step(ctx context.Context) (calls []call, stopReason string, err error) {
	if err := r.unpark(ctx); err != nil {
		return nil, "", err
	}
	if err := r.l.budget.check(ctx, r.t); err != nil {
		return nil, "", err
	}
	if r.modelCalls >= r.limits.ModelCalls {
		stopReason, err = r.summarize(ctx)
		return nil, stopReason, err
	}
	id, answer, err := r.ask(ctx)
	if err != nil {
		return nil, "", err
	}
	calls, err = r.commitAnswer(ctx, id, answer, string(answer.Stop))
	if err != nil || len(calls) > 0 {
		return calls, "", err
	}
	return nil, string(answer.Stop), nil
}

// prepare gets the model and the tools.
func (r *run) prepare(ctx context.Context) error {
	setup := r.t.Body.Setup
	var err error
	r.model, r.modelName, err = r.l.cfg.Models(setup.Model)
	if err != nil {
		r.log.ErrorContext(ctx, "model not available", "model", setup.Model, "err", err)
		return failf(stopError, "the model %q can't be used; the operator's log says why", setup.Model)
	}
	r.tools, err = r.l.cfg.Tools(ctx, r.t)
	if err != nil {
		if leaves(err) || ctx.Err() != nil {
			return err
		}
		r.log.ErrorContext(ctx, "tools not available", "err", err)
		return failf(stopError, "the tools of agent %q can't be used; the operator's log says why", setup.Agent)
	}
	if setup.Tools != nil {
		r.tools = intersect(r.tools, setup.Tools)
	}
	r.conv.bytes = len(setup.Instructions)
	kind := tool.KindOf(r.t)
	for _, each := range r.tools.Tools() {
		spec := each.Spec()
		shown := llm.Tool{Name: spec.Name, Schema: spec.Schema}
		if spec.Description != nil {
			shown.Description = spec.Description(kind)
		}
		r.shown = append(r.shown, shown)
		r.conv.bytes += len(shown.Name) + len(shown.Description) + len(shown.Schema)
	}
	window := r.limits.ContextTokens
	if r.l.cfg.Window != nil {
		window = cmp.Or(r.l.cfg.Window(setup.Model), window)
	}
	r.limit = window - min(window/8, 16_000)
	return nil
}

// intersect leaves of a set what a turn started with, in that order.
func intersect(set *tool.Set, names []string) *tool.Set {
	var kept []tool.Tool
	for _, name := range names {
		if t, ok := set.Lookup(name); ok {
			kept = append(kept, t)
		}
	}
	return tool.NewSet(kept, func(name string) (string, bool) {
		if _, ok := set.Lookup(name); ok && !slices.Contains(names, name) {
			return fmt.Sprintf("tool %q is not among those this turn started with", name), true
		}
		return set.Refusal(name)
	})
}

// count adds a message of the turn to what the turn has done.
func (r *run) count(m session.Message, seq uint64) {
	if m.Role == session.RoleUser {
		if r.inputSeq == 0 {
			r.input, r.inputSeq = m.Text, seq
		}
		return
	}
	if strings.TrimSpace(m.Text) != "" {
		r.output = m.Text
	}
	if m.Synthetic {
		return
	}
	r.modelCalls++
	if m.Usage != nil {
		r.usage.Add(*m.Usage)
	}
}

// commitAnswer writes the model's answer in one commit with the calls it asks for, whose ids are minted here.
func (r *run) commitAnswer(ctx context.Context, id string, answer llm.Answer, stopReason string) ([]call, error) {
	if ctx.Err() != nil && len(answer.ToolCalls) > 0 {
		// Nothing of it will run now, and a later life would have to take its calls for interrupted ones.
		return nil, context.Cause(ctx)
	}
	usage := answer.Usage
	usage.ModelCalls = 1
	m := session.Message{
		MessageID: id, Role: session.RoleAssistant, Text: strings.ToValidUTF8(answer.Text, "\uFFFD"),
		Reasoning: strings.ToValidUTF8(answer.Reasoning, "\uFFFD"), StopReason: stopReason, Model: r.modelName, Usage: &usage,
		Opaque: answer.Opaque,
	}
	var started []session.Event
	for i, c := range answer.ToolCalls {
		args, err := json.Marshal(c.Args)
		if err != nil {
			return nil, fmt.Errorf("arguments of tool call %q: %w", c.Name, err)
		}
		minted := session.ToolCall{
			ID: session.MintToolCallID(r.t.Agent, r.calls+1+i), ProviderID: c.ID, Name: cmp.Or(c.Name, "unnamed"), Args: args,
		}
		m.ToolCalls = append(m.ToolCalls, minted)
		started = append(started, r.t.WithToolCall(minted.ID).Event(session.EventToolStarted,
			session.ToolStarted{Name: minted.Name, Args: minted.Args}))
	}
	done, err := r.commit(ctx, session.Batch{Events: append([]session.Event{r.t.Event(session.EventMessageCompleted, m)}, started...)})
	if err != nil {
		return nil, err
	}
	event := done.Events[0]
	r.calls += len(m.ToolCalls)
	r.conv.add(m, event.Seq)
	r.count(m, event.Seq)
	calls := make([]call, len(m.ToolCalls))
	for i, c := range m.ToolCalls {
		calls[i] = call{
			ToolCall: c, message: event.Seq, accepted: event.Time, cutOff: answer.Stop == llm.StopMaxTokens,
		}
	}
	return calls, nil
}

// commitTime bounds a commit that goes on after the turn's context has ended.
const commitTime = 10 * time.Second

// commit makes a write of the turn. What is done is written even when ctx has just ended, so that it isn't done again.
func (r *run) commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), commitTime,
		fmt.Errorf("the store did not commit within %s", commitTime))
	defer cancel()
	done, err := r.t.Commit(ctx, b)
	if err != nil {
		return done, fmt.Errorf("commit: %w", err)
	}
	return done, nil
}

// unpark takes back what a parked turn has lent. It blocks until the turn may work again.
func (r *run) unpark(ctx context.Context) error {
	if !r.parked {
		return nil
	}
	if err := r.t.Parker.Unpark(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("unpark: %w", err)
	}
	r.parked = false
	return nil
}
