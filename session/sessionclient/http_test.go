package sessionclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire serves a [server] over HTTP as the session API has it. Whole servers are talked to in e2e.
type wire struct {
	*server

	t      *testing.T
	mu     sync.Mutex
	asked  []string // method, path and query of every request
	header []http.Header
	script func(w http.ResponseWriter, r *http.Request) bool // may answer itself
}

func (s *wire) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
	s.header = append(s.header, r.Header)
	script := s.script
	s.mu.Unlock()
	if script != nil && script(w, r) {
		return
	}
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/sessions/s"), "/")
	switch {
	case len(parts) == 1:
		look, _ := s.Look(r.Context(), "s")
		answer(200, map[string]any{"id": "s", "rootAgentId": look.RootAgentID, "lastSeq": look.LastSeq})
	case parts[1] == "events":
		after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		if err != nil {
			s.t.Errorf("after is %q", r.URL.Query().Get("after"))
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for e, err := range s.Stream(r.Context(), sessionclient.StreamRequest{Session: "s", After: after}) {
			if err != nil {
				return
			}
			data, _ := json.Marshal(e)
			switch {
			case strings.HasPrefix(string(e.Type), "stream."):
				fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Type, e.Data)
			default:
				fmt.Fprintf(w, ": beat\n\nid: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, data)
			}
			_ = http.NewResponseController(w).Flush()
		}
	case parts[1] == "turns" && r.Method == http.MethodPost && len(parts) == 2:
		var body struct{ Input string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		turn, _ := s.Send(r.Context(), sessionclient.SendRequest{Input: body.Input, Key: r.Header.Get("Idempotency-Key")})
		answer(202, turn)
	case parts[1] == "turns" && len(parts) == 3:
		turn, err := s.Turn(r.Context(), sessionclient.TurnRequest{Turn: session.TurnID(parts[2])})
		if err != nil {
			answer(404, map[string]any{"status": 404, "code": "not_found", "title": "Not Found", "detail": "there is no such turn"})
			return
		}
		answer(200, turn)
	case parts[1] == "turns":
		_ = s.Cancel(r.Context(), "s", session.TurnID(parts[2]), "")
		answer(202, map[string]any{})
	case parts[1] == "artifacts":
		_, _ = io.WriteString(w, `{"output":"a long answer"}`)
	default:
		s.t.Errorf("nobody asks %s %s", r.Method, r.URL)
	}
}

// overHTTP runs a test of a client of a server over HTTP, on pipes in a bubble.
func overHTTP(t *testing.T, srv *server, f func(t *testing.T, c *sessionclient.Session, h *sessionclient.HTTP, w *wire)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv.changed = make(chan struct{})
		w := &wire{server: srv, t: t}
		l := pipes{make(chan net.Conn), make(chan struct{})}
		s := &http.Server{Handler: w}
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(l) })
		client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
		h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: "http://server/", Key: "ork_1", Client: client})
		if err != nil {
			t.Fatal(err)
		}
		c, err := sessionclient.New(sessionclient.Config{Backend: h, Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		defer wg.Wait()
		defer s.Close()
		defer h.Close()
		defer c.Close()
		f(t, c, h, w)
	})
}

// pipes is a network of pipes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, errDown
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "server"} }

