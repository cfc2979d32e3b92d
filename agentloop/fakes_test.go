package agentloop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/tool"
)

// fakeModel answers by a func of the request and keeps the requests.
type fakeModel struct {
	answer func(ctx context.Context, n int, r llm.Request) ([]llm.Chunk, error)

	mu       sync.Mutex
	requests []llm.Request
}

func (m *fakeModel) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		m.mu.Lock()
		r.Messages = slices.Clone(r.Messages)
		m.requests = append(m.requests, r)
		n := len(m.requests)
		m.mu.Unlock()
		chunks, err := m.answer(ctx, n, r)
		for _, c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
		if err != nil {
			yield(llm.Chunk{}, err)
		}
	}
}

func (m *fakeModel) asked() []llm.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// says is a model that gives one answer after the other, by the number of the request; the last one again and again.
func says(answers ...[]llm.Chunk) *fakeModel {
	return &fakeModel{answer: func(_ context.Context, n int, _ llm.Request) ([]llm.Chunk, error) {
		return answers[min(n, len(answers))-1], nil
	}}
}

// byPosition is a model whose answer depends on how many answers the context holds, so that a restart doesn't rewind it.
func byPosition(answer func(pos int, r llm.Request) []llm.Chunk) *fakeModel {
	return &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		pos := 0
		for _, m := range r.Messages {
			if m.Role == llm.RoleAssistant {
				pos++
			}
		}
		return answer(pos, r), nil
	}}
}

var callUsage = session.Usage{InputTokens: 10, OutputTokens: 5, CostUSD: 0.25}

func text(s string) []llm.Chunk { return stopped(s, llm.StopEnd) }

func stopped(s string, why llm.StopReason) []llm.Chunk {
	var chunks []llm.Chunk
	if s != "" {
		chunks = append(chunks, llm.Chunk{Kind: llm.ChunkText, Text: s})
	}
	return append(chunks, llm.Chunk{Kind: llm.ChunkUsage, Usage: callUsage}, llm.Chunk{Kind: llm.ChunkStop, Stop: why})
}

// asks is an answer with tool calls, each given as its name and its arguments.
func asks(nameAndArgs ...string) []llm.Chunk {
	var chunks []llm.Chunk
	for i := 0; i < len(nameAndArgs); i += 2 {
		chunks = append(chunks,
			llm.Chunk{Kind: llm.ChunkToolStart, Index: i / 2, ToolID: fmt.Sprintf("p%d", i/2), ToolName: nameAndArgs[i]},
			llm.Chunk{Kind: llm.ChunkToolArgs, Index: i / 2, Text: nameAndArgs[i+1]},
			llm.Chunk{Kind: llm.ChunkToolEnd, Index: i / 2})
	}
	return append(chunks, llm.Chunk{Kind: llm.ChunkUsage, Usage: callUsage}, llm.Chunk{Kind: llm.ChunkStop, Stop: llm.StopToolCalls})
}

type fakeTool struct {
	spec tool.Spec
	run  func(ctx context.Context, c *tool.Call) (tool.Result, error)
}

func (f fakeTool) Spec() tool.Spec { return f.spec }

func (f fakeTool) Run(ctx context.Context, c *tool.Call) (tool.Result, error) { return f.run(ctx, c) }

