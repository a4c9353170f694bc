package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// completer takes the peer's responses. It completes work requests in the order of posting, and tells recovery which
// packets have arrived and which are missing.
type completer struct {
	rc     *rc
	qp     *QP
	atomic [atomicLength]byte
	later  *[]mem.Span // the memory of later responses, for store; made with its first use
}

// handle takes a response packet.
func (c *completer) handle(now time.Duration, p *wire.Packet) {
	q, rec := c.qp, &c.rc.recovery
	seq := rec.Una() + uint64(int64(p.PSN.Diff(psn(rec.Una())))) // less than 2^23 from una
	if seq >= rec.Max() || seq < rec.Una() {
		// Nobody asked for the packet, or an earlier one has answered: packets repeat and overtake one another.
		if p.Opcode == wire.RCAcknowledge && p.AETH.Syndrome.Kind() == wire.KindACK && c.rc.mtuSearch.probeAnswered() {
			return
		}
		if c.answeredProbe(now, seq, p) {
			return
		}
		if p.Opcode.IsRead() && seq < rec.Una() {
			c.duplicate(now, seq)
			return
		}
		q.counters.Unexpected++
		return
	}
	switch {
	case p.Opcode == wire.RCAcknowledge:
		c.acknowledge(now, seq, p.AETH)
	case p.Opcode == wire.RCAckRanges:
		c.selectiveACK(now, seq, p)
	case p.Opcode.IsRead():
		c.readResponse(now, seq, p)
	case p.Opcode == wire.RCAtomicAcknowledge:
		c.atomicResponse(now, seq, p)
	default:
		q.counters.Unexpected++
	}
}

// answeredProbe reports whether p, which brings nothing new, answers a needless probe. A peer that already has the
// probed packet acknowledges all its packets once more. It answers a probed READ or atomic again.
func (c *completer) answeredProbe(now time.Duration, seq uint64, p *wire.Packet) bool {
	rec := &c.rc.recovery
	probe, ok := rec.AnsweredProbe()
	switch {
	case !ok:
	case p.Opcode == wire.RCAcknowledge && p.AETH.Syndrome.Kind() == wire.KindACK && seq+1 == rec.Una():
		return rec.NeedlessProbe(now, probe)
	case (p.Opcode.IsRead() || p.Opcode == wire.RCAtomicAcknowledge) && seq == probe:
		rec.NeedlessProbe(now, seq) // perhaps as the first of several packets
	}
	return false
}

// piggybacked takes the acknowledgement that a request carries.
func (c *completer) piggybacked(now time.Duration, p *wire.Packet) {
	if p.AETH.Syndrome.Kind() != wire.KindACK {
		c.qp.counters.Unexpected++
		return
	}
	a := &c.qp.out
	a.Opcode, a.PSN, a.AETH, a.Payload = wire.RCAcknowledge, p.PiggybackPSN, p.AETH, nil
	c.handle(now, a)
}

func (c *completer) acknowledge(now time.Duration, seq uint64, a wire.AETH) {
	switch a.Syndrome.Kind() {
	case wire.KindACK:
		c.rc.requester.setCredits(a)
		if !c.advance(now, seq+1) || c.rc.recovery.SACKs() {
			c.rc.mtuSearch.probeAnswered()
			c.outOfOrder(now)
		}
	case wire.KindRNR:
		// The NAK acknowledges the packets before it: IBTA §9.7.5.1.2.
		if !c.advance(now, seq) {
			// The NAK has overtaken the missing responses. They must not wait for the acknowledge timeout: until they
			// arrive, the NAK comes again in each round trip.
			c.rc.recovery.Overtook(now, seq)
			c.outOfOrder(now)
			c.rc.recovery.Lose(max(seq, c.rc.recovery.Una()), c.rc.recovery.Max()) // the NAK comes again then
			c.rc.requester.rewind()
			return
		}
		c.receiverNotReady(now, a.Syndrome.Value())
	case wire.KindNAK:
		if !c.advance(now, seq) {
			c.outOfOrder(now)
			if a.Syndrome.NAKCode() != wire.NAKSequenceError {
				return
			}
		}
		c.nak(now, seq, a.Syndrome.NAKCode())
	default:
		c.qp.counters.Unexpected++
	}
}

