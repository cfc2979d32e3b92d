package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	amqp "github.com/rabbitmq/amqp091-go"
)

// bareLink is what both sides of a bare request and reply have: a connection to publish and one to consume, as the binding
// has, and a channel on each. The publishing one is shared by all callers, which the library allows.
type bareLink struct {
	publishing, consuming *amqp.Connection
	out                   *amqp.Channel
	queue                 string // that is consumed
	deliveries            <-chan amqp.Delivery
	returned              <-chan amqp.Return
}

// barePrefetch is how many deliveries are out at once.
const barePrefetch = 64

// newBareLink consumes a queue; without a name it is one of the connection's own, which goes with it.
func newBareLink(url, queue string) (l *bareLink, err error) {
	l = &bareLink{queue: queue}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.publishing, err = amqp.Dial(url); err != nil {
		return l, err
	}
	if l.consuming, err = amqp.Dial(url); err != nil {
		return l, err
	}
	if l.out, err = l.publishing.Channel(); err != nil {
		return l, err
	}
	if err = l.out.Confirm(false); err != nil {
		return l, err
	}
	l.returned = l.out.NotifyReturn(make(chan amqp.Return, 1))
	in, err := l.consuming.Channel()
	if err != nil {
		return l, err
	}
	if err = in.Qos(barePrefetch, 0, false); err != nil {
		return l, err
	}
	if queue == "" {
		own, err := in.QueueDeclare("", false, true, true, false, nil)
		if err != nil {
			return l, err
		}
		l.queue = own.Name
	}
	l.deliveries, err = in.Consume(l.queue, "", false, queue == "", false, false, nil)
	return l, err
}

func (l *bareLink) close() error {
	var errs []error
	for _, c := range []*amqp.Connection{l.publishing, l.consuming} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// publish sends a message and waits until the broker has it.
func (l *bareLink) publish(ctx context.Context, queue string, p amqp.Publishing) error {
	p.ContentType = "application/json"
	confirm, err := l.out.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, p)
	if err != nil {
		return err
	}
	switch ok, err := confirm.WaitContext(ctx); {
	case err != nil:
		return err
	case !ok:
		return errors.New("the broker refused a message")
	}
	return nil
}

// bareClient asks by amqp091-go alone.
type bareClient struct {
	*bareLink
	names queueNames
	body  []byte
	n     atomic.Int64
	wg    sync.WaitGroup

	mu      sync.Mutex
	waiting map[string]chan struct{}
}

// newBareClient has its replies come to a queue, or to one of its own.
func newBareClient(names queueNames, replies string) (*bareClient, error) {
	c := &bareClient{names: names, waiting: make(map[string]chan struct{})}
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(question))
	m.ContextID = "x-" + m.ID
	var err error
	if c.body, err = bareBody("SendMessage", protocol.SendMessageRequest{Message: m}); err != nil {
		return nil, err
	}
	if c.bareLink, err = newBareLink(names.URL, replies); err != nil {
		return nil, err
	}
	c.wg.Go(func() {
		for range c.returned { //nolint:revive // its queue was declared; a call would wait for ever, which shows
		}
	})
	c.wg.Go(func() {
		for d := range c.deliveries {
			if d.Ack(false) != nil {
				continue // the connection is closed, which ends the deliveries
			}
			c.mu.Lock()
			if answered, ok := c.waiting[d.CorrelationId]; ok {
				delete(c.waiting, d.CorrelationId)
				close(answered)
			}
			c.mu.Unlock()
		}
	})
	return c, nil
}

// bareBody is as large as what the binding sends.
func bareBody(method string, v any) ([]byte, error) {
	return json.Marshal(map[string]any{"jsonrpc": "2.0", "id": "1", "method": method, "params": v})
}

func (c *bareClient) close() error {
	err := c.bareLink.close()
	c.wg.Wait()
	return err
}

// call sends a request and waits for the broker's confirmation and for the reply.
func (c *bareClient) call(ctx context.Context) error {
	id := strconv.FormatInt(c.n.Add(1), 10)
	answered := make(chan struct{})
	c.mu.Lock()
	c.waiting[id] = answered
	c.mu.Unlock()
	err := c.publish(ctx, c.names.BareAgent, amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, CorrelationId: id, ReplyTo: c.queue, Body: c.body,
	})
	if err != nil {
		return err
	}
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serveBare answers bare requests: it acknowledges one when the broker has the reply.
func serveBare(ctx context.Context, names queueNames) error {
	link, err := newBareLink(names.URL, names.BareAgent)
	if err != nil {
		return err
	}
	body, err := bareBody("", protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart(answer)))
	if err != nil {
		return errors.Join(err, link.close())
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		for range link.returned { //nolint:revive // who asked is gone
		}
	})
	answering.Go(func() {
		for d := range link.deliveries {
			answering.Go(func() {
				if link.publish(ctx, d.ReplyTo, amqp.Publishing{
					DeliveryMode: amqp.Persistent, MessageId: d.MessageId, CorrelationId: d.CorrelationId, Body: body,
				}) == nil {
					_ = d.Ack(false) // it comes again if the connection is gone
				}
			})
		}
	})
	<-ctx.Done()
	err = link.close()
	answering.Wait()
	if err != nil {
		return fmt.Errorf("stop answering: %w", err)
	}
	return nil
}
