package agentloop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"golang.org/x/sync/errgroup"

	"orchestrator/session"
	"orchestrator/tool"
)

// maxConflicts bounds how often a tool is asked for another result.
const maxConflicts = 100

// resultKey is the key of the artifact that holds the whole of a tool's result.
func resultKey(id session.ToolCallID) session.ArtifactKey {
	return session.ArtifactKeyFor(id, "result")
}

// batch is the calls of one message.
type batch struct {
	r      *run
	ctx    context.Context //nolint:containedctx // of the calls
	cancel context.CancelCauseFunc
	park   *parking
}

// runCalls runs the calls of one message and commits each result when it is there. It returns when all have returned.
func (r *run) runCalls(ctx context.Context, calls []call) error {
	if len(calls) == 0 {
		return nil
	}
	b := r.newBatch(ctx, calls)
	defer b.cancel(nil)
	return b.over(b.runAll(calls))
}

func (r *run) newBatch(ctx context.Context, calls []call) *batch {
	b := &batch{r: r}
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	b.park = newParking(r.t.Parker, calls, b.cancel)
	return b
}

// over returns the first thing that went wrong, which made the others fail.
func (b *batch) over(err error) error {
	b.r.parked = b.park.isParked()
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return err
}

// runAll runs calls side by side, and a single one in the turn's own goroutine: it may wait for long, and a goroutine more
// would cost as much memory as all the rest of it.
func (b *batch) runAll(calls []call) error {
	if len(calls) == 1 {
		return b.run(&calls[0])
	}
	var g errgroup.Group
	g.SetLimit(b.r.limits.ParallelTools)
	for i := range calls {
		g.Go(func() error { return b.run(&calls[i]) })
	}
	return g.Wait()
}

func (b *batch) run(c *call) error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	err := b.r.runCall(b.ctx, b.park, c)
	if err != nil {
		b.cancel(err)
	}
	return err
}

// runCall runs one call and commits its result. What it and all it calls hold on the stack while the tool runs is held by
// every turn that waits, so it is little: results are passed by reference, and what is done before and after the tool has
// functions of its own.
func (r *run) runCall(ctx context.Context, park *parking, c *call) error {
	ctx, w := r.watchTool(ctx, c)
	done, err := r.dispatch(ctx, park, c)
	r.toolReturned(w, c, done, err)
	park.back(c.ID)
	return r.settle(ctx, park, c, done, err)
}

// result is what a call returned.
type result struct {
	tool.Result
	denied bool
}

// settle commits a call's result, or says why there is none.
func (r *run) settle(ctx context.Context, park *parking, c *call, res *result, err error) error {
	for try := 1; err == nil; try++ {
		var done session.Committed
		done, err = r.commitResult(ctx, c, res)
		if err == nil {
			r.committed(ctx, c, res, done)
			park.finish(ctx, c.ID)
			return r.repeated(c, res)
		}
		if !errors.Is(err, session.ErrConflict) && !errors.Is(err, session.ErrGuard) {
			return err
		}
		if res.Conflict == nil || try == maxConflicts {
			err = fmt.Errorf("commit the result: %w", err)
			break
		}
		conflict, because := res.Conflict, err
		res, err = r.guarded(ctx, c, func(res *result) (err error) {
			res.Result, err = conflict(ctx, because)
			return err
		})
	}
	if leaves(err) || ctx.Err() != nil {
		return err
	}
	r.log.ErrorContext(ctx, "tool call failed", "tool", c.Name, "call", c.ID, "err", err)
	return failf(stopError, "the tool %q failed with an internal error; the operator's log says which", c.Name)
}

// dispatch runs a call, or says why it doesn't run. Its error ends the turn.
func (r *run) dispatch(ctx context.Context, park *parking, c *call) (*result, error) {
	t, refusal := r.admit(ctx, c)
	if refusal != nil {
		return refusal, nil
	}
	made := r.toolCall(ctx, park, c)
	return r.guarded(ctx, c, func(res *result) (err error) {
		res.Result, err = t.Run(ctx, made)
		return err
	})
}

// admit returns a call's tool, or the result that refuses the call.
func (r *run) admit(ctx context.Context, c *call) (tool.Tool, *result) {
	refuse := func(text string) (tool.Tool, *result) { return nil, &result{Result: tool.Failure(text)} }
	t, ok := r.tools.Lookup(c.Name)
	if !ok {
		reason, denied := r.tools.Refusal(c.Name)
		if denied {
			r.log.WarnContext(ctx, "tool call denied", "tool", c.Name, "call", c.ID)
			if r.l.cfg.Denied != nil {
				r.l.cfg.Denied(r.t.Body.Setup.Agent, c.Name)
			}
			return nil, &result{Result: tool.Failure(reason), denied: true}
		}
		return refuse(r.unknown(c.Name))
	}
	spec := t.Spec()
	fault, err := r.l.schemas.validate(spec.Schema, c.Args)
	if err != nil {
		r.log.ErrorContext(ctx, "tool has a schema that can't be used", "tool", c.Name, "err", err)
		return refuse(fmt.Sprintf("the tool %q can't be called: its own schema is broken", c.Name))
	}
	if fault != "" {
		text := fmt.Sprintf("the arguments of %q don't fit: %s", c.Name, fault)
		if c.cutOff {
			text += "; the message hit its length limit, so they may have been cut off: call again with less"
		}
		return refuse(text)
	}
	if c.resumed && !spec.Repeatable {
		return refuse("interrupted by a restart; it may or may not have taken effect")
	}
	return t, nil
}

