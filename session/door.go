package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// This file is what doors read of sessions, turns, agents and calls.

// principalState is the state of the access record of a principal's sessions, so that they are found by state.
func principalState(principal string) State { return State("of:" + principal) }

// SessionQuery names root sessions of a principal.
type SessionQuery struct {
	Principal string
	Before    ID  // only sessions older than this one; empty: from the newest on
	Limit     int // 0: 100
}

// Sessions returns a principal's root sessions, the newest first.
func (m *Manager) Sessions(ctx context.Context, q SessionQuery) ([]Info, error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	infos := []Info{}
	for more := true; more; {
		left := q.Limit - len(infos)
		recs, err := m.cfg.Store.Records(ctx, RecordQuery{
			Kind: KindAccess, States: []State{principalState(q.Principal)}, NewestBefore: &q.Before, Limit: left, NoBody: true,
		})
		if err != nil {
			return nil, fmt.Errorf("list sessions: %w", err)
		}
		for _, r := range recs {
			q.Before = r.Tree
			info, err := m.Info(ctx, r.Tree)
			if errors.Is(err, ErrNotFound) {
				continue // deleted meanwhile: another takes its place, since a page that isn't full is the last
			}
			if err != nil {
				return nil, err
			}
			infos = append(infos, info)
		}
		more = len(recs) == left && len(infos) < q.Limit
	}
	return infos, nil
}

// Info returns what a root session is, or [ErrNotFound]: a subagent's session is none.
func (m *Manager) Info(ctx context.Context, root ID) (Info, error) {
	info, _, err := m.info(ctx, root)
	return info, err
}

func (m *Manager) info(ctx context.Context, root ID) (Info, Record, error) {
	rec, err := m.cfg.Store.Record(ctx, KindSession, string(root))
	if err != nil {
		return Info{}, rec, fmt.Errorf("session %s: %w", root, err)
	}
	if rec.Tree != root {
		return Info{}, rec, fmt.Errorf("session %s is a subagent's: %w", root, ErrNotFound)
	}
	var body SessionBody
	if err := rec.Decode(&body); err != nil {
		return Info{}, rec, err
	}
	tree, err := m.cfg.Store.Tree(ctx, root)
	if err != nil {
		return Info{}, rec, fmt.Errorf("session %s: %w", root, err)
	}
	return Info{
		ID: root, Root: root, Agent: body.Agent, Title: body.Title, Status: rec.State, Created: body.Created,
		LastSeq: tree.HeadSeq, Principal: body.Principal,
	}, rec, nil
}

// Snapshot returns a root session as it is at one moment of its log.
func (m *Manager) Snapshot(ctx context.Context, root ID) (Snapshot, error) {
	// What is read while events are committed may be of more than one moment: look again, but not for ever. Then LastSeq is
	// the moment before the reading, so that the events after it miss nothing.
	const looks = 5
	for look := 1; ; look++ {
		s, err := m.snapshot(ctx, root)
		if err != nil || look == looks {
			return s, err
		}
		tree, err := m.cfg.Store.Tree(ctx, root)
		if err != nil {
			return s, fmt.Errorf("session %s: %w", root, err)
		}
		if tree.HeadSeq == s.LastSeq {
			return s, nil
		}
	}
}

func (m *Manager) snapshot(ctx context.Context, root ID) (Snapshot, error) {
	info, err := m.Info(ctx, root)
	if err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Info: info, Queue: []TurnInfo{}, PendingCalls: []CallInfo{}, Interrupts: []Interrupt{}}
	state, err := m.state(ctx, root)
	if err != nil {
		return s, err
	}
	s.State, s.Background = state.State, state.Background
	turns, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn})
	if err != nil {
		return s, fmt.Errorf("session %s: %w", root, err)
	}
	for _, rec := range turns {
		turn, err := describeTurn(rec)
		if err != nil {
			return s, err
		}
		s.Usage.Add(turn.Usage)
		switch {
		case turn.Agent != root:
		case turn.State == StateQueued:
			s.Queue = append(s.Queue, turn)
		case !turn.Ended:
			s.ActiveTurn = &turn
		}
	}
	if s.Agents, err = m.agents(ctx, info, s.ActiveTurn); err != nil {
		return s, err
	}
	if len(m.hooks.Pending) > 0 {
		s.PendingCalls, err = m.calls(ctx, root, m.hooks.Pending)
	}
	return s, err
}

