package session

import (
	"encoding/json"
	"time"
)

// Info says what a root session is. It and the types below are what doors show, in the shape they show it.
type Info struct {
	ID      ID        `json:"id"`
	Root    ID        `json:"rootAgentId"` // the same: the agent whose events end turns
	Agent   string    `json:"agent"`       // the agent's name in the config
	Title   string    `json:"title,omitempty"`
	Status  State     `json:"status"` // open, closing or closed
	Created time.Time `json:"created"`
	LastSeq uint64    `json:"lastSeq"`
	// Principal is whose session it is; doors check it, and don't show it.
	Principal string `json:"-"`
}

// Snapshot is a root session at one moment of its log, LastSeq: the events after it tell what changes.
type Snapshot struct {
	Info
	State        string      `json:"state"` // idle, running or requires_action
	Background   []ID        `json:"background"`
	ActiveTurn   *TurnInfo   `json:"activeTurn,omitempty"`
	Queue        []TurnInfo  `json:"queue"`
	Agents       []AgentInfo `json:"agents"` // the root's first, then its subagents in the order they were spawned
	PendingCalls []CallInfo  `json:"pendingCalls"`
	Interrupts   []Interrupt `json:"interrupts"`
	// Usage is that of the turns that have ended, the subagents' included.
	Usage Usage `json:"usage"`
}

// Interrupt is a question to the user that somebody waits for.
type Interrupt struct {
	ID         string          `json:"id"`
	AgentID    ID              `json:"agentId"`
	TurnID     TurnID          `json:"turnId,omitempty"`
	ToolCallID ToolCallID      `json:"toolCallId,omitempty"`
	Kind       string          `json:"kind"`
	Data       json.RawMessage `json:"data,omitempty"`
}

// TurnInfo is the truth of a turn.
type TurnInfo struct {
	ID         TurnID   `json:"id"`
	Session    ID       `json:"sessionId"` // the root session
	Agent      ID       `json:"agentId"`   // whose turn it is
	Root       ID       `json:"rootAgentId"`
	Origin     Origin   `json:"origin"`
	OriginTurn TurnID   `json:"originTurn,omitempty"`
	CausedBy   []string `json:"causedBy,omitempty"`
	State      State    `json:"state"`
	Ended      bool     `json:"ended"`
	// Quiescent says that the turn has ended and nothing it set going is still on its way home.
	Quiescent       bool       `json:"quiescent"`
	Generation      int        `json:"generation"`
	Attempt         int        `json:"attempt"`
	Input           string     `json:"input,omitempty"` // while it is queued; then it is the turn's first message
	Output          string     `json:"output,omitempty"`
	StopReason      string     `json:"stopReason,omitempty"`
	Error           string     `json:"error,omitempty"`
	Code            string     `json:"code,omitempty"`            // of the error, for programs: model_unreachable, storage_full
	CancelRequested string     `json:"cancelRequested,omitempty"` // why
	Usage           Usage      `json:"usage"`
	Started         *time.Time `json:"started,omitempty"`
}

// AgentInfo is one agent instance of a tree: the root, or a subagent.
type AgentInfo struct {
	ID          ID         `json:"id"`
	Parent      ID         `json:"parentAgentId,omitempty"`
	Root        bool       `json:"root"`
	Agent       string     `json:"agent"` // the agent's name in the config
	Description string     `json:"description,omitempty"`
	State       State      `json:"state"` // idle (the root only), queued, running, suspended or ended
	TurnID      TurnID     `json:"turnId,omitempty"`
	ToolCallID  ToolCallID `json:"toolCallId,omitempty"` // that spawned it
	OriginTurn  TurnID     `json:"originTurn,omitempty"`
	// Result is completed, or why it failed: error, timeout, cancelled or interrupted; empty until it has ended.
	Result    string        `json:"result,omitempty"`
	Summary   string        `json:"summary,omitempty"` // what its parent is told of it
	Error     string        `json:"error,omitempty"`
	Artifacts []ArtifactKey `json:"artifacts,omitempty"`
	Usage     Usage         `json:"usage"`
	Created   *time.Time    `json:"created,omitempty"`
	Deadline  *time.Time    `json:"deadline,omitempty"`
	EndedAt   *time.Time    `json:"ended,omitempty"`
}

// StateIdle is the state of a root agent without a started turn, StateEnded that of a subagent whose run is over.
const (
	StateIdle  State = "idle"
	StateEnded State = "ended"
)

// CallInfo is one call to a peer.
type CallInfo struct {
	ID           CallID     `json:"id"`
	Session      ID         `json:"sessionId"` // the root session
	Agent        ID         `json:"agentId"`   // who called
	TurnID       TurnID     `json:"turnId"`
	OriginTurn   TurnID     `json:"originTurn"`
	ToolCallID   ToolCallID `json:"toolCallId"`
	Peer         string     `json:"peer"`
	Mode         CallMode   `json:"mode"`
	State        State      `json:"state"`
	Wanted       bool       `json:"wanted"` // a reply is still of use
	AskerName    string     `json:"askerName"`
	Question     string     `json:"question,omitempty"` // short
	PeerTaskID   string     `json:"peerTaskId,omitempty"`
	Attempt      int        `json:"attempt"` // of sending
	SentAt       time.Time  `json:"sentAt"`
	Deadline     time.Time  `json:"deadline"`
	ReplyBy      time.Time  `json:"replyBy"` // until then a late reply is wanted
	Reply        *CallReply `json:"reply,omitempty"`
	CancelReason string     `json:"cancelReason,omitempty"`
}

// CallReply is what a peer answered, or what stands for its answer.
type CallReply struct {
	State     string            `json:"state"`
	Text      string            `json:"text,omitempty"`
	Data      []json.RawMessage `json:"data,omitempty"`
	Artifacts []ArtifactKey     `json:"artifacts,omitempty"`
	Failed    bool              `json:"failed"`
	At        time.Time         `json:"at"`
}

// Until says what a wait for a turn waits for.
type Until string

// What a wait waits for.
const (
	UntilTurn      Until = "turn"      // the turn's end
	UntilQuiescent Until = "quiescent" // and that nothing it set going is still on its way home
)

// Met reports whether a turn is what the wait waits for. An empty until is UntilTurn.
func (t TurnInfo) Met(until Until) bool { return t.Ended && (until != UntilQuiescent || t.Quiescent) }
