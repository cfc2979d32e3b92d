package toolprofile_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tool/builtin"
	"orchestrator/toolprofile"
)

// spec is a tool that is never run: profiles go by names and sources only.
type spec tool.Spec

func (s spec) Spec() tool.Spec { return tool.Spec(s) }

func (s spec) Run(context.Context, *tool.Call) (tool.Result, error) {
	return tool.Result{}, fmt.Errorf("%s was run", s.Name)
}

func specs(source tool.Source, names ...string) []tool.Tool {
	var tools []tool.Tool
	for _, n := range names {
		tools = append(tools, spec{Name: n, Source: source})
	}
	return tools
}

// registry is the built-in tools and the names of the rest of the product's.
func registry(t *testing.T) []tool.Tool {
	t.Helper()
	store := session.NewMemory()
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	tools, err := builtin.New(builtin.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(tools,
		specs(tool.SourceSubagent, "spawn_subagent", "list_subagents", "wait_subagents", "cancel_subagent"),
		specs(tool.SourceA2A, "invoke_agent", "list_known_agents", "get_agent_details"),
		specs(tool.SourceA2AAdmin, "register_agent", "unregister_agent", "refresh_agent_card"))
}

const shippedFile = "../configs/profiles.yaml"

func shipped(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(shippedFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func parse(t *testing.T, text string, cfg toolprofile.Config) *toolprofile.Profiles {
	t.Helper()
	p, err := toolprofile.Parse("p.yaml", []byte(text), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func of(profile string) toolprofile.Subject {
	return toolprofile.Subject{Agent: toolprofile.Agent{Name: "a", Profile: profile}}
}

func childOf(parent *tool.Set, agent toolprofile.Agent) toolprofile.Subject {
	return toolprofile.Subject{Agent: agent, Child: true, Parent: parent.Names()}
}

func TestProfilesShippedAdmitWhatTheDesignSays(t *testing.T) {
	reg := append(registry(t), specs("mcp:files", "read_file", "write_file")...)
	reg = append(reg, specs(tool.SourceBuiltin, "ask_user")...)
	p, err := toolprofile.Load(shippedFile, toolprofile.Config{Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	primary := p.Set(reg, of("primary"))
	want := []string{
		"read_artifact", "current_time", "spawn_subagent", "list_subagents", "wait_subagents", "cancel_subagent",
		"invoke_agent", "list_known_agents", "get_agent_details", "read_file", "write_file", "ask_user",
	}
	if diff := cmp.Diff(want, primary.Names()); diff != "" {
		t.Errorf("the primary's tools (-want +got):\n%s", diff)
	}
	child := p.Set(reg, childOf(primary, toolprofile.Agent{Name: "researcher", Profile: "subagent"}))
	want = []string{"read_artifact", "current_time", "invoke_agent", "list_known_agents", "get_agent_details", "read_file"}
	if diff := cmp.Diff(want, child.Names()); diff != "" {
		t.Errorf("a subagent's tools (-want +got):\n%s", diff)
	}
}

// gate is the comparison with the committed snapshot, as the test makes it: "" when they agree.
func gate(t *testing.T, profiles string, reg []tool.Tool) string {
	t.Helper()
	data, err := os.ReadFile("../configs/profiles.snapshot.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			want.WriteString(line)
		}
	}
	return cmp.Diff(want.String(), toolprofile.Snapshot(parse(t, profiles, toolprofile.Config{Registry: reg}), reg))
}

func TestProfilesMatchTheCommittedSnapshot(t *testing.T) {
	if diff := gate(t, shipped(t), registry(t)); diff != "" {
		t.Errorf("a role's tools have changed; if that is meant, edit configs/profiles.snapshot.txt by hand (-want +got):\n%s", diff)
	}
}

func TestProfilesSnapshotGateFailsOnAChange(t *testing.T) {
	text, reg := shipped(t), registry(t)
	taken := strings.Replace(text, "allow: [{source: builtin}, {source: a2a}, {source: \"mcp:*\"}]", "allow: [{source: builtin}, {source: \"mcp:*\"}]", 1)
	if taken == text {
		t.Fatal("the subagent's a2a rule is not where the test looks for it")
	}
	if diff := gate(t, taken, reg); !strings.Contains(diff, "invoke_agent") {
		t.Errorf("the gate lets a2a be taken from subagent: %q", diff)
	}
	for _, source := range []tool.Source{tool.SourceBuiltin, tool.SourceA2AAdmin, "mcp:new", "brand_new"} {
		if diff := gate(t, text, append(slices.Clone(reg), specs(source, "a_new_tool")...)); !strings.Contains(diff, "a_new_tool") {
			t.Errorf("the gate lets a tool of source %q be added: %q", source, diff)
		}
	}
	if diff := gate(t, text, slices.DeleteFunc(slices.Clone(reg), func(tl tool.Tool) bool { return tl.Spec().Name == "current_time" })); diff == "" {
		t.Error("the gate lets a tool go")
	}
	if diff := gate(t, text+"  - name: guest\n", reg); diff == "" {
		t.Error("the gate lets a role be added")
	}
}

func TestProfilesDoNotAdmitASourceNobodyLists(t *testing.T) {
	reg := slices.Concat(registry(t), specs("mcp:files", "read_file"), specs("webhook", "post"))
	p := parse(t, "profiles:\n  - name: r\n    allow: [{source: a2a}, {source: 'mcp:git*'}]\n", toolprofile.Config{Registry: reg})
	set := p.Set(reg, of("r"))
	if diff := cmp.Diff([]string{"invoke_agent", "list_known_agents", "get_agent_details"}, set.Names()); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for name, source := range map[string]string{"register_agent": "a2a:admin", "read_file": "mcp:files", "post": "webhook", "spawn_subagent": "subagent"} {
		reason, denied := set.Refusal(name)
		want := fmt.Sprintf("tool '%s' is not allowed: no rule of profile 'r' at p.yaml:2 admits it or its source '%s'", name, source)
		if !denied || reason != want {
			t.Errorf("Refusal(%s) = %q, %v, want %q", name, reason, denied, want)
		}
	}
	empty := parse(t, "profiles:\n  - name: r\n", toolprofile.Config{Registry: reg})
	if got := empty.Set(reg, of("r")).Names(); len(got) != 0 {
		t.Errorf("a profile without rules admits %v", got)
	}
	if got := empty.Set(reg, of("nobody")); len(got.Names()) != 0 {
		t.Errorf("a profile that isn't there admits %v", got.Names())
	} else if reason, denied := got.Refusal("invoke_agent"); !denied || reason != "tool 'invoke_agent' is not allowed: there is no profile 'nobody' in p.yaml" {
		t.Errorf("Refusal without a profile = %q, %v", reason, denied)
	}
}

const ruled = `profiles:
  - name: r
    allow:
      - {source: builtin}
      - {tool: invoke_agent}
      - {source: "mcp:files"}
      - {source: "mcp:git*", tool: "get_*_log"}
    ask:
      - {source: "mcp:files", tool: "write_*"}
      - {source: "mcp:files", tool: "*_all"}
    deny:
      - {source: "mcp:*", tool: "*_all"}
      - source: builtin
        tool: ask_user
`

func TestProfilesRefuseADeniedToolWithTheLineThatDeniesIt(t *testing.T) {
	reg := slices.Concat(registry(t), specs(tool.SourceBuiltin, "ask_user"), specs("mcp:files", "read_file", "write_file", "write_all"),
		specs("mcp:github", "get_commit_log", "get_log", "push"))
	p := parse(t, ruled, toolprofile.Config{Registry: reg})
	set := p.Set(reg, of("r"))
	want := []string{"read_artifact", "current_time", "invoke_agent", "read_file", "get_commit_log"}
	if diff := cmp.Diff(want, set.Names()); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		tool, reason string
		denied       bool
	}{
		{"ask_user", "tool 'ask_user' is denied to profile 'r' by p.yaml:13, deny {source: builtin, tool: ask_user}", true},
		{"write_all", `tool 'write_all' is denied to profile 'r' by p.yaml:12, deny {source: "mcp:*", tool: "*_all"}`, true},
		{"write_file", `tool 'write_file' needs an approval by p.yaml:9, ask {source: "mcp:files", tool: "write_*"}, and this build can't ask for one; go on without it`, true},
		{"list_known_agents", "tool 'list_known_agents' is not allowed: no rule of profile 'r' at p.yaml:2 admits it or its source 'a2a'", true},
		{"push", "tool 'push' is not allowed: no rule of profile 'r' at p.yaml:2 admits it or its source 'mcp:github'", true},
		{"register_agent", "tool 'register_agent' is not allowed: no rule of profile 'r' at p.yaml:2 admits it or its source 'a2a:admin'", true},
		{"no_such_tool", "", false},
		{"invoke_agent", "", false},
	} {
		if reason, denied := set.Refusal(tt.tool); reason != tt.reason || denied != tt.denied {
			t.Errorf("Refusal(%s) = %q, %v, want %q", tt.tool, reason, denied, tt.reason)
		}
	}
}

func TestProfilesDoNotDenyAToolThatIsOnlyNotThereYet(t *testing.T) {
	reg := registry(t)
	set := parse(t, shipped(t), toolprofile.Config{Registry: reg}).Set(reg, of("primary"))
	if reason, denied := set.Refusal("ask_user"); denied {
		t.Errorf("Refusal(ask_user) = %q, want it unknown, not denied", reason)
	}
}

func TestProfilesExplainNamesTheLine(t *testing.T) {
	reg := slices.Concat(registry(t), specs("mcp:files", "write_file"))
	p := parse(t, ruled+"  - name: c\n    allow: [{source: subagent}, {source: a2a}]\n", toolprofile.Config{Registry: reg})
	grant := []toolprofile.Rule{{Tool: "spawn_subagent"}}
	for _, tt := range []struct {
		what    string
		subject toolprofile.Subject
		tool    string
		want    toolprofile.Decision
	}{
		{"allowed", of("r"), "invoke_agent", toolprofile.Decision{Allowed: true, File: "p.yaml", Line: 5,
			Reason: "tool 'invoke_agent' is allowed to profile 'r' by p.yaml:5, allow {source: a2a, tool: invoke_agent}"}},
		{"ask", of("r"), "write_file", toolprofile.Decision{Ask: true, File: "p.yaml", Line: 9,
			Reason: `tool 'write_file' needs an approval by p.yaml:9, ask {source: "mcp:files", tool: "write_*"}, and this build can't ask for one; go on without it`}},
		{"denied", of("r"), "ask_user", toolprofile.Decision{File: "p.yaml", Line: 13,
			Reason: "tool 'ask_user' is denied to profile 'r' by p.yaml:13, deny {source: builtin, tool: ask_user}"}},
		{"not listed", of("r"), "spawn_subagent", toolprofile.Decision{File: "p.yaml", Line: 2,
			Reason: "tool 'spawn_subagent' is not allowed: no rule of profile 'r' at p.yaml:2 admits it or its source 'subagent'"}},
		{"the parent lacks it", toolprofile.Subject{Agent: toolprofile.Agent{Name: "a", Profile: "c"}, Child: true, Parent: []string{"invoke_agent"}}, "spawn_subagent",
			toolprofile.Decision{File: "p.yaml", Line: 16,
				Reason: "tool 'spawn_subagent' is not allowed here: p.yaml:16 admits it, but the agent that started this one didn't have it and no grant widens that"}},
		{"granted", toolprofile.Subject{Agent: toolprofile.Agent{Name: "a", Profile: "c", Grant: grant}, Child: true}, "spawn_subagent",
			toolprofile.Decision{Allowed: true, Reason: "tool 'spawn_subagent' is granted to agent 'a'"}},
		{"not recorded", toolprofile.Subject{Agent: toolprofile.Agent{Name: "a", Profile: "c"}, Resumed: true, Recorded: []string{"invoke_agent"}}, "spawn_subagent",
			toolprofile.Decision{File: "p.yaml", Line: 16,
				Reason: "tool 'spawn_subagent' was not among the tools this turn started with; it can be called from the next turn on"}},
	} {
		got, err := p.Explain(reg, tt.subject, tt.tool)
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
	}
	for _, tt := range []struct{ profile, tool, want string }{
		{"r", "invoke_agnt", `unknown tool "invoke_agnt"; did you mean "invoke_agent"?`},
		{"r", "write_files", `unknown tool "write_files"; did you mean "write_file"?`},
		{"rr", "invoke_agent", `unknown profile "rr"; did you mean "r"?`},
	} {
		if d, err := p.Explain(reg, of(tt.profile), tt.tool); err == nil || err.Error() != tt.want {
			t.Errorf("Explain(%s, %s) = %+v, %v, want %s", tt.profile, tt.tool, d, err, tt.want)
		}
	}
}

func TestProfilesEffectiveListsEveryTool(t *testing.T) {
	reg := registry(t)
	p := parse(t, shipped(t), toolprofile.Config{Registry: reg})
	subject := of("subagent")
	var allowed []string
	rows := p.Effective(reg, subject)
	for i, row := range rows {
		if want := reg[i].Spec(); row.Tool != want.Name || row.Source != want.Source || row.Reason == "" {
			t.Errorf("row %d = %+v, want %s with a reason", i, row, want.Name)
		}
		if row.Allowed {
			allowed = append(allowed, row.Tool)
		}
	}
	if diff := cmp.Diff(p.Set(reg, subject).Names(), allowed); diff != "" || len(rows) != len(reg) {
		t.Errorf("%d rows of %d; set against rows:\n%s", len(rows), len(reg), diff)
	}
}

func TestProfilesGrantWidensAChildButNeverBeatsADenyOrAnAsk(t *testing.T) {
	reg := slices.Concat(registry(t), specs(tool.SourceBuiltin, "ask_user"), specs("mcp:files", "write_file"))
	p := parse(t, shipped(t), toolprofile.Config{Registry: reg})
	agent := toolprofile.Agent{Name: "a", Profile: "subagent", Grant: []toolprofile.Rule{
		{Tool: "spawn_subagent"}, {Tool: "ask_user"}, {Source: "mcp:files"}, {Source: "a2a", Tool: "invoke_agent"},
	}}
	set := p.Set(reg, toolprofile.Subject{Agent: agent, Child: true, Parent: []string{"current_time"}})
	if diff := cmp.Diff([]string{"current_time", "spawn_subagent", "invoke_agent"}, set.Names()); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if reason, denied := set.Refusal("write_file"); !denied || !strings.Contains(reason, "needs an approval") {
		t.Errorf("Refusal(write_file) = %q, %v", reason, denied)
	}
}

func TestProfilesGiveTheChildOfAParentWithoutToolsNone(t *testing.T) {
	reg := registry(t)
	p := parse(t, shipped(t), toolprofile.Config{Registry: reg})
	// An empty list that went through JSON with omitempty comes back as nil, and must not read as "no bound".
	for _, parent := range [][]string{nil, {}} {
		s := toolprofile.Subject{Agent: toolprofile.Agent{Name: "a", Profile: "primary"}, Child: true, Parent: parent}
		if got := p.Set(reg, s).Names(); len(got) != 0 {
			t.Errorf("with a parent of %#v the child has %v", parent, got)
		}
	}
}

func TestProfilesNeverTakeAStrangersToolForOneOfOurs(t *testing.T) {
	// A server that offers tools under our names stands first in the registry.
	reg := slices.Concat(specs("mcp:evil", "invoke_agent", "ask_user", "read_file"), specs("mcp:files", "read_file"), registry(t))
	p := parse(t, `profiles: [{name: r, allow: [{tool: invoke_agent}, {source: "mcp:*"}], deny: [{source: "mcp:evil", tool: "read_*"}]}]`,
		toolprofile.Config{Registry: reg})
	set := p.Set(reg, of("r"))
	if got, ok := set.Lookup("invoke_agent"); !ok || got.Spec().Source != tool.SourceA2A {
		t.Errorf("Lookup(invoke_agent) = %+v, %v, want ours", got, ok)
	}
	for _, name := range []string{"ask_user", "read_file"} {
		if got, ok := set.Lookup(name); ok {
			t.Errorf("Lookup(%s) = %+v, want none", name, got.Spec())
		}
	}
}

func TestProfilesGiveAResumedTurnItsRecordedToolsThatAreStillAllowed(t *testing.T) {
	reg := registry(t)
	p := parse(t, shipped(t), toolprofile.Config{Registry: reg})
	s := of("subagent")
	s.Resumed, s.Recorded = true, []string{"invoke_agent", "a_tool_that_is_gone", "spawn_subagent", "read_artifact"}
	set := p.Set(reg, s)
	if diff := cmp.Diff([]string{"invoke_agent", "read_artifact"}, set.Names()); diff != "" {
		t.Errorf("tools, in the recorded order (-want +got):\n%s", diff)
	}
	if reason, denied := set.Refusal("current_time"); !denied || !strings.Contains(reason, "from the next turn on") {
		t.Errorf("Refusal(current_time) = %q, %v", reason, denied)
	}
}

// TestProfilesChildNeverHasMoreThanItsParent walks random chains of agents under random profiles.
func TestProfilesChildNeverHasMoreThanItsParent(t *testing.T) {
	reg := slices.Concat(registry(t), specs(tool.SourceBuiltin, "ask_user"), specs(tool.SourceA2AAdmin, "register_agent", "unregister_agent"),
		specs("mcp:files", "read_file", "write_file"), specs("mcp:git", "log", "push"))
	rule := rapid.SampledFrom([]string{
		"{source: builtin}", "{source: subagent}", "{source: a2a}", "{source: 'a2a:admin'}", "{source: 'mcp:*'}", "{source: 'mcp:files'}",
		"{source: 'mcp:*', tool: '*e*'}", "{source: 'mcp:git', tool: push}", "{tool: invoke_agent}", "{tool: ask_user}", "{source: subagent, tool: spawn_subagent}",
	})
	grantable := rapid.SampledFrom([]toolprofile.Rule{{Source: "subagent"}, {Tool: "ask_user"}, {Source: "mcp:*", Tool: "p*"}, {Source: "a2a"}})
	rules := func(rt *rapid.T, label string, most int) string {
		return "[" + strings.Join(rapid.SliceOfN(rule, 0, most).Draw(rt, label), ", ") + "]"
	}
	admitted := 0
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		text.WriteString("profiles:\n")
		for i := range 3 {
			fmt.Fprintf(&text, "  - {name: p%d, allow: %s, deny: %s, ask: %s}\n", i, rules(rt, "allow", 6), rules(rt, "deny", 2), rules(rt, "ask", 2))
		}
		p, err := toolprofile.Parse("p.yaml", []byte(text.String()), toolprofile.Config{Registry: reg})
		if err != nil {
			rt.Fatal(err)
		}
		profile := rapid.SampledFrom(p.Names())
		parent := p.Set(reg, of(profile.Draw(rt, "root")))
		for depth := range rapid.IntRange(1, 4).Draw(rt, "depth") {
			agent := toolprofile.Agent{Name: fmt.Sprint("child", depth), Profile: profile.Draw(rt, "child")}
			if rapid.IntRange(0, 3).Draw(rt, "grants") == 0 {
				agent.Grant = rapid.SliceOfN(grantable, 1, 2).Draw(rt, "grant")
			}
			own, child := p.Set(reg, of(agent.Profile)), p.Set(reg, childOf(parent, agent))
			grants := granted(reg, agent.Grant)
			for _, name := range child.Names() {
				admitted++
				if _, ok := parent.Lookup(name); !ok && !slices.Contains(grants, name) {
					rt.Fatalf("%s has %s, its parent has only %v, and it is granted %v", agent.Name, name, parent.Names(), grants)
				}
				if _, ok := own.Lookup(name); !ok && !slices.Contains(grants, name) {
					rt.Fatalf("%s has %s, which its profile %s doesn't admit:\n%s", agent.Name, name, agent.Profile, text.String())
				}
			}
			for _, name := range own.Names() {
				if _, ok := parent.Lookup(name); ok && !slices.Contains(child.Names(), name) {
					rt.Fatalf("%s lacks %s, which its profile and its parent have", agent.Name, name)
				}
			}
			parent = child
		}
	})
	if admitted == 0 {
		t.Error("no child ever had a tool; the property was not tested")
	}
}

// granted are the names of the registry's tools the rules of the property above mean.
func granted(reg []tool.Tool, rules []toolprofile.Rule) []string {
	var all []string
	for _, t := range reg {
		s := t.Spec()
		for _, r := range rules {
			switch {
			case r.Tool == s.Name, r.Tool == "" && r.Source == string(s.Source),
				r.Tool == "p*" && strings.HasPrefix(string(s.Source), "mcp:") && s.Name[0] == 'p':
				all = append(all, s.Name)
			}
		}
	}
	return all
}