// toolCall is a call as its tool is given it.
func (r *run) toolCall(ctx context.Context, park *parking, c *call) *tool.Call {
	return &tool.Call{
		ID: c.ID, Name: c.Name, Args: c.Args, Turn: r.t, Accepted: c.accepted, Resumed: c.resumed,
		Park: func(reason string) { park.wait(ctx, c.ID, reason) },
		Progress: func(text string) {
			r.t.Tree().Publish(r.t.WithToolCall(c.ID).Event(session.EventToolProgress, session.ToolProgress{Text: text}))
		},
	}
}

// guarded calls into a tool and turns a panic into a result the model can read.
func (r *run) guarded(ctx context.Context, c *call, f func(*result) error) (res *result, err error) {
	defer func() {
		if p := recover(); p != nil {
			res, err = r.panicked(ctx, c, p), nil
		}
	}()
	res = new(result)
	return res, f(res)
}

func (r *run) panicked(ctx context.Context, c *call, p any) *result {
	r.log.ErrorContext(ctx, "tool panicked", "tool", c.Name, "call", c.ID, "panic", p, "stack", string(debug.Stack()))
	return &result{Result: tool.Failure(fmt.Sprintf("the tool %q crashed with an internal error", c.Name))}
}

func (r *run) unknown(name string) string {
	names := r.tools.Names()
	if nearest := session.Nearest(name, names); nearest != "" {
		return fmt.Sprintf("there is no tool %q; did you mean %q?", name, nearest)
	}
	if len(names) == 0 {
		return fmt.Sprintf("there is no tool %q, and no other", name)
	}
	return fmt.Sprintf("there is no tool %q; there are: %s", name, strings.Join(names, ", "))
}

// commitResult writes a result in one commit with what the tool changes.
func (r *run) commitResult(ctx context.Context, c *call, res *result) (session.Committed, error) {
	var b session.Batch
	b.Add(res.Batch)
	done := session.ToolCompleted{Name: c.Name, Content: r.content(c, res), IsError: res.IsError, Denied: res.denied}
	if len(res.Content) > r.limits.ResultBytes {
		b.Artifacts = append(b.Artifacts, session.Artifact{
			Key: resultKey(c.ID), Name: "result of " + c.Name, MediaType: "text/plain; charset=utf-8", Data: []byte(res.Content),
		})
	}
	b.Events = append(b.Events, r.t.WithToolCall(c.ID).Event(session.EventToolCompleted, done))
	committed, err := r.commit(ctx, b)
	if err != nil {
		return committed, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conv.result(c.ID, done, committed.Events[len(committed.Events)-1].Seq)
	if res.IsError {
		r.repeats.add(repeatKey(c.ID, c.Name, c.Args, done.Content), c.message)
	}
	return committed, nil
}

// content is a result as the model reads it: short enough, and with a note when it repeats a failure.
func (r *run) content(c *call, res *result) string {
	text := session.Shorten(strings.ToValidUTF8(res.Content, "\uFFFD"), r.limits.ResultBytes, resultKey(c.ID))
	if !res.IsError {
		return text
	}
	r.mu.Lock()
	n := r.repeats.peek(repeatKey(c.ID, c.Name, c.Args, text), c.message)
	r.mu.Unlock()
	if n >= r.limits.RepeatNote {
		text += noteFor(n)
	}
	return text
}

// committed tells the tool. A panic there undoes nothing.
func (r *run) committed(ctx context.Context, c *call, res *result, done session.Committed) {
	if res.Committed == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			r.log.ErrorContext(ctx, "tool panicked", "tool", c.Name, "call", c.ID, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	res.Committed(done)
}

// repeated fails the turn when a call has failed too often in the same way.
func (r *run) repeated(c *call, res *result) error {
	if !res.IsError {
		return nil
	}
	r.mu.Lock()
	worst := r.repeats.worst()
	r.mu.Unlock()
	if worst < r.limits.RepeatFail {
		return nil
	}
	return failf(stopRepeated, "the tool %q failed %d times with the same arguments and the same result", c.Name, worst)
}
