package session

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an operator watches of sessions and of the store. They are counted from what was committed, so that
// they are right whoever commits.
type metrics struct {
	commits    *prometheus.CounterVec   // by result
	commitTime *prometheus.HistogramVec // by result
	created    *prometheus.CounterVec   // by kind
	closed     prometheus.Counter
	started    *prometheus.CounterVec   // by origin
	ended      *prometheus.CounterVec   // by origin and state
	turnTime   *prometheus.HistogramVec // by origin
	folded     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_commits_total", Help: "Writes to the store, by result: ok, conflict, guard, fenced, or error.",
		}, []string{"result"}),
		commitTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_commit_duration_seconds", Help: "Time of a write to the store.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}, []string{"result"}),
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_sessions_created_total", Help: "Sessions created: primary, or subagent.",
		}, []string{"kind"}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "orchestrator_sessions_closed_total", Help: "Primary sessions closed.",
		}),
		started: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_turns_started_total", Help: "Turns started, by what they are for: user, foldback, or task.",
		}, []string{"origin"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_turns_ended_total", Help: "Turns ended: completed, failed, or cancelled.",
		}, []string{"origin", "state"}),
		turnTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_turn_duration_seconds", Help: "Time from a turn's start to its end, waits and restarts included.",
			Buckets: []float64{.1, .5, 1, 2.5, 5, 10, 30, 60, 180, 600, 1800},
		}, []string{"origin"}),
		folded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "orchestrator_replies_folded_back_total", Help: "Replies of peers that a fold-back turn took up.",
		}),
	}
	return m, registerAll(reg, m.commits, m.commitTime, m.created, m.closed, m.started, m.ended, m.turnTime, m.folded)
}

func registerAll(reg prometheus.Registerer, all ...prometheus.Collector) error {
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

// measured is a store whose commits are counted and timed.
type measured struct {
	Store
	m *metrics
}

// Measure returns a store that counts and times what is committed to s; with a nil registry, s itself. A registry takes
// one store.
func Measure(s Store, reg prometheus.Registerer) (Store, error) {
	if reg == nil {
		return s, nil
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &measured{Store: s, m: m}, nil
}

// Commit implements [Store].
func (s *measured) Commit(ctx context.Context, b Batch) (Committed, error) {
	began := time.Now()
	done, err := s.Store.Commit(ctx, b)
	result := resultOf(err)
	s.m.commits.WithLabelValues(result).Inc()
	s.m.commitTime.WithLabelValues(result).Observe(time.Since(began).Seconds())
	if err == nil {
		s.m.count(done.Events)
		s.m.turnsEnded(b.Changes, began)
	}
	return done, err
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrConflict):
		return "conflict"
	case errors.Is(err, ErrGuard):
		return "guard"
	case errors.Is(err, ErrFenced):
		return "fenced"
	}
	return "error"
}

// count counts by events.
func (m *metrics) count(events []Event) {
	for _, e := range events {
		switch e.Type {
		case EventSessionCreated:
			m.created.WithLabelValues("primary").Inc()
		case EventSubagentSpawned:
			m.created.WithLabelValues("subagent").Inc()
		case EventSessionClosed:
			m.closed.Inc()
		case EventInvocationFoldedBack:
			m.folded.Inc()
		case EventTurnStarted:
			var body TurnStarted
			if e.Decode(&body) == nil {
				m.started.WithLabelValues(string(body.Origin)).Inc()
			}
		}
	}
}

// turnsEnded counts the turns that changes end.
func (m *metrics) turnsEnded(changes []Change, now time.Time) {
	for _, c := range changes {
		if c.Kind != KindTurn || c.To != StateCompleted && c.To != StateFailed && c.To != StateCancelled {
			continue
		}
		var body TurnBody
		if (Record{Kind: c.Kind, Key: c.Key, Body: c.Body}).Decode(&body) != nil {
			continue
		}
		m.ended.WithLabelValues(string(body.Origin), string(c.To)).Inc()
		if !body.StartedAt.IsZero() {
			m.turnTime.WithLabelValues(string(body.Origin)).Observe(now.Sub(body.StartedAt).Seconds())
		}
	}
}

// gauges are read when somebody asks for them.
type gauges struct {
	m       *Manager
	active  *prometheus.Desc
	turns   *prometheus.Desc
	results *prometheus.Desc
}

func newGauges(m *Manager) *gauges {
	return &gauges{
		m:       m,
		active:  prometheus.NewDesc("orchestrator_sessions_active", "Primary sessions this process works on.", nil, nil),
		turns:   prometheus.NewDesc("orchestrator_turns", "Turns that have not ended, by state; queued ones are the queue's depth.", []string{"state"}, nil),
		results: prometheus.NewDesc("orchestrator_foldback_items_ready", "Results that came home and that no fold-back turn has taken up yet.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.active
	ch <- g.turns
	ch <- g.results
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	g.m.mu.Lock()
	active := len(g.m.trees)
	g.m.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(g.active, prometheus.GaugeValue, float64(active))
	ctx, cancel := context.WithTimeout(g.m.ctx, 5*time.Second)
	defer cancel()
	states := []State{StateQueued, StateRunning, StateSuspended}
	turns, err := g.m.cfg.Store.Records(ctx, RecordQuery{Kind: KindTurn, States: states, NoBody: true})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(g.turns, err)
		return
	}
	n := make(map[State]int)
	for _, r := range turns {
		n[r.State]++
	}
	for _, state := range states {
		ch <- prometheus.MustNewConstMetric(g.turns, prometheus.GaugeValue, float64(n[state]), string(state))
	}
	ready, err := g.m.cfg.Store.Records(ctx, RecordQuery{Kind: KindItem, States: []State{StateReady}, NoBody: true})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(g.results, err)
		return
	}
	ch <- prometheus.MustNewConstMetric(g.results, prometheus.GaugeValue, float64(len(ready)))
}
