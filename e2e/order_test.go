package e2e_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"orchestrator/foldback"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/subagent"
	"orchestrator/tracker"
)

// Each of these forces one order of the writes that race for a reply, and then asks where the reply is: in one place.
func TestOrder(t *testing.T) {
	orders := []struct {
		slug string
		run  func(t *testing.T, open func(*testing.T) *tree, reopen func(*testing.T) session.Store)
	}{
		{"deliver-before-abandon", deliverBeforeAbandon},
		{"abandon-before-deliver", abandonBeforeDeliver},
		{"both-at-once", bothAtOnce},
		{"subagent-times-out-after-claim", endsAfterClaim(func(w *tree, child session.ID) {
			rec, err := w.gate.Record(w.life, session.KindChild, string(child))
			if err != nil {
				w.t.Fatal(err)
			}
			if err := w.pool.Sweep(w.life, rec); err != nil { // what its timer does, now
				w.t.Fatal(err)
			}
		}, nil, "timeout")},
		{"subagent-cancelled-after-claim", endsAfterClaim(func(w *tree, child session.ID) {
			if err := w.pool.Cancel(w.life, child, "no longer needed"); err != nil {
				w.t.Fatal(err)
			}
		}, nil, "cancelled")},
		{"subagent-panics-after-claim", endsAfterClaim(nil, func() { panic("a bug in the loop") }, "error")},
		{"subagent-ends-with-open-wait", endsWithOpenWait},
		{"duplicate-delivery", duplicateDelivery},
		{"delivery-before-sent-returns", deliveryBeforeSentReturns},
		{"delivery-after-restart", deliveryAfterRestart},
		{"reply-while-foldback-starts", replyWhileFoldbackStarts},
		{"two-replies-of-one-subagent", twoRepliesOfOneSubagent},
		{"child-ends-as-wait-times-out", childEndsAsWaitTimesOut},
		{"cancel-before-task-id", cancelBeforeTaskID},
	}
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			for _, o := range orders {
				t.Run(o.slug, func(t *testing.T) {
					store, reopen := s.open(t)
					o.run(t, func(t *testing.T) *tree { return newTree(t, store) }, reopen)
				})
			}
		})
	}
}

// gone is a deadline that has passed: whoever waits abandons at once.
const gone = -time.Millisecond

var (
	toDetached = sessiontest.Changing(session.KindCall, "", tracker.StateDetached)
	toAnswered = sessiontest.Changing(session.KindCall, "", tracker.StateAnswered)
)

// registers is a script that makes a call, tells of it, and asks on when it is told to.
func registers(w *tree, deadline time.Duration, called chan<- tracker.PendingA2ATask, goOn <-chan struct{}) script {
	return func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
		p, err := w.invoke(ctx, turn, deadline)
		if err != nil {
			return session.Outcome{}, err
		}
		called <- p
		<-goOn
		if p, err = w.calls.Wait(ctx, p.ID); err != nil {
			return session.Outcome{}, err
		}
		return completed, w.settle(ctx, turn, p)
	}
}

// The waiter's deadline fires, and before its abandoning is written the reply is: it takes the reply by looking again.
func deliverBeforeAbandon(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t)
	called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
	abandon := w.gate.Hold(toDetached)
	child := w.spawn(registers(w, gone, called, goOn))
	p := receive(t, called)
	close(goOn)
	abandon.Wait(t)
	same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Claimed)
	abandon.Release()
	same(t, "the child's end", w.ended(child), "")
	same(t, "the reply's place", w.places(p.ID, "forty-two"), "result")
	same(t, "state", w.state(p.ID), tracker.StateConsumed)
	same(t, "events", w.told(p.ID), "dispatched, replied completed")
}

