package a2a

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// Transport speaks the protocol. a2ahttp.Transport implements it.
type Transport interface {
	// Binding names what carries the protocol: "http".
	Binding() string
	// Card fetches a peer's card and checks that it can be one.
	Card(ctx context.Context, p Peer) (*protocol.AgentCard, error)
	// Connect returns a client for the peer's card, or an error when no interface of it is one the transport speaks. It
	// does no I/O.
	Connect(ctx context.Context, p Peer, card *protocol.AgentCard) (Client, error)
}

// Client is the protocol spoken to one peer; the SDK's client has these methods. Its errors are the ones below, the
// SDK's *a2a.Error for what the peer itself answered, and others, after which it is unknown whether the request arrived.
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
