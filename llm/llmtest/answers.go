package llmtest

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
	"orchestrator/session"
)

// RoundTrip is a transport in a function.
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f RoundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Respond returns a client that gives every request the same response.
func Respond(status int, header map[string]string, body string) *http.Client {
	return &http.Client{Transport: RoundTrip(func(r *http.Request) (*http.Response, error) {
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

// RunAnswers plays the dialogues of a folder, whose expectations stand in the files' section want, in what vendors and
// servers have of their own. A file may have one header of the answer in its section header.
func RunAnswers(t *testing.T, cfg Config) {
	paths, err := filepath.Glob(filepath.Join(cfg.Dir, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no dialogues: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { runAnswer(t, cfg, path) })
	}
}

func runAnswer(t *testing.T, cfg Config, path string) {
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
	m, err := cfg.Open(BaseURL, Key, Respond(200, header, body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := Collect(m.Stream(t.Context(), Request()))
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
	if cfg.Update {
		want.Data = got.Bytes()
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("answer differs from want (run with -update to accept it), got:\n%s\nwant:\n%s", got.Bytes(), want.Data)
}

// AddBodies adds the bodies of the dialogues in the folders to a fuzz target's corpus.
func AddBodies(f *testing.F, dirs ...string) {
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
		if err != nil || len(paths) == 0 {
			f.Fatalf("no dialogues in %s: %v", dir, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			if body, ok := section(txtar.Parse(data), "body"); ok {
				f.Add(string(body))
			}
		}
	}
}
