package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
)

// interopFolder names the folder of an agent that is no Go: it holds agent.mjs and what npm has installed for it. Without
// it the tests that talk to the agent are skipped, since Node is more than the other tests need. `make interop-a2a` sets it.
const interopFolder = "ORCHESTRATOR_INTEROP_A2A"

// foreign is an agent built with npm's @a2a-js/sdk, in a process of its own. agent.mjs says what it does.
type foreign struct {
	t     *testing.T
	run   *process
	in    io.Writer
	cards map[string]string // its base URLs, by the way to it
}

// foreignLine is a line that the agent prints.
type foreignLine struct {
	Ready map[string]string `json:"ready"`

	Execute string `json:"execute"` // a message that came
	Cancel  string `json:"cancel"`  // the id of a task to be cancelled
	Held    bool   `json:"held"`    // and whether it was being worked on
	Way     string `json:"way"`
	TaskID  string `json:"taskId"`

	HTTP    string `json:"http"` // a request: method and path
	Version string `json:"version"`
	Method  string `json:"method"` // of JSON-RPC
}

func newForeign(t *testing.T) *foreign {
	t.Helper()
	dir := os.Getenv(interopFolder)
	if dir == "" {
		t.Skip("make interop-a2a runs this: it needs Node and what npm installs")
	}
	cmd := exec.Command("node", filepath.Join(dir, "agent.mjs"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &foreign{t: t, run: newPlace(t).startCommand(cmd), in: in}
	f.cards = f.prints("where it is", func(l foreignLine) bool { return l.Ready != nil }).Ready
	return f
}

// lines returns the lines that the agent has printed so far.
func (f *foreign) lines() []foreignLine {
	f.t.Helper()
	said, _ := f.run.stdout.read()
	return f.parse(said)
}

func (f *foreign) parse(said string) []foreignLine {
	f.t.Helper()
	var lines []foreignLine
	sc := bufio.NewScanner(strings.NewReader(said[:strings.LastIndexByte(said, '\n')+1]))
	for sc.Scan() {
		var l foreignLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			f.t.Fatalf("the agent prints %q: %v", sc.Text(), err)
		}
		lines = append(lines, l)
	}
	return lines
}

// prints waits for a line.
func (f *foreign) prints(what string, is func(foreignLine) bool) foreignLine {
	f.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		said, changed := f.run.stdout.read()
		lines := f.parse(said)
		if i := slices.IndexFunc(lines, is); i >= 0 {
			return lines[i]
		}
		select {
		case <-changed:
		case <-f.run.over:
			f.t.Fatalf("the agent has ended without printing %s\n%s", what, f.run.said())
		case <-timer.C:
			f.t.Fatalf("the agent does not print %s\n%s", what, f.run.said())
		}
	}
}

// gets waits for a message on one of the ways and returns its task.
func (f *foreign) gets(way, text string) (taskID string) {
	f.t.Helper()
	return f.prints(fmt.Sprintf("that %q came by %s", text, way), func(l foreignLine) bool { return l.Way == way && l.Execute == text }).TaskID
}

// isToldToCancel waits until a task that is worked on is to be cancelled.
func (f *foreign) isToldToCancel(taskID string) {
	f.t.Helper()
	f.prints("that task "+taskID+" is cancelled", func(l foreignLine) bool { return l.Cancel == taskID && l.Held })
}

// release lets the work on a key go on.
func (f *foreign) release(key string) {
	f.t.Helper()
	if _, err := fmt.Fprintf(f.in, "release %s\n", key); err != nil {
		f.t.Fatal(err)
	}
}

// errand is what a subagent is sent for in these tests: its prompt is the errand as JSON.
type errand struct {
	Peer    string
	Seconds float64
	Message string
}

