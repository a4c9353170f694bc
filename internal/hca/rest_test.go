package hca

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestQPNsRest: the number of a QP that was closed is not given again for a while, however many QPs come
// and go.
func TestQPNsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := Open(sim.New(sim.Config{}).Netdev("sim", simAddr(1)), Config{Driven: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		dev := verbs.NewDevice(d)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(1)
		if err != nil {
			t.Fatal(err)
		}
		gone := map[verbs.QPN]time.Time{}
		for range 2000 {
			qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if at, ok := gone[qp.QPN()]; ok && time.Since(at) < qpnRest {
				t.Fatalf("QPN %v is given again %v after it was given back, want %v or more", qp.QPN(), time.Since(at), qpnRest)
			}
			if err := qp.Close(); err != nil {
				t.Fatal(err)
			}
			gone[qp.QPN()] = time.Now()
		}
	})
}
