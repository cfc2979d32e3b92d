package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/llm"
	"orchestrator/llm/scripted"
	"orchestrator/session"
)

func mustParse(t testing.TB, script string) *scripted.Model {
	t.Helper()
	m, err := scripted.Parse("test.yaml", []byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func collect(ctx context.Context, m *scripted.Model, r llm.Request) (llm.Answer, error) {
	var a llm.Assembler
	for c, err := range m.Stream(ctx, r) {
		if err != nil {
			return a.Answer(), err
		}
		a.Add(c)
	}
	return a.Answer(), nil
}

// text returns the text of the answer, or its error in brackets.
func text(t testing.TB, m *scripted.Model, r llm.Request) string {
	t.Helper()
	a, err := collect(t.Context(), m, r)
	if err != nil {
		return "[" + err.Error() + "]"
	}
	return a.Text
}

func user(s string) llm.Message      { return llm.Message{Role: llm.RoleUser, Text: s} }
func assistant(s string) llm.Message { return llm.Message{Role: llm.RoleAssistant, Text: s} }
func result(tool, s string) llm.Message {
	return llm.Message{Role: llm.RoleTool, ToolName: tool, Text: s}
}

func request(messages ...llm.Message) llm.Request {
	return llm.Request{Agent: "a", Messages: messages}
}

func TestFirstMatchingRuleOfTheAgentWins(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: b
    rules: [{text: of b}]
  - name: "*"
    rules: [{match: anyone, text: of anyone}, {text: last}]
  - name: a
    rules:
      - {position: 1, match: go, text: second answer}
      - {match: go, text: first go}
      - {match: go, text: never}
      - {tool: t, match: 'x\ny', text: "joined $0"}
      - {tool: t, text: "a result of t"}
`)
	for _, tt := range []struct {
		name     string
		messages []llm.Message
		want     string
	}{
		{"in order", []llm.Message{user("go")}, "first go"},
		{"position", []llm.Message{user("go"), assistant("."), user("go")}, "second answer"},
		{"position is exact", []llm.Message{user("go"), assistant("."), assistant("."), user("go")}, "first go"},
		{"only the last user message", []llm.Message{user("go"), user("on")}, "last"},
		{"all last results", []llm.Message{user("go"), assistant("."), result("s", "x"), result("t", "y")}, "joined x\ny"},
		{"not results of earlier answers", []llm.Message{user("go"), assistant("."), result("t", "x"), assistant("."), result("s", "y")}, "last"},
		{"any of the last results", []llm.Message{user("go"), assistant("."), result("t", "1"), result("s", "2")}, "a result of t"},
		{"a steer after results", []llm.Message{user("go"), assistant("."), result("t", "x"), user("go")}, "second answer"},
		{"an answer came last", []llm.Message{user("go"), assistant(".")}, "second answer"},
		{"any agent's rules come last", []llm.Message{user("anyone")}, "of anyone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := text(t, m, request(tt.messages...)); got != tt.want {
				t.Errorf("Text = %q, want %q", got, tt.want)
			}
		})
	}
	if got := text(t, m, llm.Request{Agent: "b", Messages: []llm.Message{user("go")}}); got != "of b" {
		t.Errorf("Text of b = %q, want %q", got, "of b")
	}
}

func TestAnswersQuoteWhatCame(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: a
    rules:
      - match: '(\w+) and (?<second>\w+)( too)?'
        history:
          - 'first result: (?<one>.*)'
          - '(?s).*note: (?<lastNote>\w+)'
        reasoning: "$0?"
        text: "$1 ${2}2 ${second} ${one} ${lastNote}${3} costs $$5 or $ 6"
        tool_calls:
          - name: t
            args: {a: "<$1>", list: ["${one}", 1, {deep: "${second}"}], n: 2.5, yes: true, nothing: null, plain: x}
          - name: u
`)
	got, err := collect(t.Context(), m, request(
		user("note: old"), assistant("note: of the assistant"), result("r", "first result: 42\nnote: new"), user("salt and pepper"),
	))
	if err != nil {
		t.Fatal(err)
	}
	want := llm.Answer{
		Reasoning: "salt and pepper?",
		Text:      "salt pepper2 pepper 42 new costs $5 or $ 6",
		ToolCalls: []llm.ToolCall{
			{Name: "t", Args: json.RawMessage(`{"a":"<salt>","list":["42",1,{"deep":"pepper"}],"n":2.5,"nothing":null,"plain":"x","yes":true}`)},
			{Name: "u", Args: json.RawMessage(`{}`)},
		},
		Stop:    llm.StopToolCalls,
		Stopped: true,
		Usage:   session.Usage{InputTokens: 18, OutputTokens: 39},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if got := text(t, m, request(user("salt and pepper"))); !strings.Contains(got, "no rule") {
		t.Errorf("a rule whose history isn't there answers %q, want no rule", got)
	}
}

func TestTextComesInSeveralChunks(t *testing.T) {
	m := mustParse(t, `{agents: [{name: a, rules: [{text: "one two three", tool_calls: [{name: t, args: {k: "äöü"}}]}]}]}`)
	var got []string
	for c, err := range m.Stream(t.Context(), request(user("x"))) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Text)
	}
	want := []string{"one ", "two ", "three", "", `{"k":"`, `äöü"}`, "", "", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("texts of the chunks (-want +got):\n%s", diff)
	}
}

