package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// gossip is a peer that tells everybody what it was sent, so that a secret appears wherever its words do.
type gossip struct {
	url     string
	scheme  string // of its card, JSON; "" is none
	refuses bool   // answers with an error instead of a message
	mu      sync.Mutex
	heard   string
}

func newGossip(t *testing.T, scheme string, refuses bool) *gossip {
	t.Helper()
	g := &gossip{scheme: scheme, refuses: refuses}
	srv := httptest.NewServer(g)
	t.Cleanup(srv.Close)
	g.url = srv.URL
	return g
}

// ServeHTTP implements http.Handler.
func (g *gossip) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		security := ""
		if g.scheme != "" {
			security = `, "securitySchemes": {"s": ` + g.scheme + `}, "securityRequirements": [{"schemes": {"s": []}}]`
		}
		fmt.Fprintf(w, `{"name": "gossip", "description": "tells", "version": "1", "capabilities": {}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
			"skills": [], "supportedInterfaces": [{"url": %q, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]%s}`, g.url+"/a2a", security)
		return
	}
	heard := fmt.Sprintf("%v %s", r.Header, r.URL.RawQuery)
	g.mu.Lock()
	g.heard += heard
	g.mu.Unlock()
	w.Header().Set("X-Heard", strings.ReplaceAll(heard, "\n", " "))
	told, err := json.Marshal("you sent " + heard)
	if err != nil {
		panic(err)
	}
	if g.refuses {
		fmt.Fprintf(w, `{"jsonrpc": "2.0", "id": "1", "error": {"code": -32602, "message": %s}}`, told)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc": "2.0", "id": "1", "result": {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": %s}]}}}`, told)
}

func (g *gossip) wasTold(t *testing.T, secret string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !strings.Contains(g.heard, secret) {
		t.Errorf("a peer was not sent its secret %s, so that nothing is tested: %s", secret, g.heard)
	}
}

// TestNoSecretAppearsAnywhere plants secrets, has peers quote what they are sent, and looks for them in all that the product
// prints, logs and keeps.
func TestNoSecretAppearsAnywhere(t *testing.T) {
	const (
		headerKey, queryKey, bearer   = "planted-header-1f3a", "planted+query/2b7c", "planted-bearer-3d9e"
		clientID, clientSecret, token = "planted-client-4c1d", "planted-secret-5e2f", "planted-token-6a8b"
		wrongKey, teamToken           = "planted-wrong-7b4c", "planted-team-8d5e"
	)
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != clientID || secret != clientSecret {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "not %s:%s"}`, id, secret)
			return
		}
		fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": 600}`, token)
	}))
	t.Cleanup(tokens.Close)
	oauth := fmt.Sprintf(`{"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": %q, "scopes": {}}}}}`, tokens.URL)
	apiKey := `{"apiKeySecurityScheme": {"location": "query", "name": "key"}}`
	peers := map[string]*gossip{
		"header": newGossip(t, "", false), "query": newGossip(t, apiKey, false), "oauth": newGossip(t, oauth, false),
		"bearer": newGossip(t, `{"httpAuthSecurityScheme": {"scheme": "Bearer"}}`, false), "refusing": newGossip(t, apiKey, true), "stranger": newGossip(t, oauth, false),
	}
	chat := newChatServer(t, func(c question) answer {
		if c.input() != "Go." || c.last().Role == "tool" {
			return says("Noted: " + c.input())
		}
		var calls []toolUse
		for name := range peers {
			calls = append(calls, toolUse{"invoke_agent", map[string]any{"agent_name": name, "message": "What do you know?"}})
		}
		return says("I ask.", calls...)
	})
	p := newPlace(t, "MODEL_KEY="+chatKey, "TEAM_TOKEN="+teamToken, "HEADER_KEY="+headerKey, "QUERY_KEY="+queryKey, "CLIENT_ID="+clientID,
		"CLIENT_SECRET="+clientSecret, "WRONG="+wrongKey)
	p.write("bearer.txt", bearer+"\n")
	p.write("orchestrator.yaml", fmt.Sprintf(`log: {level: debug}
a2a: {guard_primary: 8}
models:
  - {name: m, base_url: %q, api_key_env: MODEL_KEY, headers: [{name: X-Team-Token, env: TEAM_TOKEN}]}
`, chat.url))
	p.write("peers.yaml", fmt.Sprintf(`peers:
  - {name: header, card: %q, headers: {Authorization: "Bearer ${env:HEADER_KEY}"}}
  - {name: query, card: %q, credentials: [{type: api_key, value_env: QUERY_KEY}]}
  - {name: oauth, card: %q, credentials: [{type: oauth2, client_id_env: CLIENT_ID, client_secret_env: CLIENT_SECRET}]}
  - {name: bearer, card: %q, credentials: [{type: bearer, value_file: bearer.txt}]}
  - {name: refusing, card: %q, credentials: [{type: api_key, value_env: QUERY_KEY}]}
  - {name: stranger, card: %q, credentials: [{type: oauth2, client_id_env: CLIENT_ID, client_secret_env: WRONG}]}
`, peers["header"].url, peers["query"].url, peers["oauth"].url, peers["bearer"].url, peers["refusing"].url, peers["stranger"].url))

	said := make(map[string]string) // what was printed, by what printed it
	look := func(code int, args ...string) string {
		run := p.run(args...)
		run.exits(code)
		said[strings.Join(args, " ")] = run.stdout.String() + run.stderr.String()
		return run.stdout.String()
	}
	look(0, "ask", "Go.")
	s := p.session()
	for name, secret := range map[string]string{
		"header": headerKey, "query": url.QueryEscape(queryKey), "refusing": url.QueryEscape(queryKey), "bearer": bearer, "oauth": token,
	} {
		peers[name].wasTold(t, secret)
	}
	log := look(0, "sessions", "show", s, "-o", "json")
	if !strings.Contains(log, "you sent") || !strings.Contains(said["ask Go."], "level=DEBUG") {
		t.Errorf("the peers' words are not in the log, or nothing is logged at debug, so that nothing is tested")
	}
	look(0, "sessions", "show", s)
	look(0, "calls", "list", "-o", "json")
	look(0, "config", "print")
	look(0, "config", "print", "-o", "json")
	look(0, "config", "check")
	look(0, "peers", "list")
	look(0, "peers", "list", "-o", "json")
	for name := range peers {
		look(0, "peers", "show", name)
		look(0, "peers", "show", name, "-o", "json")
	}
	err := filepath.WalkDir(filepath.Join(p.dir, "home"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		text, err := io.ReadAll(file)
		said[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	databases := 0
	for where, text := range said {
		if strings.HasSuffix(where, ".db") {
			databases++
		}
		for _, secret := range []string{chatKey, headerKey, queryKey, bearer, clientID, clientSecret, token, wrongKey, teamToken} {
			for _, form := range []string{secret, url.QueryEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
				if i := bytes.Index([]byte(text), []byte(form)); i >= 0 {
					t.Errorf("%s has the secret %s: ...%q...", where, secret, text[max(0, i-100):min(len(text), i+len(form)+20)])
				}
			}
		}
	}
	if databases == 0 {
		t.Error("there is no database, so that nothing is tested")
	}
}
