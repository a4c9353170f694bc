package diagnose

import (
	"net/netip"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	maxConns    = 4096         // conversations of the connection manager
	maxPartners = 2 * maxConns // queue pairs whose partners are known
	slow        = int64(time.Second)
	stormTime   = int64(10 * time.Second)
	stormCount  = 10 // failed attempts in that time
)

// connKey is a conversation by the side that began it.
type connKey struct {
	active, passive netip.Addr
	id              uint32 // of the active side
}

// A conn is a conversation of the connection manager, from REQ to DREQ.
type conn struct {
	key       connKey
	kind      capture.Version
	passiveID uint32
	service   uint64
	sidr      bool

	reqs, reps, mras, rtus, rejs, dreqs, dreps int
	reqFrames, dreqFrames                      []int
	reqAt, repAt                               int64
	lastReqAt, lastAt                          int64
	timeout                                    time.Duration // within which the REQ is to be answered
	maxRetries                                 uint8
	activeQPN, passiveQPN                      uint32
	mtu                                        int
	rnrActive, rnrPassive                      uint8 // retries of the queue pair of that side
	depthActive, depthPassive                  uint8 // READs that the side serves
	known                                      bool  // the REP was captured too
	rejected                                   bool  // by the passive side
}

// conns has the conversations. The oldest make room.
type conns struct {
	byID  map[connKey]*conn
	order []connKey
	total int
	ended int
	// answered is how many of them had an answer.
	answered int
}

// depth returns how many READs the receiver of a flow serves at a time.
func (c *conn) depth(f *flow) (n int, known bool) {
	if !c.known {
		return 0, false
	}
	if f.key.dst == c.key.passive && f.key.qpn == c.passiveQPN {
		return int(c.depthPassive), true
	}
	return int(c.depthActive), true
}

func gid(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }

// decodeREQ reads a MAD that is a REQ.
func decodeREQ(mad []byte) (m wire.REQ, ok bool) {
	h, err := wire.DecodeMADHeader(mad)
	if err != nil {
		return m, false
	}
	if attr, ok := h.CM(); !ok || attr != wire.CMREQ {
		return m, false
	}
	m, err = wire.DecodeREQ(mad[wire.MADHeaderSize:])
	return m, err == nil
}

// mad takes a management datagram.
func (a *Analyzer) mad(h *hosts, p *capture.Packet, w *wire.Packet) {
	hdr, err := wire.DecodeMADHeader(w.Payload)
	if err != nil {
		return
	}
	attr, ok := hdr.CM()
	if !ok {
		return
	}
	a.count.cm++
	data := w.Payload[wire.MADHeaderSize:]
	switch attr {
	case wire.CMREQ:
		if m, err := wire.DecodeREQ(data); err == nil {
			a.req(h, p, &m)
		}
	case wire.CMREP:
		if m, err := wire.DecodeREP(data); err == nil {
			a.rep(p, &m)
		}
	case wire.CMMRA:
		if m, err := wire.DecodeMRA(data); err == nil {
			if c, _ := a.connOf(p, m.RemoteCommID, m.LocalCommID); c != nil {
				c.mras++
			}
		}
	case wire.CMRTU:
		if m, err := wire.DecodeRTU(data); err == nil {
			if c, _ := a.connOf(p, m.RemoteCommID, m.LocalCommID); c != nil {
				c.rtus++
				if c.repAt != 0 && p.Frame.Time-c.repAt > slow && c.rtus == 1 {
					a.slowConn(c, p, "RTU", p.Frame.Time-c.repAt)
				}
			}
		}
	case wire.CMREJ:
		if m, err := wire.DecodeREJ(data); err == nil {
			a.rej(h, p, &m)
		}
	case wire.CMDREQ:
		if m, err := wire.DecodeDREQ(data); err == nil {
			a.dreq(p, &m)
		}
	case wire.CMDREP:
		if m, err := wire.DecodeDREP(data); err == nil {
			if c, _ := a.connOf(p, m.RemoteCommID, m.LocalCommID); c != nil {
				c.dreps++
			}
		}
	case wire.CMSIDRREQ:
		if m, err := wire.DecodeSIDRREQ(data); err == nil {
			c := a.newConn(connKey{p.Src.Addr(), p.Dst.Addr(), m.RequestID}, p)
			c.sidr, c.service = true, m.ServiceID
			c.asked(p)
		}
	case wire.CMSIDRREP:
		if m, err := wire.DecodeSIDRREP(data); err == nil {
			a.sidrReply(p, &m)
		}
	}
}

