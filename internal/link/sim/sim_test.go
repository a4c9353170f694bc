package sim_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
)

func open(t testing.TB, n *sim.Network, addr netip.Addr) link.Link {
	t.Helper()
	l, err := n.Netdev(addr.String(), addr).Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func openPair(c sim.Config, addrs ...string) func(t *testing.T) (a, b link.Link) {
	return func(t *testing.T) (a, b link.Link) {
		n := sim.New(c)
		return open(t, n, netip.MustParseAddr(addrs[0])), open(t, n, netip.MustParseAddr(addrs[1]))
	}
}

func TestConformance(t *testing.T) {
	for name, f := range map[string]func(*testing.T) (a, b link.Link){
		"IPv4":     openPair(sim.Config{}, "10.0.0.1", "10.0.0.2"),
		"IPv6":     openPair(sim.Config{IDVisible: true}, "fd00::1", "fd00::2"),
		"Visible":  openPair(sim.Config{IDVisible: true}, "10.0.0.1", "10.0.0.2"),
		"NoTrains": openPair(sim.Config{MaxTrain: 1}, "10.0.0.1", "10.0.0.2"),
		"Delay":    openPair(sim.Config{Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond}, "10.0.0.1", "10.0.0.2"),
		"Itself": func(t *testing.T) (a, b link.Link) {
			l := open(t, sim.New(sim.Config{}), addrA)
			return l, l
		},
	} {
		t.Run(name, func(t *testing.T) {
			linktest.Run(t, f)
			linktest.TrafficClass(t, f)
			if name == "IPv6" {
				linktest.FlowLabel(t, f)
			}
		})
	}
}

func TestAllocs(t *testing.T) {
	linktest.Allocs(t, openPair(sim.Config{}, "10.0.0.1", "10.0.0.2"))
	linktest.Allocs(t, openPair(sim.Config{Delay: time.Microsecond}, "10.0.0.1", "10.0.0.2"))
}

// numbers receives all datagrams that have arrived. It returns the numbers that sendNumbers has put into the
// payloads.
func numbers(t testing.TB, l link.Link) (got []int) {
	t.Helper()
	batch := make([]link.Datagram, 16)
	for {
		n, err := l.Recv(batch)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return got
		}
		for _, d := range batch[:n] {
			got = append(got, int(binary.BigEndian.Uint32(d.Payload)))
		}
	}
}

func sendNumbers(t testing.TB, from, to link.Link, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		p := binary.BigEndian.AppendUint32(nil, uint32(i))
		if err := from.Send([]link.Datagram{{Src: from.Source(0), Dst: to.Addr(), Payload: p}}); err != nil {
			t.Fatal(err)
		}
	}
	if s := from.Stats(); s.LastSendError != nil {
		t.Fatal(s.LastSendError)
	}
}

// A manual clock.
type clock struct{ now time.Duration }

func (c *clock) Now() time.Duration { return c.now }

// run advances the clock from delivery to delivery until nothing is under way.
func (c *clock) run(t testing.TB, n *sim.Network, l link.Link, others ...link.Link) (got []int) {
	t.Helper()
	for {
		at, ok := n.NextDelivery()
		if !ok {
			return got
		}
		c.now = max(c.now, at)
		now := numbers(t, l)
		any := len(now) > 0
		for _, o := range others {
			any = len(numbers(t, o)) > 0 || any
		}
		if !any {
			t.Fatalf("nothing to receive at %v, when NextDelivery promised something", at)
		}
		got = append(got, now...)
	}
}

