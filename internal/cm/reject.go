package cm

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// refusal is the work that remains after this end has sent a REJ, since nobody acknowledges a REJ.
type refusal struct {
	until  time.Duration // to which a REQ that comes again is answered
	probes int           // left
}

// rejMessage says for each state which message a REJ rejects.
var rejMessage = [states]uint8{
	StateREQSent:    wire.CMMessageOther,
	StateMRAREQRcvd: wire.CMMessageOther,
	StateREQRcvd:    wire.CMMessageREQ,
	StateMRAREQSent: wire.CMMessageREQ,
	StateREPSent:    wire.CMMessageOther,
	StateMRAREPRcvd: wire.CMMessageOther,
	StateREPRcvd:    wire.CMMessageREP,
	StateMRAREPSent: wire.CMMessageREP,
}

// Reject ends an attempt from either side, with up to 72 bytes of additional reject information and
// 148 of private data. No event follows. It fails with [ErrState] once the connection is established
// or the peer has given up.
func (c *Conn) Reject(now time.Duration, reason wire.RejReason, ari, private []byte) error {
	rej := wire.REJ{Reason: reason, ARILen: uint8(len(ari))}
	switch {
	case !mayReject.has(c.state):
		return c.wrongState("reject")
	case len(ari) > len(rej.ARI):
		return c.failed("reject", fmt.Errorf("%w: %d bytes of reject information, there is room for %d", ErrInvalid, len(ari), len(rej.ARI)))
	case len(private) > len(rej.PrivateData):
		return c.failed("reject", tooLong(len(private), len(rej.PrivateData)))
	}
	copy(rej.ARI[:], ari)
	copy(rej.PrivateData[:], private)
	c.reject(now, rej)
	return nil
}

// rejTimeout is the REJ of an end that has waited long enough. The GUID lets the peer find the
// connection without its own communication ID.
func rejTimeout(guid uint64) wire.REJ {
	rej := wire.REJ{Reason: wire.RejTimeout, ARILen: guidSize}
	binary.BigEndian.PutUint64(rej.ARI[:], guid)
	return rej
}

// sendREJ sends a REJ. The state says which message it rejects.
func (c *Conn) sendREJ(rej wire.REJ) {
	rej.LocalCommID, rej.RemoteCommID = c.id, c.remoteID
	if c.remoteID == 0 {
		rej.RemoteCommID = c.delayID // by which processes that share the address find out whose it is
	}
	rej.Message = rejMessage[c.state]
	c.m.send(c.path, wire.CMREJ, c.tid, &rej)
}

// reject ends an attempt. Nobody acknowledges a REJ, and it may be lost. If it is the active
// side's, the passive side's next message finds no connection and is told so. If it is the passive
// side's, there are two cases. Either the REQ comes again, and is answered by the REJ again. Or the
// active side may have received a REP before, and believe in the connection. The probes find that
// out.
func (c *Conn) reject(now time.Duration, rej wire.REJ) {
	c.sendREJ(rej)
	if c.active {
		c.forget()
		return
	}
	rej.LocalCommID, rej.RemoteCommID, rej.Message = c.id, c.remoteID, wire.CMMessageREQ
	c.repeater.keep(wire.CMREJ, c.tid, &rej)
	repeats := c.retryTimeout
	if c.state == StateMRAREQSent {
		repeats = milliseconds(c.longestServiceTimeout) + milliseconds(c.ackTimeout)
	}
	c.refusal.until = now + min(2*repeats, maxLinger)
	if mayEstablish.has(c.state) {
		c.refusal.probes = maxProbes
	}
	c.state = StateRejected
	c.settle()
	c.releaseQPN()
	c.setProbe(now)
	c.retiree.retire(c.m, now, c)
}

func (c *Conn) setProbe(now time.Duration) {
	at := max(now, c.refusal.until)
	if c.refusal.probes > 0 {
		at = now + c.responseTimeout
	}
	c.m.timers.set(&c.repeater.timer, at)
}

// probe sends a DREQ. If the peer believes in the connection that was rejected, the DREQ ends it. A
// peer that has received the REJ knows no such connection, and answers all the same.
func (c *Conn) probe(now time.Duration) {
	if c.refusal.probes == 0 {
		c.forget()
		return
	}
	c.refusal.probes--
	c.sendDREQ(c.m.newTID())
	c.setProbe(now)
}