// The reply is about to be written for the waiter, which abandons first: the reply goes to the primary.
func abandonBeforeDeliver(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t)
	called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
	answer := w.gate.Hold(toAnswered)
	child := w.spawn(registers(w, gone, called, goOn))
	p := receive(t, called)
	delivery := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-two") })
	answer.Wait(t)
	close(goOn)
	same(t, "the child's end", w.ended(child), "")
	answer.Release()
	same(t, "delivery", delivery(), tracker.Folded)
	same(t, "the reply's place", w.places(p.ID, "forty-two"), "late item of an ended subagent")
	same(t, "state", w.state(p.ID), tracker.StateFolded)
	same(t, "events", w.told(p.ID), "dispatched, timed_out deadline, late completed")
}

// Both have read the call waiting and both are about to write: whichever is let go first, and when both are at once,
// there is one owner.
func bothAtOnce(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	for _, order := range []string{"reply first", "deadline first", "together"} {
		t.Run(order, func(t *testing.T) {
			w := open(t)
			called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
			answer, abandon := w.gate.Hold(toAnswered), w.gate.Hold(toDetached)
			child := w.spawn(registers(w, gone, called, goOn))
			p := receive(t, called)
			delivery := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-two") })
			answer.Wait(t)
			close(goOn)
			abandon.Wait(t)
			var got tracker.Delivery
			switch order {
			case "reply first":
				answer.Release()
				got = delivery()
				same(t, "delivery", got, tracker.Claimed)
				abandon.Release()
			case "deadline first":
				abandon.Release()
				same(t, "the child's end", w.ended(child), "")
				answer.Release()
				got = delivery()
				same(t, "delivery", got, tracker.Folded)
			default:
				abandon.Release()
				answer.Release()
				got = delivery()
			}
			same(t, "the child's end", w.ended(child), "")
			switch place := w.places(p.ID, "forty-two"); got {
			case tracker.Claimed:
				same(t, "the reply's place", place, "result")
			case tracker.Folded:
				if place != "late item" && place != "late item of an ended subagent" {
					t.Errorf("the reply's place = %q, want one late item", place)
				}
			default:
				t.Errorf("delivery = %s", got)
			}
		})
	}
}

// The reply is the waiter's, but the subagent ends before its tool.completed is written: the reply becomes an item in
// the commit of that end, and the tool.completed, which comes after it, fails.
func endsAfterClaim(end func(*tree, session.ID), crash func(), reason string) func(*testing.T, func(*testing.T) *tree, func(*testing.T) session.Store) {
	return func(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
		w := open(t)
		called, claimed := make(chan tracker.PendingA2ATask, 1), make(chan tracker.PendingA2ATask, 1)
		consume := w.gate.Hold(sessiontest.Changing(session.KindCall, "", tracker.StateConsumed))
		var late func() error
		child := w.spawn(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			p, err := w.invoke(ctx, turn, time.Hour)
			if err != nil {
				return session.Outcome{}, err
			}
			called <- p
			if p, err = w.calls.Wait(ctx, p.ID); err != nil {
				return session.Outcome{}, err
			}
			late = promise(w, func() error { return w.settle(w.life, turn, p) })
			consume.Wait(t)
			claimed <- p
			if crash != nil {
				crash()
			}
			<-ctx.Done()
			return session.Outcome{}, context.Cause(ctx)
		})
		p := receive(t, called)
		same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Claimed)
		same(t, "what the waiter got", receive(t, claimed).State, tracker.StateAnswered)
		if end != nil {
			end(w, child)
		}
		same(t, "the child's end", w.ended(child), reason)
		consume.Release()
		if err := late(); !errors.Is(err, session.ErrTurnEnded) && !errors.Is(err, session.ErrConflict) {
			t.Errorf("the tool.completed after the end = %v, want it refused", err)
		}
		same(t, "the reply's place", w.places(p.ID, "forty-two"), "item of an ended subagent")
		same(t, "state", w.state(p.ID), tracker.StateFolded)
		same(t, "another delivery", w.deliver(p.ID, "forty-two"), tracker.Duplicate)
	}
}

