package a2aqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Headers of dead letters.
const (
	headerReason = "x-a2a-reason"
	headerQueue  = "x-a2a-queue"
)

// Subscription says what is consumed and by whom.
type Subscription struct {
	// Name is what metrics and logs call it: "requests", "replies", "events". Defaults to the queue's name.
	Name string
	// Queue is consumed, unless Declare returns another name.
	Queue string
	// Declare declares what is needed, each time a connection was made or the queue was lost; it returns the queue to
	// consume, "" for Queue. Nil declares nothing.
	Declare func(ctx context.Context, ch *amqp.Channel) (queue string, err error)
	// Consumer is the tag by which the broker's operators know the consumer. Defaults to one the library makes up.
	Consumer string
	// Exclusive asks for the queue for this consumer alone.
	Exclusive bool
	// Args are the arguments of the consumer.
	Args amqp.Table
	// NoAck has the broker forget a message as it hands it out. Nothing is settled then, the prefetch bounds nothing, and
	// Handle is called by the one goroutine that consumes: it must not block.
	NoAck bool
	// Prefetch bounds the deliveries that are not settled. Defaults to 32.
	Prefetch int
	// Workers is how many handlers run side by side. Defaults to 1: the deliveries are handled in order.
	Workers int
	// MissingIsFatal ends the Consume when the queue doesn't exist. Otherwise it is tried again, for ever.
	MissingIsFatal bool
	// DeadLetterExchange gets what Delivery.DeadLetter is called for, with the reason. "" rejects it, which leaves it to the
	// queue's own dead-letter policy and loses the reason.
	DeadLetterExchange string
	// DeadLetterKey is the routing key there. Defaults to the name of the queue.
	DeadLetterKey string

	// Handle is called for each delivery; it settles it, then or later. Its context outlives that of Consume by
	// BrokerConfig.DrainTimeout at most, and Handle must return when it ends. What is not settled when the channel is lost is
	// delivered again. A panic is logged and the message put among the dead letters.
	Handle func(ctx context.Context, d *Delivery)
	// Up, if set, is called each time the queue is being consumed, with its name; Down when it no longer is, with why, or nil when
	// the Consume ends. They are called in turns by one goroutine and must not block.
	Up   func(queue string)
	Down func(err error)
}

// Delivery is one message a queue gave us. It must be settled once: by Ack, Nack or DeadLetter, from any goroutine.
type Delivery struct {
	// Delivery is the message. Of its own methods, Reject isn't to be used; it fails.
	amqp.Delivery
	// Queue it came from.
	Queue string

	consumer *consumer
	session  *consumption
	settled  atomic.Bool
}

var (
	// ErrSettled is what settling a delivery for the second time returns.
	ErrSettled = errors.New("the delivery was settled before")
	// ErrStale is what settling a delivery returns when the channel it came by is gone: the broker delivers it again.
	ErrStale = errors.New("the delivery came by a channel that is closed; it comes again")
)

// Ack says that the message was dealt with and may be forgotten. Like Nack it doesn't wait until that is written.
func (d *Delivery) Ack() error {
	return d.settle(acked)
}

// Nack gives the message back: to be delivered again, or to go where the queue's policy sends dead letters.
func (d *Delivery) Nack(requeue bool) error {
	if requeue {
		return d.settle(requeued)
	}
	return d.settle(rejected)
}

func (d *Delivery) settle(how outcome) error {
	if !d.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	return d.session.settle(d.DeliveryTag, how)
}

