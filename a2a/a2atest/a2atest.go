// Package a2atest is peers for tests: real a2a-go servers whose answers are scripted, whose wire can be made to fail in
// chosen ways, and which keep a record of what they were asked.
//
// A test makes a [Peer] on loopback HTTP with [New], inside a synctest bubble on a [Network] of pipes with
// [Network.Peer], or with [NewQueued] one that a server of the test's serves from a queue. [ServePeer] runs one in a process of its own, with its record in a journal file that [ReadJournal]
// reads. Scripts run in the server's goroutines and may block on a [Gate]; closing the peer ends them.
package a2atest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// The methods of the protocol that a peer counts and that faults are chosen by.
const (
	MethodSend      = "SendMessage"
	MethodStream    = "SendStreamingMessage"
	MethodSubscribe = "SubscribeToTask"
	MethodGet       = "GetTask"
	MethodList      = "ListTasks"
	MethodCancel    = "CancelTask"
	MethodCard      = "card"
)

// Config configures a peer.
type Config struct {
	// Name is the card's name, and in a [Network] the host. Defaults to "peer".
	Name string
	// Script answers a message. Defaults to completing a task with "echo: " and the message's text.
	Script func(x *Exchange)
	// Cancel answers a CancelTask by an event on the task. Defaults to the state canceled.
	Cancel func(x *Exchange)
	// Interfaces are what the card offers. Defaults to JSONRPC10.
	Interfaces []Interface
	// NoStreaming makes the card say that the peer can't stream.
	NoStreaming bool
	// Dedup makes the same message id the same task.
	Dedup bool
	// Anonymous leaves callers without a user, so that they can't list tasks.
	Anonymous bool
	// Fault says how a request is to go wrong; nil is never.
	Fault func(Request) Fault
	// Card changes the card before it is served.
	Card func(*protocol.AgentCard)
	// Journal is told every message received and every terminal answer, one JSON object a line. May be nil.
	Journal io.Writer
}

// Request is one request a peer got.
type Request struct {
	Interface Interface // it came to; none for the card
	Method    string
	MessageID string // of a message sent
	TaskID    string // of a message that continues a task, or the task asked for
	ContextID string
	Text      string
	Metadata  map[string]any // of a message sent
	Header    http.Header
	Nth       int // counted from 1 among requests of its method
}

// Fault is how a request goes wrong. The zero Fault lets it be.
type Fault struct {
	// Hold keeps the request from being handled until it is opened.
	Hold *Gate
	// Refuse closes the connection before anything is handled.
	Refuse bool
	// Lose closes the connection when the answer's first byte is due: the request was handled.
	Lose bool
	// CutAfter closes the connection after so many events of a stream.
	CutAfter int
	// Twice sends every event of a stream twice.
	Twice bool
	// Status and Body, with their media type, are answered instead of handling the request.
	Status    int
	MediaType string
	Body      string
	Header    map[string]string
}

// Peer is a scripted A2A agent.
type Peer struct {
	cfg     Config
	url     string
	handler http.Handler
	asked   a2asrv.RequestHandler // without a wire
	card    *protocol.AgentCard
	cut     func() // breaks the wire of a queued peer
	stop    context.CancelFunc
	alive   context.Context
	running sync.WaitGroup
	tasks   *taskFile // nil: in memory

	mu       sync.Mutex
	closed   bool
	requests []Request
	entries  []Entry
	firsts   map[string]*first
	changed  chan struct{} // closed and renewed with every request and entry
}

