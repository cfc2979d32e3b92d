package openai_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
)

const fine = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"

// sent makes a call and returns the request and its body.
func sent(t *testing.T, cfg openai.Config, r llm.Request) (*http.Request, map[string]any) {
	t.Helper()
	var req *http.Request
	var body map[string]any
	cfg.HTTPClient = &http.Client{Transport: llmtest.RoundTrip(func(r *http.Request) (*http.Response, error) {
		req = r
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(fine)), Request: r}, nil
	})}
	if _, err := llmtest.Collect(open(t, cfg).Stream(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	return req, body
}

func TestLimitOfTheAnswerIsNamedAsTheServerKnowsIt(t *testing.T) {
	r := llmtest.Request()
	r.MaxTokens = 7
	for base, want := range map[string]string{
		"":                                     "max_completion_tokens",
		"https://x.openai.azure.com/openai/v1": "max_completion_tokens",
		"http://localhost:11434/v1":            "max_tokens",
		"https://notopenai.com/v1":             "max_tokens",
		"https://openrouter.ai/api/v1":         "max_tokens",
	} {
		_, body := sent(t, openai.Config{BaseURL: base}, r)
		for _, name := range []string{"max_tokens", "max_completion_tokens"} {
			if got := body[name]; (got == 7.0) != (name == want) || got != nil && name != want {
				t.Errorf("%s: %s = %v, want only %s", base, name, got, want)
			}
		}
	}
	_, body := sent(t, openai.Config{}, llmtest.Request())
	if body["max_completion_tokens"] != nil {
		t.Error("a limit is sent though none is set")
	}
}

func TestAddressAndCredentials(t *testing.T) {
	// What is meant for OpenAI must not reach another server.
	t.Setenv("OPENAI_API_KEY", "sk-of-the-environment")
	t.Setenv("OPENAI_ORG_ID", "org-of-the-environment")
	t.Setenv("OPENAI_BASE_URL", "http://environment.test/")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-Env: of-the-environment")
	for _, tt := range []struct {
		name     string
		cfg      openai.Config
		url      string
		wantAuth string
	}{
		{"defaults", openai.Config{}, "https://api.openai.com/v1/chat/completions", ""},
		{"slash", openai.Config{BaseURL: "http://h:1/v1/", APIKey: " key1\n"}, "http://h:1/v1/chat/completions", "Bearer key1"},
		{"no path", openai.Config{BaseURL: "http://h"}, "http://h/chat/completions", ""},
		{"header wins", openai.Config{BaseURL: "http://h/v1", APIKey: "key1", Headers: map[string]string{"Authorization": "Basic x"}}, "http://h/v1/chat/completions", "Basic x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Headers = mergeHeader(tt.cfg.Headers, "X-Title", "orchestrator")
			req, _ := sent(t, tt.cfg, llmtest.Request())
			if req.URL.String() != tt.url {
				t.Errorf("URL = %s, want %s", req.URL, tt.url)
			}
			if got := req.Header.Get("Authorization"); got != tt.wantAuth {
				t.Errorf("Authorization = %q, want %q", got, tt.wantAuth)
			}
			if got := req.Header.Get("X-Title"); got != "orchestrator" {
				t.Errorf("X-Title = %q, want it as configured", got)
			}
			for name, values := range req.Header {
				if strings.Contains(strings.Join(values, " "), "of-the-environment") {
					t.Errorf("header %s = %q comes from the environment", name, values)
				}
			}
		})
	}
}

func mergeHeader(h map[string]string, k, v string) map[string]string {
	out := map[string]string{k: v}
	maps.Copy(out, h)
	return out
}

func TestReasoningGoesBackToItsServerWithinTheTurn(t *testing.T) {
	call := []llm.ToolCall{{ID: "a:1", Name: "f", Args: json.RawMessage(`{}`)}}
	mine := map[string]json.RawMessage{"openai": json.RawMessage(`{"reasoningField":"reasoning_content"}`)}
	other := map[string]json.RawMessage{"other": json.RawMessage(`{"reasoningField":"reasoning_content"}`)}
	result := llm.Message{Role: llm.RoleTool, ToolCallID: "a:1", ToolName: "f", Text: "r"}
	r := llm.Request{Messages: []llm.Message{
		{Role: llm.RoleUser, Text: "q"},
		{Role: llm.RoleAssistant, Reasoning: "old", ToolCalls: call, Opaque: mine}, result,
		{Role: llm.RoleUser, Text: "q"},
		{Role: llm.RoleAssistant, Reasoning: "now", ToolCalls: call, Opaque: mine}, result,
		{Role: llm.RoleAssistant, Reasoning: "of another server", ToolCalls: call, Opaque: other}, result,
		{Role: llm.RoleAssistant, Reasoning: "without calls", Text: "x", Opaque: mine},
	}}
	_, body := sent(t, openai.Config{}, r)
	var got []any
	for _, m := range body["messages"].([]any) {
		if m := m.(map[string]any); m["role"] == "assistant" {
			got = append(got, m["reasoning_content"])
		}
	}
	if diff := cmp.Diff([]any{nil, "now", nil, nil}, got); diff != "" {
		t.Errorf("reasoning sent (-want +got):\n%s", diff)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, tt := range []struct {
		cfg  openai.Config
		want string
	}{
		{openai.Config{BaseURL: "localhost:8080"}, "BaseURL"},
		{openai.Config{BaseURL: "ftp://h/v1"}, "BaseURL"},
		{openai.Config{BaseURL: "http://"}, "BaseURL"},
		{openai.Config{BaseURL: "http://h/v1?key=" + secret}, "without user, query"},
		{openai.Config{BaseURL: "http://u:" + secret + "@h/v1"}, "without user, query"},
		{openai.Config{BaseURL: "http://u:" + secret + "@h:port/v1"}, "BaseURL"},
		{openai.Config{APIKey: secret + "\nX: y"}, "APIKey"},
		{openai.Config{Headers: map[string]string{"a b": "c"}}, "Headers"},
		{openai.Config{Headers: map[string]string{"a": "c\r\nd: " + secret}}, "Headers"},
	} {
		_, err := openai.New(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%q) = %v, want an error with %q", tt.cfg.BaseURL, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("error %q gives a secret away", err)
		}
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		end    time.Duration // from [DONE] to the end of the body
		reused int
		took   time.Duration
	}{
		{"the body ends soon", 10 * time.Millisecond, 2, 10 * time.Millisecond},
		{"the body takes its time", time.Hour, 0, 50 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := llmtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					if _, err := io.WriteString(w, fine); err != nil {
						t.Error(err)
					}
					if err := http.NewResponseController(w).Flush(); err != nil {
						t.Error(err)
					}
					select {
					case <-time.After(tt.end):
					case <-r.Context().Done():
					}
				}))
				m := open(t, openai.Config{BaseURL: llmtest.BaseURL, HTTPClient: client})
				reused := 0
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
					if i.Reused {
						reused++
					}
				}})
				for range 3 {
					start := time.Now()
					if _, err := llmtest.Collect(m.Stream(ctx, llmtest.Request())); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(start); took != tt.took {
						t.Errorf("the call took %v, want %v", took, tt.took)
					}
				}
				if reused != tt.reused {
					t.Errorf("%d of 3 calls used an old connection, want %d", reused, tt.reused)
				}
			})
		})
	}
}
