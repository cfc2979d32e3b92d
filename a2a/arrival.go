package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/session"
	"orchestrator/tracker"
)

// Arrival is the final response to a message, as a reply queue holds it.
type Arrival struct {
	// MessageID is that of the message, which is the id of our call.
	MessageID string
	// Result is a whole task or a message. Nil: the peer answered with Err.
	Result protocol.SendMessageResult
	// Err is the peer's own error.
	Err error
}

// ErrUnknownCall says that no call is known that a reply could be for.
var ErrUnknownCall = errors.New("no call is known that the reply is for")

// Reply takes a final response to the place where all replies meet: [tracker.Tracker.Deliver]. It returns after the commit,
// so the reply may be acknowledged to the broker then and not before; it tries again until the store takes it or ctx ends.
// Whoever follows the call stops. A response that doesn't end the call, since the task goes on, has no fate; what it says of
// the task is kept. [ErrUnknownCall] and [ErrUnreadable] won't change when the response comes again.
//
// It may be called from any goroutine, in any process on the store, also for calls that nobody follows.
func (r *Relay) Reply(ctx context.Context, in Arrival) (tracker.Delivery, error) {
	if in.Result == nil && in.Err == nil {
		return "", fmt.Errorf("%w: it holds neither a result nor an error", ErrUnreadable)
	}
	var p tracker.PendingA2ATask
	err := r.persist(ctx, func() (err error) {
		p, err = r.cfg.Tracker.Get(ctx, session.CallID(in.MessageID))
		return err
	})
	if err != nil {
		return "", err
	}
	reply, files, final, err := r.assemble(ctx, p, in)
	if err != nil || !final {
		return "", err
	}
	f := r.following(p.ID)
	var fate tracker.Delivery
	err = r.persist(ctx, func() (err error) {
		fate, p, err = r.cfg.Tracker.Deliver(ctx, p.ID, reply, files...)
		return err
	})
	if err != nil {
		return "", err
	}
	if f != nil && !p.Wanted() && !p.CancelOwed() {
		f.settledElsewhere(fate, p, reply)
	}
	r.cfg.Logger.DebugContext(ctx, "a reply was taken from the reply queue", "session", p.RootID, "agent", p.SessionID, "task", p.ID, "peer", p.Peer, "fate", fate, "state", p.State, "reply", reply.State)
	return fate, nil
}

// assemble makes a reply of a response, as a follower does of what it hears. One that is not final is noted.
func (r *Relay) assemble(ctx context.Context, p tracker.PendingA2ATask, in Arrival) (reply tracker.Reply, files []session.Artifact, final bool, err error) {
	if in.Err != nil {
		text, retryable := refusal(p.Peer, in.Err, p.Attempt > 1)
		return tracker.Reply{State: "failed", Text: text, Failed: true, Retryable: retryable, TaskID: p.PeerTaskID}, nil, true, nil
	}
	a := &assembly{limit: r.cfg.Limits.MaxReply}
	a.add(in.Result)
	reply, files = a.reply(p.ToolCallID)
	switch {
	case a.message != nil, a.state.Terminal():
		return reply, files, true, nil
	case a.state == protocol.TaskStateInputRequired:
		var q request
		if len(p.Request) > 0 && json.Unmarshal(p.Request, &q) == nil && q.Seen != "" && q.Seen == a.mark() {
			return reply, nil, false, nil // the question this message answers
		}
		return reply, files, true, nil
	case a.state == protocol.TaskStateAuthRequired:
		return reply, nil, false, r.persist(ctx, func() error {
			_, err := r.cfg.Tracker.AuthRequired(ctx, p.ID, reply, files...)
			return err
		})
	}
	return reply, nil, false, r.persist(ctx, func() error {
		_, err := r.cfg.Tracker.Sent(ctx, p.ID, a.taskID, a.contextID, 0)
		return err
	})
}

// persist reads or writes until the store does it or ctx ends.
func (r *Relay) persist(ctx context.Context, do func() error) error {
	pause := newPause(50*time.Millisecond, 5*time.Second)
	for {
		err := do()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, session.ErrNotFound):
			return fmt.Errorf("%w: %w", ErrUnknownCall, err)
		case ctx.Err() != nil || errors.Is(err, session.ErrClosed):
			return err
		}
		r.cfg.Logger.WarnContext(ctx, "can't write a reply that came by the queue; trying again", "err", err)
		if sleep(ctx, pause.NextBackOff()) != nil {
			return err
		}
	}
}

// following returns whoever follows a call, or nil.
func (r *Relay) following(id session.CallID) *follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

// settledElsewhere stops a follower whose call has had its reply without it.
func (f *follower) settledElsewhere(fate tracker.Delivery, p tracker.PendingA2ATask, r tracker.Reply) {
	if fate != tracker.Duplicate {
		f.ended(fate, p, r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.settling {
		f.interrupt(errSettled)
	}
}
