package subagent

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"orchestrator/session"
)

// Envelope is what comes of one run of a subagent.
type Envelope struct {
	ID        session.ID            `json:"id"`
	Agent     string                `json:"agent"`
	State     string                `json:"state"` // completed, or why it failed: error, timeout, cancelled or interrupted
	Error     string                `json:"error,omitempty"`
	Artifacts []session.ArtifactKey `json:"artifacts,omitempty"`
	Usage     session.Usage         `json:"usage"`
	Tools     []ToolUse             `json:"tools,omitempty"`
	// Text is what a model reads of it: the last output, the answers that came after it, the artifacts, the tools and the
	// usage, within [session.InlineBudget]. All of it is an artifact when it is longer.
	Text string `json:"text"`
}

// ToolUse is one line of the ledger of a subagent's tool calls.
type ToolUse struct {
	Name   string `json:"name"`
	Calls  int    `json:"calls"`
	Errors int    `json:"errors,omitempty"`
}

// maxArtifacts bounds how many artifact keys an envelope names.
const maxArtifacts = 50

var artifactKey = regexp.MustCompile(`\bx_[0-9A-HJKMNP-TV-Z]{26}\b`)

// work is what a subagent's log says of its run.
type work struct {
	output    string // its last words
	tools     []ToolUse
	artifacts []session.ArtifactKey
	answers   []answer // of peers, that came after its last message
}

type answer struct {
	peer string
	text string
}

// readWork reads what a subagent did from its log.
func readWork(ctx context.Context, store session.Store, tree, agent session.ID) (work, error) {
	var w work
	peers := make(map[session.ToolCallID]string)
	q := session.EventQuery{Tree: tree, Agent: agent, Types: []session.EventType{
		session.EventMessageCompleted, session.EventToolCompleted, session.EventInvocationReplied,
	}}
	for {
		events, err := store.Events(ctx, q)
		if err != nil {
			return work{}, fmt.Errorf("read the log of subagent %s: %w", agent, err)
		}
		if len(events) == 0 {
			return w, nil
		}
		for _, e := range events {
			q.After = e.Seq
			if err := session.Resolve(ctx, store, &e); err != nil {
				return work{}, err
			}
			if err := w.add(e, peers); err != nil {
				return work{}, err
			}
		}
	}
}

func (w *work) add(e session.Event, peers map[session.ToolCallID]string) error {
	switch e.Type {
	case session.EventMessageCompleted:
		var m session.Message
		if err := e.Decode(&m); err != nil {
			return err
		}
		if m.Role == session.RoleAssistant {
			if m.Text != "" {
				w.output = m.Text
			}
			w.answers = nil
			w.find(m.Text)
		}
	case session.EventInvocationReplied:
		var in session.Invocation
		if err := e.Decode(&in); err != nil {
			return err
		}
		peers[e.ToolCallID] = in.Peer
	case session.EventToolCompleted:
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			return err
		}
		i := slices.IndexFunc(w.tools, func(t ToolUse) bool { return t.Name == done.Name })
		if i < 0 {
			i = len(w.tools)
			w.tools = append(w.tools, ToolUse{Name: done.Name})
		}
		w.tools[i].Calls++
		if done.IsError {
			w.tools[i].Errors++
		}
		w.find(done.Content)
		if peer, ok := peers[e.ToolCallID]; ok {
			w.answers = append(w.answers, answer{peer: peer, text: done.Content})
		}
	}
	return nil
}

// find notes the artifacts a text names.
func (w *work) find(text string) {
	for _, key := range artifactKey.FindAllString(text, -1) {
		if k := session.ArtifactKey(key); len(w.artifacts) < maxArtifacts && !slices.Contains(w.artifacts, k) {
			w.artifacts = append(w.artifacts, k)
		}
	}
}

// envelope makes a child's result of its work and the way its turn ended, and the artifact that holds the text when it is
// longer than a model is shown at once.
func (w work) envelope(id session.ID, c Child, reason string, out session.Outcome) (Envelope, []session.Artifact) {
	env := Envelope{ID: id, Agent: c.Agent, State: reason, Artifacts: w.artifacts, Usage: out.Usage, Tools: w.tools}
	if reason == "" {
		env.State = string(session.StateCompleted)
	}
	output := out.Output
	if output == "" {
		output = w.output
	}
	var text strings.Builder
	if reason != "" {
		env.Error = out.Error
		fmt.Fprintf(&text, "It ended without finishing (%s): %s\n", reason, out.Error)
		if output != "" {
			text.WriteString("Its last words were:\n")
		}
	}
	text.WriteString(output)
	for _, a := range w.answers {
		fmt.Fprintf(&text, "\n\nAfter that, %q had answered it:\n%s", a.peer, a.text)
	}
	var tail strings.Builder
	if len(env.Artifacts) > 0 {
		fmt.Fprintf(&tail, "\nartifacts: %s", join(env.Artifacts))
	}
	if len(env.Tools) > 0 {
		var uses []string
		for _, t := range env.Tools {
			use := fmt.Sprintf("%s %d", t.Name, t.Calls)
			if t.Errors > 0 {
				use += fmt.Sprintf(" (%d failed)", t.Errors)
			}
			uses = append(uses, use)
		}
		fmt.Fprintf(&tail, "\ntool calls: %s", strings.Join(uses, ", "))
	}
	if u := env.Usage; u.ModelCalls > 0 || u.InputTokens > 0 || u.OutputTokens > 0 {
		fmt.Fprintf(&tail, "\nusage: %d model calls, %d input and %d output tokens", u.ModelCalls, u.InputTokens, u.OutputTokens)
	}
	full := text.String()
	budget := session.InlineBudget - tail.Len() - 1
	if len(full) <= budget {
		env.Text = strings.TrimSpace(full + "\n" + tail.String())
		return env, nil
	}
	key := session.ArtifactKeyFor(c.ToolCall, fmt.Sprintf("result of run %d", c.Run))
	// The note about what is left out needs room too.
	env.Text = session.Shorten(full, budget-200, key) + "\n" + tail.String()
	env.Artifacts = append(env.Artifacts, key)
	return env, []session.Artifact{{Key: key, Name: "result of " + c.Agent, MediaType: "text/plain; charset=utf-8", Data: []byte(full)}}
}

// report is what a tool call of the parent returns of a child's result.
func (e Envelope) report(description string) string {
	return fmt.Sprintf("Subagent %s (agent %q, %q): %s\n%s", e.ID, e.Agent, description, e.State, session.AsData(e.Agent, e.Text))
}

func join[T ~string](list []T) string {
	parts := make([]string, len(list))
	for i, s := range list {
		parts[i] = string(s)
	}
	return strings.Join(parts, ", ")
}
