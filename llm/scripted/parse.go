package scripted

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"orchestrator/llm"
	"orchestrator/session"
)

// MaxScript bounds a script's size in bytes.
const MaxScript = 1 << 20

type scriptYAML struct {
	Agents []agentYAML `yaml:"agents"`
}

type agentYAML struct {
	Name  string     `yaml:"name"`
	Rules []ruleYAML `yaml:"rules"`
}

type ruleYAML struct {
	Match      *string    `yaml:"match"`
	Position   *int       `yaml:"position"`
	Tool       string     `yaml:"tool"`
	History    any        `yaml:"history"`
	Latency    string     `yaml:"latency"`
	ChunkDelay string     `yaml:"chunk_delay"`
	Reasoning  string     `yaml:"reasoning"`
	Text       string     `yaml:"text"`
	ToolCalls  []callYAML `yaml:"tool_calls"`
	Stop       string     `yaml:"stop"`
	Error      *errorYAML `yaml:"error"`
}

type callYAML struct {
	Name string         `yaml:"name"`
	Args map[string]any `yaml:"args"`
}

type errorYAML struct {
	Message    string `yaml:"message"`
	Status     int    `yaml:"status"`
	Code       string `yaml:"code"`
	Retryable  bool   `yaml:"retryable"`
	RetryAfter string `yaml:"retry_after"`
	Overflow   bool   `yaml:"overflow"`
	Times      int    `yaml:"times"`
}

// Load reads a script from a file.
func Load(path string) (*Model, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read script: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a script. The name stands in errors, in front of line and column.
func Parse(name string, data []byte) (m *Model, err error) {
	if len(data) > MaxScript {
		return nil, fmt.Errorf("%s: the script is larger than %d bytes", name, MaxScript)
	}
	// The YAML library indexes into its token list without looking; a script is outside input, so its panic is our error.
	defer func() {
		if p := recover(); p != nil {
			m, err = nil, fmt.Errorf("%s: not YAML that can be read: %v", name, p)
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, located(name, err)
	}
	if len(file.Docs) > 1 {
		return nil, fmt.Errorf("%s: a script is one YAML document, this has %d", name, len(file.Docs))
	}
	var script scriptYAML
	if err := yaml.UnmarshalWithOptions(data, &script, yaml.Strict()); err != nil {
		return nil, located(name, err)
	}
	c := compiler{name: name, file: file}
	return c.model(script)
}

// located puts file, line and column in front of what the YAML library says, on one line.
func located(name string, err error) error {
	var yerr yaml.Error
	if !errors.As(err, &yerr) || yerr.GetToken() == nil || yerr.GetToken().Position == nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	message := yerr.GetMessage()
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		if near := session.Nearest(unknown.Token.Value, knownKeys); near != "" {
			message += fmt.Sprintf("; did you mean %q?", near)
		}
	}
	pos := yerr.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %s", name, pos.Line, pos.Column, message)
}

var knownKeys = func() []string {
	var keys []string
	for _, v := range []any{scriptYAML{}, agentYAML{}, ruleYAML{}, callYAML{}, errorYAML{}} {
		for f := range reflect.TypeOf(v).Fields() {
			keys = append(keys, f.Tag.Get("yaml"))
		}
	}
	return keys
}()

// compiler turns a script as written into a model.
type compiler struct {
	name string
	file *ast.File
}

// errorf returns an error at the first of the paths that is in the file.
func (c *compiler) errorf(paths []string, format string, args ...any) error {
	at := c.name
	for _, p := range paths {
		path, err := yaml.PathString(p)
		if err != nil {
			continue
		}
		node, err := path.FilterFile(c.file)
		if err != nil || node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
			continue
		}
		pos := node.GetToken().Position
		at = fmt.Sprintf("%s:%d:%d", c.name, pos.Line, pos.Column)
		break
	}
	return fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...))
}

func (c *compiler) model(script scriptYAML) (*Model, error) {
	m := &Model{name: c.name, agents: make(map[string][]*rule), failed: make(map[failure]int)}
	if len(script.Agents) == 0 {
		return nil, c.errorf([]string{"$"}, "a script needs agents: a list of {name, rules}")
	}
	for i, a := range script.Agents {
		at := fmt.Sprintf("$.agents[%d]", i)
		if a.Name == "" {
			return nil, c.errorf([]string{at}, "an agent needs a name")
		}
		if _, ok := m.agents[a.Name]; ok {
			return nil, c.errorf([]string{at + ".name"}, "agent %q is here twice", a.Name)
		}
		rules := make([]*rule, len(a.Rules))
		for j := range a.Rules {
			r, err := c.rule(a.Rules[j], fmt.Sprintf("%s.rules[%d]", at, j), at)
			if err != nil {
				return nil, err
			}
			rules[j] = r
		}
		m.agents[a.Name] = rules
	}
	return m, nil
}

