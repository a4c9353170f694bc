package recovery

import "time"

// congestion is the congestion window: how many packets a requester may have in flight, responses to its READs included.
//
// A lost packet was most often too much for the peer's receive buffer, which on an untuned system holds a fraction of the
// largest window. And a peer that goes back repeats a whole window. So a loss halves the window, which then grows slowly
// until the next loss: see onGoBack, and onLosses for peers that acknowledge selectively. For the same reason the first
// window is small. It grows by each acknowledged packet (slow start) until the first loss, or until the peer turns out to
// acknowledge selectively. Where nothing at all came through, the window begins again at its least. From there it grows
// quickly to half of its former size, and then slowly.
//
// A network that notifies of congestion (RoCEv2's CNP) halves the window too, once in a round trip: a notification is an
// early loss. Other controllers answer notifications otherwise.
type congestion struct {
	window   uint64 // packets, from RestartWindow to FarWindow
	ssthresh uint64 // below it slow start; above it the window grows by growth packets in a round trip, or less in a queue
	credit   uint64 // packets acknowledged since the window last grew

	rttEstimator
	minFilter  *minRTTFilter // nil before the first RTT sample
	reorder    reorderWindow
	allowed    uint64        // the most that the controller allows
	lostAt     time.Duration // when a loss in a queue narrowed the window; Never if none has
	halves     uint64        // half packets by which the window is still to narrow
	notifiedAt time.Duration // the latest notification that narrowed the window; Never if none has
}

func newCongestion(allowed uint64) congestion {
	return congestion{window: FirstWindow, ssthresh: MaxWindow, allowed: allowed, notifiedAt: Never, lostAt: Never}
}

// EndSlowStart makes the window MaxWindow if nothing was lost so far. From there the window grows on long paths only.
func (c *congestion) EndSlowStart() {
	if c.ssthresh == MaxWindow {
		c.window = MaxWindow
	}
}

// allow bounds the window for a controller, however large losses leave the window.
func (c *congestion) allow(packets uint64) { c.allowed = packets }

// Limit returns how many packets may be in flight.
func (c *congestion) Limit() uint64 {
	if c.probesRTT() {
		return min(c.window, c.allowed, probeRTTWindow)
	}
	return min(c.window, c.allowed)
}

// grow notes n acknowledged packets, which widen the window again: IBTA CA17-46. overfull is the growth while more is in
// flight than the path holds. sacks says that the peer acknowledges selectively.
func (c *congestion) grow(n, overfull uint64, sacks bool) {
	if c.window < c.ssthresh {
		c.window = min(c.window+n, c.ssthresh)
		return
	}
	most, step := uint64(MaxWindow), uint64(growth)
	if c.window >= MaxWindow {
		if !sacks || c.minRTT < farRTT || c.srtt+c.rttvar > c.minRTT+c.minRTT/8 {
			return
		}
		most, step = FarWindow, farGrowth
	} else if c.isQueued() {
		step, _ = c.besideTCP()
	}
	if step > overfull && c.isOverfull() {
		step = overfull
	}
	for c.credit += n * step; c.credit >= c.window && c.window < most; c.window++ {
		c.credit -= c.window
	}
	c.credit = min(c.credit, c.window)
}

// onLoss halves the window.
func (c *congestion) onLoss() { c.narrow(max(LossWindow, c.window/2)) }

// narrow makes the window n packets at most. From there it grows slowly.
func (c *congestion) narrow(n uint64) {
	c.ssthresh = n
	c.window, c.credit = min(c.window, n), 0
}

// bound is narrow for a window that may grow slowly already.
func (c *congestion) bound(n uint64) {
	c.window = min(c.window, n)
	c.ssthresh = min(c.ssthresh, c.window)
}

// bdp is the bandwidth-delay product: how many packets the path holds, by how much the RTT has grown with so many in
// flight.
func (c *congestion) bdp(packets uint64) uint64 {
	return uint64(float64(packets) * float64(c.minRTT) / float64(c.srtt))
}

