package transport

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// completer takes the peer's responses and completes work requests, in the order of posting.
type completer struct {
	qp  *QP
	una uint64 // the oldest sequence number that is not acknowledged

	ackDeadline time.Duration // Never when nothing is outstanding
	// backedAt is the una, plus 1, at which a NAK or a gap has made the requester go back
	// already. Further signs of the same loss are then no news.
	backedAt uint64

	lastError string // what the latest retry was for
	atomic    [atomicLength]byte
}

func (c *completer) reset() { *c = completer{qp: c.qp, ackDeadline: Never} }

func (c *completer) start(seq uint64) {
	c.reset()
	c.una = seq
}

// seqOf returns the sequence number of a PSN, which lies less than 2^23 from una.
func (c *completer) seqOf(p wire.PSN) uint64 { return c.una + uint64(int64(p.Diff(psn(c.una)))) }

// handle takes a response packet.
func (c *completer) handle(now time.Duration, p *wire.Packet) {
	q := c.qp
	seq := c.seqOf(p.PSN)
	if seq >= q.req.max || seq < c.una {
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
	q := c.qp
	switch a.Syndrome.Kind() {
	case wire.KindACK:
		c.qp.req.setCredits(a)
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
		q.counters.Unexpected++
	}
}

// advance acknowledges everything before end and completes what is done by it. It returns false
// if a READ or an atomic before end has not been answered: its response was lost.
func (c *completer) advance(now time.Duration, end uint64) bool {
	q := c.qp
	before, whole := c.una, true
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if w.local() {
			if !w.executed {
				break
			}
			c.completeLocal()
			continue
		}
		if w.answered() && c.una < w.end() {
			if end > w.seq {
				c.una = max(c.una, w.seq)
				whole = end <= c.una
			}
			break
		}
		if w.end() > end && c.una < w.end() {
			c.una = max(c.una, min(end, q.req.max))
			break
		}
		c.una = max(c.una, w.end())
		q.sq.head++
		q.complete(w, verbs.WCSuccess, nil)
	}
	if c.una != before {
		c.progress(now, c.una-before)
	}
	return whole
}

// completeLocal completes local operations that are the oldest and done.
func (c *completer) completeLocal() {
	q := c.qp
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if !w.local() || !w.executed {
			return
		}
		q.sq.head++
		q.complete(w, verbs.WCSuccess, nil)
	}
}

// progress follows every move of una, by so many packets.
func (c *completer) progress(now time.Duration, by uint64) {
	q := c.qp
	c.completeLocal()
	q.req.acknowledged(by)
	c.restartTimer(now)
	c.failIfOldest()
	q.reportDrained()
}

