package adverb_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The documents are read by strangers, so a link leads somewhere, a name is in the code, each document is in an index, and
// the first documents are short.

// sizes are the most bytes of the documents that a stranger reads first, without the tables of variables.
var sizes = map[string]int{"ARCHITECTURE.md": 18 << 10, "README.md": 17 << 10}

// citing are the documents whose names in backticks are of the code, besides docs/decisions.
var citing = []string{
	"ARCHITECTURE.md", "docs/CONNECTIONS.md", "docs/DATAPATH.md", "docs/EVENTS.md", "docs/IWARP.md",
	"docs/PACKET-SECURITY.md", "docs/PROCESSES.md", "docs/SHARED-MEMORY.md", "docs/STREAMS.md",
}

// foreignNames are words in backticks that are no names of this module.
var foreignNames = map[string]string{
	"runtime.Gosched":   "Go",
	"Gosched":           "Go",
	"runtime/metrics":   "Go",
	"sched_yield":       "Linux",
	"net.core.rmem_max": "Linux",
	"transport.Host":    "was here until commit 98d3c3c",
	"CheckRemote":       "was here until commit 98d3c3c",
	"WriteRemote":       "was here until commit 98d3c3c",
	"iw_lo":             "a device",
	"iw_eth0":           "a device",
	"shm_direct_ops":    "a counter",
}

// documents returns the Markdown files of the tree by their names.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	sourceFiles(t, func(name string, _ fs.DirEntry) {
		if path.Ext(name) != ".md" {
			return
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(b)
	})
	if texts["README.md"] == "" || texts["docs/LOSS.md"] == "" {
		t.Fatal("README.md or docs/LOSS.md was not found: the walk over the module is broken")
	}
	return texts
}

var (
	fencedBlock  = regexp.MustCompile("(?ms)^```.*?^```$")
	inlineCode   = regexp.MustCompile("`[^`]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingLine  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noAnchor     = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	codePath     = regexp.MustCompile(`^[\w./-]+\.(go|s|md|txt|json|svg|yml|yaml)$`)
	codeName     = regexp.MustCompile(`^\*?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(.*\))?$`)
	packagePath  = regexp.MustCompile(`^[a-z]\w*(?:/[a-z]\w*)+$`)
)

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) []string {
	var list []string
	seen := map[string]int{}
	for _, m := range headingLine.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		a := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), ""), " ", "-")
		if n := seen[a]; n > 0 {
			list = append(list, fmt.Sprintf("%s-%d", a, n))
		} else {
			list = append(list, a)
		}
		seen[a]++
	}
	return list
}

// linksOf returns where the links of a document lead, but for those to other sites.
func linksOf(text string) (list []string) {
	text = inlineCode.ReplaceAllString(fencedBlock.ReplaceAllString(text, ""), "")
	for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
			list = append(list, m[1])
		}
	}
	return list
}

// checkLinks returns the links of a document that lead nowhere. texts are all documents, and exists says whether there is
// another file or a directory.
func checkLinks(name string, texts map[string]string, exists func(string) bool) (faults []string) {
	for _, l := range linksOf(texts[name]) {
		file, anchor, _ := strings.Cut(l, "#")
		to := name
		if file != "" {
			to = path.Join(path.Dir(name), file)
		}
		text, isDocument := texts[to]
		switch {
		case !isDocument && !exists(to):
			faults = append(faults, fmt.Sprintf("%s links to %s, which is not there", name, l))
		case isDocument && anchor != "" && !slices.Contains(anchors(text), anchor):
			faults = append(faults, fmt.Sprintf("%s links to %s, and %s has no such heading", name, l, to))
		}
	}
	return faults
}

// TestLinks: the documents' links to files and headings of this repository lead somewhere.
func TestLinks(t *testing.T) {
	texts := documents(t)
	for name := range texts {
		for _, fault := range checkLinks(name, texts, isThere) {
			t.Error(fault)
		}
	}
}

func isThere(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func TestCheckLinks(t *testing.T) {
	texts := map[string]string{"docs/B.md": "# Two words, and `code`\n\n## Twice\n\n## Twice\n", "A.md": "# A\n"}
	for link, want := range map[string]string{
		"B.md": "", "../A.md#a": "", "#here": "", "B.md#two-words-and-code": "", "B.md#twice-1": "", "x.go": "",
		"https://example.com/none": "",
		"C.md":                     "not there", "../x.go": "not there", "B.md#three": "no such heading", "#there": "no such heading",
		"B.md#twice-2": "no such heading",
	} {
		texts["docs/A.md"] = "# Here\n\n```\n[in code](none.md)\n```\n\nA `[b](none.md)` and [text](" + link + ").\n"
		exists := func(name string) bool { return name == "docs/x.go" }
		checkOne(t, link, checkLinks("docs/A.md", texts, exists), want)
	}
}

// declarations are the names that the module's Go files declare.
type declarations struct {
	names    map[string]bool            // all, and the packages
	members  map[string]map[string]bool // of a package or a type, whatever its package
	embedded map[string][]string        // types that a type embeds
	files    []string
}

func newDeclarations() *declarations {
	return &declarations{map[string]bool{}, map[string]map[string]bool{}, map[string][]string{}, nil}
}

func (d *declarations) add(of, name string) {
	d.names[name] = true
	if d.members[of] == nil {
		d.members[of] = map[string]bool{}
	}
	d.members[of][name] = true
}

// addFile adds what a file declares.
func (d *declarations) addFile(f *ast.File) {
	pkg := f.Name.Name
	d.names[pkg] = true
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			of := pkg
			if decl.Recv != nil && len(decl.Recv.List) == 1 {
				of = typeName(decl.Recv.List[0].Type)
			}
			d.add(of, decl.Name.Name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						d.add(pkg, n.Name)
					}
				case *ast.TypeSpec:
					d.add(pkg, spec.Name.Name)
					d.addType(spec)
				}
			}
		}
	}
}

