package a2atest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	legacy "github.com/a2aproject/a2a-go/a2a"
	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v0/pbjson"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1/pbconv"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Interface is a binding of the protocol in one of its versions. Every peer serves all of them; its card names those it
// offers.
type Interface struct{ Binding, Version string }

// The interfaces.
var (
	JSONRPC10  = Interface{"JSONRPC", "1.0"}
	HTTPJSON10 = Interface{"HTTP+JSON", "1.0"}
	GRPC10     = Interface{"GRPC", "1.0"}
	JSONRPC03  = Interface{"JSONRPC", "0.3"}
	HTTPJSON03 = Interface{"HTTP+JSON", "0.3"}
	// AMQP10 is only of a peer made with [NewQueued].
	AMQP10 = Interface{"AMQP", "1.0"}
)

// Interfaces returns those over HTTP, which every other peer serves.
func Interfaces() []Interface {
	return []Interface{JSONRPC10, HTTPJSON10, GRPC10, JSONRPC03, HTTPJSON03}
}

// paths are where interfaces are found under a peer's URL.
var paths = map[Interface]string{JSONRPC10: "/a2a", HTTPJSON10: "/rest", GRPC10: "", JSONRPC03: "/v03", HTTPJSON03: "/rest03"}

const grpcService = "/lf.a2a.v1.A2AService/"

// on returns the interface as a card of the peer names it.
func (i Interface) on(base string) *protocol.AgentInterface {
	if i == AMQP10 {
		return &protocol.AgentInterface{URL: base, ProtocolBinding: "AMQP", ProtocolVersion: protocol.Version}
	}
	path, ok := paths[i]
	if !ok {
		panic("a2atest: there is no interface " + i.Binding + " " + i.Version)
	}
	return &protocol.AgentInterface{URL: base + path, ProtocolBinding: protocol.TransportProtocol(i.Binding), ProtocolVersion: protocol.ProtocolVersion(i.Version)}
}

// mount serves all interfaces.
func mount(mux *http.ServeMux, h a2asrv.RequestHandler) {
	srv := grpc.NewServer()
	a2agrpc.NewHandler(h).RegisterWith(srv)
	mux.Handle(grpcService, srv)
	mux.Handle(paths[JSONRPC10], a2asrv.NewJSONRPCHandler(h))
	mux.Handle(paths[JSONRPC03], a2av0.NewJSONRPCHandler(h))
	mux.Handle(paths[HTTPJSON10]+"/", http.StripPrefix(paths[HTTPJSON10], a2asrv.NewRESTHandler(h)))
	mux.Handle(paths[HTTPJSON03]+"/", http.StripPrefix(paths[HTTPJSON03], a2av0.NewRESTHandler(h)))
}

