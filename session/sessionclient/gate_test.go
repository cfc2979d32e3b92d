package sessionclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// gateCase is one story on an event stream, and what becomes of the wait in it.
//
// A line of the script is an event: who it is stamped with, its type, and its text. The stamps are ids of agents, or
//
//	root   the root agent, as this stream stamps it: not at all, but with its id R where the stream names its root
//	-      nobody: no agentId
//
// Flags stand behind a type: session.error/willRetry, session.idle/autopilot and /aborted, subagent.started/parent=A. The text of a turn.*
// event begins with the turn's id; the wait is for turn "mine". Other lines are
//
//	open          the wait must be open here, on all three
//	send ID       a second one sends, and waits for turn ID
//	next          the wait is over, a new one begins on the same client
//	cut / back    all connections are cut and none is taken / they are taken again
//	cut/streams   the same, but turns can be read meanwhile
//	forget        the log up to here is gone: a position in it can't be resumed
type gateCase struct {
	slug string
	why  string
	// ids says that the stream's turns have ids. Where they have none, assistant.message, session.idle and session.error speak
	// of them.
	ids bool
	// unread says that turns can't be read, so that only events can end the wait.
	unread bool
	script string
	// What becomes of the wait (of the second one, behind a bar): open, its reply, or how it fails.
	observed, strict, named string
	// unheard is the number of events that a reader can't have: they came while there was no connection to a stream that
	// can't be resumed, or were forgotten.
	unheard int
}

