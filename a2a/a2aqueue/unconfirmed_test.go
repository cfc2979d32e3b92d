package a2aqueue

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/internal/brokertest"
)

// The library tells of the end of a connection first, and then closes its channels one by one. Here it never gets to them.
func TestTheReasonIsKnownBeforeTheLibraryHasClosedTheChannel(t *testing.T) {
	vhost := brokertest.Vhost(t)
	u, err := url.Parse(vhost)
	if err != nil {
		t.Fatal(err)
	}
	proxy := brokertest.NewProxy(t, u.Host)
	b, err := NewBroker(BrokerConfig{URL: proxy.URL(vhost), MinBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("the test waited in vain"))
	defer cancel()
	defer b.Close(ctx)
	if err := b.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	defer proxy.Sever() // nobody answers our goodbye

	up := b.publish.status().up
	c := newConn(up.amqp, up.raw, up.stream)
	one := &Broker{cfg: b.cfg, sends: make(chan *sending)}
	var wg sync.WaitGroup
	wg.Go(func() {
		if opened, err := one.publishOn(c, func() {}); !opened {
			t.Error(err)
		}
	})
	send := func() *sending {
		s := &sending{Publication: Publication{Optional: true, Publishing: amqp.Publishing{Headers: amqp.Table{}}}, sent: make(chan struct{})}
		select {
		case one.sends <- s:
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
		return s
	}
	if err := send().await(ctx); err != nil {
		t.Fatal(err)
	}
	proxy.Drop(brokertest.ToClient)
	s := send()
	<-s.sent
	lost := errors.New("nothing was heard")
	c.cancel(lost)
	if err := send().await(ctx); err != errNotWritten {
		t.Errorf("await() of a message that follows = %v, want errNotWritten", err)
	}
	c.err = lost
	close(c.done)
	err = s.await(ctx)
	if e, unknown := err.(*UnconfirmedError); !unknown || e.Err != lost {
		t.Errorf("await() = %v, want an UnconfirmedError with why the connection was lost", err)
	}
	wg.Wait()
	if up.amqp.IsClosed() {
		t.Error("the library had closed the channel before")
	}
}
