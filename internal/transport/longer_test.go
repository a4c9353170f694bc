package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// sharedQueue is a bottleneck as flows see it whose windows are always full: what is under way beyond what the path holds
// waits in its queue.
type sharedQueue struct {
	rnd    *rand.Rand
	path   time.Duration
	rate   float64                         // packets in a second
	others func(now time.Duration) float64 // packets of others; nil: there are none
	flows  []*congestion
	noise  float64 // the part by which a round trip is longer at most than the queue makes it
	now    time.Duration
}

// run lets the flows measure round trips for d.
func (s *sharedQueue) run(d time.Duration) {
	for end := s.now + d; s.now < end; {
		under := 0.0
		for _, c := range s.flows {
			under += float64(c.limit())
		}
		if s.others != nil {
			under += s.others(s.now)
		}
		trip := max(s.path, time.Duration(under/s.rate*1e9))
		for _, c := range s.flows {
			noisy := trip + time.Duration(s.noise*s.rnd.Float64()*float64(trip))
			c.took(s.now+noisy, noisy)
		}
		s.now += trip / 8
	}
}

func (s *sharedQueue) add(n int, window uint64) {
	for range n {
		c := newCongestion()
		c.window, c.threshold = window, window
		c.took(s.now, s.path) // from before
		c.longer.leastAt = -time.Duration(s.rnd.Int64N(int64(lookEvery)))
		s.flows = append(s.flows, &c)
	}
}

// TestQueueIsNoLongerPath: who fills a queue for a minute, alone or with others, takes it for no path.
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
		{"a QP that has a twentieth of what TCP has", 1, 20, sawtooth(280, 400, 3*time.Second)},
	} {
		for seed := range uint64(5) {
			s := &sharedQueue{rnd: rand.New(rand.NewPCG(seed, 1)), path: 5 * ms, rate: 20_000, others: tt.others, noise: .02}
			s.add(tt.flows, tt.window) // the path holds 100 packets
			s.run(time.Minute)
			for _, c := range s.flows {
				if c.leastTrip > s.path+s.path/8 {
					t.Fatalf("seed %d, %s: the shortest round trip is %v, want the path's %v", seed, tt.name, c.leastTrip, s.path)
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
	const known = 3 * (longerLooks + 1) * lookEvery // by chance a look comes later than lookEvery after the one before
	for _, first := range []time.Duration{20 * us, ms, 8 * ms} {
		s := &sharedQueue{rnd: rand.New(rand.NewPCG(uint64(first), 1)), path: first, rate: 1e6, noise: .05}
		s.add(1, 256)
		s.run(3 * time.Second)
		s.path = 10 * ms
		s.run(known)
		if c := s.flows[0]; c.leastTrip < s.path || c.leastTrip > s.path+s.path/8 {
			t.Errorf("%v after a path of %v has become one of %v the shortest round trip is %v", known, first, s.path, c.leastTrip)
		}
		s.path = first
		s.run(40 * ms)
		if c := s.flows[0]; c.leastTrip > max(s.path, time.Duration(256/s.rate*1e9))*9/8 {
			t.Errorf("after the path has become one of %v again the shortest round trip is %v", first, c.leastTrip)
		}
	}
}

// longerRun moves messages for a time over a path that takes 1 ms, and another time from when it takes 50. It returns the
// packets that a round trip has brought in the latest third.
func longerRun(t *testing.T, op verbs.Opcode, selective bool, seed uint64) float64 {
	p := newPair(t, setup{mtu: verbs.MTU256, timeout: 18, rd: 16, selective: selective, fresh: true})
	const message = 64 << 10
	l := &lossPath{rnd: rand.New(rand.NewPCG(seed, 0x70617468)), rate: 500e6, oneWay: ms / 2, buffer: time.Second,
		loss: 1 / 2000., busy: map[*node]time.Duration{}, sender: p.a}
	if op == verbs.OpRDMARead {
		l.sender = p.b
	}
	p.route = l.route(p)
	const longer, end = 200 * ms, 45 * time.Second
	done, from := 0, 0
	for posted := uint64(0); p.now < end; {
		for ; posted-uint64(done) < 8; posted++ {
			off := int(posted%8) * message
			wr := writeWR(posted, p.b.mem.remote(off), p.a.mem.sge(off, message))
			wr.Op = op
			p.post(p.a, wr)
		}
		p.log = p.log[:0]
		if !p.step(end) {
			break
		}
		if p.now > longer {
			l.oneWay = 25 * ms
		}
		for _, s := range p.a.sends[done:] {
			if s.wc.Status != verbs.WCSuccess {
				t.Fatalf("seed %d: %v, want success", seed, s.wc.Err())
			}
		}
		if done = len(p.a.sends); done > 0 {
			p.a.polled(done)
		}
		if p.now < 2*end/3 {
			from = done
		}
	}
	return float64((done-from)*message/256) / (end / 3).Seconds() * l.oneWay.Seconds() * 2
}

// TestLongerPathFills: on a path that has become longer the window is soon what it would have been on that path. Rare losses
// take a half of it no more than they do anywhere.
func TestLongerPathFills(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		if op == verbs.OpRDMARead && testing.Short() {
			continue // the race detector's time
		}
		if got := longerRun(t, op, true, 1); got < .8*maxWindow {
			t.Errorf("seed 1, %v: %.0f packets in a round trip, want %d about", op, got, maxWindow)
		} else {
			t.Logf("%v: %.0f packets in a round trip", op, got)
		}
	}
}
