package rdmatest_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func Example() {
	var t *testing.T // of the test function

	net := rdmatest.New(t)
	x, y := rdmatest.Connect(t, net.Device(), net.Device())

	src, dst := x.MR(16), y.MR(16)
	copy(src.Bytes(), "one-sided")
	x.Send(verbs.SendWR{
		Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{src.SGE(0, 16)}, Remote: dst.Remote(0),
	})
	x.Done() // y's program had no part in it
	if string(dst.Bytes()[:9]) != "one-sided" {
		t.Errorf("y has %q", dst.Bytes())
	}
}
