package a2aqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/taskstore"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

const getTask = `{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":"t"}}`

func sendBody(method, id, text string) string {
	return `{"jsonrpc":"2.0","id":"1","method":"` + method + `","params":{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"` + text + `"}]}}}`
}

// TestFaultyRequestsHaveADefinedOutcome sends each once with a queue for the answer and once without.
func TestFaultyRequestsHaveADefinedOutcome(t *testing.T) {
	url := brokertest.Vhost(t)
	serve(t, url, a2aqueue.ServerConfig{Handler: talkative(), MaxBody: 2000, VolatileTasks: true})
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	r := listen(t, b, "")
	dead := listen(t, b, a2aqueue.DeadQueue)
	for name, tt := range map[string]struct {
		change func(p *amqp.Publishing)
		code   int
		reason string
	}{
		"invalid JSON": {func(p *amqp.Publishing) { p.Body = []byte(`{"jsonrpc"`) }, -32700, "parse error"},
		"no body":      {func(p *amqp.Publishing) { p.Body = nil }, -32700, "parse error"},
		"an unknown method": {func(p *amqp.Publishing) {
			p.Type, p.Body = "Dance", []byte(`{"jsonrpc":"2.0","id":"1","method":"Dance"}`)
		}, -32601, "method not found"},
		"a card it doesn't have": {func(p *amqp.Publishing) {
			p.Type, p.Body = "GetAgentCard", []byte(`{"jsonrpc":"2.0","id":"1","method":"GetAgentCard"}`)
		}, -32601, "method not found"},
		"another method in type":   {func(p *amqp.Publishing) { p.Type = "ListTasks" }, -32600, "the property type"},
		"version 0.3":              {func(p *amqp.Publishing) { p.Headers["A2A-Version"] = "0.3" }, -32009, "version"},
		"version 2.0":              {func(p *amqp.Publishing) { p.Headers["A2A-Version"] = "2.0" }, -32009, "version"},
		"no version":               {func(p *amqp.Publishing) { delete(p.Headers, "A2A-Version") }, -32009, "version"},
		"another content type":     {func(p *amqp.Publishing) { p.ContentType = "text/html" }, -32005, "text/html"},
		"another content encoding": {func(p *amqp.Publishing) { p.ContentEncoding = "gzip" }, -32005, "gzip"},
		"too large":                {func(p *amqp.Publishing) { p.Body = []byte(sendBody("SendMessage", "m", strings.Repeat("x", 2000))) }, -32600, "2000 are accepted"},
		"an unreadable deadline":   {func(p *amqp.Publishing) { p.Headers["a2a-deadline"] = "noon" }, -32600, "a2a-deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.asked("GetTask", getTask)
			tt.change(&p)
			r.publish(agentQueue, p)
			var got struct {
				Error struct {
					Code    int
					Message string
				}
			}
			d := r.next()
			if err := json.Unmarshal(d.Body, &got); err != nil || got.Error.Code != tt.code || !strings.Contains(got.Error.Message, tt.reason) || d.CorrelationId != "x-1" || d.Type != "Response" {
				t.Errorf("it is answered with %s to %q as %s, want code %d", d.Body, d.CorrelationId, d.Type, tt.code)
			}
			for _, to := range []string{"", "a2a.nobody"} {
				p.ReplyTo = to
				r.publish(agentQueue, p)
				d := dead.next()
				if reason, _ := d.Headers["x-a2a-reason"].(string); !strings.Contains(reason, tt.reason) || string(d.Body) != string(p.Body) || d.Headers["x-a2a-queue"] != agentQueue {
					t.Errorf("with reply_to %q, the dead letter is %q with %v", to, d.Body, d.Headers)
				}
			}
		})
	}
	t.Run("a message whose deadline has passed", func(t *testing.T) {
		p := r.asked("SendMessage", sendBody("SendMessage", "late", "message"))
		p.Headers["a2a-deadline"] = "2020-01-01T00:00:00Z"
		r.publish(agentQueue, p)
		if reason, _ := dead.next().Headers["x-a2a-reason"].(string); !strings.Contains(reason, "nobody wants the answer") {
			t.Errorf("its reason is %q", reason)
		}
	})
	// Whatever came before, the agent goes on.
	r.publish(agentQueue, r.asked("GetTask", getTask))
	if d := r.next(); !strings.Contains(string(d.Body), `"result"`) {
		t.Errorf("afterwards, GetTask is answered with %s", d.Body)
	}
	if n := held(t, b, agentQueue); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

