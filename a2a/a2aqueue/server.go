package a2aqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
)

// ServerConfig configures a [Server].
type ServerConfig struct {
	Broker *Broker // required
	// Queue is where the agent's requests come. It is declared if it doesn't exist. Several servers may share it. Required.
	Queue string
	// Handler is the agent. Required. Its calls have a CallContext with the request's parameters, and with an authenticated
	// user when the request says who sent it (the property user_id, for which the broker vouches).
	Handler a2asrv.RequestHandler
	// Card is what GetAgentCard is answered with. Nil: it is an unknown method.
	Card a2asrv.AgentCardProducer
	// VolatileTasks says that the handler's tasks don't outlive the process and no other has them. A message that this
	// process doesn't remember is then new. Otherwise it is looked for among the tasks of its context before it is handled.
	VolatileTasks bool
	// Prefetch bounds the requests that are taken and not acknowledged: those without a recorded task, and those that are
	// being answered. Defaults to 64.
	Prefetch int
	// MaxExchanges bounds the messages and subscriptions that are followed at the same time. Others wait, unacknowledged.
	// Defaults to 20,000.
	MaxExchanges int
	// MaxBody bounds one request, in bytes. Defaults to 16 MiB.
	MaxBody int
	// Remember is how many messages that were handled are known again by their ids, besides those that the handler has tasks
	// of. Defaults to 65,536.
	Remember int
	// DrainTimeout bounds how long a server that stops waits for the exchanges to end by themselves. Defaults to 10 seconds.
	DrainTimeout time.Duration
	// UserID is who the answers say sent them; it must be the user we are at the broker. Empty: they don't say.
	UserID   string
	Logger   *slog.Logger          // nil logs nothing
	Registry prometheus.Registerer // nil keeps the metrics to ourselves
}

// Server serves an agent from a queue. Requests are handled side by side, in the order in which they come as far as they are
// begun. One that begins or continues a task is acknowledged when the task is recorded, any other when it is answered.
type Server struct {
	cfg     ServerConfig
	sent    *sentMessages
	slots   chan struct{}
	metrics *serverMetrics

	mu      sync.Mutex
	keeping map[*call]struct{} // the streams whose readers want to hear of them
}

// NewServer returns a Server. It does no I/O.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Broker == nil || cfg.Handler == nil {
		return nil, errors.New("a2aqueue: ServerConfig.Broker and Handler are required")
	}
	if err := CheckQueueName(cfg.Queue); err != nil {
		return nil, fmt.Errorf("a2aqueue: ServerConfig.Queue: %w", err)
	}
	if min(cfg.Prefetch, cfg.MaxExchanges, cfg.MaxBody, cfg.Remember) < 0 || cfg.DrainTimeout < 0 {
		return nil, errors.New("a2aqueue: ServerConfig has a negative bound; zero is the default, anything above is allowed")
	}
	cfg.Prefetch = cmp.Or(cfg.Prefetch, 64)
	cfg.MaxExchanges = cmp.Or(cfg.MaxExchanges, 20_000)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, defaultMaxBody)
	cfg.Remember = cmp.Or(cfg.Remember, 65_536)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{
		cfg: cfg, sent: newSentMessages(cfg.Remember), slots: make(chan struct{}, cfg.MaxExchanges), metrics: newServerMetrics(cfg.Registry),
		keeping: make(map[*call]struct{}),
	}, nil
}

var (
	errStopping   = errors.New("the server stops")
	errReaderGone = errors.New("nobody takes the events any more")
	errDeadline   = errors.New("nobody wants the answer any more")
)

// cutTimeout bounds the telling of those whose streams end since the server stops.
const cutTimeout = 5 * time.Second

// Run takes requests until ctx ends; then it takes no more, waits until what it began has ended, no longer than DrainTimeout,
// ends the streams that are left, and returns. Those who read them ask for their tasks. Before ctx ends it returns only an
// error of [Broker.Consume]. It may be called again after it has returned.
func (s *Server) Run(ctx context.Context) error {
	alive, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(errStopping)
	cut, stop := context.WithCancelCause(alive)
	defer stop(errStopping)
	var exchanges, keeper sync.WaitGroup
	keeper.Go(func() { s.keepAlive(alive) })
	err := s.cfg.Broker.Consume(ctx, Subscription{
		Name: "requests",
		Declare: func(ctx context.Context, ch *amqp.Channel) (string, error) {
			return s.cfg.Queue, DeclareDurable(ctx, ch, s.cfg.Queue)
		},
		Prefetch: s.cfg.Prefetch, Workers: s.cfg.Prefetch,
		DeadLetterExchange: DeadExchange, DeadLetterKey: DeadQueue,
		Handle: func(handling context.Context, d *Delivery) { s.handle(handling, alive, cut, &exchanges, d) },
	})
	ended := make(chan struct{})
	keeper.Go(func() {
		exchanges.Wait()
		close(ended)
	})
	s.drain(ended, stop, kill)
	kill(errStopping)
	keeper.Wait()
	return err
}

// drain waits until all exchanges have ended, and makes them in the end.
func (s *Server) drain(ended <-chan struct{}, stop, kill context.CancelCauseFunc) {
	for _, step := range []struct {
		wait time.Duration
		then func()
	}{{s.cfg.DrainTimeout, func() { stop(errStopping) }}, {cutTimeout, func() { kill(errStopping) }}} {
		t := time.NewTimer(step.wait)
		select {
		case <-ended:
			t.Stop()
			return
		case <-t.C:
			step.then()
		}
	}
	<-ended
}

