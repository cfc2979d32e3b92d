package subagent

import (
	"time"

	"orchestrator/session"
)

// The states of a child record beyond queued, running and suspended, which are the session package's.
const (
	StateEnded    session.State = "ended"    // its result waits to be taken
	StateConsumed session.State = "consumed" // a tool call of its parent took the result
	StateFolded   session.State = "folded"   // an item of the root session holds the result
)

// The states of a batch record: open until its results went home.
const (
	BatchOpen session.State = "open"
	BatchDone session.State = "done"
)

// LiveStates are the states of a child that has not ended.
var LiveStates = []session.State{session.StateQueued, session.StateRunning, session.StateSuspended}

// UnsettledStates are the states of a child whose result has not gone home.
var UnsettledStates = []session.State{session.StateQueued, session.StateRunning, session.StateSuspended, StateEnded}

var everyState = []session.State{
	session.StateQueued, session.StateRunning, session.StateSuspended, StateEnded, StateConsumed, StateFolded,
}

func live(s session.State) bool {
	return s == session.StateQueued || s == session.StateRunning || s == session.StateSuspended
}

// Child is the body of a child record. The record's key is the child's session id, its owner the parent session.
type Child struct {
	Parent      session.ID         `json:"parent"`
	ToolCall    session.ToolCallID `json:"toolCall"` // that spawned it
	Agent       string             `json:"agent"`
	Description string             `json:"description"`
	Prompt      string             `json:"prompt"`
	Batch       session.TurnID     `json:"batch"` // the turn that spawned it
	Turn        session.TurnID     `json:"turn"`  // its own
	Generation  int                `json:"generation"`
	Depth       int                `json:"depth"`
	Spawned     time.Time          `json:"spawned"`
	Timeout     time.Duration      `json:"timeout"`
	Deadline    time.Time          `json:"deadline"`
	// Waiter is the tool call that alone may consume the result; empty: nobody waits.
	Waiter session.ToolCallID `json:"waiter,omitempty"`
	Run    int                `json:"run"`              // from 1
	Cancel string             `json:"cancel,omitempty"` // why somebody asked to cancel it
	Ended  time.Time          `json:"ended,omitzero"`
	Result *Envelope          `json:"result,omitempty"`
	Trace  string             `json:"trace,omitempty"` // W3C traceparent of the spawn
}

// batch is the body of a batch record: what one turn spawned. The record's key is the turn, its owner the turn's session.
type batch struct {
	Generation int       `json:"generation"`
	TurnEnded  time.Time `json:"turnEnded,omitzero"`
	// Overdue says that the batch went home before all of its children had ended.
	Overdue bool `json:"overdue,omitempty"`
}
