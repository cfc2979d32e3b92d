package a2aqueue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// closeGrace bounds the goodbye to a broker.
const closeGrace = 2 * time.Second

// link is one of the two connections, made again for ever. The library's own recovery gives up after a number of attempts,
// keeps channels alive whose delivery tags mean nothing any more and replays what it thinks was declared; here each
// connection is a new one, and whoever used the old one is told.
type link struct {
	use     string // "publish" or "consume"
	cfg     *BrokerConfig
	addr    brokerAddress
	metrics *metrics
	// serve runs with each connection, until its done is closed; it may be nil.
	serve func(c *conn)

	mu      sync.Mutex
	up      *conn // nil while there is none
	since   time.Time
	err     error // why there is none: of the last attempt or, before one, of the loss
	failed  bool  // an attempt has failed since there was a connection
	blocked string
	ended   bool
	changed chan struct{} // closed and replaced when one of the above changes
}

// conn is one connection to the broker.
type conn struct {
	amqp   *amqp.Connection
	raw    net.Conn
	stream *gathering // what the library writes to

	cutting context.Context // ended by cut
	cancel  context.CancelCauseFunc

	done chan struct{} // closed when it is lost, after err was set; the library may not have closed its channels by then
	err  error         // never nil
}

func newConn(c *amqp.Connection, raw net.Conn, stream *gathering) *conn {
	cutting, cancel := context.WithCancelCause(context.Background())
	return &conn{amqp: c, raw: raw, stream: stream, cutting: cutting, cancel: cancel, done: make(chan struct{})}
}

// cut ends the connection at once, whatever is being written to it. What follows from that isn't why it is lost; this is,
// unless it was lost before.
func (c *conn) cut(why error) {
	if !c.amqp.IsClosed() { // which it is before the library tells why
		c.cancel(why)
	}
	_ = c.raw.Close() // closing is all that is wanted
}

// over reports whether the connection is lost, or about to be: done is closed soon.
func (c *conn) over() bool { return c.amqp.IsClosed() || c.cutting.Err() != nil }

// lost is why the connection is lost, as the library's notification says if it was not cut before.
func (c *conn) lost(e *amqp.Error, ok bool, doing string) error {
	if c.cutting.Err() != nil {
		return context.Cause(c.cutting)
	}
	return closedBy(e, ok, doing)
}

// closedBy is why a channel was closed, as its notification says: what the broker says, or why the connection was lost, for
// which it waits.
func (c *conn) closedBy(e *amqp.Error, ok bool, doing string) error {
	if (!ok || !e.Server) && c.over() {
		<-c.done
		return c.err
	}
	return closedBy(e, ok, doing)
}

// refused is the error of something asked of the broker: what the broker says, why the connection was lost if that is all that
// err says, or err.
func (c *conn) refused(doing string, err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	if (ok && !e.Server || errors.Is(err, net.ErrClosed)) && c.over() {
		<-c.done
		return fmt.Errorf("%s: %w", doing, c.err)
	}
	return refused(doing, err)
}

func newLink(use string, cfg *BrokerConfig, addr brokerAddress, m *metrics, serve func(*conn)) *link {
	return &link{
		use: use, cfg: cfg, addr: addr, metrics: m, serve: serve,
		since: time.Now(), changed: make(chan struct{}), err: errors.New("no attempt was made yet"),
	}
}

