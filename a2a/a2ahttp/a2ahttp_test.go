package a2ahttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTransport(t *testing.T, cfg a2ahttp.Config) *a2ahttp.Transport {
	t.Helper()
	tr, err := a2ahttp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func connect(t *testing.T, tr *a2ahttp.Transport, p a2a.Peer) a2a.Client {
	t.Helper()
	card, err := tr.Card(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tr.Connect(t.Context(), p, card)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// at returns a client of a peer at a bare URL, without a card.
func at(t *testing.T, tr *a2ahttp.Transport, p a2a.Peer, url string) a2a.Client {
	t.Helper()
	c, err := tr.Connect(t.Context(), p, &protocol.AgentCard{
		Capabilities:        protocol.AgentCapabilities{Streaming: true},
		SupportedInterfaces: []*protocol.AgentInterface{protocol.NewAgentInterface(url, protocol.TransportProtocolJSONRPC)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func message(text string) *protocol.SendMessageRequest {
	return &protocol.SendMessageRequest{Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(text))}
}

// stream returns the states and texts of a stream, and its error.
func stream(ctx context.Context, c a2a.Client) (got []string, err error) {
	for ev, err := range c.SendStreamingMessage(ctx, message("hello")) {
		if err != nil {
			return got, err
		}
		switch e := ev.(type) {
		case *protocol.Task:
			got = append(got, string(e.Status.State))
		case *protocol.TaskStatusUpdateEvent:
			got = append(got, string(e.Status.State))
		case *protocol.Message:
			got = append(got, e.Parts[0].Text())
		}
	}
	return got, nil
}

func TestEveryMethodWorksAgainstARealServer(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		if strings.HasPrefix(x.Text(), "wait") {
			x.Wait(a2atest.NewGate())
			return
		}
		x.State(a2atest.Completed, "done")
	}})
	tr := newTransport(t, a2ahttp.Config{})
	c := connect(t, tr, a2a.Peer{Name: "p", Card: p.URL()})
	got, err := stream(t.Context(), c)
	if err != nil || strings.Join(got, " ") != "TASK_STATE_SUBMITTED TASK_STATE_WORKING TASK_STATE_COMPLETED" {
		t.Errorf("the stream is %v, %v", got, err)
	}
	req := message("wait")
	req.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
	res, err := c.SendMessage(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	id := res.(*protocol.Task).ID
	for ev, err := range c.SubscribeToTask(t.Context(), &protocol.SubscribeToTaskRequest{ID: id}) {
		if err != nil || ev.TaskInfo().TaskID != id {
			t.Errorf("subscribing gives %v, %v", ev, err)
		}
		break
	}
	if task, err := c.GetTask(t.Context(), &protocol.GetTaskRequest{ID: id}); err != nil || task.ID != id {
		t.Errorf("GetTask() = %v, %v", task, err)
	}
	if list, err := c.ListTasks(t.Context(), &protocol.ListTasksRequest{}); err != nil || len(list.Tasks) != 2 {
		t.Errorf("ListTasks() = %v, %v", list, err)
	}
	if task, err := c.CancelTask(t.Context(), &protocol.CancelTaskRequest{ID: id}); err != nil || task.Status.State != protocol.TaskStateCanceled {
		t.Errorf("CancelTask() = %v, %v", task, err)
	}
	_, err = c.GetTask(t.Context(), &protocol.GetTaskRequest{ID: "nobody"})
	if !errors.Is(err, protocol.ErrTaskNotFound) {
		t.Errorf("GetTask() of no task = %v", err)
	}
	for _, err := range c.SubscribeToTask(t.Context(), &protocol.SubscribeToTaskRequest{ID: "nobody"}) {
		if !errors.Is(err, protocol.ErrTaskNotFound) {
			t.Errorf("SubscribeToTask() of no task = %v", err)
		}
	}
}

// serve answers every request with one handler.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func sse(frames ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the client may be gone
		w.Header().Set("Content-Type", "text/event-stream")
		for _, f := range frames {
			io.WriteString(w, f) //nolint:errcheck // the client may be gone
			w.(http.Flusher).Flush()
		}
	}
}

const hello = `{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}}`

func TestStreamsAreReadAsTheyAreWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		frames []string
		want   string
		err    string
	}{
		"plain":                {frames: []string{"id: 1\ndata: " + hello + "\n\n"}, want: "hi"},
		"no space":             {frames: []string{"data:" + hello + "\n\n"}, want: "hi"},
		"CR LF":                {frames: []string{"data: " + hello + "\r\n\r\n"}, want: "hi"},
		"comments":             {frames: []string{": keep-alive\n\n", ":\n\n", "data: " + hello + "\n\n"}, want: "hi"},
		"several data lines":   {frames: []string{"data: " + hello[:17] + "\ndata: " + hello[17:] + "\n\n"}, want: "hi"},
		"in pieces":            {frames: []string{"da", "ta: " + hello[:10], hello[10:], "\n", "\n"}, want: "hi"},
		"two":                  {frames: []string{"data: " + hello + "\n\ndata: " + hello + "\n\n"}, want: "hi hi"},
		"last without a blank": {frames: []string{"data: " + hello + "\n"}, want: "hi"},
		"nothing":              {},
		"longer than a buffer": {frames: []string{"data: " + strings.Replace(hello, "hi", strings.Repeat("x", 5000), 1) + "\n\n"}, want: strings.Repeat("x", 5000)},
		"an error":             {frames: []string{`data: {"jsonrpc":"2.0","id":"1","error":{"code":-32001,"message":"gone"}}` + "\n\n"}, err: "gone"},
		"an unknown error":     {frames: []string{`data: {"jsonrpc":"2.0","id":"1","error":{"code":-1,"message":"odd"}}` + "\n\n"}, err: "odd"},
		"no JSON":              {frames: []string{"data: hello\n\n"}, err: "an event is no JSON-RPC answer"},
		"no event":             {frames: []string{`data: {"jsonrpc":"2.0","id":"1","result":{"other":1}}` + "\n\n"}, err: "an event can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			c := at(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p"}, serve(t, sse(tc.frames...)))
			got, err := stream(t.Context(), c)
			if strings.Join(got, " ") != tc.want {
				t.Errorf("events = %v, want %q", got, tc.want)
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("the error is %v, want %q", err, tc.err)
			}
		})
	}
}

