package main

import (
	"bufio"
	"context"
	"encoding/json"
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
	"sync"
	"sync/atomic"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
)

// peerEnv makes this binary the peers' process.
const peerEnv = "ORCHESTRATOR_BENCH_PEERS"

// The peers. Each answers as its name says; holder takes every message for a task that it works on for ever.
const (
	streamingMessage = "streaming-message"
	streamingTask    = "streaming-task"
	plainMessage     = "plain-message"
	plainTask        = "plain-task"
	holder           = "holder"
)

// ports is on how many ports the peers listen, so that tens of thousands of connections find free ports of their own.
const ports = 8

// peers is the peers' process.
type peers struct {
	urls  []string // the base of each port
	next  int
	cmd   *exec.Cmd
	stdin io.Closer
}

// peerProcess returns what this process serves if it is one of peers, else nil.
func peerProcess() func(in io.Reader, out io.Writer) error {
	if env := os.Getenv(queueEnv); env != "" {
		return func(in io.Reader, out io.Writer) error { return serveQueues(env, in, out) }
	}
	if os.Getenv(clientEnv) != "" {
		return serveClients
	}
	if os.Getenv(peerEnv) != "" {
		return servePeers
	}
	return nil
}

// startPeers starts a process of peers, which the variable says, and reads the lines it begins with. It ends when its standard
// input does, so it can't outlive us.
func startPeers(ctx context.Context, env string, greeting int) (*peers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary: %w", err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), env)
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
	for len(p.urls) < greeting && lines.Scan() {
		p.urls = append(p.urls, lines.Text())
	}
	if len(p.urls) < greeting {
		return nil, errors.Join(errors.New("the peers did not start"), p.stop())
	}
	return p, nil
}

func (p *peers) stop() error {
	if err := p.stdin.Close(); err != nil {
		return fmt.Errorf("stop the peers: %w", err)
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("stop the peers: %w", err)
	}
	return nil
}

// url returns the base URL of a peer on a port that was not used for the longest.
func (p *peers) url(name string) string {
	p.next++
	return p.urls[p.next%len(p.urls)] + "/" + name
}

// held returns how many streams the holder holds at a URL of it, and how many of them took a task up again.
func held(ctx context.Context, url string) (h holding, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/held", nil)
	if err != nil {
		return h, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	return h, json.NewDecoder(resp.Body).Decode(&h)
}

type holding struct{ Sent, Subscribed int64 }

// waitHeld waits until the holder holds what done wants.
func waitHeld(ctx context.Context, url string, done func(holding) bool) error {
	return waitFor(ctx, "the peer doesn't hold the calls", func() (bool, error) {
		h, err := held(ctx, url)
		return err == nil && done(h), err
	})
}

// servePeers is the peers' process: it prints a base URL for each port and serves until in ends.
func servePeers(in io.Reader, out io.Writer) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	remote, stop, err := serveGRPC(a2asrv.NewHandler(answerer(streamingMessage), a2asrv.WithLogger(quiet)), &serving)
	if err != nil {
		return err
	}
	defer stop()
	for range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		base := "http://" + ln.Addr().String()
		mux := http.NewServeMux()
		for _, way := range bindings {
			for _, kind := range way.kinds() {
				path := "/" + way.prefix + kind
				at := &protocol.AgentInterface{URL: base + path + "/a2a", ProtocolBinding: way.binding, ProtocolVersion: way.version}
				card := peerCard(!strings.HasPrefix(kind, "plain"), at)
				switch {
				case way.binding == protocol.TransportProtocolGRPC:
					at.URL = remote
				case kind == holder:
					h := new(hold)
					mux.HandleFunc("POST "+path+"/a2a", h.serve)
					mux.HandleFunc("GET "+path+"/held", h.count)
				default:
					served := http.StripPrefix(path+"/a2a", way.handler(a2asrv.NewHandler(answerer(kind), a2asrv.WithLogger(quiet))))
					mux.Handle(path+"/a2a", served)
					mux.Handle(path+"/a2a/", served)
				}
				mux.Handle(path+a2asrv.WellKnownAgentCardPath, way.cards(card))
			}
		}
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		serving.Go(func() {
			if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintln(os.Stderr, "bench peer:", err)
			}
		})
		defer srv.Close()
		fmt.Fprintln(out, base)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// peerCard is the card of a peer.
