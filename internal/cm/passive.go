package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// onRepeatedREQ has the action for a repeated REQ, by state. takeREQ takes the first one.
var onRepeatedREQ = [states]func(*Conn, time.Duration){
	StateREQRcvd:    (*Conn).askPatience,
	StateMRAREQSent: (*Conn).askPatience,
	StateTimeWait:   (*Conn).refuseOldREQ,
	StateRejected:   (*Conn).repeatREJ,
}

func (m *Machine) handleREQ(now time.Duration, msg *message) {
	req, err := wire.DecodeREQ(msg.data)
	if err != nil || req.LocalCommID == 0 || !msg.path.Remote.IsValid() {
		m.stats.Malformed++
		return
	}
	peer := bare(msg.path.Remote)
	before := m.byID[remoteKey{peer, req.LocalGUID, req.LocalCommID}]
	if before != nil && (before.state != StateRejected || before.tid == msg.tid) {
		m.stats.Ignored.add(msg.attr)
		if next := onRepeatedREQ[before.state]; !before.active && next != nil {
			next(before, now)
		}
		return
	}
	old := m.byQPN[remoteKey{peer, req.LocalGUID, req.LocalQPN}]
	if old != nil && !old.yields() {
		m.rejectREQ(msg, &req, wire.REJ{Reason: wire.RejStaleConn})
		old.stale(now)
		return
	}
	l := m.listener(req.ServiceID, msg.path.Local)
	rej := wire.REJ{Reason: wire.RejInvalidServiceID}
	if l != nil {
		rej = m.checkREQ(msg, &req)
	}
	if rej.Reason != 0 {
		m.rejectREQ(msg, &req, rej)
		return
	}
	freed, ok := m.hasRoom(peer, l)
	if !ok {
		return // as Linux does; the REQ comes again, and may find room
	}
	if before != nil {
		freed++
	}
	if !m.hasID(freed) {
		m.rejectREQ(msg, &req, wire.REJ{Reason: wire.RejNoResources})
		return
	}
	// The new connection can be made, and only now others go for it.
	if before != nil {
		before.forget() // the peer has restarted, and happened to choose the same ID
	}
	if old != nil {
		old.yield(now)
	}
	m.makeRoom(now, peer, l)
	m.takeREQ(now, msg, &req, l)
}

// rejectREQ answers a REQ of which nothing is kept.
func (m *Machine) rejectREQ(msg *message, req *wire.REQ, rej wire.REJ) {
	rej.RemoteCommID = req.LocalCommID
	rej.Message = wire.CMMessageREQ
	m.send(msg.path, wire.CMREJ, msg.tid, &rej)
}

// checkREQ returns the first fault of a REQ, if there is one. LIDs mean nothing: IBTA CA17-34, CA17-35.
func (m *Machine) checkREQ(msg *message, req *wire.REQ) (rej wire.REJ) {
	gid := msg.path.Local.As16()
	switch {
	case req.Transport != wire.CMTransportRC && req.Transport != wire.CMTransportUC:
		rej.Reason = wire.RejInvalidTransportType
	case !m.hasPKey(req.PKey):
		rej.Reason = wire.RejInvalidGID // Linux gives this reason
	case req.Primary.RemoteGID != gid:
		rej.Reason, rej.ARILen = wire.RejInvalidGID, uint8(copy(rej.ARI[:], gid[:]))
	case req.MTU < minMTU || req.MTU > maxMTU:
		rej.Reason, rej.ARILen, rej.ARI[0] = wire.RejInvalidMTU, 1, maxMTU
	}
	return rej
}

// hasPKey reports whether the port is in the partition of a P_Key.
func (m *Machine) hasPKey(pkey uint16) bool {
	return wire.SamePartition(pkey, wire.DefaultPKey) || m.cfg.HasPKey != nil && m.cfg.HasPKey(pkey)
}

// takeREQ makes a connection of a REQ, and tells the listener. There is room for it, and an ID.
func (m *Machine) takeREQ(now time.Duration, msg *message, req *wire.REQ, l *Listener) {
	// The address is the packet's, not the one in the REQ. Otherwise anybody could have us answer a
	// third party.
	c, err := m.newConn(Path{Local: msg.path.Local, Remote: msg.path.Remote, TrafficClass: req.Primary.TrafficClass}, false)
	if err != nil {
		return
	}
	l.unanswered.Take(&c.backlogSeat, c.path.Remote, c)
	m.attempts.Take(&c.attempt, c.path.Remote, c)
	c.takeREQ(now, msg.tid, req)
	c.emit(Event{Type: EventRequest, Listener: l, Params: c.peerParams, Request: c.request})
}