func TestEventsOfHTTPAndJSONAreRead(t *testing.T) {
	const old, now = protocol.ProtocolVersion("0.3"), protocol.Version
	for name, tc := range map[string]struct {
		version protocol.ProtocolVersion
		event   string
		want    *protocol.Part
		err     string
	}{
		"a message":                     {version: now, event: `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}`, want: protocol.NewTextPart("hi")},
		"a message of 0.3":              {version: old, event: `{"message":{"messageId":"m","role":"ROLE_AGENT","content":[{"text":"hi"}]}}`, want: protocol.NewTextPart("hi")},
		"a file of 0.3":                 {version: old, event: `{"message":{"messageId":"m","role":"ROLE_AGENT","content":[{"file":{"fileWithBytes":"b25lIGZpbGU="}}]}}`, want: protocol.NewRawPart([]byte("one file"))},
		"a file of 0.3, encoded twice":  {version: old, event: `{"message":{"messageId":"m","role":"ROLE_AGENT","content":[{"file":{"fileWithBytes":"YjI1bElHWnBiR1U9"}}]}}`, want: protocol.NewRawPart([]byte("one file"))},
		"an error":                      {version: now, event: `{"error":{"code":404,"message":"gone"}}`, err: "gone"},
		"an error that says nothing":    {version: now, event: `{"error":{}}`, err: "internal error"},
		"an error that can't be read":   {version: now, event: `{"error":"gone"}`, err: "an error in a stream can't be read"},
		"null in the place of an error": {version: now, event: `{"error":null,"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}`, want: protocol.NewTextPart("hi")},
		"no JSON":                       {version: now, event: `hello`, err: "an event is no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			iface := protocol.NewAgentInterface(serve(t, sse("data: "+tc.event+"\n\n")), protocol.TransportProtocolHTTPJSON)
			iface.ProtocolVersion = tc.version
			c, err := newTransport(t, a2ahttp.Config{}).Connect(t.Context(), a2a.Peer{Name: "p"}, &protocol.AgentCard{
				Capabilities: protocol.AgentCapabilities{Streaming: true}, SupportedInterfaces: []*protocol.AgentInterface{iface},
			})
			if err != nil {
				t.Fatal(err)
			}
			events := 0
			for ev, err := range c.SendStreamingMessage(t.Context(), message("hello")) {
				events++
				if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("the error is %v, want %q", err, tc.err)
				}
				if tc.want == nil {
					continue
				}
				m, ok := ev.(*protocol.Message)
				if !ok || len(m.Parts) != 1 {
					t.Fatalf("the event is %+v, want a message with a part", ev)
				}
				if diff := cmp.Diff(tc.want.Content, m.Parts[0].Content); diff != "" {
					t.Errorf("the part (-want +got):\n%s", diff)
				}
			}
			if events != 1 {
				t.Errorf("the stream has %d events, want 1", events)
			}
		})
	}
}

