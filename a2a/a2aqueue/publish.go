package a2aqueue

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Publication is one message to be published.
type Publication struct {
	Exchange string // "" delivers to the queue that Key names
	Key      string
	// Optional says that a message which no queue takes is dropped in silence. Otherwise it is a *ReturnedError.
	Optional bool
	// Publishing is the message. Its headers are not changed; the broker's reader sees one more, "x-publish".
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

// UnconfirmedError says that the message may have reached the broker, or not: it left, and no confirmation came.
type UnconfirmedError struct{ Err error }

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("the broker didn't confirm the message: %v", e.Err)
}

// Unwrap returns why no confirmation came.
func (e *UnconfirmedError) Unwrap() error { return e.Err }

// Publish sends a message and returns when the broker has taken responsibility for it. Its errors are ErrClosed,
// ErrNotConnected, ErrBlocked, ErrTooLarge and ErrInvalid (certainly not sent), *ReturnedError, ErrNacked and *RefusedError
// (sent and not taken), and *UnconfirmedError (unknown). It is bounded by ctx and by BrokerConfig.PublishTimeout, waits for a
// connection that was just lost and fails when an attempt to make it again has failed.
func (b *Broker) Publish(ctx context.Context, p Publication) error { return errors.ErrUnsupported }
