package sqlite

import (
	"cmp"
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

// Record implements [session.Store].
func (s *Store) Record(ctx context.Context, kind session.Kind, key string) (session.Record, error) {
	if err := s.enter(ctx); err != nil {
		return session.Record{}, err
	}
	defer s.users.Done()
	if r, ok := s.committed.get(kind, key); ok {
		return r, nil
	}
	r, err := scanRecord(s.row(`SELECT `+recordColumns+` FROM records WHERE kind = ? AND key = ?`, string(kind), key))
	if err != nil {
		return session.Record{}, s.readError(fmt.Sprintf("%s %s", kind, key), err)
	}
	return r, nil
}

// Artifact implements [session.Store].
func (s *Store) Artifact(ctx context.Context, tree session.ID, key session.ArtifactKey) (session.Artifact, error) {
	if err := s.enter(ctx); err != nil {
		return session.Artifact{}, err
	}
	defer s.users.Done()
	var a session.Artifact
	err := s.row(`SELECT key, name, media_type, size, data FROM artifacts WHERE tree = (SELECT n FROM trees WHERE id = ?) AND key = ?`,
		string(tree), string(key)).Scan((*string)(&a.Key), &a.Name, &a.MediaType, &a.Size, &a.Data)
	if err != nil {
		return session.Artifact{}, s.readError(fmt.Sprintf("artifact %s of tree %s", key, tree), err)
	}
	if len(a.Data) == 0 {
		a.Data = nil
	}
	return a, nil
}

// Tree implements [session.Store].
func (s *Store) Tree(ctx context.Context, tree session.ID) (session.TreeInfo, error) {
	if err := s.enter(ctx); err != nil {
		return session.TreeInfo{}, err
	}
	defer s.users.Done()
	t, err := scanTree(s.row(`SELECT `+treeColumns+` FROM trees WHERE id = ?`, string(tree)))
	if err != nil {
		return session.TreeInfo{}, s.readError(fmt.Sprintf("tree %s", tree), err)
	}
	return t.infoAt(time.Now()), nil
}

// infoAt returns what is known of the tree at a time: a lease that has run out was not released.
func (t treeRow) infoAt(now time.Time) session.TreeInfo {
	t.Crashed = t.Crashed || t.Owner != "" && !now.Before(t.LeaseUntil)
	return t.TreeInfo
}

// Trees implements [session.Store].
func (s *Store) Trees(ctx context.Context, limit int) ([]session.TreeInfo, error) {
	if limit <= 0 {
		limit = -1
	}
	now := time.Now()
	return collect(ctx, s, "trees", func(row rowScanner) (session.TreeInfo, error) {
		t, err := scanTree(row)
		return t.infoAt(now), err
	}, `SELECT `+treeColumns+` FROM trees WHERE id IS NOT NULL ORDER BY n DESC LIMIT ?`, limit)
}

// Records implements [session.Store].
func (s *Store) Records(ctx context.Context, q session.RecordQuery) ([]session.Record, error) {
	var where []string
	var args []any
	equal := func(column, value string) {
		if value != "" {
			where, args = append(where, column+` = ?`), append(args, value)
		}
	}
	equal("tree", string(q.Tree))
	equal("kind", string(q.Kind))
	equal("owner", string(q.Owner))
	equal("origin", string(q.Origin))
	if len(q.States) > 0 {
		where = append(where, `state IN (`+marks(len(q.States))+`)`)
		for _, state := range q.States {
			args = append(args, string(state))
		}
	}
	// The indexes are named since SQLite, without statistics, would rather walk all records than sort a few.
	index, order := "", "n"
	if !q.DueBefore.IsZero() {
		where, args = append(where, `due < ?`), append(args, nanos(q.DueBefore))
		order = "due, n"
	}
	if q.NewestBefore != nil {
		if *q.NewestBefore != "" {
			where, args = append(where, `tree < ?`), append(args, string(*q.NewestBefore))
		}
		order = strings.TrimSuffix(order, "n") + "tree DESC, n"
	}
	switch {
	case q.Kind != "" && len(q.States) > 0 && (q.Tree != "" || q.DueBefore.IsZero()):
		index = ` INDEXED BY records_by_state`
	case !q.DueBefore.IsZero():
		index = ` INDEXED BY records_by_due`
	case q.Tree != "":
		index = ` INDEXED BY records_by_tree`
	}
	columns := recordColumns
	if q.NoBody {
		columns = strings.Replace(columns, "body", "NULL", 1)
	}
	query := `SELECT ` + columns + ` FROM records` + index
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, ` AND `)
	}
	query += ` ORDER BY ` + order
	if q.Limit > 0 {
		query, args = query+` LIMIT ?`, append(args, q.Limit)
	}
	return collect(ctx, s, "records", scanRecord, query, args...)
}

const (
	eventColumns = `e.pos, e.id, e.type, e.time, e.agent, e.parent, e.turn, e.origin, e.tool_call, e.data`
	// eventSpan says that pos is in tree ?1 behind seq ?2.
	eventSpan = `pos > ((SELECT n FROM trees WHERE id = ?1) << 32) + ?2 AND pos < (SELECT n + 1 FROM trees WHERE id = ?1) << 32`
)

