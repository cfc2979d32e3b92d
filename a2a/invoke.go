package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/internal/telemetry/genai"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// InvokeAgent is the name of the tool that asks a peer.
const InvokeAgent = "invoke_agent"

// Tools returns the tools: invoke_agent, list_known_agents and get_agent_details.
func (r *Relay) Tools() []tool.Tool { return []tool.Tool{&invoke{r}, &listAgents{r}, &agentDetails{r}} }

// invoke is invoke_agent.
type invoke struct{ r *Relay }

var _ tool.Tool = (*invoke)(nil)

const (
	invokeFromPrimary = "Ask another agent, by the name list_known_agents gives. From here the call returns at once: the answer comes later, as a follow-up message of its own. " +
		"Do not call it again for the same question and do not wait for it; tell the user briefly what you asked and stop, or go on with other work."
	invokeFromSubagent = "Ask another agent, by the name list_known_agents gives, and wait for it: the result of this call is the agent's answer. Use it and go on with your task. " +
		"Ask one agent at a time. If there is no answer in time, the result says so; then proceed without it."
	invokeArgs = " The other agent sees only the message, so put all it needs to know into it. To answer a question it asked back, or to go on from an earlier answer, give the task_id of that call."
)

var invokeSchema = json.RawMessage(`{
  "type": "object",
  "properties": {
    "agent_name": {"type": "string", "description": "the agent's name"},
    "message": {"type": "string", "minLength": 1, "description": "the question or task, complete in itself"},
    "skill": {"type": "string", "description": "the id of the agent's skill that is meant"},
    "data": {"type": "object", "description": "structured data that goes with the message"},
    "task_id": {"type": "string", "description": "the task_id of an earlier call to the same agent that this message continues"},
    "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "description": "how long the answer is worth waiting for"}
  },
  "required": ["agent_name", "message"],
  "additionalProperties": false
}`)

// Spec implements [tool.Tool].
func (*invoke) Spec() tool.Spec {
	return tool.Spec{
		Name: InvokeAgent, Source: tool.SourceA2A, Schema: invokeSchema, Repeatable: true,
		Description: func(k tool.Kind) string {
			if k == tool.Subagent {
				return invokeFromSubagent + invokeArgs
			}
			return invokeFromPrimary + invokeArgs
		},
	}
}

type invokeArguments struct {
	AgentName      string          `json:"agent_name"`
	Message        string          `json:"message"`
	Skill          string          `json:"skill"`
	Data           json.RawMessage `json:"data"`
	TaskID         session.CallID  `json:"task_id"`
	TimeoutSeconds float64         `json:"timeout_seconds"`
}

// Run implements [tool.Tool]. A call of a subagent blocks until the peer's answer or the deadline; the mode is the
// session's, never what the caller says. It does little itself: what is on its stack stays there for the whole wait.
func (t *invoke) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	res, err := t.begin(ctx, c)
	if err == nil && res == nil {
		res, err = t.r.await(ctx, c)
	}
	if err != nil {
		return tool.Result{}, err
	}
	return *res, nil
}

// begin registers the call and has it followed. It returns the result, or nil when that has to be waited for.
func (t *invoke) begin(ctx context.Context, c *tool.Call) (*tool.Result, error) {
	var p tracker.PendingA2ATask
	var fresh *request
	var span trace.Span
	err := session.ErrNotFound // its id was minted a moment ago
	if c.Resumed {
		p, err = t.r.cfg.Tracker.Get(ctx, session.CallIDFor(c.ID))
	}
	if errors.Is(err, session.ErrNotFound) {
		req, q, refusal, err := t.prepare(ctx, c)
		if err != nil || refusal != nil {
			return refusal, err
		}
		// The span is the follower's to end. One that nobody ends, since nothing was registered, is never told of.
		sctx, started := t.r.startSpan(ctx, c, req)
		req.Trace = genai.Carry(sctx)
		defer t.r.begin(session.CallIDFor(c.ID))()
		var existed bool
		p, existed, err = t.r.cfg.Tracker.Register(ctx, c.Turn, req)
		if full, ok := errors.AsType[*tracker.FullError](err); ok {
			res := tool.Failure(full.Error())
			return &res, nil
		}
		if err != nil {
			return nil, err
		}
		if !existed {
			fresh, span = q, started
		}
	} else if err != nil {
		return nil, err
	}
	if p.Wanted() {
		t.r.follow(c.Turn.Tree(), p, fresh, span)
	}
	if p.State == tracker.StateWaiting {
		return nil, nil //nolint:nilnil // that is what it says
	}
	return t.r.result(c, &p), nil
}

