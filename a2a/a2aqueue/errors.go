package a2aqueue

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	// ErrClosed is what a broker's methods return after Close.
	ErrClosed = errors.New("the connection to the broker was closed by us")
	// ErrNotConnected says that the message has certainly not left: there is no connection. It wraps why.
	ErrNotConnected = errors.New("not connected to the broker")
	// ErrNacked says that the broker had the message and didn't take it, such as a full queue that rejects.
	ErrNacked = errors.New("the broker refused the message")
	// ErrBlocked says that the message has certainly not left: the broker takes none, since its memory or disk is full, or it
	// is slow to confirm those that it has.
	ErrBlocked = errors.New("the broker takes no messages at present")
	// ErrTooLarge says that the message is over BrokerConfig.MaxMessage, or its headers over 64 KiB, and wasn't sent.
	ErrTooLarge = errors.New("the message is larger than may be sent")
	// ErrInvalid says that the message can't be written as AMQP, and wasn't sent.
	ErrInvalid = errors.New("the message can't be written as AMQP")

	// ErrCredentials is the reason of a RefusedError: the broker doesn't know the user, or not with this password.
	ErrCredentials = errors.New("the broker doesn't accept the user name and password")
	// ErrVhost is the reason of a RefusedError: the virtual host doesn't exist, or the user may not use it.
	ErrVhost = errors.New("the virtual host doesn't exist or may not be used")
	// ErrAccess is the reason of a RefusedError: the user may not do this.
	ErrAccess = errors.New("the broker's permissions don't allow it")
	// ErrNotFound is the reason of a RefusedError: the queue or the exchange doesn't exist.
	ErrNotFound = errors.New("the queue or exchange doesn't exist")
	// ErrPrecondition is the reason of a RefusedError: what is declared exists with other properties or arguments.
	ErrPrecondition = errors.New("it exists with other properties or arguments")
	// ErrLocked is the reason of a RefusedError: another connection has the queue for itself.
	ErrLocked = errors.New("another connection has the queue for itself")
)

// RefusedError is what the broker refused, in its own words. Errors.Is finds the reason among the errors of this package.
type RefusedError struct {
	Doing  string // "connect to amqp://host:port/vhost"
	Reason error  // ErrAccess and the like, or nil
	Code   int    // as AMQP numbers it: 403, 404, 406 …
	Text   string // as the broker put it
}

func (e *RefusedError) Error() string {
	if e.Reason == nil {
		return fmt.Sprintf("%s: the broker says %d %s", e.Doing, e.Code, e.Text)
	}
	return fmt.Sprintf("%s: %v (the broker says %d %s)", e.Doing, e.Reason, e.Code, e.Text)
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

// reasons are those of errors that close a channel.
var reasons = map[int]error{
	amqp.AccessRefused: ErrAccess, amqp.NotFound: ErrNotFound, amqp.ResourceLocked: ErrLocked, amqp.PreconditionFailed: ErrPrecondition,
}

// refused turns what the broker closed a channel or a connection with into our error, and leaves others as they are.
func refused(doing string, err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok || !e.Server {
		return fmt.Errorf("%s: %w", doing, err)
	}
	r := &RefusedError{Doing: doing, Reason: reasons[e.Code], Code: e.Code, Text: e.Reason}
	if e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "exclusive") { // another consumer has it, which may end
		r.Reason = ErrLocked
	}
	return r
}

// closedBy is why a channel or a connection was closed, as its notification says. There is none when it ended before we could
// ask for one.
func closedBy(e *amqp.Error, ok bool, doing string) error {
	switch {
	case !ok:
		return fmt.Errorf("%s: it ended as soon as it was open, and the library doesn't say why", doing)
	case e.Server:
		return refused(doing, e)
	}
	return fmt.Errorf("the connection broke: %s", e.Reason)
}

// handshakeRefused is the error of a broker that doesn't let us in, or nil if it was none of its.
func handshakeRefused(doing string, err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return nil
	}
	// The library makes the first two up when the broker hangs up without a word, and then knows only where it was; the
	// third when the broker has no mechanism that we have.
	if !e.Server && e != amqp.ErrCredentials && e != amqp.ErrVhost && e != amqp.ErrSASL {
		return nil
	}
	r := &RefusedError{Doing: doing, Code: e.Code, Text: e.Reason}
	switch {
	case e == amqp.ErrVhost, e.Code == amqp.NotAllowed, e.Code == amqp.NotFound:
		r.Reason = ErrVhost
	case e.Code == amqp.AccessRefused:
		r.Reason = ErrCredentials
	}
	return r
}

// permanent reports whether an error of a declaration or a consumer can't get better by trying again.
func permanent(err error) bool {
	return errors.Is(err, ErrAccess) || errors.Is(err, ErrPrecondition)
}
