package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"orchestrator/session"
)

// sessions is how many append at once.
const sessions = 64

// measureAppends measures how many events a second so many sessions append, each in a tree and a goroutine of its own
// that waits for each commit: what a turn's step writes, a change and two events.
func measureAppends(ctx context.Context, b *bench) error {
	b.table.head("Appends at %d sessions, two events a commit", sessions)
	type side struct {
		name   string
		probes []*probe
		rates  []float64
	}
	var sides []*side
	for _, name := range stores {
		store, err := b.openStore(ctx, name)
		if err != nil {
			return err
		}
		w, err := newWorld(ctx, store, nil)
		if err != nil {
			return errors.Join(err, store.Close())
		}
		defer w.stop() //nolint:errcheck // what it wrote is of no more use
		s := &side{name: name}
		for range sessions {
			p, err := newProbe(ctx, w)
			if err != nil {
				return err
			}
			s.probes = append(s.probes, p)
		}
		sides = append(sides, s)
	}
	for range b.sizes.rounds {
		for _, s := range sides {
			rate, err := appendFor(ctx, s.probes, b.sizes.appends)
			if err != nil {
				return err
			}
			s.rates = append(s.rates, rate)
		}
	}
	for _, s := range sides {
		b.table.add(figure{Part: "append", Name: s.name, Value: median(s.rates), Unit: "events/s"})
	}
	return nil
}

func appendFor(ctx context.Context, probes []*probe, d time.Duration) (perSecond float64, err error) {
	var (
		wg     sync.WaitGroup
		events atomic.Int64
		errs   = make([]error, len(probes))
		began  = time.Now()
		until  = began.Add(d)
	)
	for i, p := range probes {
		wg.Go(func() {
			for errs[i] == nil && time.Now().Before(until) {
				errs[i] = p.commit(ctx, 2)
				events.Add(2)
			}
		})
	}
	wg.Wait()
	return float64(events.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

// probe makes commits of the usual size.
type probe struct {
	turn *session.Turn
	rec  session.Record
}

func newProbe(ctx context.Context, w *world) (*probe, error) {
	turn, err := w.turn(ctx)
	if err != nil {
		return nil, err
	}
	id := session.CallIDFor(session.MintToolCallID(turn.Agent, 1))
	done, err := turn.Commit(ctx, session.Batch{Changes: []session.Change{
		session.Insert("probe", string(id), turn.Agent, turn.OriginTurn, "waiting", probeBody{question, answer}, time.Time{}),
	}})
	if err != nil {
		return nil, err
	}
	return &probe{turn: turn, rec: done.Records[0]}, nil
}

type probeBody struct{ Question, Answer string }

// commit changes the probe's record and appends events, with a check of the turn.
func (p *probe) commit(ctx context.Context, events int) error {
	b := session.Batch{Changes: []session.Change{p.rec.Update(p.rec.State, probeBody{question, answer})}}
	for range events {
		b.Events = append(b.Events, p.turn.Event(session.EventToolCompleted, session.ToolCompleted{Name: "probe", Content: answer}))
	}
	done, err := p.turn.Commit(ctx, b)
	if err != nil {
		return err
	}
	p.rec = done.Records[0]
	return nil
}
