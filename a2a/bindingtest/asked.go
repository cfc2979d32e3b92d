package bindingtest

import (
	"context"
	"iter"
	"sync"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// asked is a transport that keeps which methods were called. What a peer behind a queue is asked can't be seen at the peer,
// whose server asks it, too.
type asked struct {
	a2a.Transport

	mu      sync.Mutex
	methods []string
}

func (a *asked) note(method string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.methods = append(a.methods, method)
}

// Connect implements [a2a.Transport].
func (a *asked) Connect(ctx context.Context, p a2a.Peer, card *protocol.AgentCard) (a2a.Client, error) {
	c, err := a.Transport.Connect(ctx, p, card)
	if err != nil {
		return nil, err
	}
	return &askedClient{Client: c, asked: a}, nil
}

type askedClient struct {
	a2a.Client
	asked *asked
}

func (c *askedClient) SendMessage(ctx context.Context, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	c.asked.note(a2atest.MethodSend)
	return c.Client.SendMessage(ctx, req)
}

func (c *askedClient) SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	c.asked.note(a2atest.MethodStream)
	return c.Client.SendStreamingMessage(ctx, req)
}

func (c *askedClient) SubscribeToTask(ctx context.Context, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	c.asked.note(a2atest.MethodSubscribe)
	return c.Client.SubscribeToTask(ctx, req)
}

func (c *askedClient) GetTask(ctx context.Context, req *protocol.GetTaskRequest) (*protocol.Task, error) {
	c.asked.note(a2atest.MethodGet)
	return c.Client.GetTask(ctx, req)
}

func (c *askedClient) ListTasks(ctx context.Context, req *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	c.asked.note(a2atest.MethodList)
	return c.Client.ListTasks(ctx, req)
}

func (c *askedClient) CancelTask(ctx context.Context, req *protocol.CancelTaskRequest) (*protocol.Task, error) {
	c.asked.note(a2atest.MethodCancel)
	return c.Client.CancelTask(ctx, req)
}
