package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// allowLoopback lets peers on this machine be added.
func (w *workplace) allowLoopback() {
	w.t.Helper()
	data, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	write(w.t, w.dir, filepath.Base(w.config), string(data)+"a2a: {allow_private: [127.0.0.1]}\n")
}

func TestPeersAddMakesAPeerKnownUntilItIsRemoved(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "painter"})
	w := newWorkplace(t, "")
	w.allowLoopback()

	if got := w.ok("peers", "add", "painter", "--card-url", p.URL(), "--description", "Paints walls."); got != "peer painter is added: Paints walls.\n" {
		t.Errorf("peers add prints %q", got)
	}
	if got := w.ok("peers", "add", "painter", "--card-url", p.URL(), "--description", "Paints all."); got != "peer painter is kept: Paints all.\n" {
		t.Errorf("peers add of the same prints %q", got)
	}
	var in a2a.Info
	if err := json.Unmarshal([]byte(w.ok("peers", "add", "painter", "--card-url", p.URL(), "-o", "json")), &in); err != nil {
		t.Fatal(err)
	}
	if in.Name != "painter" || !in.Registered || !in.Reachable || in.Card != p.URL() {
		t.Errorf("peers add -o json prints %+v", in)
	}
	if got := w.ok("peers", "list"); !strings.Contains(got, "painter") {
		t.Errorf("peers list = %q, without the peer", got)
	}
	if got := w.ok("peers", "call", "painter", "a wall"); got != "echo: a wall\n" {
		t.Errorf("peers call prints %q", got)
	}
	if got := w.ok("__complete", "peers", "remove", ""); !strings.HasPrefix(got, "painter\n") {
		t.Errorf("completion offers %q", got)
	}
	if got := w.ok("peers", "remove", "painter"); got != "peer painter is removed\n" {
		t.Errorf("peers remove prints %q", got)
	}
	if got := w.ok("peers", "list"); !strings.HasPrefix(got, "no peers") {
		t.Errorf("peers list = %q, want none", got)
	}
	if code, _, stderr := w.run("peers", "remove", "painter"); code != exitUsage || !strings.Contains(stderr, `there is no agent named "painter"`) {
		t.Errorf("removed again: exit code %d, message %q", code, stderr)
	}
}

func TestPeersAreAddedAndRemovedBesideARunningServer(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "painter"})
	w := newWorkplace(t, "")
	w.allowLoopback()
	server := w.start(nil)
	knows := func(want bool) {
		t.Helper()
		until(t, func() bool {
			_, err := server.Peers.Lookup("painter")
			return (err == nil) == want
		})
	}
	w.ok("peers", "add", "painter", "--card-url", p.URL())
	knows(true)
	w.ok("peers", "remove", "painter")
	knows(false)
}

func TestPeersAddAndRemoveSayWhatIsInTheWay(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "painter"})
	other := a2atest.New(t, a2atest.Config{Name: "other"})
	w := newWorkplace(t, "  - {name: advisor, card: "+p.URL()+"}\n")
	if code, _, stderr := w.run("peers", "add", "painter", "--card-url", p.URL()); code != exitFailed || !strings.Contains(stderr, "its address is loopback") || !strings.Contains(stderr, "a2a.allow_private") {
		t.Errorf("a private address: exit code %d, message %q", code, stderr)
	}
	w.allowLoopback()
	w.ok("peers", "add", "painter", "--card-url", p.URL())
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no URL":            {[]string{"add", "x"}, exitUsage, "--card-url is required"},
		"no name":           {[]string{"add", "--card-url", p.URL()}, exitUsage, "NAME is missing"},
		"a bad name":        {[]string{"add", "a b", "--card-url", p.URL()}, exitUsage, "correct the name"},
		"a bad URL":         {[]string{"add", "x", "--card-url", "ftp://example.com"}, exitUsage, "correct the url"},
		"nobody there":      {[]string{"add", "x", "--card-url", "http://127.0.0.1:1"}, exitUnreachable, "connection refused"},
		"no card there":     {[]string{"add", "x", "--card-url", p.URL() + "/none"}, exitUnreachable, "404"},
		"listed":            {[]string{"add", "advisor", "--card-url", p.URL()}, exitFailed, "edit peers.yaml"},
		"another URL":       {[]string{"add", "painter", "--card-url", other.URL()}, exitFailed, "is registered for " + p.URL() + " already"},
		"removing a listed": {[]string{"remove", "advisor"}, exitFailed, "remove it from peers.yaml"},
		"removing nobody":   {[]string{"remove", "paintr"}, exitUsage, `did you mean "painter"?`},
	} {
		code, stdout, stderr := w.run(append([]string{"peers"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("%s: exit code %d, message %q, want %d and %q", name, code, stderr, tt.code, tt.want)
		}
	}

	write(t, w.dir, "memory.yaml", "store: {driver: memory}\n")
	code, _, stderr := orchestrator(t, nil, "--config", filepath.Join(w.dir, "memory.yaml"), "peers", "add", "x", "--card-url", p.URL())
	if code != exitUsage || !strings.Contains(stderr, "which keeps no peers") {
		t.Errorf("without a place to keep it: exit code %d, message %q", code, stderr)
	}
}

func TestPeersRemoveTellsOfCallsThatWantAReply(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "painter", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Wait(a2atest.NewGate())
	}})
	w := newWorkplace(t, "")
	w.allowLoopback()
	w.ok("peers", "add", "painter", "--card-url", p.URL())
	w.ok("ask", "--no-wait", "ask painter about walls")
	code, stdout, stderr := w.run("peers", "remove", "painter")
	if code != exitOK || stdout != "peer painter is removed\n" || !strings.Contains(stderr, "1 call to it still wants a reply") {
		t.Errorf("exit code %d, output %q, message %q", code, stdout, stderr)
	}
}