// runsErrands is a model that sends a subagent for each errand it is asked for and repeats what comes home.
func runsErrands(q question) answer {
	input, last := q.input(), q.last()
	var e errand
	switch {
	case q.primary() && last.Role == "tool":
		return says("All are on their way.")
	case q.primary() && strings.HasPrefix(input, "["):
		var errands []errand
		if err := json.Unmarshal([]byte(input), &errands); err != nil {
			return says("I don't understand: " + err.Error())
		}
		a := says("I send them out.")
		for _, e := range errands {
			a.calls = append(a.calls, toolUse{"spawn_subagent", map[string]any{"description": e.Message, "prompt": quote(e)}})
		}
		return a
	case q.primary():
		return says("Home came: " + input)
	case last.Role == "tool":
		return says("I was told: " + last.Content)
	case json.Unmarshal([]byte(input), &e) != nil:
		return says("I don't understand.")
	}
	return says("", toolUse{"invoke_agent", map[string]any{"agent_name": e.Peer, "message": e.Message, "timeout_seconds": e.Seconds}})
}

// wayToForeign is a binding and a version of the protocol by which the agent is talked to.
type wayToForeign struct {
	name     string
	nameless bool     // the agent's SDK leaves the names of files out
	requests []string // what must have been asked for: methods of JSON-RPC, or of HTTP with their paths
	resume   string   // how a task is taken up
	version  string   // of the protocol, as the requests name it
}

var waysToForeign = []wayToForeign{
	{"jsonrpc", false, []string{"SendStreamingMessage", "CancelTask"}, "SubscribeToTask", "1.0"},
	{"jsonrpc-without-streaming", false, []string{"SendMessage", "GetTask", "CancelTask"}, "GetTask", "1.0"},
	{"rest", false, []string{"POST /rest/message:stream"}, "POST /rest/tasks/", "1.0"},
	{"grpc", false, nil, "", ""},
	{"jsonrpc-0.3", false, []string{"message/stream", "tasks/cancel"}, "tasks/resubscribe", "0.3"},
	{"rest-0.3", true, []string{"POST /rest-0.3/v1/message:stream"}, "GET /rest-0.3/v1/tasks/", "0.3"},
	{"both-versions", false, []string{"SendStreamingMessage", "CancelTask"}, "SubscribeToTask", "1.0"},
}

