package whole

import (
	"bytes"

	"github.com/adverb-rdma/adverb/verbs"
)

// The oracle checks the promises that verbs make to programs:
//
//   - Work requests complete in the order of posting, each once, with the status that the request must have.
//     Behind a request that failed, all are flushed.
//   - A SEND that is complete is whole in one receive, and messages take receives in their order. Nothing
//     else of the receive's memory changes.
//   - The effects of WRITEs are in memory when the WRITEs are complete, in their order. A READ brings the contents
//     that the memory had at the READ's turn, or the data of a later WRITE, unless the WRITE was fenced.
//   - An ATOMIC WRITE is a WRITE that comes behind all requests before it, and once. When a FLUSH is complete, its range
//     has what was written before it.
//   - Atomics are linearizable: see words_test.go.
//   - Memory changes only where a work request names it, and not after its region or window has ended, or the
//     region is registered anew elsewhere or with other rights: see rereg_test.go.
//   - All of this holds where packets are placed or held that come before others: see order_test.go.
//   - A completion queue that overruns keeps its completions and tells of the loss, and the queue's QPs fail; nobody
//     else's: see queues_test.go. With completions of receives from an SRQ the queue loses the receives: see
//     shared_test.go.
//   - Who waits for the event of a completion queue is woken: see notify_test.go.
//   - Whose peer is silent, or posts no receives, fails in time: see conn.patience and conn.starvation.
//     Otherwise all work ends.
//   - All of this holds where an end waits for its pace, and where its packets take several ways. Nobody sends from
//     more ports than asked for, and no congestion is notified that no network has marked: see spread_test.go and
//     paced_test.go. Where nothing comes from one port, and another works, no retries are used up.
//   - When all is closed, a device holds no queue pair, no key and nothing of any connection.

var wcOps = [...]verbs.WCOpcode{
	verbs.OpRDMAWrite: verbs.WCRDMAWrite, verbs.OpRDMAWriteWithImm: verbs.WCRDMAWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendWithImm: verbs.WCSend, verbs.OpSendWithInv: verbs.WCSend,
	verbs.OpRDMARead: verbs.WCRDMARead, verbs.OpAtomicCmpSwap: verbs.WCCompSwap, verbs.OpAtomicFetchAdd: verbs.WCFetchAdd,
	verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpBindMW: verbs.WCBindMW, verbs.OpFlush: verbs.WCFlush, verbs.OpAtomicWrite: verbs.WCAtomicWrite,
}

// sendCompleted checks the completion of a send work request.
func (e *end) sendCompleted(wc *verbs.WC) {
	w, i := e.n.w, int(wc.ID)
	if i < e.done || i >= len(e.ops) {
		w.failf("%v: work request %d completes; want one of those that are posted and not complete, %d to %d", e, i, e.done, len(e.ops)-1)
	}
	o := e.ops[i]
	if wc.Op != wcOps[o.wr.Op] || wc.QPN != e.qp.QPN() || wc.QP != e.qp {
		w.failf("%v: work request %d, %v, completes as %v of %v", e, i, o.wr.Op, wc.Op, wc.QPN)
	}
	for _, before := range e.ops[e.done:i] {
		if e.status != verbs.WCSuccess || before.wr.Flags&verbs.SendSignaled != 0 || e.signalAll {
			w.failf("%v: work request %d completes before %d", e, i, before.wr.ID)
		}
		e.succeed(before)
	}
	e.done, e.polled = i, i+1
	switch {
	case e.status != verbs.WCSuccess && wc.Status != verbs.WCFlushErr:
		w.failf("%v: work request %d, behind one that failed, ends with %v, want it flushed", e, i, wc.Status)
	case wc.Status != verbs.WCSuccess:
		e.fails(o, wc)
	case o.wr.Flags&verbs.SendSignaled == 0 && !e.signalAll:
		w.failf("%v: work request %d makes a completion, and is not signaled", e, i)
	default:
		if (o.wr.Op == verbs.OpRDMARead || o.atomic()) && int(wc.ByteLen) != o.length {
			w.failf("%v: %v %d of %d bytes completes with %d", e, o.wr.Op, i, o.length, wc.ByteLen)
		}
		e.succeed(o)
	}
	e.done = i + 1
}

