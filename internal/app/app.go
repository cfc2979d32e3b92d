// Package app wires the product: it builds every part from the configuration, starts them in order and stops them in the
// other.
//
// cmd/orchestrator and whole-product tests call it. [New] opens the store and builds; [App.Start] takes up what an earlier
// process left and runs until [App.Stop], which cancels nothing: turns, subagents and calls go on with the next start.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/agentloop"
	"orchestrator/configs"
	"orchestrator/foldback"
	"orchestrator/httpapi"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/subagent"
	"orchestrator/tool"
	"orchestrator/tool/builtin"
	"orchestrator/toolprofile"
	"orchestrator/tracker"
)

// App is the whole product in one process.
type App struct {
	// Manager is what doors call.
	Manager *session.Manager
	// Calls are the calls to peers, of all sessions.
	Calls *tracker.Tracker
	// Relay cancels calls and follows them.
	Relay *a2a.Relay
	// Peers are the agents that may be asked.
	Peers *a2a.Registry
	// Profiles say who may call which tool.
	Profiles *toolprofile.Live
	// API is the HTTP session API, which [App.Serve] serves.
	API *httpapi.API
	// Subagents run the children of all sessions.
	Subagents *subagent.Pool

	cfg      Config
	log      *slog.Logger
	store    session.Store
	full     chan error
	http     *a2ahttp.Transport
	queues   *queues // nil: there is no broker
	models   map[string]*model
	registry []tool.Tool
	metrics  *prometheus.Registry
	tracer   trace.Tracer // nil: there are no spans

	mu          sync.Mutex
	deniedCalls map[DeniedTool]int

	cancel context.CancelFunc
	wg     sync.WaitGroup
	stop   sync.Once
	stopOK error
}

// New builds an App from a config, which it completes. The store is open when it returns; [App.Stop] closes it, also when
// the App was never started.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*App, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &App{cfg: cfg, log: log, full: make(chan error, 1), models: make(map[string]*model), deniedCalls: make(map[DeniedTool]int), metrics: newRegistry()}
	if cfg.Tracing != nil {
		a.tracer = cfg.Tracing.Tracer("orchestrator")
	}
	for _, m := range cfg.Models {
		if a.models[m.Name], err = newModel(m, cfg.Getenv); err != nil {
			return nil, err
		}
	}
	if a.store, err = openStore(ctx, cfg.Store, log); err != nil {
		return nil, err
	}
	opened := a.store
	if a.store, err = session.Measure(roomWatch{Store: opened, full: a.full}, a.metrics); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	if err := a.build(true); err != nil {
		return nil, errors.Join(err, a.store.Close())
	}
	return a, nil
}

func openStore(ctx context.Context, c StoreConfig, log *slog.Logger) (session.Store, error) {
	if c.Driver == DriverMemory {
		return session.NewMemory(), nil
	}
	return sqlite.Open(ctx, sqlite.Config{Path: c.Path, Synchronous: c.Synchronous, Logger: log})
}