// A subagent ends while it still has a call: the end detaches it, unless the reply comes first, and counts on there being
// no other.
func endsWithOpenWait(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	leaves := func(w *tree, called chan<- tracker.PendingA2ATask) script {
		return func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			p, err := w.invoke(ctx, turn, time.Hour)
			called <- p
			return completed, err
		}
	}
	toEnded := sessiontest.Changing(session.KindChild, "", subagent.StateEnded)
	t.Run("alone", func(t *testing.T) {
		w := open(t)
		called := make(chan tracker.PendingA2ATask, 1)
		child := w.spawn(leaves(w, called))
		p := receive(t, called)
		same(t, "the child's end", w.ended(child), "")
		same(t, "state", w.state(p.ID), tracker.StateDetached)
		same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Folded)
		same(t, "the reply's place", w.places(p.ID, "forty-two"), "late item of an ended subagent")
		same(t, "events", w.told(p.ID), "dispatched, timed_out subagent_ended, late completed")
	})
	t.Run("the reply comes between", func(t *testing.T) {
		w := open(t)
		called := make(chan tracker.PendingA2ATask, 1)
		end := w.gate.Hold(toEnded)
		child := w.spawn(leaves(w, called))
		p := receive(t, called)
		end.Wait(t)
		same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Claimed)
		end.Release()
		same(t, "the child's end", w.ended(child), "")
		same(t, "the reply's place", w.places(p.ID, "forty-two"), "item of an ended subagent")
		same(t, "state", w.state(p.ID), tracker.StateFolded)
	})
	t.Run("another call comes between", func(t *testing.T) {
		w := open(t)
		turns := make(chan *session.Turn, 1)
		end := w.gate.Hold(toEnded)
		child := w.spawn(func(_ context.Context, turn *session.Turn) (session.Outcome, error) {
			turns <- turn
			return completed, nil
		})
		turn := receive(t, turns)
		end.Wait(t)
		p, err := w.invoke(w.life, turn, time.Hour)
		if err != nil {
			t.Fatalf("a call before the end is written = %v", err)
		}
		end.Release()
		same(t, "the child's end", w.ended(child), "")
		same(t, "state", w.state(p.ID), tracker.StateDetached)
		if _, err := w.register(w.life, turn, session.MintToolCallID(child, 99), time.Hour); !errors.Is(err, session.ErrTurnEnded) {
			t.Errorf("a call after the end = %v, want ErrTurnEnded", err)
		}
		same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Folded)
		same(t, "the reply's place", w.places(p.ID, "forty-two"), "late item of an ended subagent")
	})
}

// A reply is handed in twice, at the same time and later: one is taken.
func duplicateDelivery(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	t.Run("blocking", func(t *testing.T) {
		w := open(t)
		called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
		first, second := w.gate.Hold(toAnswered), w.gate.Hold(toAnswered)
		child := w.spawn(registers(w, time.Hour, called, goOn))
		p := receive(t, called)
		a := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-two") })
		first.Wait(t)
		b := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-three") })
		second.Wait(t)
		second.Release()
		same(t, "the second delivery", b(), tracker.Claimed)
		first.Release()
		same(t, "the first delivery", a(), tracker.Duplicate)
		close(goOn)
		same(t, "the child's end", w.ended(child), "")
		same(t, "a delivery after the reply was used", w.deliver(p.ID, "forty-four"), tracker.Duplicate)
		same(t, "the reply's place", w.places(p.ID, "forty-three"), "result")
		same(t, "all places", w.places(p.ID, "forty-"), "result")
		same(t, "events", w.told(p.ID), "dispatched, replied completed")
	})
	t.Run("asynchronous", func(t *testing.T) {
		w := open(t)
		p, err := w.invoke(w.life, w.root, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		toFolded := sessiontest.Changing(session.KindCall, string(p.ID), tracker.StateFolded)
		first, second := w.gate.Hold(toFolded), w.gate.Hold(toFolded)
		a := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-two") })
		first.Wait(t)
		b := promise(w, func() tracker.Delivery { return w.deliver(p.ID, "forty-three") })
		second.Wait(t)
		second.Release()
		same(t, "the second delivery", b(), tracker.Folded)
		first.Release()
		same(t, "the first delivery", a(), tracker.Duplicate)
		same(t, "all places", w.places(p.ID, "forty-"), "item")
	})
}

// The reply is there before the send that it answers has returned, and before anybody waits.
func deliveryBeforeSentReturns(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t)
	called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
	child := w.spawn(registers(w, time.Hour, called, goOn))
	p := receive(t, called)
	sent := w.gate.Hold(sessiontest.Changing(session.KindCall, string(p.ID), tracker.StateWaiting))
	noted := promise(w, func() tracker.PendingA2ATask {
		got, err := w.calls.Sent(w.life, p.ID, "task", "context", 2)
		if err != nil {
			t.Errorf("Sent() = %v", err)
		}
		return got
	})
	sent.Wait(t)
	same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Claimed)
	close(goOn)
	same(t, "the child's end", w.ended(child), "")
	sent.Release()
	same(t, "what Sent found", noted().State, tracker.StateConsumed)
	same(t, "state", w.state(p.ID), tracker.StateConsumed)
	same(t, "the reply's place", w.places(p.ID, "forty-two"), "result")
}

