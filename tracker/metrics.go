package tracker

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/session"
)

// metrics are what an operator watches of calls to peers. They count also when nobody registered them.
type metrics struct {
	calls    *prometheus.CounterVec   // by peer and mode
	replies  *prometheus.CounterVec   // by peer and fate
	timeouts *prometheus.CounterVec   // by peer and reason
	waits    *prometheus.HistogramVec // by peer and outcome
	answers  *prometheus.HistogramVec // by peer and mode
}

func newMetrics() *metrics {
	buckets := []float64{.05, .25, 1, 2.5, 5, 10, 30, 60, 120, 180, 600, 3600, 86400}
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_calls_total", Help: "Calls to peers, by mode: blocking or async.",
		}, []string{"peer", "mode"}),
		replies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_call_replies_total",
			Help: "Replies of peers by what became of them: claimed by a waiter, folded, folded late, duplicate, or discarded.",
		}, []string{"peer", "fate"}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "orchestrator_call_timeouts_total",
			Help: "Calls nobody waits for any more, by why: deadline, overdue, wait_cancelled, subagent_ended, or auth_required.",
		}, []string{"peer", "reason"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_call_wait_duration_seconds", Help: "Time a subagent waited for a peer, by how it ended: answered, detached, or cancelled.",
			Buckets: buckets,
		}, []string{"peer", "outcome"}),
		answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "orchestrator_call_reply_duration_seconds", Help: "Time from a call to its reply, late ones included.",
			Buckets: buckets,
		}, []string{"peer", "mode"}),
	}
}

func (m *metrics) register(reg prometheus.Registerer, t *Tracker) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.calls, m.replies, m.timeouts, m.waits, m.answers, newGauges(t)} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) registered(p PendingA2ATask) {
	m.calls.WithLabelValues(p.Peer, string(p.Mode)).Inc()
}

// changed counts a commit on a call.
func (m *metrics) changed(was session.State, p PendingA2ATask) {
	if was == p.State {
		return
	}
	if was == StateWaiting {
		m.waits.WithLabelValues(p.Peer, string(p.State)).Observe(time.Since(p.SentAt).Seconds())
	}
	if (was == StateWaiting || was == StateOpen) && p.Why != "" {
		m.timeouts.WithLabelValues(p.Peer, p.Why).Inc()
	}
}

// ended counts a call that ended with its turn, whose commit was the turn's.
func (m *metrics) ended(p PendingA2ATask) {
	if p.Why == WhySubagentEnded {
		m.timeouts.WithLabelValues(p.Peer, p.Why).Inc()
		m.waits.WithLabelValues(p.Peer, string(StateDetached)).Observe(time.Since(p.SentAt).Seconds())
	}
}

// delivered counts a reply.
func (m *metrics) delivered(p PendingA2ATask, fate Delivery, late bool) {
	label := string(fate)
	if late {
		label = "late"
	}
	m.replies.WithLabelValues(p.Peer, label).Inc()
	if fate == Claimed || fate == Folded {
		m.answers.WithLabelValues(p.Peer, string(p.Mode)).Observe(time.Since(p.SentAt).Seconds())
	}
}

// gauges are read when somebody asks for them.
type gauges struct {
	t       *Tracker
	pending *prometheus.Desc
	oldest  *prometheus.Desc
}

func newGauges(t *Tracker) *gauges {
	return &gauges{
		t:       t,
		pending: prometheus.NewDesc("orchestrator_calls_pending", "Calls that are not over, by state: waiting, open, answered, or detached.", []string{"state"}, nil),
		oldest:  prometheus.NewDesc("orchestrator_calls_oldest_age_seconds", "Age of the oldest call that is not over, by state; 0 when there is none.", []string{"state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.pending
	ch <- g.oldest
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // a collector is given no context
	defer cancel()
	for _, state := range []session.State{StateWaiting, StateOpen, StateAnswered, StateDetached} {
		n, age, err := g.look(ctx, state)
		if err != nil {
			ch <- prometheus.NewInvalidMetric(g.pending, err)
			return
		}
		ch <- prometheus.MustNewConstMetric(g.pending, prometheus.GaugeValue, float64(n), string(state))
		ch <- prometheus.MustNewConstMetric(g.oldest, prometheus.GaugeValue, age.Seconds(), string(state))
	}
}

// look counts the calls in a state, and says how old the oldest is: the first, since they come in the order in which
// they were made.
func (g *gauges) look(ctx context.Context, state session.State) (n int, age time.Duration, err error) {
	q := session.RecordQuery{Kind: session.KindCall, States: []session.State{state}, Limit: 1}
	first, err := g.t.List(ctx, q)
	if err != nil || len(first) == 0 {
		return 0, 0, err
	}
	q.Limit, q.NoBody = 0, true
	recs, err := g.t.cfg.Store.Records(ctx, q)
	return len(recs), time.Since(first[0].SentAt), err
}
