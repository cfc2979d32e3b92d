package a2a_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// once lets the nth request of a method go wrong.
func once(method string, nth int, f a2atest.Fault) func(a2atest.Request) a2atest.Fault {
	return func(r a2atest.Request) a2atest.Fault {
		if r.Method == method && r.Nth == nth {
			return f
		}
		return a2atest.Fault{}
	}
}

func TestLostResponseIsFoundByListing(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Lose: true}),
			Script: func(x *a2atest.Exchange) {
				x.State(a2atest.Working, "")
				x.Sleep(3 * time.Second)
				x.State(a2atest.Completed, "once")
			}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), data("p", "once"), false)
		wantMethods(w.t, p, "SendStreamingMessage", "ListTasks", "SubscribeToTask")
		if got := w.get(c); got.Attempt != 1 {
			w.t.Errorf("attempt = %d, want 1", got.Attempt)
		}
	})
}

func TestListingIsRetriedWhileThePeerIsAway(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Fault: func(r a2atest.Request) a2atest.Fault {
			switch {
			case r.Method == a2atest.MethodStream:
				return a2atest.Fault{Lose: true}
			case r.Method == a2atest.MethodList && r.Nth < 4:
				return a2atest.Fault{Refuse: true}
			case r.Method == a2atest.MethodList && r.Nth == 4:
				return a2atest.Fault{Status: 502}
			}
			return a2atest.Fault{}
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), data("p", "echo: look"), false)
		if n := len(p.Sends()); n != 1 {
			w.t.Errorf("the message was sent %d times, want once", n)
		}
	})
}

func TestPeerThatCannotListGetsTheSameMessageAgain(t *testing.T) {
	for _, dedup := range []bool{true, false} {
		t.Run(fmt.Sprint("dedup ", dedup), func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", Anonymous: true, Dedup: dedup, Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Lose: true}),
					Script: func(x *a2atest.Exchange) {
						x.State(a2atest.Working, "")
						x.Sleep(time.Second)
						x.State(a2atest.Completed, x.Token())
					}})
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				w.ask(c)
				sends := p.Sends()
				if len(sends) != 2 || sends[0].MessageID != sends[1].MessageID {
					w.t.Fatalf("sends = %+v, want two of one message id", sends)
				}
				if got := w.get(c); got.Attempt != 2 {
					w.t.Errorf("attempt = %d, want 2", got.Attempt)
				}
				received := 0
				for _, e := range p.Record() {
					if e.Kind == a2atest.KindReceived {
						received++
					}
				}
				if want := map[bool]int{true: 1, false: 2}[dedup]; received != want {
					w.t.Errorf("the peer worked on it %d times, want %d", received, want)
				}
			})
		})
	}
}

func TestMessageThatIsNotListedIsSentAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Refuse: true})})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), data("p", "echo: look"), false)
		wantMethods(w.t, p, "SendStreamingMessage", "ListTasks", "SendStreamingMessage")
	})
}

func TestOutcomeThatStaysUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		resend a2a.Resend
		sends  int
	}{"resend never": {a2a.ResendNever, 1}, "five attempts": {a2a.ResendAuto, 5}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", Anonymous: true, Fault: func(r a2atest.Request) a2atest.Fault {
					return a2atest.Fault{Lose: r.Method == a2atest.MethodStream}
				}}, func(p *a2a.Peer) { p.Resend = tc.resend })
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				wantText(w.t, w.ask(c), "outcome unknown: 'p' may have received it", true)
				if n := len(p.Sends()); n != tc.sends {
					w.t.Errorf("the message was sent %d times, want %d", n, tc.sends)
				}
			})
		})
	}
}

func TestRefusalOfARepeatedMessageLeavesTheOutcomeUnknown(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Anonymous: true, Fault: func(r a2atest.Request) a2atest.Fault {
			switch {
			case r.Method == a2atest.MethodStream && r.Nth == 1:
				return a2atest.Fault{Lose: true}
			case r.Method == a2atest.MethodStream:
				return a2atest.Fault{Status: 200, MediaType: "application/json", Body: `{"jsonrpc":"2.0","id":"1","error":{"code":-32600,"message":"seen that"}}`}
			}
			return a2atest.Fault{}
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), "outcome unknown: 'p' may have received it; it refused it when it was sent again: seen that", true)
	})
}

func TestBrokenStreamIsTakenUpAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		cut         int
		noSubscribe bool
		want        []string
	}{
		"by subscribing":        {cut: 2, want: []string{"SendStreamingMessage", "SubscribeToTask"}},
		"after the first event": {cut: 1, want: []string{"SendStreamingMessage", "SubscribeToTask"}},
		"by asking": {cut: 2, noSubscribe: true, want: []string{
			"SendStreamingMessage", "SubscribeToTask", "GetTask", "GetTask", "GetTask", "GetTask",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p",
					Fault: func(r a2atest.Request) a2atest.Fault {
						switch {
						case r.Method == a2atest.MethodStream:
							return a2atest.Fault{CutAfter: tc.cut}
						case r.Method == a2atest.MethodSubscribe && tc.noSubscribe:
							return a2atest.Fault{Status: 500}
						}
						return a2atest.Fault{}
					},
					Script: func(x *a2atest.Exchange) {
						x.State(a2atest.Working, "")
						x.Artifact("a", a2atest.TextPart("an artifact"))
						x.Sleep(5 * time.Second)
						x.State(a2atest.Completed, "done")
					}})
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				wantText(w.t, w.ask(c), data("p", "done\n\nArtifact \"a\".\nan artifact"), false)
				wantMethods(w.t, p, tc.want...)
			})
		})
	}
}

func TestPeerThatCannotStreamIsAskedAgainAndAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", NoStreaming: true, Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Sleep(100 * time.Second)
			x.State(a2atest.Completed, "done")
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), data("p", "done"), false)
		// At 0, 1, 3, 7, 15, 31, 61, 91 and 121 seconds, give or take the randomness of the pauses.
		if n := len(p.Requests(a2atest.MethodGet)); n < 8 || n > 10 {
			w.t.Errorf("it was asked for %d times, want about 9", n)
		}
		if n := len(p.Requests(a2atest.MethodSend)); n != 1 {
			w.t.Errorf("the message was sent %d times", n)
		}
	})
}

func TestOnlyThePeersWordEndsACallThatWasSent(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := a2atest.NewGate()
		w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{CutAfter: 2}),
			Script: func(x *a2atest.Exchange) {
				x.State(a2atest.Working, "")
				x.Wait(gate)
				x.State(a2atest.Completed, "still here")
			}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look", "timeout_seconds", 170))
		w.net.Down("p", false)
		out := w.run(w.t.Context(), c)
		time.Sleep(10 * time.Millisecond)
		w.net.Down("p", true) // connections that are open stay
		time.Sleep(60 * time.Second)
		w.wantState(c, tracker.StateWaiting)
		gate.Open()
		w.net.Down("p", false)
		wantText(w.t, (<-out).res, data("p", "still here"), false)
	})
}

func TestTaskThePeerForgotIsAFailure(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p",
			Fault: func(r a2atest.Request) a2atest.Fault {
				switch r.Method {
				case a2atest.MethodStream:
					return a2atest.Fault{CutAfter: 1}
				case a2atest.MethodSubscribe, a2atest.MethodGet:
					return a2atest.Fault{Status: 200, MediaType: "application/json", Body: `{"jsonrpc":"2.0","id":"1","error":{"code":-32001,"message":"never heard of it"}}`}
				}
				return a2atest.Fault{}
			},
			Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		wantText(w.t, w.ask(c), "peer 'p' no longer knows the task", true)
	})
}

func TestEventsSentTwiceAreOneAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Twice: true}),
			Script: func(x *a2atest.Exchange) {
				x.Artifact("a", a2atest.TextPart("text"))
				x.State(a2atest.Completed, "done")
			}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		res := w.ask(c)
		wantText(w.t, res, data("p", "done\n\nArtifact \"a\".\ntext"), false)
		w.complete(c, res)
		fate, _, err := w.tracker.Deliver(w.t.Context(), session.CallIDFor(c.ID), tracker.Reply{State: "completed", Text: "again"})
		if err != nil || fate != tracker.Duplicate {
			w.t.Errorf("delivering again is %s, %v", fate, err)
		}
	})
}

