package a2aqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

// byHand is an agent whose answers a test writes itself.
type byHand struct {
	*raw
	t *testing.T
}

func answerByHand(t *testing.T, url string) *byHand {
	t.Helper()
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	if err := b.Do(bounded(t), func(ctx context.Context, ch *amqp.Channel) error { return a2aqueue.DeclareDurable(ctx, ch, agentQueue) }); err != nil {
		t.Fatal(err)
	}
	return &byHand{raw: listen(t, b, agentQueue), t: t}
}

// say publishes an event with a number, which is the state of a task unless it is a text.
func (a *byHand) say(req *a2aqueue.Delivery, seq int64, end bool, body string) {
	a.t.Helper()
	h := amqp.Table{"a2a-seq": seq, "A2A-Version": "1.0"}
	if end {
		h["a2a-end"] = true
	}
	kind := "Event"
	h["a2a-stream-id"] = "one"
	if body == "another" {
		h["a2a-stream-id"], body = "two", completed
	}
	if body == "alive" {
		kind, body = "KeepAlive", ""
	}
	to, _ := req.Headers["a2a-stream-to"].(string)
	a.publish(to, amqp.Publishing{Type: kind, ContentType: "application/json", CorrelationId: req.CorrelationId, Headers: h, Body: []byte(body)})
}

func working(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"1","result":{"statusUpdate":{"taskId":"task-%d","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`, n)
}

const completed = `{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"task-9","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}`

// TestStreamsAreTakenInOrder writes the events of a stream in many ways.
func TestStreamsAreTakenInOrder(t *testing.T) {
	type said struct {
		seq  int64
		end  bool
		body string
	}
	for name, tt := range map[string]struct {
		said []said
		want int   // events before the end
		err  error // nil: none
	}{
		"in order, the end with the last":   {[]said{{1, false, working(1)}, {2, true, completed}}, 2, nil},
		"in order, the end by itself":       {[]said{{1, false, working(1)}, {2, false, completed}, {3, true, ""}}, 2, nil},
		"nothing but the end":               {[]said{{1, true, ""}}, 0, nil},
		"each twice":                        {[]said{{1, false, working(1)}, {1, false, working(1)}, {2, true, completed}, {2, true, completed}}, 2, nil},
		"kept alive":                        {[]said{{0, false, "alive"}, {1, false, working(1)}, {1, false, "alive"}, {2, true, completed}}, 2, nil},
		"an old sign of life":               {[]said{{1, false, working(1)}, {2, false, working(2)}, {1, false, "alive"}, {3, true, completed}}, 3, nil},
		"one missing in the middle":         {[]said{{1, false, working(1)}, {3, true, completed}}, 1, a2aqueue.ErrGap},
		"the first missing":                 {[]said{{2, false, working(2)}}, 0, a2aqueue.ErrGap},
		"one missing before a sign of life": {[]said{{1, false, working(1)}, {2, false, "alive"}}, 1, a2aqueue.ErrGap},
		"begun anew by another process":     {[]said{{1, false, working(1)}, {1, false, "another"}}, 1, a2aqueue.ErrGap},
		"an error in the middle": {
			[]said{{1, false, working(1)}, {2, true, `{"jsonrpc":"2.0","id":"1","error":{"code":-32001,"message":"gone"}}`}}, 1, protocol.ErrTaskNotFound,
		},
		"something else in the middle": {[]said{{1, false, working(1)}, {2, false, `<html>`}}, 1, a2a.ErrUnreadable},
		"an event of no kind":          {[]said{{1, false, `{"jsonrpc":"2.0","id":"1","result":{}}`}}, 0, a2a.ErrUnreadable},
		"an empty event":               {[]said{{1, false, ``}}, 0, a2a.ErrUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			url := brokertest.Vhost(t)
			agent := answerByHand(t, url)
			f := connect(t, url, a2aqueue.FactoryConfig{})
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				req := agent.next()
				for _, s := range tt.said {
					agent.say(req, s.seq, s.end, s.body)
				}
			})
			got, err := collect(f.Client(agentQueue).SendStreamingMessage(bounded(t), nil, message("m", "hi")))
			if len(got) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("the stream has %d events and ends with %v, want %d and %v", len(got), err, tt.want, tt.err)
			}
			if n := f.Waiting(); n != 0 {
				t.Errorf("%d exchanges are left", n)
			}
		})
	}
}

