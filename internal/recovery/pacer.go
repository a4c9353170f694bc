package recovery

import "time"

// pacer is the clock by which a QP with a rate sends: each packet moves it by the time that the packet takes at the rate.
// Timers are coarse and a train costs one system call. So the packets of a moment go at once. Then nothing goes until all
// of them are paid for. Acknowledgements and notifications go at any time.
type pacer struct {
	rate      uint64        // bytes in a second; 0 is no limit
	notBefore time.Duration // when the next packet may go
	clock     time.Duration // when the packets that were sent are paid for
	waits     bool          // a packet was held back, and goes late if the timer is late
	callAt    time.Duration // when the timer is to call for READ responses and UC; Never if it need not
}

// time is how long n bytes take at the rate.
func (p *pacer) time(n int) time.Duration {
	return time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
}

// quantum is the time whose packets go at once: a train at most.
func (p *pacer) quantum() time.Duration { return min(paceQuantum, p.time(TrainBytes)) }

// from returns where the clock stands before a packet that goes now. A late timer is made up for, but for no more than
// paceSlack. A QP that had nothing to send has saved up nothing.
func (p *pacer) from(now time.Duration) time.Duration {
	if p.waits {
		return max(p.clock, now-paceSlack)
	}
	return max(p.clock, now)
}

// sent notes that n bytes have left.
func (p *pacer) sent(now time.Duration, n int) {
	if p.rate == 0 {
		return
	}
	p.clock = p.from(now) + p.time(n)
	if p.waits = p.waits && p.clock < now; p.clock >= now+p.quantum() {
		p.notBefore = p.clock
	}
}

// Pauses reports whether the pace makes a pause behind n more bytes.
func (p *pacer) Pauses(now time.Duration, n int) bool {
	return p.rate != 0 && p.from(now)+p.time(n) >= now+p.quantum()
}

// IsPausing reports whether the pace makes a pause now.
func (p *pacer) IsPausing(now time.Duration) bool { return p.notBefore > now }

// hold returns until when a packet is held back, for a caller with a timer of its own.
func (p *pacer) hold() time.Duration {
	p.waits = true
	return p.notBefore
}

// Holds reports whether a READ response or a packet of UC has to wait. The timer then calls.
func (p *pacer) Holds(now time.Duration) bool {
	if p.rate == 0 || p.notBefore <= now {
		return false
	}
	p.callAt = p.hold()
	return true
}

// NextTimeout returns when the timer calls, or Never.
func (p *pacer) NextTimeout() time.Duration { return p.callAt }

// Served ends the wait whose time has come.
func (p *pacer) Served(now time.Duration) {
	if now >= p.callAt {
		p.stop()
	}
}

// stop stops the timer.
func (p *pacer) stop() { p.callAt = Never }

// BytesPerSecond returns the rate; 0 is no limit.
func (p *pacer) BytesPerSecond() uint64 { return p.rate }

// setRate changes the rate. 0 is no limit.
func (p *pacer) setRate(rate uint64) {
	if p.rate = rate; rate == 0 {
		p.notBefore, p.clock, p.waits = 0, 0, false
	}
}
