package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/httpapi"
	"orchestrator/session"
)

// log returns a session's durable events as JSON, by the pages.
func (w *world) log(id session.ID, query string) []string {
	w.t.Helper()
	var all []string
	for after := uint64(0); ; {
		var page struct {
			Events    []json.RawMessage
			NextAfter uint64
			HasMore   bool
		}
		w.call(http.StatusOK, &page, http.MethodGet, fmt.Sprintf("/v1/sessions/%s/events?limit=7&after=%d%s", id, after, query), "")
		for _, e := range page.Events {
			all = append(all, string(e))
		}
		if !page.HasMore {
			return all
		}
		after = page.NextAfter
	}
}

// settled waits until session.state says that the session is idle, the last thing a turn leads to, and returns the log.
func (w *world) settled(id session.ID, query string) []string {
	w.t.Helper()
	s := w.stream(id, "?types=session.state")
	defer s.close()
	for {
		if f := s.until("session.state"); strings.Contains(f.data, `"state":"idle"`) {
			return w.log(id, query)
		}
	}
}

func TestAStreamTellsEveryDurableEventOnceInOrder(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	w.turn(id, "say before")
	s := w.stream(id, "")
	first, _ := s.next()
	var open struct {
		RootAgentID    session.ID
		HeadSeq, After uint64
	}
	if err := json.Unmarshal([]byte(first.data), &open); err != nil || first.name != "stream.open" || first.id != "" || open.RootAgentID != id || open.HeadSeq == 0 || open.After != 0 {
		t.Fatalf("first frame = %+v, %v", first, err)
	}
	w.turn(id, "deltas 5")
	want := w.settled(id, "")
	var got []string
	for len(got) < len(want) {
		f, ok := s.next()
		if !ok {
			t.Fatalf("the stream ended after %q", got)
		}
		var e session.Event
		if err := json.Unmarshal([]byte(f.data), &e); err != nil || f.name != string(e.Type) {
			t.Fatalf("frame %+v: %v", f, err)
		}
		if e.Ephemeral != (f.id == "") || f.id != "" && f.id != strconv.FormatUint(e.Seq, 10) {
			t.Errorf("frame of %s has the id %q", e.Type, f.id)
		}
		if !e.Ephemeral {
			got = append(got, f.data)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the stream tells something else than the log (-log +stream):\n%s", diff)
	}
}

func TestAStreamGoesOnBehindTheLastEvent(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	w.turn(id, "say one")
	all := w.settled(id, "")
	for _, tc := range []struct {
		name, query, last string
		want              int // events left out
	}{
		{"by the query", "?after=3", "", 3},
		{"by the header", "", "4", 4},
		{"by the header rather than the query", "?after=1", "5", 5},
		{"behind the head", "?after=now", "", len(all)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := w.stream(id, tc.query, "Last-Event-ID", tc.last)
			defer s.close()
			if f, _ := s.next(); !strings.Contains(f.data, fmt.Sprintf(`"after":%d`, tc.want)) {
				t.Errorf("opened with %s, want after %d", f.data, tc.want)
			}
			for _, want := range all[tc.want:] {
				if f, _ := s.next(); f.data != want {
					t.Errorf("next is %+v, want %s", f, want)
				}
			}
		})
	}
}

func TestAPositionThatIsNoneIsReset(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	w.turn(id, "say one")
	head := len(w.settled(id, ""))
	for _, last := range []string{"999", "x", "-1", "18446744073709551615", "99999999999999999999", "now", "+1", "1.5"} {
		s := w.stream(id, "", "Last-Event-ID", last)
		if f, _ := s.next(); f.name != "stream.open" {
			t.Errorf("%q: first frame is %+v", last, f)
		}
		if f, _ := s.next(); f.name != "stream.reset" || f.data != fmt.Sprintf(`{"reason":"unknown_position","headSeq":%d}`, head) {
			t.Errorf("%q: second frame is %+v, want a reset at %d", last, f, head)
		}
		s.close()
	}
	path := "/v1/sessions/" + string(id) + "/events?after="
	if got := w.do(http.MethodGet, path+"999", ""); got.status != http.StatusGone || got.code() != "position_gone" {
		t.Errorf("a page behind the head: %d %s", got.status, got.body)
	}
	for _, after := range []string{"x", "-1", "99999999999999999999"} {
		for _, accept := range []string{"application/json", "text/event-stream"} {
			if got := w.do(http.MethodGet, path+after, "", "Accept", accept); got.status != http.StatusUnprocessableEntity || got.code() != "validation_failed" {
				t.Errorf("after=%s as %s: %d %s", after, accept, got.status, got.body)
			}
		}
	}
}

