package a2aqueue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

func publish(t *testing.T, b *a2aqueue.Broker, queue string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		if err := b.Publish(bounded(t), text(queue, body)); err != nil {
			t.Fatalf("Publish(%s) = %v", body, err)
		}
	}
}

func TestADeliveryIsSettledOnce(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", nil)
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q, DeadLetterExchange: "missing"})
	publish(t, b, q, "1")
	d := in.next(t)
	if d.Queue != q {
		t.Errorf("Queue = %q, want %q", d.Queue, q)
	}
	if err := d.Reject(false); err == nil {
		t.Error("the library's own method did something")
	}
	if err := d.Ack(); err != nil {
		t.Errorf("Ack() = %v", err)
	}
	for what, err := range map[string]error{"Ack": d.Ack(), "Nack": d.Nack(true), "DeadLetter": d.DeadLetter("x")} {
		if !errors.Is(err, a2aqueue.ErrSettled) {
			t.Errorf("%s() after Ack = %v, want ErrSettled", what, err)
		}
	}
	// The channel is whole: a second acknowledgement would have closed it.
	publish(t, b, q, "2")
	if err := in.next(t).Ack(); err != nil {
		t.Errorf("Ack() of the next = %v", err)
	}
}

func TestANackedMessageComesAgain(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := open(t, a2aqueue.BrokerConfig{Registry: reg})
	q := declare(t, b, "q", nil)
	in := subscribe(t, b, a2aqueue.Subscription{Name: "things", Queue: q})
	publish(t, b, q, "1")
	if err := in.next(t).Nack(true); err != nil {
		t.Fatal(err)
	}
	d := in.next(t)
	if !d.Redelivered || string(d.Body) != "1" {
		t.Errorf("got %q, redelivered: %v; want it again", d.Body, d.Redelivered)
	}
	if err := d.Nack(false); err != nil { // dropped, since the queue has no policy for it
		t.Fatal(err)
	}
	got := []float64{
		counted(t, reg, "orchestrator_broker_deliveries_total", "consumer", "things"),
		counted(t, reg, "orchestrator_broker_redeliveries_total", "consumer", "things"),
		counted(t, reg, "orchestrator_broker_connected", "use", "consume"),
	}
	if diff := cmp.Diff([]float64{2, 1, 1}, got); diff != "" {
		t.Errorf("deliveries, redeliveries, connected (-want +got):\n%s", diff)
	}
}

func TestDeadLettersTellTheReasonAndTheQueue(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := open(t, a2aqueue.BrokerConfig{Registry: reg})
	q := declare(t, b, "q", nil)
	dead := declare(t, b, "dead", nil)
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare("dlx", "direct", true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(dead, dead, "dlx", false, nil)
	}); err != nil {
		t.Fatal(err)
	}
	in := subscribe(t, b, a2aqueue.Subscription{Name: "things", Queue: q, DeadLetterExchange: "dlx", DeadLetterKey: dead})
	p := text(q, "poison")
	p.Headers, p.Expiration, p.ReplyTo, p.CorrelationId = amqp.Table{"mine": "1"}, "60000", "back", "c1"
	if err := b.Publish(bounded(t), p); err != nil {
		t.Fatal(err)
	}
	if err := in.next(t).DeadLetter("it isn't JSON"); err != nil {
		t.Fatalf("DeadLetter() = %v", err)
	}
	d := subscribe(t, b, a2aqueue.Subscription{Queue: dead}).next(t)
	want := map[string]any{"body": "poison", "x-a2a-reason": "it isn't JSON", "x-a2a-queue": q, "mine": "1", "expiration": "", "reply": "back", "correlation": "c1", "message": "poison"}
	got := map[string]any{
		"body": string(d.Body), "x-a2a-reason": d.Headers["x-a2a-reason"], "x-a2a-queue": d.Headers["x-a2a-queue"],
		"mine": d.Headers["mine"], "expiration": d.Expiration, "reply": d.ReplyTo, "correlation": d.CorrelationId, "message": d.MessageId,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dead letter (-want +got):\n%s", diff)
	}
	if err := d.Ack(); err != nil {
		t.Error(err)
	}
	if n := counted(t, reg, "orchestrator_broker_dead_letters_total", "consumer", "things"); n != 1 {
		t.Errorf("%v dead letters were counted, want 1", n)
	}
	await(t, "the queue is empty", func() bool { return length(t, b, q) == 0 })
}

