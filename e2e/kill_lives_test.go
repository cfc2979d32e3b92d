package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/subagent"
	"orchestrator/tracker"
)

// buildOrchestrator builds the product's binary, once for all tests.
var buildOrchestrator = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "orchestrator-e2e-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	binary := filepath.Join(dir, "orchestrator")
	cmd := exec.Command("go", "build", "-o", binary, "orchestrator/cmd/orchestrator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as people get it
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the orchestrator: %w\n%s", err, out)
	}
	return binary, nil
})

// builtIn is the folder of the binary, for TestMain to remove; empty: there is none.
var builtIn string

// deployment is one database with its config and its peers, on which processes of the product live one after the other.
type deployment struct {
	t      *testing.T
	binary string
	dir    string
	peers  []*peer
	random *rand.Rand
	lives  int
}

// config is that of a deployment. A round spawns ten subagents, and they all run at once.
const config = `
data_dir: .
listen: 127.0.0.1:0
log: {level: debug}
store: {synchronous: normal}
models: [{name: script, provider: scripted, script: script.yaml}]
subagents: {process_running: 40, per_tree_running: 10, alive: 400, consolidation_timeout: 3s}
`

// deploy makes a deployment for the rounds of a script. All that is random in it follows from the seed. With the URL of a
// broker its peers are asked through queues there.
func deploy(t *testing.T, seed uint64, broker string, rounds int, more ...rule) *deployment {
	t.Helper()
	d := newDeployment(t, seed)
	for i, name := range peerNames {
		d.addPeer(peerSetup{
			Name: name, Dedup: strings.HasPrefix(name, "dedup"), Seed: seed + uint64(i),
			MinDelay: 50 * time.Millisecond, MaxDelay: 1500 * time.Millisecond, Messages: 0.15, Broker: broker,
		}).start()
	}
	text := config
	if broker != "" {
		text += queueConfig
		if err := os.WriteFile(filepath.Join(d.dir, brokerFile), []byte(broker), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.write(text, d.script(rounds, more))
	return d
}

// newDeployment makes a deployment that lacks peers and files.
func newDeployment(t *testing.T, seed uint64) *deployment {
	t.Helper()
	binary, err := buildOrchestrator()
	if err != nil {
		t.Fatal(err)
	}
	return &deployment{t: t, binary: binary, dir: t.ArtifactDir(), random: rand.New(rand.NewPCG(seed, 0))}
}

// addPeer adds a peer, which is to be started.
func (d *deployment) addPeer(s peerSetup) *peer {
	s.Journal = filepath.Join(d.dir, s.Name+".journal")
	p := newPeer(d.t, s)
	d.peers = append(d.peers, p)
	return p
}

// write writes the files that the product reads.
func (d *deployment) write(config string, script any) {
	d.t.Helper()
	var list strings.Builder
	list.WriteString("peers:\n")
	for _, p := range d.peers {
		if p.setup.Broker != "" {
			fmt.Fprintf(&list, "  - {name: %s, queue: %q, durable_queue: %t}\n", p.setup.Name, queueOf(p.setup.Name), p.url == "")
			continue
		}
		fmt.Fprintf(&list, "  - {name: %s, card: %q}\n", p.setup.Name, p.url)
	}
	text, err := json.MarshalIndent(script, "", " ") // YAML that is JSON
	if err != nil {
		d.t.Fatal(err)
	}
	for name, text := range map[string]string{"orchestrator.yaml": config, "peers.yaml": list.String(), "script.yaml": string(text)} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
}

// peerNames are the peers: half of them plain servers, half deduplicating by message id.
var peerNames = []string{"plain-1", "plain-2", "dedup-1", "dedup-2"}

// rule is a rule of a script, as llm/scripted reads it.
type rule map[string]any

// quick is a timeout most answers are too late for.
const quick = 0.35

// script is what the model does: for each round the primary spawns ten subagents and makes three calls of its own; each
// subagent asks one or two peers, patiently or for a quick answer, and reports what it heard.
func (d *deployment) script(rounds int, more []rule) any {
	primary := more
	for round := 1; round <= rounds; round++ {
		var calls []rule
		for i := range 10 {
			prompt := fmt.Sprintf("first %s", d.whom())
			if d.random.IntN(10) < 4 {
				prompt += fmt.Sprintf(", then %s", d.whom())
			}
			calls = append(calls, call("spawn_subagent", rule{"description": fmt.Sprintf("task %d of round %d", i, round), "prompt": prompt}))
		}
		for i := range 3 {
			args := rule{"agent_name": d.peer(), "message": fmt.Sprintf("question %d of round %d", i, round)}
			if i == 0 {
				args["timeout_seconds"] = quick
			}
			calls = append(calls, call("invoke_agent", args))
		}
		primary = append(primary, rule{"position": 0, "match": fmt.Sprintf("^round %d$", round), "latency": "20ms", "text": "At it.", "tool_calls": calls})
	}
	primary = append(primary, rule{"match": "follow-up", "latency": "250ms", "text": "Noted."}, rule{"text": "They are at work."})
	var child []rule
	for _, name := range peerNames {
		for _, patience := range []string{"quick", "patient"} {
			args := rule{"agent_name": name, "message": "a question for " + name}
			if patience == "quick" {
				args["timeout_seconds"] = quick
			}
			ask := []rule{call("invoke_agent", args)}
			child = append(child,
				rule{"position": 0, "match": "^first " + name + " " + patience, "latency": "30ms", "tool_calls": ask},
				rule{"position": 1, "history": "then " + name + " " + patience, "latency": "30ms", "tool_calls": ask})
		}
	}
	child = append(child, rule{"tool": "invoke_agent", "match": "(?s).*", "latency": "30ms", "text": "I heard: $0"})
	return rule{"agents": []rule{{"name": "primary", "rules": primary}, {"name": "subagent", "rules": child}}}
}

func (d *deployment) peer() string { return peerNames[d.random.IntN(len(peerNames))] }

func (d *deployment) whom() string {
	return d.peer() + " " + []string{"quick", "patient"}[d.random.IntN(2)]
}

func call(name string, args rule) rule { return rule{"name": name, "args": args} }

// moment returns a random time between 0.1 and 1.5 seconds.
func (d *deployment) moment() time.Duration {
	return 100*time.Millisecond + time.Duration(d.random.Int64N(int64(1400*time.Millisecond)))
}

// database is the database's path.
func (d *deployment) database() string { return filepath.Join(d.dir, "orchestrator.db") }

// life is one process of the product.
type life struct {
	d       *deployment
	what    string
	cmd     *exec.Cmd
	started time.Time
	log     string
	ended   chan struct{} // closed when the process has ended
}

// live starts the product on the deployment's database.
func (d *deployment) live(args ...string) *life {
	d.t.Helper()
	d.lives++
	l := &life{
		d: d, what: fmt.Sprintf("life %d (%s)", d.lives, strings.Join(args, " ")), ended: make(chan struct{}),
		log: filepath.Join(d.dir, fmt.Sprintf("life-%02d.log", d.lives)), started: time.Now(),
	}
	out, err := os.Create(l.log)
	if err != nil {
		d.t.Fatal(err)
	}
	defer out.Close()
	l.cmd = exec.Command(d.binary, append(args, "--config", filepath.Join(d.dir, "orchestrator.yaml"))...)
	l.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ORCHESTRATOR_") })
	l.cmd.Stdout, l.cmd.Stderr = out, out
	if err := l.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(l.ended)
		_ = l.cmd.Wait() // ProcessState says how it ended
	})
	d.t.Cleanup(func() {
		_ = l.cmd.Process.Kill() // it may have ended long ago
		wg.Wait()
	})
	return l
}

