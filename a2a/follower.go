package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"orchestrator/session"
	"orchestrator/tracker"
)

// The reasons a follower stops.
var (
	errSettled   = errors.New("the call is settled")
	errCancelled = errors.New("the call is cancelled")
	errReplyBy   = errors.New("a reply is no longer wanted")
	errEnded     = errors.New("the stream ended before the task did")
	errSilent    = errors.New("nothing was heard for a while")
)

const (
	pollFirst = time.Second
	pollMost  = 30 * time.Second
	// queuePollMost is the longest pause between questions to a peer behind a queue: they stay in it while the peer is away,
	// and its answer comes without them.
	queuePollMost = 5 * time.Minute
	// queuePatience is how long a message is sent again and again to a broker that isn't there.
	queuePatience = 30 * time.Second
	// dialTries is how often a peer is tried that nothing has been sent to; dialWait is the first pause between.
	dialTries = 3
	dialWait  = 400 * time.Millisecond
	// progressBudget is how many bytes of a status a progress event quotes.
	progressBudget = 400
)

// follower follows one call from its sending to its reply.
type follower struct {
	r         *Relay
	tree      *session.Tree
	id        session.CallID
	scope     session.Scope
	peer      string
	replyBy   time.Time
	contextID string
	request   *request // of a call not sent yet; nil: read it
	resumed   bool
	queued    bool // it goes over a queue, as far as is known
	attempt   int
	seen      string // the status that is no reply
	auth      string // the AUTH_REQUIRED status that was reported
	told      string // the status that was told as progress
	owed      bool   // the reply came to a cancelled call, and the peer has yet to be told
	done      chan struct{}
	span      trace.Span // of the call

	mu        sync.Mutex
	fate      string // of the reply that was delivered,
	state     string // with which the call became this
	failure   bool   // and which says that there is no answer
	taskID    string
	noted     bool // the tracker knows taskID
	sent      bool // something may have been sent
	cancelled bool // the peer has to be told
	settling  bool // the reply is being delivered
	interrupt context.CancelCauseFunc
}

// run follows the call until it is settled or its tree's context ends. Whatever goes wrong inside is a reply.
//
// Most of a call's life is spent inside run, follow and send, waiting for a stream. They keep little on the stack, which
// decides what a parked call costs.
func (f *follower) run() {
	base, ctx, stop := f.contexts()
	defer stop()
	defer f.endSpan()
	defer f.recovered(base)
	err := f.renew()
	switch {
	case err != nil:
	case f.start():
		err = f.follow(ctx)
	default:
		err = errCancelled
	}
	f.finish(base, context.Cause(ctx), err)
}

// contexts returns a context that lasts as long as a reply is wanted, and one under it for the I/O, which may be interrupted.
func (f *follower) contexts() (base, ctx context.Context, stop func()) {
	base, stopBase := context.WithDeadlineCause(f.traced(f.tree.Context()), f.replyBy, errReplyBy)
	ctx, interrupt := context.WithCancelCause(base)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupt = interrupt
	return base, ctx, func() {
		interrupt(errSettled)
		stopBase()
	}
}

// renew reads a call that was registered earlier once more. Whoever had it taken up may have read it before another follower,
// which is gone by now, delivered its reply: the peer would be asked for what nobody waits for, and a message that is no
// longer kept be looked for until ReplyBy.
func (f *follower) renew() error {
	if !f.resumed {
		return nil
	}
	var p tracker.PendingA2ATask
	err := f.persist("can't read a call; trying again", func(ctx context.Context) (err error) {
		p, err = f.r.cfg.Tracker.Get(ctx, f.id)
		return err
	})
	if err == nil && !p.Wanted() && !p.CancelOwed() {
		err = errSettled
	}
	if err != nil {
		f.span = noop.Span{} // nothing is followed
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempt, f.contextID = max(p.Attempt, 1), p.ContextID
	f.taskID, f.cancelled = p.PeerTaskID, f.cancelled || p.CancelOwed()
	return nil
}

// start reports whether the call has to be followed: not if it was cancelled in an earlier life, or before anything was
// sent.
func (f *follower) start() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = f.taskID != ""
	return !f.cancelled || f.taskID == "" && f.sent
}

