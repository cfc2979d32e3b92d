package a2aqueue_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

// BenchmarkPublish measures a confirmed message to a quorum queue, through a Broker and through the library alone, whose callers
// have a channel each.
func BenchmarkPublish(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("bare/callers=%d", callers), func(b *testing.B) {
			conn, err := amqp.Dial(brokertest.Vhost(b))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			p := amqp.Publishing{Body: make([]byte, 1024), DeliveryMode: amqp.Persistent}
			publishAll(b, callers, func(q string) func() error {
				ch, err := conn.Channel()
				if err == nil {
					err = ch.Confirm(false)
				}
				if err == nil {
					_, err = ch.QueueDeclare(q, true, false, false, false, quorum)
				}
				if err != nil {
					b.Fatal(err)
				}
				return func() error {
					dc, err := ch.PublishWithDeferredConfirm("", q, true, false, p)
					if err == nil && !dc.Wait() {
						err = a2aqueue.ErrNacked
					}
					return err
				}
			})
		})
		b.Run(fmt.Sprintf("ours/callers=%d", callers), func(b *testing.B) {
			broker, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: brokertest.Vhost(b)})
			if err != nil {
				b.Fatal(err)
			}
			defer broker.Close(context.Background())
			p := a2aqueue.Publication{Publishing: amqp.Publishing{Body: make([]byte, 1024), DeliveryMode: amqp.Persistent}}
			publishAll(b, callers, func(q string) func() error {
				if err := broker.Do(context.Background(), func(_ context.Context, ch *amqp.Channel) error {
					_, err := ch.QueueDeclare(q, true, false, false, false, quorum)
					return err
				}); err != nil {
					b.Fatal(err)
				}
				p.Key = q
				return func() error { return broker.Publish(context.Background(), p) }
			})
		})
	}
}

func publishAll(b *testing.B, callers int, open func(queue string) func() error) {
	b.Helper()
	calls := make([]func() error, callers)
	for i := range calls {
		calls[i] = open("q")
	}
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
