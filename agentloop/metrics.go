package agentloop

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/internal/telemetry/genai"
	"orchestrator/llm"
)

// metrics are what an operator watches of models and tools. They count also when nobody registered them.
type metrics struct {
	modelTime *prometheus.HistogramVec // by model and result
	tokens    *prometheus.CounterVec   // by model and kind
	cost      *prometheus.CounterVec   // by model
	tools     *prometheus.CounterVec   // by tool and result
	toolTime  *prometheus.HistogramVec // by tool
	denied    *prometheus.CounterVec   // by agent and tool
}

func newMetrics() *metrics {
	return &metrics{
		modelTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_model_call_duration_seconds", Help: "Time of one model call: ok, retryable, overflow, refused, interrupted, or error.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 120, 300},
		}, []string{"model", "result"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_model_tokens_total", Help: "Tokens, by kind: input (the next two included), cached_input, cache_write, output (reasoning included), or reasoning.",
		}, []string{"model", "kind"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_model_cost_usd_total", Help: "What model calls cost, by the configured prices, in US dollars.",
		}, []string{"model"}),
		tools: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_tool_calls_total", Help: "Tool calls: ok, failed (the model reads why), denied, or error.",
		}, []string{"tool", "result"}),
		toolTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_tool_call_duration_seconds", Help: "Time of a tool call, waits included.",
			Buckets: []float64{.005, .025, .1, .5, 1, 5, 10, 30, 60, 180, 600},
		}, []string{"tool"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_tool_calls_denied_total", Help: "Calls of tools that the agent's profile refuses.",
		}, []string{"agent", "tool"}),
	}
}

func (m *metrics) register(reg prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.modelTime, m.tokens, m.cost, m.tools, m.toolTime, m.denied} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

// watchModel begins to watch one model call. done ends that.
func (r *run) watchModel(ctx context.Context) (_ context.Context, done func(llm.Answer, error)) {
	provider := ""
	if r.l.cfg.Provider != nil {
		provider = r.l.cfg.Provider(r.t.Body.Setup.Model)
	}
	ctx, span := genai.StartChat(ctx, r.l.cfg.Tracer, provider, r.modelName)
	began, name := time.Now(), r.t.Body.Setup.Model
	return ctx, func(answer llm.Answer, err error) {
		m := r.l.metrics
		result := modelResult(err)
		m.modelTime.WithLabelValues(name, result).Observe(time.Since(began).Seconds())
		u := answer.Usage
		for kind, n := range map[string]int64{
			"input": u.InputTokens, "cached_input": u.CachedInputTokens, "cache_write": u.CacheWriteTokens,
			"output": u.OutputTokens, "reasoning": u.ReasoningTokens,
		} {
			m.tokens.WithLabelValues(name, kind).Add(float64(max(n, 0)))
		}
		m.cost.WithLabelValues(name).Add(max(u.CostUSD, 0))
		failure := ""
		if err != nil {
			failure = result
		}
		genai.EndChat(span, u, string(answer.Stop), failure)
	}
}

func modelResult(err error) string {
	failed, ok := errors.AsType[*llm.Error](err)
	switch {
	case err == nil:
		return "ok"
	case ok && failed.Overflow:
		return "overflow"
	case ok && failed.Retryable:
		return "retryable"
	case ok:
		return "refused"
	case leaves(err):
		return "interrupted"
	}
	return "error"
}

// watched is a tool call that is watched. It is held for as long as the call waits.
type watched struct {
	span  trace.Span
	began time.Time
}

func (r *run) watchTool(ctx context.Context, c *call) (context.Context, *watched) {
	ctx, span := genai.StartTool(ctx, r.l.cfg.Tracer, c.Name, c.ID)
	return ctx, &watched{span: span, began: time.Now()}
}

func (r *run) toolReturned(w *watched, c *call, res *result, err error) {
	m, name := r.l.metrics, c.Name
	if _, known := r.tools.Lookup(name); !known {
		if _, denied := r.tools.Refusal(name); !denied {
			name = "unknown" // the model made it up, and may make up any number
		}
	}
	outcome, failure := "ok", ""
	switch {
	case err != nil:
		outcome, failure = "error", "error"
		if leaves(err) {
			failure = "interrupted"
		}
	case res.denied:
		outcome, failure = "denied", "denied"
		m.denied.WithLabelValues(r.t.Body.Setup.Agent, name).Inc()
	case res.IsError:
		outcome, failure = "failed", "failed"
	}
	m.tools.WithLabelValues(name, outcome).Inc()
	m.toolTime.WithLabelValues(name).Observe(time.Since(w.began).Seconds())
	genai.EndTool(w.span, failure)
}
