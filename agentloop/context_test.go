package agentloop_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

// isSummary reports whether a request asks for a summary of the context.
func isSummary(r llm.Request) bool { return strings.Contains(r.System, "memory of an agent") }

func TestOldResultsShrinkFirst(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	// Four results of 1,500 bytes and four of 2,000 are more than the 10,500 a model of 3,000 tokens has room for.
	n, ran := 0, 0
	look := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
		if ran++; ran > 4 {
			return tool.Text(strings.Repeat("x", 2000)), nil
		}
		return tool.Text(strings.Repeat("x", 1500)), nil
	})
	model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		if isSummary(r) {
			t.Error("a summary was asked for")
		}
		if n++; n <= 8 {
			return unmetered(asks("look", `{}`)), nil
		}
		return text("ok"), nil
	}}
	loop := newLoopWith(t, agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return model, "fake-1", nil },
		Tools: func(context.Context, *session.Turn) (*tool.Set, error) {
			return tool.NewSet([]tool.Tool{look}, nil), nil
		},
		Window: func(string) int { return 3000 },
	})
	out := mustRun(t, loop, turn)
	if out.Output != "ok" {
		t.Fatalf("RunTurn() = %+v, want ok", out)
	}
	asked := model.asked()
	var sizes []int
	for _, s := range toolTexts(asked[len(asked)-1]) {
		sizes = append(sizes, len(s))
	}
	small := func(n int) bool { return n < 500 }
	if len(sizes) != 8 || !small(sizes[0]) || slices.ContainsFunc(sizes[4:], small) {
		t.Errorf("results in the last request have %v bytes, want the oldest shrunk and the last four whole", sizes)
	}
	for _, e := range logOf(t, store, turn, session.EventToolCompleted) {
		if got := decode[session.ToolCompleted](t, e).Content; len(got) < 1500 {
			t.Errorf("a result in the log has %d bytes, want all of it: only the context shrinks", len(got))
		}
	}
}

// unmetered takes the provider's count out of an answer.
func unmetered(chunks []llm.Chunk) []llm.Chunk {
	return slices.DeleteFunc(chunks, func(c llm.Chunk) bool { return c.Kind == llm.ChunkUsage })
}

func TestContextOverTheWindowBecomesASummary(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	newModel := func() *fakeModel {
		n := 0
		return &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
			if isSummary(r) {
				return text("what happened so far"), nil
			}
			if n++; n <= 6 {
				return append([]llm.Chunk{{Kind: llm.ChunkText, Text: strings.Repeat("thinking ", 100)}}, unmetered(asks("look", `{}`))...), nil
			}
			return text("ok"), nil
		}}
	}
	ran := 0
	look := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
		ran++
		return tool.Text(strings.Repeat("x", 900)), nil // too short to shrink
	})
	model := newModel()
	limits := agentloop.Limits{ContextTokens: 2500}
	out := completes(t, newLoop(t, model, limits, look), turn)
	if out.Output != "ok" || ran != 6 {
		t.Fatalf("RunTurn() = %+v with %d tool calls, want ok with 6", out, ran)
	}
	compacted := logOf(t, store, turn, session.EventContextCompacted)
	if len(compacted) == 0 {
		t.Fatal("no context.compacted in the log")
	}
	body := decode[session.ContextCompacted](t, compacted[len(compacted)-1])
	if !strings.Contains(body.Summary, "what happened so far") || !strings.Contains(body.Summary, "word for word:\na question") {
		t.Errorf("summary = %q, want the model's and the turn's input word for word", body.Summary)
	}
	calls, summaries := 0, 0
	for _, r := range model.asked() {
		if bytes := contextBytes(r); bytes > 4*2500 {
			t.Errorf("a request has %d bytes, want less than the window's %d", bytes, 4*2500)
		}
		if isSummary(r) {
			summaries++
			if r.Tools != nil {
				t.Error("a summary was asked for with tools")
			}
			continue
		}
		calls++
		answered(t, r)
	}
	if summaries != len(compacted) || out.Usage.ModelCalls != int64(calls+summaries) {
		t.Errorf("%d summaries, %d events, usage of %d model calls; want as many events and all %d calls counted",
			summaries, len(compacted), out.Usage.ModelCalls, calls+summaries)
	}

	// A later turn begins with the summary, and ids go on.
	model = newModel()
	next := another(t, turn, "go on")
	out = completes(t, newLoop(t, model, limits, look), next)
	first := model.asked()[0]
	if !strings.Contains(first.Messages[0].Text, "what happened so far") || first.Messages[0].Role != llm.RoleUser {
		t.Errorf("the next turn's context begins with %q, want the summary", first.Messages[0].Text)
	}
	if lastText(first) != "go on" || contextBytes(first) > 4*2500 {
		t.Errorf("the next turn's context ends with %q in %d bytes, want its input", lastText(first), contextBytes(first))
	}
	started := logOf(t, store, turn, session.EventToolStarted)
	if got := started[len(started)-1].ToolCallID; got != session.MintToolCallID(turn.Agent, 12) {
		t.Errorf("the last tool call is %s, want the 12th", got)
	}
	if out.Usage.ModelCalls < 7 {
		t.Errorf("the second turn counts %d model calls, want its own 7 at least", out.Usage.ModelCalls)
	}
}