// Turn returns a turn as it is now, or [ErrNotFound].
func (m *Manager) Turn(ctx context.Context, id TurnID) (TurnInfo, error) {
	rec, err := m.cfg.Store.Record(ctx, KindTurn, string(id))
	if err != nil {
		return TurnInfo{}, fmt.Errorf("turn %s: %w", id, err)
	}
	t, err := describeTurn(rec)
	if err != nil || !t.Ended {
		return t, err
	}
	t.Quiescent, err = m.Quiescent(ctx, rec.Tree, t.OriginTurn)
	return t, err
}

func describeTurn(rec Record) (TurnInfo, error) {
	var body TurnBody
	if err := rec.Decode(&body); err != nil {
		return TurnInfo{}, err
	}
	t := TurnInfo{
		ID: TurnID(rec.Key), Session: rec.Tree, Agent: rec.Owner, Root: rec.Tree, Origin: body.Origin, OriginTurn: rec.Origin,
		CausedBy: body.CausedBy, State: rec.State, Generation: body.Generation, Attempt: body.Attempt, Input: body.Input,
		CancelRequested: body.Cancel, Started: given(body.StartedAt),
		Ended: rec.State == StateCompleted || rec.State == StateFailed || rec.State == StateCancelled,
	}
	if e := body.Ended; e != nil {
		t.Output, t.StopReason, t.Error, t.Code, t.Usage = e.Output, e.StopReason, e.Error, e.Code, e.Usage
	}
	return t, nil
}

// given returns a time, nil when it is zero.
func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// WaitTurn blocks until a turn is what until says, and returns it as it is then. When ctx ends first it returns the turn as
// it was last seen, with the context's cause.
func (m *Manager) WaitTurn(ctx context.Context, id TurnID, until Until) (TurnInfo, error) {
	t, err := m.Turn(ctx, id)
	if err != nil || t.Met(until) {
		return t, err
	}
	wake, stop := m.cfg.Store.Watch(t.Session)
	defer stop()
	for {
		now, err := m.Turn(ctx, id)
		if err != nil {
			return t, err
		}
		if t = now; t.Met(until) {
			return t, nil
		}
		reread := time.NewTimer(time.Second)
		select {
		case <-wake:
		case <-reread.C:
		case <-ctx.Done():
			reread.Stop()
			return t, context.Cause(ctx)
		}
		reread.Stop()
	}
}

// Agents returns a tree's agents: the root, then its subagents in the order they were spawned.
func (m *Manager) Agents(ctx context.Context, root ID) ([]AgentInfo, error) {
	info, err := m.Info(ctx, root)
	if err != nil {
		return nil, err
	}
	active, err := m.activeTurn(ctx, root)
	if err != nil {
		return nil, err
	}
	return m.agents(ctx, info, active)
}

func (m *Manager) activeTurn(ctx context.Context, root ID) (*TurnInfo, error) {
	recs, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindTurn, Owner: root, States: StartedStates, Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", root, err)
	}
	if len(recs) == 0 {
		return nil, nil
	}
	t, err := describeTurn(recs[0])
	return &t, err
}

