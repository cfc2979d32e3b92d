package app_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orchestrator/internal/app"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func complete(t *testing.T, c app.Config) app.Config {
	t.Helper()
	if c.Getenv == nil {
		c.Getenv = env("HOME", "/home/op")
	}
	c, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestZeroConfigIsTheDocumentedDefault(t *testing.T) {
	dir := t.TempDir()
	got := complete(t, app.Config{Dir: dir})
	want := app.Config{
		DataDir: "/home/op/.local/share/orchestrator", Listen: "127.0.0.1:8420", StopTimeout: 10 * time.Second, Primary: "primary",
		Log:    app.LogConfig{Level: "info", Format: "text"},
		Store:  app.StoreConfig{Driver: "sqlite", Path: "/home/op/.local/share/orchestrator/orchestrator.db", Synchronous: "full"},
		Models: []app.ModelConfig{{Name: "openai", Provider: "openai", Model: "gpt-5.4-mini", APIKeyEnv: "OPENAI_API_KEY", ContextWindow: 128000}},
		Agents: []app.AgentConfig{
			{
				Name: "primary", Model: "openai", Instructions: app.PrimaryInstructions, Profile: "primary",
				Limits: app.AgentLimits{Timeout: 10 * time.Minute, ModelCalls: 50},
			},
			{
				Name: "subagent", Model: "openai", Instructions: app.SubagentInstructions, Profile: "subagent",
				Limits: app.AgentLimits{Timeout: 10 * time.Minute, ModelCalls: 50},
			},
		},
		Loop: app.LoopConfig{
			ModelCalls: 50, ModelTimeout: 2 * time.Minute, TurnTimeout: 30 * time.Minute, Retries: 3, ParallelTools: 16,
			RepeatNote: 3, RepeatFail: 6,
		},
		Subagents: app.SubagentsConfig{
			Agent: "subagent", ProcessRunning: 8, PerTreeRunning: 4, Alive: 32, Queued: 32, Depth: 1, PerTreeTotal: 200,
			Timeout: 10 * time.Minute, OnFull: "queue", LendSlot: new(true), ConsolidationTimeout: 5 * time.Minute, MaxGeneration: 4,
		},
		A2A: app.A2AConfig{
			Name: "orchestrator", Prefer: []string{"JSONRPC", "HTTP+JSON", "GRPC", "AMQP"}, MaxWait: 3 * time.Minute, CallTimeout: 10 * time.Minute, ReplyRetention: 24 * time.Hour,
			GuardPrimary: 4, GuardSubagent: 1, MaxDepth: 8, CardRefresh: 4 * time.Hour,
		},
		Queue:    app.QueueConfig{Prefetch: 64},
		Sessions: app.SessionsConfig{Retention: 720 * time.Hour, MaxQueued: 100, LeaseTTL: 15 * time.Second},
		API: app.APIConfig{
			MaxWait: time.Minute, WriteTimeout: 10 * time.Second, Heartbeat: 15 * time.Second, Rate: 100, Burst: 200, Streams: 10_000, PrincipalStreams: 1000,
		},
		Auth: app.AuthConfig{KeysFile: "/home/op/.local/share/orchestrator/api_keys.json"},
		Dir:  dir,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(app.Config{}, "Getenv")); diff != "" {
		t.Errorf("Complete() (-want +got):\n%s", diff)
	}
	again := complete(t, got)
	if diff := cmp.Diff(got, again, cmpopts.IgnoreFields(app.Config{}, "Getenv")); diff != "" {
		t.Errorf("completing a complete config changes it (-first +second):\n%s", diff)
	}
}

func TestEnvironmentAloneConfiguresAModel(t *testing.T) {
	getenv := env("HOME", "/home/op", "OPENAI_API_KEY", " sk-1\n", "OPENAI_BASE_URL", "http://127.0.0.1:11434/v1", "OPENAI_MODEL", "qwen3")
	c := complete(t, app.Config{Getenv: getenv, Dir: t.TempDir()})
	m := c.Models[0]
	if m.Model != "qwen3" || m.BaseURL != "http://127.0.0.1:11434/v1" {
		t.Errorf("model = %q at %q, want that of the environment", m.Model, m.BaseURL)
	}
	if key, err := m.APIKey(getenv); key != "sk-1" || err != nil {
		t.Errorf("APIKey() = %q, %v, want the trimmed key", key, err)
	}
}

