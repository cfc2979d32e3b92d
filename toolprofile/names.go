package toolprofile

import (
	"fmt"
	"slices"
	"strings"

	"orchestrator/tool"
)

const mcpPrefix = "mcp:"

// planned are tools that profiles may name before a build has them.
var planned = []struct {
	name   string
	source tool.Source
}{
	{"ask_user", tool.SourceBuiltin},
	{"register_agent", tool.SourceA2AAdmin},
	{"unregister_agent", tool.SourceA2AAdmin},
	{"refresh_agent_card", tool.SourceA2AAdmin},
}

// names are the sources and tools of our own that a rule may name. What MCP servers offer is not among them: any server
// and any tool of one may be named, since they come and go.
type names struct {
	tools   []string
	source  map[string]tool.Source
	sources []string
}

func newNames(registry []tool.Tool) names {
	n := names{source: make(map[string]tool.Source)}
	add := func(name string, source tool.Source) {
		if strings.HasPrefix(string(source), mcpPrefix) {
			return
		}
		if _, ok := n.source[name]; !ok {
			n.tools, n.source[name] = append(n.tools, name), source
		}
		if !slices.Contains(n.sources, string(source)) {
			n.sources = append(n.sources, string(source))
		}
	}
	for _, s := range []tool.Source{tool.SourceBuiltin, tool.SourceSubagent, tool.SourceA2A, tool.SourceA2AAdmin} {
		n.sources = append(n.sources, string(s))
	}
	for _, t := range planned {
		add(t.name, t.source)
	}
	for _, t := range registry {
		spec := t.Spec()
		add(spec.Name, spec.Source)
	}
	return n
}

// fault says what is wrong with a rule; "" is nothing.
func (n names) fault(r Rule) string {
	server, mcp := strings.CutPrefix(r.Source, mcpPrefix)
	switch {
	case r.Source == "" && r.Tool == "":
		return "a rule needs a source, a tool, or both"
	case strings.ContainsAny(r.Source+r.Tool, "?[]{}! \t\r\n"):
		return fmt.Sprintf("%s is no name; the only wildcard is * in the names of MCP servers and their tools", r)
	case mcp && server == "":
		return `source "mcp:" names no server; write "mcp:<server>", or "mcp:*" for all`
	case mcp:
		return ""
	case r.Source != "" && !slices.Contains(n.sources, r.Source):
		return fmt.Sprintf("unknown source %q%s", r.Source, n.hint(r.Source, append([]string{"mcp:*"}, n.sources...)))
	case r.Tool == "":
		return ""
	}
	source, ok := n.source[r.Tool]
	switch {
	case !ok && strings.Contains(r.Tool, "*"):
		return fmt.Sprintf(`tool %q has a *, which stands only in the tools of an MCP server; add its source, as in {source: "mcp:files", tool: %q}`, r.Tool, r.Tool)
	case !ok:
		return fmt.Sprintf(`unknown tool %q%s`, r.Tool, n.hint(r.Tool, n.tools))
	case r.Source != "" && string(source) != r.Source:
		return fmt.Sprintf("tool %q is of source %q, not %q", r.Tool, source, r.Source)
	}
	return ""
}

func (n names) hint(name string, known []string) string {
	if h := didYouMean(name, known); h != "" {
		return h
	}
	sorted := slices.Sorted(slices.Values(known))
	return fmt.Sprintf("; known: %s (a tool of an MCP server needs its source mcp:<server>)", strings.Join(sorted, ", "))
}

// pin gives a rule that names one of our tools that tool's source, so that a tool of the same name from elsewhere is never
// meant by it.
func (n names) pin(r Rule) Rule {
	if r.Source == "" {
		r.Source = string(n.source[r.Tool])
	}
	return r
}

// resolved is a registry without what can't be called: a tool that bears the name of one of ours but comes from elsewhere
// (an MCP server could otherwise pass for it), and the second tool of a name.
type resolved struct {
	tools   []tool.Tool
	sources map[string]tool.Source
	known   names
}

func (p *Profiles) resolve(registry []tool.Tool) resolved {
	r := resolved{sources: make(map[string]tool.Source, len(registry)), known: p.known}
	for _, t := range registry {
		spec := t.Spec()
		if ours, ok := p.known.source[spec.Name]; ok && ours != spec.Source {
			continue
		}
		if _, ok := r.sources[spec.Name]; ok {
			continue
		}
		r.tools, r.sources[spec.Name] = append(r.tools, t), spec.Source
	}
	return r
}

func (r resolved) source(name string) (tool.Source, bool) {
	if s, ok := r.sources[name]; ok {
		return s, true
	}
	s, ok := r.known.source[name]
	return s, ok
}

func (r resolved) names() []string {
	all := slices.Clone(r.known.tools)
	for _, t := range r.tools {
		if name := t.Spec().Name; !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
