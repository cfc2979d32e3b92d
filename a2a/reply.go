package a2a

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/session"
	"orchestrator/tracker"
)

// assembly is what a peer has said so far about one message: a task in the making, or a message.
type assembly struct {
	taskID    string
	contextID string
	state     protocol.TaskState // empty: it answered with a message, or nothing is known yet
	message   *protocol.Message  // the direct answer
	status    *protocol.Message
	stamp     time.Time         // of the status
	earlier   *protocol.Message // the agent's last message before the status
	artifacts []*protocol.Artifact
	whole     bool // nothing of the task was missed
	limit     int  // of size
	size      int
	cut       bool // something was left out for its size
}

// add takes one event and returns a line that tells of it, or nothing.
func (a *assembly) add(ev protocol.Event) (progress string) {
	switch e := ev.(type) {
	case *protocol.Message:
		e.Parts = a.fitting(e.Parts)
		a.message, a.contextID = e, e.ContextID
		return ""
	case *protocol.Task:
		*a = assembly{taskID: string(e.ID), contextID: e.ContextID, whole: true, limit: a.limit}
		a.setStatus(e.Status)
		a.earlier = nil
		for _, m := range e.History {
			if m != nil && m.Role == protocol.MessageRoleAgent && (a.status == nil || m.ID != a.status.ID) {
				a.earlier = m
			}
		}
		for _, art := range e.Artifacts {
			if art != nil {
				art.Parts = a.fitting(art.Parts)
				a.artifacts = append(a.artifacts, art)
			}
		}
		if a.earlier != nil {
			a.earlier.Parts = a.fitting(a.earlier.Parts)
		}
	case *protocol.TaskStatusUpdateEvent:
		a.taskID, a.contextID = string(e.TaskID), e.ContextID
		a.setStatus(e.Status)
	case *protocol.TaskArtifactUpdateEvent:
		a.taskID, a.contextID = string(e.TaskID), e.ContextID
		if e.Artifact == nil {
			return ""
		}
		e.Artifact.Parts = a.fitting(e.Artifact.Parts)
		for i, art := range a.artifacts {
			if art.ID != e.Artifact.ID {
				continue
			}
			if !e.Append {
				a.artifacts[i] = e.Artifact
				return ""
			}
			merged := *art
			merged.Parts = append(append(protocol.ContentParts(nil), art.Parts...), e.Artifact.Parts...)
			a.artifacts[i] = &merged
			return ""
		}
		a.artifacts = append(a.artifacts, e.Artifact)
		return ""
	}
	if a.status != nil && !a.state.Terminal() {
		return strings.TrimSpace(plainText(a.status.Parts))
	}
	return ""
}

func (a *assembly) setStatus(s protocol.TaskStatus) {
	if a.status != nil && (s.Message == nil || s.Message.ID != a.status.ID) {
		a.earlier = a.status
	}
	a.state, a.status = s.State, s.Message
	if a.status != nil {
		a.status.Parts = a.fitting(a.status.Parts)
	}
	a.stamp = time.Time{}
	if s.Timestamp != nil {
		a.stamp = *s.Timestamp
	}
}

// mark names the status, so that the same one is known when it is seen again.
func (a *assembly) mark() string {
	id := ""
	if a.status != nil {
		id = a.status.ID
	}
	if id == "" && a.stamp.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s %s %s", a.state, id, a.stamp.UTC().Format(time.RFC3339Nano))
}

// fitting counts parts and returns those that may be kept.
func (a *assembly) fitting(parts protocol.ContentParts) protocol.ContentParts {
	kept := parts[:0]
	for _, p := range parts {
		if p == nil {
			continue
		}
		n := 0
		switch c := p.Content.(type) {
		case protocol.Text:
			n = len(c)
		case protocol.Raw:
			n = len(c)
		case protocol.URL:
			n = len(c)
		case protocol.Data:
			b, err := json.Marshal(c.Value)
			if err != nil {
				continue // what came as JSON marshals
			}
			n = len(b)
		}
		if a.size+n > a.limit {
			a.cut = true
			continue
		}
		a.size += n
		kept = append(kept, p)
	}
	return kept
}

