package adverb_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFileLines = 700     // of a Go file; past some 500 it usually tells two stories
	maxTextSize  = 1 << 20 // bytes; larger files are data
)

// forbiddenStrings tie the repository to one machine or one network: a clone elsewhere must not
// need them. They are put together here so that this file passes its own check.
var forbiddenStrings = []string{
	"/" + "work/", "/" + "farm/", "/" + "root/", "/" + "tmp/", "." + "library/",
	"proxy" + ".golang.org", "sum" + ".golang.org", "deb" + ".debian.org",
	"pypi" + ".org", "crates" + ".io", "npmjs" + ".org",
}

// sourceFiles calls visit for each file of the module but captures, corpora, hidden
// directories and what make release and make site write, by its slash-separated path.
func sourceFiles(t *testing.T, visit func(name string, d fs.DirEntry)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			hidden := name != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci"
			if hidden || d.Name() == "testdata" || name == "dist" {
				return fs.SkipDir
			}
		case d.Type().IsRegular() && name != ".git": // a file where the checkout is a worktree
			visit(filepath.ToSlash(name), d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkText returns what is wrong with the text of any file.
func checkText(name string, src []byte) (faults []string) {
	for _, bad := range forbiddenStrings {
		if i := bytes.Index(src, []byte(bad)); i >= 0 {
			faults = append(faults, fmt.Sprintf("%s:%d: %q belongs to one machine or network", name, lines(src[:i])+1, bad))
		}
	}
	if n := lines(src); path.Ext(name) == ".go" && n > maxFileLines {
		faults = append(faults, fmt.Sprintf("%s: %d lines, limit %d: split it where its second story begins", name, n, maxFileLines))
	}
	return faults
}

func lines(src []byte) int { return bytes.Count(src, []byte("\n")) }

func TestHygiene(t *testing.T) {
	files := 0
	sourceFiles(t, func(name string, d fs.DirEntry) {
		if info, err := d.Info(); err != nil || info.Size() > maxTextSize {
			return // gone since (an editor's file), or data
		}
		src, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Error(err)
			return
		}
		if bytes.IndexByte(src, 0) >= 0 {
			return // not a text
		}
		files++
		for _, fault := range checkText(name, src) {
			t.Error(fault)
		}
	})
	if files == 0 {
		t.Error("no file was found: the walk over the module is broken")
	}
}

func TestCheckText(t *testing.T) {
	long := strings.Repeat("\n", maxFileLines+1)
	tests := []struct{ name, src, want string }{
		{"a.go", "package a\n", ""},
		{"a.go", strings.Repeat("\n", maxFileLines), ""},
		{"a.go", long, "701 lines"},
		{"go.sum", long, ""},
		{"README.md", "one\ntwo, see " + forbiddenStrings[0] + "x", "README.md:2:"},
		{".ci/run", "curl https://" + forbiddenStrings[len(forbiddenStrings)-1], "one machine or network"},
		{"README.md", "framework/ and workloads", ""},
	}
	for _, tt := range tests {
		checkOne(t, tt.name, checkText(tt.name, []byte(tt.src)), tt.want)
	}
}
