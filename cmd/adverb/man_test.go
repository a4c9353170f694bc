package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// manual writes the manual pages as a user does, and returns their directory and names.
func manual(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	if code, stdout, stderr := tool(t.Context(), "adverb", "man", dir); code != 0 || stdout != "" || stderr != "" {
		t.Fatalf("got status %d, stdout %q, stderr %q, want nothing printed", code, stdout, stderr)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "man1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return dir, names
}

// Each command has a page with its flags, and each classic name a link to it.
func TestManual(t *testing.T) {
	dir, _ := manual(t)
	page := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, "man1", name+".1"))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	for _, c := range commands {
		text := page("adverb-" + c.Name)
		for _, f := range c.Flags {
			if flag := `\fB` + strings.ReplaceAll("--"+f.Long, "-", `\-`) + `\fR`; !strings.Contains(text, flag) {
				t.Errorf("the page of %s: got no %s in\n%s\nwant it named", c.Name, flag, text)
			}
		}
		for _, name := range c.Classic {
			if got, want := page(name), ".so man1/adverb-"+c.Name+".1\n"; got != want {
				t.Errorf("the page %s: got %q, want %q", name, got, want)
			}
		}
		if !strings.Contains(page("adverb"), strings.ReplaceAll(c.Short, "-", `\-`)) {
			t.Errorf("the page of adverb: got nothing about %s, want it named", c.Name)
		}
	}
}

// The formatters of manual pages have nothing to complain about.
func TestManualIsClean(t *testing.T) {
	dir, names := manual(t)
	for _, tt := range []struct {
		program []string
		ignore  []string // complaints that are no fault of the page
	}{
		{[]string{"groff", "-man", "-ww", "-Tutf8", "-z"}, nil},
		{[]string{"man", "-l", "--warnings"}, nil},
		// A page has the date of the commit, which a test binary does not know. Links by .so stay valid in a file
		// that is copied or packed.
		{[]string{"mandoc", "-Tlint", "-Wwarning"}, []string{"missing date", ".so is fragile"}},
	} {
		path, err := exec.LookPath(tt.program[0])
		if err != nil {
			t.Logf("%s is not installed", tt.program[0])
			continue
		}
		pages := names
		if tt.program[0] == "man" { // man is slow, and formats by one of the others
			pages = []string{"adverb-rdma-server.1", "ibv_rc_pingpong.1"}
		}
		for _, name := range pages {
			cmd := exec.CommandContext(t.Context(), path, append(tt.program[1:], filepath.Join("man1", name))...)
			cmd.Dir = dir
			var stderr, stdout strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // complaints are printed; mandoc's status counts ignored ones too
			complaints := stderr.String()
			if tt.program[0] == "mandoc" {
				complaints += stdout.String() // where the program prints the complaints
			} else if tt.program[0] == "man" && !strings.Contains(stdout.String(), "NAME") {
				t.Errorf("%s %s: got %q, want a formatted page", tt.program[0], name, stdout.String())
			}
			for line := range strings.Lines(complaints) {
				if !containsAny(line, tt.ignore) {
					t.Errorf("%s: got %q, want no complaint", strings.Join(tt.program, " "), line)
				}
			}
		}
	}
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// TestMarkdown: each command has a page of Markdown, with its flags, and the list has each page.
func TestMarkdown(t *testing.T) {
	dir := t.TempDir()
	if code, stdout, stderr := tool(t.Context(), "adverb", "man", "--markdown", dir); code != 0 || stdout != "" || stderr != "" {
		t.Fatalf("got status %d, stdout %q, stderr %q, want nothing printed", code, stdout, stderr)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	index := read("README")
	for _, c := range commands {
		page := read(c.Name)
		if !strings.HasPrefix(page, "# adverb "+c.Name+"\n") {
			t.Errorf("the page of %s begins with %.40q", c.Name, page)
		}
		for _, f := range c.Flags {
			if !strings.Contains(page, "--"+f.Long) {
				t.Errorf("the page of %s has no --%s", c.Name, f.Long)
			}
		}
		if !strings.Contains(index, "[`"+c.Name+"`]("+c.Name+".md)") {
			t.Errorf("the list has no link to the page of %s", c.Name)
		}
	}
}
