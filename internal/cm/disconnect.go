package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Disconnect ends an established connection by a DREQ, with up to 220 bytes of private data.
// EventDisconnected follows. If the connection has ended already, or is about to, Disconnect does
// nothing.
func (c *Conn) Disconnect(now time.Duration, private []byte) error {
	switch {
	case disconnected.has(c.state):
		return nil
	case !mayDisconnect.has(c.state):
		return c.wrongState("disconnect")
	case len(private) > wire.DREQPrivateDataSize:
		return c.failed("disconnect", tooLong(len(private), wire.DREQPrivateDataSize))
	}
	c.disconnect(now, private)
	return nil
}

func (c *Conn) disconnect(now time.Duration, private []byte) {
	dreq := c.dreq()
	copy(dreq.PrivateData[:], private)
	c.state = StateDREQSent
	c.ask(now, wire.CMDREQ, c.m.newTID(), dreq)
	c.repeater.hasten(c.m, now, earlyDREQ)
}

func (c *Conn) dreq() *wire.DREQ {
	return &wire.DREQ{LocalCommID: c.id, RemoteCommID: c.remoteID, RemoteQPN: c.peerParams.QPN}
}

// sendDREQ sends a DREQ that is not repeated.
func (c *Conn) sendDREQ(tid uint64) { c.m.send(c.path, wire.CMDREQ, tid, c.dreq()) }

// disconnected ends the connection with an event.
func (c *Conn) disconnected(now time.Duration, e Event) {
	e.Type = EventDisconnected
	c.emit(e)
	c.exitDue = true
	c.timeWait(now)
}

// onDREQ has the action for a DREQ beside the DREP, by state. To a passive side that is not established a
// DREQ proves that the peer was, and stands in for the RTU. To an active side that has not sent its RTU a
// DREQ says that the peer has given the connection up.
var onDREQ = [states]func(*Conn, time.Duration, []byte){
	StateREPSent:     (*Conn).takeDREQForRTU,
	StateMRAREPRcvd:  (*Conn).takeDREQForRTU,
	StateREPRcvd:     (*Conn).takeDREQ,
	StateMRAREPSent:  (*Conn).takeDREQ,
	StateEstablished: (*Conn).takeDREQ,
	StateDREQSent:    (*Conn).takeDREQ,
	StateTimeWait:    func(c *Conn, _ time.Duration, _ []byte) { c.m.stats.Repeated.add(wire.CMDREP) },
	StateRejected:    func(c *Conn, now time.Duration, _ []byte) { c.probed(now) },
}

// takeDREQForRTU has the user learn of the connection before its end. The peer may have sent something.
func (c *Conn) takeDREQForRTU(now time.Duration, private []byte) {
	c.establish([]byte{})
	c.takeDREQ(now, private)
}

func (c *Conn) takeDREQ(now time.Duration, private []byte) {
	c.disconnected(now, Event{PrivateData: clone(private)})
}

func (m *Machine) handleDREQ(now time.Duration, msg *message) {
	dreq, err := wire.DecodeDREQ(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	c, found := m.find(dreq.RemoteCommID, dreq.LocalCommID, msg.path)
	m.count(msg, found)
	path := msg.path
	switch found {
	case foreign:
		return
	case unknown:
		if c := m.conns[dreq.RemoteCommID]; c != nil && awaitsREP.has(c.state) {
			c.refuse(dreq.LocalCommID) // the peer's REP is late, and its REJ lost
		}
	case matched:
		next := onDREQ[c.state]
		if next == nil || dreq.RemoteQPN != c.ownParams.QPN {
			m.stats.Ignored.add(msg.attr)
			return
		}
		path = c.path // which knows the type of service where the link does not tell the message's
		next(c, now, dreq.PrivateData[:])
	}
	// An end that has forgotten the connection agrees that it is gone.
	m.send(path, wire.CMDREP, msg.tid, &wire.DREP{LocalCommID: dreq.RemoteCommID, RemoteCommID: dreq.LocalCommID})
}

// onDREP has the action for a DREP, by state.
var onDREP = [states]func(*Conn, time.Duration, *wire.DREP){
	StateDREQSent: func(c *Conn, now time.Duration, drep *wire.DREP) {
		c.disconnected(now, Event{PrivateData: clone(drep.PrivateData[:])})
	},
	StateRejected: func(c *Conn, now time.Duration, _ *wire.DREP) { c.probed(now) },
}

func (m *Machine) handleDREP(now time.Duration, msg *message) {
	drep, err := wire.DecodeDREP(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	c := m.lookup(msg, drep.RemoteCommID, drep.LocalCommID)
	if c == nil {
		return
	}
	if c.state == StateEstablished && c.doubt.confirmed(msg.tid) {
		c.disconnected(now, Event{})
		return
	}
	if next := onDREP[c.state]; next != nil {
		next(c, now, &drep)
	} else {
		m.stats.Ignored.add(msg.attr)
	}
}

// leaveLastWords has the peer told by a DREQ if this program dies. The peer believes in the connection, or may
// do so soon.
func (c *Conn) leaveLastWords() {
	if f := c.m.cfg.LastWords; f != nil && c.revoke == nil {
		c.revoke = f(c.path, encode(nil, wire.CMDREQ, c.m.newTID(), c.dreq()))
	}
}

// revokeLastWords undoes leaveLastWords: the peer knows of the end.
func (c *Conn) revokeLastWords() {
	if c.revoke != nil {
		c.revoke()
		c.revoke = nil
	}
}
