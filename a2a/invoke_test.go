package a2a_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

func TestSubagentGetsTheAnswerAsTheResult(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "advisor"})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("advisor", "what now?"))
		parked := ""
		c.Park = func(reason string) { parked = reason }
		res := w.ask(c)
		wantText(w.t, res, data("advisor", "echo: what now?"), false)
		if parked != tool.AwaitingPeer {
			w.t.Errorf("parked for %q, want %q", parked, tool.AwaitingPeer)
		}
		if got, want := p.Sends()[0].MessageID, string(session.CallIDFor(c.ID)); got != want {
			w.t.Errorf("message id = %q, want the call id %q", got, want)
		}
		w.wantState(c, tracker.StateAnswered)
		w.complete(c, res)
		w.wantState(c, tracker.StateConsumed)
		if diff := cmp.Diff([]string{"invocation.dispatched", "invocation.replied", "tool.completed"}, w.events(c)); diff != "" {
			w.t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestPrimaryGoesOnAndTheAnswerIsAnItem(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "advisor"})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("advisor", "what now?"))
		c.Park = func(string) { w.t.Error("a primary's call parked") }
		dispatched := "Task dispatched to agent 'advisor' (task_id " + string(session.CallIDFor(c.ID)) +
			"). The result arrives later as a follow-up; do not call it again for this. Tell the user briefly and stop."
		wantText(w.t, w.ask(c), dispatched, false)
		time.Sleep(time.Second)
		w.wantState(c, tracker.StateFolded)
		item, ok := w.item(session.ItemReply, c)
		if !ok || item.Text != "echo: what now?" || item.From != "advisor" || item.AskerName != "the primary" || item.Late {
			w.t.Errorf("item = %+v, %v", item, ok)
		}
		wantText(w.t, w.ask(c), dispatched, false) // again, whatever has become of it
	})
}

func TestAnswerKeepsEverythingThePeerSent(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "looking")
			x.Artifact("report", a2atest.TextPart("first half, "))
			x.Append("report", a2atest.TextPart("second half"))
			x.Artifact("numbers", a2atest.DataPart(map[string]any{"n": 42.0}))
			x.Artifact("files", a2atest.FilePart("a.bin", "application/octet-stream", []byte{1, 2, 3}), a2atest.LinkPart("b.pdf", "application/pdf", "https://example.test/b.pdf"))
			x.State(a2atest.Completed, "all done", a2atest.DataPart(map[string]any{"ok": true}))
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "report"))
		res := w.ask(c)
		key := session.ArtifactKeyFor(c.ID, "file 1")
		for _, want := range []string{
			"all done", "looking", "first half, ", "second half", `Artifact "report".`, `data: {"n":42}`, `data: {"ok":true}`,
			`[file "a.bin" (application/octet-stream), 3 bytes: read_artifact {"key": "` + string(key) + `"}]`,
			`[file "b.pdf" (application/pdf): https://example.test/b.pdf]`,
		} {
			if !strings.Contains(res.Content, want) {
				w.t.Errorf("the result lacks %q:\n%s", want, res.Content)
			}
		}
		file, err := w.store.Artifact(w.t.Context(), w.root, key)
		if err != nil || string(file.Data) != "\x01\x02\x03" || file.MediaType != "application/octet-stream" || file.Name != "a.bin" {
			w.t.Errorf("artifact = %+v, %v", file, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.progress) != 1 || w.progress[0].Text != "looking" || w.progress[0].Peer != "p" {
			w.t.Errorf("progress = %+v, want the one status", w.progress)
		}
	})
}

