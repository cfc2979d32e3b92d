package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// fullDisk makes a session on a small file system and asks for an answer for which there is no room; fills the rest
// of it, asks again, looks at what is there, makes room, and goes on. Every run's exit code stands on standard output.
const fullDisk = `
set -e
mount -t tmpfs -o size=6m,mode=700 tmpfs data
run() { echo "== $1"; shift; code=0; "$@" --config orchestrator.yaml || code=$?; echo "exit code $code"; }
fill() { cat /dev/zero >>data/ballast 2>/dev/null || true; }
run "with room" "$0" ask hello
fill
truncate -s -131072 data/ballast
run "without enough" "$0" ask much
fill
run "with none" "$0" ask again
run "with none, to look" "$0" sessions list
rm data/ballast
run "with room again" "$0" ask 'once more'
id=$("$0" sessions list --config orchestrator.yaml -o json | sed -n 's/.*"id":"\([^"]*\)".*"title":"much".*/\1/p')
run "with room, to go on" "$0" ask 'and more' --session "$id"
`

// alone returns a command that runs a script on the binary ($0) where it may mount file systems. They are mounted where
// nobody else sees them, and go with the last process there.
func alone(t *testing.T, p *place, binary, script string) *exec.Cmd {
	t.Helper()
	command := func(script string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", script, binary)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		return cmd
	}
	try := command("mount -t tmpfs tmpfs data")
	try.Dir = p.dir
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("a file system of one's own can't be mounted here: %v %s", err, out)
	}
	return command(script)
}

// readOnlyDisk makes a session, and lets every command have its try once the file system is read-only. Then it goes on.
const readOnlyDisk = `
set -e
mount -t tmpfs -o size=20m,mode=700 tmpfs data
run() { echo "== $*"; code=0; "$0" "$@" --config orchestrator.yaml || code=$?; echo "exit code $code"; }
run ask hello
mount -o remount,ro data
run serve
run ask again
run sessions list
run calls list
run sessions close s_1
run keys create me
run backup copy.db
mount -o remount,rw data
run ask 'once more'
`

func TestBadInputOfAReadOnlyFileSystemIsToldAndReadingGoesOn(t *testing.T) {
	t.Parallel()
	binary, err := buildOrchestrator()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := scripted(t)
	if err := os.Mkdir(p.dir+"/data", 0o700); err != nil {
		t.Fatal(err)
	}
	run := p.startCommand(alone(t, p, binary, readOnlyDisk))
	run.exits(0)
	parts := strings.Split(run.stdout.String(), "== ")[1:]
	for i, want := range []struct{ run, says, code string }{
		{"ask hello", "You said hello.", "0"},
		{"serve", "", "2"},
		{"ask again", "", "2"},
		{"sessions list", "hello", "0"},
		{"calls list", "no calls", "0"},
		{"sessions close s_1", "", "2"},
		{"keys create me", "", "1"},
		{"backup copy.db", "is a copy of", "0"},
		{"ask once more", "You said once more.", "0"},
	} {
		if i >= len(parts) || !strings.HasPrefix(parts[i], want.run+"\n") || !strings.Contains(parts[i], want.says) || !strings.HasSuffix(parts[i], "exit code "+want.code+"\n") {
			t.Fatalf("%s does not say %q and end with exit code %s\n%s", want.run, want.says, want.code, run.said())
		}
	}
	said := run.stderr.String()
	for words, want := range map[string]int{"read-only file system": 4, "set data_dir or store.path to a place that can be written": 3} {
		if n := strings.Count(said, words); n != want {
			t.Errorf("standard error says %q %d times, want %d times:\n%s", words, n, want, said)
		}
	}
}

func TestBadInputOfAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	binary, err := buildOrchestrator()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := scripted(t)
	much := strings.Repeat("word ", 60_000)
	p.write("script.yaml", fmt.Sprintf("agents: [{name: primary, rules: [{match: ^much$, text: %q}, {match: .+, text: You said $0.}]}]\n", much))
	if err := os.Mkdir(p.dir+"/data", 0o700); err != nil {
		t.Fatal(err)
	}
	run := p.startCommand(alone(t, p, binary, fullDisk))
	run.exits(0)
	parts := strings.Split(run.stdout.String(), "== ")[1:]
	runs := []struct {
		code string
		says []string
	}{
		{"0", []string{"You said hello."}},
		{"1", nil},
		{"1", nil},
		{"0", []string{"hello", "much"}},
		{"0", []string{"You said once more."}},
		{"0", []string{much[:1000], "You said and more."}},
	}
	if len(parts) != len(runs) {
		t.Fatalf("%d runs, want %d\n%s", len(parts), len(runs), run.said())
	}
	for i, want := range runs {
		if !strings.HasSuffix(parts[i], "exit code "+want.code+"\n") {
			t.Errorf("run %d (%s) does not end with exit code %s\n%s", i, end(parts[i]), want.code, run.said())
		}
		for _, words := range want.says {
			if !strings.Contains(parts[i], words) {
				t.Errorf("run %d (%s) does not print %q", i, end(parts[i]), words)
			}
		}
	}
	said := run.stderr.String()
	for _, words := range []string{"orchestrator: no space is left for the database", "make room on the disk; nothing of what was written before is lost"} {
		if n := strings.Count(said, words); n != 2 {
			t.Errorf("standard error says %q %d times, want twice:\n%s", words, n, said)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "SIGBUS") {
		t.Errorf("standard error shows insides:\n%s", said)
	}
}

// end is the end of a text.
func end(text string) string { return text[max(0, len(text)-200):] }
