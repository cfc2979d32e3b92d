package app

import (
	"fmt"
	"log/slog"
	"strings"

	"orchestrator/session"
	"orchestrator/toolprofile"
)

// Inspect builds an App to be looked at: its peers, its tools and who may call them. It opens no database and no model, so
// it needs neither a key nor the place of a running process, and it must not be started. [App.Stop] frees it.
func Inspect(cfg Config) (*App, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, log: slog.New(slog.DiscardHandler), store: session.NewMemory(), metrics: newRegistry()}
	if err := a.build(false); err != nil {
		return nil, err
	}
	return a, nil
}

// Subject returns an agent as the tool profiles see it: the primary agent in a root session, any other as its subagent.
func (a *App) Subject(name string) (toolprofile.Subject, error) {
	agent, ok := a.cfg.Agent(name)
	if !ok {
		var names []string
		for _, known := range a.cfg.Agents {
			names = append(names, known.Name)
		}
		if near := session.Nearest(name, names); near != "" {
			return toolprofile.Subject{}, fmt.Errorf("there is no agent %q; did you mean %q?", name, near)
		}
		return toolprofile.Subject{}, fmt.Errorf("there is no agent %q; there are %s", name, strings.Join(names, ", "))
	}
	if name == a.cfg.Primary {
		return a.subject(agent, session.SessionBody{}), nil
	}
	primary, _ := a.cfg.Agent(a.cfg.Primary) // Complete makes sure that it exists
	tools := a.Profiles.Set(a.subject(primary, session.SessionBody{})).Names()
	return toolprofile.Subject{Agent: profileAgent(agent), Child: true, Parent: tools}, nil
}