func TestMovedPeerIsFoundByItsCard(t *testing.T) {
	inBubble(t, func(w *world) {
		moved := w.net.Peer(w.t, a2atest.Config{Name: "moved"})
		var card struct{ body string }
		p := w.peer(a2atest.Config{Name: "p", Fault: func(r a2atest.Request) a2atest.Fault {
			switch {
			case r.Method == a2atest.MethodStream && r.Nth > 1:
				card.body = `{"name":"p","capabilities":{"streaming":true},"supportedInterfaces":[{"url":"` + moved.URL() + `/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`
				return a2atest.Fault{Status: 404}
			case r.Method == a2atest.MethodCard && card.body != "":
				return a2atest.Fault{Status: 200, MediaType: "application/json", Body: card.body}
			}
			return a2atest.Fault{}
		}})
		turn := w.turn(tool.Subagent, 0)
		for n := 1; n <= 2; n++ {
			c := w.call(turn, n, ask("p", "look"))
			res := w.ask(c)
			wantText(w.t, res, data("p", "echo: look"), false)
			w.complete(c, res)
		}
		if len(p.Sends()) != 2 || len(moved.Sends()) != 1 {
			w.t.Errorf("%d sends to the old address and %d to the new, want 2 and 1", len(p.Sends()), len(moved.Sends()))
		}
	})
}

func TestBusyPeerIsAskedLater(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Status: 503, Header: map[string]string{"Retry-After": "20"}})})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		began := time.Now()
		wantText(w.t, w.ask(c), data("p", "echo: look"), false)
		if got := time.Since(began); got < 20*time.Second || got > 25*time.Second {
			w.t.Errorf("it was asked again after %s, want 20 s", got)
		}
	})
}

// restartAt runs a call, restarts in the middle and runs it again, as a continued turn does.
func TestCallsAreTakenUpAfterARestart(t *testing.T) {
	for name, tc := range map[string]struct {
		kind  tool.Kind
		fault a2atest.Fault // of the first send
		wait  time.Duration // before the restart
		want  tracker.PendingA2ATask
		text  string
		late  bool
	}{
		"waiting, task known":    {kind: tool.Subagent, wait: time.Second, text: "WORD"},
		"waiting, task unknown":  {kind: tool.Subagent, fault: a2atest.Fault{Hold: a2atest.NewGate()}, wait: time.Second, text: "WORD"},
		"detached, task known":   {kind: tool.Subagent, wait: 31 * time.Second, text: "peer 'p' did not respond within 30s; proceeding without it", late: true},
		"open, task known":       {kind: tool.Primary, wait: time.Second, text: "DISPATCHED"},
		"open, task unknown":     {kind: tool.Primary, fault: a2atest.Fault{Hold: a2atest.NewGate()}, wait: time.Second, text: "DISPATCHED"},
		"waiting, response lost": {kind: tool.Subagent, fault: a2atest.Fault{CutAfter: 1}, wait: time.Millisecond, text: "WORD"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				gate := a2atest.NewGate()
				if tc.fault.Hold != nil { // gates belong to one bubble
					tc.fault.Hold = a2atest.NewGate()
				}
				p := w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, tc.fault),
					Script: func(x *a2atest.Exchange) {
						x.State(a2atest.Working, "")
						x.Wait(gate)
						x.State(a2atest.Completed, "the word")
					}})
				c := w.call(w.turn(tc.kind, 0), 1, ask("p", "look", "timeout_seconds", 30))
				ctx, cancel := context.WithCancelCause(w.t.Context())
				out := w.run(ctx, c)
				time.Sleep(tc.wait)
				cancel(session.ErrStopping)
				<-out
				w.restart()
				c.Resumed = true
				c.Turn = w.again(c.Turn)
				out = w.run(w.t.Context(), c)
				time.Sleep(5 * time.Second)
				gate.Open()
				res := <-out
				want := strings.NewReplacer("WORD", data("p", "the word"), "DISPATCHED", fmt.Sprintf(
					"Task dispatched to agent 'p' (task_id %s). The result arrives later as a follow-up; do not call it again for this. Tell the user briefly and stop.",
					session.CallIDFor(c.ID))).Replace(tc.text)
				if res.err != nil {
					w.t.Fatal(res.err)
				}
				wantText(w.t, res.res, want, false)
				time.Sleep(time.Minute)
				if tc.kind == tool.Primary || tc.late {
					w.wantState(c, tracker.StateFolded)
					if item, ok := w.item(session.ItemReply, c); !ok || item.Late != tc.late || item.Text != "the word" {
						w.t.Errorf("item = %+v, %v", item, ok)
					}
				}
				working := 0
				for _, e := range p.Record() {
					if e.Kind == a2atest.KindReceived {
						working++
					}
				}
				if working != 1 {
					w.t.Errorf("the peer worked on it %d times, want once", working)
				}
			})
		})
	}
}

