package anthropic

import (
	"fmt"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"

	"orchestrator/llm"
	"orchestrator/llm/llmhttp"
)

// params maps a request.
func (m *Model) params(r llm.Request) (anthropic.MessageNewParams, error) {
	p := anthropic.MessageNewParams{Model: r.Model, MaxTokens: DefaultMaxTokens}
	if r.MaxTokens > 0 {
		p.MaxTokens = int64(r.MaxTokens)
	}
	switch m.thinking {
	case ThinkingAdaptive:
		p.Thinking.OfAdaptive = &anthropic.ThinkingConfigAdaptiveParam{Display: anthropic.ThinkingConfigAdaptiveDisplaySummarized}
	case ThinkingBudget:
		p.Thinking.OfEnabled = &anthropic.ThinkingConfigEnabledParam{
			BudgetTokens: int64(m.thinkingTokens), Display: anthropic.ThinkingConfigEnabledDisplaySummarized,
		}
		// Thinking counts towards the bound, which has to be the larger of the two.
		if p.MaxTokens <= int64(m.thinkingTokens) {
			p.MaxTokens += int64(m.thinkingTokens)
		}
	case ThinkingOff:
		p.Thinking.OfDisabled = &anthropic.ThinkingConfigDisabledParam{}
	}
	if !blank(r.System) {
		p.System = []anthropic.TextBlockParam{{Text: r.System, CacheControl: anthropic.NewCacheControlEphemeralParam()}}
	}
	var turns []turn
	for _, msg := range r.Messages {
		switch msg.Role {
		case llm.RoleUser:
			text := msg.Text
			if blank(text) {
				text = "(no text)" // the API refuses a blank one
			}
			turns = add(turns, llm.RoleUser, anthropic.NewTextBlock(text))
		case llm.RoleAssistant:
			turns = add(turns, llm.RoleAssistant, m.assistant(msg, r.Model)...)
		case llm.RoleTool:
			// The results of one answer's calls have to be in one message.
			turns = add(turns, llm.RoleUser, toolResult(msg))
		default:
			return p, fmt.Errorf("a message has the unknown role %q", msg.Role)
		}
	}
	markConversation(turns)
	for _, t := range turns {
		if t.role == llm.RoleUser {
			p.Messages = append(p.Messages, anthropic.NewUserMessage(t.blocks...))
		} else {
			p.Messages = append(p.Messages, anthropic.NewAssistantMessage(t.blocks...))
		}
	}
	for i, tool := range r.Tools {
		t := &anthropic.ToolParam{Name: tool.Name}
		if tool.Description != "" {
			t.Description = param.NewOpt(tool.Description)
		}
		schema, err := llmhttp.SchemaFields(tool)
		if err != nil {
			return p, err
		}
		delete(schema, "type") // the SDK writes it
		t.InputSchema.Type = "object"
		t.InputSchema.ExtraFields = schema
		if i == len(r.Tools)-1 {
			t.CacheControl = anthropic.NewCacheControlEphemeralParam()
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: t})
	}
	return p, nil
}

// turn is one message as the API sees it, where the user's side and the model's take turns.
type turn struct {
	role   llm.Role // user or assistant
	blocks []anthropic.ContentBlockParamUnion
}

// add appends blocks to the last turn if it is of the role, else as a turn of their own.
func add(turns []turn, role llm.Role, blocks ...anthropic.ContentBlockParamUnion) []turn {
	if len(blocks) == 0 {
		return turns // the API refuses a message without any
	}
	if n := len(turns); n > 0 && turns[n-1].role == role {
		turns[n-1].blocks = append(turns[n-1].blocks, blocks...)
		return turns
	}
	return append(turns, turn{role, blocks})
}

func toolResult(msg llm.Message) anthropic.ContentBlockParamUnion {
	result := &anthropic.ToolResultBlockParam{ToolUseID: wireID(msg.ToolCallID)}
	if msg.IsError {
		result.IsError = param.NewOpt(true)
	}
	if !blank(msg.Text) {
		result.Content = []anthropic.ToolResultBlockParamContentUnion{{OfText: &anthropic.TextBlockParam{Text: msg.Text}}}
	}
	return anthropic.ContentBlockParamUnion{OfToolResult: result}
}

// markConversation marks the ends of the last two turns of the user's side, tools' results included: the last is what the
// next call finds in the cache, the one before is what this call finds there. With the tools and the instructions that is
// as many marks as the API takes.
func markConversation(turns []turn) {
	marks := 2
	for i := len(turns) - 1; i >= 0 && marks > 0; i-- {
		if turns[i].role != llm.RoleUser {
			continue
		}
		marks--
		*turns[i].blocks[len(turns[i].blocks)-1].GetCacheControl() = anthropic.NewCacheControlEphemeralParam()
	}
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// wireID returns the id of a tool call in the characters the API takes.
func wireID(id string) string {
	var b strings.Builder
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}
