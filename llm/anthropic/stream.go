package anthropic

import (
	"bytes"
	"encoding/json"

	"github.com/anthropics/anthropic-sdk-go/v2"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
	"orchestrator/session"
)

// reader turns one event stream into chunks.
type reader struct {
	m     *Model
	model string
	emit  func(llm.Chunk)

	blocks  []*openBlock // in the order they came
	byIndex map[int64]*openBlock
	calls   int
	said    bool // any text
	usage   session.Usage
	fresh   int64 // input tokens outside the cache
	written int64 // input tokens into the cache
	stop    anthropic.StopReason
	details string // why a refusal
}

// openBlock is a block in the making.
type openBlock struct {
	block
	call  int    // the number of a tool call
	input string // its arguments if they came at once
	ended bool
}

var _ llmhttp.Reader = (*reader)(nil)

func newReader(m *Model, model string, emit func(llm.Chunk)) *reader {
	return &reader{m: m, model: model, emit: emit, byIndex: make(map[int64]*openBlock)}
}

// Event implements [llmhttp.Reader]. Events and blocks of kinds it doesn't know are passed over, as the vendor asks.
func (r *reader) Event(kind string, data []byte) (last bool, err error) {
	var e anthropic.MessageStreamEventUnion
	if err := r.m.server.Unmarshal(data, &e); err != nil {
		return false, err
	}
	switch {
	case kind == "error" || e.Type == "error":
		return false, r.m.server.StreamError(data)
	case e.Type == "message_start":
		u := e.Message.Usage
		r.count(u.InputTokens, u.CacheCreationInputTokens, u.CacheReadInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens)
	case e.Type == "content_block_start":
		r.start(e)
	case e.Type == "content_block_delta":
		if b := r.byIndex[e.Index]; b != nil && !b.ended {
			r.delta(b, e.Delta)
		}
	case e.Type == "content_block_stop":
		if b := r.byIndex[e.Index]; b != nil {
			r.end(b)
		}
	case e.Type == "message_delta":
		if e.Delta.StopReason != "" {
			r.stop, r.details = e.Delta.StopReason, e.Delta.StopDetails.Explanation
		}
		u := e.Usage
		r.count(u.InputTokens, u.CacheCreationInputTokens, u.CacheReadInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens)
	case e.Type == "message_stop":
		return true, nil
	}
	return false, nil
}

// count takes the totals so far. Some servers say the parts of the input only at the start, some only at the end.
func (r *reader) count(fresh, written, cached, out, thinking int64) {
	before := r.usage
	r.fresh, r.written = max(r.fresh, fresh), max(r.written, written)
	r.usage.CachedInputTokens = max(r.usage.CachedInputTokens, cached)
	r.usage.CacheWriteTokens = r.written
	r.usage.InputTokens = r.fresh + r.written + r.usage.CachedInputTokens
	r.usage.OutputTokens = max(r.usage.OutputTokens, out)
	r.usage.ReasoningTokens = max(r.usage.ReasoningTokens, thinking)
	if r.usage != before {
		r.emit(llm.Chunk{Kind: llm.ChunkUsage, Usage: r.usage})
	}
}

func (r *reader) start(e anthropic.MessageStreamEventUnion) {
	if old := r.byIndex[e.Index]; old != nil {
		r.end(old)
	}
	content := e.ContentBlock
	b := &openBlock{block: block{Kind: content.Type}}
	switch content.Type {
	case blockText:
		r.text(b, content.Text)
	case blockThinking:
		b.Signature = content.Signature
		r.reasoning(b, content.Thinking)
	case blockRedacted:
		b.Data = content.Data
	case blockTool:
		b.call = r.calls
		r.calls++
		r.emit(llm.Chunk{Kind: llm.ChunkToolStart, Index: b.call, ToolID: content.ID, ToolName: content.Name})
		if raw := bytes.TrimSpace([]byte(content.JSON.Input.Raw())); !bytes.Equal(raw, []byte("null")) && !bytes.Equal(raw, []byte("{}")) {
			b.input = string(raw)
		}
	default:
		delete(r.byIndex, e.Index)
		return
	}
	r.blocks = append(r.blocks, b)
	r.byIndex[e.Index] = b
}

func (r *reader) text(b *openBlock, s string) {
	if s != "" {
		b.Len += len(s)
		r.said = true
		r.emit(llm.Chunk{Kind: llm.ChunkText, Text: s})
	}
}

func (r *reader) reasoning(b *openBlock, s string) {
	if s != "" {
		b.Len += len(s)
		r.emit(llm.Chunk{Kind: llm.ChunkReasoning, Text: s})
	}
}

func (r *reader) delta(b *openBlock, d anthropic.MessageStreamEventUnionDelta) {
	switch {
	case d.Type == "text_delta" && b.Kind == blockText:
		r.text(b, d.Text)
	case d.Type == "thinking_delta" && b.Kind == blockThinking:
		r.reasoning(b, d.Thinking)
	case d.Type == "signature_delta" && b.Kind == blockThinking:
		b.Signature += d.Signature
	case d.Type == "input_json_delta" && b.Kind == blockTool && d.PartialJSON != "":
		b.input = "" // what came at once is told again
		r.emit(llm.Chunk{Kind: llm.ChunkToolArgs, Index: b.call, Text: d.PartialJSON})
	}
}

func (r *reader) end(b *openBlock) {
	if b.ended {
		return
	}
	b.ended = true
	if b.Kind != blockTool {
		return
	}
	if b.input != "" {
		r.emit(llm.Chunk{Kind: llm.ChunkToolArgs, Index: b.call, Text: b.input})
	}
	r.emit(llm.Chunk{Kind: llm.ChunkToolEnd, Index: b.call})
}

// Stop implements [llmhttp.Reader]. Whether the model was done is said by stop_reason.
func (r *reader) Stop() error {
	if r.stop == "" {
		return r.m.server.Error("the stream broke off", true, nil)
	}
	for _, b := range r.blocks {
		r.end(b)
	}
	stop := llm.Chunk{Kind: llm.ChunkStop, Stop: r.stopReason()}
	if stop.Stop == llm.StopRefusal && !r.said && r.details != "" {
		r.emit(llm.Chunk{Kind: llm.ChunkText, Text: r.details})
	}
	o := opaque{Model: r.model}
	thinks := false
	for _, b := range r.blocks {
		thinks = thinks || b.Kind == blockThinking || b.Kind == blockRedacted
		o.Blocks = append(o.Blocks, b.block)
	}
	if thinks {
		raw, err := json.Marshal(o)
		if err != nil {
			return r.m.server.Error("the thinking can't be kept", false, err)
		}
		stop.Opaque = map[string]json.RawMessage{r.m.server.Name(): raw}
	}
	r.emit(stop)
	return nil
}

func (r *reader) stopReason() llm.StopReason {
	switch r.stop {
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		return llm.StopMaxTokens
	case anthropic.StopReasonRefusal:
		return llm.StopRefusal
	}
	if r.calls > 0 {
		return llm.StopToolCalls
	}
	return llm.StopEnd
}