// slowStore is a store in which one reading of a call takes its time.
type slowStore struct {
	session.Store
	slow chan struct{} // holds one token to make the next reading of a call slow
	done chan struct{}
}

// Record implements session.Store.
func (s *slowStore) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	rec, err := s.Store.Record(ctx, kind, key)
	if kind == session.KindCall {
		select {
		case <-s.slow:
			<-s.done
		default:
		}
	}
	return rec, err
}

// hasty is a store in which something happens as soon as a call is registered.
type hasty struct {
	session.Store

	then func(id session.CallID)
}

func (s *hasty) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	done, err := s.Store.Commit(ctx, b)
	if err == nil && len(b.Changes) == 1 && b.Changes[0].Kind == session.KindCall && len(b.Changes[0].From) == 0 && s.then != nil {
		s.then(session.CallID(b.Changes[0].Key))
	}
	return done, err
}

// A call is cancelled when it is registered and not followed yet: the peer isn't asked, or is told.
func TestACallThatIsCancelledBeforeItIsFollowedIsNotSent(t *testing.T) {
	for _, kind := range []tool.Kind{tool.Primary, tool.Subagent} {
		inBubble(t, func(w *world) {
			store := &hasty{Store: w.store}
			w.store = store
			p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
				x.State(a2atest.Working, "")
				x.Sleep(time.Minute)
				x.State(a2atest.Completed, "hello")
			}})
			c := w.call(w.turn(kind, 0), 1, ask("p", "look"))
			store.then = func(id session.CallID) {
				_, err := w.tracker.Cancel(w.t.Context(), id, "by the user")
				w.ok(err)
			}
			w.ask(c)
			time.Sleep(10 * time.Second)
			if call := w.wantState(c, tracker.StateCancelled); call.CancelOwed() {
				t.Errorf("a cancelled call of kind %v: the peer was asked %v and isn't told", kind, methods(p))
			}
		})
	}
}

// A tree is lost and claimed again by the same process while a follower of the first lease has not ended yet.
func TestCallsAreTakenUpThoughTheirLastFollowerIsThereStill(t *testing.T) {
	inBubble(t, func(w *world) {
		store := &slowStore{Store: w.store, slow: make(chan struct{}, 1), done: make(chan struct{})}
		w.store = store
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Sleep(time.Minute)
			x.State(a2atest.Completed, "hello")
		}})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
		w.ask(c)
		time.Sleep(time.Second)
		store.slow <- struct{}{}
		w.restart()
		synctest.Wait() // the follower reads the call
		w.lose()
		lease, err := w.store.Claim(w.t.Context(), w.root, "test", time.Hour)
		w.ok(err)
		ctx, cancel := context.WithCancelCause(context.Background())
		w.ok(w.relay.Recover(w.t.Context(), session.NewTree(ctx, w.store, lease, nil)))
		close(store.done)
		time.Sleep(2 * time.Minute)
		w.wantState(c, tracker.StateFolded)
		cancel(session.ErrStopping)
	})
}

// A call is found waiting, has its reply, and is taken up only then: there is nothing left to ask the peer.
func TestACallThatHasItsReplyIsNotTakenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		script func(*a2atest.Exchange)
		want   []string // in the life in which the call is taken up
	}{
		"message": {func(x *a2atest.Exchange) { x.Sleep(10 * time.Second); x.Reply("hello") }, []string{"ListTasks", "SendStreamingMessage"}},
		"task":    {func(x *a2atest.Exchange) { x.Sleep(10 * time.Second); x.State(a2atest.Completed, "hello") }, []string{"ListTasks", "SendStreamingMessage"}},
		"working": {func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Sleep(10 * time.Second)
			x.State(a2atest.Completed, "hello")
		}, []string{"SubscribeToTask"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				store := &slowStore{Store: w.store, slow: make(chan struct{}, 1), done: make(chan struct{})}
				w.store = store
				p := w.peer(a2atest.Config{Name: "p", Script: tc.script})
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				ctx, cancel := context.WithCancelCause(w.t.Context())
				out := w.run(ctx, c)
				time.Sleep(time.Second)
				cancel(session.ErrStopping)
				<-out
				w.restart()
				synctest.Wait() // it is followed

				store.slow <- struct{}{}
				c.Resumed, c.Turn = true, w.again(c.Turn)
				out = w.run(w.t.Context(), c)
				time.Sleep(20 * time.Second)
				w.wantState(c, tracker.StateAnswered)
				close(store.done)
				res := <-out
				w.ok(res.err)
				wantText(w.t, res.res, data("p", "hello"), false)
				time.Sleep(time.Minute)
				wantMethods(w.t, p, append([]string{"SendStreamingMessage"}, tc.want...)...)
			})
		})
	}
}

func TestContinuationReadsTheRecordAndNotTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p"})
		turn := w.turn(tool.Subagent, 0)
		c := w.call(turn, 1, ask("p", "look", "timeout_seconds", 5))
		w.ask(c) // answered, and the process died before the result was written
		time.Sleep(time.Hour)
		w.restart()
		c.Resumed, c.Turn = true, w.again(turn)
		res := w.ask(c)
		wantText(w.t, res, data("p", "echo: look"), false)
		w.complete(c, res)

		c2 := w.call(c.Turn, 2, ask("p", "look", "timeout_seconds", 5))
		time.Sleep(3 * time.Second)
		c2.Resumed = true // nothing was registered: what is left of the time is what there is
		w.ask(c2)
		if got := w.get(c2).Deadline; !got.Equal(c2.Accepted.Add(5 * time.Second)) {
			w.t.Errorf("the deadline is %s after the call was accepted, want 5s", got.Sub(c2.Accepted))
		}

		if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c2.ID)); err != nil {
			w.t.Fatal(err)
		}
		w.wantState(c2, tracker.StateAnswered) // too late to cancel
	})
}

func TestCancelledCallReachesThePeer(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		out := w.run(w.t.Context(), c)
		time.Sleep(time.Second)
		if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c.ID)); err != nil {
			w.t.Fatal(err)
		}
		wantText(w.t, (<-out).res, "the call to peer 'p' was cancelled", false)
		time.Sleep(time.Second)
		if got := w.wantState(c, tracker.StateCancelled); !got.CancelAnswered {
			w.t.Error("the peer hasn't answered")
		}
		if n := len(p.Requests(a2atest.MethodCancel)); n != 1 {
			w.t.Errorf("the peer got %d CancelTask, want 1", n)
		}
	})
}

func TestCancelBeforeTheTaskIDIsKnownIsSentAtTheFirstEvent(t *testing.T) {
	inBubble(t, func(w *world) {
		hold := a2atest.NewGate()
		p := w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Hold: hold}),
			Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		out := w.run(w.t.Context(), c)
		time.Sleep(time.Second)
		if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c.ID)); err != nil {
			w.t.Fatal(err)
		}
		<-out
		time.Sleep(10 * time.Second)
		wantMethods(w.t, p, "SendStreamingMessage")
		hold.Open()
		time.Sleep(time.Second)
		wantMethods(w.t, p, "SendStreamingMessage", "CancelTask")
		if !w.get(c).CancelAnswered {
			w.t.Error("the peer hasn't answered")
		}
	})
}

func TestCancelOfACallNothingWasSentForAsksNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Status: 503, Header: map[string]string{"Retry-After": "30"}})})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
		w.ask(c)
		time.Sleep(time.Second)
		if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c.ID)); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantMethods(w.t, p, "SendStreamingMessage")
		if !w.get(c).CancelAnswered {
			w.t.Error("the call still owes its peer a word")
		}
	})
}

func TestUnansweredCancelIsTakenUpAfterARestart(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("task known ", known), func(t *testing.T) {
			inBubble(t, func(w *world) {
				fault := func(r a2atest.Request) a2atest.Fault {
					switch {
					case r.Method == a2atest.MethodStream && !known:
						return a2atest.Fault{Lose: true}
					case r.Method == a2atest.MethodList && r.Nth == 1, r.Method == a2atest.MethodCancel && r.Nth == 1 && known:
						return a2atest.Fault{Hold: a2atest.NewGate()}
					}
					return a2atest.Fault{}
				}
				p := w.peer(a2atest.Config{Name: "p", Fault: fault, Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
				c := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
				w.ask(c)
				time.Sleep(time.Second)
				if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c.ID)); err != nil {
					w.t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if w.get(c).CancelAnswered {
					w.t.Fatal("the peer has answered already")
				}
				w.restart()
				time.Sleep(2 * time.Second)
				if !w.wantState(c, tracker.StateCancelled).CancelAnswered {
					w.t.Error("the peer hasn't answered after the restart")
				}
				if got := methods(p); got[len(got)-1] != a2atest.MethodCancel {
					w.t.Errorf("the peer was asked %v", got)
				}
			})
		})
	}
}

