package a2aqueue

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Binding is what cards call this binding of the protocol.
const Binding protocol.TransportProtocol = "AMQP"

// The operations, as the property type of a request names them. GetAgentCard is the binding's own: an agent behind a queue
// has no well-known URL.
const (
	methodSend           = "SendMessage"
	methodStream         = "SendStreamingMessage"
	methodSubscribe      = "SubscribeToTask"
	methodGet            = "GetTask"
	methodList           = "ListTasks"
	methodCancel         = "CancelTask"
	methodPushGet        = "GetTaskPushNotificationConfig"
	methodPushCreate     = "CreateTaskPushNotificationConfig"
	methodPushList       = "ListTaskPushNotificationConfigs"
	methodPushDelete     = "DeleteTaskPushNotificationConfig"
	methodExtendedCard   = "GetExtendedAgentCard"
	methodCard           = "GetAgentCard"
	typeResponse         = "Response"  // a whole answer
	typeEvent            = "Event"     // one of a stream
	typeKeepAlive        = "KeepAlive" // nothing new on a stream, which goes on
	contentType          = "application/json"
	headerStreamTo       = "a2a-stream-to"
	headerSeq            = "a2a-seq"
	headerEnd            = "a2a-end"
	headerStreamID       = "a2a-stream-id"
	headerDeadline       = "a2a-deadline"
	headerRequestMessage = "a2a-request-message-id"
	headerKeepAlive      = "a2a-keep-alive"
	headerTraceparent    = "traceparent"
)

// newID returns an id that nobody can guess.
func newID() string { return rand.Text() }

// ownHeaders are those that are no parameters of the request: the binding's, and the broker's.
func ownHeader(name string) bool {
	switch strings.ToLower(name) {
	case headerStreamTo, headerStreamID, headerSeq, headerEnd, headerDeadline, headerRequestMessage, headerKeepAlive,
		"cc", "bcc", "x-death", "x-delivery-count", "x-publish", "x-a2a-reason", "x-a2a-queue":
		return true
	}
	return strings.HasPrefix(strings.ToLower(name), "x-first-death-") || strings.HasPrefix(strings.ToLower(name), "x-last-death-")
}

// putParams writes parameters of a request as headers.
func putParams(h amqp.Table, params a2aclient.ServiceParams) {
	for name, values := range params {
		if name == "" || len(name) > 128 || ownHeader(name) {
			continue
		}
		switch {
		case strings.EqualFold(name, protocol.SvcParamExtensions):
			if len(values) > 0 {
				h[protocol.SvcParamExtensions] = strings.Join(values, ",")
			}
		case strings.EqualFold(name, protocol.SvcParamVersion):
			if len(values) > 0 {
				h[protocol.SvcParamVersion] = values[0]
			}
		case len(values) == 1:
			h[name] = values[0]
		case len(values) > 1:
			list := make([]any, len(values))
			for i, v := range values {
				list[i] = v
			}
			h[name] = list
		}
	}
}

// takeParams reads the headers that are parameters of a request, by their names in lower case. Values that are no texts are
// left out.
func takeParams(h amqp.Table) map[string][]string {
	params := make(map[string][]string, len(h))
	for name, v := range h {
		if ownHeader(name) {
			continue
		}
		var values []string
		switch v := v.(type) {
		case string:
			values = []string{v}
		case []byte:
			values = []string{string(v)}
		case []any:
			for _, e := range v {
				if s, ok := e.(string); ok {
					values = append(values, s)
				}
			}
		}
		name = strings.ToLower(name)
		if name == strings.ToLower(protocol.SvcParamExtensions) {
			values = splitList(values)
		}
		if len(values) > 0 {
			params[name] = append(params[name], values...)
		}
	}
	return params
}