// cardHandler serves a card as the versions offered have it: 1.0, 0.3, or one that is both.
func cardHandler(card *protocol.AgentCard) http.Handler {
	news, olds := 0, 0
	for _, i := range card.SupportedInterfaces {
		if i != nil && i.ProtocolVersion == a2av0.Version {
			olds++
		} else {
			news++
		}
	}
	if olds == 0 {
		return a2asrv.NewStaticAgentCardHandler(card)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		producer := a2av0.NewStaticAgentCardProducer(card).(interface {
			a2asrv.AgentCardProducer
			a2asrv.AgentCardJSONProducer
		})
		body, err := producer.CardJSON(r.Context())
		if err == nil && news == 0 {
			var fields map[string]any
			if err = json.Unmarshal(body, &fields); err == nil {
				delete(fields, "supportedInterfaces")
				body, err = json.Marshal(fields)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(body) //nolint:errcheck // the client may be gone
	})
}

// protocols are what a peer's server speaks: gRPC needs HTTP/2 without TLS.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// oldMethods are the JSON-RPC methods of version 0.3 by the names of 1.0.
var oldMethods = map[string]string{
	"message/send": MethodSend, "message/stream": MethodStream, "tasks/resubscribe": MethodSubscribe,
	"tasks/get": MethodGet, "tasks/cancel": MethodCancel,
}

// readRequest reads what a request asks for, whatever interface it came to, and leaves its body as it was.
func readRequest(r *http.Request) (Request, error) {
	req := Request{Method: MethodCard, Header: r.Header}
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return req, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	path := r.URL.Path
	switch {
	case path == paths[JSONRPC10] || path == paths[JSONRPC03]:
		req.Interface = JSONRPC10
		if path == paths[JSONRPC03] {
			req.Interface = JSONRPC03
		}
		readRPC(&req, body)
	case strings.HasPrefix(path, grpcService):
		req.Interface = GRPC10
		readGRPC(&req, strings.TrimPrefix(path, grpcService), body)
	case strings.HasPrefix(path, paths[HTTPJSON10]+"/"):
		req.Interface = HTTPJSON10
		readREST(&req, r, strings.TrimPrefix(path, paths[HTTPJSON10]), body, func(body []byte) (*protocol.SendMessageRequest, error) {
			var m protocol.SendMessageRequest
			return &m, json.Unmarshal(body, &m)
		})
	case strings.HasPrefix(path, paths[HTTPJSON03]+"/"):
		req.Interface = HTTPJSON03
		readREST(&req, r, strings.TrimPrefix(path, paths[HTTPJSON03]+a2av0.RESTPathPrefix), body, pbjson.FromProtoSendMessageRequest)
	}
	return req, nil
}

// sent notes the message of a request. One that can't be read is answered by the server behind.
func (req *Request) sent(m *protocol.SendMessageRequest, err error) {
	if err == nil && m != nil && m.Message != nil {
		req.MessageID, req.TaskID, req.ContextID = m.Message.ID, string(m.Message.TaskID), m.Message.ContextID
		req.Text, req.Metadata = text(m.Message), m.Message.Metadata
	}
}

func readRPC(req *Request, body []byte) {
	var call struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if json.Unmarshal(body, &call) != nil {
		return
	}
	var of struct {
		ID        string `json:"id"`
		ContextID string `json:"contextId"`
	}
	json.Unmarshal(call.Params, &of) //nolint:errcheck // as far as it can be read
	req.Method, req.TaskID, req.ContextID = call.Method, of.ID, of.ContextID
	switch call.Method {
	case MethodSend, MethodStream:
		var m protocol.SendMessageRequest
		req.sent(&m, json.Unmarshal(call.Params, &m))
	case "message/send", "message/stream":
		var old legacy.MessageSendParams
		if json.Unmarshal(call.Params, &old) == nil {
			req.sent(a2av0.ToV1SendMessageRequest(&old))
		}
	}
	if name, ok := oldMethods[call.Method]; ok {
		req.Method = name
	}
}

func readREST(req *Request, r *http.Request, path string, body []byte, read func([]byte) (*protocol.SendMessageRequest, error)) {
	id, action, _ := strings.Cut(strings.TrimPrefix(path, "/tasks/"), ":")
	switch {
	case path == "/message:send":
		req.Method = MethodSend
		req.sent(read(body))
	case path == "/message:stream":
		req.Method = MethodStream
		req.sent(read(body))
	case path == "/tasks":
		req.Method, req.ContextID = MethodList, r.URL.Query().Get("contextId")
	case action == "cancel":
		req.Method, req.TaskID = MethodCancel, id
	case action == "subscribe":
		req.Method, req.TaskID = MethodSubscribe, id
	default:
		req.Method, req.TaskID = MethodGet, id
	}
}

func readGRPC(req *Request, method string, body []byte) {
	req.Method = method
	if len(body) < 5 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return
	}
	body = body[5:]
	switch method {
	case MethodSend, MethodStream:
		var m a2apb.SendMessageRequest
		if proto.Unmarshal(body, &m) == nil {
			req.sent(pbconv.FromProtoSendMessageRequest(&m))
		}
	case MethodList:
		var m a2apb.ListTasksRequest
		if proto.Unmarshal(body, &m) == nil {
			req.ContextID = m.GetContextId()
		}
	case MethodGet:
		var m a2apb.GetTaskRequest
		if proto.Unmarshal(body, &m) == nil {
			req.TaskID = m.GetId()
		}
	case MethodSubscribe:
		var m a2apb.SubscribeToTaskRequest
		if proto.Unmarshal(body, &m) == nil {
			req.TaskID = m.GetId()
		}
	case MethodCancel:
		var m a2apb.CancelTaskRequest
		if proto.Unmarshal(body, &m) == nil {
			req.TaskID = m.GetId()
		}
	}
}
