package programs

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var updateFlag = flag.Bool("update", false, "write the results into docs/RUN.md")

// page is the document with the results.
const page = "../../docs/RUN.md"

// These lines enclose the part of the page that a run with -update writes.
const (
	resultsBegin = "<!-- results: make programs PROGRAMSFLAGS='-args -update' writes them -->\n"
	resultsEnd   = "<!-- end of results -->\n"
)

// results are what this run has shown beyond the table, whose rows are as they are unless a test fails.
var results resultTable

type resultTable struct {
	suite string // the table of rdma-core's own tests
	lack  string // why there is none
}

// These lines begin the second table and the third.
const (
	versionsHead = "\nThe versions of this run:\n"
	suiteHead    = "\n### rdma-core's own tests\n"
)

// rows returns the table's rows as lines of markdown.
func rows() (lines []string) {
	for _, f := range table {
		for _, r := range f.rows {
			cells := []string{"`" + r.program + "`", r.arguments(), r.ends(), r.result(), r.note}
			for i, c := range cells {
				cells[i] = cmp.Or(c, "–")
			}
			lines = append(lines, "| "+strings.Join(cells, " | ")+" |\n")
		}
	}
	return lines
}

func (r row) arguments() string {
	text := r.args
	if r.server != "" {
		text += "; the server's: " + r.server
	}
	if r.client != "" {
		text += "; the client's: " + r.client
	}
	if r.env != "" {
		text = "with " + r.env + " " + text
	}
	return strings.TrimPrefix(strings.TrimSpace(strings.ReplaceAll(text, " ;", ";")), "; ")
}

// ends says which ends a row has.
func (r row) ends() string {
	other := "itself"
	if r.peer != "" {
		other = "`" + r.peer + "`"
	}
	if r.clients != 0 {
		other = fmt.Sprintf("itself, %d clients", r.clients)
	}
	switch {
	case !r.pair():
		return ""
	case r.tool == "":
		return other
	}
	as := r.tool
	if r.toolServer != "" {
		as += " " + r.toolServer
	}
	return other + "; `adverb " + as + "` as server, and as client"
}

func (r row) result() string {
	if r.fails {
		return "refused"
	}
	return "ok"
}

// markdown returns all tables.
func (r *resultTable) markdown(archives []string) string {
	var b strings.Builder
	b.WriteString("\n| program | arguments | other end | result | remarks |\n|---|---|---|---|---|\n" + strings.Join(rows(), ""))
	b.WriteString(versionsHead + "\n| package | version |\n|---|---|\n")
	for _, f := range table {
		i := slices.IndexFunc(archives, func(a string) bool { return strings.HasPrefix(a, f.name+"_") })
		version := "unknown"
		if i >= 0 {
			version = strings.ReplaceAll(strings.Split(archives[i], "_")[1], "%3a", ":")
		}
		fmt.Fprintf(&b, "| %s | %s |\n", f.name, version)
	}
	return b.String() + r.suite + "\n"
}

// finish writes the tables into the page after a run of all tests with packages of these archives. Without update, it
// checks that the page has them.
func (r *resultTable) finish(name string, archives []string, update bool) error {
	for _, selects := range []string{"test.run", "test.skip", "test.list", "release"} {
		if f := flag.Lookup(selects); f != nil && f.Value.String() != "" {
			if update {
				return errors.New("update the results: -update needs a run of all programs, without -run, -skip and -release")
			}
			return nil
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, have, after, err := cutResults(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if r.lack != "" { // a fault that is not ours: the page keeps the results of an earlier run
		fmt.Fprintln(os.Stderr, "programs: NOT SHOWN, by a fault that is not ours:", r.lack)
		if _, suite, ok := strings.Cut(have, suiteHead); ok {
			r.suite = suiteHead + strings.TrimSuffix(suite, "\n")
		}
	}
	want := r.markdown(archives)
	switch {
	case have == want:
		return nil
	case !update && withoutVersions(have) == withoutVersions(want): // Debian has newer packages, which did as well
		return nil
	case update:
		return os.WriteFile(name, []byte(before+resultsBegin+want+resultsEnd+after), 0o644)
	}
	return fmt.Errorf("%s has other results than this run had: run make programs PROGRAMSFLAGS='-args -update'. This run's:\n%s", name, want)
}

// withoutVersions leaves the table of versions out of the results.
func withoutVersions(results string) string {
	before, rest, _ := strings.Cut(results, versionsHead)
	_, after, _ := strings.Cut(rest, suiteHead)
	return before + after
}

// cutResults returns the text before the results, the results, and the text after the results.
func cutResults(text []byte) (before, results, after string, err error) {
	a, rest, ok := bytes.Cut(text, []byte(resultsBegin))
	b, c, ok2 := bytes.Cut(rest, []byte(resultsEnd))
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("the lines %q and %q, with the results between, are missing", resultsBegin, resultsEnd)
	}
	return string(a), string(b), string(c), nil
}

// The page has the rows of the table. That they are right is for make programs to find out.
func TestPage(t *testing.T) {
	if *updateFlag {
		return // the page is written after this test
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, have, _, err := cutResults(text)
	if err != nil {
		t.Fatal(err)
	}
	lines, _, _ := strings.Cut(have, versionsHead)
	if want := strings.Join(rows(), ""); !strings.HasSuffix(lines, want) {
		t.Errorf("%s has other rows than the table of this test: run make programs PROGRAMSFLAGS='-args -update'", page)
	}
}
