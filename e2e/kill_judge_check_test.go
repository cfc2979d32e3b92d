package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tracker"
)

const (
	tokenAnswered = "plain-1-AAAAAAAAAAAAAAAAAAAAAAAAAA"
	tokenFolded   = "dedup-2-BBBBBBBBBBBBBBBBBBBBBBBBBB"
	tokenAgain    = "plain-1-CCCCCCCCCCCCCCCCCCCCCCCCCC"
)

// innocent is evidence of two calls of one session: the reply to the first was used by its tool call, the reply to the
// second was folded.
func innocent() evidence {
	const root = session.ID("s_1")
	answered, folded := session.ToolCallID("s_1:1"), session.ToolCallID("s_1:2")
	scope := session.Scope{Root: root, Agent: root, Turn: "t_1", OriginTurn: "t_1"}
	fold := session.Scope{Root: root, Agent: root, Turn: "t_2", OriginTurn: "t_1"}
	event := session.Scope.Event
	tree := treeEvidence{
		info: session.TreeInfo{ID: root},
		events: []session.Event{
			event(scope, session.EventTurnStarted, nil),
			event(scope, session.EventMessageCompleted, session.Message{Role: session.RoleAssistant, ToolCalls: []session.ToolCall{{ID: answered}, {ID: folded}}}),
			event(scope.WithToolCall(answered), session.EventToolStarted, nil),
			event(scope.WithToolCall(folded), session.EventToolStarted, nil),
			event(scope.WithToolCall(answered), session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "it says " + tokenAnswered}),
			event(scope.WithToolCall(folded), session.EventToolCompleted, session.ToolCompleted{Name: "invoke_agent", Content: "no answer"}),
			event(scope, session.EventTurnCompleted, nil),
			event(fold, session.EventTurnStarted, nil),
			event(fold, session.EventMessageCompleted, session.Message{Role: session.RoleUser, Text: "it says " + tokenFolded}),
			event(fold, session.EventTurnCompleted, nil),
		},
		records: []session.Record{
			callRecord("plain-1", answered, tracker.StateConsumed), callRecord("dedup-2", folded, tracker.StateFolded),
			itemRecord(folded, tokenFolded), turnRecord("t_1"), turnRecord("t_2", callKey(folded)),
		},
	}
	e := evidence{at: time.Now(), trees: []treeEvidence{tree}, journal: []a2atest.Entry{
		{Peer: "plain-1", Kind: a2atest.KindReceived, MessageID: string(session.CallIDFor(answered))},
		{Peer: "dedup-2", Kind: a2atest.KindReceived, MessageID: string(session.CallIDFor(folded))},
		{Peer: "plain-1", Kind: a2atest.KindAnswered, MessageID: string(session.CallIDFor(answered)), Token: tokenAnswered},
		{Peer: "dedup-2", Kind: a2atest.KindAnswered, MessageID: string(session.CallIDFor(folded)), Token: tokenFolded},
	}}
	e.renumber()
	return e
}

func (e evidence) renumber() {
	tree := &e.trees[0]
	for i := range tree.events {
		tree.events[i].Seq = uint64(i + 1)
	}
	tree.info.HeadSeq = uint64(len(tree.events))
}

func body(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs marshal
	}
	return data
}

func callKey(id session.ToolCallID) string {
	return session.CallItemKey(session.ItemReply, session.CallIDFor(id))
}

func callRecord(peer string, id session.ToolCallID, state session.State) session.Record {
	return session.Record{Kind: session.KindCall, Key: string(session.CallIDFor(id)), State: state, Body: body(tracker.PendingA2ATask{
		ToolCallID: id, Peer: peer, ReplyBy: time.Now().Add(time.Hour),
	})}
}

func itemRecord(id session.ToolCallID, text string) session.Record {
	return session.Record{Kind: session.KindItem, Key: callKey(id), State: session.StateBound, Body: body(session.ItemBody{Text: text})}
}

func turnRecord(id session.TurnID, items ...string) session.Record {
	return session.Record{Kind: session.KindTurn, Key: string(id), State: session.StateCompleted, Body: body(session.TurnBody{Items: items})}
}

// replace changes the data of the events that hold a text.
func (e evidence) replace(old, text string) {
	for i, event := range e.trees[0].events {
		e.trees[0].events[i].Data = json.RawMessage(strings.ReplaceAll(string(event.Data), old, text))
	}
}

// without takes out the nth event of a type, counted from 0.
func (e evidence) without(typ session.EventType, n int) {
	tree := &e.trees[0]
	tree.events = slices.DeleteFunc(tree.events, func(event session.Event) bool {
		if event.Type == typ {
			n--
		}
		return event.Type == typ && n == -1
	})
	e.renumber()
}

