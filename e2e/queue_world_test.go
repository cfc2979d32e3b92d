package e2e_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/a2a/a2atest"
	"orchestrator/internal/brokertest"
	"orchestrator/session"
)

// replyQueue is where answers to a deployment of these tests come.
const replyQueue = a2aqueue.ReplyQueuePrefix + "e2e"

// brokerFile holds the URL of the broker, which is a secret.
const brokerFile = "broker.url"

// queueConfig is what a deployment's config says of its broker.
const queueConfig = "queue: {url_file: " + brokerFile + ", deployment: e2e}\n"

func queueOf(peer string) string { return a2aqueue.RequestQueuePrefix + peer }

// queueURL is the address of a peer's queue, as cards have it: on the broker by which the card was learned.
func queueURL(peer string) string { return a2aqueue.Address{Queue: queueOf(peer)}.String() }

// serveQueue serves a peer from its queue until ctx ends.
func serveQueue(ctx context.Context, s peerSetup, p *a2atest.Peer, ready func(string)) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("peer", s.Name)
	broker, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: s.Broker, Name: s.Name, Logger: log})
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the process ends
	server, err := a2aqueue.NewServer(a2aqueue.ServerConfig{
		Broker: broker, Queue: queueOf(s.Name), Handler: p.Handler(), Card: p.Cards(), VolatileTasks: s.Tasks == "",
		DrainTimeout: time.Second, Logger: log,
	})
	if err != nil {
		return err
	}
	ready(queueOf(s.Name))
	return server.Run(ctx)
}

// world is a deployment whose peers are behind queues of a virtual host of its own, and which asks them once: some calls
// are the primary's own, in some a subagent waits with patience, in some for a moment only.
type world struct {
	*deployment
	vhost  string // the URL of the virtual host
	ours   *brokertest.Proxy
	theirs *brokertest.Proxy // between the peers and the broker
	calls  int
	early  int // how many of them are made at once; the others follow after lateStart
}

// lateStart is when the later calls of a world are made, counted from the first: within the fault.
const lateStart = 2500 * time.Millisecond

// hasty is how many seconds a subagent waits that won't wait long. It is enough to make the call on a busy machine: with no
// time left none is made, and every call is counted here.
const hasty = 2

// plan says what a world is like.
type plan struct {
	vhost string
	// async, patient and quick are how many calls are made at once of each kind, and later how many patient ones follow.
	async, patient, quick, later int
	// tasks are kept in files by the peers.
	tasks bool
	// down leaves the peers to be started by the test; their queues exist if they were up once.
	down bool
}

func newWorld(t *testing.T, p plan) *world {
	t.Helper()
	seed := seedOf(t)
	addr := hostOf(t, p.vhost)
	w := &world{
		deployment: newDeployment(t, seed), vhost: p.vhost,
		ours: brokertest.NewProxy(t, addr), theirs: brokertest.NewProxy(t, addr),
		early: p.async + p.patient + p.quick, calls: p.async + p.patient + p.quick + p.later,
	}
	for i, name := range []string{"plain-1", "dedup-1"} {
		s := peerSetup{Name: name, Dedup: strings.HasPrefix(name, "dedup"), Seed: seed + uint64(i), Messages: 0.15, Held: true, Broker: w.theirs.URL(p.vhost)}
		if p.tasks {
			s.Tasks, s.Messages, s.Dedup = filepath.Join(w.dir, name+".tasks"), 0, false
		}
		w.addPeer(s)
	}
	if !p.down {
		w.startPeers()
	}
	if err := os.WriteFile(filepath.Join(w.dir, brokerFile), []byte(w.ours.URL(p.vhost)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.write(`
data_dir: .
listen: 127.0.0.1:0
log: {level: debug}
store: {synchronous: normal}
models: [{name: script, provider: scripted, script: script.yaml}]
subagents: {process_running: 100, per_tree_running: 100, alive: 400, queued: 100, consolidation_timeout: 3s}
a2a: {guard_primary: 100}
`+queueConfig, w.script(p))
	return w
}

// script is what the model does.
func (w *world) script(p plan) any {
	var calls []rule
	for i := range p.async {
		calls = append(calls, call("invoke_agent", rule{"agent_name": w.peers[i%2].setup.Name, "message": fmt.Sprintf("question %d", i)}))
	}
	spawn := func(n int, prompt string) {
		for i := range n {
			calls = append(calls, call("spawn_subagent", rule{"description": fmt.Sprintf("%s %d", prompt, i), "prompt": prompt + " " + w.peers[i%2].setup.Name}))
		}
	}
	spawn(p.patient, "patient")
	spawn(p.quick, "quick")
	spawn(p.later, "later")
	var child []rule
	for _, peer := range w.peers {
		ask := func(args rule) []rule {
			args["agent_name"], args["message"] = peer.setup.Name, "a question for "+peer.setup.Name
			return []rule{call("invoke_agent", args)}
		}
		child = append(child,
			rule{"position": 0, "match": "^patient " + peer.setup.Name, "tool_calls": ask(rule{})},
			rule{"position": 0, "match": "^quick " + peer.setup.Name, "tool_calls": ask(rule{"timeout_seconds": hasty})},
			rule{"position": 0, "match": "^later " + peer.setup.Name, "latency": lateStart.String(), "tool_calls": ask(rule{})})
	}
	child = append(child, rule{"tool": "invoke_agent", "match": "(?s).*", "text": "I heard: $0"})
	return rule{"agents": []rule{
		{"name": "primary", "rules": []rule{
			{"position": 0, "match": "^go$", "text": "At it.", "tool_calls": calls},
			{"match": "follow-up", "text": "Noted."}, {"text": "They are at work."},
		}},
		{"name": "subagent", "rules": child},
	}}
}

// startPeers starts the peers' processes and waits until they serve.
func (w *world) startPeers() {
	w.t.Helper()
	for _, p := range w.peers {
		p.start()
	}
	for _, p := range w.peers {
		w.await("that "+p.setup.Name+" consumes", func() bool { return brokertest.QueueConsumers(w.t, w.vhost, queueOf(p.setup.Name)) > 0 })
	}
}

// release lets the peers answer.
func (w *world) release() {
	for _, p := range w.peers {
		p.release()
	}
}

// received returns how many messages the peers have taken up.
func (w *world) received() int { return w.count(a2atest.KindReceived) }

// answered returns how many messages the peers have answered.
func (w *world) answered() int { return w.count(a2atest.KindAnswered) }

// recorded returns how many of the messages that the peers have taken up are in the files of their tasks.
func (w *world) recorded() int {
	n := 0
	for _, p := range w.peers {
		tasks, err := os.ReadFile(p.setup.Tasks)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, entry := range p.record() {
			if entry.Kind == a2atest.KindReceived && strings.Contains(string(tasks), `"messageId":"`+entry.MessageID+`"`) {
				n++
			}
		}
	}
	return n
}

func (w *world) count(kind string) int {
	ids := make(map[string]bool)
	for _, p := range w.peers {
		for _, entry := range p.record() {
			if entry.Kind == kind {
				ids[entry.MessageID] = true
			}
		}
	}
	return len(ids)
}

// replies returns how many answers are in the reply queue, those that are being taken included.
func (w *world) replies() int { return brokertest.QueueLength(w.t, w.vhost, replyQueue) }

// await asks again and again until a condition holds.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatalf("it does not come to this: %s", what)
		}
	}
}