// New returns a peer that serves loopback HTTP until the test ends.
func New(t testing.TB, cfg Config) *Peer {
	t.Helper()
	p := newPeer(cfg)
	srv := httptest.NewUnstartedServer(p)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Config.Protocols = protocols()
	srv.Start()
	p.url = srv.URL
	p.serve()
	t.Cleanup(func() {
		p.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return p
}

func newPeer(cfg Config) *Peer {
	cfg.Name = cmp.Or(cfg.Name, "peer")
	if cfg.Script == nil {
		cfg.Script = func(x *Exchange) { x.State(Completed, "echo: "+x.Text()) }
	}
	if cfg.Cancel == nil {
		cfg.Cancel = func(x *Exchange) { x.State(Canceled, "") }
	}
	if len(cfg.Interfaces) == 0 {
		cfg.Interfaces = []Interface{JSONRPC10}
	}
	p := &Peer{cfg: cfg, firsts: map[string]*first{}, changed: make(chan struct{})}
	p.alive, p.stop = context.WithCancel(context.Background())
	return p
}

// serve builds the handler; the peer's URL is known by now.
func (p *Peer) serve() {
	opts := []a2asrv.RequestHandlerOption{a2asrv.WithLogger(slog.New(slog.DiscardHandler))}
	if p.tasks != nil {
		opts = append(opts, a2asrv.WithTaskStore(p.tasks))
	}
	if !p.cfg.Anonymous {
		opts = append(opts, a2asrv.WithCallInterceptors(named{}))
	}
	h := a2asrv.NewHandler(executor{p}, opts...)
	if p.cfg.Dedup {
		intercepted := h.(*a2asrv.InterceptedHandler)
		intercepted.Handler = dedup{RequestHandler: intercepted.Handler, peer: p}
	}
	card := &protocol.AgentCard{
		Name: p.cfg.Name, Description: "a peer for tests", Version: "1",
		Capabilities:      protocol.AgentCapabilities{Streaming: !p.cfg.NoStreaming},
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Skills: []protocol.AgentSkill{{ID: "echo", Name: "Echo", Description: "says what it was told", Tags: []string{"echo", "test"}}},
	}
	for _, i := range p.cfg.Interfaces {
		card.SupportedInterfaces = append(card.SupportedInterfaces, i.on(p.url))
	}
	if p.cfg.Card != nil {
		p.cfg.Card(card)
	}
	p.asked, p.card = h, card
	mux := http.NewServeMux()
	mount(mux, h)
	mux.Handle(a2asrv.WellKnownAgentCardPath, cardHandler(card))
	p.handler = mux
}

// URL returns the peer's base URL.
func (p *Peer) URL() string { return p.url }

// Handler returns what answers requests, for a way to the peer that is no HTTP. What comes by it is no [Request] and knows
// no faults.
func (p *Peer) Handler() a2asrv.RequestHandler { return p.asked }

// Card returns the peer's card.
func (p *Peer) Card() *protocol.AgentCard { return p.card }

// Cards returns the peer's card in the form in which servers take it.
func (p *Peer) Cards() a2asrv.AgentCardProducer {
	return a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) { return p.card, nil })
}

// Config returns what the peer was made of, for another one that takes its place.
func (p *Peer) Config() Config { return p.cfg }

// Close ends the peer's scripts and waits for them.
func (p *Peer) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.running.Wait()
}

// begin reports whether a script may run; it is then counted until running.Done.
func (p *Peer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

// ServeHTTP implements http.Handler: it records the request and lets it go wrong as the fault says.
func (p *Peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := readRequest(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f := p.asks(&req)
	if f.Hold != nil && !f.Hold.wait(r.Context(), p.alive) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case f.Refuse:
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		w.Header().Set("Content-Type", cmp.Or(f.MediaType, "text/plain"))
		for k, v := range f.Header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(f.Status)
		io.WriteString(w, f.Body) //nolint:errcheck // the client may be gone
		return
	case f.Lose || f.CutAfter > 0 || f.Twice:
		w = &faultyWriter{ResponseWriter: w, fault: f, grpc: r.ProtoMajor == 2}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.alive, cancel)()
	p.handler.ServeHTTP(w, r.WithContext(ctx))
}

// asks records a request and returns how it is to go wrong.
func (p *Peer) asks(req *Request) Fault {
	req.Nth = p.note(func() int {
		n := 1
		for _, old := range p.requests {
			if old.Method == req.Method {
				n++
			}
		}
		req.Nth = n
		p.requests = append(p.requests, *req)
		return n
	})
	if p.cfg.Fault == nil {
		return Fault{}
	}
	return p.cfg.Fault(*req)
}

// note runs f under the lock and wakes whoever waits for a change.
func (p *Peer) note(f func() int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := f()
	close(p.changed)
	p.changed = make(chan struct{})
	return n
}

// Requests returns what the peer was asked, in order, of the methods named or of all.
func (p *Peer) Requests(methods ...string) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Request
	for _, r := range p.requests {
		if len(methods) == 0 || slices.Contains(methods, r.Method) {
			out = append(out, r)
		}
	}
	return out
}

// Sends returns the requests that sent a message, streaming or not.
func (p *Peer) Sends() []Request { return p.Requests(MethodSend, MethodStream) }

