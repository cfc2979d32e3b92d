package toolprofile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/tool"
	"orchestrator/toolprofile"
)

func TestProfilesTypoIsAnErrorWithFileLineAndNearestName(t *testing.T) {
	reg := registry(t)
	for _, tt := range []struct{ name, text, want string }{
		{"tool", "profiles:\n  - name: r\n    deny:\n      - {tool: ask_usr}\n", `p.yaml:4: unknown tool "ask_usr"; did you mean "ask_user"?`},
		{"tool of a source", "profiles:\n  - name: r\n    allow:\n      - source: a2a\n        tool: invoke_agents\n", `p.yaml:4: unknown tool "invoke_agents"; did you mean "invoke_agent"?`},
		{"planned tool", "profiles:\n  - {name: r, allow: [{tool: register_agnet}]}\n", `p.yaml:2: unknown tool "register_agnet"; did you mean "register_agent"?`},
		{"source", "profiles:\n  - name: r\n\n    allow: [{source: a2a},\n      {source: sub_agent}]\n", `p.yaml:5: unknown source "sub_agent"; did you mean "subagent"?`},
		{"source in capitals", "profiles: [{name: r, allow: [{source: Builtin}]}]", `p.yaml:1: unknown source "Builtin"; did you mean "builtin"?`},
		{"mcp without a colon", "profiles: [{name: r, allow: [{source: mcp}]}]", `p.yaml:1: unknown source "mcp"; did you mean "mcp:*"?`},
		{"key of a profile", "profiles:\n  - name: r\n    alow: []\n", `p.yaml:3: unknown key "alow" in a profile; did you mean "allow"?`},
		{"key of a rule", "profiles:\n  - name: r\n    allow:\n      - sorce: a2a\n", `p.yaml:4: unknown key "sorce" in a rule; did you mean "source"?`},
		{"key of the file", "profile:\n  - name: r\n", `p.yaml:1: unknown key "profile" in the file; did you mean "profiles"?`},
		{"nothing near", "profiles:\n  - name: r\n    colour: red\n", `p.yaml:3: unknown key "colour" in a profile; known: name, allow, deny, ask`},
		{"no tool near", "profiles: [{name: r, allow: [{tool: xyzzy}]}]", `p.yaml:1: unknown tool "xyzzy"; known: ask_user, cancel_subagent, current_time, ` +
			`get_agent_details, invoke_agent, list_known_agents, list_subagents, read_artifact, refresh_agent_card, register_agent, ` +
			`spawn_subagent, unregister_agent, wait_subagents (a tool of an MCP server needs its source mcp:<server>)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := toolprofile.Parse("p.yaml", []byte(tt.text), toolprofile.Config{Registry: reg})
			if err == nil || err.Error() != tt.want {
				t.Errorf("Parse() = %v, %v, want %s", p, err, tt.want)
			}
			if fault, ok := errors.AsType[*toolprofile.Error](err); !ok || fault.File != "p.yaml" || fault.Line == 0 {
				t.Errorf("Parse() = %#v, want an *Error with file and line", err)
			}
		})
	}
}

func TestProfilesRefuseWhatTheyCannotMean(t *testing.T) {
	reg := registry(t)
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "p.yaml: the file is empty; it needs a list of profiles"},
		{"comments only", "# nothing\n", "p.yaml: the file is empty; it needs a list of profiles"},
		{"no profiles", "profiles: []\n", "p.yaml:1: there are no profiles; at least one is needed"},
		{"no keys", "{}", "p.yaml:1: there are no profiles; at least one is needed"},
		{"null profiles", "profiles:\n", "p.yaml:1: there are no profiles; at least one is needed"},
		{"a list", "- name: r\n", "p.yaml:1: the file must be a mapping with the keys profiles"},
		{"a word", "profiles", "p.yaml:1: the file must be a mapping with the keys profiles"},
		{"profiles by key", "profiles:\n  primary:\n    allow: []\n", "p.yaml:2: profiles must be a list"},
		{"a nameless profile", "profiles:\n  - allow: [{source: a2a}]\n", "p.yaml:2: a profile without a name"},
		{"a number for a name", "profiles:\n  - name: 7\n", "p.yaml:2: name must be a text in one line"},
		{"an empty source", "profiles: [{name: r, allow: [{source: ''}]}]", "p.yaml:1: source must be a text in one line"},
		{"a list for a tool", "profiles: [{name: r, allow: [{tool: [ask_user]}]}]", "p.yaml:1: tool must be a text in one line"},
		{"an anchor", "profiles:\n  - name: &a r", `p.yaml:2: "&" is not understood here; write plain lists and mappings`},
		{"an alias", "profiles:\n  - name: *a", `p.yaml:2: "*" is not understood here; write plain lists and mappings`},
		{"a tag", "profiles:\n  - name: !!str r", `p.yaml:2: "!!str" is not understood here; write plain lists and mappings`},
		{"deep lists", "\n" + strings.Repeat("[", 100_000), "p.yaml:2: lists and mappings are nested deeper than 16"},
		{"deep entries", strings.Repeat("- ", 100_000), "p.yaml:1: lists and mappings are nested deeper than 16"},
		{"two of a name", "profiles:\n  - name: r\n  - name: r\n", `p.yaml:3: profile "r" is there already, at line 2`},
		{"a key twice", "profiles:\n  - name: r\n    allow: []\n    allow: [{source: a2a}]\n", `p.yaml:4: mapping key "allow" already defined at [3:5]`},
		{"two documents", "profiles: [{name: r}]\n---\nprofiles: [{name: s}]\n", "p.yaml:3: a second document; the file holds one"},
		{"broken", "profiles:\n  - name: r\n    allow: [{source: a2a}\n", "p.yaml:3: sequence end token ']' not found"},
		{"a rule of nothing", "profiles: [{name: r, allow: [{}]}]", "p.yaml:1: a rule needs a source, a tool, or both"},
		{"a word for a rule", "profiles: [{name: r, allow: [a2a]}]", "p.yaml:1: a rule must be a mapping with the keys source, tool"},
		{"a word for rules", "profiles: [{name: r, allow: a2a}]", "p.yaml:1: allow must be a list"},
		{"a glob of ours", "profiles: [{name: r, allow: [{source: '*'}]}]", `p.yaml:1: unknown source "*"; known: a2a, a2a:admin, builtin, mcp:*, subagent (a tool of an MCP server needs its source mcp:<server>)`},
		{"a tool glob without a source", "profiles: [{name: r, deny: [{tool: 'write_*'}]}]",
			`p.yaml:1: tool "write_*" has a *, which stands only in the tools of an MCP server; add its source, as in {source: "mcp:files", tool: "write_*"}`},
		{"another wildcard", "profiles: [{name: r, deny: [{source: 'mcp:files', tool: 'write_[ab]'}]}]",
			`p.yaml:1: {source: "mcp:files", tool: write_[ab]} is no name; the only wildcard is * in the names of MCP servers and their tools`},
		{"no server", "profiles: [{name: r, allow: [{source: 'mcp:'}]}]", `p.yaml:1: source "mcp:" names no server; write "mcp:<server>", or "mcp:*" for all`},
		{"a tool of another source", "profiles: [{name: r, allow: [{source: builtin, tool: invoke_agent}]}]", `p.yaml:1: tool "invoke_agent" is of source "a2a", not "builtin"`},
		{"all faults at once", "profiles:\n  - name: r\n    allow: [{tool: ask_usr}]\n    denny: []\n",
			"p.yaml:3: unknown tool \"ask_usr\"; did you mean \"ask_user\"?\np.yaml:4: unknown key \"denny\" in a profile; did you mean \"deny\"?"},
		{"too large", "# " + strings.Repeat("x", 300_000), "p.yaml: the file is larger than 262144 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := toolprofile.Parse("p.yaml", []byte(tt.text), toolprofile.Config{Registry: reg})
			if err == nil {
				t.Fatalf("Parse() = %v, want an error", p)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("Parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProfilesTellOfSoManyFaultsAndNoMore(t *testing.T) {
	text := "profiles:\n  - name: r\n    allow:\n" + strings.Repeat("      - {tool: nope}\n", 50)
	_, err := toolprofile.Parse("p.yaml", []byte(text), toolprofile.Config{})
	if err == nil || strings.Count(err.Error(), "\n") != 20 || !strings.HasSuffix(err.Error(), "p.yaml: and 30 faults more") {
		t.Errorf("Parse() = %v, want 20 faults and how many more there are", err)
	}
}

func TestProfilesAcceptTheNamesOfToolsToCome(t *testing.T) {
	p, err := toolprofile.Parse("p.yaml", []byte(`profiles:
  - name: r
    allow:
      - {tool: ask_user}
      - {source: "a2a:admin"}
      - {source: "a2a:admin", tool: refresh_agent_card}
      - {source: "mcp:any-server_of.mine", tool: any/tool.name}
      - {source: "mcp:f*s", tool: "*"}
      - {source: "mcp:*"}
    ask:
`), toolprofile.Config{Registry: registry(t)})
	if err != nil {
		t.Fatal(err)
	}
	reg := append(specs("mcp:any-server_of.mine", "any/tool.name"), specs(tool.SourceA2AAdmin, "register_agent")...)
	if diff := cmp.Diff([]string{"any/tool.name", "register_agent"}, p.Set(reg, of("r")).Names()); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

func TestProfilesCheckTheAgents(t *testing.T) {
	reg := registry(t)
	agents := []toolprofile.Agent{
		{Name: "main", Profile: "primary"},
		{Name: "one", Profile: "subagnet"},
		{Name: "two", Profile: "subagent", Grant: []toolprofile.Rule{{Tool: "spawn_subagents"}, {Source: "subagent"}}},
		{Name: "three", Profile: "subagent", Grant: []toolprofile.Rule{{Tool: "ask_user"}}},
		{Name: "four", Profile: "subagent", Grant: []toolprofile.Rule{{}}},
	}
	_, err := toolprofile.Parse("p.yaml", []byte(shipped(t)), toolprofile.Config{Registry: reg, Agents: agents})
	want := `agent "one": p.yaml has no profile "subagnet"; did you mean "subagent"?
agent "two", grant {tool: spawn_subagents}: unknown tool "spawn_subagents"; did you mean "spawn_subagent"?
agent "three", grant {tool: ask_user}: has no effect, since profile "subagent" denies it at p.yaml:13; a grant never beats a deny
agent "four", grant {}: a rule needs a source, a tool, or both`
	if err == nil {
		t.Fatal("Parse() took agents that can't be meant")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("Parse() (-want +got):\n%s", diff)
	}
	if _, err := toolprofile.Parse("p.yaml", []byte(shipped(t)), toolprofile.Config{Registry: reg, Agents: agents[:1]}); err != nil {
		t.Errorf("Parse() = %v", err)
	}
}

func TestProfilesFileThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := toolprofile.Load(path, toolprofile.Config{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("Load() = %v, want %v with the path", err, os.ErrNotExist)
	}
}

func FuzzParse(f *testing.F) {
	data, err := os.ReadFile(shippedFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(ruled))
	f.Add([]byte("profiles:\n- {name: a, allow: [{source: 'mcp:*', tool: '*a*b'}]}\n- name: &x b\n- *x\n"))
	f.Add([]byte("profiles: !!seq [? {} : |\n a]\n--- >\n<<: *a"))
	reg := append(specs(tool.SourceA2A, "invoke_agent"), specs("mcp:files", "aab", "write_file")...)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := toolprofile.Parse("p.yaml", data, toolprofile.Config{Registry: reg})
		if err != nil {
			if p != nil || !strings.HasPrefix(err.Error(), "p.yaml:") {
				t.Errorf("Parse() = %v, %v, want an error that begins with the file", p, err)
			}
			return
		}
		if len(p.Names()) == 0 {
			t.Error("Parse() took a file without profiles")
		}
		for _, name := range p.Names() {
			for _, row := range p.Effective(reg, of(name)) {
				if row.Allowed && row.Ask || row.Reason == "" || row.File != "p.yaml" || row.Line < 1 {
					t.Errorf("profile %q says of %s: %+v", name, row.Tool, row.Decision)
				}
			}
		}
	})
}
