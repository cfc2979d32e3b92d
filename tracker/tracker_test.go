package tracker_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tracker"
)

// world is a tree with a user's turn and one child's, and a tracker.
type world struct {
	store session.Store
	*tracker.Tracker
	root, child *session.Turn
	calls       map[session.ID]int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, session.NewMemory())
}

func newWorldOn(t *testing.T, store session.Store) *world {
	t.Helper()
	w := &world{store: store, Tracker: newTracker(t, store), calls: make(map[session.ID]int)}
	w.root = sessiontest.NewTurn(t, store)
	w.child = sessiontest.NewChildTurn(t, w.root, 1)
	return w
}

func newTracker(t *testing.T, store session.Store) *tracker.Tracker {
	t.Helper()
	tr, err := tracker.New(tracker.Config{Store: store, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// request is the nth call of a turn's agent.
func (w *world) request(turn *session.Turn, deadline time.Duration) tracker.Request {
	w.calls[turn.Agent]++
	r := tracker.Request{
		ToolCall: session.MintToolCallID(turn.Agent, 100+w.calls[turn.Agent]), Peer: "advisor", Transport: "http",
		Mode: session.ModeAsync, Deadline: time.Now().Add(deadline), ContextID: "ctx", Message: json.RawMessage(`{"text":"ask"}`),
		Question: "what is it?", AskerName: "the primary",
	}
	if turn.Subagent() {
		r.Mode, r.AskerName = session.ModeBlocking, "look it up"
	}
	return r
}

func (w *world) register(t *testing.T, turn *session.Turn, deadline time.Duration) tracker.PendingA2ATask {
	t.Helper()
	p, existed, err := w.Register(t.Context(), turn, w.request(turn, deadline))
	if err != nil || existed {
		t.Fatalf("Register() = existed %v, %v", existed, err)
	}
	return p
}

func (w *world) deliver(t *testing.T, id session.CallID, text string) tracker.Delivery {
	t.Helper()
	d, _, err := w.Deliver(t.Context(), id, tracker.Reply{State: "completed", Text: text, TaskID: "task-1"})
	if err != nil {
		t.Fatalf("Deliver() = %v", err)
	}
	return d
}

func (w *world) state(t *testing.T, id session.CallID) session.State {
	t.Helper()
	p, err := w.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p.State
}

// told returns the invocation events of a call, as type and data.state.
func (w *world) told(t *testing.T, id session.CallID) []string {
	t.Helper()
	events, err := w.store.Events(t.Context(), session.EventQuery{Tree: w.root.Root})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range events {
		if !strings.HasPrefix(string(e.Type), "invocation.") {
			continue
		}
		var inv session.Invocation
		if err := e.Decode(&inv); err != nil {
			t.Fatal(err)
		}
		if inv.CallID != id {
			continue
		}
		p, err := w.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if e.AgentID != p.SessionID || e.ToolCallID != p.ToolCallID || e.OriginTurn != p.OriginTurn || e.ParentAgentID != p.ParentID || e.Root != (p.SessionID == p.RootID) {
			t.Errorf("%s has the envelope %+v, want the caller's", e.Type, e)
		}
		told = append(told, strings.TrimSuffix(strings.TrimPrefix(string(e.Type), "invocation.")+" "+inv.State, " "))
	}
	return told
}

// items returns the items of the tree by key.
func (w *world) items(t *testing.T) map[string]session.ItemBody {
	t.Helper()
	recs, err := w.store.Records(t.Context(), session.RecordQuery{Tree: w.root.Root, Kind: session.KindItem})
	if err != nil {
		t.Fatal(err)
	}
	items := make(map[string]session.ItemBody)
	for _, r := range recs {
		var b session.ItemBody
		if err := r.Decode(&b); err != nil {
			t.Fatal(err)
		}
		if r.Owner != w.root.Root || r.Origin != w.root.OriginTurn {
			t.Errorf("item %s goes to %s, origin %s, want the root session and the user's turn", r.Key, r.Owner, r.Origin)
		}
		items[r.Key] = b
	}
	return items
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestRegisterIsIdempotentByTheToolCall(t *testing.T) {
	w := newWorld(t)
	r := w.request(w.child, time.Minute)
	p, existed, err := w.Register(t.Context(), w.child, r)
	if err != nil || existed {
		t.Fatalf("Register() = %v, %v", existed, err)
	}
	want(t, "id", p.ID, session.CallIDFor(r.ToolCall))
	want(t, "state", p.State, tracker.StateWaiting)
	again, existed, err := w.Register(t.Context(), w.child, r)
	if err != nil || !existed {
		t.Fatalf("Register() again = %v, %v, want it to exist", existed, err)
	}
	want(t, "the call found", again, p)
	w.deliver(t, p.ID, "here")
	again, existed, err = w.Register(t.Context(), w.child, r)
	if err != nil || !existed || again.State != tracker.StateAnswered {
		t.Fatalf("Register() after the reply = %s, %v, %v, want answered", again.State, existed, err)
	}
	want(t, "events", w.told(t, p.ID), []string{"dispatched", "replied completed"})
}

func TestRegisterRefusesWhatIsIncomplete(t *testing.T) {
	w := newWorld(t)
	for _, spoil := range []func(*tracker.Request){
		func(r *tracker.Request) { r.ToolCall = "" }, func(r *tracker.Request) { r.Peer = "" },
		func(r *tracker.Request) { r.Deadline = time.Time{} }, func(r *tracker.Request) { r.Mode = "later" },
	} {
		r := w.request(w.child, time.Minute)
		spoil(&r)
		if _, _, err := w.Register(t.Context(), w.child, r); err == nil {
			t.Errorf("Register(%+v) = nil, want an error", r)
		}
	}
}

func TestGuardCountsOnlyCallsThatAreWaitingOrOpen(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	first := w.register(t, w.child, time.Minute)
	_, _, err := w.Register(ctx, w.child, w.request(w.child, time.Minute))
	if full, ok := errors.AsType[*tracker.FullError](err); !ok || full.Error() != "a call to 'advisor' is still open; wait for its result" {
		t.Fatalf("a second call of a subagent = %v, want a FullError that names the peer", err)
	}
	if _, err := w.Abandon(ctx, first.ID, tracker.WhyDeadline); err != nil {
		t.Fatal(err)
	}
	w.register(t, w.child, time.Minute) // the abandoned one doesn't count

	var open []session.CallID
	for range 4 {
		open = append(open, w.register(t, w.root, time.Minute).ID)
	}
	if _, _, err = w.Register(ctx, w.root, w.request(w.root, time.Minute)); err == nil {
		t.Fatal("a fifth call of a primary = nil, want a FullError")
	}
	if _, err := w.Overdue(ctx, open[0]); err != nil {
		t.Fatal(err)
	}
	w.register(t, w.root, time.Minute) // nor does the overdue one
}

func TestRegisterNeedsAStartedTurn(t *testing.T) {
	w := newWorld(t)
	if _, err := w.child.Tree().EndTurn(t.Context(), w.child, session.Outcome{State: session.StateCompleted}, w.EndPart(false)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Register(t.Context(), w.child, w.request(w.child, time.Minute)); !errors.Is(err, session.ErrTurnEnded) {
		t.Fatalf("Register() after the turn's end = %v, want ErrTurnEnded", err)
	}
}

func TestWaitReturnsTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.register(t, w.child, time.Minute)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(10 * time.Second)
			w.deliver(t, p.ID, "forty-two")
		})
		began := time.Now()
		got, err := w.Wait(t.Context(), p.ID)
		if err != nil || got.State != tracker.StateAnswered || got.Reply.Text != "forty-two" {
			t.Fatalf("Wait() = %s %+v, %v, want the reply", got.State, got.Reply, err)
		}
		want(t, "waited", time.Since(began), 10*time.Second)
		want(t, "peer's task", got.PeerTaskID, "task-1")
		wg.Wait()
	})
}