// await waits for the call and returns what became of it.
func (r *Relay) await(ctx context.Context, c *tool.Call) (*tool.Result, error) {
	c.Park(tool.AwaitingPeer)
	p, err := r.cfg.Tracker.Await(ctx, session.CallIDFor(c.ID))
	if err != nil {
		return nil, err
	}
	return r.result(c, p), nil
}

// prepare returns what to register and what to send, or the result that refuses the call. Nothing has been sent by then.
func (t *invoke) prepare(ctx context.Context, c *tool.Call) (req tracker.Request, q *request, refusal *tool.Result, err error) {
	refuse := func(format string, args ...any) (tracker.Request, *request, *tool.Result, error) {
		res := tool.Failure(fmt.Sprintf(format, args...))
		return tracker.Request{}, nil, &res, nil
	}
	var args invokeArguments
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return refuse("the arguments of %s can't be read: %v", InvokeAgent, err)
	}
	if strings.TrimSpace(args.Message) == "" {
		return refuse("the message is empty; say what agent '%s' is asked", args.AgentName)
	}
	self := t.r.cfg.Self
	if self.Name != "" && args.AgentName == self.Name {
		return refuse("'%s' is this agent itself; it can't ask itself", args.AgentName)
	}
	peer, err := t.r.cfg.Registry.Lookup(args.AgentName)
	if err != nil {
		return refuse("%v", err)
	}
	limits := t.r.cfg.Limits
	if c.Turn.Body.Generation > limits.MaxGeneration && args.TaskID == "" {
		return refuse("this turn came of %d follow-ups in a row, and no more agents may be asked; answer with what you have", c.Turn.Body.Generation)
	}
	inbound := Lineage{}
	if t.r.cfg.Inbound != nil {
		inbound = t.r.cfg.Inbound(c.Turn)
	}
	id := peer.Identity()
	switch {
	case sameURL(id, self.Card):
		return refuse("'%s' is this agent itself; it can't ask itself", args.AgentName)
	case slices.ContainsFunc(inbound.Chain, func(c string) bool { return sameURL(c, id) }):
		return refuse("agent '%s' is among those the question came from; it can't be asked again for the same question", args.AgentName)
	case inbound.Depth+1 > limits.MaxDepth:
		return refuse("the question has come through %d agents, which is the most that may be; answer with what you have", inbound.Depth)
	}
	if args.Skill != "" {
		if card := t.r.cfg.Registry.known(peer.Name); card != nil && len(card.Skills) > 0 {
			ids := make([]string, len(card.Skills))
			for i, s := range card.Skills {
				ids[i] = s.ID
			}
			if !slices.Contains(ids, args.Skill) {
				return refuse("agent '%s' has no skill %q; it has %q", peer.Name, args.Skill, ids)
			}
		}
	}

	mode, budget := session.ModeAsync, limits.CallTimeout
	if c.Turn.Subagent() {
		mode, budget = session.ModeBlocking, min(limits.MaxWait, limits.CallTimeout)
	}
	if args.TimeoutSeconds > 0 {
		budget = min(budget, seconds(args.TimeoutSeconds))
	}
	if peer.Timeout > 0 {
		budget = min(budget, peer.Timeout)
	}
	if end := c.Turn.Body.Deadline; mode == session.ModeBlocking && !end.IsZero() {
		left := end.Sub(c.Accepted)
		budget = min(budget, left-min(15*time.Second, left/10))
	}
	deadline := c.Accepted.Add(budget)
	if budget <= 0 || !time.Now().Before(deadline) {
		res := tool.Text(fmt.Sprintf("no time left to ask peer '%s'; proceeding without it", peer.Name))
		return req, nil, &res, nil
	}

	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(args.Message))
	m.ID = string(session.CallIDFor(c.ID))
	m.ContextID = "x-" + m.ID
	if len(args.Data) > 0 && string(args.Data) != "null" {
		var data map[string]any
		if err := json.Unmarshal(args.Data, &data); err != nil {
			return refuse("data must be an object: %v", err)
		}
		m.Parts = append(m.Parts, protocol.NewDataPart(data))
	}
	m.Extensions = []string{LineageURI}
	lineage := inbound.Next(cmp.Or(self.Card, self.Name), deadline)
	if !inbound.Deadline.IsZero() && inbound.Deadline.Before(deadline) {
		lineage.Deadline = inbound.Deadline
	}
	m.SetMeta(LineageURI, lineage.Metadata())
	if args.Skill != "" {
		m.SetMeta("skill", args.Skill)
	}
	q = &request{Message: m}
	if args.TaskID != "" {
		why, err := t.resume(ctx, c, peer, args, q)
		if err != nil {
			return req, nil, nil, err
		}
		if why != "" {
			return refuse("%s", why)
		}
	}
	raw, err := q.marshal()
	if err != nil {
		return req, nil, nil, err
	}
	asker, err := t.r.asker(ctx, c.Turn)
	if err != nil {
		return req, nil, nil, err
	}
	return tracker.Request{
		ToolCall: c.ID, Peer: peer.Name, Transport: t.r.cfg.Registry.carrier(peer.Name), Mode: mode,
		Deadline: deadline, ReplyBy: deadline.Add(limits.ReplyRetention), ContextID: m.ContextID, Message: raw,
		Question: args.Message, AskerName: asker, CancelOnTimeout: peer.OnTimeout == OnTimeoutCancel,
	}, q, nil, nil
}