func (c *compiler) rule(y ruleYAML, at, agentAt string) (*rule, error) {
	in := func(key string) []string { return []string{at + "." + key, at, agentAt} }
	r := &rule{position: -1, tool: y.Tool, stop: llm.StopReason(y.Stop)}
	var err error

	if y.Match != nil {
		if r.match, err = regexp.Compile(*y.Match); err != nil {
			return nil, c.errorf(in("match"), "match: %w", err)
		}
	}
	if y.Position != nil {
		if *y.Position < 0 {
			return nil, c.errorf(in("position"), "position counts assistant messages from 0, not %d", *y.Position)
		}
		r.position = *y.Position
	}
	exprs, ok := stringsOf(y.History)
	if !ok {
		return nil, c.errorf(in("history"), "history is a regular expression or a list of them")
	}
	for _, expr := range exprs {
		re, err := regexp.Compile(expr)
		if err != nil {
			return nil, c.errorf(in("history"), "history: %w", err)
		}
		r.history = append(r.history, re)
	}
	groups, twice := r.groups()
	if twice != "" {
		return nil, c.errorf(in("history"), "two expressions of this rule have a group %q", twice)
	}

	if r.latency, err = duration(y.Latency); err != nil {
		return nil, c.errorf(in("latency"), "latency: %w", err)
	}
	if r.chunkDelay, err = duration(y.ChunkDelay); err != nil {
		return nil, c.errorf(in("chunk_delay"), "chunk_delay: %w", err)
	}
	if r.reasoning, err = parseTemplate(y.Reasoning, groups); err != nil {
		return nil, c.errorf(in("reasoning"), "reasoning: %w", err)
	}
	if r.text, err = parseTemplate(y.Text, groups); err != nil {
		return nil, c.errorf(in("text"), "text: %w", err)
	}
	for k, call := range y.ToolCalls {
		callAt := append([]string{fmt.Sprintf("%s.tool_calls[%d]", at, k)}, in("tool_calls")...)
		if call.Name == "" {
			return nil, c.errorf(callAt, "a tool call needs a name")
		}
		args := call.Args
		if args == nil {
			args = map[string]any{}
		}
		if _, err := json.Marshal(args); err != nil {
			return nil, c.errorf(callAt, "args of %s can't be JSON: %w", call.Name, err)
		}
		compiled, err := compileArgs(args, groups)
		if err != nil {
			return nil, c.errorf(callAt, "args of %s: %w", call.Name, err)
		}
		r.calls = append(r.calls, callRule{name: call.Name, args: compiled})
	}

	switch r.stop {
	case "":
		if r.stop = llm.StopEnd; len(r.calls) > 0 {
			r.stop = llm.StopToolCalls
		}
	case llm.StopEnd, llm.StopToolCalls, llm.StopMaxTokens, llm.StopRefusal:
	default:
		return nil, c.errorf(in("stop"), "stop is end_turn, tool_calls, max_tokens or refusal, not %q", y.Stop)
	}
	if e := y.Error; e != nil {
		if y.Stop != "" {
			return nil, c.errorf(in("stop"), "a rule has stop or error, not both")
		}
		if e.Times < 0 {
			return nil, c.errorf(in("error.times"), "times is a number of failures, not %d", e.Times)
		}
		r.err = &errorRule{
			status: e.Status, code: e.Code, retryable: e.Retryable, overflow: e.Overflow, times: e.Times,
		}
		if r.err.retryAfter, err = duration(e.RetryAfter); err != nil {
			return nil, c.errorf(in("error.retry_after"), "retry_after: %w", err)
		}
		if r.err.message, err = parseTemplate(e.Message, groups); err != nil {
			return nil, c.errorf(in("error.message"), "message: %w", err)
		}
	} else if y.Text == "" && y.Reasoning == "" && len(y.ToolCalls) == 0 && y.Stop == "" {
		return nil, c.errorf([]string{at, agentAt}, "a rule gives text, reasoning, tool_calls, stop or error; this gives nothing")
	}
	return r, nil
}

func duration(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration like 1.5s", s)
	}
	return d, nil
}

func stringsOf(v any) ([]string, bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case string:
		return []string{v}, true
	case []any:
		list := make([]string, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, false
			}
			list[i] = s
		}
		return list, true
	}
	return nil, false
}

// compileArgs replaces every string in a value by its template.
func compileArgs(v any, groups []string) (any, error) {
	switch v := v.(type) {
	case string:
		return parseTemplate(v, groups)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			c, err := compileArgs(e, groups)
			if err != nil {
				return nil, err
			}
			out[i] = c
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			c, err := compileArgs(e, groups)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			out[k] = c
		}
		return out, nil
	}
	return v, nil
}

// part is literal text, or the name of a group if it has one.
type part struct {
	literal, group string
}

type template []part

func parseTemplate(s string, groups []string) (template, error) {
	var t template
	literal := func(s string) {
		if n := len(t); n > 0 && t[n-1].group == "" {
			t[n-1].literal += s
		} else if s != "" {
			t = append(t, part{literal: s})
		}
	}
	for {
		before, rest, found := strings.Cut(s, "$")
		literal(before)
		if !found {
			return t, nil
		}
		var group string
		switch {
		case strings.HasPrefix(rest, "$"):
			literal("$")
			s = rest[1:]
			continue
		case strings.HasPrefix(rest, "{"):
			if group, s, found = strings.Cut(rest[1:], "}"); !found {
				return nil, errors.New("a ${ without its }; a dollar sign is $$")
			}
		default:
			n := 0
			for n < len(rest) && '0' <= rest[n] && rest[n] <= '9' {
				n++
			}
			if group, s = rest[:n], rest[n:]; n == 0 {
				literal("$")
				continue
			}
		}
		if !slices.Contains(groups, group) {
			return nil, fmt.Errorf("no expression of this rule has a group %q; a dollar sign is $$", group)
		}
		t = append(t, part{group: group})
	}
}

func (t template) expand(values map[string]string) string {
	var b strings.Builder
	for _, p := range t {
		if p.group != "" {
			b.WriteString(values[p.group])
		} else {
			b.WriteString(p.literal)
		}
	}
	return b.String()
}