// newConn returns the conversation of a key, or a new one.
func (a *Analyzer) newConn(k connKey, p *capture.Packet) *conn {
	if c := a.cm.byID[k]; c != nil {
		return c
	}
	if len(a.cm.order) >= maxConns {
		first := a.cm.order[0]
		a.cm.order = a.cm.order[1:]
		a.finishConn(a.cm.byID[first])
		delete(a.cm.byID, first)
	}
	c := &conn{key: k, kind: p.Version, reqAt: p.Frame.Time, rnrActive: 7, rnrPassive: 7}
	a.cm.byID[k] = c
	a.cm.order = append(a.cm.order, k)
	a.cm.total++
	return c
}

func (c *conn) asked(p *capture.Packet) {
	c.reqs++
	c.lastReqAt, c.lastAt = p.Frame.Time, p.Frame.Time
	if len(c.reqFrames) < maxFrames {
		c.reqFrames = append(c.reqFrames, p.Frame.Number)
	}
}

// connOf finds the conversation of a message, in which theirs is the receiver's ID and own the sender's. fromActive says
// which side has sent it.
func (a *Analyzer) connOf(p *capture.Packet, theirs, own uint32) (c *conn, fromActive bool) {
	if c = a.cm.byID[connKey{p.Src.Addr(), p.Dst.Addr(), own}]; c != nil && own != 0 {
		c.lastAt = p.Frame.Time
		return c, true
	}
	if c = a.cm.byID[connKey{p.Dst.Addr(), p.Src.Addr(), theirs}]; c != nil && theirs != 0 {
		c.lastAt = p.Frame.Time
		return c, false
	}
	return nil, false
}

// where names the conversation for people.
func (c *conn) where(n *names) string { return n.hosts(c.key.active, c.key.passive) + ", " + c.port() }

// port names the service.
func (c *conn) port() string {
	space, port, ok := wire.SplitRDMAServiceID(c.service)
	switch {
	case ok && space == wire.PortSpaceTCP:
		return words("port %d", port)
	case ok && space == wire.PortSpaceUDP:
		return words("UDP port %d", port)
	case c.service == 0:
		return "a service whose REQ was not captured"
	}
	return words("service %#016x", c.service)
}

// onConn adds a finding about a conversation.
func (a *Analyzer) onConn(c *conn, r ruleID, frames ...int) *Finding {
	x := a.found.add(r, c.where(&a.names))
	if x == nil {
		return nil
	}
	for _, f := range frames {
		x.hit(f)
	}
	x.Filter = a.names.filterCM(c.kind, c.key.active, c.key.passive)
	return x
}

func (a *Analyzer) req(h *hosts, p *capture.Packet, m *wire.REQ) {
	c := a.newConn(connKey{p.Src.Addr(), p.Dst.Addr(), m.LocalCommID}, p)
	c.asked(p)
	if c.reqs > 1 {
		return
	}
	c.service, c.activeQPN, c.maxRetries = m.ServiceID, m.LocalQPN, m.MaxCMRetries
	c.timeout = wire.ACKTimeout(m.RemoteCMTimeout)
	c.rnrPassive, c.depthActive = m.RNRRetryCount, m.ResponderResources
	if m.MTU >= 1 && m.MTU <= 5 {
		c.mtu = 128 << m.MTU
	}
	if back := a.flows[flowKey{p.Dst.Addr(), p.Src.Addr(), m.LocalQPN}]; back != nil && back.started && back.last < p.Frame.Time {
		a.onConn(c, qpnReuse, p.Frame.Number)
		if back.peer != nil {
			a.evict(back.peer)
		}
		a.evict(back)
	}
	src, dst := gid(m.Primary.LocalGID), gid(m.Primary.RemoteGID)
	switch {
	case h.translatedSrc.IsValid():
	case src.IsLinkLocalUnicast() != dst.IsLinkLocalUnicast():
		if x := a.onConn(c, gidLL, p.Frame.Number); x != nil {
			x.Words = words("The REQ has GIDs %s.", a.names.hosts(src, dst))
		}
	case p.Version == capture.InfiniBand: // whose packets within a subnet have LIDs
	case src != p.Src.Addr() || dst != p.Dst.Addr():
		if x := a.onConn(c, gidMismatch, p.Frame.Number); x != nil {
			x.Words = words("The REQ has GIDs %s, and its packet goes %s.", a.names.hosts(src, dst), a.names.hosts(p.Src.Addr(), p.Dst.Addr()))
		}
	}
	a.ulpOfREQ(m.ServiceID)
}

