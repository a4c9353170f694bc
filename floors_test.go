package adverb_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/adverb-rdma/adverb"

// floors says on which floor each package lives. A package may import packages of lower floors
// only, so none of its own. A pattern that ends in /... covers what lies below the directory,
// and not the directory itself.
var floors = []struct {
	pattern string
	floor   int
}{
	{"cmd/adverb", 9},
	{"lab", 9},
	{"lab/agentd", 9},
	{"lab/programs", 9},
	{"tools/benchmarks", 9}, // a module of its own
	{"tools/site", 9},       // another
	{"lab/agent", 5},

	// The examples are a module of their own; what they share is below them.
	{"examples/internal/...", 8},
	{"examples/...", 9},

	// The tool: its families of commands, what programs of the connection manager share, what all
	// programs share, and the frame they run in.
	{"cmd/adverb/internal/devinfo", 8},
	{"cmd/adverb/internal/pingpong", 8},
	{"cmd/adverb/internal/rping", 8},
	{"cmd/adverb/internal/rdmademo", 8},
	{"cmd/adverb/internal/cmtools", 8},
	{"cmd/adverb/internal/cmtime", 8},
	{"cmd/adverb/internal/perftest", 8},
	{"cmd/adverb/internal/demo", 8},
	{"cmd/adverb/internal/streams", 8},
	{"cmd/adverb/internal/inspect", 8},
	{"cmd/adverb/internal/version", 8},
	{"cmd/adverb/internal/explain", 8},
	{"cmd/adverb/internal/diagnose", 8},
	{"cmd/adverb/internal/see", 8},
	{"cmd/adverb/internal/lab", 8},
	{"cmd/adverb/internal/heir", 8},
	{"cmd/adverb/internal/run", 8},
	{"cmd/adverb/internal/cm", 7},
	{"cmd/adverb/internal/device", 6},
	{"cmd/adverb/internal/exchange", 6},
	{"cmd/adverb/internal/rwdemo", 6},
	{"cmd/adverb/internal/tooltest", 6},
	{"internal/rivals", 6},
	{"cmd/adverb/internal/cli", 5},
	{"cmd/adverb/internal/clib", 5},
	{"cmd/adverb/internal/bench", 8},
	{"cmd/adverb/internal/bench/...", 7},

	{"provider/...", 5},
	{"rdmatest", 5},
	{"rdmatest/cmtest", 6},
	{"adverbprom", 5}, // a module of its own
	{"rdmamsg", 5},
	{"rdmaio", 5},
	{"rsocket", 5},
	{"internal/whole", 5},
	{"internal/stage", 5},
	{"internal/ladder", 5},
	{"internal/stage/wasm", 6},
	{"internal/mutants", 5},
	{"internal/publish", 5},
	{"internal/ucma", 5},
	{"verbs/verbstest", 5},

	{"internal/diagnose", 4},
	{"internal/hca", 4},
	{"internal/rnic", 4},
	{"internal/host", 4},
	{"rdmacm", 4},
	{"rdmapool", 4},

	{"internal/device", 3},
	{"internal/promtext", 3},
	{"internal/lanes", 3},
	{"internal/transport", 3},
	{"internal/connector", 3},
	{"internal/iwarp", 3},

	{"internal/cm", 2},
	{"internal/showpackets", 2},
	{"internal/handover", 2},
	{"internal/handover/handovertest", 2},
	{"internal/watch", 2},
	{"internal/queue", 2},
	{"internal/limits", 2},
	{"internal/ibnet", 2},

	{"internal/link/...", 1},
	{"internal/browsertest", 1},
	{"internal/capture", 1},
	{"internal/devlog", 1},
	{"internal/mem", 1},
	{"internal/mpa", 1},
	{"internal/meaning", 1},
	{"internal/peer", 1},
	{"internal/fabric", 1},
	{"internal/secure", 1},
	{"internal/settings", 1},
	{"internal/shm", 1},
	{"internal/uverbs", 1},
	{"internal/user", 1},
	{"internal/user/usertest", 1},

	{"verbs", 0},
	{"internal/wire", 0},
	{"internal/link", 0},
	{"internal/idtable", 0},
	{"internal/crowd", 0},
	{"internal/recovery", 0},
	{"internal/clock", 0},
	{"internal/release", 0},
	{"internal/journal", 0},
	{"internal/litmus", 0},
	{"internal/epoll", 0},
	{"internal/supervisor", 0},
	{"internal/tables", 0},
	{"internal/benchdata", 0},
	{"internal/theme", 0},
	{"internal/uapi", 0},
	{"internal/ibv", 0},
}

