package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/httpapi"
	"orchestrator/session"
)

var update = flag.Bool("update", false, "write docs/events.md and docs/openapi.json anew")

// checkDoc compares a page with what it is generated as, or writes it.
func checkDoc(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join("..", "docs", name)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/%s is out of date; write it anew with: make docs (-generated +file):\n%s", name, diff)
	}
}

// document returns the OpenAPI document of an API nobody talks to.
func document(t testing.TB) []byte {
	t.Helper()
	m, err := session.NewManager(session.Config{Store: session.NewMemory()})
	if err != nil {
		t.Fatal(err)
	}
	api, err := httpapi.New(httpapi.Config{Manager: m, Agents: []string{"primary"}})
	if err != nil {
		t.Fatal(err)
	}
	return api.Spec()
}

func TestDocsOfTheOpenAPIAreUpToDate(t *testing.T) {
	checkDoc(t, "openapi.json", string(document(t))+"\n")
}

const eventsHead = `# Events

<!-- Generated from session/event.go, data.go and catalog.go by "make docs"; a test fails when it is out of date. -->

Everything that happens in a session and its subagents is an event of one log. The [session API](design/api.md) streams them
and hands them out in pages; ` + "`sessions show -o json`" + ` prints them. Clients must ignore types and fields they don't know.

- **Durable** events are in the log, with a gap-free ` + "`seq`" + ` per session. **Ephemeral** ones (e) have none, are not
  kept, and may be missing.
- Every event names its agent. ` + "`root`" + ` is true for the session's own: only those say how a turn of the user's went.
- A turn that was started ends in exactly one of ` + "`turn.completed`, `turn.failed` and `turn.cancelled`" + `, a subagent in one of
  ` + "`subagent.completed` and `subagent.failed`" + `.
- A body over 64 KiB is kept as an artifact: ` + "`data`" + ` is then ` + "`{artifact, size}`" + `, and the artifact of that key holds it.

## The envelope

`

func TestDocsOfTheEventsAreUpToDate(t *testing.T) {
	comments := fieldComments(t, "../session")
	var b bytes.Buffer
	b.WriteString(eventsHead)
	writeFields(&b, comments, reflect.TypeFor[session.Event]())
	b.WriteString("\n## Types\n\n| type | | data | when |\n|---|---|---|---|\n")
	var bodies []reflect.Type
	for _, info := range session.EventCatalog() {
		ephemeral, data := "", "–"
		if info.Type.Ephemeral() {
			ephemeral = "(e)"
		}
		if info.Data != nil {
			typ := reflect.TypeOf(info.Data)
			data = fmt.Sprintf("[%s](#%s)", typ.Name(), strings.ToLower(typ.Name()))
			if !slices.Contains(bodies, typ) {
				bodies = append(bodies, typ)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", info.Type, ephemeral, data, info.Text)
	}
	b.WriteString("\n## Bodies\n")
	for i := 0; i < len(bodies); i++ { // grows by the types inside
		fmt.Fprintf(&b, "\n### %s\n\n", bodies[i].Name())
		for _, inner := range writeFields(&b, comments, bodies[i]) {
			if !slices.Contains(bodies, inner) {
				bodies = append(bodies, inner)
			}
		}
	}
	checkDoc(t, "events.md", b.String())
}

func TestEveryEventTypeIsInTheCatalog(t *testing.T) {
	for name, typ := range eventConstants(t) {
		if _, ok := session.DescribeEvent(typ); !ok {
			t.Errorf("%s (%s) is not in the catalog", name, typ)
		}
	}
	if all, want := len(session.EventCatalog()), len(eventConstants(t)); all != want {
		t.Errorf("the catalog has %d types, there are %d", all, want)
	}
}

// eventConstants returns the constants of session.EventType.
func eventConstants(t *testing.T) map[string]session.EventType {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../session/event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]session.EventType{}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			v := spec.(*ast.ValueSpec)
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "EventType" {
				all[v.Names[0].Name] = session.EventType(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
			}
		}
	}
	return all
}

// fieldComments returns the comments of the fields of a package's structs, by "Type.Field".
func fieldComments(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	all := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			typ, ok := spec.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, f := range typ.Fields.List {
				text := f.Comment.Text()
				if text == "" {
					text = f.Doc.Text()
				}
				for _, id := range f.Names {
					all[spec.Name.Name+"."+id.Name] = strings.Join(strings.Fields(text), " ")
				}
			}
			return false
		})
	}
	return all
}

// writeFields writes the table of a struct's fields and returns the structs among their types.
func writeFields(b *bytes.Buffer, comments map[string]string, typ reflect.Type) (inner []reflect.Type) {
	b.WriteString("| field | is | |\n|---|---|---|\n")
	for f := range typ.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		optional := ""
		if strings.Contains(opts, "omit") {
			optional = "?"
		}
		is, of := jsonType(f.Type)
		if of != nil {
			inner = append(inner, of)
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", name, optional, is, strings.ReplaceAll(comments[typ.Name()+"."+f.Name], "|", `\|`))
	}
	return inner
}

// jsonType says what a Go type is in JSON, and which struct of ours it is made of.
func jsonType(t reflect.Type) (string, reflect.Type) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time", nil
	case t == reflect.TypeFor[json.RawMessage]():
		return "any", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Slice:
		is, of := jsonType(t.Elem())
		return "list of " + is, of
	case reflect.Map:
		is, of := jsonType(t.Elem())
		return "table of " + is, of
	case reflect.Struct:
		return fmt.Sprintf("[%s](#%s)", t.Name(), strings.ToLower(t.Name())), t
	case reflect.String:
		return "string", nil
	case reflect.Bool:
		return "bool", nil
	}
	return "number", nil
}
