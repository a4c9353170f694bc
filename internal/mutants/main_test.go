package main

import (
	"errors"
	"os"
	"os/exec"
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
			t.Errorf("%s: is twice in the table, or changes nothing, want each once, with a change", m.defect)
		}
		seen[m.defect] = true
	}
}

// What the output of a test means, and how it is written down.
func TestJudge(t *testing.T) {
	failed := exec.Command("false").Run()
	var exit *exec.ExitError
	if !errors.As(failed, &exit) {
		t.Skip(failed)
	}
	tested, simulated := &mutant{defect: "a", file: "a.go", pkg: "./a", test: "TestA|TestB"}, &mutant{defect: "b", file: "b.go"}
	var results []result
	for _, tt := range []struct {
		m              *mutant
		out            string
		err            error
		text, mistaken string
	}{
		{tested, "ok", nil, "", "it survives"},
		{tested, "x.go:1: oops\nFAIL ./a [build failed]", failed, "", "it does not build"},
		{tested, "    --- FAIL: TestB/sub\n--- FAIL: TestB (0.01s)\nFAIL", failed, "found by TestB of ./a", ""},
		{tested, "panic: test timed out after 5m0s\nFAIL", failed, "found by ./a TestA|TestB: it hangs or dies: FAIL", ""},
		{simulated, "    whole_test.go:1: seed 16, run 17, fails: 3ms: lost\nFAIL", failed, "found by run 17 (seed 16): 3ms: lost", ""},
		{simulated, "fatal error\nexit status 2", failed, "found by the simulation: it hangs or dies: exit status 2", ""},
	} {
		v, err := tt.m.judge(tt.out, tt.err)
		switch {
		case tt.mistaken != "" && (err == nil || !strings.Contains(err.Error(), tt.mistaken)):
			t.Errorf("%q: %v, want an error that says %q", tt.out, err, tt.mistaken)
		case tt.mistaken == "" && (err != nil || v.String() != tt.text):
			t.Errorf("%q: %q, %v; want %q", tt.out, v, err, tt.text)
		}
		results = append(results, result{tt.m, v, err})
	}
	doc := string(document(results))
	for _, want := range []string{
		"| a.go | a | NOT FOUND: it survives |  |\n", "| a.go | a | TestB of ./a |  |\n", "| a.go | a | ./a TestA\\|TestB |  |\n",
		"| b.go | b | the simulation | 17 (seed 16) |\n",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks %q:\n%s", want, doc)
		}
	}
}
