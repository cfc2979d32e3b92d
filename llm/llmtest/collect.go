// Package llmtest tests implementations of llm.Model: one suite that each adapter runs on dialogues in the format of its
// vendor, and the means to read an answer in a test.
//
// The expectations stand here, by the name of the case; an adapter brings the dialogues. The suite serves them in-process
// to the adapter's own client, so no test needs the network.
package llmtest

import (
	"fmt"
	"iter"

	"orchestrator/llm"
)

// Collect reads an answer to its end. The error is the model's, or says which rule of [llm.Model] and [llm.Chunk] the
// model broke. The answer is as far as it came.
func Collect(seq iter.Seq2[llm.Chunk, error]) (llm.Answer, error) {
	var (
		a      llm.Assembler
		failed error
		broken error
		rules  = rules{calls: make(map[int]bool)}
	)
	for c, err := range seq {
		switch {
		case broken != nil:
		case failed != nil:
			broken = fmt.Errorf("llmtest: the stream goes on after the error %w", failed)
		case err != nil:
			failed = err
		default:
			broken = rules.check(c)
			a.Add(c)
		}
	}
	if broken == nil && failed == nil && !rules.stopped {
		broken = fmt.Errorf("llmtest: the stream ended without a stop and without an error")
	}
	if broken == nil && failed != nil && rules.stopped {
		broken = fmt.Errorf("llmtest: an error after the stop: %w", failed)
	}
	if broken != nil {
		return a.Answer(), broken
	}
	return a.Answer(), failed
}

// rules is what has to hold from one chunk to the next.
type rules struct {
	calls   map[int]bool // index → ended
	stopped bool
}

func (r *rules) check(c llm.Chunk) error {
	if r.stopped {
		return fmt.Errorf("llmtest: a chunk of kind %d after the stop", c.Kind)
	}
	ended, started := r.calls[c.Index]
	switch c.Kind {
	case llm.ChunkText, llm.ChunkReasoning, llm.ChunkUsage:
	case llm.ChunkToolStart:
		if started || c.Index != len(r.calls) {
			return fmt.Errorf("llmtest: tool call %d starts as number %d", c.Index, len(r.calls))
		}
		r.calls[c.Index] = false
	case llm.ChunkToolArgs:
		if !started || ended {
			return fmt.Errorf("llmtest: arguments for tool call %d, started %v, ended %v", c.Index, started, ended)
		}
	case llm.ChunkToolEnd:
		if !started || ended {
			return fmt.Errorf("llmtest: an end of tool call %d, started %v, ended %v", c.Index, started, ended)
		}
		r.calls[c.Index] = true
	case llm.ChunkStop:
		for index, ended := range r.calls {
			if !ended {
				return fmt.Errorf("llmtest: the stop comes before the end of tool call %d", index)
			}
		}
		if c.Stop == "" {
			return fmt.Errorf("llmtest: a stop without a reason")
		}
		r.stopped = true
	default:
		return fmt.Errorf("llmtest: a chunk of the unknown kind %d", c.Kind)
	}
	return nil
}
