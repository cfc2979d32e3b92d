package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a/a2ademo"
	"orchestrator/session"
	"orchestrator/store/sqlite"
)

const askScript = `
agents:
  - name: primary
    rules:
      - match: '^fail$'
        error: {message: "the model is out of order"}
      - match: '(?s)agent_data from="advisor">\n(?<words>[^\n]+)'
        text: "The advisor says: ${words}"
      - match: '(?s)agent_data from="subagent">\n(?<words>[^\n]+)'
        text: "It found: ${words}"
      - tool: spawn_subagent
        text: "At work."
      - tool: invoke_agent
        text: "Asked."
      - match: '^ask (?<peer>\w+) about (?<what>.+)$'
        tool_calls:
          - {name: invoke_agent, args: {agent_name: "${peer}", message: "${what}"}}
      - match: '^look for (?<what>.+)$'
        text: "I have somebody look."
        tool_calls:
          - {name: spawn_subagent, args: {description: look, prompt: "${what}"}}
      - match: '.+'
        history: '(?s)^(?<first>[^\n]+)'
        text: "You said $0, and first of all ${first}."
  - name: subagent
    rules:
      - match: '.+'
        text: "$0, under the bridge"
`

// workplace is a folder with a config for the scripted model, and peers.
type workplace struct {
	t      *testing.T
	dir    string
	config string
}

func newWorkplace(t *testing.T, peers string) *workplace {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "script.yaml", askScript)
	write(t, dir, "peers.yaml", "peers:\n"+peers)
	config := write(t, dir, "orchestrator.yaml", "data_dir: data\nstore: {synchronous: normal}\nmodels: [{name: m, provider: scripted, script: script.yaml}]\n")
	return &workplace{t, dir, config}
}

func (w *workplace) run(args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	return orchestrator(w.t, nil, append([]string{"--config", w.config}, args...)...)
}

