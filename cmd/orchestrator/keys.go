package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"orchestrator/session"
)

// key is a key of the config file: a leaf, a table with fields, or a list of either.
type key struct {
	fields []field      // of a table
	elem   *key         // of a list
	leaf   reflect.Type // of a value; nil for tables and lists
}

type field struct {
	name string
	key  key
}

var durationType = reflect.TypeFor[time.Duration]()

// keysOf returns the keys that decode into a struct by its mapstructure tags.
func keysOf(t reflect.Type) key {
	switch {
	case t.Kind() == reflect.Pointer:
		return keysOf(t.Elem())
	case t.Kind() == reflect.Slice:
		elem := keysOf(t.Elem())
		return key{elem: &elem}
	case t.Kind() != reflect.Struct:
		return key{leaf: t}
	}
	var k key
	for f := range t.Fields() {
		if name := f.Tag.Get("mapstructure"); name != "-" {
			k.fields = append(k.fields, field{name, keysOf(f.Type)})
		}
	}
	return k
}

func (k key) field(name string) (key, bool) {
	for _, f := range k.fields {
		if strings.EqualFold(f.name, name) { // viper reads keys without regard to case
			return f.key, true
		}
	}
	return key{}, false
}

func (k key) names() []string {
	names := make([]string, len(k.fields))
	for i, f := range k.fields {
		names[i] = f.name
	}
	return names
}

// leaves calls f with the path of every value that is not inside a list, so that a variable can name it.
func (k key) leaves(path string, f func(path string, k key)) {
	if k.leaf != nil {
		f(path, k)
	}
	for _, c := range k.fields {
		c.key.leaves(strings.TrimPrefix(path+"."+c.name, "."), f)
	}
}

// check reports what in a YAML node is not what the key takes, each with its line.
func (k key) check(path string, n *yaml.Node, report func(line int, message string)) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Tag == "!!null":
	case len(k.fields) > 0:
		k.checkTable(path, n, report)
	case k.elem != nil && n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			k.elem.check(fmt.Sprintf("%s[%d]", path, i), item, report)
		}
	case k.elem != nil:
		report(n.Line, path+" must be a list")
	case n.Kind != yaml.ScalarNode:
		report(n.Line, fmt.Sprintf("%s must be %s", path, allowed(k.leaf)))
	default:
		if k.leaf != durationType && n.Decode(reflect.New(k.leaf).Interface()) == nil {
			return
		}
		if message := checkText(path, k.leaf, n.Value); message != "" {
			report(n.Line, message)
		}
	}
}

func (k key) checkTable(path string, n *yaml.Node, report func(line int, message string)) {
	if n.Kind != yaml.MappingNode {
		where := path
		if where == "" {
			where = "the file"
		}
		report(n.Line, fmt.Sprintf("%s must be a table with the keys %s", where, strings.Join(k.names(), ", ")))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Tag == "!!merge" {
			k.check(path, value, report)
			continue
		}
		full := strings.TrimPrefix(path+"."+name.Value, ".")
		sub, ok := k.field(name.Value)
		if !ok {
			report(name.Line, unknownKey("key", full, name.Value, k.names()))
			continue
		}
		sub.check(full, value, report)
	}
}

// unknownKey says that a name is not known, and which is meant.
func unknownKey(what, full, name string, known []string) string {
	if near := session.Nearest(name, known); near != "" {
		return fmt.Sprintf("unknown %s %q; did you mean %q?", what, full, near)
	}
	if len(known) > 12 {
		return fmt.Sprintf("unknown %s %q", what, full)
	}
	return fmt.Sprintf("unknown %s %q; known here: %s", what, full, strings.Join(known, ", "))
}

// checkText says what is wrong with the text of a value, or "".
func checkText(path string, t reflect.Type, text string) string {
	var err error
	switch {
	case t == durationType:
		if text != "0" {
			_, err = time.ParseDuration(text)
		}
	case t.Kind() == reflect.Bool:
		_, err = strconv.ParseBool(text)
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		_, err = strconv.ParseInt(text, 10, 64)
	case t.Kind() == reflect.Float64:
		_, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return fmt.Sprintf("%s is %q: it must be %s", path, text, allowed(t))
	}
	return ""
}

func allowed(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a duration with a unit, such as "90s", "3m" or "24h"`
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "text"
}
