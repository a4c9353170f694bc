package recovery

import "time"

// rttEstimator estimates the round-trip time (RTT), by the rules of RFC 6298. Only packets that were sent once are
// measured (Karn's algorithm): an acknowledgement does not say which of several copies it is for.
type rttEstimator struct {
	srtt   time.Duration // smoothed RTT; 0 while unknown
	rttvar time.Duration // smoothed deviation
	minRTT time.Duration // the shortest on the present path: see minRTTFilter
	known  bool          // there was a sample
}

// update takes a sample. The sample counts as one eighth of the smoothed RTT, and its deviation as a quarter of
// rttvar.
func (e *rttEstimator) update(rtt time.Duration) {
	if !e.known {
		*e = rttEstimator{srtt: rtt, rttvar: rtt / 2, minRTT: rtt, known: true}
		return
	}
	e.minRTT = min(e.minRTT, rtt)
	off := rtt - e.srtt
	e.srtt += off / 8
	e.rttvar += (max(off, -off) - e.rttvar) / 4
}

// lower notes that an RTT was as short, though it was no sample.
func (e *rttEstimator) lower(rtt time.Duration) { e.minRTT = min(e.minRTT, rtt) }

// pto is the probe timeout: the time without progress after which a packet is probably lost. It is at least least.
func (e *rttEstimator) pto(least time.Duration) time.Duration {
	return max(2*e.srtt, e.srtt+4*e.rttvar, least)
}

// leastRTT is the least that counts as an RTT. A caller that reads the clock once may handle an acknowledgement with the
// time at which it sent the packet.
const leastRTT = time.Microsecond

// rttSince is the RTT of a packet that was sent at a time and is acknowledged now. Times that are compared with RTTs
// are measured by rttSince too.
func rttSince(now, at time.Duration) time.Duration { return max(now-at, leastRTT) }

// isLonger reports whether an RTT is longer than another one by more than chance.
func isLonger(rtt, than time.Duration) bool { return rtt > than+than/8 }
