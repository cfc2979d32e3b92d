package a2a

import (
	"context"

	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"orchestrator/internal/telemetry/genai"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// startSpan starts the span of a call that is about to be registered.
func (r *Relay) startSpan(ctx context.Context, c *tool.Call, req tracker.Request) (context.Context, trace.Span) {
	return genai.StartPeer(ctx, r.cfg.Tracer, genai.PeerCall{
		Peer: req.Peer, ID: session.CallIDFor(c.ID), Root: c.Turn.Root, ToolCall: c.ID, Mode: req.Mode, Deadline: req.Deadline,
	})
}

// resumeSpan starts the span under which this life of the process follows a call that an earlier one made.
func (r *Relay) resumeSpan(p tracker.PendingA2ATask) trace.Span {
	if r.cfg.Tracer == nil {
		return noop.Span{}
	}
	_, span := genai.StartPeer(genai.Continue(context.Background(), p.Trace), r.cfg.Tracer, genai.PeerCall{
		Peer: p.Peer, ID: p.ID, Root: p.RootID, ToolCall: p.ToolCallID, Mode: p.Mode, Deadline: p.Deadline, Resumed: true,
	})
	return span
}

// traced returns a context with the span of the call, of which every request to the peer tells.
func (f *follower) traced(ctx context.Context) context.Context {
	if !f.span.SpanContext().IsValid() {
		return ctx
	}
	return carrying(trace.ContextWithSpan(ctx, f.span))
}

// carrying returns a context by which requests to the peer tell of its span.
func carrying(ctx context.Context) context.Context {
	parent := genai.Carry(ctx)
	if parent == "" {
		return ctx
	}
	return a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{genai.Traceparent: {parent}})
}

func (f *follower) endSpan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	genai.EndPeer(f.span, f.fate, f.state, f.failure)
}

// ended keeps what became of a reply, for the span.
func (f *follower) ended(fate tracker.Delivery, p tracker.PendingA2ATask, r tracker.Reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fate, f.state, f.failure = string(fate), string(p.State), r.Failed
}
