package rdmatest_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
	"github.com/adverb-rdma/adverb/verbs"
)

// pathMTU returns the path MTU of an endpoint's QP.
func pathMTU(t *testing.T, qp *verbs.QP) verbs.MTU {
	t.Helper()
	attr, _, err := qp.Query()
	if err != nil {
		t.Fatal(err)
	}
	return attr.PathMTU
}

// Config.MTU is what the ports can.
func TestInfiniBandMTU(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{InfiniBand: true, MTU: 1024})
	a, b := net.Device(), net.Device()
	if p, err := a.QueryPort(1); err != nil || p.MaxMTU != verbs.MTU1024 || p.ActiveMTU != verbs.MTU1024 {
		t.Errorf("MTUs %v and %v, %v; want 1024", p.MaxMTU, p.ActiveMTU, err)
	}
	x, y := rdmatest.Connect(t, a, b)
	if got := pathMTU(t, x.QP); got != verbs.MTU1024 || !copies(x, y, 10000) {
		t.Errorf("path MTU %v, want 1024; or the bytes do not arrive", got)
	}
	if err := x.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	if err := x.QP.Init(1, rdmatest.Access); err != nil {
		t.Fatal(err)
	}
	if err := x.QP.RTR(verbs.Peer{LID: 1, QPN: y.QP.QPN()}, verbs.Path{MTU: verbs.MTU2048}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a path MTU of 2048: %v, want ErrInvalid", err)
	}
}

// A switch between two ports narrows the path, which the ports cannot see. Who asks subnet administration knows of it,
// and the packets of who does not are lost.
func TestInfiniBandPathMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.InfiniBand())
		left, old, right := net.Switch("left"), net.Switch("old"), net.Switch("right")
		old.SetMTU(verbs.MTU2048)
		left.Connect(old)
		old.Connect(right)
		a, b := left.Device(), right.Device()
		if p, err := b.QueryPort(1); err != nil || p.ActiveMTU != verbs.MTU4096 {
			t.Fatalf("active MTU %v, %v; want 4096 of the port's own cable", p.ActiveMTU, err)
		}
		x, y := rdmatest.Connect(t, a, b)
		if got := pathMTU(t, x.QP); got != verbs.MTU2048 || !copies(x, y, 10000) {
			t.Errorf("Connect: path MTU %v, want 2048; or the bytes do not arrive", got)
		}
		u, v := cmtest.Dial(t, a, b, nil, nil)
		if got, other := pathMTU(t, u.QP()), pathMTU(t, v.QP()); got != verbs.MTU2048 || other != verbs.MTU2048 {
			t.Errorf("rdmacm: path MTUs %v and %v, want 2048", got, other)
		}
		if p, err := u.ID().Path(); err != nil || p.MTU != verbs.MTU2048 {
			t.Errorf("rdmacm: path of MTU %v, %v; want 2048", p.MTU, err)
		}
		wide := brief
		wide.Path.MTU = verbs.MTU4096
		x, y = rdmatest.Connect(t, a, b, wide)
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR(4096).SGE(0, 4096)}, Remote: y.MR(4096).Remote(0)})
		if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("packets of 4096 bytes across a switch of 2048: %v, want RETRY_EXC_ERR", wc.Status)
		}
	})
}
