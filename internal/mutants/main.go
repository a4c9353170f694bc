// Mutants plants defects in the stack, one at a time, and sees whether the tests find them. It changes no
// file: each defect is an overlay of the go command.
//
//	go run ./internal/mutants [-run REGEXP] [-seeds N] [-list]
//
// Most must be found by the simulation of whole systems, package internal/whole, within so many seeds. The
// table says which by other tests: those that no simulation shows, because they take two goroutines at the
// same time, an attacker who fills tables, or an address with several processes. A defect that survives is
// a test that is missing. The exit status is 1 if one does, or if the text that one replaces is not in its
// file any more.
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
	defer os.RemoveAll(dir)
	bad := 0
	for _, m := range mutants {
		if !match.MatchString(m.defect) && !match.MatchString(m.file) {
			continue
		}
		begin := time.Now()
		verdict, err := m.try(dir, *seeds, *list)
		if err != nil {
			bad++
			verdict = "NOT FOUND: " + err.Error()
		}
		fmt.Printf("%-32s %-70s %s, %v\n", m.file, m.defect, verdict, time.Since(begin).Round(time.Second))
	}
	if bad > 0 {
		fmt.Printf("%d defects were not found\n", bad)
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// try plants the defect and runs what must find it.
func (m *mutant) try(dir string, seeds int, list bool) (verdict string, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.find); n != 1 {
		return "", fmt.Errorf("the text to replace is in the file %d times, want once: bring the table up to date", n)
	}
	if list {
		return "can be planted", nil
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.find, m.replace, 1)), 0o600); err != nil {
		return "", err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return "", err
	}
	args := []string{"-c", underLimit, "go", "test", "-overlay", overlayFile, "-vet=off", "-count=1", "-timeout", "5m"}
	if m.pkg != "" {
		args = append(args, m.pkg, "-run", m.test)
	} else {
		args = append(args, "./internal/whole", "-run", "TestWhole$", "-args", "-seeds", strconv.Itoa(seeds), "-time", "4m", "-shrink", "0")
	}
	out, err := exec.Command("sh", args...).CombinedOutput()
	return m.judge(string(out), err)
}

// underLimit is a shell's command to run the others within 6 GiB of addresses: a defect may be that something
// is sent without end.
const underLimit = `ulimit -v 6291456; exec "$0" "$@"`

var failedRun = regexp.MustCompile(`seed (\d+), run (\d+), fails: (.*)`)

// judge says what the output of a test means.
func (m *mutant) judge(out string, err error) (string, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", errors.New("it survives")
	case !errors.As(err, &exit):
		return "", err
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return "", errors.New("it does not build: " + first(out))
	case strings.Contains(out, "signal: killed") || !exit.Exited():
		return "", errors.New("somebody has killed it: run it again")
	case m.pkg != "":
		return "found by " + m.pkg + " " + m.test, nil
	}
	if s := failedRun.FindStringSubmatch(out); s != nil {
		return fmt.Sprintf("found by run %s (seed %s): %.100s", s[2], s[1], s[3]), nil
	}
	return fmt.Sprintf("found: the simulation hangs or dies: %.100s", last(out)), nil
}

// last returns the last line of a text.
func last(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// first returns the first lines of a text.
func first(s string) string {
	return strings.Join(strings.SplitN(s, "\n", 4)[:min(3, strings.Count(s, "\n")+1)], "; ")
}
