package sessionclient

import (
	"context"
	"iter"
	"time"

	"orchestrator/session"
)

// InProcess is the [Backend] over a Manager in this process. The Manager must have been started; whoever made it stops it.
type InProcess struct{ m *session.Manager }

var _ Backend = (*InProcess)(nil)

// NewInProcess returns the backend over a Manager.
func NewInProcess(m *session.Manager) *InProcess { return &InProcess{m: m} }

// Look implements [Backend].
func (p *InProcess) Look(ctx context.Context, id session.ID) (Look, error) {
	info, err := p.m.Store().Tree(ctx, id)
	if err != nil {
		return Look{}, local(ctx, err)
	}
	return Look{RootAgentID: id, LastSeq: info.HeadSeq, Resumable: true}, nil
}

// Stream implements [Backend].
func (p *InProcess) Stream(ctx context.Context, r StreamRequest) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		info, err := p.m.Store().Tree(ctx, r.Session)
		if err != nil {
			yield(session.Event{}, local(ctx, err))
			return
		}
		if !yield(StreamOpen{RootAgentID: r.Session, HeadSeq: info.HeadSeq, After: r.After}.Event(r.Session), nil) {
			return
		}
		if r.After > info.HeadSeq {
			if !yield(StreamReset{Reason: "unknown_position", HeadSeq: info.HeadSeq}.Event(r.Session), nil) {
				return
			}
			r.After = info.HeadSeq
		}
		sub := session.SubscribeRequest{Session: r.Session, After: r.After, Ephemeral: r.Ephemeral}
		for e, err := range p.m.Subscribe(ctx, sub) {
			if err == nil && !r.wants(e, e.Root) {
				continue
			}
			if err == nil {
				err = session.Resolve(ctx, p.m.Store(), &e)
			}
			if err != nil {
				yield(session.Event{}, local(ctx, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Send implements [Backend].
func (p *InProcess) Send(ctx context.Context, r SendRequest) (Turn, error) {
	id, err := p.m.Submit(ctx, session.SubmitRequest{Session: r.Session, Input: r.Input, Key: r.Key, OnBusy: r.OnBusy})
	if err != nil {
		return Turn{}, local(ctx, err)
	}
	return p.Turn(ctx, TurnRequest{Session: r.Session, Turn: id})
}

// Turn implements [Backend].
func (p *InProcess) Turn(ctx context.Context, r TurnRequest) (Turn, error) {
	wake, stop := p.m.Store().Watch(r.Session)
	defer stop()
	late := time.After(r.Wait)
	for {
		t, err := p.read(ctx, r)
		if err != nil || r.Wait <= 0 || t.Ended && (r.Until != UntilQuiescent || t.Quiescent) {
			return t, err
		}
		reread := time.NewTimer(time.Second) // Watch is a hint
		select {
		case <-wake:
		case <-reread.C:
		case <-late:
			reread.Stop()
			return t, nil
		case <-ctx.Done():
			reread.Stop()
			return Turn{}, context.Cause(ctx)
		}
		reread.Stop()
	}
}

func (p *InProcess) read(ctx context.Context, r TurnRequest) (Turn, error) {
	rec, err := p.m.Store().Record(ctx, session.KindTurn, string(r.Turn))
	if err == nil && rec.Tree != r.Session {
		err = session.ErrNotFound
	}
	if err != nil {
		return Turn{}, local(ctx, err)
	}
	var body session.TurnBody
	if err := rec.Decode(&body); err != nil {
		return Turn{}, local(ctx, err)
	}
	t := Turn{
		ID: r.Turn, SessionID: rec.Tree, AgentID: rec.Owner, RootAgentID: rec.Tree, Origin: body.Origin, OriginTurn: rec.Origin,
		CausedBy: body.CausedBy, State: rec.State,
	}
	if body.Ended == nil {
		return t, nil
	}
	t.Ended, t.Output, t.StopReason, t.Error, t.Usage = true, body.Ended.Output, body.Ended.StopReason, body.Ended.Error, body.Ended.Usage
	t.Quiescent, err = p.m.Quiescent(ctx, rec.Tree, rec.Origin)
	return t, local(ctx, err)
}

// Cancel implements [Backend].
func (p *InProcess) Cancel(ctx context.Context, id session.ID, turn session.TurnID, reason string) error {
	rec, err := p.m.Store().Record(ctx, session.KindTurn, string(turn))
	if err == nil && rec.Tree != id {
		err = session.ErrNotFound
	}
	if err != nil {
		return local(ctx, err)
	}
	return local(ctx, p.m.Cancel(ctx, turn, reason))
}

// local marks an error of this process as one that trying again doesn't mend: there is no network in between.
func local(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &PermanentError{Err: err}
}
