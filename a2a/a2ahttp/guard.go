package a2ahttp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
)

// guard dials for agents that were registered at run time. It checks the address that a name has turned out to stand for,
// at the moment it is dialed, so a name that stands for another address the next time gains nothing.
type guard struct {
	allowed a2a.Allowed
	dialer  net.Dialer
}

// DialContext connects to an address that is public or that the operator lists.
func (g *guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	d := g.dialer
	if !g.allowed.Host(host) {
		d.ControlContext = func(_ context.Context, network, addr string, _ syscall.RawConn) error {
			return g.check(host, network, addr)
		}
	}
	return d.DialContext(ctx, network, addr)
}

// check is asked before each connection is begun, with the address it goes to.
func (g *guard) check(host, network, addr string) error {
	switch network {
	case "tcp4", "tcp6":
	default:
		return fmt.Errorf("%s is refused: agents are dialed by TCP, not %s", host, network)
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fmt.Errorf("%s is refused: its address %q can't be read", host, addr)
	}
	return g.allowed.Check(host, at.Addr())
}

// checkInterfaces refuses a card with an interface at an address it may not lead to. Names are checked when they are dialed.
func checkInterfaces(allowed a2a.Allowed, card *protocol.AgentCard) error {
	for _, i := range card.SupportedInterfaces {
		u, err := url.Parse(i.URL)
		if err != nil || allowed.Host(u.Hostname()) {
			continue
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
			if err := allowed.Check(u.Hostname(), ip); err != nil {
				return err
			}
		}
	}
	return nil
}
