package agentloop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/agentloop"
	"orchestrator/llm"
	"orchestrator/session"
	"orchestrator/session/sessiontest"
	"orchestrator/tool"
)

func TestTurnRunsToolsUntilTheModelAsksForNoMore(t *testing.T) {
	store := session.NewMemory()
	var mu sync.Mutex
	var deltas []session.Event
	turn := reopen(t, store, sessiontest.NewTurn(t, store), func(e session.Event) {
		mu.Lock()
		defer mu.Unlock()
		deltas = append(deltas, e)
	})
	turn.Body.Setup.Instructions = "be brief"
	second := make(chan struct{})
	model := says(
		append([]llm.Chunk{{Kind: llm.ChunkReasoning, Text: "hm"}, {Kind: llm.ChunkText, Text: "let me look"}},
			asks("first", `{"n":1}`, "second", `{}`)...),
		text("done"))
	loop := newLoop(t, model, agentloop.Limits{},
		newTool("first", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			<-second
			c.Progress("halfway")
			return tool.Text("one"), nil
		}),
		newTool("second", func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{Content: "two", Committed: func(session.Committed) { close(second) }}, nil
		}))
	out := mustRun(t, loop, turn)

	wantUsage := session.Usage{InputTokens: 20, OutputTokens: 10, CostUSD: 0.5, ModelCalls: 2}
	want := session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{Output: "done", StopReason: "end_turn", Usage: wantUsage}}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("RunTurn() (-want +got):\n%s", diff)
	}
	var log []string
	for _, e := range logOf(t, store, turn) {
		_, n, _ := e.ToolCallID.Split()
		log = append(log, strings.TrimSuffix(fmt.Sprintf("%s %d", e.Type, n), " 0"))
	}
	wantLog := []string{
		"session.created", "turn.queued", "turn.started", "message.completed",
		"message.completed", "tool.started 1", "tool.started 2", "tool.completed 2", "tool.completed 1", "message.completed",
	}
	if diff := cmp.Diff(wantLog, log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	asked := model.asked()
	if len(asked) != 2 {
		t.Fatalf("model was asked %d times, want 2", len(asked))
	}
	if diff := cmp.Diff([]string{"one", "two"}, toolTexts(asked[1])); diff != "" {
		t.Errorf("results in the context are not in call order (-want +got):\n%s", diff)
	}
	wantTools := []llm.Tool{
		{Name: "first", Description: "the tool first", Schema: newTool("", nil).spec.Schema},
		{Name: "second", Description: "the tool second", Schema: newTool("", nil).spec.Schema},
	}
	wantRequest := llm.Request{
		Model: "fake-1", Agent: "primary", System: "be brief", Tools: wantTools,
		Messages: []llm.Message{
			{Role: llm.RoleUser, Text: "a question"},
			{Role: llm.RoleAssistant, Text: "let me look", Reasoning: "hm", ToolCalls: []llm.ToolCall{
				{ID: "p0", Name: "first", Args: json.RawMessage(`{"n":1}`)}, {ID: "p1", Name: "second", Args: json.RawMessage(`{}`)},
			}},
			{Role: llm.RoleTool, ToolCallID: "p0", ToolName: "first", Text: "one"},
			{Role: llm.RoleTool, ToolCallID: "p1", ToolName: "second", Text: "two"},
		},
	}
	if diff := cmp.Diff(wantRequest, asked[1]); diff != "" {
		t.Errorf("second request (-want +got):\n%s", diff)
	}
	message := decode[session.Message](t, logOf(t, store, turn, session.EventMessageCompleted)[1])
	if message.ToolCalls[0].ID != session.MintToolCallID(turn.Agent, 1) || message.ToolCalls[0].ProviderID != "p0" {
		t.Errorf("tool call = %+v, want an id of ours and the provider's as data", message.ToolCalls[0])
	}
	var told []string
	for _, e := range deltas {
		if e.Type == session.EventToolProgress {
			told = append(told, string(e.Type)+" "+decode[session.ToolProgress](t, e).Text)
			continue
		}
		delta := decode[session.Delta](t, e)
		if delta.Text != "done" && delta.MessageID != message.MessageID {
			t.Errorf("delta %q has message id %s, want %s", delta.Text, delta.MessageID, message.MessageID)
		}
		told = append(told, string(e.Type)+" "+delta.Text)
	}
	wantTold := []string{"reasoning.delta hm", "message.delta let me look", "tool.progress halfway", "message.delta done"}
	if diff := cmp.Diff(wantTold, told); diff != "" {
		t.Errorf("ephemeral events (-want +got):\n%s", diff)
	}
}