func peerCard(streaming bool, at *protocol.AgentInterface) *protocol.AgentCard {
	return &protocol.AgentCard{
		Name: "peer", Description: "a peer to measure with", Version: "1",
		SupportedInterfaces: []*protocol.AgentInterface{at},
		Capabilities:        protocol.AgentCapabilities{Streaming: streaming},
		DefaultInputModes:   []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Skills: []protocol.AgentSkill{{ID: "answer", Name: "Answer", Description: "answers", Tags: []string{"bench"}}},
	}
}

// serveGRPC serves an agent by gRPC, on a port of its own as gRPC's servers do, and returns its URL.
func serveGRPC(h a2asrv.RequestHandler, serving *sync.WaitGroup) (url string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := grpc.NewServer()
	a2agrpc.NewHandler(h).RegisterWith(srv)
	serving.Go(func() {
		if err := srv.Serve(ln); err != nil {
			fmt.Fprintln(os.Stderr, "bench peer:", err)
		}
	})
	return "http://" + ln.Addr().String(), srv.Stop, nil
}

// answerer is an agent on the SDK's own server, which answers at once.
type answerer string

var _ a2asrv.AgentExecutor = answerer("")

// answer is as long as a short paragraph.
var answer = strings.Repeat("An answer of a few sentences, as one agent gives another. ", 5)

// Execute implements a2asrv.AgentExecutor. A plain peer's task is there whole, since the caller of SendMessage wants it at
// once; a streaming one's goes through its states.
func (a answerer) Execute(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		switch a {
		case streamingMessage, plainMessage:
			yield(protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart(answer)), nil)
		case plainTask:
			task := protocol.NewSubmittedTask(ec, ec.Message)
			task.Status.State = protocol.TaskStateCompleted
			task.Status.Message = protocol.NewMessageForTask(protocol.MessageRoleAgent, ec, protocol.NewTextPart(answer))
			yield(task, nil)
		default:
			_ = yield(protocol.NewSubmittedTask(ec, ec.Message), nil) &&
				yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateWorking, nil), nil) &&
				yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCompleted,
					protocol.NewMessageForTask(protocol.MessageRoleAgent, ec, protocol.NewTextPart(answer))), nil)
		}
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (answerer) Cancel(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCanceled, nil), nil)
	}
}

// hold is a peer that works on every task for ever. It is written by hand since thousands of tasks in the SDK's server
// would take the machine's time.
type hold struct {
	tasks, sent, subscribed atomic.Int64
}

func (h *hold) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			ID      protocol.TaskID   `json:"id"`
			Message *protocol.Message `json:"message"`
		} `json:"params"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	task := &protocol.Task{ID: req.Params.ID, ContextID: "held", Status: protocol.TaskStatus{State: protocol.TaskStateWorking}}
	count := &h.subscribed
	switch {
	case req.Method == "SendStreamingMessage" && req.Params.Message != nil:
		task.ID = protocol.TaskID(fmt.Sprintf("task-%d", h.tasks.Add(1)))
		task.ContextID = req.Params.Message.ContextID
		count = &h.sent
	case req.Method == "SubscribeToTask":
	default:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, req.ID)
		return
	}
	event, err := json.Marshal(protocol.StreamResponse{Event: task})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", req.ID, event)
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	count.Add(1)
	defer count.Add(-1)
	<-r.Context().Done()
}

func (h *hold) count(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(holding{Sent: h.sent.Load(), Subscribed: h.subscribed.Load()}) // who asks sees the error
}
