//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// envWriter makes the test binary a writer: a process that connects to the test, and works on its memory until it may
// not any more. The variable's value is the device's name.
const envWriter = "ADVERB_TEST_WRITER"

func init() {
	if device := os.Getenv(envWriter); device != "" {
		writer(device)
		os.Exit(0)
	}
}

const (
	writerBlock = 48 << 10 // bytes of a WRITE, behind the word that counts them
	writerSize  = 64 << 10
)

// writer adds to the first word of the test's region, and writes blocks behind it, one after the other. When it fails
// it says how many it has carried out itself.
func writer(device string) {
	dev := must(verbs.Open(device))
	pd := must(dev.AllocPD())
	cq := must(dev.CreateCQ(8))
	mr := must(pd.AllocMR(writerSize, verbs.AccessLocalWrite))
	qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(qp.Init(1, 0))
	fmt.Println(uint32(qp.QPN()))
	var qpn, rkey uint32
	var va uint64
	must(fmt.Fscan(os.Stdin, &qpn, &rkey, &va))
	check(qp.RTR(verbs.Peer{QPN: verbs.QPN(qpn), GID: must(dev.GID(1, 0)).GID}, verbs.Path{}))
	check(qp.RTS(0, verbs.Retry{Timeout: 14, RetryCount: 3, RNRRetryCount: 7, MaxRDAtomic: 1}))
	remote := verbs.RemoteAddr{VA: va, RKey: verbs.RKey(rkey)}
	var wcs [2]verbs.WC
	for block := byte(1); ; block++ {
		copy(mr.Bytes(), bytes.Repeat([]byte{block}, writerBlock))
		_, err := qp.PostSend([]verbs.SendWR{
			{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, writerBlock)}, Remote: remote.Add(100)},
			{Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, CompareAdd: 1, SGList: []verbs.SGE{mr.SGE(writerBlock, 8)}, Remote: remote},
		})
		check(err)
		for done := 0; done < 2; {
			n := must(cq.Poll(wcs[:]))
			for i := range wcs[:n] {
				if wcs[i].Status != verbs.WCSuccess {
					fmt.Println(must(qp.Counters()).Value("shm_direct_ops"))
					return
				}
			}
			done += n
		}
	}
}

// writing is a writer, with its memory.
type writing struct {
	*child
	t  *testing.T
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

func startWriter(t *testing.T, pd *verbs.PD, gid verbs.GID, device string) *writing {
	w := &writing{t: t, child: startChild(envWriter + "=" + device)}
	qpn, err := w.qpn()
	if err != nil {
		t.Fatalf("the writer does not start: %v, %s", err, w.errors.String())
	}
	const access = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	w.cq = must(pd.Device().CreateCQ(8))
	w.mr = must(pd.AllocMR(writerSize, verbs.AccessLocalWrite|access))
	w.qp = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: w.cq, RecvCQ: w.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(w.qp.Init(1, access))
	check(w.qp.RTR(verbs.Peer{QPN: qpn, GID: gid}, verbs.Path{}))
	check(w.qp.RTS(0, patientRetry))
	fmt.Fprintln(w.in, uint32(w.qp.QPN()), uint32(w.mr.RKey()), w.mr.Remote(0).VA)
	return w
}

// count is how many blocks have come.
func (w *writing) count() uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(w.mr.Bytes()))).Load()
}

// wait waits until a number of blocks have come.
func (w *writing) wait(n uint64) {
	for limit := time.Now().Add(patience); w.count() < n; runtime.Gosched() {
		if time.Now().After(limit) {
			w.t.Fatalf("%d blocks came, want %d", w.count(), n)
		}
	}
}

// end waits for the writer's end, and returns how many operations it has carried out itself.
func (w *writing) end() (direct uint64) {
	line, err := io.ReadAll(w.out)
	if w.cmd.Wait(); w.errors.Len() > 0 || err != nil {
		w.t.Errorf("the writer says %s, %v, want nothing", w.errors.String(), err)
	}
	fmt.Sscan(strings.TrimSpace(string(line)), &direct)
	return direct
}

// TestDirectEnds: processes that have access to memory of this one lose it at random instants, in which some are
// stopped or killed. Whatever has ended it, the memory does not change any more once this process was told so, also
// when one goes on that was stopped in the middle of an operation. With -soak=10m it is thousands.
func TestDirectEnds(t *testing.T) {
	lanes(t)
	device := loopback(t) + "@" + loopAddr(37)
	dev := must(verbs.Open(device))
	pd := must(dev.AllocPD())
	gid := must(dev.GID(1, 0)).GID
	openShards(pd, gid)
	random := newRand(t)
	files := 0 // after the first round
	var direct uint64
	var slowest time.Duration
	ends := []struct {
		name string
		end  func(w *writing)
	}{
		{"the QP is closed", func(w *writing) { check(w.qp.Close()) }},
		{"the QP goes to the error state", func(w *writing) {
			check(w.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		}},
		{"the QP allows nothing", func(w *writing) {
			check(w.qp.Modify(&verbs.QPAttr{}, verbs.MaskAccessFlags))
		}},
		{"the region gets another key", func(w *writing) {
			check(w.mr.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
		}},
	}
	rounds, stopped := 0, 0
	for end := time.Now().Add(*soak); rounds < len(ends) || time.Now().Before(end) && !t.Failed(); rounds++ {
		w := startWriter(t, pd, gid, device)
		w.wait(20 + random.Uint64N(2000))
		how := ends[rounds%len(ends)]
		stop := random.IntN(3) > 0
		if stop {
			check(w.cmd.Process.Signal(syscall.SIGSTOP))
			stopped++
		}
		start := time.Now()
		how.end(w)
		slowest = max(slowest, time.Since(start))
		before := slices.Clone(w.mr.Bytes())
		if stop {
			check(w.cmd.Process.Signal(syscall.SIGCONT))
		}
		if random.IntN(4) == 0 {
			w.cmd.Process.Kill()
		}
		direct += w.end()
		if !bytes.Equal(before, w.mr.Bytes()) {
			at := 0
			for before[at] == w.mr.Bytes()[at] {
				at++
			}
			t.Errorf("%s, stopped %v: byte %d has become %#x after that, from %#x, want all as they were", how.name, stop, at, w.mr.Bytes()[at], before[at])
		}
		for _, c := range []io.Closer{w.qp, w.cq, w.mr} {
			c.Close() // the QP may be closed
		}
		if rounds == 0 {
			files = filesButMemory()
		}
	}
	const slack = maxFiles + maxBoxes // sockets to those who have gone close later
	for limit := time.Now().Add(patience); filesButMemory() > files+slack; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d files are open in the end; %d were before, want %d more at most; now there are %v", filesButMemory(), files, slack, filesOpen())
		}
	}
	check(pd.Close())
	check(dev.Close())
	if direct == 0 {
		t.Error("no writer has had access")
	}
	t.Logf("%d ends, %d of writers that were stopped; the slowest took %v; %d operations were carried out by the writers", rounds, stopped, slowest, direct)
}
