package subagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"orchestrator/internal/telemetry/genai"
	"orchestrator/session"
	"orchestrator/tool"
)

// Tools returns the tools of the source "subagent".
func (p *Pool) Tools() []tool.Tool {
	return []tool.Tool{spawnTool{p}, listTool{p}, waitTool{p}, cancelTool{p}}
}

var (
	_ tool.Tool = spawnTool{}
	_ tool.Tool = listTool{}
	_ tool.Tool = waitTool{}
	_ tool.Tool = cancelTool{}
)

func always(text string) func(tool.Kind) string { return func(tool.Kind) string { return text } }

// decode reads the arguments of a call. The loop has checked them against the schema, so a failure names our own mistake.
func decode(c *tool.Call, v any) error {
	if err := json.Unmarshal(c.Args, v); err != nil {
		return fmt.Errorf("decode the arguments of %s: %w", c.Name, err)
	}
	return nil
}

// await blocks until every one of the children has ended or been taken, or until the time is up. The error is the
// context's cause, or the store's.
func (p *Pool) await(ctx context.Context, ids []session.ID, until time.Time) error {
	wake, leave := p.ends.join(ids)
	defer leave()
	for {
		busy := false
		for _, id := range ids {
			rec, err := p.store.Record(ctx, session.KindChild, string(id))
			if err != nil {
				return fmt.Errorf("wait for subagent %s: %w", id, err)
			}
			busy = busy || live(rec.State)
		}
		left := time.Until(until)
		if !busy || left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, time.Second))
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// take makes the result of a call that waited: it consumes what has ended and lets go of the rest. It is made again when
// the commit conflicts.
func (p *Pool) take(ctx context.Context, c *tool.Call, ids []session.ID, after time.Duration) (tool.Result, error) {
	f, err := loadFamily(ctx, p.store, c.Turn.Root, c.Turn.Agent)
	if err != nil {
		return tool.Result{}, err
	}
	var done, rest []string
	failed := 0
	for _, id := range ids {
		row, ok := f.child(id)
		switch {
		case !ok:
			rest = append(rest, fmt.Sprintf("The result of subagent %s was delivered before.", id))
		case row.body.Waiter != "" && row.body.Waiter != c.ID:
			rest = append(rest, fmt.Sprintf("Another call of this turn waits for subagent %s; it returns the result.", id))
		case row.state == StateEnded:
			row.state, row.dirty = StateConsumed, true
			if err := f.release(ctx, row); err != nil {
				return tool.Result{}, err
			}
			if row.body.Result.State != string(session.StateCompleted) {
				failed++
			}
			done = append(done, row.body.Result.report(row.body.Description))
		default:
			if row.body.Waiter == c.ID {
				if err := f.release(ctx, row); err != nil {
					return tool.Result{}, err
				}
			}
			rest = append(rest, fmt.Sprintf("Subagent %s (agent %q, %q) is still %s after %s; its result arrives later as a follow-up. "+
				"Go on without it, or wait again.", id, row.body.Agent, row.body.Description, row.state, after.Round(time.Second)))
		}
	}
	f.settle()
	res := tool.Result{Content: strings.Join(append(done, rest...), "\n\n"), IsError: failed > 0 && failed == len(ids)}
	f.write("", &res.Batch, 0)
	res.Conflict = func(ctx context.Context, err error) (tool.Result, error) {
		if !errors.Is(err, session.ErrConflict) {
			return tool.Result{}, err
		}
		return p.take(ctx, c, ids, after)
	}
	return res, nil
}

// listTool is list_subagents.
type listTool struct{ pool *Pool }

// Spec implements [tool.Tool].
func (listTool) Spec() tool.Spec {
	return tool.Spec{
		Name: "list_subagents", Source: tool.SourceSubagent, Repeatable: true,
		Description: always("List the subagents you have spawned: what they do, in what state they are, how much time they have left."),
		Schema:      json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
	}
}