// ok runs a command that must exit with 0 and returns its standard output.
func (w *workplace) ok(args ...string) string {
	w.t.Helper()
	code, stdout, stderr := w.run(args...)
	if code != exitOK {
		w.t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

// sessions returns what sessions list says, the newest first.
func (w *workplace) sessions() []sessionRow {
	w.t.Helper()
	var rows []sessionRow
	dec := json.NewDecoder(strings.NewReader(w.ok("sessions", "list", "-o", "json")))
	for dec.More() {
		var row sessionRow
		if err := dec.Decode(&row); err != nil {
			w.t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

func TestAskPrintsEveryAnswerAsItComesHome(t *testing.T) {
	w := newWorkplace(t, "")
	code, stdout, stderr := w.run("ask", "look for the key")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want := "I have somebody look.\n\nAt work.\n\nIt found: the key, under the bridge\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	for _, note := range []string{"spawns look: the key", "look: is done: the key, under the bridge", "follow-up: look's result"} {
		if !strings.Contains(stderr, note) {
			t.Errorf("standard error misses %q:\n%s", note, stderr)
		}
	}

	rows := w.sessions()
	if len(rows) != 1 || rows[0].Title != "look for the key" || rows[0].Turns+rows[0].Subagents+rows[0].Calls != 0 {
		t.Fatalf("sessions list = %+v, want the one session with nothing at work", rows)
	}
	shown := w.ok("sessions", "show", string(rows[0].ID))
	for _, part := range []string{"user: look for the key", "It found: the key, under the bridge", "└─ look  done       in the conversation"} {
		if !strings.Contains(shown, part) {
			t.Errorf("sessions show misses %q:\n%s", part, shown)
		}
	}
}

func TestAskGoesOnWithASession(t *testing.T) {
	w := newWorkplace(t, "")
	w.ok("ask", "hello")
	id := string(w.sessions()[0].ID)
	if got, want := w.ok("ask", "--session", id, "again"), "You said again, and first of all hello.\n"; got != want {
		t.Errorf("standard output = %q, want %q: the answer alone, with the first turn in mind", got, want)
	}
	if rows := w.sessions(); len(rows) != 1 {
		t.Errorf("there are %d sessions, want 1", len(rows))
	}
	code, _, stderr := w.run("ask", "--session", "s_nobody", "x")
	if code != exitUsage || !strings.Contains(stderr, "there is no session s_nobody") {
		t.Errorf("with an unknown session: exit code %d, message %q", code, stderr)
	}
}

func TestAskAsJSONPrintsTheDurableLogAndNothingElse(t *testing.T) {
	w := newWorkplace(t, "")
	stdout := w.ok("ask", "look for the key", "-o", "json")
	dec := json.NewDecoder(strings.NewReader(stdout))
	var last session.Event
	for n := uint64(1); dec.More(); n++ {
		var e session.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Seq != n || e.Ephemeral {
			t.Fatalf("event %d has seq %d, ephemeral %v", n, e.Seq, e.Ephemeral)
		}
		last = e
	}
	if shown := w.ok("sessions", "show", string(last.SessionID), "-o", "json"); shown != stdout {
		t.Errorf("sessions show -o json prints another log than ask did:\n%s\n%s", shown, stdout)
	}
}

// demoPeer serves one of the demonstration's peers until the test ends.
func demoPeer(t *testing.T, cfg a2ademo.Config) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan string, 1)
	cfg.Ready = func(url string) { ready <- url }
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a2ademo.Serve(ctx, cfg); err != nil {
			t.Error(err)
			close(ready)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return <-ready
}

func TestAskNamesWhatIsStillOpenAndTheNextRunFollowsIt(t *testing.T) {
	url := demoPeer(t, a2ademo.Config{Name: a2ademo.Advisor, Delay: 700_000_000})
	w := newWorkplace(t, "  - {name: advisor, card: "+url+"}\n")
	code, stdout, stderr := w.run("ask", "--no-wait", "ask advisor about tides")
	if code != exitOK || stdout != "Asked.\n" {
		t.Fatalf("exit code %d, output %q, want 0 and the first answer: %s", code, stdout, stderr)
	}
	id := string(w.sessions()[0].ID)
	for _, note := range []string{"still open: advisor's answer to the primary", "orchestrator sessions show " + id} {
		if !strings.Contains(stderr, note) {
			t.Errorf("standard error misses %q:\n%s", note, stderr)
		}
	}
	if calls := w.ok("calls", "list"); !regexp.MustCompile(`c_\w+ +advisor +open .*due in .*tides`).MatchString(calls) {
		t.Errorf("calls list doesn't name the open call:\n%s", calls)
	}
	// The next run follows the call of the first, though it asks something else in a session of its own.
	w.ok("ask", "hello")
	stdout = w.ok("ask", "--session", id, "again")
	shown := w.ok("sessions", "show", id)
	if !strings.Contains(shown, "The advisor says: Start with") {
		t.Errorf("the answer has not come home:\n%s\n%s", stdout, shown)
	}
	if calls := w.ok("calls", "list"); !strings.HasPrefix(calls, "no calls are waiting") {
		t.Errorf("calls list = %q, want none", calls)
	}
	if calls := w.ok("calls", "list", "--all", "--session", id); !regexp.MustCompile(`advisor +folded .*came after`).MatchString(calls) {
		t.Errorf("calls list --all doesn't name the call:\n%s", calls)
	}
}

func TestAskFailsPlainly(t *testing.T) {
	w := newWorkplace(t, "")
	code, _, stderr := w.run("ask", "fail")
	if code != exitFailed || !strings.Contains(stderr, "orchestrator: the turn failed: ") || !strings.Contains(stderr, "the model is out of order") {
		t.Errorf("a model that fails: exit code %d, message %q", code, stderr)
	}
	code, _, stderr = orchestrator(t, nil, "ask", "hello", "--data-dir", t.TempDir())
	if code != exitUsage || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "set OPENAI_API_KEY") {
		t.Errorf("without a model: exit code %d, message %q, want 2 and one line that says what to set", code, stderr)
	}
	for args, want := range map[string]string{
		"ask":                  "orchestrator: orchestrator ask: \"...\" is missing\n  → orchestrator ask \"...\"\n",
		"ask what now":         "takes 1 argument, got 2; put the question in quotes",
		"ask --late=-1s hello": "--late is -1s: it must not be negative",
	} {
		code, _, stderr := w.run(strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, message %q, want 2 and %q", args, code, stderr, want)
		}
	}
}

func TestAskThatIsInterruptedSaysHowToGoOn(t *testing.T) {
	url := demoPeer(t, a2ademo.Config{Name: a2ademo.Advisor, Delay: 60_000_000_000})
	w := newWorkplace(t, "  - {name: advisor, card: "+url+"}\n")
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	stop := &trigger{w: &out, on: "Asked.", f: cancel}
	code := run(ctx, []string{"--config", w.config, "ask", "ask advisor about tides"}, []string{"HOME=" + w.dir}, stop, &errs)
	if code != exitInterrupted || !strings.Contains(errs.String(), "orchestrator: interrupted\n") || !strings.Contains(errs.String(), "goes on with the next run") {
		t.Errorf("exit code %d, message %q, want 130 and how to go on", code, &errs)
	}
	if calls := w.ok("calls", "list"); !strings.Contains(calls, "open") {
		t.Errorf("an interruption cancels the call:\n%s", calls)
	}
}

// trigger calls f once a text was written.
type trigger struct {
	w  *bytes.Buffer
	on string
	f  func()
}

func (t *trigger) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if strings.Contains(t.w.String(), t.on) {
		t.f()
	}
	return n, err
}

func TestUnusableDatabaseIsAClearErrorWithWhatToDo(t *testing.T) {
	file := write(t, t.TempDir(), "file", "x")
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, path string)
		code    int
		want    []string
	}{
		"locked": {func(t *testing.T, path string) {
			s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}, exitUnreachable, []string{"is in use by process", "--server URL"}},
		"corrupt": {func(t *testing.T, path string) {
			write(t, filepath.Dir(path), filepath.Base(path), strings.Repeat("this is no database. ", 1000))
		}, exitFailed, []string{"is damaged or is not one of orchestrator's", "move the file away"}},
		"a folder": {func(t *testing.T, path string) {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, exitUsage, []string{"can't be opened", "--data-dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkplace(t, "")
			tc.prepare(t, filepath.Join(w.dir, "data", "orchestrator.db"))
			for _, command := range [][]string{{"ask", "hello"}, {"serve", "--listen", "127.0.0.1:0"}} {
				code, stdout, stderr := w.run(command...)
				if code != tc.code || stdout != "" {
					t.Errorf("%s: exit code %d, output %q, want %d and none", command[0], code, stdout, tc.code)
				}
				for _, want := range tc.want {
					if !strings.Contains(stderr, want) {
						t.Errorf("%s: the message misses %q:\n%s", command[0], want, stderr)
					}
				}
			}
			if name == "locked" { // which may be looked at all the same
				if got := w.ok("sessions", "list"); !strings.Contains(got, "no sessions yet") {
					t.Errorf("sessions list of a locked database = %q", got)
				}
			}
		})
	}
	w := newWorkplace(t, "")
	code, _, stderr := w.run("ask", "hello", "--data-dir", filepath.Join(file, "below"))
	if code != exitUsage || !strings.Contains(stderr, "can't be opened") {
		t.Errorf("a folder below a file: exit code %d, message %q", code, stderr)
	}
	code, _, stderr = w.run("sessions", "list")
	if code != exitFailed || !strings.Contains(stderr, "there are no sessions yet") {
		t.Errorf("no database: exit code %d, message %q", code, stderr)
	}
}