func (a *Analyzer) rep(p *capture.Packet, m *wire.REP) {
	c, _ := a.connOf(p, m.RemoteCommID, m.LocalCommID)
	if c == nil {
		return
	}
	c.reps++
	if c.reps > 1 {
		return
	}
	c.passiveID, c.passiveQPN, c.repAt, c.known = m.LocalCommID, m.LocalQPN, p.Frame.Time, true
	c.rnrActive, c.depthPassive = m.RNRRetryCount, m.ResponderResources
	if d := p.Frame.Time - c.lastReqAt; d > slow { // of the latest REQ: of earlier ones CM-REPEAT tells
		a.slowConn(c, p, "REP", d)
	}
	there := flowKey{c.key.active, c.key.passive, c.passiveQPN}
	back := flowKey{c.key.passive, c.key.active, c.activeQPN}
	if len(a.partners) >= maxPartners {
		clear(a.partners)
		clear(a.byQP)
	}
	a.partners[there], a.partners[back] = back, there
	a.byQP[there], a.byQP[back] = c, c
	for _, k := range [...]flowKey{there, back} {
		if f := a.flows[k]; f != nil { // of an earlier use
			if f.peer != nil {
				a.evict(f.peer)
			}
			a.evict(f)
		}
	}
}

func (a *Analyzer) slowConn(c *conn, p *capture.Packet, message string, d int64) {
	if x := a.onConn(c, cmSlow, p.Frame.Number); x != nil {
		x.Words = words("The %s came after %v.", message, round(d))
	}
}

func (a *Analyzer) rej(h *hosts, p *capture.Packet, m *wire.REJ) {
	c, fromActive := a.connOf(p, m.RemoteCommID, m.LocalCommID)
	if c == nil { // the REQ was not captured
		c = &conn{key: connKey{p.Dst.Addr(), p.Src.Addr(), m.RemoteCommID}, kind: p.Version}
		if m.Message == wire.CMMessageREP || m.Reason == wire.RejTimeout {
			c.key = connKey{p.Src.Addr(), p.Dst.Addr(), m.LocalCommID}
			fromActive = true
		}
	}
	c.rejs++
	if !fromActive {
		c.rejected = true
	}
	if c.rejs > 1 {
		return
	}
	a.failed(c, p)
	r := cmRejOther
	switch m.Reason {
	case wire.RejInvalidServiceID:
		r = cmRej8
	case wire.RejConsumerDefined:
		r = cmRej28
	case wire.RejTimeout:
		if r = cmRej4; fromActive && c.reps == 0 && c.reqs > 1 && c.mras == 0 {
			return // it says no more than CM-NOANSWER
		}
	case wire.RejStaleConn:
		r = cmRej10
	}
	x := a.onConn(c, r, p.Frame.Number)
	if x == nil {
		return
	}
	x.Words = words("%s sends reason %d: %v.", a.names.addr(p.Src.Addr()), m.Reason, m.Reason)
	switch r {
	case cmRej28:
		x.Words += " Private data: " + a.names.data(m.PrivateData[:]) + "."
		if _, port, ok := wire.SplitRDMAServiceID(c.service); ok && port == portNVMe {
			x.Words += nvmeStatus(m.PrivateData[:])
		}
	case cmRej4:
		x.Words += words(" %d of %d REQs were sent.", c.reqs, int(c.maxRetries)+1)
	case cmRejOther:
		a.explainReject(x, m)
	}
}

// failed counts attempts of two hosts that came to nothing.
func (a *Analyzer) failed(c *conn, p *capture.Packet) {
	h := a.hostsOf(c.key.active, c.key.passive)
	h.attempts = append(h.attempts, p.Frame.Time)
	h.attemptFrames = append(h.attemptFrames, p.Frame.Number)
	if len(h.attempts) < stormCount {
		return
	}
	if p.Frame.Time-h.attempts[0] < stormTime {
		if x := a.onHosts(h, cmStorm, &h.storm, p.Frame.Number); x != nil && x.Count == 1 {
			x.Words = words("%d attempts failed, or ended at once, within %v.", stormCount, round(p.Frame.Time-h.attempts[0]))
			x.Frames = append([]int(nil), h.attemptFrames...)
			x.Filter = a.names.filterCM(h.kind, h.key.src, h.key.dst)
		}
	}
	h.attempts, h.attemptFrames = h.attempts[1:], h.attemptFrames[1:]
}

