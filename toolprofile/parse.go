package toolprofile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"orchestrator/tool"
)

// maxFile bounds a profiles file in bytes.
const maxFile = 256 << 10

// maxDepth bounds how deep a profiles file may be nested; a sound one needs four.
const maxDepth = 16

// maxErrors bounds how many faults of a file are told at once.
const maxErrors = 20

// Config is what profiles are read against.
type Config struct {
	// Registry are the tools there are: a rule may name them, their sources, the tools planned, and anything of an MCP
	// server.
	Registry []tool.Tool
	// Agents are checked too: each must name a profile of the file, and grant what exists and isn't denied.
	Agents []Agent
}

// Error is one fault of a profiles file.
type Error struct {
	File string
	Line int // 0 when the fault is of the whole file
	Msg  string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
}

// Load reads the profiles of a file.
func Load(path string, cfg Config) (*Profiles, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, cfg)
}

func read(path string) (_ []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read profiles: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read profiles: %w", err)
	}
	return data, nil
}

// Parse reads profiles. file is what errors and reasons call them. All that is wrong is told at once, as joined *[Error]s
// and errors that name the agent.
func Parse(file string, data []byte, cfg Config) (*Profiles, error) {
	r := &reader{file: file, p: &Profiles{file: file, known: newNames(cfg.Registry)}}
	r.read(data)
	slices.SortStableFunc(r.faults, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var errs []error
	for _, fault := range r.faults {
		errs = append(errs, fault)
	}
	if len(errs) == 0 {
		errs = r.p.check(cfg.Agents)
	}
	if len(errs) > maxErrors {
		errs = append(errs[:maxErrors], fmt.Errorf("%s: and %d faults more", file, len(errs)-maxErrors))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return r.p, nil
}

// reader walks the syntax tree itself: every rule keeps its line, and every fault has one.
type reader struct {
	file   string
	p      *Profiles
	faults []*Error
}

func (r *reader) fail(line int, format string, args ...any) {
	r.faults = append(r.faults, &Error{File: r.file, Line: line, Msg: fmt.Sprintf(format, args...)})
}

func (r *reader) read(data []byte) {
	if len(data) > maxFile {
		r.fail(0, "the file is larger than %d bytes", maxFile)
		return
	}
	tokens := lexer.Tokenize(string(data))
	if line, fault := unfit(tokens); fault != "" {
		r.fail(line, "%s", fault)
		return
	}
	f, err := parse(tokens)
	if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
		r.fail(lineOf(syntax.Token), "%s", syntax.Message)
		return
	}
	if err != nil {
		r.fail(0, "%v", err)
		return
	}
	var root ast.Node
	for _, doc := range f.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			r.fail(lineOf(doc.Body.GetToken()), "a second document; the file holds one")
			return
		default:
			root = doc.Body
		}
	}
	if root == nil {
		r.fail(0, "the file is empty; it needs a list of profiles")
		return
	}
	for _, e := range r.mapping(root, "the file", "profiles") {
		for _, n := range r.sequence(e.value, "profiles") {
			r.profile(n)
		}
	}
	if len(r.p.list) == 0 && len(r.faults) == 0 {
		r.fail(lineOf(root.GetToken()), "there are no profiles; at least one is needed")
	}
}

// unfit finds what a profiles file has no use for and the parser takes minutes over: deep nesting, and the marks that can
// stand in a row without end.
func unfit(tokens token.Tokens) (line int, fault string) {
	depth, entries, last := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != last {
			last, entries = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType:
			entries++
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.MappingKeyType, token.DirectiveType:
			return last, fmt.Sprintf("%q is not understood here; write plain lists and mappings", t.Value)
		}
		if depth > maxDepth || entries > maxDepth {
			return last, fmt.Sprintf("lists and mappings are nested deeper than %d", maxDepth)
		}
	}
	return 0, ""
}

// parse turns a panic of the parser, which is fed by whoever writes the file, into an error.
func parse(tokens token.Tokens) (f *ast.File, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the file is no YAML: %v", v)
		}
	}()
	return parser.Parse(tokens, 0)
}

func (r *reader) profile(n ast.Node) {
	pr := &profile{line: lineOf(n.GetToken())}
	before := len(r.faults)
	for _, e := range r.mapping(n, "a profile", "name", "allow", "deny", "ask") {
		switch e.key {
		case "name":
			pr.name = r.text(e.value, "name")
			pr.line = e.line
		case "allow":
			pr.allow = r.rules(e.value, e.key)
		case "deny":
			pr.deny = r.rules(e.value, e.key)
		case "ask":
			pr.ask = r.rules(e.value, e.key)
		}
	}
	if pr.name == "" {
		if len(r.faults) == before {
			r.fail(pr.line, "a profile without a name")
		}
		return
	}
	if other := r.p.profile(pr.name); other != nil {
		r.fail(pr.line, "profile %q is there already, at line %d", pr.name, other.line)
		return
	}
	r.p.list = append(r.p.list, pr)
}

func (r *reader) rules(n ast.Node, what string) []Rule {
	var rules []Rule
	for _, item := range r.sequence(n, what) {
		rule := Rule{line: lineOf(item.GetToken())}
		before := len(r.faults)
		for i, e := range r.mapping(item, "a rule", "source", "tool") {
			if i == 0 {
				rule.line = e.line
			}
			switch e.key {
			case "source":
				rule.Source = r.text(e.value, "source")
			case "tool":
				rule.Tool = r.text(e.value, "tool")
			}
		}
		if len(r.faults) > before {
			continue
		}
		if fault := r.p.known.fault(rule); fault != "" {
			r.fail(rule.line, "%s", fault)
			continue
		}
		rules = append(rules, r.p.known.pin(rule))
	}
	return rules
}

type entry struct {
	key   string
	line  int
	value ast.Node
}

// mapping returns the entries of a mapping that has only the keys named.
func (r *reader) mapping(n ast.Node, what string, keys ...string) []entry {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		r.fail(lineOf(n.GetToken()), "%s must be a mapping with the keys %s", what, strings.Join(keys, ", "))
		return nil
	}
	var entries []entry
	for _, v := range values {
		line := lineOf(v.Key.GetToken())
		var key string
		if k, ok := v.Key.(*ast.StringNode); ok {
			key = k.Value
		} else {
			key = v.Key.String()
		}
		switch {
		case !slices.Contains(keys, key):
			hint := didYouMean(key, keys)
			if hint == "" {
				hint = "; known: " + strings.Join(keys, ", ")
			}
			r.fail(line, "unknown key %q in %s%s", key, what, hint)
		case slices.ContainsFunc(entries, func(e entry) bool { return e.key == key }):
			r.fail(line, "key %q is there twice", key)
		default:
			entries = append(entries, entry{key, line, v.Value})
		}
	}
	return entries
}

// sequence returns the items of a list. Nothing at all is an empty list.
func (r *reader) sequence(n ast.Node, what string) []ast.Node {
	switch s := n.(type) {
	case *ast.SequenceNode:
		return s.Values
	case *ast.NullNode, nil:
		return nil
	}
	r.fail(lineOf(n.GetToken()), "%s must be a list", what)
	return nil
}

func (r *reader) text(n ast.Node, what string) string {
	s, ok := n.(*ast.StringNode)
	if !ok || s.Value == "" {
		line := 0
		if n != nil {
			line = lineOf(n.GetToken())
		}
		r.fail(line, "%s must be a text in one line", what)
		return ""
	}
	return s.Value
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}
