package diagnose

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A Report has the findings and totals of a capture.
type Report struct {
	Verdict   string     `json:"verdict"`
	Findings  []*Finding `json:"findings"`  // errors and warnings, the worst first
	Notes     []*Finding `json:"notes"`     // facts about the capture, and hints
	Clean     []string   `json:"clean"`     // checks that found nothing wrong
	Unchecked []string   `json:"unchecked"` // checks that were not possible, and why
	Omitted   int        `json:"omitted"`   // findings beyond those that are kept of each rule
	Frames    int        `json:"frames"`
	RoCE      int        `json:"roce_packets"`
	FPDUs     int        `json:"iwarp_fpdus"`
	Span      float64    `json:"seconds"`

	infiniBand bool // all of it
	judged     bool
}

// Judged reports whether the capture has anything of RDMA. If not, the report says nothing about it.
func (r *Report) Judged() bool { return r.judged }

// finish judges a flow at its end.
func (a *Analyzer) finish(f *flow) {
	const (
		rare       = 4   // times as far apart as in a burst the losses would be, if they were spread evenly
		many       = 200 // packets, before shares mean something
		soon       = int64(time.Second)
		slowFactor = 20
		least      = int64(time.Millisecond)
	)
	if f.answers > 0 {
		f.hosts.answered = true
		a.count.answered++
	}
	if !f.acknowledged() {
		return
	}
	a.settle(f)
	if f.leftFrame > 0 && !f.leftLast.Less(f.una) {
		if x := a.mark(f, peerDisc, f.leftFrame); x != nil {
			x.Words = words("%d packets were open, the last in frame %d.", f.leftOpen, f.leftReq)
		}
	}
	if f.conn == nil && f.requests > 0 {
		a.count.unintroduced++
	}
	a.unanswered(f)
	f.judgeOrder()
	if f.requests >= many && f.repeats*2 >= f.requests {
		if x := a.mark(f, livelock, 0); x != nil {
			x.Words = words("%d of %d packets were sent before.", f.repeats, f.requests)
			x.Count, x.Frames = f.repeats, f.lossFrames()
		}
	}
	if f.losses >= 8 && f.lossNear*4 >= f.losses*3 && f.requests >= rare*burst*f.losses {
		if x := a.mark(f, lossBurst, 0); x != nil {
			x.Count, x.Frames = f.lossNear, f.lossFrames()
			x.Words = words("%d of %d losses came within %d packets of another one.", f.lossNear, f.losses, burst)
		}
	}
	a.judgeNAKs(f)
	if x := f.places[reorder]; x == nil && f.sackGaps > 0 && f.losses == 0 && f.repeats == 0 {
		if x := a.mark(f, reorder, f.sackFrame); x != nil {
			x.Count = f.sackGaps
			x.Words = "The receiver reported packets as missing that came after others, and nothing was sent again."
		}
	}
	if x := f.places[rnr]; x != nil && f.rnrLast && (a.last-f.lastAnswer > soon || f.disconnected) {
		x.Severity = Error
		x.Words += " The message was not sent again after the last one: its sender has given up, with status 13."
	}
	if c := f.conn; c != nil && f.places[rnr] != nil {
		retries := c.rnrPassive
		if f.key.dst == c.key.passive && f.key.qpn == c.passiveQPN {
			retries = c.rnrActive
		}
		if retries < 7 {
			if x := a.mark(f, cmRNR0, f.rnrFrame); x != nil {
				x.Words = words("rnr_retry_count is %d.", retries)
			}
		}
	}
	if n := len(f.readTimes); n >= 50 {
		slices.Sort(f.readTimes)
		middle, late := f.readTimes[n/2], f.readTimes[n*99/100]
		if late > slowFactor*middle && late > least && f.losses == 0 {
			if x := a.mark(f, readSlow, 0); x != nil {
				x.Words = words("The median is %v, and one in a hundred takes %v or more.", round(middle), round(late))
			}
		}
	}
	a.unaskedResponses(f)
	a.mixedPriorities(f)
	a.compareEnds(f)
}

