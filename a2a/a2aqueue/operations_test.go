package a2aqueue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

// talkative answers everything, in ways that the request decides.
func talkative() *agent {
	ok := func(id protocol.TaskID) error {
		switch id {
		case "missing":
			return fmt.Errorf("look it up: %w", protocol.ErrTaskNotFound)
		case "detailed":
			return protocol.NewError(protocol.ErrTaskNotCancelable, "it is over").WithDetails(map[string]any{"since": "noon"}).
				WithErrorInfoMeta(map[string]string{"taskId": "detailed"})
		case "broken":
			return errTest
		}
		return nil
	}
	named := func(id protocol.TaskID) *protocol.Task {
		t := task(protocol.TaskStateCompleted)
		t.ID = id
		t.Artifacts = []*protocol.Artifact{{ID: "a", Parts: protocol.ContentParts{protocol.NewTextPart("text"), protocol.NewRawPart([]byte{0, 1, 2})}}}
		t.Metadata = map[string]any{"k": []any{"v", 1.5, nil}}
		return t
	}
	config := &protocol.PushConfig{TaskID: "task-1", ID: "config-1", URL: "https://example.com/hook", Token: "t"}
	return &agent{
		get: func(_ context.Context, q *protocol.GetTaskRequest) (*protocol.Task, error) {
			return named(q.ID), ok(q.ID)
		},
		list: func(_ context.Context, q *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
			if q.ContextID == "secret" {
				return nil, protocol.ErrUnauthenticated
			}
			return &protocol.ListTasksResponse{Tasks: []*protocol.Task{named("t1"), named("t2")}, TotalSize: 2, PageSize: q.PageSize, NextPageToken: "n"}, nil
		},
		cancel: func(_ context.Context, q *protocol.CancelTaskRequest) (*protocol.Task, error) {
			return named(q.ID), ok(q.ID)
		},
		stream: func(_ context.Context, q *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
			switch text := q.Message.Parts[0].Text(); {
			case text == "message":
				return saying(reply("hello"))
			case text == "refused":
				return failing(protocol.ErrInvalidParams)
			case text == "broken":
				return failing(errTest)
			case text == "question":
				return saying(task(protocol.TaskStateSubmitted), status(protocol.TaskStateInputRequired))
			default:
				return saying(task(protocol.TaskStateSubmitted), status(protocol.TaskStateWorking),
					artifact("a", text), status(protocol.TaskStateCompleted))
			}
		},
		send: func(_ context.Context, q *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
			switch text := q.Message.Parts[0].Text(); {
			case text == "message":
				return reply("hello"), nil
			case text == "refused":
				return nil, protocol.ErrInvalidParams
			case text == "broken":
				return nil, errTest
			case q.Config != nil && q.Config.ReturnImmediately:
				return task(protocol.TaskStateSubmitted), nil
			}
			return named("task-1"), nil
		},
		subscribe: func(_ context.Context, q *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
			if err := ok(q.ID); err != nil {
				return failing(err)
			}
			return saying(task(protocol.TaskStateInputRequired), status(protocol.TaskStateWorking), status(protocol.TaskStateCompleted))
		},
		pushGet: func(context.Context, *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig, error) {
			return config, nil
		},
		pushList: func(context.Context, *protocol.ListTaskPushConfigRequest) (*protocol.ListTaskPushConfigResponse, error) {
			return &protocol.ListTaskPushConfigResponse{Configs: []*protocol.PushConfig{config}}, nil
		},
		pushSet: func(_ context.Context, c *protocol.PushConfig) (*protocol.PushConfig, error) { return c, nil },
		pushDel: func(_ context.Context, q *protocol.DeleteTaskPushConfigRequest) error {
			if q.ID == "none" {
				return protocol.ErrPushNotificationNotSupported
			}
			return nil
		},
		card: func(context.Context, *protocol.GetExtendedAgentCardRequest) (*protocol.AgentCard, error) {
			return nil, protocol.ErrExtendedCardNotConfigured
		},
	}
}

func artifact(id protocol.ArtifactID, text string) *protocol.TaskArtifactUpdateEvent {
	return &protocol.TaskArtifactUpdateEvent{TaskID: "task-1", ContextID: "context-1", Artifact: &protocol.Artifact{ID: id, Parts: protocol.ContentParts{protocol.NewTextPart(text)}}}
}

