package toolprofile

import (
	"fmt"
	"slices"
	"strings"

	"orchestrator/session"
	"orchestrator/tool"
)

// Rule names tools by their source, their name, or both; what it leaves out is any. A * in the name of an MCP server, or
// of a tool of one, stands for any letters.
type Rule struct {
	Source string
	Tool   string

	line int
}

// String returns the rule as it is written in YAML.
func (r Rule) String() string {
	var parts []string
	if r.Source != "" {
		parts = append(parts, "source: "+quote(r.Source))
	}
	if r.Tool != "" {
		parts = append(parts, "tool: "+quote(r.Tool))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func quote(s string) string {
	if strings.ContainsAny(s, "*:") {
		return fmt.Sprintf("%q", s)
	}
	return s
}

func (r Rule) matches(name string, source tool.Source) bool {
	return (r.Source == "" || glob(r.Source, string(source))) && (r.Tool == "" || glob(r.Tool, name))
}

// covers reports whether every tool that o matches is matched by r too. It may say no when it can't tell.
func (r Rule) covers(o Rule) bool {
	return (r.Source == "" || glob(r.Source, o.Source)) && (r.Tool == "" || o.Tool != "" && glob(r.Tool, o.Tool))
}

// glob reports whether the pattern, in which * stands for any letters, matches all of the text.
func glob(pattern, text string) bool {
	head, rest, ok := strings.Cut(pattern, "*")
	if !ok {
		return pattern == text
	}
	if !strings.HasPrefix(text, head) {
		return false
	}
	text = text[len(head):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], after
	}
}

// Agent is what the configuration says of an agent's tools.
type Agent struct {
	Name    string
	Profile string
	// Grant admits tools beyond the profile and, in a subagent, beyond its parent's tools.
	Grant []Rule
}

// Subject is whom a set is for.
type Subject struct {
	Agent Agent
	// Child says that the session is a subagent's: it has at most Parent, and its grants.
	Child bool
	// Parent are the names of the tools its parent had when it spawned it. An empty list leaves the grants only.
	Parent []string
	// Resumed says that the set is for a turn that is continued: it has at most Recorded.
	Resumed bool
	// Recorded are the names of the tools the turn started with.
	Recorded []string
}

// Decision says whether a tool may be called.
type Decision struct {
	Allowed bool
	Ask     bool   // an approval is needed, so it is not allowed
	Reason  string // a sentence for the model and the operator
	// File and Line are where it is decided; the profile's own line when no rule says anything. Line is 0 when a grant, or
	// no profile at all, decides.
	File string
	Line int
}

// Row is one tool's decision.
type Row struct {
	Tool   string
	Source tool.Source
	Decision
}

type profile struct {
	name             string
	line             int
	allow, deny, ask []Rule
}

// Profiles are the profiles of one file.
type Profiles struct {
	file  string
	list  []*profile
	known names
}

// Names returns the profiles' names in the order of the file.
func (p *Profiles) Names() []string {
	all := make([]string, len(p.list))
	for i, pr := range p.list {
		all[i] = pr.name
	}
	return all
}

func (p *Profiles) profile(name string) *profile {
	for _, pr := range p.list {
		if pr.name == name {
			return pr
		}
	}
	return nil
}

// Set returns the tools of the registry the subject may call, in the registry's order (of a resumed turn: in the recorded
// one), with the reasons for the others. Of two tools of one name the first counts.
func (p *Profiles) Set(registry []tool.Tool, s Subject) *tool.Set {
	r := p.resolve(registry)
	var tools []tool.Tool
	for _, t := range r.tools {
		spec := t.Spec()
		if p.decide(s, spec.Name, spec.Source).Allowed {
			tools = append(tools, t)
		}
	}
	if s.Resumed {
		slices.SortStableFunc(tools, func(a, b tool.Tool) int {
			return slices.Index(s.Recorded, a.Spec().Name) - slices.Index(s.Recorded, b.Spec().Name)
		})
	}
	return tool.NewSet(tools, func(name string) (string, bool) {
		source, ok := r.source(name)
		if !ok {
			return "", false
		}
		d := p.decide(s, name, source)
		if d.Allowed { // a tool this build doesn't have yet
			return "", false
		}
		return d.Reason, true
	})
}

// Explain says whether the subject may call a tool, and by which line. The error names the nearest tool there is.
func (p *Profiles) Explain(registry []tool.Tool, s Subject, name string) (Decision, error) {
	r := p.resolve(registry)
	source, ok := r.source(name)
	if !ok {
		return Decision{}, fmt.Errorf("unknown tool %q%s", name, didYouMean(name, r.names()))
	}
	if p.profile(s.Agent.Profile) == nil {
		return Decision{}, fmt.Errorf("unknown profile %q%s", s.Agent.Profile, didYouMean(s.Agent.Profile, p.Names()))
	}
	return p.decide(s, name, source), nil
}

// Effective returns the decision on every tool of the registry, in its order.
func (p *Profiles) Effective(registry []tool.Tool, s Subject) []Row {
	var rows []Row
	for _, t := range p.resolve(registry).tools {
		spec := t.Spec()
		rows = append(rows, Row{Tool: spec.Name, Source: spec.Source, Decision: p.decide(s, spec.Name, spec.Source)})
	}
	return rows
}

// decide is the one place that says who may call what.
func (p *Profiles) decide(s Subject, name string, source tool.Source) Decision {
	pr := p.profile(s.Agent.Profile)
	if pr == nil {
		return Decision{File: p.file, Reason: fmt.Sprintf("tool '%s' is not allowed: there is no profile '%s' in %s", name, s.Agent.Profile, p.file)}
	}
	at := func(line int) string { return fmt.Sprintf("%s:%d", p.file, line) }
	if r, ok := first(pr.deny, name, source); ok {
		return Decision{File: p.file, Line: r.line,
			Reason: fmt.Sprintf("tool '%s' is denied to profile '%s' by %s, deny %s", name, pr.name, at(r.line), r)}
	}
	granted := slices.ContainsFunc(s.Agent.Grant, func(r Rule) bool { return r.matches(name, source) })
	ask, asks := first(pr.ask, name, source)
	allow, allows := first(pr.allow, name, source)
	switch {
	case !granted && !asks && !allows:
		return Decision{File: p.file, Line: pr.line, Reason: fmt.Sprintf(
			"tool '%s' is not allowed: no rule of profile '%s' at %s admits it or its source '%s'", name, pr.name, at(pr.line), source)}
	case !granted && s.Child && !slices.Contains(s.Parent, name):
		line := allow.line
		if asks {
			line = ask.line
		}
		return Decision{File: p.file, Line: line, Reason: fmt.Sprintf(
			"tool '%s' is not allowed here: %s admits it, but the agent that started this one didn't have it and no grant widens that", name, at(line))}
	case asks:
		return Decision{Ask: true, File: p.file, Line: ask.line, Reason: fmt.Sprintf(
			"tool '%s' needs an approval by %s, ask %s, and this build can't ask for one; go on without it", name, at(ask.line), ask)}
	case s.Resumed && !slices.Contains(s.Recorded, name):
		return Decision{File: p.file, Line: allow.line, Reason: fmt.Sprintf(
			"tool '%s' was not among the tools this turn started with; it can be called from the next turn on", name)}
	case allows && (!s.Child || slices.Contains(s.Parent, name)):
		return Decision{Allowed: true, File: p.file, Line: allow.line,
			Reason: fmt.Sprintf("tool '%s' is allowed to profile '%s' by %s, allow %s", name, pr.name, at(allow.line), allow)}
	default:
		return Decision{Allowed: true, Reason: fmt.Sprintf("tool '%s' is granted to agent '%s'", name, s.Agent.Name)}
	}
}

func first(rules []Rule, name string, source tool.Source) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.matches(name, source) })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// check returns what is wrong with the agents' profiles and grants.
func (p *Profiles) check(agents []Agent) []error {
	var errs []error
	for _, a := range agents {
		pr := p.profile(a.Profile)
		if pr == nil {
			errs = append(errs, fmt.Errorf("agent %q: %s has no profile %q%s", a.Name, p.file, a.Profile, didYouMean(a.Profile, p.Names())))
			continue
		}
		for _, g := range a.Grant {
			if fault := p.known.fault(g); fault != "" {
				errs = append(errs, fmt.Errorf("agent %q, grant %s: %s", a.Name, g, fault))
				continue
			}
			for _, d := range pr.deny {
				if d.covers(p.known.pin(g)) {
					errs = append(errs, fmt.Errorf("agent %q, grant %s: has no effect, since profile %q denies it at %s:%d; a grant never beats a deny",
						a.Name, g, pr.name, p.file, d.line))
				}
			}
		}
	}
	return errs
}

func didYouMean(name string, known []string) string {
	if near := session.Nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}
