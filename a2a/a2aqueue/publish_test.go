package a2aqueue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

var quorum = amqp.Table{"x-queue-type": "quorum"}

func TestPublishReturnsWhenTheBrokerHasTheMessage(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := open(t, a2aqueue.BrokerConfig{Registry: reg})
	q := declare(t, b, "q", quorum)
	for i := range 3 {
		if err := b.Publish(bounded(t), text(q, fmt.Sprint(i))); err != nil {
			t.Fatalf("Publish() = %v", err)
		}
	}
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q})
	for i := range 3 {
		d := in.next(t)
		if string(d.Body) != fmt.Sprint(i) {
			t.Errorf("delivered %q, want %d", d.Body, i)
		}
		if err := d.Ack(); err != nil {
			t.Error(err)
		}
	}
	if n := counted(t, reg, "orchestrator_broker_publishes_total", "result", "confirmed"); n != 3 {
		t.Errorf("%v messages were counted as confirmed, want 3", n)
	}
}

func TestAMessageNoQueueTakesComesBackAtOnceUnlessItIsOptional(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := open(t, a2aqueue.BrokerConfig{PublishTimeout: time.Hour, Registry: reg})
	p := text("nobody", "x")
	p.Headers = amqp.Table{"mine": "1"}
	err := b.Publish(bounded(t), p)
	want := &a2aqueue.ReturnedError{Key: "nobody", Code: 312, Text: "NO_ROUTE"}
	if got, ok := errors.AsType[*a2aqueue.ReturnedError](err); !ok || *got != *want {
		t.Errorf("Publish() = %v, want %v", err, want)
	}
	if diff := cmp.Diff(amqp.Table{"mine": "1"}, p.Headers); diff != "" {
		t.Errorf("the caller's headers were changed (-want +got):\n%s", diff)
	}
	p.Optional = true
	if err := b.Publish(bounded(t), p); err != nil {
		t.Errorf("Publish() of an optional message = %v", err)
	}
	if n := counted(t, reg, "orchestrator_broker_publishes_total", "result", "returned"); n != 1 {
		t.Errorf("%v messages were counted as returned, want 1", n)
	}
}

// Of many messages on one channel, which are the same but for their number, exactly those come back that had no queue.
func TestEachOfManyMessagesGetsItsOwnFate(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{PublishChannels: 1, MaxUnconfirmed: 16})
	q := declare(t, b, "q", nil)
	errs := make([]error, 400)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			key := q
			if i%3 == 0 {
				key = "nobody"
			}
			errs[i] = b.Publish(bounded(t), a2aqueue.Publication{Key: key, Publishing: amqp.Publishing{MessageId: "same", CorrelationId: "same"}})
		})
	}
	wg.Wait()
	for i, err := range errs {
		_, returned := errors.AsType[*a2aqueue.ReturnedError](err)
		if want := i%3 == 0; returned != want || !want && err != nil {
			t.Errorf("Publish() %d = %v, want it returned: %v", i, err, want)
		}
	}
	if n := length(t, b, q); n != 266 {
		t.Errorf("the queue has %d messages, want 266", n)
	}
}

// Nobody waits any more for what came back first; it must not be in the way of what comes back next.
func TestAMessageGivenBackToNobodyIsNotInTheWay(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishChannels: 1, MaxUnconfirmed: 1})
	warm(t, b)
	proxy.Delay(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := b.Publish(ctx, text("nobody", "1"))
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown {
		t.Errorf("Publish() = %v, want an UnconfirmedError", err)
	}
	proxy.Delay(0)
	err = b.Publish(bounded(t), text("nobody", "2"))
	if _, returned := errors.AsType[*a2aqueue.ReturnedError](err); !returned {
		t.Errorf("Publish() = %v, want a ReturnedError", err)
	}
}

func TestAFullQueueThatRejectsIsAnError(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err := b.Publish(bounded(t), text(q, "1")); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(bounded(t), text(q, "2")); !errors.Is(err, a2aqueue.ErrNacked) {
		t.Errorf("Publish() to a full queue = %v, want ErrNacked", err)
	}
}

