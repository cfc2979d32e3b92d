package a2aqueue_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/a2a/a2atest"
	"orchestrator/a2a/bindingtest"
	"orchestrator/internal/brokertest"
	"orchestrator/tracker"
)

// onlyHTTP names the behaviours that are HTTP's, and why a queue has none of it.
var onlyHTTP = map[string]string{
	"answers with a web page":           "a message has a content type, and one that isn't JSON is a test of the wire's",
	"loses the answer and can't list":   "the broker vouches for who asks, so a peer can always list its tasks",
	"answers without a media type":      "the same",
	"answers a stream in JSON":          "a stream is messages with numbers; there is no second form of it",
	"redirects":                         "a queue has no redirects",
	"redirects for ever":                "a queue has no redirects",
	"redirects as only pages do":        "a queue has no redirects",
	"redirects to another host":         "a queue has no redirects",
	"has too much to do":                "there is no 429: the message waits in the queue",
	"isn't ready":                       "there is no 503: the message waits in the queue",
	"is behind a gateway that gives up": "there is no gateway between the queue and the peer",
	"has moved away":                    "there is no 404: a queue that doesn't exist is a peer that isn't there",
	"lets nobody in":                    "there is no 401: the broker lets in or not, before any call",
}

// askedOtherwise are the methods called where the broker does what a client over HTTP has to do.
var askedOtherwise = map[string][]string{
	"can't stream": {a2atest.MethodSend}, // the reply queue gets the answer, and nobody asks for the task
	"loses the answer, which is found by listing": {a2atest.MethodStream}, // the message comes again to the server, who finds the task
}

func TestPeerBehaviours(t *testing.T) {
	vhost := brokertest.Vhost(t)
	admin := open(t, a2aqueue.BrokerConfig{URL: vhost})
	bindingtest.Run(t, bindingtest.Binding{
		Interface: a2atest.AMQP10, Without: onlyHTTP, Methods: askedOtherwise, Absent: "there is no queue",
		Site: func(t *testing.T, maxBody int64) bindingtest.Site {
			return &place{t: t, url: vhost, admin: admin, id: rand.Text(), maxBody: int(maxBody), served: make(map[string]*served)}
		},
	})
}

// place is a site of peers behind queues of a virtual host that has other sites, too.
type place struct {
	t       *testing.T
	url     string
	admin   *a2aqueue.Broker
	id      string // in the names of the site's queues
	maxBody int
	wg      sync.WaitGroup

	mu     sync.Mutex
	served map[string]*served
}

// served is a peer and the process that serves it, as far as one can be killed in a process.
type served struct {
	p    *place
	peer *a2atest.Peer
	name string

	mu     sync.Mutex
	broker *a2aqueue.Broker // nil: nobody serves it
	stop   context.CancelFunc
	ended  chan struct{}
	over   bool
}

var _ bindingtest.Site = (*place)(nil)

func (p *place) queueOf(name string) string { return "a2a." + p.id + "." + name }

func (p *place) Peer(cfg a2atest.Config) (*a2atest.Peer, a2a.Peer) {
	p.t.Helper()
	at, err := a2aqueue.BrokerAddress(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	s := &served{p: p, name: cfg.Name}
	s.peer = a2atest.NewQueued(p.t, cfg, at.WithQueue(p.queueOf(cfg.Name)).String(), s.cut)
	p.mu.Lock()
	old := p.served[cfg.Name]
	p.served[cfg.Name] = s
	p.mu.Unlock()
	if old != nil {
		old.end()
	}
	p.do(func(ctx context.Context, ch *amqp.Channel) error {
		return a2aqueue.DeclareDurable(ctx, ch, p.queueOf(cfg.Name))
	})
	s.begin()
	p.t.Cleanup(func() {
		s.end()
		p.wg.Wait()
	})
	return s.peer, a2a.Peer{Name: cfg.Name, Queue: p.queueOf(cfg.Name)}
}

func (p *place) find(name string) *served {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served[name]
}

func (p *place) Crash(name string) { p.find(name).kill() }
func (p *place) Back(name string)  { p.find(name).begin() }

func (p *place) Vanish(name string) {
	p.find(name).kill()
	p.do(func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.queueOf(name), false, false, false)
		return err
	})
}