// The fates of a pair's datagrams do not depend on how much another pair sends in between.
func TestDeterminism(t *testing.T) {
	const seed, n = 42, 2000
	receive := func(seed uint64, disturb bool) []int {
		c := &clock{}
		net := sim.New(sim.Config{Seed: seed, Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Now: c.Now})
		a, b, other := open(t, net, addrA), open(t, net, addrB), open(t, net, addrC)
		var got []int
		for i := range n {
			sendNumbers(t, a, b, i, 1)
			if disturb {
				sendNumbers(t, other, b, 1_000_000+i, i%3)
				sendNumbers(t, a, other, i, i%5)
				numbers(t, other)
			}
			got = append(got, numbers(t, b)...)
		}
		got = append(got, c.run(t, net, b, other)...)
		return slices.DeleteFunc(got, func(i int) bool { return i >= 1_000_000 })
	}
	want := receive(seed, false)
	if got := receive(seed, false); !slices.Equal(got, want) {
		t.Errorf("seed %d: the second run differs from the first, want the same", seed)
	}
	if got := receive(seed, true); !slices.Equal(got, want) {
		t.Errorf("seed %d: traffic of other pairs changed the arrivals, want the same", seed)
	}
	if got := receive(seed+1, false); slices.Equal(got, want) {
		t.Errorf("seeds %d and %d do the same, want them to differ", seed, seed+1)
	}
}

func TestRates(t *testing.T) {
	const seed, n = 7, 20_000
	c := &clock{}
	net := sim.New(sim.Config{Seed: seed, Loss: 0.05, Duplicate: 0.02, Reorder: 0.1, Corrupt: 0.01, QueueLen: 2 * n, Now: c.Now})
	a, b := open(t, net, addrA), open(t, net, addrB)
	sendNumbers(t, a, b, 0, n)
	got := c.run(t, net, b)
	s := net.Stats()
	near := func(what string, have uint64, p float64) {
		t.Helper()
		want := p * n
		if float64(have) < want*0.8 || float64(have) > want*1.2 {
			t.Errorf("seed %d: %s %d of %d, want about %v", seed, what, have, n, want)
		}
	}
	near("lost", s.Lost, 0.05)
	near("duplicated", s.Duplicated, 0.02*0.95)
	near("reordered", s.Reordered, 0.1*0.95)
	near("corrupted", s.Corrupted, 0.01*0.95)
	if want := n - int(s.Lost) + int(s.Duplicated); len(got) != want {
		t.Errorf("seed %d: %d datagrams arrived, want %d", seed, len(got), want)
	}
	if s.Overflowed+s.Unreachable+s.Partitioned != 0 {
		t.Errorf("stats %+v, want no losses but those by chance", s)
	}
}

// 1 to 8 others overtake a held datagram. If there are no others, it is released by time.
func TestReorder(t *testing.T) {
	for seed := range uint64(200) {
		c := &clock{}
		net := sim.New(sim.Config{Seed: seed, Reorder: 1, Now: c.Now})
		a, b := open(t, net, addrA), open(t, net, addrB)
		sendNumbers(t, a, b, 0, 1)
		net.SetFaults(sim.Faults{})
		if got := numbers(t, b); len(got) != 0 {
			t.Fatalf("seed %d: the held datagram arrived at once, want it held", seed)
		}
		if seed%2 == 0 {
			sendNumbers(t, a, b, 1, 20)
			got := numbers(t, b)
			at := slices.Index(got, 0)
			if len(got) != 21 || at < 1 || at > 8 {
				t.Fatalf("seed %d: arrived %v, want 0 behind 1 to 8 others", seed, got)
			}
			rest := slices.Delete(slices.Clone(got), at, at+1)
			if !slices.IsSorted(rest) {
				t.Fatalf("seed %d: arrived %v, want all but the held one in order", seed, got)
			}
			continue
		}
		at, ok := net.NextDelivery()
		if !ok || at > time.Millisecond {
			t.Fatalf("seed %d: NextDelivery = %v, %v; want at most 1ms", seed, at, ok)
		}
		if got := c.run(t, net, b); !slices.Equal(got, []int{0}) {
			t.Fatalf("seed %d: arrived %v, want 0", seed, got)
		}
	}
}

