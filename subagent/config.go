package subagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/session"
)

// Config configures a [Pool].
type Config struct {
	Store session.Store
	// Runner runs the turns of child sessions.
	Runner session.TurnRunner
	// Prepare says what a child session's turn runs with. It is asked when a child is spawned, to tell what it will be, and
	// again when it starts. Its error is told to the model.
	Prepare func(ctx context.Context, rec session.Record, body session.SessionBody) (session.Setup, error)
	// EndCalls gives the part of a child's terminal commit that settles the child's calls to peers: cancelled, or left to
	// go on without it. Nil: a child has no calls.
	EndCalls func(cancel bool) session.EndPart
	// Agents are the names of the agents that may be spawned.
	Agents []string
	// DefaultAgent is spawned when the model names none. Defaults to the first of Agents.
	DefaultAgent string
	// Descriptions tell the model, by name, what agents are good for. Agents without one are shown by name alone.
	Descriptions map[string]string
	// Timeouts are, by name, the timeouts of agents that have one of their own instead of that of Limits.
	Timeouts map[string]time.Duration
	Limits   Limits
	Logger   *slog.Logger
	// Registry takes the metrics; nil: there are none.
	Registry prometheus.Registerer
}

// Limits bounds what subagents take. Zero fields mean the defaults.
type Limits struct {
	Running        int           // at once in the whole process; defaults to 8
	RunningPerTree int           // at once in one tree; defaults to 4
	Alive          int           // running and suspended in the whole process; defaults to 32
	Queued         int           // spawns of one tree that wait for a slot; defaults to 32
	Depth          int           // 1: only the primary spawns; 2: its children may too; defaults to 1
	Spawned        int           // in one tree, ever; defaults to 200
	Timeout        time.Duration // of one subagent, from the spawn, the time in the queue included; defaults to 10 minutes
	// ConsolidationTimeout is how long after a turn's end the fold-back of its subagents waits for the last of them.
	// Defaults to 5 minutes.
	ConsolidationTimeout time.Duration
	// MaxGeneration is the generation of fold-back turns past which nothing is spawned any more. Defaults to 4.
	MaxGeneration int
	// LendSlot says whether a subagent that only waits gives its slot to another. Nil means yes. A subagent that waits for
	// a subagent of its own always does.
	LendSlot *bool
	// OnFull says what becomes of a spawn when every slot is taken. Defaults to [OnFullQueue].
	OnFull OnFull
}

// OnFull says what becomes of a spawn when every slot is taken.
type OnFull string

// What a spawn at the cap does.
const (
	OnFullQueue  OnFull = "queue"
	OnFullReject OnFull = "reject"
)

func (l *Limits) setDefaults() {
	l.Running = cmp.Or(l.Running, 8)
	l.RunningPerTree = cmp.Or(l.RunningPerTree, 4)
	l.Alive = cmp.Or(l.Alive, 32)
	l.Queued = cmp.Or(l.Queued, 32)
	l.Depth = cmp.Or(l.Depth, 1)
	l.Spawned = cmp.Or(l.Spawned, 200)
	l.Timeout = cmp.Or(l.Timeout, 10*time.Minute)
	l.ConsolidationTimeout = cmp.Or(l.ConsolidationTimeout, 5*time.Minute)
	l.MaxGeneration = cmp.Or(l.MaxGeneration, 4)
	l.OnFull = cmp.Or(l.OnFull, OnFullQueue)
	if l.LendSlot == nil {
		yes := true
		l.LendSlot = &yes
	}
}

func (l *Limits) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"running", l.Running}, {"running per tree", l.RunningPerTree}, {"alive", l.Alive}, {"queued", l.Queued},
		{"depth", l.Depth}, {"spawned", l.Spawned}, {"max generation", l.MaxGeneration},
		{"timeout", int(l.Timeout)}, {"consolidation timeout", int(l.ConsolidationTimeout)},
	} {
		if f.value < 0 {
			return fmt.Errorf("subagent limit %q is %d; it must be above 0", f.name, f.value)
		}
	}
	if l.OnFull != OnFullQueue && l.OnFull != OnFullReject {
		return fmt.Errorf("subagent limit %q is %q; it must be %q or %q", "on_full", l.OnFull, OnFullQueue, OnFullReject)
	}
	return nil
}

func (c *Config) validate() error {
	switch {
	case c.Store == nil:
		return errors.New("subagent: Store is missing")
	case c.Runner == nil:
		return errors.New("subagent: Runner is missing")
	case c.Prepare == nil:
		return errors.New("subagent: Prepare is missing")
	case c.Logger == nil:
		return errors.New("subagent: Logger is missing")
	case len(c.Agents) == 0:
		return errors.New("subagent: Agents is empty")
	}
	return c.Limits.validate()
}
