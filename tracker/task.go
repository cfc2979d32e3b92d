package tracker

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"orchestrator/session"
)

// The states of a call record.
const (
	StateWaiting   session.State = "waiting"
	StateOpen      session.State = "open"
	StateDetached  session.State = "detached"
	StateAnswered  session.State = "answered"
	StateConsumed  session.State = "consumed"
	StateFolded    session.State = "folded"
	StateExpired   session.State = "expired"
	StateCancelled session.State = "cancelled"
)

// LiveStates keep a call's origin turn from being quiescent. FollowStates make the relay follow a call though nothing of
// ours waits for it.
var (
	LiveStates   = []session.State{StateWaiting, StateOpen, StateAnswered}
	FollowStates = []session.State{StateDetached}
)

// owed are the cancelled calls whose peer doesn't know yet: only those have a due time.
var owed = session.RecordQuery{Kind: session.KindCall, States: []session.State{StateCancelled}, DueBefore: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)}

// Followed names the calls the relay follows though nothing of ours waits for them; it is for session.Hooks.Follow.
func Followed() []session.RecordQuery {
	return []session.RecordQuery{{Kind: session.KindCall, States: FollowStates}, owed}
}

// guardStates are the states a session's guard counts.
var guardStates = []session.State{StateWaiting, StateOpen}

// Why a call was detached, as invocation.timed_out says it in data.state.
const (
	WhyDeadline      = "deadline"
	WhyWaitCancelled = "wait_cancelled"
	WhySubagentEnded = "subagent_ended"
	WhyAuthRequired  = "auth_required"
	WhyOverdue       = "overdue"
)

// PendingA2ATask is one call to a peer: the body of its record, with the record's state and revision. Methods return
// copies; changing one changes nothing.
type PendingA2ATask struct {
	ID         session.CallID     `json:"id"`
	RootID     session.ID         `json:"rootId"`
	SessionID  session.ID         `json:"sessionId"` // that called
	ParentID   session.ID         `json:"parentId,omitempty"`
	TurnID     session.TurnID     `json:"turnId"`
	OriginTurn session.TurnID     `json:"originTurn"`
	ToolCallID session.ToolCallID `json:"toolCallId"`
	Peer       string             `json:"peer"`
	Transport  string             `json:"transport,omitempty"`
	Mode       session.CallMode   `json:"mode"`
	SentAt     time.Time          `json:"sentAt"`   // when it was registered; nothing leaves before
	Deadline   time.Time          `json:"deadline"` // of the wait (blocking), or of the call (async)
	ReplyBy    time.Time          `json:"replyBy"`  // until then a late reply is wanted
	PeerTaskID string             `json:"peerTaskId,omitempty"`
	ContextID  string             `json:"contextId,omitempty"`
	Attempt    int                `json:"attempt"` // of sending, from 1
	Generation int                `json:"generation"`
	AskerName  string             `json:"askerName"`
	Question   string             `json:"question,omitempty"` // short
	// CancelOnTimeout cancels the call where it would be detached.
	CancelOnTimeout bool `json:"cancelOnTimeout,omitempty"`
	// Request is what the relay sends, opaque to the tracker. It is dropped once a reply is stored.
	Request json.RawMessage `json:"request,omitempty"`
	// Why says why the call was detached: WhyDeadline and so on. A call that CancelOnTimeout cancelled has it too.
	Why string `json:"why,omitempty"`
	// Reply is what the peer answered. A cancelled call may have one: it came too late to be used.
	Reply *Reply `json:"reply,omitempty"`
	// Auth is the peer's AUTH_REQUIRED, which is not a reply.
	Auth *Reply `json:"auth,omitempty"`
	// CancelReason says why the call was cancelled; CancelAnswered that the peer answered our CancelTask, or that there
	// is nothing to cancel any more.
	CancelReason   string `json:"cancelReason,omitempty"`
	CancelAnswered bool   `json:"cancelAnswered,omitempty"`
	// Trace is the W3C traceparent of the call's span, under which a later life of the process follows the call.
	Trace string `json:"trace,omitempty"`

	State session.State `json:"-"`
	Rev   uint64        `json:"-"`
}

