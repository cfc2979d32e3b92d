package app_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orchestrator/a2a/a2ademo"
	"orchestrator/internal/app"
	"orchestrator/internal/brokertest"
	"orchestrator/internal/orchtest"
)

// behindQueue is the configuration of a product whose broker is at a URL, with the peers of a file.
func behindQueue(t *testing.T, broker, peers string) app.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"script.yaml": script, "peers.yaml": peers} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return app.Config{
		Dir: dir, DataDir: dir, Store: app.StoreConfig{Driver: app.DriverMemory},
		Models: []app.ModelConfig{{Name: "m", Provider: app.ProviderScripted, Script: "script.yaml"}},
		Queue:  app.QueueConfig{URLEnv: "BROKER", Deployment: "test"},
		Getenv: func(name string) string {
			return map[string]string{"BROKER": broker, "THEIRS": broker, "HOME": dir}[name]
		},
	}
}

func start(t *testing.T, cfg app.Config) *app.App {
	t.Helper()
	a, err := app.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		bound, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(bound); err != nil {
			t.Errorf("Stop() = %v", err)
		}
	})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func untilReady(t *testing.T, a *app.App) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		err := a.Ready(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not ready: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestASubagentAsksAPeerBehindAQueue(t *testing.T) {
	for name, peers := range map[string]string{
		"of our broker":           "peers: [{name: advisor, queue: a2a.advisor}]\n",
		"of a broker it names":    "peers: [{name: advisor, queue: a2a.advisor, broker_env: THEIRS}]\n",
		"of an interface in YAML": "peers: [{name: advisor, streaming: true, endpoints: [{binding: AMQP, url: \"URL\"}]}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := brokertest.Vhost(t)
			ctx, cancel := context.WithCancel(t.Context())
			url, done := make(chan string, 1), make(chan error, 1)
			go func() {
				done <- a2ademo.Serve(ctx, a2ademo.Config{
					Name: a2ademo.Advisor, Delay: 1, Broker: broker, Queue: "a2a.advisor", Ready: func(u string) { url <- u },
				})
			}()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			a := start(t, behindQueue(t, broker, strings.ReplaceAll(peers, "URL", <-url)))
			log := orchtest.Ask(t, a, "Look into the sea.")
			if got := orchtest.LastMessage(t, log); !strings.Contains(got, "The advisor says: ") || !strings.Contains(got, "Start with") {
				t.Errorf("last message = %q\n%s", got, orchtest.Dump(log))
			}
			untilReady(t, a)
		})
	}
}

func TestNotReadyBeforeTheBrokerWasThereOnce(t *testing.T) {
	broker := brokertest.Vhost(t)
	wrong := strings.Replace(broker, "guest:guest@", "guest:wrong@", 1)
	a := start(t, behindQueue(t, wrong, "peers: []\n"))
	if err := a.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "not connected to the broker amqp://") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("Ready() = %v, want that there is no broker, without its password", err)
	}
	untilReady(t, start(t, behindQueue(t, broker, "peers: []\n")))
}

func TestBrokerThatIsNotConfiguredRightIsAFaultAtTheStart(t *testing.T) {
	for want, change := range map[string]func(*app.Config){
		"the broker: set NOWHERE, which queue.url_env names":           func(c *app.Config) { c.Queue.URLEnv = "NOWHERE" },
		"queue.deployment is not set: a peer's broker needs it":        func(c *app.Config) { c.Queue = app.QueueConfig{} },
		"the broker amqp://127.0.0.1:5672: read the authorities: open": func(c *app.Config) { c.Queue.TLS.CAFile = "/nowhere.pem" },
	} {
		cfg := behindQueue(t, "amqp://me:secret@127.0.0.1/", "peers: [{name: p, queue: q, broker_env: THEIRS}]\n")
		change(&cfg)
		a, err := app.New(t.Context(), cfg, nil)
		if err == nil {
			t.Errorf("New() succeeds, want %q", want)
			if err := a.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("New() = %v, want %q and no password", err, want)
		}
	}
}
