package bindingtest

import (
	"context"
	"sync"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/a2a/a2atest"
	"orchestrator/internal/telemetry/genai"
)

// traced are the spans of the calls that were made, in all lives: by what a peer may be told of them, the call's id.
type traced struct {
	mu    sync.Mutex
	calls map[string]string
}

var _ sdk.SpanProcessor = (*traced)(nil)

// tracer returns what makes the spans of one life.
func (s *traced) tracer() trace.Tracer {
	return sdk.NewTracerProvider(sdk.WithSpanProcessor(s)).Tracer("test")
}

// toolSpan is the span of every tool call.
var toolSpan = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})

// tool returns the context of a tool call.
func (s *traced) tool(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, toolSpan)
}

// OnStart implements [sdk.SpanProcessor].
func (s *traced) OnStart(_ context.Context, span sdk.ReadWriteSpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[string]string)
	}
	for _, kv := range span.Attributes() {
		if kv.Key == genai.CallID {
			s.calls[genai.Carry(trace.ContextWithSpan(context.Background(), span))] = kv.Value.AsString()
		}
	}
}

// OnEnd implements [sdk.SpanProcessor].
func (s *traced) OnEnd(sdk.ReadOnlySpan) {}

// Shutdown implements [sdk.SpanProcessor].
func (s *traced) Shutdown(context.Context) error { return nil }

// ForceFlush implements [sdk.SpanProcessor].
func (s *traced) ForceFlush(context.Context) error { return nil }

// check returns what is wrong with what a request tells of the trace it belongs to, or "".
func (s *traced) check(r a2atest.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := r.Header.Values("Traceparent")
	if len(told) != 1 {
		return "doesn't tell of its trace once"
	}
	call, ok := s.calls[told[0]]
	switch {
	case r.MessageID == "" && told[0] == genai.Carry(s.tool(context.Background())): // there is no call yet
	case !ok:
		return "tells of a span that is no call's"
	case r.MessageID != "" && r.MessageID != call:
		return "tells of another call's span"
	}
	return ""
}
