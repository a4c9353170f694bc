package recovery

import "time"

// minRTTFilter finds out whether a path has become longer: a route changes, a virtual machine moves. Then each RTT exceeds
// the shortest one for good, and that looks like a queue. The shortest RTT must be forgotten then. It must not be
// forgotten because packets wait in a queue that never becomes empty. These signs tell a longer path from a queue:
//
//   - On a longer path RTTs are even. A queue that TCP fills becomes longer and shorter.
//   - The QP's own packets do not make a path longer. So the QP probes the RTT, as BBR does: for a few round trips it has
//     probeRTTWindow packets in flight. A queue of its own becomes empty by that.
//   - Where many QPs share a queue, the probe of one of them changes little. They probe at the same moment, without a word
//     between them, as in a drain of delayControl: probeRTTEvery after the queue was shortest. And probeRTTAgree probes in a
//     row must agree.
//
// Where others fill a queue evenly and never probe, the queue is part of the path to whoever comes later. In time it is
// part of the path to this QP too.
type minRTTFilter struct {
	least   time.Duration // the shortest RTT since the latest probe
	leastAt time.Duration // when least was measured
	most    time.Duration // the longest smoothed RTT since the latest probe
	samples uint32        // since the latest probe
	found   uint8         // probes in a row that have found a longer path
	probe   probeRTT
}

// probeRTT is the present probe of the RTT.
type probeRTT struct {
	from, until time.Duration // when the probe began, and when it ends at the latest
	before      time.Duration // the smoothed RTT when the probe began
	least       time.Duration // of the packets that were sent since
	wants       uint8         // samples that are still to come; 0: there is no probe
}

const (
	// A probe comes probeRTTEvery after the shortest RTT since the latest one, and after probeRTTAfter samples at least.
	probeRTTEvery = 2 * time.Second
	probeRTTAfter = 64
	// A probe of the RTT waits for probeRTTSamples samples, for probeRTTMost round trips at most. Its window is
	// probeRTTWindow packets.
	probeRTTSamples = 2
	probeRTTMost    = 6
	probeRTTWindow  = 4
	// So many probes in a row must find that the path has become longer.
	probeRTTAgree = 5
)

// probesRTT reports whether the QP probes the RTT.
func (c *congestion) probesRTT() bool { return c.minFilter != nil && c.minFilter.probe.wants > 0 }

// sample takes an RTT sample.
func (c *congestion) sample(now, rtt time.Duration) {
	c.update(rtt)
	if c.minFilter == nil {
		c.minFilter = new(minRTTFilter)
	}
	l := c.minFilter
	if c.probesRTT() {
		l.probe.note(now, rtt)
		if c.probesRTT() && now < l.probe.until {
			return
		}
		c.endProbeRTT(now)
	}
	if l.least == 0 || rtt < l.least {
		l.least, l.leastAt = rtt, now
	}
	l.most = max(l.most, c.srtt)
	if l.samples++; l.samples < probeRTTAfter || now-l.leastAt < probeRTTEvery {
		return
	}
	if isLonger(l.least, c.minRTT) && l.most <= l.least+l.least/8+queueTime {
		l.probe = probeRTT{from: now, until: now + probeRTTMost*c.srtt, before: c.srtt, wants: probeRTTSamples}
		return
	}
	*l = minRTTFilter{}
}

// note takes an RTT sample. A packet that was sent before the probe says nothing.
func (k *probeRTT) note(now, rtt time.Duration) {
	if now-rtt < k.from {
		return
	}
	if k.least == 0 || rtt < k.least {
		k.least = rtt
	}
	k.wants--
}

// endProbeRTT ends the probe. Its result counts if all samples have come.
func (c *congestion) endProbeRTT(now time.Duration) {
	l := *c.minFilter
	*c.minFilter = minRTTFilter{}
	if l.probe.wants > 0 || isLonger(l.probe.before, l.probe.least) || !isLonger(l.probe.least, c.minRTT) {
		return
	}
	if l.found++; l.found < probeRTTAgree {
		*c.minFilter = minRTTFilter{least: l.probe.least, leastAt: now, found: l.found}
		return
	}
	c.minRTT = min(l.least, l.probe.least)
	c.srtt = max(c.srtt, c.minRTT)
}
