package session

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// InlineBudget is how many bytes of a child's or a peer's text a model is shown at once; the rest is read from an artifact.
const InlineBudget = 8000

// ItemKind says what came home.
type ItemKind string

// The kinds of item.
const (
	ItemReply   ItemKind = "reply"   // a peer's reply; key call:<id>
	ItemOverdue ItemKind = "overdue" // an asynchronous call has no answer yet; key overdue:<id>
	ItemAuth    ItemKind = "auth"    // a peer wants the user to authenticate; key auth:<id>
	ItemChild   ItemKind = "child"   // a subagent's result; key child:<id>:<run>
	ItemPending ItemKind = "pending" // a subagent that is still running when its batch is folded; key pending:<id>:<run>
)

// ItemBody is the body of an item record: all that a fold-back turn needs to tell of it.
type ItemBody struct {
	Kind       ItemKind      `json:"kind"`
	Call       CallID        `json:"call,omitempty"`     // reply, overdue, auth
	Child      ID            `json:"child,omitempty"`    // child, pending
	From       string        `json:"from"`               // the peer's or the subagent's name
	Asker      ID            `json:"asker"`              // the session that asked
	AskerName  string        `json:"askerName"`          // "the primary", or the subagent's description
	AskerEnded bool          `json:"askerEnded"`         // the subagent that asked has ended
	ToolCall   ToolCallID    `json:"toolCall,omitempty"` // that asked
	Turn       TurnID        `json:"turn,omitempty"`     // that asked
	Parent     ID            `json:"parent,omitempty"`   // of the asker
	Mode       CallMode      `json:"mode,omitempty"`
	Question   string        `json:"question,omitempty"` // what was asked, short
	PeerTask   string        `json:"peerTask,omitempty"` // the peer's task id
	Attempt    int           `json:"attempt,omitempty"`  // of sending
	Deadline   time.Time     `json:"deadline,omitzero"`  // of the call
	Asked      time.Time     `json:"asked,omitzero"`
	At         time.Time     `json:"at"`              // when it came
	State      string        `json:"state,omitempty"` // completed, failed, …
	Late       bool          `json:"late,omitempty"`  // after its deadline, or after whoever waited had gone on
	Text       string        `json:"text,omitempty"`  // within [InlineBudget]
	Artifacts  []ArtifactKey `json:"artifacts,omitempty"`
	Generation int           `json:"generation"`      // of the turn that asked
	Trace      string        `json:"trace,omitempty"` // W3C traceparent of the call, or of the spawn
}

// NewItem returns the change that makes an item ready for a session.
func NewItem(key string, session ID, origin TurnID, body ItemBody) Change {
	return Insert(KindItem, key, session, origin, StateReady, body, time.Time{})
}

// CallItemKey returns the key of a call's item of the kind.
func CallItemKey(kind ItemKind, id CallID) string {
	if kind == ItemReply {
		return "call:" + string(id)
	}
	return string(kind) + ":" + string(id)
}

// ChildItemKey returns the key of a subagent's item of the kind, for one of its runs (from 1).
func ChildItemKey(kind ItemKind, id ID, run int) string {
	return fmt.Sprintf("%s:%s:%d", kind, id, run)
}

// Shorten returns text within budget bytes: its head and its tail, with a note between that says how much is missing and
// which artifact holds all of it (an empty key: none does). Text within the budget is returned as it is.
func Shorten(text string, budget int, key ArtifactKey) string {
	if len(text) <= budget {
		return text
	}
	head, tail := text[:budget*6/10], text[len(text)-budget*4/10:]
	for len(head) > 0 && !utf8.RuneStart(text[len(head)]) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	note := fmt.Sprintf("[… %d bytes left out", len(text)-len(head)-len(tail))
	if key != "" {
		note += fmt.Sprintf("; all of it: read_artifact {\"key\": %q}", key)
	}
	return head + "\n" + note + " …]\n" + tail
}

// AsData wraps what another agent wrote so that a model reads it as data from that agent, never as the user's or the
// system's words. A closing tag inside the text is defused.
func AsData(from, text string) string {
	text = strings.ReplaceAll(text, "</agent_data", "<\u200b/agent_data")
	text = strings.ReplaceAll(text, "<agent_data", "<\u200bagent_data")
	return fmt.Sprintf("<agent_data from=%q>\n%s\n</agent_data>", from, text)
}
