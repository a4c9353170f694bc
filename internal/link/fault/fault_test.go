package fault_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// openPair returns two links of a network without faults. Middleware disturbs a.
func openPair(t *testing.T, c fault.Config) (a, b link.Link) {
	t.Helper()
	n := sim.New(sim.Config{})
	open := func(addr netip.Addr) link.Link {
		l, err := n.Netdev(addr.String(), addr).Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b = fault.New(c)(open(addrA)), open(addrB)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestConformance(t *testing.T) {
	for name, c := range map[string]fault.Config{
		"None":  {},
		"In":    {Directions: fault.Incoming},
		"Out":   {Directions: fault.Outgoing},
		"Delay": {Delay: 100 * time.Microsecond},
		"Rate":  {Rate: 1 << 30, MarkCEAbove: 1 << 30},
		"Match": {Loss: 1, Match: func(*link.Datagram) bool { return false }},
	} {
		open := func(t *testing.T) (a, b link.Link) { return openPair(t, c) }
		swapped := func(t *testing.T) (a, b link.Link) { b, a = open(t); return a, b }
		t.Run(name, func(t *testing.T) {
			linktest.Run(t, open)
			linktest.Run(t, swapped)
			linktest.TrafficClass(t, open)
			linktest.TrafficClass(t, swapped)
			linktest.Allocs(t, open)
			linktest.Allocs(t, swapped)
		})
	}
}

// exchange sends n numbered datagrams and returns the numbers in the order in which they arrive.
func exchange(t *testing.T, from, to link.Link, n int) (got []int) {
	t.Helper()
	batch := make([]link.Datagram, 8)
	receive := func() {
		for {
			k, err := to.Recv(batch)
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				return
			}
			for _, d := range batch[:k] {
				got = append(got, int(d.Payload[0])<<8|int(d.Payload[1]))
			}
		}
	}
	for i := range n {
		if err := from.Send([]link.Datagram{{Src: from.Source(0), Dst: to.Addr(), Payload: []byte{byte(i >> 8), byte(i)}}}); err != nil {
			t.Fatal(err)
		}
		receive()
	}
	for deadline := time.Now().Add(10 * time.Millisecond); time.Now().Before(deadline); {
		if err := to.Wait(time.Millisecond); err != nil { // for held datagrams
			t.Fatal(err)
		}
		receive()
	}
	return got
}

// Each fault is counted in the direction in which it happened, and nothing else is counted.
func TestCounts(t *testing.T) {
	const seed, n = 6, 200
	for name, tt := range map[string]struct {
		c    fault.Config
		only func(c *fault.Counts) *uint64
	}{
		"Loss":      {fault.Config{Loss: 0.2}, func(c *fault.Counts) *uint64 { return &c.Lost }},
		"Duplicate": {fault.Config{Duplicate: 0.2}, func(c *fault.Counts) *uint64 { return &c.Duplicated }},
		"Reorder":   {fault.Config{Reorder: 0.2}, func(c *fault.Counts) *uint64 { return &c.Reordered }},
		"Corrupt":   {fault.Config{Corrupt: 0.2}, func(c *fault.Counts) *uint64 { return &c.Corrupted }},
	} {
		for _, direction := range []fault.Directions{fault.Outgoing, fault.Incoming} {
			tt.c.Seed, tt.c.Directions = seed, direction
			synctest.Test(t, func(t *testing.T) {
				a, b := openPair(t, tt.c)
				there, back := len(exchange(t, a, b, n)), len(exchange(t, b, a, n))
				out, in := a.(fault.Counter).Counts()
				got, other, arrived := out, in, there
				if direction == fault.Incoming {
					got, other, arrived = in, out, back
				}
				count := *tt.only(&got)
				if want := uint64(n + got.Duplicated - got.Lost); count == 0 || count == n || uint64(arrived) != want {
					t.Errorf("seed %d: %s: %d of %d arrived, counts %+v; want some of that fault, and as many as they say", seed, name, arrived, n, got)
				}
				*tt.only(&got) = 0
				if got != (fault.Counts{}) || other != (fault.Counts{}) {
					t.Errorf("seed %d: %s: also counted: %+v, the other way %+v; want nothing else", seed, name, got, other)
				}
				a.Close()
				b.Close()
			})
		}
	}
}

// Each direction has its own faults. They are the same at each run, and no datagram stays behind.
func TestDisturbs(t *testing.T) {
	const seed, n = 5, 3000
	run := func(t *testing.T, c fault.Config, in bool) (got []int) {
		synctest.Test(t, func(t *testing.T) {
			a, b := openPair(t, c)
			if in {
				a, b = b, a
			}
			got = exchange(t, a, b, n)
			a.Close()
			b.Close()
		})
		return got
	}
	var results [][]int
	for _, in := range []bool{false, true} {
		if got := run(t, fault.Config{Seed: seed, Reorder: 0.2}, in); len(got) != n || slices.IsSorted(got) {
			t.Errorf("seed %d: Reorder: %d of %d arrived, in order: %v; want all, in disorder", seed, len(got), n, slices.IsSorted(got))
		}
		if got := run(t, fault.Config{Seed: seed, Duplicate: 0.2}, in); len(got) < n+n/10 || len(got) > n+n/3 {
			t.Errorf("seed %d: Duplicate: %d arrived, want about %d", seed, len(got), n+n/5)
		}
		got := run(t, fault.Config{Seed: seed, Loss: 0.2}, in)
		if len(got) < n*7/10 || len(got) > n*9/10 || !slices.IsSorted(got) {
			t.Errorf("seed %d: Loss: %d arrived, want about %d, in order", seed, len(got), n*8/10)
		}
		if again := run(t, fault.Config{Seed: seed, Loss: 0.2}, in); !slices.Equal(got, again) {
			t.Errorf("seed %d: two runs differ", seed)
		}
		results = append(results, got)
	}
	if slices.Equal(results[0], results[1]) {
		t.Errorf("seed %d: both directions lose the same", seed)
	}
}

// A held datagram that nothing follows is released by time. On the way out that needs no call on
// the link.
func TestReleasedByTime(t *testing.T) {
	for _, in := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := openPair(t, fault.Config{Seed: 1, Reorder: 1})
			if in {
				a, b = b, a
			}
			start := time.Now()
			if err := a.Send([]link.Datagram{{Src: a.Source(0), Dst: b.Addr(), Payload: []byte("held")}}); err != nil {
				t.Fatal(err)
			}
			batch := make([]link.Datagram, 1)
			for {
				n, err := b.Recv(batch)
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 {
					break
				}
				if time.Since(start) > time.Second {
					t.Fatal("the datagram is stranded")
				}
				if err := b.Wait(2 * time.Second); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(start); took != time.Millisecond {
				t.Errorf("it was held for %v, want 1ms", took)
			}
			a.Close()
			b.Close()
		})
	}
}