func TestALongReasonIsCutShort(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q, dead := declare(t, b, "q", nil), declare(t, b, "dead", nil)
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		return ch.QueueBind(dead, dead, "amq.direct", false, nil)
	}); err != nil {
		t.Fatal(err)
	}
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q, DeadLetterExchange: "amq.direct", DeadLetterKey: dead})
	publish(t, b, q, "poison")
	if err := in.next(t).DeadLetter(strings.Repeat("ö", 100_000)); err != nil {
		t.Fatal(err)
	}
	d := subscribe(t, b, a2aqueue.Subscription{Queue: dead}).next(t)
	if reason := d.Headers["x-a2a-reason"]; reason != strings.Repeat("ö", 512)+"…" {
		t.Errorf("the reason is %.20q…", reason)
	}
	if err := d.Ack(); err != nil {
		t.Error(err)
	}
}

func TestWithoutAPlaceForDeadLettersTheQueuesOwnPolicyHolds(t *testing.T) {
	for name, exchange := range map[string]string{"no exchange": "", "a missing exchange": "missing", "an exchange without a queue": "amq.fanout"} {
		t.Run(name, func(t *testing.T) {
			b := open(t, a2aqueue.BrokerConfig{})
			dead := declare(t, b, "dead", nil)
			q := declare(t, b, "q", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
			in := subscribe(t, b, a2aqueue.Subscription{Queue: q, DeadLetterExchange: exchange})
			publish(t, b, q, "poison")
			if err := in.next(t).DeadLetter("bad"); err != nil {
				t.Errorf("DeadLetter() = %v", err)
			}
			await(t, "it is a dead letter", func() bool { return length(t, b, dead) == 1 })
		})
	}
}

func TestAPanicMakesADeadLetterAndTheWorkerGoesOn(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	dead := declare(t, b, "dead", nil)
	q := declare(t, b, "q", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	in := make(received, 1)
	subscribe(t, b, a2aqueue.Subscription{Queue: q, Handle: func(_ context.Context, d *a2aqueue.Delivery) {
		if string(d.Body) == "poison" {
			panic("boom")
		}
		in <- d
	}})
	publish(t, b, q, "poison", "food")
	if err := in.next(t).Ack(); err != nil {
		t.Error(err)
	}
	await(t, "it is a dead letter", func() bool { return length(t, b, dead) == 1 })
}

// A delivery is held while its connection is cut. Its tag, sent on the next channel, would acknowledge another message.
func TestATagOfALostChannelIsNeverSent(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	reg := prometheus.NewRegistry()
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), Registry: reg})
	q := declare(t, direct, "q", quorum)
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q, Prefetch: 1, DeadLetterExchange: "amq.fanout"})
	publish(t, direct, q, "1")
	old := in.next(t)
	proxy.Sever()
	again := in.next(t) // has the tag of the old one, on another channel
	if !again.Redelivered || string(again.Body) != "1" || again.DeliveryTag != old.DeliveryTag {
		t.Fatalf("got %q with tag %d, redelivered: %v; want it again with tag %d", again.Body, again.DeliveryTag, again.Redelivered, old.DeliveryTag)
	}
	if err := old.Ack(); !errors.Is(err, a2aqueue.ErrStale) {
		t.Errorf("Ack() of the old delivery = %v, want ErrStale", err)
	}
	publish(t, direct, q, "2")
	proxy.Sever()
	if d := in.next(t); string(d.Body) != "1" {
		t.Errorf("got %q after the next cut: the old tag acknowledged the first", d.Body)
	} else if err := d.Ack(); err != nil {
		t.Error(err)
	}
	if err := again.DeadLetter("late"); !errors.Is(err, a2aqueue.ErrStale) {
		t.Errorf("DeadLetter() of the old delivery = %v, want ErrStale", err)
	}
	if d := in.next(t); string(d.Body) != "2" {
		t.Errorf("got %q, want 2", d.Body)
	} else if err := d.Ack(); err != nil {
		t.Error(err)
	}
	if n := counted(t, reg, "orchestrator_broker_reconnects_total", "use", "consume"); n != 2 {
		t.Errorf("%v reconnects were counted, want 2", n)
	}
}

