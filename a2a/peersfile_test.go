package a2a_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
)

func env(name string) (string, bool) {
	v, ok := map[string]string{"TOKEN": "s3cret", "BAD": "a\nb", "BROKER": "amqp://me:s3cret@mq.example.test/v"}[name]
	return v, ok
}

const goodPeers = `
# people we ask
peers:
  - name: advisor
    card: http://127.0.0.1:8081
    description: gives advice
  - name: old-one
    endpoints:
      - url: https://old.example.test/rpc
      - {url: "https://old.example.test/v1", binding: "HTTP+JSON", version: "0.3"}
    streaming: true
    timeout: 90s
    on_timeout: cancel
    resend: never
    on_input_required: refuse
    headers:
      Authorization: Bearer ${env:TOKEN}
      x-team: blue
  - {name: queued, queue: a2a.archive, durable_queue: true, broker_env: BROKER}
  - {name: at-a-queue, endpoints: [{url: "amqps://mq.example.test/team?queue=a2a.old", binding: AMQP}]}
`

func TestPeersFileIsRead(t *testing.T) {
	got, err := a2a.ParsePeers("peers.yaml", []byte(goodPeers), env)
	if err != nil {
		t.Fatal(err)
	}
	want := []a2a.Peer{
		{
			Name: "advisor", Card: "http://127.0.0.1:8081", Description: "gives advice", Endpoints: []a2a.Endpoint{},
			OnTimeout: "detach", Resend: "auto", OnInputRequired: "return",
		},
		{
			Name:      "old-one",
			Endpoints: []a2a.Endpoint{{URL: "https://old.example.test/rpc", Binding: "JSONRPC", Version: "1.0"}, {URL: "https://old.example.test/v1", Binding: "HTTP+JSON", Version: "0.3"}},
			Streaming: true, Timeout: 90 * time.Second, OnTimeout: "cancel", Resend: "never", OnInputRequired: "refuse",
			Headers: map[string]a2a.Secret{"Authorization": "Bearer s3cret", "X-Team": "blue"},
		},
		{
			Name: "queued", Queue: "a2a.archive", DurableQueue: true, Broker: "amqp://me:s3cret@mq.example.test/v", Endpoints: []a2a.Endpoint{},
			OnTimeout: "detach", Resend: "auto", OnInputRequired: "return",
		},
		{
			Name: "at-a-queue", Endpoints: []a2a.Endpoint{{URL: "amqps://mq.example.test/team?queue=a2a.old", Binding: "AMQP", Version: "1.0"}},
			OnTimeout: "detach", Resend: "auto", OnInputRequired: "return",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
	shown, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("peers", "peers", got, "token", got[1].Headers["Authorization"])
	for _, s := range []string{string(shown), fmt.Sprintf("%v %+v %#v %s", got, got, got, got[1].Headers["Authorization"]), log.String()} {
		if strings.Contains(s, "s3cret") {
			t.Errorf("a secret is shown: %s", s)
		}
	}
}

func TestPeersFileMistakesNameTheirLine(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"unknown key":         {"peers:\n  - name: a\n    card: http://a.test\n    on_timout: detach\n", `peers.yaml:4: unknown key "on_timout"; did you mean "on_timeout"?`},
		"unknown top key":     {"peer:\n  - name: a\n", `peers.yaml:1: unknown key "peer"; did you mean "peers"?`},
		"unknown in endpoint": {"peers:\n  - name: a\n    endpoints:\n      - url: http://a.test\n        bindng: JSONRPC\n", `peers.yaml:5: unknown key "bindng"; did you mean "binding"?`},
		"key twice":           {"peers:\n  - name: a\n    name: b\n", `peers.yaml:3: mapping key "name" already defined at [2:5]`},
		"not YAML":            {"peers:\n  - name: [a\n", `peers.yaml:2: `},
		"not a list":          {"peers: 3\n", `peers.yaml:1: `},
		"two documents":       {"peers: []\n---\npeers: []\n", `peers.yaml: the file holds more than one document`},
		"no name":             {"peers:\n  - card: http://a.test\n", `peers.yaml:2: a peer's name has up to 64 letters, digits, '.', '_' and '-', not ""`},
		"odd name":            {"peers:\n  - name: a b\n    card: http://a.test\n", `peers.yaml:2: a peer's name has up to 64 letters, digits, '.', '_' and '-', not "a b"`},
		"same name":           {"peers:\n  - name: a\n    card: http://a.test\n  - name: a\n    card: http://b.test\n", `peers.yaml:4: there are two peers named "a"`},
		"no address":          {"peers:\n  - name: a\n", `peers.yaml:2: a peer needs a card, endpoints or a queue`},
		"two addresses":       {"peers:\n  - name: a\n    card: http://a.test\n    endpoints: [{url: http://a.test}]\n", `peers.yaml:4: a peer has a card or endpoints, not both`},
		"no URL":              {"peers:\n  - name: a\n    card: a.test\n", `peers.yaml:3: a URL begins with http:// or https:// and a host, unlike "a.test"`},
		"bad endpoint":        {"peers:\n  - name: a\n    endpoints:\n      - url: ftp://x\n", `peers.yaml:4: a URL begins with http:// or https:// and a host, unlike "ftp://x"`},
		"password in a URL":   {"peers:\n  - name: a\n    card: http://me:pw@a.test\n", `peers.yaml:3: a URL holds no user or password (http://me:xxxxx@a.test): use headers with ${env:NAME}`},
		"bad duration":        {"peers:\n  - name: a\n    card: http://a.test\n    timeout: soon\n", `peers.yaml:4: a timeout is a duration like 90s or 2m, not "soon"`},
		"bad policy":          {"peers:\n  - name: a\n    card: http://a.test\n    resend: always\n", `peers.yaml:4: resend is auto or never, not "always"`},
		"bad on_timeout":      {"peers:\n  - name: a\n    card: http://a.test\n    on_timeout: wait\n", `peers.yaml:4: on_timeout is detach or cancel, not "wait"`},
		"bad on_input":        {"peers:\n  - name: a\n    card: http://a.test\n    on_input_required: ask\n", `peers.yaml:4: on_input_required is return or refuse, not "ask"`},
		"secret in the text":  {"peers:\n  - name: a\n    card: http://a.test\n    headers:\n      Authorization: Bearer abc\n", `the header Authorization may be a secret: write ${env:NAME} and set it in the environment`},
		"variable not set":    {"peers:\n  - name: a\n    card: http://a.test\n    headers: {Authorization: \"${env:NOPE}\"}\n", `the header Authorization needs the environment variable NOPE, which isn't set`},
		"odd reference":       {"peers:\n  - name: a\n    card: http://a.test\n    headers: {X-A: \"${TOKEN}\"}\n", `the header X-A has a reference that can't be read: write ${env:NAME}`},
		"odd header":          {"peers:\n  - name: a\n    card: http://a.test\n    headers: {\"a b\": \"c\"}\n", `"a b" can't be a header's name`},
		"queue and card":      {"peers:\n  - name: a\n    card: http://a.test\n    queue: a2a.a\n", `peers.yaml:4: a peer behind a queue has neither a card nor endpoints here: its card is asked for in the queue`},
		"no queue's name":     {"peers:\n  - name: a\n    queue: amq.gen-1\n", `peers.yaml:3: a queue's name has up to 255 bytes, no spaces, and doesn't begin with amq., unlike "amq.gen-1"`},
		"queue's URL":         {"peers:\n  - name: a\n    endpoints:\n      - url: http://a.test\n        binding: AMQP\n", `peers.yaml:4: the URL of the binding AMQP begins with amqp:// or amqps:// and a host, unlike "http://a.test"`},
		"URL without a queue": {"peers:\n  - name: a\n    endpoints:\n      - url: amqp://a.test/v\n        binding: AMQP\n", `peers.yaml:4: the URL of the binding AMQP names the queue, as in amqp://host/?queue=NAME, unlike "amqp://a.test/v"`},
		"password of a queue": {"peers:\n  - name: a\n    endpoints:\n      - url: amqp://me:s3cret@a.test/?queue=q\n        binding: AMQP\n", `peers.yaml:4: a URL holds no user or password (amqp://me:xxxxx@a.test/?queue=q): use broker_env`},
		"durable what":        {"peers:\n  - name: a\n    card: http://a.test\n    durable_queue: true\n", `peers.yaml:4: durable_queue goes with a queue, or with endpoints of the binding AMQP`},
		"no broker":           {"peers:\n  - name: a\n    queue: q\n    broker_env: NOPE\n", `peers.yaml:4: broker_env names the environment variable NOPE, which isn't set`},
		"odd broker":          {"peers:\n  - name: a\n    queue: q\n    broker_env: TOKEN\n", `peers.yaml:4: the URL of the broker is none such as amqp://user:password@host/vhost`},
		"line break":          {"peers:\n  - name: a\n    card: http://a.test\n    headers: {X-A: \"${env:BAD}\"}\n", `the value of the header X-A can't be sent`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a2a.ParsePeers("peers.yaml", []byte(tc.text), env)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "peers.yaml") {
				t.Errorf("the error is %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestPeersFileOfNothing(t *testing.T) {
	for _, text := range []string{"", "# nobody yet\n", "peers:\n", "peers: []\n"} {
		if got, err := a2a.ParsePeers("peers.yaml", []byte(text), env); err != nil || len(got) != 0 {
			t.Errorf("ParsePeers(%q) = %v, %v", text, got, err)
		}
	}
}

func TestPeersFileIsLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte("peers:\n  - name: a\n    crad: http://a.test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a2a.LoadPeers(path); err == nil || err.Error() != `mine.yaml:3: unknown key "crad"; did you mean "card"?` {
		t.Errorf("LoadPeers() = %v", err)
	}
	if _, err := a2a.LoadPeers(path + ".none"); err == nil || !os.IsNotExist(underlying(err)) {
		t.Errorf("LoadPeers() of a missing file = %v", err)
	}
}

func underlying(err error) error {
	type wrapper interface{ Unwrap() error }
	if w, ok := err.(wrapper); ok {
		return w.Unwrap()
	}
	return err
}

func FuzzParsePeers(f *testing.F) {
	f.Add(goodPeers)
	f.Add("peers:\n  - name: a\n    card: http://a.test\n    headers: {A: \"${env:TOKEN}${env:\"}\n")
	f.Add("peers: [{name: a, endpoints: [{url: http://a}]}]\n---\n")
	f.Add("{peers: *x}")
	f.Fuzz(func(t *testing.T, text string) {
		defer time.AfterFunc(10*time.Second, func() { panic(fmt.Sprintf("parsing %q doesn't end", text)) }).Stop()
		peers, err := a2a.ParsePeers("peers.yaml", []byte(text), env)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "peers.yaml") {
				t.Errorf("an error without the file: %v", err)
			}
			return
		}
		transport, err := a2ahttp.New(a2ahttp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: peers, Transport: transport}); err != nil {
			t.Errorf("peers that were read are refused: %v", err)
		}
	})
}

