package cm

import (
	"container/list"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Conn is one end of a connection, or of an attempt to make one.
type Conn struct {
	User any // the caller's

	m        *Machine
	id       uint32
	remoteID uint32 // 0 until the peer's first message with it
	waitID   uint32 // the peer's as its MRA for the REQ said
	guid     uint64 // the peer's
	path     Path
	active   bool
	state    State
	tid      uint64 // of the REQ

	refusedID uint32 // the peer's of a REP that will not do: it was rejected, or its sender took it back

	taken    bool // the user has had EventRequest, or made the connection
	closed   bool // the user wants no events any more
	announce bool // EventTimeWaitExit is due

	listener      *Listener // of a request that is not answered
	local, remote Params
	request       RequestParams
	lifetime      uint8 // of a packet on the path, a code
	ackTimeout    uint8
	peerAnswers   time.Duration // within this time, by its own account
	peerRepeats   time.Duration // its REQ, if nothing comes
	maxRetries    int
	service       uint8 // what a repeated REQ or REP is told to wait, a code

	// The message that is repeated until it is answered. A rejected connection keeps its REJ here,
	// for a REQ that comes again.
	timer   timer
	asked   wire.CMAttr
	repeat  []byte
	every   time.Duration
	retries int // left
	linger  time.Duration
	probes  int // left

	place *list.Element // among the retired ones
}

func (m *Machine) newConn(p Path, active bool) (*Conn, error) {
	id, err := m.newID()
	if err != nil {
		return nil, err
	}
	c := &Conn{m: m, id: id, path: p, active: active, taken: active, service: DefaultServiceTimeout}
	c.timer.rec = c
	m.conns[id] = c
	return c, nil
}

// ID returns the connection's own communication ID.
func (c *Conn) ID() uint32 { return c.id }

// RemoteID returns the peer's communication ID, 0 as long as it is not known.
func (c *Conn) RemoteID() uint32 { return c.remoteID }

// State returns where the connection stands.
func (c *Conn) State() State { return c.state }

// Path returns the way to the peer. On the passive side the traffic class is the one of the REQ.
func (c *Conn) Path() Path { return c.path }

// Remote returns what the peer gave: in the REQ, or in the REP once EventReply came.
func (c *Conn) Remote() Params { return c.remote }

// Requested returns what the REQ says beside the parameters of its sender. On the active side
// ACKTimeout is the one for the peer.
func (c *Conn) Requested() RequestParams { return c.request }

// ACKTimeout returns the code for the timeout attribute of this side's QP. On the active side it
// is right once EventReply came.
func (c *Conn) ACKTimeout() uint8 { return c.ackTimeout }

func (c *Conn) idKey() remoteKey  { return remoteKey{bare(c.path.Remote), c.guid, c.remoteID} }
func (c *Conn) qpnKey() remoteKey { return remoteKey{bare(c.path.Remote), c.guid, c.remote.QPN} }

func (c *Conn) emit(e Event) {
	e.Conn, e.Path = c, c.path
	c.m.emit(e)
}

// ask sends a message until it is answered.
func (c *Conn) ask(now time.Duration, attr wire.CMAttr, tid uint64, msg body) {
	c.asked, c.repeat = attr, encode(c.repeat[:0], attr, tid, msg)
	c.m.sendMAD(c.path, attr, c.repeat)
	c.every, c.retries = c.peerAnswers, c.maxRetries
	c.m.timers.set(&c.timer, now+c.every)
}

// askAgain repeats the message, unless that was done often enough.
func (c *Conn) askAgain(now time.Duration) bool {
	if c.retries == 0 {
		return false
	}
	c.retries--
	c.m.resend(c.path, c.asked, c.repeat)
	c.m.timers.set(&c.timer, now+c.every)
	return true
}

// answered ends the repetition.
func (c *Conn) answered() {
	c.m.timers.stop(&c.timer)
	c.repeat = nil
}

// expire implements record.
func (c *Conn) expire(now time.Duration) {
	switch c.state {
	case StateREQSent, StateMRAREQRcvd:
		if !c.askAgain(now) {
			c.emit(Event{Type: EventUnreachable})
			c.sendREJ(rejTimeout(c.m.cfg.GUID))
			c.forget()
		}
	case StateREPSent, StateMRAREPRcvd:
		if !c.askAgain(now) {
			c.emit(Event{Type: EventUnreachable})
			c.reject(now, rejTimeout(c.m.cfg.GUID))
		}
	case StateDREQSent:
		if !c.askAgain(now) {
			c.disconnected(now, Event{TimedOut: true})
		}
	case StateTimeWait:
		if c.announce {
			c.emit(Event{Type: EventTimeWaitExit})
		}
		c.forget()
	case StateRejected:
		c.probe(now)
	}
}

// evict implements record.
func (c *Conn) evict(now time.Duration) {
	if c.announce && c.state == StateTimeWait {
		c.emit(Event{Type: EventTimeWaitExit})
	}
	c.forget()
}

// timeWait ends the connection, but for packets that may be under way. The peer's QP may come back
// at once, its communication ID may not.
func (c *Conn) timeWait(now time.Duration) {
	c.state = StateTimeWait
	c.unlist()
	c.answered()
	c.releaseQPN()
	c.m.timers.set(&c.timer, now+milliseconds(min(c.ackTimeout, maxTimeWaitCode)))
	c.retire(now)
}

func (c *Conn) retire(now time.Duration) {
	if c.place == nil {
		c.place = c.m.retire(now, c)
	}
}

// unlist takes a request off its listener's account.
func (c *Conn) unlist() {
	if c.listener != nil {
		delete(c.listener.conns, c)
		c.m.requests--
		c.listener = nil
	}
}

func (c *Conn) releaseQPN() {
	if c.m.byQPN[c.qpnKey()] == c {
		delete(c.m.byQPN, c.qpnKey())
	}
}

// forget ends the connection for good.
func (c *Conn) forget() {
	c.state = StateIdle
	c.unlist()
	c.answered()
	c.releaseQPN()
	if c.m.byID[c.idKey()] == c {
		delete(c.m.byID, c.idKey())
	}
	if c.m.conns[c.id] == c {
		delete(c.m.conns, c.id)
	}
	if c.place != nil {
		c.m.retired.Remove(c.place)
		c.place = nil
	}
}

// Close gives the connection up, in whatever state it is, and tells the peer. There are no further
// events of it. What the peer may still ask is answered for a while.
func (c *Conn) Close(now time.Duration) {
	if c.closed {
		return
	}
	c.closed = true
	switch c.state {
	case StateREQSent, StateMRAREQRcvd:
		c.sendREJ(rejTimeout(c.m.cfg.GUID))
		c.forget()
	case StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent, StateREPSent, StateMRAREPRcvd:
		c.reject(now, wire.REJ{Reason: wire.RejConsumerDefined})
	case StateEstablished:
		c.disconnect(now, nil)
		c.retire(now)
	case StateDREQSent:
		c.retire(now)
	}
}