// The fates of a seed are written down here. A change of the dice would change the meaning of every recorded seed, so
// it must show.
func TestFates(t *testing.T) {
	f := fault.Faults{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1}
	d := fault.NewDice(1, addrA, addrB)
	var marks []byte
	for n := range uint64(64) {
		switch x := d.Fate(&f, n); {
		case x.Lost:
			marks = append(marks, 'L')
		case x.Duplicate:
			marks = append(marks, 'D')
		case x.HoldBehind > 0:
			marks = append(marks, '0'+byte(x.HoldBehind))
		case x.Flips > 0:
			marks = append(marks, 'C')
		default:
			marks = append(marks, '.')
		}
	}
	const want = "L..C..1...L..4.D.....5.C...8....1......CC7.L..L...L...D.....8.LD"
	if string(marks) != want {
		t.Errorf("fates of seed 1 are\n%s, want\n%s", marks, want)
	}
}

// The bits that flip are different bits, even if the payload has hardly enough.
func TestCorrupt(t *testing.T) {
	f := fault.Faults{Corrupt: 1}
	d := fault.NewDice(2, addrA, addrB)
	for n := range uint64(1000) {
		x := d.Fate(&f, n)
		p := []byte{0}
		x.Corrupt(p)
		ones := 0
		for b := p[0]; b != 0; b &= b - 1 {
			ones++
		}
		if ones != x.Flips {
			t.Fatalf("fate %d flips %d bits of one byte, want %d", n, ones, x.Flips)
		}
		x.Corrupt(nil)
	}
}

// The members of a group lose different datagrams, though their middleware has the same seed.
func TestMulticastMembers(t *testing.T) {
	const n = 400
	group := netip.MustParseAddr("239.1.2.3")
	network := sim.New(sim.Config{})
	open := func(addr string) link.Link {
		a := netip.MustParseAddr(addr)
		l, err := network.Netdev(addr, a).Open(a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	from := open("10.0.0.1")
	var got [2][]byte
	members := [2]link.Link{open("10.0.0.2"), open("10.0.0.3")}
	for i := range members {
		members[i] = fault.New(fault.Config{Seed: 3, Loss: 0.5, Directions: fault.Incoming})(members[i])
		if err := link.Join(members[i], group); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if err := from.Send([]link.Datagram{{Src: from.Source(0), Dst: netip.AddrPortFrom(group, link.Port), Payload: []byte{byte(i)}}}); err != nil {
			t.Fatal(err)
		}
	}
	in := make([]link.Datagram, 2*n)
	for i, l := range members {
		for range 2*n/64 + 1 { // each Recv takes at most 64 from the wrapped link
			k, err := l.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range in[:k] {
				got[i] = append(got[i], d.Payload[0])
			}
		}
		if len(got[i]) < n/4 || len(got[i]) > 3*n/4 {
			t.Errorf("seed 3: member %d received %d of %d datagrams, want about half", i, len(got[i]), n)
		}
	}
	if bytes.Equal(got[0], got[1]) {
		t.Error("seed 3: both members received the same datagrams")
	}
}