func (a *Analyzer) dreq(p *capture.Packet, m *wire.DREQ) {
	c, _ := a.connOf(p, m.RemoteCommID, m.LocalCommID)
	if c == nil {
		return
	}
	c.dreqs++
	if len(c.dreqFrames) < maxFrames {
		c.dreqFrames = append(c.dreqFrames, p.Frame.Number)
	}
	if c.dreqs > 1 {
		return
	}
	a.cm.ended++
	there := a.flows[flowKey{c.key.active, c.key.passive, c.passiveQPN}]
	back := a.flows[flowKey{c.key.passive, c.key.active, c.activeQPN}]
	used := false
	for _, f := range [...]*flow{there, back} {
		if f == nil {
			continue
		}
		used = used || f.answers > 0 || f.service == wire.ServiceUC
		f.disconnected = true
		if f.key.dst != p.Src.Addr() {
			continue
		}
		f.peerLeft = true
		// Requests to the side that disconnects, which it has not answered. It may still do so.
		if f.started && f.una.Less(f.nxt) && f.reqAckAsked && f.answers > 0 && !f.nakked && f.silentTries == 0 && !f.rnrLast {
			f.leftFrame, f.leftLast, f.leftOpen, f.leftReq = p.Frame.Number, f.nxt.Add(-1), f.nxt.Diff(f.una), f.reqFrame
		}
	}
	if c.repAt != 0 && p.Frame.Time-c.repAt < slow && !used {
		a.failed(c, p)
	}
}

func (a *Analyzer) sidrReply(p *capture.Packet, m *wire.SIDRREP) {
	c := a.cm.byID[connKey{p.Dst.Addr(), p.Src.Addr(), m.RequestID}]
	if c == nil {
		return
	}
	c.reps++
	if m.Status != wire.SIDRSuccess && c.reps == 1 {
		if x := a.onConn(c, cmSIDR, p.Frame.Number); x != nil {
			x.Words = words("Status %d: %v.", m.Status, m.Status)
		}
	}
}

// finishConn judges a conversation at its end.
func (a *Analyzer) finishConn(c *conn) {
	answered := c.reps+c.rejs+c.mras > 0
	if answered {
		a.cm.answered++
	}
	late := c.timeout > 0 && a.last-c.lastReqAt > int64(2*c.timeout)
	if h := a.pairs[hostKey{c.key.active, c.key.passive}]; c.reqs > 0 && !answered && h != nil && h.icmp != nil {
		const enough = 300 // characters
		if more := words(" So the requests to %s had no answer.", c.port()); len(h.icmp.Words) < enough && !strings.Contains(h.icmp.Words, more) {
			h.icmp.Words += more
		}
	} else if c.reqs > 0 && c.reps == 0 && c.mras == 0 && (c.rejs == 0 || c.gaveUp()) && (c.reqs > 1 || late && !answered) {
		if x := a.onConn(c, cmNoAnswer, c.reqFrames...); x != nil {
			x.Count = c.reqs
			what := "REQ"
			if c.sidr {
				what = "SIDR_REQ"
			}
			x.Words = words("The %s was sent %d times in %v.", what, c.reqs, round(c.lastReqAt-c.reqAt))
			if c.reqs == 1 {
				x.Certainty = Likely
				x.Words = words("The %s was sent once, and no answer came until the end of the capture, %v later.", what, round(a.last-c.lastReqAt))
			}
			if a.count.arp > 0 {
				x.Words += " ARP passes, so look at RDMA at the peer, and at what filters UDP."
			}
		}
	}
	a.repeated(c)
	if c.dreqs > 1 && c.dreps == 0 {
		if x := a.onConn(c, dreqNoAnswer, c.dreqFrames...); x != nil {
			x.Count = c.dreqs
		}
	}
}

// repeated looks for a request that was answered when it had been sent again. (Both sides may send a DREQ.)
func (a *Analyzer) repeated(c *conn) {
	if c.reqs < 2 || c.reps+c.rejs == 0 || c.mras > 0 || c.gaveUp() {
		return
	}
	if x := a.onConn(c, cmRepeat, c.reqFrames[1:]...); x != nil {
		what := "REQ"
		if c.sidr {
			what = "SIDR_REQ"
		}
		x.Words = words("The %s was sent %d times in %v, and answered then.", what, c.reqs, round(c.lastReqAt-c.reqAt))
	}
}

// gaveUp reports whether the only REJ came from the side that had asked.
func (c *conn) gaveUp() bool { return c.rejs > 0 && c.reps == 0 && c.reqs > 1 && !c.rejected }