func TestWithoutAcknowledgementsTheBrokerForgetsAtOnce(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", nil)
	publish(t, b, q, "1", "2", "3")
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q, NoAck: true, Prefetch: 1})
	for i := range 3 {
		d := in.next(t)
		if string(d.Body) != fmt.Sprint(i+1) {
			t.Errorf("delivered %q, want %d", d.Body, i+1)
		}
		if err := d.Ack(); !errors.Is(err, a2aqueue.ErrSettled) {
			t.Errorf("Ack() = %v, want ErrSettled", err)
		}
	}
	if n := length(t, b, q); n != 0 {
		t.Errorf("the queue has %d messages, want none", n)
	}
}

func TestNoMoreIsHandedOutThanThePrefetch(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", nil)
	in := subscribe(t, b, a2aqueue.Subscription{Queue: q, Prefetch: 2, Workers: 8})
	publish(t, b, q, "1", "2", "3")
	first := in.next(t)
	in.next(t)
	await(t, "one waits in the queue", func() bool { return length(t, b, q) == 1 })
	if len(in) != 0 {
		t.Error("more than the prefetch was handed out")
	}
	if err := first.Ack(); err != nil {
		t.Fatal(err)
	}
	in.next(t)
}

func TestOneWorkerKeepsTheOrderAndManyWorkSideBySide(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	one, many := declare(t, b, "one", nil), declare(t, b, "many", nil)
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
	}
	publish(t, b, one, want...)
	publish(t, b, many, want[:4]...)
	in := subscribe(t, b, a2aqueue.Subscription{Queue: one})
	var got []string
	for range want {
		d := in.next(t)
		got = append(got, string(d.Body))
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	var inside sync.WaitGroup
	inside.Add(4)
	done := make(chan error, 4)
	subscribe(t, b, a2aqueue.Subscription{Queue: many, Workers: 4, Handle: func(_ context.Context, d *a2aqueue.Delivery) {
		inside.Done()
		inside.Wait() // until all four are here
		done <- d.Ack()
	}})
	for range 4 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("they don't work side by side")
		}
	}
}

// The handler settles while the consumer is ending: the acknowledgement must still be written.
func TestAConsumeThatEndsWaitsForItsHandlers(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{DrainTimeout: time.Hour})
	q := declare(t, b, "q", nil)
	publish(t, b, q, "1", "2")
	ctx, cancel := context.WithCancel(t.Context())
	in, settle := make(chan string, 10), make(chan struct{})
	ended := make(chan error, 1)
	go func() { // received below
		ended <- b.Consume(ctx, a2aqueue.Subscription{Queue: q, Handle: func(ctx context.Context, d *a2aqueue.Delivery) {
			in <- string(d.Body)
			<-settle
			if err := errors.Join(ctx.Err(), d.Ack()); err != nil {
				t.Errorf("Ack() = %v", err)
			}
		}})
	}()
	<-in
	cancel()
	await(t, "the consumer is cancelled", func() bool { return consumers(t, b, q) == 0 })
	select {
	case err := <-ended:
		t.Fatalf("Consume() = %v while a handler works", err)
	default:
	}
	close(settle)
	if err := <-ended; err != nil {
		t.Errorf("Consume() = %v", err)
	}
	if len(in) != 0 {
		t.Error("another message was handed out after the end")
	}
	await(t, "the second is back in the queue and the first is not", func() bool { return length(t, b, q) == 1 })
}

