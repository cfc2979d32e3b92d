package tracker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"orchestrator/session"
)

// eventTextBudget is how many bytes of a reply an event quotes. Its owner has the whole.
const eventTextBudget = 400

// Deliver gives a reply its owner, whatever the clock says: a waiting call's waiter (answered), or the primary session
// as the item call:<id> (folded), which is late when the call was detached. Every later reply is a duplicate. An expired
// call's reply is discarded, and a cancelled call's too, but kept on the call. Text and data beyond
// [session.InlineBudget] go to artifacts in the same commit, as do the artifacts given, whose keys the reply need not
// name. AUTH_REQUIRED is no reply: see [Tracker.AuthRequired].
func (t *Tracker) Deliver(ctx context.Context, id session.CallID, r Reply, artifacts ...session.Artifact) (Delivery, PendingA2ATask, error) {
	if r.State == StateAuthRequired {
		return "", PendingA2ATask{}, fmt.Errorf("deliver to call %s: %s is not a reply", id, r.State)
	}
	var fate Delivery
	var late bool
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		switch p.State {
		case StateAnswered, StateConsumed, StateFolded:
			fate = Duplicate
			return "", nil
		case StateExpired:
			fate = Discarded
			return "", nil
		case StateCancelled:
			fate = Discarded
			if p.Reply != nil {
				return "", nil
			}
			p.store(b, r, artifacts)
			// What the peer has ended it needn't be told to cancel.
			p.CancelAnswered = p.CancelAnswered || r.State != StateInputRequired
			return p.State, nil
		}
		was := p.State
		reply := p.store(b, r, artifacts)
		p.Request = nil
		event := session.EventInvocationReplied
		if reply.State == StateInputRequired {
			event = session.EventInvocationInputRequired
		}
		to := StateFolded
		switch was {
		case StateWaiting:
			fate, to = Claimed, StateAnswered
		case StateOpen:
			fate = Folded
			b.Changes = append(b.Changes, p.item(session.ItemReply, reply, false, false))
		case StateDetached:
			fate, late, event = Folded, true, session.EventInvocationLate
			ended, err := t.askerEnded(ctx, *p)
			if err != nil {
				return "", err
			}
			b.Changes = append(b.Changes, p.item(session.ItemReply, reply, true, ended))
		default:
			return "", fmt.Errorf("call %s is in the unknown state %q", id, was)
		}
		inv := p.Invocation()
		inv.State, inv.Text = reply.State, session.Shorten(reply.Text, eventTextBudget, "")
		b.Events = append(b.Events, p.Scope().Event(event, inv))
		return to, nil
	})
	if err != nil {
		return "", p, err
	}
	t.metrics.delivered(p, fate, late)
	if fate == Discarded {
		t.cfg.Logger.InfoContext(ctx, "a reply came to a call that wants none", "session", p.RootID, "agent", p.SessionID, "task", p.ID, "peer", p.Peer, "state", p.State)
	}
	return fate, p, nil
}

// AuthRequired notes that the peer wants the user to authenticate, which is not a reply: a waiting call is detached with
// [WhyAuthRequired]; of an open or detached call the item auth:<id> tells the primary session. The call is followed on.
// Only the first one of a call does anything.
func (t *Tracker) AuthRequired(ctx context.Context, id session.CallID, r Reply, artifacts ...session.Artifact) (PendingA2ATask, error) {
	r.State = StateAuthRequired
	p, err := t.change(ctx, id, func(p *PendingA2ATask, b *session.Batch) (session.State, error) {
		if !p.Wanted() || p.Auth != nil {
			return "", nil
		}
		r := p.spill(b, r, "auth", artifacts)
		p.Auth = &r
		p.PeerTaskID, p.ContextID = cmp.Or(r.TaskID, p.PeerTaskID), cmp.Or(r.ContextID, p.ContextID)
		inv := p.Invocation()
		inv.State, inv.Text = r.State, session.Shorten(r.Text, eventTextBudget, "")
		b.Events = append(b.Events, p.Scope().Event(session.EventInvocationInputRequired, inv))
		if p.State == StateWaiting {
			return p.detach(b, WhyAuthRequired), nil
		}
		ended, err := t.askerEnded(ctx, *p)
		if err != nil {
			return "", err
		}
		b.Changes = append(b.Changes, p.item(session.ItemAuth, r, p.State == StateDetached, ended))
		return p.State, nil
	})
	return p, err
}