func TestAQueueWithOtherArgumentsEndsTheServer(t *testing.T) {
	url := brokertest.Vhost(t)
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	declare(t, b, agentQueue, nil)
	s, err := a2aqueue.NewServer(a2aqueue.ServerConfig{Broker: b, Queue: agentQueue, Handler: &agent{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(bounded(t)); !errors.Is(err, a2aqueue.ErrPrecondition) {
		t.Errorf("Run() = %v", err)
	}
}

// TestTheFinalAnswerGoesToTheReplyQueueToo asks as an orchestrator does, in every way a message may be answered.
func TestTheFinalAnswerGoesToTheReplyQueueToo(t *testing.T) {
	var state atomic.Value
	state.Store(protocol.TaskStateWorking)
	a := talkative()
	a.subscribe = func(context.Context, *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
		state.Store(protocol.TaskStateCompleted)
		return failing(protocol.ErrTaskNotFound) // its turn ended just now
	}
	a.get = func(context.Context, *protocol.GetTaskRequest) (*protocol.Task, error) {
		whole := task(state.Load().(protocol.TaskState))
		whole.Artifacts = []*protocol.Artifact{{ID: "a", Parts: protocol.ContentParts{protocol.NewTextPart("all of it")}}}
		return whole, nil
	}
	plain := a.stream
	a.stream = func(ctx context.Context, q *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
		switch q.Message.Parts[0].Text() {
		case "question":
			state.Store(protocol.TaskStateInputRequired)
		case "breaks off":
			return func(yield func(protocol.Event, error) bool) {
				if yield(task(protocol.TaskStateWorking), nil) {
					yield(nil, errTest)
				}
			}
		case "leaves off":
			return saying(task(protocol.TaskStateWorking))
		default:
			state.Store(protocol.TaskStateCompleted)
		}
		return plain(ctx, q)
	}
	url := brokertest.Vhost(t)
	serve(t, url, a2aqueue.ServerConfig{Handler: a, VolatileTasks: true})
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	const replies = a2aqueue.ReplyQueuePrefix + "test"
	if err := b.Do(bounded(t), func(ctx context.Context, ch *amqp.Channel) error { return a2aqueue.DeclareDurable(ctx, ch, replies) }); err != nil {
		t.Fatal(err)
	}
	got := listen(t, b, replies)
	c := connect(t, url, a2aqueue.FactoryConfig{ReplyTo: replies}).Client(agentQueue)
	for name, tt := range map[string]struct {
		text        string
		immediately bool
		want        string
	}{
		"a message":       {text: "message", want: `"message":{`},
		"a task":          {text: "task", want: "TASK_STATE_COMPLETED"},
		"a question":      {text: "question", want: "TASK_STATE_INPUT_REQUIRED"},
		"an error":        {text: "refused", want: "-32602"},
		"at once":         {text: "at once", immediately: true, want: "TASK_STATE_COMPLETED"},
		"a broken stream": {text: "breaks off", want: "TASK_STATE_COMPLETED"},
		"a short stream":  {text: "leaves off", want: "TASK_STATE_COMPLETED"},
	} {
		for _, streaming := range []bool{true, false} {
			if streaming && tt.immediately {
				continue
			}
			state.Store(protocol.TaskStateWorking)
			req := message(strings.ReplaceAll(name, " ", "-")+map[bool]string{true: "-s"}[streaming], tt.text)
			req.Config = &protocol.SendMessageConfig{ReturnImmediately: tt.immediately}
			var err error
			if streaming {
				_, err = collect(c.SendStreamingMessage(bounded(t), nil, req))
			} else {
				_, err = c.SendMessage(bounded(t), nil, req)
			}
			if refused := tt.text == "refused" || tt.text == "breaks off"; refused != (err != nil) {
				t.Errorf("%s, streaming %v: the caller gets %v", name, streaming, err)
			}
			d := got.next()
			if !strings.Contains(string(d.Body), tt.want) || strings.Contains(tt.want, "COMPLETED") && !strings.Contains(string(d.Body), "all of it") {
				t.Errorf("%s, streaming %v: the final answer is %s", name, streaming, d.Body)
			}
			if d.Type != "Response" || d.Headers["a2a-request-message-id"] != req.Message.ID || d.DeliveryMode != amqp.Persistent {
				t.Errorf("%s, streaming %v: the final answer is %s, to %v, delivery mode %d", name, streaming, d.Type, d.Headers["a2a-request-message-id"], d.DeliveryMode)
			}
		}
	}
	// What is no message has no final answer.
	if _, err := c.GetTask(bounded(t), nil, &protocol.GetTaskRequest{ID: "t"}); err != nil {
		t.Error(err)
	}
	if _, err := c.SendMessage(bounded(t), nil, message("last", "message")); err != nil {
		t.Error(err)
	}
	if d := got.next(); d.Headers["a2a-request-message-id"] != "last" {
		t.Errorf("one answer too many: %s", d.Body)
	}
}

// TestTheSameMessageIsOneTask sends a message while it is being handled, after it was, and after a restart.
func TestTheSameMessageIsOneTask(t *testing.T) {
	url := brokertest.Vhost(t)
	// It outlives the handlers, as a database would.
	store := taskstore.NewInMemory(&taskstore.InMemoryStoreConfig{Authenticator: a2asrv.NewTaskStoreAuthenticator()})
	var started atomic.Int32
	gate := make(chan struct{})
	executor := executorFunc(func(ec *a2asrv.ExecutorContext, yield func(protocol.Event, error) bool) {
		started.Add(1)
		if !yield(protocol.NewSubmittedTask(ec, ec.Message), nil) {
			return
		}
		<-gate
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCompleted, protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("done"))), nil)
	})
	handler := func() a2asrv.RequestHandler { return a2asrv.NewHandler(executor, a2asrv.WithTaskStore(store)) }
	stop := serve(t, url, a2aqueue.ServerConfig{Handler: handler()})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	send := func(text string) *protocol.SendMessageRequest {
		q := message("m-1", text)
		q.Message.ContextID = "context-1"
		return q
	}
	ids := make(chan protocol.TaskID, 100)
	check := func(name string, evs []protocol.Event, err error) {
		if err != nil || len(evs) == 0 {
			t.Errorf("%s: %d events, %v", name, len(evs), err)
			return
		}
		last := evs[len(evs)-1]
		if s, ok := state(last); !ok || s != protocol.TaskStateCompleted {
			t.Errorf("%s: the last event is %+v", name, last)
		}
		ids <- last.TaskInfo().TaskID
	}
	var wg sync.WaitGroup
	first := make(chan struct{})
	wg.Go(func() {
		var evs []protocol.Event
		for ev, err := range c.SendStreamingMessage(bounded(t), nil, send("hi")) {
			if err != nil {
				t.Error(err)
				return
			}
			if evs = append(evs, ev); len(evs) == 1 {
				close(first)
			}
		}
		check("the first", evs, nil)
	})
	<-first
	again := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			var evs []protocol.Event
			for ev, err := range c.SendStreamingMessage(bounded(t), nil, send("hi")) {
				if err != nil {
					t.Error(err)
					return
				}
				if evs = append(evs, ev); len(evs) == 1 {
					again <- struct{}{}
				}
			}
			check("meanwhile", evs, nil)
		})
	}
	for range 3 {
		<-again
	}
	close(gate)
	wg.Wait()
	if _, err := c.SendMessage(bounded(t), nil, send("something else")); !errors.Is(err, protocol.ErrInvalidParams) {
		t.Errorf("another message under the same id = %v", err)
	}
	res, err := c.SendMessage(bounded(t), nil, send("hi"))
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	check("afterwards", []protocol.Event{res}, nil)
	stop()
	serve(t, url, a2aqueue.ServerConfig{Handler: handler()})
	res, err = c.SendMessage(bounded(t), nil, send("hi"))
	if err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	check("after a restart", []protocol.Event{res}, nil)
	evs, err := collect(c.SendStreamingMessage(bounded(t), nil, send("hi")))
	check("after a restart, streaming", evs, err)
	if started.Load() != 1 {
		t.Errorf("%d executions were started", started.Load())
	}
	close(ids)
	all := map[protocol.TaskID]bool{}
	n := 0
	for id := range ids {
		all[id] = true
		n++
	}
	if len(all) != 1 || n != 7 {
		t.Errorf("%d answers name the tasks %v", n, all)
	}
}

