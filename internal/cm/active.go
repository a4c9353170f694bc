package cm

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Connect sends a REQ along a path. EventReply, EventRejected or EventUnreachable follows.
func (m *Machine) Connect(now time.Duration, p Path, params ConnectParams) (*Conn, error) {
	err := p.check()
	if err == nil {
		err = params.complete(m.cfg.ACKDelay)
	}
	var c *Conn
	if err == nil {
		c, err = m.newConn(p, true)
	}
	if err != nil {
		return nil, fmt.Errorf("cm: connect to %v, service %#016x: %w", p.Remote, params.Service, err)
	}
	c.connect(now, &params)
	return c, nil
}

// connect is Machine.Connect for a new connection.
func (c *Conn) connect(now time.Duration, params *ConnectParams) {
	c.tid = c.m.newTID()
	c.ownParams = params.Params
	c.ownParams.PrivateData = nil
	c.request = RequestParams{Service: params.Service, MTU: params.MTU, RetryCount: params.RetryCount, ACKTimeout: params.ACKTimeout, PKey: params.PKey}
	c.lifetime = params.PacketLifetime
	c.ackTimeout = min(c.lifetime+1, maxTimeoutCode)
	// The lifetime may be made of the time that the user's QPs wait, and that may be hours. A REQ that is lost must
	// come again all the same.
	c.responseTimeout = 2*milliseconds(min(params.PacketLifetime, maxLifetimeCode)) + milliseconds(params.RemoteCMTimeout)
	c.maxRetries = int(params.MaxCMRetries)
	c.state = StateREQSent
	c.ask(now, wire.CMREQ, c.tid, c.req(params))
}

func (c *Conn) req(p *ConnectParams) *wire.REQ {
	req := &wire.REQ{
		LocalCommID:        c.id,
		ServiceID:          p.Service,
		LocalGUID:          c.m.cfg.GUID,
		LocalQPN:           p.QPN,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		RemoteCMTimeout:    p.RemoteCMTimeout,
		Transport:          wire.CMTransportRC,
		FlowControl:        p.FlowControl,
		StartingPSN:        p.PSN,
		LocalCMTimeout:     p.LocalCMTimeout,
		RetryCount:         p.RetryCount,
		PKey:               p.PKey,
		MTU:                p.MTU,
		RNRRetryCount:      p.RNRRetryCount,
		MaxCMRetries:       p.MaxCMRetries,
		SRQ:                p.SRQ,
		Primary: wire.CMPath{
			LocalLID:     permissiveLID,
			RemoteLID:    permissiveLID,
			LocalGID:     c.path.Local.As16(),
			RemoteGID:    c.path.Remote.As16(),
			FlowLabel:    p.FlowLabel,
			TrafficClass: c.path.TrafficClass,
			HopLimit:     pathHopLimit,
			ACKTimeout:   p.ACKTimeout,
		},
	}
	switch w := &p.Way; {
	case w.Routed:
		req.Primary.SL = w.SL
	case w.RemoteLID != 0:
		req.Primary.LocalLID, req.Primary.RemoteLID, req.Primary.SL, req.Primary.SubnetLocal = w.LocalLID, w.RemoteLID, w.SL, true
	}
	if p.UC {
		req.Transport = wire.CMTransportUC
	}
	copy(req.PrivateData[:], p.PrivateData)
	return req
}

// Ready sends the RTU: the QP is in RTS, with the parameters of EventReply. It fails with
// [ErrState] if the peer has left since.
func (c *Conn) Ready(now time.Duration) error { return c.ReadyWith(now, nil) }

// ReadyWith is Ready with up to 224 bytes of private data in the RTU.
func (c *Conn) ReadyWith(_ time.Duration, private []byte) error {
	if !mayReady.has(c.state) {
		return c.wrongState("use")
	}
	if len(private) > wire.RTUPrivateDataSize {
		return c.failed("use", tooLong(len(private), wire.RTUPrivateDataSize))
	}
	c.state = StateEstablished
	c.rtuData = private
	c.leaveLastWords()
	c.sendRTU()
	return nil
}

