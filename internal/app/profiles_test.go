package app_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/internal/app"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
	"orchestrator/toolprofile"
)

// TestProfilesSnapshotOfTheLiveRegistry is the conscious gate: who may call which of the tools there are changes only
// together with the committed table, which no make target writes.
func TestProfilesSnapshotOfTheLiveRegistry(t *testing.T) {
	a, _ := orchtest.Start(t, orchtest.Config{Script: script, Memory: true})
	want, err := os.ReadFile("../../configs/profiles.snapshot.txt")
	if err != nil {
		t.Fatal(err)
	}
	var table []string
	for line := range strings.Lines(string(want)) {
		if !strings.HasPrefix(line, "#") {
			table = append(table, line)
		}
	}
	got := toolprofile.Snapshot(a.Profiles.Profiles(), a.Registry())
	if diff := cmp.Diff(strings.Join(table, ""), got); diff != "" {
		t.Errorf("who may call what has changed; if that is meant, edit configs/profiles.snapshot.txt by hand (-want +got):\n%s", diff)
	}
}

func TestProfilesADeniedToolThatIsCalledAnywayIsRefusedRecordedAndCounted(t *testing.T) {
	a, _ := orchtest.Start(t, orchtest.Config{Memory: true, Script: `
agents:
  - name: primary
    rules:
      - position: 0
        tool_calls: [{name: spawn_subagent, args: {description: d, prompt: p, wait: true}}]
      - text: done
  - name: subagent
    rules:
      - position: 0
        tool_calls: [{name: spawn_subagent, args: {description: mine, prompt: more}}]
      - tool: spawn_subagent
        match: '(?s).*'
        text: "I was told: $0"
`})
	log := orchtest.Ask(t, a, "go")
	var refused, spawned int
	for _, e := range log {
		switch e.Type {
		case session.EventSubagentSpawned:
			spawned++
		case session.EventToolCompleted:
			var done session.ToolCompleted
			if err := e.Decode(&done); err != nil {
				t.Fatal(err)
			}
			if !e.Root && done.Denied {
				refused++
				if !done.IsError || !strings.Contains(done.Content, "spawn_subagent") {
					t.Errorf("the refusal reads %q, error %t", done.Content, done.IsError)
				}
			}
		}
	}
	if refused != 1 || spawned != 1 {
		t.Errorf("%d refusals and %d spawns in the log, want 1 and 1:\n%s", refused, spawned, orchtest.Dump(log))
	}
	if got := a.Denied()[app.DeniedTool{Agent: "subagent", Tool: "spawn_subagent"}]; got != 1 {
		t.Errorf("counted %d refused calls, want 1", got)
	}
}

func TestProfilesAChildHasNoMoreThanItsParentHad(t *testing.T) {
	a, _ := orchtest.Start(t, orchtest.Config{
		Memory: true, Script: script, Peers: map[string]string{"advisor": advisor(t)},
		Edit: func(c *app.Config) {
			// The primary's profile here lacks a2a; the subagent's own admits it.
			c.ProfilesFile = "profiles.yaml"
			if err := os.WriteFile(c.Dir+"/profiles.yaml", []byte(`
profiles:
  - name: primary
    allow: [{source: builtin}, {source: subagent}]
  - name: subagent
    allow: [{source: builtin}, {source: a2a}]
`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	})
	log := orchtest.Ask(t, a, "Look into the sea.")
	for _, e := range log {
		if e.Type == session.EventInvocationDispatched {
			t.Errorf("a child of a parent without a2a called a peer:\n%s", orchtest.Dump(log))
		}
	}
	if a.Denied()[app.DeniedTool{Agent: "subagent", Tool: "invoke_agent"}] != 1 {
		t.Errorf("invoke_agent was not refused:\n%s", orchtest.Dump(log))
	}
}