// countingStore counts the reads of single records.
type countingStore struct {
	session.Store

	reads atomic.Int64
}

func (s *countingStore) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	s.reads.Add(1)
	return s.Store.Record(ctx, kind, key)
}

func TestWaitReadsNothingWhenTheReplyIsDeliveredHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{Store: session.NewMemory()}
		w := newWorldOn(t, store)
		p := w.register(t, w.child, time.Minute)
		var got [2]tracker.PendingA2ATask
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				var err error
				if got[i], err = w.Wait(t.Context(), p.ID); err != nil {
					t.Errorf("Wait() = %v, want the reply", err)
				}
			})
		}
		synctest.Wait()
		w.deliver(t, p.ID, "the answer")
		delivered := store.reads.Load()
		wg.Wait()
		if n := store.reads.Load() - delivered; n != 0 {
			t.Errorf("two waits read %d records after the reply, want none", n)
		}
		want, err := w.Get(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range got {
			if diff := cmp.Diff(want, p); diff != "" {
				t.Errorf("Wait() isn't what the store has (-want +got):\n%s", diff)
			}
		}
	})
}

func TestWaitAbandonsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.register(t, w.child, time.Minute)
		began := time.Now()
		got, err := w.Wait(t.Context(), p.ID)
		if err != nil || got.State != tracker.StateDetached || got.Why != tracker.WhyDeadline {
			t.Fatalf("Wait() = %s (%s), %v, want detached at the deadline", got.State, got.Why, err)
		}
		want(t, "waited", time.Since(began), time.Minute)
		want(t, "late reply", w.deliver(t, p.ID, "late"), tracker.Folded)
		want(t, "events", w.told(t, p.ID), []string{"dispatched", "timed_out deadline", "late completed"})
		item := w.items(t)["call:"+string(p.ID)]
		if !item.Late || item.Text != "late" || item.AskerEnded || item.Question != "what is it?" || item.AskerName != "look it up" {
			t.Errorf("item = %+v, want a late one of a subagent that still runs", item)
		}
	})
}

