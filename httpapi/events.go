package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"orchestrator/session"
)

// eventsInput says which events of a session are wanted.
type eventsInput struct {
	SessionPath
	After     string `query:"after" maxLength:"20" doc:"Only events behind this seq; now: behind the log's head. By default from the beginning."`
	LastEvent string `header:"Last-Event-ID" doc:"Of a stream: the id of the last event that was received. It goes before after."`
	Types     string `query:"types" maxLength:"2000" example:"turn.completed,turn.failed" doc:"Only events of these types, separated by commas."`
	Scope     string `query:"scope" enum:"all,root" default:"all" doc:"root: only the root agent's events."`
	Ephemeral bool   `query:"ephemeral" default:"true" doc:"Of a stream: deltas and progress too."`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Of a page: how many events at most."`
}

func eventsOp(o huma.Operation, api huma.API) huma.Operation {
	r := api.OpenAPI().Components.Schemas
	o.Responses = map[string]*huma.Response{"200": {
		Description: "With Accept: text/event-stream a stream of server-sent events, else a page. The stream's frames are named by the event's type and hold an Event; durable ones have its seq as id. Besides: stream.open {rootAgentId, headSeq, after} first; stream.reset {reason, headSeq} when the position is none of this log; stream.end {reason, lastSeq} last.",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: r.Schema(typeOf[EventPage](), true, "")},
			streamType:         {Schema: &huma.Schema{Type: "string"}},
		},
	}}
	return o
}

func (a *API) getEvents(ctx context.Context, r *request, in *eventsInput) (*huma.StreamResponse, error) {
	types, err := parseTypes(in.Types)
	if err != nil {
		return nil, err
	}
	info, err := a.info(ctx, r, in.Session)
	if err != nil {
		return nil, err
	}
	if r.stream {
		return a.openStream(r, in, types, info)
	}
	at := parsePosition(in.After)
	if at.gone {
		return nil, invalid("query.after", "a seq or now is expected")
	}
	if at.now {
		at.after = info.LastSeq
	}
	q := session.EventQuery{Tree: info.ID, After: at.after, Types: slices.Sorted(maps.Keys(types)), Limit: in.Limit}
	if in.Scope == "root" {
		q.Agent = info.ID
	}
	page, err := a.cfg.Manager.Page(ctx, q)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", "application/json")
		enc := json.NewEncoder(c.BodyWriter())
		enc.SetEscapeHTML(false)
		_ = enc.Encode(EventPage{Events: page.Events, NextAfter: page.Next, HeadSeq: page.Head, HasMore: page.More}) // the client is gone
	}}, nil
}

// The frames of a stream that are no events of the session.
const (
	frameOpen  = "stream.open"
	frameReset = "stream.reset"
	frameEnd   = "stream.end"
)

// The reasons a stream ends. The client's own end and a reader that is too slow can't be told to it.
const (
	endClient   = "client"
	endSlow     = "slow"
	endStopping = "stopping"
	endDeleted  = "deleted"
	endRevoked  = "revoked"
	endError    = "error"
)

type streamOpen struct {
	RootAgentID session.ID `json:"rootAgentId"`
	HeadSeq     uint64     `json:"headSeq"`
	After       uint64     `json:"after"`
}

type streamReset struct {
	Reason  string `json:"reason"`
	HeadSeq uint64 `json:"headSeq"`
}

type streamEnd struct {
	Reason  string `json:"reason"`
	LastSeq uint64 `json:"lastSeq"`
}

func (a *API) openStream(r *request, in *eventsInput, types map[session.EventType]bool, info session.Info) (*huma.StreamResponse, error) {
	if a.drained.Err() != nil {
		return nil, problem(codeStopping, "the server is stopping; try again in a moment")
	}
	at := parsePosition(in.After)
	if in.LastEvent != "" {
		at = parsePosition(in.LastEvent)
		at.gone = at.gone || at.now
	} else if at.gone {
		return nil, invalid("query.after", "a seq or now is expected")
	}
	s := &stream{
		a: a, r: r, info: info, types: types, root: in.Scope == "root", ephemeral: in.Ephemeral, after: at.after,
		reset: at.gone || at.after > info.LastSeq, checked: time.Now(),
	}
	if at.now || s.reset {
		s.after = info.LastSeq
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		if !a.streams.enter(r.principal.name) {
			_, w := humago.Unwrap(c)
			writeProblem(w, problem(codeTooManyStreams, "close some of your streams first"))
			return
		}
		defer a.streams.leave(r.principal.name)
		reason := s.run(c.Context())
		a.metrics.ended.WithLabelValues(reason).Inc()
	}}, nil
}

// stream sends one client a session's events.
type stream struct {
	a         *API
	r         *request
	info      session.Info
	types     map[session.EventType]bool // nil: all
	root      bool
	ephemeral bool
	after     uint64 // the position: the last durable event that was sent or left out
	reset     bool

	control *http.ResponseController
	buf     bytes.Buffer
	opened  bool
	pending bool // something was written since the last flush
	wrote   time.Time
	checked time.Time // that the key is valid
	failed  error
}

