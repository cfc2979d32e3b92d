package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"orchestrator/session"
)

// TestSlotsAgainstModel plays random arrivals, loans, returns and ends of subagents of three trees and compares who holds
// a slot with a model that is a plain list of what happened.
func TestSlotsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			Running:        rapid.IntRange(1, 4).Draw(t, "running"),
			RunningPerTree: rapid.IntRange(1, 3).Draw(t, "per tree"),
		}
		l.Alive = l.Running + rapid.IntRange(0, 3).Draw(t, "alive beyond running")
		m := &slotModel{limits: l, real: newSlots(l)}
		pick := func(states ...seatState) *modelSeat {
			var of []*modelSeat
			for _, s := range m.seats {
				if slices.Contains(states, s.state) {
					of = append(of, s)
				}
			}
			if len(of) == 0 {
				t.Skip("nothing to pick")
			}
			return rapid.SampledFrom(of).Draw(t, "seat")
		}
		tree := func() session.ID { return rapid.SampledFrom([]session.ID{"s_a", "s_b", "s_c"}).Draw(t, "tree") }
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				s := &modelSeat{tree: tree(), nested: rapid.Bool().Draw(t, "nested")}
				m.seats, m.arriving = append(m.seats, s), append(m.arriving, s)
				s.seat = m.real.arrive(s.tree, s.nested)
			},
			"take up": func(t *rapid.T) {
				s := &modelSeat{tree: tree(), state: seatReturning}
				m.seats, m.returning = append(m.seats, s), append(m.returning, s)
				s.seat = m.real.takeUp(s.tree)
			},
			"lend": func(t *rapid.T) {
				s, always := pick(seatHolding), rapid.Bool().Draw(t, "always")
				want := always || m.alive() < l.Alive
				if want {
					s.state = seatLent
				}
				if got := m.real.lend(s.seat, always); got != want {
					t.Fatalf("lend() = %v, want %v with %d of %d alive", got, want, m.alive(), l.Alive)
				}
			},
			"reclaim": func(t *rapid.T) {
				s := pick(seatLent)
				s.state = seatReturning
				m.returning = append(m.returning, s)
				m.real.reclaim(s.seat)
			},
			"leave": func(t *rapid.T) {
				s := pick(seatArriving, seatHolding, seatLent, seatReturning)
				s.state = seatLeft
				same := func(o *modelSeat) bool { return o == s }
				m.arriving = slices.DeleteFunc(m.arriving, same)
				m.returning = slices.DeleteFunc(m.returning, same)
				m.real.leave(s.seat)
				m.real.leave(s.seat)
			},
			"": m.check,
		})
	})
}

type modelSeat struct {
	tree   session.ID
	nested bool
	state  seatState
	seat   *seat
}

type slotModel struct {
	limits    Limits
	real      *slots
	seats     []*modelSeat
	arriving  []*modelSeat
	returning []*modelSeat
}

func (m *slotModel) count(tree session.ID, states ...seatState) int {
	n := 0
	for _, s := range m.seats {
		if (tree == "" || s.tree == tree) && slices.Contains(states, s.state) {
			n++
		}
	}
	return n
}

func (m *slotModel) alive() int { return m.count("", seatHolding, seatLent, seatReturning) }

// serve gives slots by the rule as it is written: whoever is first and may run, runs; those that return come first.
func (m *slotModel) serve() {
	next := func(queue *[]*modelSeat, may func(*modelSeat) bool) bool {
		for i, s := range *queue {
			if m.count("", seatHolding) < m.limits.Running && m.count(s.tree, seatHolding) < m.limits.RunningPerTree && may(s) {
				s.state = seatHolding
				*queue = slices.Delete(*queue, i, i+1)
				return true
			}
		}
		return false
	}
	for next(&m.returning, func(*modelSeat) bool { return true }) ||
		next(&m.arriving, func(s *modelSeat) bool { return s.nested || m.alive() < m.limits.Alive }) {
	}
}

func (m *slotModel) check(t *rapid.T) {
	m.serve()
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	var want, got []string
	for i, s := range m.seats {
		if s.state == seatHolding {
			want = append(want, fmt.Sprint(i))
		}
		if s.seat.state == seatHolding {
			got = append(got, fmt.Sprint(i))
			select {
			case <-s.seat.ready:
			default:
				t.Fatalf("seat %d holds a slot and was not told", i)
			}
		}
		if err := m.real.wait(gone, s.seat); err == nil {
			t.Fatalf("wait with an ended context = nil")
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("slots are held by %v, want %v", got, want)
	}
	for _, tree := range []session.ID{"s_a", "s_b", "s_c"} {
		free := len(m.arriving)+len(m.returning)+m.count("", seatHolding) < m.limits.Running &&
			m.count(tree, seatHolding) < m.limits.RunningPerTree && m.alive() < m.limits.Alive
		if m.real.full(tree) == free {
			t.Fatalf("full(%s) = %v with slots free: %v", tree, !free, free)
		}
	}
}