func TestLatencyAndChunkDelayTakeTheirTime(t *testing.T) {
	m := mustParse(t, `{agents: [{name: a, rules: [{latency: 2s, chunk_delay: 100ms, text: "one two"}]}]}`)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var got []time.Duration
		for _, err := range m.Stream(t.Context(), request(user("x"))) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, time.Since(start))
		}
		ms := time.Millisecond
		if diff := cmp.Diff([]time.Duration{2000 * ms, 2100 * ms, 2200 * ms, 2300 * ms}, got); diff != "" {
			t.Errorf("times of the chunks (-want +got):\n%s", diff)
		}
	})
}

func TestContextEndsTheAnswerAtOnce(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: a
    rules:
      - {match: slow, latency: 1h, text: x}
      - {match: halting, chunk_delay: 1h, text: "x y"}
      - {match: failing, latency: 1h, error: {message: no}}
      - {text: x}
`)
	synctest.Test(t, func(t *testing.T) {
		for _, input := range []string{"slow", "halting", "failing"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := collect(ctx, m, request(user(input)))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%s: error after %v = %v, want the context's after 1s", input, time.Since(start), err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := collect(ctx, m, request(user("quick"))); !errors.Is(err, context.Canceled) {
			t.Errorf("error with an ended context = %v, want context.Canceled", err)
		}
	})
}

func TestErrorRuleFailsAfterItsText(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: a
    rules:
      - match: 'fail (?<why>\w+)'
        text: I begin
        error: {message: "because of ${why}", status: 429, code: slow_down, retryable: true, retry_after: 3s, overflow: true}
`)
	a, err := collect(t.Context(), m, request(user("fail load")))
	var got *llm.Error
	if !errors.As(err, &got) {
		t.Fatalf("error = %v, want an *llm.Error", err)
	}
	want := &llm.Error{
		Provider: "scripted", Status: 429, Code: "slow_down", Message: "because of load",
		Retryable: true, RetryAfter: 3 * time.Second, Overflow: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if a.Text != "I begin" || a.Stopped {
		t.Errorf("answer before the error = %q, stopped %v; want the text and no stop", a.Text, a.Stopped)
	}
}

