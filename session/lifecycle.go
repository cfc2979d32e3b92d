package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxCrashes is how many crashes in a row, without a new message or result in between, a turn survives.
const MaxCrashes = 2

// QueueTurn returns the batch that queues a turn for a session.
func QueueTurn(scope Scope, body TurnBody, due time.Time) Batch {
	body.Root, body.Parent = scope.Root, scope.Parent
	return Batch{
		Changes: []Change{Insert(KindTurn, string(scope.Turn), scope.Agent, scope.OriginTurn, StateQueued, body, due)},
		Events:  []Event{scope.Event(EventTurnQueued, TurnQueued{Origin: body.Origin, Input: body.Input})},
	}
}

// StartTurn starts a queued turn in one commit with what extra holds, whose events stand before turn.started. rec may
// also be the record of a turn that isn't in the store yet (Rev 0): it is then inserted. It fails with a *[GuardError]
// while the session has another started turn.
func (t *Tree) StartTurn(ctx context.Context, rec Record, setup Setup, extra Batch) (*Turn, error) {
	turn, err := NewTurn(t, rec)
	if err != nil {
		return nil, err
	}
	input := turn.Body.Input
	turn.Body.Setup, turn.Body.Attempt, turn.Body.Input, turn.Body.StartedAt = setup, 1, "", time.Now().UTC()
	b := extra
	if rec.Rev == 0 {
		b.Changes = append(b.Changes, Insert(KindTurn, rec.Key, rec.Owner, rec.Origin, StateRunning, turn.Body, time.Time{}))
	} else {
		b.Changes = append(b.Changes, rec.Update(StateRunning, turn.Body))
	}
	b.Guards = append(b.Guards, Guard{Kind: KindTurn, Owner: rec.Owner, States: StartedStates, Max: 1})
	b.Events = append(b.Events,
		turn.Event(EventTurnStarted, TurnStarted{
			Origin: turn.Body.Origin, CausedBy: turn.Body.CausedBy, Generation: turn.Body.Generation, Attempt: 1,
			Agent: setup.Agent, Model: setup.Model, Tools: setup.Tools,
		}),
		turn.Event(EventMessageCompleted, Message{MessageID: NewMessageID(), Role: RoleUser, Text: input}))
	if _, err := t.Commit(ctx, b); err != nil {
		return nil, fmt.Errorf("start turn %s: %w", rec.Key, err)
	}
	return turn, nil
}

