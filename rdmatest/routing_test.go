package rdmatest_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestAdaptiveRouting: in the first message of a connection, before adverbs know each other, WRITEs whose packets
// overtake one another arrive whole, without a NAK or a repeat, if both ends were told of it, by a call or by the
// environment. Otherwise there are many.
func TestAdaptiveRouting(t *testing.T) {
	for _, told := range []string{"by a call", "by ADVERB_ROUTING", ""} {
		routed := told != ""
		if told == "by ADVERB_ROUTING" {
			t.Setenv("ADVERB_ROUTING", "send,accept,patience=100ms")
		} else {
			t.Setenv("ADVERB_ROUTING", "")
		}
		synctest.Test(t, func(t *testing.T) {
			const size = 256 << 10
			net := rdmatest.New(t, rdmatest.Config{Seed: 3, Delay: 100 * time.Microsecond, Reorder: 0.2})
			x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{GIDIndex: 1})
			for _, e := range []*rdmatest.Endpoint{x, y} {
				if told != "by a call" {
					break
				}
				if err := e.QP.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Patience: 100 * time.Millisecond}); err != nil {
					t.Fatal(err)
				}
			}
			src, dst, note := x.MR(size), y.MR(size), y.MR(8)
			for i := range src.Bytes() {
				src.Bytes()[i] = byte(i) ^ byte(i>>8)
			}
			y.Recv(verbs.RecvWR{SGList: []verbs.SGE{note.SGE(0, 8)}})
			x.Send(
				verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)},
				verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}})
			y.Done()
			if !bytes.Equal(dst.Bytes(), src.Bytes()) {
				t.Errorf("adaptive routing %q: the SEND is complete, and the WRITE before it is not whole", told)
			}
			x.Done()
			repeated := counter(t, x, "retrans_pkts") > 0
			if naks := counter(t, x, "rcvd_seq_err"); (naks > 0 || repeated) == routed {
				t.Errorf("adaptive routing %q: %d NAKs, repeated packets: %v", told, naks, repeated)
			}
		})
	}
}
