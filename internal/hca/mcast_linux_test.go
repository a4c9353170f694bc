//go:build !adverb_portable

package hca

import (
	"net/netip"
	"os"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestMulticastOwn: a QP that sends to its own group has its own datagrams before PostSend returns. They take the receives
// that are posted by then. A receive that is posted later is for a datagram that is sent later.
func TestMulticastOwn(t *testing.T) {
	const rounds, list = 100, 3
	pid := os.Getpid()
	group := verbs.GIDFromAddr(netip.AddrFrom4([4]byte{239, 200, byte(pid >> 8), byte(pid)}))
	newMember := func(i int) (*end, verbs.SendWR) {
		e := newEnd(t, udpDevice(t, loopAddr(i)), options{typ: verbs.QPTypeUD})
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
		e.must(e.qp.RTS(0, verbs.Retry{}))
		ah, err := e.pd.CreateAH(verbs.AHAttr{DGID: group})
		e.must(err)
		return e, verbs.SendWR{Op: verbs.OpSendWithImm, Flags: verbs.SendSignaled, AH: ah, RemoteQPN: multicastQPN}
	}
	x, own := newMember(71)
	y, others := newMember(72)
	x.must(x.qp.AttachMcast(group))
	in := x.mr(verbs.GRHSize)
	receive := verbs.RecvWR{ID: 1, SGList: []verbs.SGE{in.SGE(0, verbs.GRHSize)}}
	wrs := make([]verbs.SendWR, list)
	for i := range rounds {
		for k := range wrs {
			wrs[k] = own
			wrs[k].Imm = 1000
		}
		x.recv(receive)
		x.send(wrs...)
		if n := x.cq.Provider().(*cq).Waiting(); n != list+1 {
			t.Fatalf("round %d: %d completions when the post of %d datagrams returns, want theirs and one of the receive", i, n, list)
		}
		for range list + 1 {
			x.done()
		}
		x.recv(receive)
		others.Imm = uint32(i)
		y.send(others)
		y.next()
		if wc := x.next(); wc.Op != verbs.WCRecv || wc.Imm != uint32(i) {
			t.Fatalf("round %d: opcode %v, immediate %d, want a datagram of the other member with %d", i, wc.Op, wc.Imm, i)
		}
	}
	x.must(x.qp.DetachMcast(group))
}
