package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// requester cuts work requests into request packets. Sequence numbers:
//
//	completer.una <= nxt <= max
//
// Those before una are acknowledged; before nxt, sent; before max, sent at least once: nxt
// goes back to una for a retry, and READs and writes are then repeated from there.
type requester struct {
	qp  *QP
	nxt uint64
	max uint64
	cur uint64 // place of the work request that has nxt

	// outstanding holds, in order, the ends of the READ requests and atomics that were sent
	// in [una, nxt) and not answered whole.
	outstanding []uint64

	congestion
	askedAt  uint64        // sequence number after the last packet with AckReq
	resumeAt time.Duration // when an RNR NAK's wait ends; Never when there is none
	retries  uint8         // left before WCRetryExceeded
	rnrs     uint8         // left before WCRNRRetryExceeded

	// creditLimit is how many messages the peer has receives for, counted like
	// sendWQE.message; with noCreditLimit there is no limit.
	creditLimit uint64

	drainReported bool
}

const noCreditLimit = 1<<64 - 1

func (r *requester) reset() {
	*r = requester{qp: r.qp, congestion: newCongestion(), resumeAt: Never, creditLimit: noCreditLimit}
}

func (r *requester) start(seq uint64) {
	r.reset()
	r.nxt, r.max, r.askedAt = seq, seq, seq
}

// resize takes over attributes that Modify changed.
func (r *requester) resize() {
	a := &r.qp.attr
	r.retries, r.rnrs = a.RetryCnt, a.RNRRetry
	if cap(r.outstanding) < a.MaxRDAtomic {
		r.outstanding = append(make([]uint64, 0, a.MaxRDAtomic), r.outstanding...)
	}
}

// transmit writes the next request packet into buf, if one may go.
func (r *requester) transmit(now time.Duration, buf []byte) int {
	q := r.qp
	if q.attr.State != verbs.QPStateRTS && q.attr.State != verbs.QPStateSQD {
		return 0
	}
	if r.resumeAt != Never || !r.local() || r.cur == q.sq.tail {
		return 0
	}
	w := q.sq.at(r.cur)
	k := r.nxt - w.seq // the packet of w
	if w.fault != nil || !r.mayStart(w, k) {
		return 0
	}
	count, limit := uint64(1), r.window
	if w.op == verbs.OpRDMARead {
		count = chunkEnd(w, k) - k
		if r.window >= lossWindow {
			// With a second chunk under way, as max_rd_atomic permits, the end of the first is not lost unnoticed.
			limit = max(limit, 2*readChunk)
		}
	}
	if r.nxt+count-q.com.una > limit && r.nxt != q.com.una {
		return 0
	}
	var n int
	var f *Fault
	if w.answered() {
		n, f = r.request(w, k, count, buf)
	} else {
		n, f = r.data(w, k, buf)
	}
	if f != nil {
		w.fault = f
		q.com.failIfOldest()
		return 0
	}
	if r.nxt < r.max {
		q.counters.Retransmits++
	}
	r.nxt += count
	r.max = max(r.max, r.nxt)
	if r.nxt == w.end() {
		r.cur++
	}
	q.com.armTimer(now)
	return n
}

// local carries out the local operations that are next. It returns false if one of them has
// to wait, or has failed.
func (r *requester) local() bool {
	q := r.qp
	for r.cur != q.sq.tail {
		w := q.sq.at(r.cur)
		switch {
		case !w.local():
			return true
		case w.fault != nil:
			return false
		case !w.executed:
			if q.attr.State == verbs.QPStateSQD || w.flags&verbs.SendFence != 0 && len(r.outstanding) > 0 {
				return false
			}
			if f := q.local(w); f != nil {
				w.fault = f
				q.com.failIfOldest()
				return false
			}
			w.executed = true
		}
		r.cur++
		q.com.completeLocal()
	}
	return true
}

// local carries out a local operation.
func (q *QP) local(w *sendWQE) *Fault {
	if w.op == verbs.OpBindMW {
		return q.host.BindMW(&w.bind)
	}
	return q.host.Invalidate(w.invalidate)
}

