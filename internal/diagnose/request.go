package diagnose

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	// overtaken is within which time a packet that others have overtaken still comes. Repeats without a NAK take longer.
	overtaken = int64(time.Millisecond)

	burst = 8 // packets: losses that are closer are of one burst
)

// reliable takes a packet of the RC or the XRC service.
func (a *Analyzer) reliable(f *flow, p *capture.Packet, w *wire.Packet) {
	switch {
	case w.Opcode == wire.RCHello:
	case w.Opcode == wire.RCAckRanges:
		a.selective(f, p, w)
	case w.Opcode.IsRequest():
		asLinux := w.Opcode == wire.RCFlush && p.SealedAsLinux()
		if twin := asLinux && f.flushed && w.PSN == f.prev; twin {
			f.flushed = false
			return // the same FLUSH, for a peer that may be Linux
		}
		f.flushed = w.Opcode == wire.RCFlush && !asLinux
		a.request(f, p, w)
		if w.Piggybacks {
			a.acknowledge(f, p, w.PiggybackPSN, w.AETH.Syndrome)
		}
	case w.Opcode.IsResponse():
		a.response(f, p, w)
	}
}

// learn takes what any request shows of a flow.
func (a *Analyzer) learn(f *flow, p *capture.Packet, w *wire.Packet, n int) {
	f.requests++
	a.count.requests++
	f.reqFrame = p.Frame.Number
	f.reqAckAsked = w.AckReq || w.Opcode.Flags()&(wire.FlagRead|wire.FlagAtomic|wire.FlagFlush|wire.FlagAtomicWrite) != 0
	f.maxPayload = max(f.maxPayload, n)
	f.hosts.longest = max(f.hosts.longest, n)
	if w.Opcode.IsFirst() || w.Opcode.IsMiddle() {
		f.pathMTU = n
	}
}

// request takes a packet of a request.
func (a *Analyzer) request(f *flow, p *capture.Packet, w *wire.Packet) {
	n := payloadLen(p, w)
	a.count.rcRequests++
	a.learn(f, p, w, n)
	a.ulpOfSend(f, w)
	psn := w.PSN
	span := 1
	unknown := false
	if w.Opcode.IsRead() {
		if span = f.readSpan(w.RETH.Length); span == 0 || headersCut(p) {
			span, unknown = 1, true
		}
	}
	f.hosts.asked = f
	f.hosts.requests++
	if !f.started {
		f.begin(psn)
		f.began, f.beganAt = psn, p.Frame.Time
	}
	f.hosts.cameAgain(f, psn)
	d := psn.Diff(f.nxt)
	if d > jump || d < -jump || d < 0 && psn.Diff(f.una) < -longAgo && f.entry(psn) == nil { // a new use of the number
		f.begin(psn)
		d = 0
	}
	f.dscps |= 1 << (p.TrafficClass >> 2)
	if p.Tagged {
		f.pcps |= 1 << (p.VLAN >> 13)
	}
	if d > 0 && f.loose {
		f.nxt, d = psn, 0
	}
	sequential := psn == f.prev.Add(1)
	f.prev = psn.Add(span - 1)
	e := sent{psn: psn, op: w.Opcode, asks: f.reqAckAsked, valid: true, frame: p.Frame.Number, payload: n, at: p.Frame.Time, tries: 1, cut: headersCut(p)}
	if w.Opcode.Headers()&wire.HeaderXRCETH != 0 {
		e.srqn = w.XRCETH.SRQN
	}
	switch set := w.Opcode.Headers(); {
	case set&wire.HeaderRETH != 0:
		e.va, e.rkey, e.length = w.RETH.VA, w.RETH.RKey, w.RETH.Length
	case set&wire.HeaderAtomicETH != 0:
		e.va, e.rkey, e.length = w.AtomicETH.VA, w.AtomicETH.RKey, 8
	}
	if d >= 0 {
		if d > 0 {
			if len(f.gaps) == maxGaps {
				f.gaps = f.gaps[1:]
			}
			f.gaps = append(f.gaps, gap{f.nxt, psn, p.Frame.Time, p.Frame.Number})
		}
		f.nxt, f.loose, f.cause = psn.Add(span), unknown, byNothing
		f.inMessage = !w.Opcode.EndsMessage()
		a.put(f, e)
		a.open(f, p, w)
		return
	}
	if f.nxt.Less(psn.Add(span)) { // a READ that begins again in its middle, or one whose length was not known
		f.nxt = psn.Add(span)
	}
	if f.overtookFirst(psn, p.Frame.Time) && f.entry(psn) == nil {
		if next := psn.Add(span); next.Less(f.began) && len(f.gaps) < maxGaps {
			f.gaps = append(f.gaps, gap{next, f.began, f.beganAt, p.Frame.Number})
		}
		f.began = psn
		a.mark(f, reorder, p.Frame.Number)
		a.put(f, e)
		return
	}
	if g, ok := f.inGap(psn); ok {
		a.filled(f, p, g, psn, sequential)
		a.put(f, e)
		return
	}
	a.repeat(f, p, w, e, sequential)
}