// unrepeated reports whether requests were captured, of which none was sent again so far.
func (f *flow) unrepeated() bool {
	switch back := f.hosts.back; {
	case f.gone:
		return false
	case f.requests > 0:
		return f.repeats+f.losses == 0
	default:
		return back != nil && back.requests > 0 && back.repeats+back.losses == 0
	}
}

// judgeNAKs takes NAKs for a sequence error back after which nothing was sent again: then nothing was lost.
func (a *Analyzer) judgeNAKs(f *flow) {
	x := f.places[lossNAK]
	switch back := f.hosts.back; {
	case x == nil:
	case f.unrepeated():
		f.drop(lossNAK)
	case f.requests > 0:
		x.Words = words("%d of %d packets of this direction were sent again.", f.repeats, f.requests)
	case back != nil && back.requests > 0:
		x.Words = "Which requests they answer is not known."
	default:
		x.Words = "The requests that they answer are not in the capture."
	}
}

// proveLosses: a NAK for a sequence error proves no loss, since packets may have overtaken each other. It is one where packets
// were lost between two points of the capture, or were damaged.
func (a *Analyzer) proveLosses() {
	for _, x := range a.found.all {
		if x.rule != lossNAK || x.flow == nil {
			continue
		}
		h := x.flow.hosts
		_, lost := h.path.lost(h.key.src == h.key.dst)
		if lost > 0 && h.path.matched > 0 || h.badFinding != nil && h.badFinding.Certainty == Proven {
			x.Certainty = Proven
		}
	}
}

// judgeOrder takes NAKs back that came since packets had overtaken each other, and none was lost.
func (f *flow) judgeOrder() {
	x, path := f.places[lossNAK], &f.hosts.path
	if x == nil {
		return
	}
	_, lost := path.lost(f.key.src == f.key.dst)
	seen := path.overtook != nil && path.matched > 0 && lost == 0
	if r := f.places[reorder]; seen || r != nil && r.Count*2 >= x.Count {
		f.drop(lossNAK)
		f.hosts.losses -= f.losses
		f.losses, f.lossNear = 0, 0
	}
}

// lossFrames returns frames that show losses.
func (f *flow) lossFrames() []int {
	for _, r := range [...]ruleID{lossNAK, lossTimeout, lossAck} {
		if x := f.places[r]; x != nil {
			return slices.Clone(x.Frames)
		}
	}
	return []int{}
}

// oneWay finds hosts of which only one direction was captured.
func (a *Analyzer) oneWay() {
	for _, h := range a.hostList() {
		if h.data == 0 || h.key.dst.IsMulticast() || h.back != nil && h.back.packets+h.back.fragments > 0 {
			continue
		}
		silent, asks := false, false
		for _, f := range h.flows {
			silent = silent || f.explained || f.places[rcSilent] != nil || f.places[mtuBlackhole] != nil
			asks = asks || f.acknowledged() && (f.requests > 0 && f.reqAckAsked || f.responses > 0)
		}
		if silent || !asks {
			continue
		}
		var x *Finding
		a.onHosts(h, capOneWay, &x, 0)
	}
}

// hostList returns the pairs of hosts in a fixed order.
func (a *Analyzer) hostList() (list []*hosts) {
	for _, h := range a.pairs {
		list = append(list, h)
	}
	slices.SortFunc(list, func(x, y *hosts) int {
		if c := x.key.src.Compare(y.key.src); c != 0 {
			return c
		}
		return x.key.dst.Compare(y.key.dst)
	})
	return list
}