// TestCompactedTurnGoesOnFromEveryCommit kills the process after each commit of a turn whose context is compacted: the
// rest of the context is rebuilt as it was.
func TestCompactedTurnGoesOnFromEveryCommit(t *testing.T) {
	life := func(t *testing.T, store session.Store, turn *session.Turn) (session.Outcome, llm.Request, error) {
		model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
			if isSummary(r) {
				return text("what happened so far"), nil
			}
			if n := len(results(t, store, turn)); n < 5 {
				return append([]llm.Chunk{{Kind: llm.ChunkText, Text: fmt.Sprint("step ", n, strings.Repeat(" thinking", 100))}},
					unmetered(asks("look", fmt.Sprintf(`{"n":%d}`, n)))...), nil
			}
			return text("ok"), nil
		}}
		look := repeatable(newTool("look", func(_ context.Context, c *tool.Call) (tool.Result, error) {
			return tool.Text(string(c.Args) + strings.Repeat("x", 900)), nil
		}))
		out, err := newLoop(t, model, agentloop.Limits{ContextTokens: 2500}, look).RunTurn(t.Context(), turn)
		asked := model.asked()
		if len(asked) == 0 {
			return out, llm.Request{}, err
		}
		return out, asked[len(asked)-1], err
	}
	whole := &cutStore{Store: session.NewMemory(), left: -1}
	began := sessiontest.NewTurn(t, whole)
	before := whole.commits
	want, wantRequest, err := life(t, whole, began)
	if err != nil {
		t.Fatal(err)
	}
	if len(logOf(t, whole, began, session.EventContextCompacted)) == 0 {
		t.Fatal("no context.compacted in the log")
	}
	for k := range whole.commits - before {
		store := session.NewMemory()
		turn := sessiontest.NewTurn(t, store)
		if _, _, err := life(t, store, reopen(t, &cutStore{Store: store, left: k}, turn, nil)); !errors.Is(err, errCut) {
			t.Fatalf("RunTurn() = %v, want the store's error", err)
		}
		got, request, err := life(t, store, resume(t, store, turn))
		if err != nil {
			t.Fatalf("RunTurn() = %v, want no error", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("outcome after a crash after commit %d (-without it +with it):\n%s", k, diff)
		}
		if diff := cmp.Diff(wantRequest, request); diff != "" {
			t.Errorf("last request after a crash after commit %d (-without it +with it):\n%s", k, diff)
		}
	}
}

func TestCallWithoutAResultIsAnsweredInTheContext(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	earlier := turn.Scope
	earlier.Turn = session.NewTurnID()
	id := session.MintToolCallID(turn.Agent, 1)
	if _, err := turn.Tree().Commit(t.Context(), session.Batch{Events: []session.Event{
		earlier.Event(session.EventMessageCompleted, session.Message{
			Role: session.RoleAssistant, ToolCalls: []session.ToolCall{{ID: id, Name: "look", Args: []byte(`{}`)}},
		}),
		turn.Event(session.EventMessageCompleted, session.Message{Role: session.RoleUser, Text: "go on"}),
	}}); err != nil {
		t.Fatal(err)
	}
	model := says(text("ok"))
	mustRun(t, newLoop(t, model, agentloop.Limits{}), turn)
	answered(t, model.asked()[0])
	if got := toolTexts(model.asked()[0]); len(got) != 1 || got[0] != "no result was recorded" {
		t.Errorf("results in the context = %q, want one that says there is none", got)
	}
}