func TestHTTPWaitIsResumedOverCuts(t *testing.T) {
	srv := withTurns()
	srv.unread = true // only the stream can tell
	overHTTP(t, srv, func(t *testing.T, c *sessionclient.Session, _ *sessionclient.HTTP, w *wire) {
		var got sent
		var wg sync.WaitGroup
		wg.Go(func() { got.set(c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", Key: "k"})) })
		synctest.Wait()
		w.script = func(rw http.ResponseWriter, r *http.Request) bool { // a proxy that has lost its server
			if strings.Contains(r.URL.Path, "/turns/") {
				http.Error(rw, "bad gateway", http.StatusBadGateway)
				return true
			}
			return false
		}
		for i := range 10 {
			srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
			srv.cut(false, false)
			srv.emit(ends(session.TurnID(fmt.Sprint("other", i)), "another's answer"), true)
			time.Sleep(20 * time.Second) // longer than any pause, shorter than a silence that counts
		}
		if got.outcome() != "open" {
			t.Fatalf("the wait is over: %s", got.outcome())
		}
		srv.cut(false, false)
		srv.emit(ends("mine", "my answer"), true)
		wg.Wait()
		if got.outcome() != "reply: my answer" {
			t.Errorf("the wait: %s", got.outcome())
		}
		if srv.opened != 12 {
			t.Errorf("%d streams were opened, want 12", srv.opened)
		}
		for i, h := range w.header {
			if h.Get("Authorization") != "Bearer ork_1" {
				t.Errorf("%s has no key", w.asked[i])
			}
		}
		if len(srv.sends) != 1 || srv.sends[0].Key != "k" {
			t.Errorf("inputs: %+v", srv.sends)
		}
	})
}

func TestHTTPSilentConnectionIsTakenForDead(t *testing.T) {
	srv := withTurns()
	overHTTP(t, srv, func(t *testing.T, c *sessionclient.Session, _ *sessionclient.HTTP, w *wire) {
		began := time.Now()
		time.AfterFunc(20*time.Second, func() { // the end is known, and no byte comes through any more
			srv.mu.Lock()
			defer srv.mu.Unlock()
			srv.turns["mine"] = session.TurnInfo{ID: "mine", State: session.StateCompleted, Ended: true, Output: "my answer"}
		})
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})
		if took := time.Since(began); err != nil || turn.Output != "my answer" || took < 45*time.Second || took > 50*time.Second {
			t.Errorf("after %s SendAndWait() = %q, %v", took, turn.Output, err)
		}
	})
}

func TestHTTPConnectionThatBeatsIsAlive(t *testing.T) {
	srv := withTurns()
	overHTTP(t, srv, func(t *testing.T, c *sessionclient.Session, _ *sessionclient.HTTP, w *wire) {
		streams := 0
		w.script = func(rw http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/events") {
				return false
			}
			streams++
			rw.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(rw, "event: stream.open\ndata: {}\n\n")
			for {
				_ = http.NewResponseController(rw).Flush()
				select {
				case <-time.After(15 * time.Second):
					fmt.Fprint(rw, ": beat\n\n")
				case <-r.Context().Done():
					return true
				}
			}
		}
		_, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine", WaitRequest: sessionclient.WaitRequest{Timeout: 10 * time.Minute}})
		if !errors.Is(err, context.DeadlineExceeded) || streams != 1 {
			t.Errorf("SendAndWait() = %v over %d streams, want one", err, streams)
		}
	})
}

func TestHTTPBodyThatIsElsewhereIsFetched(t *testing.T) {
	srv := withTurns()
	srv.unread = true
	overHTTP(t, srv, func(t *testing.T, c *sessionclient.Session, _ *sessionclient.HTTP, w *wire) {
		time.AfterFunc(time.Second, func() {
			end := ends("mine", "")
			end.Data = fmt.Appendf(nil, `{"artifact":"x_e_%d","size":100000}`, len(srv.events)+1)
			srv.emit(end, false)
		})
		turn, err := c.SendAndWait(t.Context(), sessionclient.SendRequest{Input: "mine"})
		if err != nil || turn.Output != "a long answer" {
			t.Errorf("SendAndWait() = %q, %v", turn.Output, err)
		}
	})
}

// stream.end says why; a server that stops comes back, a session that was deleted doesn't.
func TestHTTPStreamsEnd(t *testing.T) {
	for reason, again := range map[string]bool{"stopping": true, "slow": true, "deleted": false, "revoked": false} {
		t.Run(reason, func(t *testing.T) {
			srv := withTurns()
			overHTTP(t, srv, func(t *testing.T, c *sessionclient.Session, _ *sessionclient.HTTP, w *wire) {
				streams := 0
				w.script = func(rw http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/events") {
						return false
					}
					if streams++; streams > 1 {
						return false
					}
					rw.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(rw, "retry: 1000\n\nevent: stream.open\ndata: {\"rootAgentId\":\"R\"}\n\nevent: stream.news\ndata: ?\n\nevent: stream.end\ndata: {\"reason\":%q,\"lastSeq\":0}\n\n", reason)
					return true
				}
				srv.emit(session.Event{Type: session.EventToolStarted, AgentID: "A"}, false)
				var end error
				n := 0
				for _, err := range c.Events(t.Context(), sessionclient.EventsRequest{}) {
					if end = err; err == nil {
						n++
						break
					}
				}
				if again && (end != nil || n != 1) || !again && end == nil {
					t.Errorf("%d events, then %v", n, end)
				}
				if want := map[bool]int{true: 2, false: 1}[again]; streams != want {
					t.Errorf("%d streams were opened, want %d", streams, want)
				}
				if reason == "deleted" && !errors.Is(end, session.ErrNotFound) {
					t.Errorf("it ends with %v", end)
				}
			})
		})
	}
}

