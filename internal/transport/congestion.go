package transport

// A congestion says how many packets a requester may have unacknowledged, responses to its READs included.
// What has been lost was most often too much for the peer's receive buffer, which on a system as
// it comes holds a fraction of the largest window; and each loss repeats a whole window. So
// the window is halved by a loss, and grows slowly from there until the next. A timeout, when nothing
// at all has come through, narrows it further, and it comes back quickly to half of what it was.
type congestion struct {
	window    uint64 // packets, from minWindow to maxWindow
	threshold uint64 // below it the window grows by all that is acknowledged, above by growth a window
	credit    uint64 // acknowledged since the window last grew
}

func newCongestion() congestion { return congestion{window: maxWindow, threshold: maxWindow} }

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

// lost takes note that the peer has missed a packet.
func (c *congestion) lost() {
	c.threshold = max(lossWindow, c.window/2)
	c.window, c.credit = min(c.window, c.threshold), 0
}

// timedOut takes note that nothing came for a while.
func (c *congestion) timedOut() {
	if c.window >= c.threshold { // else the threshold is of the timeout before
		c.threshold = max(lossWindow, c.window/2)
	}
	c.window, c.credit = max(minWindow, c.window/shrinkFactor), 0
}