func (p *place) do(f func(context.Context, *amqp.Channel) error) {
	p.t.Helper()
	if err := p.admin.Do(bounded(p.t), f); err != nil {
		p.t.Fatal(err)
	}
}

// begin serves the peer by a connection of its own.
func (s *served) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.broker != nil {
		return
	}
	b, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: s.p.url, Name: "peer " + s.name, DrainTimeout: time.Millisecond, Logger: quiet(s.p.t)})
	if err != nil {
		s.p.t.Error(err)
		return
	}
	server, err := a2aqueue.NewServer(a2aqueue.ServerConfig{
		Broker: b, Queue: s.p.queueOf(s.name), Handler: s.peer.Recorder(), DrainTimeout: time.Millisecond, Logger: quiet(s.p.t),
		Card: s.peer.Cards(),
	})
	if err != nil {
		s.p.t.Error(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.broker, s.stop, s.ended = b, stop, ended
	s.p.wg.Go(func() {
		defer close(ended)
		if err := server.Run(ctx); err != nil && !errors.Is(err, a2aqueue.ErrClosed) {
			s.p.t.Errorf("serve %s: %v", s.name, err)
		}
	})
}

// kill closes the connections as the death of a process does: nothing that was begun is ended, nothing is acknowledged.
func (s *served) kill() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker == nil {
		return s.ended
	}
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.broker.Close(dead) // it says that it didn't wait
	s.stop()
	s.broker = nil
	return s.ended
}

// cut kills the peer's process and begins another one.
func (s *served) cut() {
	ended := s.kill()
	s.p.wg.Go(func() {
		<-ended
		s.begin()
	})
}

func (s *served) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if ended := s.kill(); ended != nil {
		<-ended
	}
}

func (p *place) Begin() bindingtest.Life {
	p.t.Helper()
	ok := func(err error) {
		p.t.Helper()
		if err != nil {
			p.t.Fatal(err)
		}
	}
	replyQueue := "a2a.replies." + p.id
	web, err := a2ahttp.New(a2ahttp.Config{})
	ok(err)
	b, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: p.url, Logger: quiet(p.t)})
	ok(err)
	transport, err := a2aqueue.NewTransport(a2aqueue.TransportConfig{
		Own: a2aqueue.Connection{Broker: b, URL: p.url}, ReplyTo: replyQueue, MaxBody: p.maxBody,
		RequestTimeout: 3 * time.Second, KeepAlive: time.Second,
	})
	ok(err)
	ctx, stop := context.WithCancel(context.Background())
	var taking sync.WaitGroup
	return bindingtest.Life{
		HTTP: web, Queue: transport, Limits: a2a.Limits{QueueWait: 3 * time.Second},
		Serve: func(relay *a2a.Relay) {
			replies, err := a2aqueue.NewReplies(a2aqueue.RepliesConfig{
				Broker: b, Queue: replyQueue, MaxBody: p.maxBody, Logger: quiet(p.t),
				Handle: func(ctx context.Context, r a2aqueue.Reply) (a2aqueue.Fate, error) { return take(ctx, relay, r) },
			})
			ok(err)
			taking.Go(func() {
				if err := replies.Run(ctx); err != nil && !errors.Is(err, a2aqueue.ErrClosed) {
					p.t.Errorf("take replies: %v", err)
				}
			})
		},
		End: func() {
			stop()
			taking.Wait()
			transport.Close()
			web.Close()
			bound, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := b.Close(bound); err != nil {
				p.t.Errorf("close the broker: %v", err)
			}
		},
	}
}

// take is what the product does with a reply.
func take(ctx context.Context, relay *a2a.Relay, r a2aqueue.Reply) (a2aqueue.Fate, error) {
	fate, err := relay.Reply(ctx, a2a.Arrival{MessageID: r.MessageID, Result: r.Result, Err: r.Err})
	switch {
	case errors.Is(err, a2a.ErrUnknownCall):
		return a2aqueue.FateUnknown, nil
	case err != nil:
		return "", err
	case fate == tracker.Duplicate:
		return a2aqueue.FateKnown, nil
	}
	return a2aqueue.FateTaken, nil
}

func quiet(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}