func TestBadFilesAreConfigErrors(t *testing.T) {
	w := newWorkplace(t, "  - {name: advisor, crad: http://x}\n")
	for _, command := range [][]string{{"ask", "hello"}, {"peers", "list"}} {
		code, _, stderr := w.run(command...)
		if code != exitUsage || !strings.Contains(stderr, `peers.yaml:2: unknown key "crad"`) {
			t.Errorf("%s with a bad peers file: exit code %d, message %q", command[0], code, stderr)
		}
	}
	w = newWorkplace(t, "")
	write(t, w.dir, "script.yaml", "agents: [{name: a, ruels: []}]\n")
	code, _, stderr := w.run("ask", "hello")
	if code != exitUsage || !strings.Contains(stderr, "ruels") {
		t.Errorf("with a bad script: exit code %d, message %q", code, stderr)
	}
	write(t, w.dir, "profiles.yaml", "profiles:\n  - name: primary\n    alow: []\n")
	code, _, stderr = w.run("profiles", "list")
	if code != exitUsage || !strings.Contains(stderr, "profiles.yaml:3") || !strings.Contains(stderr, `"allow"`) {
		t.Errorf("with bad profiles: exit code %d, message %q", code, stderr)
	}
}

func TestPeersThatCanNotBeAskedAreNamedWithTheReason(t *testing.T) {
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html><body>Welcome</body></html>"))
	}))
	t.Cleanup(html.Close)
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"name":"empty","description":"d","version":"1","capabilities":{},"defaultInputModes":[],"defaultOutputModes":[],"skills":[],"supportedInterfaces":[]}`))
	}))
	t.Cleanup(empty.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	advisor := demoPeer(t, a2ademo.Config{Name: a2ademo.Advisor})
	w := newWorkplace(t, "  - {name: advisor, card: "+advisor+"}\n  - {name: website, card: "+html.URL+"}\n  - {name: empty, card: "+empty.URL+"}\n  - {name: gone, card: "+gone.URL+"}\n")

	list := w.ok("peers", "list")
	for _, want := range []string{`advisor +yes +JSONRPC +advise +Gives short`, `website +no `, `empty +no `, `gone +no `} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(list) {
			t.Errorf("peers list misses %q:\n%s", want, list)
		}
	}
	if shown := w.ok("peers", "show", "advisor"); !strings.Contains(shown, "JSONRPC") || !strings.Contains(shown, "skill      advise: ") {
		t.Errorf("peers show advisor =\n%s", shown)
	}
	for name, want := range map[string]string{"website": "card", "empty": "interface", "gone": "refused"} {
		code, stdout, stderr := w.run("peers", "show", name)
		if code != exitUnreachable || stdout != "" || !strings.Contains(stderr, "peer "+name+" can't be reached") || !strings.Contains(stderr, want) {
			t.Errorf("peers show %s: exit code %d, output %q, message %q, want 3 and %q", name, code, stdout, stderr, want)
		}
	}
	code, _, stderr := w.run("peers", "show", "advisr")
	if code != exitUsage || !strings.Contains(stderr, `did you mean "advisor"?`) {
		t.Errorf("peers show of an unknown peer: exit code %d, message %q", code, stderr)
	}
}

func TestProfilesAreListedAndExplained(t *testing.T) {
	w := newWorkplace(t, "")
	list := w.ok("profiles", "list")
	if !regexp.MustCompile(`(?m)^subagent +subagent +.*invoke_agent`).MatchString(list) || !regexp.MustCompile(`not: .*spawn_subagent`).MatchString(list) {
		t.Errorf("profiles list =\n%s", list)
	}
	if got := w.ok("profiles", "explain", "--agent", "subagent", "--tool", "invoke_agent"); !strings.HasPrefix(got, "allowed: ") {
		t.Errorf("explain = %q, want it allowed", got)
	}
	if got := w.ok("profiles", "explain", "--agent", "subagent", "--tool", "spawn_subagent"); !strings.HasPrefix(got, "not allowed: ") {
		t.Errorf("explain = %q, want it not allowed", got)
	}
	for args, want := range map[string]string{
		"--agent subagnet --tool invoke_agent":  `did you mean "subagent"?`,
		"--agent subagent --tool invoke_agents": `did you mean "invoke_agent"?`,
		"--agent subagent":                      "needs --agent and --tool",
	} {
		code, _, stderr := w.run(append([]string{"profiles", "explain"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("explain %s: exit code %d, message %q, want 2 and %q", args, code, stderr, want)
		}
	}
}

func TestServeAnswersUntilItIsStopped(t *testing.T) {
	w := newWorkplace(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addresses := make(chan string, 1)
	errs := &watcher{find: regexp.MustCompile(`address=(\S+)`), found: addresses}
	code := make(chan int, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		code <- run(ctx, []string{"--config", w.config, "serve", "--listen", "127.0.0.1:0"}, []string{"HOME=" + w.dir}, &bytes.Buffer{}, errs)
	})
	defer wg.Wait()
	addr := <-addresses
	for _, path := range []string{"/healthz", "/readyz"} {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s = %d, %v, want 200", path, resp.StatusCode, err)
		}
	}
	other := newWorkplace(t, "")
	if got, _, stderr := other.run("serve", "--listen", addr); got != exitFailed || !strings.Contains(stderr, "address "+addr+" is in use by another process") || !strings.Contains(stderr, "--listen") {
		t.Errorf("serve on a busy port: exit code %d, message %q, want 1 and what to do", got, stderr)
	}
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("serve that was stopped: exit code %d, want 0", got)
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		t.Errorf("the port is still open: %v", conn.Close())
	}
}

// watcher finds something in what is written.
type watcher struct {
	mu    sync.Mutex
	text  bytes.Buffer
	find  *regexp.Regexp
	found chan string
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if m := w.find.FindSubmatch(w.text.Bytes()); m != nil && w.found != nil {
		w.found <- string(m[1])
		w.found = nil
	}
	return len(p), nil
}
