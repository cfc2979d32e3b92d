package app_test

import (
	"strings"
	"testing"

	"orchestrator/internal/app"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
)

func TestAnAgentsOwnLimitsAndDescriptionAreItsOwn(t *testing.T) {
	a, _ := orchtest.Start(t, orchtest.Config{
		Memory: true,
		Script: `
agents:
  - name: primary
    rules:
      - position: 0
        tool_calls: [{name: spawn_subagent, args: {agent: clerk, description: d, prompt: p, wait: true}}]
      - position: 1
        tool_calls: [{name: current_time, args: {}}]
      - text: done
  - name: clerk
    rules:
      - match: limit of 1 model calls
        text: I only looked at the clock.
      - tool_calls: [{name: current_time, args: {}}]
`,
		Edit: func(c *app.Config) {
			c.Agents = []app.AgentConfig{{Name: "clerk", Description: "keeps the books", Limits: app.AgentLimits{ModelCalls: 1}}}
		},
	})
	log := orchtest.Ask(t, a, "go")
	stops := make(map[bool]string)
	for _, e := range log {
		var ended session.TurnEnded
		if e.Type == session.EventTurnCompleted {
			if err := e.Decode(&ended); err != nil {
				t.Fatal(err)
			}
			stops[e.Root] = ended.StopReason
		}
	}
	if stops[false] != "max_model_calls" || stops[true] != "end_turn" {
		t.Errorf("the clerk stopped for %q and the primary for %q, want max_model_calls and end_turn:\n%s",
			stops[false], stops[true], orchtest.Dump(log))
	}
	for _, tl := range a.Registry() {
		if spec := tl.Spec(); spec.Name == "spawn_subagent" && !strings.Contains(string(spec.Schema), "clerk: keeps the books") {
			t.Errorf("the schema doesn't say what the clerk is for: %s", spec.Schema)
		}
	}
}