// failIfOldest fails the QP if the work request that is next to complete has a local error.
func (c *completer) failIfOldest() {
	q := c.qp
	if q.sq.head == q.sq.tail || q.attr.State == verbs.QPStateErr {
		return
	}
	if w := q.sq.at(q.sq.head); w.fault != nil {
		q.fail(w.fault.Status, w.fault.Cause)
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

// answers finds the READ or atomic that a response is for and acknowledges all before it.
// It returns nil if the response is of no use.
func (c *completer) answers(now time.Duration, seq uint64) *sendWQE {
	q := c.qp
	w := c.owner(seq)
	if w == nil || !w.answered() {
		q.counters.Unexpected++
		return nil
	}
	if !c.advance(now, w.seq) || seq > c.una {
		c.gap(now)
		return nil
	}
	if q.attr.State == verbs.QPStateErr {
		return nil
	}
	return w
}

func (c *completer) readResponse(now time.Duration, seq uint64, p *wire.Packet) {
	q := c.qp
	w := c.answers(now, seq)
	if w == nil {
		return
	}
	k := seq - w.seq
	off := uint32(k) * q.mtu
	size := min(w.length-off, q.mtu)
	if w.op != verbs.OpRDMARead {
		q.fail(verbs.WCBadRespErr, fmt.Errorf("psn %v is an atomic's, and the peer sent %v", p.PSN, p.Opcode))
		return
	}
	if len(p.Payload) != int(size) {
		q.fail(verbs.WCBadRespErr, fmt.Errorf("%v at psn %v has %d bytes, and %d were due at byte %d of the READ",
			p.Opcode, p.PSN, len(p.Payload), size, off))
		return
	}
	if p.Opcode.EndsMessage() != (k+1 == chunkEnd(w, k)) {
		q.fail(verbs.WCBadRespErr, fmt.Errorf("%v at psn %v, packet %d of %d", p.Opcode, p.PSN, k+1, w.packets))
		return
	}
	if f := q.host.Scatter(w.sg, off, p.Payload); f != nil {
		q.fail(f.Status, f.Cause)
		return
	}
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		q.req.setCredits(p.AETH)
	}
	c.answered(now, w, seq+1)
}

func (c *completer) atomicResponse(now time.Duration, seq uint64, p *wire.Packet) {
	q := c.qp
	w := c.answers(now, seq)
	if w == nil {
		return
	}
	if !w.isAtomic() {
		q.fail(verbs.WCBadRespErr, fmt.Errorf("psn %v is a READ's, and the peer sent %v", p.PSN, p.Opcode))
		return
	}
	binary.NativeEndian.PutUint64(c.atomic[:], p.AtomicAckETH.Orig)
	if f := q.host.Scatter(w.sg, 0, c.atomic[:]); f != nil {
		q.fail(f.Status, f.Cause)
		return
	}
	q.req.setCredits(p.AETH)
	c.answered(now, w, seq+1)
}

// answered moves una to end, inside or at the end of the READ or atomic w, the oldest.
func (c *completer) answered(now time.Duration, w *sendWQE, end uint64) {
	q := c.qp
	by := end - c.una
	c.una = end
	if end == w.end() {
		q.sq.head++
		q.complete(w, verbs.WCSuccess, nil)
	}
	c.progress(now, by)
}

// gap goes back because a response is missing: an implied NAK.
func (c *completer) gap(now time.Duration) {
	c.qp.counters.ImpliedNAKs++
	c.again(now, "responses were lost")
}

// again makes the requester repeat everything from una on, unless it did so for this loss.
func (c *completer) again(now time.Duration, why string) {
	if c.qp.attr.State == verbs.QPStateErr || c.backedAt == c.una+1 {
		return
	}
	c.qp.req.lost()
	c.retry(now, why)
	c.backedAt = c.una + 1
}

// retry goes back at the expense of one retry.
func (c *completer) retry(now time.Duration, why string) {
	q := c.qp
	c.lastError = why
	if !q.req.retry() {
		q.fail(verbs.WCRetryExceeded, c.exhausted())
		return
	}
	c.restartTimer(now)
}

func (c *completer) exhausted() error {
	a := &c.qp.attr
	return fmt.Errorf("qp %v at gid %v did not acknowledge psn %v: %d retries (retry_cnt), the last because %s",
		a.DestQPN, a.AH.DGID, psn(c.una), a.RetryCnt, c.lastError)
}

// timeout: no progress within the acknowledge timeout. IBTA §9.7.6.1.3.
func (c *completer) timeout(now time.Duration) {
	q := c.qp
	q.counters.Timeouts++
	c.ackDeadline = Never
	c.backedAt = 0
	q.req.timedOut()
	c.retry(now, fmt.Sprintf("nothing came for %v (timeout %d)", wire.ACKTimeout(q.attr.Timeout), q.attr.Timeout))
}

func (c *completer) receiverNotReady(now time.Duration, timer uint8) {
	q := c.qp
	if q.attr.State == verbs.QPStateErr {
		return
	}
	q.counters.RNRNAKs++
	if !q.req.retryAt(now + wire.RNRTimer(timer)) {
		q.fail(verbs.WCRNRRetryExceeded, fmt.Errorf("the peer refused psn %v for lack of a receive, after %d retries (rnr_retry)",
			psn(c.una), q.attr.RNRRetry))
		return
	}
	c.ackDeadline = Never
}

func (c *completer) nak(now time.Duration, code wire.NAKCode) {
	q := c.qp
	if q.attr.State == verbs.QPStateErr || q.sq.head == q.sq.tail {
		return
	}
	w := q.sq.at(q.sq.head)
	status := verbs.WCRemOpErr
	switch code {
	case wire.NAKSequenceError:
		q.counters.SequenceNAKs++
		c.again(now, "the peer missed a packet")
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
	q.fail(status, fmt.Errorf("the peer's NAK is for packet %d of %d of the %v of %d bytes%s",
		c.una-w.seq+1, w.packets, w.op, w.length, remoteText(w)))
}

func remoteText(w *sendWQE) string {
	switch w.op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv:
		return ""
	}
	return fmt.Sprintf(" at va %#x, rkey %v", w.remote.VA, w.remote.RKey)
}

// armTimer starts the acknowledge timer unless it runs. IBTA C9-139, C9-140.
func (c *completer) armTimer(now time.Duration) {
	if c.ackDeadline == Never {
		c.restartTimer(now)
	}
}

// restartTimer starts the acknowledge timer anew, or stops it when nothing is outstanding.
func (c *completer) restartTimer(now time.Duration) {
	q := c.qp
	c.ackDeadline = Never
	if d := wire.ACKTimeout(q.attr.Timeout); d != 0 && q.req.resumeAt == Never && c.una < q.req.max {
		c.ackDeadline = now + d
	}
}
