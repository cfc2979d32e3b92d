package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(peerEnv) != "" { // the program runs itself for its peers, which here is the test
		if err := servePeers(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestEveryContenderIsAnsweredAndMeasured(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	const call, step = `\n  %s +\d+\.\d\d× +[1-9]\d* µs`, ` +\d+\.\d\d× +[1-9]\d* µs`
	for _, want := range []struct {
		line  string
		times int
	}{
		{fmt.Sprintf(call, rawName) + " +[1-9]", 4},
		{fmt.Sprintf(call, memoryName) + step, 4},
		{fmt.Sprintf(call, sqliteName) + step, 4},
		{fmt.Sprintf(call, adkName) + step, 2},
		{fmt.Sprintf(call, trpcName) + step, 2},
		{fmt.Sprintf(call, trpcAloneName) + " +[1-9]", 2},
		{` over (adk-go|trpc-agent-go), .* (ahead|BEHIND) .* (ahead|BEHIND)\n`, 8},
	} {
		if got := len(regexp.MustCompile(want.line).FindAllString(out.String(), -1)); got != want.times {
			t.Errorf("%d lines match %q, want %d:\n%s", got, want.line, want.times, &out)
		}
	}
}

func TestStepsWithoutAnAnswerAreNoMeasure(t *testing.T) {
	s := steps{left: 2}
	for _, told := range []bool{false, true, false} { // before the first step nothing can be told
		s.next(told)
	}
	if _, err := s.took(2); err == nil {
		t.Error("took() of two steps, the second without an answer, is no error")
	}
	s = steps{left: 1}
	s.next(false)
	s.next(true)
	if got, err := s.took(1); err != nil || len(got) != 1 {
		t.Errorf("took() = %v, %v, want one step", got, err)
	}
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	var ours, theirs series
	for _, round := range []struct{ ours, theirs, raw float64 }{{20, 10, 5}, {30, 10, 10}, {400, 100, 100}} {
		ours.now, theirs.now = []float64{round.ours}, []float64{round.theirs}
		ours.end(round.raw)
		theirs.end(round.raw)
	}
	if got := median(ours.ratios); got != 4 {
		t.Errorf("the median ratio to the raw call = %v, want 4", got)
	}
	if got := ours.over(&theirs); got != 3 {
		t.Errorf("over() = %v, want 3", got)
	}
	if got, want := micros(1500*time.Nanosecond), 1.5; got != want {
		t.Errorf("micros() = %v, want %v", got, want)
	}
}