// run makes connections until ctx ends.
func (l *link) run(ctx context.Context) {
	defer l.update(func() { l.ended = true })
	wait := newPauses(l.cfg.MinBackoff, l.cfg.MaxBackoff)
	log, said := l.cfg.Logger.With("connection", l.use, "broker", l.addr.shown), ""
	for first := true; ctx.Err() == nil; first = false {
		c, err := l.dial(ctx)
		if err == nil {
			if !first {
				l.metrics.reconnects.WithLabelValues(l.use).Inc()
			}
			log.InfoContext(ctx, "connected to the broker")
			said = ""
			began := time.Now()
			err = l.hold(ctx, c)
			if ctx.Err() != nil {
				return
			}
			log.WarnContext(ctx, "lost the connection to the broker", "err", err)
			wait.held(time.Since(began))
		} else {
			if ctx.Err() != nil {
				return
			}
			l.update(func() { l.err, l.failed = err, true })
			if err.Error() != said {
				said = err.Error()
				log.WarnContext(ctx, "can't connect to the broker", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.next(err)):
		}
	}
}

// pauses are those between attempts: they double up to a bound, and are made random by half.
type pauses struct {
	backoff  *backoff.ExponentialBackOff
	min, max time.Duration
	refusals int // in a row
}

func newPauses(shortest, longest time.Duration) *pauses {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = shortest, longest, 2
	return &pauses{backoff: b, min: shortest, max: longest}
}

// held says that an attempt succeeded, and for how long it did. What breaks at once is no better than what fails.
func (p *pauses) held(d time.Duration) {
	p.refusals = 0
	if d > 4*p.min {
		p.backoff.Reset()
	}
}

// next returns how long to wait after an error. What the broker has refused won't get better soon; but one that hangs up
// during the handshake looks as if it had, so once is nothing.
func (p *pauses) next(err error) time.Duration {
	pause := p.backoff.NextBackOff()
	if e, refused := errors.AsType[*RefusedError](err); !refused || e.Reason == nil {
		p.refusals = 0
	} else if p.refusals++; p.refusals > 1 {
		pause = max(pause, p.max/2)
	}
	return pause
}

// dial makes one connection, TLS and handshake included.
func (l *link) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.DialTimeout, fmt.Errorf("the broker didn't answer within %v", l.cfg.DialTimeout))
	defer cancel()
	doing := "connect to " + l.addr.shown
	raw, err := l.cfg.Dial(ctx, "tcp", l.addr.host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	// The bounds of reading and writing are ours: the library's handshake may take away a deadline that its heartbeats
	// have just set, and it never sets one for writing.
	var stream net.Conn = &bounded{Conn: raw, silence: l.cfg.Heartbeat + l.cfg.Heartbeat/2, write: l.cfg.WriteTimeout}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // ends the handshake
	fail := func(err error) (*conn, error) {
		stop()
		_ = raw.Close() // also ends what the library has started
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if l.addr.tls != nil {
		secure := tls.Client(stream, l.addr.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			return fail(err)
		}
		stream = secure
	}
	gathered := newGathering(stream)
	c, err := amqp.Open(gathered, amqp.Config{
		SASL: l.addr.sasl, Vhost: l.addr.vhost, Heartbeat: l.cfg.Heartbeat, Locale: "en_US", FrameSize: frameSize,
		Properties: amqp.Table{"product": "orchestrator", "connection_name": l.cfg.Name + " " + l.use},
	})
	if err != nil {
		if e := handshakeRefused(doing, err); e != nil && ctx.Err() == nil {
			_, _ = fail(e)
			return nil, e
		}
		return fail(err)
	}
	if !stop() { // the bound was over, and the connection is closed
		return fail(context.Cause(ctx))
	}
	return newConn(c, raw, gathered), nil
}

// hold lets others use a connection until it is lost or ctx ends, and returns why it was lost.
func (l *link) hold(ctx context.Context, c *conn) error {
	// Both are read here until they are closed, so that the library never waits for us.
	closes := c.amqp.NotifyClose(make(chan *amqp.Error, 1))
	blocks := c.amqp.NotifyBlocked(make(chan amqp.Blocking, 8))
	l.update(func() { l.up, l.err, l.failed = c, nil, false })
	l.metrics.connected.WithLabelValues(l.use).Set(1)

	var wg sync.WaitGroup
	if l.serve != nil {
		wg.Go(func() { l.serve(c) })
	}
	ending := ctx.Done()
	for c.err == nil {
		select {
		case <-ending:
			if c.over() {
				ending = nil // why is said below
				continue
			}
			stop := time.AfterFunc(closeGrace, func() { c.cut(ErrClosed) })
			err := c.amqp.Close()
			stop.Stop()
			c.err = errors.Join(ErrClosed, err)
		case <-c.cutting.Done(): // the library may take its time
			c.err = context.Cause(c.cutting)
		case e, ok := <-closes:
			c.err = c.lost(e, ok, "use "+l.addr.shown)
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			l.block(ctx, b)
		}
	}
	c.cut(c.err)
	l.metrics.connected.WithLabelValues(l.use).Set(0)
	if l.status().blocked != "" {
		l.metrics.block(false)
	}
	l.update(func() { l.up, l.err, l.blocked = nil, c.err, "" })
	close(c.done)
	wg.Wait()
	return c.err
}

// block notes what the broker says of an alarm. It says so to connections that have published.
func (l *link) block(ctx context.Context, b amqp.Blocking) {
	reason := ""
	log := l.cfg.Logger.With("connection", l.use, "broker", l.addr.shown)
	if b.Active {
		reason = b.Reason
		if reason == "" {
			reason = "it doesn't say why"
		}
		log.WarnContext(ctx, "the broker takes no more messages", "reason", reason)
	} else {
		log.InfoContext(ctx, "the broker takes messages again")
	}
	l.metrics.block(b.Active)
	l.update(func() { l.blocked = reason })
}

func (l *link) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.up
	f()
	if (l.up == nil) != (was == nil) {
		l.since = time.Now()
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// status is what a link is in at one moment.
type status struct {
	up      *conn
	since   time.Time
	err     error
	failed  bool
	blocked string
	ended   bool
	changed <-chan struct{}
}

func (l *link) status() status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return status{l.up, l.since, l.err, l.failed, l.blocked, l.ended, l.changed}
}

// wait returns the connection, as soon as there is one. Unless it is to be patient, a failed attempt is an error; of one
// that failed before, too, until one succeeds.
func (l *link) wait(ctx context.Context, patient bool) (*conn, error) {
	for {
		s := l.status()
		switch {
		case s.ended:
			return nil, ErrClosed
		case s.up != nil:
			return s.up, nil
		case s.failed && !patient:
			return nil, s.down()
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w; %w", ErrNotConnected, s.err, context.Cause(ctx))
		}
	}
}

// down is the error of a link that isn't up.
func (s status) down() error { return fmt.Errorf("%w: %w", ErrNotConnected, s.err) }

// bounded is a connection whose reads and writes end: a read when nothing has come for so long that heartbeats are
// missing, a write when nothing is taken. Deadlines that others set don't count.
type bounded struct {
	net.Conn
	silence, write time.Duration
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.Conn.SetReadDeadline(time.Now().Add(b.silence)); err != nil {
		return 0, err
	}
	return b.Conn.Read(p)
}

func (b *bounded) Write(p []byte) (int, error) {
	if err := b.Conn.SetWriteDeadline(time.Now().Add(b.write)); err != nil {
		return 0, err
	}
	return b.Conn.Write(p)
}

func (b *bounded) SetDeadline(time.Time) error      { return nil }
func (b *bounded) SetReadDeadline(time.Time) error  { return nil }
func (b *bounded) SetWriteDeadline(time.Time) error { return nil }

// discard is a logger that says nothing.
var discard = slog.New(slog.DiscardHandler)