func TestTimesCountsFailuresOfOneRequest(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: a
    rules:
      - {error: {message: busy, times: 2}}
      - {text: done}
`)
	var wg sync.WaitGroup
	for _, input := range []string{"one", "two", "three"} {
		wg.Go(func() {
			var got []string
			for range 4 {
				got = append(got, text(t, m, request(user(input))))
			}
			want := []string{"[model scripted: busy]", "[model scripted: busy]", "done", "done"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answers to %s (-want +got):\n%s", input, diff)
			}
		})
	}
	wg.Wait()
}

func TestNoRuleSaysWhatWasAsked(t *testing.T) {
	m := mustParse(t, `{agents: [{name: a, rules: [{match: x, text: y}]}, {name: b}]}`)
	long := "begin" + strings.Repeat("z", 1000) + "end"
	for _, tt := range []struct {
		name string
		req  llm.Request
		want []string
	}{
		{"no rule", request(user("q"), assistant("."), result("t", "r")), []string{`agent "a"`, "position 1", "test.yaml", "from t:", `"r"`}},
		{"no agent", llm.Request{Agent: "c", Messages: []llm.Message{user("q")}}, []string{`agent "c"`, "it has a, b", "from the user", `"q"`}},
		{"long input", request(user(long)), []string{`"beginz`, `zend"`, " … "}},
		{"nothing asked", request(), []string{`position 0`, `""`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := collect(t.Context(), m, tt.req)
			var e *llm.Error
			if !errors.As(err, &e) || e.Retryable {
				t.Fatalf("error = %#v, want an *llm.Error that isn't retryable", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(e.Message, w) {
					t.Errorf("message %q lacks %q", e.Message, w)
				}
			}
			if len(e.Message) > 700 {
				t.Errorf("message has %d bytes, want it short", len(e.Message))
			}
		})
	}
}

func TestStopIsWhatTheRuleSays(t *testing.T) {
	m := mustParse(t, `
agents:
  - name: a
    rules:
      - {match: short, text: x, stop: max_tokens}
      - {match: no, stop: refusal}
      - {match: call, tool_calls: [{name: t}]}
      - {text: x}
`)
	for input, want := range map[string]llm.StopReason{
		"short": llm.StopMaxTokens, "no": llm.StopRefusal, "call": llm.StopToolCalls, "else": llm.StopEnd,
	} {
		a, err := collect(t.Context(), m, request(user(input)))
		if err != nil || a.Stop != want {
			t.Errorf("%s: stop = %q, %v; want %q", input, a.Stop, err, want)
		}
	}
}

func TestReaderMayStop(t *testing.T) {
	m := mustParse(t, `{agents: [{name: a, rules: [{text: "one two", error: {message: no}}]}]}`)
	for range m.Stream(t.Context(), request(user("x"))) {
		break
	}
}

func TestParseErrorsNameFileAndLine(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"empty", "", "test.yaml: a script needs agents"},
		{"no agents", "agents: []\n", "test.yaml:1:7: a script needs agents"},
		{"not YAML", "agents:\n  - name: [\n", "test.yaml:2:"},
		{"two documents", "agents: []\n---\nagents: []\n", "test.yaml: a script is one YAML document, this has 2"},
		{"unknown key", "agents:\n  - name: a\n    rules:\n      - mtach: x\n        text: y\n", `test.yaml:4:9: unknown field "mtach"; did you mean "match"?`},
		{"unknown key of an error", "agents:\n  - name: a\n    rules:\n      - error: {mesage: x}\n", `test.yaml:4:17: unknown field "mesage"; did you mean "message"?`},
		{"key twice", "agents:\n  - name: a\n    name: b\n", "test.yaml:3:5:"},
		{"wrong type", "agents:\n  - name: a\n    rules:\n      - position: one\n", "test.yaml:4:19:"},
		{"agent without a name", "agents:\n  - rules: []\n", "test.yaml:2:"},
		{"agent twice", "agents:\n  - name: a\n  - name: a\n", `test.yaml:3:11: agent "a" is here twice`},
		{"bad expression", "agents:\n  - name: a\n    rules:\n      - text: y\n        match: '('\n", "test.yaml:5:16: match: error parsing regexp"},
		{"bad history", "agents:\n  - name: a\n    rules:\n      - text: y\n        history: [x, '(']\n", "test.yaml:5:"},
		{"history of numbers", "agents:\n  - name: a\n    rules:\n      - text: y\n        history: [1]\n", "history is a regular expression or a list"},
		{"group twice", "agents:\n  - name: a\n    rules:\n      - text: y\n        match: '(?<g>x)'\n        history: '(?<g>x)'\n", `test.yaml:6:18: two expressions of this rule have a group "g"`},
		{"no such group", "agents:\n  - name: a\n    rules:\n      - match: '(x)'\n        text: $2\n", `test.yaml:5:15: text: no expression of this rule has a group "2"`},
		{"group without match", "agents:\n  - name: a\n    rules:\n      - history: '(x)'\n        text: ${1}\n", `no expression of this rule has a group "1"`},
		{"open brace", "agents:\n  - name: a\n    rules:\n      - text: '${x'\n", "test.yaml:4:15: text: a ${ without its }"},
		{"group in args", "agents:\n  - name: a\n    rules:\n      - text: y\n        tool_calls:\n          - name: t\n            args: {k: ['${z}']}\n", `test.yaml:6:`},
		{"call without a name", "agents:\n  - name: a\n    rules:\n      - tool_calls: [{args: {}}]\n", "a tool call needs a name"},
		{"args not JSON", "agents:\n  - name: a\n    rules:\n      - tool_calls: [{name: t, args: {n: .inf}}]\n", "can't be JSON"},
		{"bad duration", "agents:\n  - name: a\n    rules:\n      - text: y\n        latency: fast\n", `test.yaml:5:18: latency: "fast" is not a duration like 1.5s`},
		{"negative duration", "agents:\n  - name: a\n    rules:\n      - text: y\n        chunk_delay: -1s\n", `chunk_delay: "-1s" is not a duration`},
		{"bad retry_after", "agents:\n  - name: a\n    rules:\n      - error: {retry_after: x}\n", "retry_after: "},
		{"negative position", "agents:\n  - name: a\n    rules:\n      - {text: y, position: -1}\n", "position counts"},
		{"negative times", "agents:\n  - name: a\n    rules:\n      - error: {times: -1}\n", "times is a number"},
		{"unknown stop", "agents:\n  - name: a\n    rules:\n      - {text: y, stop: end}\n", `not "end"`},
		{"stop and error", "agents:\n  - name: a\n    rules:\n      - {stop: refusal, error: {}}\n", "stop or error, not both"},
		{"gives nothing", "agents:\n  - name: a\n    rules:\n      - match: x\n", "test.yaml:4:"},
		{"too large", strings.Repeat(" ", scripted.MaxScript+1), "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scripted.Parse("test.yaml", []byte(tt.script))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse() = %v, want an error with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
}

func TestLoadReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(path, []byte(`{agents: [{name: a, rules: [{text: hi}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := scripted.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, m, request(user("x"))); got != "hi" {
		t.Errorf("Text = %q, want %q", got, "hi")
	}
	if _, err := scripted.Load(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load() of no file = %v, want ErrNotExist", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("agents:\n  - name: a\n    rules:\n      - {match: '(x)', text: '$1 ${1} $$', tool_calls: [{name: t, args: {k: [$0]}}]}\n", "x")
	f.Add("agents:\n  - name: a\n    rules:\n      - {history: ['(?<n>x)'], text: '${n}', error: {times: 1}, position: 0}\n", "x")
	f.Add("agents: [{name: '*', rules: [{stop: refusal, tool: t}]}]", "")
	f.Add("a: &x [*x]", "")
	f.Fuzz(func(t *testing.T, script, input string) {
		m, err := scripted.Parse("fuzz.yaml", []byte(script))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz.yaml:") {
				t.Errorf("error %q doesn't begin with the name", err)
			}
			return
		}
		// No waiting: a script may ask for any latency.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, r := range []llm.Request{request(user(input)), request(user("x"), result("t", input))} {
			if _, err := collect(ctx, m, r); err == nil {
				t.Error("an ended context gives no error")
			}
		}
	})
}
