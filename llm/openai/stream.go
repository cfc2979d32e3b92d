package openai

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
	"orchestrator/session"
)

// reader turns one event stream into chunks.
type reader struct {
	m    *Model
	emit func(llm.Chunk)

	finish         string
	refused        bool
	calls          []*call // in the order they came
	started        int
	byIndex        map[int64]*call
	reasoningField string
}

var _ llmhttp.Reader = (*reader)(nil)

// call is a tool call in the making.
type call struct {
	index   int // ours, once started
	id      string
	name    string
	args    []byte
	started bool
}

func newReader(m *Model, emit func(llm.Chunk)) *reader {
	return &reader{m: m, emit: emit, byIndex: make(map[int64]*call)}
}

// Event implements [llmhttp.Reader]. Some servers leave out the [DONE].
func (r *reader) Event(kind string, data []byte) (last bool, err error) {
	if bytes.HasPrefix(data, []byte("[DONE]")) {
		return true, nil
	}
	var chunk openai.ChatCompletionChunk
	if err := r.m.server.Unmarshal(data, &chunk); err != nil {
		return false, err
	}
	if kind == "error" || isSet(chunk.JSON.ExtraFields["error"]) || string(chunk.Object) == "error" {
		return false, r.m.server.StreamError(data)
	}
	if isSet(chunk.JSON.Usage) {
		r.emit(llm.Chunk{Kind: llm.ChunkUsage, Usage: usage(chunk.Usage)})
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue // nobody asked for a second answer
		}
		r.delta(choice.Delta)
		if choice.FinishReason != "" {
			r.finish = choice.FinishReason
		}
		break
	}
	return false, nil
}

func (r *reader) delta(d openai.ChatCompletionChunkChoiceDelta) {
	for _, field := range []string{"reasoning_content", "reasoning"} {
		if text := stringOf(d.JSON.ExtraFields[field]); text != "" {
			r.reasoningField = field
			r.emit(llm.Chunk{Kind: llm.ChunkReasoning, Text: text})
			break // servers that send both say the same twice
		}
	}
	if d.Content != "" {
		r.emit(llm.Chunk{Kind: llm.ChunkText, Text: d.Content})
	}
	if d.Refusal != "" {
		r.refused = true
		r.emit(llm.Chunk{Kind: llm.ChunkText, Text: d.Refusal})
	}
	if isSet(d.JSON.FunctionCall) {
		//lint:ignore SA1019 servers of the API's first form still send it
		call := d.FunctionCall
		r.fragment(fragment{name: call.Name, args: argsOf(call.Arguments, call.JSON.Arguments)})
	}
	for i, tc := range d.ToolCalls {
		r.fragment(fragment{
			indexed: tc.JSON.Index.Valid(), index: tc.Index, following: i > 0,
			id: tc.ID, name: tc.Function.Name, args: argsOf(tc.Function.Arguments, tc.Function.JSON.Arguments),
		})
	}
}

// fragment is a piece of a tool call as it came.
type fragment struct {
	indexed   bool
	index     int64
	following bool // it came in one message after another call's
	id, name  string
	args      string
}

func (r *reader) fragment(f fragment) {
	c := r.callOf(f)
	if c == nil {
		c = &call{}
		r.calls = append(r.calls, c)
	}
	if f.indexed {
		r.byIndex[f.index] = c
	}
	if !c.started {
		if c.id == "" {
			c.id = f.id
		}
		if c.name == "" {
			c.name = f.name
		}
		if c.args = append(c.args, f.args...); c.name != "" {
			r.start(c)
		}
		return
	}
	if f.args != "" {
		c.args = append(c.args, f.args...)
		r.emit(llm.Chunk{Kind: llm.ChunkToolArgs, Index: c.index, Text: f.args})
	}
}

// start emits the beginning of a call, whose name was waited for, and what has come of its arguments.
func (r *reader) start(c *call) {
	c.started, c.index = true, r.started
	r.started++
	r.emit(llm.Chunk{Kind: llm.ChunkToolStart, Index: c.index, ToolID: c.id, ToolName: c.name})
	if len(c.args) > 0 {
		r.emit(llm.Chunk{Kind: llm.ChunkToolArgs, Index: c.index, Text: string(c.args)})
	}
}

// callOf returns the call a fragment belongs to, or nil if it begins another. The index decides, but servers leave it out
// or give all parallel calls the same; a call that is named again after its arguments are complete is another one.
func (r *reader) callOf(f fragment) *call {
	var c *call
	if f.indexed {
		c = r.byIndex[f.index]
	} else if len(r.calls) > 0 {
		c = r.calls[len(r.calls)-1]
	}
	switch complete := c != nil && json.Valid(c.args); {
	case c == nil || f.name == "" || c.name == "":
		return c
	case f.id != "" && f.id == c.id:
		return c
	case f.id != "" && c.id != "" && (complete || len(c.args) == 0):
		return nil
	case complete, !f.indexed && f.following, f.name != c.name && len(c.args) == 0:
		return nil
	}
	return c
}

// Stop implements [llmhttp.Reader]. Whether the model was done is said by finish_reason.
func (r *reader) Stop() error {
	reason, err := r.stopReason()
	if err != nil {
		return err
	}
	for _, c := range r.calls {
		if !c.started {
			r.start(c)
		}
		r.emit(llm.Chunk{Kind: llm.ChunkToolEnd, Index: c.index})
	}
	stop := llm.Chunk{Kind: llm.ChunkStop, Stop: reason}
	if r.reasoningField != "" {
		b, err := json.Marshal(opaque{ReasoningField: r.reasoningField})
		if err != nil {
			return r.m.server.Error("the name of a field can't be kept", false, err)
		}
		stop.Opaque = map[string]json.RawMessage{r.m.server.Name(): b}
	}
	r.emit(stop)
	return nil
}

func (r *reader) stopReason() (llm.StopReason, error) {
	switch strings.ToLower(r.finish) {
	case "":
		return "", r.m.server.Error("the stream broke off", true, nil)
	case "error", "abort", "cancelled", "insufficient_system_resource":
		return "", r.m.server.Error("the server gave up in the middle of the answer ("+strings.ToLower(r.finish)+")", true, nil)
	case "length", "max_tokens", "model_length":
		return llm.StopMaxTokens, nil
	case "content_filter", "refusal", "safety":
		return llm.StopRefusal, nil
	}
	// stop, tool_calls, function_call and what servers made up: not all of them say tool_calls when they call tools.
	switch {
	case len(r.calls) > 0:
		return llm.StopToolCalls, nil
	case r.refused:
		return llm.StopRefusal, nil
	}
	return llm.StopEnd, nil
}

func usage(u openai.CompletionUsage) session.Usage {
	return session.Usage{
		InputTokens:       u.PromptTokens,
		OutputTokens:      u.CompletionTokens,
		ReasoningTokens:   u.CompletionTokensDetails.ReasoningTokens,
		CachedInputTokens: u.PromptTokensDetails.CachedTokens,
	}
}

// isSet says whether a field is there and not null.
func isSet(f respjson.Field) bool {
	raw := f.Raw()
	return raw != "" && raw != "null"
}

func stringOf(f respjson.Field) string {
	var s string
	if err := json.Unmarshal([]byte(f.Raw()), &s); err != nil {
		return "" // absent, null, or a structure this adapter doesn't know
	}
	return s
}

// argsOf returns a fragment of arguments. Some servers send an object instead of a string that holds one.
func argsOf(s string, f respjson.Field) string {
	if raw := strings.TrimSpace(f.Raw()); strings.HasPrefix(raw, "{") {
		return raw
	}
	return s
}
