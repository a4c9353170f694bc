package transport

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// rc is a reliable connection.
type rc struct {
	qp        *QP
	recovery  recovery.State
	requester requester
	completer completer
	responder responder
	keepAlive keepAlive
	hello     helloState
	mtuSearch mtuSearch
	fast      fast
	multipath *multipath // nil: there is one path
}

func newRC(q *QP) *rc {
	r := &rc{qp: q}
	r.recovery.Init(&q.rate)
	r.requester = requester{rc: r, qp: q}
	r.completer = completer{rc: r, qp: q}
	r.responder = responder{qp: q}
	return r
}

func (r *rc) reset() {
	r.recovery.Reset()
	r.multipath.restart(&r.recovery)
	r.requester.reset()
	r.responder.reset()
	r.keepAlive.reset()
	r.hello.reset()
	r.mtuSearch = mtuSearch{}
	r.fast.stop()
}

func (r *rc) startReceiving() { r.responder.resize() }

func (r *rc) startSending() {
	r.recovery.Start(r.qp.sq.nextSeq)
	r.multipath.restart(&r.recovery)
	r.endSlowStart()
	r.requester.start(r.qp.sq.nextSeq)
}

// endSlowStart ends slow start if the peer does not go back, no packet gets lost on the way to it, or a controller
// other than the window takes care of congestion.
func (r *rc) endSlowStart() {
	if r.responder.reorder.peerSACKs || r.qp.lending.may != nil || r.qp.rate.IsPaced() {
		r.recovery.EndSlowStart()
	}
}

func (r *rc) attributesChanged(now time.Duration) {
	r.fallBack(now)
	r.requester.resize()
	r.responder.resize()
	a := &r.qp.attr
	r.recovery.SetRetry(now, recovery.Retry{Timeout: wire.ACKTimeout(a.Timeout), Count: a.RetryCnt, RNRCount: a.RNRRetry})
	r.keepAlive.start(now)
}

func (r *rc) idle() bool {
	return !r.hello.due && !r.mtuSearch.due && r.responder.idle() && r.requester.cur == r.qp.sq.tail && r.recovery.Nxt() != r.keepAlive.probe
}

// transmit sends responses and acknowledgements before requests, but for a deferred ACK. A deferred ACK follows a few
// packets of SENDs, or of WRITEs with immediate data. It is shorter than most packets, and so can end their train. It
// does not follow other requests: a program that expects no answer may well refuse one, which ends the connection,
// and the peer's message, which has arrived, would be flushed.
func (r *rc) transmit(now time.Duration, buf []byte) int {
	if r.multipath != nil {
		return r.transmitMultipath(now, buf)
	}
	return r.transmitOne(now, buf)
}

// transmitOne is transmit, on the current path.
func (r *rc) transmitOne(now time.Duration, buf []byte) int {
	if r.requester.prechecked > 0 && r.responder.idle() {
		if n := r.requester.transmitPrechecked(now, buf); n > 0 {
			return n
		}
	}
	if ack := &r.responder.reply; ack.deferred > 0 && r.responder.onlyACK() && r.requester.nextAnswers() {
		if n := r.request(now, buf); n > 0 {
			if n = r.piggyback(buf, n); ack.deferred > 0 {
				ack.passed()
			}
			return n
		}
	}
	if n := r.responder.transmit(now, buf); n > 0 {
		return n
	}
	return r.request(now, buf)
}

// piggyback puts the deferred acknowledgement into the answer of n bytes in buf, if nothing else leaves: within a
// train no packet may be longer than the first. It returns the answer's length.
func (r *rc) piggyback(buf []byte, n int) int {
	s := &r.responder
	if !s.reorder.peerPiggybacks || r.qp.cfg.Shown || s.reply.deferred < deferBehind || r.requester.cur != r.qp.sq.tail || n+wire.PiggybackSize > int(min(piggybackMost, r.qp.mtu)) || !wire.Opcode(buf[0]).MayPiggyback() {
		return n
	}
	psn, aeth := s.takeACK()
	return wire.PiggybackACK(buf, n, psn, aeth)
}

// request writes the next request packet into buf, if one may go.
func (r *rc) request(now time.Duration, buf []byte) int {
	switch r.qp.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
		if r.hello.due {
			return r.sendHello(buf)
		}
		if r.mtuSearch.due {
			return r.sendMTUProbe(buf)
		}
		if r.fast.n > 0 && r.requester.cur != r.qp.sq.tail { // SENDs by the fast path are under way, and packets follow them
			r.fallBack(now)
		}
		return r.requester.transmit(now, buf)
	}
	return 0
}

