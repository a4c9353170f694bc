package verbs_test

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// allocs fails the test if f allocates. It skips the test under the race detector, whose sync.Pool
// throws things away at random.
func allocs(t *testing.T, what string, f func()) {
	t.Helper()
	if raceEnabled {
		t.Skip("under the race detector")
	}
	for range 500 { // until what is made once has been made, and has grown
		f()
	}
	if n := testing.AllocsPerRun(500, f); n != 0 {
		t.Errorf("%s: %v allocations, want none", what, n)
	}
}

// TestHotPathAllocs checks that posting, moving data and polling allocate nothing, for any operation.
func TestHotPathAllocs(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}})
	src, dst := x.MR(1<<16), y.MR(1<<16)
	wcs := make([]verbs.WC, 16)
	run := func(recvs []verbs.RecvWR, sends []verbs.SendWR) func() {
		return func() {
			if _, err := y.QP.PostRecv(recvs); err != nil {
				t.Fatal(err)
			}
			if _, err := x.QP.PostSend(sends); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(rdmatest.Patience)
			for left := len(recvs) + len(sends); left > 0; {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d completions have not come, want all", left, len(recvs)+len(sends))
				}
				for _, cq := range []*verbs.CQ{y.CQ, x.CQ} { // each end makes progress while it is polled
					n, err := cq.Poll(wcs)
					if err != nil {
						t.Fatal(err)
					}
					left -= n
					for i := range n {
						if wcs[i].Status != verbs.WCSuccess {
							t.Fatal(wcs[i].Err())
						}
					}
				}
			}
		}
	}
	allocs(t, "inline WRITE", run(nil, []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline,
		InlineData: make([]byte, 64), Remote: dst.Remote(0)}}))
	allocs(t, "WRITE, READ and atomic", run(nil, []verbs.SendWR{
		write(1, src.SGE(0, 100), dst.Remote(0)), read(2, src.SGE(104, 30_000), dst.Remote(7)),
		{Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(64)},
	}))
	allocs(t, "SENDs", run(
		[]verbs.RecvWR{recv(1, dst.SGE(0, 5000), dst.SGE(5000, 5000)), recv(2)},
		[]verbs.SendWR{send(1, src.SGE(0, 8), src.SGE(50, 9000)), send(2)},
	))
	allocs(t, "Poll of an empty CQ", func() {
		if n, err := x.CQ.Poll(wcs); n != 0 || err != nil {
			t.Fatalf("polled %d completions of an empty CQ, want 0: %v", n, err)
		}
	})
	allocs(t, "PostOneSend and PostOneRecv", func() {
		check(t, y.QP.PostOneRecv(3, dst.SGE(0, 8), dst.SGE(16, 8)))
		check(t, x.QP.PostOneSend(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.SendSignaled}, src.SGE(0, 12)))
		deadline := time.Now().Add(rdmatest.Patience)
		for left := 2; left > 0; { // each end makes progress while it is polled
			if time.Now().After(deadline) {
				t.Fatalf("%d of 2 completions have not come, want both", left)
			}
			left -= must(y.CQ.Poll(wcs))(t) + must(x.CQ.Poll(wcs))(t)
		}
	})
	allocs(t, "Notify", func() { check(t, x.CQ.Notify(false)) })
}
