package anthropic_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/llm"
	"orchestrator/llm/anthropic"
	"orchestrator/llm/llmtest"
)

const secret = "sk-ant-very-secret-0123456789"

const fine = `event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}

event: message_stop
data: {"type":"message_stop"}

`

type sentRequest struct {
	*http.Request
	body string
}

// sent makes a call and returns the request.
func sent(t testing.TB, cfg anthropic.Config, r llm.Request) sentRequest {
	t.Helper()
	var got sentRequest
	cfg.HTTPClient = &http.Client{Transport: llmtest.RoundTrip(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		got = sentRequest{r, string(body)}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(fine)), Request: r}, nil
	})}
	m, err := anthropic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := llmtest.Collect(m.Stream(t.Context(), r)); err != nil {
		t.Fatal(err)
	}
	return got
}

// wireMessage is a message as it is sent, its blocks in short.
type wireMessage struct {
	Role   string
	Blocks []string
}

func messages(t testing.TB, s sentRequest) []wireMessage {
	t.Helper()
	var body struct {
		Messages []struct {
			Role    string
			Content []struct {
				Type, Text, Thinking, Signature, Data, ID, Name string
				ToolUseID                                       string          `json:"tool_use_id"`
				CacheControl                                    json.RawMessage `json:"cache_control"`
				IsError                                         bool            `json:"is_error"`
			}
		}
	}
	if err := json.Unmarshal([]byte(s.body), &body); err != nil {
		t.Fatal(err)
	}
	var all []wireMessage
	for _, m := range body.Messages {
		w := wireMessage{Role: m.Role}
		for _, b := range m.Content {
			said := strings.Join(strings.Fields(strings.Join([]string{b.Type, b.Text, b.Thinking, b.Signature, b.Data, b.ID, b.Name, b.ToolUseID}, " ")), " ")
			if b.IsError {
				said += " error"
			}
			if b.CacheControl != nil {
				said += " cached"
			}
			w.Blocks = append(w.Blocks, said)
		}
		all = append(all, w)
	}
	return all
}

// thought is an answer with thinking of every kind.
func thought(t *testing.T) llm.Message {
	t.Helper()
	body := `data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"First ö. "}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig-1"}}

data: {"type":"content_block_stop","index":0}

data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"hidden-1"}}

data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":"I ask."}}

data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}

data: {"type":"content_block_start","index":4,"content_block":{"type":"thinking","thinking":"Then.","signature":"sig-2"}}

data: {"type":"content_block_start","index":5,"content_block":{"type":"tool_use","id":"toolu_2","name":"g","input":{}}}

data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":1}}

data: {"type":"message_stop"}

`
	m, err := anthropic.New(anthropic.Config{HTTPClient: llmtest.Respond(200, map[string]string{"Content-Type": "text/event-stream"}, body)})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := llmtest.Collect(m.Stream(t.Context(), llmtest.Request()))
	if err != nil {
		t.Fatal(err)
	}
	for i := range answer.ToolCalls {
		answer.ToolCalls[i].ID = fmt.Sprintf("primary:%d", i+1) // ids are ours once they are stored
	}
	return llm.Message{Role: llm.RoleAssistant, Text: answer.Text, Reasoning: answer.Reasoning, ToolCalls: answer.ToolCalls, Opaque: answer.Opaque}
}

