package openai_test

import (
	"flag"
	"net/http"
	"testing"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
)

var update = flag.Bool("update", false, "write what was got into testdata")

func TestSuite(t *testing.T) {
	llmtest.Run(t, llmtest.Config{
		Dir: "testdata/suite",
		Open: func(baseURL, key string, client *http.Client) (llm.Model, error) {
			return openai.New(openai.Config{BaseURL: baseURL, APIKey: key, HTTPClient: client})
		},
		Update: *update,
	})
}
