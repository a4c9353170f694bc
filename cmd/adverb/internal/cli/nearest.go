package cli

import (
	"fmt"
	"strings"
)

// didYouMean returns an error's addition about a mistyped name, or "" if no name is near.
func didYouMean(typed string, names []string) string {
	if n := Nearest(typed, names); n != "" {
		return fmt.Sprintf(" (did you mean %q?)", n)
	}
	return ""
}

// Nearest returns the name that a mistyped word may have meant: the one that takes the fewest edits to get to. It returns ""
// if that is more than a third of the letters, unless the name begins or ends with the typed text.
func Nearest(typed string, names []string) string {
	const enough = 3 // letters of a beginning or an end that tell something
	best, least := "", len(typed)/3+1
	for _, n := range names {
		d := edits(typed, n)
		if len(typed) >= enough && (strings.HasPrefix(n, typed) || strings.HasSuffix(n, typed)) {
			d = 1
		}
		if d < least {
			best, least = n, d
		}
	}
	return best
}

// edits returns how many letters have to be inserted, deleted, replaced or swapped with the next one
// to get from a to b.
func edits(a, b string) int {
	var before, last []int // rows of the table for the beginnings of a
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = min(d, last[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
