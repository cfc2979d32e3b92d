package a2aqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DeadLetter is a message that could not be delivered or understood, as it lies in [DeadQueue].
type DeadLetter struct {
	// Queue it was in.
	Queue string `json:"queue"`
	// Reason is what whoever gave it up said, or the broker's word: expired, rejected, maxlen, delivery_limit.
	Reason string `json:"reason"`
	// Type is the operation of a request, or "Response".
	Type string `json:"type,omitempty"`
	// MessageID is the id of the message that was sent, or that a response answers. Empty: it is about none.
	MessageID string `json:"messageId,omitempty"`
	// ReplyTo is where the answer to a request was to go.
	ReplyTo string `json:"replyTo,omitempty"`
	// At is when it was given up, or zero when nothing says so.
	At time.Time `json:"at,omitzero"`
	// Size is that of the body, in bytes.
	Size int `json:"size"`
}

// DeadLetters returns the oldest dead letters of the virtual host, as many as limit, and how many there are. They stay where
// they are, and in their order. Without a queue for them there are none.
func (b *Broker) DeadLetters(ctx context.Context, limit int) (letters []DeadLetter, total int, err error) {
	err = b.Do(ctx, func(ctx context.Context, ch *amqp.Channel) error {
		var last uint64
		for len(letters) < limit && ctx.Err() == nil {
			d, ok, err := ch.Get(DeadQueue, false)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			letters = append(letters, readLetter(&d))
			last, total = d.DeliveryTag, len(letters)+int(d.MessageCount)
		}
		if last > 0 {
			return ch.Nack(last, true, true) // all of them, back to where they were
		}
		return context.Cause(ctx)
	})
	if refused, ok := errors.AsType[*RefusedError](err); ok && errors.Is(refused, ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("look into the dead letters: %w", err)
	}
	return letters, total, nil
}

// readLetter reads what a message says of itself and of its death. It may hold anything.
func readLetter(d *amqp.Delivery) DeadLetter {
	text := func(name string) string {
		s, _ := d.Headers[name].(string)
		return s
	}
	l := DeadLetter{
		Queue: text(headerQueue), Reason: text(headerReason), Type: d.Type, MessageID: cmp.Or(text(headerRequestMessage), d.MessageId),
		ReplyTo: d.ReplyTo, Size: len(d.Body),
	}
	deaths, _ := d.Headers["x-death"].([]any)
	for _, v := range deaths {
		death, _ := v.(amqp.Table)
		queue, _ := death["queue"].(string)
		reason, _ := death["reason"].(string)
		at, _ := death["time"].(time.Time)
		if l.Queue == "" || l.At.IsZero() && l.Queue == queue {
			l.Queue, l.Reason, l.At = queue, cmp.Or(l.Reason, reason), at
		}
	}
	return l
}

// DeclareQueue declares a request or reply queue as the binding has it, so that messages may be sent to it before anyone
// takes them.
func (b *Broker) DeclareQueue(ctx context.Context, name string) error {
	return b.Do(ctx, func(ctx context.Context, ch *amqp.Channel) error { return DeclareDurable(ctx, ch, name) })
}

// DeleteQueue deletes a queue with what is in it. One that doesn't exist is no error.
func (b *Broker) DeleteQueue(ctx context.Context, name string) error {
	return b.Do(ctx, func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
}
