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

// registeredNames collects the names of what is registered, also of what has counted nothing yet.
type registeredNames map[string]bool

func (d registeredNames) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for desc := range descs {
		d[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(desc.String())[1]] = true
	}
	return nil
}

func (d registeredNames) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = d.Register(c) // never fails
	}
}

func (registeredNames) Unregister(prometheus.Collector) bool { return false }

func TestEveryMetricOfQueuesIsDocumentedAndEveryDocumentedOneExists(t *testing.T) {
	reg := registeredNames{}
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
