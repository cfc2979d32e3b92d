package llmhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"time"

	"orchestrator/llm"
)

// The bounds of an answer in bytes. The longest lines are tool calls that come in one piece.
const (
	maxLine   = 8 << 20
	maxAnswer = 64 << 20
)

var errTooLarge = errors.New("the answer is too large")

// Decoder is an SDK's reader of event streams.
type Decoder[E any] interface {
	Next() bool
	Event() E
	Err() error
}

// Reader makes chunks of one answer's events.
type Reader interface {
	// Event takes the next event, whose data is not blank. It says whether it was the last of the stream.
	Event(kind string, data []byte) (last bool, err error)
	// Stop is called once, when the stream has ended in order. It emits the stop, or says that the answer broke off.
	Stop() error
}

type sseEvent = struct {
	Type string
	Data []byte
}

// AnySSE is an SDK's own type of events.
type AnySSE interface {
	~struct {
		Type string
		Data []byte
	}
}

// Call is one model call. All of its fields are required.
type Call[E AnySSE] struct {
	// Open sends the request. Its error is an *[llm.Error] or of the connection.
	Open func(ctx context.Context) (*http.Response, error)
	// Events returns the SDK's reader of the response.
	Events func(*http.Response) Decoder[E]
	// Reader returns what makes chunks of the events. What it emits after the caller wants no more goes nowhere.
	Reader func(emit func(llm.Chunk)) Reader
}

// Stream makes a model call as [llm.Model] describes.
func Stream[E AnySSE](ctx context.Context, s *Server, call Call[E]) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		err := stream(ctx, s, call, yield)
		if err == nil {
			return
		}
		if ended := ctx.Err(); ended != nil {
			err = ended
		}
		yield(llm.Chunk{}, err)
	}
}

// stream returns nil when the stop was emitted or the caller wants no more.
func stream[E AnySSE](caller context.Context, s *Server, call Call[E], yield func(llm.Chunk, error) bool) error {
	if err := caller.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(caller)
	defer cancel()

	res, err := call.Open(ctx)
	if err != nil {
		return s.requestError(err)
	}
	defer res.Body.Close()
	res.Body = &boundedBody{ReadCloser: res.Body}

	closed := false
	reader := call.Reader(func(c llm.Chunk) {
		if !closed && !yield(c, nil) {
			closed = true
		}
	})
	seen := false // any event at all
	for events := call.Events(res); ; {
		if !events.Next() {
			if err := s.endError(events.Err(), res, seen); err != nil {
				return err
			}
			return reader.Stop() // the body ended in order
		}
		if err := ctx.Err(); err != nil {
			return err // what was read before isn't news any more
		}
		event := sseEvent(events.Event())
		data := bytes.TrimSpace(event.Data)
		if len(data) == 0 {
			continue
		}
		seen = true
		last, err := reader.Event(event.Type, data)
		if err != nil || closed {
			return err
		}
		if last {
			break
		}
	}
	err = reader.Stop()
	// What is left is the end of the body. A connection whose body was read to its end is used again; one that takes its
	// time is not worth waiting for.
	timer := time.AfterFunc(50*time.Millisecond, cancel)
	defer timer.Stop()
	drain(res.Body)
	return err
}

// endError says what is wrong with a stream that has ended, if anything.
func (s *Server) endError(err error, res *http.Response, seen bool) error {
	switch {
	case errors.Is(err, errTooLarge):
		return s.Error("the answer is larger than this program takes", false, err)
	case err != nil:
		return s.Error("the stream broke off", true, err)
	case !seen && !isEventStream(res):
		return s.Error("the server sent no event stream; check the base URL", false, nil)
	}
	return nil
}

func isEventStream(res *http.Response) bool {
	mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err != nil || mediaType == "text/event-stream"
}

// Unmarshal reads an event's JSON object into v.
func (s *Server) Unmarshal(data []byte, v any) error {
	if data[0] != '{' {
		return s.Error("the stream holds something that is not a JSON object", true, nil)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return s.Error("the stream holds something that is not JSON", true, err)
	}
	return nil
}

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

// ArgumentObject returns a tool call's arguments as the JSON object that servers insist on, also those that the model got
// wrong.
func ArgumentObject(args json.RawMessage) json.RawMessage {
	trimmed := bytes.TrimSpace(args)
	if len(trimmed) == 0 {
		return json.RawMessage("{}")
	}
	if trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed
	}
	wrong := map[string]any{"invalid_arguments": string(trimmed)}
	if json.Valid(trimmed) {
		wrong["invalid_arguments"] = json.RawMessage(trimmed)
	}
	b, err := json.Marshal(wrong)
	if err != nil {
		panic("llmhttp: a string can't be marshalled: " + err.Error())
	}
	return b
}

// SchemaFields returns the fields of a tool's schema with their values as they are written: the SDKs would make strings of
// json.Number, and float64 rounds. Without a schema it returns nil.
func SchemaFields(tool llm.Tool) (map[string]any, error) {
	if len(tool.Schema) == 0 {
		return nil, nil
	}
	var schema map[string]json.RawMessage
	if err := json.Unmarshal(tool.Schema, &schema); err != nil {
		return nil, fmt.Errorf("the schema of tool %q is not a JSON object: %w", tool.Name, err)
	}
	fields := make(map[string]any, len(schema))
	for k, v := range schema {
		fields[k] = v
	}
	return fields, nil
}
