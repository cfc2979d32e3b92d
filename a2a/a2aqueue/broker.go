package a2aqueue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	// Registry takes the metrics; nil keeps them to ourselves.
	Registry prometheus.Registerer

	// PublishTimeout bounds a Publish whose context has no earlier end. Defaults to 10 seconds.
	PublishTimeout time.Duration
	// WriteTimeout bounds one write to the socket; the connection is closed when it is over. Defaults to 10 seconds.
	WriteTimeout time.Duration
	// DialTimeout bounds one attempt to connect, TLS and handshake included. Defaults to 10 seconds.
	DialTimeout time.Duration
	// Heartbeat is how often both sides say that they are there; after three that didn't come the connection is given up.
	// Defaults to 5 seconds.
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

// Broker is the way to one virtual host of an AMQP broker. Its methods may be called from any goroutine.
type Broker struct {
	cfg BrokerConfig
}

// NewBroker checks the configuration. It does no I/O: the first use connects, or Start.
func NewBroker(cfg BrokerConfig) (*Broker, error) {
	return nil, errors.ErrUnsupported
}

// Start connects in the background, which goes on until Close. It may be called twice.
func (b *Broker) Start() {}

// Ready says whether both connections are up, without waiting: nil, or an error that says since when they are not and why.
// A password, a virtual host or a permission that the broker refuses is among the reasons; see RefusedError.
func (b *Broker) Ready() error { return errors.ErrUnsupported }

// Ping waits until both connections are up, or an attempt to make one has failed since it was called, and says why.
func (b *Broker) Ping(ctx context.Context) error { return errors.ErrUnsupported }

// Do runs f with a channel of its own on the consuming connection, to declare, inspect, bind or delete queues; the channel
// is closed when f returns. An error of the broker comes back as *RefusedError. F must not keep the channel.
func (b *Broker) Do(ctx context.Context, f func(ctx context.Context, ch *amqp.Channel) error) error {
	return errors.ErrUnsupported
}

// Close ends every Consume, waits for their handlers and for publishes under way, and closes the connections; when ctx ends
// first, it closes them at once and says so. Afterwards every call returns ErrClosed. It may be called twice, and before
// Start.
func (b *Broker) Close(ctx context.Context) error { return nil }

var (
	// ErrClosed is what a broker's methods return after Close.
	ErrClosed = errors.New("the connection to the broker was closed by us")
	// ErrNotConnected says that the message has certainly not left: there is no connection. It wraps why.
	ErrNotConnected = errors.New("not connected to the broker")
	// ErrNacked says that the broker had the message and didn't take it, such as a full queue that rejects.
	ErrNacked = errors.New("the broker refused the message")
	// ErrBlocked says that the message has certainly not left: the broker takes none, since its memory or disk is full.
	ErrBlocked = errors.New("the broker takes no messages at present")
	// ErrTooLarge says that the message is over BrokerConfig.MaxMessage, and wasn't sent.
	ErrTooLarge = errors.New("the message is larger than may be sent")
	// ErrInvalid says that the message can't be written as AMQP, and wasn't sent.
	ErrInvalid = errors.New("the message can't be written as AMQP")

	// ErrCredentials is the reason of a RefusedError: the broker doesn't know the user, or not with this password.
	ErrCredentials = errors.New("the broker doesn't accept the user name and password")
	// ErrVhost is the reason of a RefusedError: the virtual host doesn't exist, or the user may not use it.
	ErrVhost = errors.New("the virtual host doesn't exist or may not be used")
	// ErrAccess is the reason of a RefusedError: the user may not do this.
	ErrAccess = errors.New("the broker's permissions don't allow it")
	// ErrNotFound is the reason of a RefusedError: the queue or the exchange doesn't exist.
	ErrNotFound = errors.New("the queue or exchange doesn't exist")
	// ErrPrecondition is the reason of a RefusedError: what is declared exists with other properties or arguments.
	ErrPrecondition = errors.New("it exists with other properties or arguments")
	// ErrLocked is the reason of a RefusedError: another connection has the queue for itself.
	ErrLocked = errors.New("another connection has the queue for itself")
)

// RefusedError is what the broker refused, in its own words. Errors.Is finds the reason among the errors of this package.
type RefusedError struct {
	Doing  string // "connect to amqp://host/vhost"
	Reason error  // ErrAccess and the like, or nil
	Code   int    // as AMQP numbers it: 403, 404, 406 …
	Text   string // as the broker put it
}

func (e *RefusedError) Error() string {
	if e.Reason == nil {
		return fmt.Sprintf("%s: the broker says %d %s", e.Doing, e.Code, e.Text)
	}
	return fmt.Sprintf("%s: %v (the broker says %d %s)", e.Doing, e.Reason, e.Code, e.Text)
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }
