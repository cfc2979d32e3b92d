package a2aqueue_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

func hostOf(t *testing.T, broker string) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// await waits until what another process does is visible.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// stuckDialer makes connections whose writes are taken by nobody while it is closed.
type stuckDialer struct {
	mu    sync.Mutex
	stuck bool
}

func (s *stuckDialer) close() { s.set(true) }
func (s *stuckDialer) open()  { s.set(false) }

func (s *stuckDialer) set(stuck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = stuck
}

func (s *stuckDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &stuckConn{Conn: conn, dialer: s, closed: make(chan struct{}), late: make(chan struct{})}, nil
}

var errWriteTimeout = errors.New("write timeout")

type stuckConn struct {
	net.Conn
	dialer *stuckDialer
	once   sync.Once
	closed chan struct{}

	mu    sync.Mutex
	timer *time.Timer
	late  chan struct{}
}

func (c *stuckConn) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	late := make(chan struct{})
	c.late = late
	if !at.IsZero() {
		c.timer = time.AfterFunc(time.Until(at), func() { close(late) })
	}
	return nil
}

func (c *stuckConn) Write(p []byte) (int, error) {
	c.dialer.mu.Lock()
	stuck := c.dialer.stuck
	c.dialer.mu.Unlock()
	if !stuck {
		return c.Conn.Write(p)
	}
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-late:
		return 0, errWriteTimeout
	}
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// deafConn is a connection whose reads don't end with it, but when end is closed.
type deafConn struct {
	net.Conn
	end <-chan struct{}
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		<-c.end
	}
	return n, err
}