// selectiveACK takes an acknowledgement of all packets before seq and of ranges behind seq.
func (c *completer) selectiveACK(now time.Duration, seq uint64, p *wire.Packet) {
	q, rec := c.qp, &c.rc.recovery
	r, ok := wire.DecodeRanges(p.Payload)
	if !ok || p.AETH.Syndrome.Kind() != wire.KindACK {
		q.counters.Unexpected++
		return
	}
	rec.PeerSACKs()
	c.rc.requester.setCredits(p.AETH)
	c.advance(now, seq)
	if q.attr.State == verbs.QPStateErr {
		return
	}
	place := q.sq.head
	for from, to := r.Next(0); from < to; from, to = r.Next(to) {
		if from == 0 && seq == rec.Una() { // the peer is at it: a FLUSH to storage may take long
			rec.PeerAnswers()
		}
		place = c.arrived(now, place, seq+uint64(from), seq+uint64(to))
	}
	if r.Again && r.Latest == psn(rec.Una()-1) && c.rc.mtuSearch.probeAnswered() {
		r.Again = false
	}
	if latest := rec.Una() + uint64(int64(r.Latest.Diff(psn(rec.Una())))); r.Again && !rec.NeedlessProbe(now, latest) {
		q.counters.Needless++
		rec.SpuriousRepeat(now, latest)
	}
	rec.RestartProbe(now)
	c.outOfOrder(now)
}

// arrived takes note that the peer has the requests [from, to). The work request at place, or one behind it,
// has the first. arrived returns the place of the last one.
func (c *completer) arrived(now time.Duration, place, from, to uint64) uint64 {
	sq, rec := &c.qp.sq, &c.rc.recovery
	for from < to && place != sq.tail {
		w := sq.at(place)
		switch {
		case w.end() <= from:
			place++
			continue
		case from < w.seq: // the probe of keep-alive
			rec.Arrived(now, from, min(to, w.seq))
			from = w.seq
		case w.hasResponse(): // the peer is still to send that response
			end := w.end()
			if w.op == verbs.OpRDMARead {
				end = w.seq + chunkEnd(w, from-w.seq)
			}
			rec.PeerHolds(now, from, end)
			from = max(from+1, min(to, end))
		default:
			rec.Arrived(now, from, min(to, w.end()))
			from = min(to, w.end())
		}
	}
	rec.Arrived(now, from, to)
	return place
}

// advance takes note that the peer has executed all packets before end, and completes the work requests that are done
// by that. It returns false if a READ or an atomic before end has not been answered: its response was lost, or is
// late.
func (c *completer) advance(now time.Duration, end uint64) bool {
	sq, rec := &c.qp.sq, &c.rc.recovery
	rec.ExecutedTo(end)
	for c.qp.attr.State != verbs.QPStateErr {
		una := rec.Una()
		reach := max(una, rec.Executed())
		for place := sq.head; place != sq.tail; place++ {
			w := sq.at(place)
			if w.seq >= reach {
				break
			}
			if w.hasResponse() && una < w.end() {
				reach = max(una, w.seq)
				break
			}
		}
		if arrived := rec.ArrivedTo(); reach == una && arrived > una {
			if w := c.owner(una); w != nil && w.hasResponse() {
				reach = min(arrived, w.end())
			}
		}
		if reach == una {
			break
		}
		c.moveTo(now, reach)
	}
	if end <= rec.Una() {
		return true
	}
	for place := sq.head; place != sq.tail; place++ {
		w := sq.at(place)
		if w.seq >= end {
			break
		}
		if !w.hasResponse() {
			rec.Arrived(now, w.seq, min(w.end(), end))
		}
	}
	return false
}

// moveTo makes seq the oldest sequence number that is not acknowledged, and completes the work requests before it.
func (c *completer) moveTo(now time.Duration, seq uint64) {
	rec := &c.rc.recovery
	nxt := rec.Nxt()
	if rec.Acknowledged(now, seq) {
		c.qp.counters.Needless++
	}
	c.rc.mtuSearch.acknowledged(rec.Una())
	c.completeDone()
	if rec.Nxt() < nxt {
		c.rc.requester.rewind()
	}
	c.rc.requester.advanced(rec.Nxt() != nxt)
	c.failIfOldest()
	c.qp.reportDrained()
}

