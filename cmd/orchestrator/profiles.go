package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
)

func (c *cli) profilesCommand() *cobra.Command {
	var agent, tool string
	explain := &cobra.Command{
		Use: "explain --agent NAME --tool NAME", Short: "Say whether an agent may call a tool, and which line decides", Args: noArgs,
		Example: `  orchestrator profiles explain --agent subagent --tool spawn_subagent`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if agent == "" || tool == "" {
				return usageError{fmt.Errorf("profiles explain needs --agent and --tool")}
			}
			return c.inspect(cmd, func(_ context.Context, a *app.App) error { return c.explainProfile(a, agent, tool) })
		},
	}
	explain.Flags().StringVar(&agent, "agent", "", "an agent of the configuration")
	explain.Flags().StringVar(&tool, "tool", "", "a tool's name")
	c.complete(explain, "agent", c.completeAgents)
	c.complete(explain, "tool", c.completeTools)
	return group("profiles", "Look at the tool profiles: who may call what",
		&cobra.Command{
			Use: "list", Short: "List the tools each agent may call", Args: noArgs,
			Example: `  orchestrator profiles list`,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.inspect(cmd, func(_ context.Context, a *app.App) error { return c.listProfiles(a) })
			},
		}, explain)
}

// profileRow is what profiles list says of an agent.
type profileRow struct {
	Agent   string   `json:"agent"`
	Profile string   `json:"profile"`
	Allowed []string `json:"allowed"`
	Ask     []string `json:"ask,omitempty"`
	Denied  []string `json:"denied,omitempty"`
}

func (c *cli) listProfiles(a *app.App) error {
	var rows []profileRow
	for _, agent := range a.Config().Agents {
		subject, err := a.Subject(agent.Name)
		if err != nil {
			return err
		}
		row := profileRow{Agent: agent.Name, Profile: agent.Profile}
		for _, d := range a.Profiles.Profiles().Effective(a.Registry(), subject) {
			switch {
			case d.Allowed:
				row.Allowed = append(row.Allowed, d.Tool)
			case d.Ask:
				row.Ask = append(row.Ask, d.Tool)
			default:
				row.Denied = append(row.Denied, d.Tool)
			}
		}
		rows = append(rows, row)
	}
	if c.output == outputJSON {
		for _, row := range rows {
			if err := printJSON(c.stdout, row); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tPROFILE\tTOOLS")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Agent, r.Profile, strings.Join(r.Allowed, ", "))
		if len(r.Ask) > 0 {
			fmt.Fprintf(w, "\t\tneeds an approval: %s\n", strings.Join(r.Ask, ", "))
		}
		if len(r.Denied) > 0 {
			fmt.Fprintf(w, "\t\tnot: %s\n", strings.Join(r.Denied, ", "))
		}
	}
	return w.Flush()
}

func (c *cli) explainProfile(a *app.App, agent, tool string) error {
	subject, err := a.Subject(agent)
	if err != nil {
		return withHint(usageError{err}, "orchestrator profiles list names the agents there are")
	}
	d, err := a.Profiles.Profiles().Explain(a.Registry(), subject, tool)
	if err != nil {
		return withHint(usageError{err}, "orchestrator profiles list names the tools there are")
	}
	where := d.File
	if d.Line > 0 {
		where = fmt.Sprintf("%s:%d", d.File, d.Line)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{
			"agent": agent, "tool": tool, "allowed": d.Allowed, "ask": d.Ask, "reason": d.Reason, "where": where,
		})
	}
	answer := "not allowed"
	if d.Allowed {
		answer = "allowed"
	}
	_, err = fmt.Fprintf(c.stdout, "%s: %s\n", answer, d.Reason) // which names the line
	return err
}
