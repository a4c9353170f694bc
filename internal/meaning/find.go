package meaning

import (
	"slices"
	"strings"
)

// Finding is an entry that a text is about.
type Finding struct {
	Entry
	By   string `json:"by"`             // the piece of the text that names it
	Note string `json:"note,omitempty"` // further facts in the text, such as the fields of a dump

	// Guess says that the text has a call and no errno: the finding is one of those that the call mostly fails with.
	Guess bool `json:"guess,omitempty"`

	// Line is the number of the line that names it, counted from 1, and Text that line. Times says how many lines name it.
	// They are zero if the text is one line.
	Line  int    `json:"line,omitempty"`
	Text  string `json:"text,omitempty"`
	Times int    `json:"times,omitempty"`

	rank rank
	at   int // where By stands in the text
	seq  int // of the findings of a Log
}

// rank says how telling a piece of a text is: less is more telling.
type rank int

const (
	rankDump    rank = iota // a dump of an error CQE has it all
	rankAsked               // the whole text is a kind and a number, or a name
	rankCode                // a status, a reason, or an errno with its call
	rankPhrase              // words in place of a number
	rankVendor              // only says more of a status
	rankNumber              // a code behind the name of its attribute
	rankContext             // a call without an errno, an errno without a call, a setting, a state
	rankBare                // a number without a word beside it
)

// rule finds entries of one kind of words in a text.
type rule func(t *text) []Finding

// rules in any order: ranks decide. Each is independent of the others. Those of the last row look at a text of one line,
// of which the others and findErrnoAlone know nothing.
var (
	rules        = []rule{findDump, findAsked, findStatus, findSyndrome, findHealth, findIrdma, findReject, findNVMe, findEventNumber, findCall, findNames, findPhrases, findMessages, findTexts, findVendor, findSIDR, findCodes}
	oneLineRules = []rule{findBare, findWord}
)

// text is a text in the forms that rules look at.
type text struct {
	raw   string
	lower string
	words []word
	cm    bool // it is about the connection manager
	wc    bool // it is about a work completion

	asked, hasCall bool // of callIn
	call           namedCall
}

type word struct {
	text string // in lower case
	at   int
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= 0x80
}

func newText(s string) *text {
	t := &text{raw: s, lower: lower(s)}
	for i := 0; i < len(s); {
		if !isWordByte(s[i]) {
			i++
			continue
		}
		j := i
		for j < len(s) && isWordByte(s[j]) {
			j++
		}
		t.words = append(t.words, word{t.lower[i:j], i})
		i = j
	}
	t.cm = cmContext.MatchString(t.lower)
	t.wc = wcContext.MatchString(t.lower)
	return t
}

// lower is strings.ToLower for ASCII alone, so that offsets stay.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Explain returns the entries that a text is about, the most telling first. The text is a word, a kind and a number, or
// lines of a log, of each [MaxLine] bytes. Explain returns nothing if the text has nothing that the table knows.
func Explain(s string) []Finding {
	var l Log
	for line := range strings.Lines(s) {
		l.Add(line)
	}
	return l.Findings()
}

// later puts a finding that only follows another failure behind that failure.
func later(a, b Finding) int {
	switch {
	case a.Follows == b.Follows:
		return 0
	case a.Follows:
		return 1
	}
	return -1
}

// maxLeading are as many entries as a reader reads in full.
const maxLeading = 4

// Leading returns how many of the findings of Explain tell as much as the first, of codes at most, and four at most: the
// others say more of these, or are further meanings of the same words.
func Leading(found []Finding) int {
	n := min(1, len(found))
	for n < min(len(found), maxLeading) && found[n].rank == found[0].rank && found[n].rank <= rankCode {
		n++
	}
	return n
}

// unique keeps the first finding of each entry.
func unique(found []Finding) (list []Finding) {
	seen := map[string]bool{}
	for _, f := range found {
		key := f.Title()
		if !seen[key] {
			list = append(list, f)
		}
		seen[key] = true
	}
	return list
}

// finding makes a finding of the entry of a kind and number, if there is one.
func finding(r rank, at int, by string, kind Kind, number int) []Finding {
	e, ok := Lookup(kind, number)
	if !ok {
		return nil
	}
	return []Finding{{Entry: *e, By: by, rank: r, at: at}}
}

// Nearest returns names of the table that a text may have meant: each is a word for Explain. like returns the one of the
// names that is nearest to a word, or "".
func Nearest(s string, like func(word string, names []string) string) (list []string) {
	names := Names()
	for _, w := range newText(s).words {
		if n := like(w.text, names); n != "" && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// Names returns the words by which Explain knows kinds and entries, in lower case and sorted.
func Names() []string {
	var list []string
	for _, k := range Kinds {
		list = append(list, string(k.Kind))
	}
	for w := range nameIndex() {
		list = append(list, w)
	}
	for _, e := range Of(KindWord) {
		for _, name := range append([]string{e.Name}, e.Also...) {
			if !strings.Contains(name, " ") {
				list = append(list, lower(name))
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
