package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"orchestrator/httpapi"
	"orchestrator/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an API over a Manager whose turns do what their inputs say: "say X" ends with the output X, "fail X" fails, "wait"
// ends when the test opens the gate, "deltas N" tells N deltas.
type world struct {
	t    testing.TB
	m    *session.Manager
	api  *httpapi.API
	keys *httpapi.Keys
	url  string
	http *http.Client
	stop func() // stops the server and the Manager; may be called twice

	mu    sync.Mutex
	gates map[session.TurnID]chan struct{}
}

// worldConfig changes the world of a test.
type worldConfig struct {
	store session.Store // defaults to a Memory of its own
	edit  func(*httpapi.Config)
	// serve starts the server; nil: httptest's.
	serve func(h http.Handler) *httptest.Server
}

func newWorld(t testing.TB, c worldConfig) *world {
	t.Helper()
	w := &world{t: t, gates: make(map[session.TurnID]chan struct{}), http: http.DefaultClient}
	if c.store == nil {
		c.store = session.NewMemory()
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	if w.m, err = session.NewManager(session.Config{Store: c.store, Logger: log}); err != nil {
		t.Fatal(err)
	}
	w.m.Use(session.Hooks{
		Runner: w,
		Prepare: func(_ context.Context, _ session.Record, body session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: body.Agent, Model: "m", Instructions: "secret-instructions"}, nil
		},
		Fold: func(context.Context, session.ID, []session.Record) (session.Folded, error) {
			return session.Folded{Text: "say folded"}, nil
		},
		FoldFailed: func(context.Context, session.ID, []session.Record, string) string { return "failed" },
		Live: map[session.Kind][]session.State{
			session.KindChild: {session.StateRunning}, session.KindCall: {"waiting"},
		},
		Pending:       []session.State{"waiting"},
		DescribeAgent: describe[session.AgentInfo](func(a *session.AgentInfo, s session.State) { a.State = s }),
		DescribeCall:  describe[session.CallInfo](func(c *session.CallInfo, s session.State) { c.State = s }),
		CancelAgent: func(ctx context.Context, id session.ID, _ string) error {
			return w.endRecord(ctx, session.KindChild, string(id), session.StateEnded)
		},
		CancelCall: func(ctx context.Context, id session.CallID, _ string) error {
			return w.endRecord(ctx, session.KindCall, string(id), "cancelled")
		},
	})
	if err := w.m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.keys, err = httpapi.OpenKeys(filepath.Join(t.TempDir(), "keys.json"), log); err != nil {
		t.Fatal(err)
	}
	cfg := httpapi.Config{Manager: w.m, Agents: []string{"primary", "other"}, Keys: w.keys, Logger: log, Rate: -1}
	if c.edit != nil {
		c.edit(&cfg)
	}
	if w.api, err = httpapi.New(cfg); err != nil {
		t.Fatal(err)
	}
	if c.serve == nil {
		c.serve = func(h http.Handler) *httptest.Server { return httptest.NewServer(h) }
	}
	server := c.serve(w.api)
	w.url = server.URL
	w.stop = sync.OnceFunc(func() {
		w.open()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := errors.Join(w.api.Drain(ctx), w.m.Stop(ctx)); err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
		w.http.CloseIdleConnections()
	})
	t.Cleanup(w.stop)
	return w
}

// describe returns a Describe hook for records whose bodies are what is shown.
func describe[T any](set func(*T, session.State)) func(session.Record) (T, error) {
	return func(r session.Record) (T, error) {
		var v T
		err := r.Decode(&v)
		set(&v, r.State)
		return v, err
	}
}

func (w *world) endRecord(ctx context.Context, kind session.Kind, key string, to session.State) error {
	rec, err := w.m.Store().Record(ctx, kind, key)
	if err != nil || rec.State == to {
		return err
	}
	_, err = w.m.Store().Commit(ctx, session.Batch{Tree: rec.Tree, Changes: []session.Change{rec.Update(to, nil)}})
	return err
}

// RunTurn implements session.TurnRunner.
func (w *world) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	input, err := w.input(ctx, t)
	if err != nil {
		return session.Outcome{}, err
	}
	verb, rest, _ := strings.Cut(input, " ")
	out := session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: rest, StopReason: "end_turn", Usage: session.Usage{InputTokens: 2, OutputTokens: 3}}}
	switch verb {
	case "wait":
		select {
		case <-w.gate(t.Turn):
		case <-ctx.Done():
			if _, ok := errors.AsType[*session.TurnCancelledError](context.Cause(ctx)); !ok {
				return session.Outcome{}, session.ErrStopping
			}
			out.State, out.Error = session.StateCancelled, context.Cause(ctx).Error()
		}
	case "fail":
		out.State, out.Output, out.Error = session.StateFailed, "", rest
	case "deltas":
		n, _ := strconv.Atoi(rest)
		for i := range n {
			t.Tree().Publish(t.Event(session.EventMessageDelta, session.Delta{MessageID: "m_1", Text: fmt.Sprint(i)}))
		}
	}
	_, err = t.Commit(ctx, session.Batch{Events: []session.Event{t.Event(session.EventMessageCompleted, session.Message{
		MessageID: session.NewMessageID(), Role: session.RoleAssistant, Text: out.Output,
	})}})
	if errors.Is(err, session.ErrTurnEnded) || ctx.Err() != nil {
		err = nil
	}
	return out, err
}

