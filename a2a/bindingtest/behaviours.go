package bindingtest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// behaviour is something a peer may do, and what then has to become of a call, whatever the peer speaks.
type behaviour struct {
	name    string
	peer    a2atest.Config
	conf    func(*a2a.Peer)
	maxBody int64 // that is taken of an answer; 0 is the default
	check   func(w *world, p *a2atest.Peer)
}

// answered checks what a blocking call returns.
func answered(want string, isError bool) func(*world, *a2atest.Peer) {
	return func(w *world, _ *a2atest.Peer) {
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
		res := w.ask(c)
		w.wantText(res, strings.ReplaceAll(want, "TASK", string(session.CallIDFor(c.ID))), isError)
		w.complete(c, res)
		w.wantState(c, tracker.StateConsumed)
	}
}

// then checks a blocking call's answer and what the peer was asked.
func then(want string, isError bool, methods ...string) func(*world, *a2atest.Peer) {
	return func(w *world, p *a2atest.Peer) {
		answered(want, isError)(w, p)
		w.wantMethods(p, methods...)
	}
}

// ends is a script that brings a task into its last state.
func ends(s a2atest.State, text string) a2atest.Config {
	return a2atest.Config{Script: func(x *a2atest.Exchange) { x.State(s, text) }}
}

// works is a script that takes its time.
func works(x *a2atest.Exchange) {
	x.State(a2atest.Working, "")
	x.Artifact("a", a2atest.TextPart("an artifact"))
	x.Sleep(5 * time.Second)
	x.State(a2atest.Completed, "done")
}

const worked = "done\n\nArtifact \"a\".\nan artifact"

// faulty is a peer that works, of which the nth request of a method goes wrong.
func faulty(method string, nth int, f a2atest.Fault) a2atest.Config {
	return a2atest.Config{Script: works, Fault: once(method, nth, f)}
}