func TestWithoutAFileTheFirstVendorOfTheEnvironmentIsUsed(t *testing.T) {
	for _, tc := range []struct{ env, want string }{
		{"", "openai gpt-5.4-mini "},
		{"ANTHROPIC_API_KEY=a", "anthropic claude-sonnet-5-5 "},
		{"ANTHROPIC_API_KEY=a ANTHROPIC_MODEL=m ANTHROPIC_BASE_URL=http://h", "anthropic m http://h"},
		{"ANTHROPIC_API_KEY=a OPENAI_API_KEY=o", "openai gpt-5.4-mini "},
		{"ANTHROPIC_API_KEY=a OPENAI_BASE_URL=http://h", "openai gpt-5.4-mini http://h"},
		{"ANTHROPIC_MODEL=m", "openai gpt-5.4-mini "},
	} {
		set := []string{"HOME", "/home/op"}
		for kv := range strings.FieldsSeq(tc.env) {
			k, v, _ := strings.Cut(kv, "=")
			set = append(set, k, v)
		}
		c := complete(t, app.Config{Getenv: env(set...)})
		m := c.Models[0]
		if got := m.Provider + " " + m.Model + " " + m.BaseURL; got != tc.want || m.Name != m.Provider || len(c.Models) != 1 {
			t.Errorf("with %q the model is %q named %q, want %q", tc.env, got, m.Name, tc.want)
		}
	}
	if text := app.ErrNoModel.Error(); !strings.Contains(text, "OPENAI_API_KEY") || !strings.Contains(text, "ANTHROPIC_API_KEY") {
		t.Errorf("ErrNoModel = %q, want both vendors in it", text)
	}
}

func TestKeyIsLookedForOnlyWhereItIsMeantFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		model   app.ModelConfig
		env     []string
		want    string
		wantErr string
	}{
		"no key, OpenAI's server":    {wantErr: "no model: set OPENAI_API_KEY"},
		"no key, own server by env":  {env: []string{"OPENAI_BASE_URL", "http://localhost:1/v1"}},
		"key, own server by env":     {env: []string{"OPENAI_BASE_URL", "http://localhost:1/v1", "OPENAI_API_KEY", "k"}, want: "k"},
		"key never sent to base_url": {model: app.ModelConfig{BaseURL: "http://other:1/v1"}, env: []string{"OPENAI_API_KEY", "k"}},
		"key named for base_url":     {model: app.ModelConfig{BaseURL: "http://other:1/v1", APIKeyEnv: "OTHER"}, env: []string{"OTHER", "o"}, want: "o"},
		"named variable is missing":  {model: app.ModelConfig{APIKeyEnv: "OTHER"}, env: []string{"OPENAI_API_KEY", "k"}, wantErr: `model "m": set OTHER`},
		"Anthropic by the file":      {model: app.ModelConfig{Provider: "anthropic"}, env: []string{"ANTHROPIC_API_KEY", "a", "OPENAI_API_KEY", "k"}, want: "a"},
		"no key, Anthropic's server": {model: app.ModelConfig{Provider: "anthropic"}, env: []string{"OPENAI_API_KEY", "k"}, wantErr: `model "m": set ANTHROPIC_API_KEY`},
		"Anthropic's API elsewhere":  {model: app.ModelConfig{Provider: "anthropic", BaseURL: "http://other:1"}, env: []string{"ANTHROPIC_API_KEY", "a"}},
		"file":                       {model: app.ModelConfig{APIKeyFile: file}, env: []string{"OPENAI_API_KEY", "k"}, want: "from-file"},
		"missing file":               {model: app.ModelConfig{APIKeyFile: file + "x"}, wantErr: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.model.Name = "m"
			getenv := env(append(tc.env, "HOME", "/home/op")...)
			c := complete(t, app.Config{Models: []app.ModelConfig{tc.model}, Getenv: getenv})
			got, err := c.Models[0].APIKey(getenv)
			if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("APIKey() = %q, %v, want %q, error %q", got, err, tc.want, tc.wantErr)
			}
		})
	}
	c := complete(t, app.Config{})
	if _, err := c.Models[0].APIKey(env()); !errors.Is(err, app.ErrNoModel) {
		t.Errorf("APIKey() without any configuration = %v, want ErrNoModel", err)
	}
}