func (d *declarations) addType(spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch u := spec.Type.(type) {
	case *ast.StructType:
		fields = u.Fields
	case *ast.InterfaceType:
		fields = u.Methods
	default:
		return
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			d.add(spec.Name.Name, n.Name)
		}
		if len(f.Names) == 0 {
			e := typeName(f.Type)
			d.add(spec.Name.Name, e)
			d.embedded[spec.Name.Name] = append(d.embedded[spec.Name.Name], e)
		}
	}
}

// typeName is the name of a type without its package, a star or type arguments.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// has reports whether a package or a type, or a type that it embeds, has a member.
func (d *declarations) has(of, name string, depth int) bool {
	return d.members[of][name] || depth < 4 && slices.ContainsFunc(d.embedded[of], func(e string) bool { return d.has(e, name, depth+1) })
}

// cites returns what is wrong with a word in backticks, or "".
func (d *declarations) cites(word string) string {
	switch {
	case codePath.MatchString(word):
		if !slices.ContainsFunc(d.files, func(f string) bool { return f == word || strings.HasSuffix(f, "/"+word) }) {
			return "there is no such file"
		}
	case packagePath.MatchString(word):
		if !slices.ContainsFunc(d.files, func(f string) bool { return strings.HasPrefix(f, word+"/") || strings.Contains(f, "/"+word+"/") }) {
			return "there is no such package"
		}
	case codeName.MatchString(word):
		name, _, _ := strings.Cut(strings.TrimPrefix(word, "*"), "(")
		parts := strings.Split(name, ".")
		for i, p := range parts {
			if i == 0 && !d.names[p] {
				return fmt.Sprintf("nothing is named %s", p)
			}
			if i > 0 && !d.has(parts[i-1], p, 0) {
				return fmt.Sprintf("%s has no %s", parts[i-1], p)
			}
		}
	}
	return ""
}

// TestCitations: a file, a type, a function or a field that a document names in backticks is in the code.
func TestCitations(t *testing.T) {
	d := newDeclarations()
	goFiles(t, func(name string, _ *token.FileSet, f *ast.File) { d.addFile(f) })
	sourceFiles(t, func(name string, _ fs.DirEntry) { d.files = append(d.files, name) })
	unused := maps.Clone(foreignNames)
	checked := 0
	for name, text := range documents(t) {
		if !slices.Contains(citing, name) && path.Dir(name) != "docs/decisions" {
			continue
		}
		for _, quoted := range inlineCode.FindAllString(fencedBlock.ReplaceAllString(text, ""), -1) {
			word := strings.Trim(quoted, "`")
			if foreignNames[word] != "" {
				delete(unused, word)
				continue
			}
			if strings.HasPrefix(word, "ADVERB_") {
				continue // TestEnvironment looks for these
			}
			checked++
			if fault := d.cites(word); fault != "" {
				t.Errorf("%s names %s: %s", name, quoted, fault)
			}
		}
	}
	for word := range unused {
		t.Errorf("no document has the foreign name %s: take it off the list", word)
	}
	if checked < 300 {
		t.Errorf("the documents cite %d names, want 300 at least", checked)
	}
}

func TestCites(t *testing.T) {
	src := "package p; type T struct { E; f int }; type E struct{ *W }; type W struct{}; func (W) m() {}; func New() {}; const c = 1; type I interface { J() }"
	d := newDeclarations()
	d.addFile(parseText(t, src))
	d.files = []string{"internal/p/x.go", "docs/LOSS.md"}
	for word, want := range map[string]string{
		"T": "", "T.f": "", "T.m": "", "p.T.E": "", "New()": "", "p.New": "", "p.c": "", "I.J": "", "*T": "", "E.W": "",
		"internal/p/x.go": "", "x.go": "", "p/x.go": "", "LOSS.md": "", "internal/p": "", "go test .": "", "[x]": "",
		"U": "nothing is named", "T.g": "T has no g", "W.f": "W has no f", "p.U": "p has no U", "y.go": "no such file",
		"q/x.go": "no such file", "internal/q": "no such package", "m.T": "m has no T",
	} {
		var got []string
		if fault := d.cites(word); fault != "" {
			got = append(got, fault)
		}
		checkOne(t, word, got, want)
	}
}

