package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"orchestrator/internal/app"
	"orchestrator/store/sqlite"
)

func (c *cli) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "migrate", Short: "Bring the database up to this program's schema", Args: noArgs,
		Long: `migrate opens the database, makes it if there is none, applies the migrations that this program has and the database
has not, and says from which version to which. serve and ask do the same when they start; migrate is for who wants it done
apart from that. There is no way back: make a copy first with orchestrator backup.`,
		Example: `  orchestrator backup before.db && orchestrator migrate`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.migrate(cmd) },
	}
}

func (c *cli) migrate(cmd *cobra.Command) error {
	cfg, err := c.sqliteConfig(cmd)
	if err != nil {
		return err
	}
	p := c.progress("migrating " + cfg.Store.Path)
	defer p.Stop()
	s, err := sqlite.Open(cmd.Context(), sqlite.Config{Path: cfg.Store.Path})
	if err != nil {
		return storeError(err)
	}
	from, to := s.Schema()
	if err := s.Close(); err != nil {
		return storeError(err)
	}
	p.Stop()
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"database": cfg.Store.Path, "from": from, "to": to})
	}
	switch {
	case from == 0:
		_, err = fmt.Fprintf(c.stdout, "database %s is made, with schema version %d\n", cfg.Store.Path, to)
	case from == to:
		_, err = fmt.Fprintf(c.stdout, "database %s has schema version %d already\n", cfg.Store.Path, to)
	default:
		_, err = fmt.Fprintf(c.stdout, "database %s is migrated from schema version %d to %d\n", cfg.Store.Path, from, to)
	}
	return err
}

func (c *cli) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Copy the database to a new file, also while a process has it open", Args: takes("FILE"),
		Long: `backup writes the database, as it is at one moment, to a new file that is a whole database by itself. It may run beside
serve or ask, which go on meanwhile. Copying the file with cp is not safe then: what was written last is in a log beside it.
To restore, stop every process, put the copy in the database's place, and remove the files beside it that end in -wal and
-shm.`,
		Example: `  orchestrator backup /backup/orchestrator-$(date +%F).db`,
		RunE:    func(cmd *cobra.Command, args []string) error { return c.backup(cmd, args[0]) },
	}
}

func (c *cli) backup(cmd *cobra.Command, file string) error {
	cfg, err := c.sqliteConfig(cmd)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return usageError{fmt.Errorf("find %s: %w", file, err)}
	}
	if _, err := os.Stat(cfg.Store.Path); errors.Is(err, fs.ErrNotExist) {
		return noDatabase(cfg)
	}
	p := c.progress("copying " + cfg.Store.Path)
	defer p.Stop()
	err = sqlite.Backup(cmd.Context(), cfg.Store.Path, to)
	p.Stop()
	switch {
	case errors.Is(err, fs.ErrExist):
		return withHint(usageError{fmt.Errorf("%s exists already, and is left as it is", to)}, "name a file that doesn't exist yet")
	case errors.Is(err, sqlite.ErrFull):
		return withHint(err, "make room where the copy goes, or name another place; the database itself is as it was")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return withHint(usageError{err}, "name a file in a folder that exists and can be written")
	case err != nil:
		return storeError(err)
	}
	info, err := os.Stat(to)
	if err != nil {
		return fmt.Errorf("look at the copy: %w", err)
	}
	if c.output == outputJSON {
		return printJSON(c.stdout, map[string]any{"database": cfg.Store.Path, "copy": to, "bytes": info.Size()})
	}
	_, err = fmt.Fprintf(c.stdout, "%s is a copy of %s, %d bytes\n", to, cfg.Store.Path, info.Size())
	return err
}

// sqliteConfig loads the configuration of a command that works on the database file itself.
func (c *cli) sqliteConfig(cmd *cobra.Command) (app.Config, error) {
	cfg, _, err := c.config(cmd)
	if err == nil && cfg.Store.Driver != app.DriverSQLite {
		err = configError{fmt.Errorf("store.driver is %q: %s works on sqlite only", cfg.Store.Driver, cmd.CommandPath())}
	}
	return cfg, err
}

// noDatabase says that there is nothing to work on yet.
func noDatabase(cfg app.Config) error {
	return withHint(fmt.Errorf("%w: database %s doesn't exist", errNoDatabase, cfg.Store.Path), `begin one with: orchestrator ask "..."`)
}

// writeStore gives a command the store to change, which no other process may have open.
func (c *cli) writeStore(cmd *cobra.Command, change func(ctx context.Context, s *sqlite.Store) error) error {
	cfg, err := c.sqliteConfig(cmd)
	if err != nil {
		return err
	}
	if _, err := os.Stat(cfg.Store.Path); errors.Is(err, fs.ErrNotExist) {
		return noDatabase(cfg)
	}
	s, err := sqlite.Open(cmd.Context(), sqlite.Config{Path: cfg.Store.Path, Synchronous: cfg.Store.Synchronous})
	if err != nil {
		return storeError(err)
	}
	return errors.Join(change(cmd.Context(), s), s.Close())
}
