package sessionclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"orchestrator/session"
)

// HTTPConfig configures an [HTTP].
type HTTPConfig struct {
	// URL is the server's, without /v1. Required.
	URL string
	// Key is the API key. May be empty where the server asks for none.
	Key string
	// Client makes the requests. It must not have a timeout, which would cut streams. Defaults to one of its own.
	Client *http.Client
	// RequestTimeout bounds every request but streams, beyond what the server was asked to wait. Defaults to 30 seconds.
	RequestTimeout time.Duration
	// SilenceTimeout is how long a stream may bring nothing before its connection is taken for dead. The server sends a
	// comment every 15 seconds. Defaults to 45 seconds.
	SilenceTimeout time.Duration
	// MaxBytes bounds one event, and one answer. Defaults to 32 MiB.
	MaxBytes int
}

// HTTP is the [Backend] over the HTTP session API, and its other calls. Its methods may be called from any goroutine.
type HTTP struct {
	cfg  HTTPConfig
	base string
}

var _ Backend = (*HTTP)(nil)

// NewHTTP returns a client of a server. It does nothing until it is used.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("the server's URL is %q; it must begin with http:// or https:// and a host", cfg.URL)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, errors.New("the server's URL must have no user, query or fragment")
	}
	if cfg.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 16
		cfg.Client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the key is for this server alone
		}}
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 30*time.Second)
	cfg.SilenceTimeout = cmp.Or(cfg.SilenceTimeout, 45*time.Second)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 32<<20)
	return &HTTP{cfg: cfg, base: strings.TrimSuffix(u.String(), "/") + "/v1/"}, nil
}

// Close closes the connections that are not in use.
func (h *HTTP) Close() { h.cfg.Client.CloseIdleConnections() }

// APIError is an answer of the server that says no.
type APIError struct {
	Status int    // of HTTP
	Code   string // stable; empty when the answer was none of the API's
	Title  string
	Detail string
	// RetryAfter is how long the server asks to wait before the next try.
	RetryAfter time.Duration
}

func (e *APIError) Error() string {
	text := cmp.Or(e.Detail, e.Title, http.StatusText(e.Status))
	return fmt.Sprintf("the server says: %s (%d %s)", text, e.Status, cmp.Or(e.Code, "without a code"))
}

// Permanent reports whether trying again doesn't mend it.
func (e *APIError) Permanent() bool {
	switch {
	case e.Status == http.StatusTooManyRequests:
		return e.Code == "queue_full" // the caller had better know
	case e.Status == http.StatusRequestTimeout, e.Status == http.StatusTooEarly:
		return false
	}
	return e.Status < 500 || e.Status == http.StatusNotImplemented
}

// Is makes errors.Is true for what a Manager in the same process would say.
func (e *APIError) Is(target error) bool {
	switch target {
	case session.ErrNotFound:
		return e.Code == "not_found"
	case session.ErrSessionClosed:
		return e.Code == "session_closed"
	case session.ErrBusy:
		return e.Code == "busy"
	case session.ErrQueueFull:
		return e.Code == "queue_full"
	case session.ErrKeyReused:
		return e.Code == "key_reused"
	case session.ErrStopping:
		return e.Code == "stopping"
	}
	return false
}

// Look implements [Backend].
func (h *HTTP) Look(ctx context.Context, id session.ID) (Look, error) {
	snap, err := h.Session(ctx, id)
	return Look{RootAgentID: snap.Root, LastSeq: snap.LastSeq, Resumable: true}, err
}

// Send implements [Backend].
func (h *HTTP) Send(ctx context.Context, r SendRequest) (t session.TurnInfo, err error) {
	body := map[string]any{"input": r.Input}
	if r.OnBusy != "" {
		body["onBusy"] = r.OnBusy
	}
	return t, h.call(ctx, request{method: http.MethodPost, path: segments("sessions", r.Session, "turns"), body: body, key: r.Key}, &t)
}