// build makes the parts. Without replies it is one that only asks peers for itself.
func (a *App) build(replies bool) (err error) {
	cfg := a.cfg
	if a.Manager, err = session.NewManager(session.Config{
		Store: a.store, Logger: a.log, LeaseTTL: cfg.Sessions.LeaseTTL, TurnTimeout: cfg.Loop.TurnTimeout,
		MaxQueued: cfg.Sessions.MaxQueued, Retention: cfg.Sessions.Retention, Registry: a.metrics,
	}); err != nil {
		return err
	}
	if a.Calls, err = tracker.New(tracker.Config{
		Store: a.store, Logger: a.log, ReplyRetention: cfg.A2A.ReplyRetention,
		GuardPrimary: cfg.A2A.GuardPrimary, GuardSubagent: cfg.A2A.GuardSubagent, Registry: a.metrics,
	}); err != nil {
		return err
	}
	if a.Peers, err = a.loadPeers(replies); err != nil {
		return err
	}
	if a.Relay, err = a2a.New(a2a.Config{
		Tracker: a.Calls, Store: a.store, Registry: a.Peers, Logger: a.log, Tracer: a.tracer,
		Self: a2a.Identity{Name: cfg.A2A.Name, Card: cfg.A2A.URL},
		Limits: a2a.Limits{
			MaxWait: cfg.A2A.MaxWait, CallTimeout: cfg.A2A.CallTimeout, ReplyRetention: cfg.A2A.ReplyRetention,
			MaxDepth: cfg.A2A.MaxDepth, MaxGeneration: cfg.Subagents.MaxGeneration,
		},
	}); err != nil {
		return err
	}
	loop, err := agentloop.New(agentloop.Config{
		Models: func(name string) (llm.Model, string, error) {
			m, ok := a.models[name]
			if !ok {
				return nil, "", fmt.Errorf("there is no model %q in the config any more", name)
			}
			return m, m.cfg.Model, nil
		},
		Window: func(name string) int {
			if m, ok := a.models[name]; ok {
				return m.cfg.ContextWindow
			}
			return 0
		},
		Agent: func(name string) agentloop.AgentLimits {
			agent, _ := a.cfg.Agent(name)
			return agentloop.AgentLimits{ModelCalls: agent.Limits.ModelCalls, MaxTokens: agent.Limits.MaxOutputTokens}
		},
		Tools:  a.toolsOf,
		Denied: a.denied,
		Limits: agentloop.Limits{
			ModelCalls: cfg.Loop.ModelCalls, ModelCallTime: cfg.Loop.ModelTimeout, Retries: cfg.Loop.Retries,
			ParallelTools: cfg.Loop.ParallelTools, RepeatNote: cfg.Loop.RepeatNote, RepeatFail: cfg.Loop.RepeatFail,
			TreeTokens: cfg.Loop.TreeTokens, TreeCostUSD: cfg.Loop.TreeCostUSD,
		},
		Logger: a.log, Tracer: a.tracer, Registry: a.metrics,
		Provider: func(name string) string {
			if m, ok := a.models[name]; ok {
				return m.cfg.Provider
			}
			return ""
		},
	})
	if err != nil {
		return err
	}
	if a.Subagents, err = subagent.New(a.subagentConfig(loop)); err != nil {
		return err
	}
	local, err := builtin.New(builtin.Config{Store: a.store})
	if err != nil {
		return err
	}
	a.registry = append(append(local, a.Subagents.Tools()...), a.Relay.Tools()...)
	a.registry = append(a.registry, a.Relay.AdminTools()...)
	if a.Profiles, err = toolprofile.NewLive(toolprofile.LiveConfig{
		Path: cfg.ProfilesFile, Default: configs.Profiles, Agents: a.profileAgents(), Logger: a.log,
		Registry: a.Registry,
	}); err != nil {
		return err
	}
	a.Manager.Use(a.hooks(loop))
	return a.buildAPI()
}

func (a *App) buildAPI() error {
	c := a.cfg.API
	keys, err := httpapi.OpenKeys(a.cfg.Auth.KeysFile, a.log)
	if err != nil {
		return err
	}
	agents := []string{a.cfg.Primary}
	for _, agent := range a.cfg.Agents {
		if agent.Name != a.cfg.Primary {
			agents = append(agents, agent.Name)
		}
	}
	a.API, err = httpapi.New(httpapi.Config{
		Manager: a.Manager, Agents: agents, Keys: keys, AuthRequired: a.cfg.Auth.Required, Logger: a.log, Registry: a.metrics,
		MaxWait: c.MaxWait, WriteTimeout: c.WriteTimeout, Heartbeat: c.Heartbeat, Rate: c.Rate, Burst: c.Burst,
		Streams: c.Streams, PrincipalStreams: c.PrincipalStreams, TrustedOrigins: c.TrustedOrigins, Version: a.cfg.Version,
	})
	return err
}

