package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
	"orchestrator/llm/openai"
	"orchestrator/session"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// respond answers every request with the same response.
func respond(status int, header map[string]string, body string) *http.Client {
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return nil, err
			}
		}
		h := http.Header{}
		for k, v := range header {
			h.Set(k, v)
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})}
}

func open(t testing.TB, cfg openai.Config) *openai.Model {
	t.Helper()
	m, err := openai.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// summary is an answer in the form of the files' section want.
type summary struct {
	Text      string                     `json:"text,omitempty"`
	Reasoning string                     `json:"reasoning,omitempty"`
	Calls     []string                   `json:"calls,omitempty"`
	Stop      llm.StopReason             `json:"stop"`
	Usage     *session.Usage             `json:"usage,omitempty"`
	Opaque    map[string]json.RawMessage `json:"opaque,omitempty"`
}

func summarize(a llm.Answer) summary {
	s := summary{Text: a.Text, Reasoning: a.Reasoning, Stop: a.Stop, Opaque: a.Opaque}
	for _, c := range a.ToolCalls {
		id := c.ID
		if id == "" {
			id = "-"
		}
		s.Calls = append(s.Calls, fmt.Sprintf("%s %s %s", id, c.Name, c.Args))
	}
	if a.Usage != (session.Usage{}) {
		s.Usage = &a.Usage
	}
	return s
}

// TestWhatServersDifferIn plays dialogues in the manner of servers other than OpenAI's own.
func TestWhatServersDifferIn(t *testing.T) {
	paths, err := filepath.Glob("testdata/servers/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no dialogues: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			archive := txtar.Parse(data)
			header := map[string]string{"Content-Type": "text/event-stream; charset=utf-8"}
			var want *txtar.File
			var body string
			for i, f := range archive.Files {
				switch f.Name {
				case "header":
					k, v, _ := strings.Cut(strings.TrimSpace(string(f.Data)), ": ")
					header[k] = v
				case "want":
					want = &archive.Files[i]
				case "body":
					body = string(f.Data)
				default:
					t.Fatalf("unknown section %q", f.Name)
				}
			}
			if want == nil {
				t.Fatal("no section want")
			}
			m := open(t, openai.Config{HTTPClient: respond(200, header, body)})
			answer, err := llmtest.Collect(m.Stream(t.Context(), llmtest.Request()))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			if err := enc.Encode(summarize(answer)); err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(got.Bytes(), want.Data) {
				return
			}
			if *update {
				want.Data = got.Bytes()
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("answer differs from want (run with -update to accept it), got:\n%s\nwant:\n%s", got.Bytes(), want.Data)
		})
	}
}
