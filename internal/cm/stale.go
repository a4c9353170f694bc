package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// doubt is whether the peer of an established connection still knows of it. A REQ or REP that names the
// peer's QP for another connection says that the peer has restarted (IBTA §12.9.8.3.1). But anybody who knows
// the QP's number can send one, so the peer is asked first.
//
// The question is a DREQ with the connection's IDs and with the number of no QP. A peer that has the
// connection ignores it, as Linux does, since its QP has another number. A peer without it answers by a DREP,
// as it answers any DREQ for a connection that it does not have. A stranger knows neither the connection's IDs
// nor the transaction ID of the question, so no DREP of a stranger ends the connection.
type doubt struct {
	tid   uint64 // of the question
	left  int    // how often it is asked again
	since time.Duration
	asked bool // before, at since
}

// stale ends the connection if the peer says that it has it no more.
func (c *Conn) stale(now time.Duration) {
	d := &c.doubt
	if c.state != StateEstablished || d.asked && now-d.since < doubtPause {
		return
	}
	*d = doubt{tid: c.m.newTID(), left: doubtRepeats, since: now, asked: true}
	c.askAgain(now)
}

func (c *Conn) askAgain(now time.Duration) {
	c.doubt.left--
	c.m.send(c.path, wire.CMDREQ, c.doubt.tid, &wire.DREQ{LocalCommID: c.id, RemoteCommID: c.remoteID, RemoteQPN: noQPN})
	c.m.timers.set(&c.repeater.timer, now+doubtInterval)
}

// stillDoubted repeats the question. If nobody answers, the peer has the connection.
func (c *Conn) stillDoubted(now time.Duration) {
	if c.doubt.left > 0 {
		c.askAgain(now)
	}
	// The question stays open for an answer that is late.
}

// confirmed reports whether a DREP answers the question.
func (d *doubt) confirmed(tid uint64) bool { return d.asked && d.tid == tid }

// yields reports whether a new connection of the peer's QP ends this one. For an end that is giving the
// connection up, the new one is as good as the DREP that it waits for: the peer uses its QP again.
func (c *Conn) yields() bool { return c.state == StateDREQSent }

// yield makes room for a new connection of the peer's QP.
func (c *Conn) yield(now time.Duration) { c.disconnected(now, Event{}) }
