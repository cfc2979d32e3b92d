package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/tracker"
)

// restartAim is how long a start may take until the last call is followed again, in seconds.
const restartAim = 2

// perSession is how many calls one session has open: as many as the guard and the slots of one tree let it.
const perSession = 4

// measureRestart measures the time from opening the database of a process that is gone until every call it left open is
// followed again: the whole product, stopped while the calls were open.
func measureRestart(ctx context.Context, b *bench) error {
	b.table.head("Restart with open calls, until the peer has every subscription again (sqlite full, %d calls a session)", perSession)
	for _, tool := range []string{"invoke_agent", "spawn_subagent"} {
		took, err := restart(ctx, b, tool)
		if err != nil {
			return fmt.Errorf("%s: %w", tool, err)
		}
		what := "asynchronous calls of primaries"
		if tool == "spawn_subagent" {
			what = "blocking calls, each of a subagent"
		}
		b.table.add(figure{
			Part: "restart", Name: fmt.Sprintf("%s %s", number(float64(b.sizes.open)), what), Value: took.Seconds(), Unit: "s", Aim: restartAim,
		})
	}
	return nil
}

// script makes a primary use the tool perSession times and stop, and a subagent ask the holder.
func script(tool string) string {
	args := fmt.Sprintf("{agent_name: %s, message: %q}", holder, question)
	var s strings.Builder
	s.WriteString("agents:\n  - name: primary\n    rules:\n      - position: 0\n        text: I ask.\n        tool_calls:\n")
	for range perSession {
		use := args
		if tool == "spawn_subagent" {
			use = "{description: asks, prompt: ask the holder}"
		}
		fmt.Fprintf(&s, "          - {name: %s, args: %s}\n", tool, use)
	}
	s.WriteString("      - text: I have asked.\n")
	fmt.Fprintf(&s, "  - name: subagent\n    rules:\n      - position: 0\n        tool_calls:\n          - {name: invoke_agent, args: %s}\n      - text: done\n", args)
	return s.String()
}

func restart(ctx context.Context, b *bench, tool string) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(b.dir, "restart-")
	if err != nil {
		return 0, err
	}
	url := b.peers.url(holder)
	for name, text := range map[string]string{
		"script.yaml": script(tool),
		"peers.yaml":  fmt.Sprintf("peers:\n  - {name: %s, card: %q}\n", holder, url),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return 0, err
		}
	}
	n := b.sizes.open
	cfg := app.Config{
		Dir: dir, DataDir: dir, Getenv: func(string) string { return "" },
		Models:    []app.ModelConfig{{Name: "script", Provider: app.ProviderScripted, Script: "script.yaml"}},
		Subagents: app.SubagentsConfig{ProcessRunning: n, Alive: n},
	}
	first, err := app.New(ctx, cfg, nil)
	if err != nil {
		return 0, err
	}
	err = func() error {
		if err := first.Start(ctx); err != nil {
			return err
		}
		for range n / perSession {
			id, err := first.Manager.Open(ctx, session.OpenRequest{Agent: "primary"})
			if err != nil {
				return err
			}
			if _, err := first.Manager.Submit(ctx, session.SubmitRequest{Session: id, Input: "ask"}); err != nil {
				return err
			}
		}
		if err := waitHeld(ctx, url, func(h holding) bool { return h.Sent == int64(n) }); err != nil {
			return err
		}
		return waitTasks(ctx, first.Calls, n)
	}()
	if err := errors.Join(err, first.Stop(ctx)); err != nil {
		return 0, err
	}
	if err := waitHeld(ctx, url, func(h holding) bool { return h == holding{} }); err != nil {
		return 0, err
	}

	began := time.Now()
	second, err := app.New(ctx, cfg, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, second.Stop(context.WithoutCancel(ctx))) }()
	if err := second.Start(ctx); err != nil {
		return 0, err
	}
	if err := waitHeld(ctx, url, func(h holding) bool { return h.Subscribed == int64(n) }); err != nil {
		return 0, err
	}
	took = time.Since(began)
	want := tracker.StateOpen
	if tool == "spawn_subagent" {
		want = tracker.StateWaiting
	}
	calls, err := second.Calls.List(ctx, session.RecordQuery{States: []session.State{want}})
	if err == nil && len(calls) != n {
		err = fmt.Errorf("%d of %d calls are %s after the restart", len(calls), n, want)
	}
	return took, err
}
