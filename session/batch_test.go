package session_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/session"
)

func TestPrepareFillsTheEnvelopeOfCopies(t *testing.T) {
	at := time.Now() // with a monotonic reading, in the local zone
	data := json.RawMessage(`{"name":"now"}`)
	caller := session.Batch{
		Tree: "s_root",
		Changes: []session.Change{
			{Kind: session.KindCall, Key: "c_1", To: "open", Body: json.RawMessage(`{}`), Due: at},
		},
		Events: []session.Event{
			{ID: "e_1", Type: session.EventToolStarted, AgentID: "s_child", Root: true, Seq: 5, SessionID: "s_other", Time: at, Data: data},
			{ID: "e_2", Type: session.EventToolStarted, AgentID: "s_root", Data: json.RawMessage{}},
		},
		Artifacts: []session.Artifact{{Key: "x_1", Data: []byte("data"), Size: 77}},
	}
	b := caller
	if err := b.Prepare(); err != nil {
		t.Fatalf("Prepare() = %v", err)
	}
	want := session.Batch{
		Tree: "s_root",
		Changes: []session.Change{
			{Kind: session.KindCall, Key: "c_1", To: "open", Body: json.RawMessage(`{}`), Due: at.UTC().Round(0)},
		},
		Events: []session.Event{
			{ID: "e_1", Type: session.EventToolStarted, AgentID: "s_child", SessionID: "s_root", Time: at.UTC().Round(0), Data: data},
			{ID: "e_2", Type: session.EventToolStarted, AgentID: "s_root", SessionID: "s_root", Root: true},
		},
		Artifacts: []session.Artifact{{Key: "x_1", Data: []byte("data"), Size: 4}},
	}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("prepared batch (-want +got):\n%s", diff)
	}
	if caller.Events[0].Seq != 5 || caller.Events[0].SessionID != "s_other" || caller.Artifacts[0].Size != 77 || caller.Changes[0].Due != at {
		t.Error("Prepare changed what the caller holds")
	}
	clear(data)
	if string(b.Events[0].Data) != `{"name":"now"}` {
		t.Error("a prepared batch shares the caller's bytes")
	}
}

func TestSpilledBodyHasItsOwnArtifact(t *testing.T) {
	body := json.RawMessage(`"` + strings.Repeat("x", session.MaxInline) + `"`)
	b := session.Batch{Tree: "s_1", Events: []session.Event{{ID: "e_1", Type: session.EventToolCompleted, AgentID: "s_1", Data: body}}}
	if err := b.Prepare(); err != nil {
		t.Fatalf("Prepare() = %v", err)
	}
	if len(b.Artifacts) != 1 || b.Artifacts[0].Key != "x_e_1" || b.Artifacts[0].Size != len(body) || string(b.Artifacts[0].Data) != string(body) {
		t.Errorf("artifacts = %d, want the body", len(b.Artifacts))
	}
	if len(b.Events[0].Data) > 200 {
		t.Errorf("a spilled event has a body of %d bytes", len(b.Events[0].Data))
	}
}

func TestResolveLeavesOtherBodiesAlone(t *testing.T) {
	s := session.NewMemory()
	for _, data := range []string{
		``, `{}`, `null`, `"x_e_1"`, `[1]`, `{"artifact":"x_e_2","size":3}`, `{"artifact":"x_e_1x"}`, strings.Repeat("x", 300),
	} {
		e := session.Event{ID: "e_1", SessionID: "s_1", Data: json.RawMessage(data)}
		if err := session.Resolve(t.Context(), s, &e); err != nil || string(e.Data) != data {
			t.Errorf("Resolve() of %q = %q, %v", data, e.Data, err)
		}
	}
	e := session.Event{ID: "e_1", SessionID: "s_1", Data: json.RawMessage(`{"artifact":"x_e_1","size":3}`)}
	if err := session.Resolve(t.Context(), s, &e); !errors.Is(err, session.ErrNotFound) || !strings.Contains(err.Error(), "e_1") {
		t.Errorf("Resolve() of a body that is gone = %v, want %v that names the event", err, session.ErrNotFound)
	}
}

func TestApplyIsACompareAndSet(t *testing.T) {
	row := session.Record{Tree: "s_1", Kind: session.KindCall, Key: "c_1", State: "open", Rev: 3, Body: json.RawMessage(`1`)}
	other := row
	other.Tree = "s_2"
	change := session.Change{Kind: session.KindCall, Key: "c_1", From: []session.State{"open", "waiting"}, To: "done"}
	for name, test := range map[string]struct {
		row    *session.Record
		rev    uint64
		insert bool
		ok     bool
	}{
		"in a state of From":  {row: &row, ok: true},
		"at its revision":     {row: &row, rev: 3, ok: true},
		"at another revision": {row: &row, rev: 2},
		"of another tree":     {row: &other},
		"missing":             {},
		"inserted":            {insert: true, ok: true},
		"inserted again":      {row: &row, insert: true},
	} {
		c := change
		c.Rev = test.rev
		if test.insert {
			c.From = nil
		}
		got, err := c.Apply("s_1", test.row)
		if test.ok {
			if err != nil || got.State != "done" || test.row != nil && got.Rev != 4 || test.row == nil && got.Rev != 1 {
				t.Errorf("%s: Apply() = %+v, %v", name, got, err)
			}
			continue
		}
		conflict, ok := errors.AsType[*session.ConflictError](err)
		if !ok || conflict.Row != test.row {
			t.Errorf("%s: Apply() = %v, want a conflict with the row", name, err)
		}
	}
	if row.State != "open" || row.Rev != 3 {
		t.Errorf("Apply changed the row it was given: %+v", row)
	}
}
