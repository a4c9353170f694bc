package fault

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// An arrival is the number that a datagram carries, how many of its bits have flipped, and when it arrives.
type arrival struct {
	n, flips int
	at       time.Duration
	marked   bool
}

const numberedSize = 64

// numbered returns a datagram that carries a number.
func numbered(n int) *link.Datagram {
	return &link.Datagram{Src: netip.AddrPortFrom(addrA, 0xc000), Dst: netip.AddrPortFrom(addrB, link.Port), TrafficClass: link.ECT0,
		Payload: bytes.Repeat(binary.BigEndian.AppendUint64(nil, uint64(n)), numberedSize/8)}
}

// forever is later than anything arrives.
const forever = time.Hour

// arrivals returns the datagrams that arrive by a queue until a time. Datagrams that are there already count as
// arriving at from. Of the copies of the number in the payload, the most frequent value counts.
func arrivals(q *Queue, from, until time.Duration) (list []arrival) {
	var batch [1]link.Datagram
	for {
		at, ok := q.Next()
		if !ok || at > until {
			return list
		}
		from = max(from, at)
		q.Arrive(from)
		for q.Pop(batch[:]) > 0 {
			p := batch[0].Payload
			a := arrival{n: -1, at: from, marked: batch[0].TrafficClass == link.CE}
			for i := 0; i < len(p); i += 8 { // at most 3 bits flip, so that most copies are whole
				if got := p[i : i+8]; bytes.Count(p, got) > len(p)/8/2 || a.n < 0 && bytes.Equal(got, p[(i+8)%len(p):][:8]) {
					a.n = int(binary.BigEndian.Uint64(got))
				}
			}
			want := numbered(a.n).Payload
			for i := range p {
				for x := p[i] ^ want[i]; x != 0; x &= x - 1 {
					a.flips++
				}
			}
			list = append(list, a)
		}
	}
}

// cross sends datagrams over a cable with faults, one each interval, while another path sends others times as many over the
// same cable. It returns the arrivals.
func cross(p *Port, n int, interval time.Duration, others int) []arrival {
	const seed = 9
	path, other := NewPath(seed, addrA, addrB), NewPath(seed, addrB, addrA)
	route, back := NewRoutes(seed, addrA, addrB, ByPort, [][]*Port{{p}}), NewRoutes(seed, addrB, addrA, ByPort, [][]*Port{{p}})
	q, away := NewQueue(0), NewQueue(0)
	var list []arrival
	now := time.Duration(0)
	for i := range n {
		now = time.Duration(i) * interval
		list = append(list, arrivals(q, now, now)...)
		for range others {
			other.Route(away, back, now, numbered(i))
		}
		path.Route(q, route, now, numbered(i))
	}
	return append(list, arrivals(q, now, forever)...)
}

// TestCable: each fault of a port's cable does to datagrams as configured, is counted, and follows from the seed,
// whatever else comes through the port.
func TestCable(t *testing.T) {
	const (
		seed, n = 4, 1000
		gap     = time.Microsecond
		delay   = 5 * time.Microsecond
	)
	near := func(got int, want float64) bool { return float64(got) > .7*want && float64(got) < 1.3*want }
	for _, tt := range []struct {
		name string
		f    Faults
		ok   func(list []arrival, c Counts) bool
	}{
		{"nothing", Faults{}, func(list []arrival, c Counts) bool {
			for i, a := range list {
				if a != (arrival{n: i, at: time.Duration(i)*gap + delay}) {
					return false
				}
			}
			return len(list) == n && c == Counts{}
		}},
		{"loss", Faults{Loss: .1}, func(list []arrival, c Counts) bool {
			return near(n-len(list), .1*n) && c == Counts{Lost: uint64(n - len(list))}
		}},
		{"duplicates", Faults{Duplicate: .1}, func(list []arrival, c Counts) bool {
			return near(len(list)-n, .1*n) && c == Counts{Duplicated: uint64(len(list) - n)}
		}},
		{"corruption", Faults{Corrupt: .1}, func(list []arrival, c Counts) bool {
			bad := 0
			for _, a := range list {
				if a.flips > maxCorruptFlips {
					return false
				}
				bad += min(a.flips, 1)
			}
			return near(bad, .1*n) && c == Counts{Corrupted: uint64(bad)} && len(list) == n
		}},
		{"reordering", Faults{Reorder: .1}, func(list []arrival, c Counts) bool {
			late, last := 0, -1
			for i, a := range list {
				if a.n < last {
					late++
					if i > a.n+maxHoldBehind {
						return false
					}
				}
				last = max(last, a.n)
			}
			return near(late, .1*n) && near(int(c.Reordered), .1*n) && len(list) == n
		}},
		{"jitter", Faults{Delay: 7 * time.Microsecond, Jitter: 20 * time.Microsecond}, func(list []arrival, c Counts) bool {
			late := 0
			for i, a := range list {
				least := time.Duration(i)*gap + delay + 7*time.Microsecond
				if a.n != i || a.at < least || a.at > least+40*time.Microsecond {
					return false
				}
				if a.at > least {
					late++
				}
			}
			return late > n/2 && len(list) == n && c == Counts{}
		}},
		{"marks", Faults{MarkCE: .1}, func(list []arrival, c Counts) bool {
			marked := 0
			for _, a := range list {
				if a.marked {
					marked++
				}
			}
			return near(marked, .1*n) && c == Counts{Marked: uint64(marked)}
		}},
		{"the port's own faults", Faults{Rate: 1, MarkCEAbove: 1}, func(list []arrival, c Counts) bool {
			return len(list) == n && list[n-1].at == (n-1)*gap+delay && c == Counts{}
		}},
	} {
		run := func(seed uint64, others int) ([]arrival, PortStats) {
			p := NewPort(seed, PortConfig{Delay: delay})
			p.SetFaults(tt.f)
			list := cross(p, n, gap, others)
			return list, p.Stats(false)
		}
		list, s := run(seed, 0)
		if !tt.ok(list, s.Cable) || s.Passed != n || s.Lost != 0 {
			t.Errorf("seed %d, %s: %d of %d arrive, %+v", seed, tt.name, len(list), n, s)
		}
		if again, _ := run(seed, 3); !slices.Equal(again, list) {
			t.Errorf("seed %d, %s: the datagrams' fates depend on those of another path", seed, tt.name)
		}
		if tt.f.Loss > 0 {
			if other, _ := run(seed+1, 0); slices.Equal(other, list) {
				t.Errorf("%s: seeds %d and %d lose the same", tt.name, seed, seed+1)
			}
		}
	}
}

