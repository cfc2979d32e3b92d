package httpapi_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"orchestrator/httpapi"
	"orchestrator/session"
)

func FuzzPosition(f *testing.F) {
	for _, s := range []string{"", "now", "0", "17", "-1", "+1", "9223372036854775808", "1e3", "０", "01", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		after, now, gone := httpapi.ParsePosition(s)
		if after > math.MaxInt64 {
			t.Errorf("position %q is %d, which no store can look for", s, after)
		}
		if n, err := strconv.ParseUint(s, 10, 63); err == nil && !strings.HasPrefix(s, "+") && (gone || now || after != n) {
			t.Errorf("position %q = %d, %v, %v, want %d", s, after, now, gone, n)
		}
		if gone && (now || after != 0) {
			t.Errorf("position %q is gone and is %d, %v", s, after, now)
		}
	})
}

func FuzzWait(f *testing.F) {
	for _, s := range []string{"", "30s", "-1s", "1h", "9999999h", "1", "x", "1.5s", "0", "1ns"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := httpapi.ParseWait(s, time.Minute)
		if d < 0 || d > time.Minute || err != nil && d != 0 {
			t.Errorf("wait %q = %s, %v", s, d, err)
		}
	})
}

func FuzzTypes(f *testing.F) {
	for _, s := range []string{"", "turn.completed", "turn.completed, turn.failed", ",", "none", "turn.completed,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		types, err := httpapi.ParseTypes(s)
		for typ := range types {
			if _, ok := session.DescribeEvent(typ); !ok || err != nil {
				t.Errorf("types %q hold %q, %v", s, typ, err)
			}
		}
		if s != "" && err == nil && len(types) == 0 {
			t.Errorf("types %q are all types", s)
		}
	})
}

func FuzzTraceparent(f *testing.F) {
	for _, s := range []string{"", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := httpapi.ParseTrace(s); got != "" && (got != s || len(got) != 55) {
			t.Errorf("traceparent %q is taken as %q", s, got)
		}
	})
}

func FuzzAccept(f *testing.F) {
	for s, want := range map[string]bool{
		"": false, "*/*": false, "text/event-stream": true, "text/html, text/event-stream;q=0.5": true, "TEXT/EVENT-STREAM": true, "text/event-stream;q=0": false, "a;,": false,
	} {
		f.Add(s)
		if got := httpapi.AcceptsStream([]string{s}); got != want {
			f.Errorf("Accept: %s asks for a stream: %v", s, got)
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		if httpapi.AcceptsStream([]string{s}) && !strings.Contains(strings.ToLower(s), "event-stream") {
			t.Errorf("Accept: %q asks for a stream", s)
		}
	})
}

func FuzzKey(f *testing.F) {
	keys, err := httpapi.OpenKeys(f.TempDir()+"/keys.json", nil)
	if err != nil {
		f.Fatal(err)
	}
	secret, _, err := keys.Create("alice", "")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "ork_", "ork__", "ork_k_x", secret[:len(secret)-1], secret + "x", strings.ToUpper(secret)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, ok := keys.Verify(s); ok && s != secret {
			t.Errorf("%q is a key", s)
		}
	})
}
