package app_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"orchestrator/internal/app"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
)

const greeting = `
agents:
  - name: primary
    rules: [{text: hello}]
`

// serve serves an App until the returned function is called, which returns what Serve did.
func serve(t *testing.T, a *app.App) (url string, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	addr, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- a.Serve(ctx, func(at net.Addr) { addr <- at }) }() // end receives it
	select {
	case at := <-addr:
		return "http://" + at.String(), func() error {
			cancel()
			return <-ended
		}
	case err := <-ended:
		cancel()
		t.Fatal(err)
		return "", nil
	}
}

func get(t *testing.T, url string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestStoppingSaysNotReadyFirstEndsStreamsAndAnswersWhatWasAsked(t *testing.T) {
	a, _ := orchtest.Start(t, orchtest.Config{Script: greeting, Memory: true, Edit: func(c *app.Config) { c.Listen = "127.0.0.1:0" }})
	url, end := serve(t, a)
	id, err := a.Manager.Open(t.Context(), session.OpenRequest{Agent: "primary"})
	if err != nil {
		t.Fatal(err)
	}
	// An answer that is larger than what fits between us and a client that doesn't read it yet.
	large := session.Artifact{Key: session.NewArtifactKey(), Data: bytes.Repeat([]byte("x"), 32<<20)}
	if _, err := a.Manager.Store().Commit(t.Context(), session.Batch{Tree: id, Artifacts: []session.Artifact{large}}); err != nil {
		t.Fatal(err)
	}
	if res := get(t, url+"/readyz"); res.StatusCode != http.StatusOK {
		t.Errorf("/readyz says %d", res.StatusCode)
	}
	stream := get(t, url+"/v1/sessions/"+string(id)+"/events", "Accept", "text/event-stream")
	answer := get(t, url+"/v1/sessions/"+string(id)+"/artifacts/"+string(large.Key))
	ended := make(chan error, 1)
	go func() { ended <- end() }() // received below
	text, err := io.ReadAll(bufio.NewReader(stream.Body))
	if err != nil || !strings.Contains(string(text), "event: stream.end\ndata: {\"reason\":\"stopping\",\"lastSeq\":1}") {
		t.Errorf("the stream ended with %v after:\n%s", err, text)
	}
	if res := get(t, url+"/readyz"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("while stopping /readyz says %d", res.StatusCode)
	}
	if n, err := io.Copy(io.Discard, answer.Body); n != int64(len(large.Data)) || err != nil {
		t.Errorf("the answer that was being given has %d bytes, %v", n, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAnAddressThatIsNotLoopbackNeedsAuth(t *testing.T) {
	c := app.Config{Listen: "0.0.0.0:0", Getenv: env("HOME", t.TempDir(), "OPENAI_API_KEY", "k")}
	if _, err := c.Complete(); err == nil || !strings.Contains(err.Error(), "auth.required") {
		t.Errorf("Complete() = %v", err)
	}
	c.Auth.Required = true
	if _, err := c.Complete(); err != nil {
		t.Errorf("with auth.required: %v", err)
	}
	a, _ := orchtest.Start(t, orchtest.Config{Script: greeting, Memory: true, Edit: func(c *app.Config) {
		c.Listen, c.Auth.Required = "0.0.0.0:0", true
	}})
	url, end := serve(t, a)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if res := get(t, "http://127.0.0.1:"+port+"/v1/sessions"); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %d", res.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := end(); err != nil {
		t.Error(err)
	}
}
