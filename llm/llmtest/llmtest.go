package llmtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orchestrator/llm"
	"orchestrator/session"
)

// BaseURL is the address that models under test are opened with.
const BaseURL = "http://model.test/v1"

// Key is the API key that models under test are opened with. No error may contain it.
const Key = "sk-llmtest-0123456789abcdef"

// Config is an adapter under test.
type Config struct {
	// Dir holds a dialogue for each case, <case>.txtar, in the format of the vendor.
	Dir string
	// Open returns a model of the server at BaseURL, reached with the client, with the API key.
	Open func(baseURL, key string, client *http.Client) (llm.Model, error)
	// Lacks names the cases that can't be said in this format, with the reason.
	Lacks map[string]string
	// Update writes the requests into the dialogues instead of comparing them.
	Update bool
}

// testCase is what a model must make of a dialogue.
type testCase struct {
	name    string
	request llm.Request
	want    llm.Answer // if err is nil; its opaque part is the adapter's own
	chunks  int        // chunks of text, reasoning and arguments, at least
	err     *wantError
}

type wantError struct {
	status     int // or asServed
	retryable  bool
	retryAfter time.Duration
	overflow   bool
	says       string // part of the message, if any
}

// asServed is the status of the dialogue, where vendors have statuses of their own.
const asServed = -1

// Request is what the cases ask, but for the one named "request".
func Request() llm.Request {
	return llm.Request{
		Model:  "test-model",
		Agent:  "tester",
		System: "You are terse.",
		Messages: []llm.Message{
			{Role: llm.RoleUser, Text: "What is salt good for?"},
		},
		Tools: []llm.Tool{{
			Name:        "invoke_agent",
			Description: "Asks a peer.",
			Schema: json.RawMessage(`{"type":"object","properties":{"agent_name":{"type":"string"},"message":{"type":"string","maxLength":9007199254740993}},` +
				`"required":["agent_name"]}`),
		}},
	}
}

// Conversation is what the case "request" asks: a message of every kind.
func Conversation() llm.Request {
	r := Request()
	r.MaxTokens = 1000
	r.Tools = append(r.Tools, llm.Tool{Name: "list_known_agents"})
	r.Messages = append(r.Messages,
		llm.Message{Role: llm.RoleAssistant, Text: "Much.", Reasoning: "An old thought."},
		llm.Message{Role: llm.RoleUser, Text: "Ask the advisor <now> & \"again\"."},
		llm.Message{Role: llm.RoleAssistant, Text: "I ask.", Reasoning: "Whom?", ToolCalls: []llm.ToolCall{
			{ID: "tester:1", Name: "invoke_agent", Args: json.RawMessage(`{"agent_name":"advisor"}`)},
			{ID: "tester:2", Name: "list_known_agents", Args: json.RawMessage(`{}`)},
		}},
		llm.Message{Role: llm.RoleTool, ToolCallID: "tester:1", ToolName: "invoke_agent", Text: "no such peer", IsError: true},
		llm.Message{Role: llm.RoleTool, ToolCallID: "tester:2", ToolName: "list_known_agents", Text: "archivist"},
		llm.Message{Role: llm.RoleAssistant, ToolCalls: []llm.ToolCall{
			{ID: "tester:3", Name: "invoke_agent", Args: json.RawMessage(`"{\"agent_name\": archivist}"`)},
		}},
		llm.Message{Role: llm.RoleTool, ToolCallID: "tester:3", ToolName: "invoke_agent", Text: "the arguments are not JSON", IsError: true},
	)
	return r
}

func answer(a llm.Answer, stop llm.StopReason, in, out int64) llm.Answer {
	a.Stop, a.Stopped = stop, true
	a.Usage = session.Usage{InputTokens: in, OutputTokens: out}
	return a
}

func toolCall(id, name, args string) llm.ToolCall {
	return llm.ToolCall{ID: id, Name: name, Args: json.RawMessage(args)}
}