func TestWhatCantBeWrittenIsRefusedBeforeItHarmsTheConnection(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{MaxMessage: 1000})
	q := declare(t, b, "q", nil)
	long := strings.Repeat("x", 256)
	deep := []any{}
	for range 50 {
		deep = []any{deep}
	}
	for _, tt := range []struct {
		name string
		p    a2aqueue.Publication
		want error
	}{
		{"a large body", a2aqueue.Publication{Publishing: amqp.Publishing{Body: make([]byte, 1001)}}, a2aqueue.ErrTooLarge},
		{"large headers", a2aqueue.Publication{Publishing: amqp.Publishing{Headers: amqp.Table{"x": strings.Repeat("x", 70_000)}}}, a2aqueue.ErrTooLarge},
		{"a long exchange", a2aqueue.Publication{Exchange: long}, a2aqueue.ErrInvalid},
		{"a long message id", a2aqueue.Publication{Publishing: amqp.Publishing{MessageId: long}}, a2aqueue.ErrInvalid},
		{"an expiration that is no number", a2aqueue.Publication{Publishing: amqp.Publishing{Expiration: "soon"}}, a2aqueue.ErrInvalid},
		{"an expiration below 0", a2aqueue.Publication{Publishing: amqp.Publishing{Expiration: "-1"}}, a2aqueue.ErrInvalid},
		{"a header of a type AMQP hasn't", a2aqueue.Publication{Publishing: amqp.Publishing{Headers: amqp.Table{"x": struct{}{}}}}, a2aqueue.ErrInvalid},
		{"a long name deep in the headers", a2aqueue.Publication{Publishing: amqp.Publishing{Headers: amqp.Table{"x": []any{amqp.Table{long: 1}}}}}, a2aqueue.ErrInvalid},
		{"headers nested without end", a2aqueue.Publication{Publishing: amqp.Publishing{Headers: amqp.Table{"x": deep}}}, a2aqueue.ErrInvalid},
	} {
		tt.p.Key = q
		if err := b.Publish(bounded(t), tt.p); !errors.Is(err, tt.want) {
			t.Errorf("Publish() of %s = %v, want %v", tt.name, err, tt.want)
		}
	}
	fits := a2aqueue.Publication{Key: q, Publishing: amqp.Publishing{
		Body: make([]byte, 1000), Expiration: fmt.Sprint(math.MaxUint32), MessageId: long[1:],
		Headers: amqp.Table{"x": strings.Repeat("x", 60_000), long[1:]: int64(1)},
	}}
	if err := b.Publish(bounded(t), fits); err != nil {
		t.Errorf("Publish() of what just fits = %v", err)
	}
}

func TestAMissingExchangeIsRefusedAndOthersGoOn(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{PublishChannels: 1})
	q := declare(t, b, "q", nil)
	err := b.Publish(bounded(t), a2aqueue.Publication{Exchange: "missing", Key: q})
	refused, ok := errors.AsType[*a2aqueue.RefusedError](err)
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); unknown || !ok || !errors.Is(err, a2aqueue.ErrNotFound) || refused.Code != 404 {
		t.Errorf("Publish() to a missing exchange = %v, want a RefusedError for ErrNotFound", err)
	}
	if err := b.Publish(bounded(t), text(q, "x")); err != nil {
		t.Errorf("Publish() after it = %v", err)
	}
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		err := b.Publish(ctx, text(q, "x"))
		if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); unknown || !errors.Is(err, context.Canceled) {
			t.Errorf("Publish() = %v, want context.Canceled and nothing unknown", err)
		}
	}
	if n := length(t, b, q); n != 0 {
		t.Errorf("the queue has %d messages, want none", n)
	}
}

