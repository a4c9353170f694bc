package recovery

import (
	"fmt"
	"time"
)

// These functions are for tests of other packages, which look into a State, or need another state than the one that
// their packets led to.

// Gauges is how a State stands.
type Gauges struct {
	Window, SSThresh     uint64
	SRTT, MinRTT, Latest time.Duration // RTTs; SRTT and MinRTT are 0 while unknown
	ReorderWindow        time.Duration
	AckDeadline          time.Duration // or Never
	WaitUntil            time.Duration // or Never
	Backoff              uint8         // how often the PTO was doubled
	PeerAnswered         bool          // the peer has acknowledged something, or told of a gap
	Bursts               bool
}

// Gauges returns how s stands.
func (s *State) Gauges() Gauges {
	return Gauges{s.window, s.ssthresh, s.srtt, s.minRTT, s.latestRTT, s.reorder.size, s.ackDeadline, s.waitUntil, s.backoff, s.peerAnswered, s.bursts.on}
}

// Check returns an error if the ranges of packets do not cover [Una, Max) without gaps, or Nxt is not the first that is lost.
func (s *State) Check() error { return s.check() }

func (f *flight) check() error {
	at, nxt, inFlight := f.una, f.max, uint64(0)
	for i, r := range f.ranges {
		if r.end <= at {
			return fmt.Errorf("range %d ends at %d, and begins at %d: %+v; want an end behind the beginning", i, r.end, at, f.ranges)
		}
		if r.lost {
			nxt = min(nxt, at)
		}
		if !r.lost && !r.arrived {
			inFlight += r.end - at
		}
		at = r.end
	}
	if at != f.max || f.nxt != nxt {
		return fmt.Errorf("una %d, nxt %d, max %d; want nxt %d and max %d by the ranges %+v", f.una, f.nxt, f.max, nxt, at, f.ranges)
	}
	if got := f.InFlight(); got != inFlight {
		return fmt.Errorf("una %d, max %d: %d are in flight, want %d by the ranges %+v", f.una, f.max, got, inFlight, f.ranges)
	}
	return nil
}

// String returns the ranges of packets.
func (f *flight) String() string {
	return fmt.Sprintf("una %d, nxt %d, max %d: %+v", f.una, f.nxt, f.max, f.ranges)
}

// SetWindow makes the window n packets.
func (s *State) SetWindow(n uint64) { s.window = n }

// Allow bounds the window as a controller does.
func (s *State) Allow(n uint64) { s.allow(n) }

// SetReorderWindow makes the reorder window so long, from a time on.
func (s *State) SetReorderWindow(size, since time.Duration) {
	s.reorder = reorderWindow{size: size, since: since}
}

// SampleRTT takes an RTT sample.
func (s *State) SampleRTT(rtt time.Duration) { s.update(rtt) }

// Wait has nothing go before a time.
func (s *State) Wait(until time.Duration) { s.waitUntil = until }

// ForgetLatest forgets which packets have arrived.
func (s *State) ForgetLatest() { s.latestAt = -1 }

// StartBursts has packets go in bursts, as after a loss toward a peer that goes back.
func (s *State) StartBursts() {
	s.wentBack = true
	s.bursts.turn(true, 0)
	s.narrow(BurstWindow)
}

// StopBursts has the window slide, and forgets the times of bursts.
func (s *State) StopBursts() { s.bursts = bursts{} }

// LeavePath has packets leave path k, and not try it before a time.
func (s *Paths) LeavePath(k int, until time.Duration) {
	s.paths[k].left, s.paths[k].pause, s.paths[k].probeAt = true, until, until
}

// Fix sets a pace that nothing changes, in bytes a second.
func (r *Rate) Fix(rate uint64) {
	r.kind, r.control = Delay, noControl{}
	r.setRate(rate)
}

// Pause makes the pace pause until a time.
func (r *Rate) Pause(until time.Duration) { r.notBefore = until }

// PauseEnds returns until when the pace pauses.
func (r *Rate) PauseEnds() time.Duration { return r.notBefore }
