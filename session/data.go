package session

import (
	"encoding/json"
	"time"
)

// Usage is what model calls cost. Parts are never added to totals: ReasoningTokens is part of OutputTokens and
// CachedInputTokens and CacheWriteTokens, what the provider had in its cache and what it put there, are parts of InputTokens.
type Usage struct {
	InputTokens       int64   `json:"inputTokens"`
	OutputTokens      int64   `json:"outputTokens"`
	ReasoningTokens   int64   `json:"reasoningTokens,omitempty"`
	CachedInputTokens int64   `json:"cachedInputTokens,omitempty"`
	CacheWriteTokens  int64   `json:"cacheWriteTokens,omitempty"`
	CostUSD           float64 `json:"costUSD,omitempty"`
	ModelCalls        int64   `json:"modelCalls,omitempty"`
}

// Add adds another usage to this one.
func (u *Usage) Add(o Usage) {
	u.InputTokens += o.InputTokens
	u.OutputTokens += o.OutputTokens
	u.ReasoningTokens += o.ReasoningTokens
	u.CachedInputTokens += o.CachedInputTokens
	u.CacheWriteTokens += o.CacheWriteTokens
	u.CostUSD += o.CostUSD
	u.ModelCalls += o.ModelCalls
}

// SessionCreated is the body of session.created.
type SessionCreated struct {
	Agent string `json:"agent"`
	Title string `json:"title,omitempty"`
}

// SessionState is the body of session.state. It is a level: each one replaces the last.
type SessionState struct {
	State        string   `json:"state"` // idle, running or requires_action
	Background   []ID     `json:"background"`
	PendingCalls []CallID `json:"pendingCalls"`
}

// SessionError is the body of session.error, which ends nothing.
type SessionError struct {
	Message   string `json:"message"`
	WillRetry bool   `json:"willRetry"`
}

// TurnQueued is the body of turn.queued.
type TurnQueued struct {
	Origin Origin `json:"origin"`
	Input  string `json:"input"`
}

// TurnStarted is the body of turn.started.
type TurnStarted struct {
	Origin     Origin   `json:"origin"`
	CausedBy   []string `json:"causedBy,omitempty"` // call ids and agent ids
	Generation int      `json:"generation"`
	Attempt    int      `json:"attempt"`
	Agent      string   `json:"agent"`
	Model      string   `json:"model"`
	Tools      []string `json:"tools"`
}

// TurnSuspended is the body of turn.suspended and subagent.suspended.
type TurnSuspended struct {
	Reason string `json:"reason"` // awaiting_peer, awaiting_subagent or awaiting_input
}

// TurnResumed is the body of turn.resumed. An Attempt above 1 is a continuation after a crash or a stop.
type TurnResumed struct {
	Attempt int `json:"attempt"`
}

// TurnEnded is the body of turn.completed, turn.failed and turn.cancelled.
type TurnEnded struct {
	Output     string `json:"output,omitempty"`
	StopReason string `json:"stopReason,omitempty"`
	Error      string `json:"error,omitempty"`
	Code       string `json:"code,omitempty"` // of the error, for programs: model_unreachable, storage_full
	Usage      Usage  `json:"usage"`
}

// The codes of a turn that failed.
const (
	CodeModelUnreachable = "model_unreachable" // nothing answered at its model's address
	CodeStorageFull      = "storage_full"      // there was no room for what it wanted to write
)

// Role says whose words a message holds.
type Role string

// The roles of a message.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// Message is the body of message.completed: the input of a turn (RoleUser), or one answer of the model.
type Message struct {
	MessageID  string     `json:"messageId"`
	Role       Role       `json:"role"`
	Text       string     `json:"text"`
	Reasoning  string     `json:"reasoning,omitempty"`
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`
	StopReason string     `json:"stopReason,omitempty"`
	Model      string     `json:"model,omitempty"`
	Usage      *Usage     `json:"usage,omitempty"`
	// Synthetic marks an assistant message we wrote ourselves, without a model.
	Synthetic bool `json:"synthetic,omitempty"`
	// Opaque is what the provider's adapter needs back with the message (signatures of reasoning, say), keyed by adapter.
	Opaque map[string]json.RawMessage `json:"opaque,omitempty"`
}

// ToolCall is one tool call an assistant message asks for.
type ToolCall struct {
	ID         ToolCallID      `json:"id"`
	ProviderID string          `json:"providerId,omitempty"`
	Name       string          `json:"name"`
	Args       json.RawMessage `json:"args"` // always valid JSON; text that was none is kept as a JSON string
}

// Delta is the body of message.delta and reasoning.delta. It is void unless its message completes.
type Delta struct {
	MessageID string `json:"messageId"`
	Text      string `json:"text"`
}

// ToolStarted is the body of tool.started.
type ToolStarted struct {
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

// ToolProgress is the body of tool.progress and invocation.progress.
type ToolProgress struct {
	CallID CallID `json:"callId,omitempty"`
	Peer   string `json:"peer,omitempty"`
	Text   string `json:"text"`
}

// ToolCompleted is the body of tool.completed: the result the model reads.
type ToolCompleted struct {
	Name    string `json:"name"`
	Content string `json:"content"`
	IsError bool   `json:"isError,omitempty"`
	Denied  bool   `json:"denied,omitempty"` // the profile refused it
}

// ContextCompacted is the body of context.compacted: the summary stands for everything of that agent up to ThroughSeq.
type ContextCompacted struct {
	ThroughSeq uint64 `json:"throughSeq"`
	Summary    string `json:"summary"`
	Usage      *Usage `json:"usage,omitempty"` // of the model call that made it
}

// Invocation is the body of every invocation.* event.
type Invocation struct {
	CallID     CallID     `json:"callId"`
	Peer       string     `json:"peer"`
	Mode       CallMode   `json:"mode"`
	TaskID     string     `json:"taskId,omitempty"` // the peer's task id
	Deadline   *time.Time `json:"deadline,omitempty"`
	Attempt    int        `json:"attempt"`
	FoldTurnID TurnID     `json:"foldTurnId,omitempty"`
	State      string     `json:"state,omitempty"` // of the reply: completed, failed, rejected, canceled, input_required, auth_required
	Text       string     `json:"text,omitempty"`  // of the reply, shortened
}

// CallMode says whether somebody waits for a call's reply.
type CallMode string

// The modes of a call.
const (
	ModeBlocking CallMode = "blocking"
	ModeAsync    CallMode = "async"
)

// SubagentSpawned is the body of subagent.spawned.
type SubagentSpawned struct {
	Agent       string    `json:"agent"`
	Description string    `json:"description"`
	Prompt      string    `json:"prompt"`
	Wait        bool      `json:"wait"`
	Deadline    time.Time `json:"deadline"`
}

// SubagentConfigured is the body of subagent.configured.
type SubagentConfigured struct {
	Agent string   `json:"agent"`
	Model string   `json:"model"`
	Tools []string `json:"tools"`
}

// SubagentStarted is the body of subagent.started and subagent.resumed.
type SubagentStarted struct {
	Run int `json:"run"`
}

// SubagentEnded is the body of subagent.completed and subagent.failed.
type SubagentEnded struct {
	Summary string `json:"summary,omitempty"`
	Reason  string `json:"reason,omitempty"` // error, timeout, cancelled or interrupted
	Error   string `json:"error,omitempty"`
	Usage   Usage  `json:"usage"`
}
