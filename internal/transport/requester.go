package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// requester cuts work requests into request packets, in the order that recovery asks for. It knows the rules for
// which requests may start: fences, the limit of outstanding READs, and the peer's receives.
type requester struct {
	rc  *rc
	qp  *QP
	cur uint64 // place of the work request that has recovery's nxt

	// outstanding holds, in order, the ends of the READ requests and atomics that are in flight and not answered
	// whole.
	outstanding []uint64

	ackRequestedTo uint64 // sequence number after the last packet with AckReq

	prechecked uint32 // how many more packets may go in this turn without the checks of transmit: see transmitPrechecked
	ends       bool   // the packet that is written is the last before a pause of the pacer
	corked     bool   // in this turn: see corks
	remainder  uint8  // packets that this turn leaves for the next train: see trainRemainder
	uncorked   bool   // nothing is corked any more

	// creditLimit is how many messages the peer has receives for, counted like
	// sendWQE.message. With noCreditLimit there is no limit.
	creditLimit uint64
}

const noCreditLimit = 1<<64 - 1

func (r *requester) reset() {
	*r = requester{rc: r.rc, qp: r.qp, creditLimit: noCreditLimit, outstanding: r.outstanding[:0]}
}

func (r *requester) start(seq uint64) {
	r.reset()
	r.ackRequestedTo = seq
}

// resize makes room for as many READs and atomics as Modify allows.
func (r *requester) resize() {
	if n := r.qp.attr.MaxRDAtomic; cap(r.outstanding) < n {
		r.outstanding = append(make([]uint64, 0, n), r.outstanding...)
	}
}

// transmit writes the next request packet into buf, if one may go.
func (r *requester) transmit(now time.Duration, buf []byte) int {
	q, rec := r.qp, &r.rc.recovery
	if rec.WaitsForReceiver() {
		return 0
	}
	if rec.Nxt() == r.rc.keepAlive.probe {
		return r.probe(now, buf)
	}
	if !r.runLocal() || r.cur == q.sq.tail || r.corked || r.remainder > 0 && rec.Nxt()+uint64(r.remainder) >= q.sq.nextSeq {
		return 0
	}
	w := q.sq.at(r.cur)
	k := rec.Nxt() - w.seq // the packet of w
	if w.fault != nil || !r.mayStart(w, k) {
		return 0
	}
	count, lent, limit := uint64(1), uint64(0), rec.Limit()
	if w.op == verbs.OpRDMARead {
		count, limit = r.readPart(w, k, limit)
		k = rec.Nxt() - w.seq
	} else if q.lending.may != nil {
		lent = r.lendable(w, k, rec.Room(limit, recovery.MaxAhead))
		count = max(lent, 1)
	}
	if rec.Nxt()-rec.Una() >= maxHeld && !w.hasResponse() && r.overflowsPeer() {
		return 0
	}
	if q.rate.IsPaced() && r.ackRequestedTo <= rec.Una() {
		limit = max(limit, rec.InFlight()+1) // no packet in flight asks for an acknowledgement, and a window that was narrowed may be full
	}
	if rec.Bursts() && !w.hasResponse() {
		var ok bool
		if limit, ok = rec.BurstLimit(limit); !ok {
			return 0
		}
	}
	if !rec.MayGo(now, count, limit) {
		return 0
	}
	var n int
	var f *fault
	if w.hasResponse() {
		n, f = r.request(w, k, count, buf)
	} else if n = r.lend(w, k, lent, buf); n == 0 {
		count = q.copiedRun(lent)
		r.ends = q.rate.IsPaced() && q.rate.Pauses(now, int(q.mtu))
		n, f = r.data(w, k, count, buf)
	}
	if f != nil {
		r.fault(w, f)
		return 0
	}
	if rec.Sent(now, count, w.hasResponse()) {
		q.counters.Retransmits++
	}
	if q.rate.IsPaced() {
		q.sent(now, n)
	} else if (w.simple || r.continues(w)) && !rec.Bursts() && rec.Nxt() == rec.Max() {
		limit = rec.Limit() // a READ may have raised the limit
		room := rec.Room(limit, maxHeld)
		if r.remainder > 0 {
			room = min(room, q.sq.nextSeq-uint64(r.remainder)-rec.Nxt())
		}
		r.prechecked = uint32(room)
	}
	r.seek()
	return n
}

