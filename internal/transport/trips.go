package transport

import "time"

// trips is what is known of the round trip, by the rules of RFC 6298. Only packets that were sent once are
// measured: an acknowledgement does not say which of several copies it is for.
type trips struct {
	roundTrip time.Duration // smoothed; 0 while unknown
	deviation time.Duration // smoothed
	leastTrip time.Duration // the shortest, as far back as the path is what it was: see longer
	known     bool          // there was a measurement
}

// measured takes note of the time from a packet's sending to its acknowledgement. Of each measurement one
// eighth counts, and a quarter of how far it is off.
func (t *trips) measured(d time.Duration) {
	if !t.known {
		*t = trips{roundTrip: d, deviation: d / 2, leastTrip: d, known: true}
		return
	}
	t.leastTrip = min(t.leastTrip, d)
	off := d - t.roundTrip
	t.roundTrip += off / 8
	t.deviation += (max(off, -off) - t.deviation) / 4
}

// silence is the time without progress after which something is probably lost. It is not less than least.
func (t *trips) silence(least time.Duration) time.Duration {
	return max(2*t.roundTrip, t.roundTrip+4*t.deviation, least)
}