var behaviours = []behaviour{
	// What a peer may answer.
	{name: "answers with a message", peer: a2atest.Config{Script: func(x *a2atest.Exchange) { x.Reply("hello") }}, check: answered(data("p", "hello"), false)},
	{name: "completes", peer: ends(a2atest.Completed, "done"), check: answered(data("p", "done"), false)},
	{name: "completes in silence", peer: ends(a2atest.Completed, ""), check: answered("peer 'p' answered without saying anything", false)},
	{name: "fails", peer: ends(a2atest.Failed, "no disk"), check: answered("peer 'p' failed\n\n"+data("p", "no disk"), true)},
	{name: "rejects", peer: ends(a2atest.Rejected, "not mine"), check: answered("peer 'p' rejected the task\n\n"+data("p", "not mine"), true)},
	{name: "cancels by itself", peer: ends(a2atest.Canceled, ""), check: answered("peer 'p' cancelled the task", true)},
	{name: "asks back and is answered", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		if x.FollowUp() {
			x.State(a2atest.Completed, "then it is "+x.Text())
			return
		}
		x.State(a2atest.InputRequired, "which one?")
	}}, check: checkAskedBack},
	{name: "wants the user to authenticate", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.State(a2atest.AuthRequired, "log in at https://example.test")
		x.Sleep(5 * time.Second)
		x.State(a2atest.Completed, "welcome")
	}}, check: checkAuthRequired},
	{name: "tells how it goes", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.Submit()
		x.State(a2atest.Working, "looking")
		x.Sleep(time.Second)
		x.State(a2atest.Working, "still looking")
		x.Sleep(time.Second)
		x.State(a2atest.Completed, "found")
	}}, check: func(w *world, p *a2atest.Peer) {
		answered(data("p", "found\n\nIts message before:\nstill looking"), false)(w, p)
		w.mu.Lock()
		defer w.mu.Unlock()
		var got []string
		for _, e := range w.progress {
			got = append(got, e.Text)
		}
		if diff := cmp.Diff([]string{"looking", "still looking"}, got); diff != "" {
			w.t.Errorf("progress (-want +got):\n%s", diff)
		}
	}},
	{name: "sends parts of every kind", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.Artifact("report", a2atest.TextPart("first half, "))
		x.Append("report", a2atest.TextPart("second half"))
		x.Artifact("numbers", a2atest.DataPart(map[string]any{"n": 42.0, "deep": map[string]any{"list": []any{"a", true, nil}}}))
		x.Artifact("files", a2atest.FilePart("a.bin", "application/octet-stream", []byte{0, 1, 2, 255}), a2atest.LinkPart("b.pdf", "application/pdf", "https://example.test/b.pdf"))
		x.State(a2atest.Completed, "all done", a2atest.DataPart(map[string]any{"ok": true}))
	}}, check: checkParts},
	{name: "sends parts of every kind in a message", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.Reply("first half, ", a2atest.TextPart("second half"), a2atest.DataPart(map[string]any{"n": 42.0, "deep": map[string]any{"list": []any{"a", true, nil}}}),
			a2atest.FilePart("a.bin", "application/octet-stream", []byte{0, 1, 2, 255}), a2atest.LinkPart("b.pdf", "application/pdf", "https://example.test/b.pdf"),
			a2atest.TextPart("all done"), a2atest.DataPart(map[string]any{"ok": true}))
	}}, check: checkParts},
	{name: "answers with 10 MB", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.Reply("there", a2atest.FilePart("big.bin", "application/octet-stream", tenMB())) // a task's events are copied many times in the SDK's server
	}}, check: func(w *world, _ *a2atest.Peer) {
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
		res := w.ask(c)
		if res.IsError || !strings.Contains(res.Content, `[file "big.bin" (application/octet-stream), 10000000 bytes:`) {
			w.t.Fatalf("the result is %s", session.Shorten(res.Content, 1000, ""))
		}
		a, err := w.store.Artifact(w.t.Context(), w.root, session.ArtifactKeyFor(c.ID, "file 1"))
		if err != nil || sha256.Sum256(a.Data) != sha256.Sum256(tenMB()) {
			w.t.Errorf("the artifact has %d bytes, which aren't those sent (%v)", len(a.Data), err)
		}
	}},
	{name: "answers with more than can be taken", maxBody: 100_000, peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Completed, strings.Repeat("much ", 100_000))
	}}, check: answered("peer 'p' said more than can be taken: the answer is larger than is accepted. Ask it for less at a time.", true)},

	// How long it may take, and how it tells.
	{name: "can't stream", peer: a2atest.Config{Script: works, NoStreaming: true}, check: func(w *world, p *a2atest.Peer) {
		then(data("p", worked), false, a2atest.MethodSend, a2atest.MethodGet, a2atest.MethodGet, a2atest.MethodGet, a2atest.MethodGet)(w, p)
	}},
	{name: "can't stream and answers with a message", peer: a2atest.Config{NoStreaming: true, Script: func(x *a2atest.Exchange) { x.Reply("hello") }}, check: then(data("p", "hello"), false, a2atest.MethodSend)},
	{name: "is slow", peer: a2atest.Config{Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Sleep(10 * time.Second)
		x.State(a2atest.Completed, "found it")
	}}, check: func(w *world, _ *a2atest.Peer) {
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "look", "timeout_seconds", 7))
		res := w.ask(c)
		w.wantText(res, "peer 'p' did not respond within 7s; proceeding without it", false)
		w.complete(c, res)
		w.wantState(c, tracker.StateDetached)
		wantItem(w, c, "found it", true)
	}},
	{name: "is slow and told to stop", peer: a2atest.Config{Script: works},
		conf: func(p *a2a.Peer) { p.OnTimeout = a2a.OnTimeoutCancel },
		check: func(w *world, p *a2atest.Peer) {
			c := w.call(w.turn(tool.Subagent), 1, ask("p", "look", "timeout_seconds", 2))
			w.wantText(w.ask(c), "peer 'p' did not respond within 2s; proceeding without it", false)
			w.until(c, 10*time.Second, func(p tracker.PendingA2ATask) bool { return p.State == tracker.StateCancelled && p.CancelAnswered })
			w.wantMethods(p, a2atest.MethodStream, a2atest.MethodCancel)
			if got, want := p.Requests(a2atest.MethodCancel)[0].TaskID, p.Record()[0].TaskID; got != want {
				w.t.Errorf("task %q was cancelled, want %q", got, want)
			}
		}},

	// What may go wrong on the way.
	{name: "dies mid-stream", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{CutAfter: 2}), check: then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodSubscribe)},
	{name: "dies mid-stream and can't be subscribed to", peer: a2atest.Config{Script: works, Fault: func(r a2atest.Request) a2atest.Fault {
		switch r.Method {
		case a2atest.MethodStream:
			return a2atest.Fault{CutAfter: 1}
		case a2atest.MethodSubscribe:
			return a2atest.Fault{Status: 500}
		}
		return a2atest.Fault{}
	}}, check: then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodSubscribe, a2atest.MethodGet, a2atest.MethodGet, a2atest.MethodGet, a2atest.MethodGet)},
	{name: "loses the answer, which is found by listing", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Lose: true}),
		check: then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodList, a2atest.MethodSubscribe)},
	{name: "loses the answer and can't list", peer: a2atest.Config{Script: works, Anonymous: true, Dedup: true, Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Lose: true})},
		check: func(w *world, p *a2atest.Peer) {
			c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
			w.wantText(w.ask(c), data("p", worked), false)
			sends := p.Sends()
			if len(sends) != 2 || sends[0].MessageID != sends[1].MessageID || sends[0].MessageID != string(session.CallIDFor(c.ID)) {
				w.t.Errorf("sends = %+v, want two with the call's id", sends)
			}
			if n := len(p.Record()); n != 2 {
				w.t.Errorf("the peer has %d entries, want one message received and answered", n)
			}
		}},
	{name: "answers every event twice", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Twice: true}), check: func(w *world, p *a2atest.Peer) {
		then(data("p", worked), false, a2atest.MethodStream)(w, p)
	}},
	{name: "answers twice", peer: a2atest.Config{Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Twice: true}), Script: func(x *a2atest.Exchange) { x.Reply("hello") }},
		check: then(data("p", "hello"), false, a2atest.MethodStream)},
	{name: "is away for a while", peer: a2atest.Config{Script: works}, check: func(w *world, p *a2atest.Peer) {
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
		out := w.run(c)
		w.pass(time.Second)
		w.site.Crash("p")
		w.pass(10 * time.Second)
		w.wantState(c, tracker.StateWaiting)
		w.site.Back("p")
		w.wantText((<-out).res, data("p", worked), false)
		if n := len(p.Sends()); n != 1 {
			w.t.Errorf("the message was sent %d times", n)
		}
	}},
	{name: "restarts and forgets", peer: a2atest.Config{Script: works}, check: func(w *world, p *a2atest.Peer) {
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
		out := w.run(c)
		w.pass(time.Second)
		w.site.Crash("p")
		w.site.Peer(p.Config())
		w.wantText((<-out).res, "peer 'p' no longer knows the task", true)
	}},
	{name: "isn't there", peer: a2atest.Config{}, check: func(w *world, p *a2atest.Peer) {
		w.ask(w.call(w.turn(tool.Subagent), 1, ask("p", "go"))) // so that its card is known
		w.site.Vanish("p")
		w.pass(time.Second) // a request on a connection that isn't known to be broken may have arrived
		c := w.call(w.turn(tool.Subagent), 1, ask("p", "go"))
		began := time.Now()
		res := w.ask(c)
		if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' can't be reached: ") || !strings.Contains(res.Content, w.binding.Absent) || !strings.HasSuffix(res.Content, "Nothing was sent. It may help to try again later.") {
			w.t.Errorf("the result is %q", res.Content)
		}
		if d := time.Since(began); d > 10*time.Second {
			w.t.Errorf("that took %s", d)
		}
		if n := len(p.Sends()); n != 1 {
			w.t.Errorf("the message was sent %d times, want the first one alone", n)
		}
	}},
	{name: "outlives us", peer: a2atest.Config{Script: works}, check: func(w *world, p *a2atest.Peer) {
		c := w.call(w.turn(tool.Primary), 1, ask("p", "go"))
		w.ask(c)
		w.pass(time.Second)
		w.restart()
		wantItem(w, c, worked, false)
		if n := len(p.Sends()); n != 1 {
			w.t.Errorf("the message was sent %d times", n)
		}
	}},

	// Answers that aren't A2A, or only in part.
	{name: "answers with a web page", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 200, MediaType: "text/html; charset=utf-8", Body: "<html>hello</html>"}),
		check: refusedBecause(`answered with "text/html", which is not A2A; check the address. Trying the same again won't help.`)},
	{name: "answers without a media type", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 200, MediaType: "-", Body: "hello"}),
		check: refusedBecause(`answered with "-", which is not A2A; check the address. Trying the same again won't help.`)},
	{name: "answers a stream in JSON", peer: a2atest.Config{Fault: func(r a2atest.Request) a2atest.Fault {
		if r.Method != a2atest.MethodStream {
			return a2atest.Fault{}
		}
		return a2atest.Fault{Status: 200, MediaType: "application/json; charset=utf-8", Body: inOnePiece[r.Interface]}
	}}, check: then(data("p", "in one piece"), false, a2atest.MethodStream)},
	{name: "redirects", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 307, Header: map[string]string{"Location": "?again"}}),
		check: then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodStream)},
	{name: "redirects for ever", peer: a2atest.Config{Fault: func(r a2atest.Request) a2atest.Fault {
		if r.Method == a2atest.MethodCard {
			return a2atest.Fault{}
		}
		return a2atest.Fault{Status: 307, Header: map[string]string{"Location": "?again"}}
	}}, check: refusedBecause("answered more than 3 redirects. Trying the same again won't help.")},
	{name: "redirects as only pages do", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 303, Header: map[string]string{"Location": "?again"}}),
		check: refusedBecause("answered a redirect that only pages follow. Trying the same again won't help.")},
	{name: "redirects to another host", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 307, Header: map[string]string{"Location": "http://q.test/"}}),
		conf:  func(p *a2a.Peer) { p.Headers = map[string]a2a.Secret{"X-Key": "secret"} },
		check: refusedBecause("answered a redirect to q.test, which the peer's headers are not for, nor are its credentials. Trying the same again won't help.")},
	{name: "has too much to do", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 429, Header: map[string]string{"Retry-After": "7"}}),
		check: func(w *world, p *a2atest.Peer) {
			began := time.Now()
			then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodStream)(w, p)
			if d := time.Since(began); d < 12*time.Second || d > 15*time.Second {
				w.t.Errorf("that took %s, want the 7s it asked for and the 5s of work", d)
			}
		}},
	{name: "isn't ready", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 503}), check: then(data("p", worked), false, a2atest.MethodStream, a2atest.MethodStream)},
	{name: "is behind a gateway that gives up", peer: a2atest.Config{Script: works, Anonymous: true, Dedup: true, Fault: once(a2atest.MethodStream, 1, a2atest.Fault{Status: 504})},
		check: func(w *world, p *a2atest.Peer) {
			answered(data("p", worked), false)(w, p)
			if n := len(p.Sends()); n != 2 {
				w.t.Errorf("the message was sent %d times, want twice", n)
			}
		}},
	{name: "has moved away", peer: a2atest.Config{Fault: func(r a2atest.Request) a2atest.Fault {
		if r.Method == a2atest.MethodCard {
			return a2atest.Fault{}
		}
		return a2atest.Fault{Status: 404}
	}}, check: refusedBecause("answered 404 Not Found. Trying again won't help; its address may be wrong.")},
	{name: "lets nobody in", peer: faulty(a2atest.MethodStream, 1, a2atest.Fault{Status: 401}), check: refusedBecause("answered 401 Unauthorized. Trying the same again won't help.")},
	{name: "breaks before there is a task", peer: a2atest.Config{Script: func(x *a2atest.Exchange) { x.Break("boom") }}, check: func(w *world, p *a2atest.Peer) {
		res := w.ask(w.call(w.turn(tool.Subagent), 1, ask("p", "go")))
		if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' failed: ") || !strings.HasSuffix(res.Content, "boom. It may help to try again later.") {
			w.t.Errorf("the result is %q", res.Content)
		}
	}},
	{name: "doesn't know the task that is continued", peer: a2atest.Config{Script: func(x *a2atest.Exchange) { x.State(a2atest.InputRequired, "which one?") }}, check: func(w *world, p *a2atest.Peer) {
		turn := w.turn(tool.Subagent)
		first := w.call(turn, 1, ask("p", "go"))
		w.complete(first, w.ask(first))
		w.site.Crash("p")
		w.site.Peer(p.Config())
		w.pass(time.Second)
		res := w.ask(w.call(turn, 2, ask("p", "the red one", "task_id", session.CallIDFor(first.ID))))
		if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' refused the call: ") || !strings.HasSuffix(res.Content, "Trying the same again won't help.") {
			w.t.Errorf("the result is %q", res.Content)
		}
	}},
}

