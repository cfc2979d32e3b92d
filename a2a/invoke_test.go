package a2a_test

import (
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

func TestSubagentGetsTheAnswerAsTheResult(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "advisor"})
		c := w.call(w.turn(tool.Subagent, 0), 1, ask("advisor", "what now?"))
		res := w.ask(c)
		wantText(t, res, data("advisor", "echo: what now?"), false)
		w.wantState(c, tracker.StateAnswered)
		w.complete(c, res)
		w.wantState(c, tracker.StateConsumed)
	})
}

func TestPrimaryGoesOnAndTheAnswerIsAnItem(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "advisor"})
		c := w.call(w.turn(tool.Primary, 0), 1, ask("advisor", "what now?"))
		res := w.ask(c)
		wantText(t, res, "Task dispatched to agent 'advisor' (task_id "+string(session.CallIDFor(c.ID))+
			"). The result arrives later as a follow-up; do not call it again for this. Tell the user briefly and stop.", false)
		p.WaitFor(w.t.Context(), a2atest.MethodStream, 1)
		time.Sleep(time.Second)
		w.wantState(c, tracker.StateFolded)
		item, ok := w.item(session.ItemReply, c)
		if !ok || item.Text != "echo: what now?" || item.From != "advisor" || item.AskerName != "the primary" {
			t.Errorf("item = %+v, %v", item, ok)
		}
	})
}