func TestPiecesOfAnArtifactAreOneTextHoweverTheyCame(t *testing.T) {
	want := data("p", "done\nand dusted\n\nArtifact \"story\".\nOnce upon a time.\n[file \"map.pdf\" (application/pdf): https://example.test/map.pdf]\nThe end.\n\n"+
		"Artifact \"moral\".\nDon't.")
	script := func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Artifact("story", a2atest.TextPart("On"))
		x.Append("story", a2atest.TextPart("ce up"), a2atest.TextPart("on a"))
		x.Artifact("moral", a2atest.TextPart("Don't."))
		x.Append("story", a2atest.TextPart(" time."))
		x.Append("story", a2atest.LinkPart("map.pdf", "application/pdf", "https://example.test/map.pdf"), a2atest.TextPart("The "))
		x.Append("story", a2atest.TextPart("end."))
		x.Sleep(5 * time.Second)
		x.State(a2atest.Completed, "done", a2atest.TextPart("and dusted"))
	}
	for name, cfg := range map[string]a2atest.Config{
		"streamed":       {},
		"polled":         {NoStreaming: true},
		"a stream broke": {Fault: once(a2atest.MethodStream, 1, a2atest.Fault{CutAfter: 4})},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				cfg.Name, cfg.Script = "p", script
				w.peer(cfg)
				wantText(w.t, w.ask(w.call(w.turn(tool.Subagent, 0), 1, ask("p", "tell"))), want, false)
			})
		})
	}
}

func TestLongAnswerGoesToAnArtifact(t *testing.T) {
	inBubble(t, func(w *world) {
		long := a2atest.Words(40)
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.Reply(long) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "talk"))
		res := w.ask(c)
		if len(res.Content) > session.InlineBudget+1000 {
			w.t.Errorf("the result has %d bytes", len(res.Content))
		}
		p := w.get(c)
		if len(p.Reply.Artifacts) != 1 || !strings.Contains(res.Content, string(p.Reply.Artifacts[0])) {
			w.t.Fatalf("artifacts = %v, and the result doesn't name them", p.Reply.Artifacts)
		}
		a, err := w.store.Artifact(w.t.Context(), w.root, p.Reply.Artifacts[0])
		if err != nil || string(a.Data) != strings.TrimSpace(long) {
			w.t.Errorf("the artifact has %d bytes of %d (%v)", len(a.Data), len(long), err)
		}
	})
}

func TestTaskStatesAreMapped(t *testing.T) {
	script := func(s a2atest.State, text string) func(*a2atest.Exchange) {
		return func(x *a2atest.Exchange) { x.State(s, text) }
	}
	for name, tc := range map[string]struct {
		script  func(*a2atest.Exchange)
		refuse  bool
		want    string // TASK stands for the task id
		isError bool
	}{
		"message":              {script: func(x *a2atest.Exchange) { x.Reply("hello") }, want: data("p", "hello")},
		"message of nothing":   {script: func(x *a2atest.Exchange) { x.Reply("", a2atest.TextPart(" ")) }, want: "peer 'p' answered without saying anything"},
		"completed":            {script: script(a2atest.Completed, "done"), want: data("p", "done")},
		"completed in silence": {script: script(a2atest.Completed, ""), want: "peer 'p' answered without saying anything"},
		"failed":               {script: script(a2atest.Failed, "no disk"), want: "peer 'p' failed\n\n" + data("p", "no disk"), isError: true},
		"rejected":             {script: script(a2atest.Rejected, "not mine"), want: "peer 'p' rejected the task\n\n" + data("p", "not mine"), isError: true},
		"canceled":             {script: script(a2atest.Canceled, ""), want: "peer 'p' cancelled the task", isError: true},
		"input required": {
			script: script(a2atest.InputRequired, "which one?"),
			want: "peer 'p' did not answer but asked for more; proceeding without it, unless you answer: call invoke_agent again with agent_name \"p\", " +
				"task_id \"TASK\" and your answer as the message. It asked:\n\n" + data("p", "which one?"),
		},
		"input required, refused": {
			script: script(a2atest.InputRequired, "which one?"), refuse: true,
			want: "peer 'p' did not answer but asked for more; proceeding without it. It asked:\n\n" + data("p", "which one?"),
		},
		"executor broke": {script: func(x *a2atest.Exchange) { x.Submit(); x.Break("boom") }, want: "peer 'p' failed", isError: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.peer(a2atest.Config{Name: "p", Script: tc.script}, func(p *a2a.Peer) {
					if tc.refuse {
						p.OnInputRequired = a2a.OnInputRequiredRefuse
					}
				})
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "go"))
				res := w.ask(c)
				want := strings.ReplaceAll(tc.want, "TASK", string(session.CallIDFor(c.ID)))
				if name == "executor broke" && strings.HasPrefix(res.Content, want) {
					res.Content = want // the SDK's server words the rest, as an error or as a state, whichever is quicker
				}
				wantText(w.t, res, want, tc.isError)
				w.complete(c, res)
				w.wantState(c, tracker.StateConsumed)
			})
		})
	}
}

func TestUnknownStateIsNotAnAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := a2atest.NewGate()
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.State("TASK_STATE_PONDERING", "hmm")
			x.Wait(gate)
			x.State(a2atest.Completed, "got it")
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "go"))
		out := w.run(w.t.Context(), c)
		time.Sleep(10 * time.Second)
		w.wantState(c, tracker.StateWaiting)
		gate.Open()
		wantText(w.t, (<-out).res, data("p", "got it\n\nIts message before:\nhmm"), false)
	})
}

func TestDeadlineDetachesAndTheLateReplyIsFolded(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := a2atest.NewGate()
		w.peer(a2atest.Config{Name: "archivist", Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Wait(gate)
			x.State(a2atest.Completed, "found it")
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("archivist", "look", "timeout_seconds", 7))
		began := time.Now()
		res := w.ask(c)
		wantText(w.t, res, "peer 'archivist' did not respond within 7s; proceeding without it", false)
		if got := time.Since(began); got != 7*time.Second {
			w.t.Errorf("it waited %s", got)
		}
		w.complete(c, res)
		w.wantState(c, tracker.StateDetached)
		gate.Open()
		time.Sleep(time.Second)
		w.wantState(c, tracker.StateFolded)
		if item, ok := w.item(session.ItemReply, c); !ok || !item.Late || item.Text != "found it" || item.AskerName != "look it up" {
			w.t.Errorf("item = %+v, %v", item, ok)
		}
		if diff := cmp.Diff([]string{"invocation.dispatched", "invocation.timed_out", "tool.completed", "invocation.late"}, w.events(c)); diff != "" {
			w.t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestPeerThatIsCancelledOnTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.State(a2atest.Working, "")
			x.Wait(a2atest.NewGate())
		}}, func(p *a2a.Peer) { p.OnTimeout = a2a.OnTimeoutCancel })
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look", "timeout_seconds", 5))
		wantText(w.t, w.ask(c), "peer 'p' did not respond within 5s; proceeding without it", false)
		time.Sleep(time.Second)
		if got := w.wantState(c, tracker.StateCancelled); !got.CancelAnswered {
			w.t.Error("the peer has not answered that the call is cancelled")
		}
		if n := len(p.Requests(a2atest.MethodCancel)); n != 1 {
			w.t.Errorf("the peer got %d CancelTask, want 1", n)
		}
	})
}

func TestWaitAloneCancelled(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.Wait(a2atest.NewGate()) }})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look", "timeout_seconds", 60))
		ctx, cancel := context.WithCancelCause(w.t.Context())
		out := w.run(ctx, c)
		time.Sleep(time.Second)
		cancel(&tracker.WaitCancelledError{Reason: "somebody said so"})
		wantText(w.t, (<-out).res, "peer 'p' did not respond within 60s; proceeding without it", false)
		w.wantState(c, tracker.StateDetached)
	})
}

