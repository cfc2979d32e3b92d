package session

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
)

// ID names one agent instance and its session, which are the same thing: "s_" and a ULID. A root session's ID also names
// its tree.
type ID string

// TurnID names one turn: "t_" and a ULID.
type TurnID string

// EventID names one event: "e_" and a ULID.
type EventID string

// CallID names one invoke_agent call: "c_" and a ULID derived from the tool call that made it. It is the A2A message id
// and the task_id shown to a model.
type CallID string

// ToolCallID names one tool call: "<agentId>:<n>", minted by us in the commit of the message that asks for it. The
// provider's own id is data and never a key.
type ToolCallID string

// ArtifactKey names one artifact inside its tree: "x_" and a ULID.
type ArtifactKey string

// NewID returns a fresh session ID.
func NewID() ID { return ID("s_" + ulid.Make().String()) }

// NewTurnID returns a fresh turn ID.
func NewTurnID() TurnID { return TurnID("t_" + ulid.Make().String()) }

// NewEventID returns a fresh event ID.
func NewEventID() EventID { return EventID("e_" + ulid.Make().String()) }

// NewMessageID returns a fresh id for one attempt of a model message: "m_" and a ULID.
func NewMessageID() string { return "m_" + ulid.Make().String() }

// NewArtifactKey returns a fresh artifact key.
func NewArtifactKey() ArtifactKey { return ArtifactKey("x_" + ulid.Make().String()) }

// MintToolCallID returns the id of an agent's nth tool call, counted from 1 over the life of its session.
func MintToolCallID(agent ID, n int) ToolCallID {
	return ToolCallID(string(agent) + ":" + strconv.Itoa(n))
}

// Split returns the agent and the number of a tool call id, and whether it has that shape.
func (id ToolCallID) Split() (agent ID, n int, ok bool) {
	a, num, found := strings.Cut(string(id), ":")
	if !found {
		return "", 0, false
	}
	n, err := strconv.Atoi(num)
	if err != nil || n < 1 {
		return "", 0, false
	}
	return ID(a), n, true
}

// CallIDFor derives the call id of a tool call, so that registering twice finds the first.
func CallIDFor(call ToolCallID) CallID { return CallID("c_" + derive("call", call)) }

// ChildIDFor derives the session id of the child a tool call spawns, so that spawning twice finds the first.
func ChildIDFor(call ToolCallID) ID { return ID("s_" + derive("child", call)) }

// ArtifactKeyFor derives the key of an artifact from the tool call that produced it and a label.
func ArtifactKeyFor(call ToolCallID, label string) ArtifactKey {
	return ArtifactKey("x_" + derive("artifact "+label, call))
}

// derive is a ULID that depends on nothing but its arguments: the time of the agent's own ULID, so that derived ids sort
// near their maker's, and 80 bits of SHA-256 for the rest.
func derive(label string, call ToolCallID) string {
	var u ulid.ULID
	agent, _, _ := call.Split()
	if _, text, ok := strings.Cut(string(agent), "_"); ok {
		if made, err := ulid.ParseStrict(text); err == nil {
			copy(u[:6], made[:6])
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s", label, call))
	copy(u[6:], sum[:10])
	return u.String()
}
