package cm

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/crowd"
)

// attempts are the requests and half-open connections, which hold resources and may come to nothing: anybody can send
// a REQ, under any address. A genuine peer answers within a round trip.
type attempts = crowd.Crowd[attempt]

// attempt is a member of a crowd.
type attempt interface {
	// displace gives the attempt up, since another source needs its place.
	displace(now time.Duration)
}

// seat is the place of an attempt in a crowd.
type seat = crowd.Seat[attempt]

// count returns how many members are requests that nobody has answered, and how many are half-open.
func count(c *attempts) (requests, halfOpen int) {
	for who := range c.All() {
		if conn, ok := who.(*Conn); ok && mayEstablish.has(conn.state) {
			halfOpen++
		}
	}
	return c.Len() - halfOpen, halfOpen
}

// hasRoom reports whether there is room for another request of a listener, or can be made, and how many
// communication IDs making it gives back. A request for which there is none is counted as refused, and
// nobody loses anything to it.
func (m *Machine) hasRoom(from netip.Addr, l *Listener) (freed int, ok bool) {
	for _, c := range [...]*attempts{l.unanswered, m.attempts} {
		loser, ok := c.Room(from)
		if !ok {
			m.stats.Refused++
			return 0, false
		}
		if c, ok := loser.(*Conn); ok && mayAccept.has(c.state) { // a half-open connection keeps its ID for a while
			freed = 1
		}
	}
	return freed, true
}

// makeRoom makes room for a request that is about to be taken, where hasRoom has said that it can be made.
func (m *Machine) makeRoom(now time.Duration, from netip.Addr, l *Listener) {
	for _, c := range [...]*attempts{l.unanswered, m.attempts} { // the first one's loser may have been in the way in the second, too
		if loser, _ := c.Room(from); loser != nil {
			m.stats.Displaced++
			loser.displace(now)
		}
	}
}

// displace implements attempt. A peer whose request nobody has answered is told nothing: if it is
// genuine, it asks again.
func (c *Conn) displace(now time.Duration) {
	if mayAccept.has(c.state) {
		c.abandon()
		return
	}
	c.emit(Event{Type: EventUnreachable})
	c.reject(now, rejTimeout(c.m.cfg.GUID))
}

// abandon forgets a request that nobody has answered.
func (c *Conn) abandon() {
	c.closeUndelivered()
	c.emit(Event{Type: EventUnreachable})
	c.forget()
}

// displace implements attempt.
func (s *SIDR) displace(time.Duration) {
	s.closeUndelivered()
	s.emit(Event{Type: EventUnreachable})
	s.forget()
}

// heard notes that a request came, again or for the first time, which nobody has answered. A peer that
// waits repeats it. A peer that does not is gone, or never was.
func (c *Conn) heard(now time.Duration) {
	repeats := min(c.retryTimeout, maxRepeatTime)
	if c.state == StateMRAREQSent {
		repeats = milliseconds(c.longestServiceTimeout) + milliseconds(min(c.ackTimeout, maxTimeWaitCode))
	}
	c.m.timers.set(&c.repeater.timer, now+silentRepeats*repeats)
}