// begin starts to count PSNs.
func (f *flow) begin(psn wire.PSN) {
	f.started, f.loose = true, false
	f.nxt, f.una, f.prev = psn, psn, psn.Add(-1)
	f.gaps, f.cause, f.openReads, f.dscps, f.pcps = f.gaps[:0], byNothing, 0, 0, 0
	f.nakFrame, f.rnrFrame, f.sackFrame, f.rnrLast, f.nakked = 0, 0, 0, false, false
	clear(f.ring)
}

// open counts READs and atomics, of which a connection allows some at a time.
func (a *Analyzer) open(f *flow, p *capture.Packet, w *wire.Packet) {
	if !w.Opcode.IsRead() && !w.Opcode.IsAtomic() {
		return
	}
	f.openReads++
	if f.conn == nil {
		return
	}
	depth, known := f.conn.depth(f)
	if !known || f.openReads <= depth || f.repeats > 0 || f.peer == nil || f.peer.responses == 0 && depth > 0 {
		return
	}
	if x := a.mark(f, cmRD0, p.Frame.Number); x != nil && x.Count == 1 {
		x.Words = words("The connection agreed on %d READs and atomics at a time, and %d are open.", depth, f.openReads)
		if depth == 0 {
			x.Certainty = Proven
		}
	}
}

// filled: a packet came that was missing when later ones came.
func (a *Analyzer) filled(f *flow, p *capture.Packet, g gap, psn wire.PSN, sequential bool) {
	switch {
	case sequential && (f.cause == byNAK || f.cause == bySelective || f.cause == byReadGap): // of the repeats under way
		a.lost(f, p, lossNAK)
	case sequential && f.cause == byTimeout:
		a.lost(f, p, lossTimeout)
	case f.nakFrame > g.frame && !psn.Less(f.nakPSN):
		f.cause = byNAK
		a.lost(f, p, lossNAK)
		if psn == f.nakPSN { // which the receiver takes when it comes; of those behind it may drop some again
			f.fills[f.fill%len(f.fills)] = fill{psn, p.Frame.Number, true}
			f.fill++
		}
	case f.sackFrame > g.frame:
		f.cause = bySelective
		a.lost(f, p, lossNAK)
		f.fills[f.fill%len(f.fills)] = fill{psn, p.Frame.Number, false}
		f.fill++
	case p.Frame.Time-g.at > overtaken:
		f.cause = byTimeout
		a.lost(f, p, lossTimeout)
	default:
		a.mark(f, reorder, p.Frame.Number)
	}
}

// overtaken: the packet that came for a PSN that was asked for comes again, though it has been acknowledged. So the first was not the repeat, but the
// packet itself, which others had overtaken.
func (a *Analyzer) overtaken(f *flow, psn wire.PSN) {
	for i := range f.fills {
		was := &f.fills[i]
		if was.frame == 0 || was.psn != psn {
			continue
		}
		a.mark(f, reorder, was.frame)
		was.frame = 0
		f.losses--
		f.hosts.losses--
		f.lossNear = max(0, f.lossNear-1)
		if x := f.places[lossNAK]; x != nil {
			if x.Count--; was.nak {
				x.Count--
			}
			if x.Count <= 0 {
				f.drop(lossNAK)
			}
		}
		return
	}
}

