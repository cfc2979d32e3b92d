package a2a_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
	"orchestrator/a2a/bindingtest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// atAQueue runs a test in a bubble with the peer q behind a queue, which is away.
func atAQueue(t *testing.T, test func(w *world), change ...func(*a2a.Peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.queue = bindingtest.NewQueue()
		p := a2a.Peer{Name: "q", Queue: "a2a.q"}
		for _, f := range change {
			f(&p)
		}
		w.peers = []a2a.Peer{p}
		w.begin()
		defer func() { w.stop() }() // of the last life
		test(w)
	})
}

// task is a task of the peer's for a call, in a state.
func taskOf(c *tool.Call, state protocol.TaskState, text string) *protocol.Task {
	id := string(session.CallIDFor(c.ID))
	t := &protocol.Task{
		ID: "t1", ContextID: "x-" + id, Status: protocol.TaskStatus{State: state},
		History: []*protocol.Message{{ID: id, Role: protocol.MessageRoleUser}},
	}
	if text != "" {
		t.Status.Message = protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart(text))
	}
	return t
}

// arrives brings a final response to a call by the reply queue.
func (w *world) arrives(c *tool.Call, result protocol.SendMessageResult) tracker.Delivery {
	w.t.Helper()
	fate, err := w.relay.Reply(w.t.Context(), a2a.Arrival{MessageID: string(session.CallIDFor(c.ID)), Result: result})
	w.ok(err)
	return fate
}

// idle fails unless nothing is followed any more.
func (w *world) idle() {
	w.t.Helper()
	synctest.Wait()
	if n := w.queue.Listening(); n != 0 {
		w.t.Errorf("%d streams are still listened to", n)
	}
	before := len(w.queue.Asked())
	time.Sleep(25 * time.Hour)
	if after := w.queue.Asked(); len(after) != before {
		w.t.Errorf("the peer is still asked: %v", after[before:])
	}
}

func TestReplyFromTheQueueIsTheWaitersAnswer(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go"))
		out := w.run(w.t.Context(), c)
		time.Sleep(10 * time.Second)
		if got := w.arrives(c, taskOf(c, protocol.TaskStateCompleted, "done")); got != tracker.Claimed {
			t.Errorf("Reply() = %s, want claimed", got)
		}
		res := (<-out).res
		wantText(t, res, data("q", "done"), false)
		w.complete(c, res)
		if p := w.wantState(c, tracker.StateConsumed); p.Transport != a2a.BindingAMQP || p.PeerTaskID != "t1" {
			t.Errorf("the call went over %q, to task %q", p.Transport, p.PeerTaskID)
		}
		if got := w.arrives(c, taskOf(c, protocol.TaskStateCompleted, "done")); got != tracker.Duplicate {
			t.Errorf("the same reply again is %s, want a duplicate", got)
		}
		w.idle()
	})
}

func TestMessageWaitsForAPeerThatIsAwayForHours(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go", "timeout_seconds", 20))
		wantText(t, w.ask(c), "peer 'q' did not respond within 20s; proceeding without it", false)
		time.Sleep(2 * time.Hour)
		w.queue.Break()
		time.Sleep(4 * time.Hour)
		w.wantState(c, tracker.StateDetached)
		if got := w.queue.Sent(); len(got) != 1 {
			t.Errorf("the message was sent %d times", len(got))
		}
		if n := len(w.queue.Asked(a2atest.MethodList, a2atest.MethodGet, a2atest.MethodSubscribe)); n > 6*12+10 {
			t.Errorf("a peer that is away was asked %d times in six hours", n)
		}
		w.arrives(c, taskOf(c, protocol.TaskStateCompleted, "here at last"))
		w.wantState(c, tracker.StateFolded)
		if item, ok := w.item(session.ItemReply, c); !ok || item.Text != "here at last" || !item.Late {
			t.Errorf("item = %+v, %v", item, ok)
		}
		w.idle()
	})
}

