package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// rc is a reliable connection.
type rc struct {
	qp        *QP
	recovery  recovery
	requester requester
	completer completer
	responder responder
	alive     keepAlive
	greeting  greeting
	ladder    ladder
	fast      fast
}

func newRC(q *QP) *rc {
	r := &rc{qp: q}
	r.recovery.attr, r.recovery.pacer, r.recovery.control = &q.attr, &q.pace, &q.control
	r.recovery.ours, r.recovery.counts = &r.responder.hold.peer, &q.counters
	r.requester = requester{rc: r, qp: q}
	r.completer = completer{rc: r, qp: q}
	r.responder = responder{qp: q}
	return r
}

func (r *rc) reset() {
	r.recovery.reset()
	r.requester.reset()
	r.responder.reset()
	r.alive = keepAlive{due: Never}
	r.greeting = greeting{}
	r.ladder = ladder{}
	r.fast = fast{lookAt: Never}
}

func (r *rc) startReceiving() { r.responder.resize() }

func (r *rc) startSending() {
	r.recovery.start(r.qp.sq.nextSeq)
	r.unfold()
	r.requester.start(r.qp.sq.nextSeq)
}

// unfold ends the careful beginning if the peer does not go back, nothing gets lost on the way to it, or a controller
// other than the window sees to it.
func (r *rc) unfold() {
	if r.responder.hold.peer || r.qp.lending.may != nil || r.qp.paced {
		r.recovery.unfold()
	}
}

func (r *rc) attributesChanged(now time.Duration) {
	r.adopt(now)
	r.requester.resize()
	r.responder.resize()
	r.recovery.refill()
	r.recovery.restartTimer(now) // with the timeout that holds now
	r.alive.start(now)
}

func (r *rc) idle() bool {
	return !r.greeting.due && !r.ladder.due && r.responder.idle() && r.requester.cur == r.qp.sq.tail && r.recovery.nxt != r.alive.probe
}

// transmit sends responses and acknowledgements before requests, but for an ACK that was deferred. That one
// follows a few packets of SENDs, or of WRITEs with immediate data. It is shorter than most, and so can be the
// end of their train. It does not follow other requests: a program that expects no answer may well refuse one,
// which ends the connection, and the peer's message, which has arrived, would be flushed.
func (r *rc) transmit(now time.Duration, buf []byte) int {
	if r.recovery.spread != nil {
		return r.transmitSpread(now, buf)
	}
	return r.transmitOne(now, buf)
}

// transmitOne is transmit, by whichever path.
func (r *rc) transmitOne(now time.Duration, buf []byte) int {
	if r.requester.brisk > 0 && r.responder.idle() {
		if n := r.requester.transmitBrisk(now, buf); n > 0 {
			return n
		}
	}
	if ack := &r.responder.reply; ack.ahead > 0 && r.responder.onlyACK() && r.requester.nextAnswers() {
		if n := r.request(now, buf); n > 0 {
			if n = r.carry(buf, n); ack.ahead > 0 {
				ack.ahead--
			}
			return n
		}
	}
	if n := r.responder.transmit(now, buf); n > 0 {
		return n
	}
	return r.request(now, buf)
}

// carry has the answer of n bytes in buf carry the acknowledgement that was deferred, if it is all that leaves: within
// a train no packet may be longer than the first. It returns the answer's length.
func (r *rc) carry(buf []byte, n int) int {
	s := &r.responder
	if !s.hold.carries || r.qp.cfg.Shown || s.reply.ahead < deferBehind || r.requester.cur != r.qp.sq.tail || n+wire.CarriedSize > int(min(carrierMost, r.qp.mtu)) || !wire.Opcode(buf[0]).CarriesACK() {
		return n
	}
	psn, aeth := s.takeACK()
	return wire.CarryACK(buf, n, psn, aeth)
}