// Run implements [tool.Tool].
func (t listTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	recs, err := t.pool.store.Records(ctx, session.RecordQuery{Tree: c.Turn.Root, Kind: session.KindChild, Owner: c.Turn.Agent})
	if err != nil {
		return tool.Result{}, fmt.Errorf("list subagents: %w", err)
	}
	if len(recs) == 0 {
		return tool.Text("You have spawned no subagents."), nil
	}
	var text strings.Builder
	for _, rec := range recs {
		var body Child
		if err := rec.Decode(&body); err != nil {
			return tool.Result{}, err
		}
		fmt.Fprintf(&text, "%s: agent %q, %q, ", rec.Key, body.Agent, body.Description)
		switch {
		case live(rec.State):
			fmt.Fprintf(&text, "%s, %s left", rec.State, max(0, time.Until(body.Deadline)).Round(time.Second))
		case rec.State == StateEnded:
			fmt.Fprintf(&text, "%s; the result has not been delivered yet", body.Result.State)
		default:
			fmt.Fprintf(&text, "%s; the result was delivered", body.Result.State)
		}
		text.WriteByte('\n')
	}
	return tool.Text(strings.TrimSuffix(text.String(), "\n")), nil
}

// waitTool is wait_subagents.
type waitTool struct{ pool *Pool }

// Spec implements [tool.Tool].
func (waitTool) Spec() tool.Spec {
	return tool.Spec{
		Name: "wait_subagents", Source: tool.SourceSubagent, Repeatable: true,
		Description: always("Wait until subagents have ended and get their results as this call's result. Without ids it waits for all " +
			"you have spawned. What has not ended after timeout_seconds is named and arrives later as a follow-up. " +
			"Only wait when you can't go on without the results: they arrive by themselves."),
		Schema: json.RawMessage(`{"type":"object","properties":{
"ids":{"type":"array","items":{"type":"string"},"description":"Ids that spawn_subagent returned. Default: all."},
"timeout_seconds":{"type":"number","exclusiveMinimum":0,"maximum":86400,"description":"How long to wait at most."}
},"required":["timeout_seconds"],"additionalProperties":false}`),
	}
}

// Run implements [tool.Tool].
func (t waitTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		IDs            []session.ID `json:"ids"`
		TimeoutSeconds float64      `json:"timeout_seconds"`
	}
	if err := decode(c, &args); err != nil {
		return tool.Result{}, err
	}
	timeout := time.Duration(args.TimeoutSeconds * float64(time.Second))
	for _, id := range args.IDs {
		if _, refusal, err := t.pool.own(ctx, c, id); err != nil || refusal != "" {
			return tool.Failure(refusal), err
		}
	}
	ids, busy, err := t.pool.claim(ctx, c, args.IDs)
	if err != nil {
		return tool.Result{}, err
	}
	if len(ids) == 0 {
		return tool.Text("There is no subagent to wait for."), nil
	}
	if busy {
		c.Park(tool.AwaitingSubagent)
		if err := t.pool.await(ctx, ids, c.Accepted.Add(timeout)); err != nil {
			return tool.Result{}, err
		}
	}
	return t.pool.take(ctx, c, ids, timeout)
}

// own returns the record of a child of the calling session, or why there is none.
func (p *Pool) own(ctx context.Context, c *tool.Call, id session.ID) (session.Record, string, error) {
	rec, err := p.store.Record(ctx, session.KindChild, string(id))
	if errors.Is(err, session.ErrNotFound) || err == nil && rec.Owner != c.Turn.Agent {
		return rec, fmt.Sprintf("you have no subagent %q; list_subagents names those you have", id), nil
	}
	if err != nil {
		return rec, "", fmt.Errorf("read subagent %s: %w", id, err)
	}
	return rec, "", nil
}