// TestCableKeepsOrder: datagrams that come after a delay has ended do not overtake those before.
func TestCableKeepsOrder(t *testing.T) {
	p := NewPort(1, PortConfig{})
	path, q := NewPath(1, addrA, addrB), NewQueue(0)
	route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{p}})
	p.SetFaults(Faults{Delay: time.Millisecond})
	path.Route(q, route, 0, numbered(0))
	p.SetFaults(Faults{})
	path.Route(q, route, time.Microsecond, numbered(1))
	got := arrivals(q, 0, time.Millisecond)
	path.Route(q, route, 2*time.Millisecond, numbered(2))
	got = append(got, arrivals(q, 2*time.Millisecond, forever)...)
	want := []arrival{{n: 0, at: time.Millisecond}, {n: 1, at: time.Millisecond}, {n: 2, at: 2 * time.Millisecond}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v arrive, want %+v", got, want)
	}
}

// TestRouteFaults: the faults of a path that has a route happen before its first port, and those of a cable on the way
// do not keep datagrams from the ports behind.
func TestRouteFaults(t *testing.T) {
	const seed, n = 4, 1000
	first, second := NewPort(seed, PortConfig{Rate: 1e9}), NewPort(seed+1, PortConfig{Delay: time.Millisecond})
	first.SetFaults(Faults{Loss: .1, Duplicate: .1})
	path, q := NewPath(seed, addrA, addrB), NewQueue(0)
	route := NewRoutes(seed, addrA, addrB, ByPort, [][]*Port{{first, second}})
	path.Plan(3, Plan{Lost: true})
	var c Counts
	var list []arrival
	for i := range n {
		now := time.Duration(i) * time.Microsecond
		list = append(list, arrivals(q, now, now)...)
		path.PassRoutes(q, route, &Faults{Loss: .2, Delay: time.Millisecond}, now, numbered(i), &c)
	}
	list = append(list, arrivals(q, n*time.Microsecond, forever)...)
	one, two := first.Stats(false), second.Stats(false)
	if slices.ContainsFunc(list, func(a arrival) bool { return a.n == 2 }) {
		t.Errorf("seed %d: the datagram arrives that was to be lost", seed)
	}
	if c.Lost < n/10 || one.Passed != n-c.Lost {
		t.Errorf("seed %d: %d datagrams are lost, and the first port has %+v of %d", seed, c.Lost, one, n)
	}
	if one.Cable.Lost == 0 || one.Cable.Duplicated == 0 || two.Passed != one.Passed-one.Cable.Lost+one.Cable.Duplicated || int(two.Passed) != len(list) {
		t.Errorf("seed %d: the first port has %+v, the second %+v, and %d datagrams arrive", seed, one, two, len(list))
	}
	if list[0].at < 2*time.Millisecond {
		t.Errorf("seed %d: a datagram arrives at %v, want it after both delays, of 1 ms each", seed, list[0].at)
	}
}

// TestMarkedOnce: a datagram that a port has marked is not marked again by its cable.
func TestMarkedOnce(t *testing.T) {
	const n = 10
	p := NewPort(1, PortConfig{Rate: 1e6, MarkTo: 1}) // marks all but the first
	p.SetFaults(Faults{MarkCE: 1})
	path, q := NewPath(1, addrA, addrB), NewQueue(0)
	route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{p}})
	for i := range n {
		path.Route(q, route, 0, numbered(i))
	}
	if s := p.Stats(false); s.Marked != n-1 || s.Cable.Marked != 1 {
		t.Errorf("the port has marked %d and the cable %d of %d, want %d and 1", s.Marked, s.Cable.Marked, n, n-1)
	}
}

// TestPortSample: a sample has the waiting bytes, and a reset begins anew with them.
func TestPortSample(t *testing.T) {
	const size = numberedSize + frameHeaders
	p := NewPort(1, PortConfig{Rate: size * 1e6}) // one in a microsecond
	path, q := NewPath(1, addrA, addrB), NewQueue(0)
	route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{p}})
	for i := range 10 {
		path.Route(q, route, 0, numbered(i))
	}
	const later = 4 * time.Microsecond
	want := PortStats{Passed: 10, Bytes: 10 * size, Longest: 10 * size, Waiting: 6 * size, Left: 4 * size}
	if s := p.Sample(later, true); s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
	want = PortStats{Longest: 6 * size, Waiting: 6 * size}
	if s := p.Sample(later, false); s != want {
		t.Errorf("after a reset: got %+v, want %+v", s, want)
	}
	want = PortStats{Longest: 6 * size, Left: 6 * size}
	if s := p.Sample(time.Second, true); s != want {
		t.Errorf("in the end: got %+v, want %+v", s, want)
	}
}
