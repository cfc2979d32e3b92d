package a2aqueue

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

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