func TestEarlierTurnsArePartOfTheContext(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	model := says(asks("look", `{}`), text("first answer"), asks("look", `{}`), text("second answer"))
	loop := newLoop(t, model, agentloop.Limits{}, returns("look", "seen"))
	completes(t, loop, turn)
	next := another(t, turn, "and now?")
	out := completes(t, loop, next)
	if out.Output != "second answer" || out.Usage.ModelCalls != 2 {
		t.Errorf("RunTurn() = %q with %d model calls, want the second answer with 2", out.Output, out.Usage.ModelCalls)
	}
	asked := model.asked()
	var context []string
	for _, m := range asked[3].Messages {
		context = append(context, string(m.Role)+": "+m.Text)
	}
	want := []string{
		"user: a question", "assistant: ", "tool: seen", "assistant: first answer",
		"user: and now?", "assistant: ", "tool: seen",
	}
	if diff := cmp.Diff(want, context); diff != "" {
		t.Errorf("context (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1:look: seen", "2:look: seen"}, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestLongAnswerAndLongArgumentsSurviveALaterTurn(t *testing.T) {
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	long := strings.Repeat("word ", 20_000)
	model := says(text(long), text("ok"))
	loop := newLoop(t, model, agentloop.Limits{})
	completes(t, loop, turn)
	completes(t, loop, another(t, turn, "more"))
	if got := model.asked()[1].Messages[1].Text; got != long {
		t.Errorf("the long answer came back with %d bytes, want %d", len(got), len(long))
	}
}

func TestRetryableModelErrorIsToldAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := session.NewMemory()
		turn := sessiontest.NewTurn(t, store)
		began := time.Now()
		var at []time.Duration
		model := &fakeModel{answer: func(_ context.Context, n int, _ llm.Request) ([]llm.Chunk, error) {
			at = append(at, time.Since(began))
			switch n {
			case 1:
				return []llm.Chunk{{Kind: llm.ChunkText, Text: "half an"}}, &llm.Error{Message: "too many requests", Retryable: true, RetryAfter: 20 * time.Second}
			case 2:
				return []llm.Chunk{{Kind: llm.ChunkText, Text: "half an"}}, nil // cut off
			}
			return text("whole"), nil
		}}
		out := mustRun(t, newLoop(t, model, agentloop.Limits{}), turn)
		if out.State != session.StateCompleted || out.Output != "whole" {
			t.Errorf("RunTurn() = %s %q, want completed with the third try", out.State, out.Output)
		}
		if at[1] < 20*time.Second || at[2] == at[1] || at[2] > 25*time.Second {
			t.Errorf("tries at %v, want the second after the 20s the provider asked for, the third soon after", at)
		}
		var told []session.SessionError
		for _, e := range logOf(t, store, turn, session.EventSessionError) {
			told = append(told, decode[session.SessionError](t, e))
		}
		want := []session.SessionError{{Message: "too many requests", WillRetry: true}, {Message: "the model's answer was cut off", WillRetry: true}}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("session.error (-want +got):\n%s", diff)
		}
	})
}