func TestAStreamNobodyTakesBreaksAndHoldsUpNoOther(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	c := f.Client(agentQueue)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		slow := agent.next()
		for n := range int64(1000) {
			agent.say(slow, n+1, false, working(1))
		}
		agent.say(agent.next(), 1, true, completed)
	})
	taken := 0
	for _, err := range c.SendStreamingMessage(bounded(t), nil, message("slow", "hi")) {
		if err != nil {
			if !errors.Is(err, a2aqueue.ErrSlow) {
				t.Errorf("the stream ends with %v", err)
			}
			break
		}
		if taken++; taken == 1 { // while nothing more is taken of this one, another goes on
			if got, err := collect(c.SendStreamingMessage(bounded(t), nil, message("other", "hi"))); err != nil || len(got) != 1 {
				t.Errorf("the other stream has %d events and ends with %v", len(got), err)
			}
		}
	}
	if taken >= 1000 {
		t.Errorf("all events were taken")
	}
}

func TestASilentAgentBreaksTheStream(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	f := connect(t, url, a2aqueue.FactoryConfig{KeepAlive: time.Second})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		req := agent.next()
		if n := req.Headers["a2a-keep-alive"]; n != int64(1) {
			t.Errorf("the request asks for a sign of life every %v s", n)
		}
		agent.say(req, 1, false, working(1))
	})
	got, err := collect(f.Client(agentQueue).SendStreamingMessage(bounded(t), nil, message("m", "hi")))
	if len(got) != 1 || !errors.Is(err, a2aqueue.ErrSilent) {
		t.Errorf("the stream has %d events and ends with %v", len(got), err)
	}
}

// TestAServedStreamIsKeptAlive holds a stream silent for longer than its reader would wait for a dead agent.
func TestAServedStreamIsKeptAlive(t *testing.T) {
	url := brokertest.Vhost(t)
	gate := make(chan struct{})
	serve(t, url, a2aqueue.ServerConfig{VolatileTasks: true, Handler: &agent{
		stream: func(ctx context.Context, _ *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			return func(yield func(protocol.Event, error) bool) {
				if !yield(task(protocol.TaskStateWorking), nil) {
					return
				}
				select {
				case <-gate:
				case <-ctx.Done():
				}
				yield(status(protocol.TaskStateCompleted), nil)
			}
		},
	}})
	r := listen(t, open(t, a2aqueue.BrokerConfig{URL: url}), "")
	p := r.asked("SendStreamingMessage", `{"jsonrpc":"2.0","id":"1","method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}}`)
	p.Headers["a2a-keep-alive"] = int64(1)
	r.publish(agentQueue, p)
	if d := r.next(); d.Type != "Event" || d.Headers["a2a-seq"] != int64(1) {
		t.Errorf("first comes %s %v", d.Type, d.Headers)
	}
	for range 2 {
		if d := r.next(); d.Type != "KeepAlive" || d.Headers["a2a-seq"] != int64(1) || len(d.Body) != 0 {
			t.Errorf("then comes %s %v", d.Type, d.Headers)
		}
	}
	close(gate)
	for {
		d := r.next()
		if d.Type == "KeepAlive" {
			continue
		}
		if d.Type != "Event" || d.Headers["a2a-seq"] != int64(2) || d.Headers["a2a-end"] != true {
			t.Errorf("last comes %s %v", d.Type, d.Headers)
		}
		break
	}
}

func TestACancelledContextEndsAnExchangeAtOnce(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	c := f.Client(agentQueue)
	for name, do := range map[string]func(context.Context) error{
		"a stream": func(ctx context.Context) error {
			_, err := collect(c.SendStreamingMessage(ctx, nil, message("a", "hi")))
			return err
		},
		"a message": func(ctx context.Context) error {
			_, err := c.SendMessage(ctx, nil, message("b", "hi"))
			return err
		},
		"a subscription": func(ctx context.Context) error {
			_, err := collect(c.SubscribeToTask(ctx, nil, &protocol.SubscribeToTaskRequest{ID: "t"}))
			return err
		},
		"a question": func(ctx context.Context) error {
			_, err := c.GetTask(ctx, nil, &protocol.GetTaskRequest{ID: "t"})
			return err
		},
	} {
		ctx, cancel := context.WithCancelCause(bounded(t))
		var wg sync.WaitGroup
		wg.Go(func() {
			agent.next() // it is with the agent, who says nothing
			cancel(errTest)
		})
		if err := do(ctx); !errors.Is(err, errTest) {
			t.Errorf("%s ends with %v", name, err)
		}
		wg.Wait()
		if n := f.Waiting(); n != 0 {
			t.Errorf("after %s, %d exchanges are left", name, n)
		}
	}
}