// finish does what is left to do when following has ended with err, and the I/O was interrupted for cause, if it was.
func (f *follower) finish(base context.Context, cause, err error) {
	switch {
	case err == nil && f.owed:
		err = errCancelled
	case err != nil && cause != nil:
		err = cause
	}
	switch {
	case err == nil, errors.Is(err, errSettled), base.Err() != nil:
	case errors.Is(err, errCancelled):
		f.tellCancelled(base)
	default:
		f.r.cfg.Logger.ErrorContext(base, "a call can't be followed", f.attrs("err", err)...)
	}
}

// recovered makes a panic a reply. It has to be deferred itself.
func (f *follower) recovered(ctx context.Context) {
	if v := recover(); v != nil {
		f.r.cfg.Logger.ErrorContext(ctx, "following a call panicked", f.attrs("err", fmt.Sprint(v), "stack", string(debug.Stack()))...)
		f.fail(fmt.Sprintf("the call to peer '%s' failed inside: %v", f.peer, v), true) //nolint:errcheck // there is no more to do
	}
}

func (f *follower) attrs(more ...any) []any {
	return append([]any{"session", f.scope.Root, "agent", f.scope.Agent, "task", f.id, "peer", f.peer}, more...)
}

// cancel has the peer told that the call is cancelled: at once when its task is known or nothing was sent, else as soon
// as the task is known.
func (f *follower) cancel() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelled = true
	if f.taskID != "" || !f.sent {
		f.interrupt(errCancelled)
	}
}

func (f *follower) isCancelled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cancelled
}

func (f *follower) task() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taskID
}

// follow returns nil when the call is settled.
func (f *follower) follow(ctx context.Context) error {
	s := &sending{uncertain: f.resumed}
	for {
		if f.task() != "" {
			return f.attach(ctx)
		}
		if s.uncertain {
			where, err := f.find(ctx)
			if err != nil {
				return err
			}
			if where == withPeer {
				continue
			}
			if f.isCancelled() {
				return errCancelled
			}
			if f.queued {
				// The peer has it no more, whose answer may have come while nobody listened.
				if err := sleep(ctx, f.grace()); err != nil {
					return err
				}
			}
			if f.spent() && !f.queued {
				return f.fail(fmt.Sprintf("outcome unknown: '%s' may have received it", f.peer), false)
			}
			if f.spent() || s.confirmed && where == untold {
				if err := f.awaitReply(ctx); err != nil {
					return err
				}
				continue
			}
			if err := f.countAttempt(); err != nil {
				return err
			}
			s.uncertain, s.confirmed = false, false
		}
		settled, err := f.send(ctx)
		if settled {
			return nil
		}
		if settled, err := f.failed(ctx, s, err); settled || err != nil {
			return err
		}
	}
}

// sending is where a follower stands with a message that has no task yet.
type sending struct {
	uncertain bool      // it is unknown whether the message arrived
	confirmed bool      // but a broker has taken it
	tries     int       // without a connection,
	since     time.Time // the first of them
	refreshed bool      // the card was fetched again
	pause     *backoff.ExponentialBackOff
}