func TestHeaderValuesComeFromTextEnvironmentAndFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "h"), []byte("f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := complete(t, app.Config{Dir: dir, Models: []app.ModelConfig{{Name: "m", Headers: []app.HeaderConfig{
		{Name: "X-Title", Value: "t"}, {Name: "X-Api-Key", Env: "K"}, {Name: "X-Org-Token", File: "h"},
	}}}})
	got, err := c.Models[0].HeaderValues(env("K", "e"))
	if diff := cmp.Diff(map[string]string{"X-Title": "t", "X-Api-Key": "e", "X-Org-Token": "f"}, got); diff != "" || err != nil {
		t.Errorf("HeaderValues() error %v (-want +got):\n%s", err, diff)
	}
	if _, err := c.Models[0].HeaderValues(env()); err == nil || !strings.Contains(err.Error(), "header X-Api-Key: set K") {
		t.Errorf("HeaderValues() without K = %v, want an error that names it", err)
	}
}

func TestPathsAreRelativeToTheConfigFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "peers.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := complete(t, app.Config{
		Dir: dir, DataDir: "data", ProfilesFile: "p/profiles.yaml",
		Models: []app.ModelConfig{{Name: "m", Provider: "scripted", Script: "script.yaml"}, {Name: "k", APIKeyFile: "/abs/key"}},
	})
	got := []string{c.DataDir, c.Store.Path, c.PeersFile, c.ProfilesFile, c.Models[0].Script, c.Models[1].APIKeyFile}
	want := []string{
		filepath.Join(dir, "data"), filepath.Join(dir, "data", "orchestrator.db"), filepath.Join(dir, "peers.yaml"),
		filepath.Join(dir, "p", "profiles.yaml"), filepath.Join(dir, "script.yaml"), "/abs/key",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	if c := complete(t, app.Config{Dir: t.TempDir()}); c.PeersFile != "" || c.ProfilesFile != "" {
		t.Errorf("files that don't exist are chosen: %q, %q", c.PeersFile, c.ProfilesFile)
	}
}

