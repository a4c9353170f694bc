package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Between processes of one host most SENDs are short, arrive, and find a receive. Headers, a window and a timer for
// each packet are made for networks. So while nothing else is under way, such a SEND takes the fast path: it has its
// place in the send queue and its PSNs, and recovery does not know it. At any exception fallBack gives recovery the
// SENDs that are under way, as if they had been sent now, and the packets' path goes on from there.

// fast has the packets that a requester has sent by the fast path.
type fast struct {
	n       uint32        // packets, from recovery's una on, that are not acknowledged
	unaThen uint32        // una when the timer was set, modulo 2^32
	timer   time.Duration // when to check that una has moved; Never if there is no need
}

// Message is the header that the fast path carries beside a payload.
type Message struct {
	PSN       wire.PSN // of its first packet
	Packets   int      // for how many packets the message stands
	Imm       uint32
	HasImm    bool
	Solicited bool
}

// SendsFast reports whether a SEND that is posted now may take the fast path.
func (q *QP) SendsFast() bool {
	r, ok := q.service.(*rc)
	return ok && q.attr.State == verbs.QPStateRTS && r.onlyFast()
}

// onlyFast reports whether nothing is under way, or waits to be sent, but SENDs of the fast path and an ACK.
func (r *rc) onlyFast() bool {
	q, rec := r.qp, &r.recovery
	return r.requester.cur == q.sq.tail && rec.Una() == rec.Max() && !rec.IsWaiting() && !q.rate.IsPaced() && !q.notify.due && rec.Paths() == nil &&
		!r.hello.due && !r.mtuSearch.due && r.keepAlive.probe == 0 && (r.responder.idle() || r.responder.onlyACK())
}

// SendFast posts a SEND, for a caller that finds SendsFast true. It writes the payload into buf, which has room for
// FastMost bytes, or lends the payload: see Loan. n is how many bytes are in buf. SendFast reports false if the SEND
// has to be posted by Post.
func (q *QP) SendFast(wr *verbs.SendWR, buf []byte, m *Message) (n int, ok bool) {
	if !IsFast(wr.Op) || q.sq.full() != nil {
		return 0, false
	}
	r := q.service.(*rc)
	f := &r.fast
	w := q.sq.push(wr, q.mtu)
	q.lending.loan.Packets = 0
	if w.length > lendMost || uint64(f.n)+w.packets > maxWindow || f.n > 0 && r.requester.lacksCredit(w) {
		q.sq.unpush(w)
		return 0, false
	}
	if n, ok = q.writeFast(w, buf); !ok {
		q.sq.unpush(w)
		return 0, false
	}
	q.posted(w)
	f.add(w.packets)
	r.requester.skipPosted()
	m.PSN, m.Packets, m.Imm = psn(w.seq), int(w.packets), w.imm
	m.HasImm, m.Solicited = w.op == verbs.OpSendWithImm, w.flags&verbs.SendSolicited != 0
	return n, true
}

// fastOps are the operations that the fast path has.
const fastOps = 1<<verbs.OpSend | 1<<verbs.OpSendWithImm

// IsFast reports whether the fast path has an operation.
func IsFast(op verbs.Opcode) bool { return fastOps>>op&1 != 0 }

// writeFast writes, or lends, the payload of w, which was pushed last.
func (q *QP) writeFast(w *sendWQE, buf []byte) (n int, ok bool) {
	if w.flags&verbs.SendInline != 0 && w.inline == nil && q.fillInline(w) != nil {
		return 0, false
	}
	switch {
	case w.inline != nil:
		return copy(buf[:FastMost], w.inline), w.length <= FastMost
	case w.length <= FastMost:
		return int(w.length), q.memory.Gather(q.cfg.PD, buf[:w.length], w.sg, 0) == nil
	case q.lending.may == nil || !worthLending(w.packets, w.packets, w.length):
		return 0, false
	}
	l, ok := q.cfg.PD.Lend(w.sg, 0, w.length)
	return 0, ok && q.lend(l, w.length, w.packets)
}

// FastTimerRuns reports whether HandleTimeout will check that the peer receives the SENDs of the fast path. If not,
// StartFastTimer starts that timer.
func (q *QP) FastTimerRuns() bool { return q.service.(*rc).fast.timer != Never }

// StartFastTimer starts the timer by which HandleTimeout checks the SENDs of the fast path.
func (q *QP) StartFastTimer(now time.Duration) {
	r := q.service.(*rc)
	r.fast.startTimer(q.notBefore(now), r.recovery.Una())
}