// turn begins a turn.
func (r *requester) turn() {
	r.corked, r.prechecked, r.remainder = r.corks(), r.precheck(), r.trainRemainder()
}

// uncork ends all corking.
func (r *requester) uncork() { r.uncorked = true }

// skipPosted moves on behind all posted work requests: they have left by another way, or never will.
func (r *requester) skipPosted() { r.cur = r.qp.sq.tail }

// readPart returns how many packets of the READ w the next request asks for, from packet k on, and how many may be
// outstanding. It may move recovery's nxt back.
func (r *requester) readPart(w *sendWQE, k, limit uint64) (count, most uint64) {
	rec := &r.rc.recovery
	again := rec.Nxt() < rec.Max()
	if again && !r.rc.peerSACKs() {
		// Linux refuses a repeat that begins before an earlier repeat of the same request. So each begins with the
		// first response that is missing: none before that one is needed any more.
		begin := w.seq + k/readChunk*readChunk
		rec.LoseMissing(max(begin, rec.Una()), rec.Nxt())
		k = rec.Nxt() - w.seq
	}
	count = chunkEnd(w, k) - k
	if again && r.rc.peerSACKs() {
		count = min(count, rec.LostRun()) // an adverb answers for any part
	} else if again {
		count = rec.LostTo(rec.Nxt()+count) - rec.Nxt()
	}
	return count, rec.ReadLimit(count, readChunk, limit)
}

// overflowsPeer reports whether the peer, which acknowledges selectively, might have no room for the next packet, and
// drop it. The peer holds maxHeld packets, beside the middle of the WRITE that is under way there.
func (r *requester) overflowsPeer() bool {
	rec := &r.rc.recovery
	from := max(rec.Una(), rec.Executed())
	if !rec.SACKs() || r.qp.routing.Send || rec.Nxt() < rec.Max() {
		return false
	}
	if w := r.rc.completer.owner(from); w != nil && w.op == verbs.OpRDMAWrite && !w.split && from > w.seq {
		from = w.end() - 1
	}
	return rec.Nxt() >= from+maxHeld
}

// continues reports whether the packets behind w's first may go prechecked: packets with data that is not lent, on
// one path.
func (r *requester) continues(w *sendWQE) bool {
	return !w.hasResponse() && w.fault == nil && r.qp.lending.may == nil && r.rc.recovery.Paths() == nil
}

// transmitPrechecked is transmit for a packet that follows another one in the same turn: the packet of a simple work
// request, or the next one of a message. If the next packet is another, it sends nothing. All checks of transmit were
// made for the packet before, or by precheck. The window has room for as many packets as prechecked says.
func (r *requester) transmitPrechecked(now time.Duration, buf []byte) int {
	q := r.qp
	w := q.sq.at(r.cur)
	rec := &r.rc.recovery
	responds := w.hasResponse()
	k := rec.Nxt() - w.seq
	if r.cur == q.sq.tail || !w.simple && (k == 0 || !r.continues(w)) || q.rate.IsPausing(now) ||
		rec.Nxt() != rec.Una() && r.lacksCredit(w) || responds && len(r.outstanding) >= q.attr.MaxRDAtomic || q.attr.State != verbs.QPStateRTS {
		r.prechecked = 0
		return 0
	}
	r.prechecked--
	var n int
	var f *fault
	if responds {
		n, f = r.request(w, 0, 1, buf)
	} else if n = r.lend(w, k, r.lendable(w, k, 1), buf); n == 0 {
		n, f = r.data(w, k, 1, buf)
	}
	if f != nil {
		r.prechecked = 0
		r.fault(w, f)
		return 0
	}
	rec.Sent(now, 1, responds)
	if k+1 == w.packets {
		r.cur++
	}
	return n
}

// precheck returns how many packets may go prechecked at the beginning of a turn: a window, where no packet is in
// flight and nothing paces packets.
func (r *requester) precheck() uint32 {
	q, rec, c := r.qp, &r.rc.recovery, r.rc
	if rec.Una() != rec.Max() || r.cur == q.sq.tail || c.fast.n > 0 || q.rate.IsPaced() || rec.Bursts() || rec.Paths() != nil ||
		c.keepAlive.probe != 0 || c.hello.due || c.mtuSearch.due || q.attr.State != verbs.QPStateRTS {
		return 0
	}
	return uint32(rec.Limit())
}