func (a *App) loadPeers(replies bool) (_ *a2a.Registry, err error) {
	c := a2a.RegistryConfig{Refresh: a.cfg.A2A.CardRefresh, RegisteredFile: a.cfg.RegisteredPeers(), Logger: a.log}
	allowed, err := a2a.ParseAllowed(a.cfg.A2A.AllowPrivate)
	if err != nil {
		return nil, fmt.Errorf("a2a.allow_private: %w", err)
	}
	if a.http, err = a2ahttp.New(a2ahttp.Config{Allowed: allowed, Prefer: httpBindings(a.cfg.A2A.Prefer)}); err != nil {
		return nil, err
	}
	c.Transport, c.Prefer = a.http, a.cfg.A2A.Prefer
	if a.cfg.PeersFile != "" {
		data, err := os.ReadFile(a.cfg.PeersFile)
		if err != nil {
			return nil, fmt.Errorf("read the peers: %w", err)
		}
		if c.Peers, err = a2a.ParsePeers(a.cfg.PeersFile, data, a.lookupEnv); err != nil {
			return nil, err
		}
	}
	if a.queues, err = a.openQueues(c.Peers, replies); err != nil {
		return nil, err
	}
	if a.queues != nil {
		c.Queue = a.queues.transport
	}
	return a2a.NewRegistry(c)
}

// httpBindings returns those of the bindings that are carried by HTTP.
func httpBindings(prefer []string) []string {
	return slices.DeleteFunc(slices.Clone(prefer), func(b string) bool { return !slices.Contains(a2ahttp.Bindings, b) })
}

func (a *App) lookupEnv(name string) (string, bool) {
	value := a.cfg.Getenv(name)
	return value, value != ""
}

func (a *App) subagentConfig(loop session.TurnRunner) subagent.Config {
	c, s := subagent.Config{
		Store: a.store, Runner: loop, Logger: a.log, Prepare: a.prepare, EndCalls: a.Calls.EndPart, DefaultAgent: a.cfg.Subagents.Agent,
		Registry: a.metrics,
	}, a.cfg.Subagents
	c.Timeouts, c.Descriptions = make(map[string]time.Duration), make(map[string]string)
	for _, agent := range a.cfg.Agents {
		c.Timeouts[agent.Name], c.Descriptions[agent.Name] = agent.Limits.Timeout, agent.Description
		if agent.Name != a.cfg.Primary {
			c.Agents = append(c.Agents, agent.Name)
		}
	}
	c.Limits = subagent.Limits{
		Running: s.ProcessRunning, RunningPerTree: s.PerTreeRunning, Alive: s.Alive, Queued: s.Queued, Depth: s.Depth,
		Spawned: s.PerTreeTotal, Timeout: s.Timeout, ConsolidationTimeout: s.ConsolidationTimeout,
		MaxGeneration: s.MaxGeneration, LendSlot: s.LendSlot, OnFull: subagent.OnFull(s.OnFull),
	}
	return c
}

func (a *App) hooks(loop session.TurnRunner) session.Hooks {
	return session.Hooks{
		Runner: loop, Prepare: a.prepare, Fold: foldback.Compose, FoldFailed: foldback.Failed,
		EndTurn: []session.EndPart{a.Calls.EndPart(false), a.Subagents.EndPart()},
		Sweep: map[session.Kind]func(context.Context, session.Record) error{
			session.KindCall: a.Calls.Sweep, session.KindChild: a.Subagents.Sweep, session.KindBatch: a.Subagents.Sweep,
		},
		// Calls first: a child that is taken up finds the relay following its call already.
		Recover: []func(context.Context, *session.Tree) error{a.Relay.Recover, a.Subagents.Recover},
		Close:   []func(context.Context, *session.Tree) error{a.Subagents.CloseTree, a.Relay.CloseTree},
		Live: map[session.Kind][]session.State{
			session.KindCall: tracker.LiveStates, session.KindChild: subagent.UnsettledStates,
		},
		Follow:        tracker.Followed(),
		Pending:       []session.State{tracker.StateWaiting, tracker.StateOpen},
		DescribeAgent: subagent.Describe, DescribeCall: tracker.Describe,
		CancelAgent: a.Subagents.Cancel,
		CancelCall: func(ctx context.Context, id session.CallID, reason string) error {
			_, err := a.Calls.Cancel(ctx, id, reason)
			return err
		},
		Drain: []func(){a.Subagents.Drain, a.Relay.Drain},
	}
}