// add notes that n packets leave by the fast path.
func (f *fast) add(n uint64) { f.n += uint32(n) }

// arrived notes that the peer has the first n packets.
func (f *fast) arrived(n int) { f.n -= uint32(n) }

// stop forgets the packets, and ends the timer.
func (f *fast) stop() { *f = fast{timer: Never} }

func (f *fast) stopTimer() { f.timer = Never }

func (f *fast) startTimer(now time.Duration, una uint64) {
	f.timer, f.unaThen = now+fastTimeout, uint32(una)
}

// fastTimedOut falls back if no SEND of the fast path was acknowledged since the timer started.
func (r *rc) fastTimedOut(now time.Duration) {
	f, una := &r.fast, r.recovery.Una()
	f.stopTimer()
	switch {
	case f.n == 0:
	case f.unaThen == uint32(una):
		r.fallBack(now)
	default:
		f.startTimer(now, una)
	}
}

// fallBack ends the fast path: recovery gets the packets that are under way.
func (r *rc) fallBack(now time.Duration) {
	n := uint64(r.fast.n)
	if n == 0 {
		return
	}
	rec := &r.recovery
	r.fast.stop()
	rec.Adopt(now, n)
	r.requester.ackRequested(rec.Nxt())
}

// AcknowledgeFast takes an ACK of SENDs of the fast path. It reports false if the ACK must be handled as a packet.
func (q *QP) AcknowledgeFast(now time.Duration, at wire.PSN, a wire.AETH) bool {
	r, ok := q.service.(*rc)
	if !ok || q.attr.State != verbs.QPStateRTS || a.Syndrome.Kind() != wire.KindACK {
		return false
	}
	rec := &r.recovery
	n := at.Diff(psn(rec.Una())) + 1
	if n < 1 || n > int(r.fast.n) {
		return false
	}
	end := rec.Una() + uint64(n)
	r.fast.arrived(n)
	r.requester.setCredits(a)
	rec.Skip(end)
	r.keepAlive.progressed(q.notBefore(now))
	r.completer.completeDone()
	return true
}

// ReceiveFast executes a SEND that took the fast path. It reports false, and has done nothing, if the SEND must be
// handled as a packet. lent is nil if the payload was not lent.
func (q *QP) ReceiveFast(now time.Duration, m *Message, payload []byte, lent Lent) bool {
	now = q.notBefore(now)
	if m.Packets == 1 && lent == nil { // most messages are such
		return q.receiveFast(now, m, payload)
	}
	q.run.begin(m.Packets, lent)
	done := q.receiveFast(now, m, payload)
	q.run.end()
	return done
}

// receiveFast is ReceiveFast once the run is set.
func (q *QP) receiveFast(now time.Duration, m *Message, payload []byte) bool {
	r, ok := q.service.(*rc)
	if !ok || q.attr.State != verbs.QPStateRTS || !q.outputs.established || q.routing.Accept {
		return false
	}
	s, in := &r.responder, &q.receiver
	n := uint32(len(payload))
	if m.PSN != in.epsn || in.msg.kind != noMessage || s.refused || s.reorder.n > 0 || s.reply.kind > ackReply || uint64(m.Packets) != packetsFor(n, q.mtu) {
		return false
	}
	w := in.takeRecv()
	if w == nil {
		return false
	}
	if w.Length < n || n > 0 && q.scatter(w.PD, w.SGList, 0, payload) != nil {
		in.unused = w
		return false
	}
	if !q.run.isTaken() {
		in.unused = w
		return true // the peer has given up: see recalled
	}
	wc := in.succeed(w, verbs.WCRecv, n, m.Solicited)
	if m.HasImm {
		wc.Flags |= verbs.WCFlagWithImm
		wc.Imm = m.Imm
	}
	s.executed(true, true)
	r.keepAlive.progressed(now)
	return true
}

// OnlyACK reports whether the QP has an ACK to send, and nothing else.
func (q *QP) OnlyACK() bool {
	r, ok := q.service.(*rc)
	return ok && r.responder.onlyACK() && r.requester.cur == q.sq.tail && !q.notify.due && !r.hello.due && !r.mtuSearch.due &&
		r.recovery.Nxt() != r.keepAlive.probe
}

// TakeACK returns the ACK that is due, for a caller that finds OnlyACK true and sends it.
func (q *QP) TakeACK() (at wire.PSN, a wire.AETH) { return q.service.(*rc).responder.takeACK() }