// inOnePiece is an answer that is no stream, as each interface has it.
var inOnePiece = map[a2atest.Interface]string{
	a2atest.JSONRPC10:  `{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"in one piece"}]}}}`,
	a2atest.HTTPJSON10: `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"in one piece"}]}}`,
	a2atest.JSONRPC03:  `{"jsonrpc":"2.0","id":"1","result":{"kind":"message","messageId":"m","role":"agent","parts":[{"kind":"text","text":"in one piece"}]}}`,
	a2atest.HTTPJSON03: `{"message":{"messageId":"m","role":"ROLE_AGENT","content":[{"text":"in one piece"}]}}`,
}

func checkAskedBack(w *world, p *a2atest.Peer) {
	turn := w.turn(tool.Subagent)
	c := w.call(turn, 1, ask("p", "go"))
	res := w.ask(c)
	id := session.CallIDFor(c.ID)
	w.wantText(res, "peer 'p' did not answer but asked for more; proceeding without it, unless you answer: call invoke_agent again with agent_name \"p\", "+
		"task_id \""+string(id)+"\" and your answer as the message. It asked:\n\n"+data("p", "which one?"), false)
	w.complete(c, res)
	c = w.call(turn, 2, ask("p", "the red one", "task_id", id))
	if res := w.ask(c); res.IsError || !strings.Contains(res.Content, "then it is the red one") {
		w.t.Errorf("the answer is %q", res.Content)
	}
	if sends := p.Sends(); len(sends) != 2 || sends[1].TaskID == "" || sends[1].ContextID != sends[0].ContextID {
		w.t.Errorf("sends = %+v, want the second to continue the first", sends)
	}
}