func cases() []testCase {
	salt := `{"agent_name":"advisor","message":"What of salt?"}`
	pepper := `{"agent_name":"archivist","message":"What of pepper?"}`
	list := []testCase{
		{name: "text", chunks: 3,
			want: answer(llm.Answer{Text: "Salt keeps food. It also melts ice."}, llm.StopEnd, 24, 9)},
		{name: "request", request: Conversation(), chunks: 1,
			want: answer(llm.Answer{Text: "The archivist it is."}, llm.StopEnd, 120, 6)},
		{name: "reasoning", chunks: 3,
			want: answer(llm.Answer{Reasoning: "The user wants one word.", Text: "Food."}, llm.StopEnd, 24, 15)},
		{name: "tool-call", chunks: 2,
			want: answer(llm.Answer{Text: "I ask the advisor.", ToolCalls: []llm.ToolCall{toolCall("call_1", "invoke_agent", salt)}},
				llm.StopToolCalls, 24, 30)},
		{name: "parallel-tool-calls", chunks: 2,
			want: answer(llm.Answer{ToolCalls: []llm.ToolCall{toolCall("call_1", "invoke_agent", salt), toolCall("call_2", "invoke_agent", pepper)}},
				llm.StopToolCalls, 24, 52)},
		{name: "fragmented-arguments", chunks: 5,
			want: answer(llm.Answer{ToolCalls: []llm.ToolCall{
				toolCall("call_1", "invoke_agent", `{"agent_name":"advisor","message":"salt \"and\" pepper — é\n","deep":{"n":[1,2.5,null]}}`),
			}}, llm.StopToolCalls, 24, 40)},
		{name: "no-arguments",
			want: answer(llm.Answer{ToolCalls: []llm.ToolCall{toolCall("call_1", "list_known_agents", `{}`)}}, llm.StopToolCalls, 24, 8)},
		{name: "invalid-arguments",
			want: answer(llm.Answer{ToolCalls: []llm.ToolCall{toolCall("call_1", "invoke_agent", `"{\"agent_name\": advisor}"`)}}, llm.StopToolCalls, 24, 12)},
		{name: "missing-ids",
			want: answer(llm.Answer{ToolCalls: []llm.ToolCall{toolCall("", "invoke_agent", salt), toolCall("", "invoke_agent", pepper)}},
				llm.StopToolCalls, 24, 52)},
		{name: "max-tokens",
			want: answer(llm.Answer{Text: "Salt is good for"}, llm.StopMaxTokens, 24, 4)},
		{name: "refusal",
			want: answer(llm.Answer{Text: "I can't help with that."}, llm.StopRefusal, 24, 7)},

		{name: "overflow", err: &wantError{status: 400, overflow: true}},
		{name: "rate-limit", err: &wantError{status: 429, retryable: true, retryAfter: 7 * time.Second}},
		// In a bubble it is midnight of 1 January 2000.
		{name: "rate-limit-date", err: &wantError{status: 429, retryable: true, retryAfter: 30 * time.Second}},
		{name: "server-error", err: &wantError{status: 500, retryable: true}},
		{name: "overloaded", err: &wantError{status: asServed, retryable: true}},
		{name: "bad-key", err: &wantError{status: 401, says: "key"}},
		{name: "bad-request", err: &wantError{status: 400}},
		{name: "no-such-model", err: &wantError{status: 404, says: "model"}},
		{name: "html", err: &wantError{status: 200, says: "HTML"}},
		{name: "html-bad-gateway", err: &wantError{status: 502, retryable: true, says: "HTML"}},
		{name: "malformed", err: &wantError{retryable: true}},
		{name: "stream-error", err: &wantError{retryable: true}},
		{name: "empty", err: &wantError{retryable: true}},
		{name: "no-finish", err: &wantError{retryable: true, says: "broke off"}},
	}
	for i := range list {
		if list[i].request.Messages == nil {
			list[i].request = Request()
		}
	}
	return list
}

