package whole

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Links of XRC go one way: an initiator of one node, and a target of another in that node's domain. The domain has two
// SRQs with a PD and a CQ each, which all links to the node share. A message arrives once, in a receive of the SRQ that
// it names and in the order of its link there, and in no other memory. WRITEs and atomics change the memory behind the SRQ that
// they name. No receive is lost, whatever happens to links: at the end all that did not complete are in their SRQs.

const (
	xrcSRQs  = 2
	xrcSlots = 12
	xrcArea  = 4 << 10
	xrcDepth = 16
)

// TestWholeXRC makes runs with links of XRC.
func TestWholeXRC(t *testing.T) {
	sum, _ := changed(t, 8000, func(p *plan) { p.XRC = true })
	if sum.XRC == 0 {
		t.Error("no message of XRC has come, want some")
	}
}

// xrcHub is a node's XRC domain.
type xrcHub struct {
	n       *node
	domain  *verbs.XRCD
	srqs    [xrcSRQs]*xrcQueue
	targets map[verbs.QPN]*xrcLink
	dropped bool // a message may have been dropped that was in a slot
}

// xrcQueue is an SRQ of a hub.
type xrcQueue struct {
	pd    *verbs.PD
	cq    *verbs.CQ
	srq   *verbs.SRQ
	slots []bool // posted
	mem   []byte
	mr    *verbs.MR
	count int // posted, and not complete
}

func newXRCHub(n *node) *xrcHub {
	h := &xrcHub{n: n, targets: map[verbs.QPN]*xrcLink{}}
	w := n.w
	var err error
	h.domain, err = n.dev.OpenXRCD(verbs.XRCDAttr{})
	w.must(err)
	for i := range h.srqs {
		q := &xrcQueue{slots: make([]bool, xrcSlots), mem: make([]byte, xrcSlots*recvSize)}
		q.pd, err = n.dev.AllocPD()
		w.must(err)
		q.cq, err = n.dev.CreateCQ(xrcSlots + 4)
		w.must(err)
		q.mr = registerXRC(n, q.pd, q.mem, verbs.AccessLocalWrite)
		q.srq, err = h.domain.CreateSRQ(q.pd, q.cq, verbs.SRQAttr{MaxWR: xrcSlots, MaxSGE: 3})
		w.must(err)
		h.srqs[i] = q
	}
	return h
}

// registerXRC registers memory at an address that does not differ from run to run.
func registerXRC(n *node, pd *verbs.PD, b []byte, access verbs.Access) *verbs.MR {
	n.w.regions++
	mr, err := pd.RegMRIOVA(b, uint64(n.w.regions)<<24, access)
	n.w.must(err)
	return mr
}

// act takes completions, and posts receives.
func (h *xrcHub) act() (did bool) {
	var wcs [4]verbs.WC
	for i, q := range h.srqs {
		for {
			n, err := q.cq.Poll(wcs[:])
			h.n.w.must(err)
			for k := range wcs[:n] {
				h.received(i, &wcs[k])
			}
			if did = did || n > 0; n == 0 {
				break
			}
		}
		for slot, posted := range q.slots {
			if posted || h.n.rnd.IntN(2) == 0 {
				continue
			}
			did = true
			b := q.mem[slot*recvSize:][:recvSize]
			for k := range b {
				b[k] = untouched
			}
			_, err := q.srq.PostRecv([]verbs.RecvWR{{ID: uint64(slot), SGList: split(q.mr, slot*recvSize, recvSize, 1+h.n.rnd.IntN(3))}})
			h.n.w.must(err)
			q.slots[slot] = true
			q.count++
		}
	}
	return did
}

