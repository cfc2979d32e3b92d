// Package bindingtest is the suite that every binding of the protocol passes: one list of what a peer may do, and what then
// has to become of a call to it, in the tool's result and in the tracker.
//
// The tests of the transports call [Run]. A behaviour is a peer of package a2atest, and a call through the product's own
// tool, relay, registry and tracker; only what carries the protocol differs.
package bindingtest

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// Binding is what the suite is run over.
type Binding struct {
	// Interface is how the peers are called.
	Interface a2atest.Interface
	// Without names the behaviours that the binding doesn't have, each with the reason.
	Without map[string]string
	// Methods are what a peer is asked where that isn't what it is asked over HTTP.
	Methods map[string][]string
	// Absent is what a call to a peer that isn't there says of it.
	Absent string
	// Bubble runs each behaviour in a synctest bubble. Otherwise they run in real time, side by side.
	Bubble bool
	// Site makes the place of one behaviour. maxBody bounds one answer; zero is the default.
	Site func(t *testing.T, maxBody int64) Site
}

// Site is where the peers of one behaviour are. It ends with the test.
type Site interface {
	// Peer serves a peer, in the place of an earlier one of the same name, and returns how it is configured.
	Peer(cfg a2atest.Config) (*a2atest.Peer, a2a.Peer)
	// Crash breaks a peer's connections and takes it away. What it knows it keeps.
	Crash(name string)
	// Back makes a peer that crashed answer again.
	Back(name string)
	// Vanish takes a peer away for good, with what could hold a message for it.
	Vanish(name string)
	// Begin begins a life of the process that asks.
	Begin() Life
}

// Life is what one life of the process asks with.
type Life struct {
	HTTP  a2a.Transport
	Queue a2a.Transport // nil where there is none
	// Limits are the relay's.
	Limits a2a.Limits
	// Serve takes replies to the relay, if they come another way than over the transports. May be nil.
	Serve func(*a2a.Relay)
	// End ends it, after the relay.
	End func()
}

// Run runs all behaviours over a binding.
func Run(t *testing.T, b Binding) {
	t.Helper()
	var all []string
	for _, v := range behaviours {
		if slices.Contains(all, v.name) {
			t.Errorf("there are two behaviours %q", v.name)
		}
		all = append(all, v.name)
	}
	for name := range b.Without {
		if !slices.Contains(all, name) {
			t.Errorf("%v: there is no behaviour %q", b.Interface, name)
		}
	}
	for name := range b.Methods {
		if !slices.Contains(all, name) {
			t.Errorf("%v: there is no behaviour %q", b.Interface, name)
		}
	}
	t.Run(strings.ReplaceAll(b.Interface.Binding, "+", "_"), func(t *testing.T) {
		t.Run(b.Interface.Version, func(t *testing.T) {
			for _, v := range behaviours {
				if why, ok := b.Without[v.name]; ok {
					t.Logf("%s %s, %s: not applicable: %s", b.Interface.Binding, b.Interface.Version, v.name, why)
					t.Attr("not-applicable", v.name)
					continue
				}
				t.Run(v.name, func(t *testing.T) {
					if b.Bubble {
						synctest.Test(t, func(t *testing.T) { b.run(t, v) })
						return
					}
					t.Parallel()
					b.run(t, v)
				})
			}
		})
	})
}

func (b Binding) run(t *testing.T, v behaviour) {
	w := newWorld(t, b, v)
	defer func() { w.stop() }() // of the last life
	cfg := v.peer
	cfg.Name, cfg.Interfaces = "p", []a2atest.Interface{b.Interface}
	p, conf := w.site.Peer(cfg)
	if v.conf != nil {
		v.conf(&conf)
	}
	w.peers = []a2a.Peer{conf}
	w.begin()
	v.check(w, p)
	for _, r := range p.Requests() {
		if r.Method == a2atest.MethodCard {
			continue
		}
		if got := r.Header.Get("A2A-Version"); got != b.Interface.Version {
			t.Errorf("%s had version %q, want %q", r.Method, got, b.Interface.Version)
		}
		if wrong := w.traced.check(r); wrong != "" {
			t.Errorf("%s %s: %q", r.Method, wrong, r.Header.Values("Traceparent"))
		}
	}
}