// corks reports whether the posted messages that are not sent wait for more, as with Nagle's algorithm and TCP_CORK.
// Small messages that are posted one by one cost a system call each, at both ends, unless several leave as one train.
// So while many packets are in flight, short messages wait until they are as many, or a whole train. Every
// acknowledgement reduces the number in flight, and the last packet in flight asks for one. So the messages that wait
// leave within a round trip. Inside a long WRITE the last packet need not ask, so long WRITEs do not wait, whatever
// their form. Nor does a message behind few long ones: it often tells the peer that those have arrived.
func (r *requester) corks() bool {
	rec := &r.rc.recovery
	return rec.Max()-rec.Una() >= corkFrom && r.corksMore()
}

// corksMore is corks once so many packets are in flight.
func (r *requester) corksMore() bool {
	rec, sq := &r.rc.recovery, &r.qp.sq
	flying := rec.InFlight()
	if flying < corkFrom || !r.mayCork() {
		return false
	}
	w := sq.at(r.cur)
	if w.packets != 1 && (!w.split || w.length > splitMost) || w.op == verbs.OpRDMARead || w.flags&verbs.SendFence != 0 {
		return false
	}
	waiting := sq.nextSeq - rec.Nxt()
	length := uint64(min(w.length, r.qp.mtu)) + wire.BTHSize + wire.RETHSize + wire.ICRCSize
	return waiting < min(flying, corkMost) && (waiting+1)*length <= trainBytes
}

// mayCork reports whether there is a new packet to send, and it may wait for more posts: enough messages are in
// flight, whose acknowledgements end the wait.
func (r *requester) mayCork() bool {
	sq, rec := &r.qp.sq, &r.rc.recovery
	return r.cur != sq.tail && r.cur-sq.head >= corkMessages && !r.uncorked && rec.Nxt() == rec.Max()
}

// trainRemainder returns how many packets of the latest WRITE, which has several, would leave behind the last whole
// train. While many packets are in flight the remainder waits for the next WRITE, as corked messages do: a datagram
// costs about as much as five packets do in a train.
func (r *requester) trainRemainder() uint8 {
	rec, sq := &r.rc.recovery, &r.qp.sq
	if rec.Max()-rec.Una() < remainderFrom || rec.InFlight() < remainderFrom || !r.mayCork() {
		return 0
	}
	w := sq.at(sq.tail - 1)
	if w.packets == 1 || !w.split || w.length > splitMost || w.flags&verbs.SendFence != 0 {
		return 0
	}
	train := uint64(DatagramBytes / (r.qp.mtu + wire.BTHSize + wire.RETHSize + wire.ICRCSize))
	if rest := (sq.nextSeq - rec.Nxt()) % train; rest < w.packets && rest < sq.nextSeq-rec.Nxt() {
		return uint8(rest) // a train has less than 256: the least path MTU is 256 bytes
	}
	return 0
}

// splits reports whether each packet of w, which is about to be posted, goes as a WRITE ONLY. The packets of a train
// have one length, but for the last. A WRITE FIRST is longer by its RETH than the packets behind it, so that of short
// WRITEs every second packet would begin a train. With a RETH in each packet all packets have one length. The peer
// executes the same, and counts more messages. Where switches route packets one by one, all WRITEs are split.
func (r *requester) splits(w *sendWQE) bool {
	if w.op != verbs.OpRDMAWrite || r.qp.lending.may != nil {
		return false
	}
	return r.qp.routing.Send || w.packets > 1 && w.length <= splitMost && r.rc.peerSACKs() && r.rc.recovery.InFlight() >= corkFrom
}

// answerOps are the operations by which programs answer. An ACK may follow them: see rc.transmit.
const answerOps = 1<<verbs.OpSend | 1<<verbs.OpSendWithImm | 1<<verbs.OpRDMAWriteWithImm

// Answers reports whether programs answer by op.
func Answers(op verbs.Opcode) bool { return answerOps>>op&1 != 0 }

// nextAnswers reports whether the next request packet may be an answer's.
func (r *requester) nextAnswers() bool {
	return r.cur != r.qp.sq.tail && Answers(r.qp.sq.at(r.cur).op)
}

// ackRequested notes that all packets before seq have asked for an acknowledgement.
func (r *requester) ackRequested(seq uint64) { r.ackRequestedTo = seq }

