package a2aqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
)

// FactoryConfig configures a [Factory].
type FactoryConfig struct {
	Broker *Broker // required
	// URL is the broker's. It may hold credentials, which are taken out. The interfaces of cards must name its host, port and
	// virtual host, or one of Aliases. Empty: the broker of an interface isn't looked at, only its queue.
	URL string
	// Aliases are further addresses that lead to the same virtual host, as amqp://host:port/vhost.
	Aliases []string
	// ReplyTo is the durable queue that gets the final answer to every message sent, besides what the caller gets; see
	// [Replies]. Empty: only the caller gets it.
	ReplyTo string
	// UserID is the user we are at the broker, which vouches for it to the agent. It must be the one of URL, which it
	// defaults to. A single "-" sends none.
	UserID string
	// MaxBody bounds one answer, and one event of a stream, in bytes. Defaults to 16 MiB.
	MaxBody int
	// RequestTimeout bounds how long a request other than a message waits for its answer, and SubscribeToTask for the first
	// sign of it, if its context doesn't end before. Defaults to 30 seconds.
	RequestTimeout time.Duration
	// KeepAlive is how often an agent is asked to show that a stream it said something on is still there. When it doesn't
	// for three times as long, the stream is broken. Defaults to 15 seconds; whole seconds.
	KeepAlive time.Duration
	// Registry takes the metrics; nil keeps them to ourselves.
	Registry prometheus.Registerer
}

// Factory makes clients of agents behind queues of one broker. All of them share one queue for answers, which is made at
// the first use. It is an a2aclient.TransportFactory, for a2aclient.WithTransport(string(a2aqueue.Binding), factory).
// Whoever made it closes it, before the broker.
type Factory struct {
	cfg       FactoryConfig
	addresses []Address
	inbox     *inbox
	metrics   *clientMetrics
}

var _ a2aclient.TransportFactory = (*Factory)(nil)

// NewFactory returns a Factory. It does no I/O.
func NewFactory(cfg FactoryConfig) (*Factory, error) {
	return newFactory(cfg, newClientMetrics(cfg.Registry))
}

func newFactory(cfg FactoryConfig, metrics *clientMetrics) (*Factory, error) {
	if cfg.Broker == nil {
		return nil, errors.New("a2aqueue: FactoryConfig.Broker is required")
	}
	if cfg.MaxBody < 0 || cfg.RequestTimeout < 0 || cfg.KeepAlive < 0 {
		return nil, errors.New("a2aqueue: FactoryConfig has a negative bound; zero is the default, anything above is allowed")
	}
	if cfg.ReplyTo != "" {
		if err := CheckQueueName(cfg.ReplyTo); err != nil {
			return nil, fmt.Errorf("a2aqueue: FactoryConfig.ReplyTo: %w", err)
		}
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, defaultMaxBody)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 30*time.Second)
	cfg.KeepAlive = max(cmp.Or(cfg.KeepAlive, 15*time.Second).Round(time.Second), time.Second)
	f := &Factory{cfg: cfg, metrics: metrics}
	if cfg.URL != "" {
		home, err := BrokerAddress(cfg.URL)
		if err != nil {
			return nil, fmt.Errorf("a2aqueue: FactoryConfig.URL: %w", err)
		}
		f.addresses = append(f.addresses, home)
		uri, err := amqp.ParseURI(cfg.URL)
		if err != nil {
			return nil, errors.New("a2aqueue: FactoryConfig.URL can't be read")
		}
		f.cfg.UserID = cmp.Or(cfg.UserID, uri.Username)
	}
	if f.cfg.UserID == "-" {
		f.cfg.UserID = ""
	}
	for _, alias := range cfg.Aliases {
		a, err := ParseAddress(alias)
		if err != nil {
			return nil, fmt.Errorf("a2aqueue: FactoryConfig.Aliases: %w", err)
		}
		f.addresses = append(f.addresses, a)
	}
	f.inbox = newInbox(cfg.Broker, f.metrics, 2*cfg.MaxBody, inboxWait)
	return f, nil
}

const (
	defaultMaxBody = 16 << 20
	// inboxWait bounds how long the queue for answers may take to be made while the broker is there.
	inboxWait = 10 * time.Second
)

