package diagnose

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Options of New.
type Options struct {
	// Redact replaces addresses, keys and payloads in the report. The same stands for the same.
	Redact bool
	// Units, unless nil, is called with each MPA frame and each FPDU of iWARP, in the order of their streams.
	Units func(*Unit)
}

// An Analyzer looks at the packets of one capture.
type Analyzer struct {
	names    names
	found    collector
	decoder  capture.Decoder
	flows    map[flowKey]*flow
	newest   *flow
	oldest   *flow
	ringSum  int
	pairs    map[hostKey]*hosts
	partners map[flowKey]flowKey // of connections that the connection manager has made
	cm       conns
	tcps     tcpConns
	units    func(*Unit)
	copies   copies
	count    counts
	paused   [8]pause
	first    int64
	last     int64
	readErr  error
	udKeys   map[flowKey]uint32 // the first Q_Key to a queue pair
	udFrom   map[udSource]*udPSNs
	byQP     map[flowKey]*conn
	ulps     map[string]*carried // by the name of the protocol

	copiesSame   int // copies at one point that are the capture's
	copiesFrames []int
	lossesSeen   bool
}

// counts are totals of the whole capture, for its report.
type counts struct {
	lost, frames, roce, infiniBand, cutRoCE, cutHeaders, cutEarly, cut, fragments, arp, large int
	good, otherID, bad, zero, uncheckedICRC                                                   int
	secured, undecoded, long, trainPackets, evicted, unpaired                                 int
	cm, requests, rcRequests, responses, repeats, acks, naks, rnrs                            int
	unacknowledged, answered, unintroduced                                                    int // packets of UD and UC; queue pairs
	ce, cnps                                                                                  int

	tcps, midway, tcpSegments, tcpCopies, tcpHoles, tcpUnseen, tcpEvicted int // of iWARP
	fpdus, goodCRC, badCRC, uncheckedCRC                                  int
}

type hostKey struct{ src, dst netip.Addr }

// hosts is the packets from one host to another.
type hosts struct {
	key                           hostKey
	back                          *hosts
	kind                          capture.Version
	packets, data                 int
	v1, v2                        int
	good, ce, notECT              int
	cnps                          int
	losses                        int
	lastAt                        int64
	lastFrame                     int
	firstCE                       int64
	cnpAt                         int64
	dataDSCP, cnpDSCP             uint8
	ports                         [4]uint16
	nports                        int
	asked                         *flow // the latest request was on it
	requests, repeats             int   // of reliable services
	live, qps                     int   // queue pairs: that are followed, and the most at a time
	flows                         []*flow
	translatedSrc, translatedDst  netip.Addr // the GIDs of a REQ for which ICRCs fit
	badFinding, natFinding, train *Finding
	fragments                     int      // of IP packets that were not put together
	damaged                       []damage // requests among the first damaged packets
	attempts                      []int64  // that failed, or ended within a second
	attemptFrames                 []int
	icmp, congested, storm        *Finding
	tooLong                       *Finding
	linkMTU                       int // the least that an ICMP message has named; 0 is not known
	longest                       int // payload
	path                          pathCounts
	answered                      bool // a request of this direction was
}

// New returns an Analyzer.
func New(o Options) *Analyzer {
	return &Analyzer{
		names: names{redact: o.Redact}, units: o.Units, flows: make(map[flowKey]*flow), pairs: make(map[hostKey]*hosts),
		partners: make(map[flowKey]flowKey), udKeys: make(map[flowKey]uint32), udFrom: make(map[udSource]*udPSNs), byQP: make(map[flowKey]*conn), ulps: make(map[string]*carried),
		cm: conns{byID: make(map[connKey]*conn)},
	}
}

// Lost tells the Analyzer how many frames the capture had no room for, in all.
func (a *Analyzer) Lost(frames int) { a.count.lost = frames }

// Broken tells the Analyzer why the file could not be read to its end.
func (a *Analyzer) Broken(err error) { a.readErr = err }

// Frame takes the next frame.
func (a *Analyzer) Frame(f capture.Frame) {
	p, kind := a.decoder.Decode(f)
	c := &a.count
	if c.frames == 0 && a.first == 0 {
		a.first = f.Time
	}
	a.last = max(a.last, f.Time)
	c.frames++
	if f.Length > large && kind != capture.KindRoCE && kind != capture.KindTCP { // which systems leave to the card to cut
		c.large++
	}
	switch kind {
	case capture.KindRoCE:
		a.roce(p)
	case capture.KindICMP:
		a.icmp(p)
	case capture.KindPause:
		a.pause(p)
	case capture.KindFragment:
		c.fragments++
		if h := a.pairs[hostKey{p.Src.Addr(), p.Dst.Addr()}]; h != nil {
			h.fragments++
		} else if a.pairs[hostKey{p.Dst.Addr(), p.Src.Addr()}] != nil {
			a.hostsOf(p.Src.Addr(), p.Dst.Addr()).fragments++
		}
	case capture.KindCut:
		if p.Version != 0 {
			c.cutEarly++
		} else {
			c.cut++
		}
	case capture.KindARP:
		c.arp++
	case capture.KindTCP:
		a.tcp(p)
	}
}

