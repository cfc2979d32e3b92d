package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"orchestrator/llm"
	"orchestrator/session"
)

// The bounds of an answer in bytes. The longest lines are tool calls that come in one piece.
const (
	maxLine   = 8 << 20
	maxAnswer = 64 << 20
)

var errTooLarge = errors.New("the answer is too large")

// boundedBody bounds a body and its lines.
type boundedBody struct {
	io.ReadCloser
	line, total int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.total += n
	if i := bytes.LastIndexByte(p[:n], '\n'); i >= 0 {
		b.line = n - i - 1
	} else {
		b.line += n
	}
	if b.total > maxAnswer || b.line > maxLine {
		return 0, errTooLarge
	}
	return n, err
}

// drain reads a little of what is left.
func drain(body io.Reader) {
	// The error says only that the connection can't be used again.
	_, _ = io.CopyN(io.Discard, body, 4<<10)
}

// reader turns one event stream into chunks.
type reader struct {
	m      *Model
	res    *http.Response
	events ssestream.Decoder
	send   func(llm.Chunk) bool
	closed bool // the reader of the chunks wants no more

	seen           bool // any event at all
	finish         string
	refused        bool
	calls          []*call // in the order they came
	started        int
	byIndex        map[int64]*call
	reasoningField string
}

// call is a tool call in the making.
type call struct {
	index   int // ours, once started
	id      string
	name    string
	args    []byte
	started bool
}

func newReader(m *Model, res *http.Response, emit func(llm.Chunk) bool) *reader {
	res.Body = &boundedBody{ReadCloser: res.Body}
	return &reader{m: m, res: res, events: ssestream.NewDecoder(res), send: emit, byIndex: make(map[int64]*call)}
}

func (r *reader) emit(c llm.Chunk) {
	if !r.closed && !r.send(c) {
		r.closed = true
	}
}

// read returns nil when the stop was emitted or nobody reads any more. done says that the stream itself has ended well.
func (r *reader) read(ctx context.Context) (done bool, err error) {
	for r.events.Next() {
		if err := ctx.Err(); err != nil {
			return false, err // what was read before isn't news any more
		}
		e := r.events.Event()
		data := bytes.TrimSpace(e.Data)
		if len(data) == 0 {
			continue
		}
		r.seen = true
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			return true, r.stop()
		}
		if err := r.event(e.Type, data); err != nil {
			return false, err
		}
		if r.closed {
			return false, nil
		}
	}
	switch err := r.events.Err(); {
	case errors.Is(err, errTooLarge):
		return false, r.m.error("the answer is larger than this program takes", false, err)
	case err != nil:
		return false, r.m.error("the stream broke off", true, err)
	case !r.seen && !r.isEventStream():
		return false, r.m.error("the server sent no event stream; check the base URL", false, nil)
	}
	// A body that ended in order may lack its [DONE]: some servers leave it out. Whether the model was done is said by
	// finish_reason.
	return false, r.stop()
}

func (r *reader) isEventStream() bool {
	mediaType, _, err := mime.ParseMediaType(r.res.Header.Get("Content-Type"))
	return err != nil || mediaType == "text/event-stream"
}

func (r *reader) event(kind string, data []byte) error {
	var chunk openai.ChatCompletionChunk
	if data[0] != '{' {
		return r.m.error("the stream holds something that is not a JSON object", true, nil)
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return r.m.error("the stream holds something that is not JSON", true, err)
	}
	if kind == "error" || isSet(chunk.JSON.ExtraFields["error"]) || string(chunk.Object) == "error" {
		return r.m.streamError(data)
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
	return nil
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

// stop ends the answer if the model said that it is done.
func (r *reader) stop() error {
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
			return r.m.error("the name of a field can't be kept", false, err)
		}
		stop.Opaque = map[string]json.RawMessage{r.m.name: b}
	}
	r.emit(stop)
	return nil
}

func (r *reader) stopReason() (llm.StopReason, error) {
	switch strings.ToLower(r.finish) {
	case "":
		return "", r.m.error("the stream broke off", true, nil)
	case "error", "abort", "cancelled", "insufficient_system_resource":
		return "", r.m.error("the server gave up in the middle of the answer ("+strings.ToLower(r.finish)+")", true, nil)
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
