//go:build linux && (amd64 || arm64)

package native

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/ibv"
	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// "adverb run" shows a program the software devices as if they were the kernel's rdma_rxe. So rdma-core's own libibverbs,
// with its provider for rxe, is driven by this package here, without a card and without a kernel module.

// envInside names the device, in the process under "adverb run".
const envInside = "ADVERB_TEST_NATIVE_DEVICE"

// expectation is the known failure of a case of the conformance suite, and its cause.
type expectation struct {
	sometimes bool // it passes and fails
	cause     string
}

// rxeFails are the cases of the conformance suite that do not pass with rdma-core's provider for rxe.
var rxeFails = map[string]expectation{
	"rc/full_queues":     {cause: "the provider makes queues with room for 2^n-1 work requests, and does not tell"},
	"srq/attributes":     {cause: "the provider makes queues with room for 2^n-1 receives, and does not tell"},
	"rc/flush_to_a_file": {sometimes: true, cause: "rxe registers memory for FLUSHes to storage where it is persistent memory alone, and side B may be rxe"},
	"mr/zero_based":      {sometimes: true, cause: "the kernel takes an address 0 only for memory from a page on, which Go's heap may give or not"},
	"mr/iova":            {sometimes: true, cause: "the kernel takes an IOVA only that lies as far into a page as the memory does, as Go's heap may give it or not"},
}

// needless is why a case is skipped.
type needless struct {
	byB   bool // side B uses the feature that the device lacks, so a software device there has it
	cause string
}

// Why cases of FLUSH and ATOMIC WRITE are skipped where the library is older. Where it is not, they pass.
const (
	before44 = "rdma-core before 44 has no ATOMIC WRITE"
	before45 = "rdma-core before 45 has no FLUSH"
)

// noXRC is why all cases of XRC are skipped.
const noXRC = "rxe has no XRC"

// rxeSkips are the cases that need features which the devices do not have.
var rxeSkips = map[string]needless{
	"rc/watching_memory":           {false, "LAST_WORD_LAST is not guaranteed"},
	"cq/exact_events":              {false, "EXACT_EVENTS is not guaranteed"},
	"cq/resize":                    {false, "EXACT_EVENTS is not guaranteed"},
	"cq/overflow":                  {false, "OVERRUN_STATUS is not guaranteed"},
	"cq/timestamps":                {false, "rdma-core has no timestamps for rxe"},
	"rc/atomic_write":              {false, before44},
	"rc/atomic_write_behind_flush": {false, before45},
	"rc/flush":                     {false, before45},
	"rc/flush_to_a_file":           {false, before45},
	"rc/error:_flush_of_a_region_without_access":        {false, before45},
	"rc/error:_flush_by_a_QP_without_access":            {false, before45},
	"rc/error:_flush_beyond_the_region":                 {false, before45},
	"rc/error:_atomic_write_to_a_region_without_access": {false, before44},
	"rc/error:_atomic_write_by_a_QP_without_access":     {false, before44},
	"rc/error:_placement_that_is_none":                  {false, before45},
	"mr/rereg_access":                                   {true, "rdma-core, up to 65, has no rereg_mr for rxe"},
	"mr/rereg_memory":                                   {true, "rdma-core, up to 65, has no rereg_mr for rxe"},
	"mr/rereg_PD":                                       {true, "rdma-core, up to 65, has no rereg_mr for rxe"},
	"mr/rereg_all":                                      {true, "rdma-core, up to 65, has no rereg_mr for rxe"},
	"mr/rereg_keeps_addresses":                          {false, "rdma-core, up to 65, has no rereg_mr for rxe"},
	"mr/rereg_errors":                                   {false, "rdma-core, up to 65, has no rereg_mr for rxe"},
}

// TestInside runs in the process under "adverb run".
func TestInside(t *testing.T) {
	name := os.Getenv(envInside)
	if name == "" {
		t.Skip("this is for the process that TestConformanceRun starts")
	}
	p := newProvider(ibv.Library, classDir)
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(infos, func(i verbs.DeviceInfo) bool {
		return i.Name == name && i.KernelName == name && strings.HasPrefix(i.KernelDevice, "uverbs") && i.NodeType == "CA" && i.Transport == verbs.TransportIB
	}) {
		t.Fatalf("there is no %s: %+v", name, infos)
	}
	open := func(t testing.TB) *verbs.Device {
		opened, err := p.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return verbs.NewDevice(opened)
	}
	t.Run("dmabuf", func(t *testing.T) { // rxe has none, and rdma-core's words for that arrive
		d := open(t)
		pd := must(d.AllocPD())(t)
		_, err := pd.RegDmabuf(0, 0, 4096, 0, verbs.AccessLocalWrite)
		wantErr(t, "register", err, verbs.ErrUnsupported, "ibv_reg_dmabuf_mr: operation not supported")
		check(t, pd.Close())
		check(t, d.Close())
	})
	t.Run(bothNative, func(t *testing.T) {
		verbstest.Run(t, verbstest.Config{Open: func(t testing.TB) (a, b *verbs.Device) { return open(t), open(t) }})
	})
	t.Run(withSoft, func(t *testing.T) {
		verbstest.Run(t, verbstest.Config{Open: func(t testing.TB) (a, b *verbs.Device) {
			soft, err := verbs.Open("soft_" + strings.TrimPrefix(name, "rxe_"))
			if err != nil {
				t.Fatal(err)
			}
			return open(t), soft
		}})
	})
}

