package rdmatest_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSelectiveRepeat: over IPv4 and IPv6 just those packets are sent again that were lost, once the two ends know each
// other as adverbs.
func TestSelectiveRepeat(t *testing.T) {
	for gid, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size = 256 << 10
				net := rdmatest.New(t, rdmatest.Config{Delay: 100 * time.Microsecond})
				a, b := net.Device(), net.Device()
				x, y := rdmatest.Connect(t, a, b, rdmatest.Options{GIDIndex: gid, Path: verbs.Path{MTU: verbs.MTU1024}})
				src, dst := x.MR(size), y.MR(size)
				write := func() {
					x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
					x.Done()
				}
				for range 20 { // they get to know each other
					write()
				}
				if n := counter(t, x, "retrans_pkts"); n > 0 {
					t.Fatalf("%d packets were sent again, and none was lost", n)
				}
				for i := range src.Bytes() {
					src.Bytes()[i] = byte(i) ^ byte(i>>8)
				}
				lost := []int{7, 20, 21, 100}
				for _, n := range lost {
					net.OnPacket(a, b, n, rdmatest.Lose)
				}
				write()
				if !bytes.Equal(dst.Bytes(), src.Bytes()) {
					t.Error("the WRITE is complete, and not whole")
				}
				if n := counter(t, x, "retrans_pkts"); n != uint64(len(lost)) {
					t.Errorf("%d packets were sent again, want the %d that were lost", n, len(lost))
				}
				if naks, held := counter(t, x, "rcvd_seq_err"), counter(t, y, "held_request"); naks > 0 || held == 0 {
					t.Errorf("%d NAKs and %d packets that were held, want none and some", naks, held)
				}
			})
		})
	}
}
