package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/a2a"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/tracker"
)

// queues are the brokers through which peers are asked: the product's own, and those that peers name.
type queues struct {
	brokers   []broker
	transport *a2aqueue.Transport
	ready     atomic.Bool // all were connected once
}

// broker is one of them, and what takes the answers that come there.
type broker struct {
	name    string // without a password
	broker  *a2aqueue.Broker
	replies *a2aqueue.Replies // nil: answers come to the process alone
}

// openQueues returns the brokers that the config and the peers name, or nil when they name none. It does no I/O. Without
// replies, for a command that asks for itself, answers come to the process alone.
func (a *App) openQueues(peers []a2a.Peer, replies bool) (*queues, error) {
	own, err := a.cfg.Queue.Broker(a.cfg.Getenv)
	if err != nil && replies {
		return nil, err
	}
	urls, secure := map[a2a.Secret]string{}, map[a2a.Secret]QueueTLSConfig{}
	if own != "" {
		urls[""], secure[""] = own, a.cfg.Queue.TLS
	}
	for _, p := range peers {
		if p.Broker != "" {
			urls[p.Broker], secure[p.Broker] = string(p.Broker), QueueTLSConfig(p.TLS)
		}
	}
	if len(urls) == 0 {
		return nil, nil //nolint:nilnil // there are none
	}
	c := a2aqueue.TransportConfig{Others: map[a2a.Secret]a2aqueue.Connection{}, Registry: a.metrics}
	if replies {
		if c.ReplyTo = a.cfg.Queue.ReplyQueue; c.ReplyTo == "" {
			return nil, errors.New("queue.deployment is not set: a peer's broker needs it, for the queue that answers come to")
		}
	}
	q := &queues{}
	open := map[string]broker{} // by URL
	for _, key := range slices.Sorted(maps.Keys(urls)) {
		at, ok := open[urls[key]]
		if !ok {
			if at, err = a.openBroker(urls[key], secure[key], c.ReplyTo, q.brokers); err != nil {
				return nil, err
			}
			open[urls[key]] = at
			q.brokers = append(q.brokers, at)
		}
		connection := a2aqueue.Connection{Broker: at.broker, URL: urls[key]}
		if key == "" {
			c.Own = connection
		} else {
			c.Others[key] = connection
		}
	}
	q.transport, err = a2aqueue.NewTransport(c)
	return q, err
}

func (a *App) openBroker(url string, files QueueTLSConfig, replyTo string, others []broker) (b broker, err error) {
	at, err := a2aqueue.BrokerAddress(url)
	if err != nil {
		return b, fmt.Errorf("the broker: %w", err)
	}
	b.name = at.String()
	if slices.ContainsFunc(others, func(o broker) bool { return o.name == b.name }) {
		b.name = fmt.Sprintf("%s (%d)", b.name, len(others)+1) // the same, by another user
	}
	secure, err := files.config()
	if err != nil {
		return b, fmt.Errorf("the broker %s: %w", b.name, err)
	}
	registry := prometheus.WrapRegistererWith(prometheus.Labels{"broker": b.name}, a.metrics)
	b.broker, err = a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: url, TLS: secure, Name: a.cfg.A2A.Name, Logger: a.log, Registry: registry})
	if err == nil && replyTo != "" {
		b.replies, err = a2aqueue.NewReplies(a2aqueue.RepliesConfig{
			Broker: b.broker, Queue: replyTo, Handle: a.takeReply, Workers: max(a.cfg.Queue.Prefetch/2, 1), Logger: a.log, Registry: registry,
		})
	}
	if err != nil {
		return b, fmt.Errorf("the broker %s: %w", b.name, err)
	}
	return b, nil
}

// config reads the files; nil when there are none.
func (c QueueTLSConfig) config() (*tls.Config, error) {
	if c == (QueueTLSConfig{}) {
		return nil, nil //nolint:nilnil // the machine's authorities
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile == "" {
		return out, nil
	}
	load := func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read our certificate: %w", err)
		}
		return &cert, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	// Read for each connection, so that it can be renewed.
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return out, nil
}

// takeReply takes an answer to where all of them meet. The broker is told after it returned, which is after the commit.
func (a *App) takeReply(ctx context.Context, r a2aqueue.Reply) (a2aqueue.Fate, error) {
	fate, err := a.Relay.Reply(ctx, a2a.Arrival{MessageID: r.MessageID, Result: r.Result, Err: r.Err})
	switch {
	case errors.Is(err, a2a.ErrUnknownCall):
		return a2aqueue.FateUnknown, nil
	case errors.Is(err, a2a.ErrUnreadable):
		return a2aqueue.FateUnusable, nil
	case err != nil:
		return "", err
	case fate == tracker.Duplicate:
		return a2aqueue.FateKnown, nil
	}
	return a2aqueue.FateTaken, nil
}

// start connects in the background and takes answers until ctx ends. A nil queues does nothing.
func (q *queues) start(ctx context.Context, a *App) {
	if q == nil {
		return
	}
	for _, b := range q.brokers {
		b.broker.Start()
		a.wg.Go(func() {
			if err := b.replies.Run(ctx); err != nil && ctx.Err() == nil {
				a.log.ErrorContext(ctx, "no answers are taken from the reply queue", "broker", b.name, "queue", a.cfg.Queue.ReplyQueue, "err", err)
			}
		})
	}
}

// close ends the connections. What is under way ends with an error.
func (q *queues) close(ctx context.Context) error {
	if q == nil {
		return nil
	}
	q.transport.Close()
	var errs []error
	for _, b := range q.brokers {
		if err := b.broker.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.name, err))
		}
	}
	return errors.Join(errs...)
}

var errNoBroker = errors.New("not connected to the broker")

// check returns an error until every broker was connected once, since its URL, the password or a permission may be wrong. A
// broker that goes away later comes back, and meanwhile everything else works.
func (q *queues) check() error {
	if q == nil || q.ready.Load() {
		return nil
	}
	var first error
	for _, b := range q.brokers {
		if err := b.broker.Ready(); err != nil {
			first = cmp.Or(first, fmt.Errorf("%w %s: %w", errNoBroker, b.name, err))
		}
	}
	q.ready.Store(first == nil)
	return first
}

// DeadLetter is a message that a broker gave up, or that nobody could understand.
type DeadLetter struct {
	Broker string `json:"broker"`
	a2aqueue.DeadLetter
}

// ErrNoBroker says that no broker is configured.
var ErrNoBroker = errors.New("no broker is configured; queue.url_env names the variable with its URL")

// DeadLetters returns the oldest dead letters of each broker, as many as limit, and how many there are. They stay where they
// are. It connects when nothing is connected yet.
func (a *App) DeadLetters(ctx context.Context, limit int) (letters []DeadLetter, total int, err error) {
	if a.queues == nil {
		return nil, 0, ErrNoBroker
	}
	for _, b := range a.queues.brokers {
		if err := b.broker.Ping(ctx); err != nil {
			return nil, 0, fmt.Errorf("the broker %s: %w", b.name, err)
		}
		found, n, err := b.broker.DeadLetters(ctx, limit)
		if err != nil {
			return nil, 0, fmt.Errorf("the broker %s: %w", b.name, err)
		}
		for _, l := range found {
			letters = append(letters, DeadLetter{Broker: b.name, DeadLetter: l})
		}
		total += n
	}
	return letters, total, nil
}
