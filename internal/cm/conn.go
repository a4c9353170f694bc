package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Conn is one end of a connection, or of an attempt to make one.
type Conn struct {
	User any // the caller's

	m      *Machine
	active bool
	state  State
	path   Path

	names
	terms
	timeouts
	interest
	repeater repeater
	refusal  refusal
	doubt    doubt

	rtuData []byte // the private data of the RTU, or nil

	revoke func() // the words that a death would leave to others, or nil

	backlogSeat seat // at the listener, until the request is answered
	attempt     seat // on the passive side, until the connection is established or over
	retiree     retiree
}

func (m *Machine) newConn(p Path, active bool) (*Conn, error) {
	id, err := m.newID()
	if err != nil {
		return nil, err
	}
	c := &Conn{
		m: m, path: p, active: active,
		names: names{id: id}, timeouts: timeouts{serviceTimeout: DefaultServiceTimeout}, interest: interest{delivered: active},
	}
	c.repeater.timer.rec = c
	m.conns[id] = c
	return c, nil
}

// State returns where the connection stands.
func (c *Conn) State() State { return c.state }

// Path returns the way to the peer. On the passive side the traffic class is the one of the REQ.
func (c *Conn) Path() Path { return c.path }

func (c *Conn) emit(e Event) {
	e.Conn = c
	c.m.emit(e, c.path)
}

// ask sends a message until it is answered.
func (c *Conn) ask(now time.Duration, attr wire.CMAttr, tid uint64, msg body) {
	c.repeater.keep(attr, tid, msg)
	c.m.sendMAD(c.path, attr, c.repeater.mad)
	until := now + MaxAnswerTime
	if attr == wire.CMREQ { // whose interval and retries the user has chosen
		until = now + time.Duration(1+c.maxRetries)*c.responseTimeout + maxPatience
	}
	c.repeater.start(c.m, now, c.responseTimeout, c.maxRetries, until)
}

// expire implements record.
func (c *Conn) expire(now time.Duration) {
	switch c.state {
	case StateREQRcvd, StateMRAREQSent:
		c.m.countSilent()
		c.abandon()
	case StateREQSent, StateMRAREQRcvd:
		if !c.repeater.repeat(c.m, now, c.path) {
			c.emit(Event{Type: EventUnreachable})
			c.sendREJ(rejTimeout(c.m.cfg.GUID))
			c.forget()
		}
	case StateREPSent, StateMRAREPRcvd:
		if !c.repeater.repeat(c.m, now, c.path) {
			c.emit(Event{Type: EventUnreachable})
			c.reject(now, rejTimeout(c.m.cfg.GUID))
		}
	case StateDREQSent:
		if !c.repeater.repeat(c.m, now, c.path) {
			c.disconnected(now, Event{TimedOut: true})
		}
	case StateEstablished:
		c.stillDoubted(now)
	case StateTimeWait:
		c.exit()
	case StateRejected:
		c.probe(now)
	}
}

// evict implements record.
func (c *Conn) evict(time.Duration) {
	if c.state == StateTimeWait {
		c.exit()
	} else {
		c.forget()
	}
}

// timeWait ends the connection, except that packets of it may still be under way. The peer may use
// its QP again at once, but not its communication ID.
func (c *Conn) timeWait(now time.Duration) {
	c.state = StateTimeWait
	c.settle()
	c.revokeLastWords()
	c.repeater.stop(c.m)
	c.releaseQPN()
	c.m.timers.set(&c.repeater.timer, now+milliseconds(min(c.ackTimeout, maxTimeWaitCode)))
	c.retiree.retire(c.m, now, c)
}

// exit ends time-wait.
func (c *Conn) exit() {
	if c.exitDue {
		c.emit(Event{Type: EventTimeWaitExit})
	}
	c.forget()
}

// settle ends the time in which nobody knows whether anything comes of a peer's request.
func (c *Conn) settle() {
	c.backlogSeat.Leave()
	c.attempt.Leave()
}

// forget ends the connection for good.
func (c *Conn) forget() {
	c.state = StateIdle
	c.settle()
	c.revokeLastWords()
	c.repeater.stop(c.m)
	c.releaseQPN()
	c.releaseIDs()
	c.retiree.remove(c.m)
}

// Close gives the connection up, in whatever state it is, and tells the peer. No further events of
// the connection follow. Messages that the peer may still send are answered for a while.
func (c *Conn) Close(now time.Duration) {
	if c.closed {
		return
	}
	c.close()
	switch c.state {
	case StateREQSent, StateMRAREQRcvd:
		c.sendREJ(rejTimeout(c.m.cfg.GUID))
		c.forget()
	case StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent, StateREPSent, StateMRAREPRcvd:
		c.reject(now, wire.REJ{Reason: wire.RejConsumerDefined})
	case StateEstablished:
		c.disconnect(now, nil)
		c.retiree.retire(c.m, now, c)
	case StateDREQSent:
		c.retiree.retire(c.m, now, c)
	}
}
