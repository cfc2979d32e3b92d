package session

import (
	"strings"
	"unicode/utf8"
)

// Nearest returns the known name a mistyped one most likely means, or "" when none is near. Case is no difference, two
// letters in the wrong order are one mistake, and a name may have one mistake for every three letters of it, at least one.
// A name of which the other is a beginning of three letters or more is near too. Of equally near names the first wins.
func Nearest(name string, known []string) string {
	a := []rune(strings.ToLower(name))
	if len(a) == 0 || len(a) > 200 {
		return ""
	}
	best, bestDist := "", -1
	for _, k := range known {
		if k == "" || utf8.RuneCountInString(k) > 200 {
			continue
		}
		b := []rune(strings.ToLower(k))
		d := edits(a, b)
		limit := max(1, max(len(a), len(b))/3)
		if d >= max(len(a), len(b)) || d > limit && !begins(a, b) {
			continue
		}
		if bestDist < 0 || d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

func begins(a, b []rune) bool {
	short, long := a, b
	if len(short) > len(long) {
		short, long = long, short
	}
	return len(short) >= 3 && strings.HasPrefix(string(long), string(short))
}

// edits is the number of letters to insert, delete, replace or swap with their neighbour that turns a into b.
func edits(a, b []rune) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