func checkAuthRequired(w *world, _ *a2atest.Peer) {
	c := w.call(w.turn(tool.Subagent), 1, ask("p", "look"))
	res := w.ask(c)
	w.wantText(res, "peer 'p' wants the user to authenticate before it answers, which only the user can do; proceeding without it\n\n"+
		data("p", "log in at https://example.test"), false)
	w.complete(c, res)
	w.wantState(c, tracker.StateDetached)
	w.until(c, 30*time.Second, inState(tracker.StateFolded))
	if item, ok := w.item(session.ItemReply, c); !ok || !strings.HasPrefix(item.Text, "welcome") {
		w.t.Errorf("item = %+v, %v", item, ok)
	}
}

func checkParts(w *world, _ *a2atest.Peer) {
	c := w.call(w.turn(tool.Subagent), 1, ask("p", "report"))
	res := w.ask(c)
	key := session.ArtifactKeyFor(c.ID, "file 1")
	for _, want := range []string{
		"all done", "first half, ", "second half", `data: {"deep":{"list":["a",true,null]},"n":42}`, `data: {"ok":true}`,
		`[file "a.bin" (application/octet-stream), 4 bytes: read_artifact {"key": "` + string(key) + `"}]`,
		`[file "b.pdf" (application/pdf): https://example.test/b.pdf]`,
	} {
		if !strings.Contains(res.Content, want) {
			w.t.Errorf("the result lacks %q:\n%s", want, res.Content)
		}
	}
	file, err := w.store.Artifact(w.t.Context(), w.root, key)
	if err != nil || !bytes.Equal(file.Data, []byte{0, 1, 2, 255}) || file.MediaType != "application/octet-stream" || file.Name != "a.bin" {
		w.t.Errorf("artifact = %+v, %v", file, err)
	}
}

