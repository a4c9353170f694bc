package diagnose

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	width     = 100 // of lines
	maxPrints = 5   // findings of one rule that are printed
)

// Print writes a report for people.
func (r *Report) Print(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s\n", strings.Join(wrap(r.Verdict, width), "\n"))
	of := "RoCE"
	if r.infiniBand && r.RoCE > 0 {
		of = "InfiniBand"
	}
	fmt.Fprintf(w, "(%d frames, %d of %s", r.Frames, r.RoCE, of)
	if r.FPDUs > 0 {
		fmt.Fprintf(w, ", %d FPDUs of iWARP", r.FPDUs)
	}
	fmt.Fprintf(w, ", in %s s)\n", seconds(r.Span))
	printFindings(w, r.Findings)
	if len(r.Notes) > 0 {
		fmt.Fprintf(w, "\nNotes\n")
		printFindings(w, r.Notes)
	}
	printList(w, "In order", r.Clean)
	printList(w, "Not checked", r.Unchecked)
	return w.Flush()
}

// seconds writes a time to the microsecond, or with six digits.
func seconds(s float64) string {
	digits := 6 - len(strconv.Itoa(int(s)))
	if s < 1 {
		digits = 6
	}
	text := strconv.FormatFloat(s, 'f', max(0, digits), 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func printList(w io.Writer, title string, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, s := range list {
		printItem(w, "  - ", s)
	}
}

// printItem prints a text behind a mark, with further lines below its beginning.
func printItem(w io.Writer, mark, text string) {
	indent := strings.Repeat(" ", len(mark))
	for i, line := range wrap(text, width-len(mark)) {
		if i > 0 {
			mark = indent
		}
		fmt.Fprintf(w, "%s%s\n", mark, line)
	}
}

func printFindings(w io.Writer, list []*Finding) {
	printed := map[string]int{}
	for i, f := range list {
		printed[f.ID]++
		if n := printed[f.ID]; n > maxPrints {
			if last := i == len(list)-1 || list[i+1].ID != f.ID; last {
				fmt.Fprintf(w, "\n%s: %d more of this kind; --json has them\n", f.ID, n-maxPrints)
			}
			continue
		}
		if f.Certainty == Hint {
			fmt.Fprintf(w, "\nHINT %s: %s\n", f.ID, f.Title)
		} else {
			fmt.Fprintf(w, "\n%s %s (%v): %s\n", strings.ToUpper(f.Severity.String()), f.ID, f.Certainty, f.Title)
		}
		if f.Where != "" {
			printItem(w, "  where   ", f.Where)
		}
		if f.Words != "" {
			printItem(w, "  what    ", f.Words)
		}
		if len(f.Frames) > 0 {
			s := make([]string, len(f.Frames))
			for i, n := range f.Frames {
				s[i] = strconv.Itoa(n)
			}
			text := strings.Join(s, ", ")
			if f.Count > len(f.Frames) {
				text += fmt.Sprintf(" … (%d in all)", f.Count)
			}
			printItem(w, "  frames  ", text)
		}
		if f.Filter != "" {
			fmt.Fprintf(w, "  filter  %s\n", f.Filter)
		}
		if printed[f.ID] > 1 {
			continue // the remedy stands above
		}
		for i, s := range f.Remedy {
			mark := "          "
			if i == 0 {
				mark = "  do      "
			}
			printItem(w, mark+"- ", s)
		}
		if f.WrongIf != "" {
			printItem(w, "  unless  ", f.WrongIf)
		}
	}
}

// wrap breaks a text into lines of at most n characters, if its words allow.
func wrap(text string, n int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > n:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