func TestClosingTheFactoryEndsItsExchanges(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		agent.next()
		f.Close()
	})
	_, err := collect(f.Client(agentQueue).SendStreamingMessage(bounded(t), nil, message("a", "hi")))
	if !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("the stream ends with %v", err)
	}
	if _, err := f.Client(agentQueue).GetTask(bounded(t), nil, &protocol.GetTaskRequest{ID: "t"}); !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("GetTask() after Close = %v", err)
	}
}

func TestClosingTheBrokerEndsExchangesAsClosingTheFactoryDoes(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	f := connect(t, url, a2aqueue.FactoryConfig{Broker: b})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		agent.next()
		if err := b.Close(bounded(t)); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	_, err := collect(f.Client(agentQueue).SendStreamingMessage(bounded(t), nil, message("a", "hi")))
	if !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestALostConnectionEndsExchangesWhoseAnswersWereToComeByIt(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	proxy := brokertest.NewProxy(t, hostOf(t, url))
	f := connect(t, url, a2aqueue.FactoryConfig{Broker: open(t, a2aqueue.BrokerConfig{URL: proxy.URL(url)})})
	c := f.Client(agentQueue)
	var wg sync.WaitGroup
	wg.Go(func() {
		agent.say(agent.next(), 1, false, working(1))
	})
	for ev, err := range c.SendStreamingMessage(bounded(t), nil, message("a", "hi")) {
		if err != nil {
			if !errors.Is(err, a2aqueue.ErrLost) {
				t.Errorf("the stream ends with %v", err)
			}
			break
		}
		_ = ev
		proxy.Sever()
	}
	wg.Wait()
	// The next one goes by the new connection.
	wg.Go(func() {
		agent.say(agent.next(), 1, true, completed)
	})
	await(t, "the connection is there again", func() bool {
		got, err := collect(c.SendStreamingMessage(bounded(t), nil, message("b", "hi")))
		if _, again := errors.AsType[*a2a.NotSentError](err); again {
			return false
		}
		if err != nil || len(got) != 1 {
			t.Fatalf("the next stream has %d events and ends with %v", len(got), err)
		}
		return true
	})
	wg.Wait()
}

func TestRequestsThatCertainlyDidNotArriveSaySo(t *testing.T) {
	url := brokertest.Vhost(t)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	nobody := f.Client("a2a.nobody")
	_, err := nobody.SendMessage(bounded(t), nil, message("a", "hi"))
	_, notSent := errors.AsType[*a2a.NotSentError](err)
	if r, returned := errors.AsType[*a2aqueue.ReturnedError](err); !notSent || !returned || r.Code != 312 {
		t.Errorf("SendMessage() to no queue = %v", err)
	}
	down := connect(t, "amqp://guest:guest@127.0.0.1:1/", a2aqueue.FactoryConfig{})
	_, err = down.Client(agentQueue).SendMessage(bounded(t), nil, message("a", "hi"))
	if _, notSent := errors.AsType[*a2a.NotSentError](err); !notSent || !errors.Is(err, a2aqueue.ErrNotConnected) {
		t.Errorf("SendMessage() without a broker = %v", err)
	}
	small := connect(t, url, a2aqueue.FactoryConfig{MaxBody: 1000})
	if _, err := small.Client(agentQueue).SendMessage(bounded(t), nil, message("a", strings.Repeat("x", 1000))); !errors.Is(err, a2a.ErrTooLarge) {
		t.Errorf("SendMessage() of more than is allowed = %v", err)
	}
	if n := f.Waiting() + down.Waiting() + small.Waiting(); n != 0 {
		t.Errorf("%d exchanges are left", n)
	}
}

func TestADurableQueueIsWaitedIn(t *testing.T) {
	url := brokertest.Vhost(t)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	var wg sync.WaitGroup
	wg.Go(func() {
		res, err := f.Client(agentQueue).Durable().SendMessage(bounded(t), nil, message("a", "hi"))
		if m, ok := res.(*protocol.Message); err != nil || !ok || m.Parts[0].Text() != "hello" {
			t.Errorf("SendMessage() = %v, %v", res, err)
		}
	})
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	await(t, "the message waits", func() bool { return held(t, b, agentQueue) == 1 })
	serve(t, url, a2aqueue.ServerConfig{Handler: talkativeMessage()})
	wg.Wait()
}

func talkativeMessage() *agent {
	return &agent{stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
		return saying(reply("hello"))
	}}
}

