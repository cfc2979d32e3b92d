package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"orchestrator/session"
)

// family is what one commit makes of a session's children and their batches: read afresh for each try, changed in
// memory, and written as compare-and-sets on what was read. Whatever may complete a batch changes the batch's record, so
// of two changes that don't know of each other one is tried again.
type family struct {
	store session.Store
	tree  session.ID
	now   time.Time

	open     []*batchRow
	children []*childRow // unsettled ones, in the order they were spawned
	touched  []*batchRow
	items    []session.Change
	gone     bool // the turn that ends has no batch
}

type childRow struct {
	rec   session.Record
	body  Child
	state session.State
	dirty bool
}

type batchRow struct {
	rec   session.Record
	body  batch
	state session.State
}

// loadFamily reads the unsettled children of a session and its open batches. The batches are read first: a child that ends
// between the two reads has then changed a batch as we know it, and the commit is tried again.
func loadFamily(ctx context.Context, store session.Store, tree, parent session.ID) (*family, error) {
	f := &family{store: store, tree: tree, now: time.Now().UTC()}
	recs, err := store.Records(ctx, session.RecordQuery{
		Tree: tree, Kind: session.KindBatch, Owner: parent, States: []session.State{BatchOpen},
	})
	if err != nil {
		return nil, fmt.Errorf("read the batches of %s: %w", parent, err)
	}
	for _, rec := range recs {
		row := &batchRow{rec: rec, state: rec.State}
		if err := rec.Decode(&row.body); err != nil {
			return nil, err
		}
		f.open = append(f.open, row)
	}
	recs, err = store.Records(ctx, session.RecordQuery{Tree: tree, Kind: session.KindChild, Owner: parent, States: UnsettledStates})
	if err != nil {
		return nil, fmt.Errorf("read the subagents of %s: %w", parent, err)
	}
	for _, rec := range recs {
		row := &childRow{rec: rec, state: rec.State}
		if err := rec.Decode(&row.body); err != nil {
			return nil, err
		}
		f.children = append(f.children, row)
	}
	return f, nil
}

// child returns the row of an unsettled child.
func (f *family) child(id session.ID) (*childRow, bool) {
	for _, row := range f.children {
		if row.rec.Key == string(id) {
			return row, true
		}
	}
	return nil, false
}

