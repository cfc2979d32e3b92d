package a2aqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/errordetails"
)

const rpcVersion = "2.0"

// rpcRequest is a JSON-RPC request, with its parameters as they came.
type rpcRequest struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty"`
}

// rpcResponse is a JSON-RPC response, with its result as it came.
type rpcResponse struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int                   `json:"code"`
	Message string                `json:"message"`
	Data    []*errordetails.Typed `json:"data,omitempty"`
}

// rpcErrors are the protocol's errors and their JSON-RPC codes.
var rpcErrors = []struct {
	code int
	err  error
}{
	{-32700, protocol.ErrParseError},
	{-32600, protocol.ErrInvalidRequest},
	{-32601, protocol.ErrMethodNotFound},
	{-32602, protocol.ErrInvalidParams},
	{-32603, protocol.ErrInternalError},
	{-32000, protocol.ErrServerError},
	{-32001, protocol.ErrTaskNotFound},
	{-32002, protocol.ErrTaskNotCancelable},
	{-32003, protocol.ErrPushNotificationNotSupported},
	{-32004, protocol.ErrUnsupportedOperation},
	{-32005, protocol.ErrUnsupportedContentType},
	{-32006, protocol.ErrInvalidAgentResponse},
	{-32007, protocol.ErrExtendedCardNotConfigured},
	{-32008, protocol.ErrExtensionSupportRequired},
	{-32009, protocol.ErrVersionNotSupported},
	{-31401, protocol.ErrUnauthenticated},
	{-31403, protocol.ErrUnauthorized},
}

// null is the id of an answer to what has none.
var null = json.RawMessage("null")

