package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// table prints figures as they come.
type table struct {
	out  io.Writer
	json bool
	err  error
}

// figure is one thing measured.
type figure struct {
	Part  string  `json:"part"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// Aim is the most, or with AtLeast the least, that the value should be; 0 is none.
	Aim     float64 `json:"aim,omitempty"`
	AtLeast bool    `json:"atLeast,omitempty"`
	Note    string  `json:"note,omitempty"`
}

func (t *table) print(format string, args ...any) {
	if _, err := fmt.Fprintf(t.out, format, args...); err != nil && t.err == nil {
		t.err = err
	}
}

// head prints a line that is no figure, for people.
func (t *table) head(format string, args ...any) {
	if !t.json {
		t.print("\n"+format+"\n", args...)
	}
}

// add prints a figure.
func (t *table) add(f figure) {
	if t.json {
		line, err := json.Marshal(f)
		if err != nil {
			t.err = cmp.Or(t.err, err)
			return
		}
		t.print("%s\n", line)
		return
	}
	aim := ""
	if f.Aim != 0 {
		bound, verdict := "≤", "ok"
		switch {
		case f.AtLeast && f.Value < f.Aim:
			bound, verdict = "≥", "UNDER"
		case f.AtLeast:
			bound = "≥"
		case f.Value > f.Aim:
			verdict = "OVER"
		}
		aim = fmt.Sprintf("aim %s %s  %s", bound, number(f.Aim), verdict)
	}
	line := fmt.Sprintf("  %-66s %10s %-5s %-22s %s", f.Name, number(f.Value), f.Unit, aim, f.Note)
	t.print("%s\n", strings.TrimRight(line, " "))
}

// skip says that a part can't be measured here.
func (t *table) skip(part string, why error) {
	t.head("%s: not measured: %v", part, why)
	if t.json {
		t.add(figure{Part: part, Name: "not measured", Note: why.Error()})
	}
}

// number is a value in about three digits.
func number(v float64) string {
	switch {
	case v >= 1000:
		s := fmt.Sprintf("%.0f", v)
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v == float64(int(v)):
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	return fmt.Sprintf("%.2f", v)
}

// median returns the middle of the values, which it sorts.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}
