package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/session"
)

// brokerEnv names the RabbitMQ to measure with, as the tests have it.
const (
	brokerEnv     = "ORCHESTRATOR_TEST_AMQP_URL"
	defaultBroker = "amqp://guest:guest@127.0.0.1:5672/"
)

// Aims of a call over the queue: its round trip and its throughput in times those of a bare request and reply, and the
// memory of one that waits, in KiB.
const (
	roundTripAim   = 1.3
	throughputAim  = 0.7
	parkedQueueAim = 16
)

// queueNames are the queues of one run. They are deleted when it is over.
type queueNames struct {
	URL                    string
	Agent, Holder          string // of agents behind the binding
	Replies                string // of the orchestrator
	BareAgent, BareReplies string
}

func (n queueNames) all() []string {
	return []string{n.Agent, n.Holder, n.Replies, n.BareAgent, n.BareReplies}
}

// queues is a broker with the queues of one run, and the process of the agents behind them.
type queues struct {
	names   queueNames
	broker  *a2aqueue.Broker
	agents  *peers
	hadDead bool // the binding's dead letters were there before
}

// openQueues returns nil, and why, when there is no broker.
func openQueues(ctx context.Context) (q *queues, why, err error) {
	url := cmp.Or(os.Getenv(brokerEnv), defaultBroker)
	address, err := a2aqueue.BrokerAddress(url)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", brokerEnv, err)
	}
	broker, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: url, Name: "orchestrator bench"})
	if err != nil {
		return nil, nil, err
	}
	if err := broker.Ping(ctx); err != nil {
		return nil, fmt.Errorf("no broker at %s (%s names another): %w", address, brokerEnv, err), broker.Close(ctx)
	}
	id := "a2a.bench." + string(session.NewID())
	q = &queues{broker: broker, names: queueNames{
		URL: url, Agent: id + ".agent", Holder: id + ".holder", Replies: id + ".replies", BareAgent: id + ".bare", BareReplies: id + ".bare-replies",
	}}
	return q, nil, errors.Join(q.declare(ctx), q.start(ctx))
}