// The confirmation is thrown away on its way, so that it is certain that the message left and none came.
func TestAConnectionCutBeforeTheConfirmationLeavesItUnknown(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishTimeout: time.Hour, PublishChannels: 1})
	q := declare(t, direct, "q", nil)
	warm(t, b)
	proxy.Drop(brokertest.ToClient)
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(bounded(t), text(q, "x")) }() // received below
	await(t, "the message arrives", func() bool { return length(t, direct, q) == 1 })
	proxy.Heal()
	proxy.Sever()
	err := <-sent
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown {
		t.Errorf("Publish() = %v, want an UnconfirmedError", err)
	}
	if err := b.Publish(bounded(t), text(q, "y")); err != nil {
		t.Errorf("Publish() after it = %v", err)
	}
	if n := length(t, direct, q); n != 2 {
		t.Errorf("the queue has %d messages, want 2", n)
	}
}

func TestAPublishWithoutConfirmationEndsWithItsContext(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishTimeout: time.Hour, PublishChannels: 1})
	q := declare(t, direct, "q", nil)
	warm(t, b)
	proxy.Drop(brokertest.ToClient)
	defer proxy.Sever()
	ctx, cancel := context.WithCancelCause(bounded(t))
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(ctx, text(q, "x")) }() // received below
	await(t, "the message arrives", func() bool { return length(t, direct, q) == 1 })
	gaveUp := errors.New("the caller gave up")
	cancel(gaveUp)
	err := <-sent
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || !errors.Is(err, gaveUp) {
		t.Errorf("Publish() = %v, want an UnconfirmedError with the context's cause", err)
	}
}

// Nothing is acknowledged on the way, so the messages fill the buffers of the sockets, and a write is stuck.
func TestAPublishStuckInTheSocketIsCutOff(t *testing.T) {
	for _, tt := range []struct {
		name           string
		publish, write time.Duration
	}{
		{"by its own bound", 300 * time.Millisecond, time.Hour},
		{"by that of a write", time.Hour, 300 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vhost := brokertest.Vhost(t)
			direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
			q := declare(t, direct, "q", nil)
			stuck := &stuckDialer{}
			b := open(t, a2aqueue.BrokerConfig{
				URL: vhost, PublishTimeout: tt.publish, WriteTimeout: tt.write, Dial: stuck.dial, PublishChannels: 1, Heartbeat: 5 * time.Minute,
			})
			warm(t, b)
			stuck.close()
			ctx := bounded(t)
			err := b.Publish(ctx, text(q, "y"))
			if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || ctx.Err() != nil {
				t.Errorf("Publish() = %v, want an UnconfirmedError", err)
			}
			if tt.write > tt.publish {
				return // the next are bounded alike, and Close cuts the write off
			}
			stuck.open()
			if err := b.Publish(bounded(t), text(q, "z")); err != nil {
				t.Errorf("Publish() on the next connection = %v", err)
			}
		})
	}
}

// A write fails, and the library notices nothing until it reads again. What was on the way before it isn't confirmed for the
// same reason as what was being written.
func TestAFailedWriteIsWhyNothingOnTheConnectionIsConfirmed(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	q := declare(t, direct, "q", nil)
	stuck, noticed := &stuckDialer{}, make(chan struct{})
	b := open(t, a2aqueue.BrokerConfig{
		URL: proxy.URL(vhost), PublishTimeout: time.Hour, WriteTimeout: 300 * time.Millisecond, PublishChannels: 1, Heartbeat: 5 * time.Minute,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := stuck.dial(ctx, network, addr)
			return &deafConn{conn, noticed}, err
		},
	})
	t.Cleanup(sync.OnceFunc(func() { close(noticed) }))
	warm(t, b)
	proxy.Drop(brokertest.ToClient)
	first := make(chan error, 1)
	go func() { first <- b.Publish(bounded(t), text(q, "1")) }() // received below
	await(t, "the first message arrives", func() bool { return length(t, direct, q) == 1 })
	stuck.close()
	for what, err := range map[string]error{"that is stuck": b.Publish(bounded(t), text(q, "2")), "before it": <-first} {
		if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || !errors.Is(err, errWriteTimeout) {
			t.Errorf("Publish() of the message %s = %v, want an UnconfirmedError for the bound of a write", what, err)
		}
	}
	stuck.open()
	proxy.Heal()
}

