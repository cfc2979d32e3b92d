package a2aqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

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

func (c *call) get(id protocol.TaskID) (*protocol.Task, error) {
	t, err := c.s.cfg.Handler.GetTask(c.work(), &protocol.GetTaskRequest{ID: id})
	if err == nil && t == nil {
		err = protocol.ErrTaskNotFound
	}
	return t, err
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
