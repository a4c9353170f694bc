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
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// "adverb run" shows a program the software devices as if they were the kernel's rdma_rxe. So rdma-core's own libibverbs,
// with its provider for rxe, is driven by this package here, without a card and without a kernel module.

// envInside names the device, in the process under "adverb run".
const envInside = "ADVERB_TEST_NATIVE_DEVICE"

// expectation is what a case of the conformance suite is known to do, and why.
type expectation struct {
	sometimes bool // it passes and fails
	cause     string
}

// rxeFails are the cases of the conformance suite that do not pass with rdma-core's provider for rxe.
var rxeFails = map[string]expectation{
	"rc/full_queues":           {cause: "the provider makes queues with room for 2^n-1 work requests, and does not tell"},
	"srq/attributes":           {cause: "the provider makes queues with room for 2^n-1 receives, and does not tell"},
	"mr/rereg_keeps_addresses": {cause: "the kernel takes an IOVA only that lies as far into a page as the memory does"},
	"mr/zero_based":            {sometimes: true, cause: "the same, and Go's heap may give memory from a page on"},
	"mr/iova":                  {sometimes: true, cause: "the same"},
}

// rxeSkips are those that need what the devices do not have.
var rxeSkips = map[string]string{
	"rc/watching_memory": "LAST_WORD_LAST is not guaranteed",
	"cq/exact_events":    "EXACT_EVENTS is not guaranteed",
	"cq/resize":          "EXACT_EVENTS is not guaranteed",
	"cq/overflow":        "OVERRUN_STATUS is not guaranteed",
	"mr/rereg_access":    "rdma-core 44 has no rereg_mr for rxe",
	"mr/rereg_memory":    "rdma-core 44 has no rereg_mr for rxe",
	"mr/rereg_PD":        "rdma-core 44 has no rereg_mr for rxe",
	"mr/rereg_all":       "rdma-core 44 has no rereg_mr for rxe",
	"mr/rereg_errors":    "rdma-core 44 has no rereg_mr for rxe",
}

// TestInside is what the process under "adverb run" does.
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
	verbstest.Run(t, verbstest.Config{Open: func(t testing.TB) (a, b *verbs.Device) {
		for _, d := range []**verbs.Device{&a, &b} {
			opened, err := p.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			*d = verbs.NewDevice(opened)
		}
		return a, b
	}})
}

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

var resultLine = regexp.MustCompile(`(?m)^    --- (PASS|FAIL|SKIP): TestInside/(\S+)`)

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
	results := map[string]string{}
	for _, m := range resultLine.FindAllStringSubmatch(out.String(), -1) {
		results[m[2]] = m[1]
	}
	if len(results) < len(verbstest.Cases()) {
		t.Fatalf("%d results of %d cases: %v\n%s", len(results), len(verbstest.Cases()), err, out.Bytes())
	}
	count := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		got := results[name]
		count[got]++
		known, fails := rxeFails[name]
		reason, skips := rxeSkips[name]
		switch {
		case got == "FAIL" && !fails:
			t.Errorf("%s fails:\n%s", name, linesOf(out.String(), name))
		case got == "SKIP" && !skips:
			t.Errorf("%s is skipped:\n%s", name, linesOf(out.String(), name))
		case got == "PASS" && fails && !known.sometimes:
			t.Errorf("%s passes, and is known to fail (%s): take it off the list", name, known.cause)
		case got != "SKIP" && skips:
			t.Errorf("%s: %s, and is known to be skipped (%s)", name, got, reason)
		}
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(rxeFails)), slices.Sorted(maps.Keys(rxeSkips))) {
		if results[name] == "" {
			t.Errorf("%s is known, and there is no such case", name)
		}
	}
	t.Logf("%d pass, %d fail as known, %d are skipped", count["PASS"], count["FAIL"], count["SKIP"])
}

// linesOf returns what a case has printed.
func linesOf(out, name string) string {
	_, rest, _ := strings.Cut(out, "=== RUN   TestInside/"+name+"\n")
	text, _, _ := strings.Cut(rest, "=== RUN")
	return cmp.Or(text, "nothing")
}