// fails checks that a work request may fail with the completion's status.
func (e *end) fails(o *op, wc *verbs.WC) {
	w, p := e.n.w, e.peer()
	if o.words != nil && !o.lost {
		o.lost = true
		o.words.lost(o)
	}
	if e.status != verbs.WCSuccess {
		return
	}
	e.status, e.firstBad = wc.Status, int(o.wr.ID)
	w.logf("%v: work request %d fails first: %v", e, o.wr.ID, wc.Err())
	peerFailed := p == nil || p.failed || p.closed || p.qp.State() == verbs.QPStateErr
	ok := false
	switch wc.Status {
	case verbs.WCRetryExceeded:
		ok = peerFailed || w.plan.mayFail() && !e.mustLive()
	case verbs.WCRNRRetryExceeded:
		ok = e.c.retry.RNRRetryCount < 7
	case verbs.WCFlushErr:
		ok = e.killed || p != nil && (p.bad != nil || p.victims > 0)
		if !ok && e.tight() {
			ok, e.blames = true, true
		}
	case verbs.WCRemAccessErr:
		ok = o.expect == wc.Status || o.victim && p.victimGone
	default:
		ok = o.expect == wc.Status
	}
	if !ok {
		w.failf("%v: work request %d, %v of %s, fails with %v, want %v", e, o.wr.ID, o.wr.Op, o.where, wc.Err(), o.expect)
	}
	if s := e.qp.State(); s != verbs.QPStateErr {
		w.failf("%v: work request %d fails with %v, and the QP is in %v", e, o.wr.ID, wc.Status, s)
	}
}

// succeed checks the effects of a work request that is complete.
func (e *end) succeed(o *op) {
	w, p := e.n.w, e.peer()
	i := int(o.wr.ID)
	e.done = i + 1
	if o.expect != verbs.WCSuccess || o.lateTo && o.length > 0 {
		w.failf("%v: work request %d, %v of %s, succeeds, want %v", e, i, o.wr.Op, o.where, o.expect)
	}
	later := e.ops[i+1:]
	switch {
	case o.area != nil && o.writes() && e.c.typ == verbs.QPTypeRC:
		copy(o.area.want[o.off:], o.data)
		if !o.area.fits(o.area.bytes()[o.off:][:o.length], o.off, later) {
			w.failf("%v: %v %d of %d bytes to byte %d of %s is complete, and they are not there", e, o.wr.Op, i, o.length, o.off, o.where)
		}
		if o.wr.Op == verbs.OpAtomicWrite {
			w.totals.AtomicWrites++
		}
	case o.area != nil && o.wr.Op == verbs.OpFlush:
		w.totals.Flushes++
		if !o.area.fits(o.area.bytes()[o.off:][:o.length], o.off, later) {
			w.failf("%v: FLUSH %d of %d bytes from byte %d of %s on is complete, and the memory has not what was written before", e, i, o.length, o.off, o.where)
		}
	case o.wr.Op == verbs.OpRDMARead:
		e.readDone(o)
	case o.atomic():
		e.placed(o)
		o.words.finish(e, o, e.read.bytes()[o.target:][:8])
	case o.sends() && !p.srq && e.c.typ == verbs.QPTypeRC && !p.closed:
		e.arrived(o, p)
	}
	if o.win != nil {
		o.win.complete(e, o)
	}
	if o.roam != nil {
		o.roam.uses--
	}
}

// readDone checks the data of a READ.
func (e *end) readDone(o *op) {
	e.placed(o)
	got := e.read.bytes()[o.target:][:o.length]
	if o.area == nil {
		src := e.peer().src.bytes()
		for i, c := range got {
			x := o // or a request behind o, which may be done as well
			for x != nil && c != src[x.off+i] {
				x = x.under
			}
			if x == nil {
				e.n.w.failf("%v: READ %d of %d bytes brought other data, from byte %d on", e, o.wr.ID, o.length, i)
				return
			}
		}
		return
	}
	later := e.ops[o.wr.ID+1:]
	for k, x := range later {
		if x.wr.Flags&verbs.SendFence != 0 { // x starts when the READ is done
			later = later[:k]
			break
		}
	}
	if !o.area.fits(got, o.off, later) {
		e.n.w.failf("%v: READ %d of %d bytes brought data that were not there at its turn", e, o.wr.ID, o.length)
	}
}

// placed checks that a READ or an atomic has written nothing beside its target.
func (e *end) placed(o *op) {
	b := e.read.bytes()[o.target-guardSize:][:o.length+2*guardSize]
	for i, c := range b {
		if c != untouched && (i < guardSize || i >= guardSize+o.length) {
			e.n.w.failf("%v: %v %d wrote beside its target", e, o.wr.Op, o.wr.ID)
		}
	}
}

// arrived checks that a SEND that is complete is in the peer's receive, unless the peer has had the SEND already.
func (e *end) arrived(o *op, p *end) {
	for k, m := range e.messages {
		if m != o {
			continue
		}
		if k >= p.got && uint64(k) < p.posted && !p.failed {
			if b := p.recvs.bytes(k % recvSlotN); !bytes.Equal(b[:o.length], o.data) {
				e.n.w.failf("%v: SEND %d is complete, and not in receive %d of its peer", e, o.wr.ID, k)
			}
		}
		return
	}
}