// received checks the completion of a receive of SRQ i.
func (h *xrcHub) received(i int, wc *verbs.WC) {
	w, q, l := h.n.w, h.srqs[i], h.targets[wc.QPN]
	w.logf("%v: XRC SRQ %d: %v %d %v, %d bytes, of QP %v", h.n, i, wc.Op, wc.ID, wc.Status, wc.ByteLen, wc.QPN)
	switch {
	case l == nil:
		w.failf("%v: receive %d of XRC SRQ %d completes for QP %v, which is no target", h.n, wc.ID, i, wc.QPN)
	case !q.slots[wc.ID]:
		w.failf("%v: receive %d of XRC SRQ %d completes, and is not posted", h.n, wc.ID, i)
	}
	q.slots[wc.ID] = false
	q.count--
	if wc.Status == verbs.WCFlushErr && l.mayEnd() {
		if l.flushed++; l.flushed > 1 {
			w.failf("%v: %d receives were flushed, want that of a message under way only", l, l.flushed)
		}
		return
	}
	if l.got[i] == len(l.messages[i]) {
		w.failf("%v: a receive of SRQ %d completes, and all %d messages have come: %+v", l, i, l.got[i], *wc)
	}
	o := l.messages[i][l.got[i]]
	l.got[i]++
	w.totals.XRC++
	b := q.mem[int(wc.ID)*recvSize:][:recvSize]
	if wc.Status != verbs.WCSuccess || int(wc.ByteLen) != len(o.data) || o.wr.Op == verbs.OpSendWithImm && wc.Imm != o.wr.Imm {
		w.failf("%v: message %d of %d bytes to SRQ %d: %+v", l, o.wr.ID, len(o.data), i, *wc)
	}
	clean := bytes.Count(b[len(o.data):], []byte{untouched}) == recvSize-len(o.data)
	if !bytes.Equal(b[:len(o.data)], o.data) || !clean && !h.dropped {
		w.failf("%v: message %d: the receive has other contents than were sent", l, o.wr.ID)
	}
}

// close checks that no receive is lost, and closes everything. No target is left that could hold one.
func (h *xrcHub) close() {
	w := h.n.w
	h.act()
	for _, q := range h.srqs {
		if q.count > 1 {
			if err := q.srq.Modify(verbs.SRQAttr{MaxWR: q.count - 1}, verbs.SRQMaskMaxWR); err == nil {
				w.failf("%v: fewer than the %d receives that did not complete are in an XRC SRQ", h.n, q.count)
			}
		}
		if q.count > 0 {
			if err := q.srq.Modify(verbs.SRQAttr{MaxWR: q.count}, verbs.SRQMaskMaxWR); err != nil {
				w.failf("%v: more than the %d receives that did not complete are in an XRC SRQ: %v", h.n, q.count, err)
			}
		}
		w.must(q.srq.Close())
		w.must(q.mr.Close())
		w.must(q.cq.Close())
		w.must(q.pd.Close())
	}
	w.must(h.domain.Close())
}

// xrcLink is an initiator and its target.
type xrcLink struct {
	w       *world
	index   int
	rnd     *rand.Rand
	from    *node
	hub     *xrcHub // of the target
	cq      *verbs.CQ
	qp      *verbs.QP
	target  *verbs.QP
	src     []byte
	srcMR   *verbs.MR
	areas   [xrcSRQs][]byte // that the link alone writes
	areaMRs [xrcSRQs]*verbs.MR
	want    [xrcSRQs][]byte

	goal     int
	ops      []*xrcOp
	done     int
	messages [xrcSRQs][]*xrcOp
	got      [xrcSRQs]int
	flushed  int
	failed   bool
	killed   bool
	bad      *xrcOp // that names an SRQ which does not exist
	over     bool
}

// xrcOp is a work request of a link.
type xrcOp struct {
	wr   verbs.SendWR
	srq  int
	data []byte
	at   int // in the area of the SRQ
}

// newXRCLink begins a link after a while, unless the nodes are not up then.
func newXRCLink(w *world, i int) *xrcLink {
	l := &xrcLink{w: w, index: i, rnd: rand.New(rand.NewPCG(w.plan.Seed, uint64(0x8cc00+i)))}
	w.in(within(l.rnd, busyTime), l.begin)
	return l
}

func (l *xrcLink) String() string { return "xrc" + string(rune('0'+l.index)) }