// mayStart reports whether packet k of w may go now, as far as the ordering rules, the limit
// of outstanding READs and the peer's receives are concerned.
func (r *requester) mayStart(w *sendWQE, k uint64) bool {
	q := r.qp
	if k == 0 && r.nxt == r.max && q.attr.State == verbs.QPStateSQD {
		return false // draining: nothing new starts
	}
	if k == 0 && w.flags&verbs.SendFence != 0 && len(r.outstanding) > 0 {
		return false // IBTA 1.2.1 §10.8.3.3
	}
	if w.answered() {
		if q.attr.MaxRDAtomic == 0 {
			w.fault = &Fault{verbs.WCLocQPOpErr, verbs.Errorf(verbs.ErrInvalid,
				"MAX_QP_RD_ATOMIC is 0, which allows no READ or atomic: set it when going to RTS (initiator depth, for a connection manager)")}
			q.com.failIfOldest()
			return false
		}
		return len(r.outstanding) < q.attr.MaxRDAtomic
	}
	// Beyond the peer's receives only one packet at a time goes out, alone, to ask
	// whether there is one by now: IBTA §9.7.7.2.
	probe := k == 0 || k == 1 && r.askedAt == r.nxt // the first packet has asked, so an answer comes
	if probe && w.takesRecv() && w.message >= r.creditLimit && r.nxt != q.com.una {
		return false
	}
	return true
}

// chunkEnd returns the packet of the READ w at which the request that starts at packet k ends.
// Chunks are counted from the start of w, so a repeated part ends where the first try did.
func chunkEnd(w *sendWQE, k uint64) uint64 {
	return min((k/readChunk+1)*readChunk, w.packets)
}

// request writes a READ request for count packets from packet k on, or an atomic.
func (r *requester) request(w *sendWQE, k, count uint64, buf []byte) (int, *Fault) {
	q := r.qp
	p := q.header(r.nxt)
	p.AckReq = true
	if w.op == verbs.OpRDMARead {
		off := uint32(k) * q.mtu
		p.Opcode = wire.RCRDMAReadRequest
		p.RETH = wire.RETH{
			VA: w.remote.VA + uint64(off), RKey: uint32(w.remote.RKey),
			Length: uint32(min(uint64(w.length-off), count*uint64(q.mtu))),
		}
	} else {
		p.Opcode = wire.RCCompareSwap
		p.AtomicETH = wire.AtomicETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), SwapAdd: w.swap, Compare: w.compare}
		if w.op == verbs.OpAtomicFetchAdd {
			p.Opcode = wire.RCFetchAdd
			p.AtomicETH.Compare = 0
		}
	}
	r.outstanding = append(r.outstanding, r.nxt+count)
	r.askedAt = r.nxt + count
	return len(p.AppendHeaders(buf[:0])) + wire.ICRCSize, nil
}

// position of a packet in its message, as index of the tables below.
const (
	posMiddle = 0
	posFirst  = 1
	posLast   = 2
	posOnly   = posFirst | posLast
)

var (
	sendOpcodes     = [...]wire.Opcode{posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLast, posOnly: wire.RCSendOnly}
	sendInvOpcodes  = [...]wire.Opcode{posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLastWithInvalidate, posOnly: wire.RCSendOnlyWithInvalidate}
	sendImmOpcodes  = [...]wire.Opcode{posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLastWithImm, posOnly: wire.RCSendOnlyWithImm}
	writeOpcodes    = [...]wire.Opcode{posMiddle: wire.RCRDMAWriteMiddle, posFirst: wire.RCRDMAWriteFirst, posLast: wire.RCRDMAWriteLast, posOnly: wire.RCRDMAWriteOnly}
	writeImmOpcodes = [...]wire.Opcode{posMiddle: wire.RCRDMAWriteMiddle, posFirst: wire.RCRDMAWriteFirst, posLast: wire.RCRDMAWriteLastWithImm, posOnly: wire.RCRDMAWriteOnlyWithImm}
	readOpcodes     = [...]wire.Opcode{posMiddle: wire.RCRDMAReadResponseMiddle, posFirst: wire.RCRDMAReadResponseFirst, posLast: wire.RCRDMAReadResponseLast, posOnly: wire.RCRDMAReadResponseOnly}
)

var dataOpcodes = [...]*[4]wire.Opcode{
	verbs.OpSend:             (*[4]wire.Opcode)(&sendOpcodes),
	verbs.OpSendWithImm:      (*[4]wire.Opcode)(&sendImmOpcodes),
	verbs.OpSendWithInv:      (*[4]wire.Opcode)(&sendInvOpcodes),
	verbs.OpRDMAWrite:        (*[4]wire.Opcode)(&writeOpcodes),
	verbs.OpRDMAWriteWithImm: (*[4]wire.Opcode)(&writeImmOpcodes),
}

// data writes packet k of a SEND or WRITE.
func (r *requester) data(w *sendWQE, k uint64, buf []byte) (int, *Fault) {
	p := r.qp.header(r.nxt)
	if k+1 == w.packets || r.nxt-r.askedAt >= r.window/ackParts || k == 0 && w.message >= r.creditLimit {
		p.AckReq = true
		r.askedAt = r.nxt + 1
	}
	return r.qp.dataPacket(p, w, k, buf)
}

