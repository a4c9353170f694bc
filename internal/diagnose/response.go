package diagnose

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	maxReadTimes = 512 // READs whose times are kept for each flow
	enoughReads  = 50  // before times are compared
	sameNAKs     = 3   // for one PSN, and it is a black hole
)

// words is a sentence.
func words(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// response takes a packet with which a responder answers.
func (a *Analyzer) response(f *flow, p *capture.Packet, w *wire.Packet) {
	f.responses++
	a.count.responses++
	if w.Opcode.IsRead() {
		n := payloadLen(p, w)
		f.maxPayload = max(f.maxPayload, n)
		f.hosts.longest = max(f.hosts.longest, n)
		if w.Opcode.IsFirst() || w.Opcode.IsMiddle() {
			f.pathMTU = n
		}
		a.readResponse(f, p, w)
	}
	if w.Opcode.Headers()&wire.HeaderAETH != 0 {
		a.acknowledge(f, p, w.PSN, w.AETH.Syndrome)
	}
}

// readResponse takes a packet of the answer to a READ.
func (a *Analyzer) readResponse(f *flow, p *capture.Packet, w *wire.Packet) {
	g := a.peerOf(f, w.PSN)
	if f.respOpen && g != nil {
		if d := w.PSN.Diff(f.respNxt); d > 0 && d < jump {
			g.gapFrame = p.Frame.Number // the requester will ask again
			if f.unaskedOf == 0 {
				f.unasked, f.unaskedOf = gap{f.respNxt, w.PSN, p.Frame.Time, p.Frame.Number}, d
			}
		}
	}
	if f.unaskedOf > 0 && !w.PSN.Less(f.unasked.from) && w.PSN.Less(f.unasked.to) {
		f.unaskedOf-- // it comes late, or again
	}
	f.respOpen, f.respNxt, f.respFrame = !w.Opcode.EndsMessage(), w.PSN.Add(1), p.Frame.Number
	if g == nil {
		return
	}
	if w.Opcode.StartsMessage() {
		if e := g.entry(w.PSN); e != nil && !e.respond {
			e.respond = true
			if len(g.readTimes) < maxReadTimes && e.tries == 1 && e.op.IsRead() { // and no FLUSH or ATOMIC WRITE
				g.readTimes = append(g.readTimes, p.Frame.Time-e.at)
			}
		}
	}
	if w.Opcode.Headers()&wire.HeaderAETH == 0 {
		g.progress(p, w.PSN)
	}
}

// progress: all requests before a PSN, and that one in part or whole, have been carried out.
func (f *flow) progress(p *capture.Packet, psn wire.PSN) {
	f.answers++
	f.lastAnswer = p.Frame.Time
	f.rnrLast = false
	if !psn.Less(f.nxt) || psn.Less(f.una) {
		return
	}
	from := f.una
	if psn.Diff(from) >= len(f.ring) {
		from = psn.Add(1 - len(f.ring))
	}
	for q := from; !psn.Less(q); q = q.Add(1) { // an answer covers all before it
		if e := f.entry(q); e != nil {
			f.answered = max(f.answered, e.payload)
		}
	}
	if e := f.entry(psn); e != nil {
		e.answer = p.Frame.Time
		if d := e.answer - e.at; e.tries == 1 && d > 0 && (f.rtt == 0 || d < f.rtt) {
			f.rtt = d
		}
	}
	f.una = psn.Add(1)
	f.rnrSame, f.nakSame = 0, 0
}

// answeredNow ends a silence: an answer came.
func (a *Analyzer) answeredNow(g *flow, p *capture.Packet, psn wire.PSN) {
	if g.silentTries == 0 || psn.Less(g.silentPSN) {
		return
	}
	a.settle(g)
	// An answer that comes sooner than any other answers an earlier copy.
	early := g.rtt > 0 && (p.Frame.Time-g.silentLast)*4 < g.rtt*3
	if g.silentLate || early || g.passed(psn) {
		for _, frame := range g.silentFrames {
			a.late(g, frame, g.silentInterval)
		}
		g.silentTries = 0
		return
	}
	g.ended, g.endedPSN, g.endedWait = true, g.silentPSN, g.silentInterval
	g.endedAt = append(g.endedAt[:0], g.silentFrames...)
	g.silentTries = 0
}

// passed reports whether an acknowledgement covers a packet that followed the repeated ones and was not repeated. Then
// they all had arrived, since the receiver has missed none of them.
func (f *flow) passed(psn wire.PSN) bool {
	e, first := f.entry(psn), f.silentFrames[0]
	return e != nil && f.silentPSN.Less(psn) && e.tries == 1 && e.frame < first && f.nakFrame < first && f.sackFrame < first
}

// settle counts repeats that an answer has ended, and no second one: a packet was lost.
func (a *Analyzer) settle(g *flow) {
	if !g.ended {
		return
	}
	g.ended = false
	g.losses++
	g.hosts.losses++
	for _, frame := range g.endedAt {
		if x := a.mark(g, lossTimeout, frame); x != nil {
			x.longest = max(x.longest, g.endedWait)
			x.Words = words("The longest wait before a repeat was %v.", round(x.longest))
		}
	}
}

// again takes an answer that came before. If it answers repeats after a timeout, then no copy was lost.
func (a *Analyzer) again(g *flow, psn wire.PSN) {
	if !g.ended || psn.Less(g.endedPSN) {
		return
	}
	g.ended = false
	for _, frame := range g.endedAt {
		a.late(g, frame, g.endedWait)
	}
}

// late: an answer took longer than its requester waited.
func (a *Analyzer) late(g *flow, frame int, wait int64) {
	if x := a.mark(g, lateAnswer, frame); x != nil {
		x.longest = max(x.longest, wait)
		x.Words = words("The longest wait before a repeat was %v.", round(x.longest))
	}
}

// acknowledge takes an AETH of a packet on f: the answer to requests of the opposite flow.
func (a *Analyzer) acknowledge(f *flow, p *capture.Packet, psn wire.PSN, s wire.Syndrome) {
	g := a.peerOf(f, psn)
	if s.Kind() == wire.KindACK || s.Kind() == wire.KindNAK && s.NAKCode() == wire.NAKSequenceError {
		if on := g.orAsked(f); on != nil && on.astray(psn) {
			on.strays(f, p, psn, s.Kind() == wire.KindNAK)
		}
	}
	switch s.Kind() {
	case wire.KindACK:
		a.count.acks++
		if g != nil {
			if psn.Less(g.una) {
				a.again(g, psn)
			}
			a.answeredNow(g, p, psn)
			if e := g.entry(psn); e != nil && (e.op.IsRead() || e.op.IsAtomic()) {
				g.openReads = max(0, g.openReads-1)
			}
			g.damageAcknowledged(psn)
			a.checkHoles(g, p, psn)
			g.progress(p, psn)
		}
	case wire.KindRNR:
		a.count.rnrs++
		a.notReady(f, g, p, psn, s)
	case wire.KindNAK:
		a.count.naks++
		a.refused(f, g, p, psn, s.NAKCode())
	}
}

// checkHoles looks for PSNs that are acknowledged though they were not captured.
func (a *Analyzer) checkHoles(g *flow, p *capture.Packet, psn wire.PSN) {
	if len(g.gaps) == 0 || g.nakFrame > 0 {
		return
	}
	kept := g.gaps[:0]
	for _, h := range g.gaps {
		if psn.Less(h.to.Add(-1)) || g.sackFrame > h.frame {
			kept = append(kept, h)
			continue
		}
		if x := a.mark(g, capHole, h.frame); x != nil {
			x.Words = words("%s, and perhaps others, were acknowledged and are not in the file.", h)
		}
	}
	g.gaps = kept
}

// selective takes a selective acknowledgement of adverb's.
func (a *Analyzer) selective(f *flow, p *capture.Packet, w *wire.Packet) {
	f.responses++
	g := a.peerOf(f, w.PSN)
	if g == nil {
		return
	}
	if before := w.PSN.Add(-1); !before.Less(g.una) {
		a.answeredNow(g, p, before)
		g.progress(p, before)
	}
	g.answers++
	g.lastAnswer = p.Frame.Time
	g.sackPSN, g.sackFrame = w.PSN, p.Frame.Number
	g.sackGaps++
}

// notReady takes an RNR NAK.
func (a *Analyzer) notReady(f, g *flow, p *capture.Packet, psn wire.PSN, s wire.Syndrome) {
	on := g
	if on == nil {
		on = f
	}
	x := a.mark(on, rnr, p.Frame.Number)
	if on.rnrFrame != 0 && on.rnrPSN == psn {
		on.rnrSame++
	} else {
		on.rnrSame = 1
	}
	on.rnrMost = max(on.rnrMost, on.rnrSame)
	on.rnrPSN, on.rnrFrame, on.rnrLast, on.rnrTimer = psn, p.Frame.Number, true, s.Value()
	on.silentTries, on.lastAnswer = 0, p.Frame.Time
	on.answers++
	if x != nil {
		x.Words = words("At most %s in a row for one message. The receiver asks to wait %v before each repeat.", counted(on.rnrMost, "RNR NAK"), wire.RNRTimer(on.rnrTimer))
	}
}

// refused takes a NAK. g may be nil.
func (a *Analyzer) refused(f, g *flow, p *capture.Packet, psn wire.PSN, code wire.NAKCode) {
	on := g
	if on == nil {
		on = f
	}
	on.answers++
	on.lastAnswer = p.Frame.Time
	on.silentTries = 0
	if code == wire.NAKSequenceError {
		if on.nakFrame != 0 && on.nakPSN == psn {
			on.nakSame++
		} else {
			on.nakSame = 1
		}
		on.nakPSN, on.nakFrame = psn, p.Frame.Number
		if g != nil && psn.Diff(g.una) > 0 && !g.nxt.Less(psn) {
			g.una = psn
		}
		a.mark(on, lossNAK, p.Frame.Number)
		if e := on.entry(psn); on.nakSame >= sameNAKs && e != nil && e.payload >= 1024 && e.payload == on.maxPayload {
			a.blackHole(on, e.payload, p.Frame.Number)
		}
		return
	}
	on.nakked = true
	var e, first *sent
	if g != nil {
		e = g.entry(psn)
		first = g.start(psn)
	}
	op := "a request that is not in the capture"
	if e != nil {
		op = words("%v in frame %d (PSN %v)", e.op, e.frame, psn)
	}
	switch code {
	case wire.NAKRemoteAccessError:
		if x := a.mark(on, nakAccess, p.Frame.Number); x != nil {
			x.Words = "It answers " + op + "."
			if first != nil && (first.op.Headers()&(wire.HeaderRETH|wire.HeaderAtomicETH) != 0 && !first.cut) {
				x.Words = words("It answers %s: va %s, rkey %s, length %d.", op, a.names.key("%#x", first.va), a.names.key("%#08x", uint64(first.rkey)), first.length)
				x.Words += g.accepted(first)
				x.hit(first.frame)
				x.Count--
			}
		}
	case wire.NAKRemoteOperationalError:
		if x := a.mark(on, nakOper, p.Frame.Number); x != nil {
			x.Words = "It answers " + op + "."
		}
	default:
		a.invalid(on, p, e, first, op, code)
	}
}

// accepted says what of the keys of earlier requests is known, for a request that was refused.
func (f *flow) accepted(refused *sent) string {
	var latest *sent
	for i := range f.ring {
		e := &f.ring[i]
		if !e.valid || e == refused || e.length == 0 || !e.psn.Less(f.una) || !e.psn.Less(refused.psn) {
			continue
		}
		if e.rkey == refused.rkey {
			return words(" The same rkey was accepted before (frame %d): so look at the range, the access, or whether the region is still there.", e.frame)
		}
		if latest == nil || latest.psn.Less(e.psn) {
			latest = e
		}
	}
	if latest == nil {
		return ""
	}
	return words(" Another rkey was accepted before (frame %d): so look where this one comes from.", latest.frame)
}

// invalid takes a NAK for an invalid request, and lists the causes that fit the request.
func (a *Analyzer) invalid(on *flow, p *capture.Packet, e, first *sent, op string, code wire.NAKCode) {
	if e != nil && (e.op.IsFirst() || e.op.IsMiddle()) {
		own := 0
		if on.peer != nil {
			own = on.peer.pathMTU
		}
		agreed := 0
		if on.conn != nil {
			agreed = on.conn.mtu
		}
		if own != 0 && own != e.payload || agreed != 0 && e.payload > agreed {
			if x := a.mark(on, mtuDiff, p.Frame.Number); x != nil {
				x.Words = words("The refused packet has %d bytes of payload. The other direction has a path MTU of %d, the connection one of %d (0: not known).", e.payload, own, agreed)
			}
			return
		}
	}
	x := a.mark(on, nakInvalid, p.Frame.Number)
	if x == nil {
		return
	}
	x.Words = words("It answers %s.", op)
	if code != wire.NAKInvalidRequest {
		x.Words = words("The NAK has code %d (%v), and answers %s.", code, code, op)
	}
	if e == nil {
		return
	}
	if e.op.IsFirst() || e.op.IsMiddle() {
		x.Words += words(" The refused packet has %d bytes of payload, the requester's path MTU.", e.payload)
	}
	more := []string{"The request and the queue pair's state or flags do not fit: see the responder's log."}
	switch {
	case e.op.Flags()&wire.FlagFlush != 0:
		more = []string{"Does the responder's device know FLUSH (memory placement extensions, IBTA annex A19)? Does its queue pair allow it (IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT)?"}
	case e.op.Flags()&wire.FlagAtomicWrite != 0:
		more = []string{"Does the responder's device know ATOMIC WRITE (IBTA annex A19)? Is the address a multiple of 8?"}
	case e.op.IsAtomic():
		more = []string{"Is the address a multiple of 8? Does the responder's queue pair allow atomics (IBV_ACCESS_REMOTE_ATOMIC), and its max_dest_rd_atomic more than 0?"}
		if e.va%8 != 0 {
			more = []string{"The address is no multiple of 8: atomics need one."}
		}
	case e.op.IsRead():
		more = []string{"Does the responder's queue pair allow READs (IBV_ACCESS_REMOTE_READ)? Is its max_dest_rd_atomic at least the requester's max_rd_atomic?"}
	case e.op.IsWrite():
		more = []string{"Does the responder's queue pair allow WRITEs (IBV_ACCESS_REMOTE_WRITE)? Is the path MTU the same at both ends?"}
	case e.op.IsSend():
		more = []string{"Is the message longer than the receive that it met? Is the path MTU the same at both ends?"}
	}
	if e.op.Service() == wire.ServiceXRC {
		more = append(more, words("Has the domain of the responder's target an XRC SRQ %#x? The request names it.", e.srqn))
	}
	x.Remedy = append(append([]string(nil), rules[nakInvalid].remedy...), more...)
}

// blackHole: large packets do not get through.
func (a *Analyzer) blackHole(f *flow, n, frame int) *Finding {
	x := a.mark(f, mtuBlackhole, frame)
	if x != nil {
		x.Words = words("Packets with %d bytes of payload are repeated without success. The longest that was answered had %d.", n, f.answered)
	}
	return x
}

// round makes a time fit to read.
func round(ns int64) time.Duration {
	d, unit := time.Duration(ns), 10*time.Nanosecond
	switch {
	case d > time.Second:
		unit = 10 * time.Millisecond
	case d > time.Millisecond:
		unit = 10 * time.Microsecond
	}
	return d - d%unit
}
