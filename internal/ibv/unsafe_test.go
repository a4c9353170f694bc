package ibv

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pointers are the functions that use unsafe.Pointer, each with the reason why it may.
var pointers = map[string]string{
	"P":               "it makes a pointer of an address of C's or of ours",
	"cut":             "it takes mapped memory apart",
	"first":           "it is given memory that cut has returned",
	"base":            "it is given memory that is pinned, or mapped",
	"call":            "a frame is in a block",
	"carryOut":        "frames are in blocks",
	"call3":           "a frame is in a block",
	"runtime_cgocall": "a frame is in a block",
}

// TestUnsafe: a stack of Go's moves when it grows, and C knows addresses alone. So no other function makes a number of an
// address, and provider/native, which uses this package, has no unsafe but to pin memory.
func TestUnsafe(t *testing.T) {
	found := map[string]string{}
	each(t, ".", func(name string, fset *token.FileSet, f *ast.File) {
		for _, decl := range f.Decls {
			where := "a declaration"
			if fn, ok := decl.(*ast.FuncDecl); ok {
				where = fn.Name.Name
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && isUnsafe(sel) && sel.Sel.Name == "Pointer" {
					found[where] = fset.Position(n.Pos()).String()
				}
				return true
			})
		}
	})
	for _, fn := range slices.Sorted(maps.Keys(found)) {
		if pointers[fn] == "" {
			t.Errorf("%s: %s uses unsafe.Pointer: hand memory to C by put, which copies", found[fn], fn)
		}
	}
	for fn := range pointers {
		if found[fn] == "" {
			t.Errorf("%s uses no unsafe.Pointer any more: take it off the list", fn)
		}
	}
	each(t, filepath.Join("..", "..", "provider", "native"), func(name string, fset *token.FileSet, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && isUnsafe(sel) && sel.Sel.Name != "SliceData" {
				t.Errorf("%v: unsafe.%s: let internal/ibv do that", fset.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	})
}

func isUnsafe(sel *ast.SelectorExpr) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "unsafe"
}

// each calls visit for each Go file of a directory but tests.
func each(t *testing.T, dir string, visit func(string, *token.FileSet, *ast.File)) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		name := file.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		n++
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		visit(name, fset, f)
	}
	if n == 0 {
		t.Fatalf("%s has no Go files", dir)
	}
}
