package agentloop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/internal/telemetry/genai"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/tool"
)

// Config configures a [Loop].
type Config struct {
	// Models returns the model of a name in the config, and the provider's name for it.
	Models func(model string) (m llm.Model, providerName string, err error)
	// Tools returns the tools the turn's agent may call now. What the turn's setup doesn't name is taken away.
	Tools func(ctx context.Context, t *session.Turn) (*tool.Set, error)
	// Window returns how many tokens the model of a name takes; 0 is Limits.ContextTokens. May be nil.
	Window func(model string) int
	// Agent returns the limits an agent has of its own. May be nil.
	Agent func(name string) AgentLimits
	// Denied is told of each refused call of a tool the agent may not have. It must not block. May be nil.
	Denied func(agent, tool string)
	Limits Limits
	// Logger may be nil, which logs nothing.
	Logger *slog.Logger
	// Tracer makes a span of each turn, model call and tool call. Nil: there are none.
	Tracer trace.Tracer
	// Provider names the provider of a model in spans. May be nil.
	Provider func(model string) string
	// Registry takes the metrics; nil: there are none.
	Registry prometheus.Registerer
}

// AgentLimits are the limits of one agent. Zero fields are those of all.
type AgentLimits struct {
	ModelCalls int // of a turn; see [Limits]
	MaxTokens  int // of one answer; zero is the model's
}

// Limits are the bounds of a turn. Each ends or changes the turn with a plain sentence when it is hit.
type Limits struct {
	// ModelCalls bounds the model's answers in one turn, over all its attempts. When it is reached the model is asked once
	// more, without tools, to say what was done. Defaults to 50.
	ModelCalls int
	// ModelCallTime bounds the wall time of one model call; a call that takes longer is made again like any that failed.
	// Defaults to 120 seconds.
	ModelCallTime time.Duration
	// Retries is how often a model call that failed for a passing reason is made again. Defaults to 3; negative is never.
	Retries int
	// MaxRetryAfter is the longest wait a provider may ask for; when it asks for more the turn fails. Defaults to 5 minutes.
	MaxRetryAfter time.Duration
	// ParallelTools bounds the tool calls of a turn that run at once. Defaults to 16.
	ParallelTools int
	// RepeatNote and RepeatFail say at which failure of the same call with the same result the result carries a note, and
	// the turn fails. Identical calls of one message are one failure. They default to 3 and 6.
	RepeatNote int
	RepeatFail int
	// TreeTokens and TreeCostUSD bound what all model calls of a tree, ever, may use. Zero is no bound.
	TreeTokens  int64
	TreeCostUSD float64
	// ContextTokens is how many tokens a model takes of which nothing else is known. Defaults to 128,000. Tokens are
	// estimated as a quarter of the bytes, or more where the provider's count says so.
	ContextTokens int
	// ResultBytes is how much of a tool's result goes into the log and to the model; a longer one is kept whole as an
	// artifact. Defaults to 24,000.
	ResultBytes int
}

func (l Limits) withDefaults() Limits {
	l.ModelCalls = cmp.Or(l.ModelCalls, 50)
	l.ModelCallTime = cmp.Or(l.ModelCallTime, 120*time.Second)
	l.Retries = cmp.Or(l.Retries, 3)
	l.MaxRetryAfter = cmp.Or(l.MaxRetryAfter, 5*time.Minute)
	l.ParallelTools = cmp.Or(l.ParallelTools, 16)
	l.RepeatNote = cmp.Or(l.RepeatNote, 3)
	l.RepeatFail = cmp.Or(l.RepeatFail, 6)
	l.ContextTokens = cmp.Or(l.ContextTokens, 128_000)
	l.ResultBytes = cmp.Or(l.ResultBytes, 24_000)
	return l
}

func (l Limits) validate() error {
	for _, f := range []struct {
		name string
		ok   bool
		want string
	}{
		{"ModelCalls", l.ModelCalls > 0, "at least 1"},
		{"ModelCallTime", l.ModelCallTime > 0, "positive"},
		{"MaxRetryAfter", l.MaxRetryAfter > 0, "positive"},
		{"ParallelTools", l.ParallelTools > 0, "at least 1"},
		{"RepeatNote", l.RepeatNote > 0, "at least 1"},
		{"RepeatFail", l.RepeatFail > 1, "at least 2"},
		{"TreeTokens", l.TreeTokens >= 0, "0 or more"},
		{"TreeCostUSD", l.TreeCostUSD >= 0, "0 or more"},
		{"ContextTokens", l.ContextTokens >= 1000, "at least 1000"},
		{"ResultBytes", l.ResultBytes >= 200 && l.ResultBytes <= session.MaxInline/2, fmt.Sprintf("200 to %d", session.MaxInline/2)},
	} {
		if !f.ok {
			return fmt.Errorf("agentloop limits: %s must be %s", f.name, f.want)
		}
	}
	return nil
}

// Loop runs turns. It holds no turn's state and may run any number at once.
type Loop struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	schemas schemaCache
	budget  *budget
}

var _ session.TurnRunner = (*Loop)(nil)

// New returns a loop.
func New(cfg Config) (*Loop, error) {
	if cfg.Models == nil {
		return nil, errors.New("agentloop: Config.Models is missing")
	}
	if cfg.Tools == nil {
		return nil, errors.New("agentloop: Config.Tools is missing")
	}
	cfg.Limits = cfg.Limits.withDefaults()
	if err := cfg.Limits.validate(); err != nil {
		return nil, err
	}
	l := &Loop{cfg: cfg, log: cfg.Logger, metrics: newMetrics(), budget: newBudget(cfg.Limits)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry != nil {
		if err := l.metrics.register(cfg.Registry); err != nil {
			return nil, fmt.Errorf("agentloop: %w", err)
		}
	}
	return l, nil
}

// RunTurn implements [session.TurnRunner]. It also stops when the tree's context ends, with that context's cause.
func (l *Loop) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	out, err := l.runTurn(ctx, t)
	if err != nil {
		return session.Outcome{}, err
	}
	return *out, nil
}

// runTurn is RunTurn with its outcome by reference. From here down to the tool, what a function keeps on the stack is kept
// for as long as the turn waits, next to thousands of others: what is done before and after has functions of its own, and
// what is large is handed on by reference.
func (l *Loop) runTurn(ctx context.Context, t *session.Turn) (*session.Outcome, error) {
	ctx, span := genai.StartTurn(ctx, l.cfg.Tracer, t)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	owned := t.Tree().Context()
	stop := context.AfterFunc(owned, func() { cancel(context.Cause(owned)) })
	defer stop()

	r := l.newRun(t)
	stopReason, err := r.steps(ctx)
	return r.end(ctx, span, stopReason, err)
}

// end says how the turn ended, and ends its span.
func (r *run) end(ctx context.Context, span trace.Span, stopReason string, err error) (*session.Outcome, error) {
	out, err := r.outcome(ctx, stopReason, err)
	if err != nil {
		err = fmt.Errorf("run turn %s: %w", r.t.Turn, err)
	}
	genai.EndTurn(span, out, err)
	return &out, err
}

func (l *Loop) newRun(t *session.Turn) *run {
	r := &run{
		l: l, t: t, limits: l.cfg.Limits,
		log: l.log.With("session", t.Root, "agent", t.Agent, "turn", t.Turn),
	}
	if l.cfg.Agent != nil {
		own := l.cfg.Agent(t.Body.Setup.Agent)
		r.limits.ModelCalls, r.maxTokens = cmp.Or(own.ModelCalls, r.limits.ModelCalls), own.MaxTokens
	}
	return r
}
