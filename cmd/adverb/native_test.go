package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLoader: the tool has no loader of libraries, which makes a program dynamic, but with the tag for cards.
func TestLoader(t *testing.T) {
	const loader = "github.com/ebitengine/purego"
	for tags, want := range map[string]bool{"": false, "adverb_native": true} {
		list := exec.Command("go", "list", "-deps", "-tags", tags, ".")
		list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%v: %v", list, err)
		}
		if got := slices.Contains(strings.Fields(string(out)), loader); got != want {
			t.Errorf("with -tags %q the tool has %s: %t, want %t", tags, loader, got, want)
		}
	}
}
