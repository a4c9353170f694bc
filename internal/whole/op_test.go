package whole

import (
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// op is a work request, and the result that the request must have.
type op struct {
	wr     verbs.SendWR
	id     uint64 // of its contents
	where  string // in words, for the trace
	data   []byte // SENDs and WRITEs
	area   *area  // WRITEs and READs of the peer's memory that this end writes
	off    int    // there
	length int
	target int // of READs and atomics
	over   *op // a READ with the same target that was posted before
	under  *op // and one behind
	srcAt  int
	at     time.Duration

	words *words // atomics
	least uint64 // FETCH_ADD: the result, at least
	lost  bool

	roam     *roam   // that is used
	win      *window // that is bound, used or invalidated
	victim   bool    // writes what the peer closes
	lateTo   bool    // the victim was closed already
	expect   verbs.WCStatus
	expectAt verbs.WCStatus // of the receive that the request takes
}

func (o *op) sends() bool {
	return o.wr.Op == verbs.OpSend || o.wr.Op == verbs.OpSendWithImm || o.wr.Op == verbs.OpSendWithInv
}

func (o *op) writes() bool {
	return o.wr.Op == verbs.OpRDMAWrite || o.wr.Op == verbs.OpRDMAWriteWithImm || o.wr.Op == verbs.OpAtomicWrite
}

func (o *op) takesRecv() bool { return o.sends() || o.wr.Op == verbs.OpRDMAWriteWithImm }

func (o *op) local() bool { return o.wr.Op == verbs.OpLocalInv || o.wr.Op == verbs.OpBindMW }

func (o *op) atomic() bool {
	return o.wr.Op == verbs.OpAtomicCmpSwap || o.wr.Op == verbs.OpAtomicFetchAdd
}

var (
	rcOps = []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSend, verbs.OpSendWithImm,
		verbs.OpRDMARead, verbs.OpRDMARead}
	placementOps = []verbs.Opcode{verbs.OpFlush, verbs.OpAtomicWrite}
	atomicOps    = []verbs.Opcode{verbs.OpAtomicFetchAdd, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpSwap}
	ucOps        = []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm}
)