// request writes the next request packet into buf, if one may go.
func (r *rc) request(now time.Duration, buf []byte) int {
	switch r.qp.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
		if r.greeting.due {
			return r.greet(buf)
		}
		if r.ladder.due {
			return r.climb(buf)
		}
		if r.fast.n > 0 && r.requester.cur != r.qp.sq.tail { // packets go on from there
			r.adopt(now)
		}
		return r.requester.transmit(now, buf)
	}
	return 0
}

func (r *rc) handle(now time.Duration, p *wire.Packet) (progress bool) {
	q := r.qp
	if r.fast.n > 0 && (p.Carries || !p.Opcode.IsRequest()) {
		r.adopt(now)
	}
	epsn, una := q.receiver.epsn, r.recovery.una
	if p.Carries && (q.attr.State == verbs.QPStateRTS || q.attr.State == verbs.QPStateSQD) {
		r.completer.carried(now, p)
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
			r.responder.hello(p)
			r.unfold()
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
		r.responder.watchGap(now, q.receiver.epsn != epsn)
	}
	if q.receiver.epsn == epsn && r.recovery.una == una {
		return false
	}
	r.alive.heard = now
	return true
}

func (r *rc) nextTimeout() time.Duration {
	return min(r.recovery.nextTimeout(), r.alive.due, r.qp.pace.callAt, r.responder.gapAt, r.fast.lookAt)
}

func (r *rc) handleTimeout(now time.Duration) {
	r.recovery.endHold(now)
	r.qp.pace.served(now)
	if now >= r.fast.lookAt {
		r.lookFast(now)
	}
	switch {
	case now >= r.recovery.ackDeadline:
		r.qp.counters.Timeouts++
		if !r.recovery.timedOut(now) {
			r.giveUp()
			break
		}
		r.mountLadder()
		r.probe()
	case now >= r.recovery.probing.at:
		r.recovery.backOff(now)
		r.probe()
	}
	if now >= r.recovery.due {
		r.completer.overtaken(now)
	}
	if now >= r.alive.due {
		r.look(now)
	}
	if now >= r.responder.gapAt {
		r.responder.gapStays()
	}
}

// probe sends the oldest packet again that is not acknowledged, or what is missing of a READ's chunk.
func (r *rc) probe() {
	rec := &r.recovery
	if rec.nxt == rec.una { // held back by the pace
		return
	}
	n := uint64(1)
	if w := r.completer.owner(rec.una); w != nil && w.op == verbs.OpRDMARead {
		k := rec.una - w.seq
		n = min(chunkEnd(w, k)-k, rec.ranges[0].end-rec.una) // what is behind may have come
	}
	rec.ask(n)
	r.qp.counters.Probes++
	r.requester.repeat()
}

// repeat sends everything from seq on again. It fails the QP if no retry is left.
func (r *rc) repeat(now time.Duration, seq uint64, cause string) {
	if !r.recovery.signed(now, seq, cause) {
		r.giveUp()
		return
	}
	r.qp.counters.Repeats++
	r.requester.rewind()
}

// giveUp fails the QP: no retry is left.
func (r *rc) giveUp() {
	r.qp.counters.RetryExceeded++
	r.qp.fail(r.blackHole(r.recovery.exhausted()))
}

func (r *rc) underway(limit uint64) bool {
	return r.recovery.una < r.recovery.max && r.qp.sq.nextSeq-r.recovery.nxt < limit
}

func (r *rc) pending() bool { return r.responder.pending() }

func (r *rc) drained() bool {
	return r.recovery.una == r.recovery.max && r.fast.n == 0 && !r.requester.underway()
}

func (r *rc) abandon() { r.responder.abandon() }

func (r *rc) stop() {
	r.recovery.stop()
	r.alive.due, r.qp.pace.callAt = Never, Never
	r.ladder = ladder{}
	r.fast = fast{lookAt: Never}
	r.requester.cur = r.qp.sq.tail
	r.responder.hold, r.responder.gapAt = hold{}, Never
}
