package transport

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// completer takes the peer's responses. It completes work requests, in the order of posting, and tells
// recovery what has arrived and what is missing.
type completer struct {
	rc     *rc
	qp     *QP
	atomic [atomicLength]byte
}

// handle takes a response packet.
func (c *completer) handle(now time.Duration, p *wire.Packet) {
	q, rec := c.qp, &c.rc.recovery
	seq := rec.una + uint64(int64(p.PSN.Diff(psn(rec.una)))) // less than 2^23 from una
	if seq >= rec.max || seq < rec.una {
		// Not asked for, or answered already: packets repeat and overtake one another.
		q.counters.Unexpected++
		return
	}
	switch {
	case p.Opcode == wire.RCAcknowledge:
		c.acknowledge(now, seq, p.AETH)
	case p.Opcode.IsRead():
		c.readResponse(now, seq, p)
	case p.Opcode == wire.RCAtomicAcknowledge:
		c.atomicResponse(now, seq, p)
	default:
		q.counters.Unexpected++
	}
}

func (c *completer) acknowledge(now time.Duration, seq uint64, a wire.AETH) {
	switch a.Syndrome.Kind() {
	case wire.KindACK:
		c.rc.requester.setCredits(a)
		if !c.advance(now, seq+1) {
			c.gap(now)
		}
	case wire.KindRNR:
		// The NAK acknowledges what was before it: IBTA §9.7.5.1.2.
		if !c.advance(now, seq) {
			c.gap(now)
			return
		}
		c.receiverNotReady(now, a.Syndrome.Value())
	case wire.KindNAK:
		if !c.advance(now, seq) {
			c.gap(now)
			return
		}
		c.nak(now, a.Syndrome.NAKCode())
	default:
		c.qp.counters.Unexpected++
	}
}

// advance acknowledges everything before end and completes what is done by it. It returns false
// if a READ or an atomic before end has not been answered: its response was lost.
func (c *completer) advance(now time.Duration, end uint64) bool {
	sq, una := &c.qp.sq, c.rc.recovery.una
	reach := end
	for place := sq.head; place != sq.tail; place++ {
		w := sq.at(place)
		if w.seq >= end {
			break
		}
		if w.hasResponse() && una < w.end() {
			reach = max(una, w.seq)
			break
		}
	}
	if reach > una {
		c.moveTo(now, reach)
	}
	return end <= reach
}

// moveTo makes seq the oldest that is not acknowledged, and completes what is done by it.
func (c *completer) moveTo(now time.Duration, seq uint64) {
	rec := &c.rc.recovery
	nxt := rec.nxt
	rec.acknowledged(now, seq)
	c.completeDone()
	c.rc.requester.advanced(rec.nxt != nxt)
	c.failIfOldest()
	c.qp.reportDrained()
}

// completeDone completes the oldest work requests that are done: local operations that were carried
// out, and others that the peer has acknowledged or answered.
func (c *completer) completeDone() {
	q := c.qp
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if w.isLocal() && !w.executed || !w.isLocal() && w.end() > c.rc.recovery.una {
			return
		}
		q.completeSend(verbs.WCSuccess, nil)
	}
}

// failIfOldest fails the QP if the work request that is next to complete has a local error.
func (c *completer) failIfOldest() {
	q := c.qp
	if q.sq.head == q.sq.tail || q.attr.State == verbs.QPStateErr {
		return
	}
	if w := q.sq.at(q.sq.head); w.fault != nil {
		q.fail(w.fault)
	}
}

// owner returns the work request that has the sequence number, which is not before una.
func (c *completer) owner(seq uint64) *sendWQE {
	sq := &c.qp.sq
	for place := sq.head; place != sq.tail; place++ {
		if w := sq.at(place); seq < w.end() {
			return w
		}
	}
	return nil
}

// responseTo finds the READ or atomic that a response is for, and acknowledges all before it.
// It returns nil if the response is of no use.
func (c *completer) responseTo(now time.Duration, seq uint64) *sendWQE {
	q := c.qp
	w := c.owner(seq)
	if w == nil || !w.hasResponse() {
		q.counters.Unexpected++
		return nil
	}
	if !c.advance(now, w.seq) || seq > c.rc.recovery.una {
		c.gap(now)
		return nil
	}
	if q.attr.State == verbs.QPStateErr {
		return nil
	}
	return w
}

