package a2aqueue

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/internal/brokertest"
)

// Whatever is settled together, in whatever order, exactly what was neither acknowledged nor rejected is in the queue after.
func TestWhatIsWrittenTogetherSettlesNothingElse(t *testing.T) {
	b, err := NewBroker(BrokerConfig{URL: brokertest.Vhost(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background()) //nolint:errcheck // nothing is under way
	for round := range 30 {
		if err := b.Do(t.Context(), func(ctx context.Context, ch *amqp.Channel) error {
			if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
				return err
			}
			in, err := ch.Consume("q", "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			s := &consumption{link: b.consume.status().up, ch: ch, wake: make(chan struct{}, 1), open: map[uint64]bool{}}
			var got []amqp.Delivery
			for i := range 12 {
				if err := b.Publish(ctx, Publication{Key: "q", Publishing: amqp.Publishing{Body: []byte{byte(i)}}}); err != nil {
					return err
				}
				d := <-in
				s.open[d.DeliveryTag] = true
				got = append(got, d)
			}
			var want []byte
			rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
			for _, d := range got {
				how := outcome(rand.IntN(8))
				switch how {
				case requeued:
					want = append(want, d.Body...)
				case rejected:
				case rejected + 1: // not settled
					want = append(want, d.Body...)
					continue
				default:
					how = acked
				}
				if err := s.settle(d.DeliveryTag, how); err != nil {
					return err
				}
				if rand.IntN(4) == 0 {
					s.write()
				}
			}
			s.write()
			slices.Sort(want)
			return b.Do(ctx, func(_ context.Context, other *amqp.Channel) error {
				if err := ch.Close(); err != nil { // gives back what isn't settled
					return err
				}
				left := []byte{}
				end := time.Now().Add(5 * time.Second)
				for {
					d, ok, err := other.Get("q", true)
					if err != nil {
						return err
					}
					if !ok && len(left) < len(want) && time.Now().Before(end) { // the queue may learn later that the channel is closed
						time.Sleep(time.Millisecond)
						continue
					}
					if !ok {
						break
					}
					left = append(left, d.Body...)
				}
				slices.Sort(left)
				if diff := cmp.Diff(append([]byte{}, want...), left); diff != "" {
					t.Errorf("round %d: in the queue (-want +got):\n%s", round, diff)
				}
				_, err := other.QueueDelete("q", false, false, false)
				return err
			})
		}); err != nil {
			t.Fatal(err)
		}
	}
}