const large = 1600 // bytes: more than a frame of an MTU of 1500

func (a *Analyzer) hostsOf(src, dst netip.Addr) *hosts {
	k := hostKey{src, dst}
	h := a.pairs[k]
	if h == nil {
		if len(a.pairs) >= maxPairs {
			clear(a.pairs) // a scan: nothing of use is lost
		}
		h = &hosts{key: k}
		a.pairs[k] = h
		if back := a.pairs[hostKey{dst, src}]; back != nil {
			h.back, back.back = back, h
		}
	}
	return h
}

// roce takes an InfiniBand packet.
func (a *Analyzer) roce(p *capture.Packet) {
	c := &a.count
	c.roce++
	if p.Version == capture.InfiniBand {
		c.infiniBand++
	}
	if p.Cut() {
		c.cutRoCE++
	}
	h := a.hostsOf(p.Src.Addr(), p.Dst.Addr())
	h.kind = p.Version
	if len(p.Datagram) < wire.BTHSize {
		c.undecoded++
		return
	}
	if n := a.decoder.Train(); n > 1 {
		c.roce--
		a.onHosts(h, capTrain, &h.train, p.Frame.Number)
		for i := range n {
			c.trainPackets++
			a.roce(a.decoder.Part(i))
		}
		return
	}
	if p.Long() {
		c.long++
		return
	}
	if p.Length > large {
		c.large++
	}
	bth := &p.Transport.BTH
	if a.isCopy(h, p, bth) {
		return
	}
	h.packets++
	h.lastAt, h.lastFrame = p.Frame.Time, p.Frame.Number
	switch p.Version {
	case capture.RoCEv1:
		h.v1++
	case capture.RoCEv2:
		h.v2++
	}
	if !a.icrc(h, p) {
		return
	}
	a.network(h, p, bth)
	if bth.Opcode.Service() == wire.ServiceSecured {
		c.secured++
		return
	}
	w := &p.Transport
	switch reliable := w.Opcode.Service() == wire.ServiceRC && w.Opcode.IsRequest(); {
	case p.Err == nil:
	case headersCut(p) && reliable: // the BTH says enough to follow the PSNs
		c.cutHeaders++
	case headersCut(p):
		c.cutHeaders++
		return
	default:
		c.undecoded++
		return
	}
	if w.DestQP == wire.GSIQPN && w.Opcode.Service() == wire.ServiceUD {
		a.mad(h, p, w)
		return
	}
	if w.Opcode == wire.CNP {
		return
	}
	f := a.flowOf(h, p, w)
	f.packets++
	f.last = p.Frame.Time
	switch w.Opcode.Service() {
	case wire.ServiceRC, wire.ServiceXRC, wire.ServiceOwn:
		a.reliable(f, p, w)
	case wire.ServiceUC:
		a.unreliable(f, p, w)
	case wire.ServiceUD:
		a.datagram(f, p, w)
	}
}

// headersCut reports whether the capture has cut a packet off before its headers end.
func headersCut(p *capture.Packet) bool { return p.Cut() && len(p.Datagram) < p.Transport.HeaderLen() }

// payloadLen returns the length of a packet's payload, whether it was captured or not.
func payloadLen(p *capture.Packet, w *wire.Packet) int {
	if !p.Cut() {
		return len(w.Payload)
	}
	return max(0, p.Length-w.Opcode.HeaderLen()-wire.ICRCSize-int(w.PadCount))
}