func (w *world) input(ctx context.Context, t *session.Turn) (string, error) {
	last, err := w.m.Store().Events(ctx, session.EventQuery{
		Tree: t.Root, Agent: t.Agent, Types: []session.EventType{session.EventMessageCompleted}, Limit: 1, Last: true,
	})
	if err != nil || len(last) == 0 {
		return "", err
	}
	if err := session.Resolve(ctx, w.m.Store(), &last[0]); err != nil {
		return "", err
	}
	var m session.Message
	err = last[0].Decode(&m)
	return m.Text, err
}

func (w *world) gate(id session.TurnID) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates[id] == nil {
		w.gates[id] = make(chan struct{})
	}
	return w.gates[id]
}

// open lets the turns go on, all that wait now when none is named.
func (w *world) open(ids ...session.TurnID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(ids) == 0 {
		for id := range w.gates {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		if w.gates[id] == nil {
			w.gates[id] = make(chan struct{})
		}
		select {
		case <-w.gates[id]:
		default:
			close(w.gates[id])
		}
	}
}

// key makes an API key for a principal.
func (w *world) key(principal string) string {
	w.t.Helper()
	secret, _, err := w.keys.Create(principal, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return secret
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code() string {
	var p httpapi.Problem
	if json.Unmarshal(a.body, &p) != nil {
		return ""
	}
	return string(p.Code)
}

// do sends a request; headers are pairs.
func (w *world) do(method, path, body string, headers ...string) answer {
	w.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, r)
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, data}
}

// call sends a request that must be answered with a status, and decodes the answer into v, nil: not.
func (w *world) call(status int, v any, method, path, body string, headers ...string) answer {
	w.t.Helper()
	a := w.do(method, path, body, headers...)
	if a.status != status {
		w.t.Fatalf("%s %s = %d %s, want %d", method, path, a.status, a.body, status)
	}
	if v != nil {
		if err := json.Unmarshal(a.body, v); err != nil {
			w.t.Fatalf("%s %s: %v in %s", method, path, err, a.body)
		}
	}
	return a
}

// session opens a session.
func (w *world) session(headers ...string) session.ID {
	w.t.Helper()
	var s session.Info
	w.call(http.StatusCreated, &s, http.MethodPost, "/v1/sessions", "", headers...)
	return s.ID
}

// turn gives a session an input and returns the turn when it has ended.
func (w *world) turn(id session.ID, input string, headers ...string) (turn session.TurnInfo) {
	w.t.Helper()
	path := "/v1/sessions/" + string(id) + "/turns"
	a := w.do(http.MethodPost, path+"?wait=30s", inputBody(input), headers...)
	for a.status < 300 {
		if err := json.Unmarshal(a.body, &turn); err != nil {
			w.t.Fatal(err)
		}
		if turn.Ended {
			return turn
		}
		a = w.do(http.MethodGet, path+"/"+string(turn.ID)+"?wait=30s", "", headers...) // the world may bound waits
	}
	w.t.Fatalf("turn %q = %d %s", input, a.status, a.body)
	return turn
}

func inputBody(input string) string {
	b, err := json.Marshal(map[string]string{"input": input})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// frame is one frame of a stream; a comment has the name ":".
type frame struct {
	id, name, data string
}

// eventStream reads a stream.
type eventStream struct {
	t      testing.TB
	res    *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// stream opens a stream; query begins with "?" when there is one.
func (w *world) stream(id session.ID, query string, headers ...string) *eventStream {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/sessions/"+string(id)+"/events"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &eventStream{t: w.t, res: res, lines: bufio.NewReader(res.Body), cancel: cancel}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("stream = %d %s", res.StatusCode, res.Header)
	}
	w.t.Cleanup(s.close)
	return s
}

func (s *eventStream) close() {
	s.cancel()
	s.res.Body.Close()
}

// next returns the next frame, and false at the end of the stream.
func (s *eventStream) next() (frame, bool) {
	s.t.Helper()
	var f frame
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return f, false
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "":
			if value != "" {
				f.name = ":"
			}
			if f.name != "" {
				return f, true
			}
		case "id":
			f.id = value
		case "event":
			f.name = value
		case "data":
			f.data = value
		}
	}
}

// until reads frames through the first of a name, which it returns.
func (s *eventStream) until(name string) frame {
	s.t.Helper()
	var seen bytes.Buffer
	for {
		f, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended before %s, after:\n%s", name, seen.String())
		}
		if f.name == name {
			return f
		}
		fmt.Fprintf(&seen, "%+v\n", f)
	}
}
