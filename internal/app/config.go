package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/llm/anthropic"
	"orchestrator/session"
)

// Config is everything that can be set. The zero value of every field is the documented default, filled by
// [Config.Complete]; the keys are those of the YAML file. Secrets are never in it: they are named by the environment
// variable or the file that holds them.
type Config struct {
	// DataDir holds the database. Defaults to $XDG_DATA_HOME/orchestrator, else ~/.local/share/orchestrator.
	DataDir string `mapstructure:"data_dir"`
	// Listen is the address of the HTTP server. Defaults to 127.0.0.1:8420. Another than a loopback address needs
	// auth.required.
	Listen string `mapstructure:"listen"`
	// StopTimeout bounds a stop by signal. Defaults to 10 seconds.
	StopTimeout time.Duration `mapstructure:"stop_timeout"`
	// PeersFile lists the peers. Defaults to peers.yaml beside the config file if there is one, else there are no peers.
	PeersFile string `mapstructure:"peers_file"`
	// ProfilesFile holds the tool profiles. Defaults to profiles.yaml beside the config file if there is one, else the
	// built-in profiles.
	ProfilesFile string `mapstructure:"profiles_file"`
	// Primary is the agent of a new session. Defaults to "primary".
	Primary string `mapstructure:"primary"`

	Log       LogConfig       `mapstructure:"log"`
	Store     StoreConfig     `mapstructure:"store"`
	Models    []ModelConfig   `mapstructure:"models"`
	Agents    []AgentConfig   `mapstructure:"agents"`
	Loop      LoopConfig      `mapstructure:"loop"`
	Subagents SubagentsConfig `mapstructure:"subagents"`
	A2A       A2AConfig       `mapstructure:"a2a"`
	API       APIConfig       `mapstructure:"api"`
	Auth      AuthConfig      `mapstructure:"auth"`
	Queue     QueueConfig     `mapstructure:"queue"`
	Sessions  SessionsConfig  `mapstructure:"sessions"`
	Telemetry TelemetryConfig `mapstructure:"telemetry"`

	// Dir is what relative paths are relative to: the folder of the config file. Empty is the working directory.
	Dir string `mapstructure:"-"`
	// Getenv reads the environment. Defaults to os.Getenv.
	Getenv func(string) string `mapstructure:"-"`
	// Version is the build's, for the OpenAPI document. Defaults to "dev".
	Version string `mapstructure:"-"`
	// Tracing makes spans. Nil makes none.
	Tracing trace.TracerProvider `mapstructure:"-"`
}

// LogConfig says what is logged to standard error.
type LogConfig struct {
	// Level is debug, info, warn or error. Defaults to info.
	Level string `mapstructure:"level"`
	// Format is text or json. Defaults to text.
	Format string `mapstructure:"format"`
}

// AuthConfig says who may use the session API.
type AuthConfig struct {
	// Required refuses requests without an API key. Without it they are the local operator's. Defaults to false, which is
	// allowed on a loopback address only.
	Required bool `mapstructure:"required"`
	// KeysFile holds the API keys, hashed, as orchestrator keys create writes it; it is read again when it has changed.
	// Defaults to api_keys.json in the data directory.
	KeysFile string `mapstructure:"keys_file"`
}

// APIConfig bounds the session API.
type APIConfig struct {
	// MaxWait bounds how long a request may wait for a turn. Defaults to 1 minute.
	MaxWait time.Duration `mapstructure:"max_wait"`
	// WriteTimeout is how long a reader of a stream may take nothing before it is disconnected. Defaults to 10 seconds.
	WriteTimeout time.Duration `mapstructure:"write_timeout"`
	// Heartbeat is how long a stream may be silent. Defaults to 15 seconds.
	Heartbeat time.Duration `mapstructure:"heartbeat"`
	// Rate is how many requests a second one principal may make; -1 is no bound. Defaults to 100.
	Rate float64 `mapstructure:"rate"`
	// Burst is how many of them at once. Defaults to 200.
	Burst int `mapstructure:"burst"`
	// Streams is how many event streams may be open. Defaults to 10000.
	Streams int `mapstructure:"streams"`
	// PrincipalStreams is how many of one principal. Defaults to 1000.
	PrincipalStreams int `mapstructure:"principal_streams"`
	// TrustedOrigins are the origins, like https://app.example.com, whose pages may send requests that change something.
	// Defaults to none but our own.
	TrustedOrigins []string `mapstructure:"trusted_origins"`
}

// TelemetryConfig says where traces go. Metrics are served at /metrics.
type TelemetryConfig struct {
	// OTLPEndpoint is the URL of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318.
	// Defaults to $OTEL_EXPORTER_OTLP_ENDPOINT; when that is empty too no traces are made.
	OTLPEndpoint string `mapstructure:"otlp_endpoint"`
}

// The drivers and the durability of a store.
const (
	DriverSQLite = "sqlite"
	DriverMemory = "memory"

	SynchronousFull   = "full"
	SynchronousNormal = "normal"
)

// StoreConfig says where sessions are kept.
type StoreConfig struct {
	// Driver is sqlite, or memory, which forgets everything when the process ends. Defaults to sqlite.
	Driver string `mapstructure:"driver"`
	// Path is the database file. Defaults to orchestrator.db in the data directory.
	Path string `mapstructure:"path"`
	// Synchronous is full, or normal, which is faster and survives a crash of the process but not of the machine.
	// Defaults to full.
	Synchronous string `mapstructure:"synchronous"`
}