// flowOf returns the flow of a packet, and makes it the newest.
func (a *Analyzer) flowOf(h *hosts, p *capture.Packet, w *wire.Packet) *flow {
	k := flowKey{p.Src.Addr(), p.Dst.Addr(), w.DestQP}
	f := a.flows[k]
	if f == nil {
		if len(a.flows) >= maxFlows {
			a.evict(a.oldest)
		}
		f = &flow{key: k, kind: p.Version, hosts: h, first: p.Frame.Time, pKey: w.PKey, srcPort: p.Src.Port(), service: w.Opcode.Service(),
			srcMAC: p.SrcMAC, dstMAC: p.DstMAC}
		a.flows[k] = f
		h.live++
		h.qps = max(h.qps, h.live)
		if len(h.flows) < maxPerHosts {
			h.flows = append(h.flows, f)
		}
		f.conn = a.byQP[k]
		if partner, ok := a.partners[k]; ok {
			if other := a.flows[partner]; other != nil && other.peer == nil {
				a.pair(f, other)
			}
		}
	} else {
		a.unlink(f)
	}
	f.older = a.newest
	if a.newest != nil {
		a.newest.newer = f
	}
	a.newest = f
	if a.oldest == nil {
		a.oldest = f
	}
	return f
}

func (a *Analyzer) unlink(f *flow) {
	if f.newer != nil {
		f.newer.older = f.older
	} else {
		a.newest = f.older
	}
	if f.older != nil {
		f.older.newer = f.newer
	} else {
		a.oldest = f.newer
	}
	f.newer, f.older = nil, nil
}

// evict judges a flow before its time, since its place is wanted.
func (a *Analyzer) evict(f *flow) {
	a.count.evicted++
	a.retire(f)
}

// retire judges a flow as if the capture ended, and forgets it.
func (a *Analyzer) retire(f *flow) {
	a.finish(f)
	a.forget(f)
}

func (a *Analyzer) forget(f *flow) {
	a.unlink(f)
	f.hosts.live--
	if f.hosts.asked == f {
		f.hosts.asked = nil
	}
	a.ringSum -= len(f.ring)
	f.gone, f.ring, f.gaps, f.readTimes, f.strayFlow, f.strayTo = true, nil, nil, nil, nil, nil // findings keep the flow itself
	delete(a.flows, f.key)
	if f.peer != nil && f.peer.peer == f {
		f.peer.peer = nil
	}
	for i, other := range f.hosts.flows {
		if other == f {
			last := len(f.hosts.flows) - 1
			f.hosts.flows[i] = f.hosts.flows[last]
			f.hosts.flows = f.hosts.flows[:last]
			break
		}
	}
}

func (a *Analyzer) pair(f, g *flow) {
	f.peer, g.peer = g, f
	if c := f.conn; c != nil && g.conn == nil {
		g.conn = c
	} else if g.conn != nil && f.conn == nil {
		f.conn = g.conn
	}
}

// peerOf returns the flow whose requests a response on f answers, or nil if several fit.
func (a *Analyzer) peerOf(f *flow, psn wire.PSN) *flow {
	if f.peer != nil {
		return f.peer
	}
	back := f.hosts.back
	if back == nil {
		return nil
	}
	var found *flow
	for _, g := range back.flows {
		if g.peer != nil || !g.started || g.service == wire.ServiceUD || g.entry(psn) == nil && !g.covers(psn) && !g.overtookFirst(psn, a.last) {
			continue
		}
		if found != nil {
			a.count.unpaired++
			return nil
		}
		found = g
	}
	if found != nil {
		a.pair(f, found)
	}
	return found
}

// overtookFirst reports whether a PSN is of a packet that the first one of a flow has overtaken, a moment ago.
func (f *flow) overtookFirst(psn wire.PSN, now int64) bool {
	return psn.Less(f.began) && f.began.Diff(psn) <= minRing && now-f.beganAt < overtaken
}

// covers reports whether a PSN is that of a request that is open.
func (f *flow) covers(psn wire.PSN) bool { return !psn.Less(f.una) && psn.Less(f.nxt) }

// mark counts an occurrence of a rule on a flow. The finding is nil if there are too many.
func (a *Analyzer) mark(f *flow, r ruleID, frame int) *Finding {
	if f.places[r] == nil {
		if f.places[r] = a.found.add(r, ""); f.places[r] != nil {
			f.places[r].flow = f
		}
	}
	f.places[r].hit(frame)
	return f.places[r]
}

// drop takes findings of a flow back, which another one explains.
func (f *flow) drop(rules ...ruleID) {
	for _, r := range rules {
		if x := f.places[r]; x != nil {
			x.dropped = true
			f.places[r] = nil
		}
	}
}

// onHosts counts an occurrence of a rule on a pair of hosts.
func (a *Analyzer) onHosts(h *hosts, r ruleID, at **Finding, frame int) *Finding {
	if *at == nil || (*at).rule != r {
		*at = a.found.add(r, a.names.hosts(h.key.src, h.key.dst))
		if *at == nil {
			return nil
		}
		(*at).hosts = h
		(*at).Filter = a.names.filterHosts(h.kind, h.key.src, h.key.dst)
	}
	(*at).hit(frame)
	return *at
}
