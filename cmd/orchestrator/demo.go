package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"orchestrator/a2a/a2ademo"
	"orchestrator/configs"
	"orchestrator/session"
)

const (
	demoInput = "Should our town's ferry be electric by next spring? Find out and plan it."
	// demoGrace is how long after its caller's deadline the archivist answers: time for the others to be done before.
	demoGrace = 3 * time.Second
	// demoLate bounds the wait for it.
	demoLate = 20 * time.Second
)

// demoBroker is where the broker of demo --queue is looked for.
const demoBroker = "amqp://guest:guest@127.0.0.1:5672/"

type demoFlags struct {
	crash  bool
	queue  bool
	broker string
}

func (c *cli) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play the whole story offline: subagents, peers, a late answer; --crash kills it in the middle",
		Long: `demo runs the product with a scripted model and two peers, each a process of its own: three subagents share two slots;
one asks the advisor and waits; one asks the archivist, waits in vain and goes on; the primary asks without waiting. All
results come home, the archivist's late. It needs no network and no key, and leaves nothing behind.

--crash runs it in a child process, kills that while calls are open, and goes on with another on the same database.

--queue puts the peers behind queues of a RabbitMQ, which has to be there. The queues are deleted at the end.`,
		Example: `  orchestrator demo
  orchestrator demo --crash -o json > events.jsonl
  orchestrator demo --queue --broker amqp://guest:guest@127.0.0.1:5672/`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("broker") && !f.queue {
				return usageError{errors.New("--broker goes with --queue")}
			}
			return c.demo(cmd.Context(), f)
		},
	}
	cmd.Flags().BoolVar(&f.crash, "crash", false, "kill the orchestrator while calls are open, and start it again")
	cmd.Flags().BoolVar(&f.queue, "queue", false, "ask the peers through a RabbitMQ")
	cmd.Flags().StringVar(&f.broker, "broker", "", "the URL of that RabbitMQ (default $AMQP_URL, else "+demoBroker+")")
	return cmd
}

// demoBrokerEnv tells a peer of the demonstration its broker, whose URL holds a password.
const demoBrokerEnv = "ORCHESTRATOR_DEMO_BROKER"

// demoPeerCommand is a peer of the demonstration, in a process of its own.
func (c *cli) demoPeerCommand() *cobra.Command {
	var queue string
	cmd := &cobra.Command{
		Use: "demo-peer NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilInputEnds(cmd.Context())
			defer stop()
			cfg := a2ademo.Config{Name: args[0], Grace: demoGrace, Ready: func(url string) { fmt.Fprintln(c.stdout, url) }}
			if queue != "" {
				cfg.Broker, cfg.Queue = os.Getenv(demoBrokerEnv), queue
			}
			return a2ademo.Serve(ctx, cfg)
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "take requests from this queue")
	return cmd
}

// demoRunCommand is one life of the demonstration's orchestrator. It prints all events, the ephemeral ones too.
func (c *cli) demoRunCommand() *cobra.Command {
	var id string
	var after uint64
	cmd := &cobra.Command{
		Use: "demo-run", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilInputEnds(cmd.Context())
			defer stop()
			return c.playDemo(ctx, c.configFile, id, after, &eventShower{w: c.stdout})
		},
	}
	cmd.Flags().StringVar(&id, "session", "", "go on with this session")
	cmd.Flags().Uint64Var(&after, "after", 0, "print events after this seq")
	return cmd
}

// untilInputEnds returns a context that also ends when standard input does: with whoever started us.
func untilInputEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process, which is all there is to wait for
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is what matters, not why
		cancel()
	}()
	return ctx, cancel
}

// eventShower prints every event, one envelope a line.
type eventShower struct {
	w   io.Writer
	err error
}

func (s *eventShower) Event(e session.Event, _ time.Time) {
	if s.err == nil {
		s.err = printJSON(s.w, e)
	}
}

func (s *eventShower) Tick(time.Time)         {}
func (s *eventShower) Note(string, time.Time) {}
func (s *eventShower) Failed() error          { return s.err }

