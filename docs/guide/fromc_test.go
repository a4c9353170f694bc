package guide_test

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a header declares: functions, structures, enumerations and macros. Structures that a call alone uses inside the
// library have other prefixes.
var (
	comments     = regexp.MustCompile(`(?s)/\*.*?\*/`)
	declarations = []*regexp.Regexp{
		regexp.MustCompile(`(?m)^(?:static inline |extern )?(?:const )?(?:struct |enum )?\w+[ \t*\n]+\*?((?:ibv|rdma)_\w+)\(`),
		regexp.MustCompile(`(?m)^static inline[^;{]*?\b((?:ibv|rdma)_\w+)\(`),
		regexp.MustCompile(`(?m)^struct (_?(?:ibv|rdma|verbs)_\w+)\s*\{`),
		regexp.MustCompile(`(?m)^enum (\w+)\s*\{`),
		regexp.MustCompile(`(?m)^#define ((?:IBV|RDMA)_\w+)[ \t]+\S`),
	}
	cNames = regexp.MustCompile(`\w+`)
)

// The tables of names of C have all that the headers declare. Of a later release than the page's they may lack some.
func TestFromC(t *testing.T) {
	page, err := os.ReadFile("from-c.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for line := range strings.Lines(string(page)) {
		for i, part := range strings.Split(line, "`") {
			if i%2 == 1 || strings.HasPrefix(line, "#") { // between backquotes, or in a heading
				known = append(known, cNames.FindAllString(part, -1)...)
			}
		}
	}
	slices.Sort(known)
	later := false
	for _, header := range []struct {
		file    string
		atLeast int // names
	}{{"/usr/include/infiniband/verbs.h", 300}, {"/usr/include/rdma/rdma_cma.h", 55}} {
		file := header.file
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			t.Logf("not compared with %s, which is not installed (libibverbs-dev, librdmacm-dev)", file)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		text := comments.ReplaceAllString(string(b), "")
		found := map[string]bool{}
		for _, d := range declarations {
			for _, m := range d.FindAllStringSubmatch(text, -1) {
				found[m[1]] = true
			}
		}
		if len(found) < header.atLeast {
			t.Errorf("%s: %d names were found in it, want %d at least", file, len(found), header.atLeast)
		}
		later = later || found["ibv_wr_flush"] // not of release 44
		for name := range found {
			switch _, ok := slices.BinarySearch(known, name); {
			case ok:
			case later:
				t.Logf("%s declares %s, which from-c.md does not name yet", file, name)
			default:
				t.Errorf("%s declares %s, which from-c.md does not name", file, name)
			}
		}
	}
}