// The providers of models.
const (
	ProviderOpenAI    = "openai"
	ProviderAnthropic = "anthropic"
	ProviderScripted  = "scripted"
)

// vendor is where a provider's models are looked for when the file doesn't say.
type vendor struct {
	keyEnv, baseURLEnv, modelEnv string
	model                        string
}

// vendors are the providers with a server.
var vendors = map[string]vendor{
	ProviderOpenAI:    {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "gpt-5.4-mini"},
	ProviderAnthropic: {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "claude-sonnet-5-5"},
}

// ModelConfig is a language model. The first of the list serves the agents that name none. An empty list is one model
// from the environment: "openai" by OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL; when the first two are empty and
// ANTHROPIC_API_KEY is set, "anthropic" by that, ANTHROPIC_BASE_URL and ANTHROPIC_MODEL.
type ModelConfig struct {
	// Name is what agents call the model. Required.
	Name string `mapstructure:"name"`
	// Provider is openai (every server that speaks its chat API), anthropic (its messages API) or scripted (a YAML script,
	// offline). Defaults to openai.
	Provider string `mapstructure:"provider"`
	// Model is the provider's name of the model. Defaults to $OPENAI_MODEL, else gpt-5.4-mini; of provider anthropic to
	// $ANTHROPIC_MODEL, else claude-sonnet-5-5.
	Model string `mapstructure:"model"`
	// BaseURL is the server, up to /v1. Defaults to $OPENAI_BASE_URL or $ANTHROPIC_BASE_URL, else the vendor's own.
	BaseURL string `mapstructure:"base_url"`
	// APIKeyEnv names the environment variable that holds the API key. Defaults to OPENAI_API_KEY or ANTHROPIC_API_KEY when
	// BaseURL and APIKeyFile are empty; with a base_url in the file no key is sent unless one is named here.
	APIKeyEnv string `mapstructure:"api_key_env"`
	// APIKeyFile is the file that holds the API key. At most one of APIKeyEnv and APIKeyFile may be set.
	APIKeyFile string `mapstructure:"api_key_file"`
	// Script is the script of provider scripted, which requires it.
	Script string `mapstructure:"script"`
	// ContextWindow is how many tokens the model takes. Defaults to 128000.
	ContextWindow int `mapstructure:"context_window"`
	// MaxOutputTokens bounds one answer. Defaults to the provider's default.
	MaxOutputTokens int `mapstructure:"max_output_tokens"`
	// Thinking, of provider anthropic, is adaptive (the model decides when and how much), budget (up to ThinkingTokens) or
	// off. Defaults to what the model does when nothing is said.
	Thinking string `mapstructure:"thinking"`
	// ThinkingTokens bounds the thinking of an answer, 1024 at least. It goes with thinking: budget.
	ThinkingTokens int `mapstructure:"thinking_tokens"`
	// Headers are sent with every request.
	Headers []HeaderConfig `mapstructure:"headers"`
	// Price makes cost bounds and cost figures possible. Defaults to unknown.
	Price PriceConfig `mapstructure:"price"`
}

// HeaderConfig is one HTTP header. Exactly one of Value, Env and File says its value; secrets belong in Env or File.
type HeaderConfig struct {
	// Name is the header's name. Required.
	Name string `mapstructure:"name"`
	// Value is the value itself, when it is no secret.
	Value string `mapstructure:"value"`
	// Env names the environment variable that holds the value.
	Env string `mapstructure:"env"`
	// File is the file that holds the value.
	File string `mapstructure:"file"`
}

// PriceConfig is what a model costs, in US dollars per million tokens.
type PriceConfig struct {
	// Input is the price of input.
	Input float64 `mapstructure:"input"`
	// CachedInput is the price of input that the provider had in its cache. Defaults to Input.
	CachedInput float64 `mapstructure:"cached_input"`
	// CacheWrite is the price of input that the provider puts into its cache, for which Anthropic asks a quarter more than
	// for Input. Defaults to Input.
	CacheWrite float64 `mapstructure:"cache_write"`
	// Output is the price of output.
	Output float64 `mapstructure:"output"`
}

// AgentConfig is an agent that we run. The agents "primary" and "subagent" exist even when they aren't listed.
type AgentConfig struct {
	// Name is what sessions and spawn_subagent call the agent. Required.
	Name string `mapstructure:"name"`
	// Description tells the primary what the agent is good for.
	Description string `mapstructure:"description"`
	// Model is the name of one of the models. Defaults to the first.
	Model string `mapstructure:"model"`
	// Instructions are the system prompt. Defaults to built-in ones: [PrimaryInstructions] for the primary agent, else
	// [SubagentInstructions].
	Instructions string `mapstructure:"instructions"`
	// Profile is the tool profile. Defaults to "primary" for the primary agent, else to "subagent".
	Profile string `mapstructure:"profile"`
	// Grant admits tools beyond what the parent session has; the profile still has to allow them.
	Grant  []GrantConfig `mapstructure:"grant"`
	Limits AgentLimits   `mapstructure:"limits"`
}

// GrantConfig names tools by source and name, as a rule of a tool profile does.
type GrantConfig struct {
	// Source is where the tools come from: builtin, subagent, a2a. Required.
	Source string `mapstructure:"source"`
	// Tool is the name of one of them. Defaults to all.
	Tool string `mapstructure:"tool"`
}

