package orchtest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/a2a/a2atest"
	"orchestrator/internal/app"
	"orchestrator/internal/orchtest"
	"orchestrator/internal/telemetry/genai"
	"orchestrator/session"
)

// story is a question that needs a subagent and two peers. The subagent's peer answers when nobody waits for it any more.
const story = `
agents:
  - name: primary
    rules:
      - {match: '<agent_data from="archivist">', text: It came late.}
      - {match: '<agent_data from="advisor">', text: The advisor has answered.}
      - {match: 'Your subagent', text: The subagent is done.}
      - {tool: spawn_subagent, text: We are on it.}
      - {tool: invoke_agent, text: We are on it.}
      - position: 0
        tool_calls:
          - {name: spawn_subagent, args: {description: historian, prompt: secret-prompt}}
          - {name: invoke_agent, args: {agent_name: advisor, message: secret-question}}
  - name: subagent
    rules:
      - {tool: invoke_agent, text: There is nothing yet.}
      - {tool: spawn_subagent, text: There is nothing yet.}
      - position: 0
        tool_calls:
          - {name: spawn_subagent, args: {description: nobody, prompt: not allowed here}}
          - {name: invoke_agent, args: {agent_name: archivist, message: secret-question, timeout_seconds: 0.5}}
`

// told is a story that is being told: an App, and the peer that answers late.
type told struct {
	t         *testing.T
	cfg       orchtest.Config
	spans     *tracetest.InMemoryExporter
	archivist *a2atest.Peer
	answer    *a2atest.Gate
	app       *app.App
	stop      func()
	id        session.ID
	turn      session.TurnID
}

func tell(t *testing.T) *told {
	t.Helper()
	s := &told{t: t, spans: tracetest.NewInMemoryExporter(), answer: a2atest.NewGate()}
	s.archivist = a2atest.New(t, a2atest.Config{Name: "archivist", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Wait(s.answer)
		x.State(a2atest.Completed, "secret-answer")
	}})
	t.Cleanup(s.answer.Open)
	advisor := a2atest.New(t, a2atest.Config{Name: "advisor", Script: func(x *a2atest.Exchange) { x.State(a2atest.Completed, "secret-advice") }})
	s.cfg = orchtest.Config{
		Script: story, Peers: map[string]string{"archivist": s.archivist.URL(), "advisor": advisor.URL()}, Dir: t.TempDir(),
		Edit: func(c *app.Config) {
			c.Listen = "127.0.0.1:0"
			c.Models[0].Price = app.PriceConfig{Input: 1, Output: 1}
			c.Tracing = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
		},
	}
	s.start()
	ctx := t.Context()
	var err error
	if s.id, err = s.app.Manager.Open(ctx, session.OpenRequest{Agent: "primary"}); err != nil {
		t.Fatal(err)
	}
	if s.turn, err = s.app.Manager.Submit(ctx, session.SubmitRequest{Session: s.id, Input: "secret-input"}); err != nil {
		t.Fatal(err)
	}
	s.wait("The subagent is done.")
	return s
}

func (s *told) start() { s.app, s.stop = orchtest.Start(s.t, s.cfg) }