// newOp makes the next work request, or nil if there is no memory for the request now.
func (e *end) newOp(i int) *op {
	w, r := e.n.w, e.rnd
	w.opCount++
	fresh := op{wr: verbs.SendWR{ID: uint64(i), Imm: r.Uint32()}, id: w.opCount, at: w.now(), target: -1, srcAt: -1}
	o := new(op)
	*o = fresh
	if e.windows != nil || e.peer().windows != nil {
		if r.IntN(4) == 0 && e.windowOp(o) {
			e.flags(o, i)
			return o
		}
		*o = fresh
	}
	if e.peer().roam != nil && r.IntN(5) == 0 {
		if e.roamOp(o) {
			e.flags(o, i)
			return o
		}
		*o = fresh
	}
	ops := rcOps
	switch {
	case e.c.typ == verbs.QPTypeUC:
		ops = ucOps
	case w.plan.Atomics && r.IntN(4) == 0:
		ops = atomicOps
	case w.plan.Place && r.IntN(4) == 0:
		ops = placementOps
	}
	o.wr.Op = ops[r.IntN(len(ops))]
	o.length = e.length()
	p := e.peer()
	switch {
	case o.atomic():
		p.n.words.prepare(o)
		o.where = "words"
	case o.wr.Op == verbs.OpAtomicWrite:
		o.area, o.where, o.length = e.area, "destination", 8
		o.off = 8 * r.IntN(dstSize/8)
		o.wr.Remote = p.dst.mr.Remote(o.off)
	case o.wr.Op == verbs.OpFlush:
		o.area, o.where, o.length = e.area, "destination", min(o.length, dstSize)
		o.off = r.IntN(dstSize - o.length + 1)
		o.wr.Remote = p.dst.mr.Remote(o.off)
		o.wr.Flush = verbs.Flush{Length: uint32(o.length), Placement: verbs.FlushGlobal}
		if r.IntN(4) == 0 {
			o.wr.Flush.Selectivity, o.wr.Remote.VA, o.off, o.length = verbs.FlushMR, r.Uint64(), 0, dstSize
		}
	case o.wr.Op == verbs.OpRDMARead && r.IntN(3) == 0:
		o.length = 1 + r.IntN(srcSize/2)
		if x := e.lastRead(); x != nil && r.IntN(2) == 0 {
			o.length, o.over = x.length, x
		}
		o.off = r.IntN(srcSize/2 - o.length + 1)
		o.where, o.wr.Remote = "source", p.src.mr.Remote(o.off)
	case o.writes() && w.plan.Illegal && r.IntN(8) == 0 && e.c.typ == verbs.QPTypeRC:
		o.victim, o.where = true, "victim"
		o.length = min(o.length, victim)
		o.off = r.IntN(victim - o.length + 1)
		if o.lateTo = p.victimGone; o.lateTo {
			o.wr.Remote = verbs.RemoteAddr{VA: e.victimAt.VA + uint64(o.off), RKey: e.victimAt.RKey}
			if o.length > 0 {
				o.expect = verbs.WCRemAccessErr
			}
		} else {
			o.wr.Remote = p.victim.mr.Remote(o.off)
			e.victimAt = p.victim.mr.Remote(0)
			e.victims++
		}
		if e.victimAt.RKey == 0 {
			return nil // closed before this end knew its key
		}
	case o.writes() || o.wr.Op == verbs.OpRDMARead:
		o.area, o.where = e.area, "destination"
		o.length = min(o.length, dstSize)
		o.off = r.IntN(dstSize - o.length + 1)
		o.wr.Remote = p.dst.mr.Remote(o.off)
	}
	if !e.memory(o) {
		return nil
	}
	e.flags(o, i)
	if w.plan.Illegal && e.bad == nil && e.c.typ == verbs.QPTypeRC && r.IntN(60) == 0 {
		e.spoil(o)
	}
	if o.expect != verbs.WCSuccess {
		e.bad = o
		e.c.broken = true
		w.totals.Illegal++
	}
	return o
}

func (e *end) length() int {
	mtu := e.c.mtu.Bytes()
	switch e.rnd.IntN(5) {
	case 0:
		return e.rnd.IntN(3)
	case 1:
		return min(maxMessage, max(0, mtu*(1+e.rnd.IntN(3))-1+e.rnd.IntN(3)))
	case 2:
		return e.rnd.IntN(100)
	}
	return e.rnd.IntN(maxMessage)
}

// flags says whether the work request is signaled, fenced, solicited.
func (e *end) flags(o *op, i int) {
	r := e.rnd
	if r.IntN(3) == 0 || (i+1)%max(e.depth/2, 1) == 0 || i == e.goal-1 || o.local() || o.win != nil || o.roam != nil {
		o.wr.Flags |= verbs.SendSignaled
	}
	if r.IntN(6) == 0 && e.c.typ == verbs.QPTypeRC {
		o.wr.Flags |= verbs.SendFence
	}
	if r.IntN(3) == 0 {
		o.wr.Flags |= verbs.SendSolicited
	}
}

// memory gives the work request local memory, or returns false.
func (e *end) memory(o *op) bool {
	if o.wr.Op == verbs.OpFlush {
		return true
	}
	if x := o.over; x != nil {
		o.target, x.under = x.target, o
		o.wr.SGList = split(e.read.mr, o.target, o.length, 1+e.rnd.IntN(3))
		return true
	}
	if o.wr.Op == verbs.OpRDMARead || o.atomic() {
		at, ok := e.ring(&e.readAt, o.length+2*guardSize, readSize, func(x *op) (int, int) { return x.target - guardSize, x.length + 2*guardSize })
		if !ok {
			return false
		}
		o.target = at + guardSize
		b := e.read.bytes()[at:][:o.length+2*guardSize]
		for i := range b {
			b[i] = untouched
		}
		o.wr.SGList = split(e.read.mr, o.target, o.length, 1+e.rnd.IntN(3))
		return true
	}
	at, ok := e.ring(&e.srcAt, o.length, srcSize/2, func(x *op) (int, int) { return x.srcAt, x.length })
	if !ok {
		return false
	}
	o.data = content(o.length, o.id)
	if o.length <= inlineMax && e.rnd.IntN(2) == 0 {
		o.wr.Flags |= verbs.SendInline
		if e.rnd.IntN(2) == 0 {
			o.wr.InlineData = o.data
			return true
		}
	}
	o.srcAt = at
	copy(e.src.bytes()[srcSize/2+at:], o.data)
	o.wr.SGList = split(e.src.mr, srcSize/2+at, o.length, 1+e.rnd.IntN(4))
	return true
}