// The pairs of devices that the process under "adverb run" tries: libibverbs at both ends, and at side A.
const (
	bothNative = "native"
	withSoft   = "soft"
)

// tool builds the command adverb, or skips the test where it cannot run programs.
func tool(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("some 20 s: not in the short tests")
	}
	if files, _ := filepath.Glob("/usr/lib*/*/libibverbs/librxe-rdmav*.so"); len(files) == 0 {
		if files, _ = filepath.Glob("/usr/lib*/libibverbs/librxe-rdmav*.so"); len(files) == 0 {
			missing(t, "libibverbs with its provider for rxe (on Debian: ibverbs-providers)")
		}
	}
	file := filepath.Join(t.TempDir(), "adverb")
	build := exec.Command("go", "build", "-o", file, "github.com/adverb-rdma/adverb/cmd/adverb")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	if out, err := exec.Command(file, "run", "--check").CombinedOutput(); err != nil {
		t.Skipf("adverb run cannot run programs here:\n%s", out)
	}
	return file
}

var resultLine = regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): TestInside/(\w+)/(\S+)`)

// TestConformanceRun runs the conformance suite on rdma-core's libibverbs, which "adverb run" gives devices. A case that
// fails is known, and one that passes is not known to fail.
func TestConformanceRun(t *testing.T) {
	adverb := tool(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), adverb, "run", self, "-test.run", "^TestInside$", "-test.v")
	cmd.Env = append(os.Environ(), envInside+"=rxe_lo")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if !strings.Contains(out.String(), "--- PASS: TestInside/dmabuf") {
		t.Errorf("memory of other devices: %v\n%s", err, linesOf(out.String(), "dmabuf"))
	}
	results := map[string]map[string]string{bothNative: {}, withSoft: {}} // by pair and case
	for _, m := range resultLine.FindAllStringSubmatch(out.String(), -1) {
		results[m[2]][m[3]] = m[1]
	}
	for pair, of := range results {
		if len(of) < len(verbstest.Cases()) {
			t.Fatalf("%s: %d results of %d cases: %v\n%s", pair, len(of), len(verbstest.Cases()), err, out.Bytes())
		}
		judge(t, pair, of, out.String())
	}
}

// judge compares the results of a pair with those that are known.
func judge(t *testing.T, pair string, results map[string]string, out string) {
	t.Helper()
	count := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		got := results[name]
		count[got]++
		known, fails := rxeFails[name]
		skip, skips := rxeSkips[name]
		if strings.HasPrefix(name, "xrc/") {
			skip, skips = needless{false, noXRC}, true
		}
		skips = skips && !(skip.byB && pair == withSoft)
		switch {
		case got == "FAIL" && !fails:
			t.Errorf("%s: %s fails:\n%s", pair, name, linesOf(out, pair+"/"+name))
		case got == "SKIP" && !skips:
			t.Errorf("%s: %s is skipped:\n%s", pair, name, linesOf(out, pair+"/"+name))
		case got == "PASS" && fails && !known.sometimes:
			t.Errorf("%s: %s passes, and is known to fail (%s): take it off the list", pair, name, known.cause)
		case got != "SKIP" && (skip.cause == before44 || skip.cause == before45): // the library is newer
		case got != "SKIP" && skips:
			t.Errorf("%s: %s: %s, and is known to be skipped (%s)", pair, name, got, skip.cause)
		}
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(rxeFails)), slices.Sorted(maps.Keys(rxeSkips))) {
		if results[name] == "" {
			t.Errorf("%s is known, and there is no such case", name)
		}
	}
	t.Logf("%s: %d pass, %d fail as known, %d are skipped", pair, count["PASS"], count["FAIL"], count["SKIP"])
}

// linesOf returns the output of a case.
func linesOf(out, name string) string {
	_, rest, _ := strings.Cut(out, "=== RUN   TestInside/"+name+"\n")
	text, _, _ := strings.Cut(rest, "=== RUN")
	return cmp.Or(text, "nothing")
}
