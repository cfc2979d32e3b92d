package a2aqueue_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a"
	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

func transport(t *testing.T, url string, cfg a2aqueue.TransportConfig) *a2aqueue.Transport {
	t.Helper()
	cfg.Own = a2aqueue.Connection{Broker: open(t, a2aqueue.BrokerConfig{URL: url}), URL: url, Aliases: cfg.Own.Aliases}
	cfg.ReplyTo = replyQueue
	tr, err := a2aqueue.NewTransport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func card(interfaces ...*protocol.AgentInterface) *protocol.AgentCard {
	return &protocol.AgentCard{Name: "clerk", Capabilities: protocol.AgentCapabilities{Streaming: true}, SupportedInterfaces: interfaces}
}

func TestATransportConnectsOnlyToWhatIsOnItsBroker(t *testing.T) {
	url := brokertest.Vhost(t)
	home, err := a2aqueue.BrokerAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	tr := transport(t, url, a2aqueue.TransportConfig{Own: a2aqueue.Connection{Aliases: []string{"amqp://alias.example.com/prod"}}})
	peer := a2a.Peer{Name: "clerk", Queue: agentQueue}
	amqp10 := func(url string) *protocol.AgentInterface {
		return &protocol.AgentInterface{URL: url, ProtocolBinding: a2aqueue.Binding, ProtocolVersion: protocol.Version}
	}
	for at, ok := range map[string]bool{
		home.WithQueue("q").String():                  true,
		"amqp:?queue=q":                               true,
		"amqp://alias.example.com:5672/prod?queue=q":  true,
		"amqp://alias.example.com/other?queue=q":      false,
		"amqp://elsewhere.example.com/prod?queue=q":   false,
		home.String():                                 false,
		"http://" + home.Host + "/?queue=q":           false,
		"amqp://guest:guest@" + home.Host + "/?queue": false,
	} {
		_, err := tr.Connect(t.Context(), peer, card(amqp10(at)))
		if _, refused := errors.AsType[*a2a.CardError](err); ok != (err == nil) || !ok && !refused {
			t.Errorf("Connect(%s) = %v", at, err)
		}
	}
	for name, c := range map[string]*protocol.AgentCard{
		"no interface":       card(),
		"another binding":    card(&protocol.AgentInterface{URL: "http://x", ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: protocol.Version}),
		"a version to come":  card(&protocol.AgentInterface{URL: "amqp:?queue=q", ProtocolBinding: a2aqueue.Binding, ProtocolVersion: "2.0"}),
		"the version before": card(&protocol.AgentInterface{URL: "amqp:?queue=q", ProtocolBinding: a2aqueue.Binding, ProtocolVersion: "0.3"}),
	} {
		_, err := tr.Connect(t.Context(), peer, c)
		if _, refused := errors.AsType[*a2a.CardError](err); !refused {
			t.Errorf("Connect() to a card with %s = %v", name, err)
		}
	}
	peer.Broker = "amqp://guest:secret@elsewhere.example.com/"
	_, err = tr.Connect(t.Context(), peer, card(amqp10("amqp:?queue=q")))
	if _, refused := errors.AsType[*a2a.CardError](err); !refused || strings.Contains(err.Error(), "secret") {
		t.Errorf("Connect() to a peer of a broker nobody configured = %v", err)
	}
}

func TestATransportAsksForCards(t *testing.T) {
	url := brokertest.Vhost(t)
	tr := transport(t, url, a2aqueue.TransportConfig{})
	empty := a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) { return &protocol.AgentCard{}, nil })
	named := a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) { return card(), nil })
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{}, Queue: "a2a.named", Card: named})
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{}, Queue: "a2a.empty", Card: empty})
	c, err := tr.Card(bounded(t), a2a.Peer{Name: "x", Queue: "a2a.named"})
	if err != nil || c.Name != "clerk" {
		t.Errorf("Card() = %+v, %v", c, err)
	}
	_, err = tr.Card(bounded(t), a2a.Peer{Name: "x", Queue: "a2a.empty"})
	if _, ok := errors.AsType[*a2a.CardError](err); !ok {
		t.Errorf("Card() of nothing = %v", err)
	}
	_, err = tr.Card(bounded(t), a2a.Peer{Name: "x", Queue: "a2a.nobody"})
	if u, ok := errors.AsType[*a2a.UnroutableError](err); !ok || u.Queue != "a2a.nobody" {
		t.Errorf("Card() of a queue that isn't there = %v", err)
	}
	if n := length(t, open(t, a2aqueue.BrokerConfig{URL: url}), "a2a.empty"); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

// TestATransportTellsWhatBecameOfAMessage loses the answer to a message that is with the agent.
func TestATransportTellsWhatBecameOfAMessage(t *testing.T) {
	url := brokertest.Vhost(t)
	agent := answerByHand(t, url)
	tr := transport(t, url, a2aqueue.TransportConfig{KeepAlive: time.Second, RequestTimeout: time.Second})
	peer := a2a.Peer{Name: "clerk", Queue: agentQueue, Headers: map[string]a2a.Secret{"X-Api-Key": "secret"}}
	c, err := tr.Connect(t.Context(), peer, card(&protocol.AgentInterface{URL: "amqp:?queue=" + agentQueue, ProtocolBinding: a2aqueue.Binding, ProtocolVersion: protocol.Version}))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		req := agent.next()
		if req.Headers["X-Api-Key"] != "secret" || req.ReplyTo != replyQueue {
			t.Errorf("the request has %v, and is to be answered to %s", req.Headers, req.ReplyTo)
		}
		agent.say(req, 1, false, working(1))
		agent.say(req, 3, false, working(3))
	})
	evs, err := collect(c.SendStreamingMessage(bounded(t), message("m", "hi")))
	if _, queued := errors.AsType[*a2a.QueuedError](err); !queued || !errors.Is(err, a2aqueue.ErrGap) || len(evs) != 1 {
		t.Errorf("the stream has %d events and ends with %v", len(evs), err)
	}
	wg.Wait()
	_, err = c.GetTask(bounded(t), &protocol.GetTaskRequest{ID: "t"})
	if _, queued := errors.AsType[*a2a.QueuedError](err); queued || !errors.Is(err, a2aqueue.ErrSilent) {
		t.Errorf("GetTask() of an agent that doesn't answer = %v", err)
	}
	if d := agent.next(); d.Expiration == "" || d.Type != "GetTask" {
		t.Errorf("the question is %+v", d.Delivery)
	}
	gone := a2a.Peer{Name: "gone", Queue: "a2a.nobody", DurableQueue: true}
	c, err = tr.Connect(t.Context(), gone, card(&protocol.AgentInterface{URL: "amqp:?queue=a2a.nobody", ProtocolBinding: a2aqueue.Binding, ProtocolVersion: protocol.Version}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CancelTask(bounded(t), &protocol.CancelTaskRequest{ID: "t"})
	if !errors.Is(err, a2aqueue.ErrSilent) {
		t.Errorf("CancelTask() of an agent that has yet to come = %v", err)
	}
	if err := agent.broker.Do(bounded(t), func(_ context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive("a2a.nobody", true, false, false, false, nil)
		return err
	}); err != nil {
		t.Errorf("its queue wasn't declared: %v", err)
	}
}