// seek moves cur to the work request that has recovery's nxt, or to a local operation before it that is not executed
// yet.
func (r *requester) seek() {
	nxt := r.rc.recovery.Nxt()
	for sq := &r.qp.sq; r.cur != sq.tail; r.cur++ {
		if w := sq.at(r.cur); w.end() > nxt || w.isLocal() && !w.executed {
			return
		}
	}
}

// rewind follows recovery's nxt back to una, from where all packets are sent again.
func (r *requester) rewind() {
	r.ackRequestedTo = r.rc.recovery.Nxt()
	r.repeat()
}

// repeat follows recovery's nxt back to the first lost packet.
func (r *requester) repeat() {
	r.cur, r.prechecked = r.qp.sq.head, 0
	r.seek()
}

// advanced follows recovery's una, which has moved on. If skipped, una is beyond nxt: the packets that were about to
// be repeated have arrived.
func (r *requester) advanced(skipped bool) {
	rec := &r.rc.recovery
	r.rc.keepAlive.acknowledged(rec.Una())
	n := 0
	for n < len(r.outstanding) && r.outstanding[n] <= rec.Una() {
		n++
	}
	if n > 0 {
		r.outstanding = r.outstanding[:copy(r.outstanding, r.outstanding[n:])]
	}
	if skipped {
		r.ackRequestedTo = max(r.ackRequestedTo, rec.Una())
	}
	r.seek()
}

// fault keeps a local error until w's turn to complete comes.
func (r *requester) fault(w *sendWQE, f *fault) {
	w.fail(f)
	r.rc.completer.failIfOldest()
}

// runLocal executes the local operations that are next. It returns false if one of them has to wait, or has failed.
func (r *requester) runLocal() bool {
	q := r.qp
	for r.cur != q.sq.tail {
		w := q.sq.at(r.cur)
		switch {
		case !w.isLocal():
			return true
		case w.fault != nil:
			return false
		case !w.executed:
			if q.attr.State == verbs.QPStateSQD || w.flags&verbs.SendFence != 0 && len(r.outstanding) > 0 {
				return false
			}
			if f := q.executeLocal(w); f != nil {
				r.fault(w, f)
				return false
			}
			w.setExecuted()
		}
		r.cur++
		r.rc.completer.completeDone()
		r.rc.completer.failIfOldest()
	}
	return true
}

// mayStart reports whether packet k of w may go now, as far as the ordering rules, the limit
// of outstanding READs and the peer's receives are concerned.
func (r *requester) mayStart(w *sendWQE, k uint64) bool {
	q, rec := r.qp, &r.rc.recovery
	if k == 0 && rec.Nxt() == rec.Max() && q.attr.State == verbs.QPStateSQD {
		return false // draining: nothing new starts
	}
	repeats := rec.Nxt() < rec.Max() // then the packet has waited already
	if k == 0 && w.flags&verbs.SendFence != 0 && len(r.outstanding) > 0 && !repeats {
		return false // IBTA §10.8.3.3
	}
	if w.hasResponse() {
		if q.attr.MaxRDAtomic == 0 {
			r.fault(w, &fault{verbs.WCLocQPOpErr, verbs.Errorf(verbs.ErrInvalid,
				"MAX_QP_RD_ATOMIC is 0, which allows no READ or atomic, FLUSH or ATOMIC WRITE: set it when going to RTS (initiator depth, for a connection manager)")})
			return false
		}
		return repeats || len(r.outstanding) < q.attr.MaxRDAtomic
	}
	// Beyond the peer's receives only one packet at a time goes out, alone, to ask
	// whether there is one by now: IBTA §9.7.7.2.
	probe := k == 0 || k == 1 && r.ackRequestedTo == rec.Nxt() // the first packet has asked, so an answer comes
	if probe && r.lacksCredit(w) && rec.Nxt() != rec.Una() {
		return false
	}
	return true
}

// chunkEnd returns the packet of the READ w at which the request that starts at packet k ends.
// Chunks are counted from the start of w, so a repeated part ends where the first try did.
func chunkEnd(w *sendWQE, k uint64) uint64 {
	return min((k/readChunk+1)*readChunk, w.packets)
}