func TestDelayKeepsOrder(t *testing.T) {
	const seed, n = 3, 1000
	c := &clock{}
	net := sim.New(sim.Config{Seed: seed, Delay: time.Millisecond, Jitter: time.Millisecond, Now: c.Now})
	a, b := open(t, net, addrA), open(t, net, addrB)
	var got []int
	for i := range n {
		if i == n/2 {
			net.SetFaults(sim.Faults{}) // later datagrams must not overtake either
		}
		sendNumbers(t, a, b, i, 1)
		c.now += 10 * time.Microsecond
		now := numbers(t, b)
		if len(now) > 0 && c.now < time.Millisecond {
			t.Fatalf("seed %d: %v arrived at %v, want 1ms or later", seed, now, c.now)
		}
		got = append(got, now...)
	}
	got = append(got, c.run(t, net, b)...)
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("seed %d: %d of %d arrived, in order: %v; want all in order", seed, len(got), n, slices.IsSorted(got))
	}
}

func TestCorruptFlips(t *testing.T) {
	const seed = 11
	net := sim.New(sim.Config{Seed: seed, Corrupt: 1})
	a, b := open(t, net, addrA), open(t, net, addrB)
	want := make([]byte, 4)
	in := make([]link.Datagram, 1)
	seen := make(map[int]bool)
	for range 500 {
		if err := a.Send([]link.Datagram{{Src: a.Source(0), Dst: b.Addr(), Payload: want}}); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Recv(in); n != 1 || err != nil {
			t.Fatalf("Recv = %d, %v; want 1", n, err)
		}
		flips := 0
		for _, c := range in[0].Payload {
			for ; c != 0; c &= c - 1 {
				flips++
			}
		}
		if flips < 1 || flips > 3 {
			t.Fatalf("seed %d: %d bits flipped, want 1 to 3", seed, flips)
		}
		seen[flips] = true
	}
	if len(seen) != 3 {
		t.Errorf("seed %d: flips of %v bits, want of 1, 2 and 3", seed, seen)
	}
	if !slices.Equal(want, make([]byte, 4)) {
		t.Error("the sender's payload was changed")
	}
}

func TestPartition(t *testing.T) {
	net := sim.New(sim.Config{})
	a, b, c := open(t, net, addrA), open(t, net, addrB), open(t, net, addrC)
	net.Partition(addrA, addrB)
	sendNumbers(t, a, b, 0, 3)
	sendNumbers(t, b, a, 0, 3)
	sendNumbers(t, c, b, 100, 1)
	if got := numbers(t, b); !slices.Equal(got, []int{100}) {
		t.Errorf("during the partition %v arrived, want only 100 from a third", got)
	}
	net.Heal(addrB, addrA)
	sendNumbers(t, a, b, 3, 1)
	if got := numbers(t, b); !slices.Equal(got, []int{3}) {
		t.Errorf("after Heal %v arrived, want 3", got)
	}
	if s := net.Stats(); s.Partitioned != 6 {
		t.Errorf("Partitioned = %d, want 6", s.Partitioned)
	}
}

func TestOverflow(t *testing.T) {
	net := sim.New(sim.Config{QueueLen: 10})
	a, b := open(t, net, addrA), open(t, net, addrB)
	sendNumbers(t, a, b, 0, 25)
	if got := numbers(t, b); len(got) != 10 || got[9] != 9 {
		t.Errorf("%v arrived, want the first 10", got)
	}
	for _, closed := range []bool{false, true} {
		if closed {
			b.Close() // forgets nothing
		}
		if n := b.Stats().ReceiveDrops; n != 15 {
			t.Errorf("closed %v: ReceiveDrops = %d, want 15", closed, n)
		}
		if s := net.Stats(); s.Overflowed != 15 {
			t.Errorf("closed %v: Overflowed = %d, want 15", closed, s.Overflowed)
		}
	}
}

func TestUnreachable(t *testing.T) {
	net := sim.New(sim.Config{})
	a := open(t, net, addrA)
	if err := a.Send([]link.Datagram{
		{Src: a.Source(0), Dst: netip.AddrPortFrom(addrB, link.Port), Payload: make([]byte, 20)},
		{Src: a.Source(0), Dst: netip.AddrPortFrom(addrA, 1), Payload: make([]byte, 20)},
	}); err != nil {
		t.Fatal(err)
	}
	if s := net.Stats(); s.Unreachable != 2 {
		t.Errorf("Unreachable = %d, want 2", s.Unreachable)
	}
	if s := a.Stats(); s.Sent != 2 || s.SendErrors != 0 {
		t.Errorf("stats %+v; want 2 sent: a sender cannot know", s)
	}
}

