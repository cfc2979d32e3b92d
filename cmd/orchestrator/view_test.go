package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update writes it anew:\n%s", name, diff)
	}
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// storyteller makes the events of a tree.
type storyteller struct {
	now    time.Time
	seq    uint64
	events []session.Event
}

const (
	rootID  = session.ID("s_root")
	childA  = session.ID("s_a")
	childB  = session.ID("s_b")
	childC  = session.ID("s_c")
	callAdv = session.CallID("c_adv")
	callArc = session.CallID("c_arc")
	callOwn = session.CallID("c_own")
)

func (s *storyteller) add(after time.Duration, agent session.ID, toolCall string, typ session.EventType, data any) {
	s.now = s.now.Add(after)
	scope := session.Scope{Root: rootID, Agent: agent, Turn: "t_1", ToolCall: session.ToolCallID(toolCall)}
	if agent != rootID {
		scope.Parent = rootID
	}
	e := scope.Event(typ, data)
	e.ID, e.Time = "e_x", s.now
	if !e.Ephemeral {
		s.seq++
		e.Seq = s.seq
	}
	s.events = append(s.events, e)
}

// theStory is what the demonstration shows: three subagents on two slots, a late reply, two follow-ups.
func theStory() []session.Event {
	s := &storyteller{now: start}
	at := func(d time.Duration) *time.Time { return new(s.now.Add(d)) }
	args := func(v any) json.RawMessage { b, _ := json.Marshal(v); return b }
	ms := time.Millisecond
	s.add(0, rootID, "", session.EventSessionCreated, session.SessionCreated{Agent: "primary"})
	s.add(ms, rootID, "", session.EventTurnQueued, session.TurnQueued{Origin: session.OriginUser, Input: "Plan it."})
	s.add(ms, rootID, "", session.EventTurnStarted, session.TurnStarted{Origin: session.OriginUser, Agent: "primary", Attempt: 1})
	s.add(0, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_0", Role: session.RoleUser, Text: "Plan it."})
	s.add(5*ms, rootID, "", session.EventMessageDelta, session.Delta{MessageID: "m_1", Text: "I hand "})
	s.add(5*ms, rootID, "", session.EventMessageDelta, session.Delta{MessageID: "m_1", Text: "this out."})
	s.add(5*ms, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_1", Role: session.RoleAssistant, Text: "I hand this out."})
	for i, c := range []struct {
		id   session.ID
		name string
	}{{childA, "researcher"}, {childB, "historian"}, {childC, "planner"}} {
		call := fmt.Sprintf("s_root:%d", i+1)
		s.add(0, rootID, call, session.EventToolStarted, session.ToolStarted{Name: "spawn_subagent", Args: args(map[string]string{})})
		s.add(2*ms, c.id, "", session.EventSubagentSpawned, session.SubagentSpawned{
			Agent: c.name, Description: c.name, Prompt: "Do the part of the " + c.name + ".", Deadline: *at(10 * time.Minute),
		})
		s.add(0, rootID, call, session.EventToolCompleted, session.ToolCompleted{Name: "spawn_subagent", Content: "ok"})
	}
	s.add(0, rootID, "s_root:4", session.EventToolStarted, session.ToolStarted{Name: "invoke_agent", Args: args(map[string]string{"message": "Anything to watch?"})})
	s.add(ms, rootID, "s_root:4", session.EventInvocationDispatched, session.Invocation{CallID: callOwn, Peer: "advisor", Mode: session.ModeAsync, Deadline: at(time.Minute), Attempt: 1})
	s.add(0, rootID, "s_root:4", session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "Task dispatched"})
	for _, c := range []struct {
		id, parent session.ID
		call       session.CallID
		peer       string
		wait       time.Duration
	}{{childA, rootID, callAdv, "advisor", time.Minute}, {childB, rootID, callArc, "archivist", 3 * time.Second}} {
		s.add(5*ms, c.id, "", session.EventSubagentStarted, session.SubagentStarted{Run: 1})
		s.add(0, c.id, "", session.EventTurnStarted, session.TurnStarted{Origin: session.OriginTask, Agent: string(c.id), Attempt: 1})
		s.add(5*ms, c.id, string(c.id)+":1", session.EventToolStarted, session.ToolStarted{Name: "invoke_agent", Args: args(map[string]string{"message": "What should I know?"})})
		s.add(5*ms, c.id, string(c.id)+":1", session.EventInvocationDispatched, session.Invocation{CallID: c.call, Peer: c.peer, Mode: session.ModeBlocking, Deadline: at(c.wait), Attempt: 1})
		s.add(0, c.id, "", session.EventSubagentSuspended, session.TurnSuspended{Reason: "awaiting_peer"})
	}
	s.add(5*ms, childC, "", session.EventSubagentStarted, session.SubagentStarted{Run: 1})
	s.add(0, childC, "", session.EventTurnStarted, session.TurnStarted{Origin: session.OriginTask, Agent: "planner", Attempt: 1})
	s.add(5*ms, childC, "", session.EventMessageDelta, session.Delta{MessageID: "m_c", Text: "A first draft of the plan"})
	s.add(time.Second, childA, "s_a:1", session.EventInvocationReplied, session.Invocation{CallID: callAdv, Peer: "advisor", Mode: session.ModeBlocking, State: "completed", Text: "Start small."})
	s.add(0, childA, "s_a:1", session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "Start small."})
	s.add(ms, childA, "", session.EventSubagentResumed, session.SubagentStarted{Run: 1})
	s.add(ms, childA, "", session.EventSubagentCompleted, session.SubagentEnded{Summary: "Researched; the advisor says: Start small."})
	s.add(0, rootID, "", session.EventInvocationReplied, session.Invocation{CallID: callOwn, Peer: "advisor", Mode: session.ModeAsync, State: "completed", Text: "Watch the costs."})
	s.add(ms, childC, "", session.EventSubagentCompleted, session.SubagentEnded{Summary: "A plan in three steps."})
	s.add(2*time.Second, childB, "s_b:1", session.EventInvocationTimedOut, session.Invocation{CallID: callArc, Peer: "archivist", Mode: session.ModeBlocking, State: "deadline"})
	s.add(0, childB, "s_b:1", session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "peer 'archivist' did not respond within 3s; proceeding without it"})
	s.add(ms, childB, "", session.EventSubagentResumed, session.SubagentStarted{Run: 1})
	s.add(ms, childB, "", session.EventSubagentCompleted, session.SubagentEnded{Summary: "No word from the archive in time."})
	s.add(ms, rootID, "", session.EventTurnCompleted, session.TurnEnded{Output: "I hand this out."})
	s.add(ms, rootID, "", session.EventTurnStarted, session.TurnStarted{Origin: session.OriginFoldback, CausedBy: []string{"s_a", "s_b", "s_c", "c_own"}, Agent: "primary", Attempt: 1})
	s.add(0, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_2", Role: session.RoleUser, Text: "Follow-up: …"})
	s.add(ms, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_3", Role: session.RoleAssistant, Text: "The plan stands.\nThe archive is silent."})
	s.add(ms, rootID, "", session.EventTurnCompleted, session.TurnEnded{Output: "The plan stands."})
	s.add(time.Second, childB, "s_b:1", session.EventInvocationLate, session.Invocation{CallID: callArc, Peer: "archivist", Mode: session.ModeBlocking, State: "completed", Text: "Three earlier cases."})
	s.add(ms, childB, "s_b:1", session.EventInvocationFoldedBack, session.Invocation{CallID: callArc, Peer: "archivist", Mode: session.ModeBlocking, FoldTurnID: "t_3"})
	s.add(0, rootID, "", session.EventTurnStarted, session.TurnStarted{Origin: session.OriginFoldback, CausedBy: []string{"c_arc"}, Agent: "primary", Attempt: 1})
	s.add(0, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_4", Role: session.RoleUser, Text: "Follow-up: …"})
	s.add(ms, rootID, "", session.EventMessageDelta, session.Delta{MessageID: "m_5", Text: "Late, but useful: three "})
	s.add(ms, rootID, "", session.EventMessageDelta, session.Delta{MessageID: "m_5", Text: "earlier cases."})
	s.add(ms, rootID, "", session.EventMessageCompleted, session.Message{MessageID: "m_5", Role: session.RoleAssistant, Text: "Late, but useful: three earlier cases."})
	s.add(ms, rootID, "", session.EventTurnCompleted, session.TurnEnded{Output: "Late, but useful: three earlier cases."})
	return s.events
}

func TestStoryIsToldInLinesWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	v := newView(viewConfig{Out: &out, Notes: &out, Together: true})
	for _, e := range theStory() {
		v.Event(e, e.Time)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "story.golden", out.String())
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences are written without a terminal")
	}
}