func TestWhatIsInTheQueueIsNotSentAgainAfterARestart(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(10 * time.Second)
		w.restart()
		time.Sleep(time.Hour)
		if got := w.queue.Sent(); len(got) != 1 {
			t.Errorf("the message was sent %d times while the peer was away", len(got))
		}
		w.queue.List(func() ([]*protocol.Task, error) {
			return []*protocol.Task{taskOf(c, protocol.TaskStateWorking, "")}, nil
		})
		w.queue.Task(func() (*protocol.Task, error) { return taskOf(c, protocol.TaskStateWorking, ""), nil })
		time.Sleep(10 * time.Minute)
		if p := w.get(c); p.PeerTaskID != "t1" {
			t.Errorf("the peer is back, and its task is %q", p.PeerTaskID)
		}
		w.queue.Say(protocol.NewStatusUpdateEvent(taskOf(c, protocol.TaskStateWorking, ""), protocol.TaskStateCompleted, protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("done"))))
		time.Sleep(time.Minute)
		if item, ok := w.item(session.ItemReply, c); !ok || item.Text != "done" {
			t.Errorf("item = %+v, %v", item, ok)
		}
		w.idle()
	})
}

func TestWhatNeverReachedTheQueueIsSentOnceThePeerSaysSo(t *testing.T) {
	atAQueue(t, func(w *world) {
		w.queue.Refuse(errors.New("no confirm came"))
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(time.Hour)
		w.queue.Refuse(nil)
		time.Sleep(time.Hour)
		if got := w.queue.Sent(); len(got) != 0 {
			t.Errorf("the message was sent again before the peer was asked: %v", got)
		}
		w.queue.List(func() ([]*protocol.Task, error) { return nil, nil })
		time.Sleep(10 * time.Minute)
		if got := w.queue.Sent(); len(got) != 1 || got[0] != string(session.CallIDFor(c.ID)) {
			t.Errorf("sent = %v, want the message once more", got)
		}
		if p := w.get(c); p.Attempt != 2 {
			t.Errorf("the attempt is %d, want the second", p.Attempt)
		}
	})
}

func TestWhatWasLostWithItsQueueIsSentAgain(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(10 * time.Second)
		w.queue.Break()
		time.Sleep(time.Hour)
		if got := w.queue.Sent(); len(got) != 1 {
			t.Errorf("the message was sent %d times while it could be in the queue", len(got))
		}
		w.queue.List(func() ([]*protocol.Task, error) { return nil, nil })
		time.Sleep(time.Hour) // silence on the second is no reason for a third
		if got := w.queue.Sent(); len(got) != 2 || got[0] != got[1] {
			t.Errorf("sent = %v, want the same message once more, since the peer took what was in the queue and doesn't have it", got)
		}
	})
}

func TestWhatWasTakenIsNotSentAgainToAPeerThatCantList(t *testing.T) {
	atAQueue(t, func(w *world) {
		w.queue.List(func() ([]*protocol.Task, error) {
			return nil, protocol.NewError(protocol.ErrUnsupportedOperation, "no lists")
		})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(10 * time.Second)
		w.queue.Break()
		time.Sleep(time.Hour)
		if got := w.queue.Sent(); len(got) != 1 {
			t.Errorf("the message was sent %d times", len(got))
		}
		w.arrives(c, protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("hello")))
		w.wantState(c, tracker.StateFolded)
		w.idle()
	})
}

func TestResendNeverWaitsForTheReplyOverAQueue(t *testing.T) {
	atAQueue(t, func(w *world) {
		w.queue.Refuse(errors.New("no confirm came"))
		w.queue.List(func() ([]*protocol.Task, error) { return nil, nil })
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(5 * time.Minute)
		w.wantState(c, tracker.StateOpen)
		if n := len(w.queue.Asked(a2atest.MethodStream)); n != 1 {
			t.Errorf("the message was sent %d times", n)
		}
		w.arrives(c, protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("hello")))
		w.wantState(c, tracker.StateFolded)
		w.idle()
	}, func(p *a2a.Peer) { p.Resend = a2a.ResendNever })
}

func TestUnroutableMessageFailsAtOnce(t *testing.T) {
	atAQueue(t, func(w *world) {
		w.queue.Refuse(&a2a.UnroutableError{Queue: "a2a.q"})
		turn := w.turn(tool.Subagent, 0)
		w.ask(w.call(turn, 1, ask("q", "go"))) // its card was asked for
		began := time.Now()
		res := w.ask(w.call(turn, 2, ask("q", "go")))
		wantText(t, res, `peer 'q' can't be reached: there is no queue "a2a.q" at the broker. Nothing was sent. It may help to try again later.`, true)
		if d := time.Since(began); d > 0 {
			t.Errorf("that took %s", d)
		}
	})
}

