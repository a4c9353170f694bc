package meaning

import (
	"cmp"
	"slices"
	"strings"
)

// Log explains a text line by line: a rule sees one line, so that a word of one gives no number of another a meaning. What
// it keeps grows with the entries found, and not with the text. The zero Log is ready.
type Log struct {
	lines   int // with anything in them
	number  int // of the last line
	cut     int
	seq     int
	found   map[string]Finding // by title
	alone   map[string]Finding // errnos that no call stands beside
	first   string             // the first line with anything in it
	before  string             // the line before, for texts that are wrapped
	calls   []Finding          // of the line before: of a call without an errno
	call    namedCall
	callAt  int   // the number of that line
	row     *text // the last row of a dump
	rowLine int
	rows    int
}

// MaxLine is as many bytes of a line as a [Log] looks at.
const MaxLine = 16 << 10

// dumpRows are the rows of an error CQE of mlx5.
const dumpRows = 4

// Add explains the next line.
func (l *Log) Add(line string) {
	l.number++
	if len(line) > MaxLine {
		line, l.cut = line[:MaxLine], l.cut+1
	}
	line = strings.TrimSpace(line)
	if line == "" {
		return
	}
	l.lines++
	if l.lines == 1 {
		l.first = line
	}
	t := newText(line)
	if isRow(t) {
		l.addRow(t)
		return
	}
	l.endDump()
	var found []Finding
	for _, r := range rules {
		found = append(found, r(t)...)
	}
	found = append(found, acrossLines(l.before, line)...)
	found = l.joinCall(t, found)
	l.keep(&l.found, found, l.number, line)
	if len(l.found) == 0 && len(found) == 0 {
		l.keep(&l.alone, findErrnoAlone(t), l.number, line)
	}
	l.before = line
}

// Lines returns how many lines there were, empty ones included, and of how many the end was not looked at: [MaxLine].
func (l *Log) Lines() (n, cut int) { return l.number, l.cut }

// Text returns the text if it is one line at most, less the blanks around it.
func (l *Log) Text() (line string, ok bool) { return l.first, l.lines <= 1 }

// keep adds findings of a line. Of several of an entry the more telling one stays, or the earlier one.
func (l *Log) keep(all *map[string]Finding, found []Finding, number int, line string) {
	if *all == nil {
		*all = map[string]Finding{}
	}
	for _, f := range unique(found) {
		l.seq++
		f.Line, f.Text, f.Times, f.seq = number, line, 1, l.seq
		title := f.Title()
		if old, ok := (*all)[title]; ok {
			f.Times += old.Times
			if old.rank <= f.rank {
				old.Times = f.Times
				f = old
			}
		}
		(*all)[title] = f
	}
}

// joinCall looks for the errno of a call of the line before, as perftest prints it. A call without an errno waits for the
// next line.
func (l *Log) joinCall(t *text, found []Finding) []Finding {
	waiting, call := l.calls, l.call
	l.calls = nil
	own, ok := callIn(t)
	if waiting != nil {
		joined := false
		if !ok && len(found) == 0 {
			if n, _, by, ok := errnoIn(t, errnoAlone); ok {
				if f := findingOfCall(rankCode, 0, call.by+" … "+by, call.call, call.state, n); f != nil {
					found, joined = f, true
				}
			}
		}
		if !joined {
			l.keep(&l.found, waiting, l.callAt, l.before)
		}
	}
	if !ok {
		return found
	}
	of := func(f Finding) bool { return f.Kind == KindErrno && f.rank == rankContext && f.By == own.by }
	for _, f := range found {
		if of(f) {
			l.calls, l.call, l.callAt = append(l.calls, f), own, l.number
		}
	}
	return slices.DeleteFunc(found, of)
}

// wrapped are as many bytes of each of two lines as a text that is wrapped between them has.
const wrapped = 100

// acrossLines finds texts that are wrapped behind a word: it returns what begins in a line and ends in the next.
func acrossLines(before, line string) []Finding {
	if before == "" {
		return nil
	}
	if cut := len(before) - wrapped; cut > 0 {
		_, before, _ = strings.Cut(before[cut:], " ")
	}
	if len(line) > wrapped {
		line = line[:max(0, strings.LastIndexByte(line[:wrapped], ' '))]
	}
	t := newText(before + " " + line)
	var found []Finding
	for _, r := range []rule{findStatus, findPhrases, findMessages, findTexts} {
		found = append(found, r(t)...)
	}
	return slices.DeleteFunc(found, func(f Finding) bool { return f.at >= len(before) || f.at+len(f.By) <= len(before)+1 })
}

// isRow reports whether a line is a row of a dump.
func isRow(t *text) bool { return dumpWords.MatchString(t.lower) || dumpRow.MatchString(t.lower) }

func (l *Log) addRow(t *text) {
	if dumpBytes.MatchString(t.lower) {
		l.keep(&l.found, findDump(t), l.number, t.raw)
		return
	}
	l.row, l.rowLine = t, l.number
	if l.rows++; l.rows == dumpRows {
		l.endDump()
	}
}

// endDump decodes the last row of a dump.
func (l *Log) endDump() {
	if l.row != nil {
		l.keep(&l.found, findDump(l.row), l.rowLine, l.row.raw)
	}
	l.row, l.rows = nil, 0
}

// Findings returns the entries that the lines were about, the most telling first.
func (l *Log) Findings() []Finding {
	l.endDump()
	if l.calls != nil {
		l.keep(&l.found, l.calls, l.callAt, l.before)
		l.calls = nil
	}
	all := l.found
	if len(all) == 0 {
		all = l.alone
	}
	var list []Finding
	for _, f := range all {
		switch {
		case l.lines > 1 && (f.rank >= rankBare || f.rank == rankAsked && common[lower(f.By)]): // a line asks nothing
			continue
		case l.lines > 1:
			f.rank = amongOthers(f)
		default:
			f.Line, f.Text, f.Times = 0, "", 0
		}
		list = append(list, f)
	}
	if one, ok := l.Text(); ok && len(l.found) == 0 {
		t := newText(one)
		for _, r := range oneLineRules {
			list = append(list, r(t)...)
		}
	}
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), later(a, b), cmp.Compare(a.Line, b.Line), cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq))
	})
	return unique(list)
}

// amongOthers is the rank of a finding where a text has several lines: none of them is a question of a user.
func amongOthers(f Finding) rank {
	switch {
	case f.rank == rankDump:
		return rankCode
	case f.rank != rankAsked:
		return f.rank
	}
	switch f.Kind {
	case KindStatus, KindReject, KindEvent, KindErrno, KindMessage:
		return rankCode
	}
	return rankNumber
}
