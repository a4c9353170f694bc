package recovery

import (
	"math/rand/v2"
	"testing"
	"time"
)

// sharedQueue is a bottleneck as flows see it whose windows are always full: the packets in flight beyond the BDP
// wait in its queue.
type sharedQueue struct {
	rnd    *rand.Rand
	path   time.Duration
	rate   float64                         // packets in a second
	others func(now time.Duration) float64 // packets of others; nil: there are none
	flows  []*congestion
	noise  float64 // the part by which an RTT is longer at most than the queue makes it
	now    time.Duration
}

// run lets the flows measure round trips for d.
func (s *sharedQueue) run(d time.Duration) {
	for end := s.now + d; s.now < end; {
		under := 0.0
		for _, c := range s.flows {
			under += float64(c.Limit())
		}
		if s.others != nil {
			under += s.others(s.now)
		}
		rtt := max(s.path, time.Duration(under/s.rate*1e9))
		for _, c := range s.flows {
			noisy := rtt + time.Duration(s.noise*s.rnd.Float64()*float64(rtt))
			c.sample(s.now+noisy, noisy)
		}
		s.now += rtt / 8
	}
}

func (s *sharedQueue) add(n int, window uint64) {
	for range n {
		c := newCongestion(FarWindow)
		c.window, c.ssthresh = window, window
		c.sample(s.now, s.path) // from before
		c.minFilter.leastAt = -time.Duration(s.rnd.Int64N(int64(probeRTTEvery)))
		s.flows = append(s.flows, &c)
	}
}

// TestQueueIsNoLongerPath: a flow that fills a queue for a minute, alone or with others, does not take the queue for
// a longer path.
func TestQueueIsNoLongerPath(t *testing.T) {
	for _, tt := range []struct {
		name   string
		flows  int
		window uint64
		others func(now time.Duration) float64
	}{
		{"one QP", 1, 256, nil},
		{"two QPs", 2, 256, nil},
		{"8 QPs", 8, 128, nil},
		{"32 QPs", 32, 64, nil},
		{"a QP beside TCP", 1, 60, sawtooth(350, 500, 3*time.Second)},
		{"a QP that has a twentieth of TCP's share", 1, 20, sawtooth(280, 400, 3*time.Second)},
	} {
		for seed := range uint64(5) {
			s := &sharedQueue{rnd: rand.New(rand.NewPCG(seed, 1)), path: 5 * ms, rate: 20_000, others: tt.others, noise: .02}
			s.add(tt.flows, tt.window) // the path holds 100 packets
			s.run(time.Minute)
			for _, c := range s.flows {
				if c.minRTT > s.path+s.path/8 {
					t.Fatalf("seed %d, %s: the shortest RTT is %v, want the path's %v", seed, tt.name, c.minRTT, s.path)
				}
			}
		}
	}
}

// sawtooth is a window of TCP's that grows from least to most in a period.
func sawtooth(least, most float64, period time.Duration) func(time.Duration) float64 {
	return func(now time.Duration) float64 {
		return least + (most-least)*(now%period).Seconds()/period.Seconds()
	}
}

// TestLongerPathIsKnown: a path that becomes longer is known within some seconds, and one that becomes shorter at once.
func TestLongerPathIsKnown(t *testing.T) {
	const known = 3 * (probeRTTAgree + 1) * probeRTTEvery // by chance a look comes later than probeRTTEvery after the one before
	for _, first := range []time.Duration{20 * us, ms, 8 * ms} {
		s := &sharedQueue{rnd: rand.New(rand.NewPCG(uint64(first), 1)), path: first, rate: 1e6, noise: .05}
		s.add(1, 256)
		s.run(3 * time.Second)
		s.path = 10 * ms
		s.run(known)
		if c := s.flows[0]; c.minRTT < s.path || c.minRTT > s.path+s.path/8 {
			t.Errorf("%v after a path of %v has become one of %v the shortest RTT is %v", known, first, s.path, c.minRTT)
		}
		s.path = first
		s.run(40 * ms)
		if c := s.flows[0]; c.minRTT > max(s.path, time.Duration(256/s.rate*1e9))*9/8 {
			t.Errorf("after the path has become one of %v again the shortest RTT is %v", first, c.minRTT)
		}
	}
}
