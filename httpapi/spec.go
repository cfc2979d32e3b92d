package httpapi

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"orchestrator/session"
)

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// schemaNames are the names of types that say too little, or too much, by their Go names.
var schemaNames = map[reflect.Type]string{
	typeOf[session.Info]():      "Session",
	typeOf[session.TurnInfo]():  "Turn",
	typeOf[session.AgentInfo](): "Agent",
	typeOf[session.CallInfo]():  "Call",
}

func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := schemaNames[t]; ok {
		return name
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// enums are the values of properties whose Go types are open.
var enums = map[string][]any{
	"Session.status":  {"open", "closing", "closed"},
	"Snapshot.status": {"open", "closing", "closed"},
	"Snapshot.state":  {"idle", "running", "requires_action"},
	"Turn.origin":     {"user", "foldback", "task"},
	"Turn.state":      {"queued", "running", "suspended", "completed", "failed", "cancelled"},
	"Agent.state":     {"idle", "queued", "running", "suspended", "ended"},
	"Agent.result":    {"completed", "error", "timeout", "cancelled", "interrupted"},
	"Call.mode":       {"blocking", "async"},
	"Call.state":      {"waiting", "open", "detached", "answered", "consumed", "folded", "expired", "cancelled"},
}

// describeEvents adds the bodies of all event types, and says at Event which type has which.
func describeEvents(r huma.Registry) {
	types := make(map[string]any)
	for _, info := range session.EventCatalog() {
		about := map[string]any{"description": info.Text}
		if info.Type.Ephemeral() {
			about["ephemeral"] = true
		}
		if info.Data != nil {
			about["data"] = r.Schema(reflect.TypeOf(info.Data), true, "")
		}
		types[string(info.Type)] = about
	}
	event := r.Map()["Event"]
	event.Description = "The envelope of everything that happens. x-event-types says what each type is, and which schema its data has; a body over 64 KiB is {artifact, size} instead, and the artifact of that key holds it."
	event.Extensions = map[string]any{"x-event-types": types}
}

// polish says in the document what the Go types can't.
func polish(doc *huma.OpenAPI) {
	doc.Info.Description = "Sessions of an agent, their turns, and everything that happens in them. Errors are RFC 9457 problems with a stable code. Answers may get more fields; ignore those you don't know."
	doc.Info.License = &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}
	doc.Servers = []*huma.Server{{URL: "/", Description: "where this document came from"}}
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"key": {
		Type: "http", Scheme: "bearer", Description: "An API key, made by orchestrator keys create. Needed unless the server is the local operator's own.",
	}}
	describeEvents(doc.Components.Schemas)
	submit := doc.Paths["/v1/sessions/{session}/turns"].Post.Responses
	submit["200"] = &huma.Response{Description: "With wait: the turn is what was waited for.", Content: submit["202"].Content}
	requests := map[string]bool{"NewSession": true, "NewTurn": true, "CancelRequest": true}
	for name, schema := range doc.Components.Schemas.Map() {
		if !requests[name] {
			schema.AdditionalProperties = nil // answers may grow
		}
		for property, values := range enums {
			if of, field, _ := strings.Cut(property, "."); of == name {
				schema.Properties[field].Enum = values
			}
		}
	}
	var all []any
	for _, code := range codeList() {
		all = append(all, code)
	}
	doc.Components.Schemas.Map()["Problem"].Properties["code"].Enum = all
}