func TestTheSameMessageIsAnsweredWithTheSameMessage(t *testing.T) {
	url := brokertest.Vhost(t)
	var n atomic.Int32
	serve(t, url, a2aqueue.ServerConfig{VolatileTasks: true, Handler: &agent{
		stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			if n.Add(1) == 1 {
				return failing(errTest) // nothing became of it
			}
			return saying(reply("hello"))
		},
	}})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	if _, err := c.SendMessage(bounded(t), nil, message("m", "hi")); !errors.Is(err, protocol.ErrInternalError) {
		t.Errorf("the first time, %v", err)
	}
	for range 3 {
		res, err := c.SendMessage(bounded(t), nil, message("m", "hi"))
		if m, ok := res.(*protocol.Message); err != nil || !ok || m.ID != "reply-hello" {
			t.Errorf("again, %v, %v", res, err)
		}
		if evs, err := collect(c.SendStreamingMessage(bounded(t), nil, message("m", "hi"))); err != nil || len(evs) != 1 {
			t.Errorf("again, streaming, %v, %v", evs, err)
		}
	}
	if n.Load() != 2 {
		t.Errorf("the agent was asked %d times", n.Load())
	}
}

// TestARequestIsAcknowledgedWhenItsTaskIsRecorded looks into the queue at both moments.
func TestARequestIsAcknowledgedWhenItsTaskIsRecorded(t *testing.T) {
	url := brokertest.Vhost(t)
	record, finish := make(chan struct{}), make(chan struct{})
	asked := make(chan struct{}, 10)
	serve(t, url, a2aqueue.ServerConfig{VolatileTasks: true, Handler: &agent{
		stream: func(ctx context.Context, _ *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			return func(yield func(protocol.Event, error) bool) {
				asked <- struct{}{}
				<-record
				if !yield(task(protocol.TaskStateWorking), nil) {
					return
				}
				<-finish
				yield(status(protocol.TaskStateCompleted), nil)
			}
		},
	}})
	r := listen(t, open(t, a2aqueue.BrokerConfig{URL: url}), "")
	r.publish(agentQueue, r.asked("SendStreamingMessage", sendBody("SendStreamingMessage", "m", "hi")))
	<-asked
	await(t, "the queue holds the request", func() bool { return brokertest.QueueLength(t, url, agentQueue) == 1 })
	close(record)
	r.next()
	await(t, "the request is acknowledged", func() bool { return brokertest.QueueLength(t, url, agentQueue) == 0 })
	close(finish)
	r.next()
}

