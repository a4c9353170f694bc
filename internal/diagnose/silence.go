package diagnose

import (
	"math/bits"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// silentRepeats is the repeats of one request without an answer, before it counts as unanswered.
const silentRepeats = 2

// unanswered judges the requests that are open at the end.
func (a *Analyzer) unanswered(f *flow) {
	if f.nakked || f.peerLeft && f.answers > 0 {
		return
	}
	if a.wrongPSN(f) {
		return
	}
	if f.silentTries < silentRepeats {
		if f.vain >= silentRepeats && f.lastAnswer < f.vainFirst {
			a.diedLate(f)
		} else if f.started && f.reqAckAsked && f.una.Less(f.nxt) && f.answers > 0 && !f.disconnected && !f.rnrLast && a.last-f.last > quietSilent {
			a.stopped(f)
		}
		return
	}
	if f.explained || a.explainMTU(f) || f.answers == 0 && a.explain(f) {
		return
	}
	back := f.hosts.back
	lived := back != nil && back.lastAt > f.silentFirst // something came back since
	r := rcSilent
	if f.answers > 0 {
		r = rcDied
	}
	if f.silentLen >= 1024 && f.silentLen == f.maxPayload && (f.answers > 0 && f.answered < f.silentLen || lived && f.answers == 0 && f.conn != nil) {
		for _, frame := range f.silentFrames {
			if x := a.blackHole(f, f.silentLen, frame); x != nil && lived {
				x.Words += " Other packets came back meanwhile."
			}
		}
		f.drop(lossAck, lossTimeout, lateAnswer) // probes, and earlier tries
		return
	}
	for _, frame := range f.silentFrames {
		a.mark(f, r, frame)
	}
	x := f.places[r]
	if x == nil {
		return
	}
	x.Count = f.silentTries
	x.Words = f.silenceWords()
	switch {
	case r == rcDied:
		x.Words += words(" The last answer came %v before the end of the capture.", round(a.last-f.lastAnswer))
	case back == nil || back.packets == 0:
		x.Certainty = Likely
		x.Words += " Nothing at all came back from that host."
	}
	if lived {
		x.Words += " Other packets of that host came meanwhile, so the path is there."
	}
}

// diedLate: the sender, which missed an answer, asks again, and nothing comes any more.
func (a *Analyzer) diedLate(f *flow) {
	for _, frame := range f.vainFrames {
		a.mark(f, rcDied, frame)
	}
	if x := f.places[rcDied]; x != nil {
		x.Count = f.vain
		x.Words = words("The sender repeats what had been answered, since it missed the answer, and nothing comes any more. The last answer came %v before the end of the capture.", round(a.last-f.lastAnswer))
	}
	if x := f.places[lossAck]; x != nil && x.Count <= f.vain {
		f.drop(lossAck)
	}
}

// stopped: requests are open, and their sender does not repeat them.
func (a *Analyzer) stopped(f *flow) {
	if x := a.mark(f, rcDied, f.reqFrame); x != nil {
		x.Certainty = Likely
		x.Words = words("Requests up to PSN %v are not answered, and in the %v since not one packet of the queue pair came, not even a repeat: the link at the capturing end is down, or the sender has ended.", f.nxt.Add(-1), round(a.last-f.last))
	}
}

// timeoutCode returns the code of the acknowledge timeout that a wait fits: requesters wait once to four times as long.
func timeoutCode(ns int64) int {
	const unit = 4096
	return min(31, max(0, bits.Len64(uint64(ns)/unit)-1))
}

// explain looks for the cause of a silence in what else the capture shows. Then that is the finding, in place of RC-SILENT.
func (a *Analyzer) explain(f *flow) bool {
	return a.mixedAddresses(f) || a.mixedPaths(f) || a.wrongPKey(f)
}

// silenceWords tells of the repeats of a request that is not answered.
func (f *flow) silenceWords() string {
	s := words("PSN %v was repeated %s.", f.silentPSN, counted(f.silentTries, "time"))
	if f.silentInterval > 0 {
		s += words(" The longest wait was %v", round(f.silentInterval))
		if code := timeoutCode(f.silentInterval); code > 0 {
			s += words(", which fits the timeout code %d", code)
		}
		s += "."
	}
	return s
}

// onSilence makes a finding of a rule on a silent flow, in place of RC-SILENT.
func (a *Analyzer) onSilence(f *flow, r ruleID) *Finding {
	f.explained = true
	f.drop(rcSilent)
	for _, frame := range f.silentFrames {
		a.mark(f, r, frame)
	}
	x := f.places[r]
	if x != nil {
		x.Count = f.silentTries
	}
	return x
}

// mixedAddresses: a link-local address sends to one that is not, or the other way round. Nobody routes that.
func (a *Analyzer) mixedAddresses(f *flow) bool {
	if f.kind == capture.InfiniBand || f.key.src.IsLinkLocalUnicast() == f.key.dst.IsLinkLocalUnicast() {
		return false
	}
	if x := a.onSilence(f, gidLL); x != nil {
		x.Words = "One address is link-local and the other is not. " + f.silenceWords()
	}
	return true
}

// mixedPaths: the queue pairs of two Ethernet addresses send to each other by different kinds of GIDs, and none is
// answered. One of the kinds is not routed, so the Ethernet addresses are the hosts' own.
func (a *Analyzer) mixedPaths(f *flow) bool {
	if f.srcMAC == [6]byte{} || f.dstMAC == [6]byte{} {
		return false
	}
	var found *flow
	for g := a.oldest; g != nil; g = g.newer {
		if g.srcMAC != f.dstMAC || g.dstMAC != f.srcMAC || g.gidKind() == f.gidKind() || g.answers > 0 || g.silentTries == 0 || !g.acknowledged() {
			continue
		}
		if found == nil || found.explained && !g.explained {
			found = g
		}
	}
	if found == nil {
		return false
	}
	x := a.onSilence(f, gidLL)
	found.explained = true
	found.drop(rcSilent)
	if x != nil {
		for _, frame := range found.silentFrames {
			x.hit(frame)
		}
		x.Words = words("%s sends by %s, and the other end, %s, by %s: so no packet finds the peer's queue pair. %s", a.names.addr(f.key.src), f.gidKind(), a.names.addr(found.key.src), found.gidKind(), f.silenceWords())
		x.paired = found
	}
	return true
}

// gidKind is the kind of the GIDs by which packets go.
func (f *flow) gidKind() string {
	switch {
	case f.kind == capture.RoCEv1:
		return "RoCE v1"
	case f.kind == capture.RoCEv2 && f.key.src.IsLinkLocalUnicast():
		return "a link-local address"
	case f.kind == capture.RoCEv2:
		return "a routed address"
	}
	return ""
}

// orAsked returns f, whose requests the answers on g are for, or the flow of the latest request if f is not known.
func (f *flow) orAsked(g *flow) *flow {
	if f != nil || g.hosts.back == nil {
		return f
	}
	if f = g.hosts.back.asked; f != nil && f.peer == nil && f.acknowledged() {
		return f
	}
	return nil
}

// astray reports whether an answer is for no request of the flow, of which none was answered yet.
func (f *flow) astray(psn wire.PSN) bool {
	return f.started && f.una == f.began && !f.covers(psn)
}

// strays counts an answer that is for no request.
func (f *flow) strays(g *flow, p *capture.Packet, psn wire.PSN, nak bool) {
	if f.strayFlow != g || f.strayPSN != psn || f.strayNAK != nak {
		f.strayFlow, f.strayPSN, f.strayNAK, f.stray, f.strayFrames = g, psn, nak, 0, f.strayFrames[:0]
	}
	f.stray++
	g.strayTo = f
	if len(f.strayFrames) < maxFrames {
		f.strayFrames = append(f.strayFrames, p.Frame.Number)
	}
}

// wrongPSN finds ends that do not agree on the first PSN. A receiver that waits for a lower one says so by a NAK; one that
// waits for a higher one takes the request for a repeat, and acknowledges the latest that it has.
func (a *Analyzer) wrongPSN(f *flow) bool {
	const enough = 2
	if f.stray < enough || f.una != f.began || f.repeats == 0 {
		return false
	}
	waits, how := f.strayPSN, "a NAK for a sequence error"
	if !f.strayNAK {
		waits, how = waits.Add(1), words("an acknowledgement of PSN %v, which takes it for a repeat", f.strayPSN)
	}
	if e := f.entry(f.began); e != nil && f.stray*2 < e.tries || f.entry(waits) != nil {
		return false
	}
	f.explained = true
	f.drop(rcSilent, rcDied, lossNAK, lossTimeout, lossAck, lateAnswer)
	f.hosts.losses -= f.losses
	f.losses, f.lossNear = 0, 0
	back := f.strayFlow
	if back.losses == 0 {
		back.drop(lossNAK)
	}
	if f.peer == nil && back.peer == nil {
		a.pair(f, back)
	}
	for _, frame := range f.strayFrames {
		a.mark(f, psnMismatch, frame)
	}
	x := f.places[psnMismatch]
	if x == nil {
		return true
	}
	x.Count = f.stray
	x.Words = words("The requests begin with PSN %v (%d), and each is answered by %s: the sender's sq_psn is %d, and the receiver's rq_psn is %d.", f.began, uint32(f.began), how, uint32(f.began), uint32(waits))
	return true
}

// puzzling reports whether the latest answers are for none of a flow's requests: what they mean, its end tells.
func (f *flow) puzzling() bool {
	return !f.gone && f.stray > 0 && f.una == f.began || f.strayTo != nil && f.strayTo.strayFlow == f && f.strayTo.puzzling()
}