func TestOnlyACancelledWaitAbandons(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause error
		state session.State
	}{
		{"the wait alone", &tracker.WaitCancelledError{Reason: "steered"}, tracker.StateDetached},
		{"the process stops", session.ErrStopping, tracker.StateWaiting},
		{"the turn is cancelled", &session.TurnCancelledError{Reason: "no more"}, tracker.StateWaiting},
		{"the turn is out of time", &session.TurnTimeoutError{After: time.Second}, tracker.StateWaiting},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			p := w.register(t, w.child, time.Minute)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(c.cause)
			got, err := w.Wait(ctx, p.ID)
			if c.state == tracker.StateDetached {
				if err != nil || got.State != c.state || got.Why != tracker.WhyWaitCancelled {
					t.Errorf("Wait() = %s (%s), %v, want detached", got.State, got.Why, err)
				}
			} else if !errors.Is(err, c.cause) {
				t.Errorf("Wait() = %v, want %v", err, c.cause)
			}
			want(t, "state", w.state(t, p.ID), c.state)
		})
	}
}

func TestACancelledWaitTakesAReplyThatCameFirst(t *testing.T) {
	w := newWorld(t)
	p := w.register(t, w.child, time.Minute)
	w.deliver(t, p.ID, "first")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&tracker.WaitCancelledError{Reason: "steered"})
	got, err := w.Wait(ctx, p.ID)
	if err != nil || got.State != tracker.StateAnswered || got.Reply.Text != "first" {
		t.Fatalf("Wait() = %s, %v, want the reply", got.State, err)
	}
}

func TestWaitLearnsOfWhatAnotherProcessDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.register(t, w.child, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
		wg.Go(func() {
			time.Sleep(10 * time.Second)
			other := newTracker(t, w.store)
			if _, _, err := other.Deliver(ctx, p.ID, tracker.Reply{State: "completed", Text: "from afar"}); err != nil {
				t.Errorf("Deliver() = %v", err)
			}
		})
		began := time.Now()
		got, err := w.Wait(ctx, p.ID)
		if err != nil || got.State != tracker.StateAnswered {
			t.Fatalf("Wait() = %s, %v, want answered", got.State, err)
		}
		if waited := time.Since(began); waited > 11*time.Second {
			t.Errorf("Wait() took %s, want it within a second of the reply", waited)
		}
		cancel()
		wg.Wait()
	})
}

