package a2ahttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"orchestrator/a2a"
)

const (
	eventStream = "text/event-stream"
	// lineBuffer is what a stream holds while nothing comes; the SDK's parser holds 64 KiB.
	lineBuffer = 512
)

// streams is a transport of the SDK's over plain HTTP with streams that cost little while they are silent, since a call
// may wait on one for minutes, next to thousands of others.
type streams struct {
	a2aclient.Transport
	dialect  dialect
	url      *url.URL
	http     *http.Client
	maxEvent int64
}

// SendStreamingMessage implements a2aclient.Transport.
func (t *streams) SendStreamingMessage(ctx context.Context, params a2aclient.ServiceParams, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return t.stream(ctx, params, func() (ask, error) { return t.dialect.send(req) })
}

// SubscribeToTask implements a2aclient.Transport.
func (t *streams) SubscribeToTask(ctx context.Context, params a2aclient.ServiceParams, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return t.stream(ctx, params, func() (ask, error) { return t.dialect.subscribe(req) })
}

func (t *streams) stream(ctx context.Context, params a2aclient.ServiceParams, question func() (ask, error)) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		body, isStream, err := t.open(ctx, params, question)
		if err != nil {
			yield(nil, err)
			return
		}
		defer drain(body)
		if !isStream {
			data, err := io.ReadAll(body)
			if err == nil {
				var ev protocol.Event
				if ev, err = t.dialect.event(data); err == nil {
					yield(ev, nil)
					return
				}
			}
			yield(nil, err)
			return
		}
		for data, err := range events(body, t.maxEvent) {
			var ev protocol.Event
			if err == nil {
				ev, err = t.dialect.event(data)
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

const (
	drainTime  = 50 * time.Millisecond
	drainBytes = 16 << 10
)

// drain closes a body. When its end follows soon, which is so when the last event has been read, the connection serves the
// next call.
func drain(body io.ReadCloser) {
	timer := time.AfterFunc(drainTime, func() { body.Close() })
	_, _ = io.CopyN(io.Discard, body, drainBytes) // a failure ends the connection
	timer.Stop()
	body.Close()
}

// open sends the request. The body it returns is a stream, or one JSON answer.
func (t *streams) open(ctx context.Context, params a2aclient.ServiceParams, question func() (ask, error)) (body io.ReadCloser, isStream bool, err error) {
	q, err := question()
	if err != nil {
		return nil, false, &a2a.NotSentError{Err: fmt.Errorf("marshal a message: %w", err)}
	}
	data, to := q.body, t.url
	if q.path != "" {
		to = t.url.JoinPath(q.path)
	}
	sent := &requestBody{data: data}
	req, err := http.NewRequestWithContext(ctx, q.method, to.String(), nil)
	if err != nil {
		return nil, false, &a2a.NotSentError{Err: err}
	}
	if len(data) > 0 {
		req.Body = sent.reader()
		req.GetBody = func() (io.ReadCloser, error) { return sent.reader(), nil }
		req.Header.Set("Content-Type", "application/json")
	}
	req.ContentLength = int64(len(data))
	req.Header.Set("Accept", eventStream)
	for name, values := range t.dialect.headers(params) {
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return nil, false, bare(err)
	}
	sent.drop()
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // the round tripper has checked it
	return resp.Body, mediaType == eventStream, nil
}

// requestBody is a request's bytes until it is answered: the HTTP client holds on to the request for as long as the
// answer's body is open.
type requestBody struct {
	mu   sync.Mutex
	data []byte
	sent bool // all of it was read
}

// drop lets the bytes go, unless the answer came before they were all sent.
func (b *requestBody) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent {
		b.data = nil
	}
}

func (b *requestBody) reader() io.ReadCloser { return &requestReader{body: b} }

type requestReader struct {
	body *requestBody
	off  int
}

func (r *requestReader) Read(p []byte) (int, error) {
	r.body.mu.Lock()
	defer r.body.mu.Unlock()
	if r.off >= len(r.body.data) {
		return 0, io.EOF
	}
	n := copy(p, r.body.data[r.off:])
	r.off += n
	if r.off == len(r.body.data) {
		r.body.sent = true
	}
	return n, nil
}

func (r *requestReader) Close() error { return nil }

// events yields the data of each event of a stream. The slice is good until the next one.
func events(body io.Reader, maxEvent int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r := newEventReader(body, maxEvent)
		for {
			data, err := r.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(data, err) || err != nil {
				return
			}
		}
	}
}

// eventReader reads the events of a stream. Most of a stream's life is spent inside next and readLine, so they keep little.
type eventReader struct {
	lines *bufio.Reader
	max   int64
	data  []byte // of the event in the making
	any   bool   // it has data
}

func newEventReader(body io.Reader, maxEvent int64) *eventReader {
	return &eventReader{lines: bufio.NewReaderSize(body, lineBuffer), max: maxEvent}
}

// next returns the next event's data, or io.EOF after the last. An event that the end of the stream stands for the blank
// line of is taken.
func (e *eventReader) next() ([]byte, error) {
	for {
		line, err := readLine(e.lines, e.max)
		if err == nil {
			err = e.add(line)
		}
		if err != nil {
			return e.ended(err)
		}
		if len(line) == 0 && e.any {
			return e.take(), nil
		}
	}
}

// add takes a line that isn't blank.
func (e *eventReader) add(line []byte) error {
	field, value, _ := bytes.Cut(line, []byte(":"))
	if string(field) != "data" {
		return nil
	}
	if e.any {
		e.data = append(e.data, '\n')
	}
	e.any = true
	e.data = append(e.data, bytes.TrimPrefix(value, []byte(" "))...)
	if int64(len(e.data)) > e.max {
		return a2a.ErrTooLarge
	}
	return nil
}

// take returns the event's data and forgets it.
func (e *eventReader) take() []byte {
	data := e.data
	e.data, e.any = nil, false
	return data
}

// ended is next at the end of the stream.
func (e *eventReader) ended(err error) ([]byte, error) {
	switch {
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the stream broke: %w", err)
	case e.any:
		return e.take(), nil
	}
	return nil, io.EOF
}

// readLine returns the next line without its end, which is LF or CR LF. A last line may have none.
func readLine(r *bufio.Reader, maxLine int64) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if int64(len(long)+len(part)) > maxLine+16 {
				return nil, a2a.ErrTooLarge
			}
			long = append(long, part...)
			continue
		}
		if err != nil && (!errors.Is(err, io.EOF) || len(part)+len(long) == 0) {
			return nil, err
		}
		if long != nil {
			part = append(long, part...)
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(part, []byte("\n")), []byte("\r")), nil
	}
}
