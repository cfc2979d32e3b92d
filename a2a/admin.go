package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"orchestrator/session"
	"orchestrator/tool"
)

// The names of the tools that change which agents are known. Their source is [tool.SourceA2AAdmin].
const (
	RegisterAgent    = "register_agent"
	UnregisterAgent  = "unregister_agent"
	RefreshAgentCard = "refresh_agent_card"
)

// adminBudget bounds the fetching of the card of one agent.
const adminBudget = 20 * time.Second

// AdminTools returns the tools of source a2a:admin. What they change is there for every session, and stays.
func (r *Relay) AdminTools() []tool.Tool {
	return []tool.Tool{
		&adminTool{r: r, name: RegisterAgent, schema: registerSchema, about: registerAbout, run: registerAgent},
		&adminTool{r: r, name: UnregisterAgent, schema: namedSchema, about: unregisterAbout, run: unregisterAgent},
		&adminTool{r: r, name: RefreshAgentCard, schema: namedSchema, about: refreshAbout, run: refreshAgentCard},
	}
}

const (
	registerAbout = "Make another A2A agent known by its URL, so that invoke_agent can ask it from now on, in every session. " +
		"Its card is fetched first; an agent at a private address is refused unless the operator allows it."
	unregisterAbout = "Forget an agent that was registered. Agents the operator lists can't be forgotten."
	refreshAbout    = "Fetch an agent's card again, for instance when its skills have changed."

	registerSchema = `{"type": "object", "properties": {` +
		`"agent_name": {"type": "string", "description": "what the agent is to be called: up to 64 letters, digits, '.', '_' and '-'"}, ` +
		`"url": {"type": "string", "description": "the agent's base URL, or that of its card"}, ` +
		`"description": {"type": "string", "description": "what the agent is for; its card's description if left out"}}, ` +
		`"required": ["agent_name", "url"], "additionalProperties": false}`
	namedSchema = `{"type": "object", "properties": {"agent_name": {"type": "string", "description": "the agent's name"}}, "required": ["agent_name"], "additionalProperties": false}`
)

type adminArguments struct {
	AgentName   string `json:"agent_name"`
	URL         string `json:"url"`
	Description string `json:"description"`
}

// adminTool is one of the tools that change which agents are known.
type adminTool struct {
	r      *Relay
	name   string
	schema string
	about  string
	run    func(ctx context.Context, r *Relay, c *tool.Call, args adminArguments) (string, error)
}

var _ tool.Tool = (*adminTool)(nil)

// Spec implements [tool.Tool]. Each of the tools comes to the same when it runs twice.
func (t *adminTool) Spec() tool.Spec {
	return tool.Spec{
		Name: t.name, Source: tool.SourceA2AAdmin, Repeatable: true, Schema: json.RawMessage(t.schema),
		Description: func(tool.Kind) string { return t.about },
	}
}

// Run implements [tool.Tool].
func (t *adminTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args adminArguments
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return tool.Failure(fmt.Sprintf("the arguments of %s can't be read: %v", t.name, err)), nil
	}
	budget, cancel := context.WithTimeoutCause(ctx, adminBudget, fmt.Errorf("agent '%s' did not answer within %s", args.AgentName, adminBudget))
	defer cancel()
	text, err := t.run(budget, t.r, c, args)
	switch {
	case ctx.Err() != nil:
		return tool.Result{}, context.Cause(ctx)
	case err != nil:
		return tool.Failure(session.Shorten(err.Error(), 1000, "")), nil
	}
	return tool.Text(text), nil
}

func registerAgent(ctx context.Context, r *Relay, c *tool.Call, args adminArguments) (string, error) {
	self := r.cfg.Self
	if self.Name != "" && args.AgentName == self.Name || sameURL(args.URL, self.Card) {
		return "", fmt.Errorf("'%s' is this agent itself", args.AgentName)
	}
	in, err := r.cfg.Registry.Add(ctx, Registration{
		Name: args.AgentName, URL: args.URL, Description: args.Description, By: string(c.Turn.Root),
	})
	if err != nil {
		return "", fmt.Errorf("agent '%s' was not registered: %w", args.AgentName, err)
	}
	r.cfg.Logger.InfoContext(ctx, "an agent was registered", "session", c.Turn.Root, "agent", c.Turn.Agent, "peer", in.Name, "url", in.Card)
	return fmt.Sprintf("Agent '%s' is registered and can be asked with invoke_agent.\n%s", in.Name, r.about(in)), nil
}

func unregisterAgent(ctx context.Context, r *Relay, c *tool.Call, args adminArguments) (string, error) {
	err := r.cfg.Registry.Remove(ctx, args.AgentName)
	if _, unknown := errors.AsType[*UnknownPeerError](err); unknown && c.Resumed {
		err = nil // an earlier life of the process has removed it
	}
	if err != nil {
		return "", fmt.Errorf("agent '%s' was not unregistered: %w", args.AgentName, err)
	}
	r.cfg.Logger.InfoContext(ctx, "an agent was unregistered", "session", c.Turn.Root, "agent", c.Turn.Agent, "peer", args.AgentName)
	return fmt.Sprintf("Agent '%s' is no longer known.", args.AgentName), nil
}

func refreshAgentCard(ctx context.Context, r *Relay, _ *tool.Call, args adminArguments) (string, error) {
	in, err := r.cfg.Registry.Refresh(ctx, args.AgentName)
	if err != nil {
		return "", fmt.Errorf("the card of agent '%s' was not refreshed: %w", args.AgentName, err)
	}
	return fmt.Sprintf("The card of agent '%s' is fresh.\n%s", in.Name, r.about(in)), nil
}

// about tells a model what an agent says of itself.
func (r *Relay) about(in Info) string {
	lines := []string{oneLine(in.Description, 500)}
	for _, s := range in.Skills {
		lines = append(lines, fmt.Sprintf("- skill %s: %s", s.ID, oneLine(s.Description, 200)))
	}
	return session.AsData(in.Name, session.Shorten(strings.Join(lines, "\n"), session.InlineBudget, ""))
}