// request writes a READ request for count packets from packet k on, or the packet of another operation with a response.
func (r *requester) request(w *sendWQE, k, count uint64, buf []byte) (n int, f *fault) {
	q := r.qp
	seq := r.rc.recovery.Nxt()
	p := q.header(wire.RCRDMAReadRequest, psn(seq))
	p.AckReq = true
	if q.cfg.opcodes == wire.XRC {
		p.XRCETH.SRQN = uint32(w.cold.srqn)
	}
	switch w.op {
	case verbs.OpRDMARead:
		off := uint32(k) * q.mtu
		p.RETH = wire.RETH{
			VA: w.remote.VA + uint64(off), RKey: uint32(w.remote.RKey),
			Length: uint32(min(uint64(w.length-off), count*uint64(q.mtu))),
		}
	case verbs.OpAtomicCmpSwap:
		p.Opcode = wire.RCCompareSwap
		p.AtomicETH = wire.AtomicETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), SwapAdd: w.cold.swap, Compare: w.cold.compareAdd}
	case verbs.OpAtomicFetchAdd:
		p.Opcode = wire.RCFetchAdd
		p.AtomicETH = wire.AtomicETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), SwapAdd: w.cold.compareAdd}
	case verbs.OpFlush:
		p.Opcode = wire.RCFlush
		p.FETH = wire.FETH{Placement: uint8(w.cold.flush.Placement), Selectivity: uint8(w.cold.flush.Selectivity)}
		p.RETH = wire.RETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), Length: w.cold.flush.Length}
	case verbs.OpAtomicWrite:
		p.Opcode = wire.RCAtomicWrite
		p.RETH = wire.RETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), Length: atomicLength}
		if n, f = q.payload(p, w, 0, atomicLength, buf); f != nil {
			return 0, f
		}
	}
	if n == 0 {
		n = len(q.headers(p, buf)) + wire.ICRCSize
	}
	if seq >= r.rc.recovery.Max() {
		r.outstanding = append(r.outstanding, seq+count)
	}
	r.ackRequestedTo = max(r.ackRequestedTo, seq+count)
	return n, nil
}

// data writes the n packets of a SEND or WRITE from packet k on as one packet. n is mostly 1.
func (r *requester) data(w *sendWQE, k, n uint64, buf []byte) (int, *fault) {
	p := r.qp.header(0, psn(r.rc.recovery.Nxt()))
	p.AckReq = r.requestsACK(w, k, n)
	if r.qp.cfg.opcodes == wire.XRC {
		p.XRCETH.SRQN = uint32(w.cold.srqn)
	}
	length, f := r.qp.dataPacket(p, w, k, n, buf)
	if f == nil { // otherwise an acknowledgement may be written in its place
		r.qp.standsFor(n)
	}
	return length, f
}

// requestsACK reports whether the n packets of w from packet k on ask for an acknowledgement.
func (r *requester) requestsACK(w *sendWQE, k, n uint64) bool {
	rec := &r.rc.recovery
	next := rec.Nxt() + n
	due := next-1-min(r.ackRequestedTo, next-1) >= rec.Limit()/ackParts
	if ends, ok := rec.EndsBurst(); ok {
		due = ends
	}
	if due || k+n == w.packets || r.ends || k == 0 && r.lacksCredit(w) || rec.IsProbe() {
		r.ackRequestedTo = max(r.ackRequestedTo, next)
		return true
	}
	return false
}

// lacksCredit reports whether w takes a receive, and the peer has announced none for w.
func (r *requester) lacksCredit(w *sendWQE) bool {
	return w.message >= r.creditLimit && w.takesRecv()
}

// setCredits takes note of how many messages the peer has receives for.
func (r *requester) setCredits(a wire.AETH) {
	if a.Syndrome.Kind() != wire.KindACK {
		return // in a READ response no other kind means anything
	}
	n, limited := wire.DecodeCredits(a.Syndrome.Value())
	if !limited {
		r.creditLimit = noCreditLimit
		return
	}
	// The MSN counts the peer's completed messages modulo 2^24; ours are counted without end.
	posted := r.qp.sq.messages
	limit := posted - (posted-uint64(a.MSN))&msnMask + uint64(n)
	// A receive that was announced stays, though the next count may be rounded down.
	if r.creditLimit == noCreditLimit || limit > r.creditLimit {
		r.creditLimit = limit
	}
}

// underway reports whether a message is sent in part.
func (r *requester) underway() bool {
	sq, nxt := &r.qp.sq, r.rc.recovery.Nxt()
	return r.cur != sq.tail && nxt != sq.at(r.cur).seq && nxt != r.rc.keepAlive.probe
}