func (c *completer) readResponse(now time.Duration, seq uint64, p *wire.Packet) {
	w := c.responseTo(now, seq)
	if w == nil {
		return
	}
	if f := c.placeRead(w, seq-w.seq, p); f != nil {
		c.qp.fail(f)
		return
	}
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		c.rc.requester.setCredits(p.AETH)
	}
	c.moveTo(now, seq+1)
}

// placeRead checks response packet k of the READ w and stores its data.
func (c *completer) placeRead(w *sendWQE, k uint64, p *wire.Packet) *fault {
	q := c.qp
	off := uint32(k) * q.mtu
	size := min(w.length-off, q.mtu)
	switch {
	case w.op != verbs.OpRDMARead:
		return badResponse("psn %v is an atomic's, and the peer sent %v", p.PSN, p.Opcode)
	case len(p.Payload) != int(size):
		return badResponse("%v at psn %v has %d bytes, and %d were due at byte %d of the READ", p.Opcode, p.PSN, len(p.Payload), size, off)
	case p.Opcode.EndsMessage() != (k+1 == chunkEnd(w, k)):
		return badResponse("%v at psn %v, packet %d of %d", p.Opcode, p.PSN, k+1, w.packets)
	}
	if err := q.cfg.PD.Scatter(w.sg, off, p.Payload); err != nil {
		return &fault{verbs.WCLocProtErr, err}
	}
	return nil
}

func badResponse(format string, args ...any) *fault {
	return &fault{verbs.WCBadRespErr, fmt.Errorf(format, args...)}
}

func (c *completer) atomicResponse(now time.Duration, seq uint64, p *wire.Packet) {
	q := c.qp
	w := c.responseTo(now, seq)
	if w == nil {
		return
	}
	if !w.isAtomic() {
		q.fail(badResponse("psn %v is a READ's, and the peer sent %v", p.PSN, p.Opcode))
		return
	}
	binary.NativeEndian.PutUint64(c.atomic[:], p.AtomicAckETH.Orig)
	if err := q.cfg.PD.Scatter(w.sg, 0, c.atomic[:]); err != nil {
		q.fail(&fault{verbs.WCLocProtErr, err})
		return
	}
	c.rc.requester.setCredits(p.AETH)
	c.moveTo(now, seq+1)
}

// gap repeats because a response is missing: an implied NAK.
func (c *completer) gap(now time.Duration) {
	c.qp.counters.ImpliedNAKs++
	c.repeat(now, "responses were lost")
}

// repeat sends everything from una on again, unless that was done for this loss already.
func (c *completer) repeat(now time.Duration, why string) {
	if c.qp.attr.State != verbs.QPStateErr && c.rc.recovery.firstSign() {
		c.rc.repeat(now, why)
	}
}

func (c *completer) receiverNotReady(now time.Duration, timer uint8) {
	q, rec := c.qp, &c.rc.recovery
	if q.attr.State == verbs.QPStateErr {
		return
	}
	q.counters.RNRNAKs++
	if !rec.retryAt(now + wire.RNRTimer(timer)) {
		q.fail(&fault{verbs.WCRNRRetryExceeded, fmt.Errorf("the peer refused psn %v for lack of a receive, after %d retries (rnr_retry)",
			psn(rec.una), q.attr.RNRRetry)})
		return
	}
	c.rc.requester.rewind()
}

func (c *completer) nak(now time.Duration, code wire.NAKCode) {
	q := c.qp
	if q.attr.State == verbs.QPStateErr || q.sq.head == q.sq.tail {
		return
	}
	status := verbs.WCRemOpErr
	switch code {
	case wire.NAKSequenceError:
		q.counters.SequenceNAKs++
		c.repeat(now, "the peer missed a packet")
		return
	case wire.NAKInvalidRequest:
		status = verbs.WCRemInvReqErr
	case wire.NAKRemoteAccessError:
		status = verbs.WCRemAccessErr
	case wire.NAKRemoteOperationalError:
		status = verbs.WCRemOpErr
	case wire.NAKInvalidRDRequest:
		status = verbs.WCRemInvRDReqErr
	default:
		q.counters.Unexpected++
		return
	}
	w := q.sq.at(q.sq.head)
	q.fail(&fault{status, fmt.Errorf("the peer's NAK is for packet %d of %d of the %v of %d bytes%s",
		c.rc.recovery.una-w.seq+1, w.packets, w.op, w.length, remoteText(w))})
}

func remoteText(w *sendWQE) string {
	switch w.op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv:
		return ""
	}
	return fmt.Sprintf(" at va %#x, rkey %v", w.remote.VA, w.remote.RKey)
}
