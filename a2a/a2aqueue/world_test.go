package a2aqueue_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
)

const agentQueue = "a2a.agent"

// serve serves an agent from a queue until the test is over, or stop is called, which waits.
func serve(t *testing.T, url string, cfg a2aqueue.ServerConfig) (stop func()) {
	t.Helper()
	return serveWith(t, open(t, a2aqueue.BrokerConfig{URL: url}), cfg)
}

func serveWith(t *testing.T, b *a2aqueue.Broker, cfg a2aqueue.ServerConfig) (stop func()) {
	t.Helper()
	cfg.Broker = b
	if cfg.Queue == "" {
		cfg.Queue = agentQueue
	}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := a2aqueue.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Broker.Do(bounded(t), func(ctx context.Context, ch *amqp.Channel) error { return a2aqueue.DeclareDurable(ctx, ch, cfg.Queue) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
		})
	}
	t.Cleanup(stop)
	return stop
}

// connect returns a factory that is closed when the test is over.
func connect(t *testing.T, url string, cfg a2aqueue.FactoryConfig) *a2aqueue.Factory {
	t.Helper()
	if cfg.Broker == nil {
		cfg.Broker = open(t, a2aqueue.BrokerConfig{URL: url})
	}
	cfg.URL = url
	f, err := a2aqueue.NewFactory(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// agent is a handler each of whose methods a test may write. The others are unsupported.
type agent struct {
	get       func(context.Context, *protocol.GetTaskRequest) (*protocol.Task, error)
	list      func(context.Context, *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error)
	cancel    func(context.Context, *protocol.CancelTaskRequest) (*protocol.Task, error)
	send      func(context.Context, *protocol.SendMessageRequest) (protocol.SendMessageResult, error)
	stream    func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error]
	subscribe func(context.Context, *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error]
	pushGet   func(context.Context, *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig, error)
	pushList  func(context.Context, *protocol.ListTaskPushConfigRequest) (*protocol.ListTaskPushConfigResponse, error)
	pushSet   func(context.Context, *protocol.PushConfig) (*protocol.PushConfig, error)
	pushDel   func(context.Context, *protocol.DeleteTaskPushConfigRequest) error
	card      func(context.Context, *protocol.GetExtendedAgentCardRequest) (*protocol.AgentCard, error)
}

var _ a2asrv.RequestHandler = (*agent)(nil)

func method[Q, R any](f func(context.Context, Q) (R, error)) func(context.Context, Q) (R, error) {
	if f == nil {
		return func(context.Context, Q) (r R, _ error) { return r, protocol.ErrUnsupportedOperation }
	}
	return f
}

func events[Q any](f func(context.Context, Q) iter.Seq2[protocol.Event, error]) func(context.Context, Q) iter.Seq2[protocol.Event, error] {
	if f == nil {
		return func(context.Context, Q) iter.Seq2[protocol.Event, error] {
			return func(yield func(protocol.Event, error) bool) { yield(nil, protocol.ErrUnsupportedOperation) }
		}
	}
	return f
}

func (a *agent) GetTask(ctx context.Context, q *protocol.GetTaskRequest) (*protocol.Task, error) {
	return method(a.get)(ctx, q)
}

func (a *agent) ListTasks(ctx context.Context, q *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	return method(a.list)(ctx, q)
}

func (a *agent) CancelTask(ctx context.Context, q *protocol.CancelTaskRequest) (*protocol.Task, error) {
	return method(a.cancel)(ctx, q)
}

func (a *agent) SendMessage(ctx context.Context, q *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	return method(a.send)(ctx, q)
}

func (a *agent) SendStreamingMessage(ctx context.Context, q *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return events(a.stream)(ctx, q)
}

func (a *agent) SubscribeToTask(ctx context.Context, q *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return events(a.subscribe)(ctx, q)
}

func (a *agent) GetTaskPushConfig(ctx context.Context, q *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig, error) {
	return method(a.pushGet)(ctx, q)
}

func (a *agent) ListTaskPushConfigs(ctx context.Context, q *protocol.ListTaskPushConfigRequest) (*protocol.ListTaskPushConfigResponse, error) {
	return method(a.pushList)(ctx, q)
}

func (a *agent) CreateTaskPushConfig(ctx context.Context, q *protocol.PushConfig) (*protocol.PushConfig, error) {
	return method(a.pushSet)(ctx, q)
}

func (a *agent) DeleteTaskPushConfig(ctx context.Context, q *protocol.DeleteTaskPushConfigRequest) error {
	if a.pushDel == nil {
		return protocol.ErrUnsupportedOperation
	}
	return a.pushDel(ctx, q)
}

func (a *agent) GetExtendedAgentCard(ctx context.Context, q *protocol.GetExtendedAgentCardRequest) (*protocol.AgentCard, error) {
	return method(a.card)(ctx, q)
}

// saying is a stream of events.
func saying(evs ...protocol.Event) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		for _, ev := range evs {
			if !yield(ev, nil) {
				return
			}
		}
	}
}

