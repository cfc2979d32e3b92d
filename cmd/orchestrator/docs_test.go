package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"orchestrator/internal/app"
)

// checkDoc compares a page with what it is generated as, or writes it.
func checkDoc(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join("..", "..", "docs", name)
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

const cliHead = `# Command line

<!-- Generated from the commands by "make docs"; a test fails when it is out of date. -->

Every command prints for people by default and with ` + "`-o json`" + ` for programs, one JSON value a line: results on standard
output, everything else on standard error. Colours and live lines appear on a terminal only, and not with ` + "`NO_COLOR`" + ` or
` + "`TERM=dumb`" + `. An error names what is wrong and, after an arrow, what to do next.

| exit code | meaning |
|---|---|
| %d | done |
| %d | failed: the turn, the peer's task, the disk |
| %d | the command line or the configuration can't be used |
| %d | something needed can't be reached: a peer, a running serve, a database that another process has open |
| %d | interrupted by a signal |

Configuration is read from a file, then from ` + "`ORCHESTRATOR_`" + ` variables, then from flags: [configuration.md](configuration.md).
For completion in your shell see ` + "`orchestrator completion --help`" + `; it offers the names of sessions, calls, peers, agents
and tools.

`

func TestDocsOfTheCommandLineAreUpToDate(t *testing.T) {
	c := &cli{stdout: io.Discard, stderr: io.Discard}
	root := c.root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var b bytes.Buffer
	fmt.Fprintf(&b, cliHead, exitOK, exitFailed, exitUsage, exitUnreachable, exitInterrupted)
	b.WriteString("## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	writeCommands(&b, root)
	checkDoc(t, "cli.md", b.String())
}

func writeCommands(b *bytes.Buffer, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if !cmd.IsAvailableCommand() || cmd.Name() == "help" {
			continue
		}
		if cmd.HasSubCommands() && cmd.Name() != "completion" {
			writeCommands(b, cmd)
			continue
		}
		fmt.Fprintf(b, "\n## %s\n\n", cmd.CommandPath())
		text := cmd.Long
		if text == "" {
			text = cmd.Short + "."
		}
		if cmd.Name() == "completion" {
			text = "Print the completion script of a shell: bash, zsh, fish or powershell. Each has its own help that says how to load it."
			cmd.Use, cmd.Example = "completion SHELL", "  source <(orchestrator completion bash)"
		}
		fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", text, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
			b.WriteByte('\n')
			writeFlags(b, cmd.LocalNonPersistentFlags())
		}
		var example []string
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			example = append(example, strings.TrimPrefix(line, "  "))
		}
		fmt.Fprintf(b, "\nExamples:\n\n```sh\n%s\n```\n", strings.Join(example, "\n"))
	}
}

func writeFlags(b *bytes.Buffer, flags *pflag.FlagSet) {
	b.WriteString("| flag | meaning |\n|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		usage := f.Usage
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && !strings.Contains(usage, "default") {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "| %s | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}

const configHead = `# Configuration

<!-- Generated from internal/app.Config by "make docs"; a test fails when it is out of date. -->

One YAML file: ` + "`--config`, else `$ORCHESTRATOR_CONFIG`, else `./orchestrator.yaml`, else `~/.config/orchestrator/orchestrator.yaml`" + `
(or under ` + "`$XDG_CONFIG_HOME`" + `). Every key has a default. A key that doesn't exist is an error. Relative paths are relative to
the file. Durations have a unit: ` + "`90s`, `3m`, `24h`" + `. Secrets are never in the file: it names the variables or the files that
hold them.

A value that is not inside a list may also come from a variable, which wins over the file: ` + "`a2a.max_wait` is\n`ORCHESTRATOR_A2A_MAX_WAIT`" + `. Flags win over both. ` + "`orchestrator config check`" + ` says what is wrong with a configuration,
` + "`orchestrator config print`" + ` what is in force. [configs/orchestrator.yaml](../configs/orchestrator.yaml) is a file to begin with.
The peers and the tool profiles have files of their own, which [configs/peers.yaml](../configs/peers.yaml) and [configs/profiles.yaml](../configs/profiles.yaml) explain.
`

func TestDocsOfTheConfigurationAreUpToDate(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(configHead)
	writeTable(t, &b, readComments(t), reflect.TypeFor[app.Config](), "")
	checkDoc(t, "configuration.md", b.String())
}

// comments are the doc comments of structs and their fields: Type and Type.Field.
type comments map[string]string

func readComments(t *testing.T) comments {
	t.Helper()
	found := comments{}
	files, err := filepath.Glob("../../internal/app/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				ts := spec.(*ast.TypeSpec)
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				found[ts.Name.Name] = gen.Doc.Text() + ts.Doc.Text()
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						found[ts.Name.Name+"."+name.Name] = field.Doc.Text() + field.Comment.Text()
					}
				}
			}
		}
	}
	return found
}

