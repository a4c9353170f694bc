//go:build !adverb_portable

package soft_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// envCareless makes the test binary a careless process: one that unmaps memory while peers may write to it. The
// variable's value is the device's name.
const envCareless = "ADVERB_TEST_CARELESS"

func init() {
	if device := os.Getenv(envCareless); device != "" {
		careless(device)
		os.Exit(0)
	}
}

// careless registers memory, tells where it is, takes it away when told to, and reports the errors that it gets.
func careless(device string) {
	dev := must(verbs.Open(device))
	pd := must(dev.AllocPD())
	cq := must(dev.CreateCQ(8))
	b := must(syscall.Mmap(-1, 0, 64<<10, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON))
	const access = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	mr := must(pd.RegMR(b, verbs.AccessLocalWrite|access))
	qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(qp.Init(1, access))
	fmt.Println(uint32(qp.QPN()))
	fmt.Println(uint32(mr.RKey()), mr.Remote(0).VA)
	var qpn uint32
	must(fmt.Fscan(os.Stdin, &qpn))
	check(qp.RTR(verbs.Peer{QPN: verbs.QPN(qpn), GID: must(dev.GID(1, 0)).GID}, verbs.Path{}))
	check(qp.RTS(0, verbs.Retry{Timeout: 14, RetryCount: 3, RNRRetryCount: 7, MaxRDAtomic: 1}))
	check(syscall.Mprotect(b, syscall.PROT_NONE))
	fmt.Println("ready")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		ev := must(dev.NextEvent(ctx))
		if ev.Type != verbs.EventCommEst {
			fmt.Println(ev.Type, ev.Cause)
			check(mr.Close())
			return
		}
	}
}

// TestProcessMemoryFault: a process lives on after a peer's request for memory that it has taken away, and hears of it. So
// does the peer.
func TestProcessMemoryFault(t *testing.T) {
	lanes(t)
	device := loopback(t) + "@" + loopAddr(108)
	dev := must(verbs.Open(device))
	defer dev.Close()
	pd := must(dev.AllocPD())
	gid := must(dev.GID(1, 0)).GID
	local := must(pd.AllocMR(64<<10, verbs.AccessLocalWrite))
	for _, tt := range []struct {
		op verbs.Opcode
		n  int
	}{{verbs.OpRDMAWrite, 8}, {verbs.OpRDMAWrite, 64 << 10}, {verbs.OpRDMARead, 8}, {verbs.OpRDMARead, 64 << 10}, {verbs.OpAtomicFetchAdd, 8}} {
		t.Run(fmt.Sprint(tt.op, " of ", tt.n), func(t *testing.T) {
			c := startChild(envCareless + "=" + device)
			defer c.cmd.Process.Kill()
			qpn, err := c.qpn()
			if err != nil {
				t.Fatalf("the process does not start: %v, %s", err, c.errors.String())
			}
			var rkey uint32
			var va uint64
			must(fmt.Fscan(c.out, &rkey, &va))
			cq := must(dev.CreateCQ(8))
			qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
			defer qp.Close()
			check(qp.Init(1, 0))
			check(qp.RTR(verbs.Peer{QPN: qpn, GID: gid}, verbs.Path{}))
			retry := patientRetry
			retry.MaxRDAtomic = 1
			check(qp.RTS(0, retry))
			fmt.Fprintln(c.in, uint32(qp.QPN()))
			var ready string
			must(fmt.Fscan(c.out, &ready))
			must(qp.PostSend([]verbs.SendWR{{Op: tt.op, Flags: verbs.SendSignaled, CompareAdd: 1, SGList: []verbs.SGE{local.SGE(0, tt.n)},
				Remote: verbs.RemoteAddr{VA: va, RKey: verbs.RKey(rkey)}}}))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			var wc [1]verbs.WC
			must(cq.Wait(ctx, wc[:]))
			if wc[0].Status != verbs.WCRemOpErr {
				t.Fatalf("the completion is %v (%v), want %v", wc[0].Status, wc[0].Cause, verbs.WCRemOpErr)
			}
			said, _ := io.ReadAll(c.out)
			if err := c.cmd.Wait(); err != nil || !strings.Contains(string(said), verbs.EventQPFatal.String()) || !strings.Contains(string(said), "close the MR") {
				t.Errorf("the process ends with %v, and says %q and %q, want %v with the remedy", err, said, c.errors.String(), verbs.EventQPFatal)
			}
		})
	}
}
