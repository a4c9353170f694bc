//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

var idleQPCount = flag.Int("idleqps", 20_000, "how many idle QPs TestProcessIdleQPs creates")

// maxIdleQP is how many bytes an idle connection with queues of one may cost.
const maxIdleQP = 4096

// envIdle makes the test binary a program that creates as many QPs as the variable says, and
// reports their cost.
const envIdle = "ADVERB_TEST_IDLE"

func init() {
	if n, _ := strconv.Atoi(os.Getenv(envIdle)); n > 0 {
		check(json.NewEncoder(os.Stdout).Encode(createIdle(os.Getenv(envIdle+"_DEVICE"), n)))
		os.Exit(0)
	}
}

// idleReport is the cost of all QPs together.
type idleReport struct {
	Heap, Resident        map[string]int64 // bytes by state of the QPs, more than before the first
	Create, Connect, Time time.Duration
	Lookup                time.Duration // for a message through the last QP
}

func createIdle(device string, n int) idleReport {
	r := idleReport{Heap: map[string]int64{}, Resident: map[string]int64{}}
	dev := must(verbs.Open(device))
	pd, cq, gid := must(dev.AllocPD()), must(dev.CreateCQ(16)), must(dev.GID(1, 0)).GID
	heap, resident := memory()
	qps := make([]*verbs.QP, n)
	measure := func(state string) {
		h, m := memory()
		r.Heap[state], r.Resident[state] = h-heap-int64(8*n), m-resident
	}
	start := time.Now()
	for i := range qps {
		qps[i] = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
	}
	r.Create = time.Since(start)
	measure("RESET")
	start = time.Now()
	for i, qp := range qps {
		check(qp.Init(1, 0))
		check(qp.RTR(verbs.Peer{QPN: qps[i^1].QPN(), GID: gid}, verbs.Path{MaxDestRDAtomic: 1})) // so that it has a queue for them
		check(qp.RTS(0, verbs.DefaultRetry))
	}
	r.Connect = time.Since(start)
	measure("RTS")
	start = time.Now()
	must(qps[n-1].PostRecv([]verbs.RecvWR{{}}))
	must(qps[(n-1)^1].PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled}}))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for got := 0; got < 2; {
		var wcs [2]verbs.WC
		k := must(cq.Wait(ctx, wcs[:]))
		for _, wc := range wcs[:k] {
			check(wc.Err())
		}
		got += k
	}
	r.Lookup = time.Since(start)
	measure("used")
	runtime.KeepAlive(qps)
	return r
}

// memory returns the bytes of the Go heap in use, and of the process resident.
func memory() (heap, resident int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/status")))) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(kb, &resident)
		}
	}
	return int64(m.HeapAlloc), resident << 10
}

// An idle QP costs less than 4 KiB, so a hundred thousand connections fit on a small machine.
func TestProcessIdleQPs(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	n := *idleQPCount &^ 1
	cmd.Env = append(os.Environ(), envIdle+"="+strconv.Itoa(n), envIdle+"_DEVICE="+loopback(t)+"@"+loopAddr(30))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r idleReport
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, state := range []string{"RESET", "RTS", "used"} {
		t.Logf("%d QPs in %s: %d bytes of heap and %d resident for each", n, state, r.Heap[state]/int64(n), r.Resident[state]/int64(n))
	}
	t.Logf("%v to create all, %v to connect all, %v for a message through the last", r.Create, r.Connect, r.Lookup)
	if got := r.Heap["RTS"] / int64(n); got > maxIdleQP {
		t.Errorf("an idle QP costs %d bytes, want at most %d", got, maxIdleQP)
	}
}