// wait waits until the primary has said something.
func (s *told) wait(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	wake, stop := s.app.Manager.Store().Watch(s.id)
	defer stop()
	for {
		if err := s.app.Manager.WaitQuiescent(ctx, s.id, s.turn); err != nil {
			s.t.Fatalf("wait for %q: %v\n%s", text, err, orchtest.Dump(orchtest.Log(s.t, s.app, s.id)))
		}
		for _, e := range orchtest.Log(s.t, s.app, s.id) {
			var m session.Message
			if e.Root && e.Type == session.EventMessageCompleted && e.Decode(&m) == nil && m.Role == session.RoleAssistant && m.Text == text {
				return
			}
		}
		select {
		case <-wake:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// span returns the one span of the name whose attributes are as given.
func (s *told) span(name string, attrs ...attribute.KeyValue) tracetest.SpanStub {
	s.t.Helper()
	var found []tracetest.SpanStub
	for _, span := range s.spans.GetSpans() {
		missing := slices.ContainsFunc(attrs, func(kv attribute.KeyValue) bool { return !slices.Contains(span.Attributes, kv) })
		if span.Name == name && !missing {
			found = append(found, span)
		}
	}
	if len(found) != 1 {
		var names []string
		for _, span := range s.spans.GetSpans() {
			names = append(names, span.Name)
		}
		s.t.Fatalf("there are %d spans %q with %v, want 1; there are %q", len(found), name, attrs, names)
	}
	return found[0]
}

func (s *told) under(child, parent tracetest.SpanStub) {
	s.t.Helper()
	if child.Parent.SpanID() != parent.SpanContext.SpanID() || child.SpanContext.TraceID() != parent.SpanContext.TraceID() {
		s.t.Errorf("the parent of %q is %s in trace %s, want %q (%s in trace %s)", child.Name, child.Parent.SpanID(),
			child.SpanContext.TraceID(), parent.Name, parent.SpanContext.SpanID(), parent.SpanContext.TraceID())
	}
}

// attr returns an attribute of a span as text.
func attr(span tracetest.SpanStub, key attribute.Key) string {
	for _, kv := range span.Attributes {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// folding returns the span of the fold-back turn that is linked to a call's span.
func (s *told) folding(call tracetest.SpanStub) tracetest.SpanStub {
	s.t.Helper()
	for _, span := range s.spans.GetSpans() {
		for _, l := range span.Links {
			if l.SpanContext.SpanID() == call.SpanContext.SpanID() && l.SpanContext.TraceID() == call.SpanContext.TraceID() {
				return span
			}
		}
	}
	s.t.Fatalf("no span is linked to %q", call.Name)
	return tracetest.SpanStub{}
}

func TestTraceOfABlockingCallLeadsToItsLateReply(t *testing.T) {
	s := tell(t)
	s.answer.Open()
	s.wait("It came late.")
	s.stop()

	root := s.span("invoke_agent primary", genai.TurnOrigin.String("user"))
	if root.Parent.IsValid() {
		t.Errorf("the user's turn has the parent %v, want none", root.Parent)
	}
	spawn := s.span("execute_tool spawn_subagent", genai.ToolCallID.String(string(s.id)+":1"))
	s.under(spawn, root)
	child := s.span("invoke_agent subagent", genai.TurnOrigin.String("task"))
	s.under(child, spawn)
	refused := s.span("execute_tool spawn_subagent", genai.ErrorType.String("denied"))
	s.under(refused, child)
	chats := 0
	for _, span := range s.spans.GetSpans() {
		if attr(span, genai.OperationName) == genai.Chat && span.Parent.SpanID() == child.SpanContext.SpanID() {
			chats++
		}
	}
	if chats != 2 {
		t.Errorf("the subagent's turn has %d model calls, want 2", chats)
	}
	tool := s.span("execute_tool invoke_agent", genai.ToolCallID.String(attr(child, genai.AgentID)+":2"))
	s.under(tool, child)
	call := s.span("invoke_agent archivist")
	s.under(call, tool)
	if call.SpanKind != trace.SpanKindClient || attr(call, genai.CallFate) != "folded" || !call.EndTime.After(tool.EndTime) {
		t.Errorf("the call's span is of kind %s with fate %q and ends at %s, want a client's, folded, after %s",
			call.SpanKind, attr(call, genai.CallFate), call.EndTime, tool.EndTime)
	}
	sends := s.archivist.Sends()
	want := genai.Carry(trace.ContextWithSpanContext(t.Context(), call.SpanContext))
	if len(sends) != 1 || sends[0].Header.Get("traceparent") != want {
		t.Errorf("the peer was sent %d messages, the first with traceparent %q, want 1 with %q", len(sends), sends[0].Header.Get("traceparent"), want)
	}
	fold := s.folding(call)
	if attr(fold, genai.TurnOrigin) != "foldback" || fold.SpanContext.TraceID() == call.SpanContext.TraceID() {
		t.Errorf("the span linked to the call is a turn for %q in trace %s, want a foldback in a trace of its own",
			attr(fold, genai.TurnOrigin), fold.SpanContext.TraceID())
	}
	if advisor := s.folding(s.span("invoke_agent advisor")); advisor.SpanContext.SpanID() == fold.SpanContext.SpanID() {
		t.Error("the advisor's reply is folded back by the turn of the archivist's")
	}
	for _, span := range s.spans.GetSpans() {
		for _, kv := range span.Attributes {
			if strings.Contains(kv.Value.String(), "secret-") {
				t.Errorf("span %q tells what was said: %s = %s", span.Name, kv.Key, kv.Value.String())
			}
		}
	}
}

func TestTraceOfACallSurvivesARestart(t *testing.T) {
	s := tell(t)
	s.stop()
	first := s.span("invoke_agent archivist", genai.CallResumed.Bool(false))
	s.start()
	s.answer.Open()
	s.wait("It came late.")
	s.stop()
	second := s.span("invoke_agent archivist", genai.CallResumed.Bool(true))
	s.under(second, first)
	if fold := s.folding(first); attr(fold, genai.TurnOrigin) != "foldback" {
		t.Errorf("the span linked to the call is a turn for %q, want foldback", attr(fold, genai.TurnOrigin))
	}
}

// watch reads the session's stream until its first event has come, and a session that isn't there.
func (s *told) watch() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	for _, path := range []string{"/v1/sessions/" + string(s.id) + "/events", "/v1/sessions/s_none"} {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
		r.Header.Set("Accept", "text/event-stream")
		s.app.API.ServeHTTP(&leaver{ResponseRecorder: httptest.NewRecorder(), leave: cancel}, r)
	}
}

// leaver is a client that goes away when it has seen an event.
type leaver struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l *leaver) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "event: session.created") {
		l.leave()
	}
	return l.ResponseRecorder.Write(p)
}

// scrape returns what the App serves at /metrics.
func (s *told) scrape() string {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	addr, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- s.app.Serve(ctx, func(a net.Addr) { addr <- a }) }() // received below
	var body []byte
	var err error
	select {
	case a := <-addr:
		var resp *http.Response
		if resp, err = http.Get("http://" + a.String() + "/metrics"); err == nil { //nolint:noctx // bounded by the server
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		cancel()
		err = errors.Join(err, <-ended)
	case err = <-ended:
		cancel()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return string(body)
}

func TestEveryDocumentedMetricIsServedAndEveryServedOneIsDocumented(t *testing.T) {
	s := tell(t)
	s.answer.Open()
	s.wait("It came late.")
	s.watch()
	served := s.scrape()
	for _, line := range []string{
		`orchestrator_sessions_created_total{kind="primary"} 1`,
		`orchestrator_sessions_created_total{kind="subagent"} 1`,
		`orchestrator_turns_started_total{origin="user"} 1`,
		`orchestrator_turns_ended_total{origin="task",state="completed"} 1`,
		`orchestrator_turns{state="queued"} 0`,
		`orchestrator_subagents{state="running"} 0`,
		`orchestrator_subagents_ended_total{result="completed"} 1`,
		`orchestrator_subagent_slot_wait_duration_seconds_count{for="start"} 1`,
		`orchestrator_calls_total{mode="blocking",peer="archivist"} 1`,
		`orchestrator_calls_total{mode="async",peer="advisor"} 1`,
		`orchestrator_calls_pending{state="detached"} 0`,
		`orchestrator_call_timeouts_total{peer="archivist",reason="deadline"} 1`,
		`orchestrator_call_replies_total{fate="late",peer="archivist"} 1`,
		`orchestrator_call_replies_total{fate="folded",peer="advisor"} 1`,
		`orchestrator_call_wait_duration_seconds_count{outcome="detached",peer="archivist"} 1`,
		`orchestrator_replies_folded_back_total 2`,
		`orchestrator_http_streams_ended_total{reason="client"} 1`,
		`orchestrator_http_requests_total{code="200",route="GET /v1/sessions/{session}/events"} 1`,
		`orchestrator_tool_calls_denied_total{agent="subagent",tool="spawn_subagent"} 1`,
	} {
		if !strings.Contains(served, line+"\n") {
			t.Errorf("/metrics doesn't say %s", line)
		}
	}
	if strings.Contains(served, string(s.id)) || strings.Contains(served, "secret-") {
		t.Error("/metrics names a session, or tells what was said")
	}
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(re, text string) (found []string) {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return found
	}
	documented := names("(?m)^\\| `(orchestrator_[a-z_]+)` ", string(doc))
	documented = slices.DeleteFunc(documented, func(name string) bool { // there is no broker here: a2aqueue compares its own
		return strings.HasPrefix(name, "orchestrator_broker_") || strings.HasPrefix(name, "orchestrator_queue_")
	})
	if diff := cmp.Diff(documented, names(`(?m)^# TYPE (orchestrator_[a-z_]+) `, served)); diff != "" {
		t.Errorf("metrics of docs/metrics.md and of /metrics (-documented +served):\n%s\n%s", diff, served)
	}
}
