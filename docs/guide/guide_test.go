// Package guide_test checks the guides: every Go block compiles and vets, lines are short, and links
// lead somewhere.
package guide_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// imports are the packages that blocks may use without importing them.
var imports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "io": "io", "log": "log", "slog": "log/slog", "time": "time", "os": "os",
	"testing": "testing", "rand": "crypto/rand", "binary": "encoding/binary", "crc32": "hash/crc32", "netip": "net/netip",
	"verbs": ours + "verbs", "rdmacm": ours + "rdmacm", "rdmamsg": ours + "rdmamsg",
	"rdmaio": ours + "rdmaio", "rdmapool": ours + "rdmapool", "rdmatest": ours + "rdmatest",
}

const ours = "github.com/adverb-rdma/adverb/"

// given are the parameters of the function that a block becomes the body of: what the text around it
// speaks of.
const given = `ctx context.Context, t *testing.T, dev *verbs.Device, pd *verbs.PD, cq *verbs.CQ, qp *verbs.QP,
	mr *verbs.MR, n int, remote verbs.RemoteAddr, addr netip.AddrPort, conn *rdmacm.Conn, l *rdmacm.Listener,
	ch *rdmamsg.Channel, pool *rdmapool.Pool, data []byte, use func(any),
	psk []byte, tell func(verbs.SecurityKey) verbs.SecurityKey`

// block is a Go block of a guide.
type block struct {
	where string
	text  string
}

var fence = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

func blocks(name string, text []byte) (bs []block) {
	for _, m := range fence.FindAllSubmatchIndex(text, -1) {
		line := bytes.Count(text[:m[2]], []byte("\n")) + 1
		bs = append(bs, block{fmt.Sprintf("%s:%d", name, line), string(text[m[2]:m[3]])})
	}
	return bs
}

var qualifier = regexp.MustCompile(`\b([a-z][a-z0-9]*)\.[A-Z]`)

// terminates matches a body whose last statement is a return or an endless loop.
var terminates = regexp.MustCompile(`(?s)\n(return[^\n]*|for \{\n(\t[^\n]*\n)*\})\n$`)

// program makes a compilable file of a block. A block that begins with a declaration stands by
// itself; others become the body of a function that returns an error.
func (b block) program() string {
	if strings.HasPrefix(b.text, "package ") {
		return b.text
	}
	body := b.text
	if !strings.HasPrefix(body, "func ") && !strings.HasPrefix(body, "type ") {
		body = "func _(" + given + ") error {\n" + body
		if !terminates.MatchString(body) {
			body += "return nil\n"
		}
		body += "}\n"
	}
	var used []string
	for _, m := range qualifier.FindAllStringSubmatch(body, -1) {
		if imp := imports[m[1]]; imp != "" && !slices.Contains(used, imp) {
			used = append(used, imp)
		}
	}
	s := "package p\n\n"
	for _, imp := range used {
		s += fmt.Sprintf("import %q\n", imp)
	}
	return s + "\n" + body
}

func guides(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil || len(names) < 5 {
		t.Fatalf("found %d guides: %v, want 5 at least", len(names), err)
	}
	return append(names, "../../examples/README.md")
}

// module makes a module that has adverb and what the examples need, and returns its directory.
func module(t *testing.T) (dir string, write func(name, text string)) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	write = func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mod, err := os.ReadFile("../../examples/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("../../examples/go.sum")
	if err != nil {
		t.Fatal(err)
	}
	write("go.mod", strings.NewReplacer("=> ../", "=> "+root, "adverb/examples", "adverb/guide").Replace(string(mod)))
	write("go.sum", string(sum))
	return dir, write
}

