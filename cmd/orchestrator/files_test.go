package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"orchestrator/a2a"
)

// uncommented turns every line of a config file that is a commented key into that key.
func uncommented(data []byte) string {
	var out []string
	for line := range strings.SplitSeq(string(data), "\n") {
		if m := regexp.MustCompile(`^(\s*)# (\s*(- )?\{?[a-z0-9_]+:.*|\s+You are.*)$`).FindStringSubmatch(line); m != nil {
			line = m[1] + m[2]
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestShippedConfigLoadsAndEveryCommentedKeyExists(t *testing.T) {
	data, err := os.ReadFile("../../configs/orchestrator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := orchestrator(t, []string{"OPENAI_API_KEY=k"}, "config", "check", "--config", "../../configs/orchestrator.yaml")
	if code != exitOK {
		t.Errorf("config check: exit code %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "1 model, 2 agents") {
		t.Errorf("config check prints %q, want 1 model and 2 agents", stdout)
	}
	all := uncommented(data)
	if err := checkConfigText("orchestrator.yaml", []byte(all)); err != nil {
		t.Errorf("with its comments taken away: %v\n%s", err, all)
	}
	for _, name := range configKeys.names() {
		if !regexp.MustCompile(`(?m)^` + name + `:`).MatchString(all) {
			t.Errorf("the file doesn't tell of %s", name)
		}
	}
	configKeys.leaves("", func(path string, _ key) {
		name := path[strings.LastIndex(path, ".")+1:]
		if !regexp.MustCompile(`(?m)^\s*` + name + `:`).MatchString(all) {
			t.Errorf("the file doesn't tell of %s", path)
		}
	})
}

// TestShippedDefaultsAreTheRealOnes compares what the comments call defaults with what is in force without a file.
func TestShippedDefaultsAreTheRealOnes(t *testing.T) {
	data, err := os.ReadFile("../../configs/orchestrator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	env := []string{"HOME=/home/op", "OPENAI_API_KEY=k"}
	// What has no default that can be written down, or shows another value than the default on purpose.
	text := regexp.MustCompile(`(?m)^(data_dir|peers_file|profiles_file|\s+(path|keys_file|base_url|headers|price|grant|instructions|model):).*$`).ReplaceAllString(uncommented(data), "")
	text = regexp.MustCompile(`(?m)^\s+You are.*$`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "name: main", "name: openai")
	all := printed(t, env, "--config", write(t, dir, "orchestrator.yaml", text))
	none := printed(t, env, "--config", write(t, dir, "empty.yaml", ""))
	for name, want := range none {
		if got := mustJSON(t, all[name]); got != mustJSON(t, want) {
			t.Errorf("%s:\n with the file's defaults %s\n without a file          %s", name, got, mustJSON(t, want))
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	if err := printJSON(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestShippedPeersLoadAlsoUncommented(t *testing.T) {
	for _, file := range []string{"../../configs/peers.yaml", "../../configs/demo/peers.yaml"} {
		if _, err := a2a.LoadPeers(file); err != nil {
			t.Error(err)
		}
	}
	data, err := os.ReadFile("../../configs/peers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(uncommented(data), "peers: []", "", 1)
	dir := t.TempDir()
	cert, key := selfSigned(t)
	for name, content := range map[string][]byte{"ca.pem": cert, "us.pem": cert, "us.key": key, "secrets/ledger": []byte("secret")} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	peers, err := a2a.ParsePeers(filepath.Join(dir, "peers.yaml"), []byte(text), func(name string) (string, bool) {
		return map[bool]string{true: "amqp://me:secret@broker.test/", false: "secret"}[strings.HasSuffix(name, "AMQP_URL")], true
	})
	if err != nil || len(peers) != 4 || peers[3].Queue == "" || len(peers[2].Credentials) != 2 {
		t.Errorf("with its comments taken away: %d peers, %v\n%s", len(peers), err, text)
	}
}

func TestShippedDemoConfigLoads(t *testing.T) {
	code, stdout, stderr := orchestrator(t, nil, "config", "check", "--config", filepath.Join("..", "..", "configs", "demo", "orchestrator.yaml"))
	if code != exitOK || !strings.Contains(stdout, "1 model, 5 agents") {
		t.Errorf("config check: exit code %d: %s%s", code, stdout, stderr)
	}
}

// selfSigned returns a certificate and its key, as PEM.
func selfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}
