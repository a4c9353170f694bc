package transport

import "time"

// pacer is the clock by which a QP with a rate sends: each packet moves it by the time that the packet takes at
// the rate. Timers are coarse and a train costs one system call, so what may go within a moment goes at once.
// Then nothing goes until all of it is paid for. Acknowledgements and notifications go at any time.
type pacer struct {
	rate      uint64        // bytes in a second; 0 is no limit
	notBefore time.Duration // when the next packet may go
	clock     time.Duration // when what was sent is paid for
	waits     bool          // something was held back, and goes late if the timer is late
	callAt    time.Duration // when the timer is to call for READ responses and UC; Never if it is not
}

// time is how long n bytes take at the rate.
func (p *pacer) time(n int) time.Duration {
	return time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
}

// quantum is what goes at once: a train at most.
func (p *pacer) quantum() time.Duration { return min(paceQuantum, p.time(trainBytes)) }

// from returns where the clock stands before a packet that goes now. What a timer was late by is made up
// for, but for no more than paceSlack. A QP that had nothing to send has saved up nothing.
func (p *pacer) from(now time.Duration) time.Duration {
	if p.waits {
		return max(p.clock, now-paceSlack)
	}
	return max(p.clock, now)
}

// sent takes note that n bytes have left.
func (p *pacer) sent(now time.Duration, n int) {
	if p.rate == 0 {
		return
	}
	p.clock = p.from(now) + p.time(n)
	if p.waits = p.waits && p.clock < now; p.clock >= now+p.quantum() {
		p.notBefore = p.clock
	}
}

// ends reports whether n more bytes end what goes at once.
func (p *pacer) ends(now time.Duration, n int) bool {
	return p.rate != 0 && p.from(now)+p.time(n) >= now+p.quantum()
}

// holds reports whether a READ response or a packet of UC has to wait. The timer then calls.
func (p *pacer) holds(now time.Duration) bool {
	if p.rate == 0 || p.notBefore <= now {
		return false
	}
	p.callAt, p.waits = p.notBefore, true
	return true
}

// served ends the wait whose time has come.
func (p *pacer) served(now time.Duration) {
	if now >= p.callAt {
		p.callAt = Never
	}
}

// setRate changes the rate. 0 is no limit.
func (p *pacer) setRate(rate uint64) {
	if p.rate = rate; rate == 0 {
		p.notBefore, p.clock, p.waits = 0, 0, false
	}
}
