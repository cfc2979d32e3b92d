package a2aqueue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/errordetails"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
)

func TestAddressesAreReadAndWritten(t *testing.T) {
	for in, want := range map[string]struct {
		address a2aqueue.Address
		text    string
	}{
		"amqp://broker/?queue=a2a.one":          {a2aqueue.Address{Host: "broker:5672", Vhost: "/", Queue: "a2a.one"}, "amqp://broker:5672?queue=a2a.one"},
		"amqp://Broker:5673/prod?queue=a2a.one": {a2aqueue.Address{Host: "broker:5673", Vhost: "prod", Queue: "a2a.one"}, "amqp://broker:5673/prod?queue=a2a.one"},
		"amqps://broker/%2f?queue=a2a.one":      {a2aqueue.Address{TLS: true, Host: "broker:5671", Vhost: "/", Queue: "a2a.one"}, "amqps://broker:5671?queue=a2a.one"},
		"amqp://[::1]/a%2fb?queue=a%20b%26c":    {a2aqueue.Address{Host: "[::1]:5672", Vhost: "a/b", Queue: "a b&c"}, "amqp://[::1]:5672/a%2Fb?queue=a+b%26c"},
		"amqp:?queue=a2a.one":                   {a2aqueue.Address{Vhost: "/", Queue: "a2a.one"}, "amqp:?queue=a2a.one"},
		"amqp://broker":                         {a2aqueue.Address{Host: "broker:5672", Vhost: "/"}, "amqp://broker:5672"},
	} {
		got, err := a2aqueue.ParseAddress(in)
		if err != nil || got != want.address || got.String() != want.text {
			t.Errorf("ParseAddress(%q) = %+v (%s), %v, want %+v (%s)", in, got, got, err, want.address, want.text)
		}
	}
	for _, in := range []string{
		"http://broker/?queue=q", "amqp://user:secret@broker/?queue=q", "amqp://broker/a/b?queue=q", "amqp://broker/?queue=q#f", "amqp://:5672/?queue=q",
		"amqp:/vhost?queue=q", "amqp://z::/?queue=q", "amqp://broker/?queue=amq.gen-1", "amqp://broker/?queue=a&queue=b", "amqp://broker/?queue=a%00b", "amqp:queue", "",
	} {
		if got, err := a2aqueue.ParseAddress(in); err == nil {
			t.Errorf("ParseAddress(%q) = %+v, want an error", in, got)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseAddress(%q) tells the password: %v", in, err)
		}
	}
}

func TestBrokerAddressesHoldNoCredentials(t *testing.T) {
	a, err := a2aqueue.BrokerAddress("amqp://user:secret@broker:1234/vhost?heartbeat=5")
	if want := (a2aqueue.Address{Host: "broker:1234", Vhost: "vhost"}); err != nil || a != want {
		t.Errorf("BrokerAddress() = %+v, %v, want %+v", a, err, want)
	}
	if _, err := a2aqueue.BrokerAddress("amqp://user:sec ret@broker:x/"); err == nil || strings.Contains(err.Error(), "ret@") {
		t.Errorf("BrokerAddress() = %v, want an error without the password", err)
	}
}