func TestModelErrorsThatEndTheTurn(t *testing.T) {
	for _, tt := range []struct {
		name     string
		err      error
		limits   agentloop.Limits
		tries    int
		sentence string
	}{
		{"not retryable", &llm.Error{Message: "no such model"}, agentloop.Limits{}, 1, "the model call failed: no such model"},
		{"retries exhausted", &llm.Error{Message: "overloaded", Retryable: true}, agentloop.Limits{}, 4, "failed 4 times, the last time: overloaded"},
		{"no retries", &llm.Error{Message: "overloaded", Retryable: true}, agentloop.Limits{Retries: -1}, 1, "overloaded"},
		{"asked to wait too long", &llm.Error{Message: "quota", Retryable: true, RetryAfter: time.Hour}, agentloop.Limits{}, 1, "asks to wait 1h0m0s"},
		{"unknown", errCut, agentloop.Limits{}, 1, "internal error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model := &fakeModel{answer: func(context.Context, int, llm.Request) ([]llm.Chunk, error) { return nil, tt.err }}
				out := mustRun(t, newLoop(t, model, tt.limits), sessiontest.NewTurn(t, session.NewMemory()))
				wantFailed(t, out, "error", tt.sentence)
				if got := len(model.asked()); got != tt.tries {
					t.Errorf("model was asked %d times, want %d", got, tt.tries)
				}
			})
		})
	}
}

func TestModelCallHasAWallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		model := &fakeModel{answer: func(ctx context.Context, n int, _ llm.Request) ([]llm.Chunk, error) {
			if n == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return text("at last"), nil
		}}
		store := session.NewMemory()
		turn := sessiontest.NewTurn(t, store)
		out := mustRun(t, newLoop(t, model, agentloop.Limits{}), turn)
		if took := time.Since(began); out.Output != "at last" || took < 120*time.Second || took > 125*time.Second {
			t.Errorf("RunTurn() = %q after %s, want the second try after 120s", out.Output, took)
		}
		told := decode[session.SessionError](t, logOf(t, store, turn, session.EventSessionError)[0])
		if !strings.Contains(told.Message, "did not finish its answer within 2m0s") {
			t.Errorf("session.error = %q, want a sentence with the time", told.Message)
		}
	})
}

func TestPanicInTheModelFailsTheTurn(t *testing.T) {
	model := &fakeModel{answer: func(context.Context, int, llm.Request) ([]llm.Chunk, error) { panic("boom") }}
	wantFailed(t, mustRun(t, newLoop(t, model, agentloop.Limits{}), sessiontest.NewTurn(t, session.NewMemory())), "error", "internal error")
}

func TestMissingModelOrToolsFailTheTurn(t *testing.T) {
	for _, missing := range []string{"model", "tools"} {
		loop := newLoopWith(t, agentloop.Config{
			Models: func(string) (llm.Model, string, error) {
				if missing == "model" {
					return nil, "", errCut
				}
				return says(text("x")), "fake-1", nil
			},
			Tools: func(context.Context, *session.Turn) (*tool.Set, error) { return nil, errCut },
		})
		wantFailed(t, mustRun(t, loop, sessiontest.NewTurn(t, session.NewMemory())), "error", missing)
	}
}

func TestAnswerAtItsLengthLimitEndsTheTurn(t *testing.T) {
	out := mustRun(t, newLoop(t, says(stopped("so far", llm.StopMaxTokens)), agentloop.Limits{}), sessiontest.NewTurn(t, session.NewMemory()))
	if out.State != session.StateCompleted || out.StopReason != "max_tokens" || out.Output != "so far" {
		t.Errorf("RunTurn() = %+v, want completed, max_tokens, %q", out, "so far")
	}
}

