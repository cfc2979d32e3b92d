package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"orchestrator/session"
	"orchestrator/tool"
)

// The names of the tools that tell of peers.
const (
	ListKnownAgents = "list_known_agents"
	GetAgentDetails = "get_agent_details"
)

// infoBudget bounds the fetching of the cards that a tool tells of.
const infoBudget = 5 * time.Second

// listAgents is list_known_agents.
type listAgents struct{ r *Relay }

var _ tool.Tool = (*listAgents)(nil)

// Spec implements [tool.Tool].
func (*listAgents) Spec() tool.Spec {
	return tool.Spec{
		Name: ListKnownAgents, Source: tool.SourceA2A, Repeatable: true,
		Schema: json.RawMessage(`{"type": "object", "properties": {"skill": {"type": "string", "description": "only agents with a skill whose id, name or tag has this text"}}, "additionalProperties": false}`),
		Description: func(tool.Kind) string {
			return "List the other agents that invoke_agent can ask, with what each is for. An agent marked unreachable may be back when it is asked."
		},
	}
}

// Run implements [tool.Tool].
func (t *listAgents) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		Skill string `json:"skill"`
	}
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return tool.Failure(fmt.Sprintf("the arguments of %s can't be read: %v", ListKnownAgents, err)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, infoBudget)
	defer cancel()
	var lines []string
	for _, in := range t.r.cfg.Registry.Infos(ctx) {
		if args.Skill != "" && in.Reachable && !slices.ContainsFunc(in.Skills, func(s Skill) bool { return s.has(args.Skill) }) {
			continue
		}
		line := "- " + in.Name
		if in.Description != "" {
			line += ": " + oneLine(in.Description, 300)
		}
		var skills []string
		for _, s := range in.Skills {
			skills = append(skills, s.ID)
		}
		if len(skills) > 0 {
			line += " (skills: " + oneLine(strings.Join(skills, ", "), 200) + ")"
		}
		if !in.Reachable {
			line += " [unreachable: " + oneLine(in.Problem, 200) + "]"
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		if args.Skill != "" {
			return tool.Text(fmt.Sprintf("No known agent has the skill %q.", args.Skill)), nil
		}
		return tool.Text("No other agents are known."), nil
	}
	return tool.Text(session.AsData("the agents' cards", strings.Join(lines, "\n"))), nil
}

// has reports whether the skill's id, name or a tag has the text in it.
func (s Skill) has(text string) bool {
	text = strings.ToLower(text)
	for _, in := range append([]string{s.ID, s.Name}, s.Tags...) {
		if strings.Contains(strings.ToLower(in), text) {
			return true
		}
	}
	return false
}

func oneLine(s string, budget int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > budget {
		s = strings.ToValidUTF8(s[:budget], "") + "…"
	}
	return s
}

// agentDetails is get_agent_details.
type agentDetails struct{ r *Relay }

var _ tool.Tool = (*agentDetails)(nil)

// Spec implements [tool.Tool].
func (*agentDetails) Spec() tool.Spec {
	return tool.Spec{
		Name: GetAgentDetails, Source: tool.SourceA2A, Repeatable: true,
		Schema: json.RawMessage(`{"type": "object", "properties": {"agent_name": {"type": "string", "description": "the agent's name"}}, "required": ["agent_name"], "additionalProperties": false}`),
		Description: func(tool.Kind) string {
			return "Show what another agent says of itself: its skills with examples, its version, whether it can be reached."
		},
	}
}

// Run implements [tool.Tool].
func (t *agentDetails) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		AgentName string `json:"agent_name"`
	}
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return tool.Failure(fmt.Sprintf("the arguments of %s can't be read: %v", GetAgentDetails, err)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, infoBudget)
	defer cancel()
	in, err := t.r.cfg.Registry.Info(ctx, args.AgentName)
	if err != nil {
		return tool.Failure(err.Error()), nil
	}
	in.Endpoints = nil // of no use to a model
	text, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return tool.Result{}, fmt.Errorf("marshal the card of %s: %w", in.Name, err)
	}
	return tool.Text(session.AsData(in.Name, session.Shorten(string(text), session.InlineBudget, ""))), nil
}