// teller shows the demonstration and remembers of it what the end needs.
type teller struct {
	shower
	seq    uint64
	root   session.ID
	failed string
	board  *board
}

func (t *teller) Event(e session.Event, now time.Time) {
	t.shower.Event(e, now)
	if e.Type.Ephemeral() {
		return
	}
	t.board.apply(e)
	t.seq, t.root = max(t.seq, e.Seq), e.SessionID
	if e.Type == session.EventTurnFailed {
		t.failed = decode[session.TurnEnded](e).Error
	}
}

func (c *cli) demo(ctx context.Context, f demoFlags) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "orchestrator-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var q *demoQueues
	if f.queue {
		if q, err = newDemoQueues(ctx, f.broker); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, q.forget(ctx)) }()
	}
	var replace []string
	for i, name := range []string{a2ademo.Advisor, a2ademo.Archivist} {
		peer, url, err := startPeer(ctx, c.stderr, name, q)
		if err != nil {
			return err
		}
		defer peer.stop()
		card := fmt.Sprintf("http://127.0.0.1:%d", 8431+i)
		if q != nil {
			replace = append(replace, "card: "+card, "queue: "+q.of(name))
		} else {
			replace = append(replace, card, url)
		}
	}
	if err := writeDemo(dir, strings.NewReplacer(replace...)); err != nil {
		return err
	}
	if q != nil {
		if err := q.configure(dir); err != nil {
			return err
		}
	}

	t := &teller{shower: &jsonShower{w: c.stdout}, board: newBoard()}
	var v *view
	if c.output == outputText {
		v = c.newView(true)
		t.shower = v
	}
	config := filepath.Join(dir, "orchestrator.yaml")
	if f.crash {
		err = c.demoLives(ctx, config, t)
	} else {
		err = c.playDemo(ctx, config, "", 0, t)
	}
	if v != nil {
		err = errors.Join(err, v.Close())
	}
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	if err == nil && t.failed != "" {
		err = fmt.Errorf("a turn of the demo failed: %s", t.failed)
	}
	if err == nil && v != nil {
		_, err = io.WriteString(c.stdout, t.summary(f.crash))
	}
	return err
}

// writeDemo puts the demonstration's files into a folder, with the peers' addresses.
func writeDemo(dir string, addresses *strings.Replacer) error {
	return fs.WalkDir(configs.Demo, "demo", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(configs.Demo, path)
		if err != nil {
			return err
		}
		if d.Name() == "peers.yaml" {
			data = []byte(addresses.Replace(string(data)))
		}
		if err := os.WriteFile(filepath.Join(dir, d.Name()), data, 0o600); err != nil {
			return fmt.Errorf("write the demo's files: %w", err)
		}
		return nil
	})
}

