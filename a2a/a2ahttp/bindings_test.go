package a2ahttp_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
	"orchestrator/a2a/a2atest"
)

func TestNewestVersionThenPreferredBindingIsSpoken(t *testing.T) {
	all := a2atest.Interfaces()
	for name, tc := range map[string]struct {
		offers []a2atest.Interface
		prefer []string
		want   a2atest.Interface
	}{
		"by default":                   {offers: all, want: a2atest.JSONRPC10},
		"gRPC preferred":               {offers: all, prefer: []string{"GRPC"}, want: a2atest.GRPC10},
		"HTTP+JSON preferred":          {offers: all, prefer: []string{"HTTP+JSON", "JSONRPC"}, want: a2atest.HTTPJSON10},
		"the rest by default":          {offers: []a2atest.Interface{a2atest.HTTPJSON10, a2atest.JSONRPC10}, prefer: []string{"GRPC"}, want: a2atest.JSONRPC10},
		"a newer version is preferred": {offers: []a2atest.Interface{a2atest.JSONRPC03, a2atest.GRPC10}, prefer: []string{"JSONRPC"}, want: a2atest.GRPC10},
		"only an old one":              {offers: []a2atest.Interface{a2atest.HTTPJSON03}, want: a2atest.HTTPJSON03},
		"two old ones":                 {offers: []a2atest.Interface{a2atest.HTTPJSON03, a2atest.JSONRPC03}, want: a2atest.JSONRPC03},
	} {
		t.Run(name, func(t *testing.T) {
			p := a2atest.New(t, a2atest.Config{Interfaces: tc.offers})
			c := connect(t, newTransport(t, a2ahttp.Config{Prefer: tc.prefer}), a2a.Peer{Name: "p", Card: p.URL()})
			if _, err := stream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if got := p.Sends(); len(got) != 1 || got[0].Interface != tc.want {
				t.Errorf("the message came to %v, want %v", got, tc.want)
			}
		})
	}
	if _, err := a2ahttp.New(a2ahttp.Config{Prefer: []string{"REST"}}); err == nil || !strings.Contains(err.Error(), `"REST"; there are JSONRPC, HTTP+JSON, GRPC`) {
		t.Errorf("New() = %v", err)
	}
}

func TestCardsOfVersion03AreRead(t *testing.T) {
	iface := func(url, binding, version string) protocol.AgentInterface {
		return protocol.AgentInterface{URL: url, ProtocolBinding: protocol.TransportProtocol(binding), ProtocolVersion: protocol.ProtocolVersion(version)}
	}
	for card, want := range map[string][]protocol.AgentInterface{
		`{"name":"x","url":"http://a.test","protocolVersion":"0.3.0"}`: {iface("http://a.test", "JSONRPC", "0.3.0")},
		`{"name":"x","url":"http://a.test"}`:                           {iface("http://a.test", "JSONRPC", "0.3")},
		`{"url":"http://a.test","preferredTransport":"HTTP+JSON","protocolVersion":"0.3","additionalInterfaces":[
			{"url":"http://a.test","transport":"HTTP+JSON"},{"url":"http://a.test","transport":"JSONRPC"},{"url":"http://b.test","transport":"GRPC"}]}`: {
			iface("http://a.test", "HTTP+JSON", "0.3"), iface("http://a.test", "JSONRPC", "0.3"), iface("http://b.test", "GRPC", "0.3"),
		},
		`{"url":"http://a.test","protocolVersion":"0.3","supportedInterfaces":[{"url":"http://c.test","protocolBinding":"GRPC","protocolVersion":"1.0"}]}`: {iface("http://c.test", "GRPC", "1.0")},
	} {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, card) //nolint:errcheck // the client may be gone
		})
		got, err := newTransport(t, a2ahttp.Config{}).Card(t.Context(), a2a.Peer{Name: "p", Card: url})
		if err != nil {
			t.Errorf("%s: %v", card, err)
			continue
		}
		var interfaces []protocol.AgentInterface
		for _, i := range got.SupportedInterfaces {
			interfaces = append(interfaces, *i)
		}
		if diff := cmp.Diff(want, interfaces); diff != "" {
			t.Errorf("%s (-want +got):\n%s", card, diff)
		}
	}
}

