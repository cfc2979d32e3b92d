package sessionclient

import (
	"encoding/json"

	"orchestrator/session"
)

// The events of streams whose turns have no ids.
const (
	EventAssistantMessage session.EventType = "assistant.message"
	EventSessionIdle      session.EventType = "session.idle"
)

// wait is one turn that somebody waits for: what its events have said so far. It is told of every event, with the gate's
// verdict, and decides alone what it means; [Session] guards it.
type wait struct {
	// sent says that it is known which turn that is. What comes before is kept.
	sent bool
	turn session.TurnID // once sent; empty: the stream's turns have no ids
	kept []judged

	reply string            // of the root, where turns have no ids
	ended *session.TurnInfo // how the turn ended, by an event or by reading it
	err   error             // why the wait is over without that

	foldBacks []session.TurnInfo

	doubts chan struct{} // has a value: the turn had better be read
	over   chan struct{} // closed once ended or err is set
}

// judged is an event and the gate's verdict when it came.
type judged struct {
	session.Event
	root bool
}

func newWait() *wait { return &wait{doubts: make(chan struct{}, 1), over: make(chan struct{})} }

// isFor says which turn the wait is for, and takes what was kept.
func (w *wait) isFor(turn session.TurnID) {
	w.sent, w.turn = true, turn
	kept := w.kept
	w.kept = nil
	for _, j := range kept {
		w.event(j.Event, j.root)
	}
}

// event takes an event into account. Events of subagents have no part in it: but an end of this very turn that the gate
// doesn't take for the root's is a reason to read the turn.
func (w *wait) event(e session.Event, root bool) {
	_, end := isEnd(e.Type)
	switch {
	case !w.sent:
		w.keep(e, root, end)
	case w.turn == "":
		if root {
			w.unnamed(e)
		}
	case e.Type == session.EventSessionState:
		var level session.SessionState
		if root && e.Decode(&level) == nil && level.State == "idle" {
			w.doubt() // an end must have been missed, or the turn is only about to be queued
		}
	case !end:
	case e.TurnID == w.turn && root:
		if t, whole := ended(e); whole {
			w.end(t)
		} else {
			w.doubt()
		}
	case e.TurnID == w.turn:
		w.doubt()
	case root && e.OriginTurn == w.turn:
		t, _ := ended(e)
		w.foldBacks = append(w.foldBacks, t)
	}
}

// keep keeps what may turn out to be about this turn: the ends of turns, and what speaks of turns that have no ids.
func (w *wait) keep(e session.Event, root, end bool) {
	switch {
	case end:
	case root && (e.Type == EventAssistantMessage || e.Type == EventSessionIdle || e.Type == session.EventSessionError):
	default:
		return
	}
	w.kept = append(w.kept, judged{e, root})
}

// unnamed takes an event of the root of a stream whose turns have no ids.
func (w *wait) unnamed(e session.Event) {
	var body struct {
		Content   string `json:"content"` // of assistant.message
		Mode      string `json:"mode"`    // of session.idle
		Aborted   bool   `json:"aborted"`
		Message   string `json:"message"` // of session.error
		WillRetry bool   `json:"willRetry"`
	}
	if len(e.Data) > 0 {
		_ = json.Unmarshal(e.Data, &body) // what doesn't fit is as if it weren't there: the event's type says enough
	}
	t := session.TurnInfo{Session: e.SessionID, Agent: e.AgentID, Ended: true, Quiescent: true, Output: w.reply}
	switch e.Type {
	case EventAssistantMessage:
		if body.Content != "" { // a message that only asks for tools
			w.reply = body.Content
		}
	case EventSessionIdle:
		if body.Mode == "autopilot" {
			return // it goes on by itself
		}
		t.State = session.StateCompleted
		if body.Aborted {
			t.State = session.StateCancelled
		}
		w.end(t)
	case session.EventSessionError:
		if body.WillRetry {
			return
		}
		t.State, t.Error = session.StateFailed, body.Message
		w.end(t)
	}
}

// end sets how the turn ended. The first to say so is right.
func (w *wait) end(t session.TurnInfo) {
	if w.ended == nil && w.err == nil {
		w.ended = &t
		close(w.over)
	}
}

// fail ends the wait, not the turn.
func (w *wait) fail(err error) {
	if w.ended == nil && w.err == nil {
		w.err = err
		close(w.over)
	}
}

// doubt asks for the turn to be read.
func (w *wait) doubt() {
	select {
	case w.doubts <- struct{}{}:
	default: // it is asked for already
	}
}

// trust takes back that the turn had better be read.
func (w *wait) trust() {
	select {
	case <-w.doubts:
	default:
	}
}
