package a2aqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// headerPublish numbers what a channel publishes, so that a message the broker gives back is known again.
const headerPublish = "x-publish"

// Publication is one message to be published.
type Publication struct {
	Exchange string // "" delivers to the queue that Key names
	Key      string
	// Optional says that a message which no queue takes is dropped in silence. Otherwise it is a *ReturnedError.
	Optional bool
	// Publishing is the message. Its body and headers must not be changed until some time after Publish has returned, since
	// one that was given up on may still be being written. The reader sees one more header, "x-publish".
	amqp.Publishing
}

// ReturnedError says that no queue took the message: the broker gave it back.
type ReturnedError struct {
	Exchange, Key string
	Code          int // 312 NO_ROUTE, 313 NO_CONSUMERS
	Text          string
}

func (e *ReturnedError) Error() string {
	if e.Exchange == "" {
		return fmt.Sprintf("there is no queue %q (the broker says %d %s)", e.Key, e.Code, e.Text)
	}
	return fmt.Sprintf("no queue takes messages of exchange %q with key %q (the broker says %d %s)", e.Exchange, e.Key, e.Code, e.Text)
}

// UnconfirmedError says that the message may have reached the broker, or not: it left, and no confirmation came. Err is why:
// what ended the wait, or the connection, or the channel, even if that was another message.
type UnconfirmedError struct{ Err error }

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("the broker didn't confirm the message: %v", e.Err)
}

// Unwrap returns why no confirmation came.
func (e *UnconfirmedError) Unwrap() error { return e.Err }

// Publish sends a message and returns when the broker has taken responsibility for it. Its errors are ErrClosed,
// ErrNotConnected, ErrBlocked, ErrTooLarge, ErrInvalid and that of a ctx which had ended (not sent), *ReturnedError, ErrNacked
// and *RefusedError (sent and not taken), and *UnconfirmedError, the only one after which a queue may have the message. It is
// bounded by ctx and by BrokerConfig.PublishTimeout; it waits for a connection that was just lost, and fails at once when the
// last attempt to make one has failed.
func (b *Broker) Publish(ctx context.Context, p Publication) error {
	began := time.Now()
	err := b.publishOne(ctx, p)
	b.metrics.published(began, err)
	return err
}

func (b *Broker) publishOne(ctx context.Context, p Publication) error {
	if err := b.check(p); err != nil {
		return err
	}
	done, err := b.begin()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, fmt.Errorf("not within %v", b.cfg.PublishTimeout))
	defer cancel()
	for {
		s := &sending{Publication: p, sent: make(chan struct{})}
		if s.Headers = maps.Clone(p.Headers); s.Headers == nil {
			s.Headers = amqp.Table{}
		}
		if err := b.offer(ctx, s); err != nil {
			return err
		}
		if err := s.await(ctx); !errors.Is(err, errNotWritten) {
			return err
		}
	}
}

// errNotWritten is the error of a message whose channel was closed before all of it was written: the broker takes no part of one.
var errNotWritten = errors.New("the channel was closed before")

// check refuses what the library would write half of, or the broker would close a channel or the connection for.
func (b *Broker) check(p Publication) error {
	if len(p.Body) > b.cfg.MaxMessage {
		return fmt.Errorf("%w: %d bytes, of %d", ErrTooLarge, len(p.Body), b.cfg.MaxMessage)
	}
	size := 0
	for _, f := range []struct{ name, value string }{
		{"exchange", p.Exchange}, {"routing key", p.Key}, {"content type", p.ContentType}, {"content encoding", p.ContentEncoding},
		{"correlation id", p.CorrelationId}, {"reply-to", p.ReplyTo}, {"expiration", p.Expiration}, {"message id", p.MessageId},
		{"type", p.Type}, {"user id", p.UserId}, {"app id", p.AppId},
	} {
		if size += len(f.value); len(f.value) > shortString {
			return fmt.Errorf("%w: its %s has %d bytes, of %d", ErrInvalid, f.name, len(f.value), shortString)
		}
	}
	if p.Expiration != "" {
		if ms, err := strconv.ParseUint(p.Expiration, 10, 32); err != nil || strconv.FormatUint(ms, 10) != p.Expiration {
			return fmt.Errorf("%w: its expiration %q is no number of milliseconds", ErrInvalid, p.Expiration)
		}
	}
	if err := p.Headers.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := measure(map[string]any(p.Headers), &size, 0); err != nil {
		return err
	}
	if size > maxHeaders {
		return fmt.Errorf("%w: %d bytes of headers, of %d", ErrTooLarge, size, maxHeaders)
	}
	return nil
}