func splitList(values []string) []string {
	var out []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// request is one request for an operation, as it is on the wire.
type request struct {
	method    string
	rpcID     json.RawMessage
	params    json.RawMessage
	messageID string        // of a message sent; of another request one of its own
	exchange  string        // correlates what comes back
	replyTo   string        // gets the final answer
	streamTo  string        // gets what comes before that; empty: so does replyTo
	deadline  time.Time     // after which nobody wants an answer
	expires   time.Time     // after which the request needn't be taken; none: the deadline
	keepAlive time.Duration // how often a stream is to show that it is there; 0: never
	userID    string        // vouched for by the broker
	service   map[string][]string
	redeliver bool
}

// answersTo is the queue that gets the answer to an operation, or the events of one.
func (r *request) answersTo() string {
	if r.streamTo != "" {
		return r.streamTo
	}
	return r.replyTo
}

// finalTo is the queue that gets the final answer to a message besides, if any.
func (r *request) finalTo() string {
	if r.streamTo != "" && r.replyTo != r.streamTo && sends(r.method) {
		return r.replyTo
	}
	return ""
}

// trace returns the W3C trace context the request came with.
func (r *request) trace() string {
	if v := r.service[headerTraceparent]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func sends(method string) bool   { return method == methodSend || method == methodStream }
func streams(method string) bool { return method == methodStream || method == methodSubscribe }

// readRequest reads a request. What is wrong with it is one of the protocol's errors; the request then holds where to answer,
// if that could be read.
func readRequest(d *amqp.Delivery, maxBody int) (*request, error) {
	r := &request{
		method: d.Type, rpcID: null, messageID: d.MessageId, exchange: d.CorrelationId, replyTo: d.ReplyTo, userID: d.UserId,
		redeliver: d.Redelivered, service: takeParams(d.Headers),
	}
	r.streamTo, _ = d.Headers[headerStreamTo].(string)
	if n, ok := integer(d.Headers[headerKeepAlive]); ok && n > 0 {
		r.keepAlive = time.Duration(min(max(n, 1), 3600)) * time.Second
	}
	if s, ok := d.Headers[headerDeadline].(string); ok {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return r, fmt.Errorf("%w: header %s is no time of RFC 3339", protocol.ErrInvalidRequest, headerDeadline)
		}
		r.deadline = t
	}
	if err := checkContent(d); err != nil {
		return r, err
	}
	if len(d.Body) > maxBody {
		return r, fmt.Errorf("%w: the request has %d bytes, and %d are accepted", protocol.ErrInvalidRequest, len(d.Body), maxBody)
	}
	rpc, err := decodeRequest(d.Body)
	r.rpcID = rpc.ID
	if err != nil {
		return r, err
	}
	if err := checkVersion(r.service[strings.ToLower(protocol.SvcParamVersion)]); err != nil {
		return r, err
	}
	if d.Type != "" && d.Type != rpc.Method {
		return r, fmt.Errorf("%w: the property type says %q, the body %q", protocol.ErrInvalidRequest, d.Type, rpc.Method)
	}
	r.method, r.params = rpc.Method, rpc.Params
	return r, nil
}

// checkContent refuses bodies that are not JSON.
func checkContent(d *amqp.Delivery) error {
	if d.ContentType != "" {
		t, _, err := mime.ParseMediaType(d.ContentType)
		if err != nil || t != contentType && !strings.HasSuffix(t, "+json") {
			return fmt.Errorf("%w: %q is no JSON", protocol.ErrUnsupportedContentType, d.ContentType)
		}
	}
	if e := strings.ToLower(d.ContentEncoding); e != "" && e != "utf-8" && e != "identity" {
		return fmt.Errorf("%w: the content encoding %q is not understood", protocol.ErrUnsupportedContentType, d.ContentEncoding)
	}
	return nil
}

// checkVersion refuses versions that aren't spoken. None is 0.3, as the protocol has it.
func checkVersion(values []string) error {
	got := "0.3"
	if len(values) > 0 && strings.TrimSpace(values[0]) != "" {
		got = strings.TrimSpace(values[0])
	}
	if want := string(protocol.Version); got != want && !strings.HasPrefix(got, want+".") {
		return fmt.Errorf("%w: this is %s, and the request is of %q", protocol.ErrVersionNotSupported, want, got)
	}
	return nil
}

// publishing writes the request.
func (r *request) publishing(body []byte, now time.Time) amqp.Publishing {
	p := amqp.Publishing{
		ContentType: contentType, DeliveryMode: amqp.Persistent, Type: r.method, MessageId: r.messageID, CorrelationId: r.exchange,
		ReplyTo: r.replyTo, UserId: r.userID, Timestamp: now, Body: body, Headers: amqp.Table{},
	}
	putParams(p.Headers, r.service)
	if _, ok := p.Headers[protocol.SvcParamVersion]; !ok {
		p.Headers[protocol.SvcParamVersion] = string(protocol.Version)
	}
	if r.streamTo != "" {
		p.Headers[headerStreamTo] = r.streamTo
	}
	if r.keepAlive > 0 {
		p.Headers[headerKeepAlive] = int64(r.keepAlive / time.Second)
	}
	if !r.deadline.IsZero() {
		p.Headers[headerDeadline] = r.deadline.UTC().Format(time.RFC3339Nano)
	}
	if end := earlier(r.deadline, r.expires); !end.IsZero() {
		p.Expiration = expiration(end.Sub(now))
	}
	return p
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// expiration writes how long a message is worth keeping. The broker takes up to 32 bits of milliseconds.
func expiration(left time.Duration) string {
	return strconv.FormatInt(min(max(left.Milliseconds(), 1), math.MaxInt32), 10)
}

// answer is one message that comes back.
type answer struct {
	kind     string // typeResponse, typeEvent or typeKeepAlive
	exchange string
	stream   string // which stream an event is of: those of two processes that took up the same request differ
	seq      int64  // of an event, from 1; of a keep-alive the last that was sent
	end      bool   // nothing comes after it
	body     []byte
	// Of the request: its message id, and its trace context.
	messageID string
	trace     string
	// extensions are those the agent has activated.
	extensions []string
	userID     string // vouched for by the broker
}

var errMalformed = errors.New("the message is none of the binding")

// readAnswer reads a message that comes back. Its body isn't looked at.
func readAnswer(d *amqp.Delivery) (answer, error) {
	a := answer{kind: d.Type, exchange: d.CorrelationId, body: d.Body, userID: d.UserId}
	a.messageID, _ = d.Headers[headerRequestMessage].(string)
	a.trace, _ = d.Headers[headerTraceparent].(string)
	a.end, _ = d.Headers[headerEnd].(bool)
	a.stream, _ = d.Headers[headerStreamID].(string)
	a.extensions = takeParams(amqp.Table{protocol.SvcParamExtensions: d.Headers[protocol.SvcParamExtensions]})[strings.ToLower(protocol.SvcParamExtensions)]
	switch d.Type {
	case typeResponse:
		a.end = true
		return a, nil
	case typeEvent, typeKeepAlive:
		n, ok := integer(d.Headers[headerSeq])
		if !ok || n < 0 || n == 0 && d.Type == typeEvent {
			return a, fmt.Errorf("%w: header %s of a message of type %s is %v", errMalformed, headerSeq, d.Type, d.Headers[headerSeq])
		}
		a.seq = n
		return a, nil
	}
	return a, fmt.Errorf("%w: its type is %q", errMalformed, d.Type)
}

// publishing writes the answer.
func (a *answer) publishing(now time.Time) amqp.Publishing {
	p := amqp.Publishing{
		ContentType: contentType, DeliveryMode: amqp.Transient, Type: a.kind, CorrelationId: a.exchange, MessageId: newID(),
		UserId: a.userID, Timestamp: now, Body: a.body,
		Headers: amqp.Table{protocol.SvcParamVersion: string(protocol.Version)},
	}
	if a.messageID != "" {
		p.Headers[headerRequestMessage] = a.messageID
	}
	if a.trace != "" {
		p.Headers[headerTraceparent] = a.trace
	}
	if len(a.extensions) > 0 {
		p.Headers[protocol.SvcParamExtensions] = strings.Join(slices.Compact(slices.Sorted(slices.Values(a.extensions))), ",")
	}
	if a.kind != typeResponse {
		p.Headers[headerSeq], p.Headers[headerStreamID] = a.seq, a.stream
		if a.end {
			p.Headers[headerEnd] = true
		}
	}
	return p
}

// integer reads a number of a header, of whatever width.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int16:
		return int64(n), true
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int:
		return int64(n), true
	}
	return 0, false
}