// TestOperationsAnswerAsOverHTTP calls every operation through the SDK's client, over both bindings.
func TestOperationsAnswerAsOverHTTP(t *testing.T) {
	h := talkative()
	web := httptest.NewServer(a2asrv.NewJSONRPCHandler(h))
	defer web.Close()
	url := brokertest.Vhost(t)
	serve(t, url, a2aqueue.ServerConfig{Handler: h, VolatileTasks: true})
	queue := connect(t, url, a2aqueue.FactoryConfig{})
	home, err := a2aqueue.BrokerAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	client := func(binding protocol.TransportProtocol, at string, o a2aclient.FactoryOption) *a2aclient.Client {
		card := &protocol.AgentCard{Capabilities: protocol.AgentCapabilities{Streaming: true}, SupportedInterfaces: []*protocol.AgentInterface{
			{URL: at, ProtocolBinding: binding, ProtocolVersion: protocol.Version},
		}}
		c, err := a2aclient.NewFactory(a2aclient.WithDefaultsDisabled(), o).CreateFromCard(bounded(t), card)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	clients := map[string]*a2aclient.Client{
		"http":  client(protocol.TransportProtocolJSONRPC, web.URL, a2aclient.WithJSONRPCTransport(web.Client())),
		"queue": client(a2aqueue.Binding, home.WithQueue(agentQueue).String(), a2aclient.WithTransport(a2aqueue.Binding, queue)),
	}
	call := func(v any, err error) (any, error) { return v, err }
	n := 0
	send := func(text string) *protocol.SendMessageRequest {
		n++
		return message(fmt.Sprintf("m-%d", n), text)
	}
	immediately := func(text string) *protocol.SendMessageRequest {
		q := send(text)
		q.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
		return q
	}
	for name, do := range map[string]func(context.Context, *a2aclient.Client) (any, error){
		"GetTask": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.GetTask(ctx, &protocol.GetTaskRequest{ID: "t"}))
		},
		"GetTask missing": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.GetTask(ctx, &protocol.GetTaskRequest{ID: "missing"}))
		},
		"GetTask broken": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.GetTask(ctx, &protocol.GetTaskRequest{ID: "broken"}))
		},
		"ListTasks": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.ListTasks(ctx, &protocol.ListTasksRequest{PageSize: 5}))
		},
		"ListTasks secret": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.ListTasks(ctx, &protocol.ListTasksRequest{ContextID: "secret"}))
		},
		"CancelTask": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.CancelTask(ctx, &protocol.CancelTaskRequest{ID: "t"}))
		},
		"CancelTask with details": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.CancelTask(ctx, &protocol.CancelTaskRequest{ID: "detailed"}))
		},
		"SendMessage a task": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, send("task")))
		},
		"SendMessage a message": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, send("message")))
		},
		"SendMessage refused": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, send("refused")))
		},
		"SendMessage broken": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, send("broken")))
		},
		"SendMessage without waiting": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, immediately("task")))
		},
		"SendMessage without waiting, refused": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.SendMessage(ctx, immediately("refused")))
		},
		"SendStreamingMessage a task": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SendStreamingMessage(ctx, send("task"))))
		},
		"SendStreamingMessage a message": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SendStreamingMessage(ctx, send("message"))))
		},
		"SendStreamingMessage a question": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SendStreamingMessage(ctx, send("question"))))
		},
		"SendStreamingMessage refused": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SendStreamingMessage(ctx, send("refused"))))
		},
		"SendStreamingMessage broken": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SendStreamingMessage(ctx, send("broken"))))
		},
		"SubscribeToTask": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: "t"})))
		},
		"SubscribeToTask missing": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(collect(c.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: "missing"})))
		},
		"GetTaskPushNotificationConfig": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.GetTaskPushConfig(ctx, &protocol.GetTaskPushConfigRequest{TaskID: "t", ID: "c"}))
		},
		"ListTaskPushNotificationConfigs": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.ListTaskPushConfigs(ctx, &protocol.ListTaskPushConfigRequest{TaskID: "t"}))
		},
		"CreateTaskPushNotificationConfig": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.CreateTaskPushConfig(ctx, &protocol.PushConfig{TaskID: "t", URL: "https://example.com"}))
		},
		"DeleteTaskPushNotificationConfig": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return nil, c.DeleteTaskPushConfig(ctx, &protocol.DeleteTaskPushConfigRequest{TaskID: "t", ID: "c"})
		},
		"DeleteTaskPushNotificationConfig nobody": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return nil, c.DeleteTaskPushConfig(ctx, &protocol.DeleteTaskPushConfigRequest{TaskID: "t", ID: "none"})
		},
		"GetExtendedAgentCard": func(ctx context.Context, c *a2aclient.Client) (any, error) {
			return call(c.GetExtendedAgentCard(ctx, &protocol.GetExtendedAgentCardRequest{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, wantErr := do(bounded(t), clients["http"])
			got, err := do(bounded(t), clients["queue"])
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("over the queue (-http +queue):\n%s", diff)
			}
			if diff := cmp.Diff(described(wantErr), described(err)); diff != "" {
				t.Errorf("error over the queue (-http +queue):\n%s", diff)
			}
		})
	}
}

