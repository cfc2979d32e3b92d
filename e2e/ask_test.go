package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
)

// inquiry is a story that is asked of the product: the primary sends two subagents out, one of which asks the advisor, the
// other the archivist, who answers only when the test lets it.
type inquiry struct {
	t         *testing.T
	chat      *chatServer
	advisor   *a2atest.Peer
	archivist *a2atest.Peer

	wait    float64       // seconds the second subagent waits for the archivist
	speak   *gate         // holds the primary's first answer in the middle
	other   *gate         // holds its answer to what is asked besides
	archive *a2atest.Gate // holds the archivist's answer
	release bool          // open it when the primary has told what it found without it
}

const (
	asked        = "Should we build the ferry?"
	firstWords   = "I send two "
	firstAnswer  = "I send two people out."
	secondAnswer = "They are on their way."
	advice       = "Build it in spring."
	findings     = "The advisor says: " + advice
	archived     = "Two of three ferries failed."
	withAdvice   = "So far: build it in spring."
	withArchive  = "This came late: two of three ferries failed. Wait a year."
)

func newInquiry(t *testing.T) *inquiry {
	t.Helper()
	q := &inquiry{t: t, wait: 1, archive: a2atest.NewGate()}
	q.advisor = a2atest.New(t, a2atest.Config{Name: "advisor", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.State(a2atest.Completed, advice)
	}})
	q.archivist = a2atest.New(t, a2atest.Config{Name: "archivist", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		if x.Wait(q.archive) {
			x.State(a2atest.Completed, archived)
		}
	}})
	q.chat = newChatServer(t, q.answer)
	return q
}

// place is a folder where the product finds the peers.
func (q *inquiry) place(env ...string) *place {
	p := newPlace(q.t, env...)
	p.write("peers.yaml", fmt.Sprintf("peers:\n  - {name: advisor, card: %q}\n  - {name: archivist, card: %q}\n", q.advisor.URL(), q.archivist.URL()))
	return p
}

// environment is the one in which the product needs no config file.
func (q *inquiry) environment() []string {
	return []string{"OPENAI_API_KEY=" + chatKey, "OPENAI_BASE_URL=" + q.chat.url, "OPENAI_MODEL=e2e-1"}
}

// answer is the model.
func (q *inquiry) answer(c question) answer {
	input, last := c.input(), c.last()
	followUp := strings.HasPrefix(input, "This is a follow-up")
	switch {
	case c.primary() && last.Role == "tool":
		return says(secondAnswer)
	case c.primary() && input == asked:
		a := says(firstAnswer,
			toolUse{"spawn_subagent", map[string]any{"description": "ask for advice", "prompt": "Ask the advisor whether to build."}},
			toolUse{"spawn_subagent", map[string]any{"description": "look back", "prompt": "Ask the archivist about earlier ferries."}})
		a.hold, a.after = q.speak, len(pieces(firstWords))-1
		return a
	case c.primary() && followUp && strings.Contains(input, archived):
		return says(withArchive)
	case c.primary() && followUp && strings.Contains(input, findings):
		if q.release {
			q.archive.Open()
		}
		return says(withAdvice)
	case c.primary():
		a := says("You said: " + input)
		a.hold = q.other
		return a
	case last.Role == "user" && strings.Contains(input, "advisor"):
		return says("", toolUse{"invoke_agent", map[string]any{"agent_name": "advisor", "message": "Shall we build it?"}})
	case last.Role == "user":
		return says("", toolUse{"invoke_agent", map[string]any{"agent_name": "archivist", "message": "What became of earlier ferries?", "timeout_seconds": q.wait}})
	case strings.Contains(last.Content, "did not respond within"):
		return says("The archive has not answered: " + last.Content)
	case strings.Contains(last.Content, archived):
		return says("The archive says: " + archived)
	}
	// What a peer says is marked as such.
	_, words, _ := strings.Cut(last.Content, "<agent_data from=\"advisor\">\n")
	words, _, _ = strings.Cut(words, "\n</agent_data>")
	return says("The advisor says: " + words)
}