// refusedBecause checks that a call is refused at once, for a reason that ends so and has no secret in it.
func refusedBecause(why string) func(*world, *a2atest.Peer) {
	return func(w *world, _ *a2atest.Peer) {
		began := time.Now()
		res := w.ask(w.call(w.turn(tool.Subagent), 1, ask("p", "go")))
		if !res.IsError || !strings.HasPrefix(res.Content, "peer 'p' refused the call: http://p.test") || !strings.HasSuffix(res.Content, why) {
			w.t.Errorf("the result is %q, want it to end in %q", res.Content, why)
		}
		if strings.Contains(res.Content, "secret") {
			w.t.Errorf("a header's value is in %q", res.Content)
		}
		if d := time.Since(began); d > 5*time.Second {
			w.t.Errorf("that took %s", d)
		}
	}
}

func wantItem(w *world, c *tool.Call, text string, late bool) {
	w.t.Helper()
	w.until(c, 30*time.Second, inState(tracker.StateFolded))
	if item, ok := w.item(session.ItemReply, c); !ok || item.Text != text || item.Late != late {
		w.t.Errorf("item = %+v, %v, want %q", item, ok, text)
	}
}

func tenMB() []byte {
	out := make([]byte, 0, 10_000_000+32)
	for i := 0; len(out) < 10_000_000; i++ {
		out = fmt.Appendf(out, "%x.", i*2654435761)
	}
	return out[:10_000_000]
}

// once lets the nth request of a method go wrong.
func once(method string, nth int, f a2atest.Fault) func(a2atest.Request) a2atest.Fault {
	return func(r a2atest.Request) a2atest.Fault {
		if r.Method == method && r.Nth == nth {
			return f
		}
		return a2atest.Fault{}
	}
}