// runs lets the process run for a while and reports whether it still does then.
func (l *life) runs(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.ended:
		return false
	case <-timer.C:
		return true
	}
}

// kill kills the process and reports whether that ended it. It fails the test when the process had ended in any other
// way but well.
func (l *life) kill() bool {
	l.d.t.Helper()
	if err := l.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.d.t.Fatal(err)
	}
	<-l.ended
	state := l.cmd.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return true
	}
	if !state.Success() {
		l.d.t.Fatalf("%s: %v\n%s", l.what, state, l.tail())
	}
	return false
}

// stop asks the process to end and returns its exit code.
func (l *life) stop() int {
	l.d.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.d.t.Fatal(err)
	}
	if l.runs(20 * time.Second) {
		l.d.t.Fatalf("%s does not stop\n%s", l.what, l.tail())
	}
	return l.cmd.ProcessState.ExitCode()
}

// tail returns the end of what the process printed.
func (l *life) tail() string {
	text, err := os.ReadFile(l.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// warnings returns the last of what the process logged that somebody should look at.
func (l *life) warnings() string {
	text, err := os.ReadFile(l.log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

// until polls the database, which the process has open, until a condition holds, and reports whether it did before the
// time was up and the process had ended.
func (l *life) until(most time.Duration, holds func(session.Store) bool) bool {
	var store *sqlite.Store
	defer func() {
		if store != nil {
			_ = store.Close() // nothing was written
		}
	}()
	for end := time.Now().Add(most); time.Now().Before(end); {
		if store == nil {
			// The first life makes the database, and until then there is none to open.
			store, _ = sqlite.Open(l.d.t.Context(), sqlite.Config{Path: l.d.database(), ReadOnly: true})
		}
		if store != nil && holds(store) {
			return true
		}
		if !l.runs(10 * time.Millisecond) {
			return false
		}
	}
	return false
}

// remains looks at what a process left in the database, unless it ended before it made one. It looks at a copy: the next
// life has to find the write-ahead log as it was left.
func (d *deployment) remains(look func(session.Store)) {
	d.t.Helper()
	dir := d.t.TempDir()
	for _, name := range []string{"orchestrator.db", "orchestrator.db-wal"} {
		data, err := os.ReadFile(filepath.Join(d.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			d.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	store, err := sqlite.Open(d.t.Context(), sqlite.Config{Path: filepath.Join(dir, "orchestrator.db"), ReadOnly: true})
	if schema, ok := errors.AsType[*sqlite.SchemaError](err); errors.Is(err, os.ErrNotExist) || ok && schema.Have < schema.Want {
		return
	}
	if err != nil {
		d.t.Fatal(err)
	}
	defer store.Close()
	look(store)
}

// records returns the records of a kind in some states.
func (d *deployment) records(store session.Store, kind session.Kind, states ...session.State) []session.Record {
	recs, err := store.Records(d.t.Context(), session.RecordQuery{Kind: kind, States: states})
	if err != nil {
		d.t.Fatalf("read %s records: %v", kind, err)
	}
	return recs
}

// blocked reports whether a call blocks a subagent that a process started at since has suspended for it.
func (d *deployment) blocked(store session.Store, since time.Time) bool {
	for _, rec := range d.records(store, session.KindCall, tracker.StateWaiting) {
		last, err := store.Events(d.t.Context(), session.EventQuery{
			Tree: rec.Tree, Agent: rec.Owner, Limit: 1, Last: true,
			Types: []session.EventType{session.EventSubagentStarted, session.EventSubagentSuspended, session.EventSubagentResumed},
		})
		if err != nil {
			d.t.Fatal(err)
		}
		if len(last) == 1 && last[0].Type == session.EventSubagentSuspended && last[0].Time.After(since) {
			return true
		}
	}
	return false
}

// unfolded reports whether there is a reply on its way to a primary that no turn has taken yet.
func (d *deployment) unfolded(store session.Store) bool {
	for _, rec := range d.records(store, session.KindItem, session.StateReady) {
		if strings.HasPrefix(rec.Key, "call:") {
			return true
		}
	}
	return false
}

// quiet reports whether nothing is left open, nor any call followed. Work moves from calls and children to items to turns,
// and only a live turn makes new calls and children, so that two looks in that order miss nothing.
func (d *deployment) quiet(store session.Store) bool {
	for range 2 {
		for _, open := range []struct {
			kind   session.Kind
			states []session.State
		}{
			{session.KindCall, []session.State{tracker.StateWaiting, tracker.StateOpen, tracker.StateAnswered, tracker.StateDetached}},
			{session.KindChild, subagent.UnsettledStates},
			{session.KindBatch, []session.State{subagent.BatchOpen}},
			{session.KindItem, []session.State{session.StateReady}},
			{session.KindTurn, []session.State{session.StateQueued, session.StateRunning, session.StateSuspended}},
		} {
			if len(d.records(store, open.kind, open.states...)) > 0 {
				return false
			}
		}
	}
	return true
}

// begun reports whether a process started at since has opened a session of its own.
func (d *deployment) begun(store session.Store, since time.Time) bool {
	trees, err := store.Trees(d.t.Context(), 1)
	if err != nil {
		d.t.Fatal(err)
	}
	return len(trees) > 0 && trees[0].Created.After(since)
}

// lastLife serves until nothing is left open, and returns all there is to judge by.
func (d *deployment) lastLife(most time.Duration) evidence {
	d.t.Helper()
	l := d.live("serve")
	if !l.until(most, d.quiet) {
		d.t.Errorf("not all is done after %v\n%s", most, l.tail())
	}
	if code := l.stop(); code != 0 {
		d.t.Errorf("%s ends with exit code %d\n%s", l.what, code, l.tail())
	}
	return gather(d.t, d.database(), d.peers)
}

// report fails the test for all that the judge found.
func (d *deployment) report(v *verdict, e evidence) {
	d.t.Helper()
	const most = 20
	for _, fault := range v.faults[:min(most, len(v.faults))] {
		d.t.Error(fault)
	}
	for what, calls := range map[string][]session.CallID{"lost": v.lost, "double": v.double} {
		for _, id := range calls[:min(most, len(calls))] {
			d.t.Errorf("%s: call %s\n%s", what, id, e.about(id))
		}
	}
	if n := len(v.faults) + len(v.lost) + len(v.double); n > most {
		d.t.Errorf("%d things are wrong", n)
	}
}

// about is all there is to read about a call.
func (e evidence) about(id session.CallID) string {
	var b strings.Builder
	for _, entry := range e.journal {
		if entry.MessageID == string(id) {
			fmt.Fprintf(&b, "  %s %s %s %s task %s token %s\n", entry.Time.Format(time.StampMicro), entry.Peer, entry.Kind, entry.State, entry.TaskID, entry.Token)
		}
	}
	for _, tree := range e.trees {
		var toolCall session.ToolCallID
		for _, rec := range tree.records {
			if strings.HasSuffix(rec.Key, string(id)) {
				fmt.Fprintf(&b, "  %s %s is %s: %s\n", rec.Kind, rec.Key, rec.State, rec.Body)
			}
			var call tracker.PendingA2ATask
			if rec.Kind == session.KindCall && rec.Key == string(id) && rec.Decode(&call) == nil {
				toolCall = call.ToolCallID
			}
		}
		for _, event := range tree.events {
			if toolCall != "" && event.ToolCallID == toolCall {
				fmt.Fprintf(&b, "  %d %s %s: %s\n", event.Seq, event.Time.Format(time.StampMicro), event.Type, event.Data)
			}
		}
	}
	return b.String()
}