// DeadLetter moves the message to the subscription's dead letters, with the reason in the header "x-a2a-reason" and the
// queue in "x-a2a-queue", and acknowledges it once the broker has confirmed that. When nothing takes dead letters it is
// rejected, so that it follows the queue's own policy; when they can't be reached it is given back, to come again. It takes no
// longer than BrokerConfig.PublishTimeout. A crash in between leaves it in both.
func (d *Delivery) DeadLetter(reason string) error {
	if !d.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	c := d.consumer
	if d.session.over() {
		return ErrStale
	}
	log := c.log.With("queue", d.Queue, "message", d.MessageId, "reason", reason)
	err := c.deadLetter(d, reason)
	_, unknown := errors.AsType[*UnconfirmedError](err)
	_, returned := errors.AsType[*ReturnedError](err)
	how := rejected
	switch {
	case err == nil:
		c.broker.metrics.deadLetters.WithLabelValues(c.sub.Name).Inc()
		log.WarnContext(c.handling, "put a message among the dead letters")
		how = acked
	case !unknown && (errors.Is(err, errNoDeadLetters) || returned || errors.Is(err, ErrNotFound) || errors.Is(err, ErrAccess) ||
		errors.Is(err, ErrTooLarge) || errors.Is(err, ErrInvalid)): // a refusal that an unknown one wraps isn't of this message
		c.broker.metrics.deadLetters.WithLabelValues(c.sub.Name).Inc()
		log.WarnContext(c.handling, "rejected a message", "err", err)
	default:
		how = requeued
		log.WarnContext(c.handling, "can't put a message among the dead letters; it comes again", "err", err)
	}
	return d.session.settle(d.DeliveryTag, how)
}

var errNoDeadLetters = errors.New("no exchange for dead letters is configured")

// maxReason bounds the bytes of a reason, in which others' words may stand.
const maxReason = 1 << 10

func (c *consumer) deadLetter(d *Delivery, reason string) error {
	if c.sub.DeadLetterExchange == "" {
		return errNoDeadLetters
	}
	headers := maps.Clone(d.Headers)
	if headers == nil {
		headers = amqp.Table{}
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	headers[headerReason], headers[headerQueue] = reason, d.Queue
	return c.broker.Publish(context.WithoutCancel(c.handling), Publication{
		Exchange: c.sub.DeadLetterExchange, Key: cmp.Or(c.sub.DeadLetterKey, d.Queue),
		Publishing: amqp.Publishing{
			Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
			Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
			Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
		},
	})
}

// Consume takes messages of a queue until ctx ends, whatever happens to the connection: it is made again and everything
// declared anew. It returns nil when ctx has ended and every handler has returned, ErrClosed after Close, and before that only
// what can't get better by trying again: a *RefusedError whose reason is ErrPrecondition, ErrAccess or, if
// Subscription.MissingIsFatal, ErrNotFound; and any error of Declare that is not the broker's. Wrong credentials and a
// missing virtual host don't end it; see Ready.
func (b *Broker) Consume(ctx context.Context, s Subscription) error {
	if s.Handle == nil {
		return errors.New("the subscription has no Handle")
	}
	if s.Queue == "" && s.Declare == nil {
		return errors.New("the subscription names no queue and declares none")
	}
	s.Name = cmp.Or(s.Name, s.Queue)
	s.Prefetch, s.Workers = cmp.Or(s.Prefetch, 32), cmp.Or(s.Workers, 1)
	if s.Prefetch < 1 || s.Prefetch > 65535 || s.Workers < 1 {
		return errors.New("the prefetch must be from 1 to 65535, and the workers above 0")
	}
	done, err := b.beginConsume()
	if err != nil {
		return err
	}
	defer done()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.consuming, cancel)()

	handling, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	b.metrics.consumer(s.Name)
	c := &consumer{
		broker: b, sub: s, handling: handling, cut: cut, log: b.cfg.Logger.With("consumer", s.Name),
		work: make(chan *Delivery), idle: make(chan struct{}, s.Workers),
	}
	for range s.Workers {
		c.workers.Go(c.handle)
	}
	err = c.run(running)
	close(c.work)
	c.drain(nil)
	c.workers.Wait()
	if err == nil && ctx.Err() == nil {
		err = ErrClosed
	}
	return err
}

// consumer is one Consume under way: its workers, and one channel after the other.
type consumer struct {
	broker   *Broker
	sub      Subscription
	log      *slog.Logger
	handling context.Context // the handlers'
	cut      context.CancelCauseFunc
	workers  sync.WaitGroup
	work     chan *Delivery
	idle     chan struct{} // one for each handler that has returned
	active   int           // handlers that have not; counted by the goroutine of Consume
	drained  <-chan time.Time
}