// sideways are the imports that stay on a floor, each with its reason.
var sideways = map[[2]string]string{
	{"internal/link/sim", "internal/link/fault"}: "the simulated network and the middleware roll the same dice",
}

// soleImporters are packages that few others may import, so that what they are stays behind it.
var soleImporters = map[string][]string{
	"internal/cm": {"internal/connector", "internal/stage"}, // rdmacm knows connections, and no protocol that makes them
}

// stdlibOnly packages are the contract and the formats: somebody who reads or copies them needs nothing else.
var stdlibOnly = []string{"verbs", "internal/wire", "internal/link", "internal/idtable", "internal/crowd", "internal/recovery", "internal/clock", "internal/release", "internal/litmus", "internal/tables", "internal/benchdata", "internal/theme", "internal/uapi"}

// pure packages run the same over a network and in a simulation that replays from a seed, so
// nothing in them may depend on the clock, the scheduler, the system or chance.
var pure = []string{"internal/transport", "internal/recovery", "internal/cm", "internal/mpa", "internal/iwarp", "internal/crowd", "internal/peer", "internal/fabric", "internal/uapi"}

// Of the standard library, pure packages may not import these, nor what lies below them…
var impureImports = []string{"net", "os", "sync", "syscall", "math/rand", "crypto/rand", "context", "log"}

// …except for these: addresses are values, and an atomic is no lock.
var pureImports = []string{"net/netip", "sync/atomic"}

// impureTime are the names of package time that pure packages may not use. Time is handed in.
var impureTime = []string{
	"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker",
}

// floorOf finds the floor of a package, given by its path below the module's.
func floorOf(pkg string) (floor int, ok bool) {
	for _, f := range floors {
		if covers(f.pattern, pkg) {
			return f.floor, true
		}
	}
	return 0, false
}

// covers reports whether a pattern of the table stands for a package.
func covers(pattern, pkg string) bool {
	dir, below := strings.CutSuffix(pattern, "...")
	return pkg == pattern || below && strings.HasPrefix(pkg, dir)
}

// checkImports returns what is wrong with the imports of pkg, which is a path below the module's;
// imports are whole import paths.
func checkImports(pkg string, imports []string) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, pkg+": "+fmt.Sprintf(format, args...))
	}
	floor, ok := floorOf(pkg)
	if !ok {
		fault("the package has no floor: add it to the table in floors_test.go")
		return faults
	}
	for _, imp := range imports {
		first, _, _ := strings.Cut(imp, "/")
		local, ours := strings.CutPrefix(imp, modulePath+"/")
		switch {
		case ours:
			below, ok := floorOf(local)
			switch {
			case !ok:
				fault("imports %s, which has no floor: add it to the table in floors_test.go", local)
			case soleImporters[local] != nil && !slices.Contains(soleImporters[local], pkg):
				fault("imports %s: only %s may", local, strings.Join(soleImporters[local], " and "))
			case sideways[[2]string{pkg, local}] != "":
			case below >= floor:
				fault("imports %s: imports point down, and floor %d does not lie below floor %d", local, below, floor)
			case slices.Contains(pure, pkg) && strings.HasPrefix(local, "internal/link/"):
				fault("imports %s: the package is pure, and that is a way to the network", local)
			}
		case imp == "C":
			fault("imports \"C\": the module builds without cgo")
		case strings.Contains(first, "."):
			if slices.Contains(stdlibOnly, pkg) || slices.Contains(pure, pkg) {
				fault("imports %s: only the standard library is allowed here", imp)
			}
		case slices.Contains(pure, pkg) && isImpure(imp):
			fault("imports %s: the package is pure, without lock, socket, file or chance", imp)
		}
	}
	return faults
}

