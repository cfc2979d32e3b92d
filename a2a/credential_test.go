package a2a_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orchestrator/a2a"
)

func TestCredentialsComeFromTheEnvironmentAndFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(" from-file \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) { return "from-env", name == "SET" }
	parse := func(credential string) ([]a2a.Peer, error) {
		return a2a.ParsePeers(filepath.Join(dir, "peers.yaml"), []byte("peers:\n  - name: p\n    card: https://p.example\n    credentials:\n      - "+credential+"\n"), env)
	}
	for text, want := range map[string]a2a.Credential{
		"{type: api_key, value_env: SET}":                                                   {Type: "api_key", Value: "from-env", In: "header", Name: "X-API-Key"},
		"{type: api_key, value_file: secret, in: query, name: k}":                           {Type: "api_key", Value: "from-file", In: "query", Name: "k"},
		"{type: bearer, scheme: b, value_file: secret}":                                     {Type: "bearer", Scheme: "b", Value: "from-file"},
		"{type: oauth2, client_id_env: SET, client_secret_file: secret, client_auth: post}": {Type: "oauth2", ClientID: "from-env", ClientSecret: "from-file", PostSecret: true},
	} {
		peers, err := parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := peers[0].Credentials[0]
		got.Scopes, want.Scopes = nil, nil
		if got.Type != want.Type || got.Value != want.Value || got.In != want.In || got.Name != want.Name || got.Scheme != want.Scheme ||
			got.ClientID != want.ClientID || got.ClientSecret != want.ClientSecret || got.PostSecret != want.PostSecret {
			t.Errorf("%s gives %#v", text, got)
		}
	}
	for text, want := range map[string]string{
		"{type: basic, value_env: SET}":                                                    "a credential's type is api_key, bearer or oauth2",
		"{type: bearer}":                                                                   "value_env or value_file has to say where the secret is",
		"{type: bearer, value: abc}":                                                       `unknown key "value"`,
		"{type: bearer, value_env: UNSET}":                                                 "value_env names the environment variable UNSET, which isn't set",
		"{type: bearer, value_env: sk-secret-itself}":                                      "value_env names the environment variable (not a variable's name)",
		"{type: bearer, value_env: SET, value_file: secret}":                               "not both",
		"{type: bearer, value_file: nowhere}":                                              "read the secret",
		"{type: bearer, value_env: SET, in: query}":                                        "only an api_key has in and name",
		"{type: api_key, value_env: SET, in: body}":                                        "a header, the query or a cookie",
		"{type: api_key, value_env: SET, name: 'a b'}":                                     "can't be the name",
		"{type: api_key, value_env: SET, token_url: 'https://t'}":                          "only oauth2 has a client",
		"{type: oauth2, client_id_env: SET}":                                               "client_secret_env or client_secret_file",
		"{type: oauth2, client_id_env: SET, client_secret_env: SET, token_url: 'ftp://t'}": "a URL begins with http",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "peers.yaml:") || strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("%s gives %v, want %q", text, err, want)
		}
	}
	_, err := a2a.ParsePeers(filepath.Join(dir, "peers.yaml"), []byte("peers:\n  - name: p\n    card: https://p.example\n    tls: {cert_file: secret}\n"), env)
	if err == nil || !strings.Contains(err.Error(), "cert_file and key_file go together") {
		t.Errorf("a certificate without its key gives %v", err)
	}
}
