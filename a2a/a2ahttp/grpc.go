package a2ahttp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"orchestrator/a2a"
)

const grpcType = "application/grpc"

// newGRPC returns the SDK's gRPC transport on our HTTP client.
func newGRPC(u *url.URL, hc *http.Client, maxMessage int64) a2aclient.Transport {
	conn := &grpcConn{base: u, http: hc, maxMessage: maxMessage}
	return &grpcTransport{Transport: a2agrpc.NewGRPCTransportFromClient(a2apb.NewA2AServiceClient(conn))}
}

// grpcTransport is the SDK's transport with streams that end when nobody reads them any more.
type grpcTransport struct{ a2aclient.Transport }

// SendStreamingMessage implements a2aclient.Transport.
func (t *grpcTransport) SendStreamingMessage(ctx context.Context, params a2aclient.ServiceParams, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		t.Transport.SendStreamingMessage(ctx, params, req)(yield)
	}
}

// SubscribeToTask implements a2aclient.Transport.
func (t *grpcTransport) SubscribeToTask(ctx context.Context, params a2aclient.ServiceParams, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		t.Transport.SubscribeToTask(ctx, params, req)(yield)
	}
}

// grpcConn calls methods by gRPC over an HTTP client that speaks HTTP/2. It is gRPC's wire format and no more: there is
// nothing to balance, resolve or retry, and the client's connections, bounds, headers and errors are those of the other
// bindings. A peer that takes only so many streams on a connection gets another connection.
type grpcConn struct {
	base       *url.URL
	http       *http.Client
	maxMessage int64
}

var _ grpc.ClientConnInterface = (*grpcConn)(nil)

// Invoke implements grpc.ClientConnInterface.
func (c *grpcConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &grpcStream{ctx: ctx, conn: c, method: method}
	if err := s.SendMsg(args); err != nil {
		return err
	}
	defer s.resp.Body.Close()
	if err := s.RecvMsg(reply); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s was answered without a message: %w", method, io.ErrUnexpectedEOF)
		}
		return err
	}
	if err := s.RecvMsg(nil); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// NewStream implements grpc.ClientConnInterface for methods that take one message.
func (c *grpcConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &grpcStream{ctx: ctx, conn: c, method: method}, nil
}

// grpcStream is one call.
type grpcStream struct {
	ctx    context.Context //nolint:containedctx // of the one call
	conn   *grpcConn
	method string
	resp   *http.Response // set by SendMsg
}

// Header implements grpc.ClientStream.
func (s *grpcStream) Header() (metadata.MD, error) { return nil, nil }

// Trailer implements grpc.ClientStream.
func (s *grpcStream) Trailer() metadata.MD { return nil }

// CloseSend implements grpc.ClientStream.
func (s *grpcStream) CloseSend() error { return nil }

// Context implements grpc.ClientStream.
func (s *grpcStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ClientStream: it sends the call's one message and waits for the answer's head.
func (s *grpcStream) SendMsg(m any) error {
	pm, ok := m.(proto.Message)
	if !ok {
		return &a2a.NotSentError{Err: fmt.Errorf("%T is no protobuf message", m)}
	}
	frame, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, frameHead), pm)
	if err != nil {
		return &a2a.NotSentError{Err: fmt.Errorf("marshal %s: %w", s.method, err)}
	}
	binary.BigEndian.PutUint32(frame[1:], uint32(len(frame)-frameHead))
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.conn.base.JoinPath(s.method).String(), bytes.NewReader(frame))
	if err != nil {
		return &a2a.NotSentError{Err: err}
	}
	md, _ := metadata.FromOutgoingContext(s.ctx)
	for name, values := range md {
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	req.Header.Set("Content-Type", grpcType)
	req.Header.Set("Te", "trailers")
	if s.resp, err = s.conn.http.Do(req); err != nil {
		return bare(err)
	}
	return nil
}

// frameHead is the size of what stands before every message: whether it is compressed, and its length.
const frameHead = 5

// RecvMsg implements grpc.ClientStream. At the end it returns io.EOF, or the error that the call has ended with.
func (s *grpcStream) RecvMsg(m any) error {
	var head [frameHead]byte
	if _, err := io.ReadFull(s.resp.Body, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return s.end()
		}
		return fmt.Errorf("the stream broke: %w", err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if int64(size) > s.conn.maxMessage {
		return a2a.ErrTooLarge
	}
	pm, ok := m.(proto.Message)
	if !ok || head[0] != 0 {
		return fmt.Errorf("%s was answered with more than was asked for: %w", s.method, a2a.ErrUnreadable)
	}
	// The size is the peer's word: memory grows as the bytes come.
	var data bytes.Buffer
	if _, err := io.CopyN(&data, s.resp.Body, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("the stream broke: %w", err)
	}
	if err := proto.Unmarshal(data.Bytes(), pm); err != nil {
		return fmt.Errorf("%w: %w", a2a.ErrUnreadable, err)
	}
	return nil
}

// end returns what the trailers say, which may stand in the head when there is no body.
func (s *grpcStream) end() error {
	from := s.resp.Trailer
	if from.Get("Grpc-Status") == "" {
		from = s.resp.Header
	}
	code, err := strconv.ParseUint(from.Get("Grpc-Status"), 10, 32)
	if err != nil {
		return fmt.Errorf("the stream broke: %w", io.ErrUnexpectedEOF)
	}
	if codes.Code(code) == codes.OK {
		return io.EOF
	}
	message, err := url.PathUnescape(from.Get("Grpc-Message"))
	if err != nil {
		message = from.Get("Grpc-Message")
	}
	st := status.New(codes.Code(code), message)
	details, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(from.Get("Grpc-Status-Details-Bin"), "="))
	var full spb.Status
	if err == nil && len(details) > 0 && proto.Unmarshal(details, &full) == nil && full.GetCode() == int32(code) {
		st = status.FromProto(&full)
	}
	return grpcError(st, s.resp.Request.URL.Redacted(), retryAfter(from.Get("Retry-After")))
}

// grpcError is what a status means. One in the protocol's own terms, or whose code can only be meant so, stays as it is
// for the SDK to translate; others are what a server says that has no answer, as HTTP's are.
func grpcError(st *status.Status, url string, after time.Duration) error {
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == protocol.ProtocolDomain {
				return st.Err()
			}
		case *errdetails.RetryInfo:
			after = min(max(after, d.GetRetryDelay().AsDuration()), mostRetryAfter)
		}
	}
	code, ok := map[codes.Code]int{
		codes.Unavailable: http.StatusServiceUnavailable, codes.ResourceExhausted: http.StatusTooManyRequests,
		codes.Unimplemented: http.StatusNotFound, codes.Canceled: http.StatusGatewayTimeout,
		codes.DeadlineExceeded: http.StatusGatewayTimeout, codes.Internal: http.StatusInternalServerError,
		codes.Unknown: http.StatusInternalServerError, codes.DataLoss: http.StatusInternalServerError,
		codes.Aborted: http.StatusInternalServerError, codes.AlreadyExists: http.StatusConflict,
		codes.OutOfRange: http.StatusBadRequest,
	}[st.Code()]
	if !ok {
		return st.Err()
	}
	said := "gRPC " + st.Code().String()
	if st.Message() != "" {
		said += ": " + st.Message()
	}
	return &a2a.StatusError{Code: code, Status: said, URL: url, RetryAfter: after}
}
