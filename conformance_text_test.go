package adverb_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
)

// conformanceText is docs/CONFORMANCE.md.
func conformanceText(areas []*conformanceArea, code *citedCode) string {
	var b strings.Builder
	b.WriteString("<!-- Made by go test . -run Conformance -update from conformance.txt and the code. Do not edit. -->\n\n# Conformance\n\n")
	for i, a := range areas {
		if i == 0 { // the introduction
			b.WriteString(wrap(a.intro) + "\n\n")
			conformanceSums(&b, areas[1:])
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n", a.title)
		if intro := wrap(a.intro); intro != "" {
			b.WriteString("\n" + intro + "\n")
		}
		b.WriteString("\n| statement | in our words | where | proved by |\n|---|---|---|---|\n")
		for _, r := range a.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(r.id), cell(r.statement()), r.where(code), r.proof(code))
		}
	}
	return b.String()
}

// conformanceSums writes the table that says how far the areas are.
func conformanceSums(b *strings.Builder, areas []*conformanceArea) {
	b.WriteString("| area | rows | done | of these with exceptions | of these without a test | done by the system, or by other rows | not done |\n")
	b.WriteString("|---|---|---|---|---|---|---|\n")
	var all [6]int
	line := func(title string, n [6]int) {
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d |\n", title, n[0], n[1], n[2], n[3], n[4], n[5])
	}
	for _, a := range areas {
		n := [6]int{len(a.rows)}
		for _, r := range a.rows {
			for i, is := range []bool{r.done(), r.done() && r.but != "", r.done() && len(r.tests)+len(r.cases) == 0, r.host != "" || r.see != "", r.not != ""} {
				if is {
					n[i+1]++
				}
			}
		}
		for i := range n {
			all[i] += n[i]
		}
		line(a.title, n)
	}
	line("all", all)
}

// statement is what the row says, and how far it is done.
func (r *conformanceRow) statement() string {
	s := r.words
	for _, part := range []struct{ head, text string }{
		{"Except", r.but}, {"By the system", r.host}, {"See", r.see}, {"Not done", r.not}, {"No test yet", r.untested},
	} {
		if part.text != "" {
			s += " **" + part.head + ":** " + part.text
		}
	}
	return s
}

func (r *conformanceRow) where(code *citedCode) string {
	var links []string
	for _, p := range r.cited {
		name := p.name
		if !strings.HasPrefix(name, "package ") {
			name = path.Base(path.Dir(p.file)) + "." + name
		}
		links = append(links, link(name, p.file))
	}
	for _, name := range r.code {
		links = append(links, link(path.Base(name), code.decls[name]))
	}
	return strings.Join(links, ", ")
}

func (r *conformanceRow) proof(code *citedCode) string {
	var links []string
	for _, name := range r.tests {
		links = append(links, link(path.Base(name), code.tests[name]))
	}
	for _, name := range r.cases {
		links = append(links, link(name, code.cases[name]))
	}
	return strings.Join(links, ", ")
}