func TestStopAndCancelledTurnLeaveTheCallAlone(t *testing.T) {
	for _, cause := range []error{session.ErrStopping, &session.TurnCancelledError{Reason: "user"}} {
		t.Run(cause.Error(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
					x.State(a2atest.Working, "")
					x.Wait(a2atest.NewGate())
				}})
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				ctx, cancel := context.WithCancelCause(w.t.Context())
				out := w.run(ctx, c)
				time.Sleep(time.Second)
				cancel(cause)
				if o := <-out; !errors.Is(o.err, cause) {
					w.t.Errorf("the error is %v, want %v", o.err, cause)
				}
				time.Sleep(time.Second)
				w.wantState(c, tracker.StateWaiting)
				if n := len(p.Requests(a2atest.MethodCancel)); n != 0 {
					w.t.Errorf("the peer got %d CancelTask", n)
				}
			})
		})
	}
}

func TestAuthRequiredEndsTheWaitAndIsFollowedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := a2atest.NewGate()
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.State(a2atest.AuthRequired, "log in at https://example.test")
			x.Wait(gate)
			x.State(a2atest.Completed, "welcome")
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		res := w.ask(c)
		wantText(w.t, res, "peer 'p' wants the user to authenticate before it answers, which only the user can do; proceeding without it\n\n"+
			data("p", "log in at https://example.test"), false)
		w.complete(c, res)
		w.wantState(c, tracker.StateDetached)

		async := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
		w.ask(async)
		time.Sleep(time.Second)
		w.wantState(async, tracker.StateOpen)
		if item, ok := w.item(session.ItemAuth, async); !ok || item.Text != "log in at https://example.test" {
			w.t.Errorf("auth item = %+v, %v", item, ok)
		}
		gate.Open()
		time.Sleep(time.Second)
		for _, c := range []*tool.Call{c, async} {
			w.wantState(c, tracker.StateFolded)
			if item, ok := w.item(session.ItemReply, c); !ok || !strings.HasPrefix(item.Text, "welcome") {
				w.t.Errorf("item = %+v, %v", item, ok)
			}
		}
	})
}

func TestAnsweringAPeersQuestionContinuesItsTask(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprint("streaming ", streaming), func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", NoStreaming: !streaming, Script: func(x *a2atest.Exchange) {
					if !x.FollowUp() {
						x.State(a2atest.InputRequired, "which one?")
						return
					}
					x.Sleep(5 * time.Second) // the old question still stands in the task
					x.State(a2atest.Completed, "so it is "+x.Text())
				}})
				turn := w.turn(tool.Subagent, 0)
				first := w.call(turn, 1, ask("p", "choose"))
				w.complete(first, w.ask(first))
				second := w.call(turn, 2, ask("p", "the red one", "task_id", session.CallIDFor(first.ID)))
				res := w.ask(second)
				if !strings.Contains(res.Content, "so it is the red one") || res.IsError {
					w.t.Errorf("the result is %+v", res)
				}
				sends := p.Sends()
				if len(sends) != 2 || sends[1].TaskID != w.get(first).PeerTaskID || sends[1].ContextID != sends[0].ContextID || sends[1].TaskID == "" {
					w.t.Errorf("sends = %+v, want the second to continue the first's task", sends)
				}
			})
		})
	}
}

func TestContinuingHasItsLimits(t *testing.T) {
	inBubble(t, func(w *world) {
		w.limits.MaxInputRounds = 6
		for _, name := range []string{"p", "q"} {
			w.peer(a2atest.Config{Name: name, Script: func(x *a2atest.Exchange) {
				if strings.HasPrefix(x.Text(), "end") {
					x.State(a2atest.Completed, "ended")
					return
				}
				x.State(a2atest.InputRequired, "which one?")
			}})
		}
		turn := w.turn(tool.Subagent, 0)
		n := 0
		next := func(peer, message string, id session.CallID) (tool.Result, session.CallID) {
			n++
			args := ask(peer, message)
			if id != "" {
				args["task_id"] = id
			}
			c := w.call(turn, n, args)
			res := w.ask(c)
			if len(res.Batch.Changes) > 0 {
				w.complete(c, res)
			}
			return res, session.CallIDFor(c.ID)
		}
		_, id := next("p", "choose", "")
		if res, _ := next("q", "the red one", id); res.Content != fmt.Sprintf("there is no task %q of agent 'q' in this session", id) || !res.IsError {
			w.t.Errorf("another peer's task: %+v", res)
		}
		if res, _ := next("p", "the red one", "c_other"); res.Content != `there is no task "c_other" of agent 'p' in this session` {
			w.t.Errorf("an unknown task: %+v", res)
		}
		for range 2 {
			_, id = next("p", "the red one", id)
		}
		if res, _ := next("p", "the red one", id); !strings.Contains(res.Content, "got the same answer twice") || !res.IsError {
			w.t.Errorf("the third same answer: %+v", res)
		}
		for i := range 4 {
			_, id = next("p", fmt.Sprint("number ", i), id)
		}
		if res, _ := next("p", "number 5", id); !strings.Contains(res.Content, "asked back 7 times") || !res.IsError {
			w.t.Errorf("the round beyond the last: %+v", res)
		}

		// A task that has ended is not continued; what was said in it is referred to.
		_, done := next("q", "end", "")
		if res, _ := next("q", "end again", done); res.Content != data("q", "ended") {
			w.t.Errorf("going on from an answer: %+v", res)
		}
	})
}

