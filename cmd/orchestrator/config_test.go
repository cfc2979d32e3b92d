package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// orchestrator runs the program in a folder of its own with a home that is empty.
func orchestrator(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, append([]string{"HOME=" + t.TempDir()}, env...), &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBadConfigFileNamesLineKeyAndWhatIsMeant(t *testing.T) {
	for text, want := range map[string]string{
		"a2a:\n  max_wiat: 3m\n":                      `orchestrator.yaml:2: unknown key "a2a.max_wiat"; did you mean "max_wait"?`,
		"a2a:\n  call_timeout: 3 minutes\n":           `orchestrator.yaml:2: a2a.call_timeout is "3 minutes": it must be a duration with a unit, such as "90s"`,
		"a2a: {max_wait: 180}\n":                      `orchestrator.yaml:1: a2a.max_wait is "180": it must be a duration with a unit`,
		"a2a: {max_wait: -1s}\n":                      `orchestrator.yaml: a2a.max_wait is -1s: it must be a positive duration`,
		"subagents: {alive: many}\n":                  `orchestrator.yaml:1: subagents.alive is "many": it must be a whole number`,
		"subagents: {lend_slot: maybe}\n":             `orchestrator.yaml:1: subagents.lend_slot is "maybe": it must be true or false`,
		"models:\n  - name: a\n    api_key: sk-1\n":   `orchestrator.yaml:3: unknown key "models[0].api_key"; did you mean "api_key_env"?`,
		"agents: {primary: x}\n":                      `orchestrator.yaml:1: agents must be a list`,
		"- a\n":                                       `orchestrator.yaml:1: the file must be a table with the keys data_dir, listen`,
		"listen: [\n":                                 `orchestrator.yaml: yaml: line 1`,
		"listen: a\nlisten: b\n":                      `mapping key "listen" already defined at line 1`,
		"primary: a\n---\nprimary: b\n":               `orchestrator.yaml:2: the file must hold one YAML document`,
		"agents: [{name: a, model: x}]\n":             `orchestrator.yaml: agents[0].model is "x": models has no such entry`,
		"x: &x {levle: info}\nlog:\n  <<: *x\n":       `unknown key "log.levle"; did you mean "level"?`,
		"log: {level: info}\nstore:\n  - driver: q\n": `orchestrator.yaml:3: store must be a table with the keys driver, path, synchronous`,
	} {
		file := write(t, t.TempDir(), "orchestrator.yaml", text)
		code, _, stderr := orchestrator(t, nil, "config", "print", "--config", file)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("config %q: exit code %d, want 2, and message\n%s\nwant %s", text, code, stderr, want)
		}
		if strings.Contains(stderr, "sk-1") {
			t.Errorf("the message shows a secret: %s", stderr)
		}
	}
}

func TestUnknownOrchestratorVariableNamesTheNearest(t *testing.T) {
	for env, want := range map[string]string{
		"ORCHESTRATOR_A2A_MAX_WIAT=3m":    `unknown variable "ORCHESTRATOR_A2A_MAX_WIAT"; did you mean "ORCHESTRATOR_A2A_MAX_WAIT"?`,
		"ORCHESTRATOR_A2A_MAX_WAIT=3":     `ORCHESTRATOR_A2A_MAX_WAIT is "3": it must be a duration with a unit`,
		"ORCHESTRATOR_LOG_LEVEL=loud":     `log.level is "loud": allowed: debug, info, warn, error`,
		"ORCHESTRATOR_MODELS=x":           `unknown variable "ORCHESTRATOR_MODELS"`,
		"ORCHESTRATOR_CONFIG=/none/there": `config file /none/there doesn't exist`,
	} {
		code, _, stderr := orchestrator(t, []string{env}, "config", "print")
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want 2, and message\n%s\nwant %s", env, code, stderr, want)
		}
	}
	// Kubernetes sets the first of these beside a service of our name, make services the last; they are not ours to refuse.
	others := []string{
		"ORCHESTRATOR_SERVICE_HOST=10.0.0.1", "ORCHESTRATOR_PORT=tcp://10.0.0.1:8420", "ORCHESTRATOR_PORT_8420_TCP_ADDR=10.0.0.1",
		"ORCHESTRATOR_TEST_AMQP_URL=amqp://127.0.0.1/",
	}
	if code, _, stderr := orchestrator(t, others, "config", "print"); code != exitOK {
		t.Errorf("with variables of others: exit code %d: %s", code, stderr)
	}
}

