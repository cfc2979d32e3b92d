package a2aqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
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
	saidLast protocol.Event      // the last event of the stream, and what was written for it
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
		c.reply(to, c.encode(result, err), eventPatience)
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
	if result != c.saidLast { // else it was written for the stream
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

// subscribe handles a SubscribeToTask.
func (c *call) subscribe() {
	defer c.settle()
	if !c.slot() {
		c.leave()
		return
	}
	defer c.free()
	var req protocol.SubscribeToTaskRequest
	if err := json.Unmarshal(c.r.params, &req); err != nil {
		c.break_(unreadable(err))
		return
	}
	for ev, err := range c.s.cfg.Handler.SubscribeToTask(c.work(), &req) {
		if err != nil {
			c.stopped(err)
			return
		}
		c.event(ev)
		c.settle()
		if c.gone.Load() || c.ended {
			return
		}
	}
	c.end()
}

// stopped ends a stream that the handler has ended with an error.
func (c *call) stopped(err error) {
	if c.ctx.Err() != nil {
		c.end() // we did
		return
	}
	c.break_(err)
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

// send handles a message.
func (c *call) send() {
	if !c.slot() {
		c.leave()
		return
	}
	defer c.free()
	req := new(protocol.SendMessageRequest)
	if err := json.Unmarshal(c.r.params, req); err != nil {
		c.fail(unreadable(err))
		c.settle()
		return
	}
	var content struct {
		Message json.RawMessage `json:"message"`
	}
	_ = json.Unmarshal(c.r.params, &content) // it was read before
	c.r.params, c.d.Body = nil, nil          // a task may take long
	if req.Message == nil || req.Message.ID == "" {
		c.first(&sent{recorded: make(chan struct{})}, req) // which the handler refuses
		return
	}
	c.message = req.Message.ID
	key := sentKey{user: c.r.userID, tenant: req.Tenant, message: req.Message.ID}
	for {
		m, first, err := c.s.sent.begin(key, content.Message, c.r.exchange)
		switch {
		case err != nil:
			c.fail(err)
			c.settle()
			return
		case first:
			defer c.s.sent.end(m)
			c.first(m, req)
			return
		case c.again(m, req):
			return
		}
	}
}

// again handles a message that was sent before. It returns false when nothing has become of it, so that it is new.
func (c *call) again(m *sent, req *protocol.SendMessageRequest) bool {
	select {
	case <-m.recorded:
	case <-m.ended:
	case <-c.ctx.Done():
		c.leave()
		return true
	}
	select {
	case <-m.recorded:
		c.s.metrics.repeated()
		c.settle()
		if m.exchange == c.r.exchange && !isClosed(m.ended) {
			return true // the same request came again: the first is being answered
		}
		c.resume(m.taskID, req)
		return true
	default:
	}
	if m.message == nil {
		return m.exchange == c.r.exchange && c.answered()
	}
	c.s.metrics.repeated()
	c.conclude(m.message)
	c.settle()
	return true
}

// answered settles a request that came again after it was refused.
func (c *call) answered() bool {
	if c.ctx.Err() != nil {
		c.leave()
	}
	return c.ctx.Err() != nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// first handles a message that this process doesn't know.
func (c *call) first(m *sent, req *protocol.SendMessageRequest) {
	if id := c.find(req); id != "" {
		m.record(id)
		c.s.metrics.repeated()
		c.settle()
		c.resume(id, req)
		return
	}
	h := c.s.cfg.Handler
	if c.r.method == methodSend && req.Config != nil && req.Config.ReturnImmediately {
		res, err := h.SendMessage(c.work(), req)
		c.sentWhole(m, req, res, err)
		return
	}
	var w watched
	for ev, err := range h.SendStreamingMessage(c.work(), req) {
		switch {
		case err != nil && w.none() && c.r.method == methodSend && errors.Is(err, protocol.ErrUnsupportedOperation):
			res, err := h.SendMessage(c.work(), req)
			c.sentWhole(m, req, res, err)
			return
		case err != nil:
			c.interrupted(&w, err)
			return
		case ev == nil:
			continue
		}
		w.add(ev)
		m.record(w.taskID)
		m.message = kept(w.message)
		c.event(ev)
		c.settle()
		if c.r.method == methodSend && w.state == protocol.TaskStateAuthRequired && !c.told {
			c.tellTask(w.taskID)
		}
		if w.final() || c.idle() {
			break
		}
	}
	c.finish(&w)
}

// kept is an answer that is kept for when the message comes again, if it isn't too large.
func kept(m *protocol.Message) *protocol.Message {
	if m == nil {
		return nil
	}
	size := 0
	for _, p := range m.Parts {
		if p == nil {
			continue
		}
		switch content := p.Content.(type) {
		case protocol.Text:
			size += len(content)
		case protocol.Raw:
			size += len(content)
		case protocol.Data:
			b, err := json.Marshal(content.Value)
			if err != nil {
				return nil
			}
			size += len(b)
		}
	}
	if size > maxKeptMessage {
		return nil
	}
	return m
}

// sentWhole goes on when the handler has answered a message as a whole.
func (c *call) sentWhole(m *sent, req *protocol.SendMessageRequest, res protocol.SendMessageResult, err error) {
	var w watched
	if err != nil {
		c.interrupted(&w, err)
		return
	}
	w.add(res)
	m.record(w.taskID)
	m.message = kept(w.message)
	c.respond(protocol.StreamResponse{Event: res}, nil)
	c.settle()
	if c.r.finalTo() == "" {
		return
	}
	if !w.final() {
		if res, err = c.follow(w.taskID, nil); err != nil {
			c.finalFailed(err)
			return
		}
	}
	c.final(res, nil)
}

// interrupted goes on when the handler has ended with an error.
func (c *call) interrupted(w *watched, err error) {
	switch {
	case c.ctx.Err() != nil && w.none():
		c.leave() // nothing was recorded: it is for the next one
	case c.ctx.Err() != nil:
		c.cutOff(w)
	case w.taskID == "":
		c.fail(err)
		c.settle()
	default: // the stream broke, and the task goes on
		c.fail2(err)
		c.settle()
		c.followFinal(w.taskID)
	}
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

// finish goes on when the handler has ended.
func (c *call) finish(w *watched) {
	switch {
	case c.ctx.Err() != nil:
		if w.none() {
			c.leave()
			return
		}
		c.cutOff(w)
	case w.none():
		c.fail(fmt.Errorf("%w: the agent said nothing", protocol.ErrInvalidAgentResponse))
		c.settle()
	case w.final():
		res, err := c.whole(w)
		if err != nil {
			c.fail2(err)
			c.finalFailed(err)
			return
		}
		c.conclude(res)
	default: // the task isn't over, but the handler tells no more of it
		c.end()
		if c.r.method == methodSend && !c.told {
			c.tellTask(w.taskID)
		}
		c.followFinal(w.taskID)
	}
}

// conclude gives the whole answer to all who wait for it.
func (c *call) conclude(res protocol.SendMessageResult) {
	if streams(c.r.method) {
		if c.seq == 0 {
			c.event(res)
		}
		c.end()
	} else {
		c.respond(protocol.StreamResponse{Event: res}, nil)
	}
	c.final(res, nil)
}

// tellTask answers with a task as it is.
func (c *call) tellTask(id protocol.TaskID) {
	t, err := c.get(id)
	if err != nil {
		c.respond(nil, err)
		return
	}
	c.respond(protocol.StreamResponse{Event: t}, nil)
}

func (c *call) get(id protocol.TaskID) (*protocol.Task, error) {
	t, err := c.s.cfg.Handler.GetTask(c.work(), &protocol.GetTaskRequest{ID: id})
	if err == nil && t == nil {
		err = protocol.ErrTaskNotFound
	}
	return t, err
}

// whole is what a stream that has come to its end amounts to.
func (c *call) whole(w *watched) (protocol.SendMessageResult, error) {
	switch {
	case w.message != nil:
		return w.message, nil
	case w.task != nil:
		return w.task, nil
	case c.r.method == methodStream && c.r.finalTo() == "":
		return &protocol.Task{ID: w.taskID, ContextID: w.contextID, Status: protocol.TaskStatus{State: w.state}}, nil // it was told
	}
	return c.get(w.taskID)
}

// followFinal follows a task for the sake of whoever gets its end only.
func (c *call) followFinal(id protocol.TaskID) {
	if c.r.finalTo() == "" {
		return
	}
	res, err := c.follow(id, nil)
	if err != nil {
		c.finalFailed(err)
		return
	}
	c.final(res, nil)
}

// finalFailed tells of a task that can't be followed to its end, unless that is since we stop: then the next may.
func (c *call) finalFailed(err error) {
	if c.ctx.Err() == nil {
		c.final(nil, err)
		return
	}
	if c.r.finalTo() != "" {
		c.s.metrics.lost()
		c.s.cfg.Logger.InfoContext(c.alive, "a task isn't followed to its end; whoever sent it has to ask", "task", c.message, "err", context.Cause(c.ctx))
	}
}

// resume goes on with the task of a message that was sent before.
func (c *call) resume(id protocol.TaskID, req *protocol.SendMessageRequest) {
	t, err := c.get(id)
	switch {
	case c.ctx.Err() != nil:
		c.cutOff(&watched{taskID: id})
		return
	case err != nil:
		c.fail(err)
		return
	}
	if c.r.method == methodSend && req.Config != nil && req.Config.ReturnImmediately {
		c.respond(protocol.StreamResponse{Event: t}, nil)
		c.followFinal(id)
		return
	}
	res, err := c.follow(id, func(ev protocol.Event) bool {
		c.event(ev)
		return !c.idle()
	})
	switch {
	case c.ctx.Err() != nil || res == nil && err == nil:
		c.cutOff(&watched{taskID: id, contextID: t.ContextID})
	case err != nil:
		c.fail(err)
	default:
		c.conclude(res)
	}
}

const (
	followFirst = 100 * time.Millisecond
	followMost  = 10 * time.Second
)

// follow follows a task until the turn it is in is over, and returns the whole of it then. tell, if set, is told what
// is heard on the way, the task as it is first; when it returns false nobody wants to know, and follow returns nil.
func (c *call) follow(id protocol.TaskID, tell func(protocol.Event) bool) (protocol.SendMessageResult, error) {
	pause := followFirst
	seen := "" // what tell knows of the task
	for {
		heard := false
		for ev, err := range c.s.cfg.Handler.SubscribeToTask(c.work(), &protocol.SubscribeToTaskRequest{ID: id}) {
			if err != nil {
				break // GetTask tells what it means
			}
			heard, pause = true, followFirst
			if tell != nil && !tell(ev) {
				return nil, nil
			}
			if state, ok := stateOf(ev); ok && over(state) {
				break
			}
		}
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		t, err := c.get(id)
		switch {
		case err == nil && over(t.Status.State):
			if tell != nil && !heard {
				tell(t)
			}
			return t, nil
		case err == nil && tell != nil && !heard:
			if mark := taskMark(t); mark != seen {
				if seen = mark; !tell(t) {
					return nil, nil
				}
			}
		case errors.Is(err, protocol.ErrTaskNotFound), errors.Is(err, protocol.ErrUnauthenticated), errors.Is(err, protocol.ErrUnauthorized):
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return nil, context.Cause(c.ctx)
		}
		pause = min(2*pause, followMost)
	}
}

// taskMark is what a task says, short.
func taskMark(t *protocol.Task) string {
	mark := fmt.Sprintf("%s %d", t.Status.State, len(t.Artifacts))
	if t.Status.Timestamp != nil {
		mark += t.Status.Timestamp.String()
	}
	return mark
}

// over reports whether a turn of a task is over.
func over(s protocol.TaskState) bool { return s.Terminal() || s == protocol.TaskStateInputRequired }

// stateOf returns the state of the task that an event tells, if it does.
func stateOf(ev protocol.Event) (protocol.TaskState, bool) {
	switch e := ev.(type) {
	case *protocol.Task:
		return e.Status.State, true
	case *protocol.TaskStatusUpdateEvent:
		return e.Status.State, true
	}
	return "", false
}

// watched is what was heard of a message's answer.
type watched struct {
	taskID    protocol.TaskID
	contextID string
	state     protocol.TaskState
	message   *protocol.Message
	task      *protocol.Task // the only thing heard, and the whole of it
	count     int
}

func (w *watched) none() bool { return w.count == 0 }

// final reports whether the answer is complete.
func (w *watched) final() bool { return w.message != nil || over(w.state) }

func (w *watched) add(ev protocol.Event) {
	w.count++
	w.task = nil
	if info := ev.TaskInfo(); info.TaskID != "" {
		if _, message := ev.(*protocol.Message); !message {
			w.taskID, w.contextID = info.TaskID, info.ContextID
		}
	}
	switch e := ev.(type) {
	case *protocol.Message:
		w.message = e
	case *protocol.Task:
		w.state = e.Status.State
		if w.count == 1 {
			w.task = e
		}
	case *protocol.TaskStatusUpdateEvent:
		w.state = e.Status.State
	}
}

// findPages bounds the pages of a context's tasks among which a message is looked for.
const findPages = 20

// find looks for a task that an earlier life of the process, or another process, has made of the message.
func (c *call) find(req *protocol.SendMessageRequest) protocol.TaskID {
	if c.s.cfg.VolatileTasks || req.Message == nil || req.Message.ID == "" {
		return ""
	}
	if id := req.Message.TaskID; id != "" {
		if t, err := c.get(id); err == nil && holds(t, req.Message.ID) {
			return id
		}
		return ""
	}
	if req.Message.ContextID == "" {
		return ""
	}
	history := 100
	q := &protocol.ListTasksRequest{Tenant: req.Tenant, ContextID: req.Message.ContextID, HistoryLength: &history, PageSize: 50}
	for range findPages {
		page, err := c.s.cfg.Handler.ListTasks(c.work(), q)
		if err != nil || page == nil {
			if err != nil {
				c.s.cfg.Logger.DebugContext(c.alive, "can't look whether a message was sent before", "err", err)
			}
			return ""
		}
		for _, t := range page.Tasks {
			if holds(t, req.Message.ID) {
				return t.ID
			}
		}
		if q.PageToken = page.NextPageToken; q.PageToken == "" {
			return ""
		}
	}
	return ""
}

// holds reports whether a message is in a task's history.
func holds(t *protocol.Task, id string) bool {
	return t != nil && slices.ContainsFunc(t.History, func(m *protocol.Message) bool { return m != nil && m.ID == id })
}
