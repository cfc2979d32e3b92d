package e2e_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"orchestrator/a2a/a2atest"
)

// terminal returns a pseudo-terminal: what is written to the end a program gets, and a transcript of what it shows. read
// closes it and waits until all that was written to it is in the transcript; whoever else has it open must have ended.
func terminal(t *testing.T, columns, lines uint16) (tty *os.File, shown *transcript, read func()) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals here: %v", err)
	}
	shown = newTranscript()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(shown, master) }) // it ends with an error, once nobody has the other end open
	read = func() {
		_ = tty.Close() // again, at the end
		wg.Wait()
	}
	t.Cleanup(func() {
		read()
		if err := master.Close(); err != nil {
			t.Error(err)
		}
	})
	return tty, shown, read
}

func TestAskOnATerminalShowsTheWordsAsTheyComeAboveTheTree(t *testing.T) {
	for name, tt := range map[string]struct {
		env    []string
		colour bool
		tree   bool
	}{
		"in colour":          {env: []string{"TERM=xterm-256color"}, colour: true, tree: true},
		"without colour":     {env: []string{"TERM=xterm-256color", "NO_COLOR=1"}, tree: true},
		"on a dumb terminal": {env: []string{"TERM=dumb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newInquiry(t)
			q.speak, q.release = newGate(), true
			tty, shown, read := terminal(t, 100, 30)
			p := q.place(append(q.environment(), tt.env...)...)
			binary, err := buildOrchestrator()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(binary, "ask", asked)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			run := p.startCommand(cmd)
			run.stdout = shown
			run.prints(shown, strings.TrimSpace(firstWords))
			if said := shown.String(); strings.Contains(said, "people") {
				t.Errorf("words are shown that the model holds back:\n%q", said)
			}
			if tt.tree {
				run.prints(shown, "primary") // the tree's root
			}
			q.speak.open()
			run.exits(0)
			read()
			said := shown.String()
			if missing := inOrder(said, firstAnswer, secondAnswer, withAdvice, withArchive); missing != "" {
				t.Errorf("the terminal does not show %q where it belongs:\n%q", missing, said)
			}
			if got := strings.Contains(said, "\x1b[1m"); got != tt.colour {
				t.Errorf("bold text is used: %t, want %t:\n%q", got, tt.colour, said)
			}
			if got := strings.Contains(said, "\x1b["); got != tt.tree {
				t.Fatalf("the screen is redrawn: %t, want %t:\n%q", got, tt.tree, said)
			}
			if tt.tree {
				last := said[strings.LastIndex(said, "\x1b[J"):]
				if strings.Contains(last, "├─") || strings.Contains(last, "└─") {
					t.Errorf("the tree is left on the screen:\n%q", last)
				}
			}
		})
	}
}

func TestWhatTakesLongIsShownOnATerminalAndTakenAwayAgain(t *testing.T) {
	t.Parallel()
	gate := a2atest.NewGate()
	peer := a2atest.New(t, a2atest.Config{Name: "painter", Script: func(x *a2atest.Exchange) {
		x.Wait(gate)
		x.State(a2atest.Completed, "a wall")
	}})
	p := newPlace(t, "TERM=xterm-256color")
	p.write("peers.yaml", fmt.Sprintf("peers:\n  - {name: painter, card: %q}\n", peer.URL()))
	binary, err := buildOrchestrator()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "peers", "call", "painter", "paint")
	tty, shown, read := terminal(t, 100, 30)
	cmd.Stderr = tty
	run := p.startCommand(cmd)
	run.prints(shown, "asking painter … 1s")
	run.prints(shown, "… 2s")
	gate.Open()
	run.exits(0)
	read()
	if said := shown.String(); !strings.HasSuffix(said, "s\r\x1b[K") {
		t.Errorf("the line is left on the terminal:\n%q", said)
	}
	if first, _, _ := strings.Cut(shown.String(), "…"); first != "\r\x1b[Kasking painter " {
		t.Errorf("it begins with %q", first)
	}
	if got := run.stdout.String(); got != "a wall\n" {
		t.Errorf("standard output is %q, want the answer alone", got)
	}
}
