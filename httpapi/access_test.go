package httpapi_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orchestrator/httpapi"
	"orchestrator/session"
)

func TestWithAuthOnlyAValidKeyLetsIn(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.AuthRequired = true }})
	valid := w.key("alice")
	revoked, key, err := w.keys.Create("alice", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.keys.Revoke(key.ID); err != nil {
		t.Fatal(err)
	}
	for name, header := range map[string]string{
		"none": "", "another scheme": "Basic " + valid, "no scheme": valid, "no key": "Bearer ", "another's form": "Bearer sk-123",
		"unknown": "Bearer ork_k0123456789_AAAA", "spoiled": "Bearer " + valid[:len(valid)-1] + "_", "longer": "Bearer " + valid + "A", "revoked": "Bearer " + revoked,
	} {
		headers := []string{}
		if header != "" {
			headers = []string{"Authorization", header}
		}
		got := w.do(http.MethodGet, "/v1/sessions", "", headers...)
		if got.status != http.StatusUnauthorized || got.code() != "unauthorized" || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		// Nothing is told of what there is, not even whether there is such a route.
		if got := w.do(http.MethodGet, "/v1/none", "", headers...); got.status != http.StatusUnauthorized {
			t.Errorf("%s at a route that isn't there: %d %s", name, got.status, got.body)
		}
	}
	w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions", "", "Authorization", "Bearer "+valid)
	w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions", "", "Authorization", "bearer  "+valid)
	w.call(http.StatusOK, nil, http.MethodGet, "/openapi.json", "")
}

func TestWithoutAuthTheLocalOperatorSeesSessionsWithoutAPrincipal(t *testing.T) {
	w := newWorld(t, worldConfig{})
	own, err := w.m.Open(t.Context(), session.OpenRequest{Agent: "primary"})
	if err != nil {
		t.Fatal(err)
	}
	alices, err := w.m.Open(t.Context(), session.OpenRequest{Agent: "primary", Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	auth := []string{"Authorization", "Bearer " + w.key("alice")}
	w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions/"+string(own), "")
	w.call(http.StatusNotFound, nil, http.MethodGet, "/v1/sessions/"+string(alices), "")
	w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions/"+string(alices), "", auth...)
	w.call(http.StatusNotFound, nil, http.MethodGet, "/v1/sessions/"+string(own), "", auth...)
}

func TestWithoutAuthOnlyLocalHostsAndOwnPagesAreTaken(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.TrustedOrigins = []string{"https://app.example.com"} }})
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:1": 200, "127.0.0.1:9": 200, "[::1]:9": 200, "127.8.8.8": 200,
		"evil.example": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:80": 403, "10.0.0.1": 403, "0.0.0.0:1": 403,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/sessions", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("host %s: %d, want %d", host, res.StatusCode, want)
		}
	}
	for _, tc := range []struct {
		method string
		want   int
		header []string
	}{
		{http.MethodPost, 403, []string{"Sec-Fetch-Site", "cross-site"}},
		{http.MethodPost, 403, []string{"Sec-Fetch-Site", "same-site"}},
		{http.MethodPost, 403, []string{"Origin", "https://evil.example"}},
		{http.MethodPost, 201, []string{"Sec-Fetch-Site", "same-origin"}},
		{http.MethodPost, 201, []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://app.example.com"}},
		{http.MethodPost, 201, nil},
		{http.MethodGet, 200, []string{"Sec-Fetch-Site", "cross-site"}},
	} {
		if got := w.do(tc.method, "/v1/sessions", "", tc.header...); got.status != tc.want || tc.want == 403 && got.code() != "cross_origin" {
			t.Errorf("%s with %q: %d %s, want %d", tc.method, tc.header, got.status, got.body, tc.want)
		}
	}
	// What a form can send is not taken, whatever it says of where it comes from.
	if got := w.do(http.MethodPost, "/v1/sessions/x/turns", `{"input": "x"}`, "Content-Type", "text/plain"); got.status != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain: %d %s", got.status, got.body)
	}
}

func TestRequestsOfAPrincipalAreBounded(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.Rate, c.Burst = 0.001, 3 }})
	for range 3 {
		w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions", "")
	}
	got := w.do(http.MethodGet, "/v1/sessions", "")
	if got.status != http.StatusTooManyRequests || got.code() != "rate_limited" || got.header.Get("Retry-After") == "" || got.header.Get("Retry-After") == "0" {
		t.Errorf("the fourth request: %d %s %s", got.status, got.header, got.body)
	}
	w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions", "", "Authorization", "Bearer "+w.key("alice"))
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, tc := range []struct {
		method, path string
		status       int
		code         string
	}{
		{http.MethodGet, "/", 404, "not_found"},
		{http.MethodGet, "/v1", 404, "not_found"},
		{http.MethodGet, "/v1/sessions/s_none", 404, "not_found"},
		{http.MethodPut, "/v1/sessions", 405, "method_not_allowed"},
		{http.MethodPost, "/openapi.json", 405, "method_not_allowed"},
	} {
		got := w.do(tc.method, tc.path, "")
		if got.status != tc.status || got.code() != tc.code || got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s = %d %s", tc.method, tc.path, got.status, got.body)
		}
		if tc.status == 405 && got.header.Get("Allow") == "" {
			t.Errorf("%s %s names no method that is allowed", tc.method, tc.path)
		}
	}
}

func TestKeysAreKeptHashedAndReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "deep", "keys.json")
		server, err := httpapi.OpenKeys(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		other, err := httpapi.OpenKeys(path, nil) // of another process
		if err != nil {
			t.Fatal(err)
		}
		secret, key, err := other.Create("alice", "laptop")
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		random := secret[strings.LastIndex(secret, key.ID)+len(key.ID)+1:]
		if strings.Contains(string(data), random) || len(random) < 43 {
			t.Errorf("the file holds the key %s:\n%s", secret, data)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file's mode is %v, %v", info.Mode(), err)
		}
		time.Sleep(1001 * time.Millisecond) // of the bubble
		got, ok := server.Verify(secret)
		if diff := cmp.Diff(key, got); !ok || diff != "" {
			t.Errorf("Verify() = %v (-created +verified):\n%s", ok, diff)
		}
		if _, err := other.Revoke(key.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1001 * time.Millisecond) // of the bubble
		if _, ok := server.Verify(secret); ok || server.Valid(key.ID) {
			t.Error("a revoked key is valid")
		}
		// A file that can't be read leaves the keys as they were, so that a slip of the hand locks nobody out.
		second, key2, err := other.Create("bob", "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(1001 * time.Millisecond) // of the bubble
		if !server.Valid(key2.ID) {
			t.Error("bob's key is not valid")
		}
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1001 * time.Millisecond) // of the bubble
		if _, ok := server.Verify(second); !ok {
			t.Error("bob's key is gone with a file that can't be read")
		}
		if _, err := httpapi.OpenKeys(path, nil); err == nil {
			t.Error("OpenKeys() reads a broken file")
		}
	})
}

func TestKeysAreListedAndRefusedByName(t *testing.T) {
	keys, err := httpapi.OpenKeys(filepath.Join(t.TempDir(), "keys.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, principal := range []string{"", "a b", "-a", strings.Repeat("a", 65), "ä", "a\n"} {
		if _, _, err := keys.Create(principal, ""); err == nil {
			t.Errorf("a key for %q was made", principal)
		}
	}
	if _, err := keys.Revoke("k0"); err == nil {
		t.Error("a key that isn't there was revoked")
	}
	_, one, err := keys.Create("alice", "")
	if err != nil {
		t.Fatal(err)
	}
	_, two, err := keys.Create("team.x@example.com", "ci")
	if err != nil {
		t.Fatal(err)
	}
	all, err := keys.List()
	if diff := cmp.Diff([]httpapi.Key{one, two}, all, cmpopts.EquateApproxTime(time.Second)); err != nil || diff != "" {
		t.Errorf("List() = %v (-want +got):\n%s", err, diff)
	}
}

func TestTheSameKeyAndInputAreTheSameTurn(t *testing.T) {
	w := newWorld(t, worldConfig{})
	path := "/v1/sessions/" + string(w.session()) + "/turns"
	post := func(key, input string) (turn session.TurnInfo, a answer) {
		a = w.do(http.MethodPost, path+"?wait=30s", inputBody(input), "Idempotency-Key", key)
		_ = json.Unmarshal(a.body, &turn) // a problem is none
		return turn, a
	}
	first, _ := post("k1", "say one")
	again, _ := post("k1", "say one")
	if first.ID == "" || first.ID != again.ID || again.Output != "one" {
		t.Errorf("the same key and input are %+v and %+v", first, again)
	}
	if _, a := post("k1", "say two"); a.status != http.StatusUnprocessableEntity || a.code() != "key_reused" {
		t.Errorf("the same key with another input: %d %s", a.status, a.body)
	}
	if a := w.do(http.MethodPost, path, `{"input": "say one", "onBusy": "queue"}`, "Idempotency-Key", "k1"); a.status != http.StatusAccepted || !strings.Contains(string(a.body), string(first.ID)) {
		t.Errorf("the default said aloud: %d %s", a.status, a.body)
	}
	if a := w.do(http.MethodPost, path, `{"input": "say one", "onBusy": "reject"}`, "Idempotency-Key", "k1"); a.code() != "key_reused" {
		t.Errorf("the same key and input with another onBusy: %d %s", a.status, a.body)
	}
	if other, _ := post("k2", "say one"); other.ID == first.ID || other.ID == "" {
		t.Errorf("another key is the turn %s", other.ID)
	}
	// In another session a key is another one.
	path = "/v1/sessions/" + string(w.session()) + "/turns"
	if other, _ := post("k1", "say one"); other.ID == first.ID || other.ID == "" {
		t.Errorf("in another session the key is the turn %s", other.ID)
	}
}

func TestInputsAreBounded(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.MaxInput = 1000 }})
	path := "/v1/sessions/" + string(w.session()) + "/turns"
	w.call(http.StatusAccepted, nil, http.MethodPost, path, inputBody(strings.Repeat("x", 1000)))
	for _, n := range []int{1001, 100_000, 4 << 20} {
		if got := w.do(http.MethodPost, path, inputBody(strings.Repeat("x", n))); got.status != http.StatusRequestEntityTooLarge || got.code() != "too_large" {
			t.Errorf("%d bytes: %d %s", n, got.status, got.body)
		}
	}
}

