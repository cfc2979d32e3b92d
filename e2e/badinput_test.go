package e2e_test

import (
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
)

// prompt is how soon a command that can't do its work has to say so.
const prompt = 15 * time.Second

// keyed is an environment with a model, which is asked by none of the commands that have it.
func keyed(env ...string) []string {
	return append(env, "OPENAI_API_KEY="+chatKey, "OPENAI_BASE_URL=http://127.0.0.1:1/v1")
}

// refuses runs the product, which must end soon with the exit code, say all of want, each on standard error, and print
// nothing.
func (p *place) refuses(code int, want []string, args ...string) {
	p.t.Helper()
	run := p.start(args...)
	began := time.Now()
	run.exits(code)
	if took := time.Since(began); took > prompt {
		p.t.Errorf("%s took %v", run.what, took)
	}
	said := run.stderr.String()
	for _, words := range want {
		if !strings.Contains(said, words) {
			p.t.Errorf("%s does not say %q:\n%s", run.what, words, said)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "goroutine ") {
		p.t.Errorf("%s shows its insides:\n%s", run.what, said)
	}
	if out := run.stdout.String(); out != "" {
		p.t.Errorf("%s prints %q on standard output, want nothing", run.what, out)
	}
}

// scripted is a place whose model is a script, and its config file.
func scripted(t *testing.T) (p *place, config string) {
	t.Helper()
	p = newPlace(t)
	p.write("script.yaml", "agents: [{name: primary, rules: [{match: \".+\", text: \"You said $0.\"}]}]\n")
	return p, p.write("orchestrator.yaml", "data_dir: data\nlisten: 127.0.0.1:0\nmodels: [{name: script, provider: scripted, script: script.yaml}]\n")
}

func (p *place) database() string { return filepath.Join(p.dir, "data", "orchestrator.db") }

func TestBadInputIsRefusedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files map[string]string
		env   []string
		args  string
		want  []string
	}{
		"no such config file": {args: "ask hi --config nope.yaml",
			want: []string{"config file nope.yaml doesn't exist", "--config"}},
		"no such config file, by the environment": {args: "serve", env: []string{"ORCHESTRATOR_CONFIG=nope.yaml"},
			want: []string{"config file nope.yaml doesn't exist"}},
		"an unknown key": {args: "serve", files: map[string]string{"orchestrator.yaml": "a2a:\n  max_wiat: 3m\n"},
			want: []string{`orchestrator.yaml:2: unknown key "a2a.max_wiat"; did you mean "max_wait"?`, "orchestrator config check"}},
		"an unknown variable": {args: "ask hi", env: []string{"ORCHESTRATOR_A2A_MAX_WIAT=3m"},
			want: []string{`unknown variable "ORCHESTRATOR_A2A_MAX_WIAT"; did you mean "ORCHESTRATOR_A2A_MAX_WAIT"?`}},
		"a bad duration in the file": {args: "ask hi", files: map[string]string{"orchestrator.yaml": "a2a:\n  max_wait: 3 minutes\n"},
			want: []string{`orchestrator.yaml:2: a2a.max_wait is "3 minutes": it must be a duration with a unit, such as "90s"`}},
		"a bad duration in the environment": {args: "serve", env: []string{"ORCHESTRATOR_A2A_MAX_WAIT=180"},
			want: []string{`ORCHESTRATOR_A2A_MAX_WAIT is "180": it must be a duration with a unit`}},
		"a bad duration in a flag": {args: "ask hi --late soon",
			want: []string{`invalid argument "soon" for "--late"`}},
		"a negative duration": {args: "ask hi --late=-1s",
			want: []string{"--late is -1s: it must not be negative"}},
		"several faults at once": {args: "config check", files: map[string]string{"orchestrator.yaml": "listne: x\nlog: {levle: info}\n"},
			want: []string{`unknown key "listne"; did you mean "listen"?`, `unknown key "log.levle"; did you mean "level"?`}},
		"a config file that is none": {args: "ask hi", files: map[string]string{"orchestrator.yaml": "listen: [\n"},
			want: []string{"orchestrator.yaml: yaml: line"}},
		"an address that isn't ours alone": {args: "serve --listen 0.0.0.0:8420",
			want: []string{`listen is "0.0.0.0:8420": only a loopback address`}},
		"an unknown command": {args: "srve", want: []string{`unknown command "srve"; did you mean "serve"?`}},
		"an unknown flag":    {args: "ask hi --lat 3s", want: []string{"unknown flag: --lat"}},
		"no question":        {args: "ask"},
		"an unknown form of output": {args: "ask hi -o yaml",
			want: []string{`-o is "yaml": allowed: text, json`}},
		"an unknown session": {args: "ask hi --session s_nobody",
			want: []string{"there is no session s_nobody", "orchestrator sessions list"}},
		"an unknown peer": {args: "peers show advisr", files: map[string]string{"peers.yaml": "peers: [{name: advisor, card: \"http://127.0.0.1:1\"}]\n"},
			want: []string{`there is no agent named "advisr"; did you mean "advisor"?`, "orchestrator peers list"}},
		"a bad peers file": {args: "ask hi", files: map[string]string{"peers.yaml": "peers:\n  - {name: advisor, crad: \"http://127.0.0.1:1\"}\n"},
			want: []string{`peers.yaml:2: unknown key "crad"; did you mean "card"?`}},
		"bad profiles": {args: "serve", files: map[string]string{"profiles.yaml": "profiles:\n  - name: primary\n    alow: []\n"},
			want: []string{"profiles.yaml:3", `"alow"`, `"allow"`}},
		"a script that isn't there": {args: "ask hi", files: map[string]string{"orchestrator.yaml": "models: [{name: m, provider: scripted, script: nope.yaml}]\n"},
			want: []string{`model "m"`, "nope.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, keyed(tt.env...)...)
			for file, text := range tt.files {
				p.write(file, text)
			}
			p.refuses(2, tt.want, strings.Fields(tt.args)...)
		})
	}
}

