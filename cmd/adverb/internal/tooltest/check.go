package tooltest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// DiffLines fails the test at the first line in which got is not want.
func DiffLines(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			t.Fatalf("line %d is missing: got nothing, want %q", i+1, w[i])
		case i >= len(w):
			t.Fatalf("line %d is too much: got %q, want nothing", i+1, g[i])
		case g[i] != w[i]:
			t.Fatalf("line %d: got %q, want %q", i+1, g[i], w[i])
		}
	}
}

// CheckLines compares a run with the lines that it should print, in the order of a terminal.
func CheckLines(t *testing.T, r Result, code int, want string) {
	t.Helper()
	if got := r.Stdout + r.Stderr; r.Code != code || got != want {
		t.Errorf("got status %d, want %d; got stdout and stderr:\n%swant:\n%s", r.Code, code, got, want)
	}
}

// Transcript returns a file of testdata: the output of a C program.
func Transcript(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
