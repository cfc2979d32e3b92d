package a2aqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/a2a"
)

// Connection is a broker and how it is used.
type Connection struct {
	Broker *Broker
	// URL is the broker's, which may hold credentials.
	URL string
	// Aliases are further addresses of the same virtual host that cards may name, as amqp://host:port/vhost.
	Aliases []string
}

// TransportConfig configures a [Transport].
type TransportConfig struct {
	// Own is the product's own broker. Without one only peers that name theirs can be asked.
	Own Connection
	// Others are the brokers of peers that name theirs, by its URL as a2a.Peer.Broker has it.
	Others map[a2a.Secret]Connection
	// ReplyTo is the deployment's reply queue, on every broker; see [Replies]. Empty: answers come to the process alone.
	ReplyTo string
	// MaxBody, RequestTimeout and KeepAlive are those of a [FactoryConfig].
	MaxBody        int
	RequestTimeout time.Duration
	KeepAlive      time.Duration
	// Registry takes the metrics; nil keeps them to ourselves.
	Registry prometheus.Registerer
}

// Transport is an [a2a.Transport] over queues. Whoever made it closes it, before its brokers.
type Transport struct {
	own    *Factory // nil: there is none
	others map[a2a.Secret]*Factory
}

var _ a2a.Transport = (*Transport)(nil)

// NewTransport returns a Transport. It does no I/O.
func NewTransport(cfg TransportConfig) (*Transport, error) {
	metrics := newClientMetrics(cfg.Registry)
	factory := func(c Connection) (*Factory, error) {
		return newFactory(FactoryConfig{
			Broker: c.Broker, URL: c.URL, Aliases: c.Aliases, ReplyTo: cfg.ReplyTo,
			MaxBody: cfg.MaxBody, RequestTimeout: cfg.RequestTimeout, KeepAlive: cfg.KeepAlive,
		}, metrics)
	}
	t := &Transport{others: make(map[a2a.Secret]*Factory)}
	var err error
	if cfg.Own.Broker != nil {
		if t.own, err = factory(cfg.Own); err != nil {
			return nil, err
		}
	}
	for name, c := range cfg.Others {
		if t.others[name], err = factory(c); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Close ends what is under way, with ErrClosed. It may be called twice.
func (t *Transport) Close() {
	if t.own != nil {
		t.own.Close()
	}
	for _, f := range t.others {
		f.Close()
	}
}

// Binding implements [a2a.Transport].
func (t *Transport) Binding() string { return a2a.BindingAMQP }

func (t *Transport) factory(p a2a.Peer) (*Factory, error) {
	f := t.own
	if p.Broker != "" {
		f = t.others[p.Broker]
	}
	if f == nil {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("%s is behind a queue of a broker that isn't configured", p.Name)}
	}
	return f, nil
}

// Card implements [a2a.Transport]: it asks the agent behind the peer's queue. It waits for as long as ctx lasts, no longer than
// RequestTimeout.
func (t *Transport) Card(ctx context.Context, p a2a.Peer) (*protocol.AgentCard, error) {
	f, err := t.factory(p)
	if err != nil {
		return nil, err
	}
	card, err := t.client(f, p, p.Queue).GetAgentCard(ctx, nil)
	switch {
	case errors.Is(err, a2a.ErrUnreadable):
		return nil, &a2a.CardError{Reason: fmt.Sprintf("what queue %s answers is no agent card: %v", p.Queue, err)}
	case err != nil:
		return nil, fmt.Errorf("ask for the card of %s: %w", p.Name, err)
	case card.Name == "" && len(card.SupportedInterfaces) == 0 && len(card.Skills) == 0:
		return nil, &a2a.CardError{Reason: fmt.Sprintf("what queue %s answers is no agent card: it has no name", p.Queue)}
	}
	return card, nil
}

// Connect implements [a2a.Transport].
func (t *Transport) Connect(ctx context.Context, p a2a.Peer, card *protocol.AgentCard) (a2a.Client, error) {
	f, err := t.factory(p)
	if err != nil {
		return nil, err
	}
	var unfit error // why an interface can't be used
	c, err := a2aclient.NewFactory(a2aclient.WithDefaultsDisabled(), a2aclient.WithTransport(Binding, a2aclient.TransportFactoryFn(
		func(_ context.Context, _ *protocol.AgentCard, iface *protocol.AgentInterface) (a2aclient.Transport, error) {
			queue, err := f.queueOf(iface)
			if err != nil {
				unfit = err
				return nil, err
			}
			return t.client(f, p, queue), nil
		}))).CreateFromCard(ctx, card)
	switch {
	case err == nil:
		return c, nil
	case unfit != nil:
		return nil, &a2a.CardError{Reason: fmt.Sprintf("%s can't be asked through its queue: %v", p.Name, unfit)}
	}
	return nil, &a2a.CardError{Reason: fmt.Sprintf("%s offers no interface of the binding %s in version %s", p.Name, Binding, protocol.Version)}
}

func (t *Transport) client(f *Factory, p a2a.Peer, queue string) *peerClient {
	c := f.Client(queue)
	if p.DurableQueue {
		c = c.Durable()
	}
	pc := &peerClient{Client: c}
	if len(p.Headers) > 0 {
		pc.headers = make(a2aclient.ServiceParams, len(p.Headers))
		for name, value := range p.Headers {
			pc.headers[name] = []string{string(value)}
		}
	}
	return pc
}

// peerClient is a client whose errors are those of an [a2a.Client], and which sends what the peer knows us by.
type peerClient struct {
	*Client
	headers a2aclient.ServiceParams
}

func (c *peerClient) with(service a2aclient.ServiceParams) a2aclient.ServiceParams {
	if len(c.headers) == 0 {
		return service
	}
	all := maps.Clone(c.headers)
	maps.Copy(all, service)
	return all
}

// err returns an error as an [a2a.Client] has it. sent says that it is about a message.
func (c *peerClient) err(err error, sent bool) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*ReturnedError](err); ok {
		return &a2a.UnroutableError{Queue: c.queue, Err: r}
	}
	if sent && (errors.Is(err, ErrLost) || errors.Is(err, ErrGap) || errors.Is(err, ErrSlow) || errors.Is(err, ErrSilent)) {
		return &a2a.QueuedError{Err: err}
	}
	return err
}

