package main

import (
	"os"
	"strings"
	"testing"
)

// Each defect of the table can still be planted: the text that it replaces is in its file, once. Whether the
// tests find it is for "make mutants" to say.
func TestTable(t *testing.T) {
	t.Chdir("../..")
	seen := map[string]bool{}
	for _, m := range mutants {
		source, err := os.ReadFile(m.file)
		if err != nil {
			t.Errorf("%s: %v", m.defect, err)
			continue
		}
		if n := strings.Count(string(source), m.find); n != 1 {
			t.Errorf("%s: the text to replace is in %s %d times, want once: bring the table up to date", m.defect, m.file, n)
		}
		if seen[m.defect] || m.find == m.replace {
			t.Errorf("%s: is twice in the table, or changes nothing", m.defect)
		}
		seen[m.defect] = true
	}
}
