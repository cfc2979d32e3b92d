package agentloop

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// maxSchemas bounds the cache. When it is full it starts anew.
const maxSchemas = 2000

// schemaCache compiles each JSON Schema once. The zero value is ready to use.
type schemaCache struct {
	mu       sync.Mutex
	compiled map[string]compiledSchema
}

type compiledSchema struct {
	schema *jsonschema.Schema
	err    error
}

// validate says what is wrong with arguments, as the model shall read it; "" means nothing.
func (c *schemaCache) validate(schema, args json.RawMessage) (fault string, err error) {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return "they are not valid JSON", nil
	}
	if text, ok := value.(string); ok && !json.Valid([]byte(text)) {
		return "they are not valid JSON", nil
	}
	if _, ok := value.(map[string]any); !ok {
		return "they are not a JSON object", nil
	}
	if len(schema) == 0 {
		return "", nil
	}
	compiled := c.get(schema)
	if compiled.err != nil {
		return "", compiled.err
	}
	if err := compiled.schema.Validate(value); err != nil {
		return describe(err), nil
	}
	return "", nil
}

func (c *schemaCache) get(schema json.RawMessage) compiledSchema {
	c.mu.Lock()
	got, ok := c.compiled[string(schema)]
	c.mu.Unlock()
	if ok {
		return got
	}
	got.schema, got.err = compile(schema)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compiled == nil || len(c.compiled) >= maxSchemas {
		c.compiled = make(map[string]compiledSchema)
	}
	c.compiled[string(schema)] = got
	return got
}

// noLoader refuses references out of a schema: the library's own loader reads files.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("schema refers to %s, and nothing outside it is read", url)
}

func compile(schema json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	const url = "tool:///arguments.json"
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(url, doc); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	compiled, err := compiler.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	return compiled, nil
}

// describe turns a validation error into one line of a bounded length: the library's first line names only the schema.
func describe(err error) string {
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return err.Error()
	}
	order(invalid)
	var faults []string
	for line := range strings.Lines(invalid.Error()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "- ") {
			faults = append(faults, strings.TrimPrefix(line, "- "))
		}
	}
	if len(faults) > 8 {
		faults = append(faults[:8], fmt.Sprintf("and %d more", len(faults)-8))
	}
	return strings.Join(faults, "; ")
}

// order sorts what the library collects in the order of a map: the same fault must read the same each time, or a model
// that repeats it wouldn't be noticed.
func order(invalid *jsonschema.ValidationError) {
	if extra, ok := invalid.ErrorKind.(*kind.AdditionalProperties); ok {
		slices.Sort(extra.Properties)
	}
	for _, cause := range invalid.Causes {
		order(cause)
	}
	slices.SortFunc(invalid.Causes, func(a, b *jsonschema.ValidationError) int { return cmp.Compare(a.Error(), b.Error()) })
}
