package cm

import (
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// user has one end of a connection. It keeps the events so far, and thereby the events that may
// come next.
type user struct {
	h       *simHost
	c       *Conn
	active  bool
	point   point
	crashed bool
	lost    bool // the request made room for another one, or came no more
	life    int
}

// point is where a user believes that its connection stands.
type point string

const (
	requested  point = "requested"  // active: nothing came yet
	replied    point = "replied"    // active: the user is to be ready
	pending    point = "pending"    // passive: the user is to accept
	accepted   point = "accepted"   // passive: nothing came yet
	connected  point = "connected"  // either
	leaving    point = "leaving"    // Disconnect was called
	departed   point = "departed"   // EventDisconnected came
	failed     point = "failed"     // EventRejected or EventUnreachable came
	gone       point = "gone"       // EventTimeWaitExit came
	closed     point = "closed"     // by the user
	turnedDown point = "turnedDown" // by Reject
)

// legal are the events that may come at each point, and where they lead.
var legal = map[point]map[EventType]point{
	requested: {EventReply: replied, EventRejected: failed, EventUnreachable: failed},
	replied:   {EventRejected: failed, EventDisconnected: departed},
	pending:   {EventRejected: failed, EventUnreachable: failed},
	accepted:  {EventEstablished: connected, EventRejected: failed, EventUnreachable: failed},
	connected: {EventRejected: failed, EventDisconnected: departed},
	leaving:   {EventRejected: failed, EventDisconnected: departed},
	departed:  {EventTimeWaitExit: gone},
}

// over are the points after which nothing may happen. Every user arrives at one of them.
var over = []point{failed, gone, closed, turnedDown}

func (h *simHost) user(c *Conn, active bool) *user {
	u := &user{h: h, c: c, active: active, point: pending, life: h.life}
	if active {
		u.point = requested
	}
	c.User = u
	h.users = append(h.users, u)
	return u
}

// event checks that an event may come, and lets the user choose its next call.
func (h *simHost) event(e Event) {
	s := h.s
	if e.SIDR != nil {
		h.sidrEvent(e)
		return
	}
	if e.Type == EventRequest {
		if e.Conn.User != nil || e.Listener == nil {
			s.failf("host %d: a second request %#x", h.n, e.Conn.ID())
		}
		for _, v := range h.users {
			if s.calm && !v.active && !v.lost && v.c.remoteID == e.Conn.remoteID && v.c.path.Remote == e.Conn.path.Remote {
				s.failf("host %d: two requests, %#x and %#x, for one attempt", h.n, v.c.ID(), e.Conn.ID())
			}
		}
		u := h.user(e.Conn, false)
		s.logf("%d: event %v %#x of %#x", h.n, e.Type, u.c.ID(), u.c.RemoteID())
		if s.rnd.IntN(8) == 0 {
			u.later(3*time.Second, func() { u.do("delay", u.c.Delay(s.now, uint8(s.rnd.IntN(22))), pending) })
		}
		u.later(u.patience(), u.answer)
		return
	}
	u := e.Conn.User.(*user)
	s.logf("%d: event %v %#x", h.n, e.Type, u.c.ID())
	to, ok := legal[u.point][e.Type]
	if !ok || u.life != h.life {
		s.failf("host %d: got event %v of %#x at the point %s, want one of %v", h.n, e.Type, u.c.ID(), u.point, legal[u.point])
	}
	u.lost = u.point == pending && e.Type == EventUnreachable
	u.point = to
	switch to {
	case replied:
		u.later(u.patience(), u.beReady)
	case connected:
		u.maybeLeave()
	case departed:
		if s.rnd.IntN(3) == 0 {
			u.later(time.Second, u.close)
		}
	}
}

// patience is how long a user takes, now and then longer than the peer waits unasked.
func (u *user) patience() time.Duration {
	if u.h.s.rnd.IntN(6) == 0 {
		return 3 * time.Minute
	}
	return 4 * time.Second
}

// later lets a user do something within d, unless its connection is over by then.
func (u *user) later(d time.Duration, do func()) {
	u.h.s.in(u.h.s.within(d), func() {
		if !u.crashed && !slices.Contains(over, u.point) {
			do()
		}
	})
}

// do checks the result of a call that must work at the point at, and only there.
func (u *user) do(verb string, err error, at ...point) bool {
	u.h.s.logf("%d: %s %#x at %s: %v", u.h.n, verb, u.c.ID(), u.point, err)
	if slices.Contains(at, u.point) != (err == nil) {
		u.h.s.failf("host %d: %s %#x at the point %s: got error %v, want success only at %v", u.h.n, verb, u.c.ID(), u.point, err, at)
	}
	return err == nil
}

func (u *user) close() {
	u.h.s.logf("%d: close %#x at %s", u.h.n, u.c.ID(), u.point)
	u.point = closed
	u.c.Close(u.h.s.now)
}

func (u *user) reject() {
	if u.do("reject", u.c.Reject(u.h.s.now, wire.RejConsumerDefined, nil, nil), requested, replied, pending, accepted) {
		u.point = turnedDown
	}
}

// answer is the passive side's answer to a request.
func (u *user) answer() {
	s := u.h.s
	switch s.rnd.IntN(8) {
	case 0:
		u.reject()
	case 1:
		u.close()
	default:
		if u.do("accept", u.c.Accept(s.now, Params{QPN: u.h.newQPN()}), pending) {
			u.point = accepted
			if s.rnd.IntN(8) == 0 {
				u.later(2*time.Second, u.close)
			} else if s.rnd.IntN(8) == 0 {
				u.later(2*time.Second, func() {
					if u.point == accepted {
						u.reject()
					}
				})
			}
			if s.rnd.IntN(4) == 0 {
				u.later(2*time.Second, u.firstPacket)
			}
		}
	}
}

// firstPacket is the first packet of the peer. It comes only if the peer is connected.
func (u *user) firstPacket() {
	if v := u.other(); v != nil && v.point == connected {
		u.do("establish", u.c.Established(u.h.s.now), accepted)
	}
}

// beReady is the active side's answer to a reply.
func (u *user) beReady() {
	s := u.h.s
	switch s.rnd.IntN(8) {
	case 0:
		if u.point == replied {
			u.reject()
		}
	case 1:
		u.close()
	default:
		if u.do("use", u.c.Ready(s.now), replied) {
			u.point = connected
			u.maybeLeave()
		}
	}
}

// maybeLeave decides whether a user ends a connection of its own accord.
func (u *user) maybeLeave() {
	switch u.h.s.rnd.IntN(4) {
	case 0:
		u.later(30*time.Second, u.leave)
	case 1:
		u.later(30*time.Second, u.close)
	}
}

func (u *user) leave() {
	if u.do("disconnect", u.c.Disconnect(u.h.s.now, nil), connected, leaving, departed) && u.point == connected {
		u.point = leaving
	}
}

// end makes a user leave when nothing else is going on.
func (u *user) end() {
	if u.crashed || slices.Contains(over, u.point) {
		return
	}
	if u.h.s.rnd.IntN(2) == 0 {
		u.later(time.Second, u.leave)
	} else {
		u.later(time.Second, u.close)
	}
}

// other finds the user of the other end, even if its host has crashed since.
func (u *user) other() *user {
	for _, h := range u.h.s.hosts {
		if h.addr != u.c.path.Remote {
			continue
		}
		for _, v := range h.users {
			if v != u && v.c.id == u.c.remoteID && v.c.remoteID == u.c.id && v.active != u.active {
				return v
			}
		}
	}
	return nil
}

// checkBeliefs checks the conditions that hold when nothing moves any more: either both ends of a
// connection believe in it or none does, and nobody waits for anything.
func (s *sim) checkBeliefs() {
	s.t.Helper()
	for _, h := range s.hosts {
		for _, u := range h.users {
			if u.crashed || slices.Contains(over, u.point) {
				continue
			}
			v := u.other()
			switch {
			case u.point != connected:
				s.failf("host %d: got %#x at the point %s, want it over", h.n, u.c.ID(), u.point)
			case v == nil:
				s.failf("host %d: %#x is connected with nobody", h.n, u.c.ID())
			case v.crashed: // there is no way to know
			case v.point != connected:
				s.failf("host %d: %#x is connected: got the point %s at the other end, want %s", h.n, u.c.ID(), v.point, connected)
			}
		}
	}
}

// checkEnd checks that everything has come to its end, and that nothing is left of it.
func (s *sim) checkEnd() {
	s.t.Helper()
	for _, h := range s.hosts {
		for _, u := range h.users {
			if !u.crashed && !slices.Contains(over, u.point) {
				s.failf("host %d: got %#x at the point %s, want it over", h.n, u.c.ID(), u.point)
			}
		}
		for _, u := range h.sidrs {
			if !u.end && !u.closed {
				s.failf("host %d: SIDR exchange %#x has no end", h.n, u.sidr.ID())
			}
		}
		if st := h.Stats(); st.Conns+st.SIDRs+st.Requests+st.HalfOpen+st.Retired+st.Timers > 0 {
			s.failf("host %d: got %+v, want nothing held", h.n, st)
		}
		if h.listener != nil {
			if held := tables.Held(&h.listener.unanswered, nil, nil); len(held) > 0 {
				s.failf("host %d: the listener holds %s", h.n, tables.String(held))
			}
			h.listener.Close(s.now)
		}
		if held := tables.Held(h.Machine, nil, []string{"out", "events"}); len(held) > 0 {
			s.failf("host %d holds %s", h.n, tables.String(held))
		}
	}
}