// playDemo runs the demonstration in this process until all is told: from the start, or a session that was begun.
func (c *cli) playDemo(ctx context.Context, config, id string, after uint64, show shower) (err error) {
	// The user's variables and flags are for the user's own orchestrator.
	cfg, _, err := loadConfig(config, []string{"HOME=" + filepath.Dir(config)}, pflag.NewFlagSet("demo", pflag.ContinueOnError))
	if err != nil {
		return err
	}
	log, err := c.logger(cfg, true)
	if err != nil {
		return configError{err}
	}
	a, stop, err := startApp(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fol := &localTurn{app: a, root: session.ID(id), late: demoLate}
	if id == "" {
		if fol.root, _, err = openSession(ctx, a, cfg, "", demoInput); err != nil {
			return err
		}
		if fol.turn, err = a.Manager.Submit(ctx, session.SubmitRequest{Session: fol.root, Input: demoInput}); err != nil {
			return storeError(err)
		}
	}
	open, err := follow(ctx, fol, show, after)
	if err != nil {
		return storeError(err)
	}
	if len(open) > 0 {
		return fmt.Errorf("%s has not answered within %s", open[0].peer, demoLate)
	}
	return nil
}

// demoLives runs the demonstration in a child process, kills that while calls are open, and runs another.
func (c *cli) demoLives(ctx context.Context, config string, t *teller) error {
	kill := func() bool {
		waiting := 0
		for _, call := range t.board.calls {
			if call.state == "waits" {
				waiting++
			}
		}
		running, alive := t.board.running()
		return waiting >= 2 && running >= 1 && alive == 3 // the third subagent has a slot that was lent
	}
	killed, err := c.demoLife(ctx, config, t, kill)
	if err != nil {
		return err
	}
	if !killed {
		return errors.New("the demo was over before two calls were open")
	}
	t.Note(fmt.Sprintf("\n*** killed with SIGKILL at event %d, with %s open; starting again on the same database ***\n",
		t.seq, count(len(t.board.calls), "call")), time.Now())
	_, err = c.demoLife(ctx, config, t, nil)
	return err
}

// demoLife runs one child process and shows its events, until it ends or kill says true.
func (c *cli) demoLife(ctx context.Context, config string, t *teller, kill func() bool) (killed bool, err error) {
	args := []string{"demo-run", "--config", config}
	if t.root != "" {
		args = append(args, "--session", string(t.root), "--after", strconv.FormatUint(t.seq, 10))
	}
	life, err := startChild(ctx, c.stderr, nil, args...)
	if err != nil {
		return false, err
	}
	defer life.stop()
	lines := make(chan session.Event)
	var readErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(lines)
		dec := json.NewDecoder(bufio.NewReaderSize(life.out, 64<<10))
		for {
			var e session.Event
			if err := dec.Decode(&e); err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // a killed process may end within a line
					readErr = err
				}
				return
			}
			lines <- e
		}
	})
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for more := true; more; {
		select {
		case e, ok := <-lines:
			if more = ok; !ok {
				break
			}
			t.Event(e, time.Now())
			if !killed && kill != nil && kill() {
				killed = true
				if err := life.cmd.Process.Kill(); err != nil {
					readErr = fmt.Errorf("kill the demo: %w", err)
				}
			}
		case now := <-tick.C:
			t.Tick(now)
		}
	}
	wg.Wait()
	err = life.cmd.Wait()
	switch {
	case readErr != nil:
		return killed, fmt.Errorf("read the demo's events: %w", readErr)
	case killed:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("the demo's process: %w", err)
	}
	return false, t.Failed()
}

// summary is the end of the demonstration, for a person.
func (t *teller) summary(crash bool) string {
	late := ""
	for _, call := range t.board.calls {
		if call.state == "folded" && call.mode == session.ModeBlocking {
			late = call.peer
		}
	}
	lives := "one process"
	next := "orchestrator demo --crash           the same, killed with SIGKILL while calls are open"
	if crash {
		lives = "two processes, the first of which was killed"
		next = `OPENAI_API_KEY=... orchestrator ask "..."       a question of yours, with a model of yours`
	}
	return fmt.Sprintf("\n%s shared two slots and asked two peers %d times, in %s and %d events.\n"+
		"%s answered after its caller had gone on, and its answer came home as a turn of its own.\n\nTry next:  %s\n",
		count(len(t.board.agents)-1, "subagent"), len(t.board.calls), lives, t.seq, late, next)
}

// child is a process of ours. It ends when its standard input does, so also when we are killed.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out io.Reader
}

// startChild runs this program with other arguments and further variables. It is killed when ctx ends.
func startChild(ctx context.Context, stderr io.Writer, env []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr, cmd.WaitDelay, cmd.Env = stderr, 5*time.Second, append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	return &child{cmd, in, out}, nil
}

// startPeer runs a peer of the demonstration and returns its address.
func startPeer(ctx context.Context, stderr io.Writer, name string, q *demoQueues) (*child, string, error) {
	var env []string
	args := []string{"demo-peer", name}
	if q != nil {
		env, args = []string{demoBrokerEnv + "=" + q.broker}, append(args, "--queue", q.of(name))
	}
	p, err := startChild(ctx, stderr, env, args...)
	if err != nil {
		return nil, "", err
	}
	url, err := bufio.NewReader(p.out).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, "", fmt.Errorf("the demo's peer %s doesn't start: %w", name, err)
	}
	return p, strings.TrimSpace(url), nil
}

// stop ends the process and waits for it. It may have ended by itself.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}