// Report ends the analysis, and returns its result. It is called once.
func (a *Analyzer) Report() *Report {
	for f := a.oldest; f != nil; f = f.newer {
		a.finish(f)
	}
	for _, k := range a.cm.order {
		a.finishConn(a.cm.byID[k])
	}
	for _, t := range a.tcps.order {
		a.finishTCP(t)
	}
	list := a.hostList()
	for _, h := range list {
		a.lossesSeen = a.lossesSeen || h.losses > 0
	}
	for _, h := range list {
		a.finishHosts(h)
	}
	a.proveLosses()
	a.oneWay()
	a.finishPauses()
	a.ofCapture()
	c := &a.count
	r := &Report{Frames: c.frames, RoCE: c.roce, infiniBand: c.infiniBand == c.roce, FPDUs: c.fpdus, Span: float64(a.last-a.first) / 1e9, Findings: []*Finding{}, Notes: []*Finding{}}
	for _, n := range a.found.more {
		r.Omitted += n
	}
	for _, x := range a.found.sorted() {
		a.complete(x)
		if x.note() {
			r.Notes = append(r.Notes, x)
		} else {
			r.Findings = append(r.Findings, x)
		}
	}
	r.Clean, r.Unchecked = a.clean(), a.unchecked()
	r.judged = c.roce+c.tcps > 0
	r.Verdict = a.verdict(r)
	return r
}

// complete gives a finding the parts that it takes from its flow.
func (a *Analyzer) complete(x *Finding) {
	slices.Sort(x.Frames)
	if x.flow != nil {
		x.Where, x.Filter = x.flow.where(&a.names), x.flow.both(&a.names)
		if x.paired != nil && x.Filter != "" {
			x.Filter = "(" + x.Filter + ") || (" + x.paired.filter(&a.names) + ")"
		}
		if x.rule == peerDisc && x.Filter != "" { // which a message of the connection manager shows
			x.Filter += " || (" + a.names.filterCM(x.flow.kind, x.flow.key.src, x.flow.key.dst) + ")"
		}
	}
	if x.Filter == "" {
		x.Filter = frameFilter(x.Frames)
	}
	if x.flow != nil && x.flow.kind == capture.InfiniBand || x.hosts != nil && x.hosts.kind == capture.InfiniBand {
		if i := slices.Index(x.Remedy, notLossless); i >= 0 {
			x.Remedy = slices.Clone(x.Remedy)
			x.Remedy[i] = notOnInfiniBand
		}
	}
	const itself = "the capture has missed frames itself, which it has"
	if a.count.lost > 0 && x.Side == OfNetwork && x.Certainty < Proven && !strings.Contains(x.WrongIf, itself) {
		x.WrongIf = strings.TrimSuffix(x.WrongIf, ".")
		if x.WrongIf != "" {
			x.WrongIf += ", or "
		}
		x.WrongIf += itself + "."
	}
}

// ofCapture adds the facts about the capture as a whole.
func (a *Analyzer) ofCapture() {
	c := &a.count
	if c.roce+c.tcps == 0 && c.cutEarly > 0 {
		if x := a.found.add(capSnap, ""); x != nil {
			x.Count, x.Words, x.Filter = c.cutEarly, words("%d of %d frames hold packets to UDP port %d of which not even the BTH is whole.", c.cutEarly, c.frames, wire.UDPPort), "frame.cap_len < frame.len"
		}
	} else if c.roce+c.tcps == 0 && a.readErr == nil {
		if x := a.found.add(capNone, ""); x != nil {
			x.Count = c.frames
			x.Words = words("None of %d frames is to UDP port %d, of Ethertype 0x8915, or of an iWARP connection.", c.frames, wire.UDPPort)
		}
	}
	if c.cutRoCE > 0 {
		if x := a.found.add(capSnap, ""); x != nil {
			x.Count, x.Words, x.Filter = c.cutRoCE, words("%d of %d RoCE packets are cut.", c.cutRoCE, c.roce), "frame.cap_len < frame.len"
		}
	}
	if a.copiesSame > 0 {
		if x := a.found.add(capDup, ""); x != nil {
			x.Count, x.Frames = a.copiesSame, a.copiesFrames
			x.Words = words("%d packets are copies, byte for byte, at the same point of the capture.", a.copiesSame)
		}
	} else if n := a.copiesElsewhere(); n > 0 {
		if x := a.found.add(capDup, ""); x != nil {
			x.Count = n
			x.Words = words("Captured at two points, and judged once: %s.", counted(n, "packet"))
		}
	}
	if c.otherID > 0 {
		if x := a.found.add(icrcID, ""); x != nil {
			x.Count, x.Words = c.otherID, words("%d of %d packets, and their ICRCs are right for the identification that was solved for.", c.otherID, c.roce)
		}
	}
	a.cutShort()
	a.carries()
}

