//go:build !adverb_lab

package lab

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestBuilds(t *testing.T) {
	module := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: modulePath, Version: version}, Settings: settings}
	}
	for _, test := range []struct {
		what string
		info *debug.BuildInfo
		want string
	}{
		{"nothing is known", nil, ""}, {"a tree", module("(devel)"), ""}, {"go install", module("v1.2.3"), "v1.2.3"},
		{"a clone", module("v1.2.3", debug.BuildSetting{Key: "vcs.revision", Value: "abc"}), ""}, {"a changed clone", module("v1.2.3+dirty"), ""},
		{"another program", &debug.BuildInfo{Main: debug.Module{Path: "m", Version: "v9.0.0"}}, ""},
	} {
		if got := versionOf(test.info); got != test.want {
			t.Errorf("%s: version %q, want %q", test.what, got, test.want)
		}
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "sub", "x.gz")
	for _, data := range []string{"one", "two"} {
		if err := keep(name, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != data {
			t.Errorf("kept %q, %v; want %q", got, err, data)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(name)); err != nil || len(list) != 1 {
		t.Errorf("%d files are left, want 1", len(list))
	}
	if cacheFile("") != "" {
		t.Error("the engine of a tree is kept, want none")
	}
}