// handle deals with one request. It returns when the request has been settled, or its context ends.
func (s *Server) handle(handling, alive, cut context.Context, exchanges *sync.WaitGroup, d *Delivery) {
	r, err := readRequest(&d.Delivery, s.cfg.MaxBody)
	if err == nil {
		err = s.known(r.method)
	}
	if err == nil && !r.deadline.IsZero() && time.Now().After(r.deadline) {
		s.late(alive, d, r)
		return
	}
	if err != nil {
		s.refuse(alive, d, r, err)
		return
	}
	c := s.newCall(alive, cut, r, d)
	if !sends(r.method) && !streams(r.method) {
		c.run(c.once)
		return
	}
	serve := c.send
	if r.method == methodSubscribe {
		serve = c.subscribe
	}
	exchanges.Go(func() { c.run(serve) })
	select {
	case <-c.settled:
	case <-handling.Done():
	}
}

// known refuses methods there are none of.
func (s *Server) known(method string) error {
	switch method {
	case methodSend, methodStream, methodSubscribe, methodGet, methodList, methodCancel, methodPushGet, methodPushCreate, methodPushList,
		methodPushDelete, methodExtendedCard:
		return nil
	case methodCard:
		if s.cfg.Card != nil {
			return nil
		}
	}
	return fmt.Errorf("%w: %q", protocol.ErrMethodNotFound, method)
}

// refuse answers a request that can't be handled. Without anyone to tell, it goes to the dead letters.
func (s *Server) refuse(ctx context.Context, d *Delivery, r *request, err error) {
	told := false
	for _, to := range []string{r.answersTo(), r.finalTo()} {
		if to == "" {
			continue
		}
		a := s.answerTo(r, typeResponse, encodeError(r.rpcID, err))
		if perr := s.publish(ctx, to, a, eventPatience); perr != nil {
			s.cfg.Logger.WarnContext(ctx, "a request that was refused can't be answered", "queue", to, "err", perr)
			continue
		}
		told = true
	}
	if !told {
		s.bury(ctx, d, r, err)
		return
	}
	s.metrics.request(r.method, "refused")
	s.cfg.Logger.DebugContext(ctx, "a request was refused", "method", r.method, "err", err)
	_ = d.Ack() // what can't be acknowledged comes again and is refused again
}

// late drops a request whose deadline has passed. A message was somebody's, and goes to the dead letters.
func (s *Server) late(ctx context.Context, d *Delivery, r *request) {
	if sends(r.method) {
		s.bury(ctx, d, r, errDeadline)
		return
	}
	s.metrics.request(r.method, "late")
	_ = d.Ack() // what can't be acknowledged comes again and is later still
}

func (s *Server) bury(ctx context.Context, d *Delivery, r *request, err error) {
	s.metrics.request(r.method, "dead")
	s.cfg.Logger.WarnContext(ctx, "a request goes to the dead letters", "method", r.method, "err", err)
	if err := d.DeadLetter(err.Error()); err != nil {
		s.cfg.Logger.WarnContext(ctx, "a dead letter can't be moved; it comes again", "err", err)
	}
}

// answerTo is an answer to a request.
func (s *Server) answerTo(r *request, kind string, body []byte) answer {
	return answer{kind: kind, exchange: r.exchange, body: body, messageID: r.messageID, trace: r.trace(), userID: s.cfg.UserID, end: kind == typeResponse}
}

// How long the publishing of an event, and of a final answer that nobody has set a deadline for, is tried again.
const (
	eventPatience = 10 * time.Second
	finalPatience = time.Hour
)

// publish publishes an answer, and tries again while the broker is away.
func (s *Server) publish(ctx context.Context, to string, a answer, patience time.Duration) error {
	now := time.Now()
	p := a.publishing(now)
	if a.kind == typeResponse {
		p.DeliveryMode = amqp.Persistent
	}
	pause := 50 * time.Millisecond
	for {
		err := s.cfg.Broker.Publish(ctx, Publication{Key: to, Publishing: p})
		if err == nil || !passing(err) || ctx.Err() != nil || time.Since(now)+pause > patience {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// passing reports whether an error of publishing may be gone the next time.
func passing(err error) bool {
	if _, unknown := errors.AsType[*UnconfirmedError](err); unknown { // a refusal that it wraps isn't of this message
		return true
	}
	_, returned := errors.AsType[*ReturnedError](err)
	_, refused := errors.AsType[*RefusedError](err)
	return !returned && !refused && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrClosed)
}

// keepers is how many readers of streams are told at the same time that their streams go on.
const keepers = 16

// keepAlive tells readers of streams that are silent that they go on, until ctx ends.
func (s *Server) keepAlive(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		var due []*call
		s.mu.Lock()
		for c := range s.keeping {
			if c.due(now) {
				due = append(due, c)
			}
		}
		s.mu.Unlock()
		var wg sync.WaitGroup
		var away atomic.Bool // the broker; all of them are told in the next round
		for part := range slices.Chunk(due, max(1, (len(due)+keepers-1)/keepers)) {
			wg.Go(func() {
				for _, c := range part {
					if away.Load() {
						return
					}
					away.Store(c.keepAlive(ctx) != nil)
				}
			})
		}
		wg.Wait()
	}
}

func (s *Server) keep(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping[c] = struct{}{}
}

func (s *Server) unkeep(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keeping, c)
}