func TestAskTalksToAnAgentOfAnotherSDK(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	for _, way := range waysToForeign {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			f := f.of(t)
			chat := newChatServer(t, runsErrands)
			p := newPlace(t, "OPENAI_API_KEY="+chatKey, "OPENAI_BASE_URL="+chat.url, "OPENAI_MODEL=e2e-1")
			p.write("peers.yaml", fmt.Sprintf("peers:\n  - {name: writer, card: %[1]q}\n  - {name: hurried, card: %[1]q, on_timeout: cancel}\n", f.cards[way.name]))
			late, dropped := "late-"+way.name, "dropped-"+way.name

			run := p.start("ask", quote([]errand{
				{"writer", 30, "greet Ada"},
				{"writer", 30, "write boats"},
				{"writer", 30, "show piers"},
				{"writer", 30, "ask-back ferry"},
				{"writer", 30, "refuse bridges"},
				{"writer", 2, "write-slowly " + late},
				{"hurried", 2, "write-slowly " + dropped},
			}))
			lateTask := f.gets(way.name, "write-slowly "+late)
			f.isToldToCancel(f.gets(way.name, "write-slowly "+dropped))
			run.prints(run.stderr, "waiting up to 1m00s for the late answer of writer")
			f.release(late)
			run.exits(0)

			note, plan := `"note.txt"`, `"piers.pdf"`
			if way.nameless {
				note, plan = "without a name", "without a name"
			}
			data := func(text string) string { return "<agent_data from=\"writer\">\n" + text + "\n</agent_data>" }
			want := []string{
				data("Hello Ada."),
				data("Artifact \"letter\".\nThe first half of boats. The second half of boats.\n\nIts message before:\nI write about boats."),
				data("Artifact \"all\".\nA text of piers.\n[file "+note+" (text/plain), 19 bytes: read_artifact {\"key\": \"KEY\"}]\n"+
					"[file "+plan+" (application/pdf): https://files.example.com/piers.pdf]\n\ndata: {\"ferries\":3,\"key\":\"piers\"}") +
					"\n\nartifacts of the answer, for read_artifact: KEY",
				"Error: peer 'writer' failed\n\n" + data("No bridges today."),
				"peer 'writer' did not answer but asked for more; proceeding without it, unless you answer: call invoke_agent again " +
					"with agent_name \"writer\", task_id \"TASK\" and your answer as the message. It asked:\n\n" + data("Which ferry?"),
				"peer 'writer' did not respond within 2s; proceeding without it",
				"peer 'hurried' did not respond within 2s; proceeding without it",
			}
			slices.Sort(want)
			told := chat.results("invoke_agent")
			for i := range told {
				told[i] = regexp.MustCompile(`\bx_[0-9A-Z]{26}\b`).ReplaceAllString(told[i], "KEY")
				told[i] = regexp.MustCompile(`\bc_[0-9A-Z]{26}\b`).ReplaceAllString(told[i], "TASK")
			}
			slices.Sort(told)
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("what the subagents were told (-want +got):\n%s", diff)
			}
			letter := fmt.Sprintf("The first half of %[1]s. The second half of %[1]s.", late)
			if missing := inOrder(run.stderr.String(), "no answer from writer in time", "writer answers late", "follow-up: writer's answer"); missing != "" {
				t.Errorf("standard error has no %q where it belongs:\n%s", missing, run.stderr)
			}
			if got := strings.Count(run.stdout.String(), letter); got != 1 {
				t.Errorf("the late answer is printed %d times, want 1:\n%s", got, run.stdout)
			}
			if calls := p.openCalls(); len(calls) > 0 {
				t.Errorf("calls are open after all came home: %q", calls)
			}
			f.came(way)
			for _, l := range f.lines() {
				if l.Cancel == lateTask {
					t.Error("the task whose answer was late was cancelled")
				}
			}
		})
	}
}

// resumes waits until a task is asked for again.
func (f *foreign) resumes(way wayToForeign) {
	f.t.Helper()
	if way.resume == "" {
		return // the agent doesn't print what comes by it
	}
	f.prints(way.resume, func(l foreignLine) bool {
		return strings.HasPrefix(l.HTTP+"/", "POST /"+way.name+"/") && l.Method == way.resume || strings.HasPrefix(l.HTTP, way.resume)
	})
}

// of is the same agent in a subtest.
func (f *foreign) of(t *testing.T) *foreign {
	return &foreign{t: t, run: f.run, in: f.in, cards: f.cards}
}

// came checks which requests came by a way, and that each message came once.
func (f *foreign) came(way wayToForeign) {
	f.t.Helper()
	messages, requests := make(map[string]int), make(map[string]bool)
	for _, l := range f.lines() {
		switch {
		case l.Way == way.name && l.Execute != "":
			messages[l.Execute]++
		case strings.Contains(l.HTTP, " /"+way.name+"/") && strings.Contains(l.HTTP, "/.well-known/"):
		case strings.Contains(l.HTTP+"/", " /"+way.name+"/"):
			requests[l.Method], requests[l.HTTP] = true, true
			if l.Version != way.version {
				f.t.Errorf("%s %s names version %q, want %q", l.HTTP, l.Method, l.Version, way.version)
			}
		}
	}
	for text, n := range messages {
		if n != 1 {
			f.t.Errorf("the agent got %q %d times, want once", text, n)
		}
	}
	for _, r := range way.requests {
		if !requests[r] {
			f.t.Errorf("the agent got no %s by %s, only %v", r, way.name, requests)
		}
	}
}

