package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// inFlightPair makes a pair whose end a has n short WRITEs in flight. post posts one more and gives a turn, and returns how
// many packets a sent then.
func inFlightPair(t *testing.T, s setup, n int) (p *pair, post func(wr verbs.SendWR) int) {
	t.Helper()
	p = newPair(t, s)
	wr := writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 8))
	for range n {
		p.post(p.a, wr)
	}
	p.transmit()
	if k := len(p.packets(p.a, 0)); k != n {
		t.Fatalf("of the packets posted at once %d leave, want %d", k, n)
	}
	return p, func(wr verbs.SendWR) int {
		t.Helper()
		mark := len(p.log)
		p.post(p.a, wr)
		p.transmit()
		return len(p.packets(p.a, mark))
	}
}

// TestCork: while many packets are in flight, short messages wait until they are as many. They leave too when
// acknowledgements come, and are not forgotten.
func TestCork(t *testing.T) {
	t.Run("write", func(t *testing.T) {
		testCork(t, func(p *pair) verbs.SendWR { return writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 8)) })
	})
	t.Run("atomic", func(t *testing.T) {
		testCork(t, func(p *pair) verbs.SendWR { return addWR(0, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) })
	})
}

func testCork(t *testing.T, message func(p *pair) verbs.SendWR) {
	const n = 24
	p, post := inFlightPair(t, setup{rd: 2 * n}, n)
	wr := message(p)
	for i := 1; i < n; i++ {
		if k := post(wr); k != 0 || !p.a.qp.Corks() {
			t.Fatalf("post %d with %d on their way: %d packets leave, want none", i, n, k)
		}
	}
	if k := post(wr); k != n {
		t.Fatalf("%d packets leave as one, want %d", k, n)
	}
	if k := post(wr); k != 0 {
		t.Fatalf("the next: %d packets leave, want none", k)
	}
	p.run()
	if got := len(p.packets(p.a, 0)); got != n+n+1 {
		t.Errorf("%d packets were sent in the end, want %d, each once", got, n+n+1)
	}
	if c := p.a.qp.Counters(); c.Timeouts != 0 || p.now > 5*testDelay {
		t.Errorf("%d timeouts, the end after %v; want the waiting messages to leave with the acknowledgement, after %v", c.Timeouts, p.now, 2*testDelay)
	}
	p.a.polled(n + n + 1)
}

// TestTrainRemainder: while many packets are in flight, only whole trains of long WRITEs leave. The remainder leaves
// with the next WRITE, or when acknowledgements come.
func TestTrainRemainder(t *testing.T) {
	const train, packets = 15, 16 // of 4096 bytes
	for _, tt := range []struct {
		name string
		n    int // in flight
		want []int
	}{
		{"many packets in flight", remainderFrom, []int{train, train, train}},
		{"fewer in flight", remainderFrom - 1, []int{packets, train, train}}, // remainderFrom with these
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, post := inFlightPair(t, setup{mtu: verbs.MTU4096, selective: true}, tt.n)
			for i, want := range tt.want {
				if k := post(writeWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(0, packets*4096))); k != want {
					t.Errorf("WRITE %d: %d packets leave, want %d", i, k, want)
				}
			}
			p.run()
			if got, want := len(p.packets(p.a, 0)), tt.n+len(tt.want)*packets; got != want {
				t.Errorf("%d packets were sent in the end, want %d, each once", got, want)
			}
			if c := p.a.qp.Counters(); c.Timeouts+c.Probes != 0 {
				t.Errorf("%d timeouts and %d probes, want the remainder to leave with an acknowledgement", c.Timeouts, c.Probes)
			}
			p.a.polled(tt.n + len(tt.want))
		})
	}
}

// TestTrainRemainderNot: no remainder waits.
func TestTrainRemainderNot(t *testing.T) {
	for _, tt := range []struct {
		name string
		wr   func(p *pair) verbs.SendWR
		want int
	}{
		{"one packet", func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4096)) }, 0},
		{"less than a train", func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*4096)) }, 0},
		{"a fence", func(p *pair) verbs.SendWR {
			wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 16*4096))
			wr.Flags |= verbs.SendFence
			return wr
		}, 16},
		{"too long to be split", func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, splitMost+1)) }, 17},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, post := inFlightPair(t, setup{mtu: verbs.MTU4096, selective: true}, remainderFrom)
			if k := post(tt.wr(p)); k != tt.want {
				t.Errorf("%d packets leave, want %d", k, tt.want)
			}
			p.run()
			p.a.polled(remainderFrom + 1)
		})
	}
}

// TestCorkNot: these messages do not wait, though many packets are in flight.
func TestCorkNot(t *testing.T) {
	const n = 40
	for _, tt := range []struct {
		name  string
		n     int // packets in flight
		wr    func(p *pair) verbs.SendWR
		sends int
	}{
		{"few on their way", corkFrom - 1, func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)) }, 1},
		{"several packets", n, func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1025)) }, 2},
		{"a READ", n, func(p *pair) verbs.SendWR { return readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)) }, 1},
		{"a fence", n, func(p *pair) verbs.SendWR {
			wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))
			wr.Flags |= verbs.SendFence
			return wr
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, post := inFlightPair(t, setup{}, tt.n)
			if k := post(tt.wr(p)); k != tt.sends {
				t.Errorf("%d packets leave, want %d at once", k, tt.sends)
			}
		})
	}
	t.Run("behind a long message", func(t *testing.T) {
		p := newPair(t, setup{})
		p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, n*int(p.a.qp.mtu))))
		p.transmit()
		mark := len(p.log)
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.transmit()
		if k, flying := len(p.packets(p.a, mark)), len(p.packets(p.a, 0)); k != 1 || flying != n+1 {
			t.Errorf("%d packets leave with %d on their way, want 1 at once with %d", k, flying, n+1)
		}
	})
	t.Run("a train is full", func(t *testing.T) {
		p, post := inFlightPair(t, setup{mtu: verbs.MTU4096, cap: verbs.QPCap{MaxSendWR: 256, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}}, 128)
		wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4096))
		most := trainBytes / 4096
		sent := 0
		for i := 1; sent == 0 && i <= 128; i++ {
			if sent = post(wr); sent > most || sent == 0 && i == most {
				t.Fatalf("after %d messages of 4 KiB %d packets leave, want %d at most, which fill a train", i, sent, most)
			}
		}
		if sent == 0 {
			t.Error("nothing leaves")
		}
	})
	t.Run("released", func(t *testing.T) {
		p, post := inFlightPair(t, setup{}, n)
		p.a.qp.Uncork()
		if k := post(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))); k != 1 {
			t.Errorf("%d packets leave before the connection ends, want 1", k)
		}
	})
	t.Run("lost", func(t *testing.T) {
		p, post := inFlightPair(t, setup{}, n)
		p.flight = nil
		post(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.run()
		p.a.polled(n + 1)
		if p.a.qp.Counters().Timeouts != 1 {
			t.Errorf("%d timeouts, want 1: the waiting messages leave with the repeats", p.a.qp.Counters().Timeouts)
		}
	})
}
