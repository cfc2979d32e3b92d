package sessiontest

import (
	"fmt"
	"testing"
	"time"

	"orchestrator/session"
)

// NewTurn makes a tree in the store, with its root session's record, claims it for an hour, and starts a user's turn in
// it. The tree's context is the test's.
func NewTurn(t testing.TB, store session.Store) *session.Turn {
	t.Helper()
	ctx, root := t.Context(), session.NewID()
	scope := session.Scope{Root: root, Agent: root}
	_, err := store.Commit(ctx, session.Batch{
		Tree: root, Create: true,
		Changes: []session.Change{session.Insert(session.KindSession, string(root), root, "", session.StateOpen,
			session.SessionBody{Agent: "primary", Principal: "tester", Created: time.Now().UTC()}, time.Time{})},
		Events: []session.Event{scope.Event(session.EventSessionCreated, session.SessionCreated{Agent: "primary"})},
	})
	if err != nil {
		t.Fatalf("create tree: %v", err)
	}
	lease, err := store.Claim(ctx, root, "sessiontest", time.Hour)
	if err != nil {
		t.Fatalf("claim tree: %v", err)
	}
	scope.Turn = session.NewTurnID()
	scope.OriginTurn = scope.Turn
	return startTurn(t, session.NewTree(ctx, store, lease, nil), scope, session.OriginUser, "primary", nil)
}

// NewChildTurn makes the session of the child that the parent's nth tool call (from 1) spawned, and starts its turn. It
// makes no child record: those are the subagent package's.
func NewChildTurn(t testing.TB, parent *session.Turn, n int) *session.Turn {
	t.Helper()
	call := session.MintToolCallID(parent.Agent, n)
	scope := session.Scope{
		Root: parent.Root, Agent: session.ChildIDFor(call), Parent: parent.Agent, Turn: session.NewTurnID(), OriginTurn: parent.OriginTurn,
	}
	_, err := parent.Tree().Commit(t.Context(), session.Batch{
		Changes: []session.Change{session.Insert(session.KindSession, string(scope.Agent), scope.Agent, scope.OriginTurn, session.StateOpen,
			session.SessionBody{
				Agent: "researcher", Parent: parent.Agent, Depth: 1, Title: fmt.Sprintf("child %d", n), Created: time.Now().UTC(),
			}, time.Time{})},
	})
	if err != nil {
		t.Fatalf("create child session: %v", err)
	}
	return startTurn(t, parent.Tree(), scope, session.OriginTask, "researcher", []string{string(scope.Agent)})
}

func startTurn(t testing.TB, tree *session.Tree, scope session.Scope, origin session.Origin, agent string, causedBy []string) *session.Turn {
	t.Helper()
	queued := session.QueueTurn(scope, session.TurnBody{Origin: origin, CausedBy: causedBy, Input: "a question"}, time.Time{})
	queued.Tree = tree.ID
	done, err := tree.Store.Commit(t.Context(), queued)
	if err != nil {
		t.Fatalf("queue turn: %v", err)
	}
	turn, err := tree.StartTurn(t.Context(), done.Records[0], session.Setup{Agent: agent, Model: "scripted"}, session.Batch{})
	if err != nil {
		t.Fatalf("start turn: %v", err)
	}
	return turn
}
