package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"golang.org/x/sync/errgroup"

	"orchestrator/a2a/a2aqueue"
)

// queueEnv makes this binary the process of the agents behind queues, whose names it holds.
const queueEnv = "ORCHESTRATOR_BENCH_QUEUES"

func (n queueNames) env() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // they are strings
	}
	return queueEnv + "=" + string(b)
}

// serveQueues is the process of the agents behind queues: it says that it is there and serves until in ends.
func serveQueues(env string, in io.Reader, out io.Writer) (err error) {
	var names queueNames
	if err := json.Unmarshal([]byte(env), &names); err != nil {
		return fmt.Errorf("%s: %w", queueEnv, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	broker, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: names.URL, Name: "orchestrator bench peer"})
	if err != nil {
		stop()
		return err
	}
	var serving errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, serving.Wait(), broker.Close(context.Background()))
	}()
	for queue, handler := range map[string]a2asrv.RequestHandler{
		names.Agent:  a2asrv.NewHandler(answerer(streamingMessage), a2asrv.WithLogger(quiet)),
		names.Holder: &queueHolder{},
	} {
		server, err := a2aqueue.NewServer(a2aqueue.ServerConfig{
			Broker: broker, Queue: queue, Handler: handler, VolatileTasks: true, DrainTimeout: 1, // nobody waits any more
			Card: a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) {
				return peerCard(true, &protocol.AgentInterface{
					URL: a2aqueue.Address{Queue: queue, Vhost: "/"}.String(), ProtocolBinding: a2aqueue.Binding, ProtocolVersion: protocol.Version,
				}), nil
			}),
		})
		if err != nil {
			return err
		}
		serving.Go(func() error { return server.Run(ctx) })
	}
	serving.Go(func() error { return serveBare(ctx, names) })
	fmt.Fprintln(out, "ready")
	_, err = io.Copy(io.Discard, in)
	return err
}

// queueHolder takes every message for a task that it works on for ever. What isn't asked of it is missing.
type queueHolder struct {
	a2asrv.RequestHandler

	tasks atomic.Int64
}

// SendStreamingMessage implements a2asrv.RequestHandler.
func (h *queueHolder) SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		task := &protocol.Task{
			ID: protocol.TaskID(fmt.Sprintf("task-%d", h.tasks.Add(1))), ContextID: req.Message.ContextID,
			Status: protocol.TaskStatus{State: protocol.TaskStateWorking},
		}
		if yield(task, nil) {
			<-ctx.Done()
		}
	}
}