func (m *Manager) agents(ctx context.Context, info Info, active *TurnInfo) ([]AgentInfo, error) {
	all := []AgentInfo{rootAgent(info, active)}
	if m.hooks.DescribeAgent == nil {
		return all, nil
	}
	recs, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: info.ID, Kind: KindChild})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", info.ID, err)
	}
	for _, rec := range recs {
		a, err := m.hooks.DescribeAgent(rec)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func rootAgent(info Info, active *TurnInfo) AgentInfo {
	a := AgentInfo{ID: info.ID, Root: true, Agent: info.Agent, State: StateIdle, Created: given(info.Created)}
	if active != nil {
		a.State, a.TurnID, a.OriginTurn = active.State, active.ID, active.OriginTurn
	}
	return a
}

// Agent returns one agent of a tree, or [ErrNotFound].
func (m *Manager) Agent(ctx context.Context, root, id ID) (AgentInfo, error) {
	if id == root {
		info, err := m.Info(ctx, root)
		if err != nil {
			return AgentInfo{}, err
		}
		active, err := m.activeTurn(ctx, root)
		return rootAgent(info, active), err
	}
	rec, err := m.ofTree(ctx, root, KindChild, string(id))
	if err != nil {
		return AgentInfo{}, err
	}
	if m.hooks.DescribeAgent == nil {
		return AgentInfo{}, fmt.Errorf("agent %s: %w", id, ErrNotFound)
	}
	return m.hooks.DescribeAgent(rec)
}

// CancelAgent asks for the end of a subagent and returns it as it is then. One that has ended stays as it is.
func (m *Manager) CancelAgent(ctx context.Context, root, id ID, reason string) (AgentInfo, error) {
	if _, err := m.ofTree(ctx, root, KindChild, string(id)); err != nil {
		return AgentInfo{}, err
	}
	if m.hooks.CancelAgent != nil {
		if err := m.hooks.CancelAgent(ctx, id, reason); err != nil {
			return AgentInfo{}, err
		}
	}
	return m.Agent(ctx, root, id)
}

// Calls returns the calls of a tree in the order they were made, all of them or those somebody waits for.
func (m *Manager) Calls(ctx context.Context, root ID, pending bool) ([]CallInfo, error) {
	var states []State
	if pending {
		states = m.hooks.Pending
	}
	return m.calls(ctx, root, states)
}

func (m *Manager) calls(ctx context.Context, root ID, states []State) ([]CallInfo, error) {
	all := []CallInfo{}
	if m.hooks.DescribeCall == nil {
		return all, nil
	}
	recs, err := m.cfg.Store.Records(ctx, RecordQuery{Tree: root, Kind: KindCall, States: states})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", root, err)
	}
	for _, rec := range recs {
		c, err := m.hooks.DescribeCall(rec)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Call returns one call of a tree, or [ErrNotFound].
func (m *Manager) Call(ctx context.Context, root ID, id CallID) (CallInfo, error) {
	rec, err := m.ofTree(ctx, root, KindCall, string(id))
	if err != nil {
		return CallInfo{}, err
	}
	if m.hooks.DescribeCall == nil {
		return CallInfo{}, fmt.Errorf("call %s: %w", id, ErrNotFound)
	}
	return m.hooks.DescribeCall(rec)
}

// CancelCall ends the wish for a call's reply and returns the call as it is then. One that is over stays as it is.
func (m *Manager) CancelCall(ctx context.Context, root ID, id CallID, reason string) (CallInfo, error) {
	if _, err := m.ofTree(ctx, root, KindCall, string(id)); err != nil {
		return CallInfo{}, err
	}
	if m.hooks.CancelCall != nil {
		if err := m.hooks.CancelCall(ctx, id, reason); err != nil {
			return CallInfo{}, err
		}
		m.nudge(ctx, root)
	}
	return m.Call(ctx, root, id)
}

// ofTree returns a record of the tree, or [ErrNotFound].
func (m *Manager) ofTree(ctx context.Context, root ID, kind Kind, key string) (Record, error) {
	rec, err := m.cfg.Store.Record(ctx, kind, key)
	if err == nil && rec.Tree != root {
		err = ErrNotFound
	}
	if err != nil {
		return rec, fmt.Errorf("%s %s of session %s: %w", kind, key, root, err)
	}
	return rec, nil
}

// EventPage is a page of a tree's durable events.
type EventPage struct {
	Events []Event
	// Next is the position of the next page: behind the last event, or behind what was looked through for it.
	Next uint64
	Head uint64
	More bool
}

// ErrPosition says that a position is behind a log's head.
var ErrPosition = errors.New("the log has no such position")

// Page returns up to q.Limit (0: 100) durable events of a tree. It returns [ErrPosition] when q.After is behind the head.
func (m *Manager) Page(ctx context.Context, q EventQuery) (EventPage, error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	tree, err := m.cfg.Store.Tree(ctx, q.Tree)
	if err != nil {
		return EventPage{}, fmt.Errorf("session %s: %w", q.Tree, err)
	}
	if q.After > tree.HeadSeq {
		return EventPage{Head: tree.HeadSeq}, fmt.Errorf("session %s: %w", q.Tree, ErrPosition)
	}
	events, err := m.cfg.Store.Events(ctx, q)
	if err != nil {
		return EventPage{}, fmt.Errorf("session %s: %w", q.Tree, err)
	}
	// The head was read before the events, so nothing up to it was missed when the page isn't full.
	p := EventPage{Events: events, Next: max(q.After, tree.HeadSeq), Head: tree.HeadSeq, More: len(events) == q.Limit}
	if n := len(events); n > 0 {
		last := events[n-1].Seq
		p.Head = max(p.Head, last)
		if p.More {
			p.Next = last
		} else {
			p.Next = max(p.Next, last)
		}
	}
	return p, nil
}

// Artifact returns an artifact of a tree with its data, or [ErrNotFound].
func (m *Manager) Artifact(ctx context.Context, root ID, key ArtifactKey) (Artifact, error) {
	return m.cfg.Store.Artifact(ctx, root, key)
}

// TurnOf returns the turn of a tree's root or of one of its subagents, or [ErrNotFound].
func (m *Manager) TurnOf(ctx context.Context, root ID, id TurnID) (TurnInfo, error) {
	if _, err := m.ofTree(ctx, root, KindTurn, string(id)); err != nil {
		return TurnInfo{}, err
	}
	return m.Turn(ctx, id)
}
