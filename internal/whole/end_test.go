package whole

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	srcSize   = 32 << 10 // the contents of messages, in turn
	dstSize   = 8 << 10  // the memory that the peer writes
	readSize  = 40 << 10 // where READs and atomics go, in turn
	victim    = 4 << 10  // the memory that the peer writes until its region is closed
	recvSlotN = 12
	inlineMax = 128
)

// end is one end of a connection: a queue pair with its memory, and the program that uses it.
type end struct {
	c    *conn
	n    *node
	side int
	rnd  *rand.Rand

	qp        *verbs.QP
	scq, rcq  *cqueue
	srq       bool
	signalAll bool
	depth     int // work requests that fit the send queue
	psn       verbs.PSN
	key       verbs.SecurityKey
	up        bool // in RTS, and the program posts

	src, dst, read, victim *region
	cm                     *cm.Conn // or nil
	recvs                  recvSlots
	roam                   *roam // or nil
	forged                 forgeries
	windows                *windows
	area                   *area // the memory that this end writes at the peer
	srcAt, readAt          int

	goal     int
	ops      []*op
	done     int   // complete, of ops
	polled   int   // up to the latest completion that was polled, of ops
	messages []*op // that take a receive of the peer
	got      int   // messages of the peer
	posted   uint64
	taken    uint64 // receives that are complete
	lazy     int

	failed     bool           // a work request has, or the QP is in error
	status     verbs.WCStatus // of the first that failed
	firstBad   int            // which request was the first to fail
	initial    []byte         // of area
	killed     bool
	parted     bool // this end has disconnected
	closed     bool
	crashed    bool
	blames     bool // work was flushed, which only an overrun explains
	fatal      int  // events
	lastWQE    int  // events
	dry        bool // no receive of the SRQ completes any more
	parts      bool // the end's losses of the SRQ's receives are known
	flushes    int  // receives of the SRQ that were flushed
	victimGone bool // the peer may not write the victim any more
	bad        *op  // illegal
	victims    int  // work requests on the peer's victim that may fail
	sqd        bool
	starving   bool // the peer has no receive for its next message, and posts none

	ports    int      // the number of ports from which this end may have sent, at most
	sources  []uint16 // from which this end has sent
	lastPort uint16
	control  verbs.CongestionControl
	marked   bool // this end's packets may have allowed marks, whatever their class
	paced    bool // this end had a rate

	victimAt verbs.RemoteAddr // the peer's
}

func (e *end) String() string { return fmt.Sprintf("%v[%d]@%v", e.c, e.side, e.n) }

func (e *end) peer() *end { return e.c.ends[1-e.side] }

