package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"golang.org/x/sync/errgroup"
)

// peerEnv makes this binary the peers' process.
const peerEnv = "ORCHESTRATOR_SIDEBYSIDE_PEERS"

// question is what peers are asked.
const question = "What is to be thought of before a service is moved to another region, and in which order?"

// answer is what they say: as long as a short paragraph.
var answer = strings.TrimSpace(strings.Repeat("An answer of a few sentences, as one agent gives another. ", 5))

// peers is the peers' process.
type peers struct {
	base  string
	cmd   *exec.Cmd
	stdin io.Closer
}

// startPeers starts the process. It ends when its standard input does, so it can't outlive us.
func startPeers(ctx context.Context) (*peers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary: %w", err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), peerEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the peers: %w", err)
	}
	p := &peers{cmd: cmd, stdin: stdin}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		return nil, errors.Join(errors.New("the peers did not start"), p.stop())
	}
	p.base = lines.Text()
	return p, nil
}

func (p *peers) stop() error {
	if err := errors.Join(p.stdin.Close(), p.cmd.Wait()); err != nil {
		return fmt.Errorf("stop the peers: %w", err)
	}
	return nil
}

// url returns the base URL of a peer, under which its card is.
func (p *peers) url(s setup) string { return p.base + s.path() }

func (s setup) path() string { return "/" + s.version + "/" + s.method() }

// servePeers is the peers' process: it prints its base URL and serves until in ends.
func servePeers(in io.Reader, out io.Writer) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	base := "http://" + ln.Addr().String()
	mux := http.NewServeMux()
	quiet := slog.New(slog.DiscardHandler)
	for _, version := range []string{version10, version03} {
		for _, streaming := range []bool{true, false} {
			s := setup{version, streaming}
			card := &protocol.AgentCard{
				Name: "peer", Description: "a peer to measure with", Version: "1",
				SupportedInterfaces: []*protocol.AgentInterface{{
					URL: base + s.path() + "/a2a", ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: protocol.ProtocolVersion(version),
				}},
				Capabilities:      protocol.AgentCapabilities{Streaming: streaming},
				DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
				Skills: []protocol.AgentSkill{{ID: "answer", Name: "Answer", Description: "answers", Tags: []string{"bench"}}},
			}
			handler := a2asrv.NewHandler(answerer{}, a2asrv.WithLogger(quiet))
			rpc, cards := a2asrv.NewJSONRPCHandler(handler), a2asrv.NewStaticAgentCardHandler(card)
			if version == version03 {
				rpc, cards = a2av0.NewJSONRPCHandler(handler), a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card))
			}
			mux.Handle(s.path()+a2asrv.WellKnownAgentCardPath, cards)
			mux.Handle(s.path()+"/a2a", rpc)
			mux.Handle(s.path()+"/a2a/", rpc) // where trpc-a2a-go posts
		}
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	var serving errgroup.Group
	serving.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	fmt.Fprintln(out, base)
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, srv.Close(), serving.Wait())
}

// answerer is an agent on the SDK's own server, which answers at once with a message.
type answerer struct{}

var _ a2asrv.AgentExecutor = answerer{}

// Execute implements [a2asrv.AgentExecutor].
func (answerer) Execute(context.Context, *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart(answer)), nil)
	}
}

// Cancel implements [a2asrv.AgentExecutor]. There is never a task.
func (answerer) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { yield(nil, protocol.ErrTaskNotFound) }
}
