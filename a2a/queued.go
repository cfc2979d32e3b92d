package a2a

import (
	"context"
	"errors"
	"fmt"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/cenkalti/backoff/v5"
)

// What a follower does otherwise when its peer is behind a queue: the message waits there while the peer is away, and the
// answer comes by the reply queue whoever listens. So a message is not sent again as long as it can be in the queue, which is
// until the peer answers a question that was put there after it, and a peer that doesn't answer is asked seldom.

// connect returns how the peer is asked now.
func (f *follower) connect(ctx context.Context) (*link, error) {
	l, err := f.r.cfg.Registry.connect(ctx, f.peer)
	if err == nil {
		f.queued = l.queued
	}
	return l, err
}

// newPause returns the pauses between questions to the peer.
func (f *follower) newPause() *backoff.ExponentialBackOff {
	if f.queued {
		return newPause(pollFirst, queuePollMost)
	}
	return newPause(pollFirst, pollMost)
}

// grace is how long a reply that lies in the reply queue may take to be delivered, before what the peer says now counts.
func (f *follower) grace() time.Duration { return f.r.cfg.Limits.QueueWait / 6 }

// bounded bounds a question to a peer that may be away.
func (f *follower) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if !f.queued {
		return ctx, func() {}
	}
	d := f.r.cfg.Limits.QueueWait
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("peer '%s' did not take the question from its queue within %s", f.peer, d))
}

func (f *follower) getTask(ctx context.Context, l *link, id protocol.TaskID) (*protocol.Task, error) {
	ctx, cancel := f.bounded(ctx)
	defer cancel()
	return l.GetTask(ctx, &protocol.GetTaskRequest{ID: id})
}

// awaitReply waits for the reply to a message that is certainly the peer's, until its task is known, which is then nil.
// The message is not sent again.
func (f *follower) awaitReply(ctx context.Context) error {
	pause := newPause(pollFirst, queuePollMost)
	on := f.continued(ctx)
	for {
		if err := sleep(ctx, pause.NextBackOff()); err != nil {
			return err
		}
		if p, err := f.r.cfg.Tracker.Get(ctx, f.id); err == nil && !p.Wanted() && !p.CancelOwed() {
			return errSettled // another process has had the reply
		}
		task, err := f.look(ctx, on)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && task != nil:
			return f.found(task)
		case err != nil:
			f.r.cfg.Logger.DebugContext(ctx, "can't ask for a task", f.attrs("err", err)...)
		}
	}
}

// listen sends the message into a queue and follows what is heard. A peer that is away says nothing for as long; now and
// then it is asked all the same, since what it said first may have been lost.
func (e *exchange) listen() (settled bool, err error) {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	silence := time.AfterFunc(queuePollMost, func() { cancel(errSilent) })
	defer silence.Stop()
	for ev, err := range e.link.SendStreamingMessage(ctx, e.req) {
		if err != nil && errors.Is(context.Cause(ctx), errSilent) {
			return false, &QueuedError{Err: errSilent}
		}
		silence.Stop()
		if settled, err := e.take(ev, err); settled || err != nil {
			return settled, err
		}
	}
	return false, &QueuedError{Err: errEnded}
}