// touch makes the commit go by the batch of a turn. It returns nil when the turn has none.
func (f *family) touch(ctx context.Context, turn session.TurnID) (*batchRow, error) {
	of := func(row *batchRow) bool { return row.rec.Key == string(turn) }
	if i := slices.IndexFunc(f.touched, of); i >= 0 {
		return f.touched[i], nil
	}
	if i := slices.IndexFunc(f.open, of); i >= 0 {
		f.touched = append(f.touched, f.open[i])
		return f.open[i], nil
	}
	rec, err := f.store.Record(ctx, session.KindBatch, string(turn))
	switch {
	case errors.Is(err, session.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the batch of turn %s: %w", turn, err)
	case rec.State == BatchOpen:
		return nil, fmt.Errorf("the batch of turn %s was made while it was read: %w", turn, session.ErrConflict)
	}
	row := &batchRow{rec: rec, state: rec.State}
	if err := rec.Decode(&row.body); err != nil {
		return nil, err
	}
	f.touched = append(f.touched, row)
	return row, nil
}

// release clears the waiter of a child.
func (f *family) release(ctx context.Context, row *childRow) error {
	row.body.Waiter, row.dirty = "", true
	_, err := f.touch(ctx, row.body.Batch)
	return err
}

// endTurn notes that the turn ends: nobody waits any more, and its batch may go home.
func (f *family) endTurn(ctx context.Context, turn session.TurnID, cancelled bool) error {
	for _, row := range f.children {
		if row.body.Waiter == "" {
			continue
		}
		if cancelled && row.body.Waiter == row.body.ToolCall && live(row.state) && row.body.Cancel == "" {
			row.body.Cancel = "the turn that waited for it was cancelled"
		}
		if err := f.release(ctx, row); err != nil {
			return err
		}
	}
	b, err := f.touch(ctx, turn)
	if err != nil {
		return err
	}
	if b == nil {
		f.gone = true
		return nil
	}
	b.body.TurnEnded = f.now
	return nil
}

// settle sends home what the touched batches hold when they are complete: their turn has ended, and so has every child,
// and nobody waits for one. Of a batch that went home before, each child follows singly.
func (f *family) settle() {
	for _, b := range f.touched {
		if b.state == BatchOpen && (b.body.TurnEnded.IsZero() || f.waitsFor(b)) {
			continue
		}
		late := b.state == BatchDone
		b.state = BatchDone
		f.fold(b, late)
	}
}

// overdue sends home what there is, and names who is still at work.
func (f *family) overdue(b *batchRow) {
	for _, row := range f.of(b) {
		if live(row.state) && row.body.Waiter == "" {
			f.items = append(f.items, f.item(session.ItemPending, row, false))
		}
	}
	b.state, b.body.Overdue = BatchDone, true
	f.fold(b, false)
}

func (f *family) fold(b *batchRow, late bool) {
	for _, row := range f.of(b) {
		if row.state == StateEnded && row.body.Waiter == "" {
			row.state, row.dirty = StateFolded, true
			f.items = append(f.items, f.item(session.ItemChild, row, late))
		}
	}
}

func (f *family) waitsFor(b *batchRow) bool {
	for _, row := range f.of(b) {
		if live(row.state) || row.body.Waiter != "" {
			return true
		}
	}
	return false
}

// of returns the unsettled children of a batch.
func (f *family) of(b *batchRow) []*childRow {
	var rows []*childRow
	for _, row := range f.children {
		if string(row.body.Batch) == b.rec.Key {
			rows = append(rows, row)
		}
	}
	return rows
}

// item returns the change that brings a child's result, or word that there is none yet, to the root session.
func (f *family) item(kind session.ItemKind, row *childRow, late bool) session.Change {
	c := row.body
	id := session.ID(row.rec.Key)
	body := session.ItemBody{
		Kind: kind, Child: id, From: c.Agent, Asker: c.Parent, AskerName: "the primary", ToolCall: c.ToolCall, Turn: c.Batch,
		Question: session.Shorten(c.Description+": "+c.Prompt, 500, ""), Asked: c.Spawned, At: f.now, State: string(row.state),
		Late: late, Generation: c.Generation, Trace: c.Trace,
	}
	if c.Parent != f.tree {
		body.AskerName, body.AskerEnded = "a subagent", true
	}
	if kind == session.ItemChild && c.Result != nil {
		body.At, body.State, body.Text, body.Artifacts = c.Ended, c.Result.State, c.Result.Text, c.Result.Artifacts
	}
	return session.NewItem(session.ChildItemKey(kind, id, c.Run), f.tree, row.rec.Origin, body)
}

// write adds the changes to a batch.
func (f *family) write(turn session.TurnID, b *session.Batch, overdueAfter time.Duration) {
	for _, row := range f.children {
		if !row.dirty {
			continue
		}
		change := row.rec.Update(row.state, row.body)
		if !live(row.state) {
			change = change.At(time.Time{})
		}
		b.Changes = append(b.Changes, change)
	}
	for _, row := range f.touched {
		change := row.rec.Update(row.state, row.body)
		switch {
		case row.state == BatchDone:
			change = change.At(time.Time{})
		case row.rec.Key == string(turn):
			change = change.At(f.now.Add(overdueAfter))
		}
		b.Changes = append(b.Changes, change)
	}
	b.Changes = append(b.Changes, f.items...)
	if f.gone {
		b.Checks = append(b.Checks, session.Check{Kind: session.KindBatch, Key: string(turn)})
	}
}