func TestAStreamAndAPageLeaveOutWhatIsNotWanted(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	child := session.NewID()
	if _, err := w.m.Store().Commit(t.Context(), session.Batch{Tree: id, Events: []session.Event{
		session.Scope{Root: id, Agent: child, Parent: id}.Event(session.EventSubagentStarted, session.SubagentStarted{Run: 1}),
		session.Scope{Root: id, Agent: child, Parent: id}.Event(session.EventMessageCompleted, session.Message{Text: "of the child"}),
	}}); err != nil {
		t.Fatal(err)
	}
	w.turn(id, "deltas 3")
	all := w.settled(id, "")
	wanted := func(keep func(e session.Event) bool) (kept []string) {
		for _, text := range all {
			var e session.Event
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatal(err)
			}
			if keep(e) {
				kept = append(kept, text)
			}
		}
		return kept
	}
	for query, want := range map[string][]string{
		"&types=message.completed,turn.completed": wanted(func(e session.Event) bool { return e.Type == "message.completed" || e.Type == "turn.completed" }),
		"&scope=root":                         wanted(func(e session.Event) bool { return e.Root }),
		"&scope=root&types=message.completed": wanted(func(e session.Event) bool { return e.Root && e.Type == "message.completed" }),
		"&scope=all&ephemeral=false":          all,
	} {
		if diff := cmp.Diff(want, w.log(id, query)); diff != "" {
			t.Errorf("pages with %s (-want +got):\n%s", query, diff)
		}
		s := w.stream(id, "?ephemeral=false"+strings.Replace(query, "&ephemeral=false", "", 1))
		s.until("stream.open")
		var got []string
		for range want {
			f, _ := s.next()
			got = append(got, f.data)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stream with %s (-want +got):\n%s", query, diff)
		}
		s.close()
	}
	if got := w.do(http.MethodGet, "/v1/sessions/"+string(id)+"/events?types=turn.completed,none", ""); got.status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown type: %d %s", got.status, got.body)
	}
}

func TestWhatIsLeftOutIsNotToldByBeats(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	s := w.stream(id, "?types=turn.completed")
	s.until("stream.open")
	w.turn(id, "deltas 50")
	if f, _ := s.next(); f.name != "turn.completed" {
		t.Errorf("next is %+v", f)
	}
}

func TestASilentStreamBeats(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.Heartbeat = 10 * time.Millisecond }})
	s := w.stream(w.session(), "")
	s.until(":")
	s.until(":")
}

