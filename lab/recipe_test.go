package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTreePath(t *testing.T) {
	for name, want := range map[string]string{
		"./":                           "",
		"./bin/bash":                   "usr/bin/bash",
		"./usr/bin/rping":              "usr/bin/rping",
		"./lib64/ld-linux-x86-64.so.2": "usr/lib64/ld-linux-x86-64.so.2",
		"./sbin/":                      "usr/sbin",
		"./usr/share/doc/bash/README":  "",
		"./usr/share/docile":           "usr/share/docile",
		"../../etc/passwd":             "etc/passwd",
		"./lib/modules/6.1.0/kernel/crypto/crc32_generic.ko":       "usr/lib/modules/6.1.0/kernel/crypto/crc32_generic.ko",
		"./usr/lib/modules/6.1.0/kernel/drivers/gpu/drm/drm.ko":    "",
		"./usr/lib/modules/6.1.0/kernel/drivers/infiniband/core/x": "usr/lib/modules/6.1.0/kernel/drivers/infiniband/core/x",
		"./lib/modules/6.1.0/modules.order":                        "",
		"./lib/modules/6.1.0/modules.builtin":                      "usr/lib/modules/6.1.0/modules.builtin",
		"./boot/vmlinuz-6.1.0":                                     "boot/vmlinuz-6.1.0",
		"./boot/System.map-6.1.0":                                  "",
	} {
		if got := treePath(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	graph := map[string][]string{"rxe": {"uverbs", "tunnel"}, "uverbs": {"core"}, "ucm": {"core", "uverbs"}, "core": nil, "tunnel": nil}
	depends := func(name string) ([]string, error) {
		before, ok := graph[name]
		if !ok {
			return nil, errors.New(name + ": no such module")
		}
		return before, nil
	}
	got, err := loadOrder([]string{"ucm", "rxe"}, depends)
	if want := []string{"core", "uverbs", "ucm", "tunnel", "rxe"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	graph["tunnel"] = []string{"siw"}
	if _, err := loadOrder([]string{"rxe"}, depends); err == nil || !strings.Contains(err.Error(), "rxe needs tunnel needs siw: no such module") {
		t.Errorf("got %v, want an error that says who needs the module", err)
	}
}

func TestKernelPayload(t *testing.T) {
	stream := "\xfd7zXZ\x00stream"
	bz := make([]byte, 3*512, 3*512+64)
	bz[0x1f1] = 1 // sectors of setup, beside the first
	copy(bz[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(bz[0x248:], 512) // counted from the end of setup
	binary.LittleEndian.PutUint32(bz[0x24c:], uint32(len(stream)+4))
	bz = append(bz, stream+"size"...)
	if got, program, err := kernelPayload(bz); err != nil || string(got) != stream || program != "xz" {
		t.Errorf("got %q for %s, %v, want %q for xz", got, program, err, stream)
	}
	zstd := bytes.ReplaceAll(bz, []byte("\xfd7zXZ\x00"), []byte("\x28\xb5\x2f\xfd\x04\x88"))
	if got, program, err := kernelPayload(zstd); err != nil || program != "zstd" {
		t.Errorf("got %q for %s, %v, want a stream for zstd", got, program, err)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "no magic": make([]byte, 1024), "cut short": bz[:len(bz)-1], "another compression": bytes.ReplaceAll(bz, []byte("7zXZ"), []byte("gzip")),
	} {
		if got, _, err := kernelPayload(bad); err == nil {
			t.Errorf("%s: got %q and no error, want an error", name, got)
		}
	}
}

func TestCpio(t *testing.T) {
	var a cpioArchive
	a.dir("bin")
	a.file("init", []byte("#!/bin/sh"))
	b := a.bytes()
	if len(b)%4 != 0 || !bytes.Contains(b, []byte("init\x00\x00#!/bin/sh\x00\x00\x00070701")) || !bytes.Contains(b, []byte("TRAILER!!!")) {
		t.Errorf("got %q, want a file init, padded to 4 bytes, and a trailer", b)
	}
	if !bytes.HasPrefix(b, []byte("0707010000000100" /* inode 1 */ +"0041ED")) {
		t.Errorf("the archive begins with %q, want a directory with inode 1", b[:40])
	}
}

// A fault that is not ours ends a test without failing it, and is remembered for the report.
func TestNotShown(t *testing.T) {
	before := len(results.notShown)
	defer func() { results.notShown = results.notShown[:before] }()
	passed := t.Run("foreign", func(t *testing.T) {
		notShown(t, errors.New("a kernel is broken"))
		t.Error("the test goes on, want its end")
	})
	if !passed {
		t.Error("the test has failed, want it skipped")
	}
	others := false
	passed = t.Run("cleanup", func(t *testing.T) {
		t.Cleanup(func() { others = true })
		t.Cleanup(func() { notShown(t, errors.New("its packets are wrong")) })
	})
	if !passed || !others {
		t.Errorf("in a cleanup: the test has passed %v, and its other cleanup has run %v; want both", passed, others)
	}
	want := []string{"TestNotShown/foreign: a kernel is broken", "TestNotShown/cleanup: its packets are wrong"}
	if got := results.notShown[before:]; !slices.Equal(got, want) {
		t.Errorf("for the report: got %q, want %q", got, want)
	}
	var report bytes.Buffer
	results.report(&report)
	for _, what := range want {
		if line := "lab: NOT SHOWN, by a fault that is not ours: " + what + "\n"; !strings.Contains(report.String(), line) {
			t.Errorf("the report is %q, want %q in it", &report, line)
		}
	}
}

// TestNotShownIsForeign: a scenario that has an end of ours fails where it cannot run. Only what two foreign programs do
// with each other may be left unshown.
func TestNotShownIsForeign(t *testing.T) {
	foreign := map[string]bool{
		"TestSiw":       true, // rping between two guests
		"TestTwoGuests": true, // ibv_rc_pingpong between two guests, and pyverbs in one
		"checkCapture":  true, // of a scenario that is foreign
		"TestNotShown":  true,
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("got the files %q, %v", files, err)
	}
	called := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "notShown" {
						called[f.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	if !maps.Equal(called, foreign) {
		t.Errorf("notShown is called by %v, want %v: what has an end of ours fails", called, foreign)
	}
}

func TestResults(t *testing.T) {
	var r resultTable
	row := resultRow{program: "rping", server: "kernel", ip: "IPv4", mtu: 1500, verdict: "ok"}
	r.add("CM", row, "-V")
	r.add("CM", row, "-v")
	row.verdict = "left out: why"
	r.add("CM", row, "-x")
	text, err := replaceResults([]byte("head\n"+resultsBegin+"old\n"+resultsEnd+"foot\n"), r.markdown())
	want := "| rping | kernel | IPv4 | 1500 | -V, -v | ok |\n| rping | kernel | IPv4 | 1500 | -x | left out: why |\n"
	if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "old") ||
		!strings.HasPrefix(string(text), "head\n") || !strings.HasSuffix(string(text), "foot\n") {
		t.Errorf("got %v,\n%s\nwant the head, the foot, and between them\n%s", err, text, want)
	}
	if _, err := replaceResults([]byte("no marks"), ""); err == nil {
		t.Error("a file without marks: got no error, want one")
	}
	if got, want := differences("1\n2\n3\n", "3\n4\n1\n1\n"), []string{"+ 1", "- 2", "+ 4"}; !slices.Equal(got, want) {
		t.Errorf("differences: got %q, want %q", got, want)
	}
	if got := differences("1\n2\n", "2\n1\n"); got != nil {
		t.Errorf("differences of order alone: got %q, want none", got)
	}
	r.notShown = []string{"TestX: a kernel is broken"}
	var report bytes.Buffer
	r.report(&report)
	if !strings.Contains(report.String(), r.notShown[0]) {
		t.Errorf("the report is %q, want %q in it", &report, r.notShown[0])
	}
	if err := r.finish(filepath.Join(t.TempDir(), "README.md"), true, true); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an update from a run that has not shown all: got %v, want a refusal", err)
	}
}

// TestWithoutFamily: a run without a family is compared with the rest of the page.
func TestWithoutFamily(t *testing.T) {
	const head, tail = "text\n", "\n### B\n\n| b |\n\n" + resultsEnd
	for _, text := range []string{head + "\n### A\n\n| a |\n" + tail, head + tail} {
		if got := withoutFamily(text, "A"); got != head+tail {
			t.Errorf("%q without A: got %q, want %q", text, got, head+tail)
		}
	}
	last := head + "\n### A\n\n| a |\n\n" + resultsEnd
	if got, want := withoutFamily(last, "A"), head+"\n"+resultsEnd; got != want {
		t.Errorf("%q without A: got %q, want %q", last, got, want)
	}
}