func TestACloseThatDoesntWaitIsWhyEverythingEnds(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	q, empty := declare(t, direct, "q", nil), declare(t, direct, "empty", nil)
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishTimeout: time.Hour})
	warm(t, b)
	sent, done, consumed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	up, down := make(chan string, 1), make(chan error, 1)
	go func() { // received below, like the others
		consumed <- b.Consume(context.Background(), a2aqueue.Subscription{
			Queue: empty, Handle: func(context.Context, *a2aqueue.Delivery) {},
			Up: func(queue string) { up <- queue }, Down: func(err error) { down <- err },
		})
	}()
	<-up
	proxy.Drop(brokertest.ToClient)
	go func() { sent <- b.Publish(bounded(t), text(q, "x")) }()
	go func() {
		done <- b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("new", false, false, false, false, nil)
			return err
		})
	}()
	await(t, "the message arrives", func() bool { return length(t, direct, q) == 1 })
	gaveUp := errors.New("no time to wait")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gaveUp)
	if err := b.Close(ctx); !errors.Is(err, gaveUp) {
		t.Errorf("Close() = %v, want %v", err, gaveUp)
	}
	err := <-sent
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("Publish() = %v, want an UnconfirmedError for ErrClosed", err)
	}
	if err := <-done; !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("Do() = %v, want ErrClosed", err)
	}
	if err := <-down; !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("the consumer was told %v, want ErrClosed", err)
	}
	if err := <-consumed; !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("Consume() = %v, want ErrClosed", err)
	}
}

func TestAHalfOpenConnectionIsGivenUp(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishTimeout: time.Hour, Heartbeat: 2 * time.Second})
	q := declare(t, direct, "q", nil)
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q})
	if err := b.Publish(bounded(t), text(q, "1")); err != nil {
		t.Fatal(err)
	}
	if err := in.next(t).Ack(); err != nil {
		t.Fatal(err)
	}
	proxy.Drop(brokertest.ToClient)
	proxy.Drop(brokertest.ToServer)
	proxy.Heal() // for new ones
	err := b.Publish(bounded(t), text(q, "2"))
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("Publish() = %v, want an UnconfirmedError since nothing came", err)
	}
	if err := b.Publish(bounded(t), text(q, "3")); err != nil {
		t.Errorf("Publish() on the next connection = %v", err)
	}
	for {
		d := in.next(t)
		if err := d.Ack(); err != nil {
			t.Error(err)
		}
		if string(d.Body) == "3" {
			break
		}
		if !d.Redelivered { // the first, if its acknowledgement got no further than the proxy
			t.Errorf("delivered %q, want 3", d.Body)
		}
	}
}

// connectionsAreNamed checks what the broker's operators see.
func connectionsAreNamed(t *testing.T, node *brokertest.Broker) {
	t.Helper()
	got := node.Eval(`lists:flatten(io_lib:format("~p", [rabbit_networking:connection_info_all([client_properties])]))`)
	for _, want := range []string{"orchestrator east publish", "orchestrator east consume"} {
		if !strings.Contains(got, want) {
			t.Errorf("the broker knows no connection %q: %s", want, got)
		}
	}
}

// A node takes seconds to start, so these share one.
func TestABrokerInTrouble(t *testing.T) {
	node := brokertest.Start(t)
	t.Run("an alarm holds messages back within the bound", func(t *testing.T) { alarm(t, node) })
	t.Run("a slow queue holds no other up", func(t *testing.T) { slowQueue(t, node) })
	t.Run("a stuck channel gets another beside it", func(t *testing.T) { stuckChannel(t, node) })
	t.Run("a refusal isn't that of what else is on the way", func(t *testing.T) { refusedBeside(t, node) })
	t.Run("a broker that ends the connection leaves a message unknown", func(t *testing.T) { connectionEnded(t, node) })
}