// Wanted reports whether a reply to the call is still of use, so that the relay follows it.
func (p PendingA2ATask) Wanted() bool {
	return p.State == StateWaiting || p.State == StateOpen || p.State == StateDetached
}

// CancelOwed reports whether the peer must still be told that the call is cancelled.
func (p PendingA2ATask) CancelOwed() bool { return p.State == StateCancelled && !p.CancelAnswered }

// Scope returns where the call's events belong: the caller's agent, also when it has ended.
func (p PendingA2ATask) Scope() session.Scope {
	return session.Scope{
		Root: p.RootID, Agent: p.SessionID, Parent: p.ParentID, Turn: p.TurnID, OriginTurn: p.OriginTurn, ToolCall: p.ToolCallID,
	}
}

// Invocation returns the body of an event about the call.
func (p PendingA2ATask) Invocation() session.Invocation {
	inv := session.Invocation{CallID: p.ID, Peer: p.Peer, Mode: p.Mode, TaskID: p.PeerTaskID, Attempt: p.Attempt}
	if !p.Deadline.IsZero() {
		inv.Deadline = &p.Deadline
	}
	return inv
}

// Request is a call to be registered.
type Request struct {
	ToolCall  session.ToolCallID // the call id derives from it
	Peer      string
	Transport string
	Mode      session.CallMode
	Deadline  time.Time // absolute; required
	ReplyBy   time.Time // defaults to Deadline plus Config.ReplyRetention
	ContextID string
	Message   json.RawMessage // what the relay sends; opaque to the tracker
	Question  string          // what is asked; kept short
	AskerName string          // "the primary", or the subagent's description
	// CancelOnTimeout cancels the call where it would be detached.
	CancelOnTimeout bool
	// Trace is the W3C traceparent of the call's span; empty: there is none.
	Trace string
}

// Reply is what a peer answered, or what stands for its answer.
type Reply struct {
	// State of the peer's task: completed, failed, rejected, canceled, input_required, auth_required, or what the peer
	// said; "message" tells nothing of a task and is completed.
	State     string                `json:"state"`
	Text      string                `json:"text,omitempty"`
	Data      []json.RawMessage     `json:"data,omitempty"`
	Artifacts []session.ArtifactKey `json:"artifacts,omitempty"`
	TaskID    string                `json:"taskId,omitempty"`
	ContextID string                `json:"contextId,omitempty"`
	// Failed says that the reply is no answer but tells why there is none; Retryable that trying again may help.
	Failed    bool      `json:"failed,omitempty"`
	Retryable bool      `json:"retryable,omitempty"`
	At        time.Time `json:"at"` // defaults to now
}

// StateInputRequired is the state of a reply with which the peer asks something back.
const (
	StateInputRequired = "input_required"
	StateAuthRequired  = "auth_required"
)

// Content is the reply as a model reads it: the text, then the data parts as JSON. It is within about
// [session.InlineBudget], since [Tracker.Deliver] moved what is larger to artifacts; these are not named in it.
func (r Reply) Content() string {
	if len(r.Data) == 0 {
		return r.Text
	}
	var b strings.Builder
	b.WriteString(r.Text)
	for _, d := range r.Data {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "data: %s", d)
	}
	return b.String()
}

// Delivery says what became of a reply.
type Delivery string

// The fates of a reply.
const (
	Claimed   Delivery = "claimed"   // stored for the waiter
	Folded    Delivery = "folded"    // it is an item now
	Duplicate Delivery = "duplicate" // the call had a reply; nothing was written
	Discarded Delivery = "discarded" // the call was expired or cancelled; a cancelled call keeps it
)

// FullError says that a session may have no further call open.
type FullError struct {
	Peer string // of the oldest call that is open
	Max  int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("a call to '%s' is still open; wait for its result", e.Peer)
}

// WaitCancelledError is the cause of a context that ends a wait and nothing else: the call is detached.
type WaitCancelledError struct{ Reason string }

func (e *WaitCancelledError) Error() string { return "the wait was cancelled: " + e.Reason }