func printed(t *testing.T, env []string, args ...string) map[string]any {
	t.Helper()
	code, stdout, stderr := orchestrator(t, env, append([]string{"-o", "json", "config", "print"}, args...)...)
	if code != exitOK {
		t.Fatalf("config print: exit code %d: %s", code, stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestFlagsBeatVariablesBeatTheFile(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "orchestrator.yaml", "log: {level: error, format: json}\ndata_dir: data\na2a: {max_wait: 10s}\n")
	v := printed(t, []string{"ORCHESTRATOR_LOG_LEVEL=warn", "ORCHESTRATOR_A2A_MAX_WAIT=20s"},
		"--config", file, "--log-level", "debug")
	if diff := cmp.Diff(map[string]any{"level": "debug", "format": "json"}, v["log"]); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if a2a := v["a2a"].(map[string]any); a2a["max_wait"] != "20s" {
		t.Errorf("a2a = %v, want what the variable says", a2a)
	}
	if want := filepath.Join(dir, "data"); v["data_dir"] != want {
		t.Errorf("data_dir = %v, want %s: relative to the file", v["data_dir"], want)
	}
	t.Chdir(t.TempDir())
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	v = printed(t, []string{"ORCHESTRATOR_PEERS_FILE=p.yaml"}, "--config", file, "--data-dir", "here")
	if v["data_dir"] != filepath.Join(cwd, "here") || v["peers_file"] != filepath.Join(cwd, "p.yaml") {
		t.Errorf("data_dir, peers_file = %v, %v, want both in %s: relative to where the program is run", v["data_dir"], v["peers_file"], cwd)
	}
}

func TestConfigFileIsFoundHereThenInTheHome(t *testing.T) {
	t.Chdir(t.TempDir())
	home := t.TempDir()
	env := []string{"HOME=" + home, "XDG_CONFIG_HOME="}
	if got := printed(t, env)["listen"]; got != "127.0.0.1:8420" {
		t.Errorf("listen = %v without a file, want the default", got)
	}
	write(t, home, ".config/orchestrator/orchestrator.yaml", "listen: 127.0.0.1:1\n")
	if got := printed(t, env)["listen"]; got != "127.0.0.1:1" {
		t.Errorf("listen = %v, want that of the file in the home", got)
	}
	write(t, ".", "orchestrator.yaml", "listen: 127.0.0.1:2\n")
	if got := printed(t, env)["listen"]; got != "127.0.0.1:2" {
		t.Errorf("listen = %v, want that of the file here", got)
	}
}

func TestPrintedConfigHoldsNoSecretAndReadsBack(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "orchestrator.yaml", `
models:
  - name: main
    base_url: https://h/v1?api-key=hunter2
    api_key_env: MAIN_KEY
    headers: [{name: X-Key, env: OTHER}]
`)
	env := []string{"MAIN_KEY=sk-secret", "OTHER=sk-other", "OPENAI_API_KEY=sk-third"}
	code, stdout, stderr := orchestrator(t, env, "config", "print", "--config", file)
	if code != exitOK {
		t.Fatalf("config print: exit code %d: %s", code, stderr)
	}
	for _, secret := range []string{"hunter2", "sk-secret", "sk-other", "sk-third"} {
		if strings.Contains(stdout+stderr, secret) {
			t.Errorf("config print shows %s:\n%s", secret, stdout)
		}
	}
	again := write(t, dir, "again.yaml", stdout)
	code, stdout2, stderr := orchestrator(t, env, "config", "print", "--config", again)
	if code != exitOK {
		t.Fatalf("config print of what it printed: exit code %d: %s", code, stderr)
	}
	_, body, _ := strings.Cut(stdout, "\n")
	_, body2, _ := strings.Cut(stdout2, "\n")
	if diff := cmp.Diff(body, body2); diff != "" {
		t.Errorf("what config print prints means something else when read (-first +second):\n%s", diff)
	}
}

func TestCheckSaysWhichSecretIsMissing(t *testing.T) {
	file := write(t, t.TempDir(), "orchestrator.yaml", "models: [{name: main, base_url: http://h/v1, api_key_env: MAIN_KEY}]\n")
	code, _, stderr := orchestrator(t, nil, "config", "check", "--config", file)
	if want := `model "main": set MAIN_KEY`; code != exitUsage || !strings.Contains(stderr, want) {
		t.Errorf("exit code %d, message %q, want 2 and %q", code, stderr, want)
	}
	code, stdout, _ := orchestrator(t, []string{"MAIN_KEY=k"}, "config", "check", "--config", file)
	if code != exitOK || !strings.Contains(stdout, "orchestrator.yaml ok: 1 model, 2 agents") {
		t.Errorf("exit code %d, output %q, want 0 and a line that says ok", code, stdout)
	}
}

func TestMisuseExitsWithTwoAndNamesWhatIsMeant(t *testing.T) {
	for args, want := range map[string]string{
		"cofnig":              `unknown command "cofnig"; did you mean "config"?`,
		"config prnt":         `unknown command "prnt"; did you mean "print"?`,
		"config print extra":  `orchestrator config print takes no arguments`,
		"--nope":              `unknown flag: --nope`,
		"config print -o xml": `-o is "xml": allowed: text, json`,
	} {
		code, stdout, stderr := orchestrator(t, nil, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, "orchestrator: "+want) || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want 2, nothing, %q", args, code, stdout, stderr, want)
		}
	}
}

func FuzzConfigText(f *testing.F) {
	f.Add("a2a: {max_wait: 3m}\nmodels: [{name: a}]\n")
	f.Add("x: &x {a: *x}\n")
	f.Add("log: &l {<<: *l}\n")
	f.Add("<<: {log: {level: 1}}\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		if err := checkConfigText("f", []byte(text)); err != nil && err.Error() == "" {
			t.Error("an error without a message")
		}
	})
}