// onGoBack notes that the peer has missed a packet, and that all after it must be repeated. More in flight than the path
// holds brings nothing, and costs as many repeats. So where packets queue, the window becomes the BDP. Or packets go in
// bursts: see bursts.
func (c *congestion) onGoBack() {
	if !c.isOverfull() {
		c.onLoss()
		return
	}
	c.narrow(max(backWindow, c.bdp(c.window)))
}

// isOverfull reports whether the RTT shows that more is in flight than the path holds. Slow hosts look the same. That
// costs little: a loss must come before the window is narrowed, and the window grows in any case.
func (c *congestion) isOverfull() bool { return c.known && isLonger(c.srtt, c.minRTT) }

// onLosses notes that the peer has missed n packets, and has others that were sent later. Each lost packet narrows the
// window by half a packet: the losses of a bad path say nothing about congestion. Where packets queue as well, the path is
// full. Then the window becomes the BDP, or half of its size if that is more, once in a few round trips: such a window
// still fills the path. TCP beside it does much the same, so both get their part.
//
// onLosses reports whether the window became the BDP. undoOne gives half packets back.
func (c *congestion) onLosses(now time.Duration, n uint64) (queued bool) {
	if c.isQueued() {
		_, trips := c.besideTCP()
		if queued = c.lostAt == Never || now-c.lostAt > trips*c.srtt; queued {
			c.lostAt = now
			c.narrow(max(LossWindow, c.window/2, c.bdp(c.window)))
		}
		return queued
	}
	c.halves += n
	c.bound(max(min(c.window, narrowWindow), c.window-min(c.window, c.halves/2)))
	c.halves %= 2
	return false
}

// isQueued reports whether the RTT shows that packets wait in a queue. Where packets are reordered the smoothed RTT is
// longer without a queue: by a quarter of the reorder window, if a quarter of the packets are so late.
func (c *congestion) isQueued() bool { return c.known && c.queueing() > 0 }

// queueing is how long packets wait in a queue, as far as that is sure.
func (c *congestion) queueing() time.Duration {
	return c.srtt - c.minRTT - c.reorder.size/4 - queueTime
}

// besideTCP returns by how many packets the window grows in a round trip while packets queue, and in how many round trips
// losses narrow it once. With these figures TCP beside us gets its part: docs/CONGESTION.md.
func (c *congestion) besideTCP() (growth uint64, trips time.Duration) {
	if c.queueing() > c.minRTT {
		return longGrowth, longTrips
	}
	return queueGrowth, queueTrips
}

// undoOne notes that the loss of a packet was spurious.
func (c *congestion) undoOne() {
	if c.window < MaxWindow {
		c.window++
	}
}

// undoLoss restores the window from before losses that were spurious. The next loss counts at once.
func (c *congestion) undoLoss(u undo) {
	c.restore(u)
	c.lostAt = Never
}

// onTimeout notes that nothing of a window has come through. Repeats go slowly at first, and then quickly up to half of
// the former window.
func (c *congestion) onTimeout() {
	if c.window >= c.ssthresh || c.ssthresh == MaxWindow { // else ssthresh is that of the timeout before
		c.ssthresh = max(LossWindow, c.window/2)
	}
	c.window, c.credit = RestartWindow, 0
}

// notified notes a congestion notification. Further ones within a round trip are about packets that were sent before the
// window was narrowed. IBTA CA17-45.
func (c *congestion) notified(now time.Duration) {
	rtt := c.srtt
	if rtt == 0 {
		rtt = unknownRTT
	}
	if c.notifiedAt != Never && now-c.notifiedAt < rtt {
		return
	}
	c.notifiedAt = now
	c.onLoss()
}

// undo is the window before a loss that may prove to be spurious.
type undo struct {
	window, ssthresh uint64
	until            uint64 // the loss was real once all packets before until are acknowledged; 0: there is nothing to undo
}

// before returns the window, to be restored. Without an until, restore is up to the caller.
func (c *congestion) before(until uint64) undo { return undo{c.window, c.ssthresh, until} }

// restore widens the window to its size before a loss.
func (c *congestion) restore(u undo) {
	c.window = max(c.window, u.window)
	c.ssthresh = max(c.ssthresh, u.ssthresh)
}