func TestAnAnswerOverTheBoundIsRefused(t *testing.T) {
	url := brokertest.Vhost(t)
	long := strings.Repeat("x", 3000)
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{
		stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			return saying(reply(long))
		},
		get: func(context.Context, *protocol.GetTaskRequest) (*protocol.Task, error) {
			return task(protocol.TaskStateWorking), nil
		},
	}})
	c := connect(t, url, a2aqueue.FactoryConfig{MaxBody: 2000}).Client(agentQueue)
	if _, err := collect(c.SendStreamingMessage(bounded(t), nil, message("a", "hi"))); !errors.Is(err, a2a.ErrTooLarge) {
		t.Errorf("SendStreamingMessage() = %v", err)
	}
	if _, err := c.SendMessage(bounded(t), nil, message("b", "hi")); !errors.Is(err, a2a.ErrTooLarge) {
		t.Errorf("SendMessage() = %v", err)
	}
	if _, err := c.GetTask(bounded(t), nil, &protocol.GetTaskRequest{ID: "t"}); err != nil {
		t.Errorf("GetTask() = %v", err)
	}
}

// TestAnAnswerThatCannotBeSentIsAnError has an agent say more than its broker takes.
func TestAnAnswerThatCannotBeSentIsAnError(t *testing.T) {
	url := brokertest.Vhost(t)
	b := open(t, a2aqueue.BrokerConfig{URL: url, MaxMessage: 2000})
	long := strings.Repeat("x", 3000)
	serveWith(t, b, a2aqueue.ServerConfig{Handler: &agent{
		stream: func(context.Context, *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			return saying(reply(long))
		},
	}})
	c := connect(t, url, a2aqueue.FactoryConfig{}).Client(agentQueue)
	if _, err := collect(c.SendStreamingMessage(bounded(t), nil, message("a", "hi"))); !errors.Is(err, protocol.ErrServerError) {
		t.Errorf("SendStreamingMessage() = %v", err)
	}
	if _, err := c.SendMessage(bounded(t), nil, message("b", "hi")); !errors.Is(err, protocol.ErrServerError) {
		t.Errorf("SendMessage() = %v", err)
	}
}

func TestTraceVersionAndParametersTravelBothWays(t *testing.T) {
	url := brokertest.Vhost(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	agent := answerByHand(t, url)
	f := connect(t, url, a2aqueue.FactoryConfig{})
	ctx, cancel := context.WithTimeout(bounded(t), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		d := agent.next()
		for name, want := range map[string]any{"A2A-Version": "1.0", "A2A-Extensions": a2a.LineageURI + ",urn:x", "traceparent": trace, "X-Tenant": "t"} {
			if got := d.Headers[name]; got != want {
				t.Errorf("header %s = %v, want %v", name, got, want)
			}
		}
		deadline, err := time.Parse(time.RFC3339Nano, d.Headers["a2a-deadline"].(string))
		if at, _ := ctx.Deadline(); err != nil || !deadline.Equal(at.UTC()) {
			t.Errorf("header a2a-deadline = %v, want %v", d.Headers["a2a-deadline"], at)
		}
		if d.Expiration == "" || d.MessageId != "m-7" || d.Type != "SendStreamingMessage" || d.ContentType != "application/json" || d.DeliveryMode != amqp.Persistent {
			t.Errorf("the request is %+v", d.Delivery)
		}
		var body struct {
			ID     string
			Params struct {
				Message struct{ Metadata map[string]any }
			}
		}
		if err := json.Unmarshal(d.Body, &body); err != nil || body.ID != "m-7" {
			t.Errorf("the body is %s, %v", d.Body, err)
		}
		if l, ok := a2a.LineageFrom(body.Params.Message.Metadata); !ok || l.Depth != 1 {
			t.Errorf("the lineage is %+v, %v", l, ok)
		}
		agent.say(d, 1, true, completed)
	})
	req := message("m-7", "hi")
	req.Message.Metadata = map[string]any{a2a.LineageURI: a2a.Lineage{}.Next("me", time.Time{}).Metadata()}
	params := map[string][]string{"a2a-extensions": {a2a.LineageURI, "urn:x"}, "traceparent": {trace}, "X-Tenant": {"t"}, "a2a-seq": {"1"}, "CC": {"other"}}
	if _, err := collect(f.Client(agentQueue).SendStreamingMessage(ctx, params, req)); err != nil {
		t.Error(err)
	}
}
