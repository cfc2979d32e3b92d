package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"orchestrator/a2a"
	"orchestrator/llm"
	"orchestrator/session"
)

// block is how many calls of one sort are made before as many of the other, so that what happens on the machine in
// between happens to both.
const block = 25

// aims of a blocking call by store, in times the raw call.
var ratioAims = map[string]float64{memory: 1.5, sqliteNormal: 3}

// pair is one store and one peer.
type pair struct {
	store   string
	binding binding
	kind    string // of the peer
	world   *world
	meter   *meter
	raw     *rawClient
	probe   *probe

	ratios, ours, raws, commits, writing, reading []float64 // one of each round
	each                                          call      // of any call; they are all alike
	mallocs, bytes                                []float64
	rawMallocs, rawBytes                          []float64
}

// measureInvoke measures a blocking invoke_agent over the raw call of the same method to the same peer. What is measured
// begins with the end of the commit that logs the model's message and the tool.started, and ends with that of the
// tool.completed: the dispatch and its events, no model.
func measureInvoke(ctx context.Context, b *bench) (err error) {
	urls := make(map[string]string)
	for _, way := range bindings {
		for _, kind := range way.kinds() {
			urls[way.prefix+kind] = b.peers.url(way.prefix + kind)
		}
	}
	var pairs []*pair
	for _, store := range stores {
		under, err := b.openStore(ctx, store)
		if err != nil {
			return err
		}
		m := &meter{Store: under}
		w, err := newWorld(ctx, m, urls)
		if err != nil {
			return errors.Join(err, under.Close())
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		p, err := newProbe(ctx, w)
		if err != nil {
			return err
		}
		for _, way := range bindings {
			if way.prefix != "" && store == sqliteFull {
				continue // which says what commits cost, and those are the same
			}
			for _, kind := range way.kinds() {
				row := &pair{store: store, binding: way, kind: kind, world: w, meter: m, probe: p}
				if kind == holder || !b.rows.MatchString(row.name()) {
					continue
				}
				if row.raw, err = newRawClient(ctx, way, urls[row.peer()]); err != nil {
					return fmt.Errorf("%s: %w", row.name(), err)
				}
				defer func() { err = errors.Join(err, row.raw.close()) }()
				pairs = append(pairs, row)
			}
		}
	}
	for round := range b.sizes.rounds + 1 {
		for _, p := range pairs {
			calls := b.sizes.calls
			if round == 0 {
				calls = min(block, calls) // warms up
			}
			if err := p.round(ctx, calls, false); err != nil {
				return fmt.Errorf("%s: %w", p.name(), err)
			}
			if round == 0 {
				p.ratios, p.ours, p.raws, p.commits, p.writing, p.reading = nil, nil, nil, nil, nil, nil
				if err := p.round(ctx, calls, true); err != nil {
					return fmt.Errorf("%s: %w", p.name(), err)
				}
			}
		}
	}
	b.table.head("A blocking invoke_agent over the raw a2a-go call of the same method to the same peer\n"+
		"(a peer in a second process; %d runs of %d calls; the median of the runs' medians is shown)", b.sizes.rounds, b.sizes.calls)
	for _, p := range pairs {
		p.report(b.table)
	}
	b.table.head("One commit (a change, a check, an event) that nobody shares")
	for _, store := range stores {
		var commits []float64
		for _, p := range pairs {
			if p.store == store {
				commits = append(commits, p.commits...)
			}
		}
		if len(commits) > 0 {
			b.table.add(figure{Part: "commit", Name: store, Value: median(commits), Unit: "µs"})
		}
	}
	return nil
}

func (p *pair) name() string { return p.store + ", " + p.binding.row(p.kind) }

func (p *pair) peer() string { return p.binding.prefix + p.kind }

// round makes so many calls of both sorts, in blocks, and as many commits.
func (p *pair) round(ctx context.Context, calls int, allocs bool) error {
	turn, err := p.world.turn(ctx)
	if err != nil {
		return err
	}
	p.meter.take()
	p.meter.allocs = allocs
	var raw, commit, ours, writing, reading []float64
	var failed error
	err = p.world.run(ctx, turn, func(ctx context.Context, _ *session.Turn, n int) []llm.Chunk {
		if (n-1)%block == 0 && n <= calls {
			some := min(block, calls-n+1)
			var before, after runtime.MemStats
			if allocs {
				runtime.ReadMemStats(&before)
			}
			for range some {
				began := time.Now()
				if failed = p.raw.call(ctx); failed != nil {
					return ends()
				}
				raw = append(raw, micros(time.Since(began)))
			}
			if allocs {
				runtime.ReadMemStats(&after)
				p.rawMallocs = append(p.rawMallocs, float64(after.Mallocs-before.Mallocs)/float64(some))
				p.rawBytes = append(p.rawBytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(some))
			}
			for range some {
				began := time.Now()
				if failed = p.probe.commit(ctx, 1); failed != nil {
					return ends()
				}
				commit = append(commit, micros(time.Since(began)))
			}
		}
		if n > calls {
			return ends()
		}
		return uses(a2a.InvokeAgent, p.peer())
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	measured := p.meter.take()
	if len(measured) != calls {
		return fmt.Errorf("%d of %d calls were measured", len(measured), calls)
	}
	for _, c := range measured {
		ours, writing, reading = append(ours, micros(c.took)), append(writing, micros(c.writing)), append(reading, micros(c.reading))
		if allocs {
			p.mallocs, p.bytes = append(p.mallocs, float64(c.mallocs)), append(p.bytes, float64(c.bytes))
		}
	}
	p.each = measured[len(measured)-1]
	p.ratios = append(p.ratios, median(ours)/median(raw))
	p.ours, p.raws, p.commits = append(p.ours, median(ours)), append(p.raws, median(raw)), append(p.commits, median(commit))
	p.writing, p.reading = append(p.writing, median(writing)), append(p.reading, median(reading))
	return answers(ctx, p.world.store, turn, calls)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// answers makes sure that the calls of a turn were answered: what fails quickly is no measure.
func answers(ctx context.Context, s session.Store, turn *session.Turn, calls int) error {
	events, err := s.Events(ctx, session.EventQuery{Tree: turn.Root, Agent: turn.Agent, Types: []session.EventType{session.EventToolCompleted}, Limit: calls + 1})
	if err != nil {
		return err
	}
	for _, e := range events {
		var done session.ToolCompleted
		if err := e.Decode(&done); err != nil {
			return err
		}
		if done.IsError || !strings.Contains(done.Content, answer[:40]) {
			return fmt.Errorf("a call was not answered: %s", done.Content)
		}
	}
	if len(events) != calls {
		return fmt.Errorf("%d of %d calls were answered", len(events), calls)
	}
	return nil
}

func (p *pair) report(t *table) {
	ours, raw, commit := median(p.ours), median(p.raws), median(p.commits)
	t.add(figure{
		Part: "invoke", Name: p.name(), Value: median(p.ratios), Unit: "×", Aim: ratioAims[p.store],
		Note: fmt.Sprintf("%.0f µs, raw %.0f µs; %d commits %.0f µs, %d reads %.0f µs; %.0f allocations of %.0f KiB, raw %.0f of %.0f",
			ours, raw, p.each.commits, median(p.writing), p.each.reads, median(p.reading),
			median(p.mallocs), median(p.bytes)/1024, median(p.rawMallocs), median(p.rawBytes)/1024),
	})
	if p.store != sqliteFull {
		return
	}
	most := 3.0
	if strings.HasSuffix(p.kind, "task") {
		most = 4
	}
	t.add(figure{Part: "invoke", Name: "  commits", Value: float64(p.each.commits), Aim: most})
	t.add(figure{
		Part: "invoke", Name: "  time over raw, in commits × one commit's time", Unit: "×", Aim: 1.5,
		Value: (ours - raw) / (float64(p.each.commits) * commit), Note: fmt.Sprintf("one commit %.0f µs", commit),
	})
}