// Run runs the suite.
func Run(t *testing.T, cfg Config) {
	dialogues, err := readDialogues(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
		d := dialogues[c.name]
		if why, lacks := cfg.Lacks[c.name]; (d != nil) == lacks {
			t.Errorf("case %s: has a dialogue: %v; lacks one because %q", c.name, d != nil, why)
			continue
		}
		if d == nil {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, s *suite) { s.answers(c, d) })
		})
		if c.err != nil {
			continue
		}
		t.Run(c.name+"/disconnect", func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, s *suite) { s.disconnects(c, d) })
		})
		t.Run(c.name+"/cancel", func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, s *suite) { s.cancels(c, d) })
		})
	}
	for name, d := range dialogues {
		if !slices.Contains(names, name) {
			t.Errorf("%s: there is no case %q", d.path, name)
		}
	}
	text, calls := dialogues["text"], dialogues["parallel-tool-calls"]
	if text == nil || calls == nil {
		t.Fatal("the suite needs the dialogues text and parallel-tool-calls")
	}
	t.Run("disconnect inside chunks", func(t *testing.T) {
		bubble(t, cfg, func(t *testing.T, s *suite) { s.disconnectsInsideChunks(calls) })
	})
	t.Run("unreachable", func(t *testing.T) {
		bubble(t, cfg, func(t *testing.T, s *suite) { s.unreachable() })
	})
	t.Run("cannot be sent", func(t *testing.T) {
		bubble(t, cfg, func(t *testing.T, s *suite) { s.cannotBeSent() })
	})
	t.Run("many at once", func(t *testing.T) {
		bubble(t, cfg, func(t *testing.T, s *suite) { s.manyAtOnce(text) })
	})
}

// suite serves dialogues to one model in one bubble. What it serves is set before each call.
type suite struct {
	t      *testing.T
	cfg    Config
	client *http.Client
	model  llm.Model

	mu      sync.Mutex
	respond func(http.ResponseWriter, *http.Request, []byte)
}

func bubble(t *testing.T, cfg Config, run func(*testing.T, *suite)) {
	synctest.Test(t, func(t *testing.T) {
		s := &suite{t: t, cfg: cfg}
		s.client = Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Errorf("read the request: %v", err)
			}
			s.mu.Lock()
			respond := s.respond
			s.mu.Unlock()
			respond(w, r, body)
		}))
		s.model = s.open(s.client)
		run(t, s)
	})
}