func isImpure(imp string) bool {
	return !slices.Contains(pureImports, imp) && slices.ContainsFunc(impureImports, func(bad string) bool {
		return imp == bad || strings.HasPrefix(imp, bad+"/")
	})
}

// checkPure returns the places in a file of a pure package that use the clock or concurrency.
func checkPure(fset *token.FileSet, f *ast.File) (faults []string) {
	fault := func(n ast.Node, what string) {
		faults = append(faults, fmt.Sprintf("%v: %s in a pure package", fset.Position(n.Pos()), what))
	}
	timeName := importName(f, "time")
	if timeName == "." {
		fault(f.Name, "a dot import of time")
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			fault(n, "a go statement")
		case *ast.ChanType:
			fault(n, "a channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == timeName && slices.Contains(impureTime, n.Sel.Name) {
				fault(n, "time."+n.Sel.Name)
			}
		}
		return true
	})
	return faults
}

// importName returns the name by which f knows the standard library's package imp, or "".
func importName(f *ast.File, imp string) string {
	for _, spec := range f.Imports {
		if importPath(spec) != imp {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(imp)
	}
	return ""
}

func importPath(spec *ast.ImportSpec) string { return strings.Trim(spec.Path.Value, "\"`") }

// goFiles calls visit for each Go file of the module, whatever its build constraints: the go
// command would see those of one system only.
func goFiles(t *testing.T, visit func(name string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	parseFiles(t, 0, visit)
}

// goFilesWithComments is goFiles for those who look at comments too.
func goFilesWithComments(t *testing.T, visit func(name string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	parseFiles(t, parser.ParseComments, visit)
}

func parseFiles(t *testing.T, mode parser.Mode, visit func(name string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	sourceFiles(t, func(name string, d fs.DirEntry) {
		if path.Ext(name) != ".go" {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.FromSlash(name), nil, mode|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		visit(name, fset, f)
	})
}

func TestFloors(t *testing.T) {
	imports := make(map[string][]string) // by package
	goFiles(t, func(name string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		pkg := path.Dir(name)
		if _, seen := imports[pkg]; !seen {
			imports[pkg] = nil
		}
		for _, spec := range f.Imports {
			if imp := importPath(spec); !slices.Contains(imports[pkg], imp) {
				imports[pkg] = append(imports[pkg], imp)
			}
		}
		if slices.Contains(pure, pkg) {
			for _, fault := range checkPure(fset, f) {
				t.Error(fault)
			}
		}
	})
	if _, ok := imports["verbs"]; !ok {
		t.Fatalf("package verbs was not found: the walk over the module is broken")
	}
	for pkg, imps := range imports {
		for _, fault := range checkImports(pkg, imps) {
			t.Error(fault)
		}
	}
}

// writtenFloor is what a document says of a package, or of the packages of a pattern.
type writtenFloor struct {
	pattern string
	floor   int
}

// inBlock matches a line of the block in ARCHITECTURE.md: a floor, packages, and what they are. A line without a floor is
// of the floor above it. Packages may have their directory in front: "cmd/adverb/internal: cm, cli".
var inBlock = regexp.MustCompile(`^(\d)? +(?:(\S+): )?(\S+(?:, \S+)*)  `)

// floorsOfBlock reads the block of ARCHITECTURE.md.
func floorsOfBlock(text string) (list []writtenFloor) {
	_, text, _ = strings.Cut(text, "## Floors\n")
	_, text, _ = strings.Cut(text, "```\n")
	text, _, _ = strings.Cut(text, "```\n")
	floor := -1
	for line := range strings.Lines(text) {
		m := inBlock.FindStringSubmatch(line)
		if m == nil {
			continue // of words alone
		}
		if m[1] != "" {
			floor = int(m[1][0] - '0')
		}
		for name := range strings.SplitSeq(m[3], ", ") {
			list = append(list, writtenFloor{path.Join(m[2], name), floor})
		}
	}
	return list
}

// checkWritten returns where a document and the table of floors differ. packages are all that there are.
func checkWritten(document string, written []writtenFloor, packages []string) (faults []string) {
	for _, w := range written {
		if !slices.ContainsFunc(packages, func(pkg string) bool { return covers(w.pattern, pkg) }) {
			faults = append(faults, fmt.Sprintf("%s lists %s, and there is no such package", document, w.pattern))
		}
	}
	for _, pkg := range packages {
		floor, _ := floorOf(pkg)
		var found writtenFloor // the longest pattern
		for _, w := range written {
			if covers(w.pattern, pkg) && len(w.pattern) > len(found.pattern) {
				found = w
			}
		}
		switch {
		case found.pattern == "":
			faults = append(faults, fmt.Sprintf("%s does not list %s, of floor %d: add it", document, pkg, floor))
		case floor != found.floor:
			faults = append(faults, fmt.Sprintf("%s has %s on floor %d, and it is on %d: correct it", document, pkg, found.floor, floor))
		}
	}
	return faults
}

// TestFloorsWritten: ARCHITECTURE.md lists each package, on its floor.
func TestFloorsWritten(t *testing.T) {
	var packages []string
	sourceFiles(t, func(name string, _ fs.DirEntry) {
		pkg := path.Dir(name)
		if path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	})
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range checkWritten("ARCHITECTURE.md", floorsOfBlock(string(text)), packages) {
		t.Error(fault)
	}
}

func TestCheckWritten(t *testing.T) {
	packages := []string{"verbs", "internal/link", "internal/link/sim", "rdmatest/cmtest"}
	tests := []struct {
		block string
		want  string // part of the fault, or "" for none
	}{
		{"6   rdmatest/...     tests\n1   internal/link/sim  a network\n0   verbs, internal/link  the rest\n", ""},
		{"6   rdmatest: cmtest  tests\n1   internal/link/...  a network\n0   verbs, internal/link  the rest\n", ""},
		{"6   rdmatest/cmtest  tests\n1   internal: link/sim  a network\n0   verbs  the contract\n    internal/link  the rest\n", ""},
		{"6   rdmatest/cmtest  tests\n1   internal/link/...  a network\n0   verbs  the rest\n    internal/link, internal/mem  and\n", "no such package"},
		{"6   rdmatest/cmtest  tests\n1   internal/link/...  a network\n0   verbs  the rest\n    internal: link, mem  and\n", "no such package"},
		{"6   rdmatest/cmtest  tests\n1   internal/link/...  a network\n0   internal/link  the rest\n", "does not list verbs"},
		{"6   rdmatest/cmtest  tests\n1   internal/link/..., verbs  a network\n0   internal/link  the rest\n", "has verbs on floor 1, and it is on 0"},
		{"6   rdmatest/cmtest  tests\n1   internal/link/...  a network\n    verbs  above\n0   internal/link  the rest\n", "has verbs on floor 1, and it is on 0"},
		{"5   rdmatest/...  tests\n1   internal/link/...  a network\n0   verbs, internal/link  the rest\n", "has rdmatest/cmtest on floor 5, and it is on 6"},
	}
	for _, tt := range tests {
		checkOne(t, tt.block, checkWritten("ARCHITECTURE.md", floorsOfBlock("## Floors\n\n```\n"+tt.block+"```\n"), packages), tt.want)
	}
}

func TestCheckImports(t *testing.T) {
	const m = modulePath + "/"
	tests := []struct {
		pkg  string
		imp  string
		want string // part of the fault, or "" for none
	}{
		{"verbs", "context", ""},
		{"verbs", "golang.org/x/sys/unix", "only the standard library"},
		{"verbs", m + "internal/wire", "floor 0 does not lie below floor 0"},
		{"verbs", m + "internal/hca", "floor 4 does not lie below floor 0"},
		{"verbs/verbstest", m + "verbs", ""},
		{"verbs/verbstest", m + "provider/soft", "floor 5 does not lie below floor 5"},
		{"internal/link", m + "internal/link/udp", "floor 1 does not lie below floor 0"},
		{"internal/link/udp", m + "internal/link", ""},
		{"internal/link/udp", "golang.org/x/sys/unix", ""},
		{"internal/link/fault", m + "internal/link/sim", "floor 1 does not lie below floor 1"},
		{"internal/link/sim", m + "internal/link/fault", ""},
		{"internal/link/udp", m + "internal/link/fault", "floor 1 does not lie below floor 1"},
		{"internal/link/udp/deep", m + "internal/link", ""},
		{"internal/transport", m + "verbs", ""},
		{"internal/transport", m + "internal/wire", ""},
		{"internal/transport", m + "internal/link/sim", "a way to the network"},
		{"internal/transport", m + "internal/connector", "floor 3 does not lie below floor 3"},
		{"internal/connector", m + "internal/cm", ""},
		{"rdmacm", m + "internal/connector", ""},
		{"rdmacm", m + "internal/cm", "only internal/connector and internal/stage may"},
		{"internal/transport", "net/netip", ""},
		{"internal/transport", "time", ""},
		{"internal/transport", "sync/atomic", ""},
		{"internal/transport", "sync", "pure"},
		{"internal/transport", "net", "pure"},
		{"internal/transport", "net/http", "pure"},
		{"internal/cm", "os", "pure"},
		{"internal/cm", "math/rand/v2", "pure"},
		{"internal/cm", "golang.org/x/net/ipv4", "only the standard library"},
		{"internal/hca", "sync", ""},
		{"internal/hca", "C", "without cgo"},
		{"internal/hca", m + "cmd/adverb", "floor 9 does not lie below floor 4"},
		{"internal/hca", m + "nosuch", "add it to the table"},
		{"provider/soft", m + "internal/hca", ""},
		{"provider/soft", m + "rdmatest", "floor 5 does not lie below floor 5"},
		{"cmd/adverb", m + "provider/soft", ""},
		{"cmd/adverb/internal/rping", m + "cmd/adverb/internal/pingpong", "floor 8 does not lie below floor 8"},
		{"nosuch", "fmt", "add it to the table"},
		{"verbsother", "fmt", "add it to the table"},
		{".", "fmt", "add it to the table"},
	}
	for _, tt := range tests {
		checkOne(t, tt.pkg+" imports "+tt.imp, checkImports(tt.pkg, []string{tt.imp}), tt.want)
	}
	if got := checkImports("verbs", []string{"golang.org/x/sys/unix", m + "rdmacm"}); len(got) != 2 {
		t.Errorf("two bad imports: got %d faults %q, want 2", len(got), got)
	}
}

func TestCheckPure(t *testing.T) {
	tests := []struct {
		src  string
		want string
	}{
		{`import "time"; var d = 3 * time.Second; func f(now time.Time) time.Time { return now.Add(d) }`, ""},
		{`import "time"; func f() time.Time { return time.Now() }`, "time.Now"},
		{`import "time"; var clock = time.Now`, "time.Now"},
		{`import "time"; func f() { time.Sleep(1) }`, "time.Sleep"},
		{`import clock "time"; func f() { <-clock.After(1) }`, "time.After"},
		{`import . "time"; func f() { Sleep(1) }`, "dot import"},
		{`type s struct{}; func (s) Now() {}; func f() { var time s; time.Now() }`, ""},
		{`func f() { go f() }`, "go statement"},
		{`var c chan int`, "channel"},
		{`func f() { _ = make(chan struct{}) }`, "channel"},
	}
	for _, tt := range tests {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package p; "+tt.src, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
			continue
		}
		checkOne(t, tt.src, checkPure(fset, f), tt.want)
	}
}

// checkOne fails the test unless got is one fault with want in it, or none where want is empty.
func checkOne(t *testing.T, input string, got []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("%s: got %q, want no fault", input, got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0], want)):
		t.Errorf("%s: got %q, want one fault with %q", input, got, want)
	}
}