func TestErrorsKeepTheirKindAndDetails(t *testing.T) {
	for _, kind := range []error{
		protocol.ErrParseError, protocol.ErrInvalidRequest, protocol.ErrMethodNotFound, protocol.ErrInvalidParams, protocol.ErrInternalError,
		protocol.ErrServerError, protocol.ErrTaskNotFound, protocol.ErrTaskNotCancelable, protocol.ErrPushNotificationNotSupported,
		protocol.ErrUnsupportedOperation, protocol.ErrUnsupportedContentType, protocol.ErrInvalidAgentResponse, protocol.ErrExtendedCardNotConfigured,
		protocol.ErrExtensionSupportRequired, protocol.ErrVersionNotSupported, protocol.ErrUnauthenticated, protocol.ErrUnauthorized,
	} {
		_, err := a2aqueue.DecodeResponse(a2aqueue.EncodeError(json.RawMessage(`"1"`), fmt.Errorf("look: %w", kind)))
		e, ok := errors.AsType[*protocol.Error](err)
		if !ok || !errors.Is(err, kind) || e.Message != "look: "+kind.Error() {
			t.Errorf("%v comes back as %#v", kind, err)
		}
	}
	sent := protocol.NewError(protocol.ErrTaskNotFound, "gone").WithDetails(map[string]any{"a": "b"}).
		WithErrorInfoMeta(map[string]string{"taskId": "t1"}).WithTypedDetails(errordetails.NewTyped("type.example/x", map[string]any{"n": 1.0}))
	_, err := a2aqueue.DecodeResponse(a2aqueue.EncodeError(json.RawMessage(`1`), sent))
	got, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		t.Fatalf("DecodeResponse() = %v", err)
	}
	if diff := cmp.Diff(sent.Details, got.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	var types []string
	for _, d := range got.TypedDetails {
		types = append(types, d.TypeURL)
	}
	if diff := cmp.Diff([]string{errordetails.ErrorInfoType, errordetails.StructType, "type.example/x"}, types); diff != "" {
		t.Errorf("typed details (-want +got):\n%s", diff)
	}
	meta, _ := got.ErrorInfo().Value["metadata"].(map[string]string)
	if meta["taskId"] != "t1" {
		t.Errorf("the error info has %v", got.ErrorInfo().Value)
	}
	if _, err := a2aqueue.DecodeResponse([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-1}}`)); !errors.Is(err, protocol.ErrInternalError) {
		t.Errorf("a code nobody knows is %v", err)
	}
}

func TestParametersAreReadFromHeaders(t *testing.T) {
	got := a2aqueue.TakeParams(amqp.Table{
		"A2A-Version": "1.0", "a2a-extensions": []any{"u:1, u:2", "u:3", int32(1)}, "X-Api-Key": "k", "bytes": []byte("b"), "number": int64(7),
		"a2a-seq": "9", "a2a-stream-to": "q", "CC": []any{"other"}, "x-death": []any{}, "x-first-death-queue": "q", "traceparent": "00-1-2-01",
	})
	want := map[string][]string{
		"a2a-version": {"1.0"}, "a2a-extensions": {"u:1", "u:2", "u:3"}, "x-api-key": {"k"}, "bytes": {"b"}, "traceparent": {"00-1-2-01"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
}

func seeds(f *testing.F) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":1.5,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[]}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no","data":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"X","metadata":{"a":1}}]}}`,
		`[]`, `{}`, `null`, `{"id":{}}`, "",
	} {
		f.Add([]byte(body), "GetTask", "application/json", "id", int64(1), "a2a-seq", "2026-01-01T00:00:00Z")
	}
}

func delivery(body []byte, typ, content, id string, n int64, header, value string) *amqp.Delivery {
	return &amqp.Delivery{
		Body: body, Type: typ, ContentType: content, CorrelationId: id, MessageId: id, ReplyTo: id,
		Headers: amqp.Table{
			"A2A-Version": "1.0", "a2a-seq": n, "a2a-keep-alive": n, "a2a-deadline": value, header: value, "a2a-stream-to": value, "a2a-request-message-id": id,
			"A2A-Extensions": []any{value, n},
		},
	}
}

func FuzzRequest(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte, typ, content, id string, n int64, header, value string) {
		r, err := a2aqueue.ReadRequest(delivery(body, typ, content, id, n, header, value), 1<<20)
		if r == nil {
			t.Fatal("ReadRequest() returns no request")
		}
		if !json.Valid(r.RPCID()) {
			t.Errorf("the id %q is no JSON", r.RPCID())
		}
		if err != nil && a2aqueue.ToRPC(err).Code == -32603 {
			t.Errorf("ReadRequest() = %v, which is none of the protocol's errors", err)
		}
		if err == nil && (r.Method() == "" || len(r.Params()) > 0 && !json.Valid(r.Params())) {
			t.Errorf("ReadRequest() = method %q, params %q", r.Method(), r.Params())
		}
		a2aqueue.EncodeError(r.RPCID(), errors.New("x"))
	})
}