func newEnd(c *conn, side int) *end {
	n := c.nodes[side]
	w, r := n.w, rand.New(rand.NewPCG(n.w.plan.Seed, uint64(9000+100*c.index+10*c.life+side)))
	e := &end{c: c, n: n, side: side, rnd: r, psn: verbs.PSN(r.IntN(1 << 24)), lazy: 1 + r.IntN(4)}
	if r.IntN(2) == 0 {
		e.psn = verbs.PSN(1<<24 - 1 - r.IntN(100)) // wraps around soon
	}
	e.goal = r.IntN(w.plan.Ops + 1)
	e.depth = 1 << r.IntN(6)
	e.signalAll = r.IntN(5) == 0
	e.srq = r.IntN(2) == 0 && n.shared != nil && c.typ == verbs.QPTypeRC
	e.drawQueues()
	attr := verbs.QPInitAttr{Type: c.typ, SendCQ: e.scq.cq, RecvCQ: e.rcq.cq, SignalAll: e.signalAll,
		Cap: verbs.QPCap{MaxSendWR: e.depth, MaxRecvWR: recvSlotN, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: inlineMax}}
	if e.srq {
		attr.SRQ = n.shared.srq
	} else {
		e.recvs = newRecvSlots(n, "receives", recvSlotN)
	}
	var err error
	e.qp, err = n.pd.CreateQP(attr)
	w.must(err)
	n.number(e.qp.QPN())
	n.byQPN[e.qp.QPN()] = e
	n.ends = append(n.ends, e)
	e.src = newRegion(n, "source", srcSize, verbs.AccessRemoteRead)
	fill(e.src.bytes()[:srcSize/2], uint64(e.qp.QPN()))
	e.dst = newRegion(n, "destination", dstSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessFlushGlobal)
	e.read = newRegion(n, "read", readSize, verbs.AccessLocalWrite)
	for i := range e.read.bytes() {
		e.read.bytes()[i] = untouched
	}
	e.victim = newRegion(n, "victim", victim, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if n.w.plan.Windows && c.typ == verbs.QPTypeRC {
		e.windows = newWindows(e)
	}
	if n.w.plan.Rereg && c.typ == verbs.QPTypeRC {
		e.roam = newRoam(e)
	}
	access := everything
	if c.typ == verbs.QPTypeUC {
		access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	}
	w.must(e.qp.Init(1, access))
	e.secure()
	e.route()
	e.pace()
	e.postRecvs(recvSlotN / 2)
	return e
}

func (e *end) toRTR() { e.toRTRWith(e.peer().qp.QPN(), e.peer().psn, e.peer().n) }

func (e *end) toRTRWith(qpn verbs.QPN, psn verbs.PSN, peer *node) {
	e.n.w.must(e.qp.RTR(verbs.Peer{QPN: qpn, PSN: psn, GID: verbs.GIDFromAddr(peer.addr)},
		verbs.Path{MTU: e.c.mtu, TrafficClass: e.c.class, MaxDestRDAtomic: e.c.rdAtom, MinRNRTimer: e.c.rnr}))
}

func (e *end) toRTS() {
	e.n.w.must(e.qp.RTS(e.psn, e.c.retry))
}

// start lets the program post.
func (e *end) start() {
	e.up = true
	e.area = newArea(e.peer().dst, 0, dstSize)
	e.initial = bytes.Clone(e.area.want)
	e.n.soon()
}

// act is the program's turn.
func (e *end) act() (did bool) {
	if e.closed {
		return false
	}
	if !e.failed && e.qp.State() == verbs.QPStateErr {
		e.failed = true
		did = true
	}
	if e.failed {
		e.c.look()
		return did
	}
	if !e.srq && e.rnd.IntN(3) > 0 {
		did = e.postRecvs(1 + e.rnd.IntN(recvSlotN))
	}
	if !e.up || e.c.phase != running || e.rnd.IntN(e.lazy) > 0 {
		e.c.look()
		return did || e.up && len(e.ops) < e.goal && e.room() > 0
	}
	did = e.postSends() || did
	e.watchStarving()
	e.watchPace()
	if e.n.w.plan.Drain && !e.sqd && e.rnd.IntN(30) == 0 && e.qp.State() == verbs.QPStateRTS {
		did = true
		e.sqd = true
		e.n.w.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify))
	}
	if e.bad == nil && !e.victimGone && e.n.w.plan.Illegal && e.rnd.IntN(100) == 0 {
		e.endVictim()
	}
	if e.roam != nil {
		did = e.roam.again() || did
	}
	e.c.look()
	return did
}

// event is an asynchronous event of the QP.
func (e *end) event(t verbs.EventType) {
	switch t {
	case verbs.EventQPFatal:
		e.fatalEvent()
	case verbs.EventQPLastWQEReached:
		e.lastWQEEvent()
	}
	if t == verbs.EventSQDrained && e.sqd {
		e.sqd = false
		if e.qp.State() == verbs.QPStateSQD {
			e.n.w.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
		}
	}
}

// postRecvs posts up to n receives.
func (e *end) postRecvs(n int) (did bool) {
	if e.srq {
		return false
	}
	var wrs []verbs.RecvWR
	for range n {
		slot := int(e.posted % recvSlotN)
		if e.posted-e.taken >= recvSlotN || e.posted >= e.c.most[e.side] || e.recvs.posted[slot] {
			break
		}
		wrs = append(wrs, e.recvs.post(slot, e.posted, 1+e.rnd.IntN(4)))
		e.posted++
	}
	if len(wrs) == 0 {
		return false
	}
	e.noteRoom()
	_, err := e.qp.PostRecv(wrs)
	e.n.w.must(err)
	return true
}

// room is how many work requests fit the send queue.
func (e *end) room() int { return e.depth - (len(e.ops) - e.polled) }

// postSends posts some work requests.
func (e *end) postSends() bool {
	w := e.n.w
	var wrs []verbs.SendWR
	var batch []*op
	for k := 1 + e.rnd.IntN(8); k > 0 && len(e.ops) < e.goal && e.room() > 0 && e.bad == nil; k-- {
		o := e.newOp(len(e.ops))
		if o == nil || e.crosses(o) {
			break // there is no memory now
		}
		e.ops = append(e.ops, o)
		if o.takesRecv() {
			e.messages = append(e.messages, o)
		}
		wrs, batch = append(wrs, o.wr), append(batch, o)
	}
	if e.room() == 0 && e.rnd.IntN(20) == 0 && len(batch) == 0 {
		e.postTooMany()
	}
	if len(wrs) == 0 {
		return false
	}
	for _, o := range batch {
		w.logf("%v posts %d: %v %v, %d bytes, flags %v, expect %v", e, o.wr.ID, o.wr.Op, o.where, o.length, o.wr.Flags, o.expect)
	}
	e.noteRoom()
	if e.peer().srq {
		e.peer().noteRoom()
	}
	n, err := e.post(wrs, batch)
	if err != nil || n != len(wrs) {
		w.failf("%v: post of %d work requests: %d, %v", e, len(wrs), n, err)
	}
	w.totals.Posts += uint64(n)
	return true
}