func TestTreeShowsWhoRunsWaitsAndForWhom(t *testing.T) {
	b := newBoard()
	var out strings.Builder
	draw := func(title string, now time.Time, width, rows int) {
		fmt.Fprintf(&out, "-- %s --\n", title)
		for _, spans := range b.tree(now, width, rows) {
			out.WriteString(lineText(spans) + "\n")
		}
	}
	events := theStory()
	last := events[0].Time
	for _, e := range events {
		switch {
		case e.Type == session.EventSubagentStarted && e.AgentID == childA:
			draw("all are queued", e.Time, 100, 20)
		case e.Type == session.EventInvocationReplied && e.AgentID == childA:
			draw("two wait, the third runs", e.Time, 100, 20)
			draw("the same on a narrow terminal", e.Time, 40, 20)
			draw("the same on a low terminal", e.Time, 100, 5)
		case e.Type == session.EventTurnCompleted && e.Root && b.find(rootID).origin == session.OriginUser:
			draw("subagents are done", e.Time, 100, 20)
		case e.Type == session.EventInvocationLate:
			draw("results are in the conversation", e.Time, 100, 20)
		}
		b.apply(e)
		last = e.Time
	}
	draw("at the end", last, 100, 20)
	golden(t, "tree.golden", out.String())
}

