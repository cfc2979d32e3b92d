package toolprofile_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/tool"
	"orchestrator/toolprofile"
)

const (
	onlyTime = "profiles: [{name: r, allow: [{tool: current_time}]}]\n"
	timeA2A  = "profiles: [{name: r, allow: [{tool: current_time}, {source: a2a}]}]\n"
	bad      = "profiles: [{name: r, alow: [{tool: current_time}]}]\n"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newLive(t *testing.T, path string, log *slog.Logger) *toolprofile.Live {
	t.Helper()
	reg := registry(t)
	l, err := toolprofile.NewLive(toolprofile.LiveConfig{
		Path: path, Registry: func() []tool.Tool { return reg }, Agents: []toolprofile.Agent{{Name: "a", Profile: "r"}}, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var (
	timeNames = []string{"current_time"}
	a2aNames  = []string{"current_time", "invoke_agent", "list_known_agents", "get_agent_details"}
)

func TestProfilesReloadKeepsTheOldSetWhenTheFileIsBad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, onlyTime)
	l := newLive(t, path, nil)
	running := l.Set(of("r"))

	write(t, path, timeA2A)
	if diff := cmp.Diff(timeNames, l.Set(of("r")).Names()); diff != "" {
		t.Errorf("before the reload (-want +got):\n%s", diff)
	}
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a2aNames, l.Set(of("r")).Names()); diff != "" {
		t.Errorf("after the reload (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(timeNames, running.Names()); diff != "" {
		t.Errorf("a set made before the reload has changed (-want +got):\n%s", diff)
	}
	if reason, denied := running.Refusal("invoke_agent"); !denied {
		t.Errorf("a set made before the reload refuses by the new profiles: %q", reason)
	}

	for _, text := range []string{bad, "profiles: [{name: other}]\n", ""} {
		write(t, path, text)
		err := l.Reload()
		if err == nil || !strings.HasPrefix(err.Error(), "profiles are not reloaded, those before stay in force: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("Reload() of %q = %v", text, err)
		}
		if diff := cmp.Diff(a2aNames, l.Set(of("r")).Names()); diff != "" {
			t.Errorf("after a bad reload (-want +got):\n%s", diff)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err == nil {
		t.Error("Reload() without the file succeeds")
	}
	write(t, path, onlyTime)
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(timeNames, l.Set(of("r")).Names()); diff != "" {
		t.Errorf("after the file is good again (-want +got):\n%s", diff)
	}
}

func TestProfilesRunNoticesAChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, onlyTime)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newLive(t, path, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.Run(ctx) })
		// step writes the file and lets Run look at it twice. Its old time is kept: the contents are what counts.
		step := func(text string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, text)
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		step(onlyTime)
		if log.Len() != 0 {
			t.Errorf("logged of an unchanged file: %s", log.String())
		}
		step(timeA2A)
		if diff := cmp.Diff(a2aNames, l.Set(of("r")).Names()); diff != "" {
			t.Errorf("after the change (-want +got):\n%s", diff)
		}
		step(bad)
		if diff := cmp.Diff(a2aNames, l.Set(of("r")).Names()); diff != "" {
			t.Errorf("after a bad change (-want +got):\n%s", diff)
		}
		step(onlyTime)
		if diff := cmp.Diff(timeNames, l.Set(of("r")).Names()); diff != "" {
			t.Errorf("after the file is good again (-want +got):\n%s", diff)
		}
		if reloads, faults := strings.Count(log.String(), `msg="profiles are reloaded"`), strings.Count(log.String(), "level=ERROR"); reloads != 2 || faults != 1 {
			t.Errorf("logged %d reloads and %d faults, want 2 and 1:\n%s", reloads, faults, log.String())
		}
		if !strings.Contains(log.String(), `unknown key \"alow\" in a profile; did you mean \"allow\"?`) {
			t.Errorf("the log doesn't say what is wrong:\n%s", log.String())
		}
		cancel()
		wg.Wait()
	})
}

func TestProfilesLiveUsesTheRegistryOfTheMoment(t *testing.T) {
	var reg []tool.Tool
	l, err := toolprofile.NewLive(toolprofile.LiveConfig{Default: []byte(shipped(t)), Registry: func() []tool.Tool { return reg }})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Set(of("primary")).Names(); len(got) != 0 {
		t.Errorf("tools of an empty registry: %v", got)
	}
	reg = specs("mcp:late", "lookup")
	if diff := cmp.Diff([]string{"lookup"}, l.Set(of("primary")).Names()); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if err := l.Reload(); err != nil {
		t.Errorf("Reload() without a file = %v, want nothing to do", err)
	}
	if d, err := l.Profiles().Explain(reg, of("primary"), "lookup"); err != nil || d.File != "profiles.yaml (built in)" {
		t.Errorf("Explain() = %+v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Run(ctx)
}

func TestProfilesLiveRefusesABadStart(t *testing.T) {
	reg := func() []tool.Tool { return nil }
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, bad)
	for name, cfg := range map[string]toolprofile.LiveConfig{
		"no registry":   {Default: []byte(timeA2A)},
		"no profiles":   {Registry: reg},
		"a bad file":    {Registry: reg, Path: path},
		"no file":       {Registry: reg, Path: path + ".none"},
		"a bad default": {Registry: reg, Default: []byte(bad)},
	} {
		if l, err := toolprofile.NewLive(cfg); err == nil {
			t.Errorf("%s: NewLive() = %v, want an error", name, l)
		}
	}
}