func contextBytes(r llm.Request) int {
	n := len(r.System)
	for _, m := range r.Messages {
		n += len(m.Text) + len(m.Reasoning)
	}
	return n
}

// answered checks what providers demand: each tool call has its result right after its message, and no result is alone.
func answered(t *testing.T, r llm.Request) {
	t.Helper()
	for i := 0; i < len(r.Messages); i++ {
		m := r.Messages[i]
		if m.Role == llm.RoleTool {
			t.Errorf("message %d is a result nobody asked for", i)
		}
		for _, c := range m.ToolCalls {
			if i++; i >= len(r.Messages) || r.Messages[i].ToolCallID != c.ID {
				t.Errorf("tool call %s has no result", c.ID)
				return
			}
		}
	}
}

func TestOverflowIsCompactedOnceAndNoToolRunsAgain(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	overflows := 0
	model := &fakeModel{answer: func(_ context.Context, n int, r llm.Request) ([]llm.Chunk, error) {
		switch {
		case isSummary(r) && len(lastText(r)) > 80_000:
			return nil, &llm.Error{Message: "too long", Overflow: true} // half of the window we took it for
		case isSummary(r):
			return text("looked once"), nil
		case n == 1:
			return unmetered(asks("look", `{}`, "look", `{"n":1}`, "look", `{"n":2}`, "look", `{"n":3}`, "look", `{"n":4}`)), nil
		case contextBytes(r) > 50_000:
			overflows++
			return nil, &llm.Error{Message: "too long", Overflow: true}
		}
		return text("ok"), nil
	}}
	ran := 0
	look := newTool("look", func(context.Context, *tool.Call) (tool.Result, error) {
		ran++
		return tool.Text(strings.Repeat("x", 20_000)), nil
	})
	out := mustRun(t, newLoop(t, model, agentloop.Limits{ParallelTools: 1, ContextTokens: 60_000}, look), turn)
	if out.Output != "ok" || ran != 5 || overflows != 1 {
		t.Errorf("RunTurn() = %+v after %d tool calls and %d overflows, want ok after 5 and 1", out, ran, overflows)
	}
	if got := len(logOf(t, store, turn, session.EventContextCompacted)); got != 1 {
		t.Errorf("%d context.compacted, want 1", got)
	}
	if got := len(logOf(t, store, turn, session.EventSessionError)); got != 0 {
		t.Errorf("%d session.error, want none", got)
	}
}

func TestOverflowAfterCompactionFailsTheTurn(t *testing.T) {
	model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		if isSummary(r) {
			return text("short"), nil
		}
		return nil, &llm.Error{Message: "too long", Overflow: true}
	}}
	out := mustRun(t, newLoop(t, model, agentloop.Limits{}), sessiontest.NewTurn(t, session.NewMemory()))
	wantFailed(t, out, "error", "larger than the model")
	if got := len(model.asked()); got != 3 {
		t.Errorf("the model was asked %d times, want 3", got)
	}
	model = &fakeModel{answer: func(context.Context, int, llm.Request) ([]llm.Chunk, error) {
		return nil, &llm.Error{Message: "too long", Overflow: true}
	}}
	out = mustRun(t, newLoop(t, model, agentloop.Limits{}), sessiontest.NewTurn(t, session.NewMemory()))
	wantFailed(t, out, "error", "even to summarise it")
}