func TestReplyToACancelledCallIsKept(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p",
			Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) },
			Cancel: func(x *a2atest.Exchange) { x.State(a2atest.Completed, "too late to stop") }})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
		w.ask(c)
		time.Sleep(time.Second)
		if _, err := w.relay.CancelCall(w.t.Context(), session.CallIDFor(c.ID)); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(time.Second)
		got := w.wantState(c, tracker.StateCancelled)
		if got.Reply == nil || got.Reply.Text != "too late to stop" || !got.CancelAnswered {
			w.t.Errorf("the call keeps %+v (answered %v; asked %v)", got.Reply, got.CancelAnswered, methods(p))
		}
		if _, ok := w.item(session.ItemReply, c); ok {
			w.t.Error("a cancelled call's reply is an item")
		}
	})
}

func TestClosingATreeTellsThePeers(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		stuck := w.peer(a2atest.Config{Name: "stuck", Fault: once(a2atest.MethodCancel, 1, a2atest.Fault{Hold: a2atest.NewGate()}),
			Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		turn := w.turn(tool.Primary, 0)
		for i, name := range []string{"p", "p", "stuck"} {
			w.ask(w.call(turn, i+1, ask(name, "look")))
		}
		time.Sleep(time.Second)
		began := time.Now()
		w.ok(w.relay.CloseTree(w.t.Context(), w.tree))
		if got := time.Since(began); got > 5*time.Second {
			w.t.Errorf("closing took %s, want 5 s at most", got)
		}
		if a, b := len(p.Requests(a2atest.MethodCancel)), len(stuck.Requests(a2atest.MethodCancel)); a != 2 || b != 1 {
			w.t.Errorf("%d and %d CancelTask, want 2 and 1", a, b)
		}
		for i := range 3 {
			w.wantState(w.call(turn, i+1, nil), tracker.StateCancelled)
		}
	})
}

func TestExpiredCallIsFollowedNoMore(t *testing.T) {
	inBubble(t, func(w *world) {
		w.limits.ReplyRetention = time.Minute
		w.peer(a2atest.Config{Name: "p", NoStreaming: true, Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		p := w.peer(a2atest.Config{Name: "q", NoStreaming: true, Script: func(x *a2atest.Exchange) { x.State(a2atest.Working, ""); x.Wait(a2atest.NewGate()) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("q", "look", "timeout_seconds", 10))
		w.ask(c)
		time.Sleep(2 * time.Minute)
		asked := len(p.Requests(a2atest.MethodGet))
		time.Sleep(10 * time.Minute)
		if n := len(p.Requests(a2atest.MethodGet)); n != asked {
			w.t.Errorf("the peer was asked %d times more", n-asked)
		}
		w.relay.Drain() // nothing is followed, though the tree lives
	})
}

func TestAnswerOverTheBoundIsCutAndSaysSo(t *testing.T) {
	inBubble(t, func(w *world) {
		w.limits.MaxReply = 100_000
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			half := make([]byte, 50_001)
			x.Reply("here", a2atest.FilePart("big.bin", "application/octet-stream", half), a2atest.FilePart("more.bin", "application/octet-stream", half))
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		res := w.ask(c)
		if !strings.Contains(res.Content, `"big.bin"`) || strings.Contains(res.Content, `"more.bin"`) || !strings.Contains(res.Content, "[part of the answer was left out: it is over 100000 bytes]") {
			w.t.Errorf("the result is %q", res.Content)
		}
	})
}

func TestSettledWhileCommittingTheResult(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p"})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		res := w.ask(c)
		_, err := w.tree.EndTurn(w.t.Context(), c.Turn, session.Outcome{State: session.StateFailed}, w.tracker.EndPart(false))
		w.ok(err)
		w.wantState(c, tracker.StateFolded)
		got, err := res.Conflict(w.t.Context(), session.ErrConflict)
		w.ok(err)
		if !strings.HasSuffix(got.Content, "proceeding without it") || len(got.Batch.Changes) > 0 {
			w.t.Errorf("after the conflict the result is %+v", got)
		}
	})
}