func link(text, file string) string { return fmt.Sprintf("[%s](../%s)", cell(text), file) }

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// wrap breaks paragraphs into lines of at most 100 columns.
func wrap(s string) string {
	var lines []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			if line != "" && len([]rune(line))+1+len([]rune(word)) > 100 {
				lines = append(lines, line)
				line = ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		lines = append(lines, line, "")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// TestCheckConformance plants each fault that the checker finds.
func TestCheckConformance(t *testing.T) {
	const good = "= Area\nAn introduction\nof two lines.\n\n" +
		"C9-88: Words\n  that go on.\n  but: not on Sunday\n  test: pkg.TestOne\n\n-: More words.\n  code: pkg.T.read\n  case: rc/send\n\n§9.7.1: Never.\n  not: we\n  need it not\n"
	const src = "package pkg\n\n// read reads: IBTA C9-88.\nfunc (t *T) read() {}\n"
	const test = "package pkg\n\n// TestOne: IBTA C9-88.\nfunc TestOne() {}\nfunc TestTwo() {}\n"
	const lib = "package verbstest\n\nvar c = Case{Name: \"rc/send\"}\n"
	for _, tt := range []struct {
		name           string
		rows, src, tst string // a replacement "old=>new" in each
		want           string // part of the one fault, or "" for none
	}{
		{name: "good"},
		{name: "test gone", rows: "pkg.TestOne=>pkg.TestOne, pkg.TestNone", want: "conformance.txt:5: C9-88: test pkg.TestNone is gone"},
		{name: "case gone", rows: "rc/send=>rc/receive", want: `case "rc/receive" of verbs/verbstest is gone`},
		{name: "code gone", rows: "pkg.T.read=>pkg.T.write", want: "code pkg.T.write is gone"},
		{name: "citation gone", src: "IBTA C9-88=>nothing", want: "no code cites it"},
		{name: "row gone", src: "C9-88=>C9-88, C9-92", want: "pkg/a.go: T.read cites C9-92, which has no row"},
		{name: "test cites, row does not name it", tst: "TestTwo() {}=>TestTwo() { /* IBTA C9-88 */ }", want: "TestTwo cites C9-88, and the row's tests are [pkg.TestOne]"},
		{name: "no test", rows: "  test: pkg.TestOne\n=>", tst: "IBTA C9-88=>", want: "no test is given"},
		{name: "no test, with a reason", rows: "  test: pkg.TestOne=>  untested: too slow", tst: "IBTA C9-88=>"},
		{name: "not done, and cited", rows: "  test: pkg.TestOne=>  not: never\n  test: pkg.TestOne", want: "the code does it, or cites it: [pkg.T.read]"},
		{name: "neither code nor reason", rows: "  code: pkg.T.read\n=>", want: "no code is given"},
		{name: "code beside citations", rows: "  test: pkg.TestOne=>  test: pkg.TestOne\n  code: pkg.T.read", want: "cite C9-88 there"},
		{name: "two kinds", rows: "  not: we=>  host: UDP\n  not: we", want: "give one of host, see and not"},
		{name: "twice", rows: "§9.7.1: Never=>C9-88: Never", want: "C9-88 has a row already"},
		{name: "what is that", rows: "  not: we=>  why: we\n  not: we"}, // it goes on with the words
		{name: "no such field", rows: "of two lines.\n\n=>\n  test: pkg.TestOne\n", want: "goes on with nothing"},
		{name: "citation without ID", src: "IBTA C9-88=>IBTA C9-88, IBTA 9.7", want: "cite as in"},
	} {
		change := func(s, by string) string {
			if by == "" {
				return s
			}
			from, to, _ := strings.Cut(by, "=>")
			if !strings.Contains(s, from) {
				t.Fatalf("%s: nothing to replace, want %q in the text", tt.name, from)
			}
			return strings.Replace(s, from, to, 1)
		}
		areas, faults := parseConformance(change(good, tt.rows))
		code := &citedCode{decls: map[string]string{}, tests: map[string]string{}, cases: map[string]string{}}
		for name, text := range map[string]string{"pkg/a.go": change(src, tt.src), "pkg/a_test.go": change(test, tt.tst), caseLibrary + "/case.go": lib} {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			code.read(name, fset, f)
		}
		faults = append(append(faults, code.faults...), match(areas, code.citations)...)
		for _, a := range areas {
			for _, r := range a.rows {
				faults = append(faults, r.check(code)...)
			}
		}
		if tt.name == "twice" && len(faults) > 0 {
			faults = faults[:1] // the second row takes the citations of the first
		}
		checkOne(t, tt.name, faults, tt.want)
		if text := conformanceText(append([]*conformanceArea{{}}, areas...), code); tt.name == "good" &&
			!strings.Contains(text, "| C9-88 | Words that go on. **Except:** not on Sunday | [pkg.T.read](../pkg/a.go) | [pkg.TestOne](../pkg/a_test.go) |\n") {
			t.Errorf("the document lacks the row of C9-88:\n%s", text)
		}
	}
}
