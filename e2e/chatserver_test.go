package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// chatKey is the key the chat server wants.
const chatKey = "sk-e2e-0123456789"

// chatServer is a server of OpenAI's chat completions, in the form the vendor publishes for streams. What it answers is the
// test's; like the vendor it refuses what is no proper conversation.
type chatServer struct {
	t      *testing.T
	url    string // to be given as the base URL
	answer func(q question) answer

	mu     sync.Mutex
	asked  []question
	number int
}

// question is a request for a completion.
type question struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Messages []chatMessage `json:"messages"`
	Tools    []struct {
		Type     string `json:"type"`
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
}

type chatMessage struct {
	Role       string         `json:"role"`
	Content    string         `json:"content"`
	ToolCallID string         `json:"tool_call_id"`
	ToolCalls  []chatToolCall `json:"tool_calls"`
}

type chatToolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// offers reports whether the model may call a tool.
func (q question) offers(name string) bool {
	for _, tool := range q.Tools {
		if tool.Function.Name == name {
			return true
		}
	}
	return false
}

// primary reports whether the primary agent asks.
func (q question) primary() bool { return q.offers("spawn_subagent") }

// input is the text of the last message from the user's side.
func (q question) input() string {
	for _, m := range slices.Backward(q.Messages) {
		if m.Role == "user" {
			return m.Content
		}
	}
	return ""
}

// last is the last message.
func (q question) last() chatMessage { return q.Messages[len(q.Messages)-1] }

// answer is what the model says and calls.
type answer struct {
	text  []string // in pieces
	hold  *gate    // the rest comes when it is opened, what stands before hold's piece at once
	after int      // pieces before the hold
	calls []toolUse
}

type toolUse struct {
	name string
	args map[string]any
}

// says is an answer of one text.
func says(text string, calls ...toolUse) answer { return answer{text: pieces(text), calls: calls} }

// pieces cuts a text behind every space, much as tokens come.
func pieces(text string) []string { return strings.SplitAfter(text, " ") }

// gate holds something until it is opened.
type gate struct {
	once sync.Once
	done chan struct{}
}

func newGate() *gate { return &gate{done: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.done) }) }

// newChatServer serves until the test ends.
func newChatServer(t *testing.T, answer func(question) answer) *chatServer {
	t.Helper()
	s := &chatServer{t: t, answer: answer}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.url = server.URL + "/v1"
	return s
}

// questions returns what was asked so far, in order.
func (s *chatServer) questions() []question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// results returns what the model was told of its calls of one tool, over all that was asked.
func (s *chatServer) results(tool string) []string {
	told := make(map[string]string)
	for _, c := range s.questions() {
		names := make(map[string]string)
		for _, m := range c.Messages {
			for _, use := range m.ToolCalls {
				names[use.ID] = use.Function.Name
			}
			if m.Role == "tool" && names[m.ToolCallID] == tool {
				told[m.ToolCallID] = m.Content
			}
		}
	}
	var results []string
	for _, text := range told {
		results = append(results, text)
	}
	slices.Sort(results)
	return results
}

// ServeHTTP implements http.Handler.
func (s *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, kind, message string) {
		s.t.Errorf("the chat server refuses a request: %s", message)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":%q,"type":%q,"param":null,"code":null}}`, message, kind)
	}
	var q question
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return // the product was stopped
	case r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions":
		refuse(http.StatusNotFound, "invalid_request_error", "Invalid URL ("+r.Method+" "+r.URL.Path+")")
		return
	case r.Header.Get("Authorization") != "Bearer "+chatKey:
		refuse(http.StatusUnauthorized, "invalid_request_error", "Incorrect API key provided")
		return
	}
	if err := json.Unmarshal(body, &q); err != nil {
		refuse(http.StatusBadRequest, "invalid_request_error", "We could not parse the JSON body of your request: "+err.Error())
		return
	}
	if fault := q.fault(); fault != "" {
		refuse(http.StatusBadRequest, "invalid_request_error", fault)
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, q)
	s.number++
	number := s.number
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	st := &chatStream{w: w, id: fmt.Sprintf("chatcmpl-%06d", number), model: q.Model}
	st.write(s.answer(q), r)
}