// lastRead returns the READ that was posted last, if that READ reads memory that never changes and is not done; else
// nil.
func (e *end) lastRead() *op {
	for i := len(e.ops) - 1; i >= e.done; i-- {
		if o := e.ops[i]; o.target >= 0 {
			if o.wr.Op != verbs.OpRDMARead || o.where != "source" || o.expect != verbs.WCSuccess {
				return nil
			}
			return o
		}
	}
	return nil
}

// ring finds n bytes behind *next that no outstanding work request uses.
func (e *end) ring(next *int, n, size int, used func(*op) (at, n int)) (int, bool) {
	at := *next
	if at+n > size {
		at = 0
	}
	for _, x := range e.ops[e.done:] {
		if off, k := used(x); off+k > at && off < at+n && off >= 0 {
			return 0, false
		}
	}
	*next = at + n
	return at, true
}

// spoil makes a work request one that must fail.
func (e *end) spoil(o *op) {
	r, p := e.rnd, e.peer()
	if o.expect != verbs.WCSuccess || o.victim {
		return
	}
	switch k := r.IntN(5); {
	case k == 0 && o.length > 0 && o.wr.Op != verbs.OpFlush:
		o.wr.Flags &^= verbs.SendInline
		o.wr.InlineData = nil
		o.wr.SGList = []verbs.SGE{{Addr: 4096, Length: uint32(o.length), LKey: verbs.LKey(r.Uint32())}}
		if v := e.roam; v != nil && v.away && o.length <= v.n {
			o.wr.SGList = []verbs.SGE{v.r.mr.SGE(0, o.length)} // of another PD
		}
		o.expect, o.where = verbs.WCLocProtErr, "bad lkey"
	case k == 1 && !o.sends() && o.length > 0:
		o.wr.Remote.RKey = verbs.RKey(r.Uint32())
		o.expect, o.where = verbs.WCRemAccessErr, "bad rkey"
	case k == 2 && !o.sends() && !o.atomic() && o.wr.Op != verbs.OpAtomicWrite && o.wr.Flush.Selectivity == verbs.FlushRange && o.length > 0:
		end := p.dst.mr.Remote(0)
		o.wr.Remote = end.Add(dstSize - o.length + 1) // by a byte
		o.expect, o.where = verbs.WCRemAccessErr, "out of bounds"
	case k == 3 && (o.writes() || o.wr.Op == verbs.OpFlush) && o.length > 0:
		o.wr.Remote = p.src.mr.Remote(0) // the peer may only read this region
		o.expect, o.where = verbs.WCRemAccessErr, "no permission"
	case k == 4 && o.sends():
		o.length = recvSize + 1 + r.IntN(1000)
		o.data = e.src.bytes()[:o.length]
		o.wr.Flags &^= verbs.SendInline
		o.wr.InlineData = nil
		o.wr.SGList = split(e.src.mr, 0, o.length, 1+r.IntN(4))
		o.expect, o.expectAt, o.where = verbs.WCRemInvReqErr, verbs.WCLocLenErr, "too long"
	}
	if o.expect != verbs.WCSuccess && o.expect != verbs.WCLocProtErr { // by which the peer may have executed an atomic
		o.area, o.words = nil, nil
	}
	if o.where == "out of bounds" && o.wr.Op == verbs.OpRDMAWrite && e.c.typ == verbs.QPTypeRC {
		// Where the request's packets go as WRITE ONLYs, the packets before the bound are executed.
		o.area, o.off = e.area, dstSize-o.length+1
	}
}