// takeREQ makes a new connection the passive side of the sender of a REQ.
func (c *Conn) takeREQ(now time.Duration, tid uint64, req *wire.REQ) {
	c.tid = tid
	c.remoteID, c.guid = req.LocalCommID, req.LocalGUID
	c.peerParams = Params{
		QPN: req.LocalQPN, PSN: req.StartingPSN, UC: req.Transport == wire.CMTransportUC,
		ResponderResources: req.ResponderResources, InitiatorDepth: req.InitiatorDepth,
		FlowControl: req.FlowControl, SRQ: req.SRQ, RNRRetryCount: req.RNRRetryCount,
		PrivateData: clone(req.PrivateData[:]),
	}
	c.ackTimeout = req.Primary.ACKTimeout
	if c.ackTimeout == 0 { // which would be no timeout at all
		c.ackTimeout = ackTimeout(c.m.cfg.ACKDelay, DefaultPacketLifetime)
	}
	c.lifetime = c.ackTimeout - 1
	c.request = RequestParams{Service: req.ServiceID, MTU: req.MTU, RetryCount: req.RetryCount, ACKTimeout: c.ackTimeout, PKey: req.PKey}
	c.responseTimeout = milliseconds(min(req.LocalCMTimeout, maxResponseCode))
	c.retryTimeout = 2*milliseconds(c.lifetime) + milliseconds(req.RemoteCMTimeout)
	c.maxRetries = int(req.MaxCMRetries)
	c.learn()
	c.state = StateREQRcvd
	c.heard(now)
}

// askPatience answers a request that comes again before its user has answered it.
func (c *Conn) askPatience(now time.Duration) {
	c.sendMRA(now)
	c.heard(now)
}

// Accept answers a request by a REP: this side's QP is ready to receive. EventEstablished,
// EventRejected or EventUnreachable follows. It fails with [ErrState] if the peer has given up since.
func (c *Conn) Accept(now time.Duration, p Params) error {
	if !mayAccept.has(c.state) {
		return c.wrongState("accept")
	}
	if err := p.check(wire.REPPrivateDataSize); err != nil {
		return c.failed("accept", err)
	}
	c.backlogSeat.Leave()
	c.ownParams = p
	c.ownParams.PrivateData = nil
	rep := &wire.REP{
		LocalCommID:        c.id,
		RemoteCommID:       c.remoteID,
		LocalQPN:           p.QPN,
		StartingPSN:        p.PSN,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		TargetACKDelay:     c.m.cfg.ACKDelay,
		FlowControl:        p.FlowControl,
		RNRRetryCount:      min(p.RNRRetryCount, maxQPRetries),
		SRQ:                p.SRQ,
		LocalGUID:          c.m.cfg.GUID,
	}
	copy(rep.PrivateData[:], p.PrivateData)
	if c.state == StateMRAREQSent {
		c.retryTimeout = milliseconds(c.longestServiceTimeout) + milliseconds(c.ackTimeout)
	}
	c.state = StateREPSent
	c.leaveLastWords()
	c.ask(now, wire.CMREP, c.tid, rep)
	return nil
}

// Established tells the machine that the connection's first packet has come, so that the RTU is on
// its way or lost. EventEstablished follows.
func (c *Conn) Established(now time.Duration) error {
	if !mayEstablish.has(c.state) {
		return c.wrongState("establish")
	}
	c.establish(nil)
	return nil
}

func (c *Conn) establish(private []byte) {
	c.repeater.stop(c.m)
	c.settle()
	c.state = StateEstablished
	c.emit(Event{Type: EventEstablished, PrivateData: private})
}

// onRTU has the action for an RTU, by state.
var onRTU = [states]func(*Conn, time.Duration, *wire.RTU){
	StateREPSent:    (*Conn).takeRTU,
	StateMRAREPRcvd: (*Conn).takeRTU,
	StateRejected:   (*Conn).missedREJ,
}

func (c *Conn) takeRTU(_ time.Duration, rtu *wire.RTU) { c.establish(clone(rtu.PrivateData[:])) }

func (m *Machine) handleRTU(now time.Duration, msg *message) {
	rtu, err := wire.DecodeRTU(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	c := m.lookup(msg, rtu.RemoteCommID, rtu.LocalCommID)
	if c == nil {
		return
	}
	if next := onRTU[c.state]; next != nil && !c.active {
		next(c, now, &rtu)
	} else {
		m.stats.Ignored.add(msg.attr)
	}
}
