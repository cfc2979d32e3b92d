package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"orchestrator/session"
)

// board is what the events of one tree say is going on now: who runs, who waits, for whom, until when, what came home.
type board struct {
	root   session.ID
	agents []*agentState // the root first, then in the order of their spawn
	calls  []*callState  // in the order of their dispatch
	began  time.Time
	said   map[string]bool // ids of the messages that are complete
}

// agentState is one agent of the tree.
type agentState struct {
	id        session.ID
	parent    session.ID
	agent     string // its name in the config
	label     string // unique in the tree, short
	state     string // idle, queued, running, waiting, done, failed
	reason    string // why it waits or failed
	deadline  time.Time
	summary   string
	folded    bool   // its result is in the parent's conversation
	speaking  string // text of the message that is streamed
	messageID string
	tools     []openTool
	origin    session.Origin // of the running turn
	queued    int            // turns
	problem   string         // that was told last and is not over
}

type openTool struct {
	id   session.ToolCallID
	name string
	args json.RawMessage
}

// callState is one call to a peer.
type callState struct {
	id       session.CallID
	by       session.ID
	peer     string
	mode     session.CallMode
	deadline time.Time
	question string
	state    string // waits, open, unanswered, answered, late, folded, cancelled, expired
	text     string // of the reply, short
}

func newBoard() *board { return &board{said: make(map[string]bool)} }

// stale reports whether an event is a piece of a message that is complete: such pieces may come late, and out of order.
func (b *board) stale(e session.Event) bool {
	return (e.Type == session.EventMessageDelta || e.Type == session.EventReasoningDelta) && b.said[decode[session.Delta](e).MessageID]
}

// agent returns the agent of an id, making it when it is new.
func (b *board) agent(id, parent session.ID) *agentState {
	for _, a := range b.agents {
		if a.id == id {
			return a
		}
	}
	a := &agentState{id: id, parent: parent, state: "idle", label: string(id)}
	b.agents = append(b.agents, a)
	return a
}

func (b *board) find(id session.ID) *agentState {
	i := slices.IndexFunc(b.agents, func(a *agentState) bool { return a.id == id })
	if i < 0 {
		return nil
	}
	return b.agents[i]
}

