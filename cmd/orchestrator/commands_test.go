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
	"time"

	"github.com/spf13/cobra"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/tracker"
)

// openCall leaves a call to a peer that doesn't answer, and returns the call.
func openCall(t *testing.T) (w *workplace, call callRow) {
	t.Helper()
	p := a2atest.New(t, a2atest.Config{Name: "advisor", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Wait(a2atest.NewGate())
	}})
	w = newWorkplace(t, "  - {name: advisor, card: "+p.URL()+"}\n")
	w.ok("ask", "--no-wait", "ask advisor about tides")
	if err := json.Unmarshal([]byte(w.ok("calls", "list", "-o", "json")), &call); err != nil {
		t.Fatal(err)
	}
	return w, call
}

func TestCallsCancelEndsTheWishForAReply(t *testing.T) {
	w, call := openCall(t)
	if got := w.ok("calls", "cancel", string(call.ID)); !strings.Contains(got, "to advisor is cancelled; the next serve or ask tells it so") {
		t.Errorf("calls cancel prints %q", got)
	}
	if got := w.ok("calls", "list"); !strings.HasPrefix(got, "no calls are waiting") {
		t.Errorf("calls list = %q, want none", got)
	}
	if got := w.ok("calls", "cancel", string(call.ID)); !strings.Contains(got, "was cancelled before; the next") {
		t.Errorf("cancelled again it prints %q", got)
	}
	shown := w.ok("sessions", "show", string(call.Session))
	if !strings.Contains(shown, "cancelled") {
		t.Errorf("the session doesn't tell of it:\n%s", shown)
	}
}

func TestCallsCancelSaysWhatIsInTheWay(t *testing.T) {
	w, call := openCall(t)
	if code, _, stderr := w.run("calls", "cancel", "c_none"); code != exitUsage || !strings.Contains(stderr, "there is no call c_none") {
		t.Errorf("an unknown call: exit code %d, message %q", code, stderr)
	}
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(w.dir, "data", "orchestrator.db")})
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr := w.run("calls", "cancel", string(call.ID))
	if code != exitUnreachable || !strings.Contains(stderr, "is in use by process") || !strings.Contains(stderr, "let it cancel the call: --server URL") {
		t.Errorf("beside a running process: exit code %d, message %q", code, stderr)
	}
	calls, err := tracker.New(tracker.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := calls.Deliver(t.Context(), call.ID, tracker.Reply{State: "completed", Text: "high"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = w.run("calls", "cancel", string(call.ID))
	if code != exitFailed || !strings.Contains(stderr, "can't be cancelled: its reply came home") {
		t.Errorf("a call that is over: exit code %d, message %q", code, stderr)
	}
	code, _, stderr = orchestrator(t, nil, "calls", "cancel", "c_x", "--data-dir", t.TempDir())
	if code != exitFailed || !strings.Contains(stderr, "there are no sessions yet") {
		t.Errorf("without a database: exit code %d, message %q", code, stderr)
	}
}

func TestCallsCancelSaysWhenTheReplyCameFirst(t *testing.T) {
	w, call := openCall(t)
	a := w.start(nil)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/cancel") { // after the command has seen that the reply is still wanted
			if _, _, err := a.Calls.Deliver(r.Context(), call.ID, tracker.Reply{State: "completed", Text: "high"}); err != nil {
				t.Error(err)
			}
		}
		a.API.ServeHTTP(rw, r)
	}))
	defer server.Close()
	code, stdout, stderr := w.run("calls", "cancel", string(call.ID), "--server", server.URL)
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "can't be cancelled: its reply came home") {
		t.Errorf("calls cancel of a call whose reply came meanwhile: exit code %d, output %q, message %q", code, stdout, stderr)
	}
}

// meanwhile is a store in which something happens just before somebody reads records of a kind.
type meanwhile struct {
	session.Store

	kind    session.Kind
	happens func()
}

func (s meanwhile) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	if q.Kind == s.kind {
		s.happens()
	}
	return s.Store.Records(ctx, q)
}

