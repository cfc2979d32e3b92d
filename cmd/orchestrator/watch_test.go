package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
)

// errand is work whose answers come when the test says: at a look of a kind, before what it sees.
type errand struct {
	working bool                     // an answer has come and is worked in
	out     []session.CallID         // the calls that nothing waits for
	come    map[string]func(*errand) // by the look, "detached 1" for the first of its kind
	looks   map[string]int
}

func (e *errand) look(kind string) {
	e.looks[kind]++
	if come := e.come[kind+" "+string(rune('0'+e.looks[kind]))]; come != nil {
		come(e)
	}
}

// answered has the answer of a call come.
func answered(e *errand) { e.out, e.working = e.out[1:], true }

func (e *errand) settle(ctx context.Context) error {
	e.look("settle")
	if e.working {
		if err := rest(ctx, time.Second); err != nil {
			return err
		}
		e.working = false
		e.look("folded")
	}
	return nil
}

func (e *errand) settled(context.Context) (bool, error) {
	e.look("settled")
	return !e.working, nil
}

func (e *errand) detached(context.Context) ([]wantedCall, error) {
	e.look("detached")
	var calls []wantedCall
	for _, id := range e.out {
		calls = append(calls, wantedCall{id: id, peer: "archivist"})
	}
	return calls, nil
}

func (e *errand) changed(ctx context.Context, until time.Time) error {
	e.look("changed")
	return rest(ctx, min(time.Second, time.Until(until)))
}

func TestWhatComesHomeIsWaitedForInEveryOrder(t *testing.T) {
	asks := func(e *errand) { e.out = append(e.out, "c2") } // the answer has the primary ask for more, whose wait ends
	for _, tt := range []struct {
		name  string
		come  map[string]func(*errand)
		late  time.Duration
		open  []session.CallID
		waits bool // and says so
	}{
		{"answer before all is settled", map[string]func(*errand){"settle 1": answered}, time.Minute, nil, false},
		{"answer after all is settled and before the calls are looked at", map[string]func(*errand){"detached 1": answered}, time.Minute, nil, false},
		{"the same without a wait for late answers", map[string]func(*errand){"detached 1": answered}, 0, nil, false},
		{"answer after the calls are looked at without a wait", map[string]func(*errand){"settled 1": answered}, 0, nil, false},
		{"answer while it is waited for", map[string]func(*errand){"changed 3": answered}, time.Minute, nil, true},
		{"answer between two looks", map[string]func(*errand){"detached 3": answered}, time.Minute, nil, true},
		{"answer that asks for more, which is answered", map[string]func(*errand){
			"detached 1": answered, "folded 1": asks, "changed 2": answered,
		}, time.Minute, nil, true},
		{"answer that asks for more, which is answered before a look", map[string]func(*errand){
			"detached 1": answered, "folded 1": asks, "detached 2": answered,
		}, time.Minute, nil, false},
		{"answer in the last moment", map[string]func(*errand){"settled 1": answered}, 2 * time.Second, nil, true},
		{"answer in the last moment that asks for more", map[string]func(*errand){"settled 1": answered, "folded 1": asks}, 2 * time.Second, []session.CallID{"c2"}, true},
		{"no answer", nil, time.Minute, []session.CallID{"c1"}, true},
		{"no answer and no wait", nil, 0, []session.CallID{"c1"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &errand{out: []session.CallID{"c1"}, come: tt.come, looks: make(map[string]int)}
				var said []string
				begin := time.Now()
				open, err := comeHome(t.Context(), e, tt.late, func(text string) { said = append(said, text) })
				if err != nil {
					t.Fatal(err)
				}
				var ids []session.CallID
				for _, call := range open {
					ids = append(ids, call.id)
				}
				if e.working || !slices.Equal(ids, tt.open) || !slices.Equal(e.out, tt.open) {
					t.Errorf("it ends with %v open and at work %v; the calls %v are, want %v and nothing at work", ids, e.working, e.out, tt.open)
				}
				if waits := len(said) == 1 && strings.Contains(said[0], "late answer of archivist"); waits != tt.waits || len(said) > 1 {
					t.Errorf("it says %q, want a wait said once: %v", said, tt.waits)
				}
				if took := time.Since(begin); took > tt.late+3*time.Second {
					t.Errorf("it took %v, with %v for late answers", took, tt.late)
				}
			})
		})
	}
}
