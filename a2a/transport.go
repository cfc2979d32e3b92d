package a2a

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// BindingAMQP is the binding of the protocol for peers behind a queue, as cards name it.
const BindingAMQP = "AMQP"

// Transport speaks the protocol. a2ahttp.Transport and a2aqueue.Transport implement it.
type Transport interface {
	// Binding names what carries the protocol: "http", or [BindingAMQP].
	Binding() string
	// Card fetches a peer's card and checks that it can be one.
	Card(ctx context.Context, p Peer) (*protocol.AgentCard, error)
	// Connect returns a client for the peer's card, or an error when no interface of it is one the transport speaks. It
	// does no I/O.
	Connect(ctx context.Context, p Peer, card *protocol.AgentCard) (Client, error)
}

// Client is the protocol spoken to one peer; the SDK's client has these methods. Its errors are the ones below, the
// SDK's *a2a.Error for what the peer itself answered, and others, after which it is unknown whether the request arrived.
//
// Of a client over a queue, a request may wait there until the deadline of its context, and a message's final response
// comes by the deployment's reply queue, to [Relay.Reply], in this life of the process or another, whatever is heard here.
// When nothing more is heard of a message that the broker has confirmed, the error is a *[QueuedError]. A stream on which
// the peer has said something ends with an error when the peer is gone, however silently.
type Client interface {
	SendMessage(ctx context.Context, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error)
	SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error]
	SubscribeToTask(ctx context.Context, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error]
	GetTask(ctx context.Context, req *protocol.GetTaskRequest) (*protocol.Task, error)
	ListTasks(ctx context.Context, req *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error)
	CancelTask(ctx context.Context, req *protocol.CancelTaskRequest) (*protocol.Task, error)
}

// NotSentError says that a request has certainly not left: there was no connection.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *NotSentError) Unwrap() error { return e.Err }

// UnroutableError says that a request was not taken since there is no such queue: nothing was sent.
type UnroutableError struct {
	Queue string
	Err   error // what the broker said; may be nil
}

func (e *UnroutableError) Error() string {
	return fmt.Sprintf("there is no queue %q at the broker", e.Queue)
}

// Unwrap returns what the broker said.
func (e *UnroutableError) Unwrap() error { return e.Err }

// QueuedError says that a message is certainly in the peer's queue, or was taken from it, and that nothing more is heard
// of it here: its answer comes by the reply queue.
type QueuedError struct{ Err error }

func (e *QueuedError) Error() string {
	if e.Err == nil {
		return "the message is in the peer's queue"
	}
	return fmt.Sprintf("the message is in the peer's queue, and nothing more is heard of it: %v", e.Err)
}

// Unwrap returns why nothing more is heard, or nil.
func (e *QueuedError) Unwrap() error { return e.Err }

// StatusError is an answer whose HTTP status says that there is none.
type StatusError struct {
	Code       int
	Status     string // "404 Not Found"
	URL        string
	RetryAfter time.Duration
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s answered %s", e.URL, e.Status) }

// MediaTypeError is an answer that can't be one of the protocol, such as a web page.
type MediaTypeError struct {
	MediaType string
	URL       string
}

func (e *MediaTypeError) Error() string {
	return fmt.Sprintf("%s answered with %q, which is not A2A; check the address", e.URL, e.MediaType)
}

// ErrTooLarge is an answer over the bound.
var ErrTooLarge = errors.New("the answer is larger than is accepted")

// ErrUnreadable is an answer that has the right form and can't be read.
var ErrUnreadable = errors.New("the answer can't be read")

// CardError says what is wrong with a card that was fetched.
type CardError struct{ Reason string }

func (e *CardError) Error() string { return e.Reason }