func TestOnlyMessagesGoToTheOutputAndEachOnce(t *testing.T) {
	var out, notes bytes.Buffer
	v := newView(viewConfig{Out: &out, Notes: &notes})
	for _, e := range theStory() {
		v.Event(e, e.Time)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	want := "I hand this out.\n\nThe plan stands.\nThe archive is silent.\n\nLate, but useful: three earlier cases.\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if strings.Contains(notes.String(), "earlier cases.\n\n") || !strings.Contains(notes.String(), "archivist answers late") {
		t.Errorf("notes hold messages or miss what happened:\n%s", &notes)
	}
}

func TestTextIsWrittenAsItComesAndVoidTextIsMarked(t *testing.T) {
	var out bytes.Buffer
	v := newView(viewConfig{Out: &out})
	scope := session.Scope{Root: rootID, Agent: rootID, Turn: "t_1"}
	send := func(typ session.EventType, data any) { v.Event(scope.Event(typ, data), start) }
	send(session.EventMessageDelta, session.Delta{MessageID: "m_1", Text: "Hel"})
	if got := out.String(); got != "Hel" {
		t.Errorf("after a delta the output is %q, want it at once", got)
	}
	send(session.EventMessageDelta, session.Delta{MessageID: "m_2", Text: "Good "})
	send(session.EventMessageDelta, session.Delta{MessageID: "m_2", Text: "day\x1b[2J\x07"})
	// A delta may be missed: the message as it is stored is the truth.
	send(session.EventMessageCompleted, session.Message{MessageID: "m_2", Role: session.RoleAssistant, Text: "Good day\x1b[2J\x07, Ada.\n"})
	send(session.EventMessageDelta, session.Delta{MessageID: "m_2", Text: "day"}) // late: the message is complete
	send(session.EventMessageDelta, session.Delta{MessageID: "m_3", Text: "And"})
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if want := "Hel [cut off]\n\nGood day\uFFFD[2J\uFFFD, Ada.\n\nAnd [cut off]\n"; out.String() != want {
		t.Errorf("output = %q, want %q", out.String(), want)
	}
}