func failing(err error) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { yield(nil, err) }
}

func message(id, text string) *protocol.SendMessageRequest {
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(text))
	m.ID = id
	return &protocol.SendMessageRequest{Message: m}
}

func reply(text string) *protocol.Message {
	m := protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart(text))
	m.ID = "reply-" + text
	return m
}

func task(state protocol.TaskState) *protocol.Task {
	return &protocol.Task{ID: "task-1", ContextID: "context-1", Status: protocol.TaskStatus{State: state}}
}

func status(state protocol.TaskState) *protocol.TaskStatusUpdateEvent {
	return &protocol.TaskStatusUpdateEvent{TaskID: "task-1", ContextID: "context-1", Status: protocol.TaskStatus{State: state}}
}

// raw publishes a message to a queue and returns what comes back to a queue of its own, and for the rest what lies there.
type raw struct {
	t      *testing.T
	broker *a2aqueue.Broker
	queue  string
	got    chan *a2aqueue.Delivery
}

// listen consumes a queue that is made for it, or exists if it has a name.
func listen(t *testing.T, b *a2aqueue.Broker, queue string) *raw {
	t.Helper()
	r := &raw{t: t, broker: b, got: make(chan *a2aqueue.Delivery, 1000)}
	up := make(chan string, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	sub := a2aqueue.Subscription{
		Name: "test", Queue: queue, Prefetch: 1000,
		Handle: func(_ context.Context, d *a2aqueue.Delivery) {
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
			r.got <- d
		},
		Up: func(q string) { up <- q },
	}
	if queue == "" {
		sub.Declare = func(ctx context.Context, ch *amqp.Channel) (string, error) {
			return "a2a.test", a2aqueue.DeclareInbox(ctx, ch, "a2a.test")
		}
	}
	wg.Go(func() {
		if err := b.Consume(ctx, sub); err != nil {
			t.Errorf("Consume() = %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	select {
	case r.queue = <-up:
	case <-bounded(t).Done():
		t.Fatal("the queue isn't consumed")
	}
	return r
}

func (r *raw) publish(key string, p amqp.Publishing) {
	r.t.Helper()
	if err := r.broker.Publish(bounded(r.t), a2aqueue.Publication{Key: key, Publishing: p}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) next() *a2aqueue.Delivery {
	r.t.Helper()
	ctx := bounded(r.t)
	select {
	case d := <-r.got:
		return d
	case <-ctx.Done():
		r.t.Fatal("nothing came to queue " + r.queue)
		return nil
	}
}

// asked writes a request as another team's client would.
func (r *raw) asked(method, body string) amqp.Publishing {
	return amqp.Publishing{
		Type: method, ContentType: "application/json", CorrelationId: "x-1", MessageId: "m-1", ReplyTo: r.queue,
		Headers: amqp.Table{"A2A-Version": "1.0"}, Body: []byte(body),
	}
}

// collect reads a stream to its end.
func collect(events iter.Seq2[protocol.Event, error]) (got []protocol.Event, err error) {
	for ev, err := range events {
		if err != nil {
			return got, err
		}
		got = append(got, ev)
	}
	return got, nil
}

// held is how many messages of a queue are handed out to nobody, or -1 when there is no such queue.
func held(t *testing.T, b *a2aqueue.Broker, queue string) int {
	t.Helper()
	n := -1
	err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err == nil {
			n = q.Messages
		}
		return err
	})
	if err != nil && !errors.Is(err, a2aqueue.ErrNotFound) {
		t.Fatalf("look at %s: %v", queue, err)
	}
	return n
}

var errTest = errors.New("a test's error")
