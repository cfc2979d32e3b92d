package a2a_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"orchestrator/a2a"
)

func allowed(t testing.TB, list ...string) a2a.Allowed {
	t.Helper()
	a, err := a2a.ParseAllowed(list)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRegisteredAgentsMayOnlyLeadToPublicAddresses(t *testing.T) {
	for _, tt := range []struct{ addr, why string }{
		{"169.254.169.254", "metadata"},
		{"fd00:ec2::254", "private"},
		{"100.100.100.200", "CGNAT"},
		{"168.63.129.16", "cloud"},
		{"192.0.0.192", "reserved"},
		{"127.0.0.1", "loopback"},
		{"127.255.255.254", "loopback"},
		{"::1", "loopback"},
		{"0.0.0.0", "this host"},
		{"::", "this host"},
		{"10.0.0.1", "private"},
		{"172.16.0.1", "private"},
		{"172.31.255.255", "private"},
		{"192.168.1.1", "private"},
		{"100.64.0.1", "CGNAT"},
		{"100.127.255.255", "CGNAT"},
		{"198.18.0.1", "benchmarks"},
		{"224.0.0.1", "multicast"},
		{"255.255.255.255", "reserved"},
		{"::ffff:127.0.0.1", "loopback"},
		{"::ffff:169.254.169.254", "metadata"},
		{"::ffff:10.0.0.1", "private"},
		{"::127.0.0.1", "reserved"},
		{"64:ff9b::7f00:1", "NAT64"},
		{"64:ff9b::808:808", "NAT64"},
		{"64:ff9b:1::a00:1", "NAT64"},
		{"fc00::1", "unique local"},
		{"fdff:ffff::1", "unique local"},
		{"fe80::1", "link-local"},
		{"fe80::1%eth0", "link-local"},
		{"fec0::1", "site-local"},
		{"ff02::1", "multicast"},
		{"2001::1", "tunnels"},
		{"2001:db8::1", "documentation"},
		{"2002:7f00:1::", "6to4"},
		{"3fff::1", "documentation"},
		{"4000::1", "reserved"},
		{"100::1", "reserved"},
	} {
		err := allowed(t).Check("agent.example", netip.MustParseAddr(tt.addr))
		refused, ok := errors.AsType[*a2a.AddressError](err)
		if !ok || !strings.Contains(refused.Why, tt.why) {
			t.Errorf("Check(%s) = %v, want a refusal for %q", tt.addr, err, tt.why)
		}
	}
	for _, addr := range []string{"8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "2a00::1"} {
		if err := allowed(t).Check("agent.example", netip.MustParseAddr(addr)); err != nil {
			t.Errorf("Check(%s) = %v", addr, err)
		}
	}
}

func TestWhatTheOperatorListsIsAllowedAndNothingNearIt(t *testing.T) {
	for _, tt := range []struct {
		list, addr string
		want       bool
	}{
		{"10.1.0.0/16", "10.1.2.3", true},
		{"10.1.0.0/16", "10.2.0.1", false},
		{"10.1.2.3/16", "10.1.9.9", true},
		{"10.1.0.0/16", "::ffff:10.1.2.3", true},
		{"::ffff:10.1.0.0/112", "10.1.2.3", true},
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", false},
		{"[::1]", "::1", true},
		{"fe80::/10", "fe80::1%eth0", true},
		{"64:ff9b::/96", "64:ff9b::808:808", true},
		{"64:ff9b::/96", "64:ff9b::7f00:1", false},
		{"64:ff9b::7f00:1", "64:ff9b::7f00:1", true},
		{"0.0.0.0/0", "::1", false},
		{"::/0", "64:ff9b::a9fe:a9fe", false},
		{"agents.internal", "10.1.2.3", false}, // a name is looked at before it is an address
	} {
		err := allowed(t, tt.list).Check("agent.example", netip.MustParseAddr(tt.addr))
		if (err == nil) != tt.want {
			t.Errorf("with %s allowed, Check(%s) = %v", tt.list, tt.addr, err)
		}
	}
	a := allowed(t, "Agents.Internal.", "localhost")
	for host, want := range map[string]bool{"agents.internal": true, "AGENTS.internal.": true, "localhost": true, "x.agents.internal": false, "internal": false} {
		if a.Host(host) != want {
			t.Errorf("Host(%s) = %v", host, !want)
		}
	}
}

func TestAnEntryThatIsNoHostOrPrefixIsRefused(t *testing.T) {
	for _, entry := range []string{"", "*", "*.internal", "10.0.0.0/33", "http://x", "x:80", "2130706433", "0x7f.1", "10.1", "fe80::1%eth0", "::ffff:0.0.0.0/90", "a..b"} {
		if _, err := a2a.ParseAllowed([]string{entry}); err == nil {
			t.Errorf("ParseAllowed(%q) is accepted", entry)
		}
	}
}

// FuzzAddress holds the check against the standard library's view of addresses, and every form of an IPv4 address against
// the others.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2606:4700::1111", "fe80::1", "8.8.8.8", "2002:a00:1::"} {
		b := netip.MustParseAddr(s).As16()
		f.Add(b[:])
	}
	var none a2a.Allowed
	all, err := a2a.ParseAllowed([]string{"0.0.0.0/0", "::/0"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b [16]byte
		copy(b[:], raw)
		ip := netip.AddrFrom16(b)
		err := none.Check("host", ip)
		plain := ip.Unmap()
		local := plain.IsLoopback() || plain.IsPrivate() || plain.IsUnspecified() || plain.IsMulticast() || plain.IsLinkLocalUnicast() ||
			plain.IsLinkLocalMulticast() || plain.IsInterfaceLocalMulticast()
		if err == nil && (local || !plain.IsGlobalUnicast()) {
			t.Fatalf("%s is accepted", ip)
		}
		if scoped := ip.WithZone("eth0"); (none.Check("host", scoped) == nil) != (err == nil) {
			t.Fatalf("%s differs with a zone", ip)
		}
		if err != nil && all.Check("host", ip) != nil && !netip.MustParsePrefix("64:ff9b::/96").Contains(ip) {
			t.Fatalf("%s is refused though all is allowed", ip)
		}
		v4 := netip.AddrFrom4([4]byte(b[12:]))
		mapped := netip.AddrFrom16(v4.As16())
		if (none.Check("host", v4) == nil) != (none.Check("host", mapped) == nil) {
			t.Fatalf("%s differs when it is mapped", v4)
		}
		translated := [16]byte{0x00, 0x64, 0xff, 0x9b}
		binary.BigEndian.PutUint32(translated[12:], binary.BigEndian.Uint32(b[12:]))
		if none.Check("host", netip.AddrFrom16(translated)) == nil {
			t.Fatalf("%s is accepted behind NAT64", v4)
		}
	})
}
