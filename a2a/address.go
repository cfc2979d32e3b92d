package a2a

import (
	"fmt"
	"net/netip"
	"strings"
)

// AddressError says that an agent that was registered leads to an address it may not lead to.
type AddressError struct {
	Host string
	Addr netip.Addr
	Why  string // what the address is: "loopback"
}

func (e *AddressError) Error() string {
	at := e.Addr.String()
	if e.Host != at {
		at = e.Host + " (" + at + ")"
	}
	return fmt.Sprintf("%s is refused: its address is %s; only an operator can allow it, in a2a.allow_private", at, e.Why)
}

// special are the addresses that don't belong to the public Internet, or do and lead into a cloud's own services.
var special = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host's"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared by a provider's customers (CGNAT)"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's own service"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, as are clouds' metadata services"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("192.31.196.0/24"), "reserved"},
	{netip.MustParsePrefix("192.52.193.0/24"), "reserved"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("192.175.48.0/24"), "reserved"},
	{netip.MustParsePrefix("198.18.0.0/15"), "reserved for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/128"), "this host's"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{nat64, "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("fc00::/7"), "private (unique local)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "private (site-local)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("2001::/23"), "reserved, as are tunnels"},
	{netip.MustParsePrefix("2001:db8::/32"), "reserved for documentation"},
	{netip.MustParsePrefix("2002::/16"), "an IPv4 address in a tunnel (6to4)"},
	{netip.MustParsePrefix("2620:4f:8000::/48"), "reserved"},
	{netip.MustParsePrefix("3fff::/20"), "reserved for documentation"},
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	global = netip.MustParsePrefix("2000::/3") // all there is of the public Internet in IPv6
)

// specialUse returns what an address is that doesn't belong to the public Internet, or "" for one that does.
func specialUse(ip netip.Addr) string {
	if !ip.IsValid() {
		return "none"
	}
	for _, s := range special {
		if s.prefix.Contains(ip) {
			return s.why
		}
	}
	if ip.Is6() && !global.Contains(ip) {
		return "reserved"
	}
	return ""
}

// Allowed are the hosts and addresses that the operator lists for registered agents. The zero value lists none, and then
// only public addresses are good.
type Allowed struct {
	hosts    map[string]bool
	prefixes []netip.Prefix
}

// ParseAllowed reads the operator's list: names of hosts, addresses and prefixes (10.1.0.0/16).
func ParseAllowed(list []string) (Allowed, error) {
	a := Allowed{hosts: make(map[string]bool)}
	for _, text := range list {
		entry := strings.Trim(strings.TrimSpace(text), "[]")
		if ip, err := netip.ParseAddr(entry); err == nil && ip.Zone() == "" {
			ip = ip.Unmap()
			a.prefixes = append(a.prefixes, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		if p, err := netip.ParsePrefix(entry); err == nil {
			if p.Addr().Is4In6() {
				if p.Bits() < 96 {
					return Allowed{}, fmt.Errorf("%q is no prefix of IPv4 addresses; write it as IPv4", text)
				}
				p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
			}
			a.prefixes = append(a.prefixes, p.Masked())
			continue
		}
		host := canonicalHost(entry)
		if !hostName(host) {
			return Allowed{}, fmt.Errorf("%q is no host, address or prefix such as 10.1.0.0/16", text)
		}
		a.hosts[host] = true
	}
	return a, nil
}

func canonicalHost(h string) string { return strings.TrimSuffix(strings.ToLower(h), ".") }

// hostName reports whether a text can be the name of a host. What ends like a number can't, since some read it as an
// address.
func hostName(h string) bool {
	if h == "" || len(h) > 253 {
		return false
	}
	labels := strings.Split(h, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// Host reports whether the operator lists the host by its name.
func (a Allowed) Host(host string) bool { return a.hosts[canonicalHost(host)] }

// Check returns an *[AddressError] when a registered agent may not lead to an address, which host resolved to.
func (a Allowed) Check(host string, ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	why := specialUse(ip)
	if why == "" {
		return nil
	}
	for _, p := range a.prefixes {
		if !p.Contains(ip) {
			continue
		}
		if !nat64.Contains(ip) || p.Bits() > nat64.Bits() {
			return nil
		}
		// The operator's network translates addresses, which says nothing about what is behind them.
		b := ip.As16()
		return a.Check(host, netip.AddrFrom4([4]byte(b[12:])))
	}
	return &AddressError{Host: host, Addr: ip, Why: why}
}
