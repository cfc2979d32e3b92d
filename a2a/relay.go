package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"go.opentelemetry.io/otel/trace"

	"orchestrator/session"
	"orchestrator/tracker"
)

// Identity is how we are known to peers.
type Identity struct {
	Name string // an agent_name that means ourselves; empty: none does
	Card string // the URL of our own card; empty when we serve none
}

// Limits bound calls. Zero fields have the default named.
type Limits struct {
	MaxWait        time.Duration // of one blocking wait. Defaults to 3 minutes.
	CallTimeout    time.Duration // of one call. Defaults to 10 minutes.
	ReplyRetention time.Duration // how long after its deadline a late reply is wanted. Defaults to 24 hours.
	MaxAttempts    int           // of sending one message. Defaults to 5.
	MaxInputRounds int           // of one peer's task asking back. Defaults to 20.
	MaxDepth       int           // of a chain of agents. Defaults to 8.
	MaxGeneration  int           // of fold-backs in whose turns new calls may be made. Defaults to 4.
	CancelBudget   time.Duration // of one CancelTask. Defaults to 5 seconds.
	MaxReply       int           // of what is kept of one reply, in bytes. Defaults to 10 MiB.
	// QueueWait bounds one question about a task to a peer behind a queue, who may be away. Defaults to 30 seconds.
	QueueWait time.Duration
}

// Config configures a [Relay].
type Config struct {
	Tracker  *tracker.Tracker // required
	Store    session.Store    // required
	Registry *Registry        // required
	Limits   Limits
	Self     Identity
	// Inbound returns the lineage of the question a turn works on, when it came from another agent. It is used to refuse,
	// never to grant. Nil: no question does.
	Inbound func(*session.Turn) Lineage
	Logger  *slog.Logger // nil logs nothing
	// Tracer makes a span of each call, which peers are told in the W3C header traceparent. Nil: there are none.
	Tracer trace.Tracer
}

// Relay owns all I/O with peers: it sends calls, follows them until their reply is delivered to the tracker or no longer
// wanted, and tells peers of cancelled ones. One goroutine follows one call, until the call is settled or the context of
// its tree ends; what is then still open is taken up by the next life of the tree with [Relay.Recover].
type Relay struct {
	cfg Config
	wg  sync.WaitGroup

	mu        sync.Mutex
	calls     map[session.CallID]*follower
	beginning map[session.CallID]bool // calls that are being registered: whether they are cancelled already
	drained   bool
}