// handle is one worker.
func (c *consumer) handle() {
	for d := range c.work {
		c.handleOne(d)
		c.idle <- struct{}{}
	}
}

func (c *consumer) handleOne(d *Delivery) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(c.handling, "handling a message panicked", "queue", d.Queue, "panic", p, "stack", string(debug.Stack()))
			_ = d.DeadLetter(fmt.Sprintf("handling it panicked: %v", p)) // logged there; settled before is fine
		}
	}()
	c.sub.Handle(c.handling, d)
}

// run consumes on one channel after the other until ctx ends.
func (c *consumer) run(ctx context.Context) error {
	cfg := &c.broker.cfg
	wait := newPauses(cfg.MinBackoff, cfg.MaxBackoff)
	said := ""
	for {
		link, err := c.broker.consume.wait(ctx, true)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended, or the broker was closed
		}
		up, err := c.consume(ctx, link)
		switch _, refused := errors.AsType[*RefusedError](err); {
		case ctx.Err() != nil:
			return nil
		case up > 0:
			said = ""
			c.log.WarnContext(ctx, "the consumer was lost", "err", err)
			wait.held(up)
		case permanent(err), c.sub.MissingIsFatal && errors.Is(err, ErrNotFound), !refused && errors.Is(err, errDeclare):
			return err
		case err.Error() != said:
			said = err.Error()
			c.log.WarnContext(ctx, "can't consume", "err", err)
		}
		select {
		case <-time.After(wait.backoff.NextBackOff()):
		case <-ctx.Done():
			return nil
		}
	}
}

// errDeclare is an error of Subscription.Declare that is neither the broker's nor the connection's.
var errDeclare = errors.New("declare")

// outcome is what becomes of a delivery.
type outcome int

const (
	acked outcome = iota
	requeued
	rejected
)

// consumption is a consumer on one channel. The goroutine of Consume owns the channel; others leave with it what they settle.
type consumption struct {
	link *conn
	ch   *amqp.Channel
	wake chan struct{} // holds one when something was settled

	mu      sync.Mutex
	ended   bool
	settled []settlement // not written yet; no more than the prefetch

	open    map[uint64]bool // tags that are not settled, as far as the goroutine knows
	writing []settlement    // its own
}

type settlement struct {
	tag uint64
	how outcome
}

// settle leaves a settlement to be written. No error means that it was left in time, as none would after it was written: the
// broker doesn't answer, and delivers again what it hasn't seen settled.
func (s *consumption) settle(tag uint64, how outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.ch.IsClosed() {
		return ErrStale
	}
	s.settled = append(s.settled, settlement{tag, how})
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *consumption) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.ch.IsClosed()
}

func (s *consumption) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// write writes what was settled. Acknowledgements below every open delivery are one, since that is one step of the
// queue's log rather than many. An error closes the channel, which is noticed there.
func (s *consumption) write() {
	runtime.Gosched() // others may be about to settle theirs
	s.mu.Lock()
	s.writing, s.settled = s.settled, s.writing[:0]
	s.mu.Unlock()
	for _, x := range s.writing {
		delete(s.open, x.tag)
	}
	oldest := uint64(math.MaxUint64)
	if len(s.writing) > 1 {
		for tag := range s.open {
			oldest = min(oldest, tag)
		}
	}
	s.link.stream.hold()
	last, below := uint64(0), 0
	for _, x := range s.writing {
		switch {
		case x.how != acked:
			_ = s.ch.Nack(x.tag, false, x.how == requeued)
		case x.tag < oldest:
			last = max(last, x.tag)
			below++
		default:
			_ = s.ch.Ack(x.tag, false)
		}
	}
	if below > 0 {
		_ = s.ch.Ack(last, below > 1)
	}
	if err := s.link.stream.release(); err != nil {
		s.link.cut(fmt.Errorf("write to the broker: %w", err))
	}
}