func TestSentCommitsOnlyWhatIsNew(t *testing.T) {
	w := newWorld(t)
	p := w.register(t, w.child, time.Minute)
	sent := func(task, ctxID string, attempt int) tracker.PendingA2ATask {
		t.Helper()
		got, err := w.Sent(t.Context(), p.ID, task, ctxID, attempt)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want(t, "rev when nothing is new", sent("", "ctx", 1).Rev, p.Rev)
	got := sent("task-9", "", 0)
	want(t, "rev with a task id", got.Rev, p.Rev+1)
	want(t, "task id", got.PeerTaskID, "task-9")
	want(t, "context id", got.ContextID, "ctx")
	want(t, "attempt", sent("", "", 2).Attempt, 2)
	want(t, "attempt never falls", sent("", "", 1).Attempt, 2)
	w.deliver(t, p.ID, "done")
	rev := sent("", "", 0).Rev
	want(t, "rev after the reply", sent("task-10", "", 5).Rev, rev)
	if _, err := w.Sent(t.Context(), "c_none", "x", "", 0); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("Sent() of no call = %v, want ErrNotFound", err)
	}
}

func TestOpenCallIsFoldedAndOverdueIsAnotherItem(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	prompt, slow := w.register(t, w.root, time.Minute), w.register(t, w.root, time.Minute)
	want(t, "state", prompt.State, tracker.StateOpen)
	want(t, "a reply in time", w.deliver(t, prompt.ID, "quick"), tracker.Folded)
	want(t, "events", w.told(t, prompt.ID), []string{"dispatched", "replied completed"})

	p, err := w.Overdue(ctx, slow.ID)
	if err != nil || p.State != tracker.StateDetached || p.Why != tracker.WhyOverdue {
		t.Fatalf("Overdue() = %s (%s), %v", p.State, p.Why, err)
	}
	if again, err := w.Overdue(ctx, slow.ID); err != nil || again.Rev != p.Rev {
		t.Fatalf("Overdue() again = rev %d, %v, want nothing written", again.Rev, err)
	}
	want(t, "a late reply", w.deliver(t, slow.ID, "slow"), tracker.Folded)
	want(t, "events", w.told(t, slow.ID), []string{"dispatched", "timed_out overdue", "late completed"})
	items := w.items(t)
	want(t, "items", len(items), 3)
	want(t, "late", items["call:"+string(slow.ID)].Late, true)
	want(t, "in time", items["call:"+string(prompt.ID)].Late, false)
	want(t, "overdue", items["overdue:"+string(slow.ID)].Kind, session.ItemOverdue)
}

func TestInputRequiredIsAReply(t *testing.T) {
	w := newWorld(t)
	p := w.register(t, w.child, time.Minute)
	d, _, err := w.Deliver(t.Context(), p.ID, tracker.Reply{State: tracker.StateInputRequired, Text: "which one?"})
	if err != nil || d != tracker.Claimed {
		t.Fatalf("Deliver() = %s, %v", d, err)
	}
	want(t, "events", w.told(t, p.ID), []string{"dispatched", "input_required input_required"})
}

func TestAuthRequiredIsNoReply(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	auth := tracker.Reply{Text: "log in first", TaskID: "task-7"}
	if _, _, err := w.Deliver(ctx, "c_any", tracker.Reply{State: tracker.StateAuthRequired}); err == nil {
		t.Error("Deliver(auth_required) = nil, want an error")
	}
	blocking, open := w.register(t, w.child, time.Minute), w.register(t, w.root, time.Minute)

	p, err := w.AuthRequired(ctx, blocking.ID, auth)
	if err != nil || p.State != tracker.StateDetached || p.Why != tracker.WhyAuthRequired || p.Auth.Text != "log in first" {
		t.Fatalf("AuthRequired(blocking) = %s (%s), %v, want it detached", p.State, p.Why, err)
	}
	want(t, "events", w.told(t, blocking.ID), []string{"dispatched", "input_required auth_required", "timed_out auth_required"})
	want(t, "items", len(w.items(t)), 0)

	p, err = w.AuthRequired(ctx, open.ID, auth)
	if err != nil || p.State != tracker.StateOpen || p.PeerTaskID != "task-7" {
		t.Fatalf("AuthRequired(open) = %s, %v, want it open", p.State, err)
	}
	again, err := w.AuthRequired(ctx, open.ID, auth)
	if err != nil || again.Rev != p.Rev {
		t.Fatalf("AuthRequired() again = rev %d, %v, want nothing written", again.Rev, err)
	}
	want(t, "question folded", w.items(t)["auth:"+string(open.ID)].Text, "log in first")
	want(t, "reply of the blocking one", w.deliver(t, blocking.ID, "after all"), tracker.Folded)
	want(t, "reply of the open one", w.deliver(t, open.ID, "after all"), tracker.Folded)
	want(t, "items", len(w.items(t)), 3)
}

