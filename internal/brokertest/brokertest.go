// Package brokertest gives tests a RabbitMQ. Most take a virtual host of their own on a broker that all share ([Vhost]);
// those that harm the broker take a node of their own ([Start]), and those that harm the network put a [Proxy] in between.
//
// The shared broker is the one ORCHESTRATOR_TEST_AMQP_URL names, else the one at [DefaultURL] if this process may
// administer it, else a node that lives as long as the test's process. A test that needs a broker and can't have one
// fails: it is never skipped.
//
// Brokers are administered by Erlang's own protocol, with the erl_call that comes with Erlang: it takes milliseconds,
// while a rabbitmqctl takes the better part of a second.
package brokertest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The environment that scripts/services.sh sets for tests.
const (
	// URLEnv names the shared broker.
	URLEnv = "ORCHESTRATOR_TEST_AMQP_URL"
	// NodeEnv is the Erlang name of its node. Defaults to rabbit@localhost or rabbit@ and the host's name.
	NodeEnv = "ORCHESTRATOR_TEST_AMQP_NODE"
	// HomeEnv is the folder of its .erlang.cookie. Defaults to /var/lib/rabbitmq.
	HomeEnv = "ORCHESTRATOR_TEST_AMQP_HOME"
	// EpmdEnv is the port of its epmd, if that isn't the usual one.
	EpmdEnv = "ORCHESTRATOR_TEST_AMQP_EPMD_PORT"
)

// DefaultURL is where a RabbitMQ that was just installed listens.
const DefaultURL = "amqp://guest:guest@127.0.0.1:5672/"

// patience bounds every wait for a broker. A node takes 5 to 10 seconds to start, on a busy machine three times as long.
const patience = 90 * time.Second

// Vhost makes a virtual host on the shared broker, which is deleted when the test is over, and returns its URL.
func Vhost(t testing.TB) string {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	services.Store(s.url.Host, s)
	return s.vhost(t)
}

// QueueLength returns how many messages a queue holds, those handed out and not acknowledged included, or -1 when there
// is no such queue. The URL is that of a virtual host, on the shared broker or one that was started.
func QueueLength(t testing.TB, vhost, queue string) int {
	t.Helper()
	// A quorum queue writes its statistics down every few seconds only, so its state machine is asked.
	return ofQueue(t, vhost, queue, `case amqqueue:get_type(Q) of
		rabbit_quorum_queue -> case ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1) of {ok, {_, N}, _} -> N; _ -> -1 end;
		_ -> [{messages, N}] = rabbit_amqqueue:info(Q, [messages]), N
	end`)
}

// QueueConsumers returns how many consumers a queue of a virtual host has, or -1 if there is no such queue.
func QueueConsumers(t testing.TB, vhost, queue string) int {
	t.Helper()
	return ofQueue(t, vhost, queue, `case rabbit_amqqueue:stat(Q) of {ok, _, N} -> N; _ -> -1 end`)
}

