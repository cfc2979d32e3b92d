package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/a2a/a2atest"
	"orchestrator/internal/brokertest"
	"orchestrator/session"
)

// queuedPlace is a workplace with the peer advisor behind a queue, who is away.
func queuedPlace(t *testing.T) (w *workplace, broker string) {
	t.Helper()
	broker = brokertest.Vhost(t)
	w = newWorkplace(t, "  - {name: advisor, queue: a2a.advisor, durable_queue: true}\n  - {name: nobody, queue: a2a.nobody}\n")
	write(t, w.dir, "broker", broker)
	data, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, w.dir, filepath.Base(w.config), string(data)+"queue: {url_file: broker, deployment: cli}\n")
	return w, broker
}

func connect(t *testing.T, url string) *a2aqueue.Broker {
	t.Helper()
	b, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		bound, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(bound); err != nil {
			t.Error(err)
		}
	})
	return b
}

// serveAdvisor serves the peer from its queue until the test ends or stop is called.
func serveAdvisor(t *testing.T, url string, cfg a2atest.Config) (p *a2atest.Peer, stop func()) {
	t.Helper()
	cfg.Name = "advisor"
	p = a2atest.NewQueued(t, cfg, "amqp:?queue=a2a.advisor", func() {})
	server, err := a2aqueue.NewServer(a2aqueue.ServerConfig{Broker: connect(t, url), Queue: "a2a.advisor", Handler: p.Handler(), Card: p.Cards(), VolatileTasks: true, DrainTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Errorf("serve the advisor: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return p, stop
}

func TestPeersBehindAQueueAreListedShownAndCalled(t *testing.T) {
	w, broker := queuedPlace(t)
	if got := w.ok("peers", "list"); !strings.Contains(got, "AMQP") || !strings.Contains(got, "what is sent waits in its queue") {
		t.Errorf("peers list of one that is away prints\n%s", got)
	}
	code, _, stderr := w.run("peers", "call", "nobody", "the tides")
	if code != exitUnreachable || !strings.Contains(stderr, `there is no queue "a2a.nobody" at the broker`) {
		t.Errorf("peers call of one without a queue: exit code %d, message %q", code, stderr)
	}
	serveAdvisor(t, broker, a2atest.Config{})
	if got := w.ok("peers", "call", "advisor", "the tides"); got != "echo: the tides\n" {
		t.Errorf("peers call prints %q", got)
	}
	got := w.ok("peers", "show", "advisor")
	for _, want := range []string{"advisor 1\n", "queue      a2a.advisor\n", "binding    AMQP\n", "skill      echo: "} {
		if !strings.Contains(got, want) {
			t.Errorf("peers show lacks %q:\n%s", want, got)
		}
	}
	if n := brokertest.QueueLength(t, broker, "a2a.replies.cli"); n != -1 {
		t.Errorf("peers call made the deployment's reply queue, which holds %d", n)
	}
}

// askUntil asks the advisor, and stops the process that does when something is so.
func (w *workplace) askUntil(is func(ctx context.Context) bool) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		bound, stop := context.WithTimeout(ctx, 30*time.Second)
		defer stop()
		if !is(bound) {
			w.t.Error("that was waited for in vain")
		}
	})
	var out, errs bytes.Buffer
	code := run(ctx, []string{"--config", w.config, "ask", "ask advisor about tides"}, []string{"HOME=" + w.dir}, &out, &errs)
	cancel()
	wg.Wait()
	if code != exitInterrupted {
		w.t.Fatalf("exit code %d, message %q; want to be interrupted", code, &errs)
	}
}

