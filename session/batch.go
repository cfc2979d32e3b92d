package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
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
// what follows from the tree, and moves event bodies over [MaxInline] to artifacts, which [Resolve] undoes. All that it
// changes, and all bodies, are copies: the caller may go on using what it passed in, and commit it again after a failure.
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
	b.Changes, b.Events, b.Artifacts = slices.Clone(b.Changes), slices.Clone(b.Events), slices.Clone(b.Artifacts)
	for i := range b.Changes {
		c := &b.Changes[i]
		c.Body, c.Due = ownData(c.Body), plainTime(c.Due)
	}
	for i := range b.Artifacts {
		a := &b.Artifacts[i]
		if a.Key == "" {
			return errors.New("artifact without a key")
		}
		a.Size, a.Data = len(a.Data), ownData(a.Data)
	}
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case e.Type.Ephemeral():
			return fmt.Errorf("%s event %s is ephemeral and can't be committed", e.Type, e.ID)
		case e.AgentID == "" || e.ID == "" || e.Type == "":
			return fmt.Errorf("event without a type, id or agentId: %q %q %q", e.Type, e.ID, e.AgentID)
		}
		e.SessionID, e.Root, e.Seq = b.Tree, e.AgentID == b.Tree, 0
		e.Data, e.Time = ownData(e.Data), plainTime(e.Time)
		if size := len(e.Data); size > MaxInline {
			key := ArtifactKey("x_" + string(e.ID))
			b.Artifacts = append(b.Artifacts, Artifact{
				Key: key, Name: string(e.Type), MediaType: spilledMediaType, Size: size, Data: e.Data,
			})
			e.Data = mustJSON(spilled{Artifact: key, Size: size})
		}
	}
	return nil
}

// Resolve gives an event its body back when it was moved to an artifact.
func Resolve(ctx context.Context, s Store, e *Event) error {
	if len(e.Data) > 200 || !bytes.HasPrefix(e.Data, []byte(`{"artifact":"x_`)) {
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

// Holds returns a *[ConflictError] unless the row (nil: there is none) is as the check wants it.
func (c Check) Holds(tree ID, row *Record) error {
	if matches(tree, row, c.States, c.Rev) {
		return nil
	}
	return &ConflictError{Kind: c.Kind, Key: c.Key, Row: row}
}

// Apply returns the record that the change of a prepared batch makes of a row (nil: there is none), or a
// *[ConflictError].
func (c Change) Apply(tree ID, row *Record) (Record, error) {
	if !matches(tree, row, c.From, c.Rev) {
		return Record{}, &ConflictError{Kind: c.Kind, Key: c.Key, Row: row}
	}
	if row == nil {
		return Record{
			Tree: tree, Kind: c.Kind, Key: c.Key, Owner: c.Owner, Origin: c.Origin, State: c.To, Body: c.Body, Due: c.Due, Rev: 1,
		}, nil
	}
	r := *row
	r.Rev++
	if c.To != "" {
		r.State = c.To
	}
	if c.SetBody {
		r.Body = c.Body
	}
	if c.SetDue {
		r.Due = c.Due
	}
	return r, nil
}

// matches reports whether a row, nil if there is none, belongs to the tree and is in one of the states (empty: there is
// none) at the revision, if one is given.
func matches(tree ID, row *Record, states []State, rev uint64) bool {
	if len(states) == 0 || row == nil {
		return len(states) == 0 && row == nil
	}
	return row.Tree == tree && slices.Contains(states, row.State) && (rev == 0 || rev == row.Rev)
}

// Counts reports whether the guard of a batch for the tree counts the record.
func (g Guard) Counts(tree ID, r Record) bool {
	return r.Tree == tree && r.Kind == g.Kind && (g.Owner == "" || r.Owner == g.Owner) && slices.Contains(g.States, r.State)
}

// ownData returns a copy of a body that appending to it can't spoil, nil when it is empty.
func ownData[T ~[]byte](data T) T {
	if len(data) == 0 {
		return nil
	}
	return slices.Clip(slices.Clone(data))
}

// plainTime returns a time as a database gives it back: in UTC, without a monotonic reading.
func plainTime(t time.Time) time.Time { return t.UTC().Round(0) }
