package programs

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/lab"
)

var suiteFlag = flag.String("suite", "", "directory with the source of rdma-core, of the version of its packages (default Debian's source package)")

// suiteDir is where the tests are in the tree.
const suiteDir = "run/suite"

// fetchSuite brings rdma-core's tests into the tree of a run. Debian's packages have no tests, but the source package has.
func fetchSuite(ctx context.Context, work string) error {
	if *suiteFlag != "" {
		return os.CopyFS(filepath.Join(work, "tests"), os.DirFS(filepath.Join(*suiteFlag, "tests")))
	}
	return lab.NewSource(ctx, "rdma-core", "tests", work)
}

// reasons say why tests are skipped, by the beginnings of their messages. A call for which the provider rxe of libibverbs has
// no function fails within the program, whatever the device says.
var reasons = []struct{ message, why string }{
	{"Create XRCD is not supported", "XRC: rxe's provider has none"},
	{"Device memory is not supported", "device memory: rxe's provider has none"},
	{"Must be run by root on Ethernet link layer", "flow steering and RSS, on raw packet QPs: rxe's provider has none, for root either"},
	{"To Create RAW QP must be done by root", "raw packet QPs: rxe has none, for root either"},
	{"Allocating dmabuf", dmabuf},
	{"Device /dev/dri", dmabuf},
	{"Lack of permission to access /dev/dri", dmabuf},
	{"Reg dma-buf MR", dmabuf},
	{"Rereg MR is not supported", "rereg_mr: rxe's provider has none"},
	{"ODP implicit is not supported", "the whole address space on demand: not offered, as by Linux's rxe"},
	{"Advise MR", "advise_mr: rxe's provider has it from rdma-core 59 on"},
	{"There are no huge pages", "huge pages: the machine has none"},
	{"Parent Domain is not supported", "parent domains: rxe's provider has none"},
	{"Importing a device is not supported", "import of a device: rxe's provider has none"},
	{"Extended CQ is not supported", "tag matching: rxe's provider has none"},
}

const dmabuf = "dmabuf: needs a GPU's driver, and rxe's provider has no reg_dmabuf_mr"

func reason(message string) string {
	for _, r := range reasons {
		if strings.HasPrefix(message, r.message) {
			return r.why
		}
	}
	return message
}

// TestSuite runs rdma-core's own tests of libibverbs, which are in Python, on a device.
func TestSuite(t *testing.T) {
	needTree(t)
	if why, err := os.ReadFile(filepath.Join(os.TempDir(), noSuite)); err == nil {
		results.lack = string(why)
		t.Skip(results.lack)
	}
	leavesNothing(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	p := start(ctx, t, []string{"PYTHONDONTWRITEBYTECODE=1"}, adverb, "run", "python3", "/run/suite.py", "/"+suiteDir, "rxe_eth0")
	p.wait()
	if p.status.Code != 0 || p.status.Signal != "" || ctx.Err() != nil {
		t.Fatalf("want an end with exit status 0\n%s", p.report())
	}
	modules := make(map[string]*module)
	n := 0
	for line := range strings.Lines(p.output.String()) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 || f[0] != "RESULT" {
			continue
		}
		n++
		name := strings.Split(f[1], ".")[1]
		if strings.HasPrefix(name, "test_mlx5_") || strings.HasPrefix(name, "test_efa") {
			name = "test_mlx5_*, test_efa*"
		}
		m := modules[name]
		if m == nil {
			m = &module{remarks: map[string]int{}}
			modules[name] = m
		}
		switch f[2] {
		case "passed":
			m.passed++
		case "skipped":
			m.skipped++
			m.remarks[reason(f[3])]++
		default:
			m.failed++
			t.Errorf("%s: %s", f[1], f[3])
		}
	}
	if n < 100 {
		t.Fatalf("%d results, want those of some hundred tests\n%s", n, p.report())
	}
	results.suite = suiteTable(modules)
}

// module is the results of a file of tests.
type module struct {
	passed, skipped, failed int
	remarks                 map[string]int // why tests were skipped
}

func suiteTable(modules map[string]*module) string {
	var b strings.Builder
	b.WriteString(suiteHead + "\n| tests | passed | skipped | failed | why |\n|---|---|---|---|---|\n")
	var all module
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		all.passed, all.skipped, all.failed = all.passed+m.passed, all.skipped+m.skipped, all.failed+m.failed
		remarks := slices.Sorted(maps.Keys(m.remarks))
		if strings.Contains(name, "*") {
			remarks = []string{"for devices of those makers"}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s |\n", name, m.passed, m.skipped, m.failed, strings.Join(remarks, "; "))
	}
	fmt.Fprintf(&b, "| all | %d | %d | %d | |\n", all.passed, all.skipped, all.failed)
	return b.String()
}
