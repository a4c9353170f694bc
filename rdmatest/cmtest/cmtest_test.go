package cmtest_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Dial gives two connections that work.
func TestDial(t *testing.T) {
	net := rdmatest.New(t)
	x, y := cmtest.Dial(t, net.Device(), net.Device(), nil, nil)
	if x.QP().State() != verbs.QPStateRTS || y.QP().State() != verbs.QPStateRTS || x.RemoteAddr() != y.LocalAddr() {
		t.Errorf("QPs in %v and %v, addresses %v and %v; want RTS, and the same", x.QP().State(), y.QP().State(), x.RemoteAddr(), y.LocalAddr())
	}
}
