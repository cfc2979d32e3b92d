package a2a_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
	"orchestrator/tracker"
)

func TestCallsOneAfterTheOtherShareAConnection(t *testing.T) {
	for name, script := range map[string]func(*a2atest.Exchange){
		"message": func(x *a2atest.Exchange) { x.Reply("an answer") },
		"task":    func(x *a2atest.Exchange) { x.State(a2atest.Completed, "an answer") },
	} {
		t.Run(name, func(t *testing.T) {
			peer := a2atest.New(t, a2atest.Config{Script: script})
			var dials atomic.Int32
			transport, err := a2ahttp.New(a2ahttp.Config{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, network, addr)
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(transport.Close)
			registry, err := a2a.NewRegistry(a2a.RegistryConfig{Peers: []a2a.Peer{{Name: "peer", Card: peer.URL()}}, Transport: transport})
			if err != nil {
				t.Fatal(err)
			}
			store := session.NewMemory()
			calls, err := tracker.New(tracker.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			relay, err := a2a.New(a2a.Config{Tracker: calls, Store: store, Registry: registry})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(relay.Drain)
			turn := sessiontest.NewChildTurn(t, sessiontest.NewTurn(t, store), 1)
			for n := 1; n <= 5; n++ {
				res, err := relay.Tools()[0].Run(t.Context(), &tool.Call{
					ID: session.MintToolCallID(turn.Agent, n), Name: a2a.InvokeAgent, Turn: turn,
					Args:     json.RawMessage(fmt.Sprintf(`{"agent_name": "peer", "message": "question %d"}`, n)),
					Accepted: turn.Body.StartedAt, Park: func(string) {}, Progress: func(string) {},
				})
				if err != nil || res.IsError {
					t.Fatalf("call %d = %+v, %v", n, res, err)
				}
				done, err := turn.Commit(t.Context(), res.Batch)
				if err != nil {
					t.Fatalf("use the answer to call %d = %+v, %v", n, done, err)
				}
			}
			// The answer is used while its stream is still read to the end, so that one call may overtake another.
			if n := dials.Load(); n > 3 {
				t.Errorf("5 calls and the card took %d connections", n)
			}
		})
	}
}