func (b *board) call(id session.CallID) *callState {
	i := slices.IndexFunc(b.calls, func(c *callState) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return b.calls[i]
}

// name returns a label that no other agent of the tree has.
func (b *board) name(id session.ID, wanted string) string {
	wanted = shortText(wanted, 28)
	name := wanted
	for n := 2; slices.ContainsFunc(b.agents, func(a *agentState) bool { return a.label == name && a.id != id }); n++ {
		name = fmt.Sprintf("%s (%d)", wanted, n)
	}
	return name
}

// label returns how an agent is called.
func (b *board) label(id session.ID) string {
	if a := b.find(id); a != nil {
		return a.label
	}
	return string(id)
}

// causes names what a fold-back turn is about: the agents and calls by their names.
func (b *board) causes(ids []string) []string {
	var names []string
	for _, id := range ids {
		switch c := b.call(session.CallID(id)); {
		case c != nil:
			names = append(names, c.peer+"'s answer")
		case b.find(session.ID(id)) != nil:
			names = append(names, b.label(session.ID(id))+"'s result")
		default:
			names = append(names, id)
		}
	}
	return names
}

// running returns how many subagents run, and how many are alive.
func (b *board) running() (running, alive int) {
	for _, a := range b.agents {
		if a.id == b.root {
			continue
		}
		switch a.state {
		case "running":
			running++
			alive++
		case "waiting", "queued":
			alive++
		}
	}
	return running, alive
}

// waiting returns the labels of the subagents that wait.
func (b *board) waiting() []string {
	var names []string
	for _, a := range b.agents {
		if a.id != b.root && a.state == "waiting" {
			names = append(names, a.label)
		}
	}
	return names
}

// blocking returns the call an agent waits on, or nil.
func (b *board) blocking(id session.ID) *callState {
	for _, c := range slices.Backward(b.calls) {
		if c.by == id && c.mode == session.ModeBlocking && c.state == "waits" {
			return c
		}
	}
	return nil
}

// apply takes an event into account.
func (b *board) apply(e session.Event) {
	if b.root == "" {
		b.root, b.began = e.SessionID, e.Time
		b.agent(b.root, "")
	}
	a := b.agent(e.AgentID, e.ParentAgentID)
	switch strings.Split(string(e.Type), ".")[0] {
	case "session", "turn":
		b.applyTurn(a, e)
	case "message":
		b.applyMessage(a, e)
	case "tool":
		applyTool(a, e)
	case "subagent":
		b.applySubagent(a, e)
	case "invocation":
		b.applyInvocation(e)
	}
}

func (b *board) applyTurn(a *agentState, e session.Event) {
	switch e.Type {
	case session.EventSessionCreated:
		d := decode[session.SessionCreated](e)
		a.agent = d.Agent
		if e.Root {
			a.label = b.name(a.id, cmp.Or(d.Agent, "primary"))
		}
	case session.EventTurnQueued:
		a.queued++
	case session.EventTurnStarted:
		d := decode[session.TurnStarted](e)
		a.queued = max(0, a.queued-1)
		a.agent, a.origin, a.tools = d.Agent, d.Origin, nil
		if e.Root {
			a.state = "running"
		}
		for _, id := range d.CausedBy {
			if c := b.call(session.CallID(id)); c != nil {
				c.state = "folded"
			} else if child := b.find(session.ID(id)); child != nil {
				child.folded = true
			}
		}
	case session.EventTurnSuspended:
		if e.Root {
			a.state, a.reason = "waiting", decode[session.TurnSuspended](e).Reason
		}
	case session.EventTurnResumed:
		a.speaking, a.messageID = "", ""
		if e.Root {
			a.state = "running"
		}
	case session.EventTurnCompleted, session.EventTurnFailed, session.EventTurnCancelled:
		a.speaking, a.messageID, a.problem, a.tools = "", "", "", nil
		if e.Root {
			a.state = "idle"
		}
	}
}

func (b *board) applyMessage(a *agentState, e session.Event) {
	switch e.Type {
	case session.EventMessageDelta:
		if b.stale(e) {
			return
		}
		d := decode[session.Delta](e)
		if d.MessageID != a.messageID {
			a.messageID, a.speaking = d.MessageID, ""
		}
		a.speaking += d.Text
	case session.EventMessageCompleted:
		a.messageID, a.speaking, a.problem = "", "", ""
		b.said[decode[session.Message](e).MessageID] = true
	}
}

func applyTool(a *agentState, e session.Event) {
	switch e.Type {
	case session.EventToolStarted:
		d := decode[session.ToolStarted](e)
		a.tools = append(a.tools, openTool{e.ToolCallID, d.Name, d.Args})
	case session.EventToolCompleted:
		a.tools = slices.DeleteFunc(a.tools, func(t openTool) bool { return t.id == e.ToolCallID })
	}
}

func (b *board) applySubagent(a *agentState, e session.Event) {
	switch e.Type {
	case session.EventSubagentSpawned:
		d := decode[session.SubagentSpawned](e)
		a.agent, a.state, a.deadline, a.folded = d.Agent, "queued", d.Deadline, false
		a.label = b.name(a.id, cmp.Or(d.Description, d.Agent))
	case session.EventSubagentStarted, session.EventSubagentResumed:
		a.state, a.reason = "running", ""
	case session.EventSubagentSuspended:
		a.state, a.reason = "waiting", decode[session.TurnSuspended](e).Reason
	case session.EventSubagentCompleted, session.EventSubagentFailed:
		d := decode[session.SubagentEnded](e)
		// What follows the first paragraph is for the parent: more of the report, what it cost.
		summary, _, _ := strings.Cut(d.Summary, "\n\n")
		a.state, a.summary, a.reason, a.tools = "done", summary, "", nil
		if e.Type == session.EventSubagentFailed {
			a.state, a.reason, a.summary = "failed", d.Reason, d.Error
		}
	}
}

func (b *board) applyInvocation(e session.Event) {
	d := decode[session.Invocation](e)
	c := b.call(d.CallID)
	if c == nil {
		c = &callState{id: d.CallID, by: e.AgentID, peer: d.Peer, mode: d.Mode}
		b.calls = append(b.calls, c)
	}
	if d.Deadline != nil {
		c.deadline = *d.Deadline
	}
	if d.Text != "" {
		c.text = d.Text
	}
	switch e.Type {
	case session.EventInvocationDispatched:
		c.state = "open"
		if d.Mode == session.ModeBlocking {
			c.state = "waits"
		}
		if a := b.find(e.AgentID); a != nil {
			for _, t := range a.tools {
				if t.id == e.ToolCallID {
					c.question = question(t.args)
				}
			}
		}
	case session.EventInvocationReplied:
		c.state = "answered"
	case session.EventInvocationTimedOut:
		c.state = "unanswered"
	case session.EventInvocationLate:
		c.state = "late"
	case session.EventInvocationFoldedBack:
		c.state = "folded"
	case session.EventInvocationCancelled:
		c.state = "cancelled"
	case session.EventInvocationExpired:
		c.state = "expired"
	}
}

// question is what a call asks, from its arguments.
func question(args json.RawMessage) string {
	var a struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(args, &a) != nil {
		return ""
	}
	return a.Message
}

// decode returns an event's body, or the zero body when it doesn't fit: what is shown is never a reason to stop.
func decode[T any](e session.Event) T {
	var v T
	if json.Unmarshal(e.Data, &v) != nil {
		var zero T
		return zero
	}
	return v
}

// shortText returns the first line's beginning, at most width columns wide, fit for a terminal.
func shortText(s string, width int) string {
	s = strings.Join(strings.Fields(printable(s)), " ")
	return cut(s, width)
}

// cut returns at most width columns of a line, with an ellipsis if something is missing.
func cut(s string, width int) string {
	if columns(s) <= width {
		return s
	}
	return s[:fitting(s, width-1)] + "…"
}

// fitting returns how many bytes of a line fit into width columns.
func fitting(s string, width int) int {
	used := 0
	for i, r := range s {
		if used += runeColumns(r); used > width {
			return i
		}
	}
	return len(s)
}

// columns is how many columns of a terminal a line takes.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

// runeColumns is 2 for the wide characters of East Asia and emoji, 0 for combining marks, else 1.
func runeColumns(r rune) int {
	switch {
	case r >= 0x0300 && r <= 0x036f, r >= 0x1ab0 && r <= 0x1aff, r >= 0x20d0 && r <= 0x20ff, r >= 0xfe00 && r <= 0xfe0f, r == 0x200d:
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}
