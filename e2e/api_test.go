package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
)

// TestAPIClientInAnotherLanguageMissesNoEvent has a Node program with nothing but fetch drive a session in which 20 subagents
// talk. It cuts its stream 200 times at random, while the server is killed twice and stopped once, and must have every durable
// event exactly once, in order.
func TestAPIClientInAnotherLanguageMissesNoEvent(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("there is no Node.js here, which CI must have")
		}
		t.Fatal("there is no Node.js: install version 20 or later")
	}
	t.Parallel()
	const (
		subagents = 20
		cuts      = 200
	)
	seed := rand.Uint32()
	t.Logf("seed %d", seed)

	// What the model says is paced by the client: each cut lets a few more messages out, so there is talk at every one.
	pace := make(chan struct{}, 100*cuts)
	let := func(n int) {
		for range n {
			pace <- struct{}{}
		}
	}
	let(3 * subagents)
	enough := newGate()
	chat := newChatServer(t, nil)
	chat.answer = func(q question) answer {
		if q.primary() {
			if strings.HasPrefix(q.input(), "This is a follow-up") {
				return says("All of them have talked enough.")
			}
			if q.last().Role == "tool" {
				return says("They talk.")
			}
			calls := make([]toolUse, subagents)
			for i := range calls {
				calls[i] = toolUse{"spawn_subagent", map[string]any{"description": fmt.Sprintf("talker %d", i+1), "prompt": "Talk until it is enough."}}
			}
			return says("Let them talk.", calls...)
		}
		select {
		case <-pace:
		case <-enough.done:
			return says("That is enough.")
		case <-time.After(10 * time.Second): // whoever asked may have been killed, and asks again
		}
		return says("I look at the clock once more, and then I go on talking.", toolUse{"current_time", map[string]any{}})
	}

	p := newPlace(t, "MODEL_KEY="+chatKey)
	p.write("orchestrator.yaml", fmt.Sprintf(`data_dir: data
models: [{name: main, model: e2e-1, base_url: %q, api_key_env: MODEL_KEY}]
loop: {model_calls: 100000}
subagents: {process_running: %d, per_tree_running: %d, alive: 64}
`, chat.url, subagents, subagents))
	srv := p.serve("127.0.0.1:0")

	restarts := make(chan syscall.Signal, 3)
	lines := &lineWriter{}
	lines.line = func(line []byte) {
		var said struct{ Cut int }
		if json.Unmarshal(line, &said) != nil || said.Cut == 0 {
			return
		}
		let(8)
		switch said.Cut {
		case cuts / 4, cuts * 3 / 4:
			restarts <- syscall.SIGKILL
		case cuts / 2:
			restarts <- syscall.SIGTERM
		case cuts:
			enough.open()
		}
	}
	cmd := exec.Command(node, "testdata/api/client.mjs", srv.url, "Let twenty of them talk.", fmt.Sprint(seed), fmt.Sprint(cuts))
	client := p.startNode(cmd, lines)
	for range 3 {
		select {
		case how := <-restarts:
			srv = srv.again(p, how)
		case <-client.over:
			t.Fatalf("the client (seed %d) has ended before its time\n%s%s", seed, lines.all(), client.said())
		case <-time.After(2 * patience):
			t.Fatalf("the client (seed %d) does not go on\n%s%s", seed, lines.all(), client.said())
		}
	}
	select {
	case <-client.over:
	case <-time.After(2 * patience):
	}
	client.exits(0)

	// What it has, in its order, is the log.
	var result struct {
		Session         session.ID
		Turn            session.TurnID
		Output          string
		Streams         int
		Ends            map[string]int
		Ephemeral       int
		CutWhileTalking int
	}
	var got [][]any
	for line := range strings.SplitSeq(strings.TrimSpace(lines.all()), "\n") {
		if strings.HasPrefix(line, "[") {
			var e []any
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		} else if err := json.Unmarshal([]byte(line), &result); err != nil {
			t.Fatalf("the client prints %q: %v", line, err)
		}
	}
	var want [][]any
	talkers := make(map[session.ID]bool)
	for line := range strings.Lines(p.ok("sessions", "show", string(result.Session), "-o", "json")) {
		var e session.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		want = append(want, []any{float64(e.Seq), string(e.ID), string(e.Type), string(e.AgentID), string(e.TurnID)})
		if e.Type == session.EventSubagentCompleted {
			talkers[e.AgentID] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-log +seen, seed %d):\n%s", seed, diff)
	}
	t.Logf("%d durable events over %d streams (%d ephemeral ones seen), %d of %d cuts while subagents talked, streams ended by the server: %v",
		len(got), result.Streams, result.Ephemeral, result.CutWhileTalking, cuts, result.Ends)
	if len(talkers) != subagents || result.CutWhileTalking < cuts*9/10 || result.Output != "They talk." {
		t.Errorf("%d subagents have talked, at %d of %d cuts; the turn says %q", len(talkers), result.CutWhileTalking, cuts, result.Output)
	}
	srv.stop()
}

// startNode starts a Node program that stands beside this file, its output going to w.
func (p *place) startNode(cmd *exec.Cmd, w *lineWriter) *process {
	p.t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Args[1] = wd + "/" + cmd.Args[1]
	cmd.Stdout = w
	return p.startCommand(cmd)
}

// lineWriter calls line with every line that is written.
type lineWriter struct {
	line func([]byte)

	mu   sync.Mutex
	text bytes.Buffer
	rest []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	w.rest = append(w.rest, b...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		w.line(line)
		w.rest = rest
	}
}

// all is all that was written.
func (w *lineWriter) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
