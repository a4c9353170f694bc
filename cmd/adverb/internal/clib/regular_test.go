package clib

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenRegular: a device and a directory are refused with their kind, and a file is opened.
func TestOpenRegular(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenRegular(file)
	if err != nil {
		t.Fatalf("a file: %v, want no error", err)
	}
	f.Close()
	for name, mode := range map[string]os.FileMode{"/dev/zero": os.ModeDevice, filepath.Dir(file): os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode()&mode == 0 {
			t.Logf("no %s here: %v", name, err)
			continue
		}
		if f, err := OpenRegular(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, %v; want an error that names it", name, f, err)
		}
	}
}