// indexed are the indexes, and the directories whose documents each has once.
var indexed = map[string]string{"docs/README.md": "docs", "docs/decisions/README.md": "docs/decisions", "docs/guide/README.md": "docs/guide", "docs/learn/README.md": "docs/learn"}

// checkIndex returns the documents of a directory that its index does not link to, or has in more than one line of a
// table.
func checkIndex(index, dir string, texts map[string]string) (faults []string) {
	rows := map[string]int{}
	for line := range strings.Lines(texts[index]) {
		if !strings.HasPrefix(line, "| [") {
			continue
		}
		if links := linksOf(line); len(links) > 0 {
			file, _, _ := strings.Cut(links[0], "#")
			rows[path.Join(path.Dir(index), file)]++
		}
	}
	for name := range texts {
		isIndex := name != index && path.Base(name) == "README.md" && path.Dir(path.Dir(name)) == dir
		if name == index || path.Dir(name) != dir && !isIndex {
			continue
		}
		if n := rows[name]; n != 1 {
			faults = append(faults, fmt.Sprintf("%s has %d rows that begin with a link to %s, want 1", index, n, name))
		}
	}
	return faults
}

// TestIndexes: each document of docs is in the index of its directory, once.
func TestIndexes(t *testing.T) {
	texts := documents(t)
	for index, dir := range indexed {
		for _, fault := range checkIndex(index, dir, texts) {
			t.Error(fault)
		}
	}
}

func TestCheckIndex(t *testing.T) {
	for rows, want := range map[string]string{
		"| [a](A.md) | first |\n| [b](b/README.md) | second |\n":       "",
		"| [a](A.md) | first |\n| b | [b](b/README.md) |\n":            "docs/README.md has 0 rows that begin with a link to docs/b/README.md",
		"| [a](A.md#x) | |\n| [b](b/README.md) | |\n| [a](A.md) | |\n": "has 2 rows that begin with a link to docs/A.md",
	} {
		texts := map[string]string{"docs/README.md": rows, "docs/A.md": "", "docs/b/README.md": "", "docs/b/C.md": "", "README.md": ""}
		checkOne(t, rows, checkIndex("docs/README.md", "docs", texts), want)
	}
}

// decisionHead matches how the page of a decision begins, and decisionRow its row in the index.
var (
	decisionHead = regexp.MustCompile(`^# (.+)\n\nDecided (\d{4}-\d\d-\d\d)\. \[All decisions\]\(README\.md\)\n\n`)
	decisionRow  = regexp.MustCompile(`(?m)^\| \[(.+)\]\(([\w-]+\.md)\) \| \S.* \| (\d{4}-\d\d-\d\d) \|$`)
)

// checkDecision returns what is wrong with the page of a decision, whose index is given.
func checkDecision(name, text, index string) (faults []string) {
	head := decisionHead.FindStringSubmatch(text)
	if head == nil {
		return []string{name + ` begins otherwise than with a title and "Decided 2006-01-02. [All decisions](README.md)"`}
	}
	for _, row := range decisionRow.FindAllStringSubmatch(index, -1) {
		if row[2] == path.Base(name) && (row[1] != head[1] || row[3] != head[2]) {
			faults = append(faults, fmt.Sprintf("%s is %q of %s, and the index says %q of %s", name, head[1], head[2], row[1], row[3]))
		}
	}
	return faults
}

// TestDecisions: a page in docs/decisions says when it was decided, and the index says the same.
func TestDecisions(t *testing.T) {
	texts := documents(t)
	pages := 0
	for name, text := range texts {
		if path.Dir(name) == "docs/decisions" && path.Base(name) != "README.md" {
			pages++
			for _, fault := range checkDecision(name, text, texts["docs/decisions/README.md"]) {
				t.Error(fault)
			}
		}
	}
	if pages < 40 {
		t.Errorf("docs/decisions has %d pages, want 40 at least", pages)
	}
}

func TestCheckDecision(t *testing.T) {
	const index = "| page | in short | since |\n|---|---|---|\n| [A title](a.md) | short | 2026-11-20 |\n"
	for text, want := range map[string]string{
		"# A title\n\nDecided 2026-11-20. [All decisions](README.md)\n\nBecause.\n": "",
		"# A title\n\nBecause.\n": "begins otherwise",
		"# A title\n\nDecided lately. [All decisions](README.md)\n\nBecause.\n":           "begins otherwise",
		"# A title\n\nDecided 2026-11-21. [All decisions](README.md)\n\nBecause.\n":       "of 2026-11-21, and the index says",
		"# Another title\n\nDecided 2026-11-20. [All decisions](README.md)\n\nBecause.\n": "the index says \"A title\"",
	} {
		checkOne(t, text, checkDecision("docs/decisions/a.md", text, index), want)
	}
}

// TestDocumentSizes: what a stranger reads first stays short. What grows has a page of its own below docs.
func TestDocumentSizes(t *testing.T) {
	texts := documents(t)
	for name, most := range sizes {
		if n := len(texts[name]) - len(environmentOf(texts[name])); n == 0 || n > most {
			t.Errorf("%s has %d bytes, want 1 to %d: give a page of docs to the part that grows", name, n, most)
		}
	}
}

func parseText(t *testing.T, src string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