// ResumeTurn continues a started turn after a crash or a stop. The crash counts against the turn unless it was clean (a
// stop by signal) or the turn was parked; beyond [MaxCrashes] in a row without a new message or result the returned
// outcome ends it. extra is committed with turn.resumed, its events after it.
func (t *Tree) ResumeTurn(ctx context.Context, rec Record, clean bool, extra Batch) (*Turn, *Outcome, error) {
	turn, err := NewTurn(t, rec)
	if err != nil {
		return nil, nil, err
	}
	turn.Resumed = true
	last, err := t.Store.Events(ctx, EventQuery{
		Tree: t.ID, Agent: turn.Agent, Types: []EventType{EventMessageCompleted, EventToolCompleted}, Limit: 1, Last: true,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("resume turn %s: %w", rec.Key, err)
	}
	var seq uint64
	if len(last) > 0 {
		seq = last[0].Seq
	}
	turn.Body.Attempt++
	switch {
	case clean || rec.State == StateSuspended:
	case seq > turn.Body.Progress:
		turn.Body.Crashes = 1
	default:
		turn.Body.Crashes++
	}
	turn.Body.Progress = seq
	b := Batch{
		Changes: []Change{rec.Update(StateRunning, turn.Body)},
		Events:  []Event{turn.Event(EventTurnResumed, TurnResumed{Attempt: turn.Body.Attempt})},
	}
	b.Add(extra)
	if _, err := t.Commit(ctx, b); err != nil {
		return nil, nil, fmt.Errorf("resume turn %s: %w", rec.Key, err)
	}
	if turn.Body.Crashes > MaxCrashes {
		return turn, &Outcome{State: StateFailed, TurnEnded: TurnEnded{
			StopReason: "crashed",
			Error:      fmt.Sprintf("the process crashed %d times in a row at the same point of this turn", turn.Body.Crashes),
		}}, nil
	}
	return turn, nil, nil
}

// EndPart adds to a turn's terminal commit. It reads what it needs afresh each time it is called: after a conflict the
// commit is built and tried again.
type EndPart func(ctx context.Context, t *Turn, out Outcome, b *Batch) error

// EndTurn makes a turn's terminal commit: its open tool calls are completed ("ended with its turn"), its record and its
// terminal event are written, with all that parts add, whose events stand before the terminal one. It fails with
// [ErrTurnEnded] when somebody else ended the turn first.
func (t *Tree) EndTurn(ctx context.Context, turn *Turn, out Outcome, parts ...EndPart) (Committed, error) {
	types := map[State]EventType{StateCompleted: EventTurnCompleted, StateFailed: EventTurnFailed, StateCancelled: EventTurnCancelled}
	typ, ok := types[out.State]
	if !ok {
		return Committed{}, fmt.Errorf("end turn %s: %q is no terminal state", turn.Turn, out.State)
	}
	for try := 0; ; try++ {
		rec, err := t.Store.Record(ctx, KindTurn, string(turn.Turn))
		if err != nil {
			return Committed{}, fmt.Errorf("end turn %s: %w", turn.Turn, err)
		}
		if rec.State != StateRunning && rec.State != StateSuspended {
			return Committed{}, fmt.Errorf("turn %s is %s: %w", turn.Turn, rec.State, ErrTurnEnded)
		}
		body := turn.Body
		ended := out.TurnEnded
		body.Ended = &ended
		b := Batch{Changes: []Change{rec.Update(out.State, body)}}
		open, err := OpenToolCalls(ctx, t.Store, turn.Root, turn.Agent)
		if err != nil {
			return Committed{}, err
		}
		for _, call := range open {
			b.Events = append(b.Events, turn.WithToolCall(call.ID).Event(EventToolCompleted,
				ToolCompleted{Name: call.Name, Content: "ended with its turn", IsError: true}))
		}
		for _, part := range parts {
			if err := part(ctx, turn, out, &b); err != nil {
				return Committed{}, fmt.Errorf("end turn %s: %w", turn.Turn, err)
			}
		}
		b.Events = append(b.Events, turn.Event(typ, out.TurnEnded))
		done, err := t.Commit(ctx, b)
		if (errors.Is(err, ErrConflict) || errors.Is(err, ErrGuard)) && try < 1000 {
			continue
		}
		if err != nil {
			return done, fmt.Errorf("end turn %s: %w", turn.Turn, err)
		}
		return done, nil
	}
}

// OpenToolCalls returns the tool calls of an agent's last message that have no result in the log.
func OpenToolCalls(ctx context.Context, s Store, root, agent ID) ([]ToolCall, error) {
	last, err := s.Events(ctx, EventQuery{Tree: root, Agent: agent, Types: []EventType{EventMessageCompleted}, Limit: 1, Last: true})
	if err != nil || len(last) == 0 {
		return nil, err
	}
	if err := Resolve(ctx, s, &last[0]); err != nil {
		return nil, err
	}
	var m Message
	if err := last[0].Decode(&m); err != nil {
		return nil, err
	}
	if len(m.ToolCalls) == 0 {
		return nil, nil
	}
	results, err := s.Events(ctx, EventQuery{Tree: root, Agent: agent, After: last[0].Seq, Types: []EventType{EventToolCompleted}})
	if err != nil {
		return nil, err
	}
	done := make(map[ToolCallID]bool, len(results))
	for _, e := range results {
		done[e.ToolCallID] = true
	}
	var open []ToolCall
	for _, c := range m.ToolCalls {
		if !done[c.ID] {
			open = append(open, c)
		}
	}
	return open, nil
}
