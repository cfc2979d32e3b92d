package a2aqueue_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
)

func TestDeadLettersTellWhereAndWhyTheyDied(t *testing.T) {
	b := open(t, a2aqueue.BrokerConfig{})
	ctx := bounded(t)
	if letters, total, err := b.DeadLetters(ctx, 10); err != nil || len(letters) != 0 || total != 0 {
		t.Fatalf("DeadLetters() without a queue for them = %v, %d, %v; want none", letters, total, err)
	}
	const q = "a2a.advisor"
	if err := b.DeclareQueue(ctx, q); err != nil {
		t.Fatal(err)
	}
	publish := func(p amqp.Publishing) {
		t.Helper()
		if err := b.Publish(ctx, a2aqueue.Publication{Key: q, Publishing: p}); err != nil {
			t.Fatal(err)
		}
	}
	publish(amqp.Publishing{MessageId: "m1", Type: "SendMessage", ReplyTo: "a2a.replies.d", Body: []byte("four"), Expiration: "1"})
	dead(t, b, 1)
	publish(amqp.Publishing{MessageId: "m2", Type: "Response", Headers: amqp.Table{"a2a-request-message-id": "m3"}, Body: []byte("poison")})
	taking, stop := context.WithCancel(ctx)
	defer stop()
	err := b.Consume(taking, a2aqueue.Subscription{
		Name: "requests", Queue: q, DeadLetterExchange: a2aqueue.DeadExchange, DeadLetterKey: a2aqueue.DeadQueue,
		Handle: func(_ context.Context, d *a2aqueue.Delivery) {
			defer stop()
			if err := d.DeadLetter("it isn't JSON"); err != nil {
				t.Errorf("DeadLetter() = %v", err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	dead(t, b, 2)
	want := []a2aqueue.DeadLetter{
		{Queue: q, Reason: "expired", Type: "SendMessage", MessageID: "m1", ReplyTo: "a2a.replies.d", Size: 4},
		{Queue: q, Reason: "it isn't JSON", Type: "Response", MessageID: "m3", Size: 6},
	}
	for range 2 { // looking takes nothing away
		got, total, err := b.DeadLetters(ctx, 10)
		if err != nil || total != 2 {
			t.Fatalf("DeadLetters() = %d in all, %v; want 2", total, err)
		}
		if got[0].At.IsZero() {
			t.Error("nothing says when the first one died")
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(a2aqueue.DeadLetter{}, "At")); diff != "" {
			t.Errorf("DeadLetters() (-want +got):\n%s", diff)
		}
	}
	if got, total, err := b.DeadLetters(ctx, 1); err != nil || len(got) != 1 || got[0].MessageID != "m1" || total != 2 {
		t.Errorf("DeadLetters(1) = %v, %d in all, %v; want the oldest of two", got, total, err)
	}
	if err := b.DeleteQueue(ctx, q); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteQueue(ctx, q); err != nil {
		t.Errorf("a queue that is gone can't be deleted: %v", err)
	}
}

// dead waits until there are n dead letters.
func dead(t *testing.T, b *a2aqueue.Broker, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d dead letters", n), func() bool {
		_, total, err := b.DeadLetters(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		return total == n
	})
}