func TestDispatchFailures(t *testing.T) {
	html := func(method string) func(a2atest.Request) a2atest.Fault {
		return func(r a2atest.Request) a2atest.Fault {
			if r.Method == method {
				return a2atest.Fault{Status: 200, MediaType: "text/html; charset=utf-8", Body: "<html>hello</html>"}
			}
			return a2atest.Fault{}
		}
	}
	status := func(method string, code int) func(a2atest.Request) a2atest.Fault {
		return func(r a2atest.Request) a2atest.Fault {
			if r.Method == method {
				return a2atest.Fault{Status: code}
			}
			return a2atest.Fault{}
		}
	}
	const wont = "Trying the same again won't help."
	for name, tc := range map[string]struct {
		cfg  a2atest.Config
		want string
	}{
		"card is a web page":    {a2atest.Config{Fault: html("card")}, `http://p.test/.well-known/agent-card.json answered with "text/html", which is not A2A; check the address. ` + wont},
		"speaks HTML":           {a2atest.Config{Fault: html(a2atest.MethodStream)}, `http://p.test/a2a answered with "text/html", which is not A2A; check the address. ` + wont},
		"no card":               {a2atest.Config{Fault: status("card", 404)}, "http://p.test/.well-known/agent-card.json answered 404 Not Found. Trying again won't help; its address may be wrong."},
		"nobody at the address": {a2atest.Config{Fault: status(a2atest.MethodStream, 404)}, "http://p.test/a2a answered 404 Not Found. Trying again won't help; its address may be wrong."},
		"unauthorized":          {a2atest.Config{Fault: status(a2atest.MethodStream, 401)}, "http://p.test/a2a answered 401 Unauthorized. " + wont},
		"card without interfaces": {
			a2atest.Config{Card: func(c *protocol.AgentCard) { c.SupportedInterfaces = nil }},
			"the card at http://p.test/.well-known/agent-card.json names no interfaces (supportedInterfaces), so the agent can't be called. " + wont,
		},
		"no interface we speak": {
			a2atest.Config{Card: func(c *protocol.AgentCard) { c.SupportedInterfaces[0].ProtocolBinding = "SMTP" }},
			"p offers SMTP 1.0 at http://p.test/a2a; none of it can be called: there are JSONRPC 1.0, HTTP+JSON 1.0, GRPC 1.0, JSONRPC 0.3, HTTP+JSON 0.3. " + wont,
		},
		"peer's own refusal": {
			a2atest.Config{Fault: func(r a2atest.Request) a2atest.Fault {
				if r.Method == a2atest.MethodStream {
					return a2atest.Fault{Status: 200, MediaType: "application/json", Body: `{"jsonrpc":"2.0","id":"1","error":{"code":-32602,"message":"parts are too long"}}`}
				}
				return a2atest.Fault{}
			}},
			"parts are too long. " + wont,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				tc.cfg.Name = "p"
				w.peer(tc.cfg)
				c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
				res := w.ask(c)
				if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' refused the call: ") || !strings.HasSuffix(res.Content, tc.want) {
					w.t.Errorf("the result is %q (error %v), want it to end in %q", res.Content, res.IsError, tc.want)
				}
				w.complete(c, res)

				async := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look"))
				if res := w.ask(async); res.IsError {
					w.t.Errorf("the primary's call is refused: %+v", res)
				}
				time.Sleep(time.Second)
				if item, ok := w.item(session.ItemReply, async); !ok || item.State != "failed" || !strings.HasSuffix(item.Text, tc.want) {
					w.t.Errorf("item = %+v, %v", item, ok)
				}
			})
		})
	}
}

