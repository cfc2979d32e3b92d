package session_test

import (
	"strings"
	"testing"

	"orchestrator/session"
)

func TestFreshIDsAreUniqueAndPrefixed(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		for prefix, id := range map[string]string{
			"s_": string(session.NewID()), "t_": string(session.NewTurnID()), "e_": string(session.NewEventID()),
			"m_": session.NewMessageID(), "x_": string(session.NewArtifactKey()),
		} {
			if !strings.HasPrefix(id, prefix) || len(id) != len(prefix)+26 || strings.Contains(id, ":") {
				t.Fatalf("id %q, want %q and a ULID", id, prefix)
			}
			if seen[id] {
				t.Fatalf("id %q was given twice", id)
			}
			seen[id] = true
		}
	}
}

func TestToolCallIDSplitsIntoWhatItWasMintedOf(t *testing.T) {
	agent := session.NewID()
	id := session.MintToolCallID(agent, 12)
	if got, n, ok := id.Split(); got != agent || n != 12 || !ok || id != session.ToolCallID(agent)+":12" {
		t.Errorf("%q.Split() = %q, %d, %v", id, got, n, ok)
	}
	for _, bad := range []session.ToolCallID{"", "call_1", "s_1:", "s_1:x", "s_1:0", "s_1:-1", "s_1:1:2", "s_1: 1"} {
		if agent, n, ok := bad.Split(); ok || agent != "" || n != 0 {
			t.Errorf("%q.Split() = %q, %d, %v, want none", bad, agent, n, ok)
		}
	}
}

func TestDerivedIDsDependOnTheCallAlone(t *testing.T) {
	agent := session.NewID()
	seen := make(map[string]string)
	for n := 1; n <= 50; n++ {
		call := session.MintToolCallID(agent, n)
		for label, id := range map[string]string{
			"c_": string(session.CallIDFor(call)), "s_": string(session.ChildIDFor(call)),
			"x_": string(session.ArtifactKeyFor(call, "reply")), "x_2": string(session.ArtifactKeyFor(call, "file")),
		} {
			if !strings.HasPrefix(id, label[:2]) || len(id) != 28 {
				t.Errorf("derived id %q, want %q and a ULID", id, label[:2])
			}
			if other, twice := seen[id[2:]]; twice {
				t.Errorf("%s of %s is that of %s too", id, call, other)
			}
			seen[id[2:]] = string(call) + label
			if time := id[2:12]; time != string(agent)[2:12] {
				t.Errorf("derived id %q has the time %q, want that of its agent %q", id, time, agent)
			}
		}
	}
	// These are keys in databases: a change here orphans what is stored.
	const fixed session.ToolCallID = "s_01J00000000000000000000000:1"
	if got := session.CallIDFor(fixed); got != wantCallID {
		t.Errorf("CallIDFor(%s) = %s, want %s", fixed, got, wantCallID)
	}
	if got := session.ChildIDFor(fixed); got != wantChildID {
		t.Errorf("ChildIDFor(%s) = %s, want %s", fixed, got, wantChildID)
	}
	if got := session.ChildIDFor("odd"); len(got) != 28 {
		t.Errorf("ChildIDFor of a call id of another shape = %q, want an id all the same", got)
	}
}

const (
	wantCallID  session.CallID = "c_01J0000000HTPEG6EQV4N708S4"
	wantChildID session.ID     = "s_01J0000000657EAXHHGW64GYEH"
)
