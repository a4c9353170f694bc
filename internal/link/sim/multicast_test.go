package sim_test

import (
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/link/trace"
)

var (
	group4, other4 = netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("239.1.2.4")
	group6, other6 = netip.MustParseAddr("ff12::1:3"), netip.MustParseAddr("ff02::1:4")
)

func TestMulticastConformance(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (a, b link.Link){
		"IPv4":    openPair(sim.Config{}, "10.0.0.1", "10.0.0.2"),
		"Visible": openPair(sim.Config{IDVisible: true}, "10.0.0.1", "10.0.0.2"),
		"Delay":   openPair(sim.Config{Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond}, "10.0.0.1", "10.0.0.2"),
		"Itself": func(t *testing.T) (a, b link.Link) {
			l := open(t, sim.New(sim.Config{}), addrA)
			return l, l
		},
		"Stack": func(t *testing.T) (a, b link.Link) {
			w, err := pcap.New(io.Discard, pcap.Options{})
			if err != nil {
				t.Fatal(err)
			}
			a, b = openPair(sim.Config{}, "10.0.0.1", "10.0.0.2")(t)
			stack := []link.Middleware{trace.New(time.Now(), trace.ToWriter(io.Discard, "dev")), w.Middleware(), fault.New(fault.Config{Directions: fault.Outgoing})}
			return link.Chain(a, stack...), link.Chain(b, stack...)
		},
	} {
		t.Run(name, func(t *testing.T) { linktest.Multicast(t, group4, other4, open) })
	}
	t.Run("IPv6", func(t *testing.T) {
		linktest.Multicast(t, group6, other6, openPair(sim.Config{}, "fd00::1", "fd00::2"))
	})
}

func TestMulticastAllocs(t *testing.T) {
	linktest.MulticastAllocs(t, group4, openPair(sim.Config{}, "10.0.0.1", "10.0.0.2"))
	linktest.MulticastAllocs(t, group4, openPair(sim.Config{Delay: time.Microsecond}, "10.0.0.1", "10.0.0.2"))
}

func join(t testing.TB, l link.Link, group netip.Addr) {
	t.Helper()
	if err := link.Join(l, group); err != nil {
		t.Fatal(err)
	}
}

func sendGroup(t testing.TB, from link.Link, group netip.Addr, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		p := binary.BigEndian.AppendUint32(nil, uint32(i))
		if err := from.Send([]link.Datagram{{Src: from.Source(0), Dst: netip.AddrPortFrom(group, link.Port), Payload: p}}); err != nil {
			t.Fatal(err)
		}
	}
	if s := from.Stats(); s.LastSendError != nil {
		t.Fatal(s.LastSendError)
	}
}

// For each member a group's datagrams have the fates of the path to that member, as unicast
// datagrams would.
func TestMulticastFates(t *testing.T) {
	const n = 1000
	receive := func(send func(t testing.TB, from, a, b link.Link)) (a, b []int) {
		var c clock
		net := sim.New(sim.Config{Seed: 7, Loss: 0.2, Duplicate: 0.1, QueueLen: 4 * n, Now: c.Now})
		atA, atB := open(t, net, addrA), open(t, net, addrB)
		send(t, open(t, net, addrC), atA, atB)
		c.now = time.Second // everything has arrived by then
		return numbers(t, atA), numbers(t, atB)
	}
	wantA, wantB := receive(func(t testing.TB, from, a, b link.Link) {
		sendNumbers(t, from, a, 0, n)
		sendNumbers(t, from, b, 0, n)
	})
	gotA, gotB := receive(func(t testing.TB, from, a, b link.Link) {
		join(t, b, group4)
		join(t, a, group4)
		sendGroup(t, from, group4, 0, n)
	})
	if !slices.Equal(gotA, wantA) || !slices.Equal(gotB, wantB) {
		t.Errorf("seed 7: the members received %d and %d datagrams of the group, want as many as of datagrams to themselves, %d and %d",
			len(gotA), len(gotB), len(wantA), len(wantB))
	}
	if slices.Equal(gotA, gotB) {
		t.Error("seed 7: both members lost the same datagrams")
	}
}

// A partition separates a sender from one member only.
func TestMulticastPartition(t *testing.T) {
	net := sim.New(sim.Config{})
	a, b, c := open(t, net, addrA), open(t, net, addrB), open(t, net, addrC)
	for _, l := range []link.Link{a, b, c} {
		join(t, l, group4)
	}
	net.Partition(addrA, addrB)
	sendGroup(t, a, group4, 0, 3)
	net.Heal(addrA, addrB)
	sendGroup(t, a, group4, 3, 2)
	for _, m := range []struct {
		name string
		l    link.Link
		want []int
	}{{"the sender", a, []int{0, 1, 2, 3, 4}}, {"the parted", b, []int{3, 4}}, {"the third", c, []int{0, 1, 2, 3, 4}}} {
		if got := numbers(t, m.l); !slices.Equal(got, m.want) {
			t.Errorf("%s received %v, want %v", m.name, got, m.want)
		}
	}
	if s := net.Stats(); s.Partitioned != 3 {
		t.Errorf("Partitioned = %d, want 3", s.Partitioned)
	}
}

// A link that is opened on the address of an earlier member is no member.
func TestMulticastReopen(t *testing.T) {
	net := sim.New(sim.Config{})
	dev := net.Netdev("a", addrA)
	l, err := dev.Open(addrA)
	if err != nil {
		t.Fatal(err)
	}
	join(t, l, group4)
	l.Close()
	if l, err = dev.Open(addrA); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sendGroup(t, l, group4, 0, 3)
	if got := numbers(t, l); len(got) > 0 {
		t.Errorf("received %v of a group that the link has not joined, want nothing", got)
	}
}