// encodeRequest writes a JSON-RPC request.
func encodeRequest(id, method string, params any) ([]byte, error) {
	body, err := json.Marshal(struct {
		JSONRPC string `json:"jsonrpc"`
		ID      string `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{rpcVersion, id, method, params})
	if err != nil {
		return nil, fmt.Errorf("write the parameters of %s: %w", method, err)
	}
	return body, nil
}

// decodeRequest reads a JSON-RPC request. What is wrong with it is one of the protocol's errors; the request then holds what
// could be read, its id in particular.
func decodeRequest(body []byte) (rpcRequest, error) {
	var req rpcRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return rpcRequest{ID: null}, unreadable(err)
	}
	switch {
	case len(req.ID) == 0:
		req.ID = null
	case req.ID[0] != '"' && req.ID[0] != '-' && (req.ID[0] < '0' || req.ID[0] > '9') && !bytes.Equal(req.ID, null):
		return rpcRequest{ID: null, Method: req.Method}, protocol.ErrInvalidRequest
	}
	switch {
	case req.JSONRPC != rpcVersion:
		return req, protocol.ErrInvalidRequest
	case req.Method == "":
		return req, protocol.ErrInvalidRequest
	}
	return req, nil
}

// unreadable is an error of reading JSON, as the protocol has it.
func unreadable(err error) error {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%w: %w", protocol.ErrInvalidParams, err)
	}
	return fmt.Errorf("%w: %w", protocol.ErrParseError, err)
}

// encodeResult writes a JSON-RPC response.
func encodeResult(id json.RawMessage, result any) ([]byte, error) {
	body, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{rpcVersion, id, result})
	if err != nil {
		return nil, fmt.Errorf("write a result: %w", err)
	}
	return body, nil
}

// encodeError writes a JSON-RPC response that is an error.
func encodeError(id json.RawMessage, err error) []byte {
	body, jerr := json.Marshal(rpcResponse{JSONRPC: rpcVersion, ID: id, Error: toRPC(err)})
	if jerr != nil { // details that can't be written
		body, _ = json.Marshal(rpcResponse{JSONRPC: rpcVersion, ID: id, Error: &rpcError{Code: toRPC(err).Code, Message: err.Error()}}) //nolint:errcheck // texts and numbers
	}
	return body
}

// decodeResponse reads a JSON-RPC response and returns its result, or its error as the protocol has it. An error that is no
// *protocol.Error says that it can't be read.
func decodeResponse(body []byte) (json.RawMessage, error) {
	var resp rpcResponse
	if err := json.Unmarshal(body, &resp); err != nil {
		return nil, fmt.Errorf("the answer is no JSON-RPC response: %w", err)
	}
	if err := checkResponse(resp.JSONRPC, resp.Error); err != nil {
		return nil, err
	}
	return resp.Result, nil
}

func checkResponse(version string, e *rpcError) error {
	switch {
	case version != rpcVersion:
		return fmt.Errorf("the answer is of JSON-RPC %q, not %q", version, rpcVersion)
	case e != nil:
		return fromRPC(e)
	}
	return nil
}

// toRPC returns an error as JSON-RPC has it: the code of the error of the protocol that it is or wraps, its text, and its
// details, one of which is a google.rpc.ErrorInfo.
func toRPC(err error) *rpcError {
	out := &rpcError{Code: -32603, Message: err.Error()}
	reason := "INTERNAL_ERROR"
	for _, e := range rpcErrors {
		if errors.Is(err, e.err) {
			out.Code, reason = e.code, protocol.ErrorReason(e.err)
			break
		}
	}
	info := map[string]string{"timestamp": time.Now().UTC().Format(time.RFC3339)}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		if len(e.Details) > 0 {
			out.Data = append(out.Data, errordetails.NewFromStruct(e.Details))
		}
		for _, d := range e.TypedDetails {
			if d == nil {
				continue
			}
			if d.TypeURL == errordetails.ErrorInfoType {
				maps.Copy(info, texts(d.Value["metadata"]))
				continue
			}
			out.Data = append(out.Data, d)
		}
	}
	out.Data = append(out.Data, errordetails.NewErrorInfo(reason, protocol.ProtocolDomain, info))
	return out
}

// fromRPC is the other way round. A code that isn't the protocol's is an internal error.
func fromRPC(e *rpcError) *protocol.Error {
	base := protocol.ErrInternalError
	for _, known := range rpcErrors {
		if known.code == e.Code {
			base = known.err
		}
	}
	out := protocol.NewError(base, e.Message)
	if e.Message == "" {
		out.Message = base.Error()
	}
	var typed []*errordetails.Typed
	for _, d := range e.Data {
		switch {
		case d == nil:
		case d.TypeURL == errordetails.ErrorInfoType:
			if info := texts(d.Value["metadata"]); info != nil {
				out = out.WithErrorInfoMeta(info)
			}
		default:
			if out.Details == nil {
				out = out.WithDetails(d.Value)
			}
			typed = append(typed, d)
		}
	}
	out.TypedDetails = append(out.TypedDetails, typed...)
	return out
}

// texts returns the entries of a map that are texts.
func texts(v any) map[string]string {
	switch m := v.(type) {
	case map[string]string:
		return m
	case map[string]any:
		out := make(map[string]string, len(m))
		for k, v := range m {
			if s, ok := v.(string); ok {
				out[k] = s
			}
		}
		return out
	}
	return nil
}

// decodeEvent reads a JSON-RPC response to a message, or of a stream, at one go: its result as [decodeResponse] and
// protocol.StreamResponse would one after the other. Its errors are those of decodeResponse.
func decodeEvent(body []byte) (protocol.Event, error) {
	var resp struct {
		JSONRPC string `json:"jsonrpc"`
		Result  struct {
			Message        *protocol.Message                 `json:"message"`
			Task           *protocol.Task                    `json:"task"`
			StatusUpdate   *protocol.TaskStatusUpdateEvent   `json:"statusUpdate"`
			ArtifactUpdate *protocol.TaskArtifactUpdateEvent `json:"artifactUpdate"`
		} `json:"result"`
		Error *rpcError `json:"error"`
	}
	if err := json.Unmarshal(body, &resp); err != nil {
		if _, syntax := errors.AsType[*json.SyntaxError](err); syntax {
			return nil, fmt.Errorf("the answer is no JSON-RPC response: %w", err)
		}
		return nil, fmt.Errorf("the answer can't be read: %w", err)
	}
	if err := checkResponse(resp.JSONRPC, resp.Error); err != nil {
		return nil, err
	}
	var events []protocol.Event
	if e := resp.Result.Message; e != nil {
		events = append(events, e)
	}
	if e := resp.Result.Task; e != nil {
		events = append(events, e)
	}
	if e := resp.Result.StatusUpdate; e != nil {
		events = append(events, e)
	}
	if e := resp.Result.ArtifactUpdate; e != nil {
		events = append(events, e)
	}
	if len(events) != 1 {
		return nil, fmt.Errorf("the answer has %d of a message, a task, a status and an artifact, not one", len(events))
	}
	return events[0], nil
}

// decodeSendResult reads what a message was answered with as a whole: a task or a message.
func decodeSendResult(body []byte) (protocol.SendMessageResult, error) {
	ev, err := decodeEvent(body)
	if err != nil {
		return nil, err
	}
	res, ok := ev.(protocol.SendMessageResult)
	if !ok {
		return nil, fmt.Errorf("the answer is a %T, and neither a task nor a message", ev)
	}
	return res, nil
}