func TestFilesOfOldTasksAreRead(t *testing.T) {
	iface := protocol.NewAgentInterface(serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},`+ //nolint:errcheck // the client may be gone
			`"artifacts":[{"artifactId":"a","parts":[{"file":{"fileWithBytes":"b25lIGZpbGU=","name":"f"}}]}]}`)
	}), protocol.TransportProtocolHTTPJSON)
	iface.ProtocolVersion = "0.3"
	c, err := newTransport(t, a2ahttp.Config{}).Connect(t.Context(), a2a.Peer{Name: "p"}, &protocol.AgentCard{SupportedInterfaces: []*protocol.AgentInterface{iface}})
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.GetTask(t.Context(), &protocol.GetTaskRequest{ID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if len(task.Artifacts) != 1 || len(task.Artifacts[0].Parts) != 1 {
		t.Fatalf("GetTask() = %+v, want an artifact with a part", task)
	}
	if diff := cmp.Diff(protocol.PartContent(protocol.Raw("one file")), task.Artifacts[0].Parts[0].Content); diff != "" {
		t.Errorf("the file (-want +got):\n%s", diff)
	}
}

func TestStreamRequestMayBeAnsweredInJSON(t *testing.T) {
	for body, want := range map[string]string{hello: "", `{"jsonrpc":"2.0","id":"1","error":{"code":-32602,"message":"no"}}`: "no"} {
		c := at(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p"}, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			io.WriteString(w, body) //nolint:errcheck // the client may be gone
		}))
		got, err := stream(t.Context(), c)
		if want == "" && (err != nil || len(got) != 1) || want != "" && (err == nil || err.Error() != want || !errors.Is(err, protocol.ErrInvalidParams)) {
			t.Errorf("%s gives %v, %v", body, got, err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	big := strings.Replace(hello, "hi", strings.Repeat("x", 20_000), 1)
	tr := newTransport(t, a2ahttp.Config{MaxBody: 10_000})
	for name, h := range map[string]http.HandlerFunc{
		"one long event":  sse("data: " + big + "\n\n"),
		"many data lines": sse(strings.Repeat("data: "+strings.Repeat("y", 900)+"\n", 20) + "\n"),
		"JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, big) //nolint:errcheck // the client may be gone
		},
	} {
		if _, err := stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, serve(t, h))); !errors.Is(err, a2a.ErrTooLarge) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"name":"`+strings.Repeat("x", 20_000)+`"}`) //nolint:errcheck // the client may be gone
	})
	if _, err := tr.Card(t.Context(), a2a.Peer{Name: "p", Card: url}); !errors.Is(err, a2a.ErrTooLarge) {
		t.Errorf("a large card: %v", err)
	}
}

func TestErrorsSayWhetherARequestMayHaveLeft(t *testing.T) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + ln.Addr().String()
	ln.Close()
	tr := newTransport(t, a2ahttp.Config{})
	_, err = stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, closed))
	if _, ok := errors.AsType[*a2a.NotSentError](err); !ok {
		t.Errorf("a refused connection is %v, want a NotSentError", err)
	}
	url := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, err = stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, url))
	if _, ok := errors.AsType[*a2a.NotSentError](err); ok || err == nil {
		t.Errorf("a connection that broke is %v, which is not certainly not sent", err)
	}
	plain := strings.Replace(serve(t, sse()), "http://", "https://", 1)
	_, err = stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, plain))
	if _, ok := errors.AsType[*a2a.NotSentError](err); !ok {
		t.Errorf("a failed TLS handshake is %v, want a NotSentError", err)
	}
}