// completeDone completes the oldest work requests that are done: local operations that were executed, and others that
// the peer has acknowledged or answered.
func (c *completer) completeDone() {
	q := c.qp
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if w.isLocal() && !w.executed || !w.isLocal() && w.end() > c.rc.recovery.Una() {
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

// owner returns the work request that has the sequence number seq, which is not before una, or nil if the keep-alive
// probe has that number.
func (c *completer) owner(seq uint64) *sendWQE {
	sq := &c.qp.sq
	for place := sq.head; place != sq.tail; place++ {
		if w := sq.at(place); seq < w.end() {
			if seq < w.seq {
				return nil
			}
			return w
		}
	}
	return nil
}

// responseTo finds the READ or atomic that a response is for, and acknowledges the packets before it. It returns nil
// if the response is of no use.
func (c *completer) responseTo(now time.Duration, seq uint64) *sendWQE {
	q, rec := c.qp, &c.rc.recovery
	w := c.owner(seq)
	if w == nil || !w.hasResponse() {
		q.counters.Unexpected++
		return nil
	}
	if rec.HasArrived(seq) {
		c.duplicate(now, seq)
		return nil
	}
	c.advance(now, w.seq)
	if q.attr.State == verbs.QPStateErr {
		return nil
	}
	return w
}

// duplicate takes note that the response seq has come twice. If it was requested twice, the second request was
// needless.
func (c *completer) duplicate(now time.Duration, seq uint64) {
	c.qp.counters.RepeatedResponses++
	if c.rc.peerSACKs() && c.rc.recovery.SpuriousRepeat(now, seq) {
		c.qp.counters.Needless++
	}
}

// responded takes note that the responses [seq, end) have been stored.
func (c *completer) responded(now time.Duration, seq, end uint64) {
	rec := &c.rc.recovery
	if seq == rec.Una() {
		c.moveTo(now, end)
		if una := rec.Una(); una < rec.Max() && max(rec.ArrivedTo(), rec.Executed()) > una {
			c.advance(now, rec.Una())
		}
		return
	}
	rec.RespondedTo(end)
	rec.Arrived(now, seq, end)
	rec.RestartProbe(now)
	c.outOfOrder(now)
}

// failInTurn fails w when all work requests before it are complete.
func (c *completer) failInTurn(w *sendWQE, f *fault) {
	c.rc.requester.fault(w, f)
	if c.qp.attr.State != verbs.QPStateErr {
		c.rc.requester.seek()
	}
}

func (c *completer) readResponse(now time.Duration, seq uint64, p *wire.Packet) {
	w := c.responseTo(now, seq)
	if w == nil {
		return
	}
	n := uint64(c.qp.run.length())
	if w.op == verbs.OpFlush || w.op == verbs.OpAtomicWrite {
		c.emptyResponse(now, w, seq, p)
		return
	}
	if f := c.placeRead(w, seq-w.seq, n, p); f != nil {
		c.failInTurn(w, f)
		return
	}
	if !c.qp.run.isTaken() {
		return // the peer's region is gone, as the peer's next packet says
	}
	c.takeCredits(p)
	rec := &c.rc.recovery
	rec.BegunTo(w.seq + chunkEnd(w, seq-w.seq))
	c.responded(now, seq, seq+n)
}

// emptyResponse takes the response of w, a FLUSH or an ATOMIC WRITE: that of a READ of no bytes.
func (c *completer) emptyResponse(now time.Duration, w *sendWQE, seq uint64, p *wire.Packet) {
	if p.Opcode != wire.RCRDMAReadResponseOnly || len(p.Payload) != 0 || c.qp.run.packets > 0 {
		c.failInTurn(w, badResponse("psn %v is that of a %v, and the peer sent %v with %d bytes", p.PSN, w.op, c.qp.opcode(p), len(p.Payload)))
		return
	}
	c.takeCredits(p)
	c.responded(now, seq, seq+1)
}

// takeCredits takes the credits of a READ response, if it announces any.
func (c *completer) takeCredits(p *wire.Packet) {
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		c.rc.requester.setCredits(p.AETH)
	}
}

// placeRead checks the n response packets of the READ w from packet k on, which came as p, and stores their data.
func (c *completer) placeRead(w *sendWQE, k, n uint64, p *wire.Packet) *fault {
	q := c.qp
	off := uint32(k) * q.mtu
	size := uint32(min(uint64(w.length-off), n*uint64(q.mtu)))
	switch {
	case w.op != verbs.OpRDMARead:
		return badResponse("psn %v is an atomic's, and the peer sent %v", p.PSN, q.opcode(p))
	case n > w.packets-k || w.seq+k+n > c.rc.recovery.Max():
		return badResponse("%v at psn %v stands for %d packets, more than were asked for", q.opcode(p), p.PSN, n)
	case len(p.Payload) != int(size):
		return badResponse("%v at psn %v has %d bytes, and %d were due at byte %d of the READ: is the peer's path MTU %v, as ours is?",
			q.opcode(p), p.PSN, len(p.Payload), size, off, q.attr.PathMTU)
	case p.Opcode.EndsMessage() != (k+n == chunkEnd(w, k)) && !c.rc.peerSACKs() && !c.rc.recovery.WasRepeated(w.seq+k): // a repeated READ may be of a part, whose response ends with the part
		return badResponse("%v at psn %v, packet %d of %d", q.opcode(p), p.PSN, k+n, w.packets)
	}
	if err := c.store(w, off, p.Payload, w.seq+k+n); err != nil {
		return &fault{verbs.WCLocProtErr, err}
	}
	return nil
}

func badResponse(format string, args ...any) *fault {
	return &fault{verbs.WCBadRespErr, fmt.Errorf(format, args...)}
}

func (c *completer) atomicResponse(now time.Duration, seq uint64, p *wire.Packet) {
	w := c.responseTo(now, seq)
	if w == nil {
		return
	}
	if !w.isAtomic() {
		c.failInTurn(w, badResponse("psn %v is that of a %v, and the peer sent %v", p.PSN, w.op, c.qp.opcode(p)))
		return
	}
	binary.NativeEndian.PutUint64(c.atomic[:], p.AtomicAckETH.Orig)
	if err := c.store(w, 0, c.atomic[:], seq+1); err != nil {
		c.failInTurn(w, &fault{verbs.WCLocProtErr, err})
		return
	}
	c.rc.requester.setCredits(p.AETH)
	c.responded(now, seq, seq+1)
}

// outOfOrder takes note that a packet has arrived before an earlier one.
func (c *completer) outOfOrder(now time.Duration) {
	if una := c.rc.recovery.Una(); c.detectLost(now) && una < c.rc.recovery.Max() {
		if w := c.owner(una); w != nil && w.hasResponse() {
			c.qp.counters.ImpliedNAKs++
		}
	}
}

// detectLost repeats packets that were overtaken for longer than the reorder window. It reports whether there were
// any.
func (c *completer) detectLost(now time.Duration) bool {
	rec := &c.rc.recovery
	lost := rec.DetectLost(now)
	if c.qp.attr.State == verbs.QPStateErr {
		return false
	}
	if len(lost) == 0 {
		c.rc.requester.seek() // the packets that were to be repeated may have arrived
		return false
	}
	n := uint64(0)
	for _, s := range lost {
		if w := c.owner(s.From); w != nil && w.hasResponse() {
			n++ // the lost responses, or the one request for them
		} else {
			n += s.To - s.From
		}
	}
	rec.NoteLost(now, n, len(lost))
	if c.rc.multipath != nil && c.rc.multipath.noteLeft(rec) { // perhaps the peer does not know the port
		c.rc.hello.sendAgain()
	}
	c.rc.requester.repeat()
	return true
}

func (c *completer) receiverNotReady(now time.Duration, timer uint8) {
	q, rec := c.qp, &c.rc.recovery
	if q.attr.State == verbs.QPStateErr {
		return
	}
	q.counters.RNRNAKs++
	if !rec.WaitForReceiver(now + wire.RNRTimer(timer)) {
		q.counters.RNRRetryExceeded++
		q.fail(&fault{verbs.WCRNRRetryExceeded, fmt.Errorf("the peer refused psn %v for lack of a receive, after %d retries (rnr_retry)",
			psn(rec.Una()), q.attr.RNRRetry)})
		return
	}
	q.counters.Repeats++
	c.rc.requester.rewind()
}

func (c *completer) nak(now time.Duration, seq uint64, code wire.NAKCode) {
	q := c.qp
	probe := c.rc.recovery.Una() == c.rc.keepAlive.probe
	if q.attr.State == verbs.QPStateErr || q.sq.head == q.sq.tail && !probe {
		return
	}
	status := verbs.WCRemOpErr
	switch code {
	case wire.NAKSequenceError:
		q.counters.SequenceNAKs++
		c.rc.hello.sendAgain()
		if c.rc.recovery.FirstSign(now, seq) {
			c.rc.repeat(now, seq)
		}
		return
	case wire.NAKInvalidRequest:
		q.counters.InvalidNAKs++
		status = verbs.WCRemInvReqErr
	case wire.NAKRemoteAccessError:
		q.counters.AccessNAKs++
		status = verbs.WCRemAccessErr
	case wire.NAKRemoteOperationalError:
		q.counters.OperationNAKs++
	case wire.NAKInvalidRDRequest:
		status = verbs.WCRemInvRDReqErr
	default:
		q.counters.Unexpected++
		return
	}
	if probe {
		q.failUnposted(&fault{status, errors.New("the peer's NAK is for the keep-alive probe, a WRITE of no bytes: " +
			"its QP must allow REMOTE_WRITE, or this end turn keep-alive off")})
		return
	}
	w := q.sq.at(q.sq.head)
	hint := ""
	if code == wire.NAKInvalidRequest {
		hint = ": " + q.whyInvalid(w)
	}
	q.fail(&fault{status, fmt.Errorf("the peer's NAK is for packet %d of %d of the %v of %d bytes%s%s",
		c.rc.recovery.Una()-w.seq+1, w.packets, w.op, w.length, remoteText(w), hint)})
}

// whyInvalid says for which causes a peer may refuse a request that is well formed. The NAK does not name the cause,
// but the operation leaves few.
func (q *QP) whyInvalid(w *sendWQE) string {
	var may []string
	access := remoteNeeds[w.op]
	if q.cfg.opcodes == wire.XRC {
		may = append(may, fmt.Sprintf("its QP's XRC domain has no SRQ %v", w.cold.srqn))
	}
	if w.op == verbs.OpFlush {
		access = flushAccess(w.cold.flush.Placement)
		may = append(may, "it knows no FLUSH")
	}
	if w.op == verbs.OpAtomicWrite {
		may = append(may, "it knows no ATOMIC WRITE")
	}
	if access != 0 {
		may = append(may, fmt.Sprintf("its QP lacks %v", access))
	}
	switch {
	case w.hasResponse():
		may = append(may, fmt.Sprintf("it takes fewer READs and atomics at a time than our max_rd_atomic, %d", q.attr.MaxRDAtomic))
	case w.op != verbs.OpRDMAWrite && w.op != verbs.OpRDMAWriteWithImm:
		may = append(may, fmt.Sprintf("its receive is shorter than %d bytes", w.length))
	}
	if w.packets > 1 && !w.hasResponse() { // each packet of such a message shows the path MTU
		may = append(may, fmt.Sprintf("its path MTU is not %v, as ours is", q.attr.PathMTU))
	}
	return "perhaps " + strings.Join(may, ", or ")
}

// remoteNeeds has the access that the peer's QP must allow for an operation.
var remoteNeeds = map[verbs.Opcode]verbs.Access{
	verbs.OpRDMAWrite: verbs.AccessRemoteWrite, verbs.OpRDMAWriteWithImm: verbs.AccessRemoteWrite, verbs.OpRDMARead: verbs.AccessRemoteRead,
	verbs.OpAtomicCmpSwap: verbs.AccessRemoteAtomic, verbs.OpAtomicFetchAdd: verbs.AccessRemoteAtomic,
	verbs.OpAtomicWrite: verbs.AccessRemoteWrite,
}

func remoteText(w *sendWQE) string {
	switch w.op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv:
		return ""
	}
	return fmt.Sprintf(" at va %#x, rkey %v", w.remote.VA, w.remote.RKey)
}
