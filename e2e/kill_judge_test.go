package e2e_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/store/sqlite"
	"orchestrator/subagent"
	"orchestrator/tracker"
)

// evidence is all that the judge goes by: what the peers wrote down, and what the database holds in the end.
type evidence struct {
	journal []a2atest.Entry
	trees   []treeEvidence
	at      time.Time // when it was gathered
}

type treeEvidence struct {
	info    session.TreeInfo
	events  []session.Event
	records []session.Record
}

// verdict is what the judge found.
type verdict struct {
	calls, answered, folded, unknown int

	lost, double []session.CallID
	faults       []string // whatever else is not as it must be
}

func (v *verdict) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

func (v *verdict) String() string {
	return fmt.Sprintf("calls=%d answered=%d folded=%d unknown=%d lost=%d double=%d",
		v.calls, v.answered, v.folded, v.unknown, len(v.lost), len(v.double))
}

// gather reads the journals and the database, which no process has open any more.
func gather(t *testing.T, database string, peers []*peer) evidence {
	t.Helper()
	e := evidence{at: time.Now()}
	for _, p := range peers {
		e.journal = append(e.journal, p.record()...)
	}
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: database, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	infos, err := store.Trees(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		e.trees = append(e.trees, readTree(t, store, info))
	}
	return e
}

