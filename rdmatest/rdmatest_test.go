package rdmatest_test

import (
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestConnect(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)

	src, dst := x.MR(64), y.MR(64)
	copy(src.Bytes(), "over memory")
	y.Recv(verbs.RecvWR{ID: 7, SGList: []verbs.SGE{dst.SGE(0, 64)}})
	x.Send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 11)}})
	if wc := y.Done(); wc.ID != 7 || wc.Op != verbs.WCRecv || wc.ByteLen != 11 || string(dst.Bytes()[:11]) != "over memory" {
		t.Errorf("received %+v, %q", wc, dst.Bytes()[:11])
	}
	if wc := x.Done(); wc.ID != 3 || wc.Op != verbs.WCSend {
		t.Errorf("sent %+v", wc)
	}
}

// A partition ends in a timeout, whose 8 × 67 ms take no time inside a bubble.
func TestPartitionInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		x, _ := rdmatest.Connect(t, a, b)
		net.Partition(a, b)
		x.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled})
		if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("partitioned send: %v", wc.Err())
		} else {
			t.Log(wc.Err())
		}
	})
}