func alarm(t *testing.T, node *brokertest.Broker) {
	reg := prometheus.NewRegistry()
	b := open(t, a2aqueue.BrokerConfig{URL: node.Vhost(t), Name: "orchestrator east", PublishTimeout: 300 * time.Millisecond, Registry: reg})
	q := declare(t, b, "q", nil)
	if err := b.Publish(bounded(t), text(q, "x")); err != nil {
		t.Fatal(err)
	}
	connectionsAreNamed(t, node)
	node.SetMemoryAlarm(true)
	// The broker says so to those who publish: this one may still be taken, or not.
	err := b.Publish(bounded(t), text(q, "taken, perhaps"))
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); err != nil && !unknown {
		t.Errorf("Publish() = %v", err)
	}
	await(t, "the alarm is known", func() bool { return errors.Is(b.Ready(), a2aqueue.ErrBlocked) })
	if err := b.Publish(bounded(t), text(q, "held back")); !errors.Is(err, a2aqueue.ErrBlocked) {
		t.Errorf("Publish() during an alarm = %v, want ErrBlocked", err)
	}
	if n := counted(t, reg, "orchestrator_broker_blocked_seconds_total", "", ""); n == 0 {
		t.Error("no blocked time was counted")
	}
	// Consuming goes on, by its own connection.
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q})
	if err := in.next(t).Ack(); err != nil {
		t.Error(err)
	}
	node.SetMemoryAlarm(false)
	await(t, "the alarm is over", func() bool { return b.Ready() == nil })
	if err := b.Publish(bounded(t), text(q, "after")); err != nil {
		t.Errorf("Publish() after the alarm = %v", err)
	}
	for body := ""; body != "after"; {
		d := in.next(t)
		if body = string(d.Body); body == "held back" {
			t.Error("what was given up on was sent")
		}
		if err := d.Ack(); err != nil {
			t.Error(err)
		}
	}
}

// The queue's only server is stopped, so that nothing is confirmed; the messages are on one channel.
func slowQueue(t *testing.T, node *brokertest.Broker) {
	b := open(t, a2aqueue.BrokerConfig{URL: node.URL(), PublishTimeout: time.Hour, PublishChannels: 1})
	slow, quick := declare(t, b, "slow", quorum), declare(t, b, "quick", quorum)
	publish(t, b, slow, "1")
	node.Eval(`ok = ra:stop_server(quorum_queues, {'%2F_slow', node()})`)
	ctx, cancel := context.WithCancel(bounded(t))
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(ctx, text(slow, "2")) }() // received below
	publish(t, b, quick, "1", "2", "3")
	select {
	case err := <-sent:
		t.Errorf("Publish() to the slow queue = %v, before it goes on", err)
	default:
	}
	cancel()
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](<-sent); !unknown {
		t.Error("Publish() to the slow queue doesn't say that it is unknown")
	}
}

// unconfirmed waits until the broker has n messages that it hasn't confirmed.
func unconfirmed(t *testing.T, node *brokertest.Broker, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d messages aren't confirmed", n), func() bool {
		return node.Eval(`lists:sum([N || C <- rabbit_channel:list_local(), {_, N} <- rabbit_channel:info(C, [messages_unconfirmed])])`) == fmt.Sprint(n)
	})
}