func TestCancelEndsTheWish(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var told []session.State
	w.OnChange(func(p tracker.PendingA2ATask) { told = append(told, p.State) })
	p := w.register(t, w.child, time.Minute)
	got, err := w.Cancel(ctx, p.ID, "not needed")
	if err != nil || got.State != tracker.StateCancelled || !got.CancelOwed() || got.CancelReason != "not needed" {
		t.Fatalf("Cancel() = %s, %v, want cancelled with a CancelTask owed", got.State, err)
	}
	want(t, "told", told, []session.State{tracker.StateCancelled})
	follow, err := w.Follow(ctx, w.root.Root)
	if err != nil || len(follow) != 1 {
		t.Fatalf("Follow() = %d calls, %v, want the cancelled one", len(follow), err)
	}
	got, err = w.Wait(ctx, p.ID)
	if err != nil || got.State != tracker.StateCancelled {
		t.Fatalf("Wait() = %s, %v, want cancelled", got.State, err)
	}
	if got, err = w.Sent(ctx, p.ID, "task-3", "", 0); err != nil || got.PeerTaskID != "task-3" {
		t.Fatalf("Sent() after the cancel = %q, %v, want the id kept for the CancelTask", got.PeerTaskID, err)
	}
	if got, err = w.CancelAnswered(ctx, p.ID); err != nil || got.CancelOwed() {
		t.Fatalf("CancelAnswered() = owed %v, %v", got.CancelOwed(), err)
	}
	if follow, err = w.Follow(ctx, ""); err != nil || len(follow) != 0 {
		t.Fatalf("Follow() = %d calls, %v, want none", len(follow), err)
	}
	want(t, "a reply", w.deliver(t, p.ID, "too late"), tracker.Discarded)
	want(t, "another", w.deliver(t, p.ID, "later still"), tracker.Discarded)
	got, err = w.Get(ctx, p.ID)
	if err != nil || got.State != tracker.StateCancelled || got.Reply.Text != "too late" {
		t.Fatalf("Get() = %s %+v, %v, want the first reply kept", got.State, got.Reply, err)
	}
	want(t, "items", len(w.items(t)), 0)
	want(t, "events", w.told(t, p.ID), []string{"dispatched", "cancelled"})

	open := w.register(t, w.root, time.Minute)
	if err := w.CancelTree(ctx, w.root.Root, "closing"); err != nil {
		t.Fatal(err)
	}
	want(t, "state after the tree is cancelled", w.state(t, open.ID), tracker.StateCancelled)
	follow, err = w.Follow(ctx, "")
	if err != nil || len(follow) != 1 {
		t.Fatalf("Follow() = %d calls, %v, want one", len(follow), err)
	}
	w.deliver(t, open.ID, "the peer has ended it")
	if follow, err = w.Follow(ctx, ""); err != nil || len(follow) != 0 {
		t.Fatalf("Follow() = %d calls, %v, want none: the task has ended", len(follow), err)
	}
}

func TestCancelOnTimeoutCancelsWhereACallWouldBeDetached(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	r := w.request(w.child, time.Minute)
	r.CancelOnTimeout = true
	blocking, _, err := w.Register(ctx, w.child, r)
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.Abandon(ctx, blocking.ID, tracker.WhyDeadline)
	if err != nil || p.State != tracker.StateCancelled || p.Why != tracker.WhyDeadline || !p.CancelOwed() {
		t.Fatalf("Abandon() = %s (%s), %v, want cancelled", p.State, p.Why, err)
	}
	want(t, "events", w.told(t, blocking.ID), []string{"dispatched", "timed_out deadline", "cancelled"})
	r = w.request(w.root, time.Minute)
	r.CancelOnTimeout = true
	open, _, err := w.Register(ctx, w.root, r)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = w.Overdue(ctx, open.ID); err != nil || p.State != tracker.StateCancelled {
		t.Fatalf("Overdue() = %s, %v, want cancelled", p.State, err)
	}
	if _, ok := w.items(t)["overdue:"+string(open.ID)]; !ok {
		t.Error("no overdue item: the primary is left without a word")
	}
}

