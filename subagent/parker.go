package subagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"orchestrator/session"
	"orchestrator/tool"
)

// parker lends the slot of one run while all its turn has started only waits.
type parker struct {
	pool *Pool
	run  *run
	turn *session.Turn
	busy chan struct{} // holds a value while one of the methods works

	// parked and lent are changed by whoever put the value into busy.
	parked bool
	lent   bool
}

var _ session.Parker = (*parker)(nil)

func newParker(p *Pool, r *run, turn *session.Turn) *parker {
	return &parker{pool: p, run: r, turn: turn, busy: make(chan struct{}, 1)}
}

// Park implements [session.Parker]: the child is suspended in the log, then its slot is another's.
func (k *parker) Park(ctx context.Context, reason string) error {
	if err := k.enter(ctx); err != nil {
		return err
	}
	defer k.leave()
	if k.parked {
		return nil
	}
	if err := k.move(ctx, session.StateRunning, session.StateSuspended, func(c session.Record, body Child) session.Event {
		return scopeOf(c, body).Event(session.EventSubagentSuspended, session.TurnSuspended{Reason: reason})
	}); err != nil {
		return fmt.Errorf("suspend subagent %s: %w", k.run.id, err)
	}
	k.parked = true
	// Whoever waits for a subagent of its own lends in any case: that one could wait for this slot.
	own := reason == tool.AwaitingSubagent
	k.lent = (own || *k.pool.limits.LendSlot) && k.pool.slots.lend(k.run.seat, own)
	return nil
}

// Unpark implements [session.Parker]: it takes a slot, then the child goes on in the log.
func (k *parker) Unpark(ctx context.Context) error {
	if err := k.enter(ctx); err != nil {
		return err
	}
	defer k.leave()
	if !k.parked {
		return nil
	}
	if k.lent {
		began := time.Now()
		k.pool.slots.reclaim(k.run.seat)
		if err := k.pool.slots.wait(ctx, k.run.seat); err != nil {
			return fmt.Errorf("wait for a slot again: %w", err)
		}
		k.lent = false
		k.pool.m.slotWait.WithLabelValues(waitReturn).Observe(time.Since(began).Seconds())
	}
	if err := k.move(ctx, session.StateSuspended, session.StateRunning, func(c session.Record, body Child) session.Event {
		return scopeOf(c, body).Event(session.EventSubagentResumed, session.SubagentStarted{Run: body.Run})
	}); err != nil {
		return fmt.Errorf("resume subagent %s: %w", k.run.id, err)
	}
	k.parked = false
	return nil
}

func (k *parker) enter(ctx context.Context) error {
	select {
	case k.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *parker) leave() { <-k.busy }

// move changes the child and its turn from one state to another in one commit.
func (k *parker) move(ctx context.Context, from, to session.State, event func(session.Record, Child) session.Event) error {
	for {
		child, body, err := k.pool.read(k.run)
		if err != nil {
			return err
		}
		turn, err := k.pool.store.Record(ctx, session.KindTurn, string(k.turn.Turn))
		if err != nil {
			return err
		}
		if child.State != from || turn.State != from {
			return fmt.Errorf("it is %s and its turn %s: %w", child.State, turn.State, session.ErrTurnEnded)
		}
		_, err = k.turn.Tree().Commit(ctx, session.Batch{
			Changes: []session.Change{child.Update(to, nil), turn.Update(to, nil)},
			Events:  []session.Event{event(child, body)},
		})
		if !errors.Is(err, session.ErrConflict) {
			return err
		}
	}
}