// Start takes up what an earlier process left and begins to work. It returns when that is done; the App then runs until
// [App.Stop].
func (a *App) Start(ctx context.Context) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.cancel = cancel
	a.wg.Go(func() {
		if err := a.Calls.Run(run); err != nil && run.Err() == nil {
			a.log.ErrorContext(run, "the tracker stopped", "err", err)
		}
	})
	a.wg.Go(func() { a.Profiles.Run(run) })
	a.queues.start(run, a)
	if err := a.Manager.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// Stop stops without cancelling anything, bounded by ctx, and closes the store. What is unfinished goes on with the next
// start. It may be called twice, and before Start.
func (a *App) Stop(ctx context.Context) error {
	a.stop.Do(func() {
		var errs []error
		step := func(name string, err error) {
			if err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", name, err))
			}
		}
		step("sessions", a.Manager.Stop(ctx))
		if a.cancel != nil {
			a.cancel()
		}
		a.wg.Wait()
		a.http.Close()
		step("brokers", a.queues.close(ctx))
		step("store", a.store.Close())
		a.stopOK = errors.Join(errs...)
	})
	return a.stopOK
}

// Ready reports whether the store answers, and whether every broker was connected to once.
func (a *App) Ready(ctx context.Context) error {
	if _, err := a.store.Trees(ctx, 1); err != nil {
		return fmt.Errorf("the store: %w", err)
	}
	return a.queues.check()
}

// Full is told the error when there was no room for a write. The App goes on trying; what it could not write it will write
// when there is room, or the next start does it again.
func (a *App) Full() <-chan error { return a.full }

// Config returns the completed config.
func (a *App) Config() Config { return a.cfg }

// Registry returns every tool there is, in the order models are shown them.
func (a *App) Registry() []tool.Tool { return a.registry }

// DeniedTool names a tool and the agent whose profile refuses it.
type DeniedTool struct{ Agent, Tool string }

// Denied returns how often each agent has called a tool its profile refuses, since the App was made.
func (a *App) Denied() map[DeniedTool]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.deniedCalls)
}

func (a *App) denied(agent, name string) {
	a.mu.Lock()
	a.deniedCalls[DeniedTool{agent, name}]++
	a.mu.Unlock()
	a.log.Info("tool call refused by the profile", "agent", agent, "tool", name)
}

// prepare says what a session's next turn runs with.
func (a *App) prepare(_ context.Context, _ session.Record, body session.SessionBody) (session.Setup, error) {
	agent, ok := a.cfg.Agent(body.Agent)
	if !ok {
		return session.Setup{}, fmt.Errorf("there is no agent '%s' in the config", body.Agent)
	}
	set := a.Profiles.Set(a.subject(agent, body))
	return session.Setup{Agent: agent.Name, Model: agent.Model, Instructions: agent.Instructions, Tools: set.Names()}, nil
}

// toolsOf returns the tools a turn has now: by its agent's profile, its parent's tools, and what it started with.
func (a *App) toolsOf(ctx context.Context, t *session.Turn) (*tool.Set, error) {
	rec, err := a.store.Record(ctx, session.KindSession, string(t.Agent))
	if err != nil {
		return nil, fmt.Errorf("tools of session %s: %w", t.Agent, err)
	}
	var body session.SessionBody
	if err := rec.Decode(&body); err != nil {
		return nil, err
	}
	// An agent that is no longer in the config keeps nothing but its turn's end: its profile admits nothing.
	agent, _ := a.cfg.Agent(t.Body.Setup.Agent)
	s := a.subject(agent, body)
	s.Resumed, s.Recorded = t.Resumed, t.Body.Setup.Tools
	return a.Profiles.Set(s), nil
}

func (a *App) subject(agent AgentConfig, body session.SessionBody) toolprofile.Subject {
	return toolprofile.Subject{Agent: profileAgent(agent), Child: body.Parent != "", Parent: body.Tools}
}

func (a *App) profileAgents() []toolprofile.Agent {
	agents := make([]toolprofile.Agent, len(a.cfg.Agents))
	for i, agent := range a.cfg.Agents {
		agents[i] = profileAgent(agent)
	}
	return agents
}

func profileAgent(c AgentConfig) toolprofile.Agent {
	agent := toolprofile.Agent{Name: c.Name, Profile: c.Profile}
	for _, g := range c.Grant {
		agent.Grant = append(agent.Grant, toolprofile.Rule{Source: g.Source, Tool: g.Tool})
	}
	return agent
}
