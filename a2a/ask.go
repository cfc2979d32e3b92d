package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// Question is what [Registry.Ask] asks a peer.
type Question struct {
	Peer    string
	Message string
	// Skill names one of the peer's skills. Empty leaves it to the peer.
	Skill string
	// TaskID goes on with a task of the peer's that waits for an input: it is the peer's own id. Empty begins a task.
	TaskID string
}

// HeardKind says what a [Heard] is.
type HeardKind string

// A peer tells of its task's state, of a piece of an artifact, and in the end the whole reply.
const (
	HeardStatus   HeardKind = "status"
	HeardArtifact HeardKind = "artifact"
	HeardReply    HeardKind = "reply"
)

// Heard is one thing a peer says while it works on a [Question], or its reply, which is the last.
type Heard struct {
	Kind   HeardKind `json:"type"`
	TaskID string    `json:"taskId,omitempty"` // the peer's; empty when it answers without a task
	State  string    `json:"state,omitempty"`  // of the task: working, input_required, completed, ...
	// Text, Data and Files are those of the status message, of the piece, or, in the reply, of what no artifact has told:
	// the last status message or the direct answer.
	Text  string            `json:"text,omitempty"`
	Data  []json.RawMessage `json:"data,omitempty"`
	Files []HeardFile       `json:"files,omitempty"`

	// Artifact and Name identify the artifact that a piece belongs to; Append says that the piece goes on with the one
	// before, else it is the artifact's beginning.
	Artifact string `json:"artifactId,omitempty"`
	Name     string `json:"name,omitempty"`
	Append   bool   `json:"append,omitempty"`
}

