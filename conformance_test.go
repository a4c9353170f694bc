package adverb_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/conformance.txt lists what the specification asks for, in our words. docs/CONFORMANCE.md is made of
// it and of the code: comments cite statements as "IBTA C9-88", and say by that where they are
// implemented. After a change of either:
//
//	go test . -run Conformance -update
var update = flag.Bool("update", false, "write docs/CONFORMANCE.md anew")

const (
	conformanceSource = "docs/conformance.txt"
	conformanceDoc    = "docs/CONFORMANCE.md"

	// caseLibrary holds tests for any device, in files that are not named as tests.
	caseLibrary = "verbs/verbstest"
)

// A statementID is a compliance statement's, such as C9-88, o10-37.2.30 or CA17-5, or a section's: §9.7.7.2, §A17.4.5.2.
const statementID = `(?:[Co]\d+-\d+(?:\.\w+)*|[Co]A\d+-\d+|§A?\d+(?:\.\d+)*)`

var (
	citationStart = regexp.MustCompile(`\bIBTA\b`)
	citationIDs   = regexp.MustCompile(`^IBTA (` + statementID + `(?:(?:, | and )` + statementID + `)*)`)
	oneID         = regexp.MustCompile(statementID)
	rowStart      = regexp.MustCompile(`^(` + statementID + `|-): (.+)$`)
	rowField      = regexp.MustCompile(`^  (test|case|code|but|untested|host|see|not): (.+)$`)
)

// conformanceArea is a table of the document.
type conformanceArea struct {
	title, intro string
	rows         []*conformanceRow
}

// conformanceRow is a statement. One that is implemented has citations or code, and tests or a word on why
// there are none. Any other has host, see or not.
type conformanceRow struct {
	line  int
	id    string // empty for what we know no number of
	words string

	tests    []string // package.TestName
	cases    []string // of package verbstest
	code     []string // package.Name or package.Type.Method, of rows without an ID
	but      string   // in what the code differs
	untested string   // why no test proves it

	host string // the operating system does it
	see  string // other rows say it in detail
	not  string // why it is not done; tests may show what becomes of it

	cited []place
}

// place is a declaration.
type place struct{ file, name string }

// parseConformance reads the source: "= title" begins an area, an ID or "-" a row. What is indented goes on.
// An area's introduction may have several paragraphs.
func parseConformance(src string) (areas []*conformanceArea, faults []string) {
	var row *conformanceRow
	var text *string // that an indented line goes on with
	seen := map[string]bool{}
	for i, line := range strings.Split(src, "\n") {
		fault := func(what string) { faults = append(faults, fmt.Sprintf("%s:%d: %s", conformanceSource, i+1, what)) }
		title, isTitle := strings.CutPrefix(line, "= ")
		m := rowStart.FindStringSubmatch(line)
		f := rowField.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "" && row == nil && text != nil:
			*text += "\n\n"
		case line == "":
			row, text = nil, nil
		case isTitle:
			areas = append(areas, &conformanceArea{title: title})
			row, text = nil, &areas[len(areas)-1].intro
		case len(areas) == 0:
			fault("text before the first area")
		case m != nil:
			row = &conformanceRow{line: i + 1, words: m[2]}
			if m[1] != "-" {
				row.id = m[1]
				if seen[row.id] {
					fault(row.id + " has a row already")
				}
				seen[row.id] = true
			}
			text = &row.words
			a := areas[len(areas)-1]
			a.rows = append(a.rows, row)
		case f != nil && row != nil:
			text = row.field(f[1], f[2])
		case text != nil && (row != nil) == strings.HasPrefix(line, "  "):
			*text += " " + strings.TrimSpace(line)
		default:
			fault(fmt.Sprintf("%q is no row, no field of a row, and goes on with nothing", line))
		}
	}
	return areas, faults
}

