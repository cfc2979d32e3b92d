package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// service is a running serve.
type service struct {
	*process
	url string
}

var servedAddress = regexp.MustCompile(`msg=serving address=(\S+)`)

// serve starts serve on an address ("127.0.0.1:0": one that is free) and waits until it listens there.
func (p *place) serve(address string, args ...string) *service {
	p.t.Helper()
	run := p.start(append([]string{"serve", "--listen", address}, args...)...)
	run.prints(run.stderr, "msg=serving address=")
	return &service{run, "http://" + servedAddress.FindStringSubmatch(run.stderr.String())[1]}
}

// stop stops it as an operator does.
func (s *service) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	s.exits(0)
}

// again stops it, or kills it, and starts it again on the same address.
func (s *service) again(p *place, how syscall.Signal) *service {
	p.t.Helper()
	s.signal(how)
	s.end()
	return p.serve(strings.TrimPrefix(s.url, "http://"))
}

func TestAskOfAServerTellsTheWholeStory(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.speak = newGate()
	p := q.place(q.environment()...)
	srv := p.serve("127.0.0.1:0")
	run := p.start("ask", asked, "--server", srv.url)

	run.prints(run.stdout, firstWords)
	if said := run.stdout.String(); said != firstWords {
		t.Errorf("while the model holds its words back, %q is printed, want %q", said, firstWords)
	}
	q.speak.open()
	run.prints(run.stderr, "waiting up to 1m00s for the late answer of archivist")
	if calls := p.ok("calls", "list", "--server", srv.url); !strings.Contains(calls, "archivist") || !strings.Contains(calls, "detached") || strings.Contains(calls, "advisor") {
		t.Errorf("calls list of the server prints\n%s", calls)
	}
	q.archive.Open()
	run.exits(0)
	if diff := cmp.Diff(paragraphs(firstAnswer, secondAnswer, withAdvice, withArchive), run.stdout.String()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	notes := run.stderr.String()
	if missing := inOrder(notes, "spawns look back", "no answer from archivist in time", "archivist answers late", "follow-up: archivist's answer"); missing != "" {
		t.Errorf("standard error has no %q where it belongs:\n%s", missing, notes)
	}

	// What is looked at through the server is what is in the database.
	id := p.session()
	for _, command := range [][]string{
		{"sessions", "list"}, {"sessions", "show", id, "-o", "json"}, {"sessions", "tail", id, "--until-idle", "-n", "5", "-o", "json"},
	} {
		local := p.ok(command...)
		if diff := cmp.Diff(local, p.ok(append(command, "--server", srv.url)...)); diff != "" {
			t.Errorf("%s (-database +server):\n%s", strings.Join(command, " "), diff)
		}
	}
	if got := p.ok("calls", "list", "--all", "--session", id, "-o", "json", "--server", srv.url); strings.Count(got, "\n") != 2 || !strings.Contains(got, archived) {
		t.Errorf("calls list --all of the server prints\n%s", got)
	}
	if missing := inOrder(p.ok("sessions", "show", id, "--server", srv.url), firstAnswer, withArchive); missing != "" {
		t.Errorf("sessions show of the server has no %q", missing)
	}

	second := p.run("ask", "Hello again", "--session", id, "--server", srv.url)
	second.exits(0)
	if diff := cmp.Diff(paragraphs("You said: Hello again"), second.stdout.String()); diff != "" {
		t.Errorf("standard output of the second run (-want +got):\n%s", diff)
	}
	q.asked(q.advisor, 1)
	q.asked(q.archivist, 1)
	srv.stop()
}

func TestAskOutlivesItsServer(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.speak, q.release = newGate(), true
	p := q.place(q.environment()...)
	srv := p.serve("127.0.0.1:0")
	run := p.start("ask", asked, "--server", srv.url)
	tail := make([]*process, 0, 1)
	run.prints(run.stdout, firstWords)
	id := p.session()
	tail = append(tail, p.start("sessions", "tail", id, "--server", srv.url, "-o", "json", "-n", "1000"))
	tail[0].prints(tail[0].stdout, "turn.started")
	srv = srv.again(p, syscall.SIGKILL) // in the middle of the primary's words
	q.speak.open()
	run.prints(run.stdout, secondAnswer)
	srv = srv.again(p, syscall.SIGTERM)
	run.exits(0)
	for _, message := range []string{firstAnswer, secondAnswer, withAdvice, withArchive} {
		if !strings.Contains(run.stdout.String(), message+"\n") {
			t.Errorf("ask doesn't print %q:\n%s", message, run.said())
		}
	}

	// Who followed all the time has every event exactly once.
	want := p.ok("sessions", "show", id, "-o", "json", "--server", srv.url)
	last := want[strings.LastIndex(strings.TrimSpace(want), "\n")+1:]
	tail[0].prints(tail[0].stdout, last)
	if diff := cmp.Diff(want, tail[0].stdout.String()); diff != "" {
		t.Errorf("sessions tail (-log +tail):\n%s", diff)
	}
	tail[0].signal(syscall.SIGINT)
	tail[0].exits(130)
	srv.stop()
}

func TestAHangupHasAServerReadItsProfilesAnew(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	p := q.place(q.environment()...)
	profiles := filepath.Join(p.dir, "profiles.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(profiles, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile("../configs/profiles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(string(good))
	srv := p.serve("127.0.0.1:0")
	srv.signal(syscall.SIGHUP)
	srv.prints(srv.stderr, "profiles are reloaded")
	write("profiles:\n  - name: primary\n    alow: []\n")
	srv.signal(syscall.SIGHUP)
	srv.prints(srv.stderr, "profiles.yaml:3")
	p.ok("health", "--listen", strings.TrimPrefix(srv.url, "http://")) // it goes on with those it had
	srv.stop()
}

func TestInterruptedAskOfAServerCancelsNothing(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.speak, q.release = newGate(), true
	p := q.place(q.environment()...)
	srv := p.serve("127.0.0.1:0")
	run := p.start("ask", asked, "--server", srv.url)
	run.prints(run.stdout, firstWords)
	run.signal(syscall.SIGINT)
	run.exits(130)
	id := p.session()
	if want := "orchestrator sessions tail " + id + " --server " + srv.url; !strings.Contains(run.stderr.String(), want) {
		t.Errorf("it doesn't say %q:\n%s", want, run.said())
	}
	q.speak.open()
	tail := p.run("sessions", "tail", id, "--server", srv.url, "--until-idle", "-n", "1000")
	tail.exits(0)
	if missing := inOrder(tail.stdout.String(), firstAnswer, secondAnswer, withAdvice); missing != "" {
		t.Errorf("sessions tail has no %q where it belongs:\n%s", missing, tail.said())
	}
	srv.stop()
}

func TestTailOfAServerOnATerminalDrawsTheTree(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.speak, q.release = newGate(), true
	p := q.place(append(q.environment(), "TERM=xterm", "NO_COLOR=1")...)
	srv := p.serve("127.0.0.1:0")
	run := p.start("ask", asked, "--server", srv.url)
	run.prints(run.stdout, firstWords)
	tty, shown, read := terminal(t, 100, 30)
	binary, err := buildOrchestrator()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "sessions", "tail", p.session(), "--server", srv.url, "--until-idle")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	tail := p.startCommand(cmd)
	tail.stdout = shown
	tail.prints(shown, "primary  running")
	q.speak.open()
	tail.exits(0)
	run.exits(0)
	read()
	if missing := inOrder(shown.String(), firstAnswer, withAdvice); missing != "" {
		t.Errorf("the terminal does not show %q where it belongs:\n%q", missing, shown.String())
	}
	srv.stop()
}

func TestCallIsCancelledByTheServerThatMadeIt(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.wait = 60
	p := q.place(q.environment()...)
	srv := p.serve("127.0.0.1:0")
	run := p.start("ask", asked, "--server", srv.url)
	run.prints(run.stderr, "asks archivist and waits")
	var call struct{ ID, Peer, State string }
	until(t, func() bool {
		for line := range strings.SplitSeq(p.ok("calls", "list", "-o", "json", "--server", srv.url), "\n") {
			if strings.Contains(line, `"archivist"`) {
				if err := json.Unmarshal([]byte(line), &call); err != nil {
					t.Fatal(err)
				}
			}
		}
		return call.ID != ""
	})

	// Without the server's help it can't be done, and the message says how it can.
	locked := p.run("calls", "cancel", call.ID)
	locked.exits(3)
	if !strings.Contains(locked.stderr.String(), "let it cancel the call: --server") {
		t.Errorf("a locked database:\n%s", locked.said())
	}
	if got := p.ok("calls", "cancel", call.ID, "--server", srv.url, "--reason", "the archive is closed"); !strings.HasPrefix(got, "call "+call.ID+" to archivist is cancelled") {
		t.Errorf("calls cancel prints %q", got)
	}
	run.exits(0)
	if missing := inOrder(run.stderr.String(), "archivist", "cancelled"); missing != "" {
		t.Errorf("ask doesn't tell of the cancel:\n%s", run.said())
	}
	until(t, func() bool { return len(q.archivist.Requests("CancelTask")) == 1 }) // the peer is told
	if got := p.ok("calls", "cancel", call.ID, "--server", srv.url); !strings.Contains(got, "was cancelled before") {
		t.Errorf("cancelling it again prints %q", got)
	}
	none := p.run("calls", "cancel", "c_nobody", "--server", srv.url)
	none.exits(2)
	if !strings.Contains(none.stderr.String(), "there is no call c_nobody") {
		t.Errorf("cancelling no call:\n%s", none.said())
	}
	srv.stop()
}

func TestServerCommandsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	p := q.place(q.environment()...)
	srv := p.serve("127.0.0.1:0")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ask", "hello"}, 3, "orchestrator ask --server URL"}, // the database is the server's
		{[]string{"ask", "hello", "--server", "http://127.0.0.1:1"}, 3, "start it with: orchestrator serve"},
		{[]string{"ask", "hello", "--server", "127.0.0.1:80"}, 2, "must begin with http:// or https://"},
		{[]string{"ask", "hello", "--server", srv.url + "/elsewhere"}, 1, ""},
		{[]string{"ask", "hello", "--server", srv.url, "--session", "s_nobody"}, 1, "sessions list --server " + srv.url},
		{[]string{"sessions", "show", "s_nobody", "--server", srv.url}, 1, "sessions list --server " + srv.url},
		{[]string{"sessions", "tail", "s_nobody", "--server", srv.url}, 1, "sessions list --server " + srv.url},
		{[]string{"sessions", "list", "--server", srv.url, "--api-key-file", "nowhere"}, 2, "read the API key"},
		{[]string{"sessions", "list", "--api-key-file", "nowhere"}, 2, "without --server"},
	} {
		run := p.run(c.args...)
		if got := run.cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(run.stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s", run.what, got, c.code, c.want, run.said())
		}
	}
	srv.stop()
}