// AgentLimits narrows the general limits for one agent.
type AgentLimits struct {
	// Timeout bounds one run of the agent as a subagent. Defaults to subagents.timeout.
	Timeout time.Duration `mapstructure:"timeout"`
	// ModelCalls bounds the model calls of one turn. Defaults to loop.model_calls.
	ModelCalls int `mapstructure:"model_calls"`
	// MaxOutputTokens bounds one answer. Defaults to the model's.
	MaxOutputTokens int `mapstructure:"max_output_tokens"`
}

// LoopConfig bounds the agent loop.
type LoopConfig struct {
	// ModelCalls bounds the model calls of one turn. Defaults to 50.
	ModelCalls int `mapstructure:"model_calls"`
	// ModelTimeout bounds one model call. Defaults to 2 minutes.
	ModelTimeout time.Duration `mapstructure:"model_timeout"`
	// TurnTimeout bounds one turn of a root session. Defaults to 30 minutes.
	TurnTimeout time.Duration `mapstructure:"turn_timeout"`
	// Retries is how often a model call is repeated after an error that may pass; -1 is never. Defaults to 3.
	Retries int `mapstructure:"retries"`
	// ParallelTools bounds the tool calls of one turn that run at the same time. Defaults to 16.
	ParallelTools int `mapstructure:"parallel_tools"`
	// RepeatNote is how many identical failing tool calls in a row get a note in the result. Defaults to 3.
	RepeatNote int `mapstructure:"repeat_note"`
	// RepeatFail is how many of them fail the turn. Defaults to 6.
	RepeatFail int `mapstructure:"repeat_fail"`
	// TreeTokens bounds the tokens of a session and its subagents, input and output. Defaults to no bound.
	TreeTokens int64 `mapstructure:"tree_tokens"`
	// TreeCostUSD bounds their cost; it counts models that have a price. Defaults to no bound.
	TreeCostUSD float64 `mapstructure:"tree_cost_usd"`
}

// What happens to a spawn when all slots are taken.
const (
	OnFullQueue  = "queue"
	OnFullReject = "reject"
)

// SubagentsConfig bounds subagents.
type SubagentsConfig struct {
	// Agent runs a subagent when the spawn names none. Defaults to "subagent".
	Agent string `mapstructure:"agent"`
	// ProcessRunning is how many run at once in the process. Defaults to 8.
	ProcessRunning int `mapstructure:"process_running"`
	// PerTreeRunning is how many run at once below one root session. Defaults to 4.
	PerTreeRunning int `mapstructure:"per_tree_running"`
	// Alive is how many run or wait in the process; beyond it one that waits keeps its slot. Defaults to 32.
	Alive int `mapstructure:"alive"`
	// Queued is how many spawns of one tree may wait for a slot. Defaults to 32.
	Queued int `mapstructure:"queued"`
	// Depth is how deep spawns may nest: 1 means subagents spawn none. Defaults to 1.
	Depth int `mapstructure:"depth"`
	// PerTreeTotal is how many one tree may ever spawn. Defaults to 200.
	PerTreeTotal int `mapstructure:"per_tree_total"`
	// Timeout bounds one subagent from its spawn, the time in the queue included. Defaults to 10 minutes.
	Timeout time.Duration `mapstructure:"timeout"`
	// OnFull is queue or reject. Defaults to queue.
	OnFull string `mapstructure:"on_full"`
	// LendSlot lets a subagent that only waits lend its slot to another. Defaults to true.
	LendSlot *bool `mapstructure:"lend_slot"`
	// ConsolidationTimeout is how long after a turn's end its subagents' results are held back for the last of them.
	// Defaults to 5 minutes.
	ConsolidationTimeout time.Duration `mapstructure:"consolidation_timeout"`
	// MaxGeneration is how many fold-backs may follow from one another before spawning and invoking are refused.
	// Defaults to 4.
	MaxGeneration int `mapstructure:"max_generation"`
}

// A2AConfig bounds invoke_agent.
type A2AConfig struct {
	// Name is ours among agents: calling a peer of that name is refused. Defaults to "orchestrator".
	Name string `mapstructure:"name"`
	// URL is that of our own agent card, when we have one: it identifies us in the chain of callers. Defaults to none.
	URL string `mapstructure:"url"`
	// Prefer is the order in which the bindings of a peer are tried: JSONRPC, HTTP+JSON, GRPC, AMQP. Those it doesn't name
	// come last. A newer version of the protocol comes before an older one, whatever the binding. Defaults to that order.
	Prefer []string `mapstructure:"prefer"`
	// MaxWait bounds a blocking wait. Defaults to 3 minutes.
	MaxWait time.Duration `mapstructure:"max_wait"`
	// CallTimeout bounds every call's deadline. Defaults to 10 minutes.
	CallTimeout time.Duration `mapstructure:"call_timeout"`
	// ReplyRetention is how long a late reply is waited for. Defaults to 24 hours.
	ReplyRetention time.Duration `mapstructure:"reply_retention"`
	// GuardPrimary is how many calls a primary session may have open. Defaults to 4.
	GuardPrimary int `mapstructure:"guard_primary"`
	// GuardSubagent is how many calls a subagent session may have open. Defaults to 1.
	GuardSubagent int `mapstructure:"guard_subagent"`
	// MaxDepth bounds the chain of agents that call agents. Defaults to 8.
	MaxDepth int `mapstructure:"max_depth"`
	// CardRefresh is how often agent cards are fetched anew. Defaults to 4 hours.
	CardRefresh time.Duration `mapstructure:"card_refresh"`
	// AllowPrivate are the hosts, addresses and prefixes (10.1.0.0/16) that agents added by register_agent or peers add may
	// lead to though they aren't public. Peers of the peers file aren't bound by it. Defaults to none.
	AllowPrivate []string `mapstructure:"allow_private"`
}