func TestUnreachablePeerFailsSoon(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p"})
		w.net.Down("p", true)
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		began := time.Now()
		res := w.ask(c)
		if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' can't be reached: ") || !strings.HasSuffix(res.Content, "Nothing was sent. It may help to try again later.") ||
			!strings.Contains(res.Content, "connection refused") {
			w.t.Errorf("the result is %+v", res)
		}
		if got := time.Since(began); got > 3*time.Second {
			w.t.Errorf("it took %s", got)
		}
		if !w.get(c).Reply.Retryable {
			w.t.Error("the reply doesn't say that trying again may help")
		}
	})
}

func TestPeerThatComesBackAtOnceIsAsked(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p"})
		w.net.Down("p", true)
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "look"))
		out := w.run(w.t.Context(), c)
		time.Sleep(200 * time.Millisecond)
		w.net.Down("p", false)
		wantText(w.t, (<-out).res, data("p", "echo: look"), false)
	})
}

func TestGuardCountsWaitingAndOpenCalls(t *testing.T) {
	inBubble(t, func(w *world) {
		gate := a2atest.NewGate()
		w.peer(a2atest.Config{Name: "slow", Script: func(x *a2atest.Exchange) { x.Wait(gate); x.Reply("at last") }})
		turn := w.turn(tool.Subagent, 0)
		first := w.run(w.t.Context(), w.call(turn, 1, ask("slow", "one", "timeout_seconds", 10)))
		time.Sleep(time.Second)
		wantText(w.t, w.ask(w.call(turn, 2, ask("slow", "two"))), "a call to 'slow' is still open; wait for its result", true)
		<-first // times out; an abandoned call doesn't count
		next := w.run(w.t.Context(), w.call(turn, 3, ask("slow", "three")))
		time.Sleep(time.Second)
		gate.Open()
		wantText(w.t, (<-next).res, data("slow", "at last"), false)
	})
}

func TestBudgetOfAWait(t *testing.T) {
	for name, tc := range map[string]struct {
		left    time.Duration // of the subagent
		args    []any
		timeout time.Duration // of the peer
		want    string
	}{
		"default":               {want: "peer 'p' did not respond within 180s; proceeding without it"},
		"asked for less":        {args: []any{"timeout_seconds", 20}, want: "peer 'p' did not respond within 20s; proceeding without it"},
		"asked for more":        {args: []any{"timeout_seconds", 5000}, want: "peer 'p' did not respond within 180s; proceeding without it"},
		"the peer's own":        {timeout: 42 * time.Second, want: "peer 'p' did not respond within 42s; proceeding without it"},
		"a tenth is kept":       {left: 100 * time.Second, want: "peer 'p' did not respond within 90s; proceeding without it"},
		"15 s are kept":         {left: 190 * time.Second, want: "peer 'p' did not respond within 175s; proceeding without it"},
		"nothing left":          {left: -time.Second, want: "no time left to ask peer 'p'; proceeding without it"},
		"accepted too long ago": {args: []any{"timeout_seconds", 0.001}, want: "no time left to ask peer 'p'; proceeding without it"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.Wait(a2atest.NewGate()) }},
					func(p *a2a.Peer) { p.Timeout = tc.timeout })
				turn := w.turn(tool.Subagent, max(tc.left, 0))
				if tc.left < 0 {
					turn.Body.Deadline = time.Now().Add(tc.left)
				}
				c := w.call(turn, 1, ask("p", "look", tc.args...))
				if strings.HasPrefix(name, "accepted") {
					time.Sleep(time.Second)
				}
				began := time.Now()
				res := w.ask(c)
				wantText(w.t, res, tc.want, false)
				if strings.HasPrefix(tc.want, "no time") {
					if _, err := w.tracker.Get(w.t.Context(), session.CallIDFor(c.ID)); !errors.Is(err, session.ErrNotFound) || len(p.Requests()) > 0 {
						w.t.Errorf("something was registered (%v) or sent (%v)", err, p.Requests())
					}
					return
				}
				if got := fmt.Sprintf("within %ds;", int(time.Since(began).Seconds())); !strings.Contains(tc.want, got) {
					w.t.Errorf("it waited %s", time.Since(began))
				}
			})
		})
	}
}

