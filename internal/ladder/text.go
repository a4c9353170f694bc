package ladder

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// TextWidth is the width of the text of a ladder in columns.
const TextWidth = 100

// The columns of a text: the frame, the time, then the ends and the words.
const (
	frameWidth = 5
	timeWidth  = 10
	leastGap   = 3  // columns between the lines of two ends
	mostGap    = 14 // the same
	leastWords = 40 // columns
)

// Text prints the ladder as text.
func (l *Ladder) Text(w io.Writer) error {
	var b strings.Builder
	l.heading(&b, "")
	gap := l.gap()
	left := frameWidth + 1 + timeWidth + 1
	if len(l.Rows) > 0 {
		fmt.Fprintf(&b, "%*s %*s %s\n", frameWidth, "frame", timeWidth, "seconds", strings.TrimRight(l.letters(gap), " "))
	}
	for i := range l.Rows {
		r := &l.Rows[i]
		if r.Silence > 0 {
			fmt.Fprintf(&b, "%*s%s  … %s pass …\n", left, "", l.lines(gap), span(r.Silence))
		}
		first := fmt.Sprintf("%*d %*s %s  ", frameWidth, r.Frame, timeWidth, clock(r.At), l.arrow(r, gap))
		next := strings.Repeat(" ", left) + l.lines(gap) + "    "
		words := wrap(r.Words(), TextWidth-utf8.RuneCountInString(next))
		for k, line := range words {
			if k == 0 {
				b.WriteString(first + line + "\n")
			} else {
				b.WriteString(next + line + "\n")
			}
		}
		for _, m := range r.Marks {
			for k, line := range wrap("* "+m.Text, TextWidth-utf8.RuneCountInString(next)-2) {
				if k > 0 {
					line = "  " + line
				}
				b.WriteString(next + line + "\n")
			}
		}
	}
	for _, n := range l.Notes {
		b.WriteString(strings.Join(wrap(n, TextWidth), "\n") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// heading says who the ends are.
func (l *Ladder) heading(b *strings.Builder, indent string) {
	for i := range l.Ends {
		fmt.Fprintf(b, "%s%s  %s\n", indent, Letter(i), l.Ends[i].Name)
	}
	if len(l.Rows) == 0 {
		b.WriteString(indent + "No packets to draw.\n")
	}
}

// gap is how many columns lie between the lines of two ends.
func (l *Ladder) gap() int {
	n := len(l.Ends) - 1
	if n <= 0 {
		return mostGap
	}
	room := TextWidth - leastWords - frameWidth - timeWidth - 2 - 4 - (n + 1)
	return max(leastGap, min(mostGap, room/n))
}

func (l *Ladder) letters(gap int) string {
	var b strings.Builder
	for i := range l.Ends {
		fmt.Fprintf(&b, "%-*s", gap+1, Letter(i))
	}
	return b.String()
}

// lines is a row without an arrow.
func (l *Ladder) lines(gap int) string {
	n := len(l.Ends)
	if n == 0 {
		return ""
	}
	return strings.Repeat("|"+strings.Repeat(" ", gap), n-1) + "|"
}

// arrow is a row with its arrow. A lost packet's arrow ends in an X on its way, and a damaged one's in a hash sign.
func (l *Ladder) arrow(r *Row, gap int) string {
	row := []byte(l.lines(gap))
	from, to := r.From*(gap+1), r.To*(gap+1)
	if from == to {
		return string(row) + "o" // to itself
	}
	a, b := min(from, to), max(from, to)
	for i := a + 1; i < b; i++ {
		if row[i] == ' ' {
			row[i] = '-'
		}
	}
	tip, at := byte('>'), b-1
	if to < from {
		tip, at = '<', a+1
	}
	switch r.Fate {
	case Lost, Damaged:
		end := byte('X')
		if r.Fate == Damaged {
			end = '#'
		}
		middle := (a + b) / 2
		row[middle] = end
		if from < to {
			blank(row[middle+1 : b])
		} else {
			blank(row[a+1 : middle])
		}
	default:
		row[at] = tip
	}
	return string(row)
}

func blank(row []byte) {
	for i := range row {
		if row[i] == '-' {
			row[i] = ' '
		}
	}
}

// wrap breaks a text into lines.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
