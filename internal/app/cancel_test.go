package app_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
	"orchestrator/internal/orchtest"
	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/tracker"
)

const askOnce = `
agents:
  - name: primary
    rules:
      - position: 0
        tool_calls: [{name: invoke_agent, args: {agent_name: advisor, message: "What now?"}}]
      - text: asked
`

// TestACallCancelledBetweenTwoLivesIsCancelledAtThePeer: whoever cancels while no process runs leaves it to the next one
// to tell the peer.
func TestACallCancelledBetweenTwoLivesIsCancelledAtThePeer(t *testing.T) {
	for name, known := range map[string]bool{"task id known": true, "task id unknown": false} {
		t.Run(name, func(t *testing.T) { cancelBetweenLives(t, known) })
	}
}

func cancelBetweenLives(t *testing.T, known bool) {
	var second atomic.Bool
	peer := a2atest.New(t, a2atest.Config{
		Name: "advisor",
		Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Sleep(time.Minute)
		},
		Fault: func(r a2atest.Request) a2atest.Fault {
			if known || second.Load() {
				return a2atest.Fault{}
			}
			// The first life is not told what became of what it sent.
			return a2atest.Fault{Lose: r.Method == a2atest.MethodStream, Refuse: r.Method == a2atest.MethodList}
		},
	})
	dir := t.TempDir()
	c := orchtest.Config{Script: askOnce, Dir: dir, Peers: map[string]string{"advisor": peer.URL()}}
	a, stop := orchtest.Start(t, c)
	id, err := a.Manager.Open(t.Context(), session.OpenRequest{Agent: "primary"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Manager.Submit(t.Context(), session.SubmitRequest{Session: id, Input: "go"}); err != nil {
		t.Fatal(err)
	}
	var call tracker.PendingA2ATask
	eventually(t, "the call is sent, and the peer's task id known if it is to be", func() bool {
		calls, err := a.Calls.List(t.Context(), session.RecordQuery{Tree: id})
		if err != nil {
			t.Fatal(err)
		}
		if len(calls) == 1 {
			call = calls[0]
		}
		return call.PeerTaskID != "" || !known && len(peer.Sends()) > 0
	})
	stop()
	second.Store(true)

	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "orchestrator.db")})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := tracker.New(tracker.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := calls.Cancel(t.Context(), call.ID, "not needed any more"); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	a, _ = orchtest.Start(t, c)
	eventually(t, "the peer is told", func() bool {
		for _, r := range peer.Requests() {
			if r.Method == a2atest.MethodCancel && (r.TaskID == call.PeerTaskID || !known) {
				return true
			}
		}
		return false
	})
	eventually(t, "the answer to the cancel is noted", func() bool {
		p, err := a.Calls.Get(t.Context(), call.ID)
		if err != nil {
			t.Fatal(err)
		}
		return p.State == tracker.StateCancelled && !p.CancelOwed()
	})
}

// eventually polls, since what is waited for is another goroutine's doing over a real wire.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