// failed decides what becomes of a message that wasn't settled by sending it: the call has a reply now (settled), it can't
// go on (err), or there is one more thing to try.
func (f *follower) failed(ctx context.Context, s *sending, err error) (settled bool, _ error) {
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, errCancelled):
		return false, err
	case f.task() != "":
		f.r.cfg.Logger.DebugContext(ctx, "a stream broke and is taken up again", f.attrs("err", err)...)
		return false, nil
	}
	if s.pause == nil {
		s.pause = newPause(dialWait, pollMost)
	}
	earlier := f.attempt > 1 || f.resumed // something may have arrived, so that only the peer's word is a failure
	wait := s.pause.NextBackOff()
	switch o := outcomeOf(err); o.kind {
	case queued:
		if errors.Is(err, errSilent) {
			return false, f.awaitReply(ctx) // nothing was lost: the peer is away, or takes its time
		}
		s.uncertain, s.confirmed = true, true
		f.r.cfg.Logger.DebugContext(ctx, "a message is in the peer's queue, and is looked for", f.attrs("err", err)...)
		return false, nil
	case notSent:
		if s.tries++; s.tries == 1 {
			s.since = time.Now()
		}
		enough := s.tries >= dialTries && o.after == 0 && (!f.queued || time.Since(s.since) >= queuePatience)
		if !earlier && (enough || o.final) {
			return true, f.fail(fmt.Sprintf("peer '%s' can't be reached: %v. Nothing was sent. It may help to try again later.", f.peer, err), true)
		}
		wait = max(wait, o.after)
	case gone:
		changed := false
		if !s.refreshed {
			s.refreshed = true
			changed, _ = f.r.cfg.Registry.refresh(ctx, f.peer) // the old card stays when there is no new one
		}
		if !changed && !earlier {
			return true, f.fail(fmt.Sprintf("peer '%s' refused the call: %v. Trying again won't help; its address may be wrong.", f.peer, err), false)
		}
		if changed {
			wait = 0
		}
	case refused:
		if !earlier || o.peers {
			return true, f.fail(refusal(f.peer, err, earlier))
		}
	case unknown:
		s.uncertain = true
		f.r.cfg.Logger.DebugContext(ctx, "it is unknown whether a message arrived", f.attrs("err", err)...)
		return false, nil
	}
	return false, sleep(ctx, wait)
}

// refusal says that a peer turned a message down; when it was sent earlier, too, that is not the last word on it.
func refusal(peer string, err error, earlier bool) (text string, retryable bool) {
	switch {
	case earlier:
		return fmt.Sprintf("outcome unknown: '%s' may have received it; it refused it when it was sent again: %v", peer, err), false
	case errors.Is(err, protocol.ErrInternalError) || errors.Is(err, protocol.ErrServerError):
		return fmt.Sprintf("peer '%s' failed: %v. It may help to try again later.", peer, err), true
	}
	return fmt.Sprintf("peer '%s' refused the call: %v. Trying the same again won't help.", peer, err), false
}

// spent reports whether the message mustn't be sent once more.
func (f *follower) spent() bool {
	peer, err := f.r.cfg.Registry.Lookup(f.peer)
	return err != nil || peer.Resend == ResendNever || f.attempt >= f.r.cfg.Limits.MaxAttempts
}

// countAttempt notes that the message is sent once more.
func (f *follower) countAttempt() error {
	f.attempt++
	return f.commit(func(ctx context.Context) error {
		_, err := f.r.cfg.Tracker.Sent(ctx, f.id, "", "", f.attempt)
		return err
	})
}

// load returns the message to send.
func (f *follower) load(ctx context.Context) (*protocol.Message, error) {
	q := f.request
	f.request = nil
	if q == nil {
		p, err := f.r.cfg.Tracker.Get(ctx, f.id)
		if err != nil {
			return nil, err
		}
		q = new(request)
		if err := json.Unmarshal(p.Request, q); err != nil {
			return nil, fmt.Errorf("read the message of call %s: %w", f.id, err)
		}
	}
	if q.Message == nil {
		return nil, fmt.Errorf("call %s has no message", f.id)
	}
	f.seen = q.Seen
	return q.Message, nil
}

