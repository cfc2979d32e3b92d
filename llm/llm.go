// Package llm is the interface to language models: one streaming method over our own message types.
//
// agentloop calls it; llm/scripted and llm/openai implement it. A stream blocks its reader until the model says more;
// stopping the loop or ending the context frees everything behind it.
package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"orchestrator/session"
)

// Role says who speaks.
type Role string

// The roles of a message in a request. Instructions are [Request.System], not a message.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one message of a conversation.
type Message struct {
	Role      Role
	Text      string
	Reasoning string                     // assistant
	ToolCalls []ToolCall                 // assistant
	Opaque    map[string]json.RawMessage // assistant: what the adapter named by the key put into [Chunk.Opaque]

	ToolCallID string // tool: the ToolCall.ID it answers
	ToolName   string // tool
	IsError    bool   // tool
}

// ToolCall is a tool call an assistant message asks for.
type ToolCall struct {
	ID   string // as the model will see it again with the result
	Name string
	Args json.RawMessage // valid JSON
}

// Tool is a tool as shown to a model.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage
}

// Request is one model call.
type Request struct {
	Model     string // the provider's name of the model
	Agent     string // the agent's name in the config; llm/scripted goes by it
	System    string
	Messages  []Message
	Tools     []Tool
	MaxTokens int // of the answer; 0 is the provider's default
}

// StopReason says why a model stopped.
type StopReason string

// The reasons to stop.
const (
	StopEnd       StopReason = "end_turn"
	StopToolCalls StopReason = "tool_calls"
	StopMaxTokens StopReason = "max_tokens"
	StopRefusal   StopReason = "refusal"
)

// ChunkKind says what a chunk holds.
type ChunkKind int

// The kinds of chunk.
const (
	ChunkText      ChunkKind = iota // Text
	ChunkReasoning                  // Text
	ChunkToolStart                  // Index, ToolID (may be empty), ToolName
	ChunkToolArgs                   // Index, Text: a fragment of the arguments' JSON
	ChunkToolEnd                    // Index
	ChunkUsage                      // Usage: replaces an earlier one of this call
	ChunkStop                       // Stop, Opaque; a stream without one was cut off
)

// Chunk is one piece of a streamed answer.
type Chunk struct {
	Kind     ChunkKind
	Text     string
	Index    int // of the tool call in the answer, from 0
	ToolID   string
	ToolName string
	Usage    session.Usage
	Stop     StopReason
	Opaque   map[string]json.RawMessage
}

// Model is a language model behind some provider. Implementations are safe for concurrent use.
type Model interface {
	// Stream makes one model call. The sequence ends after [ChunkStop], or with an error, which is an *[Error] unless the
	// context ended. It makes no retries of its own.
	Stream(ctx context.Context, r Request) iter.Seq2[Chunk, error]
}

// Error is a failed model call.
type Error struct {
	Provider    string
	Status      int    // HTTP status; 0 if none
	Code        string // the provider's, if any
	Message     string // a plain sentence, without secrets
	Retryable   bool
	RetryAfter  time.Duration // what the provider asked for; 0 if it didn't
	Overflow    bool          // the context is larger than the model takes
	Unreachable bool          // nothing answered at the model's address
	Err         error
}

func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("model %s: HTTP %d: %s", e.Provider, e.Status, e.Message)
	}
	return fmt.Sprintf("model %s: %s", e.Provider, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
