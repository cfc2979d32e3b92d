package a2atest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
)

// Network is hosts connected by pipes, for peers in a synctest bubble. Its peers listen at http://<name>.test.
type Network struct {
	mu    sync.Mutex
	hosts map[string]*listener
}

// NewNetwork returns a network without hosts.
func NewNetwork() *Network { return &Network{hosts: map[string]*listener{}} }

// Peer adds a peer to the network until the test, or the bubble it runs in, ends.
func (n *Network) Peer(t testing.TB, cfg Config) *Peer {
	t.Helper()
	p := newPeer(cfg)
	host := p.cfg.Name + ".test"
	p.url = "http://" + host
	p.serve()
	ln := &listener{host: host, conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: p, Protocols: protocols(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	n.mu.Lock()
	n.hosts[host] = ln
	n.mu.Unlock()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve peer %s: %v", host, err)
		}
	})
	t.Cleanup(func() {
		p.Close()
		if err := srv.Close(); err != nil {
			t.Errorf("close peer %s: %v", host, err)
		}
		serving.Wait()
	})
	return p
}

// Down makes a host refuse connections, or accept them again.
func (n *Network) Down(name string, down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[name+".test"].setDown(down)
}

// Crash breaks a host's connections and makes it refuse new ones until Down says otherwise, or until another peer has its
// name.
func (n *Network) Crash(name string) {
	n.mu.Lock()
	ln := n.hosts[name+".test"]
	n.mu.Unlock()
	ln.setDown(true)
	ln.hangUp()
}

// DialContext connects to a host of the network: it fits http.Transport. Unknown hosts refuse the connection.
func (n *Network) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	ln := n.hosts[host]
	n.mu.Unlock()
	if ln == nil || ln.isDown() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	client, server := net.Pipe()
	select {
	case ln.conns <- server:
		return client, nil
	case <-ln.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	host   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	down  bool
	taken []net.Conn
}

func (l *listener) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.taken {
		c.Close()
	}
	l.taken = nil
}

func (l *listener) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

func (l *listener) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken = append(l.taken, c)
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return addr(l.host) }

type addr string

func (addr) Network() string  { return "pipe" }
func (a addr) String() string { return string(a) }