// screen is as much of a terminal as the view uses.
type screen struct {
	lines []string
	row   int
	width int
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9;]*)([A-Za-z])`)

func (s *screen) Write(p []byte) (int, error) {
	text := string(p)
	for text != "" {
		if m := sequence.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				s.row = max(0, s.row-n)
			case "J":
				s.lines = s.lines[:min(s.row, len(s.lines))]
			}
			text = text[len(m[0]):]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		for len(s.lines) <= s.row {
			s.lines = append(s.lines, "")
		}
		switch {
		case r == '\n':
			s.row++
		case r == '\r':
		default:
			if columns(s.lines[s.row])+1 > s.width {
				s.row++
				s.lines = append(s.lines, "")
			}
			s.lines[s.row] += string(r)
		}
	}
	return len(p), nil
}

func (s *screen) String() string { return strings.Join(s.lines, "\n") + "\n" }

func TestTerminalKeepsTheTreeBelowTheStory(t *testing.T) {
	s := &screen{width: 100}
	v := newView(viewConfig{Out: s, Live: true, Colour: true, Size: func() (int, int) { return s.width, 24 }})
	for _, e := range theStory() {
		v.Event(e, e.Time)
		v.Tick(e.Time)
		if e.Type == session.EventInvocationReplied && e.AgentID == childA {
			golden(t, "screen.golden", s.String())
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "screen-end.golden", s.String())
}

func TestTreeIsErasedWholeAfterTheTerminalGotNarrower(t *testing.T) {
	s := &screen{width: 100}
	v := newView(viewConfig{Out: s, Live: true, Size: func() (int, int) { return s.width, 24 }})
	events := theStory()
	for _, e := range events[:30] {
		v.Event(e, e.Time)
	}
	v.Tick(start)
	// The terminal wraps what stands there, as terminals do.
	narrow := &screen{width: 40}
	if _, err := narrow.Write([]byte(s.String())); err != nil {
		t.Fatal(err)
	}
	*s = *narrow
	v.Tick(start)
	if got := strings.Count(s.String(), "without an answer"); got > 1 {
		t.Errorf("the tree stands there %d times:\n%s", got, s)
	}
	if got := strings.Count(s.String(), "historian  "); got != 1 {
		t.Errorf("historian stands in the tree %d times, want 1:\n%s", got, s)
	}
}

func TestWidthCountsColumns(t *testing.T) {
	for s, want := range map[string]int{"abc": 3, "日本": 4, "é": 1, "🙂": 2, "": 0} {
		if got := columns(s); got != want {
			t.Errorf("columns(%q) = %d, want %d", s, got, want)
		}
	}
	if got := cut("日本語テスト", 7); columns(got) > 7 || !strings.HasSuffix(got, "…") {
		t.Errorf("cut = %q, want at most 7 columns and an ellipsis", got)
	}
	if diff := cmp.Diff([]string{"a long", "word:", "abcdefgh", "ij", "", "end"}, wrap("a long word: abcdefghij\n\nend", 8)); diff != "" {
		t.Errorf("wrap (-want +got):\n%s", diff)
	}
}

func FuzzViewTakesAnyEvent(f *testing.F) {
	f.Add("subagent.started", "s_1", []byte(`{"run":1}`))
	f.Add("invocation.timed_out", "s_root", []byte(`{"callId":"c","state":"overdue"}`))
	f.Add("turn.started", "s_root", []byte(`{"causedBy":["x"]}`))
	f.Fuzz(func(t *testing.T, typ, agent string, data []byte) {
		s := &screen{width: 30}
		v := newView(viewConfig{Out: s, Live: true, Size: func() (int, int) { return 30, 8 }})
		e := session.Event{Type: session.EventType(typ), SessionID: "s_root", AgentID: session.ID(agent), Root: agent == "s_root", Data: data, Time: start}
		v.Event(e, start)
		v.Event(e, start)
		v.Tick(start)
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
