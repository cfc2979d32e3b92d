package app_test

import (
	"context"
	"strings"
	"testing"

	"orchestrator/a2a/a2ademo"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
)

const script = `
agents:
  - name: primary
    rules:
      - position: 0
        text: I have somebody look.
        tool_calls:
          - name: spawn_subagent
            args: {description: look, prompt: "Ask the advisor about tides."}
      - tool: spawn_subagent
        text: At work.
      - match: '(?s)tides.*'
        text: "In the end: $0"
  - name: subagent
    rules:
      - position: 0
        tool_calls:
          - name: invoke_agent
            args: {agent_name: advisor, message: "What of tides?"}
      - tool: invoke_agent
        match: '(?s).*'
        text: "The advisor says: $0"
`

func advisor(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	url, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- a2ademo.Serve(ctx, a2ademo.Config{Name: a2ademo.Advisor, Delay: 1, Ready: func(u string) { url <- u }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case u := <-url:
		return u
	case err := <-done:
		t.Fatal(err)
		return ""
	}
}

func TestASubagentAsksAPeerAndItsResultComesHome(t *testing.T) {
	for name, memory := range map[string]bool{"memory": true, "sqlite": false} {
		t.Run(name, func(t *testing.T) {
			a, _ := orchtest.Start(t, orchtest.Config{Script: script, Memory: memory, Peers: map[string]string{"advisor": advisor(t)}})
			log := orchtest.Ask(t, a, "Look into the sea.")
			if got := orchtest.LastMessage(t, log); !strings.Contains(got, "The advisor says:") {
				t.Errorf("last message = %q\n%s", got, orchtest.Dump(log))
			}
			var folded bool
			for i, e := range log {
				if e.Seq != uint64(i+1) {
					t.Errorf("event %d has seq %d", i+1, e.Seq)
				}
				folded = folded || e.Type == session.EventTurnStarted && strings.Contains(string(e.Data), `"foldback"`)
			}
			if !folded {
				t.Errorf("no fold-back turn:\n%s", orchtest.Dump(log))
			}
		})
	}
}