// Create implements a2aclient.TransportFactory: it returns a client of the queue that an interface names.
func (f *Factory) Create(_ context.Context, _ *protocol.AgentCard, iface *protocol.AgentInterface) (a2aclient.Transport, error) {
	queue, err := f.queueOf(iface)
	if err != nil {
		return nil, err
	}
	return f.Client(queue), nil
}

// queueOf returns the queue that an interface names, which must be on our broker.
func (f *Factory) queueOf(iface *protocol.AgentInterface) (string, error) {
	a, err := ParseAddress(iface.URL)
	if err != nil {
		return "", err
	}
	if a.Queue == "" {
		return "", fmt.Errorf("%s names no queue", a)
	}
	if len(f.addresses) > 0 && a.Host != "" && !slices.ContainsFunc(f.addresses, func(known Address) bool { return known.Host == a.Host && known.Vhost == a.Vhost }) {
		return "", fmt.Errorf("%s is at another broker than %s", a, f.addresses[0].WithQueue(""))
	}
	return a.Queue, nil
}

// Client returns a client of the agent that takes its requests from a queue.
func (f *Factory) Client(queue string) *Client { return &Client{f: f, queue: queue} }

// Close ends what is under way, with ErrClosed, and gives up the queue for answers. It may be called twice.
func (f *Factory) Close() { f.inbox.close() }

// Client is an a2aclient.Transport to one agent behind a queue. Its methods may be called from any goroutine. Its errors are
// *a2a.Error of the SDK for what the agent answered, *[a2a.NotSentError] for a request that has certainly not reached
// the agent's queue, a2a.ErrTooLarge and a2a.ErrUnreadable for answers that can't be taken, and others, among them ErrLost,
// ErrGap, ErrSlow and ErrSilent, after which it is unknown what became of the request.
type Client struct {
	f       *Factory
	queue   string
	declare bool
}

var _ a2aclient.Transport = (*Client)(nil)

// Durable returns a client of the same agent that declares its request queue when it is missing: messages then wait in it
// for an agent that has yet to come.
func (c *Client) Durable() *Client { return &Client{f: c.f, queue: c.queue, declare: true} }

// ask begins an exchange: it sends a request, and returns when the broker has it.
func (c *Client) ask(ctx context.Context, method, id string, service a2aclient.ServiceParams, payload any) (*exchange, error) {
	body, err := encodeRequest(id, method, payload)
	if err != nil {
		return nil, &a2a.NotSentError{Err: err}
	}
	if len(body) > c.f.cfg.MaxBody {
		return nil, &tooLargeError{what: "the request", size: len(body), limit: c.f.cfg.MaxBody}
	}
	r := &request{method: method, messageID: id, exchange: newID(), userID: c.f.cfg.UserID, service: service}
	x, queue, err := c.f.inbox.open(ctx, r.exchange)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &a2a.NotSentError{Err: fmt.Errorf("ask %s of queue %s: %w", method, c.queue, err)}
	}
	r.replyTo = queue
	if sends(method) && c.f.cfg.ReplyTo != "" {
		r.replyTo, r.streamTo = c.f.cfg.ReplyTo, queue
	}
	if streams(method) {
		r.streamTo, r.keepAlive = queue, c.f.cfg.KeepAlive
	}
	now := time.Now()
	r.deadline, _ = ctx.Deadline()
	if !sends(method) {
		// What isn't answered soon is asked again; it needn't wait in the queue until then.
		r.expires = now.Add(c.f.cfg.RequestTimeout)
		if !streams(method) && (r.deadline.IsZero() || r.expires.Before(r.deadline)) {
			r.deadline = r.expires
		}
	}
	p := r.publishing(body, now)
	if err := c.publish(ctx, p); err != nil && !x.hasAnswer() {
		x.close()
		return nil, c.notSent(ctx, method, err)
	}
	return x, nil
}

// publish publishes to the agent's queue, and declares it when it is missing and we may.
func (c *Client) publish(ctx context.Context, p amqp.Publishing) error {
	pub := Publication{Key: c.queue, Publishing: p}
	err := c.f.cfg.Broker.Publish(ctx, pub)
	if _, missing := errors.AsType[*ReturnedError](err); !missing || !c.declare {
		return err
	}
	err = c.f.cfg.Broker.Do(ctx, func(ctx context.Context, ch *amqp.Channel) error { return DeclareDurable(ctx, ch, c.queue) })
	if err != nil && !errors.Is(err, ErrPrecondition) { // with other arguments it is there, too
		return fmt.Errorf("%w: %w", errNotDeclared, err)
	}
	return c.f.cfg.Broker.Publish(ctx, pub)
}

