package openai

import (
	"encoding/json"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
)

// params maps a request.
//
// The limit of the answer has two names. OpenAI's newer models refuse max_tokens, many other servers know nothing else
// and pass over max_completion_tokens without a word, and both together are refused; so it goes by the host. Behind a
// proxy to OpenAI that maps neither, leave the limit unset.
func (m *Model) params(r llm.Request) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{
		Model:         r.Model,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	if r.MaxTokens > 0 {
		limit := param.NewOpt(int64(r.MaxTokens))
		if m.maxCompletionTokens {
			p.MaxCompletionTokens = limit
		} else {
			p.MaxTokens = limit
		}
	}
	if r.System != "" {
		// OpenAI reads "system" as its "developer"; other servers know only "system".
		p.Messages = append(p.Messages, openai.SystemMessage(r.System))
	}
	lastUser := -1
	for i, msg := range r.Messages {
		if msg.Role == llm.RoleUser {
			lastUser = i
		}
	}
	for i, msg := range r.Messages {
		switch msg.Role {
		case llm.RoleUser:
			p.Messages = append(p.Messages, openai.UserMessage(msg.Text))
		case llm.RoleAssistant:
			p.Messages = append(p.Messages, openai.ChatCompletionMessageParamUnion{OfAssistant: m.assistant(msg, i > lastUser)})
		case llm.RoleTool:
			text := msg.Text
			if msg.IsError {
				text = "Error: " + text // the API has no field for it
			}
			p.Messages = append(p.Messages, openai.ToolMessage(text, msg.ToolCallID))
		default:
			return p, fmt.Errorf("a message has the unknown role %q", msg.Role)
		}
	}
	for _, tool := range r.Tools {
		fn := shared.FunctionDefinitionParam{Name: tool.Name}
		if tool.Description != "" {
			fn.Description = param.NewOpt(tool.Description)
		}
		schema, err := llmhttp.SchemaFields(tool)
		if err != nil {
			return p, err
		}
		fn.Parameters = schema
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(fn))
	}
	return p, nil
}

// opaque is what the model must know again of an assistant message.
type opaque struct {
	// ReasoningField is the name of the field the reasoning came in.
	ReasoningField string `json:"reasoningField,omitempty"`
}

func (m *Model) assistant(msg llm.Message, current bool) *openai.ChatCompletionAssistantMessageParam {
	a := &openai.ChatCompletionAssistantMessageParam{}
	if msg.Text != "" || len(msg.ToolCalls) == 0 {
		a.Content.OfString = param.NewOpt(msg.Text)
	}
	for _, call := range msg.ToolCalls {
		a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
			OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
				ID: call.ID,
				Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
					Name:      call.Name,
					Arguments: string(llmhttp.ArgumentObject(call.Args)),
				},
			},
		})
	}
	// A model that thinks between tool calls loses its thread without its reasoning, and some servers refuse the request
	// then. It goes back only to the server it came from, in the field it came in, and only within the turn: others refuse
	// it in older messages.
	if current && msg.Reasoning != "" && len(msg.ToolCalls) > 0 {
		var o opaque
		if err := json.Unmarshal(msg.Opaque[m.server.Name()], &o); err == nil && o.ReasoningField != "" {
			a.SetExtraFields(map[string]any{o.ReasoningField: msg.Reasoning})
		}
	}
	return a
}