// send sends the message and follows the answer for as long as it streams. When it isn't settled then, err says why.
func (f *follower) send(ctx context.Context) (settled bool, err error) {
	e, err := f.prepare(ctx)
	if err != nil {
		return false, err
	}
	if !e.link.streaming {
		return e.once()
	}
	if e.link.queued {
		return e.listen()
	}
	for ev, err := range e.link.SendStreamingMessage(e.ctx, e.req) {
		if settled, err := e.take(ev, err); settled || err != nil {
			return settled, err
		}
	}
	return false, errEnded
}

// exchange is one sending of a message and what comes back.
type exchange struct {
	f    *follower
	ctx  context.Context //nolint:containedctx // of the one request
	link *link
	req  *protocol.SendMessageRequest
	a    *assembly
}

// take takes what a stream yields.
func (e *exchange) take(ev protocol.Event, err error) (settled bool, _ error) {
	if err != nil {
		return false, e.f.notSentAfterAll(err)
	}
	e.req.Message = nil // the peer has it, and a wait may be long
	return e.f.event(e.ctx, e.link, e.a, ev)
}

// once sends to a peer that can't stream.
func (e *exchange) once() (settled bool, err error) {
	res, err := e.link.SendMessage(e.ctx, e.req)
	if err != nil {
		return false, e.f.notSentAfterAll(err)
	}
	settled, err = e.f.event(e.ctx, e.link, e.a, res)
	if err == nil && !settled && e.a.taskID == "" {
		err = errEnded
	}
	return settled, err
}