// asked checks how often a peer was asked, however often the question was put on the wire.
func (q *inquiry) asked(p *a2atest.Peer, want int) {
	q.t.Helper()
	messages := make(map[string]bool)
	for _, r := range p.Sends() {
		messages[r.MessageID] = true
	}
	if len(messages) != want {
		q.t.Errorf("a peer has %d messages, want %d: %+v", len(messages), want, p.Sends())
	}
	if n := len(p.Requests(a2atest.MethodCancel)); n > 0 {
		q.t.Errorf("%d tasks of a peer were cancelled, want none", n)
	}
}

// paragraphs is how messages are printed.
func paragraphs(messages ...string) string { return strings.Join(messages, "\n\n") + "\n" }

// session is the id of the newest session.
func (p *place) session() string {
	p.t.Helper()
	var row struct{ ID string }
	line, _, _ := strings.Cut(p.ok("sessions", "list", "-o", "json"), "\n")
	if err := json.Unmarshal([]byte(line), &row); err != nil || row.ID == "" {
		p.t.Fatalf("sessions list prints %q: %v", line, err)
	}
	return row.ID
}

// openCalls returns the peers and the states of the calls whose reply is still wanted.
func (p *place) openCalls() []string {
	p.t.Helper()
	var calls []string
	dec := json.NewDecoder(strings.NewReader(p.ok("calls", "list", "-o", "json")))
	for dec.More() {
		var row struct{ Peer, State string }
		if err := dec.Decode(&row); err != nil {
			p.t.Fatal(err)
		}
		calls = append(calls, row.Peer+" "+row.State)
	}
	return calls
}

func TestAskTellsTheWholeStory(t *testing.T) {
	for name, variant := range map[string]struct {
		model string
		place func(q *inquiry) (p *place, args []string)
	}{
		"by the environment": {"e2e-1", func(q *inquiry) (*place, []string) {
			return q.place(q.environment()...), nil
		}},
		"by a config file": {"e2e-2", func(q *inquiry) (*place, []string) {
			p := q.place("MODEL_KEY=" + chatKey)
			config := p.write("orchestrator.yaml", fmt.Sprintf(
				"data_dir: data\nmodels:\n  - {name: main, model: e2e-2, base_url: %q, api_key_env: MODEL_KEY}\n", q.chat.url))
			return p, []string{"--config", config}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newInquiry(t)
			q.speak = newGate()
			p, args := variant.place(q)
			run := p.start(append([]string{"ask", asked}, args...)...)

			run.prints(run.stdout, firstWords)
			if said := run.stdout.String(); said != firstWords {
				t.Errorf("while the model holds its words back, %q is printed, want %q", said, firstWords)
			}
			q.speak.open()
			run.prints(run.stderr, "waiting up to 1m00s for the late answer of archivist")
			q.archive.Open()
			run.exits(0)

			if diff := cmp.Diff(paragraphs(firstAnswer, secondAnswer, withAdvice, withArchive), run.stdout.String()); diff != "" {
				t.Errorf("standard output (-want +got):\n%s", diff)
			}
			notes := run.stderr.String()
			for _, story := range [][]string{
				{"spawns ask for advice", "asks advisor and waits up to", "advisor answers: " + advice, "is done: The advisor says"},
				{"spawns look back", "asks archivist and waits up to 1s", "no answer from archivist in time", "is done: The archive has not answered",
					"waiting up to 1m00s for the late answer of archivist", "archivist answers late", "follow-up: archivist's answer"},
			} {
				if missing := inOrder(notes, story...); missing != "" {
					t.Errorf("standard error has no %q where it belongs:\n%s", missing, notes)
				}
			}
			want := []string{"<agent_data from=\"advisor\">\n" + advice + "\n</agent_data>", "peer 'archivist' did not respond within 1s; proceeding without it"}
			if diff := cmp.Diff(want, q.chat.results("invoke_agent")); diff != "" {
				t.Errorf("what the subagents were told of their calls (-want +got):\n%s", diff)
			}
			for _, c := range q.chat.questions() {
				if c.Model != variant.model {
					t.Errorf("model %q was asked, want %q", c.Model, variant.model)
				}
				if c.primary() != c.offers("spawn_subagent") || !c.offers("invoke_agent") {
					t.Errorf("the model was offered %+v", c.Tools)
				}
			}
			q.asked(q.advisor, 1)
			q.asked(q.archivist, 1)
			if calls := p.openAfter(args); calls != "" {
				t.Errorf("calls are open after all came home:\n%s", calls)
			}
		})
	}
}

