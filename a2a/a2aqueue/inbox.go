package a2aqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Why an exchange ends before its answer is complete. It is unknown then what became of the request.
var (
	// ErrLost says that the connection was lost on which the answer was to come.
	ErrLost = errors.New("the connection to the broker was lost while the answer was awaited")
	// ErrGap says that events of a stream are missing.
	ErrGap = errors.New("events of the stream are missing")
	// ErrSlow says that events came faster than they were taken, and more than are kept.
	ErrSlow = errors.New("the events of the stream were taken too slowly")
	// ErrSilent says that nothing was heard of the agent for longer than it would be silent if it were there.
	ErrSilent = errors.New("nothing is heard of the agent")
)

// inbox is the queue of this process, to which answers come, and the exchanges that wait for them. One goroutine takes what
// comes and hands it to the exchange it is for; it never waits for one.
type inbox struct {
	broker  *Broker
	metrics *clientMetrics
	maxBuf  int // bytes an exchange keeps
	wait    time.Duration

	mu      sync.Mutex
	queue   string        // empty while there is none
	up      chan struct{} // closed while there is one
	waiting map[string]*exchange
	stop    context.CancelFunc // nil before the first use
	done    chan struct{}      // closed when the consuming has ended
	failed  error              // why it has, for good
	closed  bool
}

// maxBuffered bounds the messages that an exchange keeps for a caller who doesn't take them.
const maxBuffered = 256

func newInbox(b *Broker, m *clientMetrics, maxBuf int, wait time.Duration) *inbox {
	return &inbox{broker: b, metrics: m, maxBuf: maxBuf, wait: wait, up: make(chan struct{}), waiting: make(map[string]*exchange)}
}

// start begins to consume, once.
func (in *inbox) start() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return ErrClosed
	case in.stop != nil:
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	in.stop, in.done = stop, make(chan struct{})
	go func() {
		defer close(in.done)
		err := in.broker.Consume(ctx, Subscription{
			Name: "answers",
			Declare: func(_ context.Context, ch *amqp.Channel) (string, error) {
				return declareInbox(ch, inboxPrefix+newID())
			},
			Exclusive: true,
			NoAck:     true, // what is lost with us is lost with the queue
			Handle:    func(_ context.Context, d *Delivery) { in.take(d) },
			Up:        in.opened,
			Down:      in.lost,
		})
		if err == nil {
			err = ErrClosed
		}
		in.mu.Lock()
		in.failed = err
		in.mu.Unlock()
		in.lost(err)
	}()
	return nil
}

// close ends the consuming and every exchange. It may be called twice.
func (in *inbox) close() {
	in.mu.Lock()
	in.closed = true
	stop, done := in.stop, in.done
	in.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
	in.lost(ErrClosed)
}

func (in *inbox) opened(queue string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.queue == "" {
		close(in.up)
	}
	in.queue = queue
}