// recvCompleted checks the completion of a receive.
func (e *end) recvCompleted(wc *verbs.WC) {
	w, p := e.n.w, e.peer()
	if e.srq {
		defer e.n.shared.done(wc.ID)
		e.sharedCompleted(wc)
	} else {
		if wc.ID != e.taken {
			w.failf("%v: receive %d completes, want %d", e, wc.ID, e.taken)
		}
		e.taken++
	}
	slots := &e.recvs
	if e.srq {
		slots = &e.n.shared.recvSlots
	}
	slot := int(wc.ID) % len(slots.posted)
	if wc.Status == verbs.WCFlushErr {
		slots.posted[slot] = false
		if s := e.qp.State(); s != verbs.QPStateErr {
			w.failf("%v: receive %d is flushed, and the QP is in %v", e, wc.ID, s)
		}
		return
	}
	if e.c.typ == verbs.QPTypeUC {
		e.ucReceived(wc, slots, slot)
		return
	}
	if p == nil || e.got >= len(p.messages) {
		w.failf("%v: receive %d completes with %v, %d bytes, and nothing was sent", e, wc.ID, wc.Status, wc.ByteLen)
	}
	o := p.messages[e.got]
	e.got++
	gone := o.victim && e.victimGone && wc.Status == verbs.WCLocAccessErr // the region was closed in the midst of the WRITE
	if wc.Status != o.expectAt && !gone {
		w.failf("%v: receive %d of message %d, %v of %s, completes with %v, want %v", e, wc.ID, o.wr.ID, o.wr.Op, o.where, wc.Err(), o.expectAt)
	}
	if wc.Status != verbs.WCSuccess {
		slots.posted[slot] = false
		return
	}
	e.received(wc, o, slots, slot)
}

// received checks that a receive got a message.
func (e *end) received(wc *verbs.WC, o *op, slots *recvSlots, slot int) {
	w, p := e.n.w, e.peer()
	e.n.ringing = o.rings()
	want, data := o.receipt(wc.ID, e, p)
	if *wc != want {
		w.failf("%v: receive %d completes as %+v, want %+v of %v %d", e, wc.ID, *wc, want, o.wr.Op, o.wr.ID)
	}
	slots.take(e, slot, data, e.srq && w.plan.Kill) // a QP that left may have given the receive back
	if o.writes() && o.area != nil && !p.closed && e.c.typ == verbs.QPTypeRC {
		// The data were there before the completion. Data that were written before are there too, but for later data.
		later := p.ops[o.wr.ID+1:]
		for k, b := range o.area.bytes()[o.off:][:o.length] {
			if b != o.data[k] && !wroteLater(later, o.area, o.off+k, b) {
				w.failf("%v: WRITE %d with immediate data has completed receive %d before all its data were there", e, o.wr.ID, wc.ID)
			}
		}
	}
	if o.win != nil && o.wr.Op == verbs.OpSendWithInv {
		o.win.ended()
	}
}

// rings reports whether the peer's completion of the message rings a queue that is armed for solicited ones.
func (o *op) rings() ringing {
	if o.wr.Flags&verbs.SendSolicited != 0 {
		return rings
	}
	return silent
}

// brings reports whether o writes b to byte at of a, by whatever name: a window that is bound anew to the same memory
// is another area.
func (o *op) brings(a *area, at int, b byte) bool {
	if o.area == nil || o.area.r != a.r || !o.writes() {
		return false
	}
	k := a.off + at - o.area.off - o.off
	return k >= 0 && k < len(o.data) && o.data[k] == b
}

func wroteLater(later []*op, a *area, at int, b byte) bool {
	for _, x := range later {
		if x.brings(a, at, b) {
			return true
		}
	}
	return false
}

// receipt is the completion and the contents of e's receive with an ID when the receive gets o.
func (o *op) receipt(id uint64, e, p *end) (want verbs.WC, data []byte) {
	want = verbs.WC{ID: id, Op: verbs.WCRecv, ByteLen: uint32(o.length), QPN: e.qp.QPN(), QP: e.qp, SrcQPN: p.qp.QPN()}
	data = o.data
	if o.writes() {
		want.Op, data = verbs.WCRecvRDMAWithImm, nil
	}
	switch o.wr.Op {
	case verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm:
		want.Flags, want.Imm = verbs.WCFlagWithImm, o.wr.Imm
	case verbs.OpSendWithInv:
		want.Flags, want.Imm = verbs.WCFlagWithInv, uint32(o.wr.InvalidateRKey)
	}
	return want, data
}