// The process dies while a subagent waits. The reply comes before the subagent is taken up again, or after; the next life
// of the turn uses it.
func deliveryAfterRestart(t *testing.T, open func(*testing.T) *tree, reopen func(*testing.T) session.Store) {
	w := open(t)
	for words, early := range map[string]bool{"forty-two": true, "forty-three": false} {
		called := make(chan tracker.PendingA2ATask, 1)
		child := w.spawn(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			p, err := w.invoke(ctx, turn, time.Hour)
			if err != nil {
				return session.Outcome{}, err
			}
			called <- p
			_, err = w.calls.Wait(ctx, p.ID)
			return session.Outcome{}, err
		})
		p := receive(t, called)
		w.restart(reopen)
		same(t, "state after the crash", w.state(p.ID), tracker.StateWaiting)
		if early {
			same(t, "delivery before anybody waits", w.deliver(p.ID, words), tracker.Claimed)
		}
		again := make(chan tracker.PendingA2ATask, 1)
		w.plays(child, func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if !turn.Resumed {
				t.Error("the turn was started again rather than continued")
			}
			p, err := w.register(ctx, turn, p.ToolCallID, time.Hour)
			if err != nil {
				return session.Outcome{}, err
			}
			again <- p
			if p, err = w.calls.Wait(ctx, p.ID); err != nil {
				return session.Outcome{}, err
			}
			return completed, w.settle(ctx, turn, p)
		})
		if err := w.pool.Recover(w.life, w.root.Tree()); err != nil {
			t.Fatal(err)
		}
		found := receive(t, again)
		if early {
			same(t, "the call the turn found", found.State, tracker.StateAnswered)
		} else {
			same(t, "the call the turn found", found.State, tracker.StateWaiting)
			same(t, "delivery", w.deliver(p.ID, words), tracker.Claimed)
		}
		same(t, "the child's end", w.ended(child), "")
		same(t, "the reply's place", w.places(p.ID, words), "result")
		same(t, "events", w.told(p.ID), "dispatched, replied completed")
	}
}