func (s *suite) open(client *http.Client) llm.Model {
	m, err := s.cfg.Open(BaseURL, Key, client)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *suite) serve(respond func(http.ResponseWriter, *http.Request, []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = respond
}

func writeHeader(w http.ResponseWriter, d *dialogue) {
	maps.Copy(w.Header(), d.header)
	w.WriteHeader(d.status)
}

func write(w http.ResponseWriter, pieces [][]byte) {
	for _, p := range pieces {
		// A client that has gone away is part of some cases.
		if _, err := w.Write(p); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
}

var sameAnswer = gocmp.Options{
	cmpopts.IgnoreFields(llm.Answer{}, "Opaque"),
	// The parts of totals are the vendors' own.
	cmpopts.IgnoreFields(session.Usage{}, "ReasoningTokens", "CachedInputTokens", "CacheWriteTokens", "CostUSD", "ModelCalls"),
	cmpopts.EquateEmpty(),
	gocmp.Comparer(func(a, b json.RawMessage) bool {
		x, errX := canonical(a)
		y, errY := canonical(b)
		return errX == nil && errY == nil && bytes.Equal(x, y)
	}),
}

func (s *suite) answers(c testCase, d *dialogue) {
	s.serve(func(w http.ResponseWriter, r *http.Request, body []byte) {
		d.checkRequest(s.t, body, s.cfg.Update)
		writeHeader(w, d)
		write(w, d.pieces())
	})
	chunks := 0
	got, err := Collect(func(yield func(llm.Chunk, error) bool) {
		for c, err := range s.model.Stream(s.t.Context(), c.request) {
			if c.Kind == llm.ChunkText || c.Kind == llm.ChunkReasoning || c.Kind == llm.ChunkToolArgs {
				chunks++
			}
			if !yield(c, err) {
				return
			}
		}
	})
	if c.err != nil {
		want := *c.err
		if want.status == asServed {
			want.status = d.status
		}
		s.checkError(err, want)
		return
	}
	if err != nil {
		s.t.Fatalf("error = %v, want an answer", err)
	}
	if diff := gocmp.Diff(c.want, got, sameAnswer); diff != "" {
		s.t.Errorf("answer (-want +got):\n%s", diff)
	}
	if chunks < c.chunks {
		s.t.Errorf("the answer came in %d chunks, want it as it is streamed: %d at least", chunks, c.chunks)
	}
}

func (s *suite) checkError(err error, want wantError) {
	s.t.Helper()
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		s.t.Fatalf("error = %v, want an *llm.Error", err)
	}
	got := wantError{status: e.Status, retryable: e.Retryable, retryAfter: e.RetryAfter, overflow: e.Overflow, says: want.says}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(wantError{})); diff != "" {
		s.t.Errorf("error %v (-want +got):\n%s", e, diff)
	}
	if !strings.Contains(e.Message, want.says) {
		s.t.Errorf("message %q doesn't say %q", e.Message, want.says)
	}
	if e.Message == "" || e.Provider == "" || strings.Contains(e.Message, "\n") {
		s.t.Errorf("error %#v, want a provider and a message of one line", e)
	}
	for _, secret := range []string{Key, Key[3:], Key[:12]} {
		if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, *e), secret) {
			s.t.Errorf("error %#v gives the key away", *e)
		}
	}
}

func (s *suite) wantBroken(err error, where string) {
	s.t.Helper()
	e, ok := errors.AsType[*llm.Error](err)
	if !ok || !e.Retryable {
		s.t.Errorf("%s: error = %v, want a retryable *llm.Error", where, err)
	}
}

// disconnects ends the connection before each of the server's chunks, without and with a proper end of the body.
func (s *suite) disconnects(c testCase, d *dialogue) {
	s.serve(func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) })
	_, err := Collect(s.model.Stream(s.t.Context(), c.request))
	s.wantBroken(err, "before the header")

	pieces := d.pieces()
	for n := range pieces {
		s.serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			writeHeader(w, d)
			write(w, pieces[:n])
			panic(http.ErrAbortHandler)
		})
		_, err := Collect(s.model.Stream(s.t.Context(), c.request))
		s.wantBroken(err, fmt.Sprintf("broken off after %d of %d chunks", n, len(pieces)))

		s.serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			writeHeader(w, d)
			write(w, pieces[:n])
		})
		got, err := Collect(s.model.Stream(s.t.Context(), c.request))
		if err == nil && gocmp.Equal(c.want, got, sameAnswer, cmpopts.IgnoreFields(llm.Answer{}, "Usage")) {
			continue // the model was done; only what follows the answer is missing
		}
		s.wantBroken(err, fmt.Sprintf("ended after %d of %d chunks", n, len(pieces)))
	}
}

// disconnectsInsideChunks ends the connection at places all over the body, a step apart that falls on no pattern of it.
func (s *suite) disconnectsInsideChunks(d *dialogue) {
	last := len(d.body) - len(d.pieces()[len(d.pieces())-1])
	for n := 0; n < last; n += 7 {
		s.serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			writeHeader(w, d)
			write(w, [][]byte{d.body[:n]})
			panic(http.ErrAbortHandler)
		})
		_, err := Collect(s.model.Stream(s.t.Context(), Request()))
		s.wantBroken(err, fmt.Sprintf("broken off after %d bytes", n))
	}
}

