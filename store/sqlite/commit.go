package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"orchestrator/session"
)

// Commit implements [session.Store].
func (s *Store) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	if err := b.Prepare(); err != nil {
		return session.Committed{}, err
	}
	var done session.Committed
	err := s.update(ctx, b.Tree, func(w *writer) (err error) {
		done, err = w.commit(b)
		return err
	})
	if err != nil {
		return session.Committed{}, err
	}
	return done, nil
}

// update runs one write, which wakes those who watch the tree, if one is given.
func (s *Store) update(ctx context.Context, wake session.ID, run func(w *writer) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.users.Done()
	if s.cfg.ReadOnly {
		return ErrReadOnly
	}
	return s.submit(ctx, wake, run)
}

// commit writes a prepared batch. All preconditions are judged before the first write.
func (w *writer) commit(b session.Batch) (session.Committed, error) {
	tree, err := w.tree(b.Tree)
	switch {
	case err != nil && !(b.Create && errors.Is(err, session.ErrNotFound)):
		return session.Committed{}, err
	case err == nil && b.Create:
		return session.Committed{}, fmt.Errorf("tree %s exists: %w", b.Tree, session.ErrConflict)
	case b.Epoch != 0 && b.Epoch != tree.Epoch:
		return session.Committed{}, fmt.Errorf("tree %s is at epoch %d, the write is of %d: %w", b.Tree, tree.Epoch, b.Epoch, session.ErrFenced)
	}
	for _, c := range b.Checks {
		row, err := w.record(c.Kind, c.Key)
		if err != nil {
			return session.Committed{}, err
		}
		if err := c.Holds(b.Tree, row); err != nil {
			return session.Committed{}, err
		}
	}
	before, after := make([]*session.Record, len(b.Changes)), make([]session.Record, len(b.Changes))
	for i, c := range b.Changes {
		if before[i], err = w.record(c.Kind, c.Key); err != nil {
			return session.Committed{}, err
		}
		if after[i], err = c.Apply(b.Tree, before[i]); err != nil {
			return session.Committed{}, err
		}
	}
	for _, g := range b.Guards {
		n, err := w.count(b.Tree, g)
		if err != nil {
			return session.Committed{}, err
		}
		for i := range after {
			if before[i] != nil && g.Counts(b.Tree, *before[i]) {
				n--
			}
			if g.Counts(b.Tree, after[i]) {
				n++
			}
		}
		if n > g.Max {
			return session.Committed{}, &session.GuardError{Guard: g, Count: n}
		}
	}
	if b.Create {
		if err := w.createTree(&tree); err != nil {
			return session.Committed{}, fmt.Errorf("create tree %s: %w", b.Tree, err)
		}
	}
	for i := range after {
		if err := w.putRecord(after[i], before[i]); err != nil {
			return session.Committed{}, fmt.Errorf("write %s %s: %w", after[i].Kind, after[i].Key, err)
		}
		w.known.keepRecord(after[i])
		w.touched = append(w.touched, after[i])
	}
	for _, a := range b.Artifacts {
		_, err := w.exec(`INSERT INTO artifacts (tree, key, name, media_type, size, data) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			tree.n, string(a.Key), a.Name, a.MediaType, a.Size, a.Data)
		if err != nil {
			return session.Committed{}, fmt.Errorf("write artifact %s: %w", a.Key, err)
		}
	}
	if err := w.appendEvents(&tree, b.Events); err != nil {
		return session.Committed{}, err
	}
	w.appended = append(w.appended, b.Events)
	return session.Committed{Events: b.Events, Records: after}, nil
}

// treeRow is a row of trees.
type treeRow struct {
	session.TreeInfo
	n int64
}

// treeColumns reads the head from the log itself, so that a commit need not write it down.
const treeColumns = `n, id, created, coalesce((SELECT max(pos) - (n << 32) FROM events WHERE pos > n << 32 AND pos < (n + 1) << 32), 0),
	owner, epoch, lease_until, crashed`

func scanTree(row rowScanner) (treeRow, error) {
	var (
		t              treeRow
		created, until int64
	)
	err := row.Scan(&t.n, (*string)(&t.ID), &created, &t.HeadSeq, &t.Owner, &t.Epoch, &until, &t.Crashed)
	t.Created, t.LeaseUntil = fromNanos(created), fromNanos(until)
	return t, err
}

// tree reads a tree. The row of one that doesn't exist has its id, for who wants to create it.
func (w *writer) tree(id session.ID) (treeRow, error) {
	if t, ok := w.known.trees[id]; ok {
		return t, nil
	}
	t, err := scanTree(w.row(`SELECT `+treeColumns+` FROM trees WHERE id = ?`, string(id)))
	if errors.Is(err, sql.ErrNoRows) {
		return treeRow{TreeInfo: session.TreeInfo{ID: id}}, fmt.Errorf("tree %s: %w", id, session.ErrNotFound)
	}
	if err != nil {
		return treeRow{}, fmt.Errorf("read tree %s: %w", id, err)
	}
	w.known.keepTree(t)
	return t, nil
}

func (w *writer) createTree(t *treeRow) error {
	err := w.rowWritten(`INSERT INTO trees (id, created, owner, epoch, lease_until, crashed) VALUES (?, ?, '', 0, 0, 0) RETURNING n`,
		string(t.ID), time.Now().UnixNano()).Scan(&t.n)
	return err
}

// rowWritten runs a statement that writes and returns a row.
func (w *writer) rowWritten(query string, args ...any) rowScanner {
	w.dirty = true
	return w.row(query, args...)
}

const recordColumns = `tree, kind, key, owner, origin, state, body, coalesce(due, 0), rev`

func scanRecord(row rowScanner) (session.Record, error) {
	var (
		r   session.Record
		due int64
	)
	err := row.Scan((*string)(&r.Tree), (*string)(&r.Kind), &r.Key, (*string)(&r.Owner), (*string)(&r.Origin), (*string)(&r.State),
		(*[]byte)(&r.Body), &due, &r.Rev)
	r.Due = fromNanos(due)
	return r, err
}

// record reads a record, nil if there is none.
func (w *writer) record(kind session.Kind, key string) (*session.Record, error) {
	if r, ok := w.known.records[recordKey{kind, key}]; ok {
		return &r, nil
	}
	r, err := scanRecord(w.row(`SELECT `+recordColumns+` FROM records WHERE kind = ? AND key = ?`, string(kind), key))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	w.known.keepRecord(r)
	w.touched = append(w.touched, r)
	return &r, nil
}

// putRecord writes a record that was another (nil: none) before.
func (w *writer) putRecord(r session.Record, before *session.Record) error {
	var due any
	if !r.Due.IsZero() {
		due = nanos(r.Due)
	}
	var err error
	switch {
	case before == nil:
		_, err = w.exec(`INSERT INTO records (tree, kind, key, owner, origin, state, body, due, rev) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			string(r.Tree), string(r.Kind), r.Key, string(r.Owner), string(r.Origin), string(r.State), text(r.Body), due, r.Rev)
	case r.State == before.State && r.Due.Equal(before.Due): // SQLite would write their indexes all the same
		_, err = w.exec(`UPDATE records SET body = ?, rev = ? WHERE kind = ? AND key = ?`, text(r.Body), r.Rev, string(r.Kind), r.Key)
	default:
		_, err = w.exec(`UPDATE records SET state = ?, body = ?, due = ?, rev = ? WHERE kind = ? AND key = ?`,
			string(r.State), text(r.Body), due, r.Rev, string(r.Kind), r.Key)
	}
	return err
}