// ofQueue returns the number that an Erlang expression gives of the queue Q, or -1 if there is no such queue.
func ofQueue(t testing.TB, vhost, queue, number string) int {
	t.Helper()
	s, name := serviceOf(t, vhost)
	text, err := s.eval(fmt.Sprintf(`case rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)) of {ok, Q} -> %s; _ -> -1 end`,
		binary(name), binary(queue), number))
	if err != nil {
		t.Fatalf("look at queue %s: %v", queue, err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("look at queue %s: %v", queue, err)
	}
	return n
}

// DeleteQueue deletes a queue of a virtual host with all that is in it, whoever uses it.
func DeleteQueue(t testing.TB, vhost, queue string) {
	t.Helper()
	s, name := serviceOf(t, vhost)
	if _, err := s.eval(fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), {ok, _} = rabbit_amqqueue:delete(Q, false, false, <<"test">>)`,
		binary(name), binary(queue))); err != nil {
		t.Fatalf("delete queue %s: %v", queue, err)
	}
}

// services are the brokers that are known, by host and port.
var services sync.Map

// serviceOf returns the broker of a virtual host, and the host's name.
func serviceOf(t testing.TB, vhost string) (*service, string) {
	t.Helper()
	u, err := url.Parse(vhost)
	if err != nil {
		t.Fatal(err)
	}
	s, ok := services.Load(u.Host)
	if !ok {
		t.Fatalf("%s is none of the brokers of this test", u.Host)
	}
	name := strings.TrimPrefix(u.Path, "/")
	return s.(*service), cmp.Or(name, "/")
}

// service is a broker that can be administered.
type service struct {
	url  *url.URL
	node string   // its Erlang name
	env  []string // for erl_call
}

// shared finds or starts the broker that the tests of this process share.
var shared = sync.OnceValues(func() (*service, error) {
	text, named := os.LookupEnv(URLEnv)
	u, err := url.Parse(cmp.Or(text, DefaultURL))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", URLEnv, err)
	}
	s, err := find(u)
	if err == nil {
		return s, nil
	}
	if named && text != "" {
		return nil, fmt.Errorf("the broker of %s=%s: %w", URLEnv, u.Redacted(), err)
	}
	dir, err2 := os.MkdirTemp("", "orchestrator-rabbitmq-")
	if err2 != nil {
		return nil, err2
	}
	n := &node{dir: dir}
	if err2 := n.start("remove"); err2 != nil {
		return nil, fmt.Errorf("there is no RabbitMQ for the tests, `make services` helps: %w; %w", err, err2)
	}
	return n.service(), nil
})

// find looks for a broker that runs.
func find(u *url.URL) (*service, error) {
	conn, err := net.DialTimeout("tcp", hostPort(u), 5*time.Second)
	if err != nil {
		return nil, err
	}
	conn.Close()
	env := append(os.Environ(), "HOME="+cmp.Or(os.Getenv(HomeEnv), "/var/lib/rabbitmq"))
	if port := os.Getenv(EpmdEnv); port != "" {
		env = append(env, "ERL_EPMD_PORT="+port)
	}
	names := []string{os.Getenv(NodeEnv)}
	if names[0] == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		names = []string{"rabbit@localhost", "rabbit@" + strings.Split(host, ".")[0]}
	}
	for _, name := range names {
		s := &service{url: u, node: name, env: env}
		if _, err2 := s.eval("true = rabbit:is_running()"); err2 == nil {
			return s, nil
		} else {
			err = err2
		}
	}
	return nil, fmt.Errorf("%s answers but can't be administered by this user: %w", u.Host, err)
}

func hostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "5672"))
}

// vhost makes a virtual host until the test is over.
func (s *service) vhost(t testing.TB) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text()[:12])
	user := s.url.User.Username()
	if _, err := s.eval(fmt.Sprintf(`ok = rabbit_vhost:add(%s, <<"test">>), ok = rabbit_auth_backend_internal:set_permissions(%s, %s, <<".*">>, <<".*">>, <<".*">>, <<"test">>)`,
		binary(name), binary(user), binary(name))); err != nil {
		t.Fatalf("make virtual host %s: %v", name, err)
	}
	t.Cleanup(func() {
		if _, err := s.eval(fmt.Sprintf(`rabbit_vhost:delete(%s, <<"test">>)`, binary(name))); err != nil {
			t.Errorf("delete virtual host %s: %v", name, err)
		}
	})
	u := *s.url
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}

// eval evaluates Erlang expressions on the node and returns the value of the last as text.
func (s *service) eval(code string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A name of its own: by default all have the same, and the node turns away whoever comes while another is there.
	cmd := exec.CommandContext(ctx, "erl_call", "-h", "test"+strings.ToLower(rand.Text()[:12]), "-sname", s.node, "-e")
	cmd.Env, cmd.Stdin = s.env, strings.NewReader(code+".\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w (it comes with Debian's erlang-base)", err)
	case err != nil:
		return "", fmt.Errorf("ask node %s: %w: %s", s.node, err, bytes.TrimSpace(stderr.Bytes()))
	}
	value, ok := strings.CutPrefix(string(out), "{ok, ")
	if !ok {
		return "", fmt.Errorf("node %s answers %s", s.node, out)
	}
	return strings.TrimSuffix(value, "}"), nil
}

// binary writes a text as an Erlang binary.
func binary(text string) string {
	return `<<"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `">>`
}

// serverScript finds the script that starts a RabbitMQ as the user who calls it; the one on the PATH of Debian changes
// the user.
func serverScript() (string, error) {
	for _, path := range []string{os.Getenv("RABBITMQ_SERVER"), "/usr/lib/rabbitmq/bin/rabbitmq-server"} {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", fmt.Errorf("RabbitMQ isn't installed (Debian: apt-get install rabbitmq-server): %w", err)
	}
	return filepath.EvalSymlinks(path)
}