func (r *rc) handle(now time.Duration, p *wire.Packet) (progress bool) {
	q := r.qp
	if q.cfg.opcodes != 0 && !q.takesXRC(p) {
		q.counters.Unexpected++
		return false
	}
	if r.fast.n > 0 && (p.Piggybacks || !p.Opcode.IsRequest()) {
		r.fallBack(now)
	}
	epsn, una := q.receiver.epsn, r.recovery.Una()
	if p.Piggybacks && (q.attr.State == verbs.QPStateRTS || q.attr.State == verbs.QPStateSQD) {
		r.completer.piggybacked(now, p)
	}
	state := q.attr.State
	sends := state == verbs.QPStateRTS || state == verbs.QPStateSQD
	switch {
	case p.Opcode == wire.CNP:
		if sends {
			q.notified(now)
		}
	case p.Opcode == wire.RCHello:
		if sends || state == verbs.QPStateRTR {
			r.responder.handleHello(p)
			if r.peerSACKs() {
				r.recovery.PermitSACK()
			}
			r.endSlowStart()
		}
	case p.Opcode == wire.RCAckRanges:
		if sends {
			r.completer.handle(now, p)
		}
	case p.Opcode.Service() != wire.ServiceRC:
		q.counters.Unexpected++
	case p.Opcode.IsRequest():
		if sends || state == verbs.QPStateRTR {
			r.responder.handle(p)
		}
	case sends:
		r.completer.handle(now, p)
	}
	if q.routing.Accept {
		r.responder.setGapTimer(now, q.receiver.epsn != epsn)
	}
	if q.receiver.epsn == epsn && r.recovery.Una() == una {
		return false
	}
	r.keepAlive.progressed(now)
	return true
}

func (r *rc) nextTimeout() time.Duration {
	return min(r.recovery.NextTimeout(), r.keepAlive.due, r.qp.rate.NextTimeout(), r.responder.gapTimer, r.fast.timer)
}

func (r *rc) handleTimeout(now time.Duration) {
	r.recovery.EndWait(now)
	r.qp.rate.Served(now)
	if now >= r.fast.timer {
		r.fastTimedOut(now)
	}
	if due, exhausted := r.recovery.AckTimedOut(now); due { // IBTA §9.7.6.1.3
		r.ackTimedOut(now, exhausted)
	} else if r.recovery.ProbeDue(now) {
		r.probe()
	}
	if r.recovery.LossDue(now) {
		r.completer.detectLost(now)
	}
	if now >= r.keepAlive.due {
		r.keepAliveTimedOut(now)
	}
	if now >= r.responder.gapTimer {
		r.responder.gapTimedOut()
	}
}

// ackTimedOut notes that the acknowledge timeout has come, and whether no retry was left for it.
func (r *rc) ackTimedOut(now time.Duration, exhausted bool) {
	r.qp.counters.Timeouts++
	if exhausted {
		r.useUp(now)
		return
	}
	if r.qp.cfg.opcodes == 0 { // a probe names no SRQ
		r.searchMTU()
	}
	r.probe()
}

// probe sends the oldest unacknowledged packet again, or requests the missing responses of a READ's chunk.
func (r *rc) probe() {
	rec := &r.recovery
	if rec.Nxt() == rec.Una() { // the pace holds all packets back
		return
	}
	n := uint64(1)
	if w := r.completer.owner(rec.Una()); w != nil && w.op == verbs.OpRDMARead {
		k := rec.Una() - w.seq
		n = chunkEnd(w, k) - k
	}
	rec.Probe(n)
	r.qp.counters.Probes++
	r.requester.repeat()
}

// repeat sends all packets from seq on again. It fails the QP if no retry is left.
func (r *rc) repeat(now time.Duration, seq uint64) {
	if !r.recovery.GoBack(now, seq) {
		r.useUp(now)
		return
	}
	r.qp.counters.Repeats++
	r.requester.rewind()
}

// useUp is for when no retry is left: the QP migrates to its alternate path, if it is armed, or fails.
func (r *rc) useUp(now time.Duration) {
	if !r.qp.Migrate(now) {
		r.giveUp()
		return
	}
	r.recovery.GoBack(now, r.recovery.Una())
	r.qp.counters.Repeats++
	r.requester.rewind()
}

// giveUp fails the QP: no retry is left.
func (r *rc) giveUp() {
	r.qp.counters.RetryExceeded++
	a, cause := &r.qp.attr, "the peer missed a packet"
	if r.recovery.WasSilent() {
		cause = fmt.Sprintf("nothing came for %v (timeout %d)", wire.ACKTimeout(a.Timeout), a.Timeout)
	}
	at := fmt.Sprintf("gid %v", a.AH.DGID)
	if !a.AH.IsGlobal() {
		at = fmt.Sprintf("lid %d", a.AH.DLID)
	}
	r.qp.fail(r.withBlackHole(&fault{verbs.WCRetryExceeded, fmt.Errorf("qp %v at %s did not acknowledge psn %v: %d retries (retry_cnt), the last because %s",
		a.DestQPN, at, psn(r.recovery.Una()), a.RetryCnt, cause)}))
}

func (r *rc) underway(limit uint64) bool {
	return r.recovery.Una() < r.recovery.Max() && r.qp.sq.nextSeq-r.recovery.Nxt() < limit
}

func (r *rc) pending() bool { return r.responder.pending() }

func (r *rc) drained() bool {
	return r.recovery.Una() == r.recovery.Max() && r.fast.n == 0 && !r.requester.underway()
}

func (r *rc) abandon() { r.responder.abandon() }

func (r *rc) stop() {
	r.recovery.Stop()
	r.keepAlive.stop()
	r.qp.rate.Reset()
	r.mtuSearch = mtuSearch{}
	r.fast.stop()
	r.requester.skipPosted()
	r.responder.reorder, r.responder.gapTimer = reorderBuffer{}, Never
}
