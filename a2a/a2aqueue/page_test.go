package a2aqueue_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"orchestrator/a2a/a2aqueue"
)

// TestExamplesOfThePageAreRead reads the examples of the binding's page with the decoders, and compares its tables with the
// code.
func TestExamplesOfThePageAreRead(t *testing.T) {
	page, err := os.ReadFile("../../docs/a2a-amqp-binding.md")
	if err != nil {
		t.Fatal(err)
	}
	params := map[string]any{
		"SendMessage": &protocol.SendMessageRequest{}, "SendStreamingMessage": &protocol.SendMessageRequest{}, "SubscribeToTask": &protocol.SubscribeToTaskRequest{},
		"GetTask": &protocol.GetTaskRequest{}, "ListTasks": &protocol.ListTasksRequest{}, "CancelTask": &protocol.CancelTaskRequest{},
		"CreateTaskPushNotificationConfig": &protocol.PushConfig{}, "GetTaskPushNotificationConfig": &protocol.GetTaskPushConfigRequest{},
		"ListTaskPushNotificationConfigs": &protocol.ListTaskPushConfigRequest{}, "DeleteTaskPushNotificationConfig": &protocol.DeleteTaskPushConfigRequest{},
		"GetExtendedAgentCard": &protocol.GetExtendedAgentCardRequest{}, "GetAgentCard": nil,
	}
	seen := map[string]bool{}
	kinds := map[string]int{}
	for _, m := range regexp.MustCompile("(?ms)^```amqp-([a-z]+)\n(.*?)\n```$").FindAllStringSubmatch(string(page), -1) {
		kind, text := m[1], m[2]
		d := example(t, text)
		kinds[kind+" "+d.Type]++
		switch kind {
		case "request":
			r, err := a2aqueue.ReadRequest(d, 1<<20)
			if err != nil {
				t.Errorf("%v of the example\n%s", err, text)
				continue
			}
			seen[r.Method()] = true
			if into := params[r.Method()]; into != nil {
				strict := json.NewDecoder(bytes.NewReader(r.Params()))
				strict.DisallowUnknownFields()
				if err := strict.Decode(into); err != nil {
					t.Errorf("the parameters of the example of %s: %v", r.Method(), err)
				}
			}
		case "answer":
			a, err := a2aqueue.ReadAnswer(d)
			if err != nil {
				t.Errorf("%v of the example\n%s", err, text)
			} else if err := a2aqueue.UnderstandAnswer(a); err != nil {
				t.Errorf("%v of the example\n%s", err, text)
			}
		case "reply":
			if r, err := a2aqueue.ReadReply(d, 1<<20); err != nil || r.Result == nil || r.MessageID != "01JD8R4B0C" {
				t.Errorf("%+v, %v of the example\n%s", r, err, text)
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(params)), slices.Sorted(maps.Keys(seen))); diff != "" {
		t.Errorf("operations with an example (-want +got):\n%s", diff)
	}
	for _, kind := range []string{"answer Response", "answer Event", "answer KeepAlive", "reply Response"} {
		if kinds[kind] == 0 {
			t.Errorf("there is no example of %s", kind)
		}
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(x-[a-z-]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = true
	}
	for name := range a2aqueue.DurableArgs() {
		if !rows[name] {
			t.Errorf("the page doesn't say that queues have %s", name)
		}
	}
	if code := regexp.MustCompile(`-3[12]\d{3}`); len(slices.Compact(slices.Sorted(slices.Values(code.FindAllString(string(page), -1))))) < 17 {
		t.Error("the page doesn't name every code of the protocol's errors")
	}
}

// example reads a message as the page writes it.
func example(t *testing.T, text string) *amqp.Delivery {
	t.Helper()
	head, body, _ := strings.Cut(text+"\n", "\n\n")
	d := &amqp.Delivery{Headers: amqp.Table{}, Body: []byte(strings.TrimSpace(body))}
	for line := range strings.SplitSeq(strings.TrimSpace(head), "\n") {
		name, value, ok := strings.Cut(line, ": ")
		if !ok {
			t.Fatalf("the example has the line %q", line)
		}
		switch name {
		case "type":
			d.Type = value
		case "content_type":
			d.ContentType = value
		case "message_id":
			d.MessageId = value
		case "correlation_id":
			d.CorrelationId = value
		case "reply_to":
			d.ReplyTo = value
		case "expiration":
			d.Expiration = value
		case "a2a-seq", "a2a-keep-alive":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			d.Headers[name] = n
		case "a2a-end":
			d.Headers[name] = value == "true"
		default:
			d.Headers[name] = value
		}
	}
	return d
}
