package a2ademo_test

import (
	"context"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ademo"
	"orchestrator/a2a/a2ahttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a peer until the test ends and returns a client of it.
func serve(t *testing.T, cfg a2ademo.Config) a2a.Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	cfg.Ready = func(url string) { ready <- url }
	go func() { ended <- a2ademo.Serve(ctx, cfg) }()
	var url string
	select {
	case url = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	transport, err := a2ahttp.New(a2ahttp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		transport.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	peer := a2a.Peer{Name: cfg.Name, Card: url}
	card, err := transport.Card(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	if !card.Capabilities.Streaming || card.Name != cfg.Name || len(card.Skills) != 1 {
		t.Errorf("card = %+v", card)
	}
	client, err := transport.Connect(t.Context(), peer, card)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func ask(t *testing.T, c a2a.Client, question string, lineage a2a.Lineage) (string, time.Duration) {
	t.Helper()
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(question))
	m.SetMeta(a2a.LineageURI, lineage.Metadata())
	began := time.Now()
	for ev, err := range c.SendStreamingMessage(t.Context(), &protocol.SendMessageRequest{Message: m}) {
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := ev.(*protocol.TaskStatusUpdateEvent); ok && s.Status.State == protocol.TaskStateCompleted {
			return s.Status.Message.Parts[0].Text(), time.Since(began)
		}
	}
	t.Fatal("there was no answer")
	return "", 0
}

func TestAdvisorAnswersAfterItsDelayWithTheQuestionsWords(t *testing.T) {
	c := serve(t, a2ademo.Config{Name: a2ademo.Advisor, Delay: 50 * time.Millisecond})
	got, took := ask(t, c, "How do we migrate the billing database?", a2a.Lineage{Deadline: time.Now().Add(20 * time.Second)})
	for _, want := range []string{"migrate", "billing", "database"} {
		if !strings.Contains(got, want) {
			t.Errorf("the advice lacks %q: %s", want, got)
		}
	}
	if took < 50*time.Millisecond {
		t.Errorf("it answered after %s", took)
	}
	again, _ := ask(t, c, "How do we migrate the billing database?", a2a.Lineage{})
	if again != got {
		t.Errorf("the same question has another answer: %s", again)
	}
}

func TestArchivistAnswersAfterItsCallersDeadline(t *testing.T) {
	c := serve(t, a2ademo.Config{Name: a2ademo.Archivist, Delay: time.Millisecond, Grace: 20 * time.Millisecond})
	deadline := time.Now().Add(300 * time.Millisecond)
	got, _ := ask(t, c, "Did anybody migrate a billing database before?", a2a.Lineage{Deadline: deadline})
	if time.Now().Before(deadline.Add(20 * time.Millisecond)) {
		t.Errorf("it answered before its caller had gone on")
	}
	if !strings.Contains(got, "archive") || !strings.Contains(got, "database") {
		t.Errorf("answer = %s", got)
	}
	// A caller that has all the time of the world needn't wait for its end.
	if _, took := ask(t, c, "Anything?", a2a.Lineage{Deadline: time.Now().Add(time.Hour)}); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestUnknownPeerIsRefused(t *testing.T) {
	if err := a2ademo.Serve(t.Context(), a2ademo.Config{Name: "nobody"}); err == nil || !strings.Contains(err.Error(), "advisor or archivist") {
		t.Errorf("Serve() = %v", err)
	}
	if err := a2ademo.Serve(t.Context(), a2ademo.Config{Name: a2ademo.Advisor, Addr: "256.0.0.1:1"}); err == nil {
		t.Error("it listens at an address that is none")
	}
}
