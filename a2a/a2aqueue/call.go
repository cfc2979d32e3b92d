package a2aqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// call is one request that a server handles. One goroutine does.
type call struct {
	s      *Server
	r      *request
	d      *Delivery
	alive  context.Context // of the server: what is left to tell is told in it
	ctx    context.Context // of the handler's work: until the deadline, the server's stop, or nobody is left to tell
	cancel context.CancelCauseFunc
	done   context.CancelFunc

	settled  chan struct{}
	settle1  sync.Once
	params   *a2asrv.CallContext // of the last call of the handler
	message  string              // the id of the message sent, as its body has it
	stream   string              // the id of the stream
	seq      int64               // of the last event
	ended    bool                // the stream
	told     bool                // the answer to an operation without a stream
	saidLast protocol.Event      // the last event of the stream, or the whole answer, and what was written for it
	lastBody []byte
	acked    atomic.Bool
	gone     atomic.Bool  // nobody takes the stream's events
	sentSeq  atomic.Int64 // of the last event that the broker has
	spoke    atomic.Int64 // when, as Unix nanoseconds
}

func (s *Server) newCall(alive, cut context.Context, r *request, d *Delivery) *call {
	c := &call{s: s, r: r, d: d, alive: alive, stream: newID(), settled: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(cut)
	c.cancel, c.done = cancel, func() { cancel(context.Canceled) }
	if !r.deadline.IsZero() {
		ctx, c.done = context.WithDeadlineCause(ctx, r.deadline, errDeadline)
	}
	c.ctx = ctx
	c.spoke.Store(time.Now().UnixNano())
	return c
}

// run handles the request and makes a panic an answer.
func (c *call) run(serve func()) {
	if c.r.keepAlive > 0 && streams(c.r.method) {
		c.s.keep(c)
		defer c.s.unkeep(c)
	}
	defer c.done()
	defer c.cancel(nil)
	defer func() {
		if v := recover(); v != nil {
			c.s.cfg.Logger.ErrorContext(c.alive, "handling a request panicked", "method", c.r.method, "err", fmt.Sprint(v), "stack", string(debug.Stack()))
			c.fail(fmt.Errorf("%w: the agent failed", protocol.ErrInternalError))
			c.settle()
		}
	}()
	serve()
}

// settle acknowledges the request.
func (c *call) settle() {
	c.settle1.Do(func() {
		if err := c.d.Ack(); err != nil {
			c.s.cfg.Logger.DebugContext(c.alive, "a request can't be acknowledged; it comes again", "method", c.r.method, "err", err)
		}
		c.d = nil
		c.acked.Store(true)
		close(c.settled)
	})
}

// leave lets the request go back to the queue.
func (c *call) leave() {
	c.settle1.Do(func() {
		_ = c.d.Nack(true) // what can't be given back comes again by itself
		c.d = nil
		close(c.settled)
	})
}

// work is a context for one call of the handler.
func (c *call) work() context.Context {
	ctx, params := a2asrv.NewCallContext(c.ctx, a2asrv.NewServiceParams(c.r.service))
	if c.r.userID != "" {
		params.User = a2asrv.NewAuthenticatedUser(c.r.userID, nil)
	}
	c.params = params
	return ctx
}

func (c *call) answer(kind string, body []byte) answer {
	a := c.s.answerTo(c.r, kind, body)
	a.messageID = cmp.Or(c.message, a.messageID)
	if c.params != nil {
		a.extensions = c.params.Extensions().ActivatedURIs()
	}
	return a
}

// once handles a request that has one answer.
func (c *call) once() {
	result, err := c.dispatch()
	if errors.Is(context.Cause(c.ctx), errStopping) {
		c.leave() // for the next one
		return
	}
	c.respond(result, err)
	c.settle()
}

func (c *call) dispatch() (any, error) {
	h, raw := c.s.cfg.Handler, c.r.params
	switch c.r.method {
	case methodGet:
		return with(c.work(), raw, h.GetTask)
	case methodList:
		return with(c.work(), raw, h.ListTasks)
	case methodCancel:
		return with(c.work(), raw, h.CancelTask)
	case methodPushGet:
		return with(c.work(), raw, h.GetTaskPushConfig)
	case methodPushList:
		return with(c.work(), raw, h.ListTaskPushConfigs)
	case methodPushCreate:
		return with(c.work(), raw, h.CreateTaskPushConfig)
	case methodPushDelete:
		return with(c.work(), raw, func(ctx context.Context, req *protocol.DeleteTaskPushConfigRequest) (any, error) {
			return nil, h.DeleteTaskPushConfig(ctx, req)
		})
	case methodExtendedCard:
		return with(c.work(), raw, h.GetExtendedAgentCard)
	case methodCard:
		return c.s.cfg.Card.Card(c.work())
	}
	return nil, protocol.ErrMethodNotFound
}

// with calls a method of the handler with the parameters it takes.
func with[Q, R any](ctx context.Context, raw json.RawMessage, method func(context.Context, *Q) (R, error)) (any, error) {
	q := new(Q)
	if err := json.Unmarshal(raw, q); err != nil {
		return nil, unreadable(err)
	}
	return method(ctx, q)
}

// respond answers an operation that has no stream.
func (c *call) respond(result any, err error) {
	if c.told {
		return
	}
	c.told = true
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	c.s.metrics.request(c.r.method, outcome)
	if to := c.r.answersTo(); to != "" {
		body := c.encode(result, err)
		if r, ok := result.(protocol.StreamResponse); ok && err == nil && c.r.finalTo() != "" {
			_, message := r.Event.(*protocol.Message)
			if state, ok := stateOf(r.Event); message || ok && over(state) { // else it changes until it is final
				c.saidLast, c.lastBody = r.Event, body
			}
		}
		c.reply(to, body, eventPatience)
	}
}

// reply publishes a whole answer.
func (c *call) reply(to string, body []byte, patience time.Duration) {
	perr := c.s.publish(c.alive, to, c.answer(typeResponse, body), patience)
	if errors.Is(perr, ErrTooLarge) {
		perr = c.s.publish(c.alive, to, c.answer(typeResponse, c.encode(nil, tooLargeToSend(len(body)))), patience)
	}
	if perr != nil {
		c.s.metrics.lost()
		c.s.cfg.Logger.WarnContext(c.alive, "an answer can't be delivered", "method", c.r.method, "queue", to, "err", perr)
	}
}

func (c *call) encode(result any, err error) []byte {
	if err == nil {
		body, jerr := encodeResult(c.r.rpcID, result)
		if jerr == nil {
			return body
		}
		err = fmt.Errorf("%w: %w", protocol.ErrInternalError, jerr)
	}
	return encodeError(c.r.rpcID, err)
}

func tooLargeToSend(size int) error {
	return fmt.Errorf("%w: the answer has %d bytes, more than can be sent through the queue", protocol.ErrServerError, size)
}

// final publishes the final answer to a message to the queue it goes to besides, if any.
func (c *call) final(result protocol.SendMessageResult, err error) {
	to := c.r.finalTo()
	if to == "" {
		return
	}
	patience := finalPatience
	if !c.r.deadline.IsZero() {
		patience = time.Until(c.r.deadline)
	}
	if err != nil {
		c.reply(to, c.encode(nil, err), patience)
		return
	}
	if result != c.saidLast { // else it was written before
		c.saidLast, c.lastBody = result, c.encode(protocol.StreamResponse{Event: result}, nil)
	}
	c.reply(to, c.lastBody, patience)
}

// event publishes what the agent says on a stream. After a message or a terminal state nothing follows.
func (c *call) event(ev protocol.Event) {
	if !streams(c.r.method) || c.ended || c.gone.Load() {
		return
	}
	body, err := encodeResult(c.r.rpcID, protocol.StreamResponse{Event: ev})
	if err != nil {
		c.break_(fmt.Errorf("%w: %w", protocol.ErrInternalError, err))
		return
	}
	_, message := ev.(*protocol.Message)
	state, ok := stateOf(ev)
	end := message || ok && state.Terminal()
	if end && c.r.finalTo() != "" {
		c.saidLast, c.lastBody = ev, body
	}
	c.emit(body, end)
}

// break_ ends a stream with an error.
func (c *call) break_(err error) { c.emit(encodeError(c.r.rpcID, err), true) }

// end ends a stream that hasn't ended.
func (c *call) end() { c.emit(nil, true) }

func (c *call) emit(body []byte, end bool) {
	if !streams(c.r.method) || c.ended || c.gone.Load() {
		return
	}
	a := c.answer(typeEvent, body)
	a.stream, a.seq, a.end = c.stream, c.seq+1, end
	err := c.s.publish(c.alive, c.r.answersTo(), a, eventPatience)
	switch {
	case errors.Is(err, ErrTooLarge):
		c.break_(tooLargeToSend(len(body)))
		return
	case err != nil:
		c.s.cfg.Logger.DebugContext(c.alive, "an event can't be delivered; its stream ends", "method", c.r.method, "err", err)
		c.readerGone()
		return
	}
	c.seq, c.ended = a.seq, end
	c.sentSeq.Store(a.seq)
	c.spoke.Store(time.Now().UnixNano())
	if end {
		c.s.unkeep(c)
		c.s.metrics.request(c.r.method, "ok")
	}
}

// due reports whether a stream has been silent for as long as its reader lets it.
func (c *call) due(now time.Time) bool {
	return now.Sub(time.Unix(0, c.spoke.Load())) >= c.r.keepAlive
}

// keepAlive says that a stream goes on. An error says that the broker can't be reached.
func (c *call) keepAlive(ctx context.Context) error {
	a := c.s.answerTo(c.r, typeKeepAlive, nil)
	a.stream, a.seq = c.stream, c.sentSeq.Load()
	err := c.s.cfg.Broker.Publish(ctx, Publication{Key: c.r.answersTo(), Publishing: a.publishing(time.Now())})
	if err != nil && !passing(err) {
		c.readerGone()
		return nil
	}
	if err == nil {
		c.spoke.Store(time.Now().UnixNano())
	}
	return err
}

// readerGone notes that nobody takes the stream's events, and ends the work if nobody else wants to know.
func (c *call) readerGone() {
	c.gone.Store(true)
	c.s.unkeep(c)
	if c.r.finalTo() == "" && (c.acked.Load() || c.r.method == methodSubscribe) {
		c.cancel(errReaderGone)
	}
}

// idle reports whether nobody wants to know how the task goes on.
func (c *call) idle() bool { return c.gone.Load() && c.r.finalTo() == "" && c.acked.Load() }

// fail answers a request with an error, whichever way it is answered.
func (c *call) fail(err error) {
	if streams(c.r.method) {
		c.break_(err)
	} else {
		c.respond(nil, err)
	}
	if sends(c.r.method) {
		c.final(nil, err)
	}
}

// stopped ends a stream that the handler has ended with an error.
func (c *call) stopped(err error) {
	if c.ctx.Err() != nil {
		c.end() // we did
		return
	}
	c.break_(err)
}

// fail2 answers with an error that isn't the final answer.
func (c *call) fail2(err error) {
	if streams(c.r.method) {
		c.break_(err)
		return
	}
	c.respond(nil, err)
}

// cutOff tells whoever waits that the task goes on without it being told here.
func (c *call) cutOff(w *watched) {
	if streams(c.r.method) {
		c.end()
		return
	}
	if c.told || c.r.answersTo() == "" {
		return
	}
	err := protocol.NewError(protocol.ErrServerError, context.Cause(c.ctx).Error()+"; ask for the task")
	c.respond(nil, err.WithErrorInfoMeta(map[string]string{"taskId": string(w.taskID), "contextId": w.contextID}))
}

// slot waits for room among the exchanges that are followed.
func (c *call) slot() bool {
	select {
	case c.s.slots <- struct{}{}:
		return true
	case <-c.ctx.Done():
		return false
	}
}

func (c *call) free() { <-c.s.slots }