func TestAnAnswerWaitsInTheReplyQueueForTheNextRun(t *testing.T) {
	w, broker := queuedPlace(t)
	asked, gate := make(chan struct{}), a2atest.NewGate()
	p, _ := serveAdvisor(t, broker, a2atest.Config{Script: func(x *a2atest.Exchange) {
		close(asked)
		x.Wait(gate)
		x.State(a2atest.Completed, "high at noon")
	}})
	w.askUntil(func(ctx context.Context) bool {
		select {
		case <-asked:
			return true
		case <-ctx.Done():
			return false
		}
	})
	gate.Open()
	waitFor(t, "an answer in the reply queue", func() bool { return brokertest.QueueLength(t, broker, "a2a.replies.cli") == 1 })
	if got := w.ok("ask", "--session", string(w.sessions()[0].ID), "hello"); !strings.Contains(got, "The advisor says: high at noon") {
		t.Errorf("the next run prints %q, want the advisor's answer", got)
	}
	if n := len(p.Record()); n != 2 {
		t.Errorf("the advisor has %d entries, want one message received and answered", n)
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s was waited for in vain", what)
		}
	}
}

func TestDeadLettersAreShown(t *testing.T) {
	w, url := queuedPlace(t)
	b := connect(t, url)
	if err := b.DeclareQueue(t.Context(), "a2a.advisor"); err != nil {
		t.Fatal(err)
	}
	w.askUntil(func(taking context.Context) bool {
		ctx, cancel := context.WithCancel(taking)
		defer cancel()
		err := b.Consume(ctx, a2aqueue.Subscription{
			Name: "requests", Queue: "a2a.advisor", DeadLetterExchange: a2aqueue.DeadExchange, DeadLetterKey: a2aqueue.DeadQueue,
			Handle: func(_ context.Context, d *a2aqueue.Delivery) {
				if d.Type == "GetAgentCard" {
					if err := d.Ack(); err != nil {
						t.Errorf("Ack() = %v", err)
					}
					return
				}
				defer cancel()
				if err := d.DeadLetter("the agent can't read it"); err != nil {
					t.Errorf("DeadLetter() = %v", err)
				}
			},
		})
		return err == nil && taking.Err() == nil
	})
	var call callRow
	if err := json.Unmarshal([]byte(w.ok("calls", "list", "-o", "json")), &call); err != nil {
		t.Fatal(err)
	}
	if call.DeadLetter == nil || call.DeadLetter.Reason != "the agent can't read it" {
		t.Errorf("the call's dead letter is %+v", call.DeadLetter)
	}
	if got := w.ok("calls", "list"); !strings.Contains(got, "a dead letter: the agent can't read it") {
		t.Errorf("calls list prints\n%s", got)
	}
	for range 2 { // looking takes nothing away
		got := w.ok("calls", "dead")
		for _, want := range []string{string(call.ID), "the agent can't read it", "SendStreamingMessage", "a2a.advisor"} {
			if !strings.Contains(got, want) {
				t.Errorf("calls dead lacks %q:\n%s", want, got)
			}
		}
	}
}

func TestDemoOverAQueueTellsTheSameStory(t *testing.T) {
	broker := brokertest.Vhost(t)
	for _, args := range [][]string{{"--queue"}, {"--queue", "--crash"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			events := demoEvents(t, append(args, "--broker", broker)...)
			checkDemoStory(t, events)
			if got := lastRootMessage(t, events); !strings.Contains(got, "The archive has three earlier cases") {
				t.Errorf("the last message is %q", got)
			}
			if slices.Contains(args, "--crash") {
				find(t, events, 0, "turn that goes on after the crash", func(e session.Event) bool {
					return e.Type == session.EventTurnResumed && decode[session.TurnResumed](e).Attempt > 1
				})
			}
		})
	}
}

func TestDemoOverAQueueSaysWhatToDoWithoutABroker(t *testing.T) {
	code, _, stderr := orchestrator(t, nil, "demo", "--queue", "--broker", "amqp://127.0.0.1:1/")
	if code != exitUnreachable || !strings.Contains(stderr, "demo --queue needs a RabbitMQ: ") || !strings.Contains(stderr, "make services") {
		t.Errorf("exit code %d, message %q", code, stderr)
	}
}