func TestCardsAreFetchedOnceAndAgainWhenOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := a2atest.NewNetwork()
		description := "first"
		p := n.Peer(t, a2atest.Config{Name: "p", Fault: func(r a2atest.Request) a2atest.Fault {
			return a2atest.Fault{Status: 200, MediaType: "application/json", Body: fmt.Sprintf(
				`{"name":"p","description":%q,"supportedInterfaces":[{"url":"http://p.test/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`, description)}
		}})
		transport, err := a2ahttp.New(a2ahttp.Config{DialContext: n.DialContext})
		if err != nil {
			t.Fatal(err)
		}
		defer transport.Close()
		r, err := a2a.NewRegistry(a2a.RegistryConfig{
			Transport: transport,
			Peers: []a2a.Peer{
				{Name: "p", Card: p.URL()},
				{Name: "inline", Endpoints: []a2a.Endpoint{{URL: "http://p.test/a2a"}}},
				{Name: "full", Card: p.URL() + "/.well-known/agent-card.json"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		info := func(name string) a2a.Info {
			t.Helper()
			in, err := r.Info(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			return in
		}
		info("p")
		description = "second"
		time.Sleep(3 * time.Hour)
		if got := info("p"); got.Description != "first" || !got.Reachable {
			t.Errorf("after three hours: %+v, want the old card", got)
		}
		time.Sleep(time.Hour)
		if got := info("p"); got.Description != "second" {
			t.Errorf("after four hours: %+v, want a new card", got)
		}
		n.Down("p", true)
		transport.Close()
		time.Sleep(5 * time.Hour)
		if got := info("p"); got.Description != "second" || !got.Reachable {
			t.Errorf("while it can't be fetched: %+v, want the old card", got)
		}
		if got := info("full"); got.Reachable || got.Problem == "" {
			t.Errorf("a peer that was never reached: %+v", got)
		}
		if got := info("inline"); !got.Reachable || len(got.Endpoints) != 1 {
			t.Errorf("a peer without a card: %+v", got)
		}
		if got := len(p.Requests(a2atest.MethodCard)); got != 2 {
			t.Errorf("the card was fetched %d times, want 2", got)
		}
	})
}
