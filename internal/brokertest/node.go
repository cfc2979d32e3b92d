package brokertest

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

//go:embed node.sh
var nodeScript string

// node is a RabbitMQ of this process.
type node struct {
	dir              string
	port, epmd, dist int

	cmd   *exec.Cmd // node.sh; nil: it doesn't run
	stdin io.Closer // at its end node.sh kills what is left
	group int       // process group of the node
}

// start starts the node and returns when it serves. In the end its folder is to "keep" or to "remove".
func (n *node) start(in string) error {
	server, err := serverScript()
	if err != nil {
		return err
	}
	if n.port != 0 {
		return n.launch(server, in) // it was up before: nobody else has its ports
	}
	for range 3 {
		if n.port, n.epmd, n.dist, err = freePorts(); err != nil {
			return err
		}
		if err = n.launch(server, in); err == nil {
			return nil
		}
		n.kill()
	}
	return err
}

func (n *node) launch(server, in string) error {
	cmd := exec.Command("bash", "-c", nodeScript, "node.sh", n.dir, strconv.Itoa(n.port), strconv.Itoa(n.epmd), strconv.Itoa(n.dist), in)
	cmd.Env = append(os.Environ(), "RABBITMQ_SERVER="+server)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is for the test, which ends the node
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd, n.stdin = cmd, stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("start a RabbitMQ: %w", err)
	}
	if n.group, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		return err
	}
	return n.serves()
}

// serves waits until the node serves.
func (n *node) serves() error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	s := n.service()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if n.gone() {
			return fmt.Errorf("the RabbitMQ does not start:\n%s", n.log())
		}
		conn, dialErr := net.DialTimeout("tcp", hostPort(s.url), time.Second)
		if dialErr != nil {
			err = dialErr
			continue
		}
		conn.Close()
		if _, err = s.eval("ok = rabbit:await_startup(), true = rabbit:is_running()"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the RabbitMQ does not start in %v: %w\n%s", patience, err, n.log())
}

// gone reports whether no process of the node is left.
func (n *node) gone() bool { return errors.Is(syscall.Kill(-n.group, 0), syscall.ESRCH) }

// kill kills all processes of the node, at once.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	if n.group > 0 {
		_ = syscall.Kill(-n.group, syscall.SIGKILL) // it may be dead
	}
	n.stdin.Close()
	_ = n.cmd.Wait() // it ends in no way worth telling
	n.cmd, n.group = nil, 0
}

