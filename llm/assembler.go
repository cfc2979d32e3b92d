package llm

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"orchestrator/session"
)

// Answer is a model's answer as far as it has come.
type Answer struct {
	Text      string
	Reasoning string
	ToolCalls []ToolCall // in the order of their index
	Usage     session.Usage
	Stop      StopReason
	Opaque    map[string]json.RawMessage // goes into [Message.Opaque]
	Stopped   bool                       // a [ChunkStop] came; without one the answer was cut off
}

// Assembler puts the chunks of one answer together. The zero value is ready to use; it is not safe for concurrent use.
type Assembler struct {
	text, reasoning strings.Builder
	calls           map[int]*assembledCall
	usage           session.Usage
	stop            StopReason
	opaque          map[string]json.RawMessage
	stopped         bool
}

type assembledCall struct {
	id, name string
	args     []byte
}

// Add adds the next chunk.
func (a *Assembler) Add(c Chunk) {
	switch c.Kind {
	case ChunkText:
		a.text.WriteString(c.Text)
	case ChunkReasoning:
		a.reasoning.WriteString(c.Text)
	case ChunkToolStart:
		call := a.call(c.Index)
		call.id, call.name = c.ToolID, c.ToolName
	case ChunkToolArgs:
		call := a.call(c.Index)
		call.args = append(call.args, c.Text...)
	case ChunkToolEnd:
	case ChunkUsage:
		a.usage = c.Usage
	case ChunkStop:
		a.stop, a.opaque, a.stopped = c.Stop, c.Opaque, true
	}
}

func (a *Assembler) call(index int) *assembledCall {
	call, ok := a.calls[index]
	if !ok {
		if a.calls == nil {
			a.calls = make(map[int]*assembledCall)
		}
		call = &assembledCall{}
		a.calls[index] = call
	}
	return call
}

// Answer returns what has come so far. Arguments are always valid JSON: none at all are an empty object, and what the
// model wrote instead of JSON is kept as a JSON string.
func (a *Assembler) Answer() Answer {
	ans := Answer{
		Text:      a.text.String(),
		Reasoning: a.reasoning.String(),
		Usage:     a.usage,
		Stop:      a.stop,
		Opaque:    maps.Clone(a.opaque),
		Stopped:   a.stopped,
	}
	for _, index := range slices.Sorted(maps.Keys(a.calls)) {
		call := a.calls[index]
		ans.ToolCalls = append(ans.ToolCalls, ToolCall{ID: call.id, Name: call.name, Args: validArgs(call.args)})
	}
	return ans
}

func validArgs(b []byte) json.RawMessage {
	if trimmed := bytes.TrimSpace(b); len(trimmed) == 0 {
		return json.RawMessage("{}")
	} else if json.Valid(trimmed) {
		return bytes.Clone(trimmed)
	}
	quoted, err := json.Marshal(string(b))
	if err != nil {
		panic("llm: a string can't be marshalled: " + err.Error())
	}
	return quoted
}
