// Package orchestrator_test checks the shape of the repository as a whole.
package orchestrator_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "orchestrator"

// imports lists, for every package of ours, which others of ours it may import. Every pair in it exists: a new arrow is
// a decision made here, and an arrow that is gone is taken out.
var imports = map[string][]string{
	"session":             {},
	"session/sessiontest": {"session"},
	"store/sqlite":        {"session"},
	"llm":                 {"session"},
	"llm/anthropic":       {"llm", "llm/llmhttp", "session"},
	"llm/llmhttp":         {"llm"},
	"llm/llmtest":         {"llm", "session"},
	"llm/openai":          {"llm", "llm/llmhttp", "session"},
	"llm/scripted":        {"llm", "session"},
	"tool":                {"session"},
	"tool/builtin":        {"session", "tool"},
	"toolprofile":         {"session", "tool"},
	"tracker":             {"session"},
	"foldback":            {"session"},
	"agentloop":           {"internal/telemetry/genai", "llm", "session", "tool"},
	"subagent":            {"internal/telemetry/genai", "session", "tool"},
	"a2a":                 {"internal/telemetry/genai", "session", "tool", "tracker"},
	"a2a/a2ahttp":         {"a2a"},
	"a2a/a2aqueue":        {"a2a"},
	"a2a/a2atest":         {},
	"a2a/a2ademo":         {"a2a/a2aqueue"},
	"a2a/bindingtest":     {"a2a", "a2a/a2atest", "internal/telemetry/genai", "session", "tool", "tracker"},
	"configs":             {},
	"httpapi":             {"session"},
	"internal/app": {
		"a2a", "a2a/a2ahttp", "a2a/a2aqueue", "agentloop", "configs", "foldback", "httpapi", "llm", "llm/anthropic", "llm/openai", "llm/scripted", "session", "store/sqlite",
		"subagent", "tool", "tool/builtin", "toolprofile", "tracker",
	},
	"internal/brokertest":      {},
	"session/sessionclient":    {"session"},
	"internal/telemetry":       {},
	"internal/telemetry/genai": {"session"},
	"cmd/orchestrator":         {"a2a", "a2a/a2ademo", "configs", "httpapi", "internal/app", "internal/telemetry", "session", "session/sessionclient", "store/sqlite", "tracker"},
}

// homes lists every module we import outside tests, with the directories that may. The wire libraries, the SQL drivers
// and the flag and config libraries have one home, so that their types stay out of everybody else's signatures.
var homes = map[string][]string{
	"github.com/a2aproject/a2a-go":              {"a2a", "bench"}, // bench compares us with it
	"github.com/cenkalti/backoff/v5":            {"a2a", "agentloop", "session/sessionclient"},
	"github.com/danielgtaylor/huma/v2":          {"httpapi"},
	"github.com/go-viper/mapstructure/v2":       {"cmd"},
	"github.com/goccy/go-yaml":                  {"a2a", "deploy", "llm/scripted", "toolprofile"},
	"github.com/mattn/go-isatty":                {"cmd"},
	"github.com/oklog/ulid/v2":                  {"session"},
	"github.com/anthropics/anthropic-sdk-go/v2": {"llm/anthropic"},
	"github.com/openai/openai-go/v3":            {"llm/openai"},
	"github.com/pb33f":                          {"httpapi"}, // in tests
	"github.com/pressly/goose/v3":               {"store"},
	"github.com/santhosh-tekuri/jsonschema/v6":  {"agentloop", "httpapi"},
	"github.com/spf13/cobra":                    {"cmd"},
	"github.com/spf13/pflag":                    {"cmd"},
	"github.com/spf13/viper":                    {"cmd"},
	"go.yaml.in/yaml/v3":                        {"cmd"}, // as viper does
	"go.opentelemetry.io/otel":                  {"a2a", "agentloop", "internal"},
	"github.com/prometheus/client_golang":       {"a2a/a2aqueue", "agentloop", "httpapi", "internal/app", "session", "subagent", "tracker"},
	"github.com/rabbitmq/amqp091-go":            {"a2a/a2aqueue", "bench"}, // bench compares us with it
	"golang.org/x/sync":                         {"agentloop", "bench"},
	"golang.org/x/sys":                          {"cmd", "deploy", "e2e"}, // terminals, real and made for tests, and containers
	"google.golang.org/genproto":                {"a2a"},
	"google.golang.org/grpc":                    {"a2a", "bench"}, // its wire format and types; the connections are ours
	"google.golang.org/protobuf":                {"a2a"},
	"modernc.org/sqlite":                        {"store"},
}

