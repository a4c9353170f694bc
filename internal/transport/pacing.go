package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The window paces RC's requests. Nothing on the wire paces the responses to READs, of which one
// request may ask for 2^31 bytes, nor the packets of UC and UD. So they come in turns. Between turns the
// caller serves other QPs, timers and the network:
//
//	q.Turn()
//	for n := q.Transmit(now, buf); n > 0; n = q.Transmit(now, buf) {
//		send(buf[:n])
//	}
//	if q.Pending() {
//		// Put q behind the others that are pending, and come back to it without sleeping
//		// first. In between, receive and serve timers.
//	}
//
// RC's own requests and acknowledgements do not count as packets of a turn. They go out in every turn,
// but for acknowledgements of requests behind a READ, which must follow its responses. So a turn of an
// RC QP has at most window packets more.

// Turn begins a turn of Config.Turn packets. A device gives a turn whenever it calls Transmit. Any
// number of turns may be given.
func (q *QP) Turn() {
	q.left = q.cfg.Turn
	if r, ok := q.service.(*rc); ok {
		r.requester.turn()
	}
}

// Corks reports whether the work request that was just posted waits for more: see requester.corks. Then there is
// nothing to publish, and no timeout has changed.
func (q *QP) Corks() bool {
	r, ok := q.service.(*rc)
	return ok && q.attr.State == verbs.QPStateRTS && r.requester.corks()
}

// Uncork ends all corking: the connection is about to end.
func (q *QP) Uncork() {
	if r, ok := q.service.(*rc); ok {
		r.requester.uncork()
	}
}

// Pending reports, once Transmit has returned 0, whether it did so because the turn is over. The QP
// then needs another turn: no timeout and no packet will call for it.
func (q *QP) Pending() bool { return q.spent() && q.service.pending() }

// Underway reports whether the next work request may wait a little: fewer than limit packets wait to be sent and, on
// RC, others are in flight, whose acknowledgement it could leave with.
func (q *QP) Underway(limit uint64) bool {
	return q.attr.State == verbs.QPStateRTS && q.service.underway(limit)
}

// DeferACK defers the acknowledgement that is due, as TCP's delayed ACK does: it may leave with the program's answer.
// DeferACK reports false if no acknowledgement is due, something else is due too, or the acknowledge timeout is
// shorter than least; the peer's timeout is taken to be like ours. A deferred acknowledgement follows the answer that
// Transmit writes next.
func (q *QP) DeferACK(least time.Duration) bool {
	r, ok := q.service.(*rc)
	if !ok || !r.responder.onlyACK() || r.requester.cur != q.sq.tail || q.notify.due {
		return false
	}
	if d := wire.ACKTimeout(q.attr.Timeout); d != 0 && d < least {
		return false
	}
	r.responder.reply.deferACK()
	return true
}

// ExpectsMore reports whether there may be receives for further messages.
func (q *QP) ExpectsMore() bool { return q.cfg.Receives.Credits() != 0 }

// spent reports whether the turn's packets are used up.
func (q *QP) spent() bool { return q.left == 0 && q.cfg.Turn > 0 }

// spend takes n of the turn's packets.
func (q *QP) spend(n int) { q.left = max(q.left-int32(n), 0) }