// QueueConfig names the broker (RabbitMQ) through which peers behind a queue are asked. Without one they can't be.
type QueueConfig struct {
	// URLEnv names the environment variable that holds the broker's URL, such as amqp://user:password@host:5672/vhost.
	// Defaults to none: there is no broker.
	URLEnv string `mapstructure:"url_env"`
	// URLFile is the file that holds it. At most one of URLEnv and URLFile may be set.
	URLFile string `mapstructure:"url_file"`
	// Deployment is what this deployment is called among those on the same virtual host: all processes on one database have
	// the same name, and no others do. Required with a broker.
	Deployment string `mapstructure:"deployment"`
	// ReplyQueue is the durable queue that peers send final answers to. Defaults to "a2a.replies." and Deployment.
	ReplyQueue string `mapstructure:"reply_queue"`
	// Prefetch is how many answers are taken from it at a time. Defaults to 64.
	Prefetch int `mapstructure:"prefetch"`
	// TLS is for a broker whose URL begins with amqps://.
	TLS QueueTLSConfig `mapstructure:"tls"`
}

// QueueTLSConfig says how the connection to the broker is made secure.
type QueueTLSConfig struct {
	// CAFile has the authorities to trust, in PEM. Defaults to the machine's.
	CAFile string `mapstructure:"ca_file"`
	// CertFile is our certificate, in PEM, for a broker that wants one. It goes with KeyFile.
	CertFile string `mapstructure:"cert_file"`
	// KeyFile is the certificate's key.
	KeyFile string `mapstructure:"key_file"`
	// ServerName is whom the broker's certificate has to name. Defaults to the host of the URL.
	ServerName string `mapstructure:"server_name"`
}

// SessionsConfig bounds sessions.
type SessionsConfig struct {
	// Retention is how long a closed session is kept. Defaults to 720 hours (30 days).
	Retention time.Duration `mapstructure:"retention"`
	// MaxQueued is how many turns of one session may be queued. Defaults to 100.
	MaxQueued int `mapstructure:"max_queued"`
	// LeaseTTL is how long a session stays owned after its owner's last sign of life. Defaults to 15 seconds.
	LeaseTTL time.Duration `mapstructure:"lease_ttl"`
}

// ErrNoModel says that no model is configured and what to do.
var ErrNoModel = errors.New("no model: set OPENAI_API_KEY (or OPENAI_BASE_URL for a server of your own) or ANTHROPIC_API_KEY, or list one under models: in orchestrator.yaml")

// Complete returns the config with every default filled in and every path absolute, or all that is wrong with it. It
// reads the environment, but no file; keys are looked for by [ModelConfig.APIKey].
func (c Config) Complete() (Config, error) {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	if err := c.fillPaths(); err != nil {
		return c, err
	}
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8420")
	c.StopTimeout = cmp.Or(c.StopTimeout, 10*time.Second)
	c.Primary = cmp.Or(c.Primary, "primary")
	c.Log = LogConfig{Level: cmp.Or(c.Log.Level, "info"), Format: cmp.Or(c.Log.Format, "text")}
	c.Store.Driver = cmp.Or(c.Store.Driver, DriverSQLite)
	c.Store.Synchronous = cmp.Or(c.Store.Synchronous, SynchronousFull)
	c.fillModels()
	c.Loop = c.Loop.filled()
	c.Subagents = c.Subagents.filled()
	c.A2A = c.A2A.filled()
	c.fillQueue()
	c.Sessions = SessionsConfig{
		Retention: cmp.Or(c.Sessions.Retention, 720*time.Hour),
		MaxQueued: cmp.Or(c.Sessions.MaxQueued, 100),
		LeaseTTL:  cmp.Or(c.Sessions.LeaseTTL, 15*time.Second),
	}
	c.API = c.API.filled()
	c.Auth.KeysFile = c.abs(cmp.Or(c.Auth.KeysFile, filepath.Join(c.DataDir, "api_keys.json")))
	c.fillAgents()
	return c, c.validate()
}

func (c *Config) fillPaths() error {
	dir, err := filepath.Abs(cmp.Or(c.Dir, "."))
	if err != nil {
		return fmt.Errorf("find the folder of the config: %w", err)
	}
	c.Dir = dir
	if c.DataDir == "" {
		base := c.Getenv("XDG_DATA_HOME")
		if !filepath.IsAbs(base) {
			home := c.Getenv("HOME")
			if home == "" {
				return errors.New("data_dir is not set, and neither is HOME or XDG_DATA_HOME; set one of them")
			}
			base = filepath.Join(home, ".local", "share")
		}
		c.DataDir = filepath.Join(base, "orchestrator")
	}
	c.DataDir = c.abs(c.DataDir)
	c.Store.Path = c.abs(cmp.Or(c.Store.Path, filepath.Join(c.DataDir, "orchestrator.db")))
	c.PeersFile = c.besideConfig(c.PeersFile, "peers.yaml")
	c.ProfilesFile = c.besideConfig(c.ProfilesFile, "profiles.yaml")
	return nil
}

func (c *Config) abs(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// besideConfig returns the path as set, else the file of the name beside the config if there is one, else "".
func (c *Config) besideConfig(path, name string) string {
	if path != "" {
		return c.abs(path)
	}
	path = filepath.Join(c.Dir, name)
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return ""
	}
	return path
}