func TestAsynchronousCallHasTheDeadlineItAskedFor(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p"})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("p", "look", "timeout_seconds", 30))
		w.ask(c)
		if got := w.get(c).Deadline; !got.Equal(c.Accepted.Add(30 * time.Second)) {
			w.t.Errorf("the deadline is %s after the call, want 30s", got.Sub(c.Accepted))
		}
	})
}

func TestRefusedBeforeAnyIO(t *testing.T) {
	for name, tc := range map[string]struct {
		args   map[string]any
		change func(w *world, turn *session.Turn)
		want   string
	}{
		"unknown peer": {args: ask("advizor", "x"), want: `there is no agent named "advizor"; did you mean "advisor"?`},
		"nothing near": {args: ask("zzzz", "x"), want: `there is no agent named "zzzz"; known are ["advisor"]`},
		"empty":        {args: ask("advisor", "  "), want: "the message is empty; say what agent 'advisor' is asked"},
		"itself by name": {
			args: ask("me", "x"), want: "'me' is this agent itself; it can't ask itself",
			change: func(w *world, _ *session.Turn) { w.self.Name = "me" },
		},
		"itself by card": {
			args: ask("advisor", "x"), want: "'advisor' is this agent itself; it can't ask itself",
			change: func(w *world, _ *session.Turn) { w.self.Card = "http://advisor.test/.well-known/agent-card.json" },
		},
		"in the chain": {
			args: ask("advisor", "x"), want: "agent 'advisor' is among those the question came from; it can't be asked again for the same question",
			change: func(w *world, _ *session.Turn) {
				w.in = func(*session.Turn) a2a.Lineage { return a2a.Lineage{Chain: []string{"http://advisor.test/"}, Depth: 1} }
			},
		},
		"too deep": {
			args: ask("advisor", "x"), want: "the question has come through 8 agents, which is the most that may be; answer with what you have",
			change: func(w *world, _ *session.Turn) {
				w.in = func(*session.Turn) a2a.Lineage { return a2a.Lineage{Depth: 8} }
			},
		},
		"too many follow-ups": {
			args: ask("advisor", "x"), want: "this turn came of 5 follow-ups in a row, and no more agents may be asked; answer with what you have",
			change: func(_ *world, turn *session.Turn) { turn.Body.Generation = 5 },
		},
		"data that is no object": {args: ask("advisor", "x", "data", 3), want: "data must be an object: json: cannot unmarshal number into Go value of type map[string]interface {}"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "advisor"})
				turn := w.turn(tool.Subagent, 0)
				if tc.change != nil {
					tc.change(w, turn)
					w.restart()
				}
				c := w.call(turn, 1, tc.args)
				wantText(w.t, w.ask(c), tc.want, true)
				if _, err := w.tracker.Get(w.t.Context(), session.CallIDFor(c.ID)); !errors.Is(err, session.ErrNotFound) || len(p.Requests()) > 0 {
					w.t.Errorf("something was registered (%v) or sent (%v)", err, p.Requests())
				}
			})
		})
	}
}