// HeardFile is a file that a peer sent: its bytes, or where they are.
type HeardFile struct {
	Name      string `json:"name,omitempty"`
	MediaType string `json:"mediaType,omitempty"`
	Data      []byte `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
}

// Ended reports whether the peer is done with the task, rather than waiting for something.
func (h Heard) Ended() bool {
	return h.Kind == HeardReply && h.State != "input_required" && h.State != "auth_required"
}

// Failed reports whether the reply says that the task came to nothing.
func (h Heard) Failed() bool {
	return h.Kind == HeardReply && (h.State == "failed" || h.State == "rejected" || h.State == "canceled")
}

// askCancelBudget is how long a peer has to say its task's id, and to answer CancelTask, once ctx has ended.
const askCancelBudget = 5 * time.Second

// Ask asks a peer outside any session and yields what it says, until its reply or an error. Nothing is kept of it: a reply
// that comes after the caller has gone is lost, which is what invoke_agent is for. A broken stream is taken up again, never
// sent again. When ctx ends first, or the caller stops listening, the peer is told to cancel; the error is then the cause,
// with what became of the telling.
func (r *Registry) Ask(ctx context.Context, q Question) iter.Seq2[Heard, error] {
	return func(yield func(Heard, error) bool) {
		if _, err := r.Lookup(q.Peer); err != nil {
			yield(Heard{}, err)
			return
		}
		client, err := r.connect(ctx, q.Peer)
		if err != nil {
			yield(Heard{}, fmt.Errorf("connect to peer '%s': %w", q.Peer, err))
			return
		}
		a := &asking{client: client, streaming: client.streaming, ctx: ctx, yield: yield, got: &assembly{whole: true, limit: askReplyLimit}}
		io, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		a.stop = stop
		// Once the caller wants no more the peer has a moment to name the task, without which it can't be cancelled.
		unhook := context.AfterFunc(ctx, a.interrupt)
		defer func() { unhook(); a.rest() }()
		if err := a.run(io, q); err != nil {
			if ctx.Err() != nil {
				err = errors.Join(context.Cause(ctx), a.cancel(io))
			}
			a.tell(Heard{}, err)
			return
		}
		if a.gone {
			_ = a.cancel(io) // nobody is there to be told
		}
	}
}

// askReplyLimit bounds what is kept of one reply.
const askReplyLimit = 10 << 20

// asking is one question on its way.
type asking struct {
	client    Client
	streaming bool
	ctx       context.Context //nolint:containedctx // of the one question
	stop      func()          // of the I/O
	yield     func(Heard, error) bool
	gone      bool // the caller has stopped listening
	got       *assembly
	mark      string // the status that was told
	seen      string // the question that is answered; some peers begin with it again
	done      bool

	told map[protocol.ArtifactID]int // how many parts of an artifact were told

	mu    sync.Mutex
	task  string
	grace *time.Timer // until which the peer may name the task
	over  bool
}

// interrupt stops the I/O, at once when there is a task to cancel.
func (a *asking) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
	case a.task != "":
		a.stop()
	default:
		a.grace = time.AfterFunc(askCancelBudget, a.stop)
	}
}

// rest stops the timer that interrupt may have started.
func (a *asking) rest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.grace != nil {
		a.grace.Stop()
	}
}

func (a *asking) taskID() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.task
}

// tell yields, unless the caller has stopped listening.
func (a *asking) tell(h Heard, err error) {
	if !a.gone {
		a.gone = !a.yield(h, err)
	}
}

// run asks and follows until the reply is told or the caller has gone (nil), or there can be none (an error).
func (a *asking) run(ctx context.Context, q Question) error {
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(q.Message))
	m.TaskID = protocol.TaskID(q.TaskID)
	if q.Skill != "" {
		m.SetMeta("skill", q.Skill)
	}
	if m.TaskID != "" {
		a.got.whole = false
		if t, err := a.client.GetTask(ctx, &protocol.GetTaskRequest{ID: m.TaskID}); err == nil {
			m.ContextID = t.ContextID // some want it repeated
			before := &assembly{limit: a.got.limit}
			before.add(t)
			a.seen = before.mark()
		}
	}
	req := &protocol.SendMessageRequest{Message: m}
	var err error
	if a.streaming {
		err = a.listen(ctx, a.client.SendStreamingMessage(ctx, req))
	} else {
		req.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
		var res protocol.SendMessageResult
		if res, err = a.client.SendMessage(ctx, req); err == nil {
			err = a.take(res)
		}
	}
	switch {
	case a.done, a.gone:
		return nil
	case a.ctx.Err() != nil:
		return context.Cause(a.ctx)
	case a.taskID() != "":
		return a.follow(ctx)
	case err == nil:
		err = errEnded
	}
	return fmt.Errorf("ask peer '%s': %w", q.Peer, err)
}

// listen takes what a stream yields until the reply is there.
func (a *asking) listen(ctx context.Context, stream iter.Seq2[protocol.Event, error]) error {
	for ev, err := range stream {
		if err != nil {
			return err
		}
		if err := a.take(ev); err != nil || a.done || a.gone || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// follow subscribes to a known task, and asks for it again and again when that doesn't work.
func (a *asking) follow(ctx context.Context) error {
	id := protocol.TaskID(a.taskID())
	pause := newPause(pollFirst, pollMost)
	for subscribe := a.streaming; ; {
		if subscribe {
			before := a.mark
			err := a.listen(ctx, a.client.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: id}))
			subscribe = err == nil || before != a.mark
		}
		if !a.done && !a.gone && a.ctx.Err() == nil {
			t, err := a.client.GetTask(ctx, &protocol.GetTaskRequest{ID: id})
			switch {
			case err == nil:
				if err := a.take(t); err != nil {
					return err
				}
			case outcomeOf(err).peers:
				return fmt.Errorf("ask for task %s: %w", id, err)
			}
		}
		switch {
		case a.done, a.gone:
			return nil
		case a.ctx.Err() != nil:
			return context.Cause(a.ctx)
		}
		if err := sleep(a.ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

// take tells of one thing the peer said.
func (a *asking) take(ev protocol.Event) error {
	if ev == nil {
		return nil
	}
	progress := a.got.add(ev)
	a.mu.Lock()
	a.task = a.got.taskID
	a.mu.Unlock()
	switch e := ev.(type) {
	case *protocol.TaskArtifactUpdateEvent:
		if e.Artifact != nil {
			if !e.Append {
				delete(a.told, e.Artifact.ID)
			}
			a.piece(e.Artifact, e.Artifact.Parts)
		}
	case *protocol.Task:
		for _, art := range a.got.artifacts {
			if n := min(a.told[art.ID], len(art.Parts)); n < len(art.Parts) {
				a.piece(art, art.Parts[n:])
			}
		}
	}
	switch {
	case a.got.state == protocol.TaskStateInputRequired && a.seen != "" && a.seen == a.got.mark():
	case a.got.message != nil, a.got.state.Terminal(), a.got.state == protocol.TaskStateInputRequired:
		a.done = true
		a.tell(a.reply(), nil)
	case a.got.state != "" && a.mark != a.got.mark()+string(a.got.state):
		a.mark = a.got.mark() + string(a.got.state)
		a.tell(Heard{Kind: HeardStatus, TaskID: a.got.taskID, State: stateName(a.got.state), Text: progress}, nil)
	}
	if a.ctx.Err() != nil && !a.done {
		return context.Cause(a.ctx)
	}
	return nil
}

// piece tells of parts of an artifact.
func (a *asking) piece(art *protocol.Artifact, parts protocol.ContentParts) {
	h := heardParts(HeardArtifact, parts)
	h.TaskID, h.Artifact, h.Name, h.Append = a.got.taskID, string(art.ID), art.Name, a.told[art.ID] > 0
	for _, whole := range a.got.artifacts {
		if h.Append && whole.ID == art.ID {
			h.Name = whole.Name // what is appended is mostly sent without it
		}
	}
	if a.told == nil {
		a.told = make(map[protocol.ArtifactID]int)
	}
	a.told[art.ID] += len(parts)
	a.tell(h, nil)
}

// reply is the last thing heard.
func (a *asking) reply() Heard {
	said, state := a.got.message, "completed"
	if said == nil {
		said, state = a.got.status, stateName(a.got.state)
	}
	if said == nil && len(a.told) == 0 {
		said = a.got.earlier
	}
	h := Heard{Kind: HeardReply}
	if said != nil {
		h = heardParts(HeardReply, said.Parts)
	}
	h.TaskID, h.State = a.got.taskID, state
	if a.got.cut {
		h.Text = strings.TrimSpace(fmt.Sprintf("%s\n[part of the answer was left out: it is over %d bytes]", h.Text, a.got.limit))
	}
	return h
}

// heardParts sorts parts into text, data and files.
func heardParts(kind HeardKind, parts protocol.ContentParts) Heard {
	h := Heard{Kind: kind, Text: plainText(parts)}
	if kind == HeardArtifact {
		h.Text = artifactText(parts)
	}
	for _, p := range parts {
		if p == nil {
			continue
		}
		switch c := p.Content.(type) {
		case protocol.Data:
			if b, err := json.Marshal(c.Value); err == nil { // what came as JSON marshals
				h.Data = append(h.Data, b)
			}
		case protocol.Raw:
			h.Files = append(h.Files, HeardFile{Name: p.Filename, MediaType: p.MediaType, Data: c})
		case protocol.URL:
			h.Files = append(h.Files, HeardFile{Name: p.Filename, MediaType: p.MediaType, URL: string(c)})
		}
	}
	return h
}

// cancel tells the peer to stop, on a budget of its own.
func (a *asking) cancel(ctx context.Context) error {
	id := protocol.TaskID(a.taskID())
	if id == "" || a.done {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askCancelBudget)
	defer cancel()
	t, err := a.client.CancelTask(ctx, &protocol.CancelTaskRequest{ID: id})
	switch {
	case errors.Is(err, protocol.ErrTaskNotCancelable):
		return nil // it is over
	case err != nil:
		return fmt.Errorf("tell the peer to cancel task %s: %w", id, err)
	}
	a.tell(Heard{Kind: HeardStatus, TaskID: string(id), State: stateName(t.Status.State)}, nil)
	return nil
}