// repeat takes a request that was sent before.
func (a *Analyzer) repeat(f *flow, p *capture.Packet, w *wire.Packet, e sent, sequential bool) {
	f.repeats++
	f.hosts.repeats++
	a.count.repeats++
	if e.psn.Less(f.una) {
		a.overtaken(f, e.psn)
	}
	if g := f.peer; g != nil && g.unaskedOf > 0 && e.psn.Less(g.unasked.to) {
		g.unaskedOf = 0
	}
	old := f.entry(e.psn)
	since := int64(0)
	if old != nil {
		e.tries = old.tries + 1
		e.respond, e.answer = old.respond, old.answer
		since = p.Frame.Time - old.at
	}
	oldFrame := 0
	if old != nil {
		oldFrame = old.frame
	}
	if !sequential || f.cause == byNothing {
		f.cause = f.why(w, e.psn, oldFrame)
		switch f.cause {
		case byNAK, bySelective:
			a.lost(f, p, lossNAK)
		case byReadGap:
			a.lost(f, p, lossNAK)
		case byNeedless:
			if old != nil && (since < overtaken || f.wasLate(e.psn, old.at, p.Frame.Time)) {
				a.late(f, p.Frame.Number, since)
			} else {
				a.mark(f, lossAck, p.Frame.Number)
				f.inVain(p)
			}
		case byTimeout:
			if old != nil && f.hosts.doesNotFit(old.payload) && !f.hosts.doesNotFit(e.payload) {
				break // the sender has taken a smaller path MTU
			}
			f.silence(p, e.psn, e.payload, since)
			f.silentLate = f.silentLate || old != nil && p.Frame.Direction == capture.Inbound
		}
	}
	a.put(f, e)
}

// inVain takes a repeat of a request that had been answered. Its own answer may fail to come.
func (f *flow) inVain(p *capture.Packet) {
	if f.vain == 0 || f.lastAnswer >= f.vainFirst {
		f.vain, f.vainFirst, f.vainFrames = 0, p.Frame.Time, f.vainFrames[:0]
	}
	f.vain++
	if len(f.vainFrames) < maxFrames {
		f.vainFrames = append(f.vainFrames, p.Frame.Number)
	}
}

// why says for which cause a request is repeated whose latest copy is in some frame, 0 if that is not known.
func (f *flow) why(w *wire.Packet, psn wire.PSN, frame int) cause {
	switch {
	case f.rnrLast && psn == f.rnrPSN:
		return byRNR
	case f.nakFrame > frame && !psn.Less(f.nakPSN):
		return byNAK
	case w.Opcode.IsRead() && f.gapFrame > frame:
		return byReadGap
	case psn.Less(f.una):
		return byNeedless
	case f.sackFrame > frame && !psn.Less(f.sackPSN):
		return bySelective
	}
	return byTimeout
}

// wasLate reports whether a request that was sent at a time, and again at another, was answered closer to the repeat: then
// the repeat and the answer crossed.
func (f *flow) wasLate(psn wire.PSN, at, again int64) bool {
	for range len(f.ring) {
		e := f.entry(psn)
		if e == nil {
			return false
		}
		if e.answer != 0 {
			return 2*(e.answer-at) > again-at
		}
		psn = psn.Add(1)
	}
	return false
}

// silence takes a request that is sent again since no answer has come.
func (f *flow) silence(p *capture.Packet, psn wire.PSN, n int, interval int64) {
	if f.silentTries == 0 || f.silentPSN != psn {
		f.silentTries, f.silentPSN, f.silentFirst, f.silentLen = 0, psn, p.Frame.Time-interval, n
		f.silentFrames, f.silentLate = f.silentFrames[:0], false
	}
	f.silentTries++
	f.silentLast = p.Frame.Time
	f.silentInterval = max(f.silentInterval, interval)
	if len(f.silentFrames) < maxFrames {
		f.silentFrames = append(f.silentFrames, p.Frame.Number)
	}
}

// lost counts a loss.
func (a *Analyzer) lost(f *flow, p *capture.Packet, r ruleID) {
	a.mark(f, r, p.Frame.Number)
	f.losses++
	f.hosts.losses++
	if f.lossLast != 0 && f.requests-f.lossLast <= burst {
		f.lossNear++
	}
	f.lossLast = f.requests
}
