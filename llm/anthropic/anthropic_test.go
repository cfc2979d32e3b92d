package anthropic_test

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"strings"
	"testing"

	"orchestrator/llm"
	"orchestrator/llm/anthropic"
	"orchestrator/llm/llmtest"
)

var update = flag.Bool("update", false, "write what was got into testdata")

func config(dir string) llmtest.Config {
	return llmtest.Config{
		Dir: dir,
		Open: func(baseURL, key string, client *http.Client) (llm.Model, error) {
			return anthropic.New(anthropic.Config{BaseURL: baseURL, APIKey: key, HTTPClient: client})
		},
		Update: *update,
	}
}

func TestSuite(t *testing.T) { llmtest.Run(t, config("testdata/suite")) }

// TestAnswers plays dialogues of what only this vendor has, and of what came later or went wrong.
func TestAnswers(t *testing.T) { llmtest.RunAnswers(t, config("testdata/answers")) }

// FuzzStream reads any body as an event stream: the rules of a stream hold, and what isn't an answer is an error.
func FuzzStream(f *testing.F) {
	llmtest.AddBodies(f, "testdata/suite", "testdata/answers")
	f.Fuzz(func(t *testing.T, body string) {
		m, err := anthropic.New(anthropic.Config{HTTPClient: llmtest.Respond(200, map[string]string{"Content-Type": "text/event-stream"}, body)})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := llmtest.Collect(m.Stream(t.Context(), llmtest.Request()))
		if err != nil {
			if e, ok := errors.AsType[*llm.Error](err); !ok || e.Message == "" {
				t.Fatalf("error = %v, want an *llm.Error", err)
			}
			return
		}
		if !strings.Contains(strings.ToLower(body), "stop_reason") && !strings.Contains(body, `\`) {
			t.Errorf("an answer without a stop_reason: %+v", answer)
		}
		for _, c := range answer.ToolCalls {
			if !json.Valid(c.Args) {
				t.Errorf("arguments %q are not JSON", c.Args)
			}
		}
		if len(answer.Opaque) == 0 {
			return
		}
		// What is kept goes back as it came.
		request := llmtest.Request()
		request.Messages = append(request.Messages, llm.Message{
			Role: llm.RoleAssistant, Text: answer.Text, Reasoning: answer.Reasoning, ToolCalls: answer.ToolCalls, Opaque: answer.Opaque,
		})
		if sent := sent(t, anthropic.Config{}, request); !strings.Contains(sent.body, `thinking"`) {
			t.Errorf("the thinking of %+v did not go back: %s", answer, sent.body)
		}
	})
}