// TestAServerThatStops ends streams so that their readers know, and gives back what it didn't record.
func TestAServerThatStops(t *testing.T) {
	url := brokertest.Vhost(t)
	asked := make(chan struct{}, 10)
	hold := &agent{stream: func(ctx context.Context, q *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
		return func(yield func(protocol.Event, error) bool) {
			if q.Message.Parts[0].Text() == "recorded" && !yield(task(protocol.TaskStateWorking), nil) {
				return
			}
			asked <- struct{}{}
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}}
	stop := serve(t, url, a2aqueue.ServerConfig{Handler: hold, VolatileTasks: true, DrainTimeout: time.Millisecond})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	var wg sync.WaitGroup
	wg.Go(func() {
		evs, err := collect(c.SendStreamingMessage(bounded(t), nil, message("a", "recorded")))
		if len(evs) != 1 || err != nil {
			t.Errorf("the stream of a recorded task has %d events and ends with %v", len(evs), err)
		}
	})
	wg.Go(func() {
		if _, err := c.SendMessage(bounded(t), nil, message("b", "recorded")); !errors.Is(err, protocol.ErrServerError) {
			t.Errorf("whoever waits for a recorded task gets %v", err)
		}
	})
	wg.Go(func() {
		evs, err := collect(c.SendStreamingMessage(bounded(t), nil, message("c", "new")))
		if len(evs) != 1 || err != nil {
			t.Errorf("the stream of a message that was given back has %d events and ends with %v", len(evs), err)
		}
	})
	for range 3 {
		<-asked
	}
	stop()
	serve(t, url, a2aqueue.ServerConfig{Handler: talkativeMessage(), VolatileTasks: true})
	wg.Wait()
}

func TestAPanicInTheAgentIsAnError(t *testing.T) {
	url := brokertest.Vhost(t)
	serve(t, url, a2aqueue.ServerConfig{VolatileTasks: true, Handler: &agent{
		stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] { panic("no") },
		get:    func(context.Context, *protocol.GetTaskRequest) (*protocol.Task, error) { panic("no") },
	}})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	if _, err := c.GetTask(bounded(t), nil, &protocol.GetTaskRequest{ID: "t"}); !errors.Is(err, protocol.ErrInternalError) {
		t.Errorf("GetTask() = %v", err)
	}
	if _, err := collect(c.SendStreamingMessage(bounded(t), nil, message("m", "hi"))); !errors.Is(err, protocol.ErrInternalError) {
		t.Errorf("SendStreamingMessage() = %v", err)
	}
}

