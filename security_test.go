package adverb_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// docs/SECURITY.md says which test shows what. Each of them must be there.
func TestSecurityTests(t *testing.T) {
	doc, err := os.ReadFile("docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cited := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(string(doc), -1)
	if len(cited) < 20 {
		t.Errorf("docs/SECURITY.md cites %d tests, want 20 at least", len(cited))
	}
	for _, c := range cited {
		if !strings.Contains(all.String(), "\nfunc "+c[1]+"(") {
			t.Errorf("docs/SECURITY.md cites %s: no test has the name, want one", c[1])
		}
	}
}

// heldByOthers are the tests of lines whose attacks are held by what is not ours, so that nothing can be taken away.
var heldByOthers = map[string]string{"TestFragments": "the kernel puts fragments together"}

// TestSecurityPlanted: each line of docs/SECURITY.md that cites tests has a defect in internal/mutants which one of them
// must find. TestWhole is the simulation, which has those without a package.
func TestSecurityPlanted(t *testing.T) {
	doc, err := os.ReadFile("docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	planted := plantedTests(t)
	lines := 0
	for line := range strings.Lines(string(doc)) {
		cited := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(line, -1)
		if !strings.HasPrefix(line, "| ") || len(cited) == 0 {
			continue
		}
		lines++
		found := false
		for _, c := range cited {
			found = found || planted[c[1]] || heldByOthers[c[1]] != ""
		}
		if !found {
			t.Errorf("docs/SECURITY.md: %.80s…: no defect of internal/mutants must be found by one of its tests: plant one, and see that it is", line)
		}
	}
	if lines < 60 {
		t.Errorf("docs/SECURITY.md has %d lines with tests, want 60 at least", lines)
	}
}

// plantedTests are the names of tests that internal/mutants runs.
func plantedTests(t *testing.T) map[string]bool {
	files, err := filepath.Glob("internal/mutants/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("got the files %q, %v", files, err)
	}
	name := regexp.MustCompile(`(?:Test|Fuzz)[A-Z]\w*`)
	planted := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) != 6 { // as type mutant has fields: the last two are package and test
				return true
			}
			test, ok := lit.Elts[5].(*ast.BasicLit)
			if !ok {
				return true
			}
			s, err := strconv.Unquote(test.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range name.FindAllString(s, -1) {
				planted[n] = true
			}
			if pkg, ok := lit.Elts[4].(*ast.BasicLit); ok && pkg.Value == `""` {
				planted["TestWhole"] = true
			}
			return true
		})
	}
	return planted
}
