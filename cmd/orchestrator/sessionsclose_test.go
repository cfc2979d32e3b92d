package main

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"orchestrator/a2a/a2atest"
	"orchestrator/internal/app"
	"orchestrator/session"
	"orchestrator/store/sqlite"
)

// start runs the product on the workplace until the test ends.
func (w *workplace) start(edit func(*app.Config)) *app.App {
	w.t.Helper()
	cfg, _, err := loadConfig(w.config, []string{"HOME=" + w.dir}, pflag.NewFlagSet("", pflag.PanicOnError))
	if err != nil {
		w.t.Fatal(err)
	}
	if edit != nil {
		edit(&cfg)
	}
	a, stop, err := startApp(w.t.Context(), cfg, slog.New(slog.NewTextHandler(w.t.Output(), nil)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := stop(); err != nil {
			w.t.Error(err)
		}
	})
	return a
}

// until waits for a condition.
func until(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it does not come to that")
		}
	}
}

func TestAClosedSessionEndsItsWorkAndIsDeletedAfterItsRetention(t *testing.T) {
	p := a2atest.New(t, a2atest.Config{Name: "advisor", Script: func(x *a2atest.Exchange) {
		x.State(a2atest.Working, "")
		x.Wait(a2atest.NewGate())
	}})
	w := newWorkplace(t, "  - {name: advisor, card: "+p.URL()+"}\n")
	w.ok("ask", "--no-wait", "ask advisor about tides")
	id := string(w.sessions()[0].ID)
	w.ok("ask", "hello")

	if got, want := w.ok("sessions", "close", id), "session "+id+" is closing; the next serve or ask ends what it has running, and serve deletes it 720h later\n"; got != want {
		t.Errorf("sessions close prints %q, want %q", got, want)
	}
	if got := w.ok("sessions", "close", id); got != "session "+id+" is closing already\n" {
		t.Errorf("closed again it prints %q", got)
	}
	if code, _, stderr := w.run("ask", "--session", id, "more"); code == exitOK || !strings.Contains(stderr, "closed") {
		t.Errorf("a question to it: exit code %d, message %q", code, stderr)
	}

	// The next life ends the call, closes the session, and deletes it when the retention is over; the other one stays.
	a := w.start(func(c *app.Config) { c.Sessions.Retention = 10 * time.Millisecond })
	until(t, func() bool {
		trees, err := a.Manager.Store().Trees(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(trees) == 1 && string(trees[0].ID) != id
	})
	// The refused question above was a life, too, and may have ended between the CancelTask it sent and its answer.
	if n := len(p.Requests(a2atest.MethodCancel)); n != 1 && n != 2 {
		t.Errorf("the peer got %d CancelTask, want 1, or 2 when the first was not answered in time", n)
	}
	for _, kind := range []session.Kind{session.KindSession, session.KindTurn, session.KindCall} {
		recs, err := a.Manager.Store().Records(t.Context(), session.RecordQuery{Tree: session.ID(id), Kind: kind})
		if err != nil || len(recs) > 0 {
			t.Errorf("%d records of kind %s are left (%v)", len(recs), kind, err)
		}
	}
}

func TestSessionsCloseAsksARunningServer(t *testing.T) {
	w := newWorkplace(t, "")
	w.ok("ask", "hello")
	id := string(w.sessions()[0].ID)
	a := w.start(nil)
	server := httptest.NewServer(a.API)
	t.Cleanup(server.Close)

	code, _, stderr := w.run("sessions", "close", id)
	if code != exitUnreachable || !strings.Contains(stderr, "is in use by process") || !strings.Contains(stderr, "let it close the session: --server URL") {
		t.Errorf("beside a server: exit code %d, message %q", code, stderr)
	}
	if got := w.ok("sessions", "close", id, "--server", server.URL); !strings.HasPrefix(got, "session "+id+" is clos") {
		t.Errorf("sessions close --server prints %q", got)
	}
	until(t, func() bool {
		rec, err := a.Manager.Store().Record(t.Context(), session.KindSession, id)
		return err == nil && rec.State == session.StateClosed
	})
	if got := w.ok("sessions", "list"); !strings.Contains(got, " closed ") {
		t.Errorf("sessions list doesn't say that it is closed:\n%s", got)
	}
	if code, _, stderr := w.run("sessions", "close", "s_none", "--server", server.URL); code == exitOK || !strings.Contains(stderr, "sessions list --server") {
		t.Errorf("an unknown session: exit code %d, message %q", code, stderr)
	}
}

func TestSessionsCloseSaysWhatIsWrong(t *testing.T) {
	w := newWorkplace(t, "")
	w.ok("ask", "look for the key")
	if code, _, stderr := w.run("sessions", "close", "s_none"); code != exitUsage || !strings.Contains(stderr, "there is no session s_none") {
		t.Errorf("an unknown session: exit code %d, message %q", code, stderr)
	}
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: w.dir + "/data/orchestrator.db", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	recs, err := s.Records(t.Context(), session.RecordQuery{Kind: session.KindSession})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range recs {
		if string(rec.Tree) == rec.Key {
			continue
		}
		if code, _, stderr := w.run("sessions", "close", rec.Key); code != exitUsage || !strings.Contains(stderr, "close its root "+string(rec.Tree)) {
			t.Errorf("a subagent's session: exit code %d, message %q", code, stderr)
		}
		return
	}
	t.Fatal("there is no subagent's session")
}