func TestAgentOfAnotherSDKIsAskedWithoutASession(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	transport, err := a2ahttp.New(a2ahttp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.Close)
	for _, way := range waysToForeign {
		t.Run(way.name, func(t *testing.T) {
			f := f.of(t)
			peers, err := a2a.NewRegistry(a2a.RegistryConfig{Transport: transport, Peers: []a2a.Peer{{Name: "writer", Card: f.cards[way.name]}}})
			if err != nil {
				t.Fatal(err)
			}
			// ask returns what the agent says: pieces of an artifact with a + where they go on with one, and the reply.
			ask := func(ctx context.Context, q a2a.Question, heard func(a2a.Heard)) (said []string, reply a2a.Heard, err error) {
				q.Peer = "writer"
				for h, err := range peers.Ask(ctx, q) {
					if err != nil {
						return said, reply, err
					}
					heard(h)
					switch {
					case h.Kind == a2a.HeardReply:
						reply = h
						said = append(said, h.State+": "+h.Text)
					case h.Kind == a2a.HeardArtifact && h.Append:
						said = append(said, "+ "+h.Text)
					case h.Kind == a2a.HeardArtifact:
						said = append(said, h.Name+": "+h.Text)
					}
				}
				return said, reply, nil
			}
			wants := func(q string, said []string, err error, want ...string) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", q, err)
				}
				if diff := cmp.Diff(want, said); diff != "" {
					t.Errorf("%s (-want +got):\n%s", q, diff)
				}
			}
			listen := func(a2a.Heard) {}

			said, _, err := ask(t.Context(), a2a.Question{Message: "greet Ada"}, listen)
			wants("greet", said, err, "completed: Hello Ada.")

			// The agent holds back the second half until the first was heard.
			key := "dams-" + way.name
			said, _, err = ask(t.Context(), a2a.Question{Message: "write-slowly " + key}, func(h a2a.Heard) {
				if h.Kind == a2a.HeardArtifact && !h.Append {
					f.release(key)
				}
			})
			wants("write-slowly", said, err, "letter: The first half of "+key+". ", "+ The second half of "+key+".", "completed: ")

			said, question, err := ask(t.Context(), a2a.Question{Message: "ask-back ferry"}, listen)
			wants("ask-back", said, err, "input_required: Which ferry?")
			said, _, err = ask(t.Context(), a2a.Question{Message: "the blue one", TaskID: question.TaskID}, listen)
			wants("the answer", said, err, "completed: You chose the blue one.")

			said, _, err = ask(t.Context(), a2a.Question{Message: "refuse bridges"}, listen)
			wants("refuse", said, err, "failed: No bridges today.")

			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			enough := errors.New("that is enough")
			_, reply, err := ask(ctx, a2a.Question{Message: "write-slowly stopped-" + key}, func(h a2a.Heard) {
				if h.Kind == a2a.HeardArtifact {
					cancel(enough)
				}
			})
			if !errors.Is(err, enough) || err.Error() != enough.Error() || reply.State != "" {
				t.Errorf("a question that is cancelled ends with %v and %+v, want %v alone", err, reply, enough)
			}
			f.isToldToCancel(f.gets(way.name, "write-slowly stopped-"+key))
		})
	}
}

func TestKilledAskTakesUpTheTaskOfAnAgentOfAnotherSDK(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	for _, way := range waysToForeign {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			f := f.of(t)
			chat := newChatServer(t, runsErrands)
			p := newPlace(t, "OPENAI_API_KEY="+chatKey, "OPENAI_BASE_URL="+chat.url, "OPENAI_MODEL=e2e-1")
			p.write("peers.yaml", fmt.Sprintf("peers:\n  - {name: writer, card: %q}\n", f.cards[way.name]))

			key := "tunnels-" + way.name
			first := p.start("ask", quote([]errand{{"writer", 60, "write-slowly " + key}}))
			task := f.gets(way.name, "write-slowly "+key)
			until(t, func() bool { return strings.Contains(p.ok("calls", "list", "-o", "json"), task) })
			first.signal(syscall.SIGKILL)
			first.end()

			second := p.start("ask", "Go on.", "--session", p.session())
			second.prints(second.stderr, "goes on where it was before the restart")
			f.resumes(way)
			f.release(key)
			second.exits(0)
			if told := chat.results("invoke_agent"); len(told) != 1 || !strings.Contains(told[0], "The second half of "+key+".") {
				t.Errorf("the subagent was told %q, want the letter", told)
			}
			if calls := p.openCalls(); len(calls) > 0 {
				t.Errorf("calls are open after all came home: %q", calls)
			}
			f.came(wayToForeign{name: way.name, version: way.version})
		})
	}
}