func newTool(name string, run func(ctx context.Context, c *tool.Call) (tool.Result, error)) fakeTool {
	return fakeTool{spec: tool.Spec{
		Name: name, Source: tool.SourceBuiltin, Description: func(tool.Kind) string { return "the tool " + name },
		Schema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}`),
	}, run: run}
}

// returns is a tool that always returns the text.
func returns(name, content string) fakeTool {
	return newTool(name, func(context.Context, *tool.Call) (tool.Result, error) { return tool.Text(content), nil })
}

func repeatable(f fakeTool) fakeTool {
	f.spec.Repeatable = true
	return f
}

// newLoop returns a loop with one model and the tools.
func newLoop(t testing.TB, model llm.Model, limits agentloop.Limits, tools ...tool.Tool) *agentloop.Loop {
	t.Helper()
	return newLoopWith(t, agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return model, "fake-1", nil },
		Tools:  func(context.Context, *session.Turn) (*tool.Set, error) { return tool.NewSet(tools, nil), nil },
		Limits: limits,
	})
}

func newLoopWith(t testing.TB, cfg agentloop.Config) *agentloop.Loop {
	t.Helper()
	if _, bench := t.(*testing.B); !bench {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	loop, err := agentloop.New(cfg)
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return loop
}

func mustRun(t testing.TB, loop *agentloop.Loop, turn *session.Turn) session.Outcome {
	t.Helper()
	out, err := loop.RunTurn(t.Context(), turn)
	if err != nil {
		t.Fatalf("RunTurn() = %v, want no error", err)
	}
	return out
}

// completes runs a turn that ends by itself, and ends it.
func completes(t testing.TB, loop *agentloop.Loop, turn *session.Turn) session.Outcome {
	t.Helper()
	out := mustRun(t, loop, turn)
	if out.State != session.StateCompleted {
		t.Fatalf("RunTurn() = %s (%s), want completed", out.State, out.Error)
	}
	if _, err := turn.Tree().EndTurn(t.Context(), turn, out); err != nil {
		t.Fatalf("EndTurn() = %v, want no error", err)
	}
	return out
}

func wantFailed(t testing.TB, out session.Outcome, stopReason, sentence string) {
	t.Helper()
	if out.State != session.StateFailed || out.StopReason != stopReason || !strings.Contains(out.Error, sentence) {
		t.Errorf("RunTurn() = %s, stop reason %q, error %q; want failed, %q, an error with %q",
			out.State, out.StopReason, out.Error, stopReason, sentence)
	}
}

// reopen returns the turn in the hands of a new owner of the tree.
func reopen(t testing.TB, store session.Store, turn *session.Turn, publish func(session.Event)) *session.Turn {
	t.Helper()
	tree, rec := claim(t, store, turn, publish)
	again, err := session.NewTurn(tree, rec)
	if err != nil {
		t.Fatalf("NewTurn() = %v, want no error", err)
	}
	return again
}

// resume continues the turn in another life of the process.
func resume(t testing.TB, store session.Store, turn *session.Turn) *session.Turn {
	t.Helper()
	tree, rec := claim(t, store, turn, nil)
	again, out, err := tree.ResumeTurn(t.Context(), rec, false, session.Batch{})
	if err != nil || out != nil {
		t.Fatalf("ResumeTurn() = %v, %v, want a turn", out, err)
	}
	again.Body.Setup = turn.Body.Setup
	return again
}

func claim(t testing.TB, store session.Store, turn *session.Turn, publish func(session.Event)) (*session.Tree, session.Record) {
	t.Helper()
	lease, err := store.Claim(t.Context(), turn.Root, "sessiontest", time.Hour)
	if err != nil {
		t.Fatalf("Claim() = %v, want no error", err)
	}
	rec, err := store.Record(t.Context(), session.KindTurn, string(turn.Turn))
	if err != nil {
		t.Fatalf("Record() = %v, want no error", err)
	}
	return session.NewTree(t.Context(), store, lease, publish), rec
}

// another starts another turn of the same session.
func another(t testing.TB, turn *session.Turn, input string) *session.Turn {
	t.Helper()
	id := session.NewTurnID()
	rec := session.Record{
		Tree: turn.Root, Kind: session.KindTurn, Key: string(id), Owner: turn.Agent, Origin: id,
		Body: mustJSON(t, session.TurnBody{Root: turn.Root, Parent: turn.Parent, Origin: session.OriginUser, Input: input}),
	}
	next, err := turn.Tree().StartTurn(t.Context(), rec, turn.Body.Setup, session.Batch{})
	if err != nil {
		t.Fatalf("StartTurn() = %v, want no error", err)
	}
	return next
}

func mustJSON(t testing.TB, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("marshal %T: %v", v, err)
	}
	return b
}

// logOf returns the agent's events of the types, all of them if none are named, with their bodies.
func logOf(t testing.TB, store session.Store, turn *session.Turn, types ...session.EventType) []session.Event {
	t.Helper()
	events, err := store.Events(t.Context(), session.EventQuery{Tree: turn.Root, Agent: turn.Agent, Types: types, Limit: 100_000})
	if err != nil {
		t.Fatalf("Events() = %v, want no error", err)
	}
	for i := range events {
		if err := session.Resolve(t.Context(), store, &events[i]); err != nil {
			t.Fatalf("Resolve() = %v, want no error", err)
		}
	}
	return events
}

// results returns the results in the log in order, as "<n>:<name>: <content>", n being the call's number.
func results(t testing.TB, store session.Store, turn *session.Turn) []string {
	t.Helper()
	var all []string
	for _, e := range logOf(t, store, turn, session.EventToolCompleted) {
		done := decode[session.ToolCompleted](t, e)
		_, n, _ := e.ToolCallID.Split()
		all = append(all, fmt.Sprintf("%d:%s: %s", n, done.Name, done.Content))
	}
	return all
}

func decode[T any](t testing.TB, e session.Event) T {
	t.Helper()
	var v T
	if err := e.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// toolTexts returns the tool results of a request, in order.
func toolTexts(r llm.Request) []string {
	var all []string
	for _, m := range r.Messages {
		if m.Role == llm.RoleTool {
			all = append(all, m.Text)
		}
	}
	return all
}

func lastText(r llm.Request) string { return r.Messages[len(r.Messages)-1].Text }

var errCut = errors.New("the process was killed")

// cutStore is a store whose process dies: from some commit on every write fails.
type cutStore struct {
	session.Store

	mu      sync.Mutex
	left    int  // commits that still work; negative: all do
	applied bool // the first commit that fails is made all the same, and only its answer is lost
	commits int
}

func (s *cutStore) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	if s.left == 0 {
		if s.applied {
			s.applied = false
			if _, err := s.Store.Commit(ctx, b); err != nil {
				return session.Committed{}, err
			}
		}
		return session.Committed{}, errCut
	}
	s.left--
	return s.Store.Commit(ctx, b)
}

// hookStore calls a func before each commit.
type hookStore struct {
	session.Store
	before func(b session.Batch) error
}

func (s *hookStore) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	if s.before != nil {
		if err := s.before(b); err != nil {
			return session.Committed{}, err
		}
	}
	return s.Store.Commit(ctx, b)
}

// isResultOf reports whether a batch holds the result of an agent's nth tool call.
func isResultOf(b session.Batch, n int) bool {
	return slices.ContainsFunc(b.Events, func(e session.Event) bool {
		_, num, _ := e.ToolCallID.Split()
		return e.Type == session.EventToolCompleted && num == n
	})
}

// steppingModel asks for a tool call for each true it gets, and answers when it gets false. It keeps no requests.
type steppingModel struct{ steps chan bool }

func (m *steppingModel) Stream(context.Context, llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		answer := text("done")
		if <-m.steps {
			answer = asks("look", `{}`)
		}
		for _, c := range answer {
			if !yield(c, nil) {
				return
			}
		}
	}
}
