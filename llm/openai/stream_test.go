package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
)

// FuzzStream reads any body as an event stream: the rules of a stream hold, and what isn't an answer is an error.
func FuzzStream(f *testing.F) {
	llmtest.AddBodies(f, "testdata/suite", "testdata/servers")
	f.Fuzz(func(t *testing.T, body string) {
		m := open(t, openai.Config{HTTPClient: llmtest.Respond(200, map[string]string{"Content-Type": "text/event-stream"}, body)})
		answer, err := llmtest.Collect(m.Stream(t.Context(), llmtest.Request()))
		if err != nil {
			if e, ok := errors.AsType[*llm.Error](err); !ok || e.Message == "" {
				t.Fatalf("error = %v, want an *llm.Error", err)
			}
			return
		}
		if !strings.Contains(strings.ToLower(body), "finish_reason") && !strings.Contains(body, `\`) {
			t.Errorf("an answer without a finish_reason: %+v", answer)
		}
		for _, c := range answer.ToolCalls {
			if !json.Valid(c.Args) {
				t.Errorf("arguments %q are not JSON", c.Args)
			}
		}
	})
}
