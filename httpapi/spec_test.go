package httpapi_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// specFaults returns what an independent validator finds wrong with an OpenAPI 3.1 document.
func specFaults(t *testing.T, spec []byte) []string {
	t.Helper()
	doc, err := libopenapi.NewDocument(spec)
	if err != nil {
		return []string{err.Error()}
	}
	if version := doc.GetVersion(); !strings.HasPrefix(version, "3.1.") {
		return []string{"version " + version}
	}
	valid, faults := schema_validation.ValidateOpenAPIDocument(doc)
	var texts []string
	for _, fault := range faults {
		texts = append(texts, fault.Error())
	}
	if !valid && len(texts) == 0 {
		texts = append(texts, "not valid")
	}
	return texts
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
	for _, fault := range specFaults(t, spec) {
		t.Errorf("the document is no OpenAPI 3.1: %s", fault)
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
	for _, broken := range []string{
		`{"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {}}`,
		`{"openapi": "3.1.0", "info": {"title": "t"}, "paths": {}}`,
		`{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"x": {}}}`,
	} {
		if len(specFaults(t, []byte(broken))) == 0 {
			t.Errorf("%s is valid", broken)
		}
	}
}
