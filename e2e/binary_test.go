package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds what a test waits for. Nothing takes nearly as long, unless it hangs.
const patience = 30 * time.Second

// place is a folder in which the product's binary is run, with an environment of its own.
type place struct {
	t   *testing.T
	dir string
	env []string
}

// newPlace makes a folder with a home in it that is empty.
func newPlace(t *testing.T, env ...string) *place {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return &place{t: t, dir: dir, env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, env...)}
}

// write puts a file into the folder and returns its path.
func (p *place) write(name, text string) string {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// run runs the product to its end.
func (p *place) run(args ...string) *process {
	p.t.Helper()
	run := p.start(args...)
	run.end()
	return run
}

// ok runs the product to its end, which must be a good one, and returns its standard output.
func (p *place) ok(args ...string) string {
	p.t.Helper()
	run := p.run(args...)
	run.exits(0)
	return run.stdout.String()
}

// start starts the product.
func (p *place) start(args ...string) *process {
	p.t.Helper()
	binary, err := buildOrchestrator()
	if err != nil {
		p.t.Fatal(err)
	}
	return p.startCommand(exec.Command(binary, args...))
}

// startCommand starts a command in a process group of its own.
func (p *place) startCommand(cmd *exec.Cmd) *process {
	p.t.Helper()
	run := &process{t: p.t, what: strings.Join(cmd.Args, " "), cmd: cmd, stdout: newTranscript(), stderr: newTranscript(), over: make(chan struct{})}
	cmd.Dir, cmd.Env = p.dir, p.env
	if cmd.Stdout == nil {
		cmd.Stdout = run.stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = run.stderr
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if !cmd.SysProcAttr.Setsid {
		cmd.SysProcAttr.Setpgid = true
	}
	cmd.WaitDelay = 3 * time.Second // a child that lives on would keep the output open
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(run.over)
		run.err = cmd.Wait()
	})
	p.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // nothing is left of it, if all went well
		wg.Wait()
	})
	return run
}

// process is one run of the product.
type process struct {
	t      *testing.T
	what   string
	cmd    *exec.Cmd
	stdout *transcript
	stderr *transcript
	over   chan struct{} // closed when it has ended; then err is set
	err    error
}

// end waits for the end of the process and checks that it leaves no other running.
func (p *process) end() {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.over:
	case <-timer.C:
		p.t.Fatalf("%s does not end\n%s", p.what, p.said())
	}
	if errors.Is(p.err, exec.ErrWaitDelay) {
		p.t.Errorf("%s has ended, but somebody has its output open", p.what)
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("%s has ended, but a process it started has not (%v)", p.what, err)
	}
}

// exits ends the test unless the process has ended with the exit code.
func (p *process) exits(want int) {
	p.t.Helper()
	p.end()
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Fatalf("%s ends with exit code %d (%v), want %d\n%s", p.what, got, p.cmd.ProcessState, want, p.said())
	}
}

// signal sends the process a signal.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: send %v: %v\n%s", p.what, s, err, p.said())
	}
}

// prints ends the test unless a text is printed in time.
func (p *process) prints(out *transcript, text string) {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	over := p.over
	for {
		said, changed := out.read()
		if strings.Contains(said, text) {
			return
		}
		select {
		case <-changed:
		case <-over:
			over = nil // look once more: nothing comes any more
			if said, _ = out.read(); !strings.Contains(said, text) {
				p.t.Fatalf("%s has ended without printing %q\n%s", p.what, text, p.said())
			}
		case <-timer.C:
			p.t.Fatalf("%s does not print %q\n%s", p.what, text, p.said())
		}
	}
}

// said is the end of what it printed.
func (p *process) said() string {
	end := func(t *transcript) string {
		text := t.String()
		return text[max(0, len(text)-4000):]
	}
	return "standard output:\n" + end(p.stdout) + "\nstandard error:\n" + end(p.stderr)
}

// transcript is what a process prints, as it comes.
type transcript struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed and renewed with every write
}

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

// Write implements io.Writer.
func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
	return t.text.Write(b)
}

func (t *transcript) read() (text string, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String(), t.changed
}

// String returns all that was printed.
func (t *transcript) String() string {
	text, _ := t.read()
	return text
}

// inOrder reports the first of the texts that does not stand behind the one before it, or "".
func inOrder(text string, parts ...string) string {
	for _, part := range parts {
		_, after, found := strings.Cut(text, part)
		if !found {
			return part
		}
		text = after
	}
	return ""
}

// until asks again and again until a condition holds.
func until(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it does not come to that")
		}
	}
}
