package a2aqueue

import "github.com/prometheus/client_golang/prometheus"

// clientMetrics count what becomes of messages that come back.
type clientMetrics struct{ drops *prometheus.CounterVec }

func newClientMetrics(reg prometheus.Registerer) *clientMetrics {
	m := &clientMetrics{drops: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orchestrator_queue_answers_dropped_total",
		Help: "Answers from agents behind queues that nobody gets, by reason.",
	}, []string{"reason"})}
	if reg != nil {
		reg.MustRegister(m.drops)
	}
	return m
}

func (m *clientMetrics) dropped(reason string) { m.drops.WithLabelValues(reason).Inc() }

// serverMetrics count what a server was asked.
type serverMetrics struct {
	requests *prometheus.CounterVec
	repeats  prometheus.Counter
	losses   prometheus.Counter
}

func newServerMetrics(reg prometheus.Registerer) *serverMetrics {
	m := &serverMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_queue_requests_total",
			Help: "Requests that came through a queue, by method and outcome: ok, error, refused, late, or dead (letters).",
		}, []string{"method", "outcome"}),
		repeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "orchestrator_queue_repeated_messages_total", Help: "Messages that came through a queue and were known already.",
		}),
		losses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "orchestrator_queue_answers_lost_total", Help: "Answers that could not be delivered to the queue they were for.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.repeats, m.losses)
	}
	return m
}

// request counts. Methods that don't exist are one, since their names are others' words.
func (m *serverMetrics) request(method, outcome string) {
	switch method {
	case methodSend, methodStream, methodSubscribe, methodGet, methodList, methodCancel, methodPushGet, methodPushCreate, methodPushList,
		methodPushDelete, methodExtendedCard, methodCard:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(method, outcome).Inc()
}

func (m *serverMetrics) repeated() { m.repeats.Inc() }

func (m *serverMetrics) lost() { m.losses.Inc() }