func (a *Analyzer) copiesElsewhere() (n int) {
	for _, h := range a.pairs {
		n += h.path.matched
	}
	return n
}

// clean names the checks that found nothing wrong.
func (a *Analyzer) clean() []string {
	c, list := &a.count, []string{}
	say := func(ok bool, format string, args ...any) {
		if ok {
			list = append(list, words(format, args...))
		}
	}
	say(c.good+c.otherID > 0 && c.bad == 0, "ICRC: %s checked, none damaged", counted(c.good+c.otherID, "packet"))
	say(c.requests > 0 && c.naks == 0 && c.responses > 0, "no NAK in %s", counted(c.responses, "answer"))
	say(c.requests > 0 && c.rnrs == 0 && c.responses > 0, "no receiver without receives (RNR)")
	say(c.rcRequests > 0 && c.repeats == 0, "no repeat in %s of requests", counted(c.rcRequests, "packet"))
	say(c.roce > 0 && c.ce == 0 && c.cnps == 0, "no mark of congestion, and no CNP")
	say(c.goodCRC > 0 && c.badCRC == 0, "iWARP: %s of %s, none damaged", counted(c.goodCRC, "FPDU"), counted(c.tcps, "connection"))
	say(c.fpdus > 0 && a.found.have[iwTerminate]+a.found.have[iwReset] == 0, "no iWARP connection was ended with an error")
	say(c.fpdus > 0 && a.found.have[iwLoss] == 0, "no repeat in %s of iWARP", counted(c.tcpSegments, "TCP segment"))
	say(a.cm.total > 0 && a.found.have[cmNoAnswer]+a.found.have[cmRej8]+a.found.have[cmRej28]+a.found.have[cmRej4]+a.found.have[cmRej10]+a.found.have[cmRejOther]+a.found.have[cmSIDR] == 0,
		"%s of the connection manager, of which %d ended by a DREQ, none rejected", counted(a.cm.total, "conversation"), a.cm.ended)
	return list
}

