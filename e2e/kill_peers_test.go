package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

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

// servePeer is a peer until its standard input ends, which it does at the latest with the test's process.
func servePeer(config string) error {
	var c a2atest.ProcessConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return fmt.Errorf("read %s: %w", peerEnv, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.Ready = func(url string) {
		fmt.Println(url)
		go func() { // nobody waits for it: the process ends with it
			_, _ = io.Copy(io.Discard, os.Stdin) // any end of it is the end
			cancel()
		}()
	}
	return a2atest.ServePeer(ctx, c)
}

// peer is a peer that is a process of its own.
type peer struct {
	name    string
	url     string
	journal string
}

// startPeer starts a process that is a peer until the test ends.
func startPeer(t *testing.T, dir string, c a2atest.ProcessConfig) peer {
	t.Helper()
	c.Journal = filepath.Join(dir, c.Name+".journal")
	config, err := json.Marshal(struct {
		Name, Journal      string
		Dedup              bool
		MinDelay, MaxDelay time.Duration
		Seed               uint64
		Messages           float64
	}{c.Name, c.Journal, c.Dedup, c.MinDelay, c.MaxDelay, c.Seed, c.Messages})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), peerEnv+"="+string(config))
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stdin.Close(); err != nil {
			t.Errorf("stop peer %s: %v", c.Name, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("peer %s: %v", c.Name, err)
		}
	})
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("peer %s says nothing: %v", c.Name, err)
	}
	return peer{name: c.Name, url: strings.TrimSpace(url), journal: c.Journal}
}
