package a2ahttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	legacy "github.com/a2aproject/a2a-go/a2a"
	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2apb/v0/pbjson"
)

// ask is a request that a stream answers.
type ask struct {
	method string
	path   string // under the interface's URL
	body   []byte
}

// dialect is how a binding over plain HTTP asks for a stream, in one version of the protocol, and how it writes an event.
type dialect interface {
	send(req *protocol.SendMessageRequest) (ask, error)
	subscribe(req *protocol.SubscribeToTaskRequest) (ask, error)
	// event reads an event, or the error in its place.
	event(data []byte) (protocol.Event, error)
	// headers are the params as the version names them.
	headers(params a2aclient.ServiceParams) map[string][]string
}

var (
	_ dialect = jsonrpc10{}
	_ dialect = rest10{}
	_ dialect = jsonrpc03{}
	_ dialect = rest03{}
)

// jsonrpc10 is JSON-RPC of version 1.0.
type jsonrpc10 struct{}

func (jsonrpc10) send(req *protocol.SendMessageRequest) (ask, error) {
	return rpc("SendStreamingMessage", req)
}

func (jsonrpc10) subscribe(req *protocol.SubscribeToTaskRequest) (ask, error) {
	return rpc("SubscribeToTask", req)
}

func (jsonrpc10) headers(params a2aclient.ServiceParams) map[string][]string { return params }

func (jsonrpc10) event(data []byte) (protocol.Event, error) {
	result, err := rpcResult(data)
	if err != nil {
		return nil, err
	}
	var sr protocol.StreamResponse
	if err := json.Unmarshal(result, &sr); err != nil {
		return nil, fmt.Errorf("an event can't be read: %w", err)
	}
	return sr.Event, nil
}

// rest10 is HTTP+JSON of version 1.0.
type rest10 struct{}

func (rest10) send(req *protocol.SendMessageRequest) (ask, error) {
	body, err := json.Marshal(req)
	return ask{method: http.MethodPost, path: tenant(req.Tenant) + "/message:stream", body: body}, err
}

func (rest10) subscribe(req *protocol.SubscribeToTaskRequest) (ask, error) {
	return ask{method: http.MethodPost, path: tenant(req.Tenant) + taskPath(req.ID) + ":subscribe"}, nil
}

func (rest10) headers(params a2aclient.ServiceParams) map[string][]string { return params }

func (rest10) event(data []byte) (protocol.Event, error) {
	if err := eventError(data); err != nil {
		return nil, err
	}
	var sr protocol.StreamResponse
	if err := json.Unmarshal(data, &sr); err != nil {
		return nil, fmt.Errorf("an event can't be read: %w", err)
	}
	return sr.Event, nil
}

// jsonrpc03 is JSON-RPC of version 0.3.
type jsonrpc03 struct{}

func (jsonrpc03) send(req *protocol.SendMessageRequest) (ask, error) {
	return rpc("message/stream", a2av0.FromV1SendMessageRequest(req))
}

func (jsonrpc03) subscribe(req *protocol.SubscribeToTaskRequest) (ask, error) {
	return rpc("tasks/resubscribe", a2av0.FromV1SubscribeToTaskRequest(req))
}

func (jsonrpc03) headers(params a2aclient.ServiceParams) map[string][]string {
	return a2av0.FromServiceParams(params)
}

func (jsonrpc03) event(data []byte) (protocol.Event, error) {
	result, err := rpcResult(data)
	if err != nil {
		return nil, err
	}
	old, err := legacy.UnmarshalEventJSON(result)
	if err != nil {
		return nil, fmt.Errorf("an event can't be read: %w", err)
	}
	ev, err := a2av0.ToV1Event(old)
	if err != nil {
		return nil, fmt.Errorf("an event can't be read: %w", err)
	}
	return ev, nil
}

// rest03 is HTTP+JSON of version 0.3.
type rest03 struct{}

func (rest03) send(req *protocol.SendMessageRequest) (ask, error) {
	body, err := pbjson.ToProtoSendMessageRequest(req)
	return ask{method: http.MethodPost, path: a2av0.RESTPathPrefix + "/message:stream", body: body}, err
}

