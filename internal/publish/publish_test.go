package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

var unprepared = map[string]string{
	"CHANGELOG.md":      "# Changes\n\n## Unreleased\n\n- new\n\n## v0.1.0, 2026-12-01\n\n- old\n",
	"adverbprom/go.mod": "module x\n\nrequire (\n\tgithub.com/adverb-rdma/adverb v0.1.0\n\tother v1.0.0\n)\n\nreplace github.com/adverb-rdma/adverb => ../\n",
	"api/next.txt":      "pkg verbs, func New()\n",
	"api/except.txt":    "# What breaks.\n# A release empties this file.\n\n# because\npkg verbs, func Old()\n",
	"api/v0.1.0.txt":    "pkg verbs, func Old()\n",
}

// What prepare writes is what check wants, and nothing else is changed.
func TestPrepare(t *testing.T) {
	files := tree(unprepared)
	if err := check(files, "v0.2.0"); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("a tree that is not prepared: %v, want three faults and what helps", err)
	}
	var names []string
	if err := prepare(files, "v0.2.0", "2026-12-31", func(name, text string) error {
		names = append(names, name)
		files[name] = &fstest.MapFile{Data: []byte(text)}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if want := []string{"CHANGELOG.md", "adverbprom/go.mod", "api/except.txt", "api/v0.2.0.txt"}; !slices.Equal(names, want) {
		t.Errorf("%q are written, want %q", names, want)
	}
	if err := check(files, "v0.2.0"); err != nil {
		t.Error(err)
	}
	if got, err := notes(files, "v0.2.0"); got != "- new\n" || err != nil {
		t.Errorf("notes %q, %v, want - new", got, err)
	}
	if got, err := notes(files, "v0.1.0"); got != "- old\n" || err != nil {
		t.Errorf("notes of the release before %q, %v, want - old", got, err)
	}
	if got, want := string(files["api/except.txt"].Data), "# What breaks.\n# A release empties this file.\n"; got != want {
		t.Errorf("api/except.txt is %q, want %q", got, want)
	}
	if got := string(files["adverbprom/go.mod"].Data); got != strings.Replace(unprepared["adverbprom/go.mod"], "adverb v0.1.0", "adverb v0.2.0", 1) {
		t.Errorf("go.mod is\n%s\nwant v0.2.0 of adverb in it, and nothing else changed", got)
	}
}

func TestPrepareRefuses(t *testing.T) {
	none := func(name, text string) error {
		t.Errorf("%s is written, want nothing", name)
		return nil
	}
	for _, c := range []struct{ version, date, want string }{
		{"0.2.0", "2026-12-31", "no version"},
		{"v2.0.0", "2026-12-31", "no version"},
		{"v0.2.0", "today", "no date"},
		{"v0.1.0", "2026-12-31", "is there already"},
	} {
		if err := prepare(tree(unprepared), c.version, c.date, none); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("prepare %s of %s: %v, want %q", c.version, c.date, err, c.want)
		}
	}
}

// The tree of this repository can be prepared.
func TestThisTree(t *testing.T) {
	if err := prepare(os.DirFS("../.."), "v1.999.0", "2026-12-31", func(string, string) error { return nil }); err != nil {
		t.Error(err)
	}
}

// The bill of a program names each module that "go version -m" names, and the file by its hash.
func TestSBOM(t *testing.T) {
	program := filepath.Join(t.TempDir(), "adverb")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/adverb").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	at := time.Date(2026, 12, 31, 1, 2, 3, 0, time.UTC)
	b, err := sbom("v0.1.0", at, []string{program})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"file:adverb"}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "dep" {
			want = append(want, purl(f[1], f[2]))
		} else if i := strings.Index(line, ": go"); i >= 0 {
			want = append(want, "pkg:golang/std@"+strings.TrimSpace(line[i+4:]))
		}
	}
	var got []string
	for _, c := range b.Components {
		got = append(got, c.Ref)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || len(got) < 5 {
		t.Errorf("components %q, want %q", got, want)
	}
	if m := b.Metadata; m.Component.PURL != "pkg:golang/github.com/adverb-rdma/adverb@v0.1.0" || m.Timestamp != "2026-12-31T01:02:03Z" {
		t.Errorf("metadata %+v, want adverb v0.1.0 of 2026", m)
	}
	again, err := sbom("v0.1.0", at, []string{program})
	x, _ := json.Marshal(b)
	y, _ := json.Marshal(again)
	if err != nil || string(x) != string(y) {
		t.Errorf("the same program makes another bill, %v:\n%s\n%s", err, x, y)
	}
	if err := stamped(program, "v0.1.0"); err == nil || !strings.Contains(err.Error(), "clean checkout of the tag v0.1.0") {
		t.Errorf("a program that is no release's: %v, want what to do", err)
	}
	b.Components = b.Components[1:]
	if err := b.check(); err == nil {
		t.Error("a component is missing, and the bill is found right")
	}
}