var errNotDeclared = errors.New("the queue is missing and can't be declared")

// notSent says of an error of publishing whether the request has certainly not reached the queue.
func (c *Client) notSent(ctx context.Context, method string, err error) error {
	err = fmt.Errorf("ask %s of queue %s: %w", method, c.queue, err)
	_, returned := errors.AsType[*ReturnedError](err)
	_, refused := errors.AsType[*RefusedError](err)
	_, unknown := errors.AsType[*UnconfirmedError](err)
	switch {
	case unknown: // a refusal that it wraps isn't of this message
	case errors.Is(err, ErrTooLarge):
		return &tooLargeError{what: "the request", err: err}
	case returned, refused, errors.Is(err, ErrNotConnected), errors.Is(err, ErrBlocked), errors.Is(err, ErrInvalid), errors.Is(err, ErrClosed),
		errors.Is(err, errNotDeclared):
		return &a2a.NotSentError{Err: err}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// tooLargeError is a request or an answer over the bound.
type tooLargeError struct {
	what        string
	size, limit int
	err         error
}

func (e *tooLargeError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("%s is too large: %v", e.what, e.err)
	}
	return fmt.Sprintf("%s has %d bytes, and %d are allowed", e.what, e.size, e.limit)
}

// Is makes it a2a.ErrTooLarge, which isn't tried again.
func (e *tooLargeError) Is(target error) bool { return target == a2a.ErrTooLarge } //nolint:errorlint // a sentinel

// Unwrap returns what the broker said.
func (e *tooLargeError) Unwrap() error { return e.err }

// read reads an answer.
func read[T any](c *Client, a *answer, decode func([]byte) (T, error)) (T, error) {
	var none T
	if len(a.body) > c.f.cfg.MaxBody {
		return none, &tooLargeError{what: "the answer", size: len(a.body), limit: c.f.cfg.MaxBody}
	}
	v, err := decode(a.body)
	if _, said := errors.AsType[*protocol.Error](err); err != nil && !said {
		return none, fmt.Errorf("%w: %w", a2a.ErrUnreadable, err)
	}
	return v, err
}

// query sends a request that has one answer, and reads it.
func query[T any](ctx context.Context, c *Client, method, id string, service a2aclient.ServiceParams, payload any, decode func([]byte) (T, error)) (T, error) {
	var none T
	x, err := c.ask(ctx, method, id, service, payload)
	if err != nil {
		return none, err
	}
	defer x.close()
	var p patience
	if !sends(method) {
		p.first = c.f.cfg.RequestTimeout
	}
	a, err := x.next(ctx, p)
	if err != nil {
		return none, err
	}
	return read(c, a, decode)
}

func callInto[T any](ctx context.Context, c *Client, method string, service a2aclient.ServiceParams, payload any) (*T, error) {
	result, err := query(ctx, c, method, newID(), service, payload, decodeResponse)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(result, v); err != nil {
		return nil, fmt.Errorf("%w: the answer to %s: %w", a2a.ErrUnreadable, method, err)
	}
	return v, nil
}

// stream sends a request that a stream answers, and follows it to its end. Most of a stream's life is spent waiting inside
// step, so that this and what it calls keep little on the stack.
func (c *Client) stream(ctx context.Context, method, id string, service a2aclient.ServiceParams, payload any) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		x, err := c.ask(ctx, method, id, service, payload)
		if err != nil {
			yield(nil, err)
			return
		}
		defer x.close()
		payload, service = nil, nil
		for c.step(ctx, x, method, yield) {
		}
	}
}

// step waits for the next event and hands it on. It reports whether there may be another.
func (c *Client) step(ctx context.Context, x *exchange, method string, yield func(protocol.Event, error) bool) bool {
	p := patience{next: 3 * c.f.cfg.KeepAlive}
	if method == methodSubscribe {
		p.first = c.f.cfg.RequestTimeout
	}
	a, err := x.next(ctx, p)
	if err != nil {
		yield(nil, err)
		return false
	}
	return c.handOn(a, yield)
}