// declare declares what both sides use, with the same arguments.
func (q *queues) declare(ctx context.Context) error {
	err := q.broker.Do(ctx, func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(a2aqueue.DeadQueue, true, false, false, false, nil)
		return err
	})
	if err != nil && !errors.Is(err, a2aqueue.ErrNotFound) {
		return err
	}
	q.hadDead = err == nil
	return q.broker.Do(ctx, func(ctx context.Context, ch *amqp.Channel) error {
		for _, name := range q.names.all() {
			if err := a2aqueue.DeclareDurable(ctx, ch, name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (q *queues) start(ctx context.Context) (err error) {
	q.agents, err = startPeers(ctx, q.names.env(), 1)
	return err
}

// close ends the agents and takes away what the run has made.
func (q *queues) close(ctx context.Context) error {
	var err error
	if q.agents != nil {
		err = q.agents.stop()
	}
	return errors.Join(err, q.broker.Do(ctx, func(_ context.Context, ch *amqp.Channel) error {
		for _, name := range q.names.all() {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				return err
			}
		}
		if q.hadDead {
			return nil
		}
		if _, err := ch.QueueDelete(a2aqueue.DeadQueue, false, false, false); err != nil {
			return err
		}
		return ch.ExchangeDelete(a2aqueue.DeadExchange, false, false)
	}), q.broker.Close(ctx))
}

// measureQueue measures calls over the binding by AMQP as ratios to a request and a reply by amqp091-go alone, and the
// memory of blocking calls that wait for an agent behind a queue.
func measureQueue(ctx context.Context, b *bench) (err error) {
	q, why, err := openQueues(ctx)
	if why != nil {
		b.table.skip("queue", why)
	}
	if q == nil {
		return err
	}
	defer func() { err = errors.Join(err, q.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	if err := measureExchanges(ctx, b, q); err != nil {
		return err
	}
	return measureParkedQueue(ctx, b, q)
}

// way is a way to make a call over a queue, from any number of goroutines.
type way struct {
	name string
	call func(context.Context) error

	trips, rates []float64 // of each round, by the number of callers
}

// contest is a way to call over the binding and the bare request and reply that is as durable.
type contest struct {
	bare *way
	ours []*way
}

// measureExchanges compares the binding with a bare request and reply that is as durable. The request always waits in a quorum
// queue, is confirmed, and is acknowledged when it has been dealt with. The answer to a plain client comes to a queue of its
// process, as it does in the bare one; that to the orchestrator also to a durable one, and so to a quorum queue in the bare one.
func measureExchanges(ctx context.Context, b *bench, q *queues) (err error) {
	b.table.head("A call over the queue, over a bare amqp091-go request and reply of the same durability\n"+
		"(an agent in a second process; %d runs; the median of the runs' medians is shown)", b.sizes.rounds)
	for _, durable := range []bool{false, true} {
		replies, bareReplies := "", ""
		if durable {
			replies, bareReplies = q.names.Replies, q.names.BareReplies
		}
		bare, err := newBareClient(q.names, bareReplies)
		if err != nil {
			return err
		}
		ours, err := newQueueClient(ctx, q, replies)
		if err != nil {
			return errors.Join(err, bare.close())
		}
		for _, callers := range []int{1, 64} {
			c := contest{
				bare: &way{name: "bare", call: bare.call},
				ours: []*way{{name: "SendMessage", call: ours.send}, {name: "SendStreamingMessage", call: ours.stream}},
			}
			if err = c.run(ctx, b, callers); err != nil {
				break
			}
			for _, w := range c.ours {
				w.report(b.table, c.bare, durable, callers)
			}
		}
		ours.close()
		if err := errors.Join(err, bare.close()); err != nil {
			return err
		}
	}
	return nil
}

// run makes calls both ways in turn.
func (c contest) run(ctx context.Context, b *bench, callers int) error {
	for round := range b.sizes.rounds + 1 { // the first warms up
		for _, w := range append([]*way{c.bare}, c.ours...) {
			if err := w.round(ctx, callers, callers*b.sizes.exchanges, round > 0); err != nil {
				return fmt.Errorf("%s, %d callers: %w", w.name, callers, err)
			}
		}
	}
	return nil
}

// round makes calls from so many goroutines.
func (w *way) round(ctx context.Context, callers, calls int, counts bool) error {
	var (
		wg    sync.WaitGroup
		trips = make([]float64, calls)
		errs  = make([]error, callers)
		began = time.Now()
	)
	for i := range callers {
		wg.Go(func() {
			for n := i; n < calls && errs[i] == nil; n += callers {
				began := time.Now()
				errs[i] = w.call(ctx)
				trips[n] = micros(time.Since(began))
			}
		})
	}
	wg.Wait()
	if counts {
		w.rates = append(w.rates, float64(calls)/time.Since(began).Seconds())
		w.trips = append(w.trips, median(trips))
	}
	return errors.Join(errs...)
}

func (w *way) report(t *table, base *way, durable bool, callers int) {
	name := w.name
	if durable {
		name += ", durable reply"
	}
	if callers == 1 {
		name += ", 1 caller"
	} else {
		name += fmt.Sprintf(", %d callers", callers)
	}
	trip, rate, bareTrip, bareRate := median(w.trips), median(w.rates), median(base.trips), median(base.rates)
	t.add(figure{
		Part: "queue", Name: name + ": round trip", Value: trip / bareTrip, Unit: "×", Aim: roundTripAim,
		Note: fmt.Sprintf("%.2f ms, bare %.2f ms", trip/1e3, bareTrip/1e3),
	})
	t.add(figure{
		Part: "queue", Name: name + ": throughput", Value: rate / bareRate, Unit: "×", Aim: throughputAim, AtLeast: true,
		Note: fmt.Sprintf("%.0f calls/s, bare %.0f", rate, bareRate),
	})
}

// queueClient calls the agent over the binding.
type queueClient struct {
	*a2aqueue.Client
	factory *a2aqueue.Factory
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// newQueueClient has the final answers come also to a durable queue, which it takes them from, if one is named.
func newQueueClient(ctx context.Context, q *queues, durable string) (*queueClient, error) {
	factory, err := a2aqueue.NewFactory(a2aqueue.FactoryConfig{Broker: q.broker, URL: q.names.URL, ReplyTo: durable})
	if err != nil {
		return nil, err
	}
	c := &queueClient{Client: factory.Client(q.names.Agent), factory: factory, stop: func() {}}
	if durable == "" {
		return c, nil
	}
	replies, err := a2aqueue.NewReplies(a2aqueue.RepliesConfig{
		Broker: q.broker, Queue: durable,
		Handle: func(context.Context, a2aqueue.Reply) (a2aqueue.Fate, error) { return a2aqueue.FateTaken, nil },
	})
	if err != nil {
		return nil, err
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.wg.Go(func() { _ = replies.Run(ctx) }) // what it can't take is no part of what is measured
	return c, nil
}

func (c *queueClient) close() {
	c.factory.Close()
	c.stop()
	c.wg.Wait()
}

func (c *queueClient) request() *protocol.SendMessageRequest {
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(question))
	m.ContextID = "x-" + m.ID
	return &protocol.SendMessageRequest{Message: m}
}

func (c *queueClient) send(ctx context.Context) error {
	_, err := c.SendMessage(ctx, nil, c.request())
	return err
}

func (c *queueClient) stream(ctx context.Context) error {
	for _, err := range c.SendStreamingMessage(ctx, nil, c.request()) {
		if err != nil {
			return err
		}
	}
	return nil
}

// measureParkedQueue measures the memory of blocking calls that wait for an agent behind a queue, each with its turn: all of
// it, since they share their connections.
func measureParkedQueue(ctx context.Context, b *bench, q *queues) error {
	n := b.sizes.parked[len(b.sizes.parked)-1]
	newQueueWorld := func(ctx context.Context, store session.Store) (*world, error) {
		transport, err := a2aqueue.NewTransport(a2aqueue.TransportConfig{
			Own: a2aqueue.Connection{Broker: q.broker, URL: q.names.URL}, ReplyTo: q.names.Replies,
			KeepAlive: time.Hour, // all of them are silent, which is what is measured
		})
		if err != nil {
			return nil, err
		}
		w, err := newWorldOf(ctx, store, []a2a.Peer{{Name: holder, Queue: q.names.Holder}}, transport)
		if err != nil {
			transport.Close()
			return nil, err
		}
		w.closing = append(w.closing, transport.Close)
		return w, nil
	}
	call, err := parkWorld(ctx, b, n, a2a.InvokeAgent, newQueueWorld, func(ctx context.Context, w *world) error { return waitTasks(ctx, w.calls, n) })
	if err != nil {
		return err
	}
	turn, err := parkWorld(ctx, b, n, blocks, newQueueWorld, func(ctx context.Context, w *world) error { return w.waitBlocked(ctx, n) })
	if err != nil {
		return err
	}
	b.table.head("Memory of a blocking call that waits for an agent behind a queue (heap and stack)")
	b.table.add(figure{
		Part: "queue", Name: number(float64(n)) + " calls over the queue, each with its turn", Value: call.kib(), Unit: "KiB", Aim: parkedQueueAim,
		Note: fmt.Sprintf("heap %.1f, stack %.1f; the turn in a tool that only blocks %.1f", call.heap/1024, call.stack/1024, turn.kib()),
	})
	return nil
}