func TestMessageCarriesLineageSkillAndData(t *testing.T) {
	inBubble(t, func(w *world) {
		w.self = a2a.Identity{Card: "https://us.test"}
		w.in = func(*session.Turn) a2a.Lineage { return a2a.Lineage{Chain: []string{"https://them.test"}, Depth: 1} }
		p := w.peer(a2atest.Config{Name: "p", Card: func(c *protocol.AgentCard) {
			c.Capabilities.Extensions = []protocol.AgentExtension{{URI: a2a.LineageURI, Required: true}, {URI: "urn:other"}}
		}})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("p", "go", "skill", "echo", "data", map[string]any{"k": "v"}, "timeout_seconds", 9))
		w.ask(c)
		sent := p.Sends()[0]
		got, ok := a2a.LineageFrom(sent.Metadata)
		want := a2a.Lineage{Chain: []string{"https://them.test", "https://us.test"}, Depth: 2, Deadline: c.Accepted.Add(9 * time.Second).UTC()}
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			w.t.Errorf("lineage (-want +got):\n%s", diff)
		}
		if sent.Metadata["skill"] != "echo" || sent.Header.Get("A2A-Extensions") != a2a.LineageURI || sent.Header.Get("A2A-Version") != "1.0" {
			w.t.Errorf("skill %v, headers %v", sent.Metadata["skill"], sent.Header)
		}
		c = w.call(w.turn(tool.Subagent, 0), 1, ask("p", "go", "skill", "fly"))
		wantText(w.t, w.ask(c), `agent 'p' has no skill "fly"; it has ["echo"]`, true)
	})
}

func TestToolsSayWhatTheyAre(t *testing.T) {
	inBubble(t, func(w *world) {
		var names []string
		for _, tl := range w.relay.Tools() {
			s := tl.Spec()
			names = append(names, s.Name)
			if s.Source != tool.SourceA2A || !s.Repeatable {
				w.t.Errorf("%s: source %s, repeatable %v", s.Name, s.Source, s.Repeatable)
			}
		}
		if !slices.Equal(names, []string{"invoke_agent", "list_known_agents", "get_agent_details"}) {
			w.t.Errorf("tools = %v", names)
		}
		describe := w.tool(a2a.InvokeAgent).Spec().Description
		for kind, want := range map[tool.Kind]string{tool.Primary: "the answer comes later", tool.Subagent: "the result of this call is the agent's answer"} {
			if !strings.Contains(describe(kind), want) {
				w.t.Errorf("to a %s it doesn't say %q", kind, want)
			}
		}
	})
}

func TestAgentsAreListed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "up"})
		w.peer(a2atest.Config{Name: "down"}, func(p *a2a.Peer) { p.Description = "for when it rains" })
		w.net.Down("down", true)
		turn := w.turn(tool.Primary, 0)
		list := func(args map[string]any) string {
			c := w.call(turn, 1, args)
			c.Name = a2a.ListKnownAgents
			return w.ask(c).Content
		}
		got := list(map[string]any{})
		for _, want := range []string{"- up: a peer for tests (skills: echo)\n", "- down: for when it rains [unreachable: ", "connection refused"} {
			if !strings.Contains(got, want) {
				w.t.Errorf("the list lacks %q:\n%s", want, got)
			}
		}
		if got := list(map[string]any{"skill": "flying"}); strings.Contains(got, "- up") || !strings.Contains(got, "- down") {
			w.t.Errorf("with a skill nobody has:\n%s", got)
		}
		c := w.call(turn, 2, map[string]any{"agent_name": "up"})
		c.Name = a2a.GetAgentDetails
		if res := w.ask(c); res.IsError || !strings.Contains(res.Content, `"says what it was told"`) {
			w.t.Errorf("details = %+v", res)
		}
		c = w.call(turn, 3, map[string]any{"agent_name": "upp"})
		c.Name = a2a.GetAgentDetails
		wantText(w.t, w.ask(c), `there is no agent named "upp"; did you mean "up"?`, true)
	})
}
