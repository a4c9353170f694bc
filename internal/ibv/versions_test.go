//go:build linux && amd64

package ibv

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// The sizes and offsets of the structures in the oldest rdma-core, in that of Debian 12 and in the newest are kept in testdata, one a line, so
// that any change here is compared with all of them, without their headers. They are those of amd64: other 64-bit processors
// differ by the size of a mutex alone. A version is added with its headers (libibverbs/verbs.h, verbs_api.h and
// kernel-headers/rdma/ib_user_ioctl_verbs.h, below DIR/infiniband) by
//
//	CPATH=DIR go test ./internal/ibv -run LayoutsOfVersions -args -rdma-core 65

var writeVersion = flag.String("rdma-core", "", "the version of rdma-core whose headers CPATH has: writes its layouts")

// place is a line of the files: a structure's size, a field's offset, or how far before the context one of verbs_context lies.
type place struct {
	name   string
	since  int    // the first version that has it, or 0
	prefix bool   // C's may be larger, but for its padding
	in     uint64 // Go
	c      string // the same as an expression of C
}

func places(t *testing.T) (all []place) {
	t.Helper()
	for _, l := range layouts {
		typ := reflect.TypeOf(l.v)
		all = append(all, place{l.c, 0, l.prefix, uint64(typ.Size()), "sizeof(struct " + l.c + ")"})
		for f := range strings.FieldsSeq(l.fields) {
			g, c, _ := strings.Cut(f, "=")
			sf, ok := typ.FieldByName(g)
			if !ok {
				t.Fatalf("%s has no field %s", l.c, g)
			}
			all = append(all, place{l.c + "." + c, 0, false, uint64(sf.Offset), "offsetof(struct " + l.c + ", " + c + ")"})
		}
	}
	for _, f := range newer {
		all = append(all, place{f.c + "." + f.field, f.since, false, uint64(f.in), "offsetof(struct " + f.c + ", " + f.field + ")"})
	}
	for _, f := range distances {
		all = append(all, place{"verbs_context." + f.field, 0, false, f.in,
			"offsetof(struct verbs_context, context) - offsetof(struct verbs_context, " + f.field + ")"})
	}
	return all
}

func versionFile(version string) string {
	return filepath.Join("testdata", "rdma-core-"+version+".txt")
}

// TestLayoutsOfVersions compares the structures with those of each version that testdata has.
func TestLayoutsOfVersions(t *testing.T) {
	all := places(t)
	if *writeVersion != "" {
		writeLayouts(t, of(t, all, *writeVersion), versionFile(*writeVersion))
	}
	files, err := filepath.Glob(versionFile("*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("the layouts of %d versions: %v", len(files), err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		has := map[string]uint64{}
		for s := bufio.NewScanner(f); s.Scan(); {
			var name string
			var n uint64
			if _, err := fmt.Sscan(s.Text(), &name, &n); err != nil {
				t.Fatalf("%s: %q: %v", file, s.Text(), err)
			}
			has[name] = n
		}
		before, after, _ := strings.Cut(versionFile("*"), "*")
		for _, p := range of(t, all, strings.TrimSuffix(strings.TrimPrefix(file, before), after)) {
			switch n, ok := has[p.name]; {
			case !ok:
				t.Errorf("%s lacks %s: write it anew", file, p.name)
			case p.prefix && n+8 < p.in, !p.prefix && n != p.in:
				t.Errorf("%s: %s is %d, and %d in Go", file, p.name, n, p.in)
			}
		}
	}
}

// of returns the places that a version of rdma-core has.
func of(t *testing.T, all []place, version string) (has []place) {
	t.Helper()
	n, err := strconv.Atoi(version)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.since <= n {
			has = append(has, p)
		}
	}
	return has
}

// writeLayouts has a program in C print what the headers say.
func writeLayouts(t *testing.T, all []place, file string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n")
	for _, p := range all {
		fmt.Fprintf(&b, "\tprintf(\"%s %%zu\\n\", (size_t)(%s));\n", p.name, p.c)
	}
	b.WriteString("}\n")
	source, program := filepath.Join(t.TempDir(), "layouts.c"), filepath.Join(t.TempDir(), "layouts")
	if err := os.WriteFile(source, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(compiler(t), "-w", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out, 0o644); err != nil {
		t.Fatal(err)
	}
}
