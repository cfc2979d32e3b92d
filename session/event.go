package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// EventType names what an event says: "noun.verb".
type EventType string

// The event types. Types marked ephemeral have no seq, are not stored, and may be lost.
const (
	EventSessionCreated EventType = "session.created"
	EventSessionState   EventType = "session.state"
	EventSessionError   EventType = "session.error"
	EventSessionClosed  EventType = "session.closed"

	EventTurnQueued    EventType = "turn.queued"
	EventTurnStarted   EventType = "turn.started"
	EventTurnSuspended EventType = "turn.suspended"
	EventTurnResumed   EventType = "turn.resumed"
	EventTurnCompleted EventType = "turn.completed"
	EventTurnFailed    EventType = "turn.failed"
	EventTurnCancelled EventType = "turn.cancelled"

	EventMessageDelta     EventType = "message.delta" // ephemeral
	EventMessageCompleted EventType = "message.completed"
	EventReasoningDelta   EventType = "reasoning.delta" // ephemeral
	EventContextCompacted EventType = "context.compacted"

	EventToolStarted   EventType = "tool.started"
	EventToolProgress  EventType = "tool.progress" // ephemeral
	EventToolCompleted EventType = "tool.completed"

	EventSubagentSpawned    EventType = "subagent.spawned"
	EventSubagentConfigured EventType = "subagent.configured"
	EventSubagentStarted    EventType = "subagent.started"
	EventSubagentSuspended  EventType = "subagent.suspended"
	EventSubagentResumed    EventType = "subagent.resumed"
	EventSubagentCompleted  EventType = "subagent.completed"
	EventSubagentFailed     EventType = "subagent.failed"

	EventInvocationDispatched    EventType = "invocation.dispatched"
	EventInvocationProgress      EventType = "invocation.progress" // ephemeral
	EventInvocationReplied       EventType = "invocation.replied"
	EventInvocationInputRequired EventType = "invocation.input_required"
	EventInvocationTimedOut      EventType = "invocation.timed_out"
	EventInvocationLate          EventType = "invocation.late"
	EventInvocationFoldedBack    EventType = "invocation.folded_back"
	EventInvocationCancelled     EventType = "invocation.cancelled"
	EventInvocationExpired       EventType = "invocation.expired"

	EventInterruptRequested EventType = "interrupt.requested"
	EventInterruptResolved  EventType = "interrupt.resolved"
)

// Ephemeral reports whether events of the type have no seq and are not stored.
func (t EventType) Ephemeral() bool {
	switch t {
	case EventMessageDelta, EventReasoningDelta, EventToolProgress, EventInvocationProgress:
		return true
	}
	return false
}

// Event is the envelope of everything that is told about a tree. Durable events carry a gap-free Seq, allocated per tree
// by [Store.Commit]; ephemeral ones carry none.
type Event struct {
	Seq           uint64          `json:"seq,omitempty"`
	ID            EventID         `json:"id"`
	Type          EventType       `json:"type"`
	Time          time.Time       `json:"time"`
	SessionID     ID              `json:"sessionId"` // the root session
	AgentID       ID              `json:"agentId"`   // the session the event is about; never empty
	Root          bool            `json:"root"`      // AgentID == SessionID
	ParentAgentID ID              `json:"parentAgentId,omitempty"`
	TurnID        TurnID          `json:"turnId,omitempty"`
	OriginTurn    TurnID          `json:"originTurn,omitempty"`
	ToolCallID    ToolCallID      `json:"toolCallId,omitempty"`
	Ephemeral     bool            `json:"ephemeral,omitempty"`
	Data          json.RawMessage `json:"data,omitempty"`
}

// Scope is where an event belongs: whose agent, in which tree and turn. Its zero fields are left out of the envelope.
type Scope struct {
	Root       ID
	Agent      ID
	Parent     ID
	Turn       TurnID
	OriginTurn TurnID
	ToolCall   ToolCallID
}

// Event returns an event of the scope with data marshalled as its body. Data that cannot be marshalled is a programming
// error and panics.
func (s Scope) Event(typ EventType, data any) Event {
	e := Event{
		ID: NewEventID(), Type: typ, Time: time.Now().UTC(), SessionID: s.Root, AgentID: s.Agent, Root: s.Agent == s.Root,
		ParentAgentID: s.Parent, TurnID: s.Turn, OriginTurn: s.OriginTurn, ToolCallID: s.ToolCall, Ephemeral: typ.Ephemeral(),
	}
	if data != nil {
		e.Data = mustJSON(data)
	}
	return e
}

// WithToolCall returns the scope for one tool call of its agent.
func (s Scope) WithToolCall(id ToolCallID) Scope {
	s.ToolCall = id
	return s
}

// Decode unmarshals the event's body into v, naming the event when it doesn't fit.
func (e Event) Decode(v any) error {
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("decode %s event %s: %w", e.Type, e.ID, err)
	}
	return nil
}

func mustJSON(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // the log is read by people too
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("session: marshal %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