func (c *Config) fillModels() {
	c.Models = slices.Clone(c.Models)
	if len(c.Models) == 0 {
		name := ProviderOpenAI
		if c.Getenv("OPENAI_API_KEY") == "" && c.Getenv("OPENAI_BASE_URL") == "" && c.Getenv("ANTHROPIC_API_KEY") != "" {
			name = ProviderAnthropic
		}
		c.Models = []ModelConfig{{Name: name, Provider: name}}
	}
	for i := range c.Models {
		m := &c.Models[i]
		m.Provider = cmp.Or(m.Provider, ProviderOpenAI)
		m.ContextWindow = cmp.Or(m.ContextWindow, 128000)
		m.Price.CachedInput = cmp.Or(m.Price.CachedInput, m.Price.Input)
		m.Price.CacheWrite = cmp.Or(m.Price.CacheWrite, m.Price.Input)
		m.APIKeyFile, m.Script = c.abs(m.APIKeyFile), c.abs(m.Script)
		m.Headers = slices.Clone(m.Headers)
		for j := range m.Headers {
			m.Headers[j].File = c.abs(m.Headers[j].File)
		}
		vendor, ok := vendors[m.Provider]
		if !ok {
			m.Model = cmp.Or(m.Model, m.Name)
			continue
		}
		if m.BaseURL == "" && m.APIKeyFile == "" {
			m.APIKeyEnv = cmp.Or(m.APIKeyEnv, vendor.keyEnv)
		}
		m.BaseURL = cmp.Or(m.BaseURL, c.Getenv(vendor.baseURLEnv))
		m.Model = cmp.Or(m.Model, c.Getenv(vendor.modelEnv), vendor.model)
	}
}

func (c *Config) fillAgents() {
	c.Agents = slices.Clone(c.Agents)
	for _, name := range []string{"primary", "subagent"} {
		if !slices.ContainsFunc(c.Agents, func(a AgentConfig) bool { return a.Name == name }) {
			c.Agents = append(c.Agents, AgentConfig{Name: name})
		}
	}
	for i := range c.Agents {
		a := &c.Agents[i]
		a.Model = cmp.Or(a.Model, c.Models[0].Name)
		if a.Name == c.Primary || a.Name == "primary" {
			a.Instructions = cmp.Or(a.Instructions, PrimaryInstructions)
			a.Profile = cmp.Or(a.Profile, "primary")
		}
		a.Instructions = cmp.Or(a.Instructions, SubagentInstructions)
		a.Profile = cmp.Or(a.Profile, "subagent")
		a.Limits.Timeout = cmp.Or(a.Limits.Timeout, c.Subagents.Timeout)
		a.Limits.ModelCalls = cmp.Or(a.Limits.ModelCalls, c.Loop.ModelCalls)
	}
}

func (l LoopConfig) filled() LoopConfig {
	l.ModelCalls = cmp.Or(l.ModelCalls, 50)
	l.ModelTimeout = cmp.Or(l.ModelTimeout, 2*time.Minute)
	l.TurnTimeout = cmp.Or(l.TurnTimeout, 30*time.Minute)
	l.Retries = cmp.Or(l.Retries, 3)
	l.ParallelTools = cmp.Or(l.ParallelTools, 16)
	l.RepeatNote = cmp.Or(l.RepeatNote, 3)
	l.RepeatFail = cmp.Or(l.RepeatFail, 6)
	return l
}

func (s SubagentsConfig) filled() SubagentsConfig {
	s.Agent = cmp.Or(s.Agent, "subagent")
	s.ProcessRunning = cmp.Or(s.ProcessRunning, 8)
	s.PerTreeRunning = cmp.Or(s.PerTreeRunning, 4)
	s.Alive = cmp.Or(s.Alive, 32)
	s.Queued = cmp.Or(s.Queued, 32)
	s.Depth = cmp.Or(s.Depth, 1)
	s.PerTreeTotal = cmp.Or(s.PerTreeTotal, 200)
	s.Timeout = cmp.Or(s.Timeout, 10*time.Minute)
	s.OnFull = cmp.Or(s.OnFull, OnFullQueue)
	if s.LendSlot == nil {
		s.LendSlot = new(true)
	}
	s.ConsolidationTimeout = cmp.Or(s.ConsolidationTimeout, 5*time.Minute)
	s.MaxGeneration = cmp.Or(s.MaxGeneration, 4)
	return s
}

func (a APIConfig) filled() APIConfig {
	a.MaxWait = cmp.Or(a.MaxWait, time.Minute)
	a.WriteTimeout = cmp.Or(a.WriteTimeout, 10*time.Second)
	a.Heartbeat = cmp.Or(a.Heartbeat, 15*time.Second)
	a.Rate = cmp.Or(a.Rate, 100)
	a.Burst = cmp.Or(a.Burst, 200)
	a.Streams = cmp.Or(a.Streams, 10_000)
	a.PrincipalStreams = cmp.Or(a.PrincipalStreams, 1000)
	return a
}

func (a A2AConfig) filled() A2AConfig {
	a.Name = cmp.Or(a.Name, "orchestrator")
	if len(a.Prefer) == 0 {
		a.Prefer = slices.Concat(a2ahttp.Bindings, []string{a2a.BindingAMQP})
	}
	a.MaxWait = cmp.Or(a.MaxWait, 3*time.Minute)
	a.CallTimeout = cmp.Or(a.CallTimeout, 10*time.Minute)
	a.ReplyRetention = cmp.Or(a.ReplyRetention, 24*time.Hour)
	a.GuardPrimary = cmp.Or(a.GuardPrimary, 4)
	a.GuardSubagent = cmp.Or(a.GuardSubagent, 1)
	a.MaxDepth = cmp.Or(a.MaxDepth, 8)
	a.CardRefresh = cmp.Or(a.CardRefresh, 4*time.Hour)
	return a
}

