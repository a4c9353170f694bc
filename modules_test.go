package adverb_test

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// userModules are the modules that a program on adverb takes on, whatever its system. Others are for the tool, for tests
// and for modules of their own. ARCHITECTURE.md says why each is there.
var userModules = []string{"golang.org/x/sys", "golang.org/x/net", "github.com/mdlayher/netlink"}

// furtherModules are those that programs take on by one package alone.
var furtherModules = map[string][]string{"provider/native": {"github.com/ebitengine/purego"}}

// userPackages are what programs import.
func userPackages(pkgs map[string][]string) (list []string) {
	for pkg := range pkgs {
		if isPublic(pkg) {
			list = append(list, pkg)
		}
	}
	slices.Sort(list)
	return list
}

// isPublic reports whether programs of others may import a package of this module, and might want to.
func isPublic(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains("/"+pkg+"/", "/internal/") && !slices.Contains([]string{".", "cmd", "lab", "tools", "examples", "adverbprom"}, first)
}

// TestUserModules: a package that programs import brings them no other modules. It looks at the imports of all systems.
func TestUserModules(t *testing.T) {
	imports := map[string][]string{}
	goFiles(t, func(name string, _ *token.FileSet, f *ast.File) {
		if !strings.HasSuffix(name, "_test.go") {
			pkg := path.Dir(name)
			imports[pkg] = append(imports[pkg], importsOf(f)...)
		}
	})
	public := userPackages(imports)
	if !slices.Contains(public, "provider/soft") || slices.Contains(public, "adverbprom") {
		t.Fatalf("packages for users: %v, want provider/soft among them, and adverbprom, a module of its own, not", public)
	}
	for _, pkg := range public {
		for _, way := range foreign(imports, pkg) {
			if !slices.ContainsFunc(slices.Concat(userModules, furtherModules[pkg]), func(m string) bool { return way.imp == m || strings.HasPrefix(way.imp, m+"/") }) {
				t.Errorf("%s imports %s, by %s: no program is to take that on", pkg, way.imp, way.by)
			}
		}
	}
}

// imported is an import of another module, and the package of this one that has it.
type imported struct{ by, imp string }

// foreign returns what a package imports of other modules, itself and by what it imports.
func foreign(imports map[string][]string, pkg string) (list []imported) {
	seen := map[string]bool{pkg: true}
	for todo := []string{pkg}; len(todo) > 0; todo = todo[1:] {
		for _, imp := range imports[todo[0]] {
			local, ours := strings.CutPrefix(imp, modulePath+"/")
			first, _, _ := strings.Cut(imp, "/")
			switch {
			case ours && !seen[local]:
				seen[local] = true
				todo = append(todo, local)
			case !ours && strings.Contains(first, "."):
				list = append(list, imported{todo[0], imp})
			}
		}
	}
	return list
}

func importsOf(f *ast.File) (list []string) {
	for _, spec := range f.Imports {
		list = append(list, importPath(spec))
	}
	return list
}