func TestHTTPErrorsSayWhatTheServerSays(t *testing.T) {
	for _, c := range []struct {
		status int
		header string
		body   string
		is     error
		final  bool
		text   string
	}{
		{404, "", `{"status":404,"code":"not_found","detail":"there is no such session"}`, session.ErrNotFound, true, "the server says: there is no such session (404 not_found)"},
		{409, "", `{"code":"session_closed","title":"Conflict"}`, session.ErrSessionClosed, true, "Conflict (409 session_closed)"},
		{409, "", `{"code":"busy"}`, session.ErrBusy, true, "(409 busy)"},
		{422, "", `{"code":"key_reused"}`, session.ErrKeyReused, true, "(422 key_reused)"},
		{422, "", `{"code":"validation_failed","detail":"validation failed","errors":[{"message":"expected string","location":"body.input"}]}`, nil, true, "validation failed; body.input: expected string"},
		{429, "", `{"code":"queue_full"}`, session.ErrQueueFull, true, "(429 queue_full)"},
		{429, "7", `{"code":"rate_limited"}`, nil, false, "(429 rate_limited)"},
		{401, "", `{"code":"unauthorized"}`, nil, true, "(401 unauthorized)"},
		{503, "", `{"code":"stopping"}`, session.ErrStopping, false, "(503 stopping)"},
		{502, "", `<html>bad gateway`, nil, false, "Bad Gateway (502 without a code)"},
		{307, "", ``, nil, true, "(307 without a code)"},
	} {
		t.Run(fmt.Sprint(c.status, c.body), func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer srv.Close()
			h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: srv.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			_, err = h.Session(t.Context(), "s")
			api, ok := errors.AsType[*sessionclient.APIError](err)
			if !ok || api.Status != c.status || api.Permanent() != c.final || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("Session() = %v, want %q", err, c.text)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			if c.header != "" && api.RetryAfter != 7*time.Second {
				t.Errorf("RetryAfter = %s", api.RetryAfter)
			}
		})
	}
}

func TestHTTPIDsAreEscaped(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.RequestURI)
		_, _ = io.WriteString(w, `{}`)
	}))
	defer srv.Close()
	h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: srv.URL + "/base/"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx := t.Context()
	_, _ = h.Session(ctx, "../../metrics?x=1")
	_, _ = h.Turn(ctx, sessionclient.TurnRequest{Session: "s/1", Turn: "t 1", Wait: 1500 * time.Millisecond, Until: session.UntilQuiescent})
	_ = h.Cancel(ctx, "s", "t", "enough")
	_, _ = h.Calls(ctx, "s", true)
	_, _ = h.CancelCall(ctx, "s", "c", "enough")
	_, _, _ = h.Sessions(ctx, 20, "s_1")
	_, _ = h.CancelAgent(ctx, "s", "a", "")
	_, _ = h.CloseSession(ctx, "s")
	_, _ = h.Open(ctx, sessionclient.OpenRequest{})
	_, _, _ = h.Page(ctx, "s", 7, 100)
	_, _ = h.Call(ctx, "s", "c")
	want := []string{
		"GET /base/v1/sessions/..%2F..%2Fmetrics%3Fx=1", "GET /base/v1/sessions/s%2F1/turns/t%201?until=quiescent&wait=1.5s",
		"POST /base/v1/sessions/s/turns/t/cancel", "GET /base/v1/sessions/s/calls?pending=true", "POST /base/v1/sessions/s/calls/c/cancel",
		"GET /base/v1/sessions?before=s_1&limit=20", "POST /base/v1/sessions/s/agents/a/cancel", "DELETE /base/v1/sessions/s",
		"POST /base/v1/sessions", "GET /base/v1/sessions/s/events?after=7&limit=100", "GET /base/v1/sessions/s/calls/c",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestHTTPConfigIsChecked(t *testing.T) {
	for _, url := range []string{"", "localhost:8080", "ftp://x", "http://", "http://u:p@x", "http://x?y=1", "http://x#y", "http://[::1"} {
		if _, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: url}); err == nil {
			t.Errorf("NewHTTP(%q) takes it", url)
		}
	}
}
