package llm_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/llm"
	"orchestrator/session"
)

func assemble(chunks ...llm.Chunk) llm.Answer {
	var a llm.Assembler
	for _, c := range chunks {
		a.Add(c)
	}
	return a.Answer()
}

func TestAssemblerPutsInterleavedChunksTogether(t *testing.T) {
	got := assemble(
		llm.Chunk{Kind: llm.ChunkReasoning, Text: "hm"},
		llm.Chunk{Kind: llm.ChunkText, Text: "Let "},
		llm.Chunk{Kind: llm.ChunkToolStart, Index: 1, ToolID: "b", ToolName: "second"},
		llm.Chunk{Kind: llm.ChunkToolStart, Index: 0, ToolID: "a", ToolName: "first"},
		llm.Chunk{Kind: llm.ChunkToolArgs, Index: 0, Text: `{"x"`},
		llm.Chunk{Kind: llm.ChunkToolArgs, Index: 1, Text: `{"y":2}`},
		llm.Chunk{Kind: llm.ChunkToolArgs, Index: 0, Text: `:1}`},
		llm.Chunk{Kind: llm.ChunkToolEnd, Index: 0},
		llm.Chunk{Kind: llm.ChunkText, Text: "me see."},
		llm.Chunk{Kind: llm.ChunkReasoning, Text: "!"},
		llm.Chunk{Kind: llm.ChunkUsage, Usage: session.Usage{InputTokens: 1}},
		llm.Chunk{Kind: llm.ChunkUsage, Usage: session.Usage{InputTokens: 2}},
		llm.Chunk{Kind: llm.ChunkStop, Stop: llm.StopToolCalls, Opaque: map[string]json.RawMessage{"v": json.RawMessage(`1`)}},
	)
	want := llm.Answer{
		Text:      "Let me see.",
		Reasoning: "hm!",
		ToolCalls: []llm.ToolCall{
			{ID: "a", Name: "first", Args: json.RawMessage(`{"x":1}`)},
			{ID: "b", Name: "second", Args: json.RawMessage(`{"y":2}`)},
		},
		Usage:   session.Usage{InputTokens: 2},
		Stop:    llm.StopToolCalls,
		Opaque:  map[string]json.RawMessage{"v": json.RawMessage(`1`)},
		Stopped: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Answer() (-want +got):\n%s", diff)
	}
}

func TestAssemblerArgumentsAreAlwaysJSON(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", `{}`},
		{" \n", `{}`},
		{` {"a": 1} `, `{"a": 1}`},
		{`{"a": `, `"{\"a\": "`},
		{"x\xff", `"x\ufffd"`},
	} {
		got := assemble(
			llm.Chunk{Kind: llm.ChunkToolStart, ToolName: "t"},
			llm.Chunk{Kind: llm.ChunkToolArgs, Text: tt.in},
		)
		if s := string(got.ToolCalls[0].Args); s != tt.want {
			t.Errorf("arguments of %q = %s, want %s", tt.in, s, tt.want)
		}
	}
}

func TestAssemblerSaysWhetherTheAnswerStopped(t *testing.T) {
	if got := assemble(llm.Chunk{Kind: llm.ChunkText, Text: "x"}); got.Stopped {
		t.Error("an answer without a stop chunk counts as stopped")
	}
}
