package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// exampleScript is what the models of the example's server say.
const exampleScript = `
agents:
  - name: primary
    rules:
      - match: 'Your subagent'
        text: "The survey is in: the ferry pays if it runs all winter."
      - {tool: spawn_subagent, text: "A colleague surveys the crossings. I report when the survey is in."}
      - match: 'ferry'
        tool_calls: [{name: spawn_subagent, args: {agent: surveyor, description: survey, prompt: "Survey the crossings."}}]
  - name: surveyor
    rules: [{text: "It pays if it runs all winter."}]
`

// exampleServer is orchestrator serve, with models that play a script. stop stops it.
func exampleServer() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(exampleScript), 0o600); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	a, err := app.New(ctx, app.Config{
		Dir: dir, DataDir: dir, Listen: "127.0.0.1:0", Getenv: func(string) string { return "" },
		Models: []app.ModelConfig{{Name: "script", Provider: app.ProviderScripted, Script: "script.yaml"}},
		Agents: []app.AgentConfig{{Name: "primary", Profile: "primary"}, {Name: "surveyor", Profile: "subagent"}},
	}, nil)
	if err != nil {
		cancel()
		return "", nil, err
	}
	if err := a.Start(ctx); err != nil {
		cancel()
		return "", nil, err
	}
	ready := make(chan net.Addr, 1)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := a.Serve(ctx, func(addr net.Addr) { ready <- addr }); err != nil {
			log.Print(err)
		}
	})
	return "http://" + (<-ready).String(), func() {
		cancel()
		serving.Wait()
		if err := errors.Join(a.Stop(context.Background()), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}, nil
}

// A program asks a question and waits for all that comes of it.
func Example_ask() {
	url, stop, err := exampleServer()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ask := func() error {
		ctx := context.Background()

		server, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: url, Key: os.Getenv("ORCHESTRATOR_API_KEY")})
		if err != nil {
			return err
		}
		opened, err := server.Open(ctx, sessionclient.OpenRequest{Title: "the ferry"})
		if err != nil {
			return err
		}
		client, err := sessionclient.New(sessionclient.Config{Backend: server, Session: opened.ID})
		if err != nil {
			return err
		}
		defer client.Close()

		// It goes on over cut connections and restarts of the server; a timeout or a disconnect cancels nothing.
		turn, err := client.SendAndWait(ctx, sessionclient.SendRequest{
			Input:       "Should we build the ferry?",
			WaitRequest: sessionclient.WaitRequest{Until: session.UntilQuiescent, Timeout: 10 * time.Minute},
		})
		if late, ok := errors.AsType[*sessionclient.TimeoutError](err); ok {
			return fmt.Errorf("turn %s goes on: %w", late.Turn, err)
		}
		if err != nil {
			return err
		}
		fmt.Println(turn.Output)
		for _, later := range turn.FoldBacks { // what its subagents and peers brought home
			fmt.Println(later.Output)
		}
		return nil
	}
	if err := ask(); err != nil {
		log.Print(err)
	}
	// Output:
	// A colleague surveys the crossings. I report when the survey is in.
	// The survey is in: the ferry pays if it runs all winter.
}

// What README.md shows of Go is a piece of an example that is run.
func TestREADMEShowsAnExampleThatRuns(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	snippets := strings.Split(string(readme), "```go\n")[1:]
	if len(snippets) == 0 {
		t.Fatal("README.md shows no Go")
	}
	for _, snippet := range snippets {
		code, _, _ := strings.Cut(snippet, "```")
		if !strings.Contains(flat(string(example)), flat(code)) {
			t.Errorf("README.md shows what is in no example:\n%s", code)
		}
	}
}
