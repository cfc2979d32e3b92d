package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// block is how many calls one contender makes before it is the next one's turn, so that what happens on the machine in
// between happens to all.
const block = 25

// sizes says how much is measured.
type sizes struct {
	rounds int // runs of each row, interleaved; the median is printed
	calls  int // calls of one run
}

// sample is what some calls of a contender cost.
type sample struct {
	took    []float64 // µs, one of each call
	mallocs float64   // a call
	bytes   float64   // a call
	step    []float64 // µs, see [steps]; nil if there are none
}

// steps are those of an agent whose model wishes to call the peer so often and then ends its turn. A step is from the
// model's answer, which has the wish, to the next request to it, which has the peer's reply.
type steps struct {
	left   int
	at     time.Time
	spans  []float64
	untold int
}

// next is for the model's Stream: it ends a step, if told with the peer's reply, and reports whether another begins.
func (s *steps) next(told bool) bool {
	if !s.at.IsZero() {
		s.spans = append(s.spans, micros(time.Since(s.at)))
		if !told {
			s.untold++
		}
	}
	again := s.left > 0
	s.left--
	s.at = time.Now()
	return again
}

// took returns the steps if there were as many as wanted and each brought a reply.
func (s *steps) took(n int) ([]float64, error) {
	if len(s.spans) != n || s.untold > 0 {
		return nil, fmt.Errorf("%d of %d calls of a model were made, %d of them without an answer", len(s.spans), n, s.untold)
	}
	return s.spans, nil
}

// contender is a way to call a peer.
type contender interface {
	// block makes n calls and checks that each was answered. The allocations are counted if allocs says so.
	block(ctx context.Context, n int, allocs bool) (sample, error)
	close() error
}

// setup is a peer to be called: a version of the protocol and a method.
type setup struct {
	version   string // of the protocol
	streaming bool
}

func (s setup) method() string {
	if s.streaming {
		return "SendStreamingMessage"
	}
	return "SendMessage"
}

// row is one contender with one peer.
type row struct {
	setup
	name string
	c    contender

	call, step     series
	mallocs, bytes float64 // of a call
}

// series is what is measured round by round.
type series struct {
	now     []float64 // of this round
	medians []float64 // µs, one of each round
	ratios  []float64 // to the raw call, likewise
}

// end ends a round, raw being the raw call's median in it.
func (s *series) end(raw float64) {
	if len(s.now) > 0 {
		m := median(s.now)
		s.now, s.medians, s.ratios = nil, append(s.medians, m), append(s.ratios, m/raw)
	}
}

func (s *series) String() string {
	if len(s.medians) == 0 {
		return fmt.Sprintf("%16s", "")
	}
	return fmt.Sprintf("%5.2f×  %5.0f µs", median(s.ratios), median(s.medians))
}

// over returns the median of the ratios of two, round by round.
func (s *series) over(t *series) float64 {
	var ratios []float64
	for i := range min(len(s.medians), len(t.medians)) {
		ratios = append(ratios, s.medians[i]/t.medians[i])
	}
	return median(ratios)
}

// The contenders' names.
const (
	rawName       = "raw a2a-go"
	memoryName    = "orchestrator, memory"
	sqliteName    = "orchestrator, SQLite normal"
	adkName       = "adk-go"
	trpcName      = "trpc-agent-go"
	trpcAloneName = "trpc-agent-go without its runner"
)

// The versions of the protocol. adk-go is compared at 1.0 and trpc-agent-go at 0.3.
const (
	version10 = "1.0"
	version03 = "0.3"
)

// opened are the contenders of one peer.
func opened(ctx context.Context, s setup, dir, url string, want *regexp.Regexp) (rows []*row, err error) {
	raw := &row{setup: s, name: rawName}
	if raw.c, err = newRaw(ctx, s, url); err != nil {
		return nil, err
	}
	rows = append(rows, raw)
	type opener struct {
		name string
		open func() (contender, error)
	}
	openers := []opener{
		{memoryName, func() (contender, error) { return newOurs(ctx, "", url) }},
		{sqliteName, func() (contender, error) { return newOurs(ctx, dir, url) }},
	}
	switch s.version {
	case version10:
		openers = append(openers, opener{adkName, func() (contender, error) { return newADK(ctx, s, url) }})
	case version03:
		openers = append(openers,
			opener{trpcName, func() (contender, error) { return newTrpc(s, url, true) }},
			opener{trpcAloneName, func() (contender, error) { return newTrpc(s, url, false) }})
	}
	for _, o := range openers {
		if !want.MatchString(o.name) {
			continue
		}
		c, err := o.open()
		if err != nil {
			return rows, fmt.Errorf("%s, %s, %s: %w", o.name, s.version, s.method(), err)
		}
		rows = append(rows, &row{setup: s, name: o.name, c: c})
	}
	return rows, nil
}