// described is what a caller can tell of an error, without the time it was made at.
func described(err error) any {
	e, ok := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return err.Error()
	}
	meta, _ := e.ErrorInfo().Value["metadata"].(map[string]string)
	delete(meta, "timestamp")
	return []any{e.Err.Error(), e.Message, e.Details, e.TypedDetails}
}

// TestBodiesAnswerAsOverHTTP sends the same bytes over both bindings.
func TestBodiesAnswerAsOverHTTP(t *testing.T) {
	h := talkative()
	web := httptest.NewServer(a2asrv.NewJSONRPCHandler(h))
	defer web.Close()
	url := brokertest.Vhost(t)
	serve(t, url, a2aqueue.ServerConfig{Handler: h, VolatileTasks: true})
	r := listen(t, open(t, a2aqueue.BrokerConfig{URL: url}), "")
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"missing"}}`,
		`{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":"detailed"}}`,
		`{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":["t"]}}`,
		`{"jsonrpc":"2.0","id":"1","method":"GetTask"}`,
		`{"jsonrpc":"2.0","id":"1","method":"GetTask","params":[]}`,
		`{"jsonrpc":"2.0","method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":null,"method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":{},"method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"1.0","id":"1","method":"GetTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":"1"}`,
		`{"jsonrpc":"2.0","id":"1","method":"tasks/get","params":{}}`,
		`{"jsonrpc":"2.0","id":"1","method":"ListTasks","params":{}}`,
		`{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":{"messageId":"b-1","role":"ROLE_USER","parts":[{"text":"message"}]}}}`,
		`{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":{"messageId":"b-2","role":"ROLE_USER","parts":[{"text":"task"}]}}}`,
		`{"jsonrpc":"2.0","id":"1","method":"SendMessage","params":{"message":3}}`,
		`{"jsonrpc":"2.0","id":"1","method":"GetExtendedAgentCard","params":{}}`,
		`not JSON`, `[1]`, `"text"`, ``, `{"jsonrpc":"2.0","id":"1","method":"GetTask","params":{"id":"t"}`,
	} {
		resp, err := web.Client().Post(web.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var want any
		err = json.NewDecoder(resp.Body).Decode(&want)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("over HTTP, %s is answered with %v, %v", body, resp.Status, err)
		}
		p := r.asked("", body)
		r.publish(agentQueue, p)
		d := r.next()
		var got any
		if err := json.NewDecoder(bytes.NewReader(d.Body)).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(undated(want), undated(got)); diff != "" {
			t.Errorf("%s (-http +queue):\n%s", body, diff)
		}
		if d.Type != "Response" || d.CorrelationId != "x-1" || d.ContentType != "application/json" || d.Headers["A2A-Version"] != "1.0" {
			t.Errorf("%s is answered with type %q, correlation %q, content type %q, version %v", body, d.Type, d.CorrelationId, d.ContentType, d.Headers["A2A-Version"])
		}
	}
}

// undated is an answer without what differs from time to time, and from one reader of JSON to another.
func undated(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "timestamp")
		if text, ok := v["message"].(string); ok && v["code"] != nil {
			v["message"], _, _ = strings.Cut(text, ": ")
		}
		for k, e := range v {
			v[k] = undated(e)
		}
	case []any:
		for i, e := range v {
			v[i] = undated(e)
		}
	}
	return v
}

func TestAnAgentTellsItsCardThroughTheQueue(t *testing.T) {
	url := brokertest.Vhost(t)
	want := &protocol.AgentCard{Name: "clerk", Version: "1", Skills: []protocol.AgentSkill{{ID: "s", Name: "S", Tags: []string{"t"}}}}
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{}, Card: a2asrv.AgentCardProducerFn(func(context.Context) (*protocol.AgentCard, error) { return want, nil })})
	serve(t, url, a2aqueue.ServerConfig{Handler: &agent{}, Queue: "a2a.shy"})
	f := connect(t, url, a2aqueue.FactoryConfig{})
	got, err := f.Client(agentQueue).GetAgentCard(bounded(t), nil)
	if err != nil || got.Name != want.Name || len(got.Skills) != 1 {
		t.Errorf("GetAgentCard() = %+v, %v", got, err)
	}
	if _, err := f.Client("a2a.shy").GetAgentCard(bounded(t), nil); !errors.Is(err, protocol.ErrMethodNotFound) {
		t.Errorf("GetAgentCard() of an agent without one = %v", err)
	}
}