func TestBrokerThatIsAwayForAMomentIsWaitedFor(t *testing.T) {
	atAQueue(t, func(w *world) {
		w.queue.Refuse(&a2a.NotSentError{Err: errors.New("not connected")})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go"))
		out := w.run(w.t.Context(), c)
		time.Sleep(15 * time.Second)
		w.queue.Refuse(nil)
		time.Sleep(30 * time.Second)
		w.arrives(c, protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("hello")))
		wantText(t, (<-out).res, data("q", "hello"), false)

		w.queue.Refuse(&a2a.NotSentError{Err: errors.New("not connected")})
		res := w.ask(w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go")))
		wantText(t, res, "peer 'q' can't be reached: not connected. Nothing was sent. It may help to try again later.", true)
	})
}

func TestForgottenTaskLeavesTimeForItsReply(t *testing.T) {
	for name, arrives := range map[string]bool{"whose reply is in the reply queue": true, "that had none": false} {
		t.Run(name, func(t *testing.T) {
			atAQueue(t, func(w *world) {
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go"))
				out := w.run(w.t.Context(), c)
				time.Sleep(5 * time.Second)
				w.queue.Say(taskOf(c, protocol.TaskStateWorking, ""))
				time.Sleep(time.Second)
				w.queue.Task(func() (*protocol.Task, error) { return nil, protocol.ErrTaskNotFound })
				w.queue.Break()
				want := "peer 'q' no longer knows the task"
				if arrives {
					time.Sleep(4 * time.Second)
					w.arrives(c, taskOf(c, protocol.TaskStateCompleted, "done"))
					want = data("q", "done")
				}
				wantText(t, (<-out).res, want, !arrives)
			})
		})
	}
}

func TestCancelReachesAPeerThatComesBack(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(10 * time.Second)
		_, err := w.relay.CancelCall(t.Context(), session.CallIDFor(c.ID))
		w.ok(err)
		time.Sleep(3 * time.Minute)
		if p := w.wantState(c, tracker.StateCancelled); p.CancelAnswered {
			t.Error("a peer that is away has answered")
		}
		w.queue.Task(func() (*protocol.Task, error) { return taskOf(c, protocol.TaskStateCanceled, ""), nil })
		w.queue.Say(taskOf(c, protocol.TaskStateSubmitted, ""))
		time.Sleep(time.Minute)
		if p := w.get(c); !p.CancelAnswered {
			t.Error("the peer is back and wasn't told")
		}
		if n := len(w.queue.Asked(a2atest.MethodCancel)); n != 1 {
			t.Errorf("it was told %d times", n)
		}
		w.idle()
	})
}

func TestReplyToACancelledCallEndsTheTelling(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Primary, 0), 1, ask("q", "go"))
		w.ask(c)
		time.Sleep(10 * time.Second)
		_, err := w.relay.CancelCall(t.Context(), session.CallIDFor(c.ID))
		w.ok(err)
		time.Sleep(time.Minute)
		if got := w.arrives(c, taskOf(c, protocol.TaskStateCompleted, "done")); got != tracker.Discarded {
			t.Errorf("Reply() = %s, want discarded", got)
		}
		if p := w.wantState(c, tracker.StateCancelled); !p.CancelAnswered || p.Reply == nil || p.Reply.Text != "done" {
			t.Errorf("the call is %+v, want its reply kept and nobody left to tell", p)
		}
		w.idle()
	})
}

func TestResponseThatEndsNothingIsNoted(t *testing.T) {
	atAQueue(t, func(w *world) {
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go"))
		out := w.run(w.t.Context(), c)
		time.Sleep(5 * time.Second)
		if got := w.arrives(c, taskOf(c, protocol.TaskStateWorking, "")); got != "" {
			t.Errorf("a task that goes on has the fate %s", got)
		}
		if p := w.wantState(c, tracker.StateWaiting); p.PeerTaskID != "t1" {
			t.Errorf("the task is %q", p.PeerTaskID)
		}
		if got := w.arrives(c, taskOf(c, protocol.TaskStateAuthRequired, "log in")); got != "" {
			t.Errorf("a wish to authenticate has the fate %s", got)
		}
		if res := (<-out).res; !strings.Contains(res.Content, "wants the user to authenticate") {
			t.Errorf("the result is %q", res.Content)
		}
		w.arrives(c, taskOf(c, protocol.TaskStateInputRequired, "which one?"))
		if item, ok := w.item(session.ItemReply, c); !ok || item.State != tracker.StateInputRequired {
			t.Errorf("item = %+v, %v, want the question", item, ok)
		}
	})
}