func seconds(s float64) time.Duration {
	if s > 1e6 {
		s = 1e6
	}
	return time.Duration(s * float64(time.Second))
}

func sameURL(a, b string) bool {
	trim := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, WellKnownPath), "/") }
	return a != "" && b != "" && strings.EqualFold(trim(a), trim(b))
}

// asker says who asks, in the words of a fold-back.
func (r *Relay) asker(ctx context.Context, t *session.Turn) (string, error) {
	if !t.Subagent() {
		return "the primary", nil
	}
	rec, err := r.cfg.Store.Record(ctx, session.KindSession, string(t.Agent))
	if errors.Is(err, session.ErrNotFound) {
		return "a subagent", nil
	}
	if err != nil {
		return "", fmt.Errorf("read session %s: %w", t.Agent, err)
	}
	var body session.SessionBody
	if err := rec.Decode(&body); err != nil {
		return "", err
	}
	return cmp.Or(body.Title, body.Agent, "a subagent"), nil
}

// seenBudget bounds the look at a peer's task before it is continued.
const seenBudget = 5 * time.Second

// resume makes the message continue an earlier call of the same tree to the same peer: its task, if the peer asked back,
// else its context. why says, for the model, why it can't.
func (t *invoke) resume(ctx context.Context, c *tool.Call, peer Peer, args invokeArguments, q *request) (why string, err error) {
	before, err := t.r.cfg.Tracker.Get(ctx, args.TaskID)
	switch {
	case err != nil && !errors.Is(err, session.ErrNotFound):
		return "", err
	case err != nil || before.RootID != c.Turn.Root || before.Peer != peer.Name:
		return fmt.Sprintf("there is no task %q of agent '%s' in this session", args.TaskID, peer.Name), nil
	case before.Wanted():
		return fmt.Sprintf("task %q of agent '%s' has no answer yet; wait for its result", args.TaskID, peer.Name), nil
	case before.Reply == nil || before.ContextID == "":
		return fmt.Sprintf("task %q of agent '%s' can't be continued; ask anew, without a task_id", args.TaskID, peer.Name), nil
	}
	q.Message.ContextID = before.ContextID
	if before.Reply.State != tracker.StateInputRequired {
		if before.PeerTaskID != "" {
			q.Message.ReferenceTasks = []protocol.TaskID{protocol.TaskID(before.PeerTaskID)}
		}
		return "", nil
	}
	q.Message.TaskID = protocol.TaskID(before.PeerTaskID)

	calls, err := t.r.cfg.Tracker.List(ctx, session.RecordQuery{Tree: c.Turn.Root})
	if err != nil {
		return "", err
	}
	var rounds []tracker.PendingA2ATask
	for _, p := range calls {
		if p.Peer == peer.Name && p.PeerTaskID == before.PeerTaskID {
			rounds = append(rounds, p)
		}
	}
	if len(rounds) > t.r.cfg.Limits.MaxInputRounds {
		return fmt.Sprintf("agent '%s' has asked back %d times about this task, which is the most that may be; go on without it", peer.Name, len(rounds)), nil
	}
	same := 0
	for i := 1; i < len(rounds); i++ {
		asked := rounds[i-1].Reply
		if asked != nil && asked.Text == before.Reply.Text && rounds[i].Question == shortQuestion(args.Message) {
			same++
		}
	}
	if same >= 2 {
		return fmt.Sprintf("agent '%s' has asked the same and got the same answer twice; a third time won't help, go on without it", peer.Name), nil
	}

	// What the task says now is the question, and no answer to this message when it is seen again. Not knowing it costs
	// at most that the question is returned once more.
	ctx, cancel := context.WithTimeout(ctx, seenBudget)
	defer cancel()
	client, err := t.r.cfg.Registry.connect(ctx, peer.Name)
	if err != nil {
		return "", nil //nolint:nilerr // the relay meets the same error, and delivers it
	}
	if task, err := client.GetTask(carrying(ctx), &protocol.GetTaskRequest{ID: q.Message.TaskID}); err == nil {
		a := &assembly{limit: t.r.cfg.Limits.MaxReply}
		a.add(task)
		q.Seen = a.mark()
	}
	return "", nil
}