// claim makes the call the waiter of the children, all unsettled ones if it names none, and reports whether one of them is
// still at work. Children that another call waits for are left to it.
func (p *Pool) claim(ctx context.Context, c *tool.Call, named []session.ID) (ids []session.ID, busy bool, err error) {
	for {
		f, err := loadFamily(ctx, p.store, c.Turn.Root, c.Turn.Agent)
		if err != nil {
			return nil, false, err
		}
		ids, busy = slices.Compact(slices.Sorted(slices.Values(named))), false
		for _, row := range f.children {
			id := session.ID(row.rec.Key)
			if len(named) > 0 && !slices.Contains(named, id) || row.body.Waiter != "" && row.body.Waiter != c.ID {
				continue
			}
			if len(named) == 0 {
				ids = append(ids, id)
			}
			busy = busy || live(row.state)
			row.dirty = row.body.Waiter == ""
			row.body.Waiter = c.ID
		}
		if !busy {
			return ids, false, nil // nothing to wait for: what has ended is consumed without being claimed first
		}
		var b session.Batch
		f.write("", &b, 0)
		if len(b.Changes) > 0 {
			_, err = c.Turn.Commit(ctx, b)
		}
		if errors.Is(err, session.ErrConflict) && !errors.Is(err, session.ErrTurnEnded) {
			continue
		}
		return ids, busy, err
	}
}

// cancelTool is cancel_subagent.
type cancelTool struct{ pool *Pool }

// Spec implements [tool.Tool].
func (cancelTool) Spec() tool.Spec {
	return tool.Spec{
		Name: "cancel_subagent", Source: tool.SourceSubagent, Repeatable: true,
		Description: always("Stop a subagent you have spawned, and the calls to other agents it waits for. The result is what it had done."),
		Schema: json.RawMessage(`{"type":"object","properties":{
"id":{"type":"string","description":"The id that spawn_subagent returned."}
},"required":["id"],"additionalProperties":false}`),
	}
}

// cancelWait bounds how long cancel_subagent waits for the end it asked for.
const cancelWait = 10 * time.Second

// Run implements [tool.Tool].
func (t cancelTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		ID session.ID `json:"id"`
	}
	if err := decode(c, &args); err != nil {
		return tool.Result{}, err
	}
	rec, refusal, err := t.pool.own(ctx, c, args.ID)
	if err != nil || refusal != "" {
		return tool.Failure(refusal), err
	}
	ids := []session.ID{args.ID}
	if !live(rec.State) && rec.State != StateEnded {
		return tool.Text(fmt.Sprintf("Subagent %s has ended, and its result was delivered.", args.ID)), nil
	}
	if _, _, err := t.pool.claim(ctx, c, ids); err != nil {
		return tool.Result{}, err
	}
	if err := t.pool.Cancel(ctx, args.ID, "cancelled by the agent that spawned it"); err != nil {
		return tool.Result{}, err
	}
	if err := t.pool.await(ctx, ids, time.Now().Add(cancelWait)); err != nil {
		return tool.Result{}, err
	}
	res, err := t.pool.take(ctx, c, ids, cancelWait)
	res.IsError = false // it did what it was asked
	return res, err
}

// spawnTool is spawn_subagent.
type spawnTool struct{ pool *Pool }

type spawnArgs struct {
	Agent          string                `json:"agent"`
	Description    string                `json:"description"`
	Prompt         string                `json:"prompt"`
	Wait           bool                  `json:"wait"`
	TimeoutSeconds float64               `json:"timeout_seconds"`
	Inputs         []session.ArtifactKey `json:"inputs"`
}

// Spec implements [tool.Tool].
func (t spawnTool) Spec() tool.Spec {
	agents, which := asJSON(t.pool.cfg.Agents), asJSON(t.pool.which())
	return tool.Spec{
		Name: "spawn_subagent", Source: tool.SourceSubagent, Repeatable: true,
		Description: func(k tool.Kind) string {
			if k == tool.Subagent {
				return "Give a task to a subagent of its own context and wait for its result. It knows nothing but what the prompt says."
			}
			return "Give a task to a subagent, which works on it by itself in a context of its own. It knows nothing but what the prompt " +
				"says. The call returns at once and the result arrives later as a follow-up, together with those of the other " +
				"subagents of this turn; don't spawn it again for that. With wait: true the call returns the result instead."
		},
		Schema: json.RawMessage(`{"type":"object","properties":{
"agent":{"type":"string","enum":` + agents + `,"description":` + which + `},
"description":{"type":"string","minLength":1,"maxLength":200,"description":"The task in a few words."},
"prompt":{"type":"string","minLength":1,"description":"The task in full, with all it needs to know."},
"wait":{"type":"boolean","description":"Wait for the result."},
"timeout_seconds":{"type":"number","exclusiveMinimum":0,"maximum":86400,"description":"How long it may take, the time until a slot is free included."},
"inputs":{"type":"array","items":{"type":"string"},"description":"Keys of artifacts it should read."}
},"required":["description","prompt"],"additionalProperties":false}`),
	}
}