// field sets a field of a row. It returns the text that the next line may go on with, if there is one.
func (r *conformanceRow) field(name, value string) *string {
	switch name {
	case "test":
		r.tests = append(r.tests, strings.Split(value, ", ")...)
	case "code":
		r.code = append(r.code, strings.Split(value, ", ")...)
	case "case":
		r.cases = append(r.cases, strings.Split(value, ", ")...)
	default:
		to := map[string]*string{"but": &r.but, "untested": &r.untested, "host": &r.host, "see": &r.see, "not": &r.not}[name]
		*to = value
		return to
	}
	return nil
}

// done reports whether our code does what the row says.
func (r *conformanceRow) done() bool { return r.host == "" && r.see == "" && r.not == "" }

func (r *conformanceRow) name() string {
	if r.id != "" {
		return r.id
	}
	return fmt.Sprintf("%q", r.words)
}

// check returns what is wrong with a row, in the code as it is.
func (r *conformanceRow) check(code *citedCode) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s:%d: %s: %s", conformanceSource, r.line, r.name(), fmt.Sprintf(format, args...)))
	}
	kinds := 0
	for _, s := range []string{r.host, r.see, r.not} {
		if s != "" {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		fault("give one of host, see and not")
	case kinds == 1 && len(r.cited)+len(r.code) > 0:
		fault("the code does it, or cites it: %v", append(placeNames(r.cited), r.code...))
	case kinds == 1:
	case r.id != "" && len(r.code) > 0:
		fault("code is for rows without an ID: cite %s there", r.id)
	case r.id != "" && len(r.cited) == 0:
		fault("no code cites it: write \"IBTA %s\" where it is implemented, or say why it is not", r.id)
	case r.id == "" && len(r.code) == 0:
		fault("no code is given, and no reason why there is none")
	case len(r.tests)+len(r.cases) == 0 && r.untested == "":
		fault("no test is given: name one, or say why there is none (untested)")
	}
	for _, name := range r.code {
		if code.decls[name] == "" {
			fault("code %s is gone", name)
		}
	}
	for _, name := range r.tests {
		if code.tests[name] == "" {
			fault("test %s is gone", name)
		}
	}
	for _, name := range r.cases {
		if code.cases[name] == "" {
			fault("case %q of %s is gone", name, caseLibrary)
		}
	}
	return faults
}

// citedCode is what the Go files of the module have for the document.
type citedCode struct {
	decls, tests map[string]string // package.Name, or package.Type.Method: its file
	cases        map[string]string // name of a verbstest.Case: its file
	citations    []citation
	faults       []string
}

type citation struct {
	id string
	place
	test string // package.TestName, if the citation is in a test
	lib  bool   // the citation is in other code of tests
}

func readCitedCode(t *testing.T) *citedCode {
	t.Helper()
	c := &citedCode{decls: map[string]string{}, tests: map[string]string{}, cases: map[string]string{}}
	files := 0
	sourceFiles(t, func(name string, _ os.DirEntry) {
		if path.Ext(name) != ".go" || strings.HasPrefix(name, "conformance_") {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.FromSlash(name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		files++
		c.read(name, fset, f)
	})
	if files == 0 {
		t.Error("no file was found: the walk over the module is broken")
	}
	return c
}

// read takes what a file declares and cites.
func (c *citedCode) read(name string, fset *token.FileSet, f *ast.File) {
	dir := path.Dir(name)
	isTest := strings.HasSuffix(name, "_test.go")
	into := c.decls
	if isTest {
		into = c.tests
	}
	for _, d := range f.Decls {
		for _, n := range declNames(d) {
			into[dir+"."+n] = name
		}
	}
	if dir == caseLibrary && !isTest {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(s, "/") {
					c.cases[s] = name
				}
			}
			return true
		})
	}
	for _, group := range f.Comments {
		for _, comment := range group.List {
			for _, at := range citationStart.FindAllStringIndex(comment.Text, -1) {
				m := citationIDs.FindStringSubmatch(comment.Text[at[0]:])
				if m == nil {
					c.faults = append(c.faults, fmt.Sprintf("%v: cite as in \"IBTA C9-88, C9-92\" or \"IBTA §9.7.7.2\", on one line", fset.Position(comment.Pos())))
					continue
				}
				cite := citation{place: place{file: name, name: "package " + f.Name.Name}, lib: isTest || dir == caseLibrary}
				for _, d := range f.Decls {
					if n := declNameAt(d, comment.Pos()); n != "" {
						cite.name = n
						if fd, ok := d.(*ast.FuncDecl); ok && isTest && fd.Recv == nil && isTestName(n) {
							cite.test = dir + "." + n
						}
					}
				}
				for _, id := range oneID.FindAllString(m[1], -1) {
					cite.id = id
					c.citations = append(c.citations, cite)
				}
			}
		}
	}
}

