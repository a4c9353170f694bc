package adverb_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A field has one owner: the type that writes it. TestOwnership finds the fields of a package's structs that methods of two
// or more unrelated types write. Types are related if one embeds the other, or has it as a field: a whole may set its
// parts. Functions without a receiver do not count, as most of them make values.

// owned are the packages whose fields have one owner each, but for sharedFields.
var owned = []string{
	"internal/recovery", "internal/transport", "internal/shm", "internal/host",
	"internal/rnic", "internal/cm", "internal/iwarp", "internal/mem", "internal/queue", "internal/crowd",
	"internal/connector", "rdmacm", "rsocket",
	"internal/watch", "internal/mpa", "internal/secure", "internal/user", "internal/wire", "internal/clock",
	"internal/idtable", "internal/epoll", "internal/devlog", "internal/promtext", "internal/showpackets", "internal/release",
	"internal/link", "internal/link/udp", "internal/link/tcp", "internal/link/sim", "internal/link/fault",
	"internal/link/trace", "internal/link/pcap", "internal/link/linktest",
	"verbs", "verbs/verbstest", "rdmatest", "rdmamsg", "rdmaio", "rdmapool", "provider/soft",
	"internal/uapi", "internal/uverbs", "internal/ucma", "internal/supervisor",
	"internal/hca", "internal/device", "internal/peer", "internal/lanes", "internal/ibv", "provider/native",
}

// sharedFields are the exceptions: package, type and field, and the reason.
var sharedFields = map[string]string{
	"internal/transport.Counters.Unexpected": "each part counts the packets that it drops",
	"internal/transport.Counters.NoReceive":  "UC's and UD's messages find no receive in different places",
}

// mostShared is the part of a package's fields that may be exceptions.
const mostShared = .05

func TestOwnership(t *testing.T) {
	l := loadTypes(t, owned)
	unused := maps.Clone(sharedFields)
	for _, dir := range owned {
		pkg, files, info := l.check(t, dir)
		fields, writers := writersOf(pkg, files, info)
		var shared []string
		for f, ws := range writers {
			if !related(ws) {
				name := fmt.Sprintf("%s.%s", dir, f)
				shared = append(shared, name)
				if _, ok := sharedFields[name]; !ok {
					t.Errorf("%s is written by methods of %s: let one type write it, by methods that the others call", name, typeNames(ws))
				}
				delete(unused, name)
			}
		}
		t.Logf("%s: %d of %d fields are written by unrelated types", dir, len(shared), fields)
		if len(shared) > int(mostShared*float64(fields)) {
			t.Errorf("%s: %d of %d fields are written by unrelated types, more than %g %%: %v", dir, len(shared), fields, 100*mostShared, shared)
		}
	}
	for name := range unused {
		t.Errorf("%s is no exception any more: take it off the list", name)
	}
}

// typeLoader checks the types of packages, by the export data of those that they import.
type typeLoader struct {
	fset  *token.FileSet
	files map[string][]string // by directory
	imp   types.Importer
}

func loadTypes(t *testing.T, dirs []string) *typeLoader {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export,GoFiles,Dir"}
	for _, d := range dirs {
		args = append(args, "./"+d)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	l := &typeLoader{fset: token.NewFileSet(), files: map[string][]string{}}
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if dir, ok := strings.CutPrefix(p.ImportPath, modulePath+"/"); ok {
			for _, f := range p.GoFiles {
				l.files[dir] = append(l.files[dir], filepath.Join(p.Dir, f))
			}
		}
	}
	l.imp = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return l
}

func (l *typeLoader) check(t *testing.T, dir string) (*types.Package, []*ast.File, *types.Info) {
	t.Helper()
	var files []*ast.File
	for _, name := range l.files[dir] {
		f, err := parser.ParseFile(l.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatalf("%s has no Go files", dir)
	}
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	pkg, err := (&types.Config{Importer: l.imp}).Check(modulePath+"/"+dir, l.fset, files, info)
	if err != nil {
		t.Fatal(err)
	}
	return pkg, files, info
}

// ownedField is a field of a named struct.
type ownedField struct {
	of   *types.TypeName
	name string
}

func (f ownedField) String() string { return f.of.Name() + "." + f.name }

// writersOf returns how many fields the structs of a package have, and for each that is written the types whose methods do.
func writersOf(pkg *types.Package, files []*ast.File, info *types.Info) (fields int, writers map[ownedField]map[*types.TypeName]bool) {
	owners := map[*types.Var]ownedField{}
	for _, name := range pkg.Scope().Names() {
		tn, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if s, ok := tn.Type().Underlying().(*types.Struct); ok {
			for i := range s.NumFields() {
				owners[s.Field(i)] = ownedField{tn, s.Field(i).Name()}
			}
		}
	}
	writers = map[ownedField]map[*types.TypeName]bool{}
	for _, file := range files {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Body == nil {
				continue
			}
			writer := receiverOf(info, fn)
			if writer == nil {
				continue
			}
			writes(fn.Body, func(e ast.Expr) {
				sel, ok := info.Selections[selectorOf(e)]
				if !ok || sel.Kind() != types.FieldVal {
					return
				}
				f, ok := owners[sel.Obj().(*types.Var)]
				if !ok {
					return
				}
				if writers[f] == nil {
					writers[f] = map[*types.TypeName]bool{}
				}
				writers[f][writer] = true
			})
		}
	}
	return len(owners), writers
}

func receiverOf(info *types.Info, fn *ast.FuncDecl) *types.TypeName {
	obj, ok := info.Defs[fn.Name].(*types.Func)
	if !ok {
		return nil
	}
	t := obj.Signature().Recv().Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj()
	}
	return nil
}

// writes calls visit for each expression that a body assigns to.
func writes(body ast.Node, visit func(ast.Expr)) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				visit(e)
			}
		case *ast.IncDecStmt:
			visit(n.X)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				visit(n.Key)
				visit(n.Value)
			}
		}
		return true
	})
}

// selectorOf returns the selector of a field that an assignment to e changes: an element of a field's array or map too.
func selectorOf(e ast.Expr) *ast.SelectorExpr {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// related reports whether one of the types is a whole of which all others are parts.
func related(ws map[*types.TypeName]bool) bool {
	if len(ws) < 2 {
		return true
	}
	for whole := range ws {
		all := true
		for part := range ws {
			all = all && (part == whole || hasPart(whole.Type(), part.Type(), 0))
		}
		if all {
			return true
		}
	}
	return false
}

// hasPart reports whether a struct has another as a field, by value, or as an element or a field of one of its fields.
func hasPart(whole, part types.Type, depth int) bool {
	s, ok := whole.Underlying().(*types.Struct)
	if !ok || depth > 4 {
		return false
	}
	for i := range s.NumFields() {
		t := s.Field(i).Type()
		switch a := t.Underlying().(type) {
		case *types.Array:
			t = a.Elem()
		case *types.Slice:
			t = a.Elem()
		}
		if p, ok := t.(*types.Pointer); ok && s.Field(i).Embedded() {
			t = p.Elem()
		}
		if types.Identical(t, part) || hasPart(t, part, depth+1) {
			return true
		}
	}
	return false
}

func typeNames(ws map[*types.TypeName]bool) string {
	var names []string
	for w := range ws {
		names = append(names, w.Name())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
