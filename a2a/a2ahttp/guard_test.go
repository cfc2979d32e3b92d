package a2ahttp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
)

// names answers DNS questions: each name has a list of addresses, of which each answer has the next.
type names struct {
	mu    sync.Mutex
	addrs map[string][]string
	asked map[string]int
}

// resolver returns a resolver that asks names.
func (n *names) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.asked = make(map[string]int)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply, err := n.answer(buf[:size]); err == nil {
				conn.WriteTo(reply, from) //nolint:errcheck // the client asks again
			}
		}
	})
	t.Cleanup(func() { conn.Close(); wg.Wait() })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// The types of DNS records that are asked for.
const (
	recordA    = 1
	recordAAAA = 28
)

// answer answers a DNS query with one question.
func (n *names) answer(query []byte) ([]byte, error) {
	const head = 12
	if len(query) < head {
		return nil, errors.New("the query is short")
	}
	var labels []string
	at := head
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		if end >= len(query) {
			return nil, errors.New("the name is short")
		}
		labels = append(labels, string(query[at+1:end]))
		at = end
	}
	end := at + 5 // the root, the type, the class
	if end > len(query) {
		return nil, errors.New("the question is short")
	}
	kind := binary.BigEndian.Uint16(query[at+1:])
	n.mu.Lock()
	defer n.mu.Unlock()
	name := strings.Join(labels, ".")
	addrs := n.addrs[name]
	reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[head:end]...)
	if len(addrs) == 0 {
		reply[3] |= 3 // there is no such name
		return reply, nil
	}
	ip := netip.MustParseAddr(addrs[min(n.asked[name], len(addrs)-1)])
	if kind == recordA && ip.Is4() || kind == recordAAAA && ip.Is6() {
		n.asked[name]++
		reply[7] = 1
		reply = append(reply, 0xc0, head) // the name of the question
		reply = binary.BigEndian.AppendUint16(reply, kind)
		reply = append(reply, 0, 1, 0, 0, 0, 0, 0, byte(ip.BitLen()/8)) // the class, no time to live, the length
		reply = append(reply, ip.AsSlice()...)
	}
	return reply, nil
}

func allow(t *testing.T, list ...string) a2a.Allowed {
	t.Helper()
	a, err := a2a.ParseAllowed(list)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func wantRefused(t *testing.T, err error, why string) {
	t.Helper()
	refused, ok := errors.AsType[*a2a.AddressError](err)
	if !ok || !strings.Contains(refused.Why, why) {
		t.Errorf("the error is %v, want a refusal for %q", err, why)
	}
}

func TestNamesOfRegisteredAgentsAreCheckedByTheirAddresses(t *testing.T) {
	n := &names{addrs: map[string][]string{
		"loop.example": {"127.0.0.1"}, "meta.example": {"169.254.169.254"}, "ten.example": {"10.0.0.1"}, "cgnat.example": {"100.64.0.1"},
		"six.example": {"::1"}, "ula.example": {"fd00::1"}, "mapped.example": {"::ffff:192.168.0.1"}, "nat.example": {"64:ff9b::a00:1"},
	}}
	tr := newTransport(t, a2ahttp.Config{Resolver: n.resolver(t)})
	for host, why := range map[string]string{
		"loop.example": "loopback", "meta.example": "metadata", "ten.example": "private", "cgnat.example": "CGNAT", "six.example": "loopback",
		"ula.example": "unique local", "mapped.example": "private", "nat.example": "NAT64",
		"127.0.0.1": "loopback", "[::1]": "loopback", "[::ffff:127.0.0.1]": "loopback", "localhost": "loopback", "0.0.0.0": "this host's",
	} {
		_, err := tr.Card(t.Context(), a2a.Peer{Name: "p", Card: "http://" + host + ":9", Registered: true})
		wantRefused(t, err, why)
	}
}

func TestANameThatStandsForAnotherAddressTheNextTimeGainsNothing(t *testing.T) {
	var inside recorder
	at := serve(t, inside.ServeHTTP)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(at, "http://"))
	// The first address is good (the operator allows it) and refuses connections; the second is where the server is.
	n := &names{addrs: map[string][]string{"twice.example": {"127.0.0.2", "127.0.0.1"}}}
	tr := newTransport(t, a2ahttp.Config{Resolver: n.resolver(t), Allowed: allow(t, "127.0.0.2")})
	p := a2a.Peer{Name: "p", Card: "http://twice.example:" + port, Registered: true}
	if _, err := tr.Card(t.Context(), p); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("the first time gives %v", err)
	} else if _, ok := errors.AsType[*a2a.AddressError](err); ok {
		t.Fatalf("the first address is refused by the check: %v", err)
	}
	_, err := tr.Card(t.Context(), p)
	wantRefused(t, err, "loopback")
	if len(inside.seen) > 0 {
		t.Error("the second address got a request")
	}
}

func TestRegisteredAgentsCannotRedirectOrPointInside(t *testing.T) {
	var inside recorder
	at := serve(t, inside.ServeHTTP)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(at, "http://"))
	var hops atomic.Int64
	outside := serve(t, func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		http.Redirect(w, r, "http://inside.example:"+port+"/", http.StatusTemporaryRedirect)
	})
	n := &names{addrs: map[string][]string{"inside.example": {"127.0.0.1"}, "outside.example": {"127.0.0.1"}}}
	// To the test both are on loopback; the operator's word makes one of them public.
	tr := newTransport(t, a2ahttp.Config{Resolver: n.resolver(t), Allowed: allow(t, "outside.example")})
	base := "http://outside.example" + outside[strings.LastIndexByte(outside, ':'):]
	p := a2a.Peer{Name: "p", Card: base, Registered: true}
	_, err := tr.Card(t.Context(), p)
	wantRefused(t, err, "loopback")
	wantRefused(t, send(t, tr, p, cardOf(base, nil)), "loopback")
	if hops.Load() != 2 {
		t.Errorf("%d redirects were given", hops.Load())
	}
	for _, url := range []string{"http://inside.example:" + port, at, "http://[::ffff:127.0.0.1]:" + port, "http://localhost:" + port} {
		for _, binding := range []protocol.TransportProtocol{protocol.TransportProtocolJSONRPC, protocol.TransportProtocolHTTPJSON, protocol.TransportProtocolGRPC} {
			card := cardOf(url, nil)
			card.SupportedInterfaces[0].ProtocolBinding = binding
			wantRefused(t, send(t, tr, p, card), "loopback")
		}
	}
	if len(inside.seen) > 0 {
		t.Error("the server inside got a request")
	}
	p.Registered = false
	if err := send(t, tr, p, cardOf(at, nil)); err != nil {
		t.Errorf("a peer that the operator lists gives %v", err)
	}
}

func TestRegisteredAgentsAreDialedWithoutAProxy(t *testing.T) {
	var proxy recorder
	t.Setenv("HTTP_PROXY", serve(t, proxy.ServeHTTP))
	n := &names{addrs: map[string][]string{"ten.example": {"10.0.0.1"}}}
	_, err := newTransport(t, a2ahttp.Config{Resolver: n.resolver(t)}).Card(t.Context(), a2a.Peer{Name: "p", Card: "http://ten.example", Registered: true})
	wantRefused(t, err, "private")
	if len(proxy.seen) > 0 {
		t.Error("the proxy was asked")
	}
}