func TestCutOffArgumentsAreAResultTheModelCanRead(t *testing.T) {
	cut := asks("look", `{"n":1`)
	cut[len(cut)-1].Stop = llm.StopMaxTokens
	model := says(cut, text("ok"))
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	out := mustRun(t, newLoop(t, model, agentloop.Limits{}, returns("look", "never")), turn)
	if out.Output != "ok" {
		t.Errorf("RunTurn() = %q, want ok", out.Output)
	}
	want := []string{`1:look: the arguments of "look" don't fit: they are not valid JSON; the message hit its length limit, so they may have been cut off: call again with less`}
	if diff := cmp.Diff(want, results(t, store, turn)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	call := decode[session.Message](t, logOf(t, store, turn, session.EventMessageCompleted)[1]).ToolCalls[0]
	if got := string(call.Args); got != `"{\"n\":1"` {
		t.Errorf("arguments in the log = %s, want the text as a JSON string", got)
	}
}

func TestAtTheModelCallBoundTheModelIsAskedForASummary(t *testing.T) {
	model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		if r.Tools == nil {
			return append(asks("look", `{}`)[:3], text("I looked twice")...), nil
		}
		return asks("look", `{}`), nil
	}}
	store := session.NewMemory()
	turn := sessiontest.NewTurn(t, store)
	out := mustRun(t, newLoop(t, model, agentloop.Limits{ModelCalls: 2}, returns("look", "seen")), turn)
	if out.State != session.StateCompleted || out.StopReason != "max_model_calls" || out.Output != "I looked twice" || out.Usage.ModelCalls != 3 {
		t.Errorf("RunTurn() = %+v, want completed, max_model_calls, the summary, 3 model calls", out)
	}
	asked := model.asked()
	if len(asked) != 3 || !strings.Contains(lastText(asked[2]), "limit of 2 model calls") {
		t.Errorf("the last of %d requests ends with %q, want a third that names the limit", len(asked), lastText(asked[len(asked)-1]))
	}
	if got := len(results(t, store, turn)); got != 2 {
		t.Errorf("%d tool calls have run, want 2: the summary's are dropped", got)
	}
	// Found ended in the log, it isn't asked for again.
	out = mustRun(t, newLoop(t, model, agentloop.Limits{ModelCalls: 2}, returns("look", "seen")), resume(t, store, turn))
	if out.StopReason != "max_model_calls" || out.Output != "I looked twice" || len(model.asked()) != 3 {
		t.Errorf("resumed RunTurn() = %+v after %d requests, want the same without another", out, len(model.asked()))
	}
}

func TestAFailedSummaryFailsTheTurn(t *testing.T) {
	model := &fakeModel{answer: func(_ context.Context, _ int, r llm.Request) ([]llm.Chunk, error) {
		if r.Tools == nil {
			return nil, &llm.Error{Message: "gone"}
		}
		return asks("look", `{}`), nil
	}}
	out := mustRun(t, newLoop(t, model, agentloop.Limits{ModelCalls: 1}, returns("look", "seen")), sessiontest.NewTurn(t, session.NewMemory()))
	wantFailed(t, out, "max_model_calls", "limit of 1 model calls, and asking for a summary failed: the model call failed: gone")
}

func TestTreeBudgetCountsAllAgentsOfTheTree(t *testing.T) {
	for _, limits := range []agentloop.Limits{{TreeTokens: 45}, {TreeCostUSD: 0.75}} {
		store := session.NewMemory()
		turn := sessiontest.NewTurn(t, store)
		child := sessiontest.NewChildTurn(t, turn, 1)
		model := says(asks("look", `{}`), text("child's answer"), asks("look", `{}`), text("never"))
		loop := newLoop(t, model, limits, returns("look", "seen"))
		if out := mustRun(t, loop, child); out.Output != "child's answer" {
			t.Fatalf("child's RunTurn() = %+v, want its answer: 30 tokens are used", out)
		}
		out := mustRun(t, loop, turn)
		wantFailed(t, out, "budget", "this session may")
		if out.Usage.ModelCalls != 1 {
			t.Errorf("the root made %d model calls, want 1", out.Usage.ModelCalls)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	_, err := agentloop.New(agentloop.Config{
		Models: func(string) (llm.Model, string, error) { return nil, "", nil },
		Tools:  func(context.Context, *session.Turn) (*tool.Set, error) { return nil, nil },
		Limits: agentloop.Limits{ResultBytes: 1 << 20},
	})
	if err == nil || !strings.Contains(err.Error(), "ResultBytes must be 200 to 32768") {
		t.Errorf("New() = %v, want an error that names ResultBytes and its range", err)
	}
	if _, err := agentloop.New(agentloop.Config{}); err == nil {
		t.Error("New() = no error without Models")
	}
}
