package adverb_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unlistedVariables are the variables that the code reads and README.md does not list. A user sets none of them.
var unlistedVariables = map[string]string{
	"ADVERB_BENCH_CHILD":     "marks a process that adverb bench starts",
	"ADVERB_EXAMPLE_MAIN":    "marks a process that a test of the examples starts",
	"ADVERB_LAB_ACCEL":       "lab/README.md has it",
	"ADVERB_LAB_IMAGE":       "the lab tells itself where the image is",
	"ADVERB_LAB_INSIDE":      "marks the lab's process in its namespaces",
	"ADVERB_RIVALS_SERVE":    "marks a process that a benchmark starts",
	"ADVERB_TEST_AS_TOOL":    "marks a process that a test of the tool starts",
	"ADVERB_TEST_IN_PROCESS": "marks a process that a test starts as another user",
	"ADVERB_VERBSTEST_CHILD": "marks a process that verbstest starts",
}

var (
	environmentTable = regexp.MustCompile(`(?s)\n## Environment\n.*?(\n## |$)`)
	environmentRow   = regexp.MustCompile("(?m)^\\| `(ADVERB_[A-Z0-9_]+)` \\| (\\S.*) \\| (\\S.*) \\| (\\S.*) \\|$")
	variableName     = regexp.MustCompile(`^ADVERB_[A-Z0-9_]+$`)
)

// environmentOf returns the section of a document that lists variables of the environment.
func environmentOf(text string) string { return environmentTable.FindString(text) }

// checkEnvironment returns how the variables that the code reads differ from those of the document's table and the
// unlisted ones.
func checkEnvironment(text string, read map[string]string, unlisted map[string]string) (faults []string) {
	listed := map[string]int{}
	for _, m := range environmentRow.FindAllStringSubmatch(environmentOf(text), -1) {
		listed[m[1]]++
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		switch n := listed[name]; {
		case n > 1:
			faults = append(faults, fmt.Sprintf("README.md lists %s %d times", name, n))
		case n == 1 && unlisted[name] != "":
			faults = append(faults, fmt.Sprintf("README.md lists %s, which is unlisted too: take one away", name))
		case n == 0 && unlisted[name] == "":
			faults = append(faults, fmt.Sprintf("%s reads %s, which the table of README.md does not list", read[name], name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if read[name] == "" {
			faults = append(faults, fmt.Sprintf("README.md lists %s, which no code reads", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unlisted)) {
		if read[name] == "" {
			faults = append(faults, fmt.Sprintf("%s is an exception, and no code reads it: take it off the list", name))
		}
	}
	return faults
}

// variablesOf returns the variables that a file names.
func variablesOf(f *ast.File) (names []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && variableName.MatchString(s) {
				names = append(names, s)
			}
		}
		return true
	})
	return names
}

// TestEnvironment: the table in README.md has exactly the variables of the environment that the code reads.
func TestEnvironment(t *testing.T) {
	read := map[string]string{} // by name: the file
	goFiles(t, func(name string, _ *token.FileSet, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, v := range variablesOf(f) {
			read[v] = name
		}
	})
	texts := documents(t)
	for _, fault := range checkEnvironment(texts["README.md"], read, unlistedVariables) {
		t.Error(fault)
	}
	// What other documents say of variables is of variables that there are.
	anywhere := regexp.MustCompile(`ADVERB_[A-Z0-9_]+`)
	inTests := map[string]bool{}
	goFiles(t, func(_ string, _ *token.FileSet, f *ast.File) {
		for _, v := range variablesOf(f) {
			inTests[v] = true
		}
	})
	for name, text := range texts {
		for _, v := range anywhere.FindAllString(text, -1) {
			if !inTests[v] {
				t.Errorf("%s names %s, which no code reads", name, v)
			}
		}
	}
}

func TestCheckEnvironment(t *testing.T) {
	const row = "| `ADVERB_A` | 1, 0 | 0 | does a |\n"
	tests := []struct {
		rows string
		read []string
		want string
	}{
		{row, []string{"ADVERB_A", "ADVERB_X"}, ""},
		{row + row, []string{"ADVERB_A", "ADVERB_X"}, "2 times"},
		{row, []string{"ADVERB_A", "ADVERB_B", "ADVERB_X"}, "x.go reads ADVERB_B"},
		{row + "| `ADVERB_B` | | | |\n", []string{"ADVERB_A", "ADVERB_B", "ADVERB_X"}, "x.go reads ADVERB_B"}, // without words
		{row, []string{"ADVERB_X"}, "lists ADVERB_A, which no code reads"},
		{row, []string{"ADVERB_A"}, "ADVERB_X is an exception"},
		{row + "| `ADVERB_X` | 1 | 0 | does x |\n", []string{"ADVERB_A", "ADVERB_X"}, "unlisted too"},
	}
	for _, tt := range tests {
		read := map[string]string{}
		for _, name := range tt.read {
			read[name] = "x.go"
		}
		text := "# A\n\n## Environment\n\n| variable | values | default | meaning |\n|---|---|---|---|\n" + tt.rows + "\n## More\n\n| `ADVERB_A` | 1 | 0 | elsewhere |\n"
		checkOne(t, tt.rows, checkEnvironment(text, read, map[string]string{"ADVERB_X": "a mark"}), tt.want)
	}
	f := parseText(t, "package p; const env = \"ADVERB_A\"; var x = f(\"ADVERB_B=1\", `ADVERB_C`)")
	if got, want := variablesOf(f), []string{"ADVERB_A", "ADVERB_C"}; !slices.Equal(got, want) {
		t.Errorf("the variables of a file: got %v, want %v", got, want)
	}
}