// The judge is what says that nothing was lost, so it must be seen to find what is.
func TestKillJudgeFindsWhatIsWrong(t *testing.T) {
	answered, folded := session.ToolCallID("s_1:1"), session.ToolCallID("s_1:2")
	for name, c := range map[string]struct {
		crime func(e *evidence)
		want  string
		fault string // part of the first; empty: there is none
	}{
		"nothing": {func(*evidence) {}, "calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", ""},
		"a reply that no result holds": {
			func(e *evidence) { e.replace(tokenAnswered, "nothing") },
			"calls=2 answered=0 folded=1 unknown=1 lost=1 double=0", "",
		},
		"a reply whose item is gone": {
			func(e *evidence) {
				e.trees[0].records = slices.DeleteFunc(e.trees[0].records, func(r session.Record) bool { return r.Kind == session.KindItem })
			},
			"calls=2 answered=1 folded=0 unknown=1 lost=1 double=0", "",
		},
		"a reply to a message nobody sent": {
			func(e *evidence) {
				e.journal = append(e.journal, a2atest.Entry{Peer: "plain-1", Kind: a2atest.KindAnswered, MessageID: "c_0", Token: tokenAgain})
			},
			"calls=2 answered=1 folded=1 unknown=0 lost=1 double=0", "there is no such call",
		},
		"a reply that was used and folded": {
			func(e *evidence) {
				tree := &e.trees[0]
				tree.records = append(slices.DeleteFunc(tree.records, func(r session.Record) bool { return r.Key == "t_2" }),
					itemRecord(answered, tokenAnswered), turnRecord("t_2", callKey(folded), callKey(answered)))
				e.replace(tokenFolded, tokenFolded+" "+tokenAnswered)
			},
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=1", "",
		},
		"another item for what was used": {
			func(e *evidence) {
				tree := &e.trees[0]
				tree.records = append(slices.DeleteFunc(tree.records, func(r session.Record) bool { return r.Key == "t_2" }),
					itemRecord(answered, "outcome unknown"), turnRecord("t_2", callKey(folded), callKey(answered)))
			},
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=1", "",
		},
		"two tasks of one message, one of them used": {
			func(e *evidence) {
				e.journal = append(e.journal, a2atest.Entry{Peer: "plain-1", Kind: a2atest.KindAnswered, MessageID: string(session.CallIDFor(answered)), Token: tokenAgain})
			},
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "",
		},
		"another call's reply": {
			func(e *evidence) { e.replace("no answer", tokenAnswered) },
			"calls=2 answered=2 folded=0 unknown=0 lost=0 double=1", "holds token " + tokenAnswered,
		},
		"an item that no turn folded": {
			func(e *evidence) {
				e.trees[0].records = append(slices.DeleteFunc(e.trees[0].records, func(r session.Record) bool { return r.Key == "t_2" }), turnRecord("t_2"))
			},
			"calls=2 answered=1 folded=0 unknown=1 lost=1 double=0", "was folded by the turns []",
		},
		"a fold-back without the words": {
			func(e *evidence) { e.replace(tokenFolded, "nothing") },
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "was told its token 0 times",
		},
		"a gap in seq": {
			func(e *evidence) { e.trees[0].events = e.trees[0].events[1:] },
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "has 9 events, its last is 10",
		},
		"a tool call without a result": {
			func(e *evidence) { e.without(session.EventToolCompleted, 1) },
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "0 × result of tool call",
		},
		"a turn without an end": {
			func(e *evidence) { e.without(session.EventTurnCompleted, 0) },
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "0 × end of turn",
		},
		"a subagent with two ends": {
			func(e *evidence) {
				child := session.Scope{Root: "s_1", Agent: "s_2"}
				e.trees[0].events = append(e.trees[0].events, child.Event(session.EventSubagentSpawned, nil),
					child.Event(session.EventSubagentCompleted, nil), child.Event(session.EventSubagentFailed, nil))
				e.renumber()
			},
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "2 × end of subagent",
		},
		"a turn left open": {
			func(e *evidence) { e.trees[0].records[3].State = session.StateSuspended },
			"calls=2 answered=1 folded=1 unknown=0 lost=0 double=0", "turn t_1 is left suspended",
		},
		"a call that waits for good": {
			func(e *evidence) {
				e.trees[0].records = append(e.trees[0].records, callRecord("plain-1", "s_1:3", tracker.StateWaiting))
			},
			"calls=3 answered=1 folded=1 unknown=1 lost=0 double=0", "is left waiting",
		},
		"a call that is followed": {
			func(e *evidence) {
				e.trees[0].records = append(e.trees[0].records, callRecord("plain-1", "s_1:3", tracker.StateDetached))
			},
			"calls=3 answered=1 folded=1 unknown=1 lost=0 double=0", "",
		},
		"a call that is followed for too long": {
			func(e *evidence) {
				e.trees[0].records = append(e.trees[0].records, callRecord("plain-1", "s_1:3", tracker.StateDetached))
				e.at = time.Now().Add(2 * time.Hour)
			},
			"calls=3 answered=1 folded=1 unknown=1 lost=0 double=0", "is left detached",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := innocent()
			c.crime(&e)
			v := judge(e)
			if got := v.String(); got != c.want {
				t.Errorf("verdict = %s, want %s", got, c.want)
			}
			switch got := fmt.Sprint(v.faults); {
			case c.fault == "" && len(v.faults) > 0:
				t.Errorf("faults = %s, want none", got)
			case !strings.Contains(got, c.fault):
				t.Errorf("faults = %s, want %q among them", got, c.fault)
			}
		})
	}
}