func TestSessionsListLeavesOutWhatIsDeletedMeanwhile(t *testing.T) {
	store := session.NewMemory()
	var ids []session.ID
	for range 2 {
		id := session.NewID()
		if _, err := store.Commit(t.Context(), session.Batch{Tree: id, Create: true, Changes: []session.Change{
			session.Insert(session.KindSession, string(id), id, "", session.StateOpen, session.SessionBody{Agent: "primary"}, time.Time{}),
		}}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	var out bytes.Buffer
	deleted := meanwhile{Store: store, kind: session.KindTurn, happens: func() { // while the newest is looked at
		if err := store.Delete(t.Context(), ids[0]); err != nil {
			t.Error(err)
		}
	}}
	err := (&cli{stdout: &out, output: outputJSON}).listSessions(t.Context(), deleted, 0)
	if err != nil || !strings.Contains(out.String(), string(ids[1])) {
		t.Errorf("sessions list prints %q, %v", &out, err)
	}
}

func TestAFoldBackThatStartsBetweenTwoLooksIsWork(t *testing.T) {
	store := session.NewMemory()
	root, turn := session.NewID(), session.NewTurnID()
	made, err := store.Commit(t.Context(), session.Batch{Tree: root, Create: true, Changes: []session.Change{
		session.Insert(session.KindSession, string(root), root, "", session.StateOpen, session.SessionBody{Agent: "primary"}, time.Time{}),
		session.NewItem("call:c", root, turn, session.ItemBody{Kind: session.ItemReply}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	starts := func() {
		if _, err := store.Commit(t.Context(), session.Batch{
			Tree: root,
			Changes: []session.Change{
				made.Records[1].Update(session.StateBound, nil),
				session.Insert(session.KindTurn, string(turn), root, turn, session.StateRunning, session.TurnBody{}, time.Time{}),
			},
			Events: []session.Event{session.Scope{Root: root, Agent: root, Turn: turn}.Event(session.EventTurnStarted, session.TurnStarted{})},
		}); err != nil {
			t.Error(err)
		}
	}
	idle, err := isIdle(t.Context(), meanwhile{Store: store, kind: session.KindItem, happens: starts}, root)
	if err != nil || idle {
		t.Errorf("isIdle() = %t, %v though a fold-back turn runs", idle, err)
	}
}

func TestSessionsTailFollowsWhatAnotherProcessWrites(t *testing.T) {
	w := newWorkplace(t, "")
	w.ok("ask", "hello")
	id := string(w.sessions()[0].ID)
	all := w.ok("sessions", "show", id, "-o", "json")

	if got := w.ok("sessions", "tail", id, "-n", "1000", "--until-idle", "-o", "json"); got != all {
		t.Errorf("tail of a session at rest prints another log than show:\n%s\n%s", got, all)
	}
	if got := w.ok("sessions", "tail", id, "-n", "2", "--until-idle", "-o", "json"); strings.Count(got, "\n") != 2 || !strings.HasSuffix(all, got) {
		t.Errorf("tail -n 2 prints\n%s\nwant the last two lines of\n%s", got, all)
	}
	if got := w.ok("sessions", "tail", id, "-n", "0", "--until-idle"); got != "" {
		t.Errorf("tail -n 0 prints %q", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{})
	var out, errs bytes.Buffer
	var code int
	var wg sync.WaitGroup
	wg.Go(func() {
		// Its first word says that it reads; then it is waited for to tell what came after.
		begin := sync.OnceFunc(func() { close(began) })
		look := func() {
			begin()
			if strings.Contains(out.String(), "You said again") {
				cancel()
			}
		}
		code = run(ctx, []string{"--config", w.config, "sessions", "tail", id}, []string{"HOME=" + w.dir}, &trigger{w: &out, on: "You said hello", f: look}, &errs)
	})
	<-began
	w.ok("ask", "--session", id, "again")
	wg.Wait()
	if code != exitInterrupted || !strings.Contains(out.String(), "You said again, and first of all hello.") {
		t.Errorf("exit code %d, output %q, message %q; want 130 and what was said meanwhile", code, &out, &errs)
	}
	if code, _, stderr := w.run("sessions", "tail", "s_none"); code != exitFailed || !strings.Contains(stderr, "session s_none") {
		t.Errorf("an unknown session: exit code %d, message %q", code, stderr)
	}
}

func TestMigrateAndBackup(t *testing.T) {
	w := newWorkplace(t, "")
	if got := w.ok("migrate"); !regexp.MustCompile(`^database .*orchestrator\.db is made, with schema version \d+\n$`).MatchString(got) {
		t.Errorf("migrate without a database prints %q", got)
	}
	if got := w.ok("migrate"); !regexp.MustCompile(`has schema version \d+ already\n$`).MatchString(got) {
		t.Errorf("migrate again prints %q", got)
	}
	w.ok("ask", "hello")
	file := filepath.Join(w.dir, "copy.db")
	if got := w.ok("backup", file); !strings.HasPrefix(got, file+" is a copy of ") {
		t.Errorf("backup prints %q", got)
	}
	code, stdout, stderr := orchestrator(t, []string{"ORCHESTRATOR_STORE_PATH=" + file, "OPENAI_API_KEY=k"}, "sessions", "list")
	if code != exitOK || !strings.Contains(stdout, "hello") {
		t.Errorf("the copy: exit code %d, sessions %q, message %q", code, stdout, stderr)
	}
	if code, _, stderr := w.run("backup", file); code != exitUsage || !strings.Contains(stderr, "exists already, and is left as it is") {
		t.Errorf("onto a file: exit code %d, message %q", code, stderr)
	}
	if code, _, stderr := w.run("backup", filepath.Join(w.dir, "none", "copy.db")); code != exitUsage || !strings.Contains(stderr, "a folder that exists") {
		t.Errorf("into no folder: exit code %d, message %q", code, stderr)
	}
	if code, _, stderr := orchestrator(t, nil, "backup", file, "--data-dir", t.TempDir()); code != exitFailed || !strings.Contains(stderr, "there are no sessions yet") {
		t.Errorf("without a database: exit code %d, message %q", code, stderr)
	}
}

func TestHealthAsksTheServeOfThisMachine(t *testing.T) {
	var paths []string
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		w.WriteHeader(status)
	}))
	addr := server.Listener.Addr().String()
	env := []string{"HTTP_PROXY=http://127.0.0.1:1"}
	for _, args := range [][]string{{"health"}, {"health", "--live"}} {
		if code, stdout, stderr := orchestrator(t, env, append(args, "--listen", addr)...); code != exitOK || stdout != "ok\n" {
			t.Errorf("%v: exit code %d, output %q, message %q", args, code, stdout, stderr)
		}
	}
	if got := strings.Join(paths, " "); got != "/readyz /healthz" {
		t.Errorf("asked for %s, want /readyz, and with --live /healthz", got)
	}
	status = http.StatusServiceUnavailable
	if code, _, stderr := orchestrator(t, env, "health", "--listen", addr); code != exitUnreachable || !strings.Contains(stderr, "is not ready: 503") {
		t.Errorf("not ready: exit code %d, message %q", code, stderr)
	}
	server.Close()
	if code, _, stderr := orchestrator(t, env, "health", "--listen", addr); code != exitUnreachable || !strings.Contains(stderr, "start it with: orchestrator serve") {
		t.Errorf("nobody there: exit code %d, message %q", code, stderr)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	code, _, stderr := orchestrator(t, env, "health", "--listen", silent.Addr().String(), "--timeout", "50ms")
	if code != exitUnreachable || !strings.Contains(stderr, "no answer within 50ms") {
		t.Errorf("silence: exit code %d, message %q", code, stderr)
	}
}

func TestVersionSaysWhichBuildThisIs(t *testing.T) {
	old := version
	defer func() { version = old }()
	version = "v1.2.3"
	code, short, _ := orchestrator(t, nil, "--version")
	if want := regexp.MustCompile(`^orchestrator version v1\.2\.3 \(.*go1\.\S+, \w+/\w+\)\n$`); code != exitOK || !want.MatchString(short) {
		t.Errorf("--version: exit code %d, output %q", code, short)
	}
	_, stdout, _ := orchestrator(t, nil, "version", "-o", "json")
	var b buildInfo
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || b.Version != "v1.2.3" || b.Platform == "" {
		t.Errorf("version -o json prints %q (%v)", stdout, err)
	}
}

func TestCompletionOffersTheNamesThereAre(t *testing.T) {
	w := newWorkplace(t, "  - {name: advisor, card: \"http://127.0.0.1:1\", description: gives advice}\n")
	w.ok("ask", "hello")
	id := string(w.sessions()[0].ID)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"peers", "call", ""}, "advisor\tgives advice\n"},
		{[]string{"peers", "show", ""}, "advisor\tgives advice\n"},
		{[]string{"sessions", "tail", ""}, id + "\thello\n"},
		{[]string{"sessions", "show", ""}, id + "\thello\n"},
		{[]string{"ask", "--session", ""}, id + "\thello\n"},
		{[]string{"profiles", "explain", "--agent", "s"}, "subagent\n"},
		{[]string{"profiles", "explain", "--tool", "invoke"}, "invoke_agent\n"},
		{[]string{"peers", "list", "-o", ""}, "text\njson\n"},
		{[]string{"calls", "cancel", ""}, ":4\n"},
	} {
		got := w.ok(append([]string{"__complete", "--config", w.config}, tt.args...)...)
		if !strings.Contains(got, tt.want) {
			t.Errorf("completion of %q offers\n%s\nwant %q", tt.args, got, tt.want)
		}
	}
	if code, _, stderr := orchestrator(t, nil, "__complete", "--config", "nowhere.yaml", "peers", "call", ""); code != exitOK {
		t.Errorf("completion with a broken configuration: exit code %d: %s", code, stderr)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := w.ok("completion", shell); !strings.Contains(got, "orchestrator") {
			t.Errorf("completion %s prints %q", shell, got)
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	root := (&cli{stdout: os.Stdout, stderr: os.Stderr}).root()
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		switch {
		case cmd.Short == "" || strings.HasSuffix(cmd.Short, "."):
			t.Errorf("%s: short help is %q, want one line without a full stop", cmd.CommandPath(), cmd.Short)
		case !cmd.HasSubCommands() && !strings.Contains(cmd.Example, cmd.CommandPath()):
			t.Errorf("%s: the example is %q, want one that shows the command", cmd.CommandPath(), cmd.Example)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: example line %q isn't indented", cmd.CommandPath(), line)
			}
		}
	}
	check(root)
}