// replyQueuePrefix begins the names of reply queues.
const replyQueuePrefix = "a2a.replies."

func (c *Config) fillQueue() {
	q := &c.Queue
	q.Prefetch = cmp.Or(q.Prefetch, 64)
	q.URLFile = c.abs(q.URLFile)
	q.TLS.CAFile, q.TLS.CertFile, q.TLS.KeyFile = c.abs(q.TLS.CAFile), c.abs(q.TLS.CertFile), c.abs(q.TLS.KeyFile)
	if q.Deployment != "" {
		q.ReplyQueue = cmp.Or(q.ReplyQueue, replyQueuePrefix+q.Deployment)
	}
}

// Broker returns the broker's URL, password included, or "" when there is none. An error is one plain sentence that says
// what to set.
func (q QueueConfig) Broker(getenv func(string) string) (string, error) {
	switch {
	case q.URLFile != "":
		return readSecret(q.URLFile)
	case q.URLEnv == "":
		return "", nil
	}
	value := strings.TrimSpace(getenv(q.URLEnv))
	if value == "" {
		return "", fmt.Errorf("the broker: set %s, which queue.url_env names", q.URLEnv)
	}
	return value, nil
}

// APIKey returns the key of a model, or "" when it needs none. An error is one plain sentence that says what to set.
func (m ModelConfig) APIKey(getenv func(string) string) (string, error) {
	vendor, ok := vendors[m.Provider]
	switch {
	case !ok:
		return "", nil
	case m.APIKeyFile != "":
		return readSecret(m.APIKeyFile)
	}
	key := ""
	if m.APIKeyEnv != "" {
		key = strings.TrimSpace(getenv(m.APIKeyEnv))
	}
	switch {
	case key != "" || m.APIKeyEnv == "":
		return key, nil
	case m.APIKeyEnv != vendor.keyEnv:
		return "", fmt.Errorf("model %q: set %s, which api_key_env names", m.Name, m.APIKeyEnv)
	case m.BaseURL == "" && m.Provider != ProviderOpenAI:
		return "", fmt.Errorf("model %q: set %s, or name another variable by api_key_env", m.Name, m.APIKeyEnv)
	case m.BaseURL == "":
		return "", ErrNoModel
	}
	return "", nil // a server of one's own may want none
}

// HeaderValues returns the headers of a model with their values.
func (m ModelConfig) HeaderValues(getenv func(string) string) (map[string]string, error) {
	values := make(map[string]string, len(m.Headers))
	for _, h := range m.Headers {
		switch {
		case h.File != "":
			value, err := readSecret(h.File)
			if err != nil {
				return nil, fmt.Errorf("model %q: header %s: %w", m.Name, h.Name, err)
			}
			values[h.Name] = value
		case h.Env != "":
			value := getenv(h.Env)
			if value == "" {
				return nil, fmt.Errorf("model %q: header %s: set %s", m.Name, h.Name, h.Env)
			}
			values[h.Name] = value
		default:
			values[h.Name] = h.Value
		}
	}
	return values, nil
}

func readSecret(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	if len(b) > 64<<10 {
		return "", fmt.Errorf("%s holds %d bytes, which is no secret", file, len(b))
	}
	return strings.TrimSpace(string(b)), nil
}

// RegisteredPeers is the file of the agents that are added at run time: peers.registered.json in the data directory, or ""
// when nothing is kept.
func (c Config) RegisteredPeers() string {
	if c.Store.Driver == DriverMemory {
		return ""
	}
	return filepath.Join(c.DataDir, "peers.registered.json")
}

// Agent returns the agent of a name.
func (c Config) Agent(name string) (AgentConfig, bool) {
	i := slices.IndexFunc(c.Agents, func(a AgentConfig) bool { return a.Name == name })
	if i < 0 {
		return AgentConfig{}, false
	}
	return c.Agents[i], true
}

// Model returns the model of a name.
func (c Config) Model(name string) (ModelConfig, bool) {
	i := slices.IndexFunc(c.Models, func(m ModelConfig) bool { return m.Name == name })
	if i < 0 {
		return ModelConfig{}, false
	}
	return c.Models[i], true
}