func TestAStreamEndsWithItsPositionAndGoesOnAfterARestart(t *testing.T) {
	store := session.NewMemory()
	first := newWorld(t, worldConfig{store: store})
	id := first.session()
	s := first.stream(id, "")
	first.turn(id, "say one")
	first.settled(id, "")
	waited := make(chan answer, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	path := "/v1/sessions/" + string(id) + "/turns"
	var long session.TurnInfo
	first.call(http.StatusAccepted, &long, http.MethodPost, path, `{"input": "wait"}`)
	wg.Go(func() { waited <- first.do(http.MethodGet, path+"/"+string(long.ID)+"?wait=60s", "") })
	seen := s.until("session.state").id
	var frames []frame
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := first.api.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for {
		f, ok := s.next()
		if !ok {
			break
		}
		frames = append(frames, f)
		if f.id != "" {
			seen = f.id
		}
	}
	var end struct {
		Reason  string
		LastSeq uint64
	}
	last := frames[len(frames)-1]
	if err := json.Unmarshal([]byte(last.data), &end); err != nil || last.name != "stream.end" || last.id != "" || end.Reason != "stopping" || strconv.FormatUint(end.LastSeq, 10) != seen {
		t.Fatalf("the stream ended with %+v, %v, behind the event %s", last, err, seen)
	}
	if got := <-waited; got.status != http.StatusOK || !strings.Contains(string(got.body), `"ended":false`) {
		t.Errorf("the wait returned %d %s, want the turn as it is", got.status, got.body)
	}
	if got := first.do(http.MethodGet, "/v1/sessions/"+string(id)+"/events", "", "Accept", "text/event-stream"); got.status != http.StatusServiceUnavailable || got.code() != "stopping" {
		t.Errorf("a new stream while stopping: %d %s", got.status, got.body)
	}
	if err := first.m.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	second := newWorld(t, worldConfig{store: store})
	again := second.stream(id, "", "Last-Event-ID", strconv.FormatUint(end.LastSeq, 10))
	again.until("stream.open")
	second.open(long.ID)
	f, _ := again.next()
	if f.id != strconv.FormatUint(end.LastSeq+1, 10) {
		t.Errorf("after the restart the stream goes on with %+v, want id %d", f, end.LastSeq+1)
	}
	again.until("turn.completed")
}

func TestARevokedKeyEndsItsStream(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.AuthRequired, c.Heartbeat = true, 10*time.Millisecond }})
	secret, key, err := w.keys.Create("alice", "")
	if err != nil {
		t.Fatal(err)
	}
	id := w.session("Authorization", "Bearer "+secret)
	s := w.stream(id, "", "Authorization", "Bearer "+secret)
	s.until(":")
	if _, err := w.keys.Revoke(key.ID); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() { // of a busy stream too
		for ctx := ended; ctx.Err() == nil; {
			if _, err := w.m.Store().Commit(ctx, session.Batch{Tree: id, Events: []session.Event{
				session.Scope{Root: id, Agent: id}.Event(session.EventSessionError, session.SessionError{}),
			}}); err != nil {
				return
			}
		}
	})
	if f := s.until("stream.end"); !strings.Contains(f.data, `"reason":"revoked"`) {
		t.Errorf("the stream ended with %+v", f)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.PrincipalStreams = 2 }})
	id := w.session()
	one, two := w.stream(id, ""), w.stream(id, "")
	one.until("stream.open")
	two.until("stream.open")
	path := "/v1/sessions/" + string(id) + "/events"
	if got := w.do(http.MethodGet, path, "", "Accept", "text/event-stream"); got.status != http.StatusTooManyRequests || got.code() != "too_many_streams" {
		t.Errorf("a third stream: %d %s", got.status, got.body)
	}
	other := w.key("bob")
	s := w.stream(w.session("Authorization", "Bearer "+other), "", "Authorization", "Bearer "+other)
	s.until("stream.open")
	w.call(http.StatusOK, nil, http.MethodGet, path, "")
}

