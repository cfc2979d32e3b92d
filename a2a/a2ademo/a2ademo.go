// Package a2ademo is the demonstration's two peers: advisor, which answers in about a second, and archivist, which answers
// only when its caller has stopped waiting. Both are plain a2a-go servers that know nothing of ours but the extension by
// which a caller says until when it waits; over HTTP, or from a queue by package a2aqueue.
//
// The program runs each in a process of its own with [Serve], which blocks until its context ends and closes everything.
package a2ademo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"orchestrator/a2a/a2aqueue"
)

// lineageURI is the extension by which a caller says, among other things, until when it waits.
const lineageURI = "urn:orchestrator:a2a:lineage:1"

// The names of the demonstration's peers.
const (
	Advisor   = "advisor"
	Archivist = "archivist"
)

// Config configures a peer.
type Config struct {
	// Name is [Advisor] or [Archivist].
	Name string
	// Addr is where it listens. Defaults to a free port of the loopback interface.
	Addr string
	// Broker is the URL of a broker, and Queue where the peer takes its requests from there instead of listening.
	Broker, Queue string
	// Delay is how long an answer takes. Defaults to one second for the advisor and four for the archivist.
	Delay time.Duration
	// Grace is how long after its caller's deadline, if the caller names one, the archivist answers at the earliest.
	// Defaults to one second.
	Grace time.Duration
	// Ready is told the peer's base URL when it listens, or of its queue when there is one. May be nil.
	Ready func(url string)
}

// Serve runs a peer until ctx ends. It returns nil when ctx ended, and an error when it couldn't listen or serve.
func Serve(ctx context.Context, cfg Config) error {
	agent, err := newAgent(cfg)
	if err != nil {
		return err
	}
	handler := a2asrv.NewHandler(agent,
		a2asrv.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
		a2asrv.WithCallInterceptors(anyoneIsCaller{}))
	if cfg.Broker != "" {
		return serveQueue(ctx, cfg, handler)
	}
	return serveHTTP(ctx, cfg, handler)
}

func newAgent(cfg Config) (a2asrv.AgentExecutor, error) {
	switch cfg.Name {
	case Advisor:
		return answerer{delay: cmp.Or(cfg.Delay, time.Second), answer: advise}, nil
	case Archivist:
		return answerer{delay: cmp.Or(cfg.Delay, 4*time.Second), grace: cmp.Or(cfg.Grace, time.Second), answer: lookUp}, nil
	}
	return nil, fmt.Errorf("no such demo peer %q: it is %s or %s", cfg.Name, Advisor, Archivist)
}

func serveHTTP(ctx context.Context, cfg Config, handler a2asrv.RequestHandler) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(cfg.Addr, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen for demo peer %s: %w", cfg.Name, err)
	}
	url := "http://" + ln.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("POST /a2a", http.MaxBytesHandler(a2asrv.NewJSONRPCHandler(handler), 1<<20))
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card(cfg.Name, protocol.NewAgentInterface(url+"/a2a", protocol.TransportProtocolJSONRPC))))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) //nolint:errcheck // closing is all that is wanted
	defer stop()
	if cfg.Ready != nil {
		cfg.Ready(url)
	}
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve demo peer %s: %w", cfg.Name, err)
	}
	return nil
}

// Reach returns nil when the broker at a URL can be used, else an error that says why not.
func Reach(ctx context.Context, url string) error {
	return withBroker(ctx, url, func(b *a2aqueue.Broker) error { return b.Ping(ctx) })
}

// Forget deletes queues and what is in them.
func Forget(ctx context.Context, url string, queues ...string) error {
	return withBroker(ctx, url, func(b *a2aqueue.Broker) error {
		var errs []error
		for _, q := range queues {
			errs = append(errs, b.DeleteQueue(ctx, q))
		}
		return errors.Join(errs...)
	})
}

func withBroker(ctx context.Context, url string, do func(*a2aqueue.Broker) error) error {
	b, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: url, Name: "orchestrator demo"})
	if err != nil {
		return err
	}
	err = do(b)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, b.Close(bound))
}

// stopTimeout bounds the end of a peer behind a queue.
const stopTimeout = 5 * time.Second

func serveQueue(ctx context.Context, cfg Config, handler a2asrv.RequestHandler) error {
	broker, err := a2aqueue.NewBroker(a2aqueue.BrokerConfig{URL: cfg.Broker, Name: cfg.Name})
	if err != nil {
		return fmt.Errorf("demo peer %s: %w", cfg.Name, err)
	}
	defer func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		_ = broker.Close(bound) // the peer is over either way
	}()
	at, err := a2aqueue.BrokerAddress(cfg.Broker)
	if err != nil {
		return fmt.Errorf("demo peer %s: %w", cfg.Name, err)
	}
	where := at.WithQueue(cfg.Queue).String()
	about := card(cfg.Name, protocol.NewAgentInterface(where, a2aqueue.Binding))
	server, err := a2aqueue.NewServer(a2aqueue.ServerConfig{
		Broker: broker, Queue: cfg.Queue, Handler: handler, VolatileTasks: true, DrainTimeout: time.Second,
		Card: a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) { return about, nil }),
	})
	if err != nil {
		return fmt.Errorf("demo peer %s: %w", cfg.Name, err)
	}
	if err := broker.DeclareQueue(ctx, cfg.Queue); err != nil {
		return fmt.Errorf("demo peer %s: %w", cfg.Name, err)
	}
	if cfg.Ready != nil {
		cfg.Ready(where)
	}
	if err := server.Run(ctx); err != nil {
		return fmt.Errorf("serve demo peer %s: %w", cfg.Name, err)
	}
	return nil
}

