package a2a_test

import (
	"testing"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
	"orchestrator/a2a/bindingtest"
)

// notApplicable names the behaviours that a binding over HTTP doesn't have, and why. All others are run on all of them.
var notApplicable = map[a2atest.Interface]map[string]string{
	a2atest.JSONRPC03: {
		"loses the answer, which is found by listing": "tasks can't be listed over JSON-RPC 0.3; the message is sent again instead, as to any peer that can't list",
	},
	a2atest.GRPC10: {
		"answers a stream in JSON": "gRPC has no second form of an answer",
	},
}

// neverSpoken are the combinations that don't exist here at all.
var neverSpoken = map[string]string{
	"GRPC/0.3": "version 0.3 is spoken over JSON-RPC and HTTP+JSON only",
}

func TestPeerBehaviours(t *testing.T) {
	for name, why := range neverSpoken {
		t.Logf("%s: not applicable: %s", name, why)
	}
	for _, i := range a2atest.Interfaces() {
		bindingtest.Run(t, bindingtest.Binding{
			Interface: i, Without: notApplicable[i], Absent: "connection refused", Bubble: true,
			Site: func(t *testing.T, maxBody int64) bindingtest.Site {
				return &pipes{t: t, net: a2atest.NewNetwork(), maxBody: maxBody}
			},
		})
	}
}

// pipes is a site of peers on a network of pipes.
type pipes struct {
	t       *testing.T
	net     *a2atest.Network
	maxBody int64
}

var _ bindingtest.Site = (*pipes)(nil)

func (s *pipes) Peer(cfg a2atest.Config) (*a2atest.Peer, a2a.Peer) {
	p := s.net.Peer(s.t, cfg)
	return p, a2a.Peer{Name: cfg.Name, Card: p.URL()}
}

func (s *pipes) Crash(name string)  { s.net.Crash(name) }
func (s *pipes) Back(name string)   { s.net.Down(name, false) }
func (s *pipes) Vanish(name string) { s.net.Crash(name) }

func (s *pipes) Begin() bindingtest.Life {
	transport, err := a2ahttp.New(a2ahttp.Config{MaxBody: s.maxBody, DialContext: s.net.DialContext})
	if err != nil {
		s.t.Fatal(err)
	}
	return bindingtest.Life{HTTP: transport, End: transport.Close}
}