func TestPeersCallTalksToAnAgentOfAnotherSDK(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	for _, way := range waysToForeign {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			f := f.of(t)
			p := newPlace(t)
			p.write("peers.yaml", fmt.Sprintf("peers:\n  - {name: writer, card: %q}\n", f.cards[way.name]))
			call := func(args ...string) *process { return p.start(append([]string{"peers", "call", "writer"}, args...)...) }
			wants := func(run *process, code int, stdout string, stderr ...string) {
				t.Helper()
				run.exits(code)
				if got := run.stdout.String(); got != stdout {
					t.Errorf("%s: standard output is %q, want %q", run.what, got, stdout)
				}
				if missing := inOrder(run.stderr.String(), stderr...); missing != "" {
					t.Errorf("%s: standard error has no %q where it belongs:\n%s", run.what, missing, run.stderr)
				}
			}
			if got := p.ok("peers", "show", "writer"); !strings.Contains(got, "Writes letters.") || !strings.Contains(got, "skill      write: Writes a letter.") {
				t.Errorf("peers show prints %q", got)
			}

			wants(call("greet Ada"), 0, "Hello Ada.\n")
			wants(call("write boats"), 0, "The first half of boats. The second half of boats.\n")
			wants(call("refuse bridges"), 1, "No bridges today.\n", "peer 'writer' answers that the task is failed")

			// What an agent says is there as it comes: the second half is held back until the first was printed.
			key := "cli-" + way.name
			slow := call("write-slowly " + key)
			slow.prints(slow.stdout, "The first half of "+key+". ")
			f.release(key)
			wants(slow, 0, "The first half of "+key+". The second half of "+key+".\n", "writer: working: I write about "+key+".\n")
			if !strings.Contains(slow.stderr.String(), "writer: letter\n") {
				t.Errorf("standard error doesn't name the artifact:\n%s", slow.stderr)
			}

			back := call("ask-back ferry")
			wants(back, 0, "Which ferry?\n", "writer asks back; answer with: orchestrator peers call --task ")
			task := regexp.MustCompile(`--task (\S+) writer`).FindStringSubmatch(back.stderr.String())
			wants(call("the blue one", "--task", task[1]), 0, "You chose the blue one.\n")

			show := call("show piers", "--save", "kept")
			wants(show, 0, "A text of piers.\n{\"ferries\":3,\"key\":\"piers\"}\n", "https://files.example.com/piers.pdf")
			if said := show.stderr.String(); !strings.Contains(said, "saved kept/") || !strings.Contains(said, ", 19 bytes") {
				t.Errorf("the file is not kept: %q", said)
			}

			stopped := call("write-slowly stopped-cli-" + way.name)
			stopped.prints(stopped.stdout, "The first half")
			stopped.signal(syscall.SIGINT)
			stopped.exits(130)
			f.isToldToCancel(f.gets(way.name, "write-slowly stopped-cli-"+way.name))
			if said := stopped.stderr.String(); !strings.Contains(said, "the peer was told to cancel") {
				t.Errorf("standard error doesn't say that the peer was told: %q", said)
			}
			f.came(wayToForeign{name: way.name, version: way.version, requests: way.requests})
		})
	}
}
