package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"orchestrator/httpapi"
	"orchestrator/session"
)

// operation is what the OpenAPI document says of one route.
type operation struct {
	method, path string
	ID           string `json:"operationId"`
	Parameters   []struct {
		Name   string `json:"name"`
		In     string `json:"in"`
		Schema schema `json:"schema"`
	} `json:"parameters"`
	RequestBody *struct {
		Content map[string]struct {
			Schema schema `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]json.RawMessage `json:"content"`
	} `json:"responses"`
}

// schema is the part of a JSON Schema that hostile values are made from.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Enum       []any             `json:"enum"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

// openapi is the document as a client sees it.
type openapi struct {
	t          *testing.T
	spec       []byte
	compiled   map[string]*jsonschema.Schema
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

func (w *world) openapi(t *testing.T) *openapi {
	t.Helper()
	a := w.call(http.StatusOK, nil, http.MethodGet, "/openapi.json", "")
	d := &openapi{t: t, spec: a.body, compiled: map[string]*jsonschema.Schema{}}
	if err := json.Unmarshal(a.body, d); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *openapi) operations() []operation {
	var all []operation
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			o := d.Paths[path][method]
			o.method, o.path = strings.ToUpper(method), path
			all = append(all, o)
		}
	}
	return all
}

func (d *openapi) resolve(s schema) schema {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return d.Components.Schemas[name]
	}
	return s
}

// check reports how an answer differs from what the document says of the operation.
func (d *openapi) check(o operation, a answer) error {
	key := strconv.Itoa(a.status)
	media := strings.Split(a.header.Get("Content-Type"), ";")[0]
	if a.status >= 400 {
		if media != "application/problem+json" {
			return fmt.Errorf("an error of type %q", media)
		}
		key = "default"
	}
	response, ok := o.Responses[key]
	if !ok {
		return fmt.Errorf("status %d is not in the document", a.status)
	}
	if _, ok := response.Content[media]; !ok {
		if o.ID == "get-artifact" {
			return nil // its own media type
		}
		return fmt.Errorf("type %q of status %d is not in the document", media, a.status)
	}
	if !strings.HasSuffix(media, "json") {
		return nil
	}
	pointer := "#/paths/" + url.PathEscape(strings.ReplaceAll(o.path, "/", "~1")) + "/" + strings.ToLower(o.method) +
		"/responses/" + key + "/content/" + strings.ReplaceAll(media, "/", "~1") + "/schema"
	if d.compiled[pointer] == nil {
		d.compiled[pointer] = compile(d.t, "openapi.json", d.spec, pointer)
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
	if err != nil {
		return fmt.Errorf("a body that is no JSON: %w", err)
	}
	return d.compiled[pointer].Validate(body)
}

// belongings are the ids of a session with something of everything, by the parameters of paths.
type belongings map[string]string

// furnish opens a session of a principal with a turn that has ended, one that runs, a subagent, a call and an artifact.
func (w *world) furnish(principal string) (b belongings, auth []string) {
	w.t.Helper()
	auth = []string{"Authorization", "Bearer " + w.key(principal)}
	var info session.Info
	w.call(http.StatusCreated, &info, http.MethodPost, "/v1/sessions", `{"title": "secret of `+principal+`"}`, auth...)
	id := info.ID
	ended := w.turn(id, "say secret of "+principal, auth...)
	w.call(http.StatusAccepted, nil, http.MethodPost, "/v1/sessions/"+string(id)+"/turns", inputBody("wait secret of "+principal), auth...)
	child, call, now := session.NewID(), session.CallIDFor(session.ToolCallID(string(id)+":7")), time.Now().UTC()
	artifact := session.Artifact{Key: session.NewArtifactKey(), Name: "secret of " + principal, MediaType: "text/plain", Data: []byte("secret of " + principal)}
	_, err := w.m.Store().Commit(w.t.Context(), session.Batch{
		Tree: id,
		Changes: []session.Change{
			session.Insert(session.KindChild, string(child), id, ended.ID, session.StateRunning, session.AgentInfo{ID: child, Parent: id, Agent: "subagent", Description: "secret of " + principal}, time.Time{}),
			session.Insert(session.KindCall, string(call), id, ended.ID, "waiting", session.CallInfo{
				ID: call, Session: id, Agent: id, Peer: "peer", Mode: session.ModeAsync, Question: "secret of " + principal, SentAt: now, Deadline: now, ReplyBy: now,
			}, time.Time{}),
		},
		Artifacts: []session.Artifact{artifact},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return belongings{"session": string(id), "turn": string(ended.ID), "agent": string(child), "call": string(call), "key": string(artifact.Key)}, auth
}

// hostileWorld is a world with two principals who have the same things.
func hostileWorld(t *testing.T) *world {
	return newWorld(t, worldConfig{edit: func(c *httpapi.Config) {
		c.AuthRequired, c.MaxWait, c.Heartbeat, c.MaxInput = true, 3*time.Millisecond, time.Millisecond, 10_000
	}})
}

func TestEveryRouteAnswersAsTheDocumentSays(t *testing.T) {
	w := hostileWorld(t)
	doc := w.openapi(t)
	mine, auth := w.furnish("alice")
	ops := doc.operations()
	// What closes the session comes last.
	slices.SortStableFunc(ops, func(a, b operation) int { return strings.Compare(a.method, b.method) * -1 })
	slices.SortStableFunc(ops, func(a, b operation) int {
		return strings.Compare(strconv.FormatBool(a.method == http.MethodDelete), strconv.FormatBool(b.method == http.MethodDelete))
	})
	for _, o := range ops {
		body := ""
		if o.ID == "create-turn" {
			body = `{"input": "say hello"}`
		}
		path := o.path
		for name, id := range mine {
			path = strings.ReplaceAll(path, "{"+name+"}", id)
		}
		a := w.do(o.method, path, body, auth...)
		if a.status >= 300 {
			t.Errorf("%s: %d %s", o.ID, a.status, a.body)
		}
		if err := doc.check(o, a); err != nil {
			t.Errorf("%s: %d %s: %v", o.ID, a.status, a.body, err)
		}
	}
	if len(ops) < 14 {
		t.Errorf("the document has %d operations", len(ops))
	}
}

// hostileRequest is a request to a route, with what it is made of.
type hostileRequest struct {
	method, path, query, body string
	header                    http.Header
}

func (r hostileRequest) String() string {
	body := r.body
	if len(body) > 300 {
		body = fmt.Sprintf("%s… (%d bytes)", body[:300], len(body))
	}
	return fmt.Sprintf("%s %s?%s %v %s", r.method, r.path, r.query, r.header, body)
}

var (
	junkIDs = []string{
		"x", "%00", "..%2f..%2fetc", "%2e%2e", "s_", "s_01", "' OR 1=1 --", "%F0%9F%92%A9", "%FF%FE", strings.Repeat("A", 3000), "*", "null", "-1", "s_%0d%0aX: y",
		"s_00000000000000000000000000", "t_00000000000000000000000000", "c_00000000000000000000000000",
	}
	junkValues = []string{
		"", "x", "-1", "0", "1e9", "99999999999999999999999", "9223372036854775807", "18446744073709551615", "NaN", "null", "true", "-0", "+1", "0x10", "1.5", "30s", "-30s", "1h1h", "9999999h",
		"\x00", "\xff\xfe", "é", strings.Repeat("9", 400), strings.Repeat("a,", 900), "turn.completed,turn.completed", "message.delta", "turn", "quiescent", "root", "now", "[]", "a&b=c", "' OR 1=1 --", "%s%n",
	}
	junkHeaders = map[string][]string{
		"Accept":          {"*/*", "text/event-stream", "text/event-stream;q=0", "a;,", ";", ",;q=,", "application/json;q=x", strings.Repeat("a/b;q=0.1,", 200), "text/html", "application/cbor"},
		"Content-Type":    {"application/json", "", "text/plain", "application/json; charset=utf-16", "+;", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a+json", ";+"},
		"Last-Event-Id":   {"0", "5", "-1", "x", "99999999999999999999", "18446744073709551615", "now", strings.Repeat("1", 500)},
		"Idempotency-Key": {"k", "k2", strings.Repeat("k", 255), strings.Repeat("k", 256), "é", "\"quoted\"", " "},
		"Traceparent":     {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0-0-0", "x", strings.Repeat("0", 300)},
		"Origin":          {"https://evil.example", "null", "x"},
		"Sec-Fetch-Site":  {"cross-site", "same-origin", "none", "x"},
		"Range":           {"bytes=0-1", "bytes=5-1", "bytes=-1", "x", "bytes=0-0,1-1,2-2"},
		"If-None-Match":   {"*", "x", "\""},
		"Content-Length":  {"5"},
		"Expect":          {"100-continue", "x"},
		"X-Forwarded-For": {"127.0.0.1"},
		"Cookie":          {"a=b; c"},
	}
)

// drawRequest draws a request to an operation: a valid one of mine, with some of its parts spoiled.
func drawRequest(rt *rapid.T, doc *openapi, o operation, mine, theirs belongings) hostileRequest {
	r := hostileRequest{method: o.method, path: o.path, header: http.Header{}}
	if rapid.IntRange(0, 4).Draw(rt, "whole") == 0 {
		for name, id := range mine {
			r.path = strings.ReplaceAll(r.path, "{"+name+"}", id)
		}
		if o.ID == "create-turn" {
			r.body = `{"input": "say hello"}`
			r.header.Set("Content-Type", "application/json")
		}
		return r
	}
	others := []string{}
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		others = append(others, mine[name], theirs[name])
	}
	query := url.Values{}
	for _, p := range o.Parameters {
		switch p.In {
		case "path":
			id := mine[p.Name]
			switch rapid.IntRange(0, 9).Draw(rt, "whose "+p.Name) {
			case 0, 1:
				id = theirs[p.Name]
			case 2:
				id = rapid.SampledFrom(junkIDs).Draw(rt, "junk id")
			case 3:
				id = rapid.SampledFrom(others).Draw(rt, "id of another kind")
			}
			r.path = strings.Replace(r.path, "{"+p.Name+"}", id, 1)
		case "query":
			if rapid.IntRange(0, 2).Draw(rt, "has "+p.Name) == 0 {
				values := junkValues
				if len(p.Schema.Enum) > 0 && rapid.Bool().Draw(rt, "in the enum") {
					values = []string{fmt.Sprint(p.Schema.Enum[0])}
				}
				query.Add(p.Name, rapid.SampledFrom(values).Draw(rt, p.Name))
				if rapid.IntRange(0, 9).Draw(rt, "twice") == 0 {
					query.Add(p.Name, rapid.SampledFrom(junkValues).Draw(rt, p.Name))
				}
			}
		}
	}
	r.query = query.Encode()
	switch rapid.IntRange(0, 19).Draw(rt, "query's form") {
	case 0:
		r.query += "&none=1"
	case 1:
		r.query += "&%zz&=&&a=%"
	case 2:
		r.query += ";" + strings.Repeat("a=b&", 100)
	}
	for _, name := range slices.Sorted(maps.Keys(junkHeaders)) {
		if rapid.IntRange(0, 7).Draw(rt, "has "+name) == 0 {
			r.header[name] = []string{rapid.SampledFrom(junkHeaders[name]).Draw(rt, name)}
		}
	}
	if rapid.IntRange(0, 30).Draw(rt, "method") == 0 {
		r.method = rapid.SampledFrom([]string{"PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "NONE", "GET", "POST", "DELETE"}).Draw(rt, "other method")
	}
	if o.RequestBody != nil || rapid.IntRange(0, 9).Draw(rt, "a body nobody wants") == 0 {
		r.body = drawBody(rt, doc, o)
		if r.header.Get("Content-Type") == "" && rapid.IntRange(0, 9).Draw(rt, "typed") > 0 {
			r.header.Set("Content-Type", "application/json")
		}
	}
	return r
}

// drawBody draws a body from the operation's schema, whole or spoiled.
func drawBody(rt *rapid.T, doc *openapi, o operation) string {
	switch rapid.IntRange(0, 19).Draw(rt, "body's form") {
	case 0:
		return ""
	case 1:
		return rapid.SampledFrom([]string{
			"{", "null", "[]", "\"x\"", "1", "{}{}", "\x00", "\xff", "{\"input\": \"\xff\"}", `{"input": "\ud800"}`, "{\"a\"}", strings.Repeat("[", 20_000), strings.Repeat(`{"input":`, 5000), "[{}]", "{\"input\": 1e999}",
		}).Draw(rt, "junk body")
	case 2:
		return `{"input": "` + strings.Repeat("x", rapid.SampledFrom([]int{9_990, 10_000, 10_001, 90_000, 3 << 20}).Draw(rt, "size")) + `"}`
	case 3:
		return string(rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "bytes"))
	}
	var s schema
	if o.RequestBody != nil {
		s = doc.resolve(o.RequestBody.Content["application/json"].Schema)
	}
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if !slices.Contains(s.Required, name) && rapid.Bool().Draw(rt, "leave out "+name) {
			continue
		}
		object[name] = rapid.SampledFrom([]any{
			"say hello", "", nil, 1, -1.5, true, []any{}, map[string]any{}, []any{"x"}, strings.Repeat("y", 600), "wait", "deltas 3", "fail because", "queue", "steer", "reject", "primary", "other", "nobody",
			map[string]any{"$ref": "#"}, "\u0000", "\u202e", 1e300,
		}).Draw(rt, name)
		if rapid.IntRange(0, 2).Draw(rt, "valid "+name) > 0 {
			object[name] = "say hello"
			if p := s.Properties[name]; len(p.Enum) > 0 {
				object[name] = p.Enum[0]
			}
			if name == "agent" {
				object[name] = "other"
			}
		}
	}
	if rapid.IntRange(0, 9).Draw(rt, "a field nobody knows") == 0 {
		object["__proto__"] = map[string]any{"admin": true}
	}
	b, err := json.Marshal(object)
	if err != nil {
		rt.Fatal(err)
	}
	return string(b)
}

// send sends a request as it is and reads the answer; of a stream, through its first beat. It returns false for what Go's
// client refuses to send.
func (w *world) send(r hostileRequest, auth []string) (answer, bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	if u.Path, err = url.PathUnescape(r.path); err != nil {
		return answer{}, false
	}
	u.RawPath, u.RawQuery = r.path, r.query
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), strings.NewReader(r.body))
	if err != nil {
		return answer{}, false
	}
	req.Header = r.header.Clone()
	for i := 0; i < len(auth); i += 2 {
		req.Header.Set(auth[i], auth[i+1])
	}
	res, err := hostileClient.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		w.t.Fatalf("%s is not answered in time", r)
	case err != nil && (strings.Contains(err.Error(), "invalid header") || strings.Contains(err.Error(), "invalid method")):
		return answer{}, false
	case err != nil && len(r.body) > 64<<10:
		return answer{}, false // refused and cut before all of it was sent
	case err != nil:
		w.t.Fatalf("%s: %v", r, err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		lines := bufio.NewReader(res.Body)
		for {
			line, err := lines.ReadBytes('\n')
			a.body = append(a.body, line...)
			if err != nil || bytes.HasPrefix(line, []byte(":")) {
				return a, true
			}
		}
	}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		w.t.Fatalf("%s: %v", r, err)
	}
	return a, true
}

var hostileClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// TestHostileRequestsNeverFailUsAndNeverSeeWhatIsAnothers sends requests made from the OpenAPI document, whole and spoiled in
// every part, to every route.
func TestHostileRequestsNeverFailUsAndNeverSeeWhatIsAnothers(t *testing.T) {
	w := hostileWorld(t)
	doc := w.openapi(t)
	mine, auth := w.furnish("alice")
	theirs, theirAuth := w.furnish("bob")
	t.Cleanup(hostileClient.CloseIdleConnections)
	theirPath := "/v1/sessions/" + theirs["session"]
	view := func() []string {
		var all []string
		for _, path := range []string{"", "/events?limit=1000", "/agents", "/calls", "/turns/" + theirs["turn"], "/artifacts/" + theirs["key"]} {
			all = append(all, string(w.call(http.StatusOK, nil, http.MethodGet, theirPath+path, "", theirAuth...).body))
		}
		return all
	}
	rest := w.stream(session.ID(theirs["session"]), "?types=session.state", theirAuth...)
	for { // until the last thing that happens of itself
		if f := rest.until("session.state"); strings.Contains(f.data, theirs["call"]) && strings.Contains(f.data, `"state":"running"`) {
			break
		}
	}
	rest.close()
	before := view()
	ops := doc.operations()
	seen := map[string]map[bool]int{} // operation → whether it succeeded → how often
	check := func(rt *rapid.T, o operation, r hostileRequest, a answer) {
		body := string(a.body)
		switch {
		case a.status >= 500:
			rt.Fatalf("%s = %d %s", r, a.status, body)
		case strings.Contains(body, "secret of bob"):
			rt.Fatalf("%s tells what is bob's: %s", r, body)
		case r.method != http.MethodHead && a.status == http.StatusMovedPermanently || a.status == http.StatusTemporaryRedirect:
			return // a path that isn't clean
		}
		for name, id := range theirs {
			if strings.Contains(body, id) {
				rt.Fatalf("%s tells bob's %s: %s", r, name, body)
			}
		}
		if r.method != o.method {
			return
		}
		if a.status == http.StatusPartialContent || a.status == http.StatusRequestedRangeNotSatisfiable || a.status == http.StatusNotModified || a.status == http.StatusExpectationFailed {
			if o.ID == "get-artifact" || r.header.Get("Expect") != "" {
				return // net/http's own answers
			}
		}
		if err := doc.check(o, a); err != nil {
			rt.Fatalf("%s = %d %s %s: %v", r, a.status, a.header, body, err)
		}
		if seen[o.ID] == nil {
			seen[o.ID] = map[bool]int{}
		}
		seen[o.ID][a.status < 300]++
	}
	rapid.Check(t, func(rt *rapid.T) {
		for _, o := range ops {
			if o.ID == "close-session" && rapid.IntRange(0, 3).Draw(rt, "close mine") > 0 {
				continue
			}
			r := drawRequest(rt, doc, o, mine, theirs)
			if r.method == http.MethodDelete && strings.Contains(r.path, mine["session"]) {
				var fresh session.Info
				w.call(http.StatusCreated, &fresh, http.MethodPost, "/v1/sessions", "", auth...)
				r.path = strings.ReplaceAll(r.path, mine["session"], string(fresh.ID))
			}
			who := auth
			if rapid.IntRange(0, 19).Draw(rt, "without a key") == 0 {
				who = rapid.SampledFrom([][]string{nil, {"Authorization", "Bearer x"}, {"Authorization", "Basic YTpi"}, {"Authorization", "Bearer ork_k_x"}, {"Authorization", auth[1] + "x"}}).Draw(rt, "bad key")
			}
			a, sent := w.send(r, who)
			if !sent {
				continue
			}
			check(rt, o, r, a)
			if who != nil && &who[0] != &auth[0] && a.status != http.StatusUnauthorized && a.status != http.StatusForbidden && a.status != http.StatusMovedPermanently && a.status != http.StatusTemporaryRedirect && a.status != http.StatusExpectationFailed {
				rt.Fatalf("%s with the key %q = %d %s", r, who, a.status, a.body)
			}
			// What is another's is told by nothing from what doesn't exist.
			unknown := r
			for name, id := range theirs {
				unknown.path = strings.ReplaceAll(unknown.path, id, mine[name][:2]+"01ZZZZZZZZZZZZZZZZZZZZZZZZ")
			}
			if unknown.path != r.path {
				b, sent := w.send(unknown, who)
				if sent && (b.status != a.status || !bytes.Equal(a.body, b.body)) {
					rt.Fatalf("%s = %d %s, but of what doesn't exist %d %s", r, a.status, a.body, b.status, b.body)
				}
			}
		}
	})
	if diff := cmp.Diff(before, view()); diff != "" {
		t.Errorf("what is bob's has changed (-before +after):\n%s", diff)
	}
	for _, o := range ops {
		if seen[o.ID][true] == 0 || seen[o.ID][false] == 0 {
			t.Errorf("%s succeeded %d times and was refused %d times; both should have happened", o.ID, seen[o.ID][true], seen[o.ID][false])
		}
	}
	if errors.Is(t.Context().Err(), context.Canceled) {
		t.Error("the test was cut short")
	}
}