// validate returns every fault of a completed config.
func (c Config) validate() error {
	v := &validator{}
	v.listen(c.Listen, c.Auth.Required)
	v.positive("stop_timeout", c.StopTimeout)
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "text", "json")
	v.url("telemetry.otlp_endpoint", c.Telemetry.OTLPEndpoint)
	v.oneOf("store.driver", c.Store.Driver, DriverSQLite, DriverMemory)
	v.oneOf("store.synchronous", c.Store.Synchronous, SynchronousFull, SynchronousNormal)
	models, agents := c.validateModels(v), c.validateAgents(v)
	for i, a := range c.Agents {
		v.reference(fmt.Sprintf("agents[%d].model", i), a.Model, "models", models)
	}
	v.reference("primary", c.Primary, "agents", agents)
	v.reference("subagents.agent", c.Subagents.Agent, "agents", agents)

	v.count("loop.model_calls", c.Loop.ModelCalls)
	v.positive("loop.model_timeout", c.Loop.ModelTimeout)
	v.positive("loop.turn_timeout", c.Loop.TurnTimeout)
	if c.Loop.Retries < -1 {
		v.fault("loop.retries", c.Loop.Retries, "it must be -1 (never) or more")
	}
	v.count("loop.parallel_tools", c.Loop.ParallelTools)
	v.count("loop.repeat_note", c.Loop.RepeatNote)
	v.count("loop.repeat_fail", c.Loop.RepeatFail)
	v.notNegative("loop.tree_tokens", float64(c.Loop.TreeTokens))
	v.notNegative("loop.tree_cost_usd", c.Loop.TreeCostUSD)

	s := c.Subagents
	v.count("subagents.process_running", s.ProcessRunning)
	v.count("subagents.per_tree_running", s.PerTreeRunning)
	v.count("subagents.alive", s.Alive)
	v.count("subagents.queued", s.Queued)
	v.count("subagents.per_tree_total", s.PerTreeTotal)
	v.positive("subagents.timeout", s.Timeout)
	v.oneOf("subagents.on_full", s.OnFull, OnFullQueue, OnFullReject)
	v.positive("subagents.consolidation_timeout", s.ConsolidationTimeout)
	v.count("subagents.max_generation", s.MaxGeneration)
	if s.Depth != 1 {
		v.fault("subagents.depth", s.Depth, "only 1 is allowed: subagents spawn none")
	}
	if s.Alive > 0 && s.Alive < s.ProcessRunning {
		v.fault("subagents.alive", s.Alive, fmt.Sprintf("it must be at least subagents.process_running, which is %d", s.ProcessRunning))
	}

	v.positive("a2a.max_wait", c.A2A.MaxWait)
	v.positive("a2a.call_timeout", c.A2A.CallTimeout)
	v.positive("a2a.reply_retention", c.A2A.ReplyRetention)
	v.count("a2a.guard_primary", c.A2A.GuardPrimary)
	v.count("a2a.guard_subagent", c.A2A.GuardSubagent)
	v.count("a2a.max_depth", c.A2A.MaxDepth)
	v.positive("a2a.card_refresh", c.A2A.CardRefresh)
	v.url("a2a.url", c.A2A.URL)
	for i, b := range c.A2A.Prefer {
		v.oneOf(fmt.Sprintf("a2a.prefer[%d]", i), b, slices.Concat(a2ahttp.Bindings, []string{a2a.BindingAMQP})...)
	}
	if _, err := a2a.ParseAllowed(c.A2A.AllowPrivate); err != nil {
		v.fault("a2a.allow_private", fmt.Sprint(c.A2A.AllowPrivate), err.Error())
	}

	v.positive("api.max_wait", c.API.MaxWait)
	v.positive("api.write_timeout", c.API.WriteTimeout)
	v.positive("api.heartbeat", c.API.Heartbeat)
	if c.API.Rate < 0 && c.API.Rate != -1 {
		v.fault("api.rate", c.API.Rate, "it must be -1 (no bound) or more than 0")
	}
	v.count("api.burst", c.API.Burst)
	v.count("api.streams", c.API.Streams)
	v.count("api.principal_streams", c.API.PrincipalStreams)
	for i, origin := range c.API.TrustedOrigins {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
			v.fault(fmt.Sprintf("api.trusted_origins[%d]", i), fmt.Sprintf("%q", origin), "it must be one such as https://app.example.com")
		}
	}

	c.validateQueue(v)
	v.positive("sessions.retention", c.Sessions.Retention)
	v.count("sessions.max_queued", c.Sessions.MaxQueued)
	if c.Sessions.LeaseTTL < time.Second {
		v.fault("sessions.lease_ttl", c.Sessions.LeaseTTL, "it must be at least 1s")
	}
	return errors.Join(v.faults...)
}

func (c Config) validateModels(v *validator) (names []string) {
	for i, m := range c.Models {
		key := func(field string) string { return fmt.Sprintf("models[%d].%s", i, field) }
		names = v.name(key("name"), m.Name, names)
		v.oneOf(key("provider"), m.Provider, ProviderOpenAI, ProviderAnthropic, ProviderScripted)
		v.url(key("base_url"), m.BaseURL)
		v.count(key("context_window"), m.ContextWindow)
		v.notNegative(key("max_output_tokens"), float64(m.MaxOutputTokens))
		v.notNegative(key("price.input"), m.Price.Input)
		v.notNegative(key("price.cached_input"), m.Price.CachedInput)
		v.notNegative(key("price.cache_write"), m.Price.CacheWrite)
		v.notNegative(key("price.output"), m.Price.Output)
		switch {
		case m.Provider == ProviderScripted && m.Script == "":
			v.fault(key("script"), `""`, "provider scripted needs the path of a script")
		case m.Provider != ProviderScripted && m.Script != "":
			v.fault(key("script"), m.Script, "only provider scripted takes a script")
		}
		switch budget := m.Thinking == string(anthropic.ThinkingBudget); {
		case m.Thinking != "" && m.Provider != ProviderAnthropic:
			v.fault(key("thinking"), m.Thinking, "only provider anthropic takes it")
		case m.Thinking != "":
			v.oneOf(key("thinking"), m.Thinking, string(anthropic.ThinkingAdaptive), string(anthropic.ThinkingBudget), string(anthropic.ThinkingOff))
			fallthrough
		default:
			if budget && m.ThinkingTokens < 1024 {
				v.fault(key("thinking_tokens"), m.ThinkingTokens, "thinking: budget needs 1024 at least")
			}
			if !budget && m.ThinkingTokens != 0 {
				v.fault(key("thinking_tokens"), m.ThinkingTokens, "it goes with thinking: budget only")
			}
		}
		if m.APIKeyEnv != "" && m.APIKeyFile != "" {
			v.fault(key("api_key_env"), m.APIKeyEnv, "set it or api_key_file, not both")
		}
		if m.APIKeyEnv != "" && !envName.MatchString(m.APIKeyEnv) {
			v.fault(key("api_key_env"), "not a name", "it is the name of an environment variable, not the key itself")
		}
		for j, h := range m.Headers {
			hkey := fmt.Sprintf("models[%d].headers[%d]", i, j)
			set := 0
			for _, s := range []string{h.Value, h.Env, h.File} {
				if s != "" {
					set++
				}
			}
			switch {
			case h.Name == "":
				v.fault(hkey+".name", `""`, "it is required")
			case set != 1:
				v.fault(hkey, h.Name, "exactly one of value, env and file must be set")
			case h.Value != "" && SecretName(h.Name):
				v.fault(hkey+".value", "set", "a secret must come from env or file")
			}
		}
	}
	return names
}

