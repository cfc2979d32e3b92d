package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"orchestrator/session"
)

// Claim implements [session.Store].
func (s *Store) Claim(ctx context.Context, tree session.ID, owner string, ttl time.Duration) (session.Lease, error) {
	if owner == "" {
		return session.Lease{}, fmt.Errorf("claim tree %s: no owner is named", tree)
	}
	var lease session.Lease
	err := s.update(ctx, "", func(w *writer) error {
		t, err := w.tree(tree)
		if err != nil {
			return err
		}
		now := time.Now()
		if t.Owner != "" && t.Owner != owner && now.Before(t.LeaseUntil) {
			return fmt.Errorf("owned by %s: %w", t.Owner, session.ErrLeased)
		}
		lease = session.Lease{
			Tree: tree, Owner: owner, Epoch: t.Epoch + 1, Until: now.Add(ttl).UTC().Round(0), Crashed: t.Crashed || t.Owner != "",
		}
		delete(w.known.trees, tree)
		_, err = w.exec(`UPDATE trees SET owner = ?, epoch = ?, lease_until = ?, crashed = 0 WHERE n = ?`, owner, lease.Epoch, nanos(lease.Until), t.n)
		return err
	})
	if err != nil {
		return session.Lease{}, fmt.Errorf("claim tree %s: %w", tree, err)
	}
	return lease, nil
}

// Renew implements [session.Store].
func (s *Store) Renew(ctx context.Context, leases []session.Lease, ttl time.Duration) ([]session.Lease, error) {
	var lost []session.Lease
	err := s.update(ctx, "", func(w *writer) error {
		lost = nil
		until := nanos(time.Now().Add(ttl))
		for _, l := range leases {
			delete(w.known.trees, l.Tree)
			n, err := w.exec(`UPDATE trees SET lease_until = ? WHERE id = ? AND epoch = ? AND owner <> ''`, until, string(l.Tree), l.Epoch)
			if err != nil {
				return err
			}
			if n == 0 {
				lost = append(lost, l)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return lost, nil
}

// Release implements [session.Store].
func (s *Store) Release(ctx context.Context, l session.Lease) error {
	err := s.update(ctx, "", func(w *writer) error {
		delete(w.known.trees, l.Tree)
		_, err := w.exec(`UPDATE trees SET owner = '', lease_until = 0, crashed = 0 WHERE id = ? AND epoch = ?`, string(l.Tree), l.Epoch)
		return err
	})
	if err != nil {
		return fmt.Errorf("release tree %s: %w", l.Tree, err)
	}
	return nil
}

// Delete implements [session.Store]. The tree is gone when it returns; the space of its events and artifacts is freed in
// the background, in steps that let other writes through, if need be by the next process.
func (s *Store) Delete(ctx context.Context, tree session.ID) error {
	err := s.update(ctx, tree, func(w *writer) error {
		t, err := w.tree(tree)
		if errors.Is(err, session.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		w.known, w.all = newKnown(), true
		if _, err := w.exec(`DELETE FROM records WHERE tree = ?`, string(tree)); err != nil {
			return err
		}
		_, err = w.exec(`UPDATE trees SET id = NULL WHERE n = ?`, t.n)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete tree %s: %w", tree, err)
	}
	select {
	case s.reap <- struct{}{}:
	default: // the reaper will look anyway
	}
	return nil
}

// reapDeleted frees what deleted trees held, until the store closes.
func (s *Store) reapDeleted() {
	for {
		select {
		case <-s.closing:
			return
		case <-s.reap:
			if err := s.reapAll(); err != nil {
				s.cfg.Logger.Error("free the space of deleted trees", "err", err)
			}
		}
	}
}

// reapAll frees what deleted trees hold now. It stops early when the store closes.
func (s *Store) reapAll() error {
	for {
		select {
		case <-s.closing:
			return nil
		default:
		}
		var rest bool
		err := s.submit(context.Background(), "", func(w *writer) (err error) {
			rest, err = w.reap()
			return err
		})
		if err != nil || !rest {
			return err
		}
	}
}

// reap frees a bounded part of what the first deleted tree holds, and reports whether there was one.
func (w *writer) reap() (bool, error) {
	var n int64
	if err := w.row(`SELECT coalesce(min(n), 0) FROM trees WHERE id IS NULL`).Scan(&n); err != nil || n == 0 {
		return false, err
	}
	for _, part := range []string{
		`DELETE FROM events WHERE pos IN (SELECT pos FROM events WHERE pos >= ?1 << 32 AND pos < (?1 + 1) << 32 LIMIT 1000)`,
		`DELETE FROM artifacts WHERE tree = ?1 AND key IN (SELECT key FROM artifacts WHERE tree = ?1 LIMIT 20)`,
		`DELETE FROM trees WHERE n = ?1`,
	} {
		deleted, err := w.exec(part, n)
		if err != nil || deleted > 0 {
			return true, err
		}
	}
	return true, nil
}