func TestAHandlerThatTakesTooLongIsCancelledWithACause(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{DrainTimeout: 10 * time.Millisecond})
	q := declare(t, b, "q", nil)
	publish(t, b, q, "1")
	ctx, cancel := context.WithCancel(t.Context())
	var cause error
	err := b.Consume(ctx, a2aqueue.Subscription{Queue: q, Handle: func(ctx context.Context, d *a2aqueue.Delivery) {
		cancel()
		<-ctx.Done()
		cause = context.Cause(ctx)
		if err := d.Ack(); err != nil { // late, and still possible
			t.Errorf("Ack() = %v", err)
		}
	}})
	if err != nil {
		t.Errorf("Consume() = %v", err)
	}
	if cause == nil || !strings.Contains(cause.Error(), "the consumer ended") {
		t.Errorf("the handler's context ended with %v", cause)
	}
	if n := length(t, b, q); n != 0 {
		t.Errorf("the queue has %d messages, want none", n)
	}
}

func TestCloseEndsConsumersAndLetsThemPublish(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q, answers := declare(t, b, "q", nil), declare(t, b, "answers", nil)
	publish(t, b, q, "1")
	closing, ended := make(chan struct{}), make(chan error, 1)
	var answered atomic.Value
	go func() { // received below
		ended <- b.Consume(context.Background(), a2aqueue.Subscription{Queue: q, Handle: func(_ context.Context, d *a2aqueue.Delivery) {
			close(closing)
			// Until the door is closed to new consumers.
			for b.Consume(context.Background(), a2aqueue.Subscription{Queue: q, Handle: func(context.Context, *a2aqueue.Delivery) {}}) != a2aqueue.ErrClosed {
			}
			answered.Store(fmt.Sprint(b.Publish(context.Background(), text(answers, "a")), d.Ack()))
		}})
	}()
	<-closing
	if err := b.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if err := <-ended; !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("Consume() = %v, want ErrClosed", err)
	}
	if got := answered.Load(); got != "<nil> <nil>" {
		t.Errorf("Publish, Ack = %v", got)
	}
}

func TestCloseIsBoundedWhenAHandlerDoesNotReturn(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{DrainTimeout: time.Millisecond})
	q := declare(t, b, "q", nil)
	publish(t, b, q, "1")
	in, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { // received below
		ended <- b.Consume(context.Background(), a2aqueue.Subscription{Queue: q, Handle: func(context.Context, *a2aqueue.Delivery) {
			close(in)
			<-release
		}})
	}()
	<-in
	tooLong := errors.New("it took too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, tooLong)
	defer cancel()
	if err := b.Close(ctx); !errors.Is(err, tooLong) {
		t.Errorf("Close() = %v, want the context's cause", err)
	}
	close(release)
	if err := <-ended; !errors.Is(err, a2aqueue.ErrClosed) {
		t.Errorf("Consume() = %v, want ErrClosed", err)
	}
}

