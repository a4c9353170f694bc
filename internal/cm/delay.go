package cm

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// timeouts are the times for which the ends of a connection wait for each other.
type timeouts struct {
	responseTimeout time.Duration // the peer answers within this time, as it says itself
	retryTimeout    time.Duration // the peer repeats its REQ after this time, if nothing comes
	maxRetries      int           // of a message that is not answered
	serviceTimeout  uint8         // code: the peer is told to wait as long if it repeats a REQ or REP
	// longestServiceTimeout is the code of the longest time that the peer was told to wait. The peer goes by the longest
	// time or by a shorter one that it was told.
	longestServiceTimeout uint8
}

// Delay tells the peer by an MRA that the answer to its REQ or REP takes up to 4.096 µs ×
// 2^service. A REQ or REP that comes again gets such an answer in any case, with
// DefaultServiceTimeout unless Delay was called.
func (c *Conn) Delay(now time.Duration, service uint8) error {
	if !mayDelay.has(c.state) {
		return c.wrongState("delay")
	}
	if service > maxTimeoutCode {
		return c.failed("delay", fmt.Errorf("%w: a timeout code is over %d", ErrInvalid, maxTimeoutCode))
	}
	c.serviceTimeout = service
	c.sendMRA(now)
	if c.state == StateMRAREQSent {
		c.heard(now)
	}
	return nil
}

// sendMRA asks the peer for patience.
func (c *Conn) sendMRA(time.Duration) {
	mra := &wire.MRA{LocalCommID: c.id, RemoteCommID: c.remoteID, ServiceTimeout: c.serviceTimeout}
	switch c.state {
	case StateREQRcvd, StateMRAREQSent:
		c.longestServiceTimeout = max(c.longestServiceTimeout, c.serviceTimeout)
		c.state = StateMRAREQSent
		mra.Message = wire.CMMessageREQ
	default:
		c.state = StateMRAREPSent
		mra.Message = wire.CMMessageREP
	}
	c.m.send(c.path, wire.CMMRA, c.tid, mra)
}

func (m *Machine) handleMRA(now time.Duration, msg *message) {
	mra, err := wire.DecodeMRA(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	var c *Conn
	if mra.Message == wire.CMMessageREQ {
		c = m.findREQ(msg, mra.RemoteCommID)
	} else {
		c = m.lookup(msg, mra.RemoteCommID, mra.LocalCommID)
	}
	switch {
	case c == nil:
	case mra.Message == wire.CMMessageREQ && c.state == StateREQSent, mra.Message == wire.CMMessageREP && c.state == StateREPSent:
		c.takeMRA(now, &mra)
	default:
		m.stats.Ignored.add(msg.attr)
	}
}

// takeMRA gives the peer more time to answer this end's REQ or REP.
func (c *Conn) takeMRA(now time.Duration, mra *wire.MRA) {
	if c.state == StateREQSent {
		c.state, c.delayID = StateMRAREQRcvd, mra.LocalCommID
	} else {
		c.state = StateMRAREPRcvd
	}
	c.repeater.delay(c.m, now, milliseconds(min(mra.ServiceTimeout, maxServiceCode))+milliseconds(min(c.ackTimeout, maxTimeWaitCode)))
}

// findREQ looks up the connection whose REQ has not been answered yet.
func (m *Machine) findREQ(msg *message, id uint32) *Conn {
	c := m.conns[id]
	switch {
	case c == nil || !awaitsREP.has(c.state):
		m.count(msg, unknown)
		return nil
	case !sameAddr(c.path.Remote, msg.path.Remote):
		m.count(msg, foreign)
		return nil
	}
	return c
}