// New returns a Relay. It does no I/O. The tracker tells it of every change from now on.
func New(cfg Config) (*Relay, error) {
	if cfg.Tracker == nil || cfg.Store == nil || cfg.Registry == nil {
		return nil, errors.New("a2a: Config.Tracker, Store and Registry are required")
	}
	l := &cfg.Limits
	if min(l.MaxWait, l.CallTimeout, l.ReplyRetention, l.CancelBudget, l.QueueWait) < 0 || min(l.MaxAttempts, l.MaxInputRounds, l.MaxDepth, l.MaxGeneration, l.MaxReply) < 0 {
		return nil, errors.New("a2a: Config.Limits has a negative bound; zero is the default, anything above is allowed")
	}
	l.MaxWait = cmp.Or(l.MaxWait, 3*time.Minute)
	l.CallTimeout = cmp.Or(l.CallTimeout, 10*time.Minute)
	l.ReplyRetention = cmp.Or(l.ReplyRetention, 24*time.Hour)
	l.MaxAttempts = cmp.Or(l.MaxAttempts, 5)
	l.MaxInputRounds = cmp.Or(l.MaxInputRounds, 20)
	l.MaxDepth = cmp.Or(l.MaxDepth, 8)
	l.MaxGeneration = cmp.Or(l.MaxGeneration, 4)
	l.CancelBudget = cmp.Or(l.CancelBudget, 5*time.Second)
	l.MaxReply = cmp.Or(l.MaxReply, 10<<20)
	l.QueueWait = cmp.Or(l.QueueWait, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Relay{cfg: cfg, calls: make(map[session.CallID]*follower), beginning: make(map[session.CallID]bool)}
	cfg.Tracker.OnChange(r.changed)
	return r, nil
}

// Recover takes up every call of a claimed tree whose reply is still wanted, and every cancelled one whose peer may not
// know. It starts goroutines and doesn't wait for them.
func (r *Relay) Recover(ctx context.Context, tree *session.Tree) error {
	calls, err := r.cfg.Tracker.Follow(ctx, tree.ID)
	if err != nil {
		return fmt.Errorf("take up the calls of %s: %w", tree.ID, err)
	}
	for _, p := range calls {
		r.follow(tree, p, nil, nil)
	}
	return nil
}

// CloseTree cancels the calls of a session that closes, and waits, no longer than the cancel budget, until their peers
// have been told.
func (r *Relay) CloseTree(ctx context.Context, tree *session.Tree) error {
	if err := r.cfg.Tracker.CancelTree(ctx, tree.ID, "the session was closed"); err != nil {
		return fmt.Errorf("cancel the calls of %s: %w", tree.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Limits.CancelBudget)
	defer cancel()
	r.mu.Lock()
	var pending []*follower
	for _, f := range r.calls {
		if f.tree.ID == tree.ID {
			pending = append(pending, f)
		}
	}
	r.mu.Unlock()
	for _, f := range pending {
		select {
		case <-f.done:
		case <-ctx.Done():
			r.cfg.Logger.WarnContext(ctx, "a session closes before its peers have answered that its calls are cancelled", "session", tree.ID)
			return nil
		}
	}
	return nil
}

// CancelCall cancels one call and returns it as it is then. The peer is told by the process that follows the call.
func (r *Relay) CancelCall(ctx context.Context, id session.CallID) (tracker.PendingA2ATask, error) {
	return r.cfg.Tracker.Cancel(ctx, id, "cancelled by the user")
}

// Drain waits until nothing is followed any more, which needs the contexts of all trees to have ended. Nothing is
// followed after it. It may be called twice.
func (r *Relay) Drain() {
	r.mu.Lock()
	r.drained = true
	r.mu.Unlock()
	r.wg.Wait()
}

// follow starts to follow a call unless it is followed already under the tree's lease. fresh is what to send of a call that
// was registered just now; without it an earlier life may have sent the call. span is the call's, which the follower ends;
// nil: it makes one.
func (r *Relay) follow(tree *session.Tree, p tracker.PendingA2ATask, fresh *request, span trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	previous := r.calls[p.ID] // under an earlier lease, and soon at its end
	if r.drained || previous != nil && previous.tree == tree || tree.Context().Err() != nil {
		return
	}
	resumed := fresh == nil
	f := &follower{
		r: r, tree: tree, id: p.ID, scope: p.Scope(), peer: p.Peer, replyBy: p.ReplyBy, contextID: p.ContextID, request: fresh,
		attempt: max(p.Attempt, 1), resumed: resumed, queued: p.Transport == BindingAMQP, sent: resumed, taskID: p.PeerTaskID, cancelled: p.CancelOwed() || r.beginning[p.ID],
		done: make(chan struct{}), span: span,
	}
	if span == nil {
		f.span = r.resumeSpan(p)
	}
	f.interrupt = func(error) {}
	r.calls[p.ID] = f
	r.wg.Go(func() {
		defer func() {
			r.mu.Lock()
			if r.calls[f.id] == f {
				delete(r.calls, f.id)
			}
			r.mu.Unlock()
			close(f.done)
		}()
		if previous != nil {
			<-previous.done
		}
		growStack(0)
		f.run()
	})
}

// growStack makes room for what a follower's requests and commits need, while there is next to nothing on the stack. Else it
// would grow from 2 to 4, 8 and 16 KiB with more and more to move each time, which costs as much as all of the tracker.
//
//go:noinline
func growStack(n int) byte {
	var room [12 << 10]byte
	return room[n]
}

// changed is told by the tracker of every call whose reply is no longer wanted.
func (r *Relay) changed(p tracker.PendingA2ATask) {
	r.mu.Lock()
	f := r.calls[p.ID]
	if _, here := r.beginning[p.ID]; here && f == nil && p.CancelOwed() {
		r.beginning[p.ID] = true
	}
	r.mu.Unlock()
	if f == nil {
		return
	}
	if p.CancelOwed() {
		f.cancel()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.settling { // else it is on its way out, and its connection is good for the next call
		f.interrupt(errSettled)
	}
}

// begin has a cancel of a call kept that comes before the call is followed, until the returned function is called.
func (r *Relay) begin(id session.CallID) (begun func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginning[id] = false
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.beginning, id)
	}
}

// request is what the tracker keeps for us with a call.
type request struct {
	Message *protocol.Message `json:"message"`
	// Seen names the status of the task at which this message answers: seen again, it is no reply to it.
	Seen string `json:"seen,omitempty"`
}

func (q request) marshal() (json.RawMessage, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("marshal a message: %w", err)
	}
	return b, nil
}
