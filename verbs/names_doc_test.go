package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// A reader who has the name that an error prints finds the constant, and the other way round: the comment of each status
// begins with C's name, and that of the type lists all.
func TestStatusNames(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "wc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	typeDoc, statuses := "", 0
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.Name == "WCStatus" {
					typeDoc = g.Doc.Text()
				}
			case *ast.ValueSpec:
				if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "WCStatus" {
					continue
				}
				statuses++
				name := spec.Names[0].Name
				n, err := strconv.Atoi(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				printed := verbs.WCStatus(n).String()
				if doc := spec.Doc.Text(); !strings.HasPrefix(doc, "IBV_"+printed+": ") {
					t.Errorf("%s: the comment is %q, want one that begins with IBV_%s", name, doc, printed)
				}
				found := false
				for line := range strings.Lines(typeDoc) {
					words := strings.Fields(line)
					found = found || len(words) == 2 && words[0] == name && words[1] == printed
				}
				if !found {
					t.Errorf("the comment of WCStatus does not list %s as %s", name, printed)
				}
			}
		}
	}
	if statuses != 24 {
		t.Errorf("got %d statuses, want the 24 of enum ibv_wc_status", statuses)
	}
}
