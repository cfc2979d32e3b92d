package a2atest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// State is the state of a task, as it is on the wire.
type State string

// The states of a task.
const (
	Submitted     State = "TASK_STATE_SUBMITTED"
	Working       State = "TASK_STATE_WORKING"
	Completed     State = "TASK_STATE_COMPLETED"
	Failed        State = "TASK_STATE_FAILED"
	Canceled      State = "TASK_STATE_CANCELED"
	Rejected      State = "TASK_STATE_REJECTED"
	InputRequired State = "TASK_STATE_INPUT_REQUIRED"
	AuthRequired  State = "TASK_STATE_AUTH_REQUIRED"
)

// Part is a part of a message or an artifact.
type Part = protocol.Part

// TextPart returns a part of text.
func TextPart(s string) *Part { return protocol.NewTextPart(s) }

// DataPart returns a part of structured data.
func DataPart(v map[string]any) *Part { return protocol.NewDataPart(v) }

// FilePart returns a part with a file's bytes.
func FilePart(name, mediaType string, data []byte) *Part {
	p := protocol.NewRawPart(data)
	p.Filename, p.MediaType = name, mediaType
	return p
}

// LinkPart returns a part that refers to a file elsewhere.
func LinkPart(name, mediaType, url string) *Part {
	p := protocol.NewFileURLPart(protocol.URL(url), mediaType)
	p.Filename = name
	return p
}

// Exchange is one message and the peer's answer to it, in the hands of a script.
type Exchange struct {
	peer  *Peer
	ctx   context.Context //nolint:containedctx // of the one script run
	ec    *a2asrv.ExecutorContext
	yield func(protocol.Event, error) bool
	task  bool // a task exists
	over  bool // a final event was sent, or nobody listens any more
	token string
}

// Context ends when the peer is closed or the server gives the execution up.
func (x *Exchange) Context() context.Context { return x.ctx }

// Text returns the text of the message.
func (x *Exchange) Text() string { return text(x.ec.Message) }

// MessageID returns the id of the message; while a task is cancelled, of the one that began it.
func (x *Exchange) MessageID() string {
	switch {
	case x.ec.Message != nil:
		return x.ec.Message.ID
	case x.ec.StoredTask != nil && len(x.ec.StoredTask.History) > 0:
		return x.ec.StoredTask.History[0].ID
	}
	return ""
}

// TaskID returns the task's id.
func (x *Exchange) TaskID() string { return string(x.ec.TaskID) }

// FollowUp reports whether the message continues a task.
func (x *Exchange) FollowUp() bool { return x.ec.StoredTask != nil }

// Token returns a text that no other execution has, for the answer.
func (x *Exchange) Token() string {
	if x.token == "" {
		x.token = x.peer.cfg.Name + "-" + rand.Text()
	}
	return x.token
}

// Wait blocks until the gate opens, and reports whether it did before the script has to end.
func (x *Exchange) Wait(g *Gate) bool { return g.wait(x.ctx) }

// Sleep waits, and reports whether it waited to the end.
func (x *Exchange) Sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.ctx.Done():
		return false
	}
}

// Reply answers with a message, without a task.
func (x *Exchange) Reply(text string, parts ...*Part) {
	m := x.message(text, parts)
	m.TaskID = ""
	x.peer.answered(x, Completed, m)
	x.emit(m)
	x.over = true
}

// Submit makes the task, if there is none yet.
func (x *Exchange) Submit() {
	if !x.task {
		x.task = true
		x.emit(protocol.NewSubmittedTask(x.ec, x.ec.Message))
	}
}

// State brings the task into a state, with a status message unless there is nothing to say.
func (x *Exchange) State(s State, text string, parts ...*Part) {
	x.Submit()
	var m *protocol.Message
	if text != "" || len(parts) > 0 {
		m = x.message(text, parts)
	}
	state := protocol.TaskState(s)
	if state.Terminal() {
		x.peer.answered(x, s, nil)
	}
	x.emit(protocol.NewStatusUpdateEvent(x.ec, state, m))
	if state.Terminal() || s == InputRequired {
		x.over = true
	}
}

// Artifact adds an artifact to the task.
func (x *Exchange) Artifact(name string, parts ...*Part) {
	x.Submit()
	ev := protocol.NewArtifactEvent(x.ec, parts...)
	ev.Artifact.ID, ev.Artifact.Name = protocol.ArtifactID(name), name
	x.emit(ev)
}

// Append adds parts to an artifact of the task.
func (x *Exchange) Append(name string, parts ...*Part) {
	x.emit(protocol.NewArtifactUpdateEvent(x.ec, protocol.ArtifactID(name), parts...))
}

// Break ends the execution with an error instead of an event.
func (x *Exchange) Break(message string) {
	if !x.over {
		x.over = true
		x.yield(nil, errors.New(message))
	}
}

func (x *Exchange) message(text string, parts []*Part) *protocol.Message {
	var all []*Part
	if text != "" {
		all = append(all, TextPart(text))
	}
	return protocol.NewMessageForTask(protocol.MessageRoleAgent, x.ec, append(all, parts...)...)
}

func (x *Exchange) emit(ev protocol.Event) {
	if !x.over && !x.yield(ev, nil) {
		x.over = true
	}
}

// Entry is a line of a peer's record.
type Entry struct {
	Time      time.Time `json:"time"`
	Peer      string    `json:"peer"`
	Kind      string    `json:"kind"` // received or answered
	MessageID string    `json:"messageId,omitempty"`
	TaskID    string    `json:"taskId,omitempty"`
	ContextID string    `json:"contextId,omitempty"`
	State     State     `json:"state,omitempty"` // of an answer
	Token     string    `json:"token,omitempty"` // of an answer that used one
}

// The kinds of entry.
const (
	KindReceived = "received"
	KindAnswered = "answered"
)

// Record returns the peer's record.
func (p *Peer) Record() []Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Entry(nil), p.entries...)
}

func (p *Peer) received(x *Exchange) {
	p.record(x, Entry{Kind: KindReceived})
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.firsts[x.MessageID()]; ok && f.task == "" {
		f.task = x.ec.TaskID
		close(f.known)
	}
}

func (p *Peer) answered(x *Exchange, s State, reply *protocol.Message) {
	p.record(x, Entry{Kind: KindAnswered, State: s, Token: x.token})
	if reply == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.firsts[x.MessageID()]; ok {
		f.reply = reply
	}
}

func (p *Peer) record(x *Exchange, e Entry) {
	e.MessageID, e.TaskID, e.ContextID = x.MessageID(), x.TaskID(), x.ec.ContextID
	p.write(e)
}

// write adds an entry to the record.
func (p *Peer) write(e Entry) {
	e.Time, e.Peer = time.Now().UTC(), p.cfg.Name
	p.note(func() int {
		p.entries = append(p.entries, e)
		if p.cfg.Journal != nil {
			line, err := json.Marshal(e)
			if err == nil {
				_, err = p.cfg.Journal.Write(append(line, '\n'))
			}
			if err != nil {
				panic("a2atest: write the journal: " + err.Error())
			}
		}
		return 0
	})
}

// Words returns n words of about a kilobyte each, for answers that don't fit.
func Words(n int) string { return strings.Repeat(strings.Repeat("word ", 204)+"\n", n) }
