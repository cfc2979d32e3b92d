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

func config(dir string) llmtest.Config {
	return llmtest.Config{
		Dir: dir,
		Open: func(baseURL, key string, client *http.Client) (llm.Model, error) {
			return openai.New(openai.Config{BaseURL: baseURL, APIKey: key, HTTPClient: client})
		},
		Update: *update,
	}
}

func TestSuite(t *testing.T) { llmtest.Run(t, config("testdata/suite")) }