// consume opens a channel, declares, and hands out what comes until the channel is lost or ctx ends. It returns for how long
// it consumed.
func (c *consumer) consume(ctx context.Context, link *conn) (up time.Duration, err error) {
	ch, err := link.amqp.Channel()
	if err != nil {
		return 0, link.refused("open a channel", err)
	}
	defer ch.Close()
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancels := ch.NotifyCancel(make(chan string, 1))
	if err := ch.Qos(c.sub.Prefetch, 0, false); err != nil {
		return 0, link.refused("set the prefetch", err)
	}
	queue := c.sub.Queue
	if c.sub.Declare != nil {
		name, err := c.sub.Declare(ctx, ch)
		if err != nil {
			if ch.IsClosed() { // the broker refused it, or the connection was lost
				return 0, link.refused("declare what "+c.sub.Name+" needs", err)
			}
			return 0, fmt.Errorf("%w what %s needs: %w", errDeclare, c.sub.Name, err)
		}
		queue = cmp.Or(name, queue)
	}
	tag := cmp.Or(c.sub.Consumer, consumerTag(c.broker.cfg.Name))
	in, err := ch.Consume(queue, tag, c.sub.NoAck, c.sub.Exclusive, false, false, c.sub.Args)
	if err != nil {
		return 0, link.refused("consume "+queue, err)
	}
	c.log.InfoContext(ctx, "consuming", "queue", queue)
	began := time.Now()
	s := &consumption{link: link, ch: ch, wake: make(chan struct{}, 1), open: map[uint64]bool{}}
	defer func() {
		s.end()
		if c.sub.Down != nil {
			c.sub.Down(err)
		}
	}()
	if c.sub.Up != nil {
		c.sub.Up(queue)
	}
	err = c.serve(ctx, s, queue, tag, in, closes, cancels)
	return max(time.Since(began), 1), err
}

func (c *consumer) serve(
	ctx context.Context, s *consumption, queue, tag string, in <-chan amqp.Delivery, closes <-chan *amqp.Error, cancels <-chan string,
) error {
	var ready []*Delivery // no more than the prefetch
	for {
		var work chan *Delivery
		var next *Delivery
		if len(ready) > 0 {
			work, next = c.work, ready[0]
		}
		select {
		case <-ctx.Done():
			// The rest goes back to the queue. The answer to this comes also while more is being delivered.
			if err := s.ch.Cancel(tag, false); err != nil {
				return s.link.refused("end the consumer", err)
			}
			c.drain(s)
			return nil
		case d, ok := <-in:
			if !ok {
				in = nil // closes or cancels says why
				continue
			}
			c.broker.metrics.deliveries.WithLabelValues(c.sub.Name).Inc()
			if d.Redelivered {
				c.broker.metrics.redeliveries.WithLabelValues(c.sub.Name).Inc()
			}
			d.Acknowledger = nil // its methods would write to a channel that is ours
			delivery := &Delivery{Delivery: d, Queue: queue, consumer: c, session: s}
			if c.sub.NoAck {
				delivery.settled.Store(true)
				c.handleOne(delivery)
				continue
			}
			s.open[d.DeliveryTag] = true
			ready = append(ready, delivery)
		case work <- next:
			ready[0], ready = nil, ready[1:]
			c.active++
		case <-c.idle:
			c.active--
		case <-s.wake:
			s.write()
		case _, ok := <-cancels:
			if !ok {
				cancels = nil // closes says why
				continue
			}
			s.write()
			return fmt.Errorf("the broker cancelled the consumer: queue %s is gone", queue)
		case e, ok := <-closes:
			return s.link.closedBy(e, ok, "consume "+queue)
		}
	}
}

// drain waits until every handler has returned, settling on s what they settle, and cancels them when the time is over.
func (c *consumer) drain(s *consumption) {
	if c.drained == nil {
		c.drained = time.After(c.broker.cfg.DrainTimeout)
	}
	var wake <-chan struct{}
	if s != nil {
		wake = s.wake
		defer s.write()
	}
	for c.active > 0 {
		select {
		case <-c.idle:
			c.active--
		case <-wake:
			s.write()
		case <-c.drained:
			c.cut(fmt.Errorf("the consumer ended and handlers have %v to do so", c.broker.cfg.DrainTimeout))
		}
	}
}

var consumerSeq atomic.Uint64

func consumerTag(name string) string {
	return fmt.Sprintf("%.200s-%d", name, consumerSeq.Add(1))
}