func TestBadInputOfAPeerIsNamedWithTheReason(t *testing.T) {
	t.Parallel()
	page := a2atest.New(t, a2atest.Config{Name: "page", Fault: func(a2atest.Request) a2atest.Fault {
		return a2atest.Fault{Status: http.StatusOK, MediaType: "text/html; charset=utf-8", Body: "<!doctype html><title>Welcome</title>"}
	}})
	bare := a2atest.New(t, a2atest.Config{Name: "bare", Fault: func(a2atest.Request) a2atest.Fault {
		return a2atest.Fault{Status: http.StatusOK, MediaType: "application/json", Body: `{"name":"bare","description":"has no door",` +
			`"version":"1","capabilities":{},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[],"supportedInterfaces":[]}`}
	}})
	// This one's card is good; a page answers everything else.
	proxied := a2atest.New(t, a2atest.Config{Name: "proxied", Fault: func(r a2atest.Request) a2atest.Fault {
		if r.Method == a2atest.MethodCard {
			return a2atest.Fault{}
		}
		return a2atest.Fault{Status: http.StatusOK, MediaType: "text/html", Body: "<html>Sign in</html>"}
	}})
	peers := fmt.Sprintf("peers:\n  - {name: down, card: %q}\n  - {name: page, card: %q}\n  - {name: bare, card: %q}\n  - {name: proxied, card: %q}\n",
		"http://"+closedAddress(t), page.URL(), bare.URL(), proxied.URL())

	t.Run("by a command", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.write("peers.yaml", peers)
		for name, reason := range map[string]string{"down": "connection refused", "page": `answered with "text/html", which is not A2A`, "bare": "interface"} {
			p.refuses(3, []string{"peer " + name + " can't be reached: ", reason, "check its address in peers.yaml"}, "peers", "show", name)
		}
		list := p.ok("peers", "list")
		for _, name := range []string{"down", "page", "bare"} {
			if !strings.Contains(list, "\n"+name+" ") {
				t.Errorf("peers list does not name %s:\n%s", name, list)
			}
		}
	})

	for name, tt := range map[string]struct {
		told []string // to the subagent's model
		open bool     // the call stays open: an answer may still come
	}{
		"dwon":    {told: []string{`there is no agent named "dwon"; did you mean "down"?`}},
		"down":    {told: []string{"peer 'down' did not respond within 1s; proceeding without it"}, open: true},
		"page":    {told: []string{"peer 'page' refused the call", `answered with "text/html", which is not A2A`}},
		"bare":    {told: []string{"bare", "interface"}},
		"proxied": {told: []string{"peer 'proxied' refused the call", `answered with "text/html", which is not A2A`}},
	} {
		t.Run("by a subagent: "+name, func(t *testing.T) {
			t.Parallel()
			chat := newChatServer(t, func(q question) answer {
				switch {
				case q.primary() && q.last().Role == "user" && q.input() == asked:
					return says("", toolUse{"spawn_subagent", map[string]any{"description": "ask", "prompt": "Ask " + name + "."}})
				case q.primary() && q.last().Role == "tool":
					return says("Under way.")
				case q.primary():
					return says("Done.")
				case q.last().Role == "user":
					return says("", toolUse{"invoke_agent", map[string]any{"agent_name": name, "message": "Hello?", "timeout_seconds": 1}})
				}
				return says("I went on without it.")
			})
			p := newPlace(t, "OPENAI_API_KEY="+chatKey, "OPENAI_BASE_URL="+chat.url)
			p.write("peers.yaml", peers)
			run := p.start("ask", asked, "--late", "0s")
			began := time.Now()
			run.exits(0)
			if took := time.Since(began); took > prompt {
				t.Errorf("it took %v", took)
			}
			if missing := inOrder(run.stdout.String(), "Under way.\n", "Done.\n"); missing != "" {
				t.Errorf("standard output has no %q:\n%s", missing, run.said())
			}
			results := chat.results("invoke_agent")
			if len(results) != 1 {
				t.Fatalf("the subagent's model was told %q, want one result", results)
			}
			for _, words := range tt.told {
				if !strings.Contains(results[0], words) {
					t.Errorf("the subagent's model was told %q, want it to say %q", results[0], words)
				}
			}
			if open := p.openCalls(); (len(open) > 0) != tt.open {
				t.Errorf("calls that are open: %q, want one: %t", open, tt.open)
			}
		})
	}
}

