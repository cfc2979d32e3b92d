package a2aqueue

import (
	"context"
	"encoding/json"
	"errors"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The decoders, for tests of what they make of other people's bytes.
type (
	Request = request
	Answer  = answer
)

var (
	ReadRequest    = readRequest
	ReadAnswer     = readAnswer
	ReadReply      = readReply
	DecodeResponse = decodeResponse
	DecodeEvent    = decodeEvent
	TakeParams     = takeParams
	ToRPC          = toRPC
	FromRPC        = fromRPC
	EncodeError    = encodeError
	Passing        = passing
	DeclareInbox   = func(_ context.Context, ch *amqp.Channel, name string) error {
		_, err := declareInbox(ch, name)
		return err
	}
)

// What a decoded request says.
func (r *request) Method() string          { return r.method }
func (r *request) RPCID() json.RawMessage  { return r.rpcID }
func (r *request) Params() json.RawMessage { return r.params }
func (r *request) AnswersTo() string       { return r.answersTo() }
func (r *request) FinalTo() string         { return r.finalTo() }

// What a decoded answer says.
func (a answer) Seq() int64 { return a.seq }
func (a answer) End() bool  { return a.end }

// Waiting is how many exchanges of a factory's clients are under way.
func (f *Factory) Waiting() int {
	f.inbox.mu.Lock()
	defer f.inbox.mu.Unlock()
	return len(f.inbox.waiting)
}

// DurableArgs are the arguments of a request or reply queue.
var DurableArgs = durableArgs

// UnderstandAnswer reads the body of an answer as a client does.
func UnderstandAnswer(a answer) error {
	if a.kind == typeKeepAlive {
		return nil
	}
	_, err := decodeEvent(a.body)
	if _, said := errors.AsType[*protocol.Error](err); said {
		return nil
	}
	return err
}
