package transport

import "time"

// congestion says how many packets a requester may have unacknowledged, responses to its READs
// included.
//
// A packet that was lost was most often too much for the peer's receive buffer, which on an untuned system holds a
// fraction of the largest window. And a peer that goes back repeats a whole window. So a loss halves the window,
// which then grows slowly until the next one: see wentBack, and lostSome for peers that repeat selectively. For the
// same reason the first window is a small one, which grows by all that is acknowledged, until the first loss or
// until the peer turns out to repeat selectively. Where nothing at all came through, the window begins again at its
// least. From there it grows quickly to half of what it was, and then slowly.
//
// A network that notifies of congestion (RoCEv2's CNP) halves the window as well, once a round trip: it
// says early what a loss says late. Other controllers make something else of notifications.
type congestion struct {
	window    uint64 // packets, from restartWindow to farWindow
	threshold uint64 // below it the window grows by all that is acknowledged, above it by growth a window, or less in a queue
	credit    uint64 // acknowledged since the window last grew

	trips
	longer     *longer       // whether the path has become longer; nil before the first round trip
	patience   time.Duration // with packets that are overtaken: see overtaken
	narrowed   uint64        // the most that the controller allows
	lostAt     time.Duration // when a loss narrowed the window by what waits; Never if none has
	debt       uint64        // halves of packets by which the window is still to narrow
	notifiedAt time.Duration // the latest notification that narrowed the window; Never if none has
}

func newCongestion() congestion {
	return congestion{window: firstWindow, threshold: maxWindow, narrowed: farWindow, notifiedAt: Never, lostAt: Never}
}

// unfold makes the window of a connection that has lost nothing so far maxWindow, from where it grows on long paths only.
func (c *congestion) unfold() {
	if c.threshold == maxWindow {
		c.window = maxWindow
	}
}

// allow bounds the window for a controller, whatever losses make of it.
func (c *congestion) allow(packets uint64) { c.narrowed = packets }

// limit is how many packets may be unacknowledged.
func (c *congestion) limit() uint64 {
	if c.looks() {
		return min(c.window, c.narrowed, lookWindow)
	}
	return min(c.window, c.narrowed)
}

// acknowledged takes note of n packets, which widen the window again: IBTA CA17-46. beyond is growth while more is under
// way than the path holds. selective says that the peer repeats selectively.
func (c *congestion) acknowledged(n, beyond uint64, selective bool) {
	if c.window < c.threshold {
		c.window = min(c.window+n, c.threshold)
		return
	}
	most, step := uint64(maxWindow), uint64(growth)
	if c.window >= maxWindow {
		if !selective || c.leastTrip < farTrip || c.roundTrip+c.deviation > c.leastTrip+c.leastTrip/8 {
			return
		}
		most, step = farWindow, farGrowth
	} else if c.queued() {
		step, _ = c.besideTCP()
	}
	if step > beyond && c.full() {
		step = beyond
	}
	for c.credit += n * step; c.credit >= c.window && c.window < most; c.window++ {
		c.credit -= c.window
	}
	c.credit = min(c.credit, c.window)
}

// lost takes note that the peer has missed a packet.
func (c *congestion) lost() {
	c.narrow(max(lossWindow, c.window/2))
}

// narrow makes the window n packets at most, from where it grows slowly.
func (c *congestion) narrow(n uint64) {
	c.threshold = n
	c.window, c.credit = min(c.window, c.threshold), 0
}

// pathHolds is how many packets the path holds, by what the round trip has grown with so many under way.
func (c *congestion) pathHolds(packets uint64) uint64 {
	return uint64(float64(packets) * float64(c.leastTrip) / float64(c.roundTrip))
}

// wentBack takes note that the peer has missed a packet, and that all after it is to be repeated. More under way than
// the path holds brings nothing, and costs as many repeats. So where packets wait, the window becomes what the path
// holds. Or packets go in bursts: see bursts.
func (c *congestion) wentBack() {
	if !c.full() {
		c.lost()
		return
	}
	c.narrow(max(backWindow, c.pathHolds(c.window)))
}

// full reports whether the round trip shows that more is under way than the path holds. Hosts that are late look the
// same. That costs little: the window is narrowed after a loss only, and grows in any case.
func (c *congestion) full() bool { return c.known && isLonger(c.roundTrip, c.leastTrip) }

// lostSome takes note that the peer has missed n packets, and has what was sent after them. Each narrows the
// window by half a packet: what a bad path loses says nothing. Where packets wait in a queue as well, the path is
// full. Then the window is narrowed by what waits, to a half at most, once in a few round trips: what is left still
// fills the path. TCP beside it does much the same, so both get their part.
//
// It reports whether the window was narrowed by what waits. Half packets are given back by regain.
func (c *congestion) lostSome(now time.Duration, n uint64) (waits bool) {
	if c.queued() {
		_, trips := c.besideTCP()
		if waits = c.lostAt == Never || now-c.lostAt > trips*c.roundTrip; waits {
			c.lostAt = now
			c.narrow(max(lossWindow, c.window/2, c.pathHolds(c.window)))
		}
		return waits
	}
	c.debt += n
	c.window = max(min(c.window, narrowWindow), c.window-min(c.window, c.debt/2))
	c.debt %= 2
	c.threshold = min(c.threshold, c.window)
	return false
}

// queued reports whether the round trip shows that packets wait in a queue. Where packets are late the smoothed round
// trip is longer without one: by a quarter of what the latest need, if a quarter of them are so late.
func (c *congestion) queued() bool {
	return c.known && c.queueing() > 0
}

// queueing is how long packets wait in a queue, as far as that is sure.
func (c *congestion) queueing() time.Duration {
	return c.roundTrip - c.leastTrip - c.patience/4 - queueTime
}

// besideTCP is by how many packets the window grows in the time of a window while packets wait in a queue, and in how
// many round trips a loss narrows it once. They are such that TCP beside us gets its part: docs/CONGESTION.md.
func (c *congestion) besideTCP() (growth uint64, trips time.Duration) {
	if c.queueing() > c.leastTrip {
		return longGrowth, longTrips
	}
	return queueGrowth, queueTrips
}

// regain takes note that a packet that was missed was none.
func (c *congestion) regain() {
	if c.window < maxWindow {
		c.window++
	}
}

// restarted takes note that nothing of a window has come through. What is to be repeated goes slowly at
// first, and then quickly up to half of what it was.
func (c *congestion) restarted() {
	if c.window >= c.threshold || c.threshold == maxWindow { // else the threshold is that of the restart before
		c.threshold = max(lossWindow, c.window/2)
	}
	c.window, c.credit = restartWindow, 0
}

// notified takes note of a congestion notification. Those that follow within a round trip are about
// packets that were sent before the window was narrowed. IBTA CA17-45.
func (c *congestion) notified(now time.Duration) {
	trip := c.roundTrip
	if trip == 0 {
		trip = unknownRoundTrip
	}
	if c.notifiedAt != Never && now-c.notifiedAt < trip {
		return
	}
	c.notifiedAt = now
	c.lost()
}
