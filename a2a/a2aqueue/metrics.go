package a2aqueue

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an operator watches of the broker. They count also when nobody registered them.
type metrics struct {
	connected    *prometheus.GaugeVec   // by use
	reconnects   *prometheus.CounterVec // by use
	publishes    *prometheus.CounterVec // by result
	duration     prometheus.Histogram
	blocked      prometheus.CounterFunc
	deliveries   *prometheus.CounterVec // by consumer
	redeliveries *prometheus.CounterVec // by consumer
	deadLetters  *prometheus.CounterVec // by consumer

	mu           sync.Mutex
	blockedSince time.Time     // zero while it isn't
	blockedFor   time.Duration // before that
}

func newMetrics() *metrics {
	m := &metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "orchestrator_broker_connected", Help: "Whether there is a connection to the broker, by use: publish or consume.",
		}, []string{"use"}),
		reconnects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_broker_reconnects_total", Help: "Connections to the broker made after the first, by use.",
		}, []string{"use"}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_broker_publishes_total", Help: "Messages given to Publish, by what became of them.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "orchestrator_broker_publish_duration_seconds", Help: "Time from Publish to the broker's confirmation, or to its end without.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 2.5, 10, 30},
		}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_broker_deliveries_total", Help: "Messages the broker gave us, by consumer.",
		}, []string{"consumer"}),
		redeliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_broker_redeliveries_total", Help: "Those of them that it had given to a consumer before.",
		}, []string{"consumer"}),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_broker_dead_letters_total", Help: "Messages that we put among the dead letters, by consumer.",
		}, []string{"consumer"}),
	}
	m.blocked = prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "orchestrator_broker_blocked_seconds_total", Help: "Time for which the broker took no messages since it was out of memory or disk.",
	}, m.blockedSeconds)
	// What can be known beforehand begins at 0, so that a rate sees the first.
	for _, use := range []string{"publish", "consume"} {
		m.connected.WithLabelValues(use)
		m.reconnects.WithLabelValues(use)
	}
	for _, r := range publishResults {
		m.publishes.WithLabelValues(r)
	}
	return m
}

func (m *metrics) register(reg prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{
		m.connected, m.reconnects, m.publishes, m.duration, m.blocked, m.deliveries, m.redeliveries, m.deadLetters,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

// consumer makes the counters of a consumer begin at 0.
func (m *metrics) consumer(name string) {
	for _, v := range []*prometheus.CounterVec{m.deliveries, m.redeliveries, m.deadLetters} {
		v.WithLabelValues(name)
	}
}

var publishResults = []string{"confirmed", "returned", "nacked", "refused", "unconfirmed", "blocked", "not_connected", "invalid"}

func (m *metrics) published(began time.Time, err error) {
	result := "confirmed"
	if _, returned := errors.AsType[*ReturnedError](err); returned {
		result = "returned"
	} else if _, unknown := errors.AsType[*UnconfirmedError](err); unknown {
		result = "unconfirmed"
	} else if errors.Is(err, ErrNotConnected) || errors.Is(err, ErrClosed) {
		result = "not_connected"
	} else if errors.Is(err, ErrBlocked) {
		result = "blocked"
	} else if errors.Is(err, ErrNacked) {
		result = "nacked"
	} else if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrInvalid) {
		result = "invalid"
	} else if err != nil {
		result = "refused"
	}
	m.publishes.WithLabelValues(result).Inc()
	m.duration.Observe(time.Since(began).Seconds())
}

func (m *metrics) block(now bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case now && m.blockedSince.IsZero():
		m.blockedSince = time.Now()
	case !now && !m.blockedSince.IsZero():
		m.blockedFor += time.Since(m.blockedSince)
		m.blockedSince = time.Time{}
	}
}

func (m *metrics) blockedSeconds() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.blockedSince.IsZero() {
		return m.blockedFor.Seconds()
	}
	return (m.blockedFor + time.Since(m.blockedSince)).Seconds()
}