func TestProvidersCountOfTheContextIsBelieved(t *testing.T) {
	model := &fakeModel{answer: func(_ context.Context, n int, r llm.Request) ([]llm.Chunk, error) {
		if isSummary(r) {
			return text("in short"), nil
		}
		if n == 1 {
			return append(unmetered(asks("look", `{}`)), llm.Chunk{Kind: llm.ChunkUsage, Usage: session.Usage{InputTokens: 5000}}), nil
		}
		return text("ok"), nil
	}}
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	mustRun(t, newLoop(t, model, agentloop.Limits{ContextTokens: 4000}, returns("look", "seen")), turn)
	if got := len(logOf(t, store, turn, session.EventContextCompacted)); got != 1 {
		t.Errorf("%d context.compacted, want 1: a small text had 5,000 tokens", got)
	}
}

// fill appends so many earlier exchanges to the session's log, four events each, as an earlier turn would.
func fill(tb testing.TB, turn *session.Turn, events int) {
	scope := turn.Scope
	scope.Turn = session.NewTurnID()
	var b session.Batch
	flush := func() {
		if _, err := turn.Tree().Commit(tb.Context(), b); err != nil {
			tb.Fatal(err)
		}
		b = session.Batch{}
	}
	for n := 1; n <= events/4; n++ {
		id := session.MintToolCallID(turn.Agent, n)
		b.Events = append(b.Events,
			scope.Event(session.EventMessageCompleted, session.Message{Role: session.RoleUser, Text: "what is next?"}),
			scope.Event(session.EventMessageCompleted, session.Message{Role: session.RoleAssistant, ToolCalls: []session.ToolCall{{ID: id, Name: "look", Args: []byte("{}")}}}),
			scope.WithToolCall(id).Event(session.EventToolStarted, session.ToolStarted{Name: "look", Args: []byte("{}")}),
			scope.WithToolCall(id).Event(session.EventToolCompleted, session.ToolCompleted{Name: "look", Content: "seen"}))
		if n%1000 == 0 {
			flush()
		}
	}
	flush()
}

// BenchmarkContextBuild is the start of a turn in a long session, the model's answer costing nothing: with the whole log
// in the context, and from a summary, whose cost must not depend on what the log holds.
func BenchmarkContextBuild(b *testing.B) {
	for _, compacted := range []bool{false, true} {
		for _, events := range []int{1000, 50_000} {
			b.Run(fmt.Sprintf("events=%d/summary=%t", events, compacted), func(b *testing.B) {
				store := session.NewMemory()
				turn := sessiontest.NewTurn(b, store)
				fill(b, turn, events)
				if _, err := turn.Tree().EndTurn(b.Context(), turn, session.Outcome{State: session.StateCompleted}); err != nil {
					b.Fatal(err)
				}
				turn = another(b, turn, "and now?")
				if compacted {
					info, err := store.Tree(b.Context(), turn.Root)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := turn.Tree().Commit(b.Context(), session.Batch{Events: []session.Event{turn.Event(session.EventContextCompacted,
						session.ContextCompacted{ThroughSeq: info.HeadSeq, Summary: "a long story"})}}); err != nil {
						b.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancelCause(b.Context())
				model := &fakeModel{answer: func(context.Context, int, llm.Request) ([]llm.Chunk, error) { return nil, errCut }}
				loop := newLoop(b, model, agentloop.Limits{ContextTokens: 10_000_000})
				defer cancel(nil)
				b.ReportAllocs()
				for b.Loop() {
					model.requests = nil
					if _, err := loop.RunTurn(ctx, turn); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkGrowingContext is one model call and one tool call of a turn, by how much the context already holds: it grows
// in memory, so the step costs the same.
func BenchmarkGrowingContext(b *testing.B) {
	for _, events := range []int{1000, 50_000} {
		b.Run(fmt.Sprintf("events=%d", events), func(b *testing.B) {
			store := session.NewMemory()
			turn := sessiontest.NewTurn(b, store)
			fill(b, turn, events)
			steps := make(chan bool)
			model := &steppingModel{steps: steps}
			loop := newLoop(b, model, agentloop.Limits{ContextTokens: 100_000_000, ModelCalls: 1 << 30}, returns("look", "seen"))
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := loop.RunTurn(b.Context(), turn); err != nil {
					b.Error(err)
				}
			})
			for range 100 { // the context is built, and what grows with it has room
				steps <- true
			}
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				steps <- true
			}
			steps <- false
			wg.Wait()
		})
	}
}