// prepare connects and returns what to send; with a Config to a peer that can't stream.
func (f *follower) prepare(ctx context.Context) (*exchange, error) {
	link, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	m, err := f.load(ctx)
	if err != nil {
		return nil, &NotSentError{Err: err}
	}
	req := &protocol.SendMessageRequest{Message: m}
	if !link.streaming && !link.queued {
		req.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cancelled {
		return nil, errCancelled
	}
	f.sent = true
	return &exchange{f: f, ctx: f.r.cfg.Registry.activating(ctx, f.peer), link: link, req: req, a: f.assembly(m.TaskID == "")}, nil
}

// notSentAfterAll takes back that something may have been sent, when it certainly wasn't.
func (f *follower) notSentAfterAll(err error) error {
	if k := outcomeOf(err).kind; k != unknown && k != queued && f.attempt == 1 && !f.resumed {
		f.mu.Lock()
		f.sent = false
		cancelled := f.cancelled
		f.mu.Unlock()
		if cancelled {
			return errCancelled
		}
	}
	return err
}

func (f *follower) assembly(whole bool) *assembly {
	return &assembly{whole: whole, limit: f.r.cfg.Limits.MaxReply}
}

// event takes one thing the peer said. settled means that the call has its reply.
func (f *follower) event(ctx context.Context, client *link, a *assembly, ev protocol.Event) (settled bool, err error) {
	if ev == nil {
		return false, nil
	}
	progress := a.add(ev)
	f.mu.Lock()
	if f.taskID == "" {
		f.taskID = a.taskID
	}
	note := f.taskID != "" && !f.noted
	owed := f.cancelled && f.taskID != ""
	f.mu.Unlock()
	interrupted := a.state == protocol.TaskStateInputRequired
	if interrupted && f.seen != "" && f.seen == a.mark() {
		interrupted, progress = false, "" // the question this message answers
	}
	if a.message != nil || a.state.Terminal() || interrupted {
		if !a.whole && a.message == nil && !interrupted {
			a = f.complete(ctx, client, a)
		}
		reply, files := a.reply(f.scope.ToolCall)
		return true, f.deliver(reply, files)
	}
	if note {
		err := f.commit(func(ctx context.Context) error {
			_, err := f.r.cfg.Tracker.Sent(ctx, f.id, a.taskID, a.contextID, 0)
			return err
		})
		if err != nil {
			return false, err
		}
		f.mu.Lock()
		f.noted, owed = true, f.cancelled
		f.mu.Unlock()
	}
	if owed {
		return false, errCancelled
	}
	if a.state == protocol.TaskStateAuthRequired && f.auth != a.mark()+"." {
		f.auth = a.mark() + "." // a status without a name is one, too
		reply, files := a.reply(f.scope.ToolCall)
		err := f.commit(func(ctx context.Context) error {
			_, err := f.r.cfg.Tracker.AuthRequired(ctx, f.id, reply, files...)
			return err
		})
		if err != nil {
			return false, err
		}
	}
	if progress != "" && f.told != a.mark()+progress {
		f.told = a.mark() + progress
		f.tree.Publish(f.scope.Event(session.EventInvocationProgress,
			session.ToolProgress{CallID: f.id, Peer: f.peer, Text: session.Shorten(progress, progressBudget, "")}))
	}
	return false, nil
}

// complete reads the whole task when a stream told only its end.
func (f *follower) complete(ctx context.Context, client *link, a *assembly) *assembly {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	t, err := client.GetTask(ctx, &protocol.GetTaskRequest{ID: protocol.TaskID(a.taskID)})
	if err != nil || t.Status.State != a.state {
		return a
	}
	whole := f.assembly(false)
	whole.add(t)
	return whole
}

// find looks whether the peer has a task for our message. It asks until the peer answers; an error says that ctx has ended
// before.
func (f *follower) find(ctx context.Context) (whereabouts, error) {
	pause := f.newPause()
	on := f.continued(ctx)
	for {
		task, err := f.look(ctx, on)
		switch {
		case err == nil && task == nil:
			return absent, nil
		case err == nil:
			return withPeer, f.found(task)
		case ctx.Err() != nil:
			return untold, context.Cause(ctx)
		}
		o := outcomeOf(err)
		if o.peers || o.kind == refused || o.kind == gone {
			if _, noCard := errors.AsType[*CardError](err); !noCard {
				return untold, nil // it can't list, or won't
			}
		}
		if err := sleep(ctx, max(pause.NextBackOff(), o.after)); err != nil {
			return untold, err
		}
	}
}

// whereabouts is what the peer says of a message that was sent.
type whereabouts int

const (
	untold   whereabouts = iota // it doesn't say
	absent                      // it has no task for it
	withPeer                    // it has
)

// continued returns the task that our message continues, if it does.
func (f *follower) continued(ctx context.Context) protocol.TaskID {
	if m, err := f.load(ctx); err == nil {
		return m.TaskID
	}
	return ""
}

// found notes the peer's task for our message.
func (f *follower) found(task *protocol.Task) error {
	f.mu.Lock()
	f.taskID = string(task.ID)
	f.noted = true
	f.mu.Unlock()
	return f.commit(func(ctx context.Context) error {
		_, err := f.r.cfg.Tracker.Sent(ctx, f.id, string(task.ID), task.ContextID, 0)
		return err
	})
}

// maxPages bounds the pages of a context's tasks that are looked through.
const maxPages = 20

func (f *follower) look(ctx context.Context, on protocol.TaskID) (*protocol.Task, error) {
	client, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := f.bounded(ctx)
	defer cancel()
	if on != "" {
		t, err := client.GetTask(ctx, &protocol.GetTaskRequest{ID: on})
		if err != nil || !asks(t, f.id) {
			return nil, err
		}
		return t, nil
	}
	history := 100
	req := &protocol.ListTasksRequest{ContextID: f.contextID, HistoryLength: &history, PageSize: 50}
	var found *protocol.Task
	for range maxPages {
		page, err := client.ListTasks(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tasks {
			// Of several, which a message sent twice may make, one that has an answer is best.
			if asks(t, f.id) && (found == nil || t.Status.State == protocol.TaskStateCompleted) {
				found = t
			}
		}
		if page.NextPageToken == "" {
			break
		}
		req.PageToken = page.NextPageToken
	}
	return found, nil
}

// asks reports whether a message is in a task's history.
func asks(t *protocol.Task, id session.CallID) bool {
	if t == nil {
		return false
	}
	for _, m := range t.History {
		if m != nil && m.ID == string(id) {
			return true
		}
	}
	return false
}

// attach follows a task that is known: by subscribing to it while that works, else by asking for it again and again.
func (f *follower) attach(ctx context.Context) error {
	w := f.attached(ctx)
	for {
		if f.isCancelled() {
			return errCancelled
		}
		client, err := f.connect(ctx)
		if err == nil && client.streaming && w.subscribe {
			began := time.Now()
			settled, got, err := f.subscribe(ctx, client, w.id)
			if settled || err != nil {
				return err
			}
			w.subscribed(got, began)
		}
		if settled, err := w.poll(ctx, client, err); settled || err != nil {
			return err
		}
	}
}

// watching is where a follower stands with a task that is known.
type watching struct {
	f         *follower
	id        protocol.TaskID
	subscribe bool // it is worth trying
	failed    bool // the peer couldn't be asked the last time
	missing   bool // the peer didn't know the task the last time
	pause     *backoff.ExponentialBackOff
}

func (f *follower) attached(ctx context.Context) *watching {
	if f.resumed {
		if _, err := f.load(ctx); err != nil && !f.isCancelled() { // for the status that is no reply
			f.r.cfg.Logger.DebugContext(ctx, "a call is followed without its message", f.attrs("err", err)...)
		}
	}
	return &watching{f: f, id: protocol.TaskID(f.task()), subscribe: true, pause: f.newPause()}
}

// subscribed says that a stream has ended, and whether it told anything.
func (w *watching) subscribed(got bool, began time.Time) {
	w.subscribe = got
	if time.Since(began) > 2*pollFirst {
		w.pause.Reset()
	}
}

// poll asks for the task, unless the peer couldn't be connected to (err), and pauses when that settled nothing.
func (w *watching) poll(ctx context.Context, client *link, err error) (settled bool, _ error) {
	f := w.f
	if err == nil {
		var t *protocol.Task
		if t, err = f.getTask(ctx, client, w.id); err == nil {
			w.missing = false
			if settled, err := f.event(ctx, client, f.assembly(false), t); settled || err != nil {
				return settled, err
			}
		}
	}
	var after time.Duration
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err == nil:
		w.subscribe = w.subscribe || w.failed // the peer is back: its streams may be, too
		w.failed = false
	case errors.Is(err, protocol.ErrTaskNotFound) && f.queued && !w.missing:
		w.missing, after = true, f.grace() // its answer may have come while nobody listened
		w.pause.Reset()
	case errors.Is(err, protocol.ErrTaskNotFound):
		return true, f.fail(fmt.Sprintf("peer '%s' no longer knows the task", f.peer), false)
	case errors.Is(err, ErrTooLarge):
		return true, f.fail(fmt.Sprintf("peer '%s' said more than can be taken: %v. Ask it for less at a time.", f.peer, ErrTooLarge), false)
	default:
		f.r.cfg.Logger.DebugContext(ctx, "can't ask for a task", f.attrs("err", err)...)
		o := outcomeOf(err)
		after, w.failed = o.after, true
		if o.kind == gone {
			f.r.cfg.Registry.refresh(ctx, f.peer) //nolint:errcheck // the old card stays when there is no new one
		}
	}
	return false, sleep(ctx, max(w.pause.NextBackOff(), after))
}

// subscribe follows a task's stream to its end. got says that it told anything.
func (f *follower) subscribe(ctx context.Context, client *link, id protocol.TaskID) (settled, got bool, err error) {
	a := f.assembly(false)
	for ev, err := range client.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: id}) {
		if err != nil {
			break // GetTask tells what it means
		}
		got = true
		if settled, err := f.event(ctx, client, a, ev); settled || err != nil {
			return settled, got, err
		}
	}
	return false, got, nil
}

