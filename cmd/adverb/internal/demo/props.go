package demo

import (
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// The common parts of scenes: QPs that are connected, regions, work requests and completions, each told when it is made.

// firstPSN are the first PSNs of the two directions. Programs draw them at random; these are easier to follow.
const (
	firstPSNA verbs.PSN = 0
	firstPSNB verbs.PSN = 1000
)

// wiring is how the QPs of a scene are connected.
type wiring struct {
	retry verbs.Retry // of A; the zero value is verbs.DefaultRetry
	depth int         // of the queues; 0 is 8
}

// connect makes a QP on each host and connects the two.
func (s *stage) connect(w wiring) (a, b *verbs.QP) {
	if w.depth == 0 {
		w.depth = 8
	}
	if w.retry == (verbs.Retry{}) {
		w.retry = verbs.DefaultRetry
	}
	create := func(h *node) *verbs.QP {
		qp := must(h.pd.CreateQP(verbs.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq,
			Cap: verbs.QPCap{MaxSendWR: w.depth, MaxRecvWR: w.depth, MaxSendSGE: 2, MaxRecvSGE: 2}}))
		s.must(qp.Init(1, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
		return qp
	}
	a, b = create(s.a), create(s.b)
	path := verbs.Path{MTU: verbs.MTU1024}
	s.must(a.RTR(s.a.toward(s.b, verbs.Peer{QPN: b.QPN(), PSN: firstPSNB, GID: s.b.gid}), path))
	s.must(b.RTR(s.b.toward(s.a, verbs.Peer{QPN: a.QPN(), PSN: firstPSNA, GID: s.a.gid}), path))
	s.must(a.RTS(firstPSNA, w.retry))
	s.must(b.RTS(firstPSNB, verbs.DefaultRetry))
	return a, b
}

// toward completes a peer's address. On InfiniBand the path has a LID, and within a subnet no GID.
func (h *node) toward(to *node, p verbs.Peer) verbs.Peer {
	if h.s.instant {
		path, _, err := h.hca.IBPath(to.addr, 0)
		h.s.must(err)
		if p.LID = path.DLID; !h.s.routed {
			p.GID = verbs.GID{}
		}
	}
	return p
}

// introduce says who there is.
func (s *stage) introduce(a, b *verbs.QP) {
	s.say("Two hosts, A (%v) and B (%v), on a network in memory. A packet takes %v from one to the other. "+
		"Each host has a device, a protection domain (PD), a completion queue (CQ) and a queue pair (QP). "+
		"A's QP is %v, B's is %v. Both are in state RTS: each knows the other's QPN, GID and first PSN.",
		s.a.addr, s.b.addr, flight, a.QPN(), b.QPN())
}

// region registers memory, and fills it with a text.
func (h *node) region(n int, access verbs.Access, text string) *verbs.MR {
	mr := must(h.pd.AllocMR(n, access))
	h.iova += 0x1000 * uint64(1+n/0x1000)
	copy(mr.Bytes(), text)
	return mr
}

// filled registers memory, and fills it with bytes of which none is 0.
func (h *node) filled(n int) *verbs.MR {
	mr := h.region(n, local, "")
	for i := range mr.Bytes() {
		mr.Bytes()[i] = byte(i%251 + 1)
	}
	return mr
}

// transfer is a WRITE or a READ between the n bytes from the same offset of two regions.
func transfer(op verbs.Opcode, mine, theirs *verbs.MR, at, n int) verbs.SendWR {
	return verbs.SendWR{Op: op, SGList: []verbs.SGE{mine.SGE(at, n)}, Remote: theirs.Remote(at)}
}

// tellRegion notes the addresses and the keys of a region.
func (s *stage) tellRegion(what string, mr *verbs.MR) {
	s.note("Region: %s: 0x%x to 0x%x, %d bytes, lkey %v, rkey %v", what, mr.Addr(), mr.Addr()+uint64(mr.Len())-1, mr.Len(), mr.LKey(), mr.RKey())
}

// recv posts a receive, and says so.
func (h *node) recv(qp *verbs.QP, sge verbs.SGE) {
	h.ids++
	s := h.s
	s.must(qp.PostOneRecv(h.ids, sge))
	s.note("WQE in the receive queue of %s: wr_id %d, %d bytes at 0x%x, lkey %v", h.name, h.ids, sge.Length, sge.Addr, sge.LKey)
}

// post posts a send work request, and says so.
func (h *node) post(qp *verbs.QP, wr verbs.SendWR) {
	h.ids++
	wr.ID = h.ids
	wr.Flags |= verbs.SendSignaled
	s := h.s
	var b strings.Builder
	fmt.Fprintf(&b, "WQE in the send queue of %s: wr_id %d, %v", h.name, wr.ID, wr.Op)
	for _, sge := range wr.SGList {
		fmt.Fprintf(&b, ", %d bytes at 0x%x, lkey %v", sge.Length, sge.Addr, sge.LKey)
	}
	if wr.Remote != (verbs.RemoteAddr{}) {
		fmt.Fprintf(&b, ", remote 0x%x, rkey %v", wr.Remote.VA, wr.Remote.RKey)
	}
	s.note("%s", b.String())
	s.must(qp.PostOneSend(wr))
}

// await lets time pass until a host has a completion, takes it and says so.
func (h *node) await() completion {
	h.s.until(func() bool { return len(h.done) > 0 })
	c := h.done[0]
	h.done = h.done[1:]
	text := fmt.Sprintf("CQE of %s after %.6f s: wr_id %d, status %d %v", h.name, c.at.Seconds(), c.ID, c.Status, c.Status)
	if c.Status == verbs.WCSuccess {
		text += fmt.Sprintf(", %v", c.Op)
		if c.Op == verbs.WCRecv || c.Op == verbs.WCRDMARead {
			text += fmt.Sprintf(", %d bytes", c.ByteLen)
		}
	}
	h.s.note("%s", text)
	return c
}

// succeed is await for a completion that must be a success.
func (h *node) succeed() {
	c := h.await()
	h.s.must(c.Err())
}

// fail is await for a completion that must have a status.
func (h *node) fail(want verbs.WCStatus) {
	if c := h.await(); c.Status != want {
		h.s.must(fmt.Errorf("a completion has status %v, want %v", c.Status, want))
	}
}