func (l *xrcLink) begin() {
	w, r := l.w, l.rnd
	l.from = w.nodes[r.IntN(len(w.nodes))]
	to := w.nodes[r.IntN(len(w.nodes))]
	if !l.from.awake() || !to.awake() {
		l.over = true
		return
	}
	l.hub, l.goal = to.xrc, 1+r.IntN(w.plan.Ops)
	var err error
	l.cq, err = l.from.dev.CreateCQ(xrcDepth)
	w.must(err)
	l.qp, err = l.from.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCSend, SendCQ: l.cq, Cap: verbs.QPCap{MaxSendWR: xrcDepth, MaxSendSGE: 1}})
	w.must(err)
	l.target, err = l.hub.domain.CreateQP(verbs.QPInitAttr{})
	w.must(err)
	l.from.number(l.qp.QPN())
	to.number(l.target.QPN())
	l.hub.targets[l.target.QPN()] = l
	l.src = content(maxMessage+xrcDepth*8, uint64(0x8cc00+l.index))
	l.srcMR = registerXRC(l.from, l.from.pd, l.src, verbs.AccessLocalWrite)
	for i, q := range l.hub.srqs {
		l.areas[i] = content(xrcArea, uint64(2*l.index+i))
		l.want[i] = bytes.Clone(l.areas[i])
		l.areaMRs[i] = registerXRC(to, q.pd, l.areas[i], everything)
	}
	psn := verbs.PSN(r.IntN(1 << 24))
	retry := verbs.Retry{Timeout: uint8(9 + r.IntN(5)), RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: 4}
	if w.plan.calm() {
		retry.Timeout = 0
	}
	path := verbs.Path{MTU: verbs.MTU(1 + r.IntN(3)), MaxDestRDAtomic: 4, MinRNRTimer: uint8(1 + r.IntN(14))}
	w.must(l.target.Init(1, everything&^verbs.AccessLocalWrite))
	w.must(l.target.RTR(verbs.Peer{QPN: l.qp.QPN(), PSN: psn, GID: verbs.GIDFromAddr(l.from.addr)}, path))
	w.must(l.qp.Init(1, 0))
	w.must(l.qp.RTR(verbs.Peer{QPN: l.target.QPN(), GID: verbs.GIDFromAddr(to.addr)}, path))
	w.must(l.qp.RTS(psn, retry))
	if r.IntN(3) == 0 && w.plan.Kill {
		w.in(within(r, 5*time.Millisecond), l.kill)
	}
	w.logf("%v runs from %v to %v", l, l.from, to)
	l.from.xrcLinks = append(l.from.xrcLinks, l)
	l.from.soon()
}

// kill takes one of the QPs to the error state.
func (l *xrcLink) kill() {
	if l.over || !l.from.awake() || !l.hub.n.awake() {
		return
	}
	l.killed = true
	qp := l.qp
	if l.rnd.IntN(2) == 0 {
		qp = l.target
	}
	l.w.logf("%v: QP %v is killed", l, qp.QPN())
	l.w.must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
}

// mayEnd reports whether the link may fail.
func (l *xrcLink) mayEnd() bool {
	return l.killed || l.bad != nil || l.w.plan.mayFail() || l.w.plan.Crashes > 0
}

// act is the program of the initiator.
func (l *xrcLink) act() (did bool) {
	if l.over {
		return false
	}
	var wcs [4]verbs.WC
	for {
		n, err := l.cq.Poll(wcs[:])
		l.w.must(err)
		for i := range wcs[:n] {
			l.completed(&wcs[i])
		}
		if did = did || n > 0; n == 0 {
			break
		}
	}
	for len(l.ops) < l.goal && len(l.ops)-l.done < xrcDepth && !l.failed && l.bad == nil && l.rnd.IntN(3) > 0 {
		did = true
		l.post()
	}
	if ended := l.failed || len(l.ops) == l.goal || l.bad != nil; ended && l.done == len(l.ops) && l.hub.n.awake() {
		l.close()
	}
	return did
}

func (l *xrcLink) post() {
	r, i := l.rnd, l.rnd.IntN(xrcSRQs)
	off := r.IntN(64)
	n := r.IntN(maxMessage - off)
	o := &xrcOp{srq: i}
	o.wr = verbs.SendWR{ID: uint64(len(l.ops)), Flags: verbs.SendSignaled, RemoteSRQN: l.hub.srqs[i].srq.Num()}
	o.wr.Op = []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpAtomicFetchAdd}[r.IntN(4)]
	if l.w.plan.Place && r.IntN(4) == 0 {
		o.wr.Op = verbs.OpFlush
	}
	switch o.wr.Op {
	case verbs.OpFlush:
		n, o.wr.Flush = 0, verbs.Flush{Length: xrcArea, Placement: verbs.FlushGlobal}
		o.wr.Remote = l.areaMRs[i].Remote(0)
	case verbs.OpSend, verbs.OpSendWithImm:
		o.wr.Imm = r.Uint32()
	case verbs.OpRDMAWrite:
		n %= xrcArea / 2
		o.at = 8 + r.IntN(xrcArea/2)
		o.wr.Remote = l.areaMRs[i].Remote(o.at)
	case verbs.OpAtomicFetchAdd: // into a place of its own behind the messages, until it is complete
		n, off, o.wr.CompareAdd = 8, maxMessage+8*(len(l.ops)%xrcDepth), r.Uint64()
		o.wr.Remote = l.areaMRs[i].Remote(0)
	}
	o.wr.SGList, o.data = []verbs.SGE{l.srcMR.SGE(off, n)}, l.src[off:][:n]
	if l.w.plan.Illegal && r.IntN(40) == 0 {
		l.bad = o
		for o.wr.RemoteSRQN == l.hub.srqs[0].srq.Num() || o.wr.RemoteSRQN == l.hub.srqs[1].srq.Num() {
			o.wr.RemoteSRQN = verbs.SRQN(r.IntN(1 << 24))
		}
	}
	l.w.logf("%v posts %d: %v, %d bytes to SRQ %d", l, o.wr.ID, o.wr.Op, len(o.data), i)
	_, err := l.qp.PostSend([]verbs.SendWR{o.wr})
	l.w.must(err)
	l.w.totals.Posts++
	l.ops = append(l.ops, o)
	if o != l.bad && (o.wr.Op == verbs.OpSend || o.wr.Op == verbs.OpSendWithImm) {
		l.messages[i] = append(l.messages[i], o)
	}
}