func TestTheHandlerKnowsWhoAsksAndWithWhat(t *testing.T) {
	url := brokertest.Vhost(t)
	seen := make(chan []string, 1)
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{
		get: func(ctx context.Context, _ *protocol.GetTaskRequest) (*protocol.Task, error) {
			call, _ := a2asrv.CallContextFrom(ctx)
			key, _ := call.ServiceParams().Get("x-api-key")
			ext := call.Extensions().RequestedURIs()
			call.Extensions().Activate(&protocol.AgentExtension{URI: "urn:x"})
			seen <- append(append([]string{call.User.Name}, key...), ext...)
			return task(protocol.TaskStateWorking), nil
		},
	}})
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	r := listen(t, b, "")
	p := r.asked("GetTask", getTask)
	p.UserId = "guest"
	p.Headers["X-API-Key"], p.Headers["A2A-Extensions"], p.Headers["traceparent"] = "secret", "urn:x, urn:y", "00-1-2-01"
	r.publish(agentQueue, p)
	d := r.next()
	if diff := cmp.Diff([]string{"guest", "secret", "urn:x", "urn:y"}, <-seen); diff != "" {
		t.Errorf("the handler sees (-want +got):\n%s", diff)
	}
	if d.Headers["A2A-Extensions"] != "urn:x" || d.Headers["traceparent"] != "00-1-2-01" || d.Headers["a2a-request-message-id"] != "m-1" {
		t.Errorf("the answer has %v", d.Headers)
	}
}

// TestMoreExchangesThanAreFollowedWait fills the places of a server.
func TestMoreExchangesThanAreFollowedWait(t *testing.T) {
	url := brokertest.Vhost(t)
	var running, most atomic.Int32
	gate := make(chan struct{})
	begun := make(chan struct{}, 100)
	serve(t, url, a2aqueue.ServerConfig{VolatileTasks: true, MaxExchanges: 2, Prefetch: 4, Handler: &agent{
		stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			return func(yield func(protocol.Event, error) bool) {
				most.Store(max(most.Load(), running.Add(1)))
				begun <- struct{}{}
				<-gate
				running.Add(-1)
				yield(reply("hello"), nil)
			}
		},
		cancel: func(context.Context, *protocol.CancelTaskRequest) (*protocol.Task, error) {
			return task(protocol.TaskStateCanceled), nil
		},
	}})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b", "c"} {
		wg.Go(func() {
			if _, err := c.SendMessage(bounded(t), nil, message(id, "hi")); err != nil {
				t.Error(err)
			}
		})
	}
	<-begun
	<-begun
	// One message waits for a place, and a cancel goes past it.
	if _, err := c.CancelTask(bounded(t), nil, &protocol.CancelTaskRequest{ID: "t"}); err != nil {
		t.Error(err)
	}
	close(gate)
	wg.Wait()
	if most.Load() != 2 {
		t.Errorf("%d were followed at the same time", most.Load())
	}
}

func state(ev protocol.Event) (protocol.TaskState, bool) {
	switch e := ev.(type) {
	case *protocol.Task:
		return e.Status.State, true
	case *protocol.TaskStatusUpdateEvent:
		return e.Status.State, true
	}
	return "", false
}

// executorFunc is an agent of the SDK's.
type executorFunc func(ec *a2asrv.ExecutorContext, yield func(protocol.Event, error) bool)

func (f executorFunc) Execute(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { f(ec, yield) }
}

func (f executorFunc) Cancel(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCanceled, nil), nil)
	}
}

