package a2a

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// kind is what a failed request means for the message it was to send.
type kind int

const (
	unknown kind = iota // it may have arrived
	notSent             // it hasn't; trying again may help
	refused             // it has been turned down for good
	gone                // there is nobody at the address
	queued              // it waits for the peer, whose answer comes another way
)

// outcome is what a failed request means.
type outcome struct {
	kind  kind
	peers bool          // the peer itself said so, in the protocol
	final bool          // of notSent: trying again at once won't help
	after time.Duration // when it wants to be asked again
}

// outcomeOf sorts the errors of a [Client].
func outcomeOf(err error) outcome {
	if _, ok := errors.AsType[*AddressError](err); ok {
		return outcome{kind: refused}
	}
	if _, ok := errors.AsType[*CardError](err); ok {
		return outcome{kind: refused}
	}
	if _, ok := errors.AsType[*NotSentError](err); ok {
		return outcome{kind: notSent}
	}
	if _, ok := errors.AsType[*QueuedError](err); ok {
		return outcome{kind: queued}
	}
	if _, ok := errors.AsType[*UnroutableError](err); ok {
		return outcome{kind: notSent, final: true}
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return outcome{kind: refused, peers: true}
	}
	if _, ok := errors.AsType[*MediaTypeError](err); ok {
		return outcome{kind: refused}
	}
	if s, ok := errors.AsType[*StatusError](err); ok {
		switch {
		case s.Code == http.StatusNotFound || s.Code == http.StatusMethodNotAllowed || s.Code == http.StatusGone:
			return outcome{kind: gone}
		case s.Code == http.StatusTooManyRequests || s.Code == http.StatusServiceUnavailable || s.Code == http.StatusTooEarly:
			return outcome{kind: notSent, after: s.RetryAfter}
		case s.Code >= 300 && s.Code < 500 && s.Code != http.StatusRequestTimeout:
			return outcome{kind: refused}
		}
		return outcome{kind: unknown, after: s.RetryAfter}
	}
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnreadable) {
		return outcome{kind: refused}
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return outcome{kind: refused}
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return outcome{kind: refused}
	}
	return outcome{kind: unknown}
}