func (rest03) subscribe(req *protocol.SubscribeToTaskRequest) (ask, error) {
	return ask{method: http.MethodGet, path: a2av0.RESTPathPrefix + taskPath(req.ID) + ":subscribe"}, nil
}

func (rest03) headers(params a2aclient.ServiceParams) map[string][]string {
	return a2av0.FromServiceParams(params)
}

func (rest03) event(data []byte) (protocol.Event, error) {
	if err := eventError(data); err != nil {
		return nil, err
	}
	ev, err := pbjson.FromProtoStreamEvent(encodeFiles(data))
	if err != nil {
		return nil, fmt.Errorf("an event can't be read: %w", err)
	}
	return ev, nil
}

func taskPath(id protocol.TaskID) string { return "/tasks/" + url.PathEscape(string(id)) }

func tenant(name string) string {
	if name == "" {
		return ""
	}
	return "/" + name
}

// rpc is a JSON-RPC request.
func rpc(method string, params any) (ask, error) {
	body, err := json.Marshal(struct {
		JSONRPC string `json:"jsonrpc"`
		ID      string `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params"`
	}{"2.0", "1", method, params}) // one request a connection at a time needs no ids
	return ask{method: http.MethodPost, body: body}, err
}

// rpcErrors are the protocol's errors by their JSON-RPC codes.
var rpcErrors = map[int]error{
	-32700: protocol.ErrParseError,
	-32600: protocol.ErrInvalidRequest,
	-32601: protocol.ErrMethodNotFound,
	-32602: protocol.ErrInvalidParams,
	-32603: protocol.ErrInternalError,
	-32000: protocol.ErrServerError,
	-32001: protocol.ErrTaskNotFound,
	-32002: protocol.ErrTaskNotCancelable,
	-32003: protocol.ErrPushNotificationNotSupported,
	-32004: protocol.ErrUnsupportedOperation,
	-32005: protocol.ErrUnsupportedContentType,
	-32006: protocol.ErrInvalidAgentResponse,
	-32007: protocol.ErrExtendedCardNotConfigured,
	-32008: protocol.ErrExtensionSupportRequired,
	-32009: protocol.ErrVersionNotSupported,
	-31401: protocol.ErrUnauthenticated,
	-31403: protocol.ErrUnauthorized,
}

// rpcResult returns a JSON-RPC answer's result, or the error it holds.
func rpcResult(data []byte) (json.RawMessage, error) {
	var resp struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &resp); err != nil {
		return nil, fmt.Errorf("an event is no JSON-RPC answer: %w", err)
	}
	if resp.Error != nil {
		err, ok := rpcErrors[resp.Error.Code]
		if !ok {
			err = protocol.ErrInternalError
		}
		return nil, protocol.NewError(err, resp.Error.Message)
	}
	return resp.Result, nil
}

// restStatus is an error of HTTP+JSON: a google.rpc.Status.
type restStatus struct {
	Error *struct {
		Message string `json:"message"`
		Details []struct {
			Reason string `json:"reason"`
			Domain string `json:"domain"`
		} `json:"details"`
	} `json:"error"`
	Message string `json:"message"` // of servers of version 0.3
}

// protocolError returns the error in the protocol's terms, or nil when it isn't in them.
func (s restStatus) protocolError() error {
	if s.Error == nil {
		return nil
	}
	for _, d := range s.Error.Details {
		if d.Domain != protocol.ProtocolDomain || d.Reason == "" {
			continue
		}
		for _, err := range rpcErrors {
			if protocol.ErrorReason(err) == d.Reason {
				return protocol.NewError(err, s.Error.Message)
			}
		}
		return protocol.NewError(protocol.ErrInternalError, s.Error.Message)
	}
	return nil
}

// eventError returns the error that stands in the place of an event.
func eventError(data []byte) error {
	var s struct { // without restStatus.Message, since an event may be a message
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("an event is no JSON: %w", err)
	}
	if len(s.Error) == 0 || string(s.Error) == "null" {
		return nil
	}
	var status restStatus
	if err := json.Unmarshal(s.Error, &status.Error); err != nil {
		return fmt.Errorf("an error in a stream can't be read: %w", err)
	}
	if err := status.protocolError(); err != nil {
		return err
	}
	return protocol.NewError(protocol.ErrInternalError, status.Error.Message)
}
