package brokertest_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"orchestrator/internal/brokertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exists reports whether a broker has the virtual host of a URL.
func exists(t *testing.T, b *brokertest.Broker, vhost string) bool {
	t.Helper()
	u, err := url.Parse(vhost)
	if err != nil {
		t.Fatal(err)
	}
	return b.Eval(`rabbit_vhost:exists(list_to_binary("`+strings.TrimPrefix(u.Path, "/")+`"))`) == "true"
}

// greets reports whether something that answers like a broker listens at an address.
func greets(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second)) // a TCP connection takes deadlines
	if _, err := io.WriteString(conn, "AMQP\x00\x00\x09\x01"); err != nil {
		return err
	}
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return err
	}
	if first[0] != 1 {
		return errors.New("that is no method frame")
	}
	return nil
}

func TestVhostsOfTheSharedBrokerAreApart(t *testing.T) {
	one, two := brokertest.Vhost(t), brokertest.Vhost(t)
	if one == two {
		t.Errorf("two virtual hosts have the URL %s", one)
	}
	u, err := url.Parse(one)
	if err != nil {
		t.Fatal(err)
	}
	if err := greets(u.Host); err != nil {
		t.Errorf("%s: %v", u.Host, err)
	}
}

func TestBrokerOfATestsOwn(t *testing.T) {
	b := brokertest.Start(t)
	var gone string
	t.Run("a virtual host goes with its test", func(t *testing.T) {
		gone = b.Vhost(t)
		if !exists(t, b, gone) {
			t.Errorf("there is no %s", gone)
		}
	})
	if exists(t, b, gone) {
		t.Errorf("%s is still there", gone)
	}
	kept := b.Vhost(t)

	if b.SetMemoryAlarm(true); !strings.Contains(b.Eval("rabbit_alarm:get_alarms()"), "memory") {
		t.Error("there is no memory alarm")
	}
	b.SetMemoryAlarm(false)
	if b.SetDiskAlarm(true); !strings.Contains(b.Eval("rabbit_alarm:get_alarms()"), "disk") {
		t.Error("there is no disk alarm")
	}
	b.SetDiskAlarm(false)
	if got := b.Eval("rabbit_alarm:get_alarms()"); got != "[]" {
		t.Errorf("alarms = %s, want none", got)
	}

	b.Eval(`rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"q">>), true, false, [{<<"x-queue-type">>, longstr, <<"quorum">>}], none, <<"test">>)`)
	if got := brokertest.QueueLength(t, b.URL(), "q"); got != 0 {
		t.Errorf("the queue's length = %d, want 0", got)
	}

	start := time.Now()
	b.Kill()
	if err := greets(b.Addr()); err == nil {
		t.Error("a killed broker answers")
	}
	b.Restart()
	t.Logf("killed, and up again after %v", time.Since(start))
	if err := greets(b.Addr()); err != nil {
		t.Errorf("after a kill and a start: %v", err)
	}
	if !exists(t, b, kept) || brokertest.QueueLength(t, b.URL(), "q") != 0 {
		t.Errorf("%s or queue q is gone after a kill", kept)
	}
	brokertest.DeleteQueue(t, b.URL(), "q")
	b.Stop()
	if err := greets(b.Addr()); err == nil {
		t.Error("a stopped broker answers")
	}
	b.Restart()
	if !exists(t, b, kept) || brokertest.QueueLength(t, b.URL(), "q") != -1 {
		t.Errorf("%s is gone after a stop, or queue q has come back", kept)
	}
}

// line is a connection through a proxy, as its two ends have it.
type line struct {
	t              *testing.T
	client, server net.Conn
}

func connect(t *testing.T, p *brokertest.Proxy, ln net.Listener) *line {
	t.Helper()
	client, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return &line{t: t, client: client, server: server}
}

// reads reports what comes to an end within a moment: a line, "closed" or "nothing".
func (l *line) reads(conn net.Conn, wait time.Duration) string {
	l.t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		l.t.Fatal(err)
	}
	text, err := bufio.NewReader(conn).ReadString('\n')
	switch {
	case err == nil:
		return strings.TrimSpace(text)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "nothing"
	default:
		return "closed"
	}
}

func (l *line) says(conn net.Conn, text string) {
	_, _ = io.WriteString(conn, text+"\n") // the other end may be closed
}

func TestProxyHarmsWhatItIsTold(t *testing.T) {
	const soon, moment = 10 * time.Second, 100 * time.Millisecond
	for name, c := range map[string]struct {
		harm                   func(*brokertest.Proxy)
		server, client         string // what they read
		serverWait, clientWait time.Duration
	}{
		"nothing":           {func(*brokertest.Proxy) {}, "request", "reply", soon, soon},
		"a delay":           {func(p *brokertest.Proxy) { p.Delay(50 * time.Millisecond) }, "request", "reply", soon, soon},
		"both ways severed": {(*brokertest.Proxy).Sever, "closed", "closed", soon, soon},
		"to server cut":     {func(p *brokertest.Proxy) { p.Cut(brokertest.ToServer) }, "closed", "reply", soon, soon},
		"to client cut":     {func(p *brokertest.Proxy) { p.Cut(brokertest.ToClient) }, "request", "closed", soon, soon},
		"to server dropped": {func(p *brokertest.Proxy) { p.Drop(brokertest.ToServer) }, "nothing", "reply", moment, soon},
		"to client dropped": {func(p *brokertest.Proxy) { p.Drop(brokertest.ToClient) }, "request", "nothing", soon, moment},
		"half-open": {func(p *brokertest.Proxy) {
			p.Drop(brokertest.ToServer)
			p.Drop(brokertest.ToClient)
		}, "nothing", "nothing", moment, moment},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			p := brokertest.NewProxy(t, ln.Addr().String())
			l := connect(t, p, ln)
			l.says(l.client, "hello")
			if got := l.reads(l.server, soon); got != "hello" {
				t.Fatalf("before the harm the server reads %q", got)
			}
			c.harm(p)
			l.says(l.client, "request")
			l.says(l.server, "reply")
			if got := l.reads(l.server, c.serverWait); got != c.server {
				t.Errorf("the server reads %q, want %q", got, c.server)
			}
			if got := l.reads(l.client, c.clientWait); got != c.client {
				t.Errorf("the client reads %q, want %q", got, c.client)
			}
			p.Heal()
			after := connect(t, p, ln)
			after.says(after.client, "again")
			if got := after.reads(after.server, soon); got != "again" {
				t.Errorf("after Heal the server of a new connection reads %q", got)
			}
		})
	}
}
