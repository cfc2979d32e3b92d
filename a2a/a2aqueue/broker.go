package a2aqueue

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
)

// BrokerConfig says where a broker is and how long we wait for it.
type BrokerConfig struct {
	// URL is amqp://user:password@host:port/vhost, or amqps. The virtual host "/" is written "" or "%2f".
	URL string
	// TLS is used for an amqps URL; the server's name defaults to the URL's host. Nil checks the server against the
	// system's authorities.
	TLS *tls.Config
	// Name is what the broker's operators see the connections called. Defaults to "orchestrator".
	Name string
	// Logger is told of connections made and lost. Nil says nothing.
	Logger *slog.Logger
	// Registry takes the metrics; nil keeps them to ourselves. Of several brokers each needs one with a label of its own,
	// by prometheus.WrapRegistererWith.
	Registry prometheus.Registerer

	// PublishTimeout bounds a Publish whose context has no earlier end. Defaults to 10 seconds.
	PublishTimeout time.Duration
	// WriteTimeout bounds one write to the socket; the connection is closed when it is over. Defaults to 10 seconds.
	WriteTimeout time.Duration
	// DialTimeout bounds one attempt to connect, TLS and handshake included. Defaults to 10 seconds.
	DialTimeout time.Duration
	// Heartbeat is the time within which both sides say that they are there. A connection that says nothing for one and a
	// half times as long is given up. Whole seconds; the broker may ask for less. Defaults to 10 seconds.
	Heartbeat time.Duration
	// DrainTimeout bounds how long a Consume that ends waits for its handlers before it cancels them. Defaults to 10
	// seconds.
	DrainTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait between two attempts to connect, which doubles and is made random by half.
	// They default to 250 milliseconds and 30 seconds. What can't get better by itself, such as a wrong password, is tried
	// again after MaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// MaxMessage bounds the bytes of a body that is published. Defaults to 16 MiB.
	MaxMessage int
	// PublishChannels is how many channels publish side by side. Defaults to 2.
	PublishChannels int
	// MaxUnconfirmed bounds how many messages one of them has on the way. Defaults to 256.
	MaxUnconfirmed int
	// Dial makes the connection below TLS; nil dials TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

const (
	frameSize   = 128 << 10 // RabbitMQ's own bound
	maxHeaders  = 64 << 10  // all properties and headers stand in one frame
	shortString = 255       // of names, keys and properties
)

// Broker is the way to one virtual host of an AMQP broker. Its methods may be called from any goroutine.
type Broker struct {
	cfg     BrokerConfig
	metrics *metrics
	publish *link
	consume *link
	sends   chan *sending // to whichever channel is free

	start  sync.Once
	ctx    context.Context // the connections' lifetime
	cancel context.CancelFunc
	links  sync.WaitGroup

	consuming context.Context // until Close; ends every Consume
	endAll    context.CancelFunc

	mu        sync.Mutex
	closing   bool // no more Consume
	closed    bool // no more Publish and Do
	consumers int
	calls     int // Publish and Do under way
	fewer     chan struct{}
}

// NewBroker checks the configuration. It does no I/O: the first use connects, or Start.
func NewBroker(cfg BrokerConfig) (*Broker, error) {
	addr, err := parseURL(cfg.URL, cfg.TLS)
	if err != nil {
		return nil, err
	}
	cfg.Name = cmp.Or(cfg.Name, "orchestrator")
	cfg.Logger = cmp.Or(cfg.Logger, discard)
	cfg.PublishTimeout = cmp.Or(cfg.PublishTimeout, 10*time.Second)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 10*time.Second)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 10*time.Second)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 250*time.Millisecond)
	cfg.MaxBackoff = max(cmp.Or(cfg.MaxBackoff, 30*time.Second), cfg.MinBackoff)
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, 16<<20)
	cfg.PublishChannels = cmp.Or(cfg.PublishChannels, 2)
	cfg.MaxUnconfirmed = cmp.Or(cfg.MaxUnconfirmed, 256)
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"PublishTimeout", cfg.PublishTimeout}, {"WriteTimeout", cfg.WriteTimeout}, {"DialTimeout", cfg.DialTimeout},
		{"DrainTimeout", cfg.DrainTimeout}, {"MinBackoff", cfg.MinBackoff},
	} {
		if d.value <= 0 {
			return nil, fmt.Errorf("%s is %v; it must be above 0", d.name, d.value)
		}
	}
	switch {
	case cfg.Heartbeat < 2*time.Second || cfg.Heartbeat > 10*time.Minute || cfg.Heartbeat%time.Second != 0:
		return nil, fmt.Errorf("the Heartbeat is %v; it must be whole seconds from 2 to 600", cfg.Heartbeat)
	case cfg.MaxMessage < 1, cfg.PublishChannels < 1, cfg.MaxUnconfirmed < 1:
		return nil, errors.New("MaxMessage, PublishChannels and MaxUnconfirmed must be above 0")
	case len(cfg.Name) > shortString:
		return nil, fmt.Errorf("the Name may have %d bytes", shortString)
	}
	b := &Broker{cfg: cfg, metrics: newMetrics(), sends: make(chan *sending), fewer: make(chan struct{})}
	if cfg.Registry != nil {
		if err := b.metrics.register(cfg.Registry); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	b.publish = newLink("publish", &b.cfg, addr, b.metrics, b.servePublishing)
	b.consume = newLink("consume", &b.cfg, addr, b.metrics, nil)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.consuming, b.endAll = context.WithCancel(context.Background())
	return b, nil
}