// unchecked names the checks that were not possible.
func (a *Analyzer) unchecked() []string {
	c, list := &a.count, []string{}
	say := func(n int, format string, args ...any) {
		if n > 0 {
			list = append(list, words("%d "+format, append([]any{n}, args...)...))
		}
	}
	say(c.lost, "frames came faster than they could be captured, and are missing: what was in them is not known")
	say(c.uncheckedICRC, "RoCE packets are cut, so their ICRC and the end of their payload are not known")
	say(c.zero, "RoCE packets have no ICRC yet: the card fills it in later")
	say(c.cutHeaders, "RoCE packets are cut within their headers, so the memory that they name, or what they answer, is not known")
	say(c.cutEarly, "packets to RoCE's port are cut before their BTH ends")
	say(c.secured, "packets are encrypted by adverb's packet security: only losses of the whole could be seen")
	say(c.uncheckedCRC, "FPDUs of iWARP are cut, or have no CRC")
	say(c.tcpHoles+c.tcpUnseen, "times the bytes of an iWARP connection were not all captured: FPDUs there were not looked at")
	say(c.midway, "iWARP connections had begun before the capture: on which terms is not known")
	say(c.tcpEvicted, "iWARP connections were forgotten early, since there were so many")
	say(c.fragments, "IP fragments were not put together; RoCE has none unless somebody has lost the don't-fragment flag")
	say(c.long, "datagrams are longer than any RoCE packet, and were not looked at")
	say(c.undecoded, "packets to RoCE's port are no RoCE packets, or have opcodes of a manufacturer")
	say(c.cut, "frames are cut before anything could be told of them")
	say(c.evicted, "queue pairs were forgotten early, since there were so many or their number was used again")
	say(c.unpaired, "answers fit several queue pairs")
	switch n := c.unintroduced; {
	case n == 1:
		list = append(list, "how 1 queue pair was connected was not captured: its path MTU, depth of READs and rnr_retry are not known")
	case n > 1:
		list = append(list, words("how %d queue pairs were connected was not captured: their path MTU, depth of READs and rnr_retry are not known", n))
	}
	if a.readErr != nil && !errors.Is(a.readErr, capture.ErrCut) {
		list = append(list, "the file is damaged: "+a.readErr.Error())
	}
	say(c.unacknowledged, "packets of UD and UC are not acknowledged: the only trace of a loss is a PSN that is missing in a capture at the receiver")
	if c.rcRequests > 0 && c.answered == 0 {
		list = append(list, "no answers were captured: whether requests were carried out is not known")
	}
	return list
}

// verdict is the report in a sentence or two.
func (a *Analyzer) verdict(r *Report) string {
	if a.count.roce+a.count.tcps == 0 && a.count.cutEarly > 0 {
		return "The capture has too little of each packet, so nothing can be said about RDMA. Capture whole packets (tcpdump -s 0), or at least 100 bytes of each."
	}
	if a.count.roce+a.count.tcps == 0 {
		return "No RoCE packets are in this capture, so nothing can be said about RDMA."
	}
	if len(r.Findings) == 0 {
		s := a.cleared()
		parts := []ruleID{capOneWay, capHole, capCut, capSnap}
		if a.count.lost > 0 || slices.ContainsFunc(r.Notes, func(x *Finding) bool { return slices.Contains(parts, x.rule) }) {
			s += " The capture is not whole: see below."
		}
		return s
	}
	network := false
	errorsFound := 0
	for _, x := range r.Findings {
		network = network || x.Side == OfNetwork
		if x.Severity == Error {
			errorsFound++
		}
	}
	first := r.Findings[0]
	s := first.Title
	if first.Where != "" {
		s += " (" + first.Where + ")"
	}
	s += "."
	switch {
	case len(r.Findings) == 1:
	case errorsFound == len(r.Findings):
		s += words(" In all %s.", counted(errorsFound, "error"))
	case errorsFound == 0:
		s += words(" %s more.", counted(len(r.Findings)-1, "warning"))
	default:
		s += words(" In all %s and %s.", counted(errorsFound, "error"), counted(len(r.Findings)-errorsFound, "warning"))
	}
	if !network && first.Side != OfHost {
		s += " Not the network: look at the " + first.Side.String() + "."
	}
	return strings.TrimSpace(s)
}

// cleared is the verdict where nothing was found. It clears the network of what answers were captured of.
func (a *Analyzer) cleared() string {
	const fine = "Nothing in this capture speaks of a fault."
	c := &a.count
	answered := c.answered+c.fpdus > 0 || a.cm.answered > 0
	switch {
	case c.requests+c.responses+c.cm+c.fpdus == 0:
		return fine
	case answered && c.unacknowledged > 0:
		return fine + " Where answers were captured, it was not the network if something failed: look at the programs and hosts. Of UD and UC losses may leave no trace."
	case answered:
		return fine + " If something failed, it was not the network, as far as it was captured: look at the programs and hosts."
	case c.unacknowledged > 0:
		return fine + " UD and UC have no acknowledgements, so losses may leave no trace."
	}
	return fine + " No answers to requests were captured, so whether they arrived is not known."
}

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return words("%d %s", n, noun)
}
