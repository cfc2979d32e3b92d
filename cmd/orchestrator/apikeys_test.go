package main

import (
	"encoding/json"
	"strings"
	"testing"

	"orchestrator/httpapi"
)

func TestKeysAreMadeListedAndRevoked(t *testing.T) {
	env := []string{"HOME=" + t.TempDir(), "OPENAI_API_KEY=k"}
	t.Chdir(t.TempDir())
	if code, stdout, _ := orchestrator(t, env, "keys", "list"); code != exitOK || !strings.Contains(stdout, "no keys yet") {
		t.Errorf("keys list without keys = %d %q", code, stdout)
	}
	code, secret, stderr := orchestrator(t, env, "keys", "create", "alice", "--note", "laptop")
	if code != exitOK || !strings.HasPrefix(secret, "ork_") || strings.Count(secret, "\n") != 1 || !strings.Contains(stderr, "not shown again") {
		t.Fatalf("keys create = %d %q %q", code, secret, stderr)
	}
	var key httpapi.Key
	code, stdout, stderr := orchestrator(t, env, "keys", "list", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &key); code != exitOK || err != nil || key.Principal != "alice" || key.Note != "laptop" || key.Hash != "" {
		t.Fatalf("keys list = %d %q %q, %v", code, stdout, stderr, err)
	}
	if strings.Contains(stdout, strings.TrimSpace(secret)) {
		t.Error("keys list prints the key")
	}
	if code, stdout, _ := orchestrator(t, env, "keys", "revoke", key.ID); code != exitOK || !strings.Contains(stdout, "of alice is revoked") {
		t.Errorf("keys revoke = %d %q", code, stdout)
	}
	if _, stdout, _ := orchestrator(t, env, "keys", "list"); !strings.Contains(stdout, "revoked ") || !strings.Contains(stdout, "laptop") {
		t.Errorf("keys list = %q", stdout)
	}
	if code, _, stderr := orchestrator(t, env, "keys", "revoke", "k0"); code != exitUsage || !strings.Contains(stderr, "keys list") {
		t.Errorf("keys revoke of none = %d %q", code, stderr)
	}
	if code, _, stderr := orchestrator(t, env, "keys", "create", "a b"); code != exitUsage || !strings.Contains(stderr, "a principal is") {
		t.Errorf("keys create for a bad name = %d %q", code, stderr)
	}
}