func TestADisconnectCancelsNothing(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	path := "/v1/sessions/" + string(id) + "/turns"
	s := w.stream(id, "")
	ctx, cut := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path+"?wait=60s", strings.NewReader(`{"input": "wait"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	gone := make(chan error, 1)
	go func() { // it ends when the request is cut
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
		gone <- err
	}()
	started := s.until("turn.started")
	cut()
	if err := <-gone; err == nil {
		t.Error("the request was answered")
	}
	s.close()
	var e session.Event
	if err := json.Unmarshal([]byte(started.data), &e); err != nil {
		t.Fatal(err)
	}
	w.open(e.TurnID)
	var turn session.TurnInfo
	w.call(http.StatusOK, &turn, http.MethodGet, path+"/"+string(e.TurnID)+"?wait=30s", "")
	if turn.State != session.StateCompleted {
		t.Errorf("the turn is %s", turn.State)
	}
}

// stuckWriter is a connection whose client stops reading: from a write on that holds the text, writes take nothing until
// their deadline.
type stuckWriter struct {
	header http.Header
	text   string
	stuck  chan struct{} // closed at the first write that takes nothing

	mu       sync.Mutex
	deadline time.Time
	full     bool
	taken    strings.Builder
}

func (w *stuckWriter) Header() http.Header { return w.header }
func (w *stuckWriter) WriteHeader(int)     {}
func (w *stuckWriter) Flush()              {}

func (w *stuckWriter) SetReadDeadline(time.Time) error { return nil }

func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	return nil
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	if !w.full && strings.Contains(string(p), w.text) {
		w.full = true
		close(w.stuck)
	}
	if !w.full {
		w.taken.Write(p)
	}
	full, deadline := w.full, w.deadline
	w.mu.Unlock()
	if full {
		time.Sleep(time.Until(deadline)) // of the bubble
		return 0, os.ErrDeadlineExceeded
	}
	return len(p), nil
}

// TestAReaderThatStopsReadingNeverSlowsTheSession forces the order: the stream is stuck in a write before the session does
// anything, and the session's clock stands still while it does all of it.
func TestAReaderThatStopsReadingNeverSlowsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := newWorld(t, worldConfig{
			edit: func(c *httpapi.Config) { c.Registry = reg },
			serve: func(http.Handler) *httptest.Server {
				return &httptest.Server{Listener: closedListener{}, Config: &http.Server{}}
			},
		})
		id, err := w.m.Open(t.Context(), session.OpenRequest{Agent: "primary"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		conn := &stuckWriter{header: http.Header{}, text: "event: turn.queued", stuck: make(chan struct{})}
		ended := make(chan time.Duration, 1)
		go func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/sessions/"+string(id)+"/events", nil)
			r.Header.Set("Accept", "text/event-stream")
			w.api.ServeHTTP(conn, r)
			ended <- time.Since(began)
		}()
		submit := func(input string) session.TurnID {
			turn, err := w.m.Submit(t.Context(), session.SubmitRequest{Session: id, Input: input})
			if err != nil {
				t.Fatal(err)
			}
			return turn
		}
		first := submit("deltas 5000")
		<-conn.stuck
		stuckAt := time.Since(began)
		for range 20 {
			if done, err := w.m.WaitTurn(t.Context(), submit("deltas 5000"), session.UntilTurn); err != nil || done.State != session.StateCompleted {
				t.Fatalf("turn %+v, %v", done, err)
			}
		}
		if _, err := w.m.WaitTurn(t.Context(), first, session.UntilTurn); err != nil {
			t.Fatal(err)
		}
		worked := time.Since(began) - stuckAt
		select {
		case at := <-ended:
			t.Errorf("the stream ended after %s, before its write timeout", at)
		default:
		}
		if worked >= 10*time.Second {
			t.Errorf("21 turns took %s while a reader was stuck, as long as its write timeout", worked)
		}
		if at := <-ended; at != stuckAt+10*time.Second {
			t.Errorf("the stuck stream ended after %s, want 10s after it got stuck at %s", at, stuckAt)
		}
		if got := metric(t, reg, "orchestrator_http_streams_ended_total", "slow"); got != 1 {
			t.Errorf("%v slow readers are counted, want 1", got)
		}
		if n := strings.Count(conn.taken.String(), "event: session.created"); n != 1 {
			t.Errorf("the reader had taken session.created %d times", n)
		}
		w.stop()
	})
}

// closedListener is that of a server nobody can reach.
type closedListener struct{}

func (closedListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (closedListener) Close() error              { return nil }
func (closedListener) Addr() net.Addr            { return &net.TCPAddr{} }

// pipes is a listener in a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func TestWaitsAndStreamsOutliveTheServersDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		w := newWorld(t, worldConfig{serve: func(h http.Handler) *httptest.Server {
			s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}}
			s.Start()
			return s
		}})
		w.http = &http.Client{Transport: &http.Transport{DialContext: listener.dial}}
		id := w.session()
		s := w.stream(id, "")
		var wg sync.WaitGroup
		wg.Go(func() {
			s.until("turn.completed")
			for range 20 { // five minutes of silence
				s.until(":")
			}
		})
		wg.Go(func() {
			time.Sleep(25 * time.Second) // of the bubble
			w.open()
		})
		began := time.Now()
		if turn := w.turn(id, "wait"); !turn.Ended || time.Since(began) < 25*time.Second {
			t.Errorf("after %s the turn is %+v", time.Since(began), turn)
		}
		wg.Wait()
		s.close()
		w.stop()
	})
}

// metric returns the value of a counter with a label's value.
func metric(t testing.TB, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestAClientThatNeverReadsIsDisconnected shows the same on a real connection, whose buffers take a while to fill.
func TestAClientThatNeverReadsIsDisconnected(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.Registry, c.WriteTimeout = reg, 50*time.Millisecond }})
	id := w.session()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/sessions/%s/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", id)
	word := session.Message{Text: strings.Repeat("x", 30<<10)}
	for i := 0; metric(t, reg, "orchestrator_http_streams_ended_total", "slow") == 0; i++ {
		if i > 2000 {
			t.Fatal("60 MB fit in the connection of a client that never reads")
		}
		if _, err := w.m.Store().Commit(t.Context(), session.Batch{Tree: id, Events: []session.Event{
			session.Scope{Root: id, Agent: id}.Event(session.EventMessageCompleted, word),
		}}); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if turn := w.turn(id, "say hello"); turn.State != session.StateCompleted {
				t.Fatalf("turn = %+v", turn)
			}
		}
	}
}