// listenGRPC serves by gRPC's own HTTP/2, not by net/http's.
func listenGRPC(t *testing.T, register func(*grpc.Server)) a2a.Client {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.MaxConcurrentStreams(2))
	register(srv)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	i := protocol.NewAgentInterface("http://"+ln.Addr().String(), protocol.TransportProtocolGRPC)
	c, err := newTransport(t, a2ahttp.Config{}).Connect(t.Context(), a2a.Peer{Name: "p"}, &protocol.AgentCard{
		Capabilities: protocol.AgentCapabilities{Streaming: true}, SupportedInterfaces: []*protocol.AgentInterface{i},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patient answers when it is released.
type patient struct {
	begun    chan struct{}
	released chan struct{}
}

// Execute implements a2asrv.AgentExecutor.
func (e patient) Execute(ctx context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		e.begun <- struct{}{}
		select {
		case <-e.released:
			yield(protocol.NewMessageForTask(protocol.MessageRoleAgent, ec, protocol.NewTextPart("hi")), nil)
		case <-ctx.Done():
		}
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (patient) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(func(protocol.Event, error) bool) {}
}

func TestMoreStreamsThanAConnectionOfGRPCTakes(t *testing.T) {
	e := patient{begun: make(chan struct{}), released: make(chan struct{})}
	c := listenGRPC(t, func(s *grpc.Server) {
		a2agrpc.NewHandler(a2asrv.NewHandler(e, a2asrv.WithLogger(slog.New(slog.DiscardHandler)))).RegisterWith(s)
	})
	const streams = 7 // the server takes two a connection
	answers := make(chan string, streams)
	for range streams {
		go func() {
			got, err := stream(t.Context(), c)
			if err != nil {
				got = append(got, err.Error())
			}
			answers <- strings.Join(got, " ")
		}()
	}
	for range streams {
		<-e.begun
	}
	close(e.released)
	for range streams {
		if got := <-answers; got != "hi" {
			t.Errorf("a stream gave %q", got)
		}
	}
}

// refusing answers every call with a status.
type refusing struct {
	a2apb.UnimplementedA2AServiceServer
	with error
}

func (r refusing) SendMessage(context.Context, *a2apb.SendMessageRequest) (*a2apb.SendMessageResponse, error) {
	return nil, r.with
}

func (r refusing) SendStreamingMessage(*a2apb.SendMessageRequest, grpc.ServerStreamingServer[a2apb.StreamResponse]) error {
	return r.with
}

func TestStatusesOfGRPCMeanWhatHTTPsDo(t *testing.T) {
	with := func(code codes.Code, details ...protoadapt.MessageV1) error {
		st := status.New(code, "50% of it, ü")
		for _, d := range details {
			var err error
			if st, err = st.WithDetails(d); err != nil {
				t.Fatal(err)
			}
		}
		return st.Err()
	}
	for name, tc := range map[string]struct {
		err    error
		status int // 0: it is an error of the protocol
		is     error
		after  time.Duration
	}{
		"overloaded":          {err: with(codes.ResourceExhausted, &errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)}), status: 429, after: 7 * time.Second},
		"unavailable":         {err: with(codes.Unavailable), status: 503},
		"no such service":     {err: with(codes.Unimplemented), status: 404},
		"it broke":            {err: with(codes.Internal), status: 500},
		"nobody knows":        {err: with(codes.Unknown), status: 500},
		"a gateway gave up":   {err: with(codes.DeadlineExceeded), status: 504},
		"no such task":        {err: with(codes.NotFound), is: protocol.ErrTaskNotFound},
		"bad message":         {err: with(codes.InvalidArgument), is: protocol.ErrInvalidParams},
		"not let in":          {err: with(codes.Unauthenticated), is: protocol.ErrUnauthenticated},
		"not allowed":         {err: with(codes.PermissionDenied), is: protocol.ErrUnauthorized},
		"the protocol's word": {err: with(codes.Internal, &errdetails.ErrorInfo{Domain: protocol.ProtocolDomain, Reason: protocol.ErrorReason(protocol.ErrInvalidAgentResponse)}), is: protocol.ErrInvalidAgentResponse},
		"another's word":      {err: with(codes.Internal, &errdetails.ErrorInfo{Domain: "example.test", Reason: "TASK_NOT_FOUND"}), status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			c := listenGRPC(t, func(s *grpc.Server) { a2apb.RegisterA2AServiceServer(s, refusing{with: tc.err}) })
			_, streamed := stream(t.Context(), c)
			_, once := c.SendMessage(t.Context(), message("hello"))
			for _, err := range []error{streamed, once} {
				if tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("the error is %v, want %v", err, tc.is)
				}
				s, ok := errors.AsType[*a2a.StatusError](err)
				if ok != (tc.status != 0) || ok && (s.Code != tc.status || s.RetryAfter != tc.after) {
					t.Errorf("the error is %#v, want status %d after %s", err, tc.status, tc.after)
				}
				if err != nil && !strings.Contains(err.Error(), "50% of it, ü") {
					t.Errorf("the error %q doesn't say what the server said", err)
				}
			}
		})
	}
}

func TestBrokenFramesOfGRPCAreErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		body    string
		trailer string
		is      error
	}{
		"nothing":             {is: io.ErrUnexpectedEOF},
		"half a head":         {body: "\x00\x00", is: io.ErrUnexpectedEOF},
		"half a message":      {body: "\x00\x00\x00\x00\x09abc", trailer: "0", is: io.ErrUnexpectedEOF},
		"no message":          {body: "\x00\x00\x00\x00\x03\xff\xff\xff", trailer: "0", is: a2a.ErrUnreadable},
		"compressed":          {body: "\x01\x00\x00\x00\x01a", trailer: "0", is: a2a.ErrUnreadable},
		"a size over all":     {body: "\x00\xff\xff\xff\xff", is: a2a.ErrTooLarge},
		"a status of no kind": {trailer: "x", is: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			p := a2atest.New(t, a2atest.Config{Interfaces: []a2atest.Interface{a2atest.GRPC10}, Fault: func(r a2atest.Request) a2atest.Fault {
				if r.Method == a2atest.MethodCard {
					return a2atest.Fault{}
				}
				f := a2atest.Fault{Status: 200, MediaType: "application/grpc", Body: tc.body}
				if tc.trailer != "" {
					f.Header = map[string]string{http.TrailerPrefix + "Grpc-Status": tc.trailer}
				}
				return f
			}})
			c := connect(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p", Card: p.URL()})
			if _, err := stream(t.Context(), c); !errors.Is(err, tc.is) {
				t.Errorf("the error is %v, want %v", err, tc.is)
			}
		})
	}
}
