package session_test

import (
	"strings"
	"testing"

	"orchestrator/session"
)

func TestNearestFindsTheNameThatWasMeant(t *testing.T) {
	known := []string{"advisor", "archivist", "invoke_agent", "list_known_agents", "a2a", "a2a:admin", "builtin", "subagent"}
	for _, tt := range []struct{ name, want string }{
		{"advisor", "advisor"},
		{"advsior", "advisor"},
		{"Advisor", "advisor"},
		{"archvist", "archivist"},
		{"invoke_agents", "invoke_agent"},
		{"invokeagent", "invoke_agent"},
		{"list_known", "list_known_agents"},
		{"subagents", "subagent"},
		{"a2b", "a2a"},
		{"a2a:admn", "a2a:admin"},
		{"bulitin", "builtin"},
		{"weather", ""},
		{"x", ""},
		{"", ""},
		{"su", ""},
		{strings.Repeat("a", 10_000), ""},
	} {
		if got := session.Nearest(tt.name, known); got != tt.want {
			t.Errorf("Nearest(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := session.Nearest("advisor", nil); got != "" {
		t.Errorf("Nearest with no known names = %q, want none", got)
	}
	if got := session.Nearest("b", []string{"a", "c"}); got != "" {
		t.Errorf("Nearest(%q) = %q, want none: nothing of the name is left", "b", got)
	}
	if got := session.Nearest("moed", []string{"mode", "model"}); got != "mode" {
		t.Errorf("Nearest(%q) = %q, want %q", "moed", got, "mode")
	}
}