// ask starts the first life, which asks the peers, and waits until so many messages have come to them.
func (w *world) ask(received int) *life {
	w.t.Helper()
	l := w.live("ask", "go", "--late", "5m")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); w.received() < received; {
		select {
		case <-l.ended:
			w.t.Fatalf("%s has ended\n%s", l.what, l.tail())
		case <-tick.C:
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d messages came to the peers, want %d\n%s\n%s", w.received(), received, l.warnings(), l.tail())
		}
	}
	return l
}

// comesHome waits until a life has nothing left to do: every call is over and every turn has ended.
func (w *world) comesHome(l *life) {
	w.t.Helper()
	if l.until(2*time.Minute, func(store session.Store) bool { return w.made(store) == w.calls && w.quiet(store) }) {
		return
	}
	select {
	case <-l.ended: // as it does when all has come home; the judge says whether it has
	default:
		w.t.Errorf("%s: not all has come home\n%s\n%s", l.what, l.warnings(), l.tail())
	}
}

// makesAll waits until a life has made all calls.
func (w *world) makesAll(l *life) {
	w.t.Helper()
	n := 0
	if !l.until(time.Minute, func(store session.Store) bool {
		n = w.made(store)
		return n == w.calls
	}) {
		w.t.Fatalf("%s has made %d calls of %d\n%s\n%s", l.what, n, w.calls, l.warnings(), l.tail())
	}
}

// made returns how many calls there are.
func (w *world) made(store session.Store) int { return len(w.records(store, session.KindCall)) }

// follows starts another life after one that was killed.
func (w *world) follows() *life { return w.live("serve") }

// verdict ends the last life and judges them all.
func (w *world) verdict(l *life) *verdict {
	w.t.Helper()
	l.stop()
	e := gather(w.t, w.database(), w.peers)
	v := judge(e)
	w.report(v, e)
	for how, n := range failedTurns(e) {
		if !strings.HasPrefix(how, "crashed: ") {
			w.t.Errorf("%d turns ended as %s", n, how)
		}
	}
	again, twice := resent(e)
	w.t.Logf("%v; %d calls sent again, %d messages taken up twice", v, again, twice)
	if v.calls != w.calls {
		w.t.Errorf("%d calls were made, want %d", v.calls, w.calls)
	}
	if v.unknown > 0 {
		w.t.Errorf("of %d calls nothing came home", v.unknown)
	}
	return v
}

// takenUpTwice returns the messages that became more than one task.
func (w *world) takenUpTwice() int {
	received := make(map[string]int)
	twice := 0
	for _, p := range w.peers {
		for _, entry := range p.record() {
			if entry.Kind == a2atest.KindReceived {
				if received[entry.MessageID]++; received[entry.MessageID] == 2 {
					twice++
				}
			}
		}
	}
	return twice
}