// ucReceived checks that a receive of a UC QP got one of the peer's messages, behind those that came before
// unless the network repeats or reorders.
func (e *end) ucReceived(wc *verbs.WC, slots *recvSlots, slot int) {
	w, p := e.n.w, e.peer()
	if wc.Status != verbs.WCSuccess {
		w.failf("%v: receive %d completes with %v", e, wc.ID, wc.Err())
	}
	if data, ok := e.forged.take(e, wc, slots.bytes(slot)); ok {
		slots.take(e, slot, data, true)
		return
	}
	if w.plan.Duplicate > 0 || w.plan.Reorder > 0 || w.plan.Ways > 0 { // UC does not notice
		e.got = 0
	}
	for ; p != nil && e.got < len(p.messages); e.got++ {
		o := p.messages[e.got]
		want, data := o.receipt(wc.ID, e, p)
		if *wc != want || !bytes.Equal(slots.bytes(slot)[:len(data)], data) {
			continue // the message was lost
		}
		if o.length >= 8 { // and not another message that looks alike
			e.n.ringing = o.rings()
		}
		slots.take(e, slot, data, true)
		e.got++
		e.forged.moored = e.forged.moored || o.length > e.c.mtu.Bytes() // the message's packets follow one another
		return
	}
	w.failf("%v: receive %d completes with what nobody has sent, or out of order: %+v", e, wc.ID, *wc)
}

// verify makes the checks at the end of a life.
func (e *end) verify() {
	w, p := e.n.w, e.peer()
	for _, r := range e.regions() {
		r.check()
	}
	if e.roam != nil && p != nil && !e.crashed {
		e.roam.verify(p)
	}
	if e.windows != nil && !e.closed {
		e.windows.check()
	}
	if e.area != nil && !p.crashed {
		e.verifyArea()
	}
	if e.closed {
		return
	}
	e.verifyCounters()
	if w.plan.calm() && !e.c.broken && e.c.typ == verbs.QPTypeRC && (e.failed || e.got != len(p.messages)) {
		w.failf("%v: on a network without faults it failed, or received %d messages of %d", e, e.got, len(p.messages))
	}
	// Each message that the peer knows to have arrived has arrived.
	if e.c.typ == verbs.QPTypeRC {
		if n := e.arrivedFor(); e.got < n && !e.rcq.robbed() {
			w.failf("%v: %d messages are complete at the peer, and %d were received", e, n, e.got)
		}
	}
}

// verifyCounters adds the QP's counters to the totals.
func (e *end) verifyCounters() {
	w := e.n.w
	c, err := e.qp.Counters()
	w.must(err)
	w.totals.Held += c.Value("held_request")
	w.totals.Needless += c.Value("needless_repeats")
	if e.c.secured {
		w.totals.SecuredHeld += c.Value("held_request")
	}
	w.totals.PathsLeft += c.Value("paths_left")
	e.verifyPace(c)
	if !w.plan.calm() || e.c.broken {
		return
	}
	for _, name := range []string{"local_ack_timeout_err", "rcvd_seq_err", "implied_nak_seq_err", "duplicate_request"} {
		if name == "duplicate_request" && e.c.routing[e.side].Accept && c.Value("send_rnr_err") > 0 && c.Value("held_request") > 0 {
			continue // the QP holds packets that come behind a SEND without a receive, and the peer sends all of these packets again
		}
		n := c.Value(name)
		if p := e.peer(); name == "duplicate_request" && p != nil {
			n -= min(n, p.flushTwins())
		}
		if n != 0 {
			w.failf("%v: on a network without faults: %s is %d, want 0", e, name, n)
		}
	}
}

// flushTwins is how many packets came twice at most, since this end did not know yet that its peer is no Linux: see
// docs/decisions/foreign-icrc.md.
func (e *end) flushTwins() (n uint64) {
	for _, o := range e.ops {
		if o.wr.Op == verbs.OpFlush {
			n++
		}
	}
	return n
}

// verifyArea checks the memory that this end has written at the peer.
func (e *end) verifyArea() {
	if e.c.typ == verbs.QPTypeUC { // any WRITE may have been lost, or cut short
		for i, b := range e.area.bytes() {
			if b != e.area.want[i] && !wroteLater(e.ops, e.area, i, b) && b != e.initial[i] && !wroteLater(e.peer().forged.writes, e.area, i, b) {
				e.n.w.failf("%v: byte %d of the destination is what no WRITE brought", e, i)
			}
		}
		return
	}
	first := e.done // of a node that has crashed this may be any
	if e.status != verbs.WCSuccess {
		first = e.firstBad
	}
	if !e.area.fits(e.area.bytes(), 0, e.ops[min(first, len(e.ops)):]) {
		e.n.w.failf("%v: the destination has other contents than the WRITEs make it", e)
	}
}
