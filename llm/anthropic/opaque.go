package anthropic

import (
	"encoding/json"

	"github.com/anthropics/anthropic-sdk-go/v2"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
)

// opaque is what the server must see again of an assistant message: the order of its blocks, and of its thinking what no
// other field holds. It is kept only of messages with thinking; the others are told by their fields.
type opaque struct {
	Model  string  `json:"model"` // signatures are one model's own
	Blocks []block `json:"blocks"`
}

// The kinds of block.
const (
	blockText     = "text"
	blockThinking = "thinking"
	blockRedacted = "redacted_thinking"
	blockTool     = "tool_use"
)

// block is a block of an assistant message. Its text is not repeated: it is the next Len bytes of the message's text or
// reasoning, and a tool call is the message's next.
type block struct {
	Kind      string `json:"kind"`
	Len       int    `json:"len,omitempty"`
	Signature string `json:"signature,omitempty"` // of thinking
	Data      string `json:"data,omitempty"`      // of thinking the server keeps to itself
}

// assistant returns the blocks of an assistant message; none at all if there is nothing to say.
func (m *Model) assistant(msg llm.Message, model string) []anthropic.ContentBlockParamUnion {
	if blocks, ok := m.replay(msg, model); ok {
		return blocks
	}
	var blocks []anthropic.ContentBlockParamUnion
	if !blank(msg.Text) {
		blocks = append(blocks, anthropic.NewTextBlock(msg.Text))
	}
	for _, call := range msg.ToolCalls {
		blocks = append(blocks, toolUse(call))
	}
	return blocks
}

// replay returns the blocks of a message as the server sent them. It fails for a message of another server or model, and
// for one that has been changed since.
func (m *Model) replay(msg llm.Message, model string) ([]anthropic.ContentBlockParamUnion, bool) {
	var o opaque
	raw, ok := msg.Opaque[m.server.Name()]
	if !ok || json.Unmarshal(raw, &o) != nil || o.Model != model {
		return nil, false
	}
	var blocks []anthropic.ContentBlockParamUnion
	text, reasoning, calls := msg.Text, msg.Reasoning, msg.ToolCalls
	for _, b := range o.Blocks {
		var part string
		fits := true
		switch b.Kind {
		case blockText:
			if part, text, fits = cut(text, b.Len); !blank(part) {
				blocks = append(blocks, anthropic.NewTextBlock(part))
			}
		case blockThinking:
			part, reasoning, fits = cut(reasoning, b.Len)
			blocks = append(blocks, anthropic.NewThinkingBlock(b.Signature, part))
		case blockRedacted:
			blocks = append(blocks, anthropic.NewRedactedThinkingBlock(b.Data))
		case blockTool:
			if fits = len(calls) > 0; fits {
				blocks = append(blocks, toolUse(calls[0]))
				calls = calls[1:]
			}
		}
		if !fits {
			return nil, false
		}
	}
	return blocks, text == "" && reasoning == "" && len(calls) == 0
}

func cut(s string, n int) (part, rest string, ok bool) {
	if n < 0 || n > len(s) {
		return "", s, false
	}
	return s[:n], s[n:], true
}

func toolUse(call llm.ToolCall) anthropic.ContentBlockParamUnion {
	return anthropic.NewToolUseBlock(wireID(call.ID), llmhttp.ArgumentObject(call.Args), call.Name)
}
