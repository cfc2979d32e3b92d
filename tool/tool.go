// Package tool says what a tool is: a name, a description, a JSON Schema, a source, and a function the model may call.
//
// agentloop calls tools; toolprofile decides who may have which; the packages that offer tools implement [Tool]. Run may
// block for as long as its context allows, and several calls of one turn run at the same time.
package tool

import (
	"context"
	"encoding/json"
	"time"

	"orchestrator/session"
)

// Source says where a tool comes from: "builtin", "subagent", "a2a", "a2a:admin" or "mcp:<server>".
type Source string

// The sources of our own tools.
const (
	SourceBuiltin  Source = "builtin"
	SourceSubagent Source = "subagent"
	SourceA2A      Source = "a2a"
	SourceA2AAdmin Source = "a2a:admin"
)

// Kind is the kind of session a tool is shown to.
type Kind string

// The kinds of session.
const (
	Primary  Kind = "primary"
	Subagent Kind = "subagent"
)

// KindOf returns the kind of the turn's session.
func KindOf(t *session.Turn) Kind {
	if t.Subagent() {
		return Subagent
	}
	return Primary
}

// Spec is what a tool says of itself.
type Spec struct {
	Name   string
	Source Source
	// Description depends on the kind of session it is shown to.
	Description func(Kind) string
	// Schema is the JSON Schema (2020-12) of the arguments, an object.
	Schema json.RawMessage
	// Repeatable says that a call an earlier life of the process may have begun can be run again.
	Repeatable bool
}

// Tool is something a model may call.
type Tool interface {
	Spec() Spec
	// Run makes the call. What went wrong inside the tool is a Result with IsError that the model can read; an error ends
	// the turn and is for failures of the store or the process, and for the context's end.
	Run(ctx context.Context, c *Call) (Result, error)
}

// Call is one call of a tool.
type Call struct {
	ID   session.ToolCallID
	Name string
	Args json.RawMessage // valid against the schema
	Turn *session.Turn
	// Accepted is when the message that asks for the call was committed. Budgets count from it, also after a restart.
	Accepted time.Time
	// Resumed says that an earlier life of the process may have begun the call.
	Resumed bool
	// Park says that from now on the call only waits for the reason given (awaiting_peer, awaiting_subagent), until it
	// returns. Never nil.
	Park func(reason string)
	// Progress tells subscribers how it goes. It never blocks. Never nil.
	Progress func(text string)
}

// The reasons to park.
const (
	AwaitingPeer     = "awaiting_peer"
	AwaitingSubagent = "awaiting_subagent"
)

// Scope returns the scope of the call's events.
func (c *Call) Scope() session.Scope { return c.Turn.Scope.WithToolCall(c.ID) }

// Result is what a call returns to the model.
type Result struct {
	Content string
	IsError bool
	// Batch is committed together with the call's tool.completed. Its events stand before it.
	Batch session.Batch
	// Conflict is asked for another result when that commit fails with [session.ErrConflict] or [session.ErrGuard]; nil
	// makes the failure an error of the turn.
	Conflict func(ctx context.Context, err error) (Result, error)
	// Committed is called after the commit; it must not block. May be nil.
	Committed func(session.Committed)
}

// Text returns a result of plain text.
func Text(s string) Result { return Result{Content: s} }

// Failure returns a result that tells the model what went wrong and what to do.
func Failure(s string) Result { return Result{Content: s, IsError: true} }

// Set is the tools of one turn, in the order shown to the model, and the reasons for what is not among them.
type Set struct {
	tools  []Tool
	byName map[string]Tool
	refuse func(name string) (reason string, denied bool)
}

// NewSet returns a set. refuse says why a tool that is not in the set is denied; it may be nil, and says false for a tool
// nobody knows.
func NewSet(tools []Tool, refuse func(name string) (string, bool)) *Set {
	s := &Set{tools: tools, byName: make(map[string]Tool, len(tools)), refuse: refuse}
	for _, t := range tools {
		s.byName[t.Spec().Name] = t
	}
	return s
}

// Tools returns the tools in order. The slice is the set's own.
func (s *Set) Tools() []Tool { return s.tools }

// Names returns the tools' names in order.
func (s *Set) Names() []string {
	names := make([]string, len(s.tools))
	for i, t := range s.tools {
		names[i] = t.Spec().Name
	}
	return names
}

// Lookup returns the tool of a name.
func (s *Set) Lookup(name string) (Tool, bool) {
	t, ok := s.byName[name]
	return t, ok
}

// Refusal returns why a tool outside the set may not be called, and whether it is denied rather than unknown.
func (s *Set) Refusal(name string) (string, bool) {
	if s.refuse == nil {
		return "", false
	}
	return s.refuse(name)
}