// cancels ends the context, and the reading, while the server holds back the rest, and waits until the server sees it.
func (s *suite) cancels(c testCase, d *dialogue) {
	pieces := d.pieces()
	gone := make(chan struct{})
	hold := func(n int) {
		s.serve(func(w http.ResponseWriter, r *http.Request, _ []byte) {
			if n >= 0 {
				writeHeader(w, d)
				write(w, pieces[:n])
			}
			<-r.Context().Done()
			gone <- struct{}{}
		})
	}
	check := func(what string, err, want error, after, wantAfter time.Duration) {
		s.t.Helper()
		// The context's own error: one of the model would be tried again.
		_, models := errors.AsType[*llm.Error](err)
		if !errors.Is(err, want) || models || after != wantAfter {
			s.t.Errorf("%s: error after %v = %v, want %v after %v", what, after, err, want, wantAfter)
		}
		<-gone
	}
	for _, n := range []int{-1, 0, 1, len(pieces) - 1} {
		hold(n)
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		start := time.Now()
		_, err := Collect(s.model.Stream(ctx, c.request))
		check(fmt.Sprintf("deadline after %d chunks", n), err, context.DeadlineExceeded, time.Since(start), time.Second)
		cancel()
	}

	// All but the end comes at once; a model that was told to stop doesn't go on with what it has read. The chunks of the
	// event at hand may still come.
	s.serve(func(w http.ResponseWriter, r *http.Request, _ []byte) {
		writeHeader(w, d)
		write(w, [][]byte{bytes.Join(pieces[:len(pieces)-1], nil)})
		<-r.Context().Done()
		gone <- struct{}{}
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	start := time.Now()
	var last error
	chunks := 0
	for _, err := range s.model.Stream(ctx, c.request) {
		chunks++
		cancel()
		last = err
	}
	check("cancelled at a chunk", last, context.Canceled, time.Since(start), 0)
	if chunks < 2 || chunks > 4 {
		s.t.Errorf("%d chunks and errors, want a chunk before the error and next to none after it", chunks)
	}

	hold(len(pieces) - 1)
	start = time.Now()
	for range s.model.Stream(s.t.Context(), c.request) {
		break
	}
	check("reading stopped", nil, nil, time.Since(start), 0)

	// A context that has ended before: nothing is sent.
	s.serve(func(http.ResponseWriter, *http.Request, []byte) {
		s.t.Error("a request with an ended context was sent")
	})
	if _, err := Collect(s.model.Stream(ctx, c.request)); !errors.Is(err, context.Canceled) {
		s.t.Errorf("error with an ended context = %v, want context.Canceled", err)
	}
}

func (s *suite) unreachable() {
	m := s.open(&http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}}})
	_, err := Collect(m.Stream(s.t.Context(), Request()))
	s.checkError(err, wantError{retryable: true, says: "connection refused"})
}

func (s *suite) cannotBeSent() {
	s.serve(func(http.ResponseWriter, *http.Request, []byte) { s.t.Error("a request was sent") })
	bad := Request()
	bad.Tools[0].Schema = json.RawMessage(`[`)
	unknown := Request()
	unknown.Messages[0].Role = "oracle"
	for says, r := range map[string]llm.Request{`tool "invoke_agent"`: bad, `role "oracle"`: unknown} {
		_, err := Collect(s.model.Stream(s.t.Context(), r))
		s.checkError(err, wantError{says: says})
	}
}

func (s *suite) manyAtOnce(d *dialogue) {
	s.serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		writeHeader(w, d)
		write(w, d.pieces())
	})
	want := cases()[slices.IndexFunc(cases(), func(c testCase) bool { return c.name == "text" })].want
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			got, err := Collect(s.model.Stream(s.t.Context(), Request()))
			if diff := gocmp.Diff(want, got, sameAnswer); err != nil || diff != "" {
				s.t.Errorf("error = %v, answer (-want +got):\n%s", err, diff)
			}
		})
	}
	wg.Wait()
}