// Events implements [session.Store].
func (s *Store) Events(ctx context.Context, q session.EventQuery) ([]session.Event, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.users.Done()
	if events, ok := s.tails.after(q); ok {
		return events, nil
	}
	args := []any{string(q.Tree), int64(min(q.After, math.MaxUint32)), cmp.Or(q.Limit, 1000)}
	order := "pos"
	if q.Last {
		order = "pos DESC"
	}
	types := slices.Compact(slices.Sorted(slices.Values(q.Types)))
	// The parameters have numbers since some are used more than once: 1 tree, 2 after, 3 limit, then agent, then types.
	var query string
	if q.Agent == "" {
		query = `SELECT ` + eventColumns + ` FROM events e WHERE ` + eventSpan
		if len(types) > 0 {
			query += ` AND type IN (` + numbered("?%d", 4, len(types)) + `)`
		}
		query += ` ORDER BY ` + order + ` LIMIT ?3`
	} else {
		// Each of the agent's types is read from its own end of the index, so that the cost doesn't grow with the log.
		args = append(args, string(q.Agent))
		kinds := `WITH RECURSIVE kinds (type) AS (SELECT min(type) FROM events WHERE agent = ?4 UNION ALL
			SELECT (SELECT min(type) FROM events WHERE agent = ?4 AND type > kinds.type) FROM kinds WHERE kinds.type IS NOT NULL)`
		if len(types) > 0 {
			kinds = `WITH kinds (type) AS (VALUES ` + numbered("(?%d)", 5, len(types)) + `)`
		}
		query = kinds + ` SELECT ` + eventColumns + ` FROM kinds CROSS JOIN events e ON e.pos IN (
			SELECT pos FROM events INDEXED BY events_by_agent WHERE agent = ?4 AND type = kinds.type AND ` + eventSpan + `
			ORDER BY ` + order + ` LIMIT ?3) ORDER BY e.` + order + ` LIMIT ?3`
	}
	for _, typ := range types {
		args = append(args, string(typ))
	}
	events, err := collect(ctx, s, fmt.Sprintf("events of tree %s", q.Tree), func(row rowScanner) (session.Event, error) {
		return scanEvent(row, q.Tree)
	}, query, args...)
	if err != nil {
		return nil, err
	}
	if q.Last {
		slices.Reverse(events)
	}
	if len(events) == 0 {
		if _, err := s.Tree(ctx, q.Tree); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// numbered returns n parameters with numbers from first on, each in a format.
func numbered(format string, first, n int) string {
	params := make([]string, n)
	for i := range params {
		params[i] = fmt.Sprintf(format, first+i)
	}
	return strings.Join(params, ", ")
}

func scanEvent(row rowScanner, tree session.ID) (session.Event, error) {
	var (
		e       = session.Event{SessionID: tree}
		pos, at int64
	)
	err := row.Scan(&pos, (*string)(&e.ID), (*string)(&e.Type), &at, (*string)(&e.AgentID), (*string)(&e.ParentAgentID),
		(*string)(&e.TurnID), (*string)(&e.OriginTurn), (*string)(&e.ToolCallID), (*[]byte)(&e.Data))
	e.Seq, e.Time, e.Root = uint64(pos&(1<<seqBits-1)), fromNanos(at), e.AgentID == tree
	return e, err
}

// collect reads all rows of a query. The statement itself never ends early: reads are short, and cutting one off is
// dearer than letting it run.
func collect[T any](ctx context.Context, s *Store, what string, scan func(rowScanner) (T, error), query string, args ...any) ([]T, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.users.Done()
	stmt, err := s.read(query)
	if err != nil {
		return nil, s.readError(what, err)
	}
	rows, err := stmt.Query(args...)
	if err != nil {
		return nil, s.readError(what, err)
	}
	defer rows.Close()
	found := []T{}
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v, err := scan(rows)
		if err != nil {
			return nil, s.readError(what, err)
		}
		found = append(found, v)
	}
	if err := rows.Err(); err != nil {
		return nil, s.readError(what, err)
	}
	return found, nil
}

func (s *Store) row(query string, args ...any) rowScanner {
	stmt, err := s.read(query)
	if err != nil {
		return failedRow{err}
	}
	return stmt.QueryRow(args...)
}

// read returns a prepared statement for the readers.
func (s *Store) read(query string) (*sql.Stmt, error) {
	s.mu.Lock()
	stmt, ok := s.reads[query]
	s.mu.Unlock()
	if ok {
		return stmt, nil
	}
	stmt, err := s.readDB.Prepare(query)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, ok := s.reads[query]; ok {
		_ = stmt.Close() // another call was quicker; nothing depends on this one
		return first, nil
	}
	s.reads[query] = stmt
	return stmt, nil
}

func (s *Store) readError(what string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s: %w", what, session.ErrNotFound)
	}
	return fmt.Errorf("read %s: %w", what, explain(s.cfg.Path, err))
}
