package brokertest

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Direction is that in which bytes go through a Proxy.
type Direction int

// The directions.
const (
	ToServer Direction = iota // from client to server
	ToClient                  // from server to client
)

// Proxy passes TCP connections on to a server, until it is told to harm them. Its methods may be called at any time.
type Proxy struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fault  [2]fault // of new connections too
	delay  time.Duration
	links  map[*link]bool
}

// fault is what happens to the bytes of a direction.
type fault int

const (
	pass fault = iota
	cut        // the receiver sees the end of the connection
	drop       // the receiver sees nothing at all
)

// NewProxy starts a proxy to a host and port until the test is over.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, ln: ln, links: make(map[*link]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is the host and port on which the proxy listens.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// URL returns the URL of a broker with the proxy in between.
func (p *Proxy) URL(broker string) string {
	u, err := url.Parse(broker)
	if err != nil {
		panic(err) // of the test's own making
	}
	u.Host = p.Addr()
	return u.String()
}

// Sever closes all connections at once, in both directions. New ones pass.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Cut ends one direction of all connections: the receiver sees the end, the sender's bytes go nowhere. It holds for new
// connections too, until Heal.
func (p *Proxy) Cut(d Direction) { p.harm(d, cut) }

// Drop throws away what goes in one direction of all connections, and neither side is told: with both directions the
// connection is half-open. It holds for new connections too, until Heal.
func (p *Proxy) Drop(d Direction) { p.harm(d, drop) }

// Delay holds back whatever arrives by d, in both directions. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Heal lets new connections pass. Those that were harmed stay so, until one of their ends gives up.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = [2]fault{}
}

func (p *Proxy) harm(d Direction, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault[d] = f
	for l := range p.links {
		l.harm(d, f)
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.ln.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	conn, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		client.Close()
		return
	}
	l := &link{proxy: p, ends: [2]*net.TCPConn{ToServer: conn.(*net.TCPConn), ToClient: client}}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.close()
		return
	}
	p.links[l] = true
	for d, f := range p.fault {
		l.harm(Direction(d), f)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(ToServer) })
	wg.Go(func() { l.pump(ToClient) })
	wg.Wait()
	l.close()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// link is a connection through the proxy.
type link struct {
	proxy *Proxy
	ends  [2]*net.TCPConn // by direction: where its bytes go to

	mu     sync.Mutex
	faults [2]fault
}

func (l *link) close() {
	for _, c := range l.ends {
		_ = c.SetLinger(0) // it may be closed
		c.Close()
	}
}

func (l *link) harm(d Direction, f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[d] = f
	if f == cut {
		_ = l.ends[d].CloseWrite() // it may be closed
	}
}

// pump passes the bytes of one direction on until either end is closed.
func (l *link) pump(d Direction) {
	from, to := l.ends[1-d], l.ends[d]
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.proxy.mu.Lock()
		delay := l.proxy.delay
		l.proxy.mu.Unlock()
		if delay > 0 {
			timer := time.NewTimer(delay)
			<-timer.C
		}
		l.mu.Lock()
		f := l.faults[d]
		l.mu.Unlock()
		if n > 0 && f == pass {
			if _, err := to.Write(buf[:n]); err != nil {
				from.Close()
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && f == pass:
			_ = to.CloseWrite() // the other direction may go on
			return
		case errors.Is(err, io.EOF) && f == drop:
			return // nobody is told
		default:
			to.Close()
			return
		}
	}
}
