package a2aqueue_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"orchestrator/a2a/a2aqueue"
)

// described collects the names of what is registered, also of what has counted nothing yet.
type described map[string]bool

func (d described) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for desc := range descs {
		d[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(desc.String())[1]] = true
	}
	return nil
}

func (d described) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = d.Register(c) // never fails
	}
}

func (described) Unregister(prometheus.Collector) bool { return false }

func TestEveryMetricOfQueuesIsDocumentedAndEveryDocumentedOneExists(t *testing.T) {
	reg := described{}
	b := open(t, a2aqueue.BrokerConfig{URL: "amqp://h/", Registry: reg})
	_, err := a2aqueue.NewFactory(a2aqueue.FactoryConfig{Broker: b, URL: "amqp://h/", Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a2aqueue.NewServer(a2aqueue.ServerConfig{Broker: b, Queue: "q", Handler: a2asrv.NewHandler(nil), Registry: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := a2aqueue.NewReplies(a2aqueue.RepliesConfig{
		Broker: b, Queue: "q", Registry: reg, Handle: func(context.Context, a2aqueue.Reply) (a2aqueue.Fate, error) { return a2aqueue.FateTaken, nil },
	}); err != nil {
		t.Fatal(err)
	}
	var registered, documented []string
	for name := range reg {
		registered = append(registered, name)
	}
	slices.Sort(registered)
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(orchestrator_(broker|queue)_[a-z_]+)` ").FindAllStringSubmatch(string(doc), -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(documented)
	if diff := cmp.Diff(documented, registered); diff != "" {
		t.Errorf("metrics of docs/metrics.md and of the package (-documented +registered):\n%s", diff)
	}
}

func TestTwoBrokersShareARegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	open(t, a2aqueue.BrokerConfig{URL: "amqp://u:secret@h/one", Registry: reg})
	open(t, a2aqueue.BrokerConfig{URL: "amqp://u:secret@h/two", Registry: reg})
	for _, url := range []string{"amqp://h:5672/one", "amqp://h:5672/two"} {
		if n := counted(t, reg, "orchestrator_broker_blocked_seconds_total", "broker", url); n != 0 {
			t.Errorf("%s was blocked for %v s", url, n)
		}
	}
}