// tellCancelled tells the peer that the call is cancelled, until it has answered or the call is out of time.
func (f *follower) tellCancelled(ctx context.Context) {
	pause := newPause(pollFirst, 5*time.Minute)
	for {
		answered, err := f.cancelTask(ctx)
		if err != nil && ctx.Err() == nil {
			f.r.cfg.Logger.WarnContext(ctx, "can't tell a peer that a call is cancelled", f.attrs("err", err)...)
		}
		if answered || sleep(ctx, pause.NextBackOff()) != nil {
			return
		}
		if p, err := f.r.cfg.Tracker.Get(ctx, f.id); err == nil && !p.CancelOwed() {
			return // its reply has come meanwhile
		}
	}
}

func (f *follower) cancelTask(ctx context.Context) (answered bool, err error) {
	id := protocol.TaskID(f.task())
	if id != "" {
		ctx, cancel := context.WithTimeout(ctx, f.r.cfg.Limits.CancelBudget)
		defer cancel()
		client, err := f.connect(ctx)
		if err != nil {
			return false, err
		}
		t, err := client.CancelTask(ctx, &protocol.CancelTaskRequest{ID: id})
		if errors.Is(err, protocol.ErrTaskNotCancelable) {
			t, err = client.GetTask(ctx, &protocol.GetTaskRequest{ID: id})
		}
		if err != nil && !outcomeOf(err).peers {
			return false, err
		}
		if err == nil && t.Status.State.Terminal() && t.Status.State != protocol.TaskStateCanceled {
			a := f.assembly(false)
			a.add(t)
			reply, files := a.reply(f.scope.ToolCall)
			return true, f.deliver(reply, files) // kept on the call
		}
	}
	return true, f.commit(func(ctx context.Context) error {
		_, err := f.r.cfg.Tracker.CancelAnswered(ctx, f.id)
		return err
	})
}