// ucOpcodes is what the opcodes of an unreliable connection differ by from those of a reliable one.
const ucOpcodes = wire.UCSendFirst - wire.RCSendFirst

// dataPacket writes packet k of a SEND or WRITE under the header p.
func (q *QP) dataPacket(p *wire.Packet, w *sendWQE, k uint64, buf []byte) (int, *Fault) {
	off := uint32(k) * q.mtu
	pos := posMiddle
	if k == 0 {
		pos |= posFirst
	}
	if k+1 == w.packets {
		pos |= posLast
	}
	p.Opcode = dataOpcodes[w.op][pos]
	if q.cfg.Type == verbs.QPTypeUC {
		p.Opcode += ucOpcodes
	}
	p.RETH = wire.RETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), Length: w.length}
	p.InvalidateRKey = uint32(w.invalidate)
	return q.payload(p, w, off, min(w.length-off, q.mtu), buf)
}

// payload writes the header p and the bytes [off, off+size) of w's message.
func (q *QP) payload(p *wire.Packet, w *sendWQE, off, size uint32, buf []byte) (int, *Fault) {
	p.PadCount = wire.PadCount(int(size))
	p.Solicited = p.Opcode.EndsMessage() && w.flags&verbs.SendSolicited != 0 && w.takesRecv()
	p.Imm = w.imm
	h := len(p.AppendHeaders(buf[:0]))
	payload := buf[h : h+int(size)]
	if w.inline != nil {
		copy(payload, w.inline[off:])
	} else if f := q.host.Gather(payload, w.sg, off); f != nil {
		return 0, f
	}
	return sealSpace(buf, h+int(size), p.PadCount), nil
}

// header prepares q.out for a packet with a sequence number.
func (q *QP) header(seq uint64) *wire.Packet {
	p := &q.out
	p.BTH = wire.BTH{MigReq: true, PKey: defaultPKey, DestQP: uint32(q.attr.DestQPN), PSN: psn(seq)}
	return p
}

// sealSpace zeroes the pad behind n bytes and returns the datagram's length with the ICRC.
func sealSpace(buf []byte, n int, pad uint8) int {
	clear(buf[n : n+int(pad)])
	return n + int(pad) + wire.ICRCSize
}

// goBack makes the requester send again from una on.
func (r *requester) goBack() {
	r.nxt = r.qp.com.una
	r.cur = r.qp.sq.head
	r.askedAt = r.nxt
	r.outstanding = r.outstanding[:0]
}

// acknowledged takes note that una has moved on by n.
func (r *requester) acknowledged(by uint64) {
	r.congestion.acknowledged(by)
	una := r.qp.com.una
	n := 0
	for n < len(r.outstanding) && r.outstanding[n] <= una {
		n++
	}
	if n > 0 {
		r.outstanding = r.outstanding[:copy(r.outstanding, r.outstanding[n:])]
	}
	if r.nxt < una { // what was about to be repeated has arrived after all
		r.nxt = una
		r.askedAt = max(r.askedAt, una)
	}
	for sq := &r.qp.sq; r.cur != sq.tail; r.cur++ {
		if w := sq.at(r.cur); w.end() > r.nxt || w.local() && !w.executed {
			break
		}
	}
	r.retries, r.rnrs = r.qp.attr.RetryCnt, r.qp.attr.RNRRetry
}

// retry goes back at the expense of one retry, or returns false when none is left.
func (r *requester) retry() bool {
	if r.retries == 0 {
		return false
	}
	r.retries--
	r.goBack()
	return true
}

// retryAt goes back when the time has come, at the expense of one RNR retry, or returns false
// when none is left.
func (r *requester) retryAt(t time.Duration) bool {
	if r.resumeAt != Never {
		return true // the same NAK again
	}
	if r.qp.attr.RNRRetry != retryForever {
		if r.rnrs == 0 {
			return false
		}
		r.rnrs--
	}
	r.goBack()
	r.resumeAt = t
	return true
}

// setCredits takes note of how many messages the peer has receives for.
func (r *requester) setCredits(a wire.AETH) {
	if a.Syndrome.Kind() != wire.KindACK {
		return // of a READ response; what it means is anybody's guess
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
	sq := &r.qp.sq
	return r.cur != sq.tail && r.nxt != sq.at(r.cur).seq
}

// drained reports whether every work request that was started is complete.
func (r *requester) drained() bool { return r.qp.com.una == r.max && !r.underway() }