func TestReopen(t *testing.T) {
	net := sim.New(sim.Config{Reorder: 1, Delay: time.Hour})
	dev := net.Netdev("eth0", addrB)
	a := open(t, net, addrA)
	b, err := dev.Open(addrB)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.Open(addrB); err == nil {
		t.Error("a second link on the same address opened")
	}
	if _, err := dev.Open(addrC); err == nil {
		t.Error("a link opened on an address that the interface lacks")
	}
	sendNumbers(t, a, b, 0, 5)
	b.Close()
	if _, ok := net.NextDelivery(); ok {
		t.Error("datagrams are under way to a closed link")
	}
	b, err = dev.Open(addrB)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	sendNumbers(t, a, b, 5, 1)
	if _, ok := net.NextDelivery(); !ok {
		t.Error("nothing is under way to the link after it was opened again")
	}
}

func TestNetdev(t *testing.T) {
	net := sim.New(sim.Config{MTU: 1500})
	dev := net.Netdev("eth0", addrB)
	a := open(t, net, addrA)
	b, err := dev.Open(addrB)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	changed := func(what string, want bool) {
		t.Helper()
		select {
		case <-dev.Changed():
			if !want {
				t.Errorf("%s: Changed fired, want no change", what)
			}
		default:
			if want {
				t.Errorf("%s: Changed did not fire, want a change", what)
			}
		}
	}
	state := func() link.NetdevState {
		s, err := dev.State()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	changed("new", false)
	if s := state(); !s.Up || s.MTU != 1500 || !slices.Equal(s.Addrs, []netip.Addr{addrB}) || len(s.HardwareAddr) != 6 {
		t.Errorf("state %+v, want up, MTU 1500, %v and a hardware address", s, addrB)
	}
	dev.SetUp(false)
	changed("SetUp", true)
	sendNumbers(t, a, b, 0, 1)
	if err := b.Send([]link.Datagram{{Src: b.Source(0), Dst: a.Addr(), Payload: make([]byte, 20)}}); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.SendErrors != 1 {
		t.Errorf("SendErrors = %d on an interface that is down, want 1", s.SendErrors)
	}
	dev.SetUp(true)
	dev.AddAddr(addrC)
	changed("SetUp, AddAddr", true)
	changed("SetUp, AddAddr", false) // merged
	if s := state(); !s.Up || !slices.Equal(s.Addrs, []netip.Addr{addrB, addrC}) {
		t.Errorf("state %+v, want up, with %v and %v", s, addrB, addrC)
	}
	sendNumbers(t, a, b, 1, 1)
	dev.RemoveAddr(addrB)
	changed("RemoveAddr", true)
	sendNumbers(t, a, b, 2, 1)
	dev.AddAddr(addrB)
	sendNumbers(t, a, b, 3, 1)
	if got := numbers(t, b); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("%v arrived, want 1 and 3, sent while the interface was up with the address", got)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	<-dev.Changed() // the pending one
	if _, ok := <-dev.Changed(); ok {
		t.Error("Changed is not closed by Close")
	}
	dev.SetUp(false)
}

// In a bubble the delays take no time, and are exact to the nanosecond.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{Delay: 3 * time.Second})
		a, b := open(t, net, addrA), open(t, net, addrB)
		start := time.Now()
		sendNumbers(t, a, b, 0, 1)
		if err := b.Wait(time.Second); err != nil || time.Since(start) != time.Second {
			t.Errorf("Wait(1s) = %v after %v, want nil after 1s", err, time.Since(start))
		}
		if err := b.Wait(-1); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("Wait = %v after %v, want 3s", err, time.Since(start))
		}
		if got := numbers(t, b); len(got) != 1 {
			t.Errorf("arrived %v, want one datagram", got)
		}

		done := make(chan error)
		go func() { done <- b.Wait(-1) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Wait returned %v, want it to wait: nothing has happened", err)
		default:
		}
		sendNumbers(t, a, b, 1, 1) // wakes the waiter, which must then sleep until the datagram arrives
		if err := <-done; err != nil || time.Since(start) != 6*time.Second {
			t.Errorf("Wait = %v after %v, want 6s", err, time.Since(start))
		}
		b.Close()
		a.Close()
	})
}