func FuzzAnswer(f *testing.F) {
	seeds(f)
	f.Add([]byte(""), "KeepAlive", "", "", int64(0), "", "")
	f.Add([]byte("{}"), "Event", "", "", int64(1), "a2a-end", "")
	f.Fuzz(func(t *testing.T, body []byte, typ, content, id string, n int64, header, value string) {
		a, err := a2aqueue.ReadAnswer(delivery(body, typ, content, id, n, header, value))
		if err == nil && (a.Seq() < 0 || typ == "Response" && !a.End()) {
			t.Errorf("ReadAnswer() = number %d, end %v of a message of type %q", a.Seq(), a.End(), typ)
		}
	})
}

func FuzzReply(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte, typ, content, id string, n int64, header, value string) {
		r, err := a2aqueue.ReadReply(delivery(body, "Response", content, id, n, header, value), 1<<20)
		if err == nil && (r.MessageID == "" || (r.Result == nil) == (r.Err == nil)) {
			t.Errorf("ReadReply() = %+v", r)
		}
	})
}

func TestAnEventIsReadAtOneGoAsInTwoSteps(t *testing.T) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"t"},{"data":{"a":1}}]}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"artifactUpdate":{"taskId":"t","artifact":{"artifactId":"a","parts":[{"url":"u"}]}}},"more":[]}`,
		`{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT"},"task":{"id":"t"}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"message":null}}`,
		`{"jsonrpc":"2.0","id":"1","result":{}}`,
		`{"jsonrpc":"2.0","id":"1","result":null}`,
		`{"jsonrpc":"2.0","id":"1","result":"done"}`,
		`{"jsonrpc":"2.0","id":"1"}`,
		`{"jsonrpc":"1.0","id":"1","result":{"task":{"id":"t"}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"task":{"id":5}}}`,
		`{"jsonrpc":"2.0","id":"1","error":{"code":-32001,"message":"no such task"}}`,
		`{"jsonrpc":"2.0","id":"1","result":null,"error":{"code":-32001,"message":"no such task"}}`,
		`<html>`, `null`, ``,
	} {
		var want protocol.StreamResponse
		result, werr := a2aqueue.DecodeResponse([]byte(body))
		if werr == nil {
			werr = json.Unmarshal(result, &want)
		}
		got, err := a2aqueue.DecodeEvent([]byte(body))
		if (err == nil) != (werr == nil) {
			t.Errorf("DecodeEvent(%s) = %v, in two steps %v", body, err, werr)
		}
		said, wsaid := (*protocol.Error)(nil), (*protocol.Error)(nil)
		if errors.As(err, &said) != errors.As(werr, &wsaid) || !reflect.DeepEqual(said, wsaid) {
			t.Errorf("DecodeEvent(%s) = %v, in two steps %v", body, err, werr)
		}
		if diff := cmp.Diff(want.Event, got); err == nil && diff != "" {
			t.Errorf("DecodeEvent(%s), in two steps and at one go (-want +got):\n%s", body, diff)
		}
	}
}

func FuzzResponse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte, _, _, _ string, _ int64, _, _ string) {
		got, err := a2aqueue.DecodeEvent(body)
		if (err == nil) != (got != nil) {
			t.Errorf("DecodeEvent(%s) = %v, %v", body, got, err)
		}
	})
}

func FuzzQueueAddress(f *testing.F) {
	for _, s := range []string{"amqp://broker:5672/v?queue=q", "amqps://[::1]/%2f?queue=a+b", "amqp:?queue=q", "amqp://u:p@h/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := a2aqueue.ParseAddress(s)
		if err != nil {
			return
		}
		again, err := a2aqueue.ParseAddress(a.String())
		if err != nil || again != a {
			t.Errorf("ParseAddress(%q) = %+v, written %q, read again %+v, %v", s, a, a.String(), again, err)
		}
	})
}