// The broker closes the channel for one message. What became of the others on it is unknown, and whoever sent them mustn't
// take the refusal for theirs: a request isn't sent again unasked, and a dead letter isn't thrown away.
func refusedBeside(t *testing.T, node *brokertest.Broker) {
	vhost := node.Vhost(t)
	b := open(t, a2aqueue.BrokerConfig{URL: vhost, PublishTimeout: time.Hour, PublishChannels: 1})
	slow, quick := declare(t, b, "slow", quorum), declare(t, b, "quick", nil)
	publish(t, b, slow, "1")
	in := subscribe(t, b, a2aqueue.Subscription{Queue: quick, DeadLetterExchange: "amq.direct", DeadLetterKey: slow})
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		return ch.QueueBind(slow, slow, "amq.direct", false, nil)
	}); err != nil {
		t.Fatal(err)
	}
	publish(t, b, quick, "x")
	d := in.next(t)
	client := connect(t, vhost, a2aqueue.FactoryConfig{Broker: b}).Client(slow)
	_, vhostName, _ := strings.Cut(strings.TrimPrefix(vhost, "amqp://"), "/")
	node.Eval(`ok = ra:stop_server(quorum_queues, {'` + vhostName + `_slow', node()})`)

	ctx := bounded(t)
	published, asked, buried := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { published <- b.Publish(ctx, text(slow, "2")) }() // received below, like the others
	go func() {
		_, err := client.SendMessage(ctx, nil, message("a", "hi"))
		asked <- err
	}()
	go func() { buried <- d.DeadLetter("bad") }()
	unconfirmed(t, node, 3)
	if err := b.Publish(ctx, a2aqueue.Publication{Exchange: "missing", Key: slow}); !errors.Is(err, a2aqueue.ErrNotFound) {
		t.Errorf("Publish() to a missing exchange = %v, want ErrNotFound", err)
	}
	err := <-published
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || !errors.Is(err, a2aqueue.ErrNotFound) {
		t.Errorf("Publish() beside it = %v, want an UnconfirmedError for the refusal", err)
	}
	err = <-asked
	_, notSent := errors.AsType[*a2a.NotSentError](err)
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown || notSent {
		t.Errorf("SendMessage() beside it = %v (%T), want an UnconfirmedError", err, err)
	}
	if err := <-buried; err != nil {
		t.Errorf("DeadLetter() beside it = %v", err)
	}
	if again := in.next(t); string(again.Body) != "x" || !again.Redelivered {
		t.Errorf("delivered %q, want x again", again.Body)
	} else if err := again.Ack(); err != nil {
		t.Error(err)
	}
}

func connectionEnded(t *testing.T, node *brokertest.Broker) {
	b := open(t, a2aqueue.BrokerConfig{URL: node.URL(), PublishTimeout: time.Hour, PublishChannels: 1})
	q := declare(t, b, "ended", quorum)
	publish(t, b, q, "1")
	node.Eval(`ok = ra:stop_server(quorum_queues, {'%2F_ended', node()})`)
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(bounded(t), text(q, "2")) }() // received below
	unconfirmed(t, node, 1)
	node.CloseConnections()
	err := <-sent
	_, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err)
	if refused, ok := errors.AsType[*a2aqueue.RefusedError](err); !unknown || !ok || refused.Code != 320 {
		t.Errorf("Publish() = %v, want an UnconfirmedError with what the broker says", err)
	}
}

func stuckChannel(t *testing.T, node *brokertest.Broker) {
	b := open(t, a2aqueue.BrokerConfig{URL: node.URL(), PublishTimeout: 2 * time.Second, PublishChannels: 1})
	q := declare(t, b, "q", nil)
	publish(t, b, q, "1")
	node.Eval(`[sys:suspend(C) || C <- rabbit_channel:list_local(), true =:= proplists:get_value(confirm, rabbit_channel:info(C, [confirm]))], ok`)
	err := b.Publish(bounded(t), text(q, "2"))
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown {
		t.Errorf("Publish() on a stuck channel = %v, want an UnconfirmedError", err)
	}
	publish(t, b, q, "3", "4")
}

// The channel has one message on the way, and may have no more.
func TestNoMoreIsOnTheWayThanAllowed(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	q := declare(t, direct, "q", nil)
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), PublishTimeout: 200 * time.Millisecond, PublishChannels: 1, MaxUnconfirmed: 1})
	warm(t, b)
	proxy.Drop(brokertest.ToClient)
	err := b.Publish(bounded(t), text(q, "1"))
	if _, unknown := errors.AsType[*a2aqueue.UnconfirmedError](err); !unknown {
		t.Errorf("Publish() = %v, want an UnconfirmedError", err)
	}
	if err := b.Publish(bounded(t), text(q, "2")); !errors.Is(err, a2aqueue.ErrBlocked) {
		t.Errorf("Publish() of one more = %v, want ErrBlocked", err)
	}
	await(t, "the first message arrives", func() bool { return length(t, direct, q) == 1 })
	proxy.Sever()
	proxy.Heal()
}
