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
	c := newConversation(t, subagents)
	p := c.place()
	srv := p.serve("127.0.0.1:0")

	restarts := make(chan syscall.Signal, 3)
	lines := &lineWriter{}
	lines.line = func(line []byte) {
		var said struct{ Cut int }
		if json.Unmarshal(line, &said) != nil || said.Cut == 0 {
			return
		}
		c.let(8)
		switch said.Cut {
		case cuts / 4, cuts * 3 / 4:
			restarts <- syscall.SIGKILL
		case cuts / 2:
			restarts <- syscall.SIGTERM
		case cuts:
			c.enough.open()
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
		case <-time.After(4 * patience):
			t.Fatalf("the client (seed %d) does not go on\n%s%s", seed, lines.all(), client.said())
		}
	}
	select {
	case <-client.over:
	case <-time.After(4 * patience):
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
	for _, e := range p.log(result.Session) {
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
	if len(talkers) != subagents || result.CutWhileTalking < cuts*9/10 || result.Output != theyTalk {
		t.Errorf("%d subagents have talked, at %d of %d cuts; the turn says %q", len(talkers), result.CutWhileTalking, cuts, result.Output)
	}
	srv.stop()
}

// conversation is a session in which subagents talk for as long as they are let.
type conversation struct {
	t         *testing.T
	subagents int
	chat      *chatServer
	pace      chan struct{} // a value lets one message out
	enough    *gate         // open: all end
}

const (
	theyTalk   = "They talk."
	allTalked  = "All of them have talked enough."
	letThemDo  = "Let them talk."
	talkOfTime = "I look at the clock once more, and then I go on talking."
)

func newConversation(t *testing.T, subagents int) *conversation {
	c := &conversation{t: t, subagents: subagents, pace: make(chan struct{}, 100_000), enough: newGate()}
	c.chat = newChatServer(t, c.answer)
	c.let(3 * subagents)
	return c
}

// let lets n more messages out.
func (c *conversation) let(n int) {
	for range n {
		select {
		case c.pace <- struct{}{}:
		default: // there are more than can be said
		}
	}
}

// answer is the model.
func (c *conversation) answer(q question) answer {
	switch {
	case q.primary() && strings.HasPrefix(q.input(), "This is a follow-up"):
		return says(allTalked)
	case q.primary() && q.last().Role == "tool":
		return says(theyTalk)
	case q.primary():
		calls := make([]toolUse, c.subagents)
		for i := range calls {
			calls[i] = toolUse{"spawn_subagent", map[string]any{"description": fmt.Sprintf("talker %d", i+1), "prompt": "Talk until it is enough."}}
		}
		return says(letThemDo, calls...)
	}
	select {
	case <-c.pace:
	case <-c.enough.done:
		return says("That is enough.")
	case <-time.After(10 * time.Second): // whoever asked may have been killed, and asks again
	}
	return says(talkOfTime, toolUse{"current_time", map[string]any{}})
}

// place is a folder in which all of them may talk at once.
func (c *conversation) place() *place {
	p := newPlace(c.t, "MODEL_KEY="+chatKey)
	p.write("orchestrator.yaml", fmt.Sprintf(`data_dir: data
models: [{name: main, model: e2e-1, base_url: %q, api_key_env: MODEL_KEY}]
loop: {model_calls: 100000}
subagents: {process_running: %d, per_tree_running: %d, alive: 64}
`, c.chat.url, c.subagents, c.subagents))
	return p
}

// log is a session's log in the database.
func (p *place) log(id session.ID) (events []session.Event) {
	p.t.Helper()
	for line := range strings.Lines(p.ok("sessions", "show", string(id), "-o", "json")) {
		var e session.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
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
