package openai_test

import (
	"testing"

	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
)

func open(t testing.TB, cfg openai.Config) *openai.Model {
	t.Helper()
	m, err := openai.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWhatServersDifferIn plays dialogues in the manner of servers other than OpenAI's own.
func TestWhatServersDifferIn(t *testing.T) {
	llmtest.RunAnswers(t, config("testdata/servers"))
}
