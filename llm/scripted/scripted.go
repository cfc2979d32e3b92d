package scripted

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"orchestrator/llm"
	"orchestrator/session"
)

const provider = "scripted"

// Model plays a script. It is safe for concurrent use.
type Model struct {
	name   string
	agents map[string][]*rule

	mu     sync.Mutex
	failed map[failure]int
}

var _ llm.Model = (*Model)(nil)

// failure is a rule that failed a request.
type failure struct {
	rule    *rule
	request [sha256.Size]byte
}

type rule struct {
	match    *regexp.Regexp // nil: any input
	position int            // -1: any
	tool     string         // "": any input
	history  []*regexp.Regexp

	latency, chunkDelay time.Duration
	reasoning, text     template
	calls               []callRule
	stop                llm.StopReason
	err                 *errorRule
}

type callRule struct {
	name string
	args any // strings are templates
}

type errorRule struct {
	message    template
	status     int
	code       string
	retryable  bool
	retryAfter time.Duration
	overflow   bool
	times      int // 0: always
}

// groups returns the names of all groups a template of the rule may use, and one that is there twice, if any.
func (r *rule) groups() (groups []string, twice string) {
	add := func(name string) {
		if name != "" && slices.Contains(groups, name) {
			twice = name
		}
		groups = append(groups, name)
	}
	if r.match != nil {
		for i, name := range r.match.SubexpNames() {
			groups = append(groups, strconv.Itoa(i))
			if name != "" {
				add(name)
			}
		}
	}
	for _, re := range r.history {
		for _, name := range re.SubexpNames() {
			if name != "" {
				add(name)
			}
		}
	}
	return groups, twice
}

// matches returns the groups' values if the rule matches.
func (r *rule) matches(a asked) (map[string]string, bool) {
	if r.position >= 0 && r.position != a.position || r.tool != "" && !slices.Contains(a.tools, r.tool) {
		return nil, false
	}
	values := make(map[string]string)
	if r.match != nil {
		found := r.match.FindStringSubmatch(a.input)
		if found == nil {
			return nil, false
		}
		for i, name := range r.match.SubexpNames() {
			values[strconv.Itoa(i)] = found[i]
			if name != "" {
				values[name] = found[i]
			}
		}
	}
	for _, re := range r.history {
		found := re.FindStringSubmatch(a.history)
		if found == nil {
			return nil, false
		}
		for i, name := range re.SubexpNames() {
			if name != "" {
				values[name] = found[i]
			}
		}
	}
	return values, true
}

// asked is what of a request rules go by.
type asked struct {
	position int
	input    string
	tools    []string // that the input has results of
	history  string
}

func ask(r llm.Request) asked {
	var a asked
	var all, input []string
	var before llm.Role
	for _, m := range r.Messages {
		if m.Role == llm.RoleAssistant {
			a.position++
		} else {
			if m.Role != llm.RoleTool || before != llm.RoleTool {
				input, a.tools = nil, nil
			}
			if m.Role == llm.RoleTool {
				a.tools = append(a.tools, m.ToolName)
			}
			input, all = append(input, m.Text), append(all, m.Text)
		}
		before = m.Role
	}
	a.input, a.history = strings.Join(input, "\n"), strings.Join(all, "\n")
	return a
}

// Stream answers by the first rule that matches.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		rule, values, err := m.find(r)
		if err != nil {
			yield(llm.Chunk{}, err)
			return
		}
		chunks := rule.chunks(r, values)
		wait := rule.latency
		for _, c := range chunks {
			if err := sleep(ctx, wait); err != nil {
				yield(llm.Chunk{}, err)
				return
			}
			if !yield(c, nil) {
				return
			}
			wait = rule.chunkDelay
		}
		if rule.err == nil {
			return
		}
		if err := sleep(ctx, wait); err != nil {
			yield(llm.Chunk{}, err)
			return
		}
		yield(llm.Chunk{}, rule.err.error(values))
	}
}