// count counts a guard's records.
func (w *writer) count(tree session.ID, g session.Guard) (int, error) {
	query := `SELECT count(*) FROM records INDEXED BY records_by_state WHERE kind = ? AND tree = ? AND state IN (` + marks(len(g.States)) + `)`
	args := []any{string(g.Kind), string(tree)}
	for _, state := range g.States {
		args = append(args, string(state))
	}
	if g.Owner != "" {
		query += ` AND owner = ?`
		args = append(args, string(g.Owner))
	}
	var n int
	if err := w.row(query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count %s records: %w", g.Kind, err)
	}
	return n, nil
}

// seqBits is how much of an event's pos is its seq.
const seqBits = 32

// eventsAtOnce bounds how many events one statement inserts.
const eventsAtOnce = 8

// appendEvents gives events their seq and writes them.
func (w *writer) appendEvents(t *treeRow, events []session.Event) error {
	for chunk := range slices.Chunk(events, eventsAtOnce) {
		args := make([]any, 0, 10*len(chunk))
		for i := range chunk {
			e := &chunk[i]
			t.HeadSeq++
			e.Seq = t.HeadSeq
			args = append(args, t.n<<seqBits+int64(e.Seq), string(e.ID), string(e.Type), nanos(e.Time), string(e.AgentID),
				string(e.ParentAgentID), string(e.TurnID), string(e.OriginTurn), string(e.ToolCallID), text(e.Data))
		}
		if _, err := w.exec(insertEvents[len(chunk)], args...); err != nil {
			return fmt.Errorf("write events of tree %s: %w", t.ID, err)
		}
	}
	w.known.keepTree(*t)
	return nil
}

// insertEvents inserts so many events as its index says.
var insertEvents = func() (queries [eventsAtOnce + 1]string) {
	for n := range queries {
		queries[n] = `INSERT INTO events (pos, id, type, time, agent, parent, turn, origin, tool_call, data) VALUES ` +
			strings.TrimSuffix(strings.Repeat(`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?), `, n), `, `)
	}
	return queries
}()

// text is a body as a column's value.
func text(data []byte) any {
	if data == nil {
		return nil
	}
	return string(data)
}

// nanos is a time as a column's value. What lies beyond the years an int64 can hold is as far as it can say.
func nanos(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.Year() > 2261:
		return math.MaxInt64
	case t.Year() < 1679:
		return math.MinInt64
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
