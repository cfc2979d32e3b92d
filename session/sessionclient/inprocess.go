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
		first := []session.Event{StreamOpen{RootAgentID: r.Session, HeadSeq: info.HeadSeq, After: r.After}.Event(r.Session)}
		if r.After > info.HeadSeq {
			first = append(first, StreamReset{Reason: "unknown_position", HeadSeq: info.HeadSeq}.Event(r.Session))
			r.After = info.HeadSeq
		}
		// The beat says that the subscription is live when there is nothing to tell yet.
		sub := session.SubscribeRequest{Session: r.Session, After: r.After, Ephemeral: r.Ephemeral, Beat: time.Hour}
		for e, err := range p.m.Subscribe(ctx, sub) {
			for ; err == nil && len(first) > 0; first = first[1:] {
				if !yield(first[0], nil) {
					return
				}
			}
			if err == nil && (e.Type == "" || !r.wants(e, e.Root)) {
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
func (p *InProcess) Send(ctx context.Context, r SendRequest) (session.TurnInfo, error) {
	id, err := p.m.Submit(ctx, session.SubmitRequest{Session: r.Session, Input: r.Input, Key: r.Key, OnBusy: r.OnBusy})
	if err != nil {
		return session.TurnInfo{}, local(ctx, err)
	}
	t, err := p.m.Turn(ctx, id)
	return t, local(ctx, err)
}

// Turn implements [Backend].
func (p *InProcess) Turn(ctx context.Context, r TurnRequest) (session.TurnInfo, error) {
	t, err := p.m.TurnOf(ctx, r.Session, r.Turn)
	if err != nil || r.Wait <= 0 || t.Met(r.Until) {
		return t, local(ctx, err)
	}
	bounded, cancel := context.WithTimeout(ctx, r.Wait)
	defer cancel()
	t, err = p.m.WaitTurn(bounded, r.Turn, r.Until)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return t, nil
	}
	return t, local(ctx, err)
}

// Cancel implements [Backend].
func (p *InProcess) Cancel(ctx context.Context, id session.ID, turn session.TurnID, reason string) error {
	if _, err := p.m.TurnOf(ctx, id, turn); err != nil {
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
