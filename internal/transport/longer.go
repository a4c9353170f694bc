package transport

import "time"

// A path may become longer: a route changes, a virtual machine moves. Then each round trip is longer than the shortest
// for good, and that looks like a queue. So the shortest is forgotten when the path has become longer, and it must not be
// forgotten because packets wait in a queue that never becomes empty. What tells the one from the other:
//
//   - On a longer path round trips are even. A queue of TCP's becomes longer and shorter.
//   - Our own packets do not make a path longer. So the QP looks: for a few round trips it has lookWindow packets under way.
//     A queue of its own becomes empty by that.
//   - Where many share a queue, one of them changes little by a look. They look at the same moment, without a word, as in a
//     drain of the controller by delay: lookEvery after the queue was shortest. And longerLooks looks must say the same.
//
// Where others fill a queue evenly and never look, that is a path to who comes later, and becomes one to us.
type longer struct {
	least   time.Duration // the shortest round trip since the latest look
	leastAt time.Duration // when it was measured
	most    time.Duration // the longest smoothed one since
	trips   uint32        // measurements since
	found   uint8         // looks in a row that have found a longer path
	look    look
}

// look is what the present one finds.
type look struct {
	from, until time.Duration // when it began, and when it ends at the latest
	before      time.Duration // the smoothed round trip when it began
	least       time.Duration // of the packets that were sent since
	wants       uint8         // measurements that it still waits for; 0: there is no look
}

const (
	// A look comes lookEvery after the shortest round trip since the latest one, and after lookTrips measurements at least.
	lookEvery = 2 * time.Second
	lookTrips = 64
	// It waits for lookProbes measurements, for lookMost round trips at most. Meanwhile the window is lookWindow packets.
	lookProbes = 2
	lookMost   = 6
	lookWindow = 4
	// So many looks in a row must find that the path has become longer.
	longerLooks = 5
)

// looks reports whether the QP looks whether its path has become longer.
func (c *congestion) looks() bool { return c.longer != nil && c.longer.look.wants > 0 }

// took takes note of a round trip.
func (c *congestion) took(now, trip time.Duration) {
	c.measured(trip)
	if c.longer == nil {
		c.longer = new(longer)
	}
	l := c.longer
	if c.looks() {
		l.look.note(now, trip)
		if c.looks() && now < l.look.until {
			return
		}
		c.endLook(now)
	}
	if l.least == 0 || trip < l.least {
		l.least, l.leastAt = trip, now
	}
	l.most = max(l.most, c.roundTrip)
	if l.trips++; l.trips < lookTrips || now-l.leastAt < lookEvery {
		return
	}
	if isLonger(l.least, c.leastTrip) && l.most <= l.least+l.least/8+queueTime {
		l.look = look{from: now, until: now + lookMost*c.roundTrip, before: c.roundTrip, wants: lookProbes}
		return
	}
	*l = longer{}
}

// isLonger reports whether a round trip is longer than another one by more than chance.
func isLonger(trip, than time.Duration) bool { return trip > than+than/8 }

// note takes note of a round trip. What was sent before the look says nothing.
func (k *look) note(now, trip time.Duration) {
	if now-trip < k.from {
		return
	}
	if k.least == 0 || trip < k.least {
		k.least = trip
	}
	k.wants--
}

// endLook ends the look. What it has found counts if all measurements have come.
func (c *congestion) endLook(now time.Duration) {
	l := *c.longer
	*c.longer = longer{}
	if l.look.wants > 0 || isLonger(l.look.before, l.look.least) || !isLonger(l.look.least, c.leastTrip) {
		return
	}
	if l.found++; l.found < longerLooks {
		*c.longer = longer{least: l.look.least, leastAt: now, found: l.found}
		return
	}
	c.leastTrip = min(l.least, l.look.least)
	c.roundTrip = max(c.roundTrip, c.leastTrip)
}
