package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// emulatorFolder names the folder of a server that emulates model vendors: it holds fixtures.json and what npm has
// installed for it. Without it the tests that ask the server are skipped, since Node is more than the other tests need.
// `make interop-llm` sets it.
const emulatorFolder = "ORCHESTRATOR_INTEROP_LLM"

// newEmulator starts npm's @copilotkit/aimock, which its authors check against the vendors' servers, and returns its
// address.
func newEmulator(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(emulatorFolder)
	if dir == "" {
		t.Skip("make interop-llm runs this: it needs Node and what npm installs")
	}
	run := newPlace(t).startCommand(exec.Command("node", filepath.Join(dir, "node_modules", "@copilotkit", "aimock", "dist", "cli.js"),
		"--port", "0", "--strict", "--chunk-size", "3", "--fixtures", filepath.Join(dir, "fixtures.json")))
	run.prints(run.stdout, "listening on http://127.0.0.1:")
	address := ""
	until(t, func() bool {
		found := regexp.MustCompile(`listening on (http://127\.0\.0\.1:\d+)\s`).FindStringSubmatch(run.stdout.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	return address
}

func TestAskIsAnsweredByTheModelsOfAnEmulator(t *testing.T) {
	const key = "sk-very-secret-0123456789"
	address := newEmulator(t)
	for name, env := range map[string][]string{
		"openai":    {"OPENAI_API_KEY=" + key, "OPENAI_BASE_URL=" + address + "/v1"},
		"anthropic": {"ANTHROPIC_API_KEY=" + key, "ANTHROPIC_BASE_URL=" + address},
	} {
		t.Run(name, func(t *testing.T) {
			// The emulator counts what it was asked by this header.
			p := newPlace(t, env...)
			vendor := strings.ToUpper(name)
			config := p.write("orchestrator.yaml", "models:\n  - name: m\n    provider: "+name+"\n    base_url: "+strings.SplitN(env[1], "=", 2)[1]+
				"\n    api_key_env: "+vendor+"_API_KEY\n    headers: [{name: X-Test-Id, value: "+name+"}]\n")

			if got, want := p.ok("ask", "What is salt good for?"), "I look who is there.\n\nSalt keeps food — and melts ice.\n"; got != want {
				t.Errorf("ask prints %q, want %q", got, want)
			}
			if got, want := p.ok("ask", "--config", config, "Again?"), "Now it works.\n"; got != want {
				t.Errorf("ask after a refusal for the rate prints %q, want %q", got, want)
			}
			refused := p.run("ask", "Who are you?")
			refused.exits(1)
			if said := refused.said(); !strings.Contains(said, "does not accept the API key") || strings.Contains(said, key) {
				t.Errorf("with a key that isn't known ask says %q, want what to check, without the key", said)
			}
		})
	}
}