// fault is what the vendor would refuse a request for, or "".
func (q question) fault() string {
	if q.Model == "" || len(q.Messages) == 0 {
		return "you must provide a model and messages"
	}
	if !q.Stream || !q.StreamOptions.IncludeUsage {
		return "this server only streams, with usage"
	}
	var open []string // ids of tool calls without a result
	for i, m := range q.Messages {
		if m.Role != "tool" && len(open) > 0 {
			return fmt.Sprintf("an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. missing: %q", open)
		}
		switch m.Role {
		case "assistant":
			for _, c := range m.ToolCalls {
				if c.Type != "function" || !json.Valid([]byte(c.Function.Arguments)) {
					return fmt.Sprintf("messages[%d]: invalid tool call", i)
				}
				open = append(open, c.ID)
			}
		case "tool":
			if !slices.Contains(open, m.ToolCallID) {
				return fmt.Sprintf("messages[%d] with role 'tool' must be a response to a preceding message with 'tool_calls'", i)
			}
			open = slices.DeleteFunc(open, func(id string) bool { return id == m.ToolCallID })
		case "system", "user":
		default:
			return fmt.Sprintf("messages[%d]: invalid role %q", i, m.Role)
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("an assistant message with 'tool_calls' must be followed by tool messages. missing: %q", open)
	}
	for _, tool := range q.Tools {
		if tool.Type != "function" || tool.Function.Name == "" || !json.Valid(tool.Function.Parameters) {
			return fmt.Sprintf("invalid tool %+v", tool)
		}
	}
	return ""
}

// chatStream writes one completion as server-sent events.
type chatStream struct {
	w     http.ResponseWriter
	id    string
	model string
}

// chunk writes one event; choice "" is the last one, which only has the usage.
func (s *chatStream) chunk(choice, usage string) {
	choices := "[]"
	if choice != "" {
		choices = "[" + choice + "]"
	}
	fmt.Fprintf(s.w, "data: {\"id\":%q,\"object\":\"chat.completion.chunk\",\"created\":1764000000,\"model\":%q,"+
		"\"service_tier\":\"default\",\"system_fingerprint\":\"fp_e2e\",\"choices\":%s,\"usage\":%s}\n\n", s.id, s.model, choices, usage)
	s.w.(http.Flusher).Flush()
}

func (s *chatStream) delta(delta, finish string) {
	s.chunk(fmt.Sprintf(`{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}`, delta, finish), "null")
}

func (s *chatStream) write(a answer, r *http.Request) {
	s.delta(`{"role":"assistant","content":"","refusal":null}`, "null")
	for i, piece := range a.text {
		if a.hold != nil && i == a.after {
			select {
			case <-a.hold.done:
			case <-r.Context().Done():
				return
			}
		}
		s.delta(fmt.Sprintf(`{"content":%s}`, quote(piece)), "null")
	}
	for i, c := range a.calls {
		args := quote(c.args) // the arguments are a string that holds JSON, and come in pieces
		id := fmt.Sprintf("call_%s_%d", strings.TrimPrefix(s.id, "chatcmpl-"), i)
		s.delta(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":""}}]}`, i, id, c.name), "null")
		for from := 0; from < len(args); from += 7 {
			s.delta(fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, i, quote(args[from:min(from+7, len(args))])), "null")
		}
	}
	finish := `"stop"`
	if len(a.calls) > 0 {
		finish = `"tool_calls"`
	}
	s.delta("{}", finish)
	s.chunk("", `{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},`+
		`"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`)
	fmt.Fprint(s.w, "data: [DONE]\n\n")
}

// quote returns a value as JSON.
func quote(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