// completed checks the completion of a work request.
func (l *xrcLink) completed(wc *verbs.WC) {
	o := l.ops[l.done]
	l.w.logf("%v: work request %d: %v", l, wc.ID, wc.Status)
	l.w.totals.Completions++
	switch {
	case wc.ID != o.wr.ID:
		l.w.failf("%v: work request %d completes, and it is the turn of %d", l, wc.ID, o.wr.ID)
	case l.failed && wc.Status != verbs.WCFlushErr:
		l.w.failf("%v: work request %d after one that failed: %v", l, wc.ID, wc.Status)
	case wc.Status == verbs.WCSuccess && o == l.bad:
		l.w.failf("%v: work request %d to an SRQ that does not exist succeeds", l, wc.ID)
	case wc.Status != verbs.WCSuccess && !l.mayEnd():
		l.w.failf("%v: work request %d: %v", l, wc.ID, wc.Err())
	case wc.Status == verbs.WCRemInvReqErr && o != l.bad:
		l.w.failf("%v: work request %d is refused, and is legal: %v", l, wc.ID, wc.Err())
	}
	l.done++
	if wc.Status != verbs.WCSuccess {
		l.failed = true
		return
	}
	switch o.wr.Op {
	case verbs.OpFlush:
		l.w.totals.Flushes++
	case verbs.OpRDMAWrite:
		copy(l.want[o.srq][o.at:], o.data)
	case verbs.OpAtomicFetchAdd:
		word := l.want[o.srq][:8]
		if !bytes.Equal(l.src[maxMessage+8*(l.done-1)%(8*xrcDepth):][:8], word) {
			l.w.failf("%v: work request %d brings another word than its atomics have left", l, wc.ID)
		}
		binary.NativeEndian.PutUint64(word, binary.NativeEndian.Uint64(word)+o.wr.CompareAdd)
	}
}

// close ends the link, whose work is done or has failed.
func (l *xrcLink) close() {
	w := l.w
	if !l.failed {
		l.hub.act()
		for i := range l.got {
			if l.got[i] != len(l.messages[i]) {
				w.failf("%v: %d of %d messages to SRQ %d have come, and all are complete", l, l.got[i], len(l.messages[i]), i)
			}
		}
		for i := range l.areas {
			if !bytes.Equal(l.areas[i], l.want[i]) {
				w.failf("%v: the memory behind SRQ %d is not what the complete work requests say", l, i)
			}
		}
	}
	w.logf("%v closes", l)
	l.over, l.hub.dropped = true, l.hub.dropped || l.failed
	w.must(l.qp.Close())
	w.must(l.target.Close())
	l.hub.act() // the completions that are left
	delete(l.hub.targets, l.target.QPN())
	l.from.gone[l.qp.QPN()], l.hub.n.gone[l.target.QPN()] = w.now(), w.now()
	w.must(l.cq.Close())
	w.must(l.srcMR.Close())
	for i, mr := range l.areaMRs {
		w.must(mr.Close())
		l.areas[i] = nil
	}
}

// crashed ends a link, one of whose nodes has crashed: the other closes what is its own.
func (l *xrcLink) crashed(n *node) {
	if l.over || l.from == nil || n != l.from && n != l.hub.n {
		return
	}
	w := l.w
	l.over = true
	if n != l.from {
		w.must(l.qp.Close())
		w.must(l.cq.Close())
		w.must(l.srcMR.Close())
		l.from.gone[l.qp.QPN()] = w.now()
	}
	if n != l.hub.n {
		l.killed = true
		l.hub.dropped = true
		w.must(l.target.Close())
		l.hub.act()
		delete(l.hub.targets, l.target.QPN())
		l.hub.n.gone[l.target.QPN()] = w.now()
		for _, mr := range l.areaMRs {
			w.must(mr.Close())
		}
	}
}
