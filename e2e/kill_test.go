package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"orchestrator/internal/brokertest"
	"orchestrator/session"
)

// seedEnv repeats what was random in an earlier run: the script, the peers' delays and the moments of the kills.
const seedEnv = "E2E_SEED"

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(rand.Uint32())
	if text, ok := os.LookupEnv(seedEnv); ok {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	fmt.Fprintf(t.Output(), "seed=%d\n", seed)
	return seed
}

func TestKillBySignalCancelsNothing(t *testing.T) {
	const (
		stops   = 7
		thought = 4 * time.Second
	)
	d := deploy(t, seedOf(t), "", stops, rule{"match": "^think slowly$", "latency": thought.String(), "text": "Thought through."})
	// The first turn is stopped at the same point of one model call, more often than it would survive crashes.
	var slow session.TurnID
	attempts := func(store session.Store) int {
		for _, rec := range d.records(store, session.KindTurn, session.StateRunning) {
			var turn session.TurnBody
			if err := rec.Decode(&turn); err != nil {
				t.Fatal(err)
			}
			if slow == "" || slow == session.TurnID(rec.Key) {
				slow = session.TurnID(rec.Key)
				return turn.Attempt
			}
		}
		return 0
	}
	for i := range stops {
		input := fmt.Sprintf("round %d", i)
		if i == 0 {
			input = "think slowly"
		}
		l := d.live("ask", input)
		if !l.until(20*time.Second, func(store session.Store) bool { return attempts(store) == i+1 }) {
			t.Fatalf("%s: the slow turn is not at work for the time number %d\n%s", l.what, i+1, l.tail())
		}
		l.runs(d.moment() / 2)
		if code := l.stop(); code != 130 {
			t.Errorf("%s ends with exit code %d, want 130\n%s", l.what, code, l.tail())
		}
		d.remains(func(store session.Store) {
			trees, err := store.Trees(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, tree := range trees {
				if tree.Owner != "" || tree.Crashed {
					t.Errorf("after stop %d tree %s is owned by %q, crashed %t; want it released", i+1, tree.ID, tree.Owner, tree.Crashed)
				}
			}
		})
	}
	e := d.lastLife(time.Minute)
	v := judge(e)
	d.report(v, e)
	for how, n := range failedTurns(e) {
		t.Errorf("%d turns ended as %s", n, how)
	}
	for _, tree := range e.trees {
		for _, event := range tree.events {
			switch event.Type {
			case session.EventSubagentFailed, session.EventInvocationCancelled:
				t.Errorf("tree %s: event %d is %s: %s", tree.info.ID, event.Seq, event.Type, event.Data)
			}
		}
		for _, rec := range tree.records {
			var turn session.TurnBody
			if rec.Kind != session.KindTurn {
				continue
			}
			if err := rec.Decode(&turn); err != nil {
				t.Fatal(err)
			}
			if turn.Crashes != 0 {
				t.Errorf("turn %s counts %d crashes, want a stop to be none", rec.Key, turn.Crashes)
			}
			if session.TurnID(rec.Key) == slow && turn.Attempt != stops+1 {
				t.Errorf("the slow turn took %d attempts, want %d", turn.Attempt, stops+1)
			}
		}
	}
	fmt.Fprintf(t.Output(), "stops=%d %v\n", stops, v)
}

func TestKillLosesNoReplyAndUsesNoneTwice(t *testing.T) {
	killAgainAndAgain(t, killing{kills: 25, calls: 200, blocked: 5, unfolded: 3})
}

func TestKillLosesNoReplyOfAPeerBehindAQueue(t *testing.T) {
	killAgainAndAgain(t, killing{broker: brokertest.Vhost(t), kills: 10, calls: 80, blocked: 2, unfolded: 1})
}

// killing says how often the product is killed and what that has to meet at least.
type killing struct {
	broker         string // of the peers; empty: they are asked over HTTP
	kills          int
	calls, blocked int
	unfolded       int
}

func killAgainAndAgain(t *testing.T, want killing) {
	kills, wantBlocked, wantUnfolded := want.kills, want.blocked, want.unfolded
	d := deploy(t, seedOf(t), want.broker, 2*kills)
	killed, blocked, unfolded := 0, 0, 0
	for round := 1; killed < kills; round++ {
		if round > 2*kills {
			t.Fatalf("after %d lives only %d were killed", round-1, killed)
		}
		l := d.live("ask", fmt.Sprintf("round %d", round))
		// Most kills come after the process has begun to work; a few, while it starts.
		if d.random.IntN(6) > 0 {
			l.until(15*time.Second, func(store session.Store) bool { return d.begun(store, l.started) })
		}
		runs := l.runs(d.moment())
		// Chance brings most of what the kills have to meet; for the rest the last of them wait.
		if left := kills - killed; runs && left <= max(0, wantBlocked-blocked)+max(0, wantUnfolded-unfolded) {
			l.until(15*time.Second, func(store session.Store) bool {
				return blocked < wantBlocked && d.blocked(store, l.started) || unfolded < wantUnfolded && d.unfolded(store)
			})
		}
		if !l.kill() {
			continue
		}
		killed++
		d.remains(func(store session.Store) {
			if d.blocked(store, l.started) {
				blocked++
			}
			if d.unfolded(store) {
				unfolded++
			}
		})
	}
	e := d.lastLife(2 * time.Minute)
	v := judge(e)
	d.report(v, e)
	for how, n := range failedTurns(e) {
		if !strings.HasPrefix(how, "crashed: ") {
			t.Errorf("%d turns ended as %s", n, how)
			continue
		}
		t.Logf("%d turns ended as %s", n, how)
	}
	again, twice := resent(e)
	t.Logf("%d kills with a blocking wait open, %d with a reply not yet folded; up to %d subagents of one session at a time; "+
		"%d calls sent again, %d messages taken up twice", blocked, unfolded, peakSubagents(e), again, twice)
	switch {
	case blocked < wantBlocked || unfolded < wantUnfolded:
		t.Errorf("%d and %d kills met what they had to, want %d and %d", blocked, unfolded, wantBlocked, wantUnfolded)
	case v.calls < want.calls || v.answered == 0 || v.folded == 0 || v.unknown > v.calls/20:
		t.Errorf("the calls are too few or too one-sided: %v", v)
	case peakSubagents(e) < 10:
		t.Errorf("at most %d subagents ran at a time, want 10", peakSubagents(e))
	}
	fmt.Fprintf(t.Output(), "kills=%d calls=%d answered=%d folded=%d unknown=%d lost=%d double=%d\n",
		killed, v.calls, v.answered, v.folded, v.unknown, len(v.lost), len(v.double))
}