// Turn implements [Backend].
func (h *HTTP) Turn(ctx context.Context, r TurnRequest) (t session.TurnInfo, err error) {
	query := url.Values{}
	if r.Wait > 0 {
		query.Set("wait", r.Wait.String())
	}
	if r.Until != "" {
		query.Set("until", string(r.Until))
	}
	return t, h.call(ctx, request{path: segments("sessions", r.Session, "turns", r.Turn), query: query, wait: r.Wait}, &t)
}

// Cancel implements [Backend].
func (h *HTTP) Cancel(ctx context.Context, id session.ID, turn session.TurnID, reason string) error {
	return h.call(ctx, request{method: http.MethodPost, path: segments("sessions", id, "turns", turn, "cancel"), body: reasonBody(reason)}, nil)
}

func reasonBody(reason string) any {
	if reason == "" {
		return nil
	}
	return map[string]any{"reason": reason}
}

// Stream implements [Backend].
func (h *HTTP) Stream(ctx context.Context, r StreamRequest) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		err := h.stream(ctx, r, func(e session.Event) bool { return yield(e, nil) })
		if err == nil {
			return // the loop was left
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		yield(session.Event{}, err)
	}
}

// streamType is the media type of streams.
const streamType = "text/event-stream"

// stream calls take with the events of one connection until it says false, which is no error.
func (h *HTTP) stream(ctx context.Context, r StreamRequest, take func(session.Event) bool) error {
	query := url.Values{"after": {strconv.FormatUint(r.After, 10)}}
	if r.Ephemeral {
		query.Set("ephemeral", "true")
	}
	if len(r.Types) > 0 {
		types := make([]string, len(r.Types))
		for i, t := range r.Types {
			types[i] = string(t)
		}
		query.Set("types", strings.Join(types, ","))
	}
	if r.RootOnly {
		query.Set("scope", "root")
	}
	conn, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(h.cfg.SilenceTimeout, func() {
		cancel(fmt.Errorf("the server has said nothing for %s", h.cfg.SilenceTimeout))
	})
	defer silence.Stop()
	res, err := h.do(conn, request{path: segments("sessions", r.Session, "events"), query: query, accept: streamType})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != streamType {
		return fmt.Errorf("the server answers with %q instead of a stream", kind)
	}
	frames := newFrameReader(heard{res.Body, func() { silence.Reset(h.cfg.SilenceTimeout) }}, h.cfg.MaxBytes)
	for {
		f, err := frames.next()
		switch {
		case err != nil && conn.Err() != nil:
			return context.Cause(conn)
		case errors.Is(err, io.EOF):
			return errCut
		case err != nil:
			return fmt.Errorf("read the stream: %w", err)
		}
		e, err := decodeFrame(f, r.Session)
		if err != nil {
			return err
		}
		if err := h.resolve(conn, &e); err != nil {
			return err
		}
		if e.Type != "" && !take(e) {
			return nil
		}
	}
}

// decodeFrame returns the event of a frame, one without a type when the frame is of no interest, or an error at the stream's
// end.
func decodeFrame(f frame, id session.ID) (e session.Event, err error) {
	switch kind := session.EventType(f.event); kind {
	case EventStreamOpen, EventStreamReset:
		if !json.Valid(f.data) {
			return e, fmt.Errorf("decode %s: it is not JSON", kind)
		}
		return session.Event{Type: kind, SessionID: id, Ephemeral: true, Data: f.data}, nil
	case "stream.end":
		var end struct {
			Reason string `json:"reason"`
		}
		if err := json.Unmarshal(f.data, &end); err != nil {
			return e, fmt.Errorf("decode %s: %w", kind, err)
		}
		switch end.Reason {
		case "deleted":
			return e, &PermanentError{fmt.Errorf("the session was deleted: %w", session.ErrNotFound)}
		case "revoked":
			return e, &PermanentError{errors.New("the API key was revoked")}
		}
		return e, fmt.Errorf("the server ended the stream: %s", end.Reason)
	default:
		if strings.HasPrefix(f.event, "stream.") {
			return e, nil // of a newer server
		}
	}
	if err := json.Unmarshal(f.data, &e); err != nil {
		return e, fmt.Errorf("decode an event: %w", err)
	}
	if e.Type == "" {
		return e, errors.New("decode an event: it has no type")
	}
	return e, nil
}