// openAfter is what calls list prints as JSON, with more arguments.
func (p *place) openAfter(args []string) string {
	p.t.Helper()
	return p.ok(append([]string{"calls", "list", "-o", "json"}, args...)...)
}

func TestAskNamesACallThatIsStillOpenAndTheNextRunFoldsItsReply(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	p := q.place(q.environment()...)
	first := p.run("ask", asked, "--late", "500ms")
	first.exits(0)
	if diff := cmp.Diff(paragraphs(firstAnswer, secondAnswer, withAdvice), first.stdout.String()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	id := p.session()
	if missing := inOrder(first.stderr.String(), "late answer of archivist", "still open: archivist's answer to look back", "orchestrator ask --session "+id); missing != "" {
		t.Errorf("standard error has no %q where it belongs:\n%s", missing, first.stderr)
	}
	if diff := cmp.Diff([]string{"archivist detached"}, p.openCalls()); diff != "" {
		t.Errorf("calls that are open (-want +got):\n%s", diff)
	}

	// Nothing has changed: the next run waits as long, and names it again.
	second := p.run("ask", "Hello again", "--session", id, "--late", "500ms")
	second.exits(0)
	if diff := cmp.Diff(paragraphs("You said: Hello again"), second.stdout.String()); diff != "" {
		t.Errorf("standard output of the second run (-want +got):\n%s", diff)
	}
	if missing := inOrder(second.stderr.String(), "still open: archivist's answer"); missing != "" {
		t.Errorf("standard error of the second run has no %q:\n%s", missing, second.stderr)
	}

	q.archive.Open()
	third := p.run("ask", "And now?", "--session", id)
	third.exits(0)
	for _, message := range []string{"You said: And now?\n", withArchive + "\n"} {
		if !strings.Contains(third.stdout.String(), message) {
			t.Errorf("the third run does not print %q:\n%s", message, third.said())
		}
	}
	if strings.Contains(third.stdout.String(), firstAnswer) || strings.Contains(third.stdout.String(), withAdvice) {
		t.Errorf("the third run prints what the first did:\n%s", third.stdout)
	}
	q.asked(q.archivist, 1)
	q.asked(q.advisor, 1)
	if calls := p.openCalls(); len(calls) > 0 {
		t.Errorf("calls are open after all came home: %q", calls)
	}
}

func TestAskInAnotherSessionFollowsWhatIsOpen(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.other = newGate()
	p := q.place(q.environment()...)
	p.ok("ask", asked, "--late", "0s")
	first := p.session()
	q.archive.Open()
	// The other question is not answered until the reply has come home to the first session.
	run := p.start("ask", "Something else")
	until(t, func() bool { return strings.Contains(p.ok("sessions", "show", first), withArchive) })
	q.other.open()
	run.exits(0)
	if diff := cmp.Diff(paragraphs("You said: Something else"), run.stdout.String()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	q.asked(q.archivist, 1)
	if calls := p.openCalls(); len(calls) > 0 {
		t.Errorf("calls are open after all came home: %q", calls)
	}
}

func TestAskWithoutWaitingEndsWithTheFirstAnswer(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.wait = 60
	p := q.place(q.environment()...)
	first := p.run("ask", asked, "--no-wait")
	first.exits(0)
	if diff := cmp.Diff(paragraphs(firstAnswer, secondAnswer), first.stdout.String()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	id := p.session()
	if missing := inOrder(first.stderr.String(), "look later with: orchestrator sessions show "+id, "orchestrator ask --session "+id); missing != "" {
		t.Errorf("standard error has no %q where it belongs:\n%s", missing, first.stderr)
	}

	q.archive.Open()
	second := p.run("ask", "Go on", "--session", id)
	second.exits(0)
	for _, message := range []string{"You said: Go on\n", withArchive + "\n"} {
		if !strings.Contains(second.stdout.String(), message) {
			t.Errorf("the second run does not print %q:\n%s", message, second.said())
		}
	}
	q.asked(q.advisor, 1)
	q.asked(q.archivist, 1)
}

func TestAskAsJSONPrintsTheLogAlone(t *testing.T) {
	t.Parallel()
	q := newInquiry(t)
	q.release = true
	p := q.place(q.environment()...)
	run := p.run("ask", asked, "-o", "json")
	run.exits(0)
	var events []session.Event
	dec := json.NewDecoder(strings.NewReader(run.stdout.String()))
	for dec.More() {
		var e session.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatalf("standard output is not one envelope a line: %v\n%s", err, run.stdout)
		}
		events = append(events, e)
	}
	var told []string
	for i, e := range events {
		if e.Seq != uint64(i+1) || e.Ephemeral {
			t.Fatalf("event %d has the seq %d, ephemeral %t", i+1, e.Seq, e.Ephemeral)
		}
		switch e.Type {
		case session.EventInvocationDispatched, session.EventInvocationReplied, session.EventInvocationTimedOut,
			session.EventInvocationLate, session.EventInvocationFoldedBack:
			var inv session.Invocation
			if err := e.Decode(&inv); err != nil {
				t.Fatal(err)
			}
			told = append(told, fmt.Sprintf("%s %s %s", inv.Peer, e.Type, inv.Mode))
		}
	}
	for peer, want := range map[string][]string{
		"advisor ":   {"advisor invocation.dispatched blocking", "advisor invocation.replied blocking"},
		"archivist ": {"archivist invocation.dispatched blocking", "archivist invocation.timed_out blocking", "archivist invocation.late blocking", "archivist invocation.folded_back blocking"},
	} {
		got := slices.DeleteFunc(slices.Clone(told), func(s string) bool { return !strings.HasPrefix(s, peer) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("what the log tells of the call (-want +got):\n%s", diff)
		}
	}
	if shown := p.ok("sessions", "show", string(events[0].SessionID), "-o", "json"); shown != run.stdout.String() {
		t.Errorf("the log that is kept is another one:\n%s", shown)
	}
	if notes := run.stderr.String(); notes != "" {
		t.Errorf("standard error = %q, want nothing", notes)
	}
}

func TestAskThatIsInterruptedCancelsNothing(t *testing.T) {
	t.Run("while a subagent waits for a peer", func(t *testing.T) {
		t.Parallel()
		q := newInquiry(t)
		q.wait = 60
		p := q.place(q.environment()...)
		first := p.start("ask", asked)
		first.prints(first.stderr, "asks archivist and waits up to")
		if !q.archivist.WaitFor(t.Context(), a2atest.MethodStream, 1) {
			t.Fatal("the archivist is not asked")
		}
		first.prints(first.stderr, "is done: The advisor says")
		first.signal(syscall.SIGINT)
		first.exits(130)
		id := p.session()
		if missing := inOrder(first.stderr.String(), "orchestrator: interrupted\n", "orchestrator ask --session "+id); missing != "" {
			t.Errorf("standard error has no %q where it belongs:\n%s", missing, first.stderr)
		}
		if diff := cmp.Diff([]string{"archivist waiting"}, p.openCalls()); diff != "" {
			t.Errorf("calls that are open (-want +got):\n%s", diff)
		}

		q.archive.Open()
		second := p.run("ask", "Go on", "--session", id)
		second.exits(0)
		if missing := inOrder(second.stderr.String(), "archivist answers: "+archived, "is done: The archive says: "+archived); missing != "" {
			t.Errorf("standard error of the second run has no %q where it belongs:\n%s", missing, second.said())
		}
		for _, message := range []string{"You said: Go on\n", withArchive + "\n"} {
			if !strings.Contains(second.stdout.String(), message) {
				t.Errorf("the second run does not print %q:\n%s", message, second.said())
			}
		}
		q.asked(q.archivist, 1)
		q.asked(q.advisor, 1)
	})
	t.Run("while the model speaks", func(t *testing.T) {
		t.Parallel()
		q := newInquiry(t)
		q.speak = newGate()
		q.release = true
		p := q.place(q.environment()...)
		first := p.start("ask", asked)
		first.prints(first.stdout, firstWords)
		first.signal(syscall.SIGINT)
		first.exits(130)
		if said, want := first.stdout.String(), firstWords+" [cut off]\n"; said != want {
			t.Errorf("standard output = %q, want %q", said, want)
		}
		id := p.session()
		q.speak.open()
		second := p.run("ask", "Go on", "--session", id)
		second.exits(0)
		if missing := inOrder(second.stdout.String(), firstAnswer+"\n", secondAnswer+"\n", "You said: Go on\n"); missing != "" {
			t.Errorf("the second run does not print %q where it belongs:\n%s", missing, second.said())
		}
		if missing := inOrder(second.stdout.String(), withAdvice+"\n", withArchive+"\n"); missing != "" {
			t.Errorf("the second run does not print %q where it belongs:\n%s", missing, second.said())
		}
	})
}

func TestAskWithoutAModelSaysInOneLineWhatToSet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	run := p.run("ask", asked)
	run.exits(2)
	said := run.stderr.String()
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "set OPENAI_API_KEY") || !strings.Contains(said, "models: in orchestrator.yaml") {
		t.Errorf("standard error = %q, want one line that says what to set", said)
	}
	if out := run.stdout.String(); out != "" {
		t.Errorf("standard output = %q, want nothing", out)
	}
}

func TestAskSaysWhyTheModelCanNotBeAsked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler http.HandlerFunc // nil: nobody listens
		code    int
		want    []string // each is told once
	}{
		"a wrong key": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":{"message":"Incorrect API key provided: %s.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`, chatKey)
		}, 1, []string{"the turn failed: the model call failed", "does not accept the API key"}},
		"a web page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<!doctype html><p>Welcome</p>")
		}, 1, []string{"the server answered with a web page (HTML); check the base URL"}},
		"nobody there": {nil, 3, []string{
			"connection refused; trying again\n", "orchestrator: the turn failed: the model call failed 3 times, the last time: no answer from ",
			"check that the model's server runs",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.handler)
			t.Cleanup(server.Close)
			if tt.handler == nil {
				server.Close()
			}
			p := newPlace(t, "OPENAI_API_KEY="+chatKey, "OPENAI_BASE_URL="+server.URL+"/v1", "ORCHESTRATOR_LOOP_RETRIES=2")
			run := p.run("ask", asked)
			run.exits(tt.code)
			for _, want := range tt.want {
				if got := strings.Count(run.stderr.String(), want); got != 1 {
					t.Errorf("standard error has %q %d times, want it once:\n%s", want, got, run.stderr)
				}
			}
			if strings.Contains(run.stderr.String(), "level=") {
				t.Errorf("a person is shown the operator's log:\n%s", run.stderr)
			}
			if strings.Contains(run.said(), chatKey) {
				t.Errorf("the key is printed:\n%s", run.said())
			}
		})
	}
}