func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			net := sim.New(sim.Config{})
			from, to := open(b, net, addrA), open(b, net, addrB)
			out := []link.Datagram{{Src: from.Source(0), Dst: to.Addr(), Payload: make([]byte, size)}}
			in := make([]link.Datagram, 1)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				from.Send(out)
				if n, _ := to.Recv(in); n != 1 {
					b.Fatal("nothing arrived")
				}
			}
		})
	}
}

func BenchmarkTrain(b *testing.B) {
	const segments, size = 16, 4096
	net := sim.New(sim.Config{})
	from, to := open(b, net, addrA), open(b, net, addrB)
	out := []link.Datagram{{Src: from.Source(0), Dst: to.Addr(), Payload: make([]byte, segments*size), SegmentSize: size}}
	in := make([]link.Datagram, segments)
	b.SetBytes(segments * size)
	b.ReportAllocs()
	for b.Loop() {
		from.Send(out)
		if n, _ := to.Recv(in); n != segments {
			b.Fatal("not all arrived")
		}
	}
}

// Two senders share the rate at which datagrams get through to a receiver. The datagrams of both
// are marked.
func TestRateIsShared(t *testing.T) {
	c := &clock{}
	net := sim.New(sim.Config{Rate: 4000, MarkCEAbove: 10, Now: c.Now}) // 4 bytes are through in 1 ms
	a, b, other := open(t, net, addrA), open(t, net, addrB), open(t, net, addrC)
	for i := range 4 {
		for _, from := range []link.Link{a, other} {
			d := link.Datagram{Src: from.Source(0), Dst: b.Addr(), Payload: binary.BigEndian.AppendUint32(nil, uint32(i)), TrafficClass: link.ECT0}
			if err := from.Send([]link.Datagram{d}); err != nil {
				t.Fatal(err)
			}
		}
	}
	batch := make([]link.Datagram, 1)
	for i := range 8 {
		at, ok := net.NextDelivery()
		if want := time.Duration(i+1) * time.Millisecond; !ok || at != want {
			t.Fatalf("datagram %d arrives at %v, %v; want %v", i, at, ok, want)
		}
		c.now = at
		if n, err := b.Recv(batch); n != 1 || err != nil {
			t.Fatalf("Recv at %v = %d, %v; want 1", at, n, err)
		}
		want := uint8(link.ECT0)
		if i >= 3 { // behind 12 bytes
			want = link.CE
		}
		if batch[0].TrafficClass != want {
			t.Errorf("datagram %d has class %#02x, want %#02x", i, batch[0].TrafficClass, want)
		}
	}
	if s := net.Stats(); s.Marked != 5 {
		t.Errorf("Stats.Marked = %d, want 5", s.Marked)
	}
}

// Without a rate, the queue that marks is the datagrams that wait for the receiver.
func TestMarkedBehindReceiver(t *testing.T) {
	net := sim.New(sim.Config{MarkCEAbove: 250})
	a, b := open(t, net, addrA), open(t, net, addrB)
	batch := make([]link.Datagram, 8)
	for round := range 2 {
		train := link.Datagram{Src: a.Source(0), Dst: b.Addr(), Payload: make([]byte, 500), SegmentSize: 100, TrafficClass: link.ECT1}
		if err := a.Send([]link.Datagram{train}); err != nil {
			t.Fatal(err)
		}
		n, err := b.Recv(batch)
		if n != 5 || err != nil {
			t.Fatalf("Recv = %d, %v; want 5", n, err)
		}
		for i, d := range batch[:n] {
			want := uint8(link.ECT1)
			if i >= 3 {
				want = link.CE
			}
			if d.TrafficClass != want {
				t.Errorf("round %d: datagram %d has class %#02x, want %#02x", round, i, d.TrafficClass, want)
			}
		}
	}
}