func TestLargeRepliesAreKeptAsArtifacts(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	p := w.register(t, w.child, time.Minute)
	text := strings.Repeat("word ", 4000)
	big := json.RawMessage(`"` + strings.Repeat("d", 9000) + `"`)
	file := session.Artifact{Key: session.NewArtifactKey(), Name: "plan.txt", MediaType: "text/plain", Data: []byte("the plan")}
	reply := tracker.Reply{State: "completed", Text: text, Data: []json.RawMessage{big, json.RawMessage(`not json`)}}
	_, got, err := w.Deliver(ctx, p.ID, reply, file)
	if err != nil {
		t.Fatal(err)
	}
	r := got.Reply
	if len(r.Text) > session.InlineBudget+200 || !strings.Contains(r.Text, "left out") {
		t.Errorf("text has %d bytes, want it shortened", len(r.Text))
	}
	want(t, "artifacts", len(r.Artifacts), 4) // the file, the text, both data parts: the text took the budget
	for _, key := range r.Artifacts {
		if _, err := w.store.Artifact(ctx, w.root.Root, key); err != nil {
			t.Errorf("Artifact(%s) = %v", key, err)
		}
	}
	a, err := w.store.Artifact(ctx, w.root.Root, r.Artifacts[1])
	if err != nil || string(a.Data) != text {
		t.Errorf("the text's artifact holds %d bytes, %v, want all %d", len(a.Data), err, len(text))
	}
	if reply.Text != text || len(reply.Artifacts) != 0 {
		t.Error("Deliver changed its argument")
	}
}

func TestContentIsTextThenData(t *testing.T) {
	r := tracker.Reply{Text: "see", Data: []json.RawMessage{json.RawMessage(`{"a":1}`), json.RawMessage(`2`)}}
	want(t, "content", r.Content(), "see\n\ndata: {\"a\":1}\n\ndata: 2")
	want(t, "data alone", tracker.Reply{Data: r.Data[1:]}.Content(), "data: 2")
}

