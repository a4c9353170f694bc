package recovery

import "time"

// Fate is what the requester believes of packets that it has sent: the sequence numbers [From, To).
type Fate struct {
	From, To uint64
	Sent     time.Duration // the last time
	Lost     bool          // to be sent again
	Arrived  bool          // the peer has them; packets before them are missing
	Repeated bool          // sent more than once
}

// Fates returns the packets that are not acknowledged, in their order, for those who show a connection.
func (s *State) Fates() []Fate {
	list := make([]Fate, len(s.ranges))
	for i := range s.ranges {
		r := &s.ranges[i]
		list[i] = Fate{From: s.begin(i), To: r.end, Sent: r.at, Lost: r.lost, Arrived: r.arrived, Repeated: r.repeated}
	}
	return list
}

// Timers are when the timers of a State are due, or Never.
type Timers struct {
	Ack      time.Duration // the acknowledge timeout
	Probe    time.Duration // a packet is sent again to learn the fate of those in flight
	Wait     time.Duration // nothing goes before: an RNR NAK's timer, or a pause of the pace
	Loss     time.Duration // packets that others have overtaken count as lost
	Receiver bool          // Wait is for a receive of the peer's
}

// Timers returns the timers, for those who show a connection.
func (s *State) Timers() Timers {
	return Timers{Ack: s.ackDeadline, Probe: s.probing.at, Wait: s.waitUntil, Loss: s.lossTimer, Receiver: s.rnrWait}
}

// RetriesLeft returns how many retries are left, of Retry.Count and of Retry.RNRCount.
func (s *State) RetriesLeft() (retries, rnr uint8) { return s.retries, s.rnrRetries }