func (c *Client) handOn(a *answer, yield func(protocol.Event, error) bool) bool {
	if len(a.body) == 0 && a.end {
		return false
	}
	end := a.end
	ev, err := read(c, a, decodeEvent)
	return yield(ev, err) && err == nil && !end
}

// sendID is the message id of a message sent, by which it is known again.
func sendID(req *protocol.SendMessageRequest) string {
	if req != nil && req.Message != nil && req.Message.ID != "" && len(req.Message.ID) <= maxShortString {
		return req.Message.ID
	}
	return newID()
}

// maxShortString bounds the texts of AMQP properties.
const maxShortString = 255

// SendMessage implements a2aclient.Transport.
func (c *Client) SendMessage(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	return query(ctx, c, methodSend, sendID(req), service, req, decodeSendResult)
}

// SendStreamingMessage implements a2aclient.Transport.
func (c *Client) SendStreamingMessage(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return c.stream(ctx, methodStream, sendID(req), service, req)
}

// SubscribeToTask implements a2aclient.Transport.
func (c *Client) SubscribeToTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return c.stream(ctx, methodSubscribe, newID(), service, req)
}

// GetTask implements a2aclient.Transport.
func (c *Client) GetTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.GetTaskRequest) (*protocol.Task, error) {
	return callInto[protocol.Task](ctx, c, methodGet, service, req)
}

// ListTasks implements a2aclient.Transport.
func (c *Client) ListTasks(ctx context.Context, service a2aclient.ServiceParams, req *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	return callInto[protocol.ListTasksResponse](ctx, c, methodList, service, req)
}

// CancelTask implements a2aclient.Transport.
func (c *Client) CancelTask(ctx context.Context, service a2aclient.ServiceParams, req *protocol.CancelTaskRequest) (*protocol.Task, error) {
	return callInto[protocol.Task](ctx, c, methodCancel, service, req)
}

// GetTaskPushConfig implements a2aclient.Transport.
func (c *Client) GetTaskPushConfig(ctx context.Context, service a2aclient.ServiceParams, req *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig, error) {
	return callInto[protocol.PushConfig](ctx, c, methodPushGet, service, req)
}

// ListTaskPushConfigs implements a2aclient.Transport.
func (c *Client) ListTaskPushConfigs(ctx context.Context, service a2aclient.ServiceParams, req *protocol.ListTaskPushConfigRequest) ([]*protocol.PushConfig, error) {
	resp, err := callInto[protocol.ListTaskPushConfigResponse](ctx, c, methodPushList, service, req)
	if err != nil {
		return nil, err
	}
	return resp.Configs, nil
}

// CreateTaskPushConfig implements a2aclient.Transport.
func (c *Client) CreateTaskPushConfig(ctx context.Context, service a2aclient.ServiceParams, req *protocol.PushConfig) (*protocol.PushConfig, error) {
	return callInto[protocol.PushConfig](ctx, c, methodPushCreate, service, req)
}

// DeleteTaskPushConfig implements a2aclient.Transport.
func (c *Client) DeleteTaskPushConfig(ctx context.Context, service a2aclient.ServiceParams, req *protocol.DeleteTaskPushConfigRequest) error {
	_, err := query(ctx, c, methodPushDelete, newID(), service, req, decodeResponse)
	return err
}

// GetExtendedAgentCard implements a2aclient.Transport.
func (c *Client) GetExtendedAgentCard(ctx context.Context, service a2aclient.ServiceParams, req *protocol.GetExtendedAgentCardRequest) (*protocol.AgentCard, error) {
	return callInto[protocol.AgentCard](ctx, c, methodExtendedCard, service, req)
}

// GetAgentCard asks the agent for its card, which the other bindings have at a well-known URL.
func (c *Client) GetAgentCard(ctx context.Context, service a2aclient.ServiceParams) (*protocol.AgentCard, error) {
	return callInto[protocol.AgentCard](ctx, c, methodCard, service, nil)
}

// Destroy implements a2aclient.Transport. It does nothing: what a client uses is the factory's.
func (c *Client) Destroy() error { return nil }

// String returns where the queue is, as a card's interface has it, or only its name when the broker's address isn't known.
func (c *Client) String() string {
	if len(c.f.addresses) > 0 {
		return c.f.addresses[0].WithQueue(c.queue).String()
	}
	return "queue " + c.queue
}