func card(name string, at *protocol.AgentInterface) *protocol.AgentCard {
	about := map[string]string{
		Advisor:   "Gives short, practical advice on a plan or a question, at once.",
		Archivist: "Searches the archive for earlier cases. Thorough, and slow.",
	}
	skill := protocol.AgentSkill{ID: "advise", Name: "Advise", Description: about[Advisor], Tags: []string{"advice", "planning"}}
	if name == Archivist {
		skill = protocol.AgentSkill{ID: "search", Name: "Search the archive", Description: about[Archivist], Tags: []string{"archive", "research"}}
	}
	return &protocol.AgentCard{
		Name: name, Description: about[name], Version: "1.0.0",
		SupportedInterfaces: []*protocol.AgentInterface{at},
		Capabilities: protocol.AgentCapabilities{
			Streaming:  true,
			Extensions: []protocol.AgentExtension{{URI: lineageURI, Description: "reads until when the caller waits"}},
		},
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Skills: []protocol.AgentSkill{skill},
	}
}

// answerer answers every question once, after a delay.
type answerer struct {
	delay, grace time.Duration
	answer       func(question string) string
}

var _ a2asrv.AgentExecutor = answerer{}

// Execute implements a2asrv.AgentExecutor.
func (a answerer) Execute(ctx context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		wait := a.delay
		if a.grace > 0 {
			if left := time.Until(deadline(ec.Message)); left < time.Minute { // who waits longer gets the answer in time
				wait = max(wait, left+a.grace)
			}
		}
		if ec.StoredTask == nil && !yield(protocol.NewSubmittedTask(ec, ec.Message), nil) {
			return
		}
		if !yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateWorking, nil), nil) {
			return
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return
		}
		reply := protocol.NewMessageForTask(protocol.MessageRoleAgent, ec, protocol.NewTextPart(a.answer(text(ec.Message))))
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCompleted, reply), nil)
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (answerer) Cancel(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(ec, protocol.TaskStateCanceled, nil), nil)
	}
}

// anyoneIsCaller names every caller, so that it may list the tasks it asked for.
type anyoneIsCaller struct {
	a2asrv.PassthroughCallInterceptor
}

func (anyoneIsCaller) Before(ctx context.Context, call *a2asrv.CallContext, _ *a2asrv.Request) (context.Context, any, error) {
	call.User = a2asrv.NewAuthenticatedUser("caller", nil)
	return ctx, nil, nil
}

// deadline is until when the asker of a message waits, or the zero time.
func deadline(m *protocol.Message) time.Time {
	raw, err := json.Marshal(m.Metadata[lineageURI])
	var l struct {
		Deadline time.Time `json:"deadline"`
	}
	if err != nil || json.Unmarshal(raw, &l) != nil {
		return time.Time{}
	}
	return l.Deadline
}

func text(m *protocol.Message) string {
	var parts []string
	for _, p := range m.Parts {
		if t := p.Text(); t != "" {
			parts = append(parts, t)
		}
	}
	return strings.Join(parts, " ")
}

func advise(question string) string {
	k := keywords(question)
	return fmt.Sprintf("Start with %s and keep the first step small; check %s before you widen it; decide in advance what result for %s would make you stop.",
		k[0], k[1], k[2])
}

func lookUp(question string) string {
	k := keywords(question)
	return fmt.Sprintf("The archive has three earlier cases on %s. All began well and two failed at %s; the one that worked had settled %s first.",
		k[0], k[1], k[2])
}

// keywords returns the three longest words of a question in the order they stand there.
func keywords(question string) [3]string {
	words := strings.FieldsFunc(strings.ToLower(question), func(r rune) bool { return !unicode.IsLetter(r) && r != '-' })
	out := [3]string{"the plan", "the costs", "the risks"}
	chosen := map[int]bool{}
	for range out {
		best := -1
		for i, w := range words {
			if len(w) > 3 && !chosen[i] && (best < 0 || len(w) > len(words[best])) {
				best = i
			}
		}
		if best >= 0 {
			chosen[best] = true
			for i, w := range words { // a word counts once
				if w == words[best] && i != best {
					words[i] = ""
				}
			}
		}
	}
	n := 0
	for i, w := range words {
		if chosen[i] {
			out[n] = w
			n++
		}
	}
	return out
}