func TestThinkingGoesBackAsItCame(t *testing.T) {
	whole := []string{"thinking First ö. sig-1", "redacted_thinking hidden-1", "text I ask.", "tool_use primary_3a1 f", "thinking Then. sig-2", "tool_use primary_3a2 g"}
	plain := []string{"text I ask.", "tool_use primary_3a1 f", "tool_use primary_3a2 g"}
	for _, tt := range []struct {
		name   string
		cfg    anthropic.Config
		model  string
		change func(*llm.Message)
		want   []string
	}{
		{name: "as it came", want: whole},
		{name: "with thinking off", cfg: anthropic.Config{Thinking: anthropic.ThinkingOff}, want: whole},
		{name: "to another server", cfg: anthropic.Config{Name: "other"}, want: plain},
		{name: "to another model", model: "another", want: plain},
		{name: "text cut", change: func(m *llm.Message) { m.Text = "I" }, want: []string{"text I", "tool_use primary_3a1 f", "tool_use primary_3a2 g"}},
		{name: "text added", change: func(m *llm.Message) { m.Text += "!" }, want: []string{"text I ask.!", "tool_use primary_3a1 f", "tool_use primary_3a2 g"}},
		{name: "reasoning dropped", change: func(m *llm.Message) { m.Reasoning = "" }, want: plain},
		{name: "a call dropped", change: func(m *llm.Message) { m.ToolCalls = m.ToolCalls[:1] }, want: plain[:2]},
		{name: "negative length", change: func(m *llm.Message) {
			m.Opaque = map[string]json.RawMessage{"anthropic": json.RawMessage(`{"model":"test-model","blocks":[{"kind":"text","len":-1}]}`)}
		}, want: plain},
		{name: "not ours", change: func(m *llm.Message) {
			m.Opaque = map[string]json.RawMessage{"anthropic": json.RawMessage(`7`)}
		}, want: plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := llmtest.Request()
			if tt.model != "" {
				r.Model = tt.model
			}
			msg := thought(t)
			if tt.change != nil {
				tt.change(&msg)
			}
			r.Messages = append(r.Messages, msg, llm.Message{Role: llm.RoleTool, ToolCallID: "primary:1", Text: "r"})
			got := messages(t, sent(t, tt.cfg, r))
			if diff := cmp.Diff(tt.want, got[1].Blocks); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConversationIsSentAsTheServerTakesIt(t *testing.T) {
	call := func(id string) []llm.ToolCall { return []llm.ToolCall{{ID: id, Name: "f"}} }
	r := llm.Request{Model: "m", System: " \n", Messages: []llm.Message{
		{Role: llm.RoleUser, Text: "first"},
		{Role: llm.RoleAssistant}, // nothing was said
		{Role: llm.RoleUser, Text: " "},
		{Role: llm.RoleAssistant, Text: "\n", ToolCalls: call("a.b:1")},
		{Role: llm.RoleTool, ToolCallID: "a.b:1", Text: "one", IsError: true},
		{Role: llm.RoleUser, Text: "second"},
		{Role: llm.RoleAssistant, ToolCalls: append(call("call_2"), call("call_3")...)},
		{Role: llm.RoleTool, ToolCallID: "call_2"},
		{Role: llm.RoleTool, ToolCallID: "call_3", Text: "three"},
	}}
	s := sent(t, anthropic.Config{}, r)
	want := []wireMessage{
		{"user", []string{"text first", "text (no text)"}},
		{"assistant", []string{"tool_use a_2eb_3a1 f"}},
		{"user", []string{"tool_result a_2eb_3a1 error", "text second cached"}},
		{"assistant", []string{"tool_use call_2 f", "tool_use call_3 f"}},
		{"user", []string{"tool_result call_2", "tool_result call_3 cached"}},
	}
	if diff := cmp.Diff(want, messages(t, s)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if strings.Contains(s.body, `"system"`) {
		t.Errorf("a blank system prompt is sent: %s", s.body)
	}
	if got := strings.Count(sent(t, anthropic.Config{}, llmtest.Conversation()).body, "cache_control"); got != 4 {
		t.Errorf("%d marks for the cache, want 4, as many as the server takes", got)
	}
}

func TestThinkingAndTheBoundOfTheAnswer(t *testing.T) {
	for _, tt := range []struct {
		name      string
		cfg       anthropic.Config
		maxTokens int
		want      string
	}{
		{"default", anthropic.Config{}, 0, `16384 null`},
		{"bound", anthropic.Config{}, 7, `7 null`},
		{"adaptive", anthropic.Config{Thinking: anthropic.ThinkingAdaptive}, 0, `16384 {"display":"summarized","type":"adaptive"}`},
		{"off", anthropic.Config{Thinking: anthropic.ThinkingOff}, 0, `16384 {"type":"disabled"}`},
		{"budget", anthropic.Config{Thinking: anthropic.ThinkingBudget, ThinkingTokens: 2048}, 0, `16384 {"budget_tokens":2048,"display":"summarized","type":"enabled"}`},
		{"budget on top", anthropic.Config{Thinking: anthropic.ThinkingBudget, ThinkingTokens: 2048}, 2048, `4096 {"budget_tokens":2048,"display":"summarized","type":"enabled"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := llmtest.Request()
			r.MaxTokens = tt.maxTokens
			var body struct {
				MaxTokens int `json:"max_tokens"`
				Thinking  any
			}
			if err := json.Unmarshal([]byte(sent(t, tt.cfg, r).body), &body); err != nil {
				t.Fatal(err)
			}
			thinking, err := json.Marshal(body.Thinking)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d %s", body.MaxTokens, thinking); got != tt.want {
				t.Errorf("max_tokens and thinking = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestAddressAndCredentials(t *testing.T) {
	// What is meant for Anthropic must not reach another server.
	for name, value := range map[string]string{
		"ANTHROPIC_API_KEY": "of-the-environment", "ANTHROPIC_AUTH_TOKEN": "of-the-environment", "ANTHROPIC_PROFILE": "of-the-environment",
		"ANTHROPIC_BASE_URL": "http://of-the-environment.test/", "ANTHROPIC_CUSTOM_HEADERS": "X-Env: of-the-environment",
	} {
		t.Setenv(name, value)
	}
	for _, tt := range []struct {
		name     string
		cfg      anthropic.Config
		url      string
		wantAuth string
	}{
		{"defaults", anthropic.Config{}, "https://api.anthropic.com/v1/messages", ""},
		{"slash", anthropic.Config{BaseURL: "http://h:1/", APIKey: " key1\n"}, "http://h:1/v1/messages", "Bearer key1"},
		{"with the version", anthropic.Config{BaseURL: "http://h/x/v1/"}, "http://h/x/v1/messages", ""},
		{"header wins", anthropic.Config{BaseURL: "http://h", APIKey: "key1", Headers: map[string]string{"Authorization": "Basic x"}}, "http://h/v1/messages", "Basic x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := sent(t, tt.cfg, llmtest.Request())
			if req.URL.String() != tt.url {
				t.Errorf("URL = %s, want %s", req.URL, tt.url)
			}
			if got := req.Header.Get("Authorization"); got != tt.wantAuth {
				t.Errorf("Authorization = %q, want %q", got, tt.wantAuth)
			}
			for name, values := range req.Header {
				if strings.Contains(strings.Join(values, " "), "of-the-environment") {
					t.Errorf("header %s = %q comes from the environment", name, values)
				}
			}
		})
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, tt := range []struct {
		cfg  anthropic.Config
		want string
	}{
		{anthropic.Config{BaseURL: "localhost:8080"}, "BaseURL"},
		{anthropic.Config{BaseURL: "http://u:" + secret + "@h"}, "without user, query"},
		{anthropic.Config{APIKey: secret + "\nX: y"}, "APIKey"},
		{anthropic.Config{Headers: map[string]string{"a": "c\r\nd: " + secret}}, "Headers"},
		{anthropic.Config{Thinking: "hard"}, "Thinking"},
		{anthropic.Config{Thinking: anthropic.ThinkingBudget, ThinkingTokens: 1000}, "ThinkingTokens"},
		{anthropic.Config{ThinkingTokens: 2000}, "ThinkingTokens"},
	} {
		_, err := anthropic.New(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("New(%q) = %v, want an error with %q and no secret", tt.cfg.BaseURL, err, tt.want)
		}
	}
}

func TestErrorsOfTheServer(t *testing.T) {
	const js, sse = "application/json", "text/event-stream"
	for _, tt := range []struct {
		name   string
		status int
		kind   string
		body   string
		want   llm.Error // Message: what it has to contain
	}{
		{"answer and conversation together too long", 400, js, `{"type":"error","error":{"type":"invalid_request_error","message":"input length and ` + "`max_tokens`" + ` exceed context limit: 190000 + 20000 > 200000"}}`,
			llm.Error{Status: 400, Code: "invalid_request_error", Overflow: true}},
		{"body too large", 413, js, `{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`,
			llm.Error{Status: 413, Code: "request_too_large", Overflow: true}},
		{"no credit", 402, js, `{"type":"error","error":{"type":"billing_error","message":"Your credit balance is too low"}}`,
			llm.Error{Status: 402, Code: "billing_error", Message: "credit balance"}},
		{"forbidden", 403, js, `{"type":"error","error":{"type":"permission_error","message":"Not this one"}}`,
			llm.Error{Status: 403, Code: "permission_error", Message: "Not this one"}},
		{"timeout", 504, js, `{"type":"error","error":{"type":"timeout_error","message":"Timed out"}}`,
			llm.Error{Status: 504, Code: "timeout_error", Retryable: true}},
		{"overload in the stream", 200, sse, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
			llm.Error{Code: "overloaded_error", Retryable: true, Message: "Overloaded"}},
		{"a fault of ours in the stream", 200, sse, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"no " + secret + "\"}}\n\n",
			llm.Error{Code: "invalid_request_error", Message: "no [hidden]"}},
		{"an error without its event's name", 200, sse, "data: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"}}\n\n",
			llm.Error{Code: "api_error", Retryable: true, Message: "broken"}},
		{"an answer at once", 200, js, `{"type":"message","role":"assistant","content":[{"type":"text","text":"x"}]}`, llm.Error{Message: "instead of streaming"}},
		{"another protocol", 200, sse, "data: [DONE]\n\n", llm.Error{Retryable: true, Message: "not a JSON object"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := anthropic.New(anthropic.Config{APIKey: secret, HTTPClient: llmtest.Respond(tt.status, map[string]string{"Content-Type": tt.kind}, tt.body)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = llmtest.Collect(m.Stream(t.Context(), llmtest.Request()))
			got, ok := errors.AsType[*llm.Error](err)
			if !ok {
				t.Fatalf("error = %v, want an *llm.Error", err)
			}
			if !strings.Contains(got.Message, tt.want.Message) || strings.Contains(fmt.Sprintf("%v %#v", got, *got), secret) {
				t.Errorf("error %#v, want %q in it and no secret", *got, tt.want.Message)
			}
			shown := llm.Error{Status: got.Status, Code: got.Code, Retryable: got.Retryable, Overflow: got.Overflow, Message: tt.want.Message}
			if shown != tt.want {
				t.Errorf("error = %+v, want %+v", shown, tt.want)
			}
		})
	}
}
