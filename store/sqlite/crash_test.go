package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/session"
	"orchestrator/store/sqlite"
)

// The environment that makes the test binary a child process with a role.
const (
	childRole = "SQLITE_TEST_ROLE"
	childPath = "SQLITE_TEST_PATH"
)

// runChild is a process that opens the database, says so, and commits until it is killed (the role is the value of
// Synchronous) or stays as it is ("hold").
func runChild(role, path string) int {
	cfg := sqlite.Config{Path: path}
	if role != "hold" {
		cfg.Synchronous = role
	}
	s, err := sqlite.Open(context.Background(), cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	if role == "hold" {
		_, err := io.Copy(io.Discard, os.Stdin)
		fmt.Fprintln(os.Stderr, "nobody killed this process", err)
		return 1
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				if err := commitAndTell(s, i); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return 1
}

// commitAndTell makes one commit of a record and two events that name it, to the worker's tree, and acknowledges it.
func commitAndTell(s *sqlite.Store, worker int) error {
	tree, key := session.ID(fmt.Sprintf("s_%d", worker)), session.NewMessageID()
	b := session.Batch{Tree: tree, Changes: []session.Change{insert(key)}}
	for range 2 {
		b.Events = append(b.Events, session.Scope{Root: tree, Agent: tree}.Event(session.EventToolStarted, key))
	}
	done, err := s.Commit(context.Background(), b)
	if errors.Is(err, session.ErrNotFound) {
		b.Create = true
		done, err = s.Commit(context.Background(), b)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s %s %d\n", tree, key, done.Events[1].Seq)
	return err
}

// startChild starts a child process and returns when it has the database open.
func startChild(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("the child says %q, %v", lines.Text(), errors.Join(lines.Err(), cmd.Wait()))
	}
	return cmd, lines
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

func TestKilledProcessLosesNothingItAcknowledged(t *testing.T) {
	for _, synchronous := range []string{"full", "normal"} {
		t.Run(synchronous, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			acks := 0
			for kills := range 5 {
				cmd, lines := startChild(t, synchronous, path)
				acked := make(map[string]uint64)
				for n := 0; lines.Scan(); n++ {
					var tree, key string
					var seq uint64
					if _, err := fmt.Sscan(lines.Text(), &tree, &key, &seq); err != nil {
						continue // cut off by the kill
					}
					acked[tree+" "+key] = seq
					if n == 20+13*kills {
						kill(t, cmd)
					}
				}
				if err := cmd.Wait(); err == nil {
					t.Fatal("the child ended by itself")
				}
				acks += len(acked)
				verify(t, path, acked)
			}
			t.Logf("acknowledged=%d", acks)
		})
	}
}

// verify checks that a database has all that was acknowledged, each commit whole, and no gap.
func verify(t *testing.T, path string, acked map[string]uint64) {
	t.Helper()
	s := open(t, sqlite.Config{Path: path})
	defer shut(t, s)
	trees, err := s.Trees(t.Context(), 0)
	if err != nil || len(trees) == 0 {
		t.Fatalf("Trees() = %v, %v", trees, err)
	}
	found := make(map[string]uint64)
	for _, tree := range trees {
		events, err := s.Events(t.Context(), session.EventQuery{Tree: tree.ID, Limit: 1_000_000})
		if err != nil {
			t.Fatal(err)
		}
		records, err := s.Records(t.Context(), session.RecordQuery{Tree: tree.ID})
		if err != nil {
			t.Fatal(err)
		}
		if uint64(len(events)) != tree.HeadSeq || len(events) != 2*len(records) {
			t.Errorf("tree %s has head %d, %d events and %d records", tree.ID, tree.HeadSeq, len(events), len(records))
		}
		for i, e := range events {
			if e.Seq != uint64(i+1) {
				t.Fatalf("event %d has seq %d", i+1, e.Seq)
			}
			var key string
			if err := e.Decode(&key); err != nil {
				t.Fatal(err)
			}
			found[string(tree.ID)+" "+key] = e.Seq
		}
		for _, r := range records {
			if _, ok := found[string(tree.ID)+" "+r.Key]; !ok {
				t.Errorf("record %s has no event", r.Key)
			}
		}
	}
	for key, seq := range acked {
		if found[key] != seq {
			t.Errorf("%s was acknowledged with seq %d, it has %d", key, seq, found[key])
		}
	}
}

func TestSecondProcessIsToldWhoHasTheDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	cmd, _ := startChild(t, "hold", path)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, link} {
		_, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		locked, ok := errors.AsType[*sqlite.LockedError](err)
		if !ok || locked.PID != cmd.Process.Pid || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", cmd.Process.Pid)) {
			t.Errorf("Open() beside process %d = %v, want a LockedError that names it", cmd.Process.Pid, err)
		}
	}
	ro := open(t, sqlite.Config{Path: path, ReadOnly: true})
	if _, err := ro.Trees(t.Context(), 0); err != nil {
		t.Errorf("Trees() beside a running process = %v", err)
	}
	shut(t, ro)
	kill(t, cmd)
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	s := open(t, sqlite.Config{Path: path}) // a dead process holds no lock
	_, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if locked, ok := errors.AsType[*sqlite.LockedError](err); !ok || locked.PID != os.Getpid() {
		t.Errorf("Open() of what this process has open = %v, want a LockedError that names it", err)
	}
	shut(t, s)
	tree := func() session.ID {
		s := open(t, sqlite.Config{Path: path})
		defer shut(t, s)
		return newTree(t, s)
	}()
	if info, err := open(t, sqlite.Config{Path: path}).Tree(t.Context(), tree); err != nil || time.Since(info.Created) > time.Hour {
		t.Errorf("Tree() = %+v, %v", info, err)
	}
}
