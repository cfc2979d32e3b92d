package bindingtest

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// Queue is a transport over a queue that a test holds in its hands, for what takes longer than a real broker's tests may:
// in a synctest bubble a peer can be away for a day. It takes every message, and nobody takes it from there; a question is
// answered by what is set, or not within its time.
type Queue struct {
	mu    sync.Mutex
	asked []string
	heard int      // how many listen
	sent  []string // the ids of messages
	// Refuse is what sending a message fails with. Nil: it is taken.
	refuse error
	lost   chan struct{} // closed when the connection breaks
	events chan protocol.Event
	task   func() (*protocol.Task, error) // nil: the peer is away
	list   func() ([]*protocol.Task, error)
}

// NewQueue returns a queue whose peer is away.
func NewQueue() *Queue {
	return &Queue{lost: make(chan struct{}), events: make(chan protocol.Event, 16)}
}

var (
	_ a2a.Transport = (*Queue)(nil)
	_ a2a.Client    = (*Queue)(nil)
)

var errAway = errors.New("nobody takes it from the queue")

// Refuse makes sending fail from now on; nil makes it succeed.
func (q *Queue) Refuse(err error) { q.set(func() { q.refuse = err }) }

// Break breaks the connection: whoever listens hears no more.
func (q *Queue) Break() {
	q.set(func() {
		close(q.lost)
		q.lost = make(chan struct{})
	})
}

// Say is heard by who sent a message or subscribed.
func (q *Queue) Say(ev protocol.Event) { q.events <- ev }

// Task answers GetTask, SubscribeToTask and CancelTask from now on; nil is nobody.
func (q *Queue) Task(f func() (*protocol.Task, error)) { q.set(func() { q.task = f }) }

// List answers ListTasks from now on; nil is nobody.
func (q *Queue) List(f func() ([]*protocol.Task, error)) { q.set(func() { q.list = f }) }

// Asked returns what the peer was asked, of the methods named or of all.
func (q *Queue) Asked(methods ...string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(q.asked), func(m string) bool { return len(methods) > 0 && !slices.Contains(methods, m) })
}

// Sent returns the ids of the messages in the queue.
func (q *Queue) Sent() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.sent)
}

// Listening returns how many streams are listened to.
func (q *Queue) Listening() (n int) {
	q.set(func() { n = q.heard })
	return n
}

func (q *Queue) set(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

// Binding implements [a2a.Transport].
func (*Queue) Binding() string { return a2a.BindingAMQP }

// Card implements [a2a.Transport]: nobody answers.
func (q *Queue) Card(ctx context.Context, _ a2a.Peer) (*protocol.AgentCard, error) {
	q.note(a2atest.MethodCard)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Connect implements [a2a.Transport].
func (q *Queue) Connect(context.Context, a2a.Peer, *protocol.AgentCard) (a2a.Client, error) {
	return q, nil
}

func (q *Queue) note(method string) { q.set(func() { q.asked = append(q.asked, method) }) }

// SendMessage implements [a2a.Client].
func (q *Queue) SendMessage(ctx context.Context, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	for _, err := range q.SendStreamingMessage(ctx, req) {
		if err != nil {
			return nil, err
		}
	}
	return nil, &a2a.QueuedError{}
}

// SendStreamingMessage implements [a2a.Client].
func (q *Queue) SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		q.note(a2atest.MethodStream)
		q.mu.Lock()
		err, lost := q.refuse, q.lost
		if err == nil {
			q.sent = append(q.sent, req.Message.ID)
		}
		q.mu.Unlock()
		if err != nil {
			yield(nil, err)
			return
		}
		q.stream(ctx, lost, yield)
	}
}

func (q *Queue) stream(ctx context.Context, lost <-chan struct{}, yield func(protocol.Event, error) bool) {
	q.set(func() { q.heard++ })
	defer q.set(func() { q.heard-- })
	for {
		select {
		case ev := <-q.events:
			if !yield(ev, nil) {
				return
			}
		case <-lost:
			yield(nil, &a2a.QueuedError{Err: errors.New("the connection broke")})
			return
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return
		}
	}
}

// answer is what a question is answered with.
func answer[T any](ctx context.Context, f func() (T, error)) (none T, _ error) {
	if f != nil {
		return f()
	}
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		return none, errAway
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

func (q *Queue) taskNow() (f func() (*protocol.Task, error)) {
	q.set(func() { f = q.task })
	return f
}

// SubscribeToTask implements [a2a.Client].
func (q *Queue) SubscribeToTask(ctx context.Context, _ *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		q.note(a2atest.MethodSubscribe)
		var lost chan struct{}
		q.set(func() { lost = q.lost })
		task, err := answer(ctx, q.taskNow())
		if err != nil {
			yield(nil, err)
			return
		}
		if yield(task, nil) {
			q.stream(ctx, lost, yield)
		}
	}
}

// GetTask implements [a2a.Client].
func (q *Queue) GetTask(ctx context.Context, _ *protocol.GetTaskRequest) (*protocol.Task, error) {
	q.note(a2atest.MethodGet)
	return answer(ctx, q.taskNow())
}

// ListTasks implements [a2a.Client].
func (q *Queue) ListTasks(ctx context.Context, _ *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	q.note(a2atest.MethodList)
	var f func() ([]*protocol.Task, error)
	q.set(func() { f = q.list })
	tasks, err := answer(ctx, f)
	return &protocol.ListTasksResponse{Tasks: tasks}, err
}

// CancelTask implements [a2a.Client].
func (q *Queue) CancelTask(ctx context.Context, _ *protocol.CancelTaskRequest) (*protocol.Task, error) {
	q.note(a2atest.MethodCancel)
	return answer(ctx, q.taskNow())
}