// post posts work requests, those that bind windows of type 1 by their own verb.
func (e *end) post(wrs []verbs.SendWR, batch []*op) (n int, err error) {
	first := 0
	for i, o := range batch {
		if o.win == nil || !o.win.type1() || o.wr.Op != verbs.OpBindMW {
			continue
		}
		if first < i {
			if n, err = e.qp.PostSend(wrs[first:i]); err != nil {
				return first + n, err
			}
		}
		if err = e.postWindow(o); err != nil {
			return i, err
		}
		first = i + 1
	}
	if first < len(wrs) {
		n, err = e.qp.PostSend(wrs[first:])
		return first + n, err
	}
	return first, nil
}

// postTooMany posts to a full send queue.
func (e *end) postTooMany() {
	if len(e.ops)-e.polled < e.depth || e.qp.State() != verbs.QPStateRTS {
		return
	}
	n, err := e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
	if n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
		e.n.w.failf("%v: a post to the full send queue of %d: %d, %v; want ErrQueueFull", e, e.depth, n, err)
	}
}

// finished reports whether all work that was to be posted is complete, and all messages have been received.
func (e *end) finished() bool {
	return e.up && !e.sqd && len(e.ops) == e.goal && e.done == len(e.ops) &&
		(e.c.typ == verbs.QPTypeUC || e.got == len(e.peer().messages))
}

// unsignaled reports whether the outstanding work requests make no completion if they succeed.
func (e *end) unsignaled() bool {
	for _, o := range e.ops[e.done:] {
		if o.wr.Flags&verbs.SendSignaled != 0 {
			return false
		}
	}
	return !e.signalAll && e.status == verbs.WCSuccess
}

func (e *end) outstanding() bool { return e.done < len(e.ops) }

// kill takes the QP to the error state.
func (e *end) kill() {
	e.n.w.logf("%v is killed", e)
	e.killed, e.c.broken = true, true
	e.n.w.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	e.n.soon()
}

// flushed reports whether nothing is outstanding of a QP that has failed. Then the receives are flushed too.
func (e *end) flushed() bool {
	if e.closed {
		return true
	}
	if !e.failed || e.qp.State() != verbs.QPStateErr || !e.n.awake() {
		return false
	}
	e.endsShared()
	if !e.settled() {
		return false
	}
	if e.outstanding() && e.unsignaled() && !e.scq.robbed() {
		e.scq.drain()
		if e.outstanding() && e.unsignaled() && !e.scq.robbed() { // the requests were complete before the QP failed: else they had been flushed
			for _, o := range e.ops[e.done:] {
				e.succeed(o)
			}
		}
	}
	if e.outstanding() && !e.scq.robbed() {
		return false
	}
	if e.srq {
		e.rcq.drain()
		return true
	}
	return e.taken == e.posted || e.rcq.robbed()
}

// dead takes note that the node has crashed.
func (e *end) dead() {
	e.lost()
	e.closed, e.crashed = true, true
}

// lost gives up the work requests that are not complete.
func (e *end) lost() {
	for _, o := range e.ops[e.done:] {
		if o.words != nil && !o.lost {
			o.lost = true
			o.words.lost(o)
		}
	}
}

// reset takes back all posted work, and closes the QP.
func (e *end) reset() {
	e.leavesShared()
	e.n.w.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	e.close()
}

// close closes the QP and everything that the QP alone uses.
func (e *end) close() {
	w, n := e.n.w, e.n
	w.logf("%v closes", e)
	e.leavesShared()
	e.lost()
	if e.windows != nil {
		e.windows.close()
	}
	w.must(e.qp.Close())
	n.gone[e.qp.QPN()] = w.now()
	e.closed = true
	for i, x := range n.ends {
		if x == e {
			n.ends = append(n.ends[:i:i], n.ends[i+1:]...)
			break
		}
	}
	e.leaveQueues()
	if e.roam != nil {
		e.roam.check()
	}
	for _, r := range e.regions() {
		r.close()
		r.check()
		r.freeze()
	}
	n.w.in(10*time.Millisecond, e.afterlife)
}

// afterlife checks that nobody has written memory whose region is closed.
func (e *end) afterlife() {
	for _, r := range e.regions() {
		r.check()
	}
}
