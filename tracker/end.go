package tracker

import (
	"context"
	"fmt"
	"time"

	"orchestrator/session"
)

// EndPart returns the part of a turn's terminal commit that settles its blocking calls: waiting ones are detached, or
// cancelled when cancel is set or the turn was cancelled; answered ones, which nobody used, become items. The commit
// holds only if the rows are as they were read and no other call of the session is waiting or answered; else it is
// built again. Asynchronous calls stay: they outlive the turn that made them.
func (t *Tracker) EndPart(cancel bool) session.EndPart {
	return func(ctx context.Context, turn *session.Turn, out session.Outcome, b *session.Batch) error {
		recs, err := t.cfg.Store.Records(ctx, session.RecordQuery{
			Tree: turn.Root, Kind: session.KindCall, Owner: turn.Agent, States: []session.State{StateWaiting, StateAnswered},
		})
		if err != nil {
			return fmt.Errorf("read the calls of %s: %w", turn.Agent, err)
		}
		for _, rec := range recs {
			p, err := taskOf(rec)
			if err != nil {
				return err
			}
			switch {
			case p.State == StateAnswered:
				p.State = StateFolded
				b.Changes = append(b.Changes, p.item(session.ItemReply, *p.Reply, false, turn.Subagent()))
			case cancel || out.State == session.StateCancelled:
				p.State = p.cancel(b, endReason(out))
			default:
				p.State = p.detach(b, WhySubagentEnded)
			}
			b.Changes = append(b.Changes, rec.Update(p.State, p).At(t.due(p)))
			t.mu.Lock()
			t.ending[p.ID] = time.Now()
			t.mu.Unlock()
		}
		b.Guards = append(b.Guards, session.Guard{
			Kind: session.KindCall, Owner: turn.Agent, States: []session.State{StateWaiting, StateAnswered}, Max: 0,
		})
		return nil
	}
}

func endReason(out session.Outcome) string {
	if out.Error != "" {
		return out.Error
	}
	return "its caller ended"
}

// Sweep handles a call record that is due; [session.Hooks] wants it for [session.KindCall].
func (t *Tracker) Sweep(ctx context.Context, rec session.Record) error {
	return t.SweepAt(ctx, rec, time.Now())
}

// SweepAt is [Tracker.Sweep] at a given time: an open call past its deadline is overdue; a waiting one that its waiter
// should have abandoned is abandoned; a detached one past ReplyBy expires; a cancelled one whose CancelTask nobody
// answered until then is given up.
func (t *Tracker) SweepAt(ctx context.Context, rec session.Record, now time.Time) error {
	p, err := taskOf(rec)
	if err != nil {
		return err
	}
	if due := t.due(p); due.IsZero() || now.Before(due) {
		return nil
	}
	switch p.State {
	case StateWaiting:
		_, err = t.Abandon(ctx, p.ID, WhyDeadline)
	case StateOpen:
		_, err = t.Overdue(ctx, p.ID)
	case StateDetached:
		_, err = t.Expire(ctx, p.ID)
	case StateCancelled:
		_, err = t.CancelAnswered(ctx, p.ID)
	}
	return err
}
