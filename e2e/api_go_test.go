package e2e_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// cutter is a way to a server whose connections break: each after a random number of bytes from the server.
type cutter struct {
	listener net.Listener
	server   string
	cut      func(c *cutter, n int) // is told of the nth cut

	mu    sync.Mutex
	rand  *rand.Rand
	whole bool // no more cuts
	cuts  int
	wg    sync.WaitGroup
}

func newCutter(t *testing.T, server string, seed uint64, cut func(c *cutter, n int)) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, server: server, cut: cut, rand: rand.New(rand.NewPCG(seed, 0))}
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // it is open
		c.wg.Wait()
	})
	return c
}

// carry carries one connection to the server and back, until one end has had enough, or it breaks.
func (c *cutter) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return // it is away
	}
	defer server.Close()
	c.mu.Lock()
	most := int64(1 + c.rand.IntN(15_000))
	if c.whole {
		most = 1 << 40
	}
	c.mu.Unlock()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client) // whichever end breaks
		_ = server.Close()
	})
	n, _ := io.CopyN(client, server, most)
	_ = client.Close()
	up.Wait()
	if n == most {
		c.mu.Lock()
		c.cuts++
		n := c.cuts
		c.mu.Unlock()
		c.cut(c, n)
	}
}

// heal makes the connections from now on whole.
func (c *cutter) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole = true
}

// TestAPIGoClientWaitsOverCutsAndRestarts has a Go program wait for a turn and all it set going, and read every event, over
// connections that break and a server that is killed.
func TestAPIGoClientWaitsOverCutsAndRestarts(t *testing.T) {
	t.Parallel()
	const cuts = 45
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := newConversation(t, 6)
	p := c.place()
	srv := p.serve("127.0.0.1:0")
	restart := make(chan struct{}, 2)
	way := newCutter(t, srv.url[len("http://"):], seed, func(way *cutter, n int) {
		c.let(10)
		switch n {
		case cuts / 3, cuts * 2 / 3:
			restart <- struct{}{}
		case cuts:
			way.heal()
			c.enough.open()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	opened := directly(t, srv.url, func(h *sessionclient.HTTP) (session.Info, error) { return h.Open(ctx, sessionclient.OpenRequest{}) })

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: "http://" + way.listener.Addr().String(), Client: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := sessionclient.New(sessionclient.Config{Backend: h, Session: opened.ID, MaxPause: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer client.Close()
	var turn sessionclient.Turn
	over := make(chan error, 1)
	wg.Go(func() {
		var err error
		turn, err = client.SendAndWait(ctx, sessionclient.SendRequest{Input: letThemDo, WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent}})
		over <- err
	})
	heard := make(chan session.Event, 100_000)
	wg.Go(func() {
		for e, err := range client.Events(ctx, sessionclient.EventsRequest{Ephemeral: true}) {
			if err != nil {
				return // the test is over
			}
			if e.Seq > 0 {
				heard <- e
			}
		}
	})
	for range 2 {
		select {
		case <-restart:
			srv = srv.again(p, syscall.SIGKILL)
		case err := <-over:
			t.Fatalf("the wait is over (seed %d): %+v, %v", seed, turn, err)
		case <-ctx.Done():
			t.Fatalf("it does not come to that (seed %d)", seed)
		}
	}
	if err := <-over; err != nil {
		t.Fatalf("SendAndWait() = %v (seed %d)", err, seed)
	}
	if turn.Output != theyTalk || !turn.Quiescent || len(turn.FoldBacks) != 1 || turn.FoldBacks[0].Output != allTalked {
		t.Errorf("SendAndWait() = %+v (seed %d)", turn, seed)
	}
	want := p.log(opened.ID)
	got := make([]session.Event, 0, len(want))
	for range want {
		select {
		case e := <-heard:
			got = append(got, e)
		case <-ctx.Done():
			t.Fatalf("%d events of %d are told (seed %d)", len(got), len(want), seed)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-log +told, seed %d):\n%s", seed, diff)
	}
	t.Logf("%d durable events over %d cuts and 2 kills", len(got), cuts)
	srv.stop()
}

// directly makes one call to a server.
func directly[T any](t *testing.T, url string, call func(*sessionclient.HTTP) (T, error)) T {
	t.Helper()
	h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	v, err := call(h)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