func readTree(t *testing.T, store session.Store, info session.TreeInfo) treeEvidence {
	t.Helper()
	tree := treeEvidence{info: info}
	var err error
	if tree.events, err = store.Events(t.Context(), session.EventQuery{Tree: info.ID, Limit: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	for i := range tree.events {
		if err := session.Resolve(t.Context(), store, &tree.events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if tree.records, err = store.Records(t.Context(), session.RecordQuery{Tree: info.ID}); err != nil {
		t.Fatal(err)
	}
	return tree
}

var tokens = regexp.MustCompile(`\b(?:plain|dedup)-\d-[A-Z2-7]{26}\b`)

// places is where a call's answer came to.
type places struct {
	results []session.ToolCallID // results of invoke_agent with one of its tokens
	items   int                  // call: items, whatever they hold
	tokens  int                  // of the items, how many hold one of its tokens
}

// judge compares what the peers wrote down with what the database holds.
func judge(e evidence) *verdict {
	v := &verdict{}
	owners := make(map[string]session.CallID) // of tokens
	replied := make(map[session.CallID]bool)  // by a terminal reply with a token
	peerOf := make(map[session.CallID]string) // that received it
	where := make(map[session.CallID]*places) // of the calls in the database
	for _, entry := range e.journal {
		id := session.CallID(entry.MessageID)
		peerOf[id] = entry.Peer
		if entry.Kind != a2atest.KindAnswered {
			continue
		}
		if entry.Token == "" {
			v.fault("peer %s ended message %s in state %s without an answer", entry.Peer, id, entry.State)
			continue
		}
		owners[entry.Token], replied[id] = id, true
	}
	for _, tree := range e.trees {
		for _, rec := range tree.records {
			if rec.Kind != session.KindCall {
				continue
			}
			var call tracker.PendingA2ATask
			if err := rec.Decode(&call); err != nil {
				v.fault("%v", err)
				continue
			}
			where[session.CallID(rec.Key)] = &places{}
			if got, ok := peerOf[session.CallID(rec.Key)]; ok && got != call.Peer {
				v.fault("call %s to %s arrived at %s", rec.Key, call.Peer, got)
			}
		}
	}
	for _, tree := range e.trees {
		v.orders(tree)
		v.leftOpen(tree, e.at)
		v.findResults(tree, owners, where)
		v.findItems(tree, owners, where)
	}
	v.calls = len(where)
	for id, p := range where {
		switch {
		case len(p.results) > 0:
			v.answered++
		case p.tokens > 0:
			v.folded++
		default:
			v.unknown++
			if replied[id] {
				v.lost = append(v.lost, id)
			}
		}
		if len(p.results)+p.items > 1 {
			v.double = append(v.double, id)
		}
	}
	for id := range replied {
		if where[id] == nil {
			v.lost = append(v.lost, id)
			v.fault("message %s was answered, but there is no such call", id)
		}
	}
	slices.Sort(v.lost)
	slices.Sort(v.double)
	return v
}

// findResults finds the results of invoke_agent that hold tokens.
func (v *verdict) findResults(tree treeEvidence, owners map[string]session.CallID, where map[session.CallID]*places) {
	for _, event := range tree.events {
		if event.Type != session.EventToolCompleted {
			continue
		}
		var done session.ToolCompleted
		if err := event.Decode(&done); err != nil {
			v.fault("event %d: %v", event.Seq, err)
			continue
		}
		if done.Name != "invoke_agent" {
			continue
		}
		own := session.CallIDFor(event.ToolCallID)
		for token := range uniqueTokens(done.Content) {
			if owners[token] != own {
				v.fault("the result of call %s holds token %s, which was the answer to %q", own, token, owners[token])
			}
		}
		if tokens.MatchString(done.Content) && where[own] != nil {
			where[own].results = append(where[own].results, event.ToolCallID)
		}
	}
}

// findItems finds the call: items, and checks that each became part of one fold-back turn, word for word.
func (v *verdict) findItems(tree treeEvidence, owners map[string]session.CallID, where map[session.CallID]*places) {
	boundBy := make(map[string][]session.TurnID)
	for _, rec := range tree.records {
		var turn session.TurnBody
		if rec.Kind != session.KindTurn {
			continue
		}
		if err := rec.Decode(&turn); err != nil {
			v.fault("%v", err)
		}
		for _, key := range turn.Items {
			boundBy[key] = append(boundBy[key], session.TurnID(rec.Key))
		}
	}
	inputs := make(map[session.TurnID]string)
	for _, event := range tree.events {
		var m session.Message
		if event.Type != session.EventMessageCompleted {
			continue
		}
		if err := event.Decode(&m); err != nil {
			v.fault("event %d: %v", event.Seq, err)
		}
		if m.Role == session.RoleUser {
			inputs[event.TurnID] += m.Text
		}
	}
	for _, rec := range tree.records {
		if rec.Kind != session.KindItem {
			continue
		}
		if got := boundBy[rec.Key]; len(got) != 1 {
			v.fault("item %s was folded by the turns %v, want one", rec.Key, got)
			continue
		}
		call, ok := strings.CutPrefix(rec.Key, "call:")
		if !ok {
			continue
		}
		id := session.CallID(call)
		if where[id] == nil {
			v.fault("item %s is of no call", rec.Key)
			continue
		}
		where[id].items++
		held := uniqueTokens(string(rec.Body))
		for token := range held {
			if owners[token] != id {
				v.fault("item %s holds token %s, which was the answer to %q", rec.Key, token, owners[token])
			}
			if n := strings.Count(inputs[boundBy[rec.Key][0]], token); n != 1 {
				v.fault("the turn that folded %s was told its token %d times, want once", rec.Key, n)
			}
		}
		if len(held) > 0 {
			where[id].tokens++
		}
	}
}

func uniqueTokens(text string) map[string]bool {
	found := make(map[string]bool)
	for _, token := range tokens.FindAllString(text, -1) {
		found[token] = true
	}
	return found
}

// orders checks what must hold of every log: no gap in seq, a result for each tool call, an end for each turn and each
// subagent, and one only.
func (v *verdict) orders(tree treeEvidence) {
	if tree.info.HeadSeq != uint64(len(tree.events)) {
		v.fault("tree %s has %d events, its last is %d", tree.info.ID, len(tree.events), tree.info.HeadSeq)
	}
	asked, started, completed := make(map[string]int), make(map[string]int), make(map[string]int)
	turns, turnEnds := make(map[string]int), make(map[string]int)
	spawned, childEnds := make(map[string]int), make(map[string]int)
	for i, event := range tree.events {
		if event.Seq != uint64(i+1) {
			v.fault("tree %s: event %d has seq %d", tree.info.ID, i+1, event.Seq)
		}
		switch event.Type {
		case session.EventMessageCompleted:
			var m session.Message
			if err := event.Decode(&m); err != nil {
				v.fault("event %d: %v", event.Seq, err)
			}
			for _, call := range m.ToolCalls {
				asked[string(call.ID)]++
			}
		case session.EventToolStarted:
			started[string(event.ToolCallID)]++
		case session.EventToolCompleted:
			completed[string(event.ToolCallID)]++
		case session.EventTurnQueued, session.EventTurnStarted:
			turns[string(event.TurnID)] = 1
		case session.EventTurnCompleted, session.EventTurnFailed, session.EventTurnCancelled:
			turnEnds[string(event.TurnID)]++
		case session.EventSubagentSpawned:
			spawned[string(event.AgentID)]++
		case session.EventSubagentCompleted, session.EventSubagentFailed:
			childEnds[string(event.AgentID)]++
		}
	}
	for _, m := range []struct {
		what       string
		want, have map[string]int
	}{
		{"start of tool call", asked, started}, {"result of tool call", asked, completed}, {"end of turn", turns, turnEnds},
		{"end of subagent", spawned, childEnds},
	} {
		for id, n := range m.want {
			if n != 1 || m.have[id] != 1 {
				v.fault("tree %s: %d × %s %s, want %d of 1", tree.info.ID, m.have[id], m.what, id, n)
			}
		}
		for id, n := range m.have {
			if m.want[id] == 0 {
				v.fault("tree %s: %d × %s %s, which was never asked for", tree.info.ID, n, m.what, id)
			}
		}
	}
}

// leftOpen checks that nothing of a tree waits for anything, but for calls that are followed within their retention.
func (v *verdict) leftOpen(tree treeEvidence, now time.Time) {
	done := map[session.Kind][]session.State{
		session.KindSession: {session.StateOpen},
		session.KindTurn:    {session.StateCompleted, session.StateFailed, session.StateCancelled},
		session.KindItem:    {session.StateBound},
		session.KindChild:   {subagent.StateConsumed, subagent.StateFolded},
		session.KindBatch:   {subagent.BatchDone},
		session.KindCall:    {tracker.StateConsumed, tracker.StateFolded},
	}
	for _, rec := range tree.records {
		if rec.Kind == session.KindAccess || slices.Contains(done[rec.Kind], rec.State) {
			continue // a session's owner is nothing that ends
		}
		var call tracker.PendingA2ATask
		if rec.Kind == session.KindCall && rec.State == tracker.StateDetached && rec.Decode(&call) == nil && now.Before(call.ReplyBy) {
			continue
		}
		v.fault("tree %s: %s %s is left %s", tree.info.ID, rec.Kind, rec.Key, rec.State)
	}
}

// failedTurns returns how turns failed or were cancelled, with how many.
func failedTurns(e evidence) map[string]int {
	how := make(map[string]int)
	for _, tree := range e.trees {
		for _, event := range tree.events {
			var ended session.TurnEnded
			if (event.Type == session.EventTurnFailed || event.Type == session.EventTurnCancelled) && event.Decode(&ended) == nil {
				how[ended.StopReason+": "+ended.Error]++
			}
		}
	}
	return how
}

// peakSubagents returns the most subagents of one tree that were started and had not ended at the same time.
func peakSubagents(e evidence) int {
	peak := 0
	for _, tree := range e.trees {
		alive := 0
		for _, event := range tree.events {
			switch event.Type {
			case session.EventSubagentStarted:
				alive++
			case session.EventSubagentCompleted, session.EventSubagentFailed:
				alive--
			}
			peak = max(peak, alive)
		}
	}
	return peak
}

// resent returns how many calls were sent more than once, and how many messages became more than one task.
func resent(e evidence) (calls, messages int) {
	for _, tree := range e.trees {
		for _, rec := range tree.records {
			var call tracker.PendingA2ATask
			if rec.Kind == session.KindCall && rec.Decode(&call) == nil && call.Attempt > 1 {
				calls++
			}
		}
	}
	received := make(map[string]int)
	for _, entry := range e.journal {
		if entry.Kind == a2atest.KindReceived {
			if received[entry.MessageID]++; received[entry.MessageID] == 2 {
				messages++
			}
		}
	}
	return calls, messages
}