// store makes a reply the call's.
func (p *PendingA2ATask) store(b *session.Batch, r Reply, artifacts []session.Artifact) Reply {
	r = p.spill(b, r, "reply", artifacts)
	p.Reply = &r
	p.PeerTaskID, p.ContextID = cmp.Or(r.TaskID, p.PeerTaskID), cmp.Or(r.ContextID, p.ContextID)
	return r
}

// spill returns the reply with what is over the inline budget moved to artifacts, which it adds to the batch together
// with those given. The keys derive from the tool call, so that delivering again writes the same.
func (p *PendingA2ATask) spill(b *session.Batch, r Reply, label string, artifacts []session.Artifact) Reply {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r.At = r.At.UTC()
	r.Artifacts = slices.Clone(r.Artifacts)
	for _, a := range artifacts {
		if !slices.Contains(r.Artifacts, a.Key) {
			r.Artifacts = append(r.Artifacts, a.Key)
		}
	}
	b.Artifacts = append(b.Artifacts, artifacts...)
	put := func(what, mediaType string, data []byte) session.ArtifactKey {
		key := session.ArtifactKeyFor(p.ToolCallID, label+" "+what)
		b.Artifacts = append(b.Artifacts, session.Artifact{Key: key, Name: fmt.Sprintf("%s of %s, %s", label, p.Peer, what), MediaType: mediaType, Data: data})
		r.Artifacts = append(r.Artifacts, key)
		return key
	}
	if len(r.Text) > session.InlineBudget {
		r.Text = session.Shorten(r.Text, session.InlineBudget, put("text", "text/plain; charset=utf-8", []byte(r.Text)))
	}
	var inline []json.RawMessage
	left := session.InlineBudget - len(r.Text)
	for i, d := range r.Data {
		if !json.Valid(d) {
			d, _ = json.Marshal(string(d)) // a string always marshals
		}
		if len(d) > left {
			put(fmt.Sprintf("data %d", i+1), "application/json", d)
			continue
		}
		left -= len(d)
		inline = append(inline, d)
	}
	r.Data = inline
	return r
}

// item returns the change that sends something about the call to the primary session.
func (p *PendingA2ATask) item(kind session.ItemKind, r Reply, late, askerEnded bool) session.Change {
	return session.NewItem(session.CallItemKey(kind, p.ID), p.RootID, p.OriginTurn, session.ItemBody{
		Kind: kind, Call: p.ID, From: p.Peer, Asker: p.SessionID, AskerName: p.AskerName, AskerEnded: askerEnded,
		ToolCall: p.ToolCallID, Turn: p.TurnID, Parent: p.ParentID, Mode: p.Mode, Question: p.Question, Asked: p.SentAt,
		PeerTask: p.PeerTaskID, Attempt: p.Attempt, Deadline: p.Deadline, At: r.At, State: r.State, Late: late, Text: r.Content(), Artifacts: r.Artifacts, Generation: p.Generation,
		Trace: p.Trace,
	})
}

// askerEnded reports whether the subagent that asked has no turn that still runs.
func (t *Tracker) askerEnded(ctx context.Context, p PendingA2ATask) (bool, error) {
	if p.SessionID == p.RootID {
		return false, nil
	}
	turns, err := t.cfg.Store.Records(ctx, session.RecordQuery{
		Tree: p.RootID, Kind: session.KindTurn, Owner: p.SessionID, States: session.StartedStates, Limit: 1,
	})
	if err != nil && !errors.Is(err, session.ErrNotFound) {
		return false, fmt.Errorf("look whether the caller of %s still runs: %w", p.ID, err)
	}
	return len(turns) == 0, nil
}
