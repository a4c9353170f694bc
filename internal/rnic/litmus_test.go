package rnic

import (
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/litmus"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLitmusPostRecvVersusError: a receive that is posted while the QP goes to ERR is flushed.
func TestLitmusPostRecvVersusError(t *testing.T) {
	e := newEnd(t, newDevice(t))
	wrs := []verbs.RecvWR{{ID: 1}}
	var wcs [2]verbs.WC
	litmus.Race(t, 20, func() {
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		e.must(e.qp.Init(1, everything))
	}, func() { e.recv(wrs...) }, func() {
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	}, func() string {
		if n, err := e.cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.WCFlushErr {
			return fmt.Sprintf("polled %d, %v, %v; want the one receive, flushed", n, wcs[:n], err)
		}
		return ""
	})
}