// A fold-back turn is about to start with the items that were ready when one more becomes ready: that one is folded by
// the next turn, and each is folded once.
func replyWhileFoldbackStarts(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t) // for its gate and tracker; the session is another
	calls, inputs := make(chan tracker.PendingA2ATask, 2), make(chan string, 10)
	m, err := session.NewManager(session.Config{Store: w.gate, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	m.Use(session.Hooks{
		Runner: script(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
			if turn.Body.Origin == session.OriginFoldback {
				events, err := w.gate.Events(ctx, session.EventQuery{Tree: turn.Root, Types: []session.EventType{session.EventMessageCompleted}, Last: true, Limit: 1})
				if err != nil {
					return session.Outcome{}, err
				}
				var m session.Message
				if err := events[0].Decode(&m); err != nil {
					return session.Outcome{}, err
				}
				select {
				case inputs <- m.Text:
				case <-ctx.Done():
					return session.Outcome{}, context.Cause(ctx)
				}
				return completed, nil
			}
			for range 2 {
				p, err := w.invoke(ctx, turn, time.Hour)
				if err != nil {
					return session.Outcome{}, err
				}
				calls <- p
			}
			return completed, nil
		}),
		Prepare: func(context.Context, session.Record, session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: "primary", Model: "none"}, nil
		},
		Fold: foldback.Compose, FoldFailed: foldback.Failed,
		EndTurn: []session.EndPart{w.calls.EndPart(false)},
		Live:    map[session.Kind][]session.State{session.KindCall: tracker.LiveStates},
	})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	root, err := m.Open(t.Context(), session.OpenRequest{Agent: "primary"})
	if err != nil {
		t.Fatal(err)
	}
	user, err := m.Submit(t.Context(), session.SubmitRequest{Session: root, Input: "ask twice"})
	if err != nil {
		t.Fatal(err)
	}
	first, second := receive(t, calls), receive(t, calls)
	start := w.gate.Hold(sessiontest.Changing(session.KindItem, "call:"+string(first.ID), session.StateBound))
	same(t, "the first delivery", w.deliver(first.ID, "forty-two"), tracker.Folded)
	start.Wait(t)
	same(t, "the second delivery", w.deliver(second.ID, "forty-three"), tracker.Folded)
	start.Release()
	one, two := receive(t, inputs), receive(t, inputs)
	if !strings.Contains(one, "forty-two") || strings.Contains(one, "forty-three") {
		t.Errorf("the first fold-back was told %q, want the first reply alone", one)
	}
	if !strings.Contains(two, "forty-three") || strings.Contains(two, "forty-two") {
		t.Errorf("the second fold-back was told %q, want the second reply alone", two)
	}
	if err := m.WaitQuiescent(t.Context(), root, user); err != nil {
		t.Fatal(err)
	}
	same(t, "fold-backs left", len(inputs), 0)
	recs, err := w.gate.Records(t.Context(), session.RecordQuery{Tree: root, Kind: session.KindItem, States: []session.State{session.StateBound}})
	if err != nil || len(recs) != 2 {
		t.Errorf("%d items are bound, %v, want 2", len(recs), err)
	}
}

// A subagent gives up on two calls, one after the other, and both replies come: they are two items of one text.
func twoRepliesOfOneSubagent(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t)
	called := make(chan tracker.PendingA2ATask, 2)
	goOn := make(chan struct{})
	child := w.spawn(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
		for range 2 {
			p, err := w.invoke(ctx, turn, gone) // the second would be refused if the first still counted
			if err != nil {
				return session.Outcome{}, err
			}
			if p, err = w.calls.Wait(ctx, p.ID); err != nil {
				return session.Outcome{}, err
			}
			if err := w.settle(ctx, turn, p); err != nil {
				return session.Outcome{}, err
			}
			called <- p
		}
		<-goOn
		return completed, nil
	})
	first, second := receive(t, called), receive(t, called)
	held := w.gate.Hold(sessiontest.Changing(session.KindCall, string(first.ID), tracker.StateFolded))
	a := promise(w, func() tracker.Delivery { return w.deliver(first.ID, "forty-two") })
	held.Wait(t)
	same(t, "the second delivery", w.deliver(second.ID, "forty-three"), tracker.Folded)
	held.Release()
	same(t, "the first delivery", a(), tracker.Folded)
	close(goOn)
	same(t, "the child's end", w.ended(child), "")
	same(t, "the first reply's place", w.places(first.ID, "forty-two"), "late item")
	same(t, "the second reply's place", w.places(second.ID, "forty-three"), "late item")
	folded := w.compose()
	for _, words := range []string{"forty-two", "forty-three"} {
		if n := strings.Count(folded.Text, words); n != 1 {
			t.Errorf("the fold-back holds %q %d times, want once", words, n)
		}
	}
}