func TestAnswersThatAreNoneAreErrors(t *testing.T) {
	tr := newTransport(t, a2ahttp.Config{})
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, url))
	if s, ok := errors.AsType[*a2a.StatusError](err); !ok || s.Code != 429 || s.RetryAfter != 7*time.Second || s.Error() != url+" answered 429 Too Many Requests" {
		t.Errorf("429 is %v", err)
	}
	url = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html>") //nolint:errcheck // the client may be gone
	})
	_, err = stream(t.Context(), at(t, tr, a2a.Peer{Name: "p"}, url))
	if m, ok := errors.AsType[*a2a.MediaTypeError](err); !ok || m.MediaType != "text/html" {
		t.Errorf("a web page is %v", err)
	}
	if _, err := tr.Card(t.Context(), a2a.Peer{Name: "p", Card: url}); err == nil || !strings.Contains(err.Error(), "which is not A2A") {
		t.Errorf("a web page for a card is %v", err)
	}
	for body, want := range map[string]string{
		`[]`: "is no agent card", `{"name":"x"}`: "names no interfaces", `{"supportedInterfaces":[null]}`: "names an interface that is null",
	} {
		url = serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, body) //nolint:errcheck // the client may be gone
		})
		_, err := tr.Card(t.Context(), a2a.Peer{Name: "p", Card: url})
		if _, ok := errors.AsType[*a2a.CardError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("the card %s is %v, want %q", body, err, want)
		}
	}
}

func TestHeadersStayWithTheirHost(t *testing.T) {
	var leaked atomic.Bool
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		leaked.Store(leaked.Load() || r.Header.Get("Authorization") != "")
		sse("data: "+hello+"\n\n")(w, r)
	})
	var url string
	url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer x" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other, http.StatusTemporaryRedirect)
		case "/here":
			http.Redirect(w, r, url+"/end", http.StatusTemporaryRedirect)
		case "/round":
			http.Redirect(w, r, url+"/round", http.StatusTemporaryRedirect)
		default:
			sse("data: "+hello+"\n\n")(w, r)
		}
	})
	tr := newTransport(t, a2ahttp.Config{})
	p := a2a.Peer{Name: "p", Headers: map[string]a2a.Secret{"Authorization": "Bearer x"}}
	if got, err := stream(t.Context(), at(t, tr, p, url+"/here")); err != nil || len(got) != 1 {
		t.Errorf("a redirect on the same host gives %v, %v", got, err)
	}
	for path, want := range map[string]string{"/away": "which the peer's headers are not for", "/round": "more than 3 redirects"} {
		_, err := stream(t.Context(), at(t, tr, p, url+path))
		if _, ok := errors.AsType[*a2a.StatusError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %q", path, err, want)
		}
	}
	if leaked.Load() {
		t.Error("a header went to another host")
	}
}

func TestCancelledContextEndsAStream(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
	c := connect(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p", Card: p.URL()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range c.SendStreamingMessage(ctx, message("hello")) {
		if n++; n == 2 {
			cancel()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	}
	if n != 3 {
		t.Errorf("%d events, want two and an error", n)
	}
}

func TestSilentStreamCostsLittle(t *testing.T) {
	const streams = 200
	arrived := make(chan struct{}, streams)
	done := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		sse("data: "+hello+"\n\n")(w, r)
		arrived <- struct{}{}
		<-done
	})
	c := at(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p"}, url)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	ended := make(chan struct{})
	for range streams {
		go func() {
			stream(t.Context(), c) //nolint:errcheck // it ends with the server
			ended <- struct{}{}
		}()
	}
	for range streams {
		<-arrived
	}
	// Both sides of the connection are in this process: two goroutines and two buffers of 4 KiB on each.
	if per := int64(heap()-before) / streams; per > 40<<10 {
		t.Errorf("a silent stream holds %d bytes with its connection; the SDK's parser alone would hold 64 KiB", per)
	}
	close(done)
	for range streams {
		<-ended
	}
}

func FuzzStream(f *testing.F) {
	f.Add("data: " + hello + "\n\n")
	f.Add(": c\r\ndata:{}\r\ndata:{}\r\n\r\n")
	f.Add("data: {\"result\":{\"task\":{\"id\":\"x\",\"artifacts\":[null],\"history\":[null]}}}\n\ndata")
	for _, state := range []string{"TASK_STATE_COMPLETED", "", "x"} {
		f.Add(fmt.Sprintf("data: {\"result\":{\"statusUpdate\":{\"status\":{\"state\":%q}}}}\n\n", state))
	}
	f.Fuzz(func(t *testing.T, text string) {
		client, err := a2ahttp.New(a2ahttp.Config{MaxBody: 4096, DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				buf := make([]byte, 4096)
				far.Read(buf)                                                                                               //nolint:errcheck // what comes is of no interest
				io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"+text) //nolint:errcheck // the reader may be gone
			}()
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for ev, err := range at(t, client, a2a.Peer{Name: "p"}, "http://p.test").SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: "x"}) {
			if err == nil && ev == nil {
				t.Error("neither an event nor an error")
			}
		}
		if ctx.Err() != nil {
			t.Error("the stream didn't end")
		}
	})
}
