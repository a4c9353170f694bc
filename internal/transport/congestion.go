package transport

import "time"

// congestion says how many packets a requester may have unacknowledged, responses to its READs
// included, and when the next may go.
//
// A packet that was lost was most often too much for the peer's receive buffer, which on an untuned
// system holds a fraction of the largest window. And each loss repeats a whole window. So a loss halves
// the window, which then grows slowly until the next one. A timeout, when nothing at all came through,
// narrows the window further. From there it grows quickly to half of what it was, and then slowly.
//
// A network that notifies of congestion (RoCEv2's CNP) halves the window as well, once a round trip: it
// says early what a loss says late.
type congestion struct {
	window    uint64 // packets, from minWindow to maxWindow
	threshold uint64 // below it the window grows by all that is acknowledged, above it by growth a window
	credit    uint64 // acknowledged since the window last grew

	roundTrip  time.Duration // smoothed; 0 while unknown
	notBefore  time.Duration // when the next packet may go: the pace
	notifiedAt time.Duration // the latest notification that narrowed the window; Never if none has
}

func newCongestion() congestion {
	return congestion{window: maxWindow, threshold: maxWindow, notifiedAt: Never}
}

// acknowledged takes note of n packets.
func (c *congestion) acknowledged(n uint64) {
	if c.window < c.threshold {
		c.window = min(c.window+n, c.threshold)
		return
	}
	for c.credit += n * growth; c.credit >= c.window && c.window < maxWindow; c.window++ {
		c.credit -= c.window
	}
	c.credit = min(c.credit, c.window)
}

// measured takes note of the time from a packet's sending to its acknowledgement. One eighth of each
// measurement counts, as in RFC 6298.
func (c *congestion) measured(d time.Duration) {
	if c.roundTrip == 0 {
		c.roundTrip = d
		return
	}
	c.roundTrip += (d - c.roundTrip) / 8
}

// lost takes note that the peer has missed a packet.
func (c *congestion) lost() {
	c.threshold = max(lossWindow, c.window/2)
	c.window, c.credit = min(c.window, c.threshold), 0
}

// timedOut takes note that nothing came for a while.
func (c *congestion) timedOut() {
	if c.window >= c.threshold { // else the threshold is that of the timeout before
		c.threshold = max(lossWindow, c.window/2)
	}
	c.window, c.credit = max(minWindow, c.window/shrinkFactor), 0
}

// notified takes note of a congestion notification. Those that follow within a round trip are about
// packets that were sent before the window was narrowed.
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
