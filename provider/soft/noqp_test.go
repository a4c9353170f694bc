package soft_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestNobodysQP: who sends to a QPN that no process of the address has, finds that in the counters there.
func TestNobodysQP(t *testing.T) {
	d := must(verbs.Open(loopback(t) + "@127.0.77.9"))
	defer d.Close()
	pd, cq := must(d.AllocPD()), must(d.CreateCQ(16))
	qp := must(pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1}}))
	check(qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 7}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	check(qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	check(qp.RTS(1, verbs.Retry{}))
	ah := must(pd.CreateAH(verbs.AHAttr{DGID: must(d.GID(1, 0)).GID}))
	const sent, some = 16, 12 // another process may have a few of the QPNs
	for i := range verbs.QPN(sent) {
		check(qp.PostOneSend(verbs.SendWR{Op: verbs.OpSend, AH: ah, RemoteQPN: qp.QPN() ^ (i+1)<<16, RemoteQKey: 7}))
	}
	for limit := time.Now().Add(time.Minute); must(d.Counters()).Value("drop_no_qp") < some; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d of %d datagrams are counted as for no QP, want %d at least", must(d.Counters()).Value("drop_no_qp"), sent, some)
		}
	}
}
