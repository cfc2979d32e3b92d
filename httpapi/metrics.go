package httpapi

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an operator watches of the API. They work without a registry.
type metrics struct {
	requests *prometheus.CounterVec   // by route and code
	times    *prometheus.HistogramVec // by route; without streams
	ended    *prometheus.CounterVec   // streams, by reason
	sent     *prometheus.CounterVec   // events, by kind
}

func newMetrics(reg prometheus.Registerer, s *streams) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_http_requests_total", Help: "Requests to the session API, by route and status.",
		}, []string{"route", "code"}),
		times: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_http_request_duration_seconds", Help: "Time of a request to the session API, waits included, streams not.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 15, 60},
		}, []string{"route"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_http_streams_ended_total", Help: "Event streams that ended: client (it went away), slow (it took no bytes), stopping, deleted, revoked, or error.",
		}, []string{"reason"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_http_events_sent_total", Help: "Events sent on streams: durable or ephemeral.",
		}, []string{"kind"}),
	}
	if reg == nil {
		return m, nil
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "orchestrator_http_streams", Help: "Event streams that are open.",
	}, func() float64 { return float64(s.open()) })
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.times, m.ended, m.sent, open} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// request counts a request that was answered.
func (m *metrics) request(route string, w *recorder, took time.Duration) {
	if route == "" {
		route = "none"
	}
	status := w.status
	if status == 0 {
		status = statusClientGone
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	if w.Header().Get("Content-Type") != streamType {
		m.times.WithLabelValues(route).Observe(took.Seconds())
	}
}