// lost ends every exchange: what was to come to the queue that is gone doesn't come any more. Nil says that we gave it up.
func (in *inbox) lost(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed || err == nil || errors.Is(err, ErrClosed) {
		err = ErrClosed
	} else {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if in.queue != "" {
		in.queue, in.up = "", make(chan struct{})
	}
	for id, x := range in.waiting {
		delete(in.waiting, id)
		x.fail(err)
	}
}

// open begins an exchange, whose answer comes to the queue it returns. It waits for the queue as long as the broker may
// be reached. An error means that there is no exchange.
func (in *inbox) open(ctx context.Context, id string) (*exchange, string, error) {
	if err := in.start(); err != nil {
		return nil, "", err
	}
	var timeout <-chan time.Time
	for {
		in.mu.Lock()
		switch {
		case in.closed:
			in.mu.Unlock()
			return nil, "", ErrClosed
		case in.failed != nil:
			err := in.failed
			in.mu.Unlock()
			return nil, "", err
		case in.queue != "":
			x := &exchange{id: id, in: in, wake: make(chan struct{}, 1), heard: time.Now()}
			in.waiting[id] = x
			queue := in.queue
			in.mu.Unlock()
			return x, queue, nil
		}
		up, done := in.up, in.done
		in.mu.Unlock()
		if err := in.broker.Ping(ctx); err != nil {
			return nil, "", err
		}
		if timeout == nil {
			t := time.NewTimer(in.wait)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-up:
		case <-done:
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case <-timeout:
			return nil, "", fmt.Errorf("%w: the queue for answers could not be made within %s", ErrNotConnected, in.wait)
		}
	}
}

// take hands a message to the exchange it is for. What is for none came too late, or twice.
func (in *inbox) take(d *Delivery) {
	a, err := readAnswer(&d.Delivery)
	if err != nil {
		in.metrics.dropped("malformed")
		return
	}
	in.mu.Lock()
	x := in.waiting[a.exchange]
	in.mu.Unlock()
	if x == nil {
		in.metrics.dropped("nobody")
		return
	}
	if why := x.add(&a); why != "" {
		in.metrics.dropped(why)
	}
}

// exchange is one request and what comes back for it. One goroutine calls next and close.
type exchange struct {
	id   string
	in   *inbox
	wake chan struct{} // has one when there is something new

	mu     sync.Mutex
	got    []*answer
	bytes  int
	last   int64     // the sequence number that came last
	heard  time.Time // when anything came
	began  bool      // anything has
	stream string    // the id of the stream
	err    error     // nothing more comes
}

// add keeps an answer until it is taken. It never blocks; it returns why it wasn't kept, if so.
func (x *exchange) add(a *answer) (dropped string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heard = time.Now()
	if !x.began {
		x.began, x.stream = true, a.stream
	}
	switch {
	case x.err != nil:
		return "over"
	case a.kind != typeResponse && x.began && a.stream != x.stream:
		x.failLocked(fmt.Errorf("%w: another stream answers the same request", ErrGap))
		return "gap"
	case a.kind == typeKeepAlive && a.seq > x.last, a.kind == typeEvent && a.seq > x.last+1:
		x.failLocked(fmt.Errorf("%w: number %d follows %d", ErrGap, a.seq, x.last))
		return "gap"
	case a.kind == typeKeepAlive:
		return ""
	case a.kind == typeEvent && a.seq <= x.last:
		return "twice"
	case len(x.got) >= maxBuffered || x.bytes+len(a.body) > x.in.maxBuf && len(x.got) > 0:
		x.failLocked(ErrSlow)
		return "slow"
	}
	if a.kind == typeEvent {
		x.last = a.seq
	}
	x.got = append(x.got, a)
	x.bytes += len(a.body)
	x.signal()
	return ""
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *exchange) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.failLocked(err)
}

func (x *exchange) failLocked(err error) {
	if x.err == nil {
		x.err = err
		x.signal()
	}
}

// hasAnswer reports whether anything has come.
func (x *exchange) hasAnswer() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.began
}

// patience is how long an exchange waits: for the first thing that comes, and for each after it. Zero is for ever.
type patience struct{ first, next time.Duration }

// next returns what came next. Of a stream that broke, what came before that is returned first.
func (x *exchange) next(ctx context.Context, p patience) (*answer, error) {
	for {
		a, left, err := x.pop(p)
		if a != nil || err != nil {
			return a, err
		}
		if err := x.await(ctx, left); err != nil {
			return nil, err
		}
	}
}

// pop returns an answer that has come, or an error if none will, or how long to wait for the next (0: for ever).
func (x *exchange) pop(p patience) (a *answer, left time.Duration, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.got) > 0 {
		a = x.got[0]
		x.got[0] = nil
		x.got = x.got[1:]
		if len(x.got) == 0 {
			x.got = nil
		}
		x.bytes -= len(a.body)
		return a, 0, nil
	}
	if x.err != nil {
		return nil, 0, x.err
	}
	limit := p.first
	if x.began {
		limit = p.next
	}
	if limit == 0 {
		return nil, 0, nil
	}
	if left = limit - time.Since(x.heard); left <= 0 {
		return nil, 0, fmt.Errorf("%w: for %s", ErrSilent, limit)
	}
	return nil, left, nil
}

// await waits until something may have come, no longer than d unless that is 0.
func (x *exchange) await(ctx context.Context, d time.Duration) error {
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-x.wake:
	case <-timer:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// close forgets the exchange. What still comes for it is dropped.
func (x *exchange) close() {
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	delete(x.in.waiting, x.id)
}
