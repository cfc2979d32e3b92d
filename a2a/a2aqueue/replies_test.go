package a2aqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

const replyQueue = a2aqueue.ReplyQueuePrefix + "test"

// takeReplies takes replies until the test is over, or stop is called, which waits.
func takeReplies(t *testing.T, url string, reg prometheus.Registerer, handle func(context.Context, a2aqueue.Reply) (a2aqueue.Fate, error)) (stop func()) {
	t.Helper()
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	r, err := a2aqueue.NewReplies(a2aqueue.RepliesConfig{Broker: b, Queue: replyQueue, Handle: handle, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Do(bounded(t), func(ctx context.Context, ch *amqp.Channel) error { return a2aqueue.DeclareDurable(ctx, ch, replyQueue) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
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

func replying(id, body string) amqp.Publishing {
	return amqp.Publishing{
		Type: "Response", ContentType: "application/json", DeliveryMode: amqp.Persistent, CorrelationId: "x",
		Headers: amqp.Table{"a2a-request-message-id": id, "A2A-Version": "1.0"}, Body: []byte(body),
	}
}

func TestRepliesAreTakenOrBuried(t *testing.T) {
	url := brokertest.Vhost(t)
	got := make(chan a2aqueue.Reply, 10)
	reg := prometheus.NewRegistry()
	takeReplies(t, url, reg, func(_ context.Context, r a2aqueue.Reply) (a2aqueue.Fate, error) {
		switch r.MessageID {
		case "stranger":
			return a2aqueue.FateUnknown, nil
		case "useless":
			return a2aqueue.FateUnusable, nil
		}
		got <- r
		return a2aqueue.FateTaken, nil
	})
	b := open(t, a2aqueue.BrokerConfig{URL: url})
	dead := listen(t, b, a2aqueue.DeadQueue)
	out := &raw{t: t, broker: b}
	out.publish(replyQueue, replying("call-1", completed))
	if r := <-got; r.MessageID != "call-1" || r.Err != nil || r.Result == nil || r.Result.TaskInfo().TaskID != "task-9" {
		t.Errorf("the reply is %+v", r)
	}
	out.publish(replyQueue, replying("call-2", `{"jsonrpc":"2.0","id":"1","error":{"code":-32602,"message":"no"}}`))
	if r := <-got; r.MessageID != "call-2" || !errors.Is(r.Err, protocol.ErrInvalidParams) || r.Result != nil {
		t.Errorf("the reply is %+v", r)
	}
	n := 0
	for name, tt := range map[string]struct {
		p      amqp.Publishing
		reason string
	}{
		"of no call":         {replying("stranger", completed), `no call has the message id "stranger"`},
		"of no use":          {replying("useless", completed), "can't be used"},
		"no JSON":            {replying("c", "<html>"), "no JSON-RPC response"},
		"no task or message": {replying("c", `{"jsonrpc":"2.0","id":"1","result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`), "neither a task nor a message"},
		"without an id": {func() amqp.Publishing {
			p := replying("", completed)
			delete(p.Headers, "a2a-request-message-id")
			return p
		}(), "a2a-request-message-id"},
		"an event": {func() amqp.Publishing {
			p := replying("c", completed)
			p.Type, p.Headers["a2a-seq"] = "Event", int64(1)
			return p
		}(), "Event"},
		"of no type": {func() amqp.Publishing { p := replying("c", completed); p.Type = ""; return p }(), "its type"},
	} {
		out.publish(replyQueue, tt.p)
		d := dead.next()
		n++
		if reason, _ := d.Headers["x-a2a-reason"].(string); !strings.Contains(reason, tt.reason) || string(d.Body) != string(tt.p.Body) {
			t.Errorf("a reply %s is buried with %q", name, reason)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			counts[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	for fate, want := range map[string]int{"taken": 2, "unknown": 1, "unusable": n - 1} {
		if got := counts["orchestrator_queue_replies_total "+fate]; got != float64(want) {
			t.Errorf("%v replies are counted as %s, want %d", got, fate, want)
		}
	}
}

// TestAReplyIsAcknowledgedAfterItWasWrittenDown fails to write it, and then dies in between.
func TestAReplyIsAcknowledgedAfterItWasWrittenDown(t *testing.T) {
	url := brokertest.Vhost(t)
	var mu sync.Mutex
	tries := 0
	writing := make(chan struct{})
	stop := takeReplies(t, url, nil, func(ctx context.Context, r a2aqueue.Reply) (a2aqueue.Fate, error) {
		mu.Lock()
		tries++
		n := tries
		mu.Unlock()
		if n < 3 {
			return "", errTest // the store is away
		}
		if n == 3 {
			close(writing)
		}
		return "", fmt.Errorf("still %w", errTest)
	})
	out := &raw{t: t, broker: open(t, a2aqueue.BrokerConfig{URL: url})}
	out.publish(replyQueue, replying("call-1", completed))
	<-writing
	await(t, "the queue holds the reply", func() bool { return brokertest.QueueLength(t, url, replyQueue) == 1 })
	stop()
	got := make(chan a2aqueue.Reply, 2)
	takeReplies(t, url, nil, func(_ context.Context, r a2aqueue.Reply) (a2aqueue.Fate, error) {
		got <- r
		return a2aqueue.FateKnown, nil
	})
	if r := <-got; r.MessageID != "call-1" || !r.Redelivered {
		t.Errorf("then comes %+v", r)
	}
	await(t, "it is acknowledged", func() bool { return brokertest.QueueLength(t, url, replyQueue) == 0 })
}