// testLibraries may be imported by any test and by the packages that are made for tests.
var testLibraries = []string{"github.com/google/go-cmp", "go.uber.org/goleak", "golang.org/x/tools", "pgregory.net/rapid"}

// anyTestMayImport are our packages that tests outside their own parent may use, besides every …test package and what
// the package under test may import.
var anyTestMayImport = []string{"foldback", "llm", "llm/scripted", "session", "store/sqlite", "tool", "tool/builtin", "tracker"}

// wholeProduct are the packages that start all of it, in tests or to measure it, and may import anything of ours.
var wholeProduct = []string{"bench", "cmd/orchestrator", "e2e", "internal/app", "internal/orchtest"}

func TestPackagesImportOnlyWhatTheLayoutLists(t *testing.T) {
	seen := readImports(t)
	for _, pkg := range slices.Sorted(maps.Keys(seen)) {
		if strings.HasSuffix(pkg, "_test") {
			continue
		}
		allowed, listed := imports[pkg]
		if !listed && !slices.Contains(wholeProduct, pkg) {
			t.Errorf("package %s is not listed in imports", pkg)
			continue
		}
		for _, dep := range ours(seen[pkg]) {
			if listed && !slices.Contains(allowed, dep) {
				t.Errorf("%s imports %s, which imports doesn't list (in %s)", pkg, dep, seen[pkg][module+"/"+dep])
			}
		}
	}
	for pkg, allowed := range imports {
		if _, exists := seen[pkg]; !exists {
			t.Errorf("imports lists %s, which doesn't exist", pkg)
			continue
		}
		for _, dep := range allowed {
			if _, used := seen[pkg][module+"/"+dep]; !used {
				t.Errorf("imports lists %s → %s, which is not imported any more", pkg, dep)
			}
		}
	}
}

func TestLibrariesStayInTheirHomes(t *testing.T) {
	used := map[string]bool{}
	for pkg, deps := range readImports(t) {
		inTest := strings.HasSuffix(pkg, "test")
		for dep, file := range deps {
			if !strings.Contains(strings.Split(dep, "/")[0], ".") {
				continue // ours, or the standard library
			}
			if inTest && underAny(dep, testLibraries) {
				continue
			}
			home := ""
			for lib := range homes {
				if under(dep, lib) {
					home = lib
				}
			}
			dir := strings.TrimSuffix(pkg, "_test")
			switch {
			case home == "":
				t.Errorf("%s imports %s, which has no home in the layout", file, dep)
			case !underAny(dir, homes[home]):
				t.Errorf("%s imports %s, whose home is %s", file, dep, strings.Join(homes[home], ", "))
			}
			for _, h := range homes[home] {
				if under(dir, h) {
					used[home+" in "+h] = true
				}
			}
		}
	}
	for lib, dirs := range homes {
		for _, dir := range dirs {
			if !used[lib+" in "+dir] {
				t.Errorf("homes lists %s in %s, which doesn't import it any more", lib, dir)
			}
		}
	}
}

func TestTestsImportOnlyWhatTestsMay(t *testing.T) {
	for pkg, deps := range readImports(t) {
		pkgUnderTest, isTest := strings.CutSuffix(pkg, "_test")
		if !isTest || slices.Contains(wholeProduct, pkgUnderTest) {
			continue
		}
		for _, dep := range ours(deps) {
			switch {
			case dep == pkgUnderTest, strings.HasSuffix(dep, "test"), slices.Contains(anyTestMayImport, dep), slices.Contains(imports[pkgUnderTest], dep):
			case under(pkgUnderTest, "a2a") && under(dep, "a2a"): // a transport, a fake peer and the client are tested on each other
			default:
				t.Errorf("%s imports %s, which its tests may not", deps[module+"/"+dep], dep)
			}
		}
	}
}

// readImports returns what every package imports: package directory → import path → a file that does. Test files, of
// whatever package clause, are found under the directory with "_test" appended.
func readImports(t *testing.T) map[string]map[string]string {
	t.Helper()
	seen := map[string]map[string]string{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || isModule(file)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go"):
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(file))
		if strings.HasSuffix(file, "_test.go") {
			pkg += "_test"
		}
		if seen[pkg] == nil {
			seen[pkg] = map[string]string{}
		}
		for _, spec := range f.Imports {
			dep, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			seen[pkg][dep] = file
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen["session"]) == 0 {
		t.Fatal("package session was not found; is the test run in the module's root?")
	}
	return seen
}

// isModule reports whether a directory is the root of a module, which no other one contains.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// ours returns the packages of this module among deps, without the module's name, sorted.
func ours(deps map[string]string) []string {
	var names []string
	for dep := range deps {
		if name, ok := strings.CutPrefix(dep, module+"/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func underAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return under(p, dir) })
}
