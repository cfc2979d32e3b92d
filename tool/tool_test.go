package tool_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
	"orchestrator/tool"
)

type named string

func (n named) Spec() tool.Spec { return tool.Spec{Name: string(n), Source: tool.SourceBuiltin} }

func (n named) Run(context.Context, *tool.Call) (tool.Result, error) {
	return tool.Text(string(n)), nil
}

func TestSetKeepsTheOrderAndFindsByName(t *testing.T) {
	set := tool.NewSet([]tool.Tool{named("b"), named("a"), named("c")}, nil)
	if diff := cmp.Diff([]string{"b", "a", "c"}, set.Names()); diff != "" {
		t.Errorf("Names() (-want +got):\n%s", diff)
	}
	if got, ok := set.Lookup("a"); !ok || got != named("a") {
		t.Errorf("Lookup(a) = %v, %v", got, ok)
	}
	if got, ok := set.Lookup("A"); ok {
		t.Errorf("Lookup(A) = %v, want none", got)
	}
	if len(set.Tools()) != 3 {
		t.Errorf("Tools() = %v, want 3", set.Tools())
	}
}

func TestRefusalTellsADeniedToolFromAnUnknownOne(t *testing.T) {
	set := tool.NewSet(nil, func(name string) (string, bool) { return "no " + name, name == "known" })
	if reason, denied := set.Refusal("known"); reason != "no known" || !denied {
		t.Errorf("Refusal(known) = %q, %v", reason, denied)
	}
	if _, denied := set.Refusal("other"); denied {
		t.Error("a tool nobody knows is denied")
	}
	if reason, denied := tool.NewSet(nil, nil).Refusal("known"); reason != "" || denied {
		t.Errorf("Refusal without a func = %q, %v", reason, denied)
	}
}

func TestTheKindOfASessionIsReadFromItsTurn(t *testing.T) {
	root := &session.Turn{Scope: session.Scope{Root: "s_1", Agent: "s_1"}}
	child := &session.Turn{Scope: session.Scope{Root: "s_1", Agent: "s_2", Parent: "s_1"}}
	if got := tool.KindOf(root); got != tool.Primary {
		t.Errorf("KindOf(root) = %v", got)
	}
	if got := tool.KindOf(child); got != tool.Subagent {
		t.Errorf("KindOf(child) = %v", got)
	}
	c := tool.Call{ID: "s_2:3", Turn: child}
	if got := c.Scope(); got.ToolCall != "s_2:3" || got.Agent != "s_2" || got.Root != "s_1" || got.Parent != "s_1" {
		t.Errorf("Scope() = %+v", got)
	}
}

func TestResultsSayWhetherTheyAreErrors(t *testing.T) {
	if r := tool.Text("x"); r.Content != "x" || r.IsError {
		t.Errorf("Text() = %+v", r)
	}
	if r := tool.Failure("x"); r.Content != "x" || !r.IsError {
		t.Errorf("Failure() = %+v", r)
	}
}
