package llmtest_test

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"orchestrator/llm"
	"orchestrator/llm/llmtest"
)

// played is a stream of chunks and errors in this order.
func played(steps ...any) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		for _, s := range steps {
			c, _ := s.(llm.Chunk)
			err, _ := s.(error)
			if !yield(c, err) {
				return
			}
		}
	}
}

func TestCollectNamesTheBrokenRule(t *testing.T) {
	failed := errors.New("failed")
	text := llm.Chunk{Kind: llm.ChunkText, Text: "x"}
	stop := llm.Chunk{Kind: llm.ChunkStop, Stop: llm.StopEnd}
	start := func(i int) llm.Chunk { return llm.Chunk{Kind: llm.ChunkToolStart, Index: i} }
	args := func(i int) llm.Chunk { return llm.Chunk{Kind: llm.ChunkToolArgs, Index: i} }
	end := func(i int) llm.Chunk { return llm.Chunk{Kind: llm.ChunkToolEnd, Index: i} }
	for _, tt := range []struct {
		name string
		seq  iter.Seq2[llm.Chunk, error]
		want string // "": no error
	}{
		{"text", played(text, stop), ""},
		{"calls that take turns", played(start(0), start(1), args(1), args(0), end(1), end(0), stop), ""},
		{"the model's error", played(text, failed), "failed"},
		{"nothing", played(), "without a stop"},
		{"no stop", played(text), "without a stop"},
		{"text after the stop", played(stop, text), "after the stop"},
		{"error after the stop", played(stop, failed), "after the stop"},
		{"text after the error", played(failed, text), "goes on after the error"},
		{"stop without a reason", played(llm.Chunk{Kind: llm.ChunkStop}), "without a reason"},
		{"a gap", played(start(1), end(1), stop), "starts as number 0"},
		{"a start twice", played(start(0), start(0)), "starts as number 1"},
		{"arguments before the start", played(args(0)), "arguments for tool call 0"},
		{"arguments after the end", played(start(0), end(0), args(0)), "arguments for tool call 0"},
		{"an end twice", played(start(0), end(0), end(0)), "an end of tool call 0"},
		{"no end", played(start(0), stop), "before the end of tool call 0"},
		{"an unknown kind", played(llm.Chunk{Kind: 99}), "unknown kind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := llmtest.Collect(tt.seq)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Collect() = %v, want %q", err, tt.want)
			}
		})
	}
}
