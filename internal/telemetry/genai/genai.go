// Package genai makes spans by OpenTelemetry's conventions for generative AI. Every name and attribute of a span is here,
// since the conventions still move.
//
// The packages that do the work call it: agentloop for turns, model calls and tools, a2a for calls to peers. A tracer that
// is nil makes no spans and costs next to nothing. What was asked and answered is never in a span.
package genai

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"orchestrator/session"
)

// The operations, which are the first words of the spans' names. A turn is an agent of ours that is invoked, a call to a
// peer an agent of somebody else's.
const (
	InvokeAgent = "invoke_agent"
	Chat        = "chat"
	ExecuteTool = "execute_tool"
)

// The attributes of the conventions.
const (
	OperationName  = attribute.Key("gen_ai.operation.name")
	ProviderName   = attribute.Key("gen_ai.provider.name")
	RequestModel   = attribute.Key("gen_ai.request.model")
	FinishReasons  = attribute.Key("gen_ai.response.finish_reasons")
	InputTokens    = attribute.Key("gen_ai.usage.input_tokens")
	OutputTokens   = attribute.Key("gen_ai.usage.output_tokens")
	AgentName      = attribute.Key("gen_ai.agent.name")
	AgentID        = attribute.Key("gen_ai.agent.id")
	ConversationID = attribute.Key("gen_ai.conversation.id")
	ToolName       = attribute.Key("gen_ai.tool.name")
	ToolCallID     = attribute.Key("gen_ai.tool.call.id")
	ErrorType      = attribute.Key("error.type")
)

// The attributes of our own.
const (
	TurnID       = attribute.Key("orchestrator.turn.id")
	TurnOrigin   = attribute.Key("orchestrator.turn.origin")
	TurnAttempt  = attribute.Key("orchestrator.turn.attempt")
	TurnState    = attribute.Key("orchestrator.turn.state")
	CallID       = attribute.Key("orchestrator.call.id")
	CallMode     = attribute.Key("orchestrator.call.mode")
	CallDeadline = attribute.Key("orchestrator.call.deadline")
	CallResumed  = attribute.Key("orchestrator.call.resumed")
	CallFate     = attribute.Key("orchestrator.call.fate")
	CallState    = attribute.Key("orchestrator.call.state")
	CostUSD      = attribute.Key("orchestrator.usage.cost_usd")
)

// StartTurn starts the span of a turn: a child of what caused the turn, linked to the calls whose replies it folds back.
// A continuation after a restart is another span of the same parent.
func StartTurn(ctx context.Context, tracer trace.Tracer, t *session.Turn) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, noop.Span{}
	}
	var links []trace.Link
	for _, l := range t.Body.Links {
		if sc := trace.SpanContextFromContext(Continue(context.Background(), l)); sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	return start(Continue(ctx, t.Body.Trace), tracer, InvokeAgent, t.Body.Setup.Agent, trace.WithLinks(links...), trace.WithAttributes(
		AgentName.String(t.Body.Setup.Agent), AgentID.String(string(t.Agent)), ConversationID.String(string(t.Root)),
		TurnID.String(string(t.Turn)), TurnOrigin.String(string(t.Body.Origin)), TurnAttempt.Int(t.Body.Attempt),
	))
}

// EndTurn ends the span of a turn. An error means that the turn goes on elsewhere.
func EndTurn(span trace.Span, out session.Outcome, err error) {
	if !span.IsRecording() {
		return
	}
	switch {
	case err != nil:
		span.SetAttributes(TurnState.String("interrupted"))
	default:
		span.SetAttributes(TurnState.String(string(out.State)))
		usage(span, out.Usage)
		if out.State == session.StateFailed {
			fail(span, out.StopReason)
		}
	}
	span.End()
}

// StartChat starts the span of one model call.
func StartChat(ctx context.Context, tracer trace.Tracer, provider, model string) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, noop.Span{}
	}
	attrs := []attribute.KeyValue{RequestModel.String(model)}
	if provider != "" {
		attrs = append(attrs, ProviderName.String(provider))
	}
	return start(ctx, tracer, Chat, model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// EndChat ends the span of a model call. failure is a class of errors, empty when there was none.
func EndChat(span trace.Span, u session.Usage, stop, failure string) {
	if !span.IsRecording() {
		return
	}
	usage(span, u)
	if failure != "" {
		fail(span, failure)
	} else {
		span.SetAttributes(FinishReasons.StringSlice([]string{stop}))
	}
	span.End()
}

// StartTool starts the span of a tool call.
func StartTool(ctx context.Context, tracer trace.Tracer, name string, id session.ToolCallID) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, noop.Span{}
	}
	return start(ctx, tracer, ExecuteTool, name, trace.WithAttributes(ToolName.String(name), ToolCallID.String(string(id))))
}

// EndTool ends the span of a tool call. failure is a class of errors, empty when there was none.
func EndTool(span trace.Span, failure string) {
	if !span.IsRecording() {
		return
	}
	if failure != "" {
		fail(span, failure)
	}
	span.End()
}

// PeerCall is a call to a peer.
type PeerCall struct {
	Peer     string
	ID       session.CallID
	Root     session.ID
	ToolCall session.ToolCallID
	Mode     session.CallMode
	Deadline time.Time
	// Resumed says that an earlier life of the process made the call; its span is then the parent.
	Resumed bool
}

// StartPeer starts the span of a call to a peer. It lasts until the call has its reply or is given up, which may be long
// after whoever waited has gone on.
func StartPeer(ctx context.Context, tracer trace.Tracer, c PeerCall) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, noop.Span{}
	}
	return start(ctx, tracer, InvokeAgent, c.Peer, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		AgentName.String(c.Peer), ConversationID.String(string(c.Root)), ToolCallID.String(string(c.ToolCall)),
		CallID.String(string(c.ID)), CallMode.String(string(c.Mode)), CallDeadline.String(c.Deadline.UTC().Format(time.RFC3339)),
		CallResumed.Bool(c.Resumed),
	))
}

// EndPeer ends the span of a call to a peer: who got the reply (empty: there was none), what became of the call, and
// whether the reply tells of a failure.
func EndPeer(span trace.Span, fate, state string, failed bool) {
	if !span.IsRecording() {
		return
	}
	if fate != "" {
		span.SetAttributes(CallFate.String(fate), CallState.String(state))
	}
	if failed {
		fail(span, "peer_failed")
	}
	span.End()
}

// Carry returns the span of ctx as a W3C traceparent, empty when there is none.
func Carry(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[Traceparent]
}

// Traceparent is the name of the header that carries a span to another process.
const Traceparent = "traceparent"

// Continue returns a context whose span is the one of a traceparent; ctx itself when that is empty or none.
func Continue(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Traceparent: traceparent})
}

func start(ctx context.Context, tracer trace.Tracer, operation, subject string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return tracer.Start(ctx, operation+" "+subject, append(opts, trace.WithAttributes(OperationName.String(operation)))...)
}

func usage(span trace.Span, u session.Usage) {
	if u.InputTokens == 0 && u.OutputTokens == 0 {
		return
	}
	span.SetAttributes(InputTokens.Int64(u.InputTokens), OutputTokens.Int64(u.OutputTokens))
	if u.CostUSD > 0 {
		span.SetAttributes(CostUSD.Float64(u.CostUSD))
	}
}

// fail gives a span the class of an error; its text may quote what was said.
func fail(span trace.Span, class string) {
	span.SetStatus(codes.Error, "")
	span.SetAttributes(ErrorType.String(class))
}