func TestWaitsAreBoundedAndSayWhatThereIs(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.MaxWait = 20 * time.Millisecond }})
	id := w.session()
	path := "/v1/sessions/" + string(id) + "/turns"
	var turn session.TurnInfo
	w.call(http.StatusAccepted, &turn, http.MethodPost, path+"?wait=1h", `{"input": "wait"}`)
	if turn.Ended {
		t.Errorf("turn = %+v", turn)
	}
	w.call(http.StatusOK, &turn, http.MethodGet, path+"/"+string(turn.ID)+"?wait=1h&until=quiescent", "")
	if turn.Ended || turn.Quiescent {
		t.Errorf("turn = %+v", turn)
	}
}

func TestUntilQuiescentWaitsForWhatTheTurnSetGoing(t *testing.T) {
	w := newWorld(t, worldConfig{})
	mine, auth := w.furnish("alice")
	path := "/v1/sessions/" + mine["session"]
	var turn session.TurnInfo
	w.call(http.StatusOK, &turn, http.MethodGet, path+"/turns/"+mine["turn"]+"?wait=30s", "", auth...)
	if !turn.Ended || turn.Quiescent {
		t.Errorf("the turn whose subagent and call are open is %+v", turn)
	}
	w.call(http.StatusAccepted, nil, http.MethodPost, path+"/agents/"+mine["agent"]+"/cancel", "", auth...)
	var call session.CallInfo
	w.call(http.StatusAccepted, &call, http.MethodPost, path+"/calls/"+mine["call"]+"/cancel", `{"reason": "enough"}`, auth...)
	if call.State != "cancelled" {
		t.Errorf("call = %+v", call)
	}
	w.call(http.StatusOK, &turn, http.MethodGet, path+"/turns/"+mine["turn"]+"?wait=30s&until=quiescent", "", auth...)
	if !turn.Quiescent {
		t.Errorf("turn = %+v", turn)
	}
	var calls httpapi.CallList
	w.call(http.StatusOK, &calls, http.MethodGet, path+"/calls?pending=true", "", auth...)
	if len(calls.Calls) != 0 {
		t.Errorf("pending calls = %+v", calls)
	}
	var agents httpapi.AgentList
	w.call(http.StatusOK, &agents, http.MethodGet, path+"/agents", "", auth...)
	if len(agents.Agents) != 2 || !agents.Agents[0].Root || agents.Agents[1].State != session.StateEnded {
		t.Errorf("agents = %+v", agents)
	}
	if got := w.do(http.MethodPost, path+"/agents/"+mine["session"]+"/cancel", "", auth...); got.status != http.StatusUnprocessableEntity {
		t.Errorf("cancelling the root agent: %d %s", got.status, got.body)
	}
}

func TestArtifactsAreAttachments(t *testing.T) {
	w := newWorld(t, worldConfig{})
	id := w.session()
	for name, a := range map[string]session.Artifact{
		`attachment; filename=x.html`:             {Name: "x.html", MediaType: "text/html; charset=utf-8", Data: []byte("<script>alert(1)</script>")},
		`attachment; filename=.._.._etc_passwd`:   {Name: "../../etc/passwd", MediaType: "not a type\r\nX: y", Data: []byte("b")},
		`attachment; filename=a_b_c`:              {Name: "a\nb\"c", Data: []byte{0, 1}},
		`attachment; filename*=utf-8''%C3%BC.txt`: {Name: "ü.txt", MediaType: "text/plain"},
	} {
		a.Key = session.NewArtifactKey()
		if _, err := w.m.Store().Commit(t.Context(), session.Batch{Tree: id, Artifacts: []session.Artifact{a}}); err != nil {
			t.Fatal(err)
		}
		got := w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions/"+string(id)+"/artifacts/"+string(a.Key), "")
		if string(got.body) != string(a.Data) || strings.ReplaceAll(got.header.Get("Content-Disposition"), `"`, "") != name {
			t.Errorf("artifact %q: %q as %s", a.Name, got.body, got.header.Get("Content-Disposition"))
		}
		if h := got.header; h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") || h.Get("X") != "" {
			t.Errorf("artifact %q has the header %s", a.Name, h)
		}
	}
	w.turn(id, "say "+strings.Repeat("long ", 20_000))
	for _, text := range w.settled(id, "") {
		var e struct {
			Data struct{ Artifact string }
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if e.Data.Artifact != "" {
			got := w.call(http.StatusOK, nil, http.MethodGet, "/v1/sessions/"+string(id)+"/artifacts/"+e.Data.Artifact, "")
			if !strings.Contains(string(got.body), "long long") {
				t.Errorf("the body of %s is %s", text, got.body)
			}
			return
		}
	}
	t.Error("no event's body is an artifact")
}