// The wait of a subagent times out at the same time as the subagent ends: the call is detached once, by either, and its
// reply is folded once.
func childEndsAsWaitTimesOut(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	for _, first := range []string{"end", "deadline"} {
		t.Run(first+" first", func(t *testing.T) {
			w := open(t)
			called := make(chan tracker.PendingA2ATask, 1)
			abandon := w.gate.Hold(func(b session.Batch) bool { return len(b.Changes) == 1 && toDetached(b) })
			end := w.gate.Hold(sessiontest.Changing(session.KindChild, "", subagent.StateEnded))
			var waited func() session.State
			child := w.spawn(func(ctx context.Context, turn *session.Turn) (session.Outcome, error) {
				p, err := w.invoke(ctx, turn, gone)
				if err != nil {
					return session.Outcome{}, err
				}
				waited = promise(w, func() session.State {
					p, err := w.calls.Wait(w.life, p.ID)
					if err != nil {
						t.Errorf("Wait() = %v", err)
					}
					return p.State
				})
				abandon.Wait(t)
				called <- p
				return completed, nil
			})
			p := receive(t, called)
			end.Wait(t) // both have read the call waiting
			why := "subagent_ended"
			if first == "end" {
				end.Release()
				same(t, "the child's end", w.ended(child), "")
				abandon.Release()
			} else {
				why = "deadline"
				abandon.Release()
				same(t, "what the waiter got", waited(), tracker.StateDetached)
				end.Release()
			}
			same(t, "the child's end", w.ended(child), "")
			if first == "end" {
				same(t, "what the waiter got", waited(), tracker.StateDetached)
			}
			same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Folded)
			same(t, "the reply's place", w.places(p.ID, "forty-two"), "late item of an ended subagent")
			same(t, "events", w.told(p.ID), "dispatched, timed_out "+why+", late completed")
		})
	}
}

// A call is cancelled before its peer has said what its task is called: the name is noted when it comes, since the peer
// must still be told, and a reply is kept but given to nobody.
func cancelBeforeTaskID(t *testing.T, open func(*testing.T) *tree, _ func(*testing.T) session.Store) {
	w := open(t)
	told := make(chan tracker.PendingA2ATask, 2)
	w.calls.OnChange(func(p tracker.PendingA2ATask) { told <- p })
	called, goOn := make(chan tracker.PendingA2ATask, 1), make(chan struct{})
	child := w.spawn(registers(w, time.Hour, called, goOn))
	p := receive(t, called)
	sent := w.gate.Hold(sessiontest.Changing(session.KindCall, string(p.ID), tracker.StateWaiting))
	noted := promise(w, func() tracker.PendingA2ATask {
		got, err := w.calls.Sent(w.life, p.ID, "task-7", "", 0)
		if err != nil {
			t.Errorf("Sent() = %v", err)
		}
		return got
	})
	sent.Wait(t)
	if _, err := w.calls.Cancel(w.life, p.ID, "no longer needed"); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, told); got.PeerTaskID != "" || !got.CancelOwed() {
		t.Errorf("told of task %q, owed %v, want a CancelTask owed to a task unknown", got.PeerTaskID, got.CancelOwed())
	}
	sent.Release()
	got := noted()
	same(t, "state", got.State, tracker.StateCancelled)
	same(t, "the task to cancel", got.PeerTaskID, "task-7")
	same(t, "the CancelTask is owed", got.CancelOwed(), true)
	follow, err := w.calls.Follow(w.life, w.root.Root)
	if err != nil || len(follow) != 1 || follow[0].PeerTaskID != "task-7" {
		t.Errorf("Follow() = %+v, %v, want the call with its task", follow, err)
	}
	close(goOn)
	same(t, "the child's end", w.ended(child), "")
	same(t, "delivery", w.deliver(p.ID, "forty-two"), tracker.Discarded)
	same(t, "the reply's place", w.places(p.ID, "forty-two"), "")
	if got, err = w.calls.Get(w.life, p.ID); err != nil || got.Reply == nil || got.Reply.Text != "forty-two" {
		t.Errorf("Get() = %+v, %v, want the reply kept", got.Reply, err)
	}
	same(t, "events", w.told(p.ID), "dispatched, cancelled")
}