// closedAddress is an address nobody listens on.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func TestBadInputOfADatabaseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, path string)
		code  int
		want  []string
	}{
		"of another kind": {func(t *testing.T, path string) {
			overwrite(t, path, 0, strings.Repeat("this is no database. ", 1000))
		}, 1, []string{"is damaged or is not one of orchestrator's", "move the file away"}},
		"damaged": {func(t *testing.T, path string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, path, 4096, strings.Repeat("\xff", int(info.Size())-4096))
		}, 1, []string{"is damaged or is not one of orchestrator's", "move the file away"}},
		"of a newer version": {func(t *testing.T, path string) {
			query(t, path, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)")
		}, 1, []string{"has schema version 999, newer than the", "use that one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, config := scripted(t)
			p.ok("ask", "hello", "--config", config)
			tt.spoil(t, p.database())
			for _, command := range []string{"ask hi", "serve", "sessions list", "calls list"} {
				p.refuses(tt.code, append(tt.want, p.database()), append(strings.Fields(command), "--config", config)...)
			}
		})
	}
	t.Run("at a path below a file", func(t *testing.T) {
		t.Parallel()
		p, config := scripted(t)
		p.write("data", "a file")
		for _, command := range []string{"ask hi", "serve", "sessions list"} {
			p.refuses(2, []string{p.database() + " can't be opened", "not a directory", "--data-dir"}, append(strings.Fields(command), "--config", config)...)
		}
	})
	t.Run("at a path that is a folder", func(t *testing.T) {
		t.Parallel()
		p, config := scripted(t)
		p.write("data/orchestrator.db/file", "")
		p.refuses(2, []string{p.database() + " can't be opened", "--data-dir"}, "ask", "hi", "--config", config)
	})
}

// overwrite puts a text into a file at an offset.
func overwrite(t *testing.T, path string, offset int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), offset); err != nil {
		t.Fatal(err)
	}
}

// query changes a database that nobody has open.
func query(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// serves starts a server, waits until it serves, and returns it with its address.
func (p *place) serves(args ...string) (run *process, address string) {
	p.t.Helper()
	run = p.start(append([]string{"serve"}, args...)...)
	run.prints(run.stderr, "msg=serving")
	_, rest, _ := strings.Cut(run.stderr.String(), "address=")
	address, _, _ = strings.Cut(rest, " ")
	return run, address
}

// stops stops a server, which must end well and leave its port.
func (p *place) stops(run *process, address string) {
	p.t.Helper()
	run.signal(syscall.SIGTERM)
	run.exits(0)
	if conn, err := net.Dial("tcp", address); err == nil {
		p.t.Errorf("after %s ended somebody listens on %s: %v", run.what, address, conn.Close())
	}
}

func TestBadInputOfADatabaseInUseNamesTheProcess(t *testing.T) {
	t.Parallel()
	p, config := scripted(t)
	p.ok("ask", "hello", "--config", config)
	server, address := p.serves("--config", config)
	want := []string{p.database() + " is in use by process " + strconv.Itoa(server.cmd.Process.Pid), "stop it first", "--data-dir"}
	p.refuses(3, want, "ask", "hi", "--config", config)
	p.refuses(3, want, "serve", "--config", config)
	if list := p.ok("sessions", "list", "--config", config); !strings.Contains(list, "hello") {
		t.Errorf("sessions list beside a server does not name the session:\n%s", list)
	}
	p.ok("calls", "list", "--config", config)
	p.stops(server, address)
	if said := p.ok("ask", "again", "--config", config); said != "You said again.\n" {
		t.Errorf("ask prints %q after the server has gone", said)
	}
}

func TestBadInputOfABusyPortLeavesTheDatabaseFree(t *testing.T) {
	t.Parallel()
	p, config := scripted(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p.refuses(1, []string{"address " + l.Addr().String() + " is in use by another process", "--listen"},
		"serve", "--config", config, "--listen", l.Addr().String())
	server, address := p.serves("--config", config)
	p.stops(server, address)
}
