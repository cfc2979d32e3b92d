package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"orchestrator/session"
	"orchestrator/tracker"
)

// rows returns what sessions list says of the server's sessions, the newest first; limit 0 is all.
func (s *server) rows(ctx context.Context, limit int) ([]sessionRow, error) {
	rows := []sessionRow{}
	err := s.eachSession(ctx, limit, func(info session.Info) error {
		row := sessionRow{ID: info.ID, State: info.Status, Agent: info.Agent, Title: info.Title, Created: info.Created, Events: info.LastSeq}
		if info.Status != session.StateClosed {
			snap, err := s.Session(ctx, info.ID)
			if err != nil {
				return err
			}
			row = rowOf(snap)
		}
		rows = append(rows, row)
		return nil
	})
	return rows, err
}

// eachSession calls f with the newest sessions, up to limit; 0 is all.
func (s *server) eachSession(ctx context.Context, limit int, f func(session.Info) error) error {
	before, n := "", 0
	for {
		page, next, err := s.Sessions(ctx, 0, before)
		if err != nil {
			return err
		}
		for _, info := range page {
			if n++; limit > 0 && n > limit {
				return nil
			}
			if err := f(info); err != nil && !errors.Is(err, session.ErrNotFound) { // deleted meanwhile
				return err
			}
		}
		if before = next; next == "" {
			return nil
		}
	}
}

// rowOf is what sessions list says of a session.
func rowOf(snap session.Snapshot) sessionRow {
	row := sessionRow{
		ID: snap.ID, State: snap.Status, Agent: snap.Agent, Title: snap.Title, Created: snap.Created, Events: snap.LastSeq,
		Turns: len(snap.Queue), Calls: len(snap.PendingCalls),
	}
	if snap.ActiveTurn != nil {
		row.Turns++
	}
	for _, a := range snap.Agents {
		if !a.Root && a.State != session.StateEnded {
			row.Subagents++
			row.Turns++
		}
	}
	return row
}

func (c *cli) showServed(ctx context.Context, s *server, id session.ID) error {
	return c.tellSession(func(f func(session.Event) error) error { return s.eachEvent(ctx, id, 0, f) }, func() (sessionRow, error) {
		snap, err := s.Session(ctx, id)
		return rowOf(snap), err
	})
}

// tailServed follows a session of a server.
func (c *cli) tailServed(ctx context.Context, s *server, id session.ID, last int, untilIdle bool) (err error) {
	snap, err := s.Session(ctx, id)
	if err != nil {
		return err
	}
	client, err := s.client(snap.ID)
	if err != nil {
		return err
	}
	defer client.Close()
	from := snap.LastSeq - min(snap.LastSeq, uint64(last)) // events up to here are known, not shown
	show := shower(&jsonShower{w: c.stdout})
	if c.output == outputText {
		v := c.newView(true)
		defer func() { err = errors.Join(err, v.Close()) }()
		if from > 0 {
			err := s.eachEvent(ctx, id, 0, func(e session.Event) error {
				if e.Seq <= from {
					v.Replay(e)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		show = v
	}
	_, err = follow(ctx, &servedSession{servedTurn: servedTurn{server: s, client: client, id: id, all: true, live: make(chan struct{})}, untilIdle: untilIdle}, show, from)
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// servedSession is a session of a running serve that is looked at.
type servedSession struct {
	servedTurn
	untilIdle bool
}

func (f *servedSession) wait(ctx context.Context, _ func(string)) ([]wantedCall, error) {
	if f.untilIdle {
		return nil, f.settle(ctx)
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// callRows returns what calls list says of the calls of one session, or of all.
func (s *server) callRows(ctx context.Context, in session.ID, all bool) ([]callRow, error) {
	rows := []callRow{}
	add := func(id session.ID) error {
		calls, err := s.Calls(ctx, id, false)
		for _, call := range calls {
			if all || call.Wanted {
				rows = append(rows, callRowOf(call))
			}
		}
		return err
	}
	if in != "" {
		err := add(in)
		return rows, err
	}
	err := s.eachSession(ctx, 0, func(info session.Info) error {
		if info.Status == session.StateClosed && !all {
			return nil
		}
		return add(info.ID)
	})
	slices.SortStableFunc(rows, func(a, b callRow) int { return a.SentAt.Compare(b.SentAt) })
	return rows, err
}

func callRowOf(call session.CallInfo) callRow {
	row := callRow{
		ID: call.ID, Session: call.Session, Agent: call.Agent, Asker: call.AskerName, Peer: call.Peer, Mode: call.Mode, State: call.State,
		SentAt: call.SentAt, Deadline: call.Deadline, ReplyBy: call.ReplyBy, TaskID: call.PeerTaskID, Attempt: call.Attempt, Question: call.Question,
	}
	if r := call.Reply; r != nil {
		row.Reply = &tracker.Reply{State: r.State, Text: r.Text, Data: r.Data, Artifacts: r.Artifacts, Failed: r.Failed, At: r.At}
	}
	return row
}

// cancelServed has a server cancel a call.
func (c *cli) cancelServed(ctx context.Context, s *server, id session.CallID, reason string) error {
	var found *session.CallInfo
	errFound := errors.New("found")
	err := s.eachSession(ctx, 0, func(info session.Info) error {
		call, err := s.Call(ctx, info.ID, id)
		if err == nil {
			found = &call
			return errFound
		}
		return err
	})
	if err != nil && !errors.Is(err, errFound) {
		return err
	}
	if found == nil {
		return withHint(usageError{fmt.Errorf("there is no call %s", printable(string(id)))}, "orchestrator calls list%s names the calls whose reply is still wanted", s.flag())
	}
	call, err := s.CancelCall(ctx, found.Session, id, reason)
	if err != nil {
		return err
	}
	if over := overStates[call.State]; over != "" { // maybe only since it was found
		return fmt.Errorf("call %s to %s can't be cancelled: %s", id, call.Peer, over)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"id": call.ID, "peer": call.Peer, "before": found.State, "state": call.State})
	}
	if found.State == tracker.StateCancelled {
		_, err = fmt.Fprintf(c.stdout, "call %s to %s was cancelled before\n", call.ID, call.Peer)
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "call %s to %s is cancelled; the server tells it so\n", call.ID, call.Peer)
	return err
}