func TestConsumeHoldsOnlyForTheCallAsItWasRead(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	p := w.register(t, w.child, time.Minute)
	w.deliver(t, p.ID, "used")
	p, err := w.Get(ctx, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	consume := func() error {
		_, err := w.child.Commit(ctx, session.Batch{Changes: []session.Change{w.Consume(p)}})
		return err
	}
	if err := consume(); err != nil {
		t.Fatalf("Consume() = %v", err)
	}
	want(t, "state", w.state(t, p.ID), tracker.StateConsumed)
	if err := consume(); !errors.Is(err, session.ErrConflict) {
		t.Errorf("Consume() again = %v, want ErrConflict", err)
	}
	want(t, "a later reply", w.deliver(t, p.ID, "again"), tracker.Duplicate)
}

func TestEndOfATurnSettlesItsBlockingCalls(t *testing.T) {
	for _, c := range []struct {
		name    string
		cancel  bool
		outcome session.State
		state   session.State
		told    []string
	}{
		{"completed", false, session.StateCompleted, tracker.StateDetached, []string{"dispatched", "timed_out subagent_ended"}},
		{"failed", false, session.StateFailed, tracker.StateDetached, []string{"dispatched", "timed_out subagent_ended"}},
		{"cancelled", false, session.StateCancelled, tracker.StateCancelled, []string{"dispatched", "cancelled"}},
		{"closed", true, session.StateFailed, tracker.StateCancelled, []string{"dispatched", "cancelled"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			waiting := w.register(t, w.child, time.Minute)
			other := sessiontest.NewChildTurn(t, w.root, 2)
			elsewhere := w.register(t, other, time.Minute)
			if _, err := w.child.Tree().EndTurn(ctx, w.child, session.Outcome{State: c.outcome}, w.EndPart(c.cancel)); err != nil {
				t.Fatal(err)
			}
			want(t, "state", w.state(t, waiting.ID), c.state)
			want(t, "events", w.told(t, waiting.ID), c.told)
			want(t, "another subagent's call", w.state(t, elsewhere.ID), tracker.StateWaiting)
		})
	}
	t.Run("answered", func(t *testing.T) {
		w := newWorld(t)
		p := w.register(t, w.child, time.Minute)
		w.deliver(t, p.ID, "unused")
		if _, err := w.child.Tree().EndTurn(t.Context(), w.child, session.Outcome{State: session.StateCancelled}, w.EndPart(true)); err != nil {
			t.Fatal(err)
		}
		want(t, "state", w.state(t, p.ID), tracker.StateFolded)
		item := w.items(t)["call:"+string(p.ID)]
		if item.Text != "unused" || item.Late || !item.AskerEnded {
			t.Errorf("item = %+v, want the reply, in time, of a subagent that has ended", item)
		}
	})
	t.Run("asynchronous", func(t *testing.T) {
		w := newWorld(t)
		p := w.register(t, w.root, time.Minute)
		if _, err := w.root.Tree().EndTurn(t.Context(), w.root, session.Outcome{State: session.StateCancelled}, w.EndPart(false)); err != nil {
			t.Fatal(err)
		}
		want(t, "state", w.state(t, p.ID), tracker.StateOpen)
	})
}

func TestRunTellsOfCallsThatEndedWithTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		told := make(chan tracker.PendingA2ATask, 1)
		w.OnChange(func(p tracker.PendingA2ATask) { told <- p })
		p := w.register(t, w.child, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.Run(ctx) }) // its result is always nil
		if _, err := w.child.Tree().EndTurn(ctx, w.child, session.Outcome{State: session.StateCancelled}, w.EndPart(false)); err != nil {
			t.Fatal(err)
		}
		got := <-told
		if got.ID != p.ID || !got.CancelOwed() {
			t.Errorf("told of %s, %s, want the cancelled call", got.ID, got.State)
		}
		cancel()
		wg.Wait()
	})
}

func TestSweep(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	blocking, open := w.register(t, w.child, time.Minute), w.register(t, w.root, time.Minute)
	gone := w.register(t, w.root, time.Minute)
	if _, err := w.Cancel(ctx, gone.ID, "gone"); err != nil {
		t.Fatal(err)
	}
	sweepAt := func(id session.CallID, now time.Time) session.State {
		t.Helper()
		rec, err := w.store.Record(ctx, session.KindCall, string(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.SweepAt(ctx, rec, now); err != nil {
			t.Fatal(err)
		}
		return w.state(t, id)
	}
	want(t, "waiting, at its deadline", sweepAt(blocking.ID, blocking.Deadline), tracker.StateWaiting)
	want(t, "waiting, a while after", sweepAt(blocking.ID, blocking.Deadline.Add(2*time.Second)), tracker.StateDetached)
	want(t, "open, before its deadline", sweepAt(open.ID, open.Deadline.Add(-time.Second)), tracker.StateOpen)
	want(t, "open, at its deadline", sweepAt(open.ID, open.Deadline), tracker.StateDetached)
	for _, p := range []tracker.PendingA2ATask{blocking, open} {
		want(t, "reply by", p.ReplyBy.Sub(p.Deadline), 24*time.Hour)
		want(t, "detached, within its retention", sweepAt(p.ID, p.ReplyBy.Add(-time.Second)), tracker.StateDetached)
		want(t, "detached, after it", sweepAt(p.ID, p.ReplyBy), tracker.StateExpired)
		want(t, "a reply after that", w.deliver(t, p.ID, "too late"), tracker.Discarded)
	}
	want(t, "cancelled", sweepAt(gone.ID, gone.ReplyBy), tracker.StateCancelled)
	due, err := w.store.Records(ctx, session.RecordQuery{Kind: session.KindCall, DueBefore: time.Now().AddDate(10, 0, 0)})
	if err != nil || len(due) != 0 {
		t.Errorf("%d calls are still due, %v, want none", len(due), err)
	}
	want(t, "events", w.told(t, open.ID), []string{"dispatched", "timed_out overdue", "expired"})
}
