package meaning

import (
	"strings"
	"unicode/utf8"
)

// Wrap breaks a text at blanks into lines of at most width characters. The first begins with first and the others with
// rest, which count. A word that is longer than a line has one of its own.
func Wrap(text string, width int, first, rest string) string {
	var b strings.Builder
	line, begin := first, true
	for _, w := range strings.Fields(text) {
		if !begin && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) > width {
			b.WriteString(line + "\n")
			line, begin = rest, true
		}
		if !begin {
			line += " "
		}
		line, begin = line+w, false
	}
	b.WriteString(line + "\n")
	return b.String()
}

// Sentence makes a line of the table a sentence of its own.
func Sentence(s string) string {
	if s == "" {
		return ""
	}
	if first, _, _ := strings.Cut(s, " "); !strings.ContainsAny(first, "_-/=0123456789") && !strings.HasSuffix(first, ":") { // names stay as they are
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}