// missedREJ handles an RTU: the peer has received the REP, and not the REJ.
func (c *Conn) missedREJ(now time.Duration, _ *wire.RTU) {
	c.refusal.probes = maxProbes
	c.probe(now)
}

// probed handles a message which shows that the peer knows of the end.
func (c *Conn) probed(now time.Duration) {
	c.refusal.probes = 0
	c.setProbe(now)
}

func (c *Conn) repeatREJ(time.Duration) { c.m.resend(c.path, wire.CMREJ, c.repeater.mad) }

// refuseOldREQ answers a REQ whose connection is over already.
func (c *Conn) refuseOldREQ(time.Duration) {
	c.m.send(c.path, wire.CMREJ, c.tid, &wire.REJ{RemoteCommID: c.remoteID, Message: wire.CMMessageREQ, Reason: wire.RejStaleConn})
}

// onREJ has the action for a REJ, by state.
var onREJ = [states]func(*Conn, time.Duration, *wire.REJ){
	StateREQSent:     (*Conn).attemptRejected,
	StateMRAREQRcvd:  (*Conn).attemptRejected,
	StateREQRcvd:     (*Conn).rejected,
	StateMRAREQSent:  (*Conn).rejected,
	StateREPSent:     (*Conn).rejected,
	StateMRAREPRcvd:  (*Conn).rejected,
	StateREPRcvd:     (*Conn).rejected,
	StateMRAREPSent:  (*Conn).rejected,
	StateEstablished: (*Conn).rejected,
	StateDREQSent:    (*Conn).rejected,
	StateRejected:    func(c *Conn, now time.Duration, _ *wire.REJ) { c.probed(now) },
}

// rejected ends a connection by the peer's REJ. It stays in time-wait, so that a repeated REQ is
// not taken for a new one.
func (c *Conn) rejected(now time.Duration, rej *wire.REJ) {
	c.closeUndelivered()
	c.emitREJ(rej)
	c.timeWait(now)
}

// attemptRejected ends an attempt of the active side.
func (c *Conn) attemptRejected(now time.Duration, rej *wire.REJ) {
	c.emitREJ(rej)
	if rej.Reason == wire.RejStaleConn {
		c.timeWait(now)
	} else {
		c.forget()
	}
}

func (c *Conn) emitREJ(rej *wire.REJ) {
	c.emit(Event{Type: EventRejected, Reason: rej.Reason, Message: rej.Message,
		ARI: clone(rej.Info()), PrivateData: clone(rej.PrivateData[:])})
}

func (m *Machine) handleREJ(now time.Duration, msg *message) {
	rej, err := wire.DecodeREJ(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	c := m.findREJ(msg, &rej)
	if c == nil {
		return
	}
	if next := onREJ[c.state]; next != nil {
		next(c, now, &rej)
	} else {
		m.stats.Ignored.add(msg.attr)
	}
}

// mayNotKnowUs are the states in which the peer may never have heard our communication ID.
var mayNotKnowUs = in(StateREQRcvd, StateMRAREQSent, StateREPSent, StateRejected)

// findREJ looks up the connection that a REJ is about. Its sender does not always know both
// communication IDs. Only then may it name its own and its GUID instead, which are less of a secret.
func (m *Machine) findREJ(msg *message, rej *wire.REJ) *Conn {
	if rej.Reason == wire.RejTimeout && rej.ARILen >= guidSize {
		guid := binary.BigEndian.Uint64(rej.ARI[:])
		if c := m.byID[remoteKey{bare(msg.path.Remote), guid, rej.LocalCommID}]; c != nil && !c.active && mayNotKnowUs.has(c.state) {
			return c
		}
	}
	c := m.conns[rej.RemoteCommID]
	if rej.Message == wire.CMMessageREQ || c != nil && awaitsREP.has(c.state) { // in the latter case it has overtaken the REP
		return m.findREQ(msg, rej.RemoteCommID)
	}
	return m.lookup(msg, rej.RemoteCommID, rej.LocalCommID)
}