// which describes the agents there are to choose from.
func (p *Pool) which() string {
	var text strings.Builder
	text.WriteString("Which agent does it. Default: " + p.cfg.DefaultAgent + ".")
	for _, name := range p.cfg.Agents {
		if d := strings.TrimSpace(p.cfg.Descriptions[name]); d != "" {
			text.WriteString("\n" + name + ": " + d)
		}
	}
	return text.String()
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("subagent: marshal %T: %v", v, err)) // strings always marshal
	}
	return string(b)
}

// Run implements [tool.Tool].
func (t spawnTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args spawnArgs
	if err := decode(c, &args); err != nil {
		return tool.Result{}, err
	}
	return t.pool.spawn(ctx, c, args)
}

func (p *Pool) spawn(ctx context.Context, c *tool.Call, args spawnArgs) (tool.Result, error) {
	id := session.ChildIDFor(c.ID)
	for {
		rec, err := p.store.Record(ctx, session.KindChild, string(id))
		if err == nil {
			return p.spawned(ctx, c, rec)
		}
		if !errors.Is(err, session.ErrNotFound) {
			return tool.Result{}, fmt.Errorf("spawn subagent: %w", err)
		}
		body, b, refusal, err := p.plan(ctx, c, args, id)
		if err != nil || refusal != "" {
			return tool.Failure(refusal), err
		}
		if body.Waiter == "" {
			return tool.Result{
				Content: fmt.Sprintf("Subagent %s (agent %q) is at work on %q. Its result arrives later as a follow-up; "+
					"don't spawn it again for this. Go on with something else, or tell the user briefly and stop.", id, body.Agent, body.Description),
				Batch: b,
				Conflict: func(ctx context.Context, err error) (tool.Result, error) {
					if refusal := p.refusalOf(err); refusal != "" {
						return tool.Failure(refusal), nil
					}
					return p.spawn(ctx, c, args)
				},
				Committed: func(session.Committed) { p.start(c.Turn.Tree(), queuedChild(c, id)) },
			}, nil
		}
		_, err = c.Turn.Commit(ctx, b)
		switch refusal := p.refusalOf(err); {
		case refusal != "":
			return tool.Failure(refusal), nil
		case errors.Is(err, session.ErrConflict) && !errors.Is(err, session.ErrTurnEnded):
			continue
		case err != nil:
			return tool.Result{}, fmt.Errorf("spawn subagent: %w", err)
		}
		p.start(c.Turn.Tree(), queuedChild(c, id))
	}
}

// queuedChild is what start needs to know of a child that was just spawned.
func queuedChild(c *tool.Call, id session.ID) session.Record {
	return session.Record{Tree: c.Turn.Root, Kind: session.KindChild, Key: string(id), Owner: c.Turn.Agent, State: session.StateQueued}
}

// spawned returns what a call returns whose child exists: it waits for it, or says so.
func (p *Pool) spawned(ctx context.Context, c *tool.Call, rec session.Record) (tool.Result, error) {
	var body Child
	if err := rec.Decode(&body); err != nil {
		return tool.Result{}, err
	}
	ids := []session.ID{session.ID(rec.Key)}
	if body.Waiter != c.ID {
		return tool.Text(fmt.Sprintf("Subagent %s (agent %q) was spawned by this call; its result arrives by itself.", rec.Key, body.Agent)), nil
	}
	if live(rec.State) {
		c.Park(tool.AwaitingSubagent)
		// The child's own deadline bounds the wait: past it, the child ends.
		if err := p.await(ctx, ids, body.Deadline.Add(time.Hour)); err != nil {
			return tool.Result{}, err
		}
	}
	return p.take(ctx, c, ids, body.Timeout)
}