var gateCases = []gateCase{
	// What subagents say.
	{
		slug: "announced-child-speaks-errs-and-idles",
		why:  "an announced subagent's message, error and idle are not the root's, and a later message of its doesn't displace the root's reply",
		script: `
			A    subagent.started
			A    assistant.message   the child's words
			A    session.error       the child's fault
			A    session.idle
			open
			root assistant.message   the root's words
			A    assistant.message   more of the child's words
			open
			root session.idle`,
		observed: "reply: the root's words", strict: "reply: the root's words", named: "reply: the root's words",
	},
	{
		slug: "child-idle-then-root-error",
		why:  "the root's error fails the wait with the root's message",
		script: `
			A    subagent.started
			A    session.error       the child's fault
			A    session.idle
			open
			root session.error       the root's fault`,
		observed: "fails: the root's fault", strict: "fails: the root's fault", named: "fails: the root's fault",
	},
	{
		slug: "child-known-only-from-failed",
		why:  "a subagent whose end is all that was seen of it is known by that, also once others are known",
		script: `
			A    subagent.failed
			A    session.error       the child's fault
			A    session.idle
			open
			B    subagent.started
			A    session.error       the child's last fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "child-known-only-from-spawned",
		script: `
			A    subagent.spawned
			A    session.error       the child's fault
			B    subagent.started
			A    session.error       the child's last fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "child-known-only-from-configured",
		script: `
			A    subagent.configured
			A    session.error       the child's fault
			B    subagent.started
			A    session.error       the child's last fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "child-known-only-from-completed",
		script: `
			A    subagent.completed
			A    session.error       the child's fault
			B    subagent.started
			A    session.error       the child's last fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},

	// Ids that nobody announced.
	{
		slug: "unannounced-id-once-a-child-is-known-idles",
		why:  "observed: only the known are subagents, so an unknown stamp is the root's, which has begun to stamp; a stream that names its root leaves no doubt",
		script: `
			A    subagent.started
			root assistant.message   the root's words
			U    session.idle`,
		observed: "reply: the root's words", strict: "open", named: "open",
	},
	{
		slug: "unannounced-id-once-a-child-is-known-errs",
		script: `
			A    subagent.started
			U    session.error       the unknown one's fault`,
		observed: "fails: the unknown one's fault", strict: "open", named: "open",
	},
	{
		slug: "unannounced-id-once-a-child-is-known-speaks",
		why:  "whose words fill the reply follows the same rule",
		script: `
			A    subagent.started
			root assistant.message   the root's words
			U    assistant.message   the unknown one's words
			root session.idle`,
		observed: "reply: the unknown one's words", strict: "reply: the root's words", named: "reply: the root's words",
	},
	{
		slug: "resumed-session-errs-before-any-announcement",
		why:  "a child that survived from before we looked is never announced to us: while no subagent is known, every stamped event is a subagent's",
		script: `
			-    session.resumed
			X    session.error       the survivor's fault
			X    session.idle
			open
			root assistant.message   the root's words
			root session.idle`,
		observed: "reply: the root's words", strict: "reply: the root's words", named: "reply: the root's words",
	},
	{
		slug: "resumed-session-unknown-survivor-and-another-child-announced",
		why:  "the hole of observed: another child's announcement makes the unknown survivor look like the root",
		script: `
			-    session.resumed
			X    session.error       the survivor's early fault
			open
			Y    subagent.started
			X    session.error       the survivor's fault`,
		observed: "fails: the survivor's fault", strict: "open", named: "open",
	},

	// Where and when announcements stand.
	{
		slug: "nested-child-announced-on-its-parents-stream",
		why:  "the grandchild N was announced to its parent A, on a stream that isn't ours: to us it is an unknown id once A is known",
		script: `
			A    subagent.started
			N    session.error       the grandchild's fault`,
		observed: "fails: the grandchild's fault", strict: "open", named: "open",
	},
	{
		slug: "nested-child-announced-on-our-stream",
		why:  "its lifecycle event carries its own id, and its parent's beside it: it is known like any other",
		script: `
			A    subagent.started
			N    subagent.started/parent=A
			N    session.error       the grandchild's fault
			N    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "first-childs-events-before-its-announcement",
		why:  "none is known yet, so its stamp alone makes it a subagent's",
		script: `
			A    session.error       the child's early fault
			A    session.idle
			A    subagent.started
			A    session.error       the child's fault`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "second-childs-events-before-its-announcement",
		why:  "once one is known, observed takes an early event of the next for the root's",
		script: `
			A    subagent.started
			B    session.error       the second child's early fault
			B    subagent.started`,
		observed: "fails: the second child's early fault", strict: "open", named: "open",
	},
	{
		slug: "trailing-events",
		why:  "a child's last events trail its end: its id is never forgotten",
		script: `
			A    subagent.started
			A    subagent.completed
			A    assistant.message   the child's last words
			A    session.error       the child's last fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "trailing-events-in-the-next-wait",
		why:  "the set belongs to the session's client, not to one wait",
		script: `
			A    subagent.started
			A    subagent.completed
			root assistant.message   first reply
			root session.idle
			next
			A    session.error       the child's last fault
			A    session.idle
			open
			root assistant.message   second reply
			root session.idle`,
		observed: "reply: second reply", strict: "reply: second reply", named: "reply: second reply",
	},
	{
		slug: "trailing-events-after-a-reconnect",
		why:  "the set is kept across connections",
		script: `
			A    subagent.started
			cut
			back
			A    session.error       the child's fault
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "child-learned-between-two-waits",
		why:  "the gate is fed by every event, not only by those of a wait",
		script: `
			root assistant.message   first reply
			root session.idle
			next
			A    subagent.started
			A    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "lifecycle-event-without-an-id",
		why:  "only a lifecycle event with a non-empty id adds to the set: none is known here",
		script: `
			-    subagent.started
			U    session.error       somebody's fault
			U    session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "suspended-and-resumed-announce-nobody",
		why:  "the events that announce are spawned, configured, started, completed and failed",
		script: `
			A    subagent.suspended
			A    subagent.resumed
			U    session.idle`,
		observed: "open", strict: "open", named: "open",
	},

	// How a root is stamped.
	{
		slug:     "root-stamped-with-its-id",
		why:      "while no subagent is known, a stamp is a subagent's, unless the stream has named its root",
		script:   "R assistant.message the root's words\nR session.idle",
		observed: "open", strict: "open", named: "reply: the root's words",
	},
	{
		slug: "root-stamped-with-its-id-once-a-child-is-known",
		why:  "a runtime that begins to stamp its root still ends the waits of observed",
		script: `
			A    subagent.started
			R    assistant.message   the root's words
			R    session.idle`,
		observed: "reply: the root's words", strict: "open", named: "reply: the root's words",
	},
	{
		slug:     "root-unstamped",
		why:      "no agentId is the root, on every stream",
		script:   "A subagent.started\n- assistant.message the root's words\n- session.idle",
		observed: "reply: the root's words", strict: "reply: the root's words", named: "reply: the root's words",
	},

	// What the root says, where turns have no ids.
	{
		slug: "retryable-root-error",
		why:  "a root error that will be retried ends nothing",
		script: `
			root session.error/willRetry the model is busy
			open
			root assistant.message   the root's words
			root session.idle`,
		observed: "reply: the root's words", strict: "reply: the root's words", named: "reply: the root's words",
	},
	{
		slug: "autopilot-continuation",
		why:  "an idle that goes on by itself ends nothing",
		script: `
			root assistant.message   half of it
			root session.idle/autopilot
			open
			root assistant.message   all of it
			root session.idle`,
		observed: "reply: all of it", strict: "reply: all of it", named: "reply: all of it",
	},
	{
		slug: "root-message-that-only-asks-for-tools",
		why:  "a message without words doesn't displace the reply",
		script: `
			root assistant.message   the root's words
			root assistant.message
			root session.idle`,
		observed: "reply: the root's words", strict: "reply: the root's words", named: "reply: the root's words",
	},
	{
		slug:     "root-idle-after-an-abort",
		why:      "the turn was cancelled, and ends the wait as such",
		script:   "root assistant.message half of it\nroot session.idle/aborted",
		observed: "cancelled", strict: "cancelled", named: "cancelled",
	},

	// Turns: from here on they have ids, and only the end of mine ends or fails the wait.
	{
		slug: "my-turn-queued-behind-another",
		ids:  true,
		script: `
			root turn.started        other
			root message.completed   other another's words
			root turn.completed      other another's answer
			open
			root turn.started        mine
			root turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "another-turn-fails-before-mine",
		ids:  true,
		script: `
			root turn.failed         other another's fault
			open
			root turn.failed         mine my fault`,
		observed: "fails: my fault", strict: "fails: my fault", named: "fails: my fault",
	},
	{
		slug: "fold-back-turn-ends-first",
		ids:  true,
		script: `
			root turn.started        fold
			root turn.completed      fold what came home
			open
			root turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "two-waiters",
		ids:  true,
		script: `
			send second
			root turn.completed      mine my answer
			root turn.failed         second the second's fault`,
		observed: "reply: my answer | fails: the second's fault", strict: "reply: my answer | fails: the second's fault", named: "reply: my answer | fails: the second's fault",
	},
	{
		slug: "two-waiters-the-second-ends-first",
		ids:  true,
		script: `
			send second
			root turn.completed      second the second's answer`,
		observed: "open | reply: the second's answer", strict: "open | reply: the second's answer", named: "open | reply: the second's answer",
	},
	{
		slug: "session-error-with-turn-ids",
		why:  "session.error, idle and assistant.message say nothing of a turn that has an id",
		ids:  true,
		script: `
			root session.error       a fault of the session
			root assistant.message   somebody's words
			root session.idle`,
		observed: "open", strict: "open", named: "open",
	},
	{
		slug: "retryable-root-error-with-turn-ids",
		ids:  true,
		script: `
			root session.error/willRetry the model is busy
			open
			root turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "children-with-turn-ids",
		why:  "subagents end turns of their own, and never mine, whatever they are stamped with",
		ids:  true,
		script: `
			A    subagent.started
			A    turn.completed      childs the child's answer
			A    turn.failed         mine the child's fault
			open
			root turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "unannounced-child-ends-my-turn",
		why:  "observed takes the unknown for the root; the others read the turn, which goes on",
		ids:  true,
		script: `
			A    subagent.started
			U    turn.failed         mine the unknown one's fault`,
		observed: "fails: the unknown one's fault", strict: "open", named: "open",
	},
	{
		slug: "root-stamped-with-turn-ids",
		why:  "an end of my turn with a stamp that isn't taken for the root's is a doubt: the turn is read, so no policy hangs",
		ids:  true,
		script: `
			R    turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug:   "root-stamped-with-turn-ids-that-cant-be-read",
		ids:    true,
		unread: true,
		script: `
			R    turn.completed      mine my answer`,
		observed: "open", strict: "open", named: "reply: my answer",
	},

	// Connections.
	{
		slug:   "cut-just-before-the-terminal-event",
		why:    "the stream is resumed behind what was seen, and tells the end; nothing else can, here",
		ids:    true,
		unread: true,
		script: `
			root turn.started        mine
			cut
			root turn.completed      mine my answer
			back`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "cut-before-another-turns-end",
		why:  "a cut ends no wait",
		ids:  true,
		script: `
			root turn.started        other
			cut
			root turn.completed      other another's answer
			back
			open
			root turn.completed      mine my answer`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer",
	},
	{
		slug: "cut-while-the-root-idles",
		why:  "where nothing can be resumed and turns can't be read, an idle that was missed is not made up",
		script: `
			root assistant.message   the root's words
			cut
			root session.idle
			back`,
		observed: "open", strict: "open", named: "open", unheard: 1,
	},
	{
		slug: "stream-reset",
		why:  "the position is gone, and with it the end of my turn: the turn says how it ended",
		ids:  true,
		script: `
			root turn.started        mine
			cut
			root turn.completed      mine my answer
			forget
			back`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer", unheard: 1,
	},
	{
		slug: "stream-reset-after-the-turn-was-read",
		why:  "the turn is read when the stream is cut, and goes on; its end comes before the stream is back, so it must be read again",
		ids:  true,
		script: `
			root turn.started        mine
			cut/streams
			root turn.completed      mine my answer
			forget
			back`,
		observed: "reply: my answer", strict: "reply: my answer", named: "reply: my answer", unheard: 1,
	},
	{
		slug: "stream-reset-while-my-turn-goes-on",
		ids:  true,
		script: `
			root turn.started        mine
			cut
			root turn.completed      other another's answer
			forget
			back
			open
			root turn.failed         mine my fault`,
		observed: "fails: my fault", strict: "fails: my fault", named: "fails: my fault", unheard: 2,
	},
}

func TestGate(t *testing.T) {
	for _, policy := range []string{"observed", "strict", "named"} {
		t.Run(policy, func(t *testing.T) {
			for _, c := range gateCases {
				t.Run(c.slug, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { c.play(t, policy) })
				})
			}
		})
	}
}

// play tells the story on a stream of the policy, and judges what becomes of the wait.
func (c gateCase) play(t *testing.T, policy string) {
	srv := newServer()
	srv.ids, srv.unread, srv.named = c.ids, c.unread, policy == "named"
	cfg := sessionclient.Config{Backend: srv, Session: "s", Policy: sessionclient.PolicyObserved}
	want := map[string]string{"observed": c.observed, "strict": c.strict, "named": c.named}[policy]
	if policy == "strict" {
		cfg.Policy = sessionclient.PolicyStrict
	}
	client, err := sessionclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer client.Close()
	defer cancel()

	var heard []session.Event // by one who reads all events
	wg.Go(func() {
		for e, err := range client.Events(ctx, sessionclient.EventsRequest{}) {
			if err != nil {
				return
			}
			heard = append(heard, e)
		}
	})
	synctest.Wait()
	send := func(turn string) *sent {
		w := &sent{}
		wg.Go(func() { w.set(client.SendAndWait(ctx, sessionclient.SendRequest{Input: turn})) })
		synctest.Wait()
		return w
	}
	waits := []*sent{send("mine")}
	for line := range strings.SplitSeq(c.script, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "open":
			if got := waits[0].outcome(); got != "open" {
				t.Fatalf("after %s the wait is over: %s", heardTypes(heard), got)
			}
		case "send":
			waits = append(waits, send(fields[1]))
		case "next":
			if got := waits[0].outcome(); got == "open" {
				t.Fatal("the first wait is open")
			}
			waits[0] = send("mine")
		case "cut":
			srv.cut(true, true)
		case "cut/streams":
			srv.cut(true, false)
			time.Sleep(10 * time.Millisecond) // less than any pause: the turn is read, the stream not yet tried again
		case "back":
			srv.cut(false, false)
			time.Sleep(time.Minute) // longer than any pause
		case "forget":
			srv.forget()
		default:
			e, ofRoot := scriptEvent(t, fields, policy == "named")
			srv.emit(e, ofRoot)
		}
		synctest.Wait()
	}
	var got []string
	for _, w := range waits {
		got = append(got, w.outcome())
	}
	if got := strings.Join(got, " | "); got != want {
		t.Errorf("%s\nthe wait: %s, want %s", c.why, got, want)
	}
	all := srv.seen()
	if c.unheard > 0 {
		if len(heard) > len(all)-c.unheard {
			t.Errorf("a reader heard %d events of %d, of which it can't have heard %d", len(heard), len(all), c.unheard)
		}
		return
	}
	if diff := cmp.Diff(all, heard); diff != "" {
		t.Errorf("a reader heard other events than there were (-were +heard):\n%s", diff)
	}
}

// sent is a SendAndWait on its way.
type sent struct {
	mu   sync.Mutex
	over bool
	turn sessionclient.Turn
	err  error
}

func (s *sent) set(turn sessionclient.Turn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.turn, s.err = true, turn, err
}

// outcome is what became of it, in words.
func (s *sent) outcome() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed, _ := errors.AsType[*sessionclient.TurnError](s.err)
	switch {
	case !s.over:
		return "open"
	case failed != nil && failed.State == session.StateCancelled:
		return "cancelled"
	case failed != nil:
		return "fails: " + failed.Message
	case s.err != nil:
		return "error: " + s.err.Error()
	}
	return "reply: " + s.turn.Output
}

// scriptEvent returns the event of a line, and whether the root is behind it.
func scriptEvent(t *testing.T, fields []string, named bool) (e session.Event, ofRoot bool) {
	t.Helper()
	if len(fields) < 2 {
		t.Fatalf("%q is no line of a script", fields)
	}
	stamp, typ, text := fields[0], fields[1], fields[2:]
	switch {
	case stamp == "-", stamp == "root" && !named:
		e.AgentID = ""
	case stamp == "root":
		e.AgentID = theRoot
	default:
		e.AgentID = session.ID(stamp)
	}
	typ, flag, _ := strings.Cut(typ, "/")
	e.Type = session.EventType(typ)
	if parent, ok := strings.CutPrefix(flag, "parent="); ok {
		e.ParentAgentID = session.ID(parent)
	}
	if (strings.HasPrefix(typ, "turn.") || e.Type == session.EventMessageCompleted) && len(text) > 0 {
		e.TurnID, text = session.TurnID(text[0]), text[1:]
	}
	words := strings.Join(text, " ")
	body := map[string]any{}
	switch e.Type {
	case sessionclient.EventAssistantMessage:
		body["content"] = words
	case session.EventMessageCompleted:
		body["role"], body["text"] = "assistant", words
	case session.EventSessionError:
		body["message"], body["willRetry"] = words, flag == "willRetry"
	case sessionclient.EventSessionIdle:
		if flag == "aborted" {
			body["aborted"] = true
		} else if flag != "" {
			body["mode"] = flag
		}
	case session.EventTurnCompleted:
		body["output"] = words
	case session.EventTurnFailed:
		body["error"] = words
	default:
		body["text"] = words
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	e.Data = data
	return e, stamp == "root" || stamp == "-" || session.ID(stamp) == theRoot
}

func heardTypes(events []session.Event) string {
	types := make([]string, len(events))
	for i, e := range events {
		types[i] = fmt.Sprintf("%s %s", e.AgentID, e.Type)
	}
	return strings.Join(types, ", ")
}
