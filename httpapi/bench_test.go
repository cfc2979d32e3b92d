package httpapi_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/httpapi"
	"orchestrator/session"
)

// BenchmarkCommitWhileReadersAreStuck measures what streams cost a session whose clients stopped reading: each operation is
// a commit to it, and a request for what it is.
func BenchmarkCommitWhileReadersAreStuck(b *testing.B) {
	for _, stuck := range []int{0, 1, 20} {
		b.Run(fmt.Sprintf("readers=%d", stuck), func(b *testing.B) {
			reg := prometheus.NewRegistry()
			w := newWorld(b, worldConfig{edit: func(c *httpapi.Config) { c.Registry, c.WriteTimeout = reg, time.Hour }})
			id := w.session()
			conns := make([]net.Conn, stuck)
			for i := range conns {
				conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
				if err != nil {
					b.Fatal(err)
				}
				conns[i] = conn
				fmt.Fprintf(conn, "GET /v1/sessions/%s/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", id)
			}
			commit := func(text string) {
				if _, err := w.m.Store().Commit(b.Context(), session.Batch{Tree: id, Events: []session.Event{
					session.Scope{Root: id, Agent: id}.Event(session.EventMessageCompleted, session.Message{Text: text}),
				}}); err != nil {
					b.Fatal(err)
				}
			}
			word := strings.Repeat("x", 50<<10)
			for before := -1.0; stuck > 0; { // fill the connections until nothing goes any more
				for range 50 {
					commit(word)
				}
				time.Sleep(100 * time.Millisecond)
				sent := metric(b, reg, "orchestrator_http_events_sent_total", "durable")
				if sent == before {
					break
				}
				before = sent
			}
			for b.Loop() {
				commit("hello")
				w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions/"+string(id)+"/events?limit=1", "")
			}
			b.StopTimer()
			for _, conn := range conns {
				conn.Close()
			}
			w.stop()
		})
	}
}