// WaitFor blocks until the peer has had n requests of a method, and reports whether it had before ctx ended.
func (p *Peer) WaitFor(ctx context.Context, method string, n int) bool {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if len(p.Requests(method)) >= n {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Gate holds a script or a request until it is opened.
type Gate struct {
	once sync.Once
	open chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{open: make(chan struct{})} }

// Open opens the gate for good. It may be called twice.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

func (g *Gate) wait(ctxs ...context.Context) bool {
	var a, b <-chan struct{}
	if len(ctxs) > 0 {
		a = ctxs[0].Done()
	}
	if len(ctxs) > 1 {
		b = ctxs[1].Done()
	}
	select {
	case <-g.open:
		return true
	case <-a:
	case <-b:
	}
	return false
}

// faultyWriter makes an answer go wrong.
type faultyWriter struct {
	http.ResponseWriter
	fault  Fault
	grpc   bool
	frame  []byte
	events int
}

func (w *faultyWriter) Write(b []byte) (int, error) {
	if w.fault.Lose {
		panic(http.ErrAbortHandler)
	}
	if !w.streams() {
		return w.ResponseWriter.Write(b)
	}
	w.frame = append(w.frame, b...)
	return len(b), nil
}

func (w *faultyWriter) streams() bool {
	return w.Header().Get("Content-Type") == "text/event-stream" || w.grpc
}

// Flush ends one event of a stream.
func (w *faultyWriter) Flush() {
	frame := w.frame
	w.frame = nil
	times := 1
	if w.fault.Twice {
		times = 2
	}
	for range times {
		w.ResponseWriter.Write(frame) //nolint:errcheck // the client may be gone
	}
	w.ResponseWriter.(http.Flusher).Flush()
	if w.grpc && len(frame) > 0 || bytes.Contains(frame, []byte("data:")) {
		w.events++
	}
	if w.fault.CutAfter > 0 && w.events >= w.fault.CutAfter {
		panic(http.ErrAbortHandler)
	}
}

// named gives every caller a user, so that it may list its tasks.
type named struct {
	a2asrv.PassthroughCallInterceptor
}

func (named) Before(ctx context.Context, call *a2asrv.CallContext, _ *a2asrv.Request) (context.Context, any, error) {
	call.User = a2asrv.NewAuthenticatedUser(caller, nil)
	return ctx, nil, nil
}

type executor struct{ peer *Peer }

var _ a2asrv.AgentExecutor = executor{}

// Execute implements a2asrv.AgentExecutor by the peer's script.
func (e executor) Execute(ctx context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		e.run(ctx, ec, yield, e.peer.cfg.Script)
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (e executor) Cancel(ctx context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		e.run(ctx, ec, yield, e.peer.cfg.Cancel)
	}
}

func (e executor) run(ctx context.Context, ec *a2asrv.ExecutorContext, yield func(protocol.Event, error) bool, script func(*Exchange)) {
	if !e.peer.begin() {
		yield(nil, errors.New("the peer is closed"))
		return
	}
	defer e.peer.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.peer.alive, cancel)()
	x := &Exchange{peer: e.peer, ctx: ctx, ec: ec, yield: yield, task: ec.StoredTask != nil}
	if ec.Message != nil {
		e.peer.received(x)
	}
	script(x)
	if !x.over { // an execution that ends without a final event would never end in the server
		x.State(Failed, "the script ended without an answer")
	}
}

// first is what the peer made of a message id the first time.
type first struct {
	known chan struct{} // closed when task is set
	task  protocol.TaskID

	reply *protocol.Message // set when the answer was a message
}

// dedup is a handler for which the same message id is the same task.
type dedup struct {
	a2asrv.RequestHandler
	peer *Peer
}

// claim returns what was made of a message id and whether this is the first time it is seen.
func (d dedup) claim(id string) (*first, bool) {
	d.peer.mu.Lock()
	defer d.peer.mu.Unlock()
	if f, ok := d.peer.firsts[id]; ok {
		return f, false
	}
	f := &first{known: make(chan struct{})}
	d.peer.firsts[id] = f
	return f, true
}

// SendMessage implements a2asrv.RequestHandler.
func (d dedup) SendMessage(ctx context.Context, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	f, isNew := d.claim(req.Message.ID)
	if isNew {
		return d.RequestHandler.SendMessage(ctx, req)
	}
	for ev, err := range d.again(ctx, f, req.Config != nil && req.Config.ReturnImmediately) {
		if err != nil {
			return nil, err
		}
		if res, ok := ev.(protocol.SendMessageResult); ok {
			if t, ok := res.(*protocol.Task); !ok || t.Status.State.Terminal() || req.Config != nil && req.Config.ReturnImmediately {
				return res, nil
			}
		}
	}
	return d.RequestHandler.GetTask(ctx, &protocol.GetTaskRequest{ID: f.task})
}

// SendStreamingMessage implements a2asrv.RequestHandler.
func (d dedup) SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	f, isNew := d.claim(req.Message.ID)
	if isNew {
		return d.RequestHandler.SendStreamingMessage(ctx, req)
	}
	return d.again(ctx, f, false)
}

// again tells once more what became of a message.
func (d dedup) again(ctx context.Context, f *first, now bool) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		select {
		case <-f.known:
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
		for {
			d.peer.mu.Lock()
			reply := f.reply
			d.peer.mu.Unlock()
			if reply != nil {
				yield(reply, nil)
				return
			}
			task, err := d.RequestHandler.GetTask(ctx, &protocol.GetTaskRequest{ID: f.task})
			if err == nil && (now || task.Status.State.Terminal()) {
				yield(task, nil)
				return
			}
			seen := false
			for ev, err := range d.RequestHandler.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: f.task}) {
				if err != nil {
					break
				}
				seen = true
				if !yield(ev, nil) {
					return
				}
			}
			if seen {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

func text(m *protocol.Message) string {
	var parts []string
	for _, p := range m.Parts {
		if t := p.Text(); t != "" {
			parts = append(parts, t)
		}
	}
	return strings.Join(parts, "\n")
}
