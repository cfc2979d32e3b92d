package a2aqueue_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

// patience bounds what must happen; nothing waits for it that goes as it should.
const patience = 30 * time.Second

// open starts a broker's client that is closed when the test is over.
func open(t *testing.T, cfg a2aqueue.BrokerConfig) *a2aqueue.Broker {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = brokertest.Vhost(t)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = 10 * time.Millisecond
	}
	b, err := a2aqueue.NewBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return b
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the test waited in vain"))
	t.Cleanup(cancel)
	return ctx
}

// declare makes a durable queue and returns its name.
func declare(t *testing.T, b *a2aqueue.Broker, name string, args amqp.Table) string {
	t.Helper()
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	}); err != nil {
		t.Fatalf("declare %s: %v", name, err)
	}
	return name
}

func length(t *testing.T, b *a2aqueue.Broker, queue string) int {
	t.Helper()
	n := -1
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	}); err != nil {
		t.Fatalf("look at %s: %v", queue, err)
	}
	return n
}

func text(queue, body string) a2aqueue.Publication {
	return a2aqueue.Publication{Key: queue, Publishing: amqp.Publishing{Body: []byte(body), MessageId: body, DeliveryMode: amqp.Persistent}}
}

// warm publishes what no queue takes, so that the channel is open.
func warm(t *testing.T, b *a2aqueue.Broker) {
	t.Helper()
	if err := b.Publish(bounded(t), a2aqueue.Publication{Key: "nobody", Optional: true}); err != nil {
		t.Fatal(err)
	}
}

// received collects what a consumer is given.
type received chan *a2aqueue.Delivery

func (r received) next(t *testing.T) *a2aqueue.Delivery {
	t.Helper()
	select {
	case d := <-r:
		return d
	case <-time.After(patience):
		t.Fatal("nothing was delivered")
		return nil
	}
}

// subscribe consumes a queue until the test is over, and returns when it does.
func subscribe(t *testing.T, b *a2aqueue.Broker, s a2aqueue.Subscription) received {
	t.Helper()
	in := make(received, 1000)
	if s.Handle == nil {
		s.Handle = func(_ context.Context, d *a2aqueue.Delivery) { in <- d }
	}
	up := make(chan string, 1000)
	if s.Up == nil {
		s.Up = func(queue string) { up <- queue }
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Consume(ctx, s) }() // received below
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Consume() = %v", err)
		}
	})
	select {
	case <-up:
	case <-time.After(patience):
		t.Fatal("the queue is not being consumed")
	}
	return in
}

