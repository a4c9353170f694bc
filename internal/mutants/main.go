// Mutants plants defects in the stack, one at a time, and sees whether the tests find them. It changes no
// file: each defect is an overlay of the go command.
//
//	go run ./internal/mutants [-run REGEXP] [-seeds N] [-o FILE] [-list]
//
// Most must be found by the simulation of whole systems, package internal/whole, within so many seeds. The
// table says which by other tests: those that no simulation shows, because they take two goroutines at the
// same time, an attacker who fills tables, or an address with several processes. A defect that survives is
// a test that is missing. What fails with a defect is run without it too, once, since a test that fails anyway
// finds nothing. The exit status is 1 if a defect survives, if a test fails anyway, or if the text that a defect
// replaces is not in its file any more. With -o, the results are written as a table, in Markdown.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutant is a planted defect: text of a file that is replaced, once.
type mutant struct {
	defect        string
	file          string // below the module's directory
	find, replace string
	pkg, test     string // that must find it; "": the simulation
}

func main() {
	pattern := flag.String("run", "", "plant only the defects whose description or file matches")
	seeds := flag.Int("seeds", 1000, "how many runs the simulation has to find a defect")
	list := flag.Bool("list", false, "check that each defect can be planted, and plant none")
	output := flag.String("o", "", "a Markdown file to write the results to")
	flag.Parse()
	match, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "adverb-mutants-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	bad := plantAll(planter{dir: dir, seeds: *seeds, list: *list, sound: map[string]error{}}, match, *output)
	os.RemoveAll(dir)
	if bad > 0 {
		fmt.Printf("%d defects were not found\n", bad)
		os.Exit(1)
	}
}

// plantAll plants the defects that match, one after another, and returns how many were not found.
func plantAll(p planter, match *regexp.Regexp, output string) (bad int) {
	var results []result
	for _, m := range mutants {
		if !match.MatchString(m.defect) && !match.MatchString(m.file) {
			continue
		}
		begin := time.Now()
		v, err := p.try(&m)
		text := v.String()
		if err != nil {
			bad++
			text = "NOT FOUND: " + err.Error()
		}
		results = append(results, result{&m, v, err})
		fmt.Printf("%-32s %-70s %s, %v\n", m.file, m.defect, text, time.Since(begin).Round(time.Second))
	}
	if output != "" {
		if err := os.WriteFile(output, document(results), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			bad++
		}
	}
	return bad
}

// planter plants defects.
type planter struct {
	dir   string // for overlays
	seeds int
	list  bool
	sound map[string]error // what tests do without a defect, by their arguments
}

// verdict says what found a defect.
type verdict struct {
	by, how string
	runs    int    // of the simulation
	seed    string // of the last one
}

func (v verdict) String() string {
	switch {
	case v.runs > 0:
		return fmt.Sprintf("found by run %d (seed %s): %.100s", v.runs, v.seed, v.how)
	case v.by == "":
		return "can be planted"
	case v.how != "":
		return fmt.Sprintf("found by %s: %.100s", v.by, v.how)
	}
	return "found by " + v.by
}

// try plants a defect and runs what must find it.
func (p *planter) try(m *mutant) (v verdict, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return v, err
	}
	if n := strings.Count(string(source), m.find); n != 1 {
		return v, fmt.Errorf("the text to replace is in the file %d times, want once: bring the table up to date", n)
	}
	if p.list {
		return v, nil
	}
	changed := filepath.Join(p.dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.find, m.replace, 1)), 0o600); err != nil {
		return v, err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return v, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return v, err
	}
	overlayFile := filepath.Join(p.dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return v, err
	}
	args := []string{m.pkg, "-run", m.test}
	if strings.HasPrefix(m.test, "TestLitmus") {
		args = append(args, "-args", "-litmus", strconv.Itoa(litmusRounds))
	}
	if m.pkg == "" {
		args = simulation("-seeds", strconv.Itoa(p.seeds))
	}
	out, err := goTest(append([]string{"-overlay", overlayFile}, args...)...)
	if v, err = m.judge(out, err); err != nil {
		return v, err
	}
	switch {
	case v.seed != "":
		args = simulation("-seed", v.seed)
	case m.pkg == "":
		args = simulation("-seeds", strconv.Itoa(min(p.seeds, soundSeeds)))
	}
	return v, p.passes(args)
}

