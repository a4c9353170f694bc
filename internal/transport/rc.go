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
}

func newRC(q *QP) *rc {
	r := &rc{qp: q}
	r.recovery.attr = &q.attr
	r.requester = requester{rc: r, qp: q}
	r.completer = completer{rc: r, qp: q}
	r.responder = responder{qp: q}
	return r
}

func (r *rc) reset() {
	r.recovery.reset()
	r.requester.reset()
	r.responder.reset()
}

func (r *rc) startReceiving() { r.responder.start() }

func (r *rc) startSending() {
	r.recovery.start(r.qp.sq.nextSeq)
	r.requester.start(r.qp.sq.nextSeq)
}

func (r *rc) attributesChanged(now time.Duration) {
	r.requester.resize()
	r.responder.resize()
	r.recovery.refill()
	r.recovery.restartTimer(now) // with the timeout that holds now
}

// transmit sends responses and acknowledgements before requests.
func (r *rc) transmit(now time.Duration, buf []byte) int {
	if n := r.responder.transmit(buf); n > 0 {
		return n
	}
	switch r.qp.attr.State {
	case verbs.QPStateRTS, verbs.QPStateSQD:
		return r.requester.transmit(now, buf)
	}
	return 0
}

func (r *rc) handle(now time.Duration, p *wire.Packet) (progress bool) {
	q := r.qp
	epsn, una := q.receiver.epsn, r.recovery.una
	state := q.attr.State
	sends := state == verbs.QPStateRTS || state == verbs.QPStateSQD
	switch {
	case p.Opcode == wire.CNP:
		if sends {
			q.counters.CongestionNotifications++
			r.recovery.notified(now)
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
	return q.receiver.epsn != epsn || r.recovery.una != una
}

func (r *rc) nextTimeout() time.Duration { return r.recovery.nextTimeout() }

func (r *rc) handleTimeout(now time.Duration) {
	r.recovery.endHold(now)
	if now >= r.recovery.ackDeadline {
		r.qp.counters.Timeouts++
		r.repeat(now, r.recovery.timedOut())
	}
}

// repeat sends everything from una on again. It fails the QP if no retry is left.
func (r *rc) repeat(now time.Duration, cause string) {
	if !r.recovery.retry(now, cause) {
		r.qp.fail(r.recovery.exhausted())
		return
	}
	r.requester.rewind()
}

func (r *rc) pending() bool { return r.responder.pending() }

func (r *rc) drained() bool {
	return r.recovery.una == r.recovery.max && !r.requester.underway()
}

func (r *rc) abandon() { r.responder.abandon() }

func (r *rc) stop() {
	r.recovery.stop()
	r.requester.cur = r.qp.sq.tail
}
