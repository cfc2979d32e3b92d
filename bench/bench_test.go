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

func TestEveryPartPrintsItsFigures(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick", "-o", "json"}, &out); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	figures := map[string]int{}
	for dec := json.NewDecoder(&out); ; {
		var f figure
		if err := dec.Decode(&f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if f.Value <= 0 && f.Part != "parked" {
			t.Errorf("%s: %s is %v", f.Part, f.Name, f.Value)
		}
		figures[f.Part]++
	}
	for part, want := range map[string]int{"invoke": 36, "commit": 3, "parked": 2, "append": 3, "restart": 2} {
		if figures[part] != want {
			t.Errorf("part %s printed %d figures, want %d", part, figures[part], want)
		}
	}
}

func TestTableSaysWhatMissesItsAim(t *testing.T) {
	var out bytes.Buffer
	tab := &table{out: &out}
	tab.add(figure{Name: "within", Value: 1.5, Aim: 1.5})
	tab.add(figure{Name: "beyond", Value: 1.51, Aim: 1.5})
	tab.add(figure{Name: "without", Value: 12345.6})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"ok", "OVER", "12,346"} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d = %q, want it to end in %q", i+1, lines[i], want)
		}
	}
}
