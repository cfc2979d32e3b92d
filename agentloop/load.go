package agentloop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"orchestrator/session"
)

// pageSize is how many events are read at once.
const pageSize = 1000

// logged is what the log says of the turn's last message.
type logged struct {
	message session.Message
	seq     uint64
	time    time.Time
	open    []session.ToolCall // its calls without a result
}

// load builds the context from the log, from the last summary on, and counts what the turn has done. It returns the
// turn's last message, nil if it has none.
func (r *run) load(ctx context.Context) (*logged, error) {
	through, err := r.loadSummary(ctx)
	if err != nil {
		return nil, err
	}
	from := through
	if started, err := r.lastEvent(ctx, session.EventTurnStarted); err != nil {
		return nil, err
	} else if started != nil && started.TurnID == r.t.Turn {
		// A summary made in this turn stands for some of its messages, which are still to be counted.
		from = min(from, started.Seq)
	}
	if started, err := r.lastEvent(ctx, session.EventToolStarted); err != nil {
		return nil, err
	} else if started != nil {
		_, r.calls, _ = started.ToolCallID.Split()
	}
	query := session.EventQuery{
		Tree: r.t.Root, Agent: r.t.Agent, After: from, Limit: pageSize,
		Types: []session.EventType{session.EventMessageCompleted, session.EventToolCompleted, session.EventContextCompacted},
	}
	l := &loader{run: r, through: through, asked: make(map[session.ToolCallID]askedCall)}
	for {
		events, err := r.t.Tree().Store.Events(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		for _, e := range events {
			if err := session.Resolve(ctx, r.t.Tree().Store, &e); err != nil {
				return nil, err
			}
			if err := l.add(e); err != nil {
				return nil, err
			}
			query.After = e.Seq
		}
		if len(events) < pageSize {
			break
		}
	}
	if l.last != nil {
		for _, call := range l.last.message.ToolCalls {
			if _, open := l.asked[call.ID]; open {
				l.last.open = append(l.last.open, call)
			}
		}
	}
	return l.last, nil
}

// loadSummary begins the context with the last summary, and returns the seq it stands for.
func (r *run) loadSummary(ctx context.Context) (uint64, error) {
	event, err := r.lastEvent(ctx, session.EventContextCompacted)
	if err != nil || event == nil {
		return 0, err
	}
	if err := session.Resolve(ctx, r.t.Tree().Store, event); err != nil {
		return 0, err
	}
	var body session.ContextCompacted
	if err := event.Decode(&body); err != nil {
		return 0, err
	}
	r.conv.push(summaryMessage(body.Summary), body.ThroughSeq)
	return body.ThroughSeq, nil
}

func (r *run) lastEvent(ctx context.Context, typ session.EventType) (*session.Event, error) {
	events, err := r.t.Tree().Store.Events(ctx, session.EventQuery{
		Tree: r.t.Root, Agent: r.t.Agent, Types: []session.EventType{typ}, Limit: 1, Last: true,
	})
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	if len(events) == 0 {
		return nil, nil
	}
	return &events[0], nil
}

// loader takes the events of an agent in order.
type loader struct {
	run     *run
	through uint64
	last    *logged // message of the turn
	asked   map[session.ToolCallID]askedCall
}

// askedCall is a call of the turn that has no result yet.
type askedCall struct {
	args    json.RawMessage
	message uint64
}

func (l *loader) add(e session.Event) error {
	r := l.run
	mine := e.TurnID == r.t.Turn
	switch e.Type {
	case session.EventMessageCompleted:
		var m session.Message
		if err := e.Decode(&m); err != nil {
			return err
		}
		if e.Seq > l.through {
			r.conv.add(m, e.Seq)
		}
		if mine {
			l.last = &logged{message: m, seq: e.Seq, time: e.Time}
			r.count(m, e.Seq)
			for _, c := range m.ToolCalls {
				l.asked[c.ID] = askedCall{args: c.Args, message: e.Seq}
			}
		}
	case session.EventToolCompleted:
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			return err
		}
		if e.Seq > l.through {
			r.conv.result(e.ToolCallID, done, e.Seq)
		}
		if asked, ok := l.asked[e.ToolCallID]; ok {
			delete(l.asked, e.ToolCallID)
			if done.IsError {
				r.repeats.add(repeatKey(e.ToolCallID, done.Name, asked.args, done.Content), asked.message)
			}
		}
	case session.EventContextCompacted:
		var body session.ContextCompacted
		if err := e.Decode(&body); err != nil {
			return err
		}
		if mine && body.Usage != nil {
			r.usage.Add(*body.Usage)
		}
	}
	return nil
}