// reply returns all of it as a reply, and the files among it as artifacts whose keys derive from the tool call.
func (a *assembly) reply(call session.ToolCallID) (tracker.Reply, []session.Artifact) {
	r := tracker.Reply{State: stateName(a.state), TaskID: a.taskID, ContextID: a.contextID}
	w := writer{call: call}
	if a.message != nil {
		r.State = "completed"
		w.parts("", a.message.Parts)
	}
	if a.status != nil {
		w.parts("", a.status.Parts)
	}
	for _, art := range a.artifacts {
		w.artifact(art)
	}
	if a.earlier != nil {
		head := ""
		if w.text.Len() > 0 {
			head = "Its message before:"
		}
		w.parts(head, a.earlier.Parts)
	}
	if a.cut {
		w.paragraph(fmt.Sprintf("[part of the answer was left out: it is over %d bytes]", a.limit))
	}
	r.Text, r.Data = w.text.String(), w.data
	return r, w.files
}

// stateName is a task's state as a reply names it.
func stateName(s protocol.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}

// plainText is the text of a message, each part on lines of its own.
func plainText(parts protocol.ContentParts) string {
	var t lines
	for _, p := range parts {
		if p != nil && p.Text() != "" {
			t.add(p.Text())
		}
	}
	return t.String()
}

// artifactText is the text of an artifact or of a piece of one.
func artifactText(parts protocol.ContentParts) string {
	t := lines{flowing: true}
	for _, p := range parts {
		switch {
		case p == nil:
		case p.Text() != "":
			t.part(p)
		default:
			t.last = nil
		}
	}
	return t.String()
}

// lines puts texts together. In a message each part is on lines of its own. In an artifact a text goes on right where the
// text part before it ended, if both are of one kind: pieces that were streamed, and may end within a word, are parts like
// others once the artifact is fetched as a whole, and a reply has to read the same whichever way it came.
type lines struct {
	strings.Builder
	flowing bool           // the texts are an artifact's
	last    *protocol.Part // the text part that was added last, if a text part can go on with it
}

// part adds a text part.
func (l *lines) part(p *protocol.Part) {
	if l.flowing && l.last != nil && l.last.MediaType == p.MediaType && l.last.Filename == p.Filename {
		l.WriteString(p.Text())
	} else {
		l.add(p.Text())
	}
	l.last = p
}

// add adds a text on lines of its own.
func (l *lines) add(s string) {
	if l.Len() > 0 {
		l.WriteByte('\n')
	}
	l.WriteString(s)
	l.last = nil
}

// writer sorts parts into a reply's text, data and files.
type writer struct {
	call  session.ToolCallID
	text  strings.Builder
	seen  map[string]bool // paragraphs, so that what is said twice is read once
	data  []json.RawMessage
	files []session.Artifact
}

func (w *writer) paragraph(s string) {
	s = strings.TrimSpace(s)
	if s == "" || w.seen[s] {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[s] = true
	if w.text.Len() > 0 {
		w.text.WriteString("\n\n")
	}
	w.text.WriteString(s)
}

func (w *writer) artifact(a *protocol.Artifact) {
	head := ""
	if a.Name != "" || a.Description != "" {
		head = strings.TrimSpace(fmt.Sprintf("Artifact %q. %s", a.Name, a.Description))
	}
	w.write(head, a.Parts, lines{flowing: true})
}

// parts writes a message's parts under a head, which stands only over text.
func (w *writer) parts(head string, parts protocol.ContentParts) { w.write(head, parts, lines{}) }

func (w *writer) write(head string, parts protocol.ContentParts, text lines) {
	for _, p := range parts {
		if p == nil {
			continue
		}
		switch c := p.Content.(type) {
		case protocol.Text:
			text.part(p)
		case protocol.URL:
			text.add(fmt.Sprintf("[file %s: %s]", fileName(p), c))
		case protocol.Data:
			b, err := json.Marshal(c.Value)
			if err == nil {
				w.data = append(w.data, b)
			}
			text.last = nil
		case protocol.Raw:
			key := session.ArtifactKeyFor(w.call, fmt.Sprintf("file %d", len(w.files)+1))
			w.files = append(w.files, session.Artifact{Key: key, Name: p.Filename, MediaType: p.MediaType, Data: c})
			text.add(fmt.Sprintf("[file %s, %d bytes: read_artifact {\"key\": %q}]", fileName(p), len(c), key))
		}
	}
	body := strings.TrimSpace(text.String())
	if body == "" || w.seen[body] {
		return
	}
	if head == "" {
		w.paragraph(body)
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[body] = true
	w.paragraph(head + "\n" + body)
}

func fileName(p *protocol.Part) string {
	name := "without a name"
	if p.Filename != "" {
		name = fmt.Sprintf("%q", p.Filename)
	}
	if p.MediaType != "" {
		name += " (" + p.MediaType + ")"
	}
	return name
}
