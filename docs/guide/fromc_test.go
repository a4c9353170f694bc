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

	enumerations = regexp.MustCompile(`(?ms)^enum (\w+)\s*\{(.*?)^\}`)
	enumerators  = regexp.MustCompile(`(?m)\b(IBV_\w+)\b\s*(?:=|,|$)`)
	prefixes     = regexp.MustCompile("`(IBV_[A-Z_]+_)…")
	fieldNames   = regexp.MustCompile(`(\w+)(?:\[[^\]]*\])?\s*;`)
)

// members are structures whose fields stand on the page, each with the section that has them.
var members = map[string]string{
	"ibv_send_wr": "struct ibv_send_wr", "ibv_wc": "struct ibv_wc",
	"ibv_recv_wr": "struct ibv_recv_wr", "ibv_sge": "struct ibv_recv_wr", "ibv_mr": "struct ibv_recv_wr",
	"ibv_qp_init_attr": "struct ibv_qp_init_attr", "ibv_qp_cap": "struct ibv_qp_init_attr", "ibv_qp_attr": "struct ibv_qp_init_attr",
	"ibv_ah_attr": "struct ibv_qp_init_attr", "ibv_global_route": "struct ibv_qp_init_attr",
	"ibv_device_attr": "struct ibv_device_attr", "ibv_port_attr": "struct ibv_port_attr",
	"ibv_srq_init_attr": "struct ibv_srq_init_attr", "ibv_srq_attr": "struct ibv_srq_init_attr",
	"ibv_mw_bind": "struct ibv_srq_init_attr", "ibv_mw_bind_info": "struct ibv_srq_init_attr",
	"rdma_conn_param": "librdmacm", "rdma_ud_param": "librdmacm", "rdma_cm_event": "librdmacm",
}

// names returns the words of a text between backquotes or in a heading.
func names(text string) (known map[string]bool) {
	known = map[string]bool{}
	for line := range strings.Lines(text) {
		for i, part := range strings.Split(line, "`") {
			if i%2 == 1 || strings.HasPrefix(line, "#") {
				for _, name := range cNames.FindAllString(part, -1) {
					known[name] = true
				}
			}
		}
	}
	return known
}

// section returns the text below the heading that begins so.
func section(page, heading string) string {
	_, text, _ := strings.Cut(page, "\n## "+heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// The tables of names of C have all that the headers declare. Of a later release than the page's they may lack some.
func TestFromC(t *testing.T) {
	page, err := os.ReadFile("from-c.md")
	if err != nil {
		t.Fatal(err)
	}
	known := names(string(page))
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
			switch {
			case known[name]:
			case later:
				t.Logf("%s declares %s, which from-c.md does not name yet", file, name)
			default:
				t.Errorf("%s declares %s, which from-c.md does not name", file, name)
			}
		}
		missing := t.Errorf
		if later {
			missing = t.Logf
		}
		checkFields(text, string(page), missing)
		checkEnumerators(text, string(page), known, missing)
	}
}

// checkFields looks for the fields of structures.
func checkFields(header, page string, missing func(string, ...any)) {
	for name, heading := range members {
		_, body, ok := strings.Cut(header, "\nstruct "+name+" {\n")
		if !ok {
			continue // of the other header
		}
		body, _, _ = strings.Cut(body, "\n};")
		known := names(section(page, heading))
		for _, m := range fieldNames.FindAllStringSubmatch(body, -1) {
			if !known[m[1]] {
				missing("struct %s has the field %s, which the section %q of from-c.md does not name", name, m[1], heading)
			}
		}
	}
}

// checkEnumerators looks for the enumerators, or for what they begin with. Those of an enumeration that the page says is not
// here, or that is none in Go, need no name.
func checkEnumerators(header, page string, known map[string]bool, missing func(string, ...any)) {
	_, left, _ := strings.Cut(page, "\nOf what is not here: ")
	left, _, _ = strings.Cut(left, "\n\n")
	for line := range strings.Lines(page) {
		if _, remedy, ok := strings.Cut(line, "` | none"); ok && remedy != "" {
			left += line
		}
	}
	without := names(left)
	var begin []string
	for _, m := range prefixes.FindAllStringSubmatch(page, -1) {
		begin = append(begin, m[1])
	}
	for _, e := range enumerations.FindAllStringSubmatch(header, -1) {
		if without[e[1]] {
			continue
		}
		for _, m := range enumerators.FindAllStringSubmatch(e[2], -1) {
			if !known[m[1]] && !slices.ContainsFunc(begin, func(p string) bool { return strings.HasPrefix(m[1], p) }) {
				missing("enum %s has %s, which from-c.md does not name", e[1], m[1])
			}
		}
	}
}
