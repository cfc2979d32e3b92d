package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxInline is the size in bytes from which an event's body is kept as an artifact.
const MaxInline = 64 << 10

// spilled is the body of an event whose real body is an artifact.
type spilled struct {
	Artifact ArtifactKey `json:"artifact"`
	Size     int         `json:"size"`
}

const spilledMediaType = "application/vnd.orchestrator.event+json"

// Prepare makes a batch ready to be written: every [Store] calls it first. It refuses what no store could write, fills
// what follows from the tree, and moves event bodies over [MaxInline] to artifacts, which [Resolve] undoes. The slices it
// changes are copies, so that a batch whose commit failed can be committed again.
func (b *Batch) Prepare() error {
	if b.Tree == "" {
		return errors.New("batch without a tree")
	}
	type id struct {
		kind Kind
		key  string
	}
	seen := make(map[id]bool, len(b.Changes))
	for _, c := range b.Changes {
		k := id{c.Kind, c.Key}
		switch {
		case c.Kind == "" || c.Key == "":
			return fmt.Errorf("change without a kind or key: %q %q", c.Kind, c.Key)
		case seen[k]:
			return fmt.Errorf("%s %s is changed twice in one batch", c.Kind, c.Key)
		case len(c.From) == 0 && c.To == "":
			return fmt.Errorf("%s %s is inserted without a state", c.Kind, c.Key)
		}
		seen[k] = true
	}
	b.Events, b.Artifacts = slices.Clone(b.Events), slices.Clip(b.Artifacts)
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case e.Type.Ephemeral():
			return fmt.Errorf("%s event %s is ephemeral and can't be committed", e.Type, e.ID)
		case e.AgentID == "" || e.ID == "" || e.Type == "":
			return fmt.Errorf("event without a type, id or agentId: %q %q %q", e.Type, e.ID, e.AgentID)
		}
		e.SessionID, e.Root, e.Seq = b.Tree, e.AgentID == b.Tree, 0
		if len(e.Data) > MaxInline {
			key := ArtifactKey("x_" + string(e.ID))
			b.Artifacts = append(b.Artifacts, Artifact{Key: key, Name: string(e.Type), MediaType: spilledMediaType, Data: e.Data})
			e.Data = mustJSON(spilled{Artifact: key, Size: len(e.Data)})
		}
	}
	return nil
}

// Resolve gives an event its body back when it was moved to an artifact.
func Resolve(ctx context.Context, s Store, e *Event) error {
	if len(e.Data) > 200 {
		return nil
	}
	var sp spilled
	if json.Unmarshal(e.Data, &sp) != nil || sp.Artifact != ArtifactKey("x_"+string(e.ID)) {
		return nil
	}
	a, err := s.Artifact(ctx, e.SessionID, sp.Artifact)
	if err != nil {
		return fmt.Errorf("read the body of event %s: %w", e.ID, err)
	}
	e.Data = a.Data
	return nil
}