func (c *Conn) sendRTU() {
	rtu := wire.RTU{LocalCommID: c.id, RemoteCommID: c.remoteID}
	copy(rtu.PrivateData[:], c.rtuData)
	c.m.send(c.path, wire.CMRTU, c.tid, &rtu)
}

// onRepeatedREP has the action for a repeated REP, by state. takeREP takes the first one.
var onRepeatedREP = [states]func(*Conn, time.Duration){
	StateREPRcvd:     (*Conn).sendMRA,
	StateMRAREPSent:  (*Conn).sendMRA,
	StateEstablished: (*Conn).repeatRTU,
}

func (c *Conn) repeatRTU(time.Duration) {
	c.m.stats.Repeated.add(wire.CMRTU)
	c.sendRTU()
}

func (m *Machine) handleREP(now time.Duration, msg *message) {
	rep, err := wire.DecodeREP(msg.data)
	if err != nil || rep.LocalCommID == 0 {
		m.stats.Malformed++
		return
	}
	c := m.conns[rep.RemoteCommID]
	switch {
	case c == nil:
		m.refuseREP(msg, &rep)
	case !sameAddr(c.path.Remote, msg.path.Remote):
		m.stats.Foreign++
	case c.active && awaitsREP.has(c.state):
		c.takeREP(now, msg, &rep)
	case c.remoteID != rep.LocalCommID:
		// The passive side has taken a repeated REQ for a new one. It would wait for an RTU.
		m.refuseREP(msg, &rep)
	default:
		m.stats.Ignored.add(msg.attr) // a repetition counts as ignored, whatever it leads to
		if next := onRepeatedREP[c.state]; c.active && next != nil {
			next(c, now)
		}
	}
}

// refuseREP rejects a REP that nobody here waits for.
func (m *Machine) refuseREP(msg *message, rep *wire.REP) {
	m.stats.Unknown.add(msg.attr)
	m.rejectREP(msg, rep, wire.RejInvalidCommID)
}

func (m *Machine) rejectREP(msg *message, rep *wire.REP, reason wire.RejReason) {
	m.send(msg.path, wire.CMREJ, msg.tid, &wire.REJ{LocalCommID: rep.RemoteCommID, RemoteCommID: rep.LocalCommID,
		Message: wire.CMMessageREP, Reason: reason})
}

// takeREP makes the connection one with the sender of the REP.
func (c *Conn) takeREP(now time.Duration, msg *message, rep *wire.REP) {
	m, peer := c.m, bare(c.path.Remote)
	if m.byID[remoteKey{peer, rep.LocalGUID, rep.LocalCommID}] != nil {
		m.stats.Ignored.add(msg.attr) // the sender's end is connected already
		return
	}
	old := m.byQPN[remoteKey{peer, rep.LocalGUID, rep.LocalQPN}]
	switch {
	case old != nil && !old.yields():
		c.refuse(rep.LocalCommID)
		m.rejectREP(msg, rep, wire.RejStaleConn)
		old.stale(now)
		return
	case rep.LocalCommID == c.refusedID: // its sender knows that it has come to nothing
		m.rejectREP(msg, rep, wire.RejStaleConn)
		return
	case old != nil:
		old.yield(now)
	}
	c.repeater.stop(m)
	c.remoteID, c.guid = rep.LocalCommID, rep.LocalGUID
	c.peerParams = Params{
		QPN: rep.LocalQPN, PSN: rep.StartingPSN, UC: c.ownParams.UC,
		ResponderResources: rep.ResponderResources, InitiatorDepth: rep.InitiatorDepth,
		FlowControl: rep.FlowControl, SRQ: rep.SRQ, RNRRetryCount: rep.RNRRetryCount,
		PrivateData: clone(rep.PrivateData[:]),
	}
	c.ackTimeout = ackTimeout(rep.TargetACKDelay, c.lifetime)
	c.learn()
	c.state = StateREPRcvd
	c.emit(Event{Type: EventReply, Params: c.peerParams})
}
