package whole

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	udSlots = 16
	udRoom  = verbs.GRHSize + 4096
	udQKey  = 0x1eaf
)

// datagram is a UD message.
type datagram struct {
	from, to *node
	life     int // of to
	data     []byte
	imm      uint32
	withImm  bool
	never    bool // the datagram has a wrong Q_Key
	received int
}

// solicited reports whether the datagram asks for an event.
func (d *datagram) solicited() bool { return d.imm&1 == 1 }

// udEnd is a node's UD queue pair.
type udEnd struct {
	n      *node
	qp     *verbs.QP
	r      *region
	posted [udSlots]bool
	under  int // sends under way
	goal   int
	ahs    []*verbs.AH // by node
	q      *cqueue     // the node's, or a tight one, which ends may share
	fatal  int         // events
}

func newUDEnd(n *node, q *cqueue) *udEnd {
	w, u := n.w, &udEnd{n: n, q: q, ahs: make([]*verbs.AH, n.w.plan.Nodes)}
	q.ud = u
	u.r = newRegion(n, "datagrams", udSlots*udRoom, verbs.AccessLocalWrite)
	var err error
	u.qp, err = n.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: q.cq, RecvCQ: q.cq, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: udSlots, MaxSendSGE: 1, MaxRecvSGE: 2, MaxInlineData: 256}})
	w.must(err)
	n.number(u.qp.QPN())
	w.must(u.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: udQKey}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	w.must(u.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	w.must(u.qp.RTS(0, verbs.Retry{}))
	u.goal = n.rnd.IntN(w.plan.Ops + 1)
	return u
}

// drawUD gives a node that has just booted its UD QP.
func (n *node) drawUD() {
	q := n.cq
	r := rand.New(rand.NewPCG(n.w.plan.Seed, uint64(0x0d71647+100*n.index+n.life)))
	if r.IntN(2) == 0 && n.w.plan.Full {
		q = newQueue(n, 1+r.IntN(tightRoom))
		q.tight = true
	}
	n.ud = newUDEnd(n, q)
}

// waiting is how many completions may wait.
func (u *udEnd) waiting() int {
	n := u.under
	for _, posted := range u.posted {
		if posted {
			n++
		}
	}
	return n
}

// noteRoom takes note that the program has posted something, before the device has.
func (u *udEnd) noteRoom() { u.q.peak = max(u.q.peak, u.q.waiting()) }

// failed reports whether the QP has failed: only a tight queue makes the QP fail. When all is known of the failure,
// another QP takes its place.
func (u *udEnd) failed() bool {
	if u.qp.State() != verbs.QPStateErr {
		return false
	}
	if !u.q.tight {
		u.n.w.failf("%v: the UD QP has failed, and its completion queue cannot overrun", u.n)
	}
	if u.q.lost && u.q.told == 1 && u.fatal == 1 {
		n := u.n
		n.w.logf("%v: another UD QP", n)
		u.close()
		n.gone[u.qp.QPN()] = n.w.now()
		n.ud = newUDEnd(n, n.cq)
		n.ud.goal = u.goal
	}
	return true
}

// event is an asynchronous event of the QP.
func (u *udEnd) event(t verbs.EventType) {
	if t != verbs.EventQPFatal {
		return
	}
	if u.fatal++; u.fatal > 1 || u.q.told == 0 || u.qp.State() != verbs.QPStateErr {
		u.n.w.failf("%v: event %v of the UD QP, %d times, in state %v, want it once after EVENT_CQ_ERR", u.n, t, u.fatal, u.qp.State())
	}
}