// plan makes the commit of a spawn, or says why it is refused.
func (p *Pool) plan(ctx context.Context, c *tool.Call, args spawnArgs, id session.ID) (Child, session.Batch, string, error) {
	no := func(format string, a ...any) (Child, session.Batch, string, error) {
		return Child{}, session.Batch{}, fmt.Sprintf(format, a...), nil
	}
	fail := func(err error) (Child, session.Batch, string, error) {
		return Child{}, session.Batch{}, "", fmt.Errorf("spawn subagent: %w", err)
	}
	parentRec, err := p.store.Record(ctx, session.KindSession, string(c.Turn.Agent))
	if err != nil {
		return fail(err)
	}
	var parent session.SessionBody
	if err := parentRec.Decode(&parent); err != nil {
		return fail(err)
	}
	now := time.Now().UTC()
	body := Child{
		Parent: c.Turn.Agent, ToolCall: c.ID, Agent: cmp.Or(args.Agent, p.cfg.DefaultAgent), Description: args.Description,
		Prompt: args.Prompt, Batch: c.Turn.Turn, Turn: session.NewTurnID(), Generation: c.Turn.Body.Generation, Depth: parent.Depth + 1,
		Spawned: now, Run: 1, Trace: genai.Carry(ctx),
	}
	switch {
	case body.Depth > p.limits.Depth:
		return no("a subagent can't spawn subagents here; do the task yourself")
	case body.Generation > p.limits.MaxGeneration:
		return no("this is the %dth turn in a row that follows up on results; no more subagents are spawned. "+
			"Finish with what you have, or ask the user", body.Generation)
	case !slices.Contains(p.cfg.Agents, body.Agent):
		return no("there is no agent %q to spawn%s; there are %s", body.Agent, hint(body.Agent, p.cfg.Agents), strings.Join(p.cfg.Agents, ", "))
	}
	for _, key := range args.Inputs {
		if _, err := p.store.Artifact(ctx, c.Turn.Root, key); errors.Is(err, session.ErrNotFound) {
			return no("there is no artifact %q", key)
		} else if err != nil {
			return fail(err)
		}
	}
	if len(args.Inputs) > 0 {
		body.Prompt += "\n\nRead these artifacts (read_artifact): " + join(args.Inputs)
	}
	body.Timeout = cmp.Or(p.cfg.Timeouts[body.Agent], p.limits.Timeout)
	if args.TimeoutSeconds > 0 {
		body.Timeout = min(body.Timeout, time.Duration(args.TimeoutSeconds*float64(time.Second)))
	}
	body.Deadline = c.Accepted.Add(body.Timeout).UTC()
	if args.Wait || c.Turn.Subagent() {
		body.Waiter = c.ID
	}
	if end := c.Turn.Body.Deadline; body.Waiter != "" && !end.IsZero() {
		// The caller needs some time for the result.
		spare := min(15*time.Second, time.Until(end)/10)
		if end = end.Add(-spare); body.Deadline.After(end) {
			body.Deadline, body.Timeout = end, end.Sub(c.Accepted)
		}
	}
	if !body.Deadline.After(now) {
		return no("no time left for a subagent; go on without it")
	}
	if p.limits.OnFull == OnFullReject && p.slots.full(c.Turn.Root) {
		return no("%s", allTaken)
	}
	b, refusal, err := p.commitOf(ctx, c, id, body)
	if err != nil {
		return fail(err)
	}
	return body, b, refusal, nil
}

const allTaken = "every slot for subagents is taken; wait for one to end, or do the task yourself"