func isTestName(n string) bool { return strings.HasPrefix(n, "Test") || strings.HasPrefix(n, "Fuzz") }

// declNames returns what a declaration declares. Methods are Type.Method.
func declNames(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return []string{funcName(d)}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			names = append(names, specNames(s)...)
		}
	}
	return names
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	if s, ok := t.(*ast.IndexExpr); ok {
		t = s.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

func specNames(s ast.Spec) (names []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return []string{s.Name.Name}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

// declNameAt returns the name of what d declares at a position: in it, in its comment, or behind it on its line.
func declNameAt(d ast.Decl, pos token.Pos) string {
	within := func(doc, behind *ast.CommentGroup, n ast.Node) bool {
		from, to := n.Pos(), n.End()
		if doc != nil {
			from = doc.Pos()
		}
		if behind != nil {
			to = behind.End()
		}
		return from <= pos && pos < to
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if within(d.Doc, nil, d) {
			return funcName(d)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			var doc, behind *ast.CommentGroup
			switch s := s.(type) {
			case *ast.TypeSpec:
				doc, behind = s.Doc, s.Comment
			case *ast.ValueSpec:
				doc, behind = s.Doc, s.Comment
			}
			if names := specNames(s); len(names) > 0 && (within(doc, behind, s) || len(d.Specs) == 1 && within(d.Doc, nil, d)) {
				return names[0]
			}
		}
	}
	return ""
}

func placeNames(ps []place) (names []string) {
	for _, p := range ps {
		names = append(names, path.Dir(p.file)+"."+p.name)
	}
	return names
}

// match gives each row its citations, and returns those that have no row or name no test of their row.
func match(areas []*conformanceArea, citations []citation) (faults []string) {
	byID := map[string]*conformanceRow{}
	for _, a := range areas {
		for _, r := range a.rows {
			if r.id != "" {
				byID[r.id] = r
			}
		}
	}
	for _, c := range citations {
		r := byID[c.id]
		switch {
		case r == nil:
			faults = append(faults, fmt.Sprintf("%s: %s cites %s, which has no row in %s", c.file, c.name, c.id, conformanceSource))
		case c.test != "" && !slices.Contains(r.tests, c.test):
			faults = append(faults, fmt.Sprintf("%s: %s cites %s, and the row's tests are %v", c.file, c.name, c.id, r.tests))
		case !c.lib && !slices.Contains(r.cited, c.place):
			r.cited = append(r.cited, c.place)
		}
	}
	return faults
}

func TestConformance(t *testing.T) {
	src, err := os.ReadFile(conformanceSource)
	if err != nil {
		t.Fatal(err)
	}
	areas, faults := parseConformance(string(src))
	code := readCitedCode(t)
	faults = append(append(faults, code.faults...), match(areas, code.citations)...)
	for _, a := range areas {
		for _, r := range a.rows {
			faults = append(faults, r.check(code)...)
		}
	}
	for _, f := range faults {
		t.Error(f)
	}
	if len(faults) > 0 {
		return
	}
	doc := conformanceText(areas, code)
	if *update {
		if err := os.WriteFile(conformanceDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old, err := os.ReadFile(conformanceDoc); err != nil {
		t.Error(err)
	} else if string(old) != doc {
		t.Errorf("%s is out of date: run go test . -run Conformance -update", conformanceDoc)
	}
}
