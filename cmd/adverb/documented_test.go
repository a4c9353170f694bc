package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

// A command line of a document: in backticks, or behind the prompt of a terminal. Lines may end inside backticks.
var (
	inBackticks = regexp.MustCompile("`adverb\\s([^`]+)`")
	inTerminal  = regexp.MustCompile(`(?m)^\$ adverb (.+)$`)
	longFlag    = regexp.MustCompile(`^--([a-z][a-z0-9-]*)`)
)

// undocumented returns what a command line of a document has that the tool has not, or "".
func undocumented(line string) string {
	words := strings.Fields(line)
	name := words[0]
	if strings.HasPrefix(name, "-") || name == "…" || name == strings.ToUpper(name) || slices.Contains([]string{"help", "completion", "man"}, name) {
		return "" // the tool's own, or a placeholder
	}
	i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.Name == name || slices.Contains(c.Classic, name) })
	if i < 0 {
		return "there is no command " + name
	}
	c := commands[i]
	for _, word := range words[1:] {
		if word == "--" || word == "|" || word == ">" || word == "&" || c.RunsProgram && !strings.HasPrefix(word, "-") {
			break // another program's words
		}
		m := longFlag.FindStringSubmatch(word)
		if m != nil && m[1] != "help" && !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Long == m[1] }) {
			return name + " has no flag --" + m[1]
		}
	}
	return ""
}

// TestDocumented: the commands that documents name are there, with their flags.
func TestDocumented(t *testing.T) {
	lines := 0
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "dist" || strings.HasPrefix(d.Name(), ".") && name != "../.."):
			return fs.SkipDir
		case filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range slices.Concat(inBackticks.FindAllSubmatch(text, -1), inTerminal.FindAllSubmatch(text, -1)) {
			lines++
			if fault := undocumented(string(m[1])); fault != "" {
				t.Errorf("%s: adverb %s: %s", name, strings.Join(strings.Fields(string(m[1])), " "), fault)
			}
		}
		return nil
	})
	if err != nil || lines < 200 {
		t.Fatalf("%d command lines were found: %v", lines, err)
	}
	for line, want := range map[string]string{
		"demo send --see": "", "see -- x --none": "", "rping -s": "", "FILE": "", "run ib_write_bw --none": "", "ibv_devinfo": "",
		"demos": "there is no command demos", "demo --sea": "demo has no flag --sea", "see --none -- x": "see has no flag --none",
	} {
		if got := undocumented(line); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}
