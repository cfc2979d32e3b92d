package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Backup writes a copy of the database at path, whole and compact, to a new file (0600), as the database is at one moment.
// It may run beside the process that has the database open, which goes on writing meanwhile, and when none has. The error
// is one of [Open]'s; one that wraps fs.ErrExist says that there is a file in the copy's place, which is left as it is. A
// copy that fails leaves no file behind.
func Backup(ctx context.Context, path, to string) (err error) {
	s, err := Open(ctx, Config{Path: path, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// Made by us first, since SQLite would make it readable to all. It takes an empty file for a new one.
	file, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make the copy: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(to))
		}
	}()
	if err := vacuumInto(ctx, path, s.params, to); err != nil {
		return errors.Join(explain(to, fmt.Errorf("copy database %s: %w", path, err)), file.Close())
	}
	// What was written is in the system's memory until now.
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return explain(to, fmt.Errorf("write the copy: %w", err))
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return explain(to, fmt.Errorf("write the copy: %w", err))
	}
	return nil
}

// vacuumInto uses a connection of its own: those that only query refuse to write the copy too.
func vacuumInto(ctx context.Context, path, params, to string) (err error) {
	db, err := openDB(path, params, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, `VACUUM INTO ?`, to)
	return err
}