func (c Config) validateQueue(v *validator) {
	q := c.Queue
	v.count("queue.prefetch", q.Prefetch)
	switch {
	case q.URLEnv != "" && q.URLFile != "":
		v.fault("queue.url_env", q.URLEnv, "set it or url_file, not both")
	case q.URLEnv != "" && !envName.MatchString(q.URLEnv):
		v.fault("queue.url_env", "not a name", "it is the name of an environment variable, not the URL itself")
	case q.URLEnv+q.URLFile == "":
		return
	}
	if !entryName.MatchString(q.Deployment) {
		v.fault("queue.deployment", fmt.Sprintf("%q", q.Deployment), "a broker needs it: 1 to 64 letters, digits, '.', '_' or '-' that name this deployment among all on the virtual host")
	} else if err := a2aqueue.CheckQueueName(q.ReplyQueue); err != nil {
		v.fault("queue.reply_queue", fmt.Sprintf("%q", q.ReplyQueue), err.Error())
	}
	if (q.TLS.CertFile == "") != (q.TLS.KeyFile == "") {
		v.fault("queue.tls.cert_file", fmt.Sprintf("%q", q.TLS.CertFile), "it and key_file go together")
	}
}

func (c Config) validateAgents(v *validator) (names []string) {
	for i, a := range c.Agents {
		key := func(field string) string { return fmt.Sprintf("agents[%d].%s", i, field) }
		names = v.name(key("name"), a.Name, names)
		v.positive(key("limits.timeout"), a.Limits.Timeout)
		v.count(key("limits.model_calls"), a.Limits.ModelCalls)
		v.notNegative(key("limits.max_output_tokens"), float64(a.Limits.MaxOutputTokens))
		for j, g := range a.Grant {
			if g.Source == "" {
				v.fault(fmt.Sprintf("agents[%d].grant[%d].source", i, j), `""`, "it is required")
			}
		}
	}
	return names
}

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)
	entryName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	secretName = regexp.MustCompile(`(?i)auth|key|token|secret|cookie|password`)
)

// SecretName reports whether a header or field of the name usually holds a secret.
func SecretName(name string) bool { return secretName.MatchString(name) }

// validator collects faults, each naming the field, its value and what is allowed.
type validator struct{ faults []error }

func (v *validator) fault(key string, value any, allowed string) {
	v.faults = append(v.faults, fmt.Errorf("%s is %v: %s", key, value, allowed))
}

func (v *validator) positive(key string, d time.Duration) {
	if d <= 0 {
		v.fault(key, d, `it must be a positive duration, such as "90s", "3m" or "24h"`)
	}
}

func (v *validator) count(key string, n int) {
	if n < 1 {
		v.fault(key, n, "it must be 1 or more")
	}
}

func (v *validator) notNegative(key string, n float64) {
	if n < 0 {
		v.fault(key, n, "it must not be negative")
	}
}

func (v *validator) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.fault(key, fmt.Sprintf("%q", value), "allowed: "+strings.Join(allowed, ", "))
	}
}

func (v *validator) name(key, name string, taken []string) []string {
	switch {
	case !entryName.MatchString(name):
		v.fault(key, fmt.Sprintf("%q", name), "it must be 1 to 64 letters, digits, '.', '_' or '-', and start with a letter or digit")
	case slices.Contains(taken, name):
		v.fault(key, fmt.Sprintf("%q", name), "another entry of the list has that name")
	}
	return append(taken, name)
}

func (v *validator) reference(key, name, list string, known []string) {
	if slices.Contains(known, name) {
		return
	}
	allowed := fmt.Sprintf("%s has no such entry; there are %s", list, strings.Join(known, ", "))
	if near := session.Nearest(name, known); near != "" {
		allowed = fmt.Sprintf("%s has no such entry; did you mean %q?", list, near)
	}
	v.fault(key, fmt.Sprintf("%q", name), allowed)
}

func (v *validator) url(key, value string) {
	if value == "" {
		return
	}
	u, err := url.Parse(value)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		v.fault(key, "not a URL", `it must be one such as "https://host/v1"`)
	case u.User != nil:
		v.fault(key, fmt.Sprintf("%q", u.Redacted()), "a URL must not hold a password; secrets come from env or file")
	}
}

func (v *validator) listen(addr string, auth bool) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		v.fault("listen", fmt.Sprintf("%q", addr), `it must be host:port, such as "127.0.0.1:8420"`)
		return
	}
	if ip, err := netip.ParseAddr(host); !auth && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		v.fault("listen", fmt.Sprintf("%q", addr), "only a loopback address such as 127.0.0.1 is allowed, unless auth.required is true")
	}
}