func TestErrorFromTheReplyQueueIsAFailedReply(t *testing.T) {
	for want, err := range map[string]error{
		"peer 'q' refused the call: not mine. Trying the same again won't help.": protocol.NewError(protocol.ErrInvalidParams, "not mine"),
		"peer 'q' failed: boom. It may help to try again later.":                 protocol.NewError(protocol.ErrInternalError, "boom"),
	} {
		atAQueue(t, func(w *world) {
			c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "go"))
			out := w.run(w.t.Context(), c)
			time.Sleep(5 * time.Second)
			fate, rerr := w.relay.Reply(t.Context(), a2a.Arrival{MessageID: string(session.CallIDFor(c.ID)), Err: err})
			if fate != tracker.Claimed || rerr != nil {
				t.Errorf("Reply() = %s, %v", fate, rerr)
			}
			wantText(t, (<-out).res, want, true)
		})
	}
}

func TestReplyThatNobodyAskedForIsAnError(t *testing.T) {
	atAQueue(t, func(w *world) {
		m := protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("hello"))
		if _, err := w.relay.Reply(t.Context(), a2a.Arrival{MessageID: "c_none", Result: m}); !errors.Is(err, a2a.ErrUnknownCall) {
			t.Errorf("Reply() = %v, want that no call is known", err)
		}
		if _, err := w.relay.Reply(t.Context(), a2a.Arrival{MessageID: "c_none"}); !errors.Is(err, a2a.ErrUnreadable) {
			t.Errorf("Reply() of nothing = %v", err)
		}
	})
}

func TestQueuesAreOnlyTheOperatorsToName(t *testing.T) {
	allowed, err := a2a.ParseAllowed([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	transport, err := a2ahttp.New(a2ahttp.Config{Allowed: allowed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.Close)
	for name, other := range map[string]bool{"behind a queue alone": false, "at both": true} {
		t.Run(name, func(t *testing.T) {
			p := a2atest.New(t, a2atest.Config{Card: func(c *protocol.AgentCard) {
				q := &protocol.AgentInterface{URL: "amqp://broker.test/?queue=a2a.replies.ours", ProtocolBinding: a2a.BindingAMQP, ProtocolVersion: "1.0"}
				c.SupportedInterfaces = append(c.SupportedInterfaces, q)
				if !other {
					c.SupportedInterfaces = []*protocol.AgentInterface{q}
				}
			}})
			cfg := a2a.RegistryConfig{
				Transport: transport, Queue: bindingtest.NewQueue(), Prefer: []string{"AMQP", "JSONRPC"},
				Peers: []a2a.Peer{{Name: "listed", Card: p.URL()}},
			}
			r, err := a2a.NewRegistry(cfg)
			if err != nil {
				t.Fatal(err)
			}
			in, err := r.Add(t.Context(), a2a.Registration{Name: "them", URL: p.URL()})
			if other && (err != nil || in.Binding != "JSONRPC") {
				t.Errorf("a registered agent is asked over %q (%v), want HTTP", in.Binding, err)
			}
			if !other && (err == nil || !strings.Contains(err.Error(), "only an operator can name")) {
				t.Errorf("Add() = %v, want that only an operator names queues", err)
			}
			if in, err := r.Info(t.Context(), "listed"); err != nil || in.Binding != a2a.BindingAMQP {
				t.Errorf("the operator's peer is asked over %q (%v), want the queue, which comes first in a2a.prefer", in.Binding, err)
			}
			cfg.Queue = nil
			if r, err = a2a.NewRegistry(cfg); err != nil {
				t.Fatal(err)
			}
			in, err = r.Info(t.Context(), "listed")
			if other && in.Binding != "JSONRPC" || !other && !strings.Contains(in.Problem, "no broker is configured") {
				t.Errorf("without a broker the operator's peer is %+v (%v)", in, err)
			}
		})
	}
}