// litmusRounds is how many rounds a litmus test has to find a defect.
const litmusRounds = 5_000_000

// soundSeeds is how many runs the simulation makes without a defect, where none of those with it has failed by
// a check.
const soundSeeds = 100

// simulation returns the arguments of a test of whole systems.
func simulation(args ...string) []string {
	return append([]string{"./internal/whole", "-run", "TestWhole$", "-args", "-time", "4m", "-shrink", "0"}, args...)
}

// passes returns an error if a test fails without any defect.
func (p *planter) passes(args []string) error {
	key := strings.Join(args, " ")
	err, known := p.sound[key]
	if !known {
		if out, e := goTest(args...); e != nil {
			err = fmt.Errorf("go test %s fails without it too: %.100s", key, last(out))
		}
		p.sound[key] = err
	}
	return err
}

// underLimit is a shell's command to run the others within 6 GiB of addresses: a defect may be that something
// is sent without end. Where addresses are limited rings do not grow, so tests of their growth have no limit of the runner's.
const (
	underLimit   = `ulimit -v 6291456; exec "$0" "$@"`
	withoutLimit = `exec "$0" "$@"`
)

func goTest(args ...string) (out string, err error) {
	shell := underLimit
	if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "Grows") || a == "TestBoundedHeap" }) {
		shell = withoutLimit
	}
	b, err := exec.Command("sh", slices.Concat([]string{"-c", shell, "go", "test", "-vet=off", "-count=1", "-timeout", "5m"}, args)...).CombinedOutput()
	return string(b), err
}

var (
	failedRun  = regexp.MustCompile(`seed (\d+), run (\d+), fails: (.*)`)
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
)

// judge says what the output of a test means.
func (m *mutant) judge(out string, err error) (v verdict, _ error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return v, errors.New("it survives")
	case !errors.As(err, &exit):
		return v, err
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return v, errors.New("it does not build: " + first(out))
	case strings.Contains(out, "signal: killed") || !exit.Exited():
		return v, errors.New("somebody has killed it: run it again")
	case m.pkg != "":
		if s := failedTest.FindStringSubmatch(out); s != nil {
			return verdict{by: s[1] + " of " + m.pkg}, nil
		}
		return verdict{by: m.pkg + " " + m.test, how: "it hangs or dies: " + last(out)}, nil
	}
	if s := failedRun.FindStringSubmatch(out); s != nil {
		runs, _ := strconv.Atoi(s[2])
		return verdict{by: "the simulation", how: s[3], runs: runs, seed: s[1]}, nil
	}
	return verdict{by: "the simulation", how: "it hangs or dies: " + last(out)}, nil
}

// result is what became of a defect.
type result struct {
	*mutant
	verdict
	err error
}

// document returns the results as a table.
func document(results []result) []byte {
	var b strings.Builder
	b.WriteString("# Planted defects\n\nWritten by `go run ./internal/mutants -o FILE`: each defect is planted alone, and the tests must\n" +
		"find it. The simulation is [internal/whole](../internal/whole/doc.go).\n\n" +
		"| file | defect | found by | runs of the simulation |\n|---|---|---|---|\n")
	for _, r := range results {
		by, runs := r.by, ""
		switch {
		case r.err != nil:
			by = "NOT FOUND: " + r.err.Error()
		case r.runs > 0:
			runs = fmt.Sprintf("%d (seed %s)", r.runs, r.seed)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.file, r.defect, cell.Replace(by), runs)
	}
	return []byte(b.String())
}

// cell makes text fit a table's cell.
var cell = strings.NewReplacer("|", "\\|", "\n", " ")

// last returns the last line of a text.
func last(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// first returns the first lines of a text.
func first(s string) string {
	return strings.Join(strings.SplitN(s, "\n", 4)[:min(3, strings.Count(s, "\n")+1)], "; ")
}