// fail delivers a reply that says why there is none.
func (f *follower) fail(text string, retryable bool) error {
	return f.deliver(tracker.Reply{State: "failed", Text: text, Failed: true, Retryable: retryable, TaskID: f.task()}, nil)
}

// deliver gives the tracker the reply. Of a cancelled call the peer may still have to be told.
func (f *follower) deliver(r tracker.Reply, files []session.Artifact) error {
	f.mu.Lock()
	f.settling = true
	f.mu.Unlock()
	return f.commit(func(ctx context.Context) error {
		fate, p, err := f.r.cfg.Tracker.Deliver(ctx, f.id, r, files...)
		if err == nil {
			f.owed = p.CancelOwed()
			f.ended(fate, p, r)
			f.r.cfg.Logger.DebugContext(ctx, "a reply was delivered", f.attrs("fate", fate, "state", p.State, "reply", r.State)...)
		}
		return err
	})
}

// commit writes until it succeeds or the tree is no longer ours. An interruption of the I/O doesn't cut it off: what the
// peer said is written down first.
func (f *follower) commit(write func(context.Context) error) error {
	return f.persist("can't write what a peer said; trying again", write)
}

// persist reads or writes until the store does it or the tree is no longer ours. failed is logged of each time it doesn't.
func (f *follower) persist(failed string, do func(context.Context) error) error {
	ctx := f.tree.Context()
	pause := newPause(50*time.Millisecond, 5*time.Second)
	for {
		err := do(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, session.ErrNotFound):
			return errSettled // it was deleted with its tree
		case ctx.Err() != nil || errors.Is(err, session.ErrClosed):
			return err
		}
		f.r.cfg.Logger.WarnContext(ctx, failed, f.attrs("err", err)...)
		if sleep(ctx, pause.NextBackOff()) != nil {
			return err
		}
	}
}

// newPause returns pauses that double from first to most, each a little random so that callers don't move in step.
func newPause(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = first, most, 2, 0.1
	b.Reset()
	return b
}

// sleep waits, and returns the cause when ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