func counted(t *testing.T, reg *prometheus.Registry, name, label, value string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == value {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
			if label == "" {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s{%s=%q}", name, label, value)
	return 0
}

func TestBrokerURLsThatCantBeUsedAreRefusedWithoutQuotingThem(t *testing.T) {
	for _, tt := range []struct{ name, url, want string }{
		{"no URL", "", "must begin with amqp"},
		{"of the web", "https://u:secret@h/", "must begin with amqp"},
		{"no host", "amqp:///v", "names no host"},
		{"a password with a slash", "amqp://u:sec/ret@h/", "can't be read"},
		{"a port that is none", "amqp://u:secret@h:99999/", "port 99999"},
		{"a fragment", "amqp://u:secret@h/v#x", "after #"},
		{"a parameter of ours", "amqp://u:secret@h/v?queue=q", `"queue"`},
		{"another mechanism", "amqp://u:secret@h/v?auth_mechanism=magic", `"magic"`},
		{"a long virtual host", "amqp://u:secret@h/" + strings.Repeat("v", 256), "255 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: tt.url})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("NewBroker() = %v, want something with %q", err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec/ret")) {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestBrokerConfigIsCheckedByName(t *testing.T) {
	for want, cfg := range map[string]a2aqueue.BrokerConfig{
		"PublishTimeout": {PublishTimeout: -1},
		"Heartbeat":      {Heartbeat: time.Millisecond},
		"MaxMessage":     {MaxMessage: -1},
		"Name":           {Name: strings.Repeat("n", 256)},
	} {
		cfg.URL = "amqp://h/"
		if _, err := a2aqueue.NewBroker(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewBroker() = %v, want something with %q", err, want)
		}
	}
}

func TestPingSaysThatTheBrokerIsThere(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	if err := b.Ready(); !errors.Is(err, a2aqueue.ErrNotConnected) {
		t.Errorf("Ready() before any use = %v, want ErrNotConnected", err)
	}
	if err := b.Ping(bounded(t)); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	if err := b.Ready(); err != nil {
		t.Errorf("Ready() = %v", err)
	}
}

func TestWhatTheBrokerRefusesAtLoginIsNamed(t *testing.T) {
	vhost := brokertest.Vhost(t)
	for _, tt := range []struct {
		name   string
		change func(*url.URL)
		want   error
	}{
		{"a wrong password", func(u *url.URL) { u.User = url.UserPassword("guest", "secret") }, a2aqueue.ErrCredentials},
		{"a missing virtual host", func(u *url.URL) { u.Path = "/nowhere" }, a2aqueue.ErrVhost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(vhost)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(u)
			var log bytes.Buffer
			var mu sync.Mutex
			b := open(t, a2aqueue.BrokerConfig{URL: u.String(), Logger: slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu}, nil))})
			err = b.Ping(bounded(t))
			refused, ok := errors.AsType[*a2aqueue.RefusedError](err)
			if !ok || !errors.Is(err, tt.want) || !errors.Is(err, a2aqueue.ErrNotConnected) {
				t.Fatalf("Ping() = %v, want a RefusedError for %v", err, tt.want)
			}
			t.Log(refused)
			if err := b.Publish(bounded(t), text("q", "x")); !errors.Is(err, tt.want) || !errors.Is(err, a2aqueue.ErrNotConnected) {
				t.Errorf("Publish() = %v, want ErrNotConnected for %v", err, tt.want)
			}
			if err := b.Ready(); !errors.Is(err, tt.want) {
				t.Errorf("Ready() = %v, want %v", err, tt.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(log.String()+err.Error(), "secret") {
				t.Error("the password is told")
			}
		})
	}
}

type locked struct {
	w  *bytes.Buffer
	mu *sync.Mutex
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestNothingListeningIsAnErrorAtOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	b := open(t, a2aqueue.BrokerConfig{URL: "amqp://guest:guest@" + ln.Addr().String() + "/", PublishTimeout: time.Hour})
	if err := b.Publish(bounded(t), text("q", "x")); !errors.Is(err, a2aqueue.ErrNotConnected) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Publish() = %v, want ErrNotConnected with the reason", err)
	}
}

func TestAServerThatNeverSpeaksEndsTheAttempt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // nobody accepts; the kernel does
	b := open(t, a2aqueue.BrokerConfig{URL: "amqp://guest:guest@" + ln.Addr().String() + "/", DialTimeout: 50 * time.Millisecond})
	if err := b.Ping(bounded(t)); !errors.Is(err, a2aqueue.ErrNotConnected) || !strings.Contains(err.Error(), "didn't answer within 50ms") {
		t.Errorf("Ping() = %v, want one that names the bound", err)
	}
}

func TestAfterCloseEverythingSaysSo(t *testing.T) {
	for _, started := range []bool{false, true} {
		b := open(t, a2aqueue.BrokerConfig{})
		if started {
			if err := b.Ping(bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := b.Close(bounded(t)); err != nil {
				t.Errorf("Close() = %v", err)
			}
		}
		for what, err := range map[string]error{
			"Publish": b.Publish(bounded(t), text("q", "x")),
			"Ping":    b.Ping(bounded(t)),
			"Ready":   b.Ready(),
			"Do":      b.Do(bounded(t), func(context.Context, *amqp.Channel) error { return nil }),
			"Consume": b.Consume(bounded(t), a2aqueue.Subscription{Queue: "q", Handle: func(context.Context, *a2aqueue.Delivery) {}}),
		} {
			if !errors.Is(err, a2aqueue.ErrClosed) {
				t.Errorf("%s() = %v, want ErrClosed (started: %v)", what, err, started)
			}
		}
	}
}