func TestBadConfigNamesTheFieldAndWhatIsAllowed(t *testing.T) {
	scripted := []app.ModelConfig{{Name: "m", Provider: "scripted", Script: "s"}}
	for want, c := range map[string]app.Config{
		`listen is "8420": it must be host:port`:                                           {Listen: "8420"},
		`listen is "0.0.0.0:1": only a loopback address`:                                   {Listen: "0.0.0.0:1"},
		`api.rate is -2: it must be -1`:                                                    {API: app.APIConfig{Rate: -2}},
		`api.trusted_origins[0] is "x": it must be one such as https`:                      {API: app.APIConfig{TrustedOrigins: []string{"x"}}},
		`listen is ":8420": only a loopback address`:                                       {Listen: ":8420"},
		`log.level is "loud": allowed: debug, info, warn, error`:                           {Log: app.LogConfig{Level: "loud"}},
		`store.driver is "mysql": allowed: sqlite, memory`:                                 {Store: app.StoreConfig{Driver: "mysql"}},
		`a2a.max_wait is -3m0s: it must be a positive duration`:                            {A2A: app.A2AConfig{MaxWait: -3 * time.Minute}},
		`queue.url_env is BROKER: set it or url_file, not both`:                            {Queue: app.QueueConfig{URLEnv: "BROKER", URLFile: "broker", Deployment: "d"}},
		`queue.url_env is not a name: it is the name of an environment variable`:           {Queue: app.QueueConfig{URLEnv: "amqp://me:pw@host", Deployment: "d"}},
		`queue.deployment is "": a broker needs it`:                                        {Queue: app.QueueConfig{URLEnv: "BROKER"}},
		`queue.reply_queue is "amq.x"`:                                                     {Queue: app.QueueConfig{URLEnv: "BROKER", Deployment: "d", ReplyQueue: "amq.x"}},
		`queue.prefetch is -1: it must be 1 or more`:                                       {Queue: app.QueueConfig{Prefetch: -1}},
		`queue.tls.cert_file is "/c.pem": it and key_file go together`:                     {Queue: app.QueueConfig{URLEnv: "BROKER", Deployment: "d", TLS: app.QueueTLSConfig{CertFile: "/c.pem"}}},
		`a2a.prefer[1] is "REST": allowed: JSONRPC, HTTP+JSON, GRPC, AMQP`:                 {A2A: app.A2AConfig{Prefer: []string{"GRPC", "REST"}}},
		`loop.model_calls is -1: it must be 1 or more`:                                     {Loop: app.LoopConfig{ModelCalls: -1}},
		`subagents.depth is 2: only 1 is allowed`:                                          {Subagents: app.SubagentsConfig{Depth: 2}},
		`subagents.alive is 2: it must be at least subagents.process_running, which is 8`:  {Subagents: app.SubagentsConfig{Alive: 2}},
		`subagents.agent is "subagnet": agents has no such entry; did you mean "subagent"`: {Subagents: app.SubagentsConfig{Agent: "subagnet"}},
		`primary is "boss": agents has no such entry; there are primary, subagent`:         {Primary: "boss"},
		`models[0].script is "": provider scripted needs the path of a script`:             {Models: []app.ModelConfig{{Name: "m", Provider: "scripted"}}},
		`models[1].name is "m": another entry of the list has that name`:                   {Models: append(scripted, scripted...)},
		`models[0].name is "": it must be 1 to 64 letters`:                                 {Models: []app.ModelConfig{{}}},
		`models[0].base_url is "https://u:xxxxx@h/v1": a URL must not hold a password`:     {Models: []app.ModelConfig{{Name: "m", BaseURL: "https://u:hunter2@h/v1"}}},
		`models[0].base_url is not a URL`:                                                  {Models: []app.ModelConfig{{Name: "m", BaseURL: "localhost:8080"}}},
		`models[0].api_key_env is not a name: it is the name of an environment variable`:   {Models: []app.ModelConfig{{Name: "m", APIKeyEnv: "sk-proj-123"}}},
		`models[0].thinking is adaptive: only provider anthropic takes it`:                 {Models: []app.ModelConfig{{Name: "m", Thinking: "adaptive"}}},
		`models[0].thinking is "hard": allowed: adaptive, budget, off`:                     {Models: []app.ModelConfig{{Name: "m", Provider: "anthropic", Thinking: "hard"}}},
		`models[0].thinking_tokens is 7: thinking: budget needs 1024 at least`:             {Models: []app.ModelConfig{{Name: "m", Provider: "anthropic", Thinking: "budget", ThinkingTokens: 7}}},
		`models[0].thinking_tokens is 2000: it goes with thinking: budget only`:            {Models: []app.ModelConfig{{Name: "m", ThinkingTokens: 2000}}},
		`models[0].api_key_env is A: set it or api_key_file, not both`:                     {Models: []app.ModelConfig{{Name: "m", APIKeyEnv: "A", APIKeyFile: "f"}}},
		`models[0].headers[0].value is set: a secret must come from env or file`:           {Models: []app.ModelConfig{{Name: "m", Headers: []app.HeaderConfig{{Name: "X-Api-Key", Value: "s"}}}}},
		`agents[0].model is "n": models has no such entry`:                                 {Models: scripted, Agents: []app.AgentConfig{{Name: "a", Model: "n"}}},
		`agents[0].grant[0].source is "": it is required`:                                  {Agents: []app.AgentConfig{{Name: "a", Grant: []app.GrantConfig{{Tool: "t"}}}}},
		`sessions.lease_ttl is 1ms: it must be at least 1s`:                                {Sessions: app.SessionsConfig{LeaseTTL: time.Millisecond}},
	} {
		c.Getenv = env("HOME", "/home/op")
		_, err := c.Complete()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Complete() = %v, want an error with %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	_, err := app.Config{Getenv: env()}.Complete()
	if err == nil || !strings.Contains(err.Error(), "data_dir is not set") {
		t.Errorf("Complete() without a home = %v, want an error that names data_dir", err)
	}
}

func TestEveryFaultIsReported(t *testing.T) {
	_, err := app.Config{Listen: "x", Log: app.LogConfig{Level: "x"}, Getenv: env("HOME", "/home/op")}.Complete()
	if got := strings.Count(err.Error(), "\n") + 1; got != 2 {
		t.Errorf("Complete() reports %d faults, want 2: %v", got, err)
	}
}
