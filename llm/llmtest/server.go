package llmtest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// pipes is a listener whose connections never leave the process, so that a synctest bubble knows when all wait.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
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
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Serve runs a handler until the test ends and returns a client all of whose requests go to it, whatever their host. It
// works inside a synctest bubble.
func Serve(t testing.TB, handler http.Handler) *http.Client {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(p); err != http.ErrServerClosed {
			t.Errorf("Serve() = %v", err)
		}
	})
	transport := &http.Transport{DialContext: p.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
		wg.Wait()
	})
	return &http.Client{Transport: transport}
}
