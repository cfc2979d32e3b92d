package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"orchestrator/a2a/a2aqueue"
	"orchestrator/internal/brokertest"
)

func TestMain(m *testing.M) {
	if serve := peerProcess(); serve != nil { // the program runs itself for its peers, which here is the test
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestEveryPartPrintsItsFigures(t *testing.T) {
	t.Setenv(brokerEnv, brokertest.Vhost(t))
	figures := map[string]int{}
	for _, f := range figuresOf(t, "-quick") {
		if f.Value == 0 { // less than nothing may come of a busy machine, where one figure is taken off another
			t.Errorf("%s: %s is 0", f.Part, f.Name)
		}
		figures[f.Part]++
	}
	for part, want := range map[string]int{"invoke": 36, "commit": 3, "parked": 2, "append": 3, "restart": 2, "queue": 17, "api": 4} {
		if figures[part] != want {
			t.Errorf("part %s printed %d figures, want %d", part, figures[part], want)
		}
	}
}

func TestQueuesAreDeletedAfterARun(t *testing.T) {
	url := brokertest.Vhost(t)
	t.Setenv(brokerEnv, url)
	q, why, err := openQueues(t.Context())
	if err := errors.Join(why, err); err != nil {
		t.Fatal(err)
	}
	if err := q.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(q.names.all(), a2aqueue.DeadQueue) {
		if n := brokertest.QueueLength(t, url, name); n != -1 {
			t.Errorf("queue %s is still there", name)
		}
	}
}

func TestAMissingBrokerIsSaid(t *testing.T) {
	t.Setenv(brokerEnv, "amqp://somebody:secret@127.0.0.1:1/")
	got := figuresOf(t, "-quick", "-run", "queue")
	if len(got) != 1 || !strings.Contains(got[0].Note, "no broker at amqp://127.0.0.1:1 ") || strings.Contains(got[0].Note, "secret") {
		t.Errorf("without a broker the figures are %+v, want one that says so", got)
	}
}

// figuresOf runs the program.
func figuresOf(t *testing.T, args ...string) (figures []figure) {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), append(args, "-o", "json"), &out); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	for dec := json.NewDecoder(&out); ; {
		var f figure
		if err := dec.Decode(&f); errors.Is(err, io.EOF) {
			return figures
		} else if err != nil {
			t.Fatal(err)
		}
		figures = append(figures, f)
	}
}

func TestTableSaysWhatMissesItsAim(t *testing.T) {
	var out bytes.Buffer
	tab := &table{out: &out}
	tab.add(figure{Name: "within", Value: 1.5, Aim: 1.5})
	tab.add(figure{Name: "beyond", Value: 1.51, Aim: 1.5})
	tab.add(figure{Name: "reached", Value: 0.7, Aim: 0.7, AtLeast: true})
	tab.add(figure{Name: "not reached", Value: 0.69, Aim: 0.7, AtLeast: true})
	tab.add(figure{Name: "without", Value: 12345.6})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"ok", "OVER", "ok", "UNDER", "12,346"} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d = %q, want it to end in %q", i+1, lines[i], want)
		}
	}
}