// A server that lets nobody in without a key.
func TestServerCommandsShowTheirKey(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	p := q.place(append(q.environment(), "ORCHESTRATOR_AUTH_REQUIRED=true")...)
	key := strings.TrimSpace(p.ok("keys", "create", "alice"))
	other := p.write("other.key", p.ok("keys", "create", "bob"))
	srv := p.serve("127.0.0.1:0")
	refused := p.run("ask", "hello", "--server", srv.url)
	refused.exits(2)
	if !strings.Contains(refused.stderr.String(), "ORCHESTRATOR_API_KEY") {
		t.Errorf("without a key:\n%s", refused.said())
	}
	p.env = append(p.env, "ORCHESTRATOR_API_KEY="+key)
	if got := p.ok("ask", "hello", "--server", srv.url); got != paragraphs("You said: hello") {
		t.Errorf("with a key ask prints %q", got)
	}
	if got := p.ok("sessions", "list", "-o", "json", "--server", srv.url); !strings.Contains(got, `"title":"hello"`) {
		t.Errorf("alice's sessions are %q", got)
	}
	if got := p.ok("sessions", "list", "-o", "json", "--server", srv.url, "--api-key-file", other); got != "" {
		t.Errorf("bob's sessions are %q", got)
	}
	_ = p.session() // the variable is no config key, and no local command minds it
	srv.stop()
}