// shortQuestion is the question as the tracker keeps it.
func shortQuestion(s string) string { return session.Shorten(s, questionBudget, "") }

// questionBudget is the tracker's.
const questionBudget = 600

// result maps a registered call, which no longer waits if it ever did, to the tool's result.
func (r *Relay) result(c *tool.Call, p *tracker.PendingA2ATask) *tool.Result {
	if p.Mode == session.ModeAsync {
		return text(fmt.Sprintf("Task dispatched to agent '%s' (task_id %s). The result arrives later as a follow-up; do not call it again for this. Tell the user briefly and stop.", p.Peer, p.ID))
	}
	noAnswer := fmt.Sprintf("peer '%s' did not respond within %ds; proceeding without it", p.Peer, granted(c, p))
	switch p.State {
	case tracker.StateAnswered, tracker.StateConsumed:
	case tracker.StateCancelled:
		if p.Why != "" {
			return text(noAnswer) // the peer was cancelled because it was too late
		}
		return text(fmt.Sprintf("the call to peer '%s' was cancelled", p.Peer))
	default:
		if p.Why == tracker.WhyAuthRequired && p.Auth != nil {
			return text(fmt.Sprintf("peer '%s' wants the user to authenticate before it answers, which only the user can do; proceeding without it\n\n%s",
				p.Peer, session.AsData(p.Peer, p.Auth.Content())))
		}
		return text(noAnswer)
	}
	res := r.answer(p)
	if p.State == tracker.StateAnswered {
		res.Batch = session.Batch{Changes: []session.Change{r.cfg.Tracker.Consume(*p)}}
		res.Conflict = func(ctx context.Context, _ error) (tool.Result, error) {
			now, err := r.cfg.Tracker.Get(ctx, p.ID)
			if err != nil {
				return tool.Result{}, err
			}
			return *r.result(c, &now), nil
		}
	}
	return &res
}

func text(s string) *tool.Result {
	res := tool.Text(s)
	return &res
}

// granted is the budget of a blocking wait, in whole seconds.
func granted(c *tool.Call, p *tracker.PendingA2ATask) int {
	from := p.SentAt
	if !c.Accepted.IsZero() && c.Accepted.Before(p.Deadline) {
		from = c.Accepted
	}
	return max(1, int(math.Round(p.Deadline.Sub(from).Seconds())))
}

// answer maps a reply to a result.
func (r *Relay) answer(p *tracker.PendingA2ATask) tool.Result {
	reply := p.Reply
	text := reply.Content()
	body := ""
	if text != "" {
		body = session.AsData(p.Peer, text)
	}
	if len(reply.Artifacts) > 0 {
		body = strings.TrimSpace(fmt.Sprintf("%s\n\nartifacts of the answer, for read_artifact: %s", body, quoted(reply.Artifacts)))
	}
	join := func(head string) string { return strings.TrimSpace(head + "\n\n" + body) }
	switch reply.State {
	case "completed":
		if body == "" {
			body = fmt.Sprintf("peer '%s' answered without saying anything", p.Peer)
		}
		return tool.Text(body)
	case tracker.StateInputRequired:
		peer, err := r.cfg.Registry.Lookup(p.Peer)
		if err != nil || peer.OnInputRequired == OnInputRequiredRefuse || p.PeerTaskID == "" {
			return tool.Text(join(fmt.Sprintf("peer '%s' did not answer but asked for more; proceeding without it. It asked:", p.Peer)))
		}
		return tool.Text(join(fmt.Sprintf("peer '%s' did not answer but asked for more; proceeding without it, unless you answer: call %s again with agent_name %q, task_id %q and your answer as the message. It asked:",
			p.Peer, InvokeAgent, p.Peer, p.ID)))
	}
	if reply.Failed {
		return tool.Failure(reply.Text) // our own words, not the peer's
	}
	verb := map[string]string{"failed": "failed", "rejected": "rejected the task", "canceled": "cancelled the task"}[reply.State]
	return tool.Failure(join(fmt.Sprintf("peer '%s' %s", p.Peer, cmp.Or(verb, "ended in the state "+reply.State))))
}

func quoted(keys []session.ArtifactKey) string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = string(k)
	}
	return strings.Join(out, ", ")
}