// log is the end of what the node printed.
func (n *node) log() string {
	text, err := os.ReadFile(filepath.Join(n.dir, "log.txt"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

func (n *node) service() *service {
	return &service{
		url:  &url.URL{Scheme: "amqp", User: url.UserPassword("guest", "guest"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)), Path: "/"},
		node: fmt.Sprintf("node%d@localhost", n.port),
		env:  append(os.Environ(), "HOME="+n.dir, "ERL_EPMD_PORT="+strconv.Itoa(n.epmd)),
	}
}

// freePorts returns three ports that nobody listens on. They are below those the system gives to connections, so that
// none takes them while the node is down.
func freePorts() (a, b, c int, err error) {
	var ports []int
	for range 100 {
		port := 20000 + rand.IntN(12000)
		ln, listenErr := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if listenErr != nil {
			err = listenErr
			continue
		}
		ln.Close()
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		if len(ports) == 3 {
			return ports[0], ports[1], ports[2], nil
		}
	}
	return 0, 0, 0, fmt.Errorf("there are no free ports: %w", err)
}

// Broker is a RabbitMQ of a test's own, with the user guest. Its methods end the test when the broker doesn't do what it
// is told; they are not for concurrent use.
type Broker struct {
	t testing.TB
	n *node
}

// Start starts a broker that lives until the test is over. It takes some seconds, so tests that leave it whole share it.
func Start(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{t: t, n: &node{dir: t.TempDir()}}
	t.Cleanup(func() {
		b.n.kill()
		if t.Failed() {
			t.Logf("the broker %s says:\n%s", b.Addr(), b.n.log())
		}
	})
	if err := b.n.start("keep"); err != nil {
		t.Fatal(err)
	}
	s := b.n.service()
	services.Store(s.url.Host, s)
	return b
}

// URL is that of the virtual host "/".
func (b *Broker) URL() string { return b.n.service().url.String() }

// Addr is the host and port.
func (b *Broker) Addr() string { return b.n.service().url.Host }

// Vhost makes a virtual host, which is deleted when the test t is over, and returns its URL. The broker must be up then.
func (b *Broker) Vhost(t testing.TB) string {
	t.Helper()
	return b.n.service().vhost(t)
}

// Kill kills the broker with SIGKILL.
//
// RabbitMQ writes the names of new quorum queues down with half a second's delay, and a queue that is younger when the node
// is killed never has a leader again: it takes nothing, gives nothing and can't be declared, until somebody deletes it.
// Tests are not about that, so names are written down first.
func (b *Broker) Kill() {
	b.t.Helper()
	if b.n.cmd == nil {
		b.t.Fatal("the broker doesn't run")
	}
	b.Eval("[dets:sync(T) || T <- dets:all()], ok")
	b.n.kill()
}

// Stop stops the broker in its own time.
func (b *Broker) Stop() {
	b.t.Helper()
	if b.n.cmd == nil {
		b.t.Fatal("the broker doesn't run")
	}
	text, err := os.ReadFile(filepath.Join(b.n.dir, "pid"))
	if err != nil {
		b.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		b.t.Fatalf("the broker's pid: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		b.t.Fatalf("stop the broker: %v", err)
	}
	b.wait("that it stops", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	b.n.kill()
}

// Restart starts the broker again, on the same ports and with what it had on disk. One that is up is stopped first.
func (b *Broker) Restart() {
	b.t.Helper()
	if b.n.cmd != nil {
		b.Stop()
	}
	if err := b.n.start("keep"); err != nil {
		b.t.Fatal(err)
	}
}

// SetMemoryAlarm makes the broker believe that it has run out of memory, or not: it takes nothing from publishers then.
func (b *Broker) SetMemoryAlarm(on bool) {
	b.t.Helper()
	level := "0.6"
	if on {
		level = "0"
	}
	b.Eval("vm_memory_monitor:set_vm_memory_high_watermark(" + level + ")")
	b.awaitAlarm("memory", on)
}

// SetDiskAlarm makes the broker believe that its disk is full, or not: it takes nothing from publishers then.
func (b *Broker) SetDiskAlarm(on bool) {
	b.t.Helper()
	limit := "50000000"
	if on {
		limit = "1000000000000000"
	}
	b.Eval("rabbit_disk_monitor:set_disk_free_limit(" + limit + ")")
	b.awaitAlarm("disk", on)
}

func (b *Broker) awaitAlarm(of string, on bool) {
	b.t.Helper()
	b.wait(fmt.Sprintf("that the %s alarm is %t", of, on), func() bool {
		return b.Eval("lists:keymember({resource_limit, "+of+", node()}, 1, rabbit_alarm:get_alarms())") == strconv.FormatBool(on)
	})
}

// CloseConnections has the broker close every connection, as an operator would.
func (b *Broker) CloseConnections() {
	b.t.Helper()
	b.Eval(`[rabbit_networking:close_connection(P, "closed by the test") || P <- rabbit_networking:connections()], ok`)
}

// Eval evaluates Erlang expressions on the broker and returns the value of the last as text.
func (b *Broker) Eval(code string) string {
	b.t.Helper()
	value, err := b.n.service().eval(code)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

func (b *Broker) wait(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(end) {
			b.t.Fatalf("waited for %v %s\n%s", patience, what, b.n.log())
		}
	}
}