// sleep waits, and returns the context's error when that ends first or has ended.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Model) find(r llm.Request) (*rule, map[string]string, error) {
	a := ask(r)
	own, known := m.agents[r.Agent]
	all, hasAll := m.agents["*"]
	for _, rules := range [][]*rule{own, all} {
		for _, rule := range rules {
			values, ok := rule.matches(a)
			if ok && m.mayFail(rule, r) {
				return rule, values, nil
			}
		}
	}
	what := fmt.Sprintf("no rule of %s matches", m.name)
	if !known && !hasAll {
		what = fmt.Sprintf("%s has no such agent (it has %s)", m.name, strings.Join(slices.Sorted(maps.Keys(m.agents)), ", "))
	}
	from := "the user"
	if len(a.tools) > 0 {
		from = strings.Join(a.tools, ", ")
	}
	return nil, nil, &llm.Error{Provider: provider, Message: fmt.Sprintf("agent %q at position %d: %s; the last input, from %s: %q",
		r.Agent, a.position, what, from, shorten(a.input))}
}

// mayFail says whether the rule still applies to the request, and counts its failure.
func (m *Model) mayFail(rule *rule, r llm.Request) bool {
	if rule.err == nil || rule.err.times == 0 {
		return true
	}
	body, err := json.Marshal([]any{r.Agent, r.System, r.Messages})
	if err != nil {
		// Only arguments that aren't JSON can do this; they still tell requests apart.
		body = fmt.Append(nil, r.Agent, r.System, r.Messages)
	}
	key := failure{rule: rule, request: sha256.Sum256(body)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed[key] >= rule.err.times {
		return false
	}
	m.failed[key]++
	return true
}

func (e *errorRule) error(values map[string]string) error {
	message := e.message.expand(values)
	if message == "" {
		message = "the script says so"
	}
	return &llm.Error{
		Provider: provider, Status: e.status, Code: e.code, Message: message,
		Retryable: e.retryable, RetryAfter: e.retryAfter, Overflow: e.overflow,
	}
}

// chunks returns the whole answer, up to the error of a rule that has one.
func (r *rule) chunks(req llm.Request, values map[string]string) []llm.Chunk {
	var chunks []llm.Chunk
	size := 0
	say := func(kind llm.ChunkKind, text string) {
		size += len(text)
		for word := range strings.SplitAfterSeq(text, " ") {
			if word != "" {
				chunks = append(chunks, llm.Chunk{Kind: kind, Text: word})
			}
		}
	}
	say(llm.ChunkReasoning, r.reasoning.expand(values))
	say(llm.ChunkText, r.text.expand(values))
	for i, call := range r.calls {
		args := call.json(values)
		size += len(call.name) + len(args)
		chunks = append(chunks, llm.Chunk{Kind: llm.ChunkToolStart, Index: i, ToolName: call.name})
		half := len(args) / 2
		for half > 0 && !utf8.RuneStart(args[half]) {
			half--
		}
		for _, fragment := range []string{args[:half], args[half:]} {
			if fragment != "" {
				chunks = append(chunks, llm.Chunk{Kind: llm.ChunkToolArgs, Index: i, Text: fragment})
			}
		}
		chunks = append(chunks, llm.Chunk{Kind: llm.ChunkToolEnd, Index: i})
	}
	if r.err != nil {
		return chunks
	}
	return append(chunks,
		llm.Chunk{Kind: llm.ChunkUsage, Usage: session.Usage{InputTokens: tokens(inputSize(req)), OutputTokens: tokens(size)}},
		llm.Chunk{Kind: llm.ChunkStop, Stop: r.stop},
	)
}

// json returns the arguments with their templates filled in, keys in order.
func (c callRule) json(values map[string]string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a reader of the log sees what the script says
	if err := enc.Encode(expandArgs(c.args, values)); err != nil {
		panic("scripted: Parse let arguments pass that aren't JSON: " + err.Error())
	}
	return strings.TrimSpace(b.String())
}

func expandArgs(v any, values map[string]string) any {
	switch v := v.(type) {
	case template:
		return v.expand(values)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = expandArgs(e, values)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = expandArgs(e, values)
		}
		return out
	}
	return v
}

func inputSize(r llm.Request) int {
	n := len(r.System)
	for _, m := range r.Messages {
		n += len(m.Text) + len(m.Reasoning)
		for _, c := range m.ToolCalls {
			n += len(c.Name) + len(c.Args)
		}
	}
	for _, t := range r.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return n
}

func tokens(bytes int) int64 { return int64(bytes+3) / 4 }

// shorten keeps the head and the tail of a text for an error message.
func shorten(s string) string {
	const most = 200
	runes := []rune(s)
	if len(runes) <= 2*most {
		return s
	}
	return string(runes[:most]) + " … " + string(runes[len(runes)-most:])
}