// measure adds up about what a header takes, and finds names that are too long in it.
func measure(value any, size *int, depth int) error {
	if depth > 32 {
		return fmt.Errorf("%w: its headers are nested too deep", ErrInvalid)
	}
	*size += 9 // the longest number with its type, or the length
	switch v := value.(type) {
	case string:
		*size += len(v)
	case []byte:
		*size += len(v)
	case []any:
		for _, e := range v {
			if err := measure(e, size, depth+1); err != nil {
				return err
			}
		}
	case amqp.Table:
		return measure(map[string]any(v), size, depth)
	case map[string]any:
		for name, e := range v {
			if *size += len(name) + 1; len(name) > shortString {
				return fmt.Errorf("%w: the name of a header has %d bytes, of %d", ErrInvalid, len(name), shortString)
			}
			if err := measure(e, size, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// offer gives the message to a channel that is free. Until it has, nothing was sent.
func (b *Broker) offer(ctx context.Context, s *sending) error {
	if ctx.Err() != nil { // a select with a free channel might not look
		return fmt.Errorf("publish: %w", context.Cause(ctx))
	}
	for {
		now := b.publish.status()
		var sends chan *sending // nil, which takes none, without a connection or while it is blocked
		switch {
		case now.ended:
			return ErrClosed
		case now.up == nil && now.failed:
			return now.down()
		case now.up != nil && now.blocked == "":
			sends = b.sends
		}
		select {
		case sends <- s:
			return nil
		case <-now.changed:
		case <-ctx.Done():
			switch {
			case now.up == nil:
				return fmt.Errorf("%w; %w", now.down(), context.Cause(ctx))
			case now.blocked != "":
				return fmt.Errorf("%w: %s; %w", ErrBlocked, now.blocked, context.Cause(ctx))
			default:
				return fmt.Errorf("%w: too many messages are not confirmed; %w", ErrBlocked, context.Cause(ctx))
			}
		}
	}
}

// moreChannels bounds those that are opened beside ones that are stuck.
const moreChannels = 8

// servePublishing keeps the channels of a connection, each with the goroutine it belongs to, until it is lost. A channel that
// is stuck, which one bad queue can do to it, gets another beside it: others would otherwise wait with it.
func (b *Broker) servePublishing(c *conn) {
	var wg sync.WaitGroup
	var more atomic.Int32
	var keep func()
	stuck := func() {
		if b.publish.status().blocked != "" || more.Add(1) > moreChannels {
			return
		}
		b.cfg.Logger.WarnContext(b.ctx, "a channel to publish is stuck; another one is opened")
		wg.Go(keep)
	}
	keep = func() {
		for {
			pause := 20 * time.Millisecond
			opened, err := b.publishOn(c, stuck)
			if !opened { // such as when the broker allows no more
				pause = time.Second
			}
			if !c.over() {
				b.cfg.Logger.WarnContext(b.ctx, "a channel to publish was closed", "err", err)
			}
			select {
			case <-c.done:
				return
			case <-time.After(pause):
			}
		}
	}
	for range b.cfg.PublishChannels {
		wg.Go(keep)
	}
	wg.Wait()
}

// publishOn opens a channel and publishes on it until it is closed.
func (b *Broker) publishOn(c *conn, stuck func()) (opened bool, err error) {
	ch, err := c.amqp.Channel()
	if err != nil {
		return false, fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return false, fmt.Errorf("ask for confirmations: %w", err)
	}
	p := &pubChannel{
		conn: c, ch: ch, sends: b.sends, max: b.cfg.MaxUnconfirmed, patience: b.cfg.PublishTimeout / 4, stuck: stuck,
		freed: make(chan struct{}, 1), lost: make(chan struct{}), pending: map[int64]*sending{},
	}
	// Each message comes back once at most, and no more than max are on the way between two looks: the library never waits.
	p.returns = ch.NotifyReturn(make(chan amqp.Return, p.max))
	p.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
	p.err = p.run()
	close(p.lost)
	return true, p.err
}

// pubChannel is a channel in confirm mode and what is on its way through it. One goroutine publishes on it; it doesn't wait for
// confirmations, their callers do.
type pubChannel struct {
	conn  *conn
	ch    *amqp.Channel
	sends <-chan *sending
	max   int
	// patience is how long the oldest message may be on the way; the channel takes no more then, and calls stuck once.
	patience time.Duration
	stuck    func()
	closes   <-chan *amqp.Error
	freed    chan struct{} // holds one when a confirmation has come
	lost     chan struct{} // closed when run has ended, after err was set
	err      error

	next    int64
	waiting []unconfirmed // in the order of their writing; the first is not confirmed, when busy has looked

	mu      sync.Mutex
	returns <-chan amqp.Return // read with mu held only, so that a message given back is in pending before its confirmation is looked at
	pending map[int64]*sending
}

func (p *pubChannel) run() error {
	tick := time.NewTicker(100 * time.Millisecond) // for confirmations nobody waits for any more
	defer tick.Stop()
	told := false
	for {
		sends := p.sends
		full, stuck := p.busy()
		if full || stuck {
			sends = nil
		}
		if stuck && !told {
			p.stuck()
		}
		told = stuck
		select {
		case s := <-sends:
			p.sendAll(s)
		case <-p.freed:
		case <-tick.C:
		case e, ok := <-p.closes:
			return p.conn.closedBy(e, ok, "publish")
		case <-p.conn.done:
			return p.conn.err
		}
	}
}

// sendAll publishes a message, and what others are about to publish, in one write.
func (p *pubChannel) sendAll(s *sending) {
	p.conn.stream.hold()
	for ; s != nil; s = p.another() {
		p.send(s)
		if s.err != nil {
			p.sends = nil // the channel ends
		}
		if s.err != nil && !errors.Is(s.err, errNotWritten) { // what was written of it is unknown, and the next would follow it
			p.conn.cut(fmt.Errorf("write to the broker: %w", s.err))
		}
	}
	if err := p.conn.stream.release(); err != nil {
		p.sends = nil
		p.conn.cut(fmt.Errorf("write to the broker: %w", err))
	}
}

// another returns a message that waits to be published, after having let others run that may have one.
func (p *pubChannel) another() *sending {
	if len(p.waiting) >= p.max {
		return nil
	}
	for range 2 {
		select {
		case s := <-p.sends:
			return s
		default:
			runtime.Gosched()
		}
	}
	return nil
}

// unconfirmed is a message that is not known to be confirmed.
type unconfirmed struct {
	*amqp.DeferredConfirmation
	since time.Time
}

func (u unconfirmed) done() bool {
	select {
	case <-u.Done():
		return true
	default:
		return false
	}
}

// busy reports whether as many messages are on the way as may be, and whether one has been for too long.
func (p *pubChannel) busy() (full, stuck bool) {
	if len(p.waiting) >= p.max {
		p.waiting = slices.DeleteFunc(p.waiting, unconfirmed.done)
	}
	for len(p.waiting) > 0 && p.waiting[0].done() {
		p.waiting = p.waiting[1:]
	}
	return len(p.waiting) >= p.max, len(p.waiting) > 0 && time.Since(p.waiting[0].since) > p.patience
}

func (p *pubChannel) send(s *sending) {
	s.channel = p
	if p.ch.IsClosed() || p.conn.over() {
		s.err = errNotWritten
		close(s.sent)
		return
	}
	p.next++
	s.seq = p.next
	if !s.Optional {
		s.Headers[headerPublish] = s.seq
	}
	p.mu.Lock()
	p.lookLocked()
	p.pending[s.seq] = s
	p.mu.Unlock()
	s.confirmation, s.err = p.ch.PublishWithDeferredConfirm(s.Exchange, s.Key, !s.Optional, false, s.Publishing)
	switch {
	case errors.Is(s.err, amqp.ErrClosed): // what it says of the first part that it doesn't write; nor will it write another
		s.err = errNotWritten
	case s.err == nil:
		p.waiting = append(p.waiting, unconfirmed{s.confirmation, time.Now()})
	}
	close(s.sent)
	if s.abandoned.Load() {
		p.forget(s)
	}
}

// lookLocked takes in what the broker has given back.
func (p *pubChannel) lookLocked() {
	for {
		select {
		case r, ok := <-p.returns:
			if !ok {
				p.returns = nil
				return
			}
			if seq, ok := r.Headers[headerPublish].(int64); ok && p.pending[seq] != nil {
				p.pending[seq].returned = &r
			}
		default:
			return
		}
	}
}

func (p *pubChannel) forget(s *sending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, s.seq)
}

// sending is one message on its way.
type sending struct {
	Publication

	sent         chan struct{} // closed by the channel's goroutine when the message was written, after the following were set
	channel      *pubChannel
	seq          int64
	confirmation *amqp.DeferredConfirmation
	err          error

	returned  *amqp.Return // guarded by channel.mu
	abandoned atomic.Bool
}

// await returns when the broker has confirmed the message, or why it won't be known whether it has.
func (s *sending) await(ctx context.Context) error {
	select {
	case <-s.sent:
	case <-ctx.Done():
		s.abandoned.Store(true)
		select {
		case <-s.sent:
		default: // it is being written
			return &UnconfirmedError{context.Cause(ctx)}
		}
	}
	p := s.channel
	defer p.forget(s)
	switch {
	case errors.Is(s.err, errNotWritten):
		return s.err
	case s.err != nil:
		return s.unknown(ctx)
	}
	select {
	case <-s.confirmation.Done():
	case <-p.lost:
	case <-ctx.Done():
	}
	select {
	case p.freed <- struct{}{}:
	default:
	}
	switch {
	case s.confirmation.Acked():
		return s.fate()
	case isClosed(s.confirmation.Done()) && !p.ch.IsClosed():
		return ErrNacked
	}
	// The library counts what is on the way as refused when a channel ends: it isn't.
	return s.unknown(ctx)
}

// unknown is the error of a message that was not confirmed, for which its channel has ended or ends, or ctx has. Which of
// the library's notifications comes first isn't certain, nor whether it has closed the channel when the first does: only
// lost says that the channel has ended, and why.
func (s *sending) unknown(ctx context.Context) error {
	select {
	case <-s.channel.lost:
	case <-ctx.Done():
	}
	if isClosed(s.channel.lost) {
		return s.lost()
	}
	return &UnconfirmedError{context.Cause(ctx)}
}

// fate is what became of a message that was confirmed. The broker gives one back before it confirms it.
func (s *sending) fate() error {
	p := s.channel
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lookLocked()
	if r := s.returned; r != nil {
		return &ReturnedError{Exchange: r.Exchange, Key: r.RoutingKey, Code: int(r.ReplyCode), Text: r.ReplyText}
	}
	return nil
}

// lost is the error of a message whose channel ended before it was confirmed. When the broker closed the channel and names
// the message's exchange, that message is the one it refused; others on the way may have been taken.
func (s *sending) lost() error {
	r, ok := errors.AsType[*RefusedError](s.channel.err)
	if ok && s.Exchange != "" && strings.Contains(r.Text, "'"+s.Exchange+"'") {
		return &RefusedError{Doing: "publish to exchange " + s.Exchange, Reason: r.Reason, Code: r.Code, Text: r.Text}
	}
	return &UnconfirmedError{s.channel.err}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