// TestBlocksCompile vets every Go block as a program of another module would be.
func TestBlocksCompile(t *testing.T) {
	dir, write := module(t)
	var where []string // by the number of the package
	for _, name := range guides(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks(name, text) {
			write(fmt.Sprintf("b%d/b.go", len(where)), b.program())
			where = append(where, b.where)
		}
	}
	if len(where) < 10 {
		t.Fatalf("only %d blocks were found, want 10 at least", len(where))
	}
	cmd := exec.Command("go", "vet", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		named := regexp.MustCompile(`\bb(\d+)[/\\]b\.go`).ReplaceAllStringFunc(string(out), func(s string) string {
			var i int
			fmt.Sscanf(s, "b%d", &i)
			return "[block at " + where[i] + "] " + s
		})
		t.Errorf("%v:\n%s", err, named)
	}
}

// TestProgram checks that the check can fail: a block with a mistake makes a program with it.
func TestProgram(t *testing.T) {
	b := blocks("x.md", []byte("text\n\n```go\nif err := ch.Flush(ctx); err != nil {\n\treturn err\n}\n```\n"))
	if len(b) != 1 || b[0].where != "x.md:4" {
		t.Fatalf("found %v, want one block, at x.md:4", b)
	}
	p := b[0].program()
	for _, want := range []string{"package p", `import "` + ours + `rdmamsg"`, "func _(", "ch.Flush(ctx)", "return nil\n}"} {
		if !strings.Contains(p, want) {
			t.Errorf("the program lacks %q:\n%s", want, p)
		}
	}
}

// exported returns the names that a package has: "Open", "QP", "QP.PostSend", "WC.ID".
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, want files", dir, err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
					continue
				}
				recv := d.Recv.List[0].Type
				if p, ok := recv.(*ast.StarExpr); ok {
					recv = p.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					names[id.Name+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addSpec(names, spec)
				}
			}
		}
	}
	return names
}

func addSpec(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			names[n.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, n := range f.Names {
					names[spec.Name.Name+"."+n.Name] = true
				}
			}
		}
	}
}

var codeName = regexp.MustCompile("`((?:[a-z]+\\.)?[A-Z][A-Za-z]*(?:\\.[A-Z][A-Za-z0-9]*)?)`")

// TestNames checks that what the guides name as Type.Member or package.Name exists.
func TestNames(t *testing.T) {
	packages := make(map[string]map[string]bool)
	all := make(map[string]bool)
	for _, p := range []string{"verbs", "rdmacm", "rdmamsg", "rdmapool", "rdmatest", "rsocket"} {
		packages[p] = exported(t, "../../"+p)
		for n := range packages[p] {
			all[n] = true
		}
	}
	if !all["QP.PostSend"] || !all["WC.ID"] || all["QP.NoSuch"] {
		t.Fatal("the names of the packages were not found")
	}
	checked := 0
	for _, name := range guides(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range codeName.FindAllStringSubmatch(string(text), -1) {
			pkg, rest, qualified := strings.Cut(m[1], ".")
			known := true
			switch {
			case qualified && packages[pkg] != nil:
				known = packages[pkg][rest]
			case qualified && unicode.IsUpper(rune(pkg[0])): // otherwise a package of the standard library
				known = all[m[1]]
			default:
				continue // fields and methods stand alone, after the type was named
			}
			checked++
			// A field of a field, such as Cap.MaxSendWR, is named by the field's name.
			if !known && !fields[pkg] {
				t.Errorf("%s names %s, which there is not", name, m[1])
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names were found, want 100 at least", checked)
	}
}

// fields are fields by which the guides name the fields of their types.
var fields = map[string]bool{"Cap": true, "AH": true, "Remote": true}

const width = 100

var link = regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)

// TestText checks the width of lines, tables and blocks aside, and the links between files.
func TestText(t *testing.T) {
	for _, name := range guides(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		inBlock := false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				inBlock = !inBlock
			}
			if n := utf8.RuneCountInString(line); n > width && !inBlock && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d: %d columns, at most %d", name, i+1, n, width)
			}
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if inBlock || m[1] == "" || strings.Contains(m[1], "://") {
					continue
				}
				if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
					t.Errorf("%s:%d: the link leads nowhere: %v", name, i+1, err)
				}
			}
		}
	}
}