// run sends until the client goes, the server drains, or the session is deleted, and says which.
func (s *stream) run(ctx context.Context) string {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.a.drained, func() { cancel(session.ErrStopping) })
	defer stop()
	s.control = http.NewResponseController(s.r.http)
	if err := s.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return endClient
	}
	h := s.r.http.Header()
	h.Set("Content-Type", streamType)
	h.Set("X-Accel-Buffering", "no")
	s.r.http.WriteHeader(http.StatusOK)

	reason := endClient
	for e, err := range s.a.cfg.Manager.Subscribe(ctx, session.SubscribeRequest{
		Session: s.info.ID, After: s.after, Ephemeral: s.ephemeral, Beat: s.a.cfg.Heartbeat,
	}) {
		s.open()
		switch {
		case err != nil:
			if reason = s.reasonOf(ctx, err); reason != endClient {
				s.frame(frameEnd, 0, streamEnd{Reason: reason, LastSeq: s.after})
				s.flush()
			}
		case s.revoked():
			s.frame(frameEnd, 0, streamEnd{Reason: endRevoked, LastSeq: s.after})
			s.flush()
			return endRevoked
		case e.Type == "":
			s.beat()
		default:
			s.event(e)
		}
		if s.failed != nil {
			break
		}
	}
	if errors.Is(s.failed, os.ErrDeadlineExceeded) {
		s.a.log.InfoContext(ctx, "a reader was too slow and is disconnected", "session", s.info.ID, "after", s.after)
		return endSlow
	}
	if s.failed != nil {
		return endClient
	}
	return reason
}

// open sends the first frame; the subscription is live when it is called.
func (s *stream) open() {
	if s.opened {
		return
	}
	s.opened = true
	_, _ = s.buf.WriteString("retry: 1000\n") // a bytes.Buffer takes all
	s.frame(frameOpen, 0, streamOpen{RootAgentID: s.info.ID, HeadSeq: s.info.LastSeq, After: s.after})
	if s.reset {
		s.frame(frameReset, 0, streamReset{Reason: "unknown_position", HeadSeq: s.info.LastSeq})
	}
	s.flush()
}

// event sends an event unless it is not wanted.
func (s *stream) event(e session.Event) {
	if e.Seq > 0 {
		defer func() { s.after = e.Seq }()
	}
	if s.types != nil && !s.types[e.Type] || s.root && !e.Root {
		return
	}
	s.frame(string(e.Type), e.Seq, e)
	kind := "durable"
	if e.Ephemeral {
		kind = "ephemeral"
	}
	s.a.metrics.sent.WithLabelValues(kind).Inc()
}

// revoked reports, looking once a heartbeat, whether the client's key isn't valid any more.
func (s *stream) revoked() bool {
	key, now := s.r.principal.key, time.Now()
	if key == "" || now.Sub(s.checked) < s.a.cfg.Heartbeat {
		return false
	}
	s.checked = now
	return !s.a.cfg.Keys.Valid(key)
}

// beat sends what is waiting, or else a sign of life.
func (s *stream) beat() {
	if !s.pending && time.Since(s.wrote) >= s.a.cfg.Heartbeat/3 { // else there was something, though nothing that is wanted
		_, _ = s.buf.WriteString(": beat\n\n") // a bytes.Buffer takes all
		s.send()
	}
	if s.pending {
		s.flush()
	}
}

// frame writes one frame of the stream. An id of 0 is none.
func (s *stream) frame(name string, id uint64, data any) {
	if id > 0 {
		_, _ = s.buf.WriteString("id: " + strconv.FormatUint(id, 10) + "\n") // a bytes.Buffer takes all
	}
	_, _ = s.buf.WriteString("event: " + name + "\ndata: ")
	enc := json.NewEncoder(&s.buf) // it ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(data); err != nil {
		s.a.log.Error("an event can't be written", "session", s.info.ID, "type", name, "err", err)
		s.buf.Reset()
		s.failed = err
		return
	}
	_ = s.buf.WriteByte('\n')
	s.send()
}

// send gives what is in the buffer to the connection, which may block until the write timeout.
func (s *stream) send() {
	if s.failed == nil {
		s.failed = s.within(func() error {
			_, err := s.r.http.Write(s.buf.Bytes())
			return err
		})
	}
	s.pending, s.wrote = true, time.Now()
	if s.buf.Cap() > 64<<10 {
		s.buf = bytes.Buffer{}
	}
	s.buf.Reset()
}

func (s *stream) flush() {
	if s.failed == nil {
		s.failed = s.within(s.control.Flush)
	}
	s.pending = false
}

// within bounds a write.
func (s *stream) within(write func() error) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.a.cfg.WriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return write()
}

func (s *stream) reasonOf(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, session.ErrStopping), errors.Is(err, session.ErrClosed):
		return endStopping
	case errors.Is(err, session.ErrNotFound):
		return endDeleted
	case ctx.Err() != nil:
		return endClient
	}
	s.a.log.ErrorContext(ctx, "a stream broke off", "session", s.info.ID, "err", err)
	return endError
}
