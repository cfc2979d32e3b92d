package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// applicationID marks a database as ours. The first migration sets it.
const applicationID = 0x6f726368

// checkSchema refuses a database that isn't ours or is newer than this program. It reports the database's version, 0 for
// a new one, and the program's.
func checkSchema(ctx context.Context, db *sql.DB, path string) (have, want int64, err error) {
	provider, err := newProvider(db)
	if err != nil {
		return 0, 0, err
	}
	for _, source := range provider.ListSources() {
		want = max(want, source.Version)
	}
	var app, tables, versions int64
	err = db.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'goose_db_version'),
		(SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'goose_db_version')`).Scan(&app, &tables, &versions)
	if err != nil {
		return 0, 0, fmt.Errorf("read the schema: %w", err)
	}
	if tables > 0 && app != applicationID {
		return 0, 0, &CorruptError{Path: path, Err: errors.New("it is another program's database")}
	}
	if versions > 0 {
		err := db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have)
		if err != nil {
			return 0, 0, fmt.Errorf("read the schema's version: %w", err)
		}
	}
	if have > want {
		return have, want, &SchemaError{Path: path, Have: have, Want: want}
	}
	return have, want, nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	provider, err := newProvider(db)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the schema: %w", err)
	}
	return nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return provider, nil
}
