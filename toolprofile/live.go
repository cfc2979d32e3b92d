package toolprofile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"orchestrator/tool"
)

// LiveConfig configures a [Live].
type LiveConfig struct {
	// Path is the profiles file. Empty: Default is used and nothing is ever reloaded.
	Path string
	// Default are the profiles used without a file; errors and reasons call them DefaultName.
	Default []byte
	// DefaultName defaults to "profiles.yaml (built in)".
	DefaultName string
	// Registry returns the tools there are now. It is called for each set, from any goroutine. Required.
	Registry func() []tool.Tool
	// Agents are checked against each file.
	Agents []Agent
	// Logger is told of reloads. Nil: nobody is.
	Logger *slog.Logger
	// Every is how often Run looks at the file. Defaults to 2 seconds.
	Every time.Duration
}

// Live holds the profiles in force and replaces them when their file changes. Turns that run keep the set they have.
type Live struct {
	cfg     LiveConfig
	current atomic.Pointer[Profiles]

	mu      sync.Mutex
	reads   uint64 // begun
	applied uint64 // the latest read that was applied
	seen    contents
}

// contents is what a read of the file gave.
type contents struct {
	data []byte
	err  string
}

func (c contents) equal(o contents) bool { return c.err == o.err && bytes.Equal(c.data, o.data) }

// NewLive returns a Live with the profiles read; a bad file is an error.
func NewLive(cfg LiveConfig) (*Live, error) {
	if cfg.Registry == nil {
		return nil, errors.New("tool profiles: Registry is required")
	}
	cfg.DefaultName = cmp.Or(cfg.DefaultName, "profiles.yaml (built in)")
	cfg.Every = cmp.Or(cfg.Every, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l := &Live{cfg: cfg}
	if cfg.Path != "" {
		if _, err := l.reload(true); err != nil {
			return nil, err
		}
		return l, nil
	}
	p, err := Parse(cfg.DefaultName, cfg.Default, l.config())
	if err != nil {
		return nil, err
	}
	l.current.Store(p)
	return l, nil
}

func (l *Live) config() Config {
	return Config{Registry: l.cfg.Registry(), Agents: l.cfg.Agents}
}

// Profiles returns the profiles in force.
func (l *Live) Profiles() *Profiles { return l.current.Load() }

// Set returns the tools the subject may call by the profiles in force.
func (l *Live) Set(s Subject) *tool.Set { return l.Profiles().Set(l.cfg.Registry(), s) }

// Reload reads the file again, changed or not. When it is bad, the error says so and the profiles before it stay in force.
func (l *Live) Reload() error {
	if l.cfg.Path == "" {
		return nil
	}
	if _, err := l.reload(true); err != nil {
		return fmt.Errorf("profiles are not reloaded, those before stay in force: %w", err)
	}
	return nil
}

// Run reloads the file when it has changed, until ctx ends. A bad file is logged once for each change of it.
func (l *Live) Run(ctx context.Context) {
	if l.cfg.Path == "" {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(l.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := l.reload(false)
		switch {
		case err != nil:
			l.cfg.Logger.ErrorContext(ctx, "profiles are not reloaded, those before stay in force", "file", l.cfg.Path, "err", err)
		case changed:
			l.cfg.Logger.InfoContext(ctx, "profiles are reloaded", "file", l.cfg.Path)
		}
	}
}

// reload reads the file and applies it, unless it is what was seen last and force is false, or a later read was applied
// meanwhile. The whole file is compared, not its time: an edit within the clock's grain would be missed for ever.
func (l *Live) reload(force bool) (changed bool, err error) {
	l.mu.Lock()
	l.reads++
	n := l.reads
	l.mu.Unlock()

	data, err := read(l.cfg.Path)
	now := contents{data: data}
	if err != nil {
		now.err = err.Error()
	}
	l.mu.Lock()
	same := l.seen.equal(now)
	l.mu.Unlock()
	if same && !force {
		return false, nil
	}
	var p *Profiles
	if err == nil {
		p, err = Parse(l.cfg.Path, data, l.config())
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if n < l.applied {
		return false, err
	}
	l.applied, l.seen = n, now
	if err != nil {
		return false, err
	}
	l.current.Store(p)
	return true, nil
}