func TestADeletedQueueIsDeclaredAnew(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	var downs atomic.Int32
	up := make(chan string, 10)
	in := subscribe2(t, b, a2aqueue.Subscription{
		Name: "things",
		Declare: func(_ context.Context, ch *amqp.Channel) (string, error) {
			_, err := ch.QueueDeclare("q", true, false, false, false, quorum)
			return "q", err
		},
		Up:   func(queue string) { up <- queue },
		Down: func(error) { downs.Add(1) },
	})
	for i := range 3 {
		if q := <-up; q != "q" {
			t.Errorf("Up(%q), want q", q)
		}
		publish(t, b, "q", fmt.Sprint(i))
		if d := in.next(t); string(d.Body) != fmt.Sprint(i) {
			t.Errorf("delivered %q, want %d", d.Body, i)
		}
		if got := downs.Load(); got != int32(i) {
			t.Errorf("Down was called %d times, want %d", got, i)
		}
		if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
			_, err := ch.QueueDelete("q", false, false, false)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatTheBrokerRefusesForGoodEndsAConsumeByName(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	q := declare(t, b, "q", quorum)
	ours := errors.New("ours")
	declares := func(name string, args amqp.Table) func(context.Context, *amqp.Channel) (string, error) {
		return func(_ context.Context, ch *amqp.Channel) (string, error) {
			_, err := ch.QueueDeclare(name, true, false, false, false, args)
			return name, err
		}
	}
	for _, tt := range []struct {
		name string
		sub  a2aqueue.Subscription
		code int
		want error
	}{
		{"a queue with other arguments", a2aqueue.Subscription{Declare: declares(q, nil)}, 406, a2aqueue.ErrPrecondition},
		{"a name that is reserved", a2aqueue.Subscription{Declare: declares("amq.mine", nil)}, 403, a2aqueue.ErrAccess},
		{"a missing queue that must be there", a2aqueue.Subscription{Queue: "missing", MissingIsFatal: true}, 404, a2aqueue.ErrNotFound},
		{"an error of Declare's own", a2aqueue.Subscription{Declare: func(context.Context, *amqp.Channel) (string, error) { return "", ours }}, 0, ours},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.sub.Name, tt.sub.Handle = "things", func(context.Context, *a2aqueue.Delivery) {}
			err := b.Consume(bounded(t), tt.sub)
			refused, ok := errors.AsType[*a2aqueue.RefusedError](err)
			if !errors.Is(err, tt.want) || ok != (tt.code != 0) || ok && refused.Code != tt.code {
				t.Errorf("Consume() = %v, want %v with code %d", err, tt.want, tt.code)
			}
			t.Log(err)
		})
	}
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q, true, false, false, false, nil)
		return err
	}); !errors.Is(err, a2aqueue.ErrPrecondition) {
		t.Errorf("Do() = %v, want ErrPrecondition", err)
	}
}

