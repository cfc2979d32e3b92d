package httpapi_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// specSchema returns the JSON Schema of OpenAPI 3.1 documents that the OpenAPI Initiative publishes
// (https://spec.openapis.org/oas/3.1/schema/2026-08-03, Apache-2.0).
func specSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := os.ReadFile("testdata/openapi-3.1.json")
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, "openapi-3.1.json", data, "")
}

// compile compiles the JSON Schema in data, or the part of it that a pointer like #/a/b names.
func compile(t testing.TB, name string, data []byte, pointer string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("file:///"+name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("file:///" + name + pointer)
	if err != nil {
		t.Fatalf("%s%s: %v", name, pointer, err)
	}
	return s
}

func TestTheOpenAPIDocumentIsValid(t *testing.T) {
	spec := document(t)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(spec))
	if err != nil {
		t.Fatal(err)
	}
	if err := specSchema(t).Validate(doc); err != nil {
		t.Errorf("the document is no OpenAPI 3.1: %v", err)
	}
	// The document's schema leaves schemas open; they are JSON Schemas of draft 2020-12, each by itself.
	var parts struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(spec, &parts); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Session", "Snapshot", "Turn", "Agent", "Call", "Event", "EventPage", "Problem", "NewTurn", "TurnEnded", "Message"} {
		if parts.Components.Schemas[name] == nil {
			t.Errorf("the document has no schema %s", name)
		}
	}
	for name := range parts.Components.Schemas {
		compile(t, "openapi.json", spec, "#/components/schemas/"+name)
	}
}

func TestABrokenOpenAPIDocumentIsNotValid(t *testing.T) {
	schema := specSchema(t)
	for _, broken := range []string{
		`{"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {}}`,
		`{"openapi": "3.1.0", "info": {"title": "t"}, "paths": {}}`,
		`{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"x": {}}}`,
	} {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(broken)))
		if err != nil {
			t.Fatal(err)
		}
		if schema.Validate(doc) == nil {
			t.Errorf("%s is valid", broken)
		}
	}
}