// TestARequestThatIsDeliveredAgainJoinsTheFirst cuts the agent's connection while it handles a request, before and after
// the task is recorded.
func TestARequestThatIsDeliveredAgainJoinsTheFirst(t *testing.T) {
	for name, recorded := range map[string]bool{"before its task is recorded": false, "after its task is recorded": true} {
		t.Run(name, func(t *testing.T) {
			url := brokertest.Vhost(t)
			proxy := brokertest.NewProxy(t, hostOf(t, url))
			var started atomic.Int32
			cut, going := make(chan struct{}), make(chan struct{}, 10)
			again := make(chan struct{}, 10)
			serveWith(t, open(t, a2aqueue.BrokerConfig{URL: proxy.URL(url)}), a2aqueue.ServerConfig{VolatileTasks: true, Handler: &agent{
				stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
					return func(yield func(protocol.Event, error) bool) {
						started.Add(1)
						if recorded && !yield(task(protocol.TaskStateSubmitted), nil) {
							return
						}
						going <- struct{}{}
						<-cut
						if yield(status(protocol.TaskStateWorking), nil) {
							yield(status(protocol.TaskStateCompleted), nil)
						}
					}
				},
				// A request after the cut shows that the agent is connected again, and has had what was given back.
				list: func(context.Context, *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
					again <- struct{}{}
					return &protocol.ListTasksResponse{}, nil
				},
			}})
			c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
			var wg sync.WaitGroup
			wg.Go(func() {
				evs, err := collect(c.SendStreamingMessage(bounded(t), nil, message("m", "hi")))
				want := 2
				if recorded {
					want = 3
				}
				if err != nil || len(evs) != want {
					t.Errorf("the stream has %d events and ends with %v, want %d", len(evs), err, want)
				}
			})
			<-going
			proxy.Sever()
			if _, err := c.ListTasks(bounded(t), nil, &protocol.ListTasksRequest{}); err != nil {
				t.Error(err)
			}
			<-again
			close(cut)
			wg.Wait()
			await(t, "nothing is left in the queue", func() bool { return brokertest.QueueLength(t, url, agentQueue) == 0 })
			if n := started.Load(); n != 1 {
				t.Errorf("%d executions were started", n)
			}
		})
	}
}

// TestARequestThatAnotherProcessTakesUpIsAnotherStream gives a second process of the agent what the first works on.
func TestARequestThatAnotherProcessTakesUpIsAnotherStream(t *testing.T) {
	url := brokertest.Vhost(t)
	store := taskstore.NewInMemory(&taskstore.InMemoryStoreConfig{Authenticator: a2asrv.NewTaskStoreAuthenticator()})
	var started atomic.Int32
	going, finish := make(chan struct{}), make(chan struct{})
	handler := a2asrv.NewHandler(executorFunc(func(ec *a2asrv.ExecutorContext, yield func(protocol.Event, error) bool) {
		if started.Add(1) != 1 || !yield(protocol.NewSubmittedTask(ec, ec.Message), nil) {
			return
		}
		close(going)
		<-finish
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCompleted, nil), nil)
	}), a2asrv.WithTaskStore(store))
	serve(t, url, a2aqueue.ServerConfig{Handler: handler})
	req := message("m", "hi")
	req.Message.ContextID = "context-1"
	r := listen(t, open(t, a2aqueue.BrokerConfig{URL: url}), "")
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	p := r.asked("SendStreamingMessage", `{"jsonrpc":"2.0","id":"1","method":"SendStreamingMessage","params":`+string(body)+`}`)
	p.UserId = "guest"
	r.publish(agentQueue, p)
	<-going
	first := r.next()
	// The second process doesn't know what the first has in its memory, and gets the same request.
	serve(t, url, a2aqueue.ServerConfig{Handler: handler, Queue: "a2a.second"})
	r.publish("a2a.second", p)
	other := r.next()
	if first.Headers["a2a-stream-id"] == other.Headers["a2a-stream-id"] || other.Headers["a2a-seq"] != int64(1) {
		t.Errorf("the streams of two processes are %v and %v", first.Headers, other.Headers)
	}
	close(finish)
	ends := map[any]bool{}
	for len(ends) < 2 {
		d := r.next()
		if d.Headers["a2a-end"] == true {
			ends[d.Headers["a2a-stream-id"]] = true
		}
	}
	if started.Load() != 1 {
		t.Errorf("%d executions were started", started.Load())
	}
}

func TestAnAnswerThatMayNotHaveArrivedIsSentAgain(t *testing.T) {
	refusal := &a2aqueue.RefusedError{Reason: a2aqueue.ErrNotFound, Code: 404}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{refusal, false},
		{a2aqueue.ErrClosed, false},
		{a2aqueue.ErrNotConnected, true},
		{&a2aqueue.UnconfirmedError{Err: refusal}, true}, // which is another message's
		{&a2aqueue.UnconfirmedError{Err: a2aqueue.ErrClosed}, true},
	} {
		if got := a2aqueue.Passing(tt.err); got != tt.want {
			t.Errorf("after %v an answer is sent again: %v, want %v", tt.err, got, tt.want)
		}
	}
}
