package lab

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// results are the outcomes that this run has shown. README.md lists the results.
var results resultTable

type resultTable struct {
	mu       sync.Mutex
	families []string
	rows     map[string][]resultRow // by family, in the order of the run
	notShown []string               // by notShown: the scenario and why
}

type resultRow struct {
	program, server, ip string
	mtu                 int // server, ip and mtu are zero if they have no meaning for the row
	variants            []string
	verdict             string
}

// These lines enclose the part of README.md that a run with -update writes.
const (
	resultsBegin = "<!-- results: make lab LABFLAGS='-args -cards -update' writes them -->\n"
	resultsEnd   = "<!-- end of results -->\n"
)

// add records the outcome of a scenario. Variants with the same outcome share a row.
func (r *resultTable) add(family string, row resultRow, variant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		r.rows = make(map[string][]resultRow)
	}
	if !slices.Contains(r.families, family) {
		r.families = append(r.families, family)
	}
	rows := r.rows[family]
	i := slices.IndexFunc(rows, func(have resultRow) bool {
		return have.program == row.program && have.server == row.server && have.ip == row.ip &&
			have.mtu == row.mtu && have.verdict == row.verdict
	})
	if i < 0 {
		i = len(rows)
		rows = append(rows, row)
	}
	rows[i].variants = append(rows[i].variants, variant)
	r.rows[family] = rows
}

// recordTest records the outcome of a test once the test and its cleanups are over. What notShown
// has ended counts as ok here, since README.md is never written from such a run, and must not
// differ from it either.
func recordTest(t *testing.T, family string, row resultRow, variant string) {
	t.Helper()
	t.Cleanup(func() {
		row.verdict = "ok"
		if t.Failed() {
			row.verdict = "FAILED"
		}
		results.add(family, row, variant)
	})
}

// notShown ends a test because two programs that are not ours, on two kernels, have failed with
// each other. Such a test shows that the lab works, and says nothing about our code. So the test
// does not fail. TestMain reports it, and README.md cannot be updated from the run.
func notShown(t *testing.T, err error) {
	t.Helper()
	results.mu.Lock()
	results.notShown = append(results.notShown, fmt.Sprintf("%s: %v", t.Name(), err))
	results.mu.Unlock()
	t.SkipNow()
}

// report lists the outcomes that the run has not shown.
func (r *resultTable) report(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, what := range r.notShown {
		fmt.Fprintf(w, "lab: NOT SHOWN, by a fault that is not ours: %s\n", what)
	}
}

// These families contain more than scenarios.
const (
	labFamily      = "The lab itself"
	ownGuestFamily = "Our software in a guest"
	nativeFamily   = "Cards: provider/native in the guest"
)

// markdown returns the tables. They hold nothing that differs between two runs of the same tests.
func (r *resultTable) markdown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, family := range r.families {
		fmt.Fprintf(&b, "\n### %s\n\n| program | server | IP | MTU | variants | result |\n|---|---|---|---|---|---|\n", family)
		for _, row := range r.rows[family] {
			mtu := ""
			if row.mtu != 0 {
				mtu = strconv.Itoa(row.mtu)
			}
			b.WriteString("|")
			for _, cell := range []string{row.program, row.server, row.ip, mtu, strings.Join(row.variants, ", "), row.verdict} {
				fmt.Fprintf(&b, " %s |", cmp.Or(cell, "–"))
			}
			b.WriteString("\n")
		}
	}
	return b.String() + "\n"
}

// differences returns the lines that only a has, behind "-", and those that only b has, behind "+". The
// order of lines is no difference: that of the scenarios is the order of the files which have them.
func differences(a, b string) (only []string) {
	more := map[string]int{} // how many more of a line a has than b
	for line := range strings.Lines(a) {
		more[line]++
	}
	for line := range strings.Lines(b) {
		more[line]--
	}
	for _, line := range slices.Sorted(maps.Keys(more)) {
		switch n := more[line]; {
		case n > 0:
			only = append(only, "- "+strings.TrimSuffix(line, "\n"))
		case n < 0:
			only = append(only, "+ "+strings.TrimSuffix(line, "\n"))
		}
	}
	return only
}

// finish writes the tables into a file after a run of all scenarios. Without update, it checks that
// the file has them. Without cards, the table of that family is left out.
func (r *resultTable) finish(name string, update, cards bool) error {
	whole := true
	for _, selects := range []string{"test.run", "test.skip", "test.list", "release"} {
		if f := flag.Lookup(selects); f != nil {
			whole = whole && f.Value.String() == ""
		}
	}
	if !whole {
		if update {
			return errors.New("update the results: -update needs a run of all scenarios, without -run, -skip and -release")
		}
		return nil
	}
	if update && !cards {
		return errors.New("update the results: -update needs -cards, for a run of all scenarios")
	}
	if update && len(r.notShown) > 0 {
		return errors.New("update the results: this run has not shown all of them")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	updated, err := replaceResults(text, r.markdown())
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case bytes.Equal(updated, text):
		return nil
	case update:
		return os.WriteFile(name, updated, 0o644)
	}
	have, want := string(text), string(updated)
	if !cards {
		have, want = withoutFamily(have, nativeFamily), withoutFamily(want, nativeFamily)
	}
	if only := differences(have, want); len(only) > 0 {
		return fmt.Errorf("%s lists other scenarios or results (-) than this run had (+): run make lab LABFLAGS='-args -cards -update'\n%s",
			name, strings.Join(only, "\n"))
	}
	return nil
}

// withoutFamily returns a text without the table of a family.
func withoutFamily(text, family string) string {
	before, rest, ok := strings.Cut(text, "\n### "+family+"\n")
	if !ok {
		return text
	}
	end := strings.Index(rest, "\n### ")
	if end < 0 {
		end = strings.Index(rest, "\n"+resultsEnd)
	}
	return before + rest[end:]
}

func replaceResults(text []byte, tables string) ([]byte, error) {
	before, rest, ok := strings.Cut(string(text), resultsBegin)
	_, after, ok2 := strings.Cut(rest, resultsEnd)
	if !ok || !ok2 {
		return nil, fmt.Errorf("the lines %q and %q, with the results between, are missing", resultsBegin, resultsEnd)
	}
	return []byte(before + resultsBegin + tables + resultsEnd + after), nil
}