func hint(name string, known []string) string {
	if near := session.Nearest(name, known); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

// commitOf makes the commit that spawns a child, or says why the agent can't run.
func (p *Pool) commitOf(ctx context.Context, c *tool.Call, id session.ID, body Child) (b session.Batch, refusal string, err error) {
	sess := session.SessionBody{
		Agent: body.Agent, Parent: body.Parent, Depth: body.Depth, Title: body.Description, Created: body.Spawned,
		Tools: c.Turn.Body.Setup.Tools,
	}
	insert := session.Insert(session.KindSession, string(id), id, c.Turn.OriginTurn, session.StateOpen, sess, time.Time{})
	setup, err := p.cfg.Prepare(ctx, session.Record{
		Tree: c.Turn.Root, Kind: session.KindSession, Key: string(id), Owner: id, Origin: c.Turn.OriginTurn, State: session.StateOpen,
		Body: insert.Body,
	}, sess)
	if err != nil {
		return session.Batch{}, fmt.Sprintf("agent %q can't be spawned: %v", body.Agent, err), nil
	}
	scope := session.Scope{Root: c.Turn.Root, Agent: id, Parent: body.Parent, Turn: body.Turn, OriginTurn: c.Turn.OriginTurn}
	b = session.Batch{
		Changes: []session.Change{
			insert,
			session.Insert(session.KindChild, string(id), body.Parent, c.Turn.OriginTurn, session.StateQueued, body, body.Deadline.Add(childGrace)),
		},
		Guards: []session.Guard{
			{Kind: session.KindChild, States: everyState, Max: p.limits.Spawned},
			{Kind: session.KindChild, States: []session.State{session.StateQueued}, Max: p.limits.Queued},
		},
		Events: []session.Event{
			scope.WithToolCall(c.ID).Event(session.EventSubagentSpawned, session.SubagentSpawned{
				Agent: body.Agent, Description: body.Description, Prompt: body.Prompt, Wait: body.Waiter != "", Deadline: body.Deadline,
			}),
			scope.WithToolCall(c.ID).Event(session.EventSubagentConfigured, session.SubagentConfigured{
				Agent: setup.Agent, Model: setup.Model, Tools: setup.Tools,
			}),
		},
	}
	if p.limits.OnFull == OnFullReject {
		b.Guards = append(b.Guards, session.Guard{
			Kind: session.KindChild, States: []session.State{session.StateQueued, session.StateRunning}, Max: p.limits.RunningPerTree,
		})
	}
	b.Add(session.QueueTurn(scope, session.TurnBody{
		Origin: session.OriginTask, CausedBy: []string{string(body.Parent)}, Generation: body.Generation, Input: body.Prompt,
		Deadline: body.Deadline, Trace: body.Trace,
	}, time.Time{}))
	// Another spawn of this turn may come between: it changes the batch's revision, and so does this one, without reading it.
	key := string(c.Turn.Turn)
	switch _, err := p.store.Record(ctx, session.KindBatch, key); {
	case errors.Is(err, session.ErrNotFound):
		b.Changes = append(b.Changes, session.Insert(session.KindBatch, key, c.Turn.Agent, c.Turn.OriginTurn, BatchOpen,
			batch{Generation: body.Generation}, time.Time{}))
	case err != nil:
		return session.Batch{}, "", err
	default:
		b.Changes = append(b.Changes, session.Change{Kind: session.KindBatch, Key: key, From: []session.State{BatchOpen}, To: BatchOpen})
	}
	return b, "", nil
}

// refusalOf says in a sentence which bound a spawn hit; empty: none.
func (p *Pool) refusalOf(err error) string {
	full, ok := errors.AsType[*session.GuardError](err)
	if !ok {
		return ""
	}
	switch len(full.Guard.States) {
	case len(everyState):
		return fmt.Sprintf("this session has spawned %d subagents, which is all it may; do the rest yourself", p.limits.Spawned)
	case 1:
		return fmt.Sprintf("%d subagents already wait for a slot; wait for some to end before you spawn more", p.limits.Queued)
	}
	return allTaken
}
