package agentloop

import (
	"cmp"
	"slices"
	"strings"

	"orchestrator/llm"
	"orchestrator/session"
)

const (
	// bytesPerToken is the estimate for text whose tokens nobody has counted.
	bytesPerToken = 4
	// keepResults is how many of the last tool results are never shrunk.
	keepResults = 4
	// shrunkBytes is what is kept of a tool result that was shrunk; one below shrinkFrom isn't worth it.
	shrunkBytes = 300
	shrinkFrom  = 1000
)

// conversation is the model's context as it grows. It is not safe for concurrent use.
type conversation struct {
	messages []llm.Message
	seqs     []uint64 // of the event each message was made from
	keys     []session.ArtifactKey
	open     map[session.ToolCallID]int // where the results that are missing go
	bytes    int                        // of messages, and of what goes with every request
	last     uint64                     // the last seq it holds

	// What a provider counted, and the bytes it counted.
	countedTokens, countedBytes int
}

func size(m llm.Message) int {
	n := len(m.Text) + len(m.Reasoning) + 16
	for _, c := range m.ToolCalls {
		n += len(c.Name) + len(c.Args) + 16
	}
	return n
}

func (c *conversation) push(m llm.Message, seq uint64) {
	c.messages, c.seqs, c.keys = append(c.messages, m), append(c.seqs, seq), append(c.keys, "")
	c.bytes += size(m)
	c.last = max(c.last, seq)
}

// add adds a message of the log. The results of its tool calls have their places from now on, in the order of the calls.
func (c *conversation) add(m session.Message, seq uint64) {
	c.last = max(c.last, seq)
	switch {
	case m.Role == session.RoleUser:
		c.push(llm.Message{Role: llm.RoleUser, Text: m.Text}, seq)
		return
	case m.Text == "" && len(m.ToolCalls) == 0:
		// Providers refuse a message without content.
		return
	}
	answer := llm.Message{Role: llm.RoleAssistant, Text: m.Text, Reasoning: m.Reasoning, Opaque: m.Opaque}
	ids := shownIDs(m.ToolCalls)
	for i, call := range m.ToolCalls {
		answer.ToolCalls = append(answer.ToolCalls, llm.ToolCall{ID: ids[i], Name: call.Name, Args: call.Args})
	}
	c.push(answer, seq)
	if m.Usage != nil && m.Usage.InputTokens > 0 {
		c.countedTokens, c.countedBytes = int(m.Usage.InputTokens+m.Usage.OutputTokens), c.bytes
	}
	for i, call := range m.ToolCalls {
		if c.open == nil {
			c.open = make(map[session.ToolCallID]int)
		}
		c.open[call.ID] = len(c.messages)
		c.push(llm.Message{Role: llm.RoleTool, ToolCallID: ids[i], ToolName: call.Name}, seq)
	}
}

// shownIDs are the ids the model sees: the provider's own, which it can read, unless it gave none or one twice.
func shownIDs(calls []session.ToolCall) []string {
	ids, seen := make([]string, len(calls)), make(map[string]bool, len(calls))
	for i, call := range calls {
		ids[i] = call.ProviderID
		if ids[i] == "" || seen[ids[i]] {
			ids[i] = string(call.ID)
		}
		seen[ids[i]] = true
	}
	return ids
}

// result puts a tool's result into its place. One that nobody asked for, or that came twice, is left out.
func (c *conversation) result(id session.ToolCallID, done session.ToolCompleted, seq uint64) {
	c.last = max(c.last, seq)
	at, ok := c.open[id]
	if !ok {
		return
	}
	delete(c.open, id)
	m := &c.messages[at]
	m.Text, m.IsError = done.Content, done.IsError
	c.bytes += len(m.Text)
	if key := resultKey(id); strings.Contains(m.Text, string(key)) {
		c.keys[at] = key
	}
}

// complete gives every call a result, since providers refuse a context with unanswered calls. It returns how many had
// none.
func (c *conversation) complete() int {
	missing := len(c.open)
	for id := range c.open {
		c.result(id, session.ToolCompleted{Content: "no result was recorded", IsError: true}, 0)
	}
	return missing
}

// tokens estimates how many tokens a request has: a quarter of its bytes, or what the provider counted the last time and
// a quarter of the bytes since, if that is more.
func (c *conversation) tokens() int {
	estimate := c.bytes / bytesPerToken
	if c.countedTokens > 0 {
		estimate = max(estimate, c.countedTokens+(c.bytes-c.countedBytes)/bytesPerToken)
	}
	return estimate
}

// shrink cuts old tool results, the largest first, until the estimate is at most want. The last few stay whole.
func (c *conversation) shrink(want int) {
	var results []int
	for i, m := range c.messages {
		if m.Role == llm.RoleTool {
			results = append(results, i)
		}
	}
	results = results[:max(0, len(results)-keepResults)]
	results = slices.DeleteFunc(results, func(i int) bool { return len(c.messages[i].Text) < shrinkFrom })
	slices.SortStableFunc(results, func(a, b int) int { return cmp.Compare(len(c.messages[b].Text), len(c.messages[a].Text)) })
	for _, i := range results {
		if c.tokens() <= want {
			return
		}
		m := &c.messages[i]
		c.bytes -= len(m.Text)
		m.Text = session.Shorten(m.Text, shrunkBytes, c.keys[i])
		c.bytes += len(m.Text)
	}
}

// tail returns where the last messages begin that fit in the bytes and stand on their own: no tool result without the
// message that asks for it. It is len(messages) when none do.
func (c *conversation) tail(bytes int) int {
	at := len(c.messages)
	for i := len(c.messages) - 1; i >= 0; i-- {
		if bytes -= size(c.messages[i]); bytes < 0 {
			break
		}
		if c.messages[i].Role != llm.RoleTool {
			at = i
		}
	}
	return at
}

// through returns the last seq of the messages before at.
func (c *conversation) through(at int) uint64 {
	if at == len(c.messages) {
		return c.last
	}
	return c.seqs[at] - 1
}

// replace puts one message in the place of all before at.
func (c *conversation) replace(at int, m llm.Message, seq uint64) {
	for _, old := range c.messages[:at] {
		c.bytes -= size(old)
	}
	c.messages = append([]llm.Message{m}, c.messages[at:]...)
	c.seqs = append([]uint64{seq}, c.seqs[at:]...)
	c.keys = append([]session.ArtifactKey{""}, c.keys[at:]...)
	c.bytes += size(m)
	c.countedTokens, c.countedBytes = 0, 0
}
