package a2a_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// admin is a registry and its tools, where agents on loopback may be registered unless allow says otherwise.
type admin struct {
	t        *testing.T
	registry *a2a.Registry
	relay    *a2a.Relay
}

func newAdmin(t *testing.T, file string, listed []a2a.Peer, allow ...string) *admin {
	t.Helper()
	list, err := a2a.ParseAllowed(allow)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := a2ahttp.New(a2ahttp.Config{Allowed: list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.Close)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	registry, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: listed, RegisteredFile: file, Transport: transport, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	store := session.NewMemory()
	calls, err := tracker.New(tracker.Config{Store: store, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := a2a.New(a2a.Config{Tracker: calls, Store: store, Registry: registry, Self: a2a.Identity{Name: "us", Card: "https://us.example"}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	return &admin{t: t, registry: registry, relay: relay}
}

func (a *admin) run(name string, args map[string]any) tool.Result {
	a.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, tl := range a.relay.AdminTools() {
		if tl.Spec().Name == name {
			res, err := tl.Run(a.t.Context(), &tool.Call{Name: name, Args: raw, Turn: &session.Turn{Scope: session.Scope{Root: "s_1", Agent: "s_1"}}})
			if err != nil {
				a.t.Fatal(err)
			}
			return res
		}
	}
	a.t.Fatalf("there is no tool %s", name)
	return tool.Result{}
}

func (a *admin) want(res tool.Result, isError bool, text string) {
	a.t.Helper()
	if res.IsError != isError || !strings.Contains(res.Content, text) {
		a.t.Errorf("the result is %q (error %v), want %q (error %v)", res.Content, res.IsError, text, isError)
	}
}

func (a *admin) names() string {
	var names []string
	for _, p := range a.registry.Peers() {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func register(name, url string) map[string]any { return map[string]any{"agent_name": name, "url": url} }

func named(name string) map[string]any { return map[string]any{"agent_name": name} }

func TestARegisteredAgentIsKnownAfterARestartUntilItIsUnregistered(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p"})
	file := filepath.Join(t.TempDir(), "data", "peers.registered.json")
	first := newAdmin(t, file, nil, "127.0.0.1")
	first.want(first.run(a2a.RegisterAgent, register("helper", p.URL())), false, "Agent 'helper' is registered")
	if in, err := first.registry.Info(t.Context(), "helper"); err != nil || !in.Registered || !in.Reachable {
		t.Errorf("Info() = %+v, %v", in, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}

	second := newAdmin(t, file, nil, "127.0.0.1")
	if got := second.names(); got != "helper" {
		t.Errorf("after a restart %q are known", got)
	}
	second.want(second.run(a2a.RefreshAgentCard, named("helper")), false, "The card of agent 'helper' is fresh")
	second.want(second.run(a2a.UnregisterAgent, named("helper")), false, "no longer known")
	second.want(second.run(a2a.UnregisterAgent, named("helper")), true, `there is no agent named "helper"`)
	if got := newAdmin(t, file, nil).names(); got != "" {
		t.Errorf("after it was unregistered %q are known", got)
	}
}

func TestAnAgentThatAnotherProcessRegistersIsKnownSoon(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p"})
	file := filepath.Join(t.TempDir(), "peers.registered.json")
	server, command := newAdmin(t, file, nil, "127.0.0.1"), newAdmin(t, file, nil, "127.0.0.1")
	if _, err := command.registry.Add(t.Context(), a2a.Registration{Name: "helper", URL: p.URL()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for server.names() != "helper" {
		select {
		case <-ctx.Done():
			t.Fatal("the other process never knows the agent")
		case <-time.After(50 * time.Millisecond):
		}
	}
	// Both write, and neither undoes what the other wrote.
	for i, a := range []*admin{server, command} {
		if _, err := a.registry.Add(t.Context(), a2a.Registration{Name: fmt.Sprintf("more-%d", i), URL: p.URL()}); err != nil {
			t.Fatal(err)
		}
	}
	if got := newAdmin(t, file, nil).names(); got != "helper more-0 more-1" {
		t.Errorf("%q are known", got)
	}
}

func TestWhatTheOperatorListsIsTheOperatorsToChange(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p"})
	a := newAdmin(t, filepath.Join(t.TempDir(), "r.json"), []a2a.Peer{{Name: "listed", Card: p.URL()}}, "127.0.0.1")
	a.want(a.run(a2a.RegisterAgent, register("listed", p.URL())), true, "the agent is listed in peers.yaml")
	a.want(a.run(a2a.UnregisterAgent, named("listed")), true, "the agent is listed in peers.yaml")
	if err := a.registry.Remove(t.Context(), "listed"); !errors.Is(err, a2a.ErrListed) {
		t.Errorf("Remove() = %v", err)
	}
	a.want(a.run(a2a.RefreshAgentCard, named("listed")), false, "is fresh")
	a.want(a.run(a2a.RefreshAgentCard, named("lised")), true, `did you mean "listed"?`)
	a.want(a.run(a2a.RegisterAgent, register("us", p.URL())), true, "is this agent itself")
	a.want(a.run(a2a.RegisterAgent, register("other", "https://us.example/")), true, "is this agent itself")
	if got := a.names(); got != "listed" {
		t.Errorf("%q are known", got)
	}
}

func TestAnAgentThatCannotBeAskedIsNotRegistered(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p"})
	other := a2atest.New(t, a2atest.Config{Name: "other"})
	odd := a2atest.New(t, a2atest.Config{Name: "odd", Card: func(c *protocol.AgentCard) {
		c.Capabilities.Extensions = []protocol.AgentExtension{{URI: "urn:payment", Required: true}}
	}})
	a := newAdmin(t, "", nil, "127.0.0.1")
	a.want(a.run(a2a.RegisterAgent, register("no name", p.URL())), true, "a peer's name has up to 64 letters")
	a.want(a.run(a2a.RegisterAgent, register("p", "ftp://p")), true, "a URL begins with http:// or https://")
	a.want(a.run(a2a.RegisterAgent, register("p", "https://me:secret@p.example")), true, "a URL holds no user or password")
	a.want(a.run(a2a.RegisterAgent, register("p", p.URL()+"/nothing")), true, "404")
	a.want(a.run(a2a.RegisterAgent, register("odd", odd.URL())), true, `odd requires the extension "urn:payment"`)
	if got := a.names(); got != "" {
		t.Errorf("%q are known", got)
	}
	a.want(a.run(a2a.RegisterAgent, register("p", p.URL())), false, "is registered")
	a.want(a.run(a2a.RegisterAgent, register("p", p.URL()+"/")), false, "is registered") // the same again
	a.want(a.run(a2a.RegisterAgent, register("p", other.URL())), true, "unregister it first")
	if peer, err := a.registry.Lookup("p"); err != nil || peer.Card != p.URL()+"/" {
		t.Errorf("the peer is %v, %v", peer, err)
	}
}

func TestAnAgentAtAPrivateAddressIsNotRegistered(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p"})
	a := newAdmin(t, "", nil)
	a.want(a.run(a2a.RegisterAgent, register("p", p.URL())), true, "127.0.0.1 is refused: its address is loopback; only an operator can allow it, in a2a.allow_private")
	for _, url := range []string{"http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/", "http://[fd00:ec2::254]/", "http://[64:ff9b::a9fe:a9fe]/"} {
		a.want(a.run(a2a.RegisterAgent, register("p", url)), true, "is refused: its address is")
	}
	inside := a2atest.New(t, a2atest.Config{Name: "inside", Card: func(c *protocol.AgentCard) { c.SupportedInterfaces[0].URL = "http://[::1]:9/a2a" }})
	near := newAdmin(t, "", nil, "127.0.0.1")
	near.want(near.run(a2a.RegisterAgent, register("inside", inside.URL())), true, "::1 is refused: its address is loopback")
}

func TestARegisteredFileThatCannotBeReadIsAnErrorAtTheStartAndKeptFromLater(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	for text, want := range map[string]string{
		"{":                         "unexpected EOF",
		`{"version": 2}`:            "version 2",
		`{"version": 1, "more": 1}`: "unknown field",
		`{"version": 1, "peers": [{"name": "x", "url": "file:///etc"}]}`:                                  "http",
		`{"version": 1, "peers": [{"name": "x", "url": "https://x"}, {"name": "x", "url": "https://y"}]}`: "two agents",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		transport, err := a2ahttp.New(a2ahttp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a2a.NewRegistry(a2a.RegistryConfig{RegisteredFile: file, Transport: transport}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s gives %v, want %q", text, err, want)
		}
	}
}
