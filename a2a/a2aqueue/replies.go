package a2aqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Reply is the final answer to a message sent, as it comes from a reply queue.
type Reply struct {
	// MessageID is the id of the message it answers.
	MessageID string
	// Result is a whole task or a message. Nil: the agent answered with Err.
	Result protocol.SendMessageResult
	// Err is the agent's own error, an *a2a.Error of the SDK.
	Err error
	// UserID is who sent it, for which the broker vouches; empty when it was sent without.
	UserID string
	// Trace is the W3C trace context (traceparent) of the request.
	Trace string
	// Redelivered says that it was delivered before, and not acknowledged.
	Redelivered bool
}

// Fate is what became of a reply.
type Fate string

// Taken: it was written down. Known: it is a duplicate of one that was. Unknown: nobody asked for it, so it goes to the dead
// letters. Unusable: it can't be understood, and goes there, too.
const (
	FateTaken    Fate = "taken"
	FateKnown    Fate = "known"
	FateUnknown  Fate = "unknown"
	FateUnusable Fate = "unusable"
)

// RepliesConfig configures a [Replies].
type RepliesConfig struct {
	Broker *Broker // required
	// Queue is the deployment's reply queue, which all its processes share. Required.
	Queue string
	// Handle is given each reply, in several goroutines. When it returns a fate, the reply's effects must have been committed:
	// the broker forgets the reply. After an error it is called again, with pauses, until its context ends; the reply then
	// goes back to the queue. Required.
	Handle func(ctx context.Context, r Reply) (Fate, error)
	// Workers is how many replies are handled at the same time. Defaults to 8.
	Workers int
	// MaxBody bounds one reply, in bytes. Defaults to 16 MiB.
	MaxBody  int
	Logger   *slog.Logger          // nil logs nothing
	Registry prometheus.Registerer // nil keeps the metrics to ourselves
}

// Replies takes the final answers out of a deployment's reply queue.
type Replies struct {
	cfg    RepliesConfig
	counts *prometheus.CounterVec
}

// NewReplies returns a Replies. It does no I/O.
func NewReplies(cfg RepliesConfig) (*Replies, error) {
	if cfg.Broker == nil || cfg.Handle == nil {
		return nil, errors.New("a2aqueue: RepliesConfig.Broker and Handle are required")
	}
	if err := CheckQueueName(cfg.Queue); err != nil {
		return nil, fmt.Errorf("a2aqueue: RepliesConfig.Queue: %w", err)
	}
	if cfg.Workers < 0 || cfg.MaxBody < 0 {
		return nil, errors.New("a2aqueue: RepliesConfig has a negative bound; zero is the default, anything above is allowed")
	}
	cfg.Workers = cmp.Or(cfg.Workers, 8)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, defaultMaxBody)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Replies{cfg: cfg, counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orchestrator_queue_replies_total",
		Help: "Replies taken from the reply queue, by what became of them: taken, known, unknown or unusable (both dead letters), or returned.",
	}, []string{"fate"})}
	if cfg.Registry != nil {
		cfg.Registry.MustRegister(r.counts)
	}
	return r, nil
}

// Run declares the queue and takes replies until ctx ends. It waits for the replies that are being handled, no longer than
// the broker's DrainTimeout, and returns nil then; before that only an error of [Broker.Consume].
func (r *Replies) Run(ctx context.Context) error {
	return r.cfg.Broker.Consume(ctx, Subscription{
		Name: "replies",
		Declare: func(ctx context.Context, ch *amqp.Channel) (string, error) {
			return r.cfg.Queue, DeclareDurable(ctx, ch, r.cfg.Queue)
		},
		Prefetch: 2 * r.cfg.Workers, Workers: r.cfg.Workers,
		DeadLetterExchange: DeadExchange, DeadLetterKey: DeadQueue,
		Handle: func(handling context.Context, d *Delivery) { r.handle(handling, ctx.Done(), d) },
	})
}

// handle settles one reply. stopping is closed when no more are wanted.
func (r *Replies) handle(ctx context.Context, stopping <-chan struct{}, d *Delivery) {
	reply, err := readReply(&d.Delivery, r.cfg.MaxBody)
	if err != nil {
		r.bury(ctx, d, FateUnusable, err.Error())
		return
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, 10*time.Second
	for {
		fate, err := r.cfg.Handle(ctx, reply)
		switch {
		case err == nil && fate == FateUnknown:
			r.bury(ctx, d, fate, fmt.Sprintf("no call has the message id %q", reply.MessageID))
			return
		case err == nil && fate == FateUnusable:
			r.bury(ctx, d, fate, "the reply can't be used")
			return
		case err == nil:
			r.settled(string(fate))
			if err := d.Ack(); err != nil {
				r.cfg.Logger.DebugContext(ctx, "a reply was handled and can't be acknowledged; it comes again", "task", reply.MessageID, "err", err)
			}
			return
		}
		r.cfg.Logger.WarnContext(ctx, "a reply can't be written down; trying again", "task", reply.MessageID, "err", err)
		select {
		case <-time.After(pause.NextBackOff()):
			continue
		case <-stopping:
		case <-ctx.Done():
		}
		r.settled("returned")
		_ = d.Nack(true) // what can't be given back comes again by itself
		return
	}
}

func (r *Replies) settled(fate string) { r.counts.WithLabelValues(fate).Inc() }

// bury sends a reply to the dead letters.
func (r *Replies) bury(ctx context.Context, d *Delivery, fate Fate, reason string) {
	r.settled(string(fate))
	r.cfg.Logger.WarnContext(ctx, "a reply goes to the dead letters", "task", d.Headers[headerRequestMessage], "err", reason)
	if err := d.DeadLetter(reason); err != nil {
		r.cfg.Logger.WarnContext(ctx, "a dead letter can't be moved; it comes again", "err", err)
	}
}

// readReply reads a final answer.
func readReply(d *amqp.Delivery, maxBody int) (Reply, error) {
	a, err := readAnswer(d)
	switch {
	case err != nil:
		return Reply{}, err
	case a.kind != typeResponse:
		return Reply{}, fmt.Errorf("%w: a reply is of type %s, not %s", errMalformed, typeResponse, a.kind)
	case a.messageID == "":
		return Reply{}, fmt.Errorf("%w: a reply needs the header %s", errMalformed, headerRequestMessage)
	case len(a.body) > maxBody:
		return Reply{}, &tooLargeError{what: "the reply", size: len(a.body), limit: maxBody}
	}
	if err := checkContent(d); err != nil {
		return Reply{}, err
	}
	r := Reply{MessageID: a.messageID, UserID: a.userID, Trace: a.trace, Redelivered: d.Redelivered}
	result, err := decodeSendResult(a.body)
	if _, said := errors.AsType[*protocol.Error](err); said {
		r.Err = err
		return r, nil
	}
	if err != nil {
		return Reply{}, err
	}
	r.Result = result
	return r, nil
}