func (c *peerClient) events(events iter.Seq2[protocol.Event, error], sent bool) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		for ev, err := range events {
			if !yield(ev, c.err(err, sent)) {
				return
			}
		}
	}
}

// SendMessage implements a2aclient.Transport.
func (c *peerClient) SendMessage(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	res, err := c.Client.SendMessage(ctx, c.with(service), req)
	return res, c.err(err, true)
}

// SendStreamingMessage implements a2aclient.Transport.
func (c *peerClient) SendStreamingMessage(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return c.events(c.Client.SendStreamingMessage(ctx, c.with(service), req), true)
}

// SubscribeToTask implements a2aclient.Transport.
func (c *peerClient) SubscribeToTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return c.events(c.Client.SubscribeToTask(ctx, c.with(service), req), false)
}

// GetTask implements a2aclient.Transport.
func (c *peerClient) GetTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.GetTaskRequest) (*protocol.Task, error) {
	t, err := c.Client.GetTask(ctx, c.with(service), req)
	return t, c.err(err, false)
}

// ListTasks implements a2aclient.Transport.
func (c *peerClient) ListTasks(ctx context.Context, service a2aclient.ServiceParams, req *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	l, err := c.Client.ListTasks(ctx, c.with(service), req)
	return l, c.err(err, false)
}

// CancelTask implements a2aclient.Transport.
func (c *peerClient) CancelTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.CancelTaskRequest) (*protocol.Task, error) {
	t, err := c.Client.CancelTask(ctx, c.with(service), req)
	return t, c.err(err, false)
}

// GetAgentCard asks for the agent's card.
func (c *peerClient) GetAgentCard(ctx context.Context, service a2aclient.ServiceParams) (*protocol.AgentCard, error) {
	card, err := c.Client.GetAgentCard(ctx, c.with(service))
	return card, c.err(err, false)
}
