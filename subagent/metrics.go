package subagent

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// What a wait for a slot is for.
const (
	waitStart  = "start"
	waitReturn = "return"
)

// metrics are what an operator watches of subagents. They count also when nobody registered them.
type metrics struct {
	slotWait *prometheus.HistogramVec // by what it is for
	ended    *prometheus.CounterVec   // by result
}

func newMetrics() *metrics {
	return &metrics{
		slotWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_subagent_slot_wait_duration_seconds", Help: "Time a subagent waited for a slot: to start, or to return from a wait.",
			Buckets: []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 300, 600},
		}, []string{"for"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_subagents_ended_total", Help: "Subagents that ended: completed, error, timeout, cancelled, or interrupted.",
		}, []string{"result"}),
	}
}

func (m *metrics) register(reg prometheus.Registerer, s *slots) error {
	return errors.Join(reg.Register(m.slotWait), reg.Register(m.ended), reg.Register(&gauges{
		slots: s,
		desc:  prometheus.NewDesc("orchestrator_subagents", "Subagents of this process: queued, running, suspended, or returning (waiting for a slot to go on).", []string{"state"}, nil),
	}))
}

// gauges are read when somebody asks for them.
type gauges struct {
	slots *slots
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	g.slots.mu.Lock()
	running, queued, returning := g.slots.running, len(g.slots.arriving), len(g.slots.returning)
	suspended := g.slots.alive - running - returning
	g.slots.mu.Unlock()
	for state, n := range map[string]int{"queued": queued, "running": running, "suspended": suspended, "returning": returning} {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), state)
	}
}