// act posts receives and sends.
func (u *udEnd) act() (did bool) {
	n, w := u.n, u.n.w
	if u.failed() {
		return false
	}
	for i, posted := range u.posted {
		if posted || n.rnd.IntN(2) == 0 {
			continue
		}
		for k := range udRoom {
			u.r.bytes()[i*udRoom+k] = untouched
		}
		u.posted[i], did = true, true
		u.noteRoom()
		_, err := u.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGList: split(u.r.mr, i*udRoom, udRoom, 2)}})
		w.must(err)
	}
	to := w.nodes[n.rnd.IntN(len(w.nodes))]
	if u.goal == 0 || u.under >= 8 || to.ud == nil {
		return did
	}
	u.goal--
	port, err := n.dev.QueryPort(1)
	w.must(err)
	d := &datagram{from: n, to: to, life: to.life, imm: n.rnd.Uint32(), withImm: n.rnd.IntN(2) == 0, never: n.rnd.IntN(10) == 0}
	d.data = content(8+n.rnd.IntN(min(256, port.ActiveMTU.Bytes())-8+1), uint64(len(w.datagrams)))
	binary.BigEndian.PutUint64(d.data, uint64(len(w.datagrams)))
	w.datagrams = append(w.datagrams, d)
	if u.ahs[to.index] == nil {
		u.ahs[to.index], err = n.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(to.addr), HopLimit: 64})
		w.must(err)
	}
	wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: d.data, Imm: d.imm, AH: u.ahs[to.index], RemoteQPN: to.ud.qp.QPN(), RemoteQKey: udQKey}
	if d.withImm {
		wr.Op = verbs.OpSendWithImm
	}
	if d.solicited() {
		wr.Flags |= verbs.SendSolicited
	}
	if d.never {
		wr.RemoteQKey++
	}
	u.under++
	u.noteRoom()
	_, err = u.qp.PostSend([]verbs.SendWR{wr})
	w.must(err)
	w.totals.Posts++
	return true
}

// completed checks a completion. A datagram may get lost, but a datagram that comes is as it was sent.
func (u *udEnd) completed(wc *verbs.WC) {
	w := u.n.w
	if wc.Status == verbs.WCFlushErr && u.q.tight && u.qp.State() == verbs.QPStateErr {
		if wc.Op == verbs.WCRecv {
			u.posted[wc.ID] = false
		} else {
			u.under--
		}
		return
	}
	if wc.Status != verbs.WCSuccess {
		w.failf("%v: a datagram completes with %v", u.n, wc.Err())
	}
	if wc.Op != verbs.WCRecv {
		u.under--
		u.n.ringing = silent
		return
	}
	i, n := int(wc.ID), int(wc.ByteLen)-verbs.GRHSize
	b := u.r.bytes()[i*udRoom:][:udRoom]
	if !u.posted[i] || n < 8 || wc.Flags&verbs.WCFlagGRH == 0 {
		w.failf("%v: receive %d completes with %d bytes, flags %v; posted: %v", u.n, i, n, wc.Flags, u.posted[i])
	}
	u.posted[i] = false
	data := b[verbs.GRHSize:][:n]
	id := binary.BigEndian.Uint64(data)
	d := w.datagram(id)
	if d == nil {
		w.failf("%v: a datagram came that nobody has sent", u.n)
	}
	d.received++
	if u.n.ringing = silent; d.solicited() {
		u.n.ringing = rings
	}
	withImm := wc.Flags&verbs.WCFlagWithImm != 0
	if d.to != u.n || d.life != u.n.life || d.never || !bytes.Equal(d.data, data) || withImm != d.withImm || withImm && wc.Imm != d.imm {
		w.failf("%v: datagram %d came otherwise than it was sent: %+v", u.n, id, d)
	}
	if d.received > 1 && w.plan.Duplicate == 0 {
		w.failf("%v: datagram %d came %d times, and the network repeats nothing", u.n, id, d.received)
	}
	for _, c := range b[verbs.GRHSize+n:] {
		if c != untouched {
			w.failf("%v: a receive is written behind the end of datagram %d", u.n, id)
		}
	}
}

func (u *udEnd) close() {
	for _, ah := range u.ahs {
		if ah != nil {
			u.n.w.must(ah.Close())
		}
	}
	n, q := u.n, u.q
	q.drain()
	if q.robbed() {
		n.hca.Drive(false)
		n.asyncEvents()
		q.drain()
		if !q.lost || q.told != 1 || u.fatal != 1 || u.qp.State() != verbs.QPStateErr {
			n.w.failf("%v: the queue of the UD QP has overrun: Poll says so: %v, and %d events; %d of the QP, in state %v", n, q.lost, q.told, u.fatal, u.qp.State())
		}
	}
	n.w.must(u.qp.Close())
	q.ud = nil
	if q.left += u.waiting(); q != n.cq && len(q.ends) == 0 {
		q.close()
	}
	u.r.check()
	u.r.close()
}