// compare measures all rows, interleaved, and prints them.
func compare(ctx context.Context, size sizes, want *regexp.Regexp, dir string, p *peers, t *table) (err error) {
	var rows []*row
	defer func() {
		for _, r := range slices.Backward(rows) {
			err = errors.Join(err, r.c.close())
		}
	}()
	for _, s := range []setup{{version10, true}, {version10, false}, {version03, true}, {version03, false}} {
		more, err := opened(ctx, s, dir, p.url(s), want)
		rows = append(rows, more...)
		if err != nil {
			return err
		}
	}
	for round := range size.rounds + 1 {
		warm := round == 0 // it also counts the allocations, which takes time of its own
		calls := size.calls
		if warm {
			calls = min(2*block, calls)
		}
		for at, nth := 0, round; at < calls; at, nth = at+block, nth+1 {
			for i := range rows {
				r := rows[i]
				if nth%2 == 1 { // nobody always follows the same one
					r = rows[len(rows)-1-i]
				}
				s, err := r.c.block(ctx, min(block, calls-at), warm)
				if err != nil {
					return fmt.Errorf("%s, %s, %s: %w", r.name, r.version, r.method(), err)
				}
				if warm {
					r.mallocs, r.bytes = s.mallocs, s.bytes // of the last
					continue
				}
				r.call.now, r.step.now = append(r.call.now, s.took...), append(r.step.now, s.step...)
			}
		}
		if warm {
			continue
		}
		raw := make(map[setup]float64)
		for _, r := range rows {
			if r.name == rawName {
				raw[r.setup] = median(r.call.now)
			}
			r.call.end(raw[r.setup]) // the raw row is the first of its setup
			r.step.end(raw[r.setup])
		}
	}
	report(size, rows, t)
	return nil
}

func report(size sizes, rows []*row, t *table) {
	t.print("Calls with a message reply, over the raw a2a-go call of the same method, version and peer\n"+
		"(a plain a2a-go server in a second process; %d interleaved runs of %d calls; the median of the runs' medians).\n"+
		"A step is from the model's answer, which wishes the call, to the next request to it, which has the reply.\n"+
		"trpc-agent-go is called at version 0.3, which the same server speaks through the SDK's a2acompat: the module that its\n"+
		"agent for version 1.0 needs is not to be had. The frameworks keep sessions in memory.\n", size.rounds, size.calls)
	var last setup
	for _, r := range rows {
		if r.setup != last {
			t.print("\n%-34s %-16s    %-16s    %s\n", "version "+r.version+", "+r.method(), "call", "step", "of a call")
			last = r.setup
		}
		t.print("  %-32s %s    %s    %.0f allocations, %.0f KiB\n", r.name, &r.call, &r.step, r.mallocs, r.bytes/1024)
	}
	t.print("\n%-80s %-14s %s\n", "ours over theirs (aim: below 1)", "call", "step")
	for _, theirs := range rows {
		if theirs.name != adkName && theirs.name != trpcName {
			continue
		}
		for _, ours := range rows {
			if ours.setup == theirs.setup && strings.HasPrefix(ours.name, "orchestrator") {
				t.print("  %-78s %-14s %s\n", fmt.Sprintf("%s over %s, %s, %s", ours.name, theirs.name, ours.version, ours.method()),
					verdict(ours.call.over(&theirs.call)), verdict(ours.step.over(&theirs.step)))
			}
		}
	}
}

func verdict(ratio float64) string {
	if ratio < 1 {
		return fmt.Sprintf("%.2f× ahead", ratio)
	}
	return fmt.Sprintf("%.2f× BEHIND", ratio)
}

// timed times n calls, and counts all that is allocated during them if allocs says so.
func timed(n int, allocs bool, call func(i int) error) (s sample, err error) {
	var before, after runtime.MemStats
	if allocs {
		runtime.ReadMemStats(&before)
	}
	for i := range n {
		began := time.Now()
		if err := call(i); err != nil {
			return s, err
		}
		s.took = append(s.took, micros(time.Since(began)))
	}
	if allocs {
		runtime.ReadMemStats(&after)
		s.mallocs = float64(after.Mallocs-before.Mallocs) / float64(n)
		s.bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	return s, nil
}

// answered is an error unless a reply is the peer's answer, whole: what fails quickly is no measure.
func answered(reply string) error {
	if !strings.Contains(reply, answer) {
		return fmt.Errorf("the call was not answered, but %q", reply)
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// median returns the middle of the values, or 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// table prints, and keeps the first error.
type table struct {
	out io.Writer
	err error
}

func (t *table) print(format string, args ...any) {
	if _, err := fmt.Fprintf(t.out, format, args...); err != nil && t.err == nil {
		t.err = err
	}
}