func TestWhatMayGetBetterIsTriedAgain(t *testing.T) {
	t.Run("a missing queue", func(t *testing.T) {
		b := open(t, a2aqueue.BrokerConfig{MaxBackoff: 20 * time.Millisecond})
		tried := make(chan struct{}, 1000)
		up := make(chan string, 1)
		subscribe2(t, b, a2aqueue.Subscription{Queue: "q", Up: func(q string) { up <- q }, Declare: func(context.Context, *amqp.Channel) (string, error) {
			tried <- struct{}{}
			return "", nil
		}})
		<-tried
		<-tried
		declare(t, b, "q", nil)
		<-up
	})
	t.Run("a queue that another has for itself", func(t *testing.T) {
		vhost := brokertest.Vhost(t)
		other := open(t, a2aqueue.BrokerConfig{URL: vhost})
		b := open(t, a2aqueue.BrokerConfig{URL: vhost, MaxBackoff: 20 * time.Millisecond})
		q := declare(t, b, "q", nil)
		ctx, cancel := context.WithCancel(t.Context())
		first, second, ended := make(chan string, 1), make(chan string, 1), make(chan error, 1)
		go func() { // received below
			ended <- other.Consume(ctx, a2aqueue.Subscription{
				Queue: q, Exclusive: true, Handle: func(context.Context, *a2aqueue.Delivery) {}, Up: func(q string) { first <- q },
			})
		}()
		<-first
		tried := make(chan struct{}, 1000)
		subscribe2(t, b, a2aqueue.Subscription{
			Queue: q, Exclusive: true, Up: func(q string) { second <- q }, Declare: func(context.Context, *amqp.Channel) (string, error) {
				tried <- struct{}{}
				return "", nil
			},
		})
		<-tried
		<-tried
		if len(second) != 0 {
			t.Error("two consumers have the queue for themselves")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-second
	})
}

// A broker closes the channel of a consumer that holds messages for too long, with the code of a declaration's conflict.
func TestAChannelClosedWhileConsumingIsMadeAgain(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	var ch *amqp.Channel
	up := make(chan string, 10)
	in := subscribe2(t, b, a2aqueue.Subscription{
		Queue: "q", Up: func(q string) { up <- q }, Declare: func(_ context.Context, c *amqp.Channel) (string, error) {
			ch = c
			_, err := ch.QueueDeclare("q", true, false, false, false, nil)
			return "", err
		},
	})
	<-up
	if err := ch.Ack(12345, false); err != nil { // no such delivery: 406
		t.Fatal(err)
	}
	<-up
	publish(t, b, "q", "1")
	if err := in.next(t).Ack(); err != nil {
		t.Error(err)
	}
}

func TestSubscriptionsThatCantBeAreRefused(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	handle := func(context.Context, *a2aqueue.Delivery) {}
	for want, s := range map[string]a2aqueue.Subscription{
		"no Handle":       {Queue: "q"},
		"names no queue":  {Handle: handle},
		"prefetch":        {Queue: "q", Handle: handle, Prefetch: 70_000},
		"workers above 0": {Queue: "q", Handle: handle, Workers: -1},
	} {
		if err := b.Consume(bounded(t), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Consume() = %v, want something with %q", err, want)
		}
	}
}

// Everything is cut again and again; each message that was confirmed is acknowledged in the end.
func TestConfirmedMessagesArriveThoughConnectionsAreCut(t *testing.T) {
	vhost := brokertest.Vhost(t)
	proxy := brokertest.NewProxy(t, hostOf(t, vhost))
	direct := open(t, a2aqueue.BrokerConfig{URL: vhost})
	b := open(t, a2aqueue.BrokerConfig{URL: proxy.URL(vhost), MaxBackoff: 50 * time.Millisecond})
	q := declare(t, direct, "q", quorum)
	var mu sync.Mutex
	seen := map[string]bool{}
	subscribe(t, b, a2aqueue.Subscription{Queue: q, Workers: 4, Handle: func(_ context.Context, d *a2aqueue.Delivery) {
		if d.Ack() == nil {
			mu.Lock()
			seen[string(d.Body)] = true
			mu.Unlock()
		}
	}})
	confirmed := map[string]bool{}
	unknown := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if w == 0 && i%10 == 5 {
					proxy.Sever()
				}
				body := fmt.Sprint(w, "-", i)
				err := b.Publish(bounded(t), text(q, body))
				mu.Lock()
				if err == nil {
					confirmed[body] = true
				} else if _, ok := errors.AsType[*a2aqueue.UnconfirmedError](err); ok {
					unknown[body] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	await(t, "every confirmed message has arrived", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for body := range confirmed {
			if !seen[body] {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	for _, body := range slices.Sorted(maps.Keys(seen)) {
		if !confirmed[body] && !unknown[body] {
			t.Errorf("%s arrived and Publish said that it was not sent", body)
		}
	}
	t.Logf("%d confirmed, %d unknown, %d not sent", len(confirmed), len(unknown), 400-len(confirmed)-len(unknown))
}

// subscribe2 consumes until the test is over and doesn't wait until it does.
func subscribe2(t *testing.T, b *a2aqueue.Broker, s a2aqueue.Subscription) received {
	t.Helper()
	in := make(received, 1000)
	s.Handle = func(_ context.Context, d *a2aqueue.Delivery) { in <- d }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Consume(ctx, s) }() // received below
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Consume() = %v", err)
		}
	})
	return in
}

func consumers(t *testing.T, b *a2aqueue.Broker, queue string) int {
	t.Helper()
	n := -1
	if err := b.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Consumers
		return err
	}); err != nil {
		t.Fatalf("look at %s: %v", queue, err)
	}
	return n
}
