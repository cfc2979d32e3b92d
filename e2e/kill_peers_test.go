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
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// peerEnv holds the config of the peer that this test binary is to be instead of running tests.
const peerEnv = "E2E_PEER"

func TestMain(m *testing.M) {
	if config, ok := os.LookupEnv(peerEnv); ok {
		if err := servePeer(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(builtIn); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

// peerSetup is what a peer process is told to be.
type peerSetup struct {
	Name, Journal      string
	Dedup              bool
	MinDelay, MaxDelay time.Duration
	Seed               uint64
	Messages           float64
	Tasks              string // a file for its tasks; empty: they are in memory
	Held               bool   // it answers nothing until it is told to
	Broker             string // the URL of the broker where its queue is; empty: it is asked over HTTP
}

// release is what a held peer is told.
const release = "release"

// servePeer is a peer until its standard input ends, which it does at the latest with the test's process.
func servePeer(config string) error {
	var s peerSetup
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		return fmt.Errorf("read %s: %w", peerEnv, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gate := a2atest.NewGate()
	c := a2atest.ProcessConfig{
		Name: s.Name, Journal: s.Journal, Dedup: s.Dedup, MinDelay: s.MinDelay, MaxDelay: s.MaxDelay, Seed: s.Seed, Messages: s.Messages,
		Tasks: s.Tasks,
	}
	if s.Held {
		c.Gate = gate
	}
	ready := func(where string) {
		fmt.Println(where)
		go func() { // nobody waits for it: the process ends with it
			defer cancel()
			for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
				if lines.Text() == release {
					gate.Open()
				}
			}
		}()
	}
	c.Ready = ready
	if s.Broker != "" {
		c.URL, c.Binding = queueURL(s.Name), a2a.BindingAMQP
		c.Serve = func(ctx context.Context, p *a2atest.Peer) error { return serveQueue(ctx, s, p, ready) }
	}
	return a2atest.ServePeer(ctx, c)
}

// peer is a peer that is a process of its own.
type peer struct {
	t     *testing.T
	setup peerSetup
	url   string // of its card, or its queue

	cmd   *exec.Cmd // nil: it doesn't run
	stdin io.WriteCloser
}

// newPeer makes a peer that is to be started.
func newPeer(t *testing.T, s peerSetup) *peer {
	p := &peer{t: t, setup: s}
	t.Cleanup(func() {
		if p.cmd == nil {
			return
		}
		if err := p.stdin.Close(); err != nil {
			t.Errorf("stop peer %s: %v", s.Name, err)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("peer %s: %v", s.Name, err)
		}
	})
	return p
}

// start starts the peer's process and returns when it serves.
func (p *peer) start() {
	p.t.Helper()
	config, err := json.Marshal(p.setup)
	if err != nil {
		p.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), peerEnv+"="+string(config))
	cmd.Stderr = p.t.Output()
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd = cmd
	where, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.t.Fatalf("peer %s says nothing: %v", p.setup.Name, err)
	}
	p.url = strings.TrimSpace(where)
}

// release lets a held peer answer.
func (p *peer) release() {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, release); err != nil {
		p.t.Fatalf("release peer %s: %v", p.setup.Name, err)
	}
}

// kill kills the peer's process.
func (p *peer) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("kill peer %s: %v", p.setup.Name, err)
	}
	p.stdin.Close()
	_ = p.cmd.Wait() // it was killed
	p.cmd = nil
}

// record returns what the peer wrote down.
func (p *peer) record() []a2atest.Entry {
	p.t.Helper()
	entries, err := a2atest.ReadJournal(p.setup.Journal)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return entries
}
