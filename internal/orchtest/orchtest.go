// Package orchtest starts the whole product in a test: a scripted model, and peers by the URL of their cards.
//
// A test calls [Start] and talks to the App; everything it started is stopped with the test.
package orchtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orchestrator/internal/app"
	"orchestrator/session"
)

// Config says what the App of a test is like.
type Config struct {
	// Script is the model's, in the format of llm/scripted. Required.
	Script string
	// Peers are the names of peers and the base URLs of their cards.
	Peers map[string]string
	// Dir is where the database is. Defaults to a folder of the test's. Two Starts with one Dir are two lives of one
	// product.
	Dir string
	// Memory keeps sessions in memory rather than on SQLite.
	Memory bool
	// Edit changes the config before it is used. May be nil.
	Edit func(*app.Config)
}

// Start runs an App until the test ends, or until stop stops it as a signal would. stop may be called twice.
func Start(t testing.TB, c Config) (a *app.App, stop func()) {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	var peers strings.Builder
	peers.WriteString("peers:\n")
	for name, url := range c.Peers {
		fmt.Fprintf(&peers, "  - {name: %s, card: %q}\n", name, url)
	}
	if len(c.Peers) == 0 {
		peers.Reset()
	}
	for name, text := range map[string]string{"script.yaml": c.Script, "peers.yaml": peers.String()} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := app.Config{
		Dir: c.Dir, DataDir: c.Dir, PeersFile: "peers.yaml", Getenv: func(string) string { return "" },
		Store:  app.StoreConfig{Synchronous: app.SynchronousNormal},
		Models: []app.ModelConfig{{Name: "script", Provider: app.ProviderScripted, Script: "script.yaml"}},
	}
	if c.Memory {
		cfg.Store.Driver = app.DriverMemory
	}
	if c.Edit != nil {
		c.Edit(&cfg)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, err := app.New(t.Context(), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop the app: %v", err)
		}
	}
	t.Cleanup(stop)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, stop
}

// Ask opens a session, submits the input, waits until the session is quiescent, and returns its log.
func Ask(t testing.TB, a *app.App, input string) []session.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id, err := a.Manager.Open(ctx, session.OpenRequest{Agent: a.Config().Primary})
	if err != nil {
		t.Fatal(err)
	}
	turn, err := a.Manager.Submit(ctx, session.SubmitRequest{Session: id, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Manager.WaitQuiescent(ctx, id, turn); err != nil {
		t.Fatalf("session %s is not quiescent: %v\n%s", id, err, Dump(Log(t, a, id)))
	}
	return Log(t, a, id)
}

// Log returns all events of a session.
func Log(t testing.TB, a *app.App, id session.ID) []session.Event {
	t.Helper()
	events, err := a.Manager.Store().Events(t.Context(), session.EventQuery{Tree: id, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Dump is a log for a failure message, an event a line.
func Dump(events []session.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%d %s %s %s %s\n", e.Seq, e.Type, e.AgentID, e.ToolCallID, e.Data)
	}
	return b.String()
}

// LastMessage returns the text of the root's last message.
func LastMessage(t testing.TB, events []session.Event) string {
	t.Helper()
	text := ""
	for _, e := range events {
		var m session.Message
		if e.Root && e.Type == session.EventMessageCompleted {
			if err := e.Decode(&m); err != nil {
				t.Fatal(err)
			}
			if m.Role == session.RoleAssistant {
				text = m.Text
			}
		}
	}
	return text
}