// writeTable writes the keys of a struct, then the tables and lists in it. prefix is the path before a key.
func writeTable(tt *testing.T, b *bytes.Buffer, found comments, t reflect.Type, prefix string) {
	type part struct {
		name string
		t    reflect.Type
		list bool
	}
	var parts []part
	names := map[string]string{} // of the fields in Go, to their keys
	for f := range t.Fields() {
		names[f.Name] = f.Tag.Get("mapstructure")
	}
	var rows bytes.Buffer
	for f := range t.Fields() {
		key := f.Tag.Get("mapstructure")
		if key == "-" {
			continue
		}
		elem := f.Type
		for elem.Kind() == reflect.Pointer || elem.Kind() == reflect.Slice {
			elem = elem.Elem()
		}
		if elem.Kind() == reflect.Struct {
			parts = append(parts, part{key, elem, f.Type.Kind() == reflect.Slice})
			continue
		}
		fmt.Fprintf(&rows, "| `%s%s` | %s | %s |\n", prefix, key, kindName(f.Type), about(found[t.Name()+"."+f.Name], f.Name, names))
		if found[t.Name()+"."+f.Name] == "" {
			tt.Errorf("internal/app.%s.%s has no comment, which would be its documentation", t.Name(), f.Name)
		}
	}
	if prefix != "" {
		if text := about(found[t.Name()], t.Name(), names); text != "" {
			b.WriteString("\n" + strings.ToUpper(text[:1]) + text[1:] + "\n")
		}
	}
	if rows.Len() > 0 {
		b.WriteString("\n| key | value | meaning |\n|---|---|---|\n" + rows.String())
	}
	for _, p := range parts {
		path, heading := prefix+p.name+".", prefix+p.name
		if p.list {
			path, heading = prefix+p.name+"[].", prefix+p.name+" (a list)"
		}
		fmt.Fprintf(b, "\n## %s\n", heading)
		writeTable(tt, b, found, p.t, path)
	}
}

// kindName is what a key's value is, in a word.
func kindName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + kindName(t.Elem())
	case t.Kind() == reflect.Pointer:
		return kindName(t.Elem())
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "whole number"
}

var goName = regexp.MustCompile(`\[?\b([A-Z][A-Za-z0-9]+)\b\]?`)

// about returns a comment as a phrase about a key: names of Go are those of keys.
func about(comment, name string, names map[string]string) string {
	text := strings.Join(strings.Fields(comment), " ")
	for _, start := range []string{name + " is ", name + " are ", name + " "} {
		text = strings.TrimPrefix(text, start)
	}
	text = goName.ReplaceAllStringFunc(text, func(word string) string {
		bare := strings.Trim(word, "[]")
		if key := names[bare]; key != "" && key != "-" && bare != "Name" && bare != "Model" {
			return "`" + key + "`"
		}
		return bare
	})
	return strings.ReplaceAll(strings.TrimSuffix(text, ".")+".", "|", "\\|")
}
