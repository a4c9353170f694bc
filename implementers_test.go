package adverb_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// forImplementersOnly matches the names of package verbs that programs need not read.
var forImplementersOnly = regexp.MustCompile(`^(Provider([A-Z]\w*)?|MRAttr|Register|Errorf|Notified)$`)

const implementersMark = "for implementers of providers"

// checkImplementers returns the names of a file whose comments do not say in the first sentence who reads them.
func checkImplementers(f *ast.File) (names int, faults []string) {
	check := func(name string, doc *ast.CommentGroup) {
		if !forImplementersOnly.MatchString(name) {
			return
		}
		names++
		first, _, _ := strings.Cut(strings.Join(strings.Fields(doc.Text()), " "), ". ")
		if !strings.Contains(first, implementersMark) {
			faults = append(faults, fmt.Sprintf("the first sentence of %s's comment is %q: say that it is %s", name, first, implementersMark))
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			check(d.Name.Name, d.Doc)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					doc := spec.Doc
					if doc == nil {
						doc = d.Doc
					}
					check(spec.Name.Name, doc)
				}
			}
		}
	}
	return names, faults
}

// TestForImplementers: who reads the documentation of verbs to write a program sees at once which types are not for that.
func TestForImplementers(t *testing.T) {
	names := 0
	goFilesWithComments(t, func(name string, _ *token.FileSet, f *ast.File) {
		if path.Dir(name) != "verbs" || strings.HasSuffix(name, "_test.go") {
			return
		}
		n, faults := checkImplementers(f)
		names += n
		for _, fault := range faults {
			t.Errorf("%s: %s", name, fault)
		}
	})
	if names < 30 {
		t.Errorf("verbs has %d names for implementers, want 30 at least", names)
	}
}

func TestCheckImplementers(t *testing.T) {
	for src, want := range map[string]string{
		"// ProviderX, for implementers of\n// providers, is x. More.\ntype ProviderX interface{}": "",
		"// ProviderX is x. It is for implementers of providers.\ntype ProviderX interface{}":      "first sentence of ProviderX",
		"type ProviderX interface{}": "first sentence of ProviderX",
		"type (\n// ProviderX, for implementers of providers, is x.\nProviderX struct{}\n)": "",
		"// Register adds.\nfunc Register() {}":                                             "first sentence of Register",
		"// Providers lists.\nfunc Providers() {}":                                          "",
		"// Provider returns x.\nfunc (T) Provider() {}":                                    "first sentence of Provider",
	} {
		_, faults := checkImplementers(parseText(t, "package p\n"+src))
		checkOne(t, src, faults, want)
	}
}
