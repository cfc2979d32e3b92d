package a2aqueue

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The names a deployment has unless it chooses others.
const (
	// DeadExchange gets what can't be delivered or understood, DeadQueue keeps it for people to look at.
	DeadExchange = "a2a.dlx"
	DeadQueue    = "a2a.dead"
	// RequestQueuePrefix and ReplyQueuePrefix begin the names of an agent's request queue and a deployment's reply queue.
	RequestQueuePrefix = "a2a."
	ReplyQueuePrefix   = "a2a.replies."
	inboxPrefix        = "a2a.inbox."
)

// Bounds of queues. They are part of the binding: a queue that is declared with others is another queue.
const (
	deliveryLimit  = 20
	maxQueueLength = 100_000
	maxQueueBytes  = 1 << 30
	deadLength     = 10_000
	deadTTL        = 14 * 24 * time.Hour
	inboxLength    = 100_000
)

// durableArgs are the arguments of a request queue and of a reply queue: a full one refuses what is published, so that the
// publisher knows.
func durableArgs() amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:           amqp.QueueTypeQuorum,
		"x-delivery-limit":          int64(deliveryLimit),
		amqp.QueueMaxLenArg:         int64(maxQueueLength),
		amqp.QueueMaxLenBytesArg:    int64(maxQueueBytes),
		amqp.QueueOverflowArg:       amqp.QueueOverflowRejectPublish,
		"x-dead-letter-exchange":    DeadExchange,
		"x-dead-letter-routing-key": DeadQueue,
	}
}

func deadArgs() amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:       amqp.QueueTypeQuorum,
		amqp.QueueMaxLenArg:     int64(deadLength),
		amqp.QueueOverflowArg:   amqp.QueueOverflowDropHead,
		amqp.QueueMessageTTLArg: deadTTL.Milliseconds(),
	}
}

// DeclareDead declares the dead-letter exchange and its queue.
func DeclareDead(_ context.Context, ch *amqp.Channel) error {
	if err := ch.ExchangeDeclare(DeadExchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %s: %w", DeadExchange, err)
	}
	if _, err := ch.QueueDeclare(DeadQueue, true, false, false, false, deadArgs()); err != nil {
		return fmt.Errorf("declare queue %s: %w", DeadQueue, err)
	}
	if err := ch.QueueBind(DeadQueue, DeadQueue, DeadExchange, false, nil); err != nil {
		return fmt.Errorf("bind queue %s: %w", DeadQueue, err)
	}
	return nil
}

// DeclareDurable declares a request or reply queue as the binding has it, and where its dead letters go. A queue of the
// name with other arguments is refused by the broker (PRECONDITION_FAILED).
func DeclareDurable(ctx context.Context, ch *amqp.Channel, name string) error {
	if err := DeclareDead(ctx, ch); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, durableArgs()); err != nil {
		return fmt.Errorf("declare queue %s: %w", name, err)
	}
	return nil
}

// declareInbox declares the queue of a process, which goes with its connection. Each has a name of its own, since the one
// of a connection that was lost may still be there.
func declareInbox(ch *amqp.Channel, name string) (string, error) {
	if _, err := ch.QueueDeclare(name, false, true, true, false, amqp.Table{amqp.QueueMaxLenArg: int64(inboxLength)}); err != nil {
		return "", fmt.Errorf("declare queue %s: %w", name, err)
	}
	return name, nil
}
