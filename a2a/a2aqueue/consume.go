package a2aqueue

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Subscription says what is consumed and by whom.
type Subscription struct {
	// Name is what metrics and logs call it: "requests", "replies", "events".
	Name string
	// Queue is consumed, unless Declare returns another name.
	Queue string
	// Declare declares what is needed, each time a connection was made or the queue was lost; it returns the queue to
	// consume. Nil declares nothing.
	Declare func(ctx context.Context, ch *amqp.Channel) (queue string, err error)
	// Consumer is the tag by which the broker's operators know the consumer. Defaults to one the broker makes up.
	Consumer string
	// Exclusive asks for the queue for this consumer alone.
	Exclusive bool
	// Args are the arguments of the consumer.
	Args amqp.Table
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
	// delivered again.
	Handle func(ctx context.Context, d *Delivery)
	// Up, if set, is called each time the queue is being consumed, with its name; Down when it no longer is. They are called
	// in turns by one goroutine and must not block.
	Up   func(queue string)
	Down func(err error)
}

// Delivery is one message a queue gave us. It must be settled once: by Ack, Nack or DeadLetter, from any goroutine.
type Delivery struct {
	// Delivery is the message. Its own methods must not be used: they would write to a channel that others own, and fail.
	amqp.Delivery
	// Queue it came from.
	Queue string
}

var (
	// ErrSettled is what settling a delivery for the second time returns.
	ErrSettled = errors.New("the delivery was settled before")
	// ErrStale is what settling a delivery returns when the channel it came by is gone: the broker delivers it again.
	ErrStale = errors.New("the delivery came by a channel that is closed; it comes again")
)

// Ack says that the message was dealt with and may be forgotten.
func (d *Delivery) Ack() error { return errors.ErrUnsupported }

// Nack gives the message back: to be delivered again, or to go where the queue's policy sends dead letters.
func (d *Delivery) Nack(requeue bool) error { return errors.ErrUnsupported }

// DeadLetter moves the message to the subscription's dead letters, with the reason in the header "x-a2a-reason" and the
// queue in "x-a2a-queue", and acknowledges it once the broker has confirmed that. If they can't be reached the message is
// rejected, so that it follows the queue's own policy. It takes no longer than BrokerConfig.PublishTimeout.
func (d *Delivery) DeadLetter(reason string) error { return errors.ErrUnsupported }

// Consume takes messages of a queue until ctx ends, whatever happens to the connection: it is made again and everything
// declared anew. It returns nil when ctx has ended and every handler has returned, ErrClosed after Close, and before that only
// what can't get better by trying again: a *RefusedError whose reason is ErrPrecondition, ErrAccess or, if
// Subscription.MissingIsFatal, ErrNotFound; and any error of Declare that is not the broker's. Wrong credentials and a
// missing virtual host don't end it; see Ready.
func (b *Broker) Consume(ctx context.Context, s Subscription) error { return errors.ErrUnsupported }
