package a2atest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"go.uber.org/goleak"

	"orchestrator/a2a/a2atest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

func TestPeerProcessRecordsWhatItAnswered(t *testing.T) {
	for _, dedup := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "dedup"}[dedup]
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			journal := filepath.Join(t.TempDir(), "journal")
			ready, ended := make(chan string, 1), make(chan error, 1)
			go func() {
				ended <- a2atest.ServePeer(ctx, a2atest.ProcessConfig{
					Name: name, Journal: journal, Dedup: dedup, Messages: 0.5, Seed: 3, Ready: func(url string) { ready <- url },
				})
			}()
			card, err := agentcard.NewResolver(nil).Resolve(t.Context(), <-ready)
			if err != nil {
				t.Fatal(err)
			}
			client, err := a2aclient.NewFromCard(t.Context(), card)
			if err != nil {
				t.Fatal(err)
			}
			answers := map[string][]string{}
			for range 8 {
				m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("hello"))
				for range 2 { // the same message twice
					res, err := client.SendMessage(t.Context(), &protocol.SendMessageRequest{Message: m})
					if err != nil {
						t.Fatal(err)
					}
					text := ""
					switch r := res.(type) {
					case *protocol.Message:
						text = r.Parts[0].Text()
					case *protocol.Task:
						text = r.Status.Message.Parts[0].Text()
					}
					answers[m.ID] = append(answers[m.ID], text)
				}
			}
			_, err = client.ListTasks(t.Context(), &protocol.ListTasksRequest{})
			if (err == nil) == dedup {
				t.Errorf("listing tasks: %v", err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			entries, err := a2atest.ReadJournal(journal)
			if err != nil {
				t.Fatal(err)
			}
			tokens := map[string][]string{}
			for _, e := range entries {
				if e.Kind == a2atest.KindAnswered {
					tokens[e.MessageID] = append(tokens[e.MessageID], e.Token)
				}
			}
			for id, texts := range answers {
				if want := map[bool]int{false: 2, true: 1}[dedup]; len(tokens[id]) != want {
					t.Errorf("message %s was answered %d times, want %d", id, len(tokens[id]), want)
				}
				for i, text := range texts {
					if token := tokens[id][min(i, len(tokens[id])-1)]; !strings.Contains(text, token) || token == "" {
						t.Errorf("the answer %q lacks the token %q", text, token)
					}
				}
			}
		})
	}
}

func TestJournalThatWasCutOffIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	for text, want := range map[string]int{"": 0, `{"kind":"received"}` + "\n" + `{"kind":"answ`: 1} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := a2atest.ReadJournal(path); err != nil || len(got) != want {
			t.Errorf("ReadJournal(%q) = %v, %v", text, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("x\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a2atest.ReadJournal(path); err == nil {
		t.Errorf("a broken line in the middle is read: %v", got)
	}
}

// What a killed process leaves behind is its file as it was, so that is what the next one is given here.
func TestPeerProcessEndsTheTasksOfAnotherOne(t *testing.T) {
	dir := t.TempDir()
	serve := func(tasks string, gate *a2atest.Gate, use func(*a2aclient.Client)) {
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended := make(chan string, 1), make(chan error, 1)
		go func() {
			ended <- a2atest.ServePeer(ctx, a2atest.ProcessConfig{
				Name: "durable", Journal: filepath.Join(dir, "journal"), Tasks: tasks, Gate: gate, Ready: func(url string) { ready <- url },
			})
		}()
		card, err := agentcard.NewResolver(nil).Resolve(t.Context(), <-ready)
		if err != nil {
			t.Fatal(err)
		}
		client, err := a2aclient.NewFromCard(t.Context(), card)
		if err != nil {
			t.Fatal(err)
		}
		use(client)
		if err := client.Destroy(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	message := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("hello"))
	var id protocol.TaskID
	serve(first, a2atest.NewGate(), func(client *a2aclient.Client) {
		for ev, err := range client.SendStreamingMessage(t.Context(), &protocol.SendMessageRequest{Message: message}) {
			if err != nil {
				t.Fatal(err)
			}
			if up, ok := ev.(*protocol.TaskStatusUpdateEvent); ok && up.Status.State == protocol.TaskStateWorking {
				id = up.TaskID
				break
			}
		}
		left, err := os.ReadFile(first)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(second, append(left, `{"id":"cut`...), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	open := a2atest.NewGate()
	open.Open()
	serve(second, open, func(client *a2aclient.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			task, err := client.GetTask(ctx, &protocol.GetTaskRequest{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if task.Status.State == protocol.TaskStateCompleted {
				return
			}
		}
		t.Error("nobody ends the task")
	})
	entries, err := a2atest.ReadJournal(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	last := entries[len(entries)-1]
	if last.Kind != a2atest.KindAnswered || last.State != a2atest.Completed || last.MessageID != message.ID || last.Token == "" {
		t.Errorf("the last entry is %+v, want an answer to message %s", last, message.ID)
	}
}
