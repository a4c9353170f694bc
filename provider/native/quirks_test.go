//go:build linux && (amd64 || arm64)

package native

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSiwQuirks: siw refuses a receive without an SGE, and tells the state of no QP.
func TestSiwQuirks(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	d := p.dev.Provider().(*device)
	if d.quirks != (quirks{}) {
		t.Fatalf("the fake library's device has the quirks %+v, want none", d.quirks)
	}
	d.quirks = quirksOf(vendorSiw)
	q := p.qp(t)
	defer func() { check(t, q.Close()) }()
	native := q.Provider().(*qp)

	bare := must(p.pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq}))(t)
	if _, a, err := bare.Query(); err != nil || a.Cap.MaxSendWR < 1 || a.Cap.MaxRecvWR < 1 {
		t.Errorf("a QP without places: C is asked for %+v, %v; want one for each queue", a.Cap, err)
	}
	check(t, bare.Close())

	check(t, q.Init(rocePort, everything))
	native.rq.mem.SGEs[0] = ibv.SGE{Addr: 1, Length: 1, LKey: 1}
	check(t, q.PostOneRecv(7))
	if got := native.rq.mem.SGEs[0]; got != (ibv.SGE{}) {
		t.Errorf("a receive without SGEs: C gets %+v, want one SGE of no bytes", got)
	}
	recvs := make([]verbs.RecvWR, pairDepth-1) // more than the SGEs of one list
	if n, err := q.PostRecv(recvs); n != len(recvs) || err != nil {
		t.Errorf("receives without SGEs: %d of %d are posted, %v", n, len(recvs), err)
	}

	check(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	native.state.Store(uint32(verbs.QPStateRTS)) // where iWARP's kernel takes it
	a, _, err := q.Query()
	check(t, err)
	if a.State != verbs.QPStateRTS {
		t.Errorf("a query without a state: got %v, want %v, the last that is known", a.State, verbs.QPStateRTS)
	}

	connected := *p
	connected.a, connected.b = p.qp(t), p.qp(t)
	connected.connect(t)
	defer func() { check(t, connected.a.Close()); check(t, connected.b.Close()) }()
	read := verbs.SendWR{Op: verbs.OpRDMARead, Remote: p.mr.Remote(1 << 11)}
	check(t, connected.a.PostOneSend(read, p.mr.SGE(0, 4), p.mr.SGE(8, 0)))
	err = connected.a.PostOneSend(read, p.mr.SGE(0, 4), p.mr.SGE(8, 4))
	wantErr(t, "a READ into two SGEs", err, verbs.ErrLimit, "max_sge_rd")
}