// heard calls f whenever something was read.
type heard struct {
	r io.Reader
	f func()
}

func (h heard) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if n > 0 {
		h.f()
	}
	return n, err
}

// resolve gives an event its body back when it was too large for the log.
func (h *HTTP) resolve(ctx context.Context, e *session.Event) error {
	if len(e.Data) > 200 || !bytes.Contains(e.Data, []byte(`"artifact"`)) {
		return nil
	}
	var elsewhere struct {
		Artifact session.ArtifactKey `json:"artifact"`
	}
	if json.Unmarshal(e.Data, &elsewhere) != nil || elsewhere.Artifact != session.ArtifactKey("x_"+string(e.ID)) {
		return nil
	}
	data, err := h.Artifact(ctx, e.SessionID, elsewhere.Artifact)
	if err != nil {
		return fmt.Errorf("read the body of event %s: %w", e.ID, err)
	}
	e.Data = data
	return nil
}

// request is one request to the API.
type request struct {
	method string // default GET
	path   string
	query  url.Values
	body   any // nil: none
	key    string
	accept string
	wait   time.Duration // that the server was asked for
}

// segments returns a path of escaped segments.
func segments(parts ...any) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		b.WriteString(url.PathEscape(fmt.Sprint(p)))
	}
	return b.String()
}

// call makes a request and decodes its answer into out, unless that is nil.
func (h *HTTP) call(ctx context.Context, r request, out any) error {
	data, err := h.read(ctx, r)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &PermanentError{fmt.Errorf("decode the answer to %s %s: %w", cmp.Or(r.method, "GET"), r.path, err)}
	}
	return nil
}

// read makes a request and returns the body of its answer.
func (h *HTTP) read(ctx context.Context, r request) ([]byte, error) {
	bound := h.cfg.RequestTimeout + r.wait
	bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no answer within %s", bound))
	defer cancel()
	res, err := h.do(bounded, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, int64(h.cfg.MaxBytes)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer to %s %s: %w", cmp.Or(r.method, "GET"), r.path, cmp.Or(context.Cause(bounded), err))
	case len(data) > h.cfg.MaxBytes:
		return nil, &PermanentError{fmt.Errorf("the answer to %s %s has over %d bytes", cmp.Or(r.method, "GET"), r.path, h.cfg.MaxBytes)}
	}
	return data, nil
}

// do makes a request and returns its answer if it is a good one.
func (h *HTTP) do(ctx context.Context, r request) (*http.Response, error) {
	target := h.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, &PermanentError{fmt.Errorf("encode a request: %w", err)}
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.method, http.MethodGet), target, body)
	if err != nil {
		return nil, &PermanentError{err}
	}
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	if r.accept == streamType {
		req.Header.Set("Accept-Encoding", "identity") // what compresses holds back
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	if h.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+h.cfg.Key)
	}
	res, err := h.cfg.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // it repeats the URL
		}
		return nil, fmt.Errorf("%s %s: %w", req.Method, r.path, err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer res.Body.Close()
		return nil, problem(res)
	}
	return res, nil
}

// problem returns the error that an answer is.
func problem(res *http.Response) error {
	e := &APIError{Status: res.StatusCode}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return e // the status says enough
	}
	var body struct {
		Code, Title, Detail string
		Errors              []struct{ Message, Location string }
	}
	if json.Unmarshal(data, &body) != nil {
		return e
	}
	e.Code, e.Title, e.Detail = body.Code, body.Title, body.Detail
	for _, f := range body.Errors {
		e.Detail += "; " + strings.TrimPrefix(f.Location+": "+f.Message, ": ")
	}
	return e
}