// Start connects in the background, which goes on until Close. It may be called twice.
func (b *Broker) Start() {
	b.start.Do(func() {
		b.links.Go(func() { b.publish.run(b.ctx) })
		b.links.Go(func() { b.consume.run(b.ctx) })
	})
}

// Ready says whether both connections are up, without waiting and without connecting: nil, or an error that says since when
// one is not and why. A password, a virtual host or a permission that the broker refuses is among the reasons, as a
// *RefusedError; an alarm of the broker, during which it takes no messages, is ErrBlocked.
func (b *Broker) Ready() error {
	for _, l := range []*link{b.publish, b.consume} {
		s := l.status()
		switch {
		case s.ended:
			return ErrClosed
		case s.up == nil:
			return fmt.Errorf("%s for %v: %w", l.use, time.Since(s.since).Round(time.Second), s.down())
		case s.blocked != "":
			return fmt.Errorf("%w: %s", ErrBlocked, s.blocked)
		}
	}
	return nil
}

// Ping connects if need be, and returns nil when both connections are up, or why they are not once an attempt has failed.
// Like Ready it tells of refused credentials and of alarms.
func (b *Broker) Ping(ctx context.Context) error {
	done, err := b.begin()
	if err != nil {
		return err
	}
	defer done()
	for _, l := range []*link{b.publish, b.consume} {
		if _, err := l.wait(ctx, false); err != nil {
			return err
		}
	}
	return b.Ready()
}

// Do runs f with a channel of its own on the consuming connection, to declare, inspect, bind or delete queues; the channel
// is closed when f returns. An error of the broker comes back as *RefusedError. F must not keep the channel. It waits for a
// connection as Publish does; what f waits for is bounded by the heartbeats, not by ctx.
func (b *Broker) Do(ctx context.Context, f func(ctx context.Context, ch *amqp.Channel) error) error {
	done, err := b.begin()
	if err != nil {
		return err
	}
	defer done()
	waiting, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, fmt.Errorf("no connection within %v", b.cfg.PublishTimeout))
	defer cancel()
	c, err := b.consume.wait(waiting, false)
	if err != nil {
		return err
	}
	ch, err := c.amqp.Channel()
	if err != nil {
		return c.refused("open a channel", err)
	}
	defer ch.Close()
	if err := f(ctx, ch); err != nil {
		if _, ok := errors.AsType[*amqp.Error](err); ok || errors.Is(err, net.ErrClosed) {
			return c.refused("declare", err)
		}
		return err
	}
	return nil
}

// begin counts a call that Close waits for, and connects.
func (b *Broker) begin() (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	b.Start()
	b.calls++
	return func() { b.leave(&b.calls) }, nil
}

// beginConsume does so for a Consume.
func (b *Broker) beginConsume() (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, ErrClosed
	}
	b.Start()
	b.consumers++
	return func() { b.leave(&b.consumers) }, nil
}

func (b *Broker) leave(count *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*count--
	close(b.fewer)
	b.fewer = make(chan struct{})
}

// idle waits until a count is 0.
func (b *Broker) idle(ctx context.Context, count *int) error {
	for {
		b.mu.Lock()
		n, fewer := *count, b.fewer
		b.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-fewer:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close ends every Consume, waits for their handlers and for calls under way, and closes the connections; when ctx ends
// first, it closes them at once and says so. Afterwards every call returns ErrClosed. It may be called twice, and before
// Start.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	b.endAll()
	err := b.idle(ctx, &b.consumers) // they may still publish

	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err = errors.Join(err, b.idle(ctx, &b.calls))
	for _, l := range []*link{b.publish, b.consume} {
		if s := l.status(); s.up != nil && ctx.Err() != nil {
			s.up.cut(ErrClosed)
		}
		l.update(func() { l.ended = true })
	}
	b.cancel()
	b.links.Wait()
	if err != nil {
		return fmt.Errorf("close the connection to the broker: %w", err)
	}
	return nil
}
