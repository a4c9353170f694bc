package hca

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// relabelled sends with other IPv6 flow labels than the device has chosen.
type relabelled struct {
	link.Link
	label func(d *link.Datagram) uint32
}

func (l *relabelled) Send(batch []link.Datagram) error {
	batch = slices.Clone(batch)
	for i := range batch {
		batch[i].FlowLabel = l.label(&batch[i])
	}
	return l.Link.Send(batch)
}

// greetings counts packets that only adverbs understand, and all others.
type greetings struct {
	link.Link
	ours, others *int
}

func (l greetings) Send(batch []link.Datagram) error {
	for i := range batch {
		for s := range batch[i].Segments() {
			if batch[i].Segment(s)[0] >= byte(wire.Secured) { // the manufacturers' opcodes
				*l.ours++
			} else {
				*l.others++
			}
		}
	}
	return l.Link.Send(batch)
}

// labelledPair is two connected ends over IPv6, of which y sends by some labels. It returns how many packets of x only
// adverbs understand.
func labelledPair(t *testing.T, label func(d *link.Datagram) uint32) (x, y *end, greeted func() int) {
	t.Helper()
	var ours, others int
	net := sim.New(sim.Config{})
	a := simDevice(t, net, 1, func(l link.Link) link.Link { return greetings{l, &ours, &others} })
	b := simDevice(t, net, 2, func(l link.Link) link.Link {
		if label == nil {
			return l
		}
		return &relabelled{l, label}
	})
	x, y = connect(t, a, b, options{gid: 1})
	return x, y, func() int {
		synctest.Wait()
		if others == 0 {
			t.Fatal("no packets were counted")
		}
		return ours
	}
}

// labelOf is the flow label of an adverb's datagrams.
func labelOf(src netip.AddrPort, dst netip.Addr) uint32 {
	f := wire.NewFlow(src, netip.AddrPortFrom(dst, link.Port))
	return f.Label()
}

// talk moves n short messages each way.
func talk(x, y *end, n int) {
	mx, my := x.mr(64), y.mr(64)
	for range n {
		message(x, y, mx, my, 64)
		message(y, x, my, mx, 64)
	}
}

// TestLabelsTell: over IPv6 a peer is greeted once if a few packets in a row have the flow label of an adverb, and
// never if they have another one, none, or one that changes. So cards and kernels get standard packets only.
func TestLabelsTell(t *testing.T) {
	always := func(l uint32) func(*link.Datagram) uint32 { return func(*link.Datagram) uint32 { return l } }
	r := rand.New(rand.NewPCG(7, 0))
	n := 0
	for _, tt := range []struct {
		name  string
		label func(d *link.Datagram) uint32
		want  int
	}{
		{"an adverb's", nil, 1},
		{"none, as of a kernel", always(0), 0},
		{"one for all, as of a card", always(0x12345), 0},
		{"at random", func(*link.Datagram) uint32 { return uint32(r.IntN(1 << 20)) }, 0},
		{"of the other way", func(d *link.Datagram) uint32 {
			return labelOf(netip.AddrPortFrom(d.Dst.Addr(), d.Src.Port()), d.Src.Addr())
		}, 0},
		{"of another port", func(d *link.Datagram) uint32 {
			return labelOf(netip.AddrPortFrom(d.Src.Addr(), d.Src.Port()^1), d.Dst.Addr())
		}, 0},
		{"right, but for one of a few", func(d *link.Datagram) uint32 {
			if n++; n%peer.SureRestarts == 0 {
				return 0
			}
			return d.FlowLabel
		}, 0},
		{"right from some packet on", func(d *link.Datagram) uint32 {
			if n++; n < 50 {
				return 0
			}
			return d.FlowLabel
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n = 0
				x, y, greeted := labelledPair(t, tt.label)
				talk(x, y, 3)
				if got := greeted(); got != 0 {
					t.Errorf("%d greetings after 3 messages, want none yet", got)
				}
				talk(x, y, 50)
				if got := greeted(); got != tt.want {
					t.Errorf("%d packets that only adverbs understand, want %d", got, tt.want)
				}
				if sure := x.impl().peer.IsSurelyAdverb(); sure != (tt.want > 0) {
					t.Errorf("taken for an adverb: %v, want %v", sure, tt.want > 0)
				}
				untroubled(t, x)
			})
		})
	}
}

// TestForgedLabels: the flow labels of packets that make no progress tell nothing of the peer.
func TestForgedLabels(t *testing.T) {
	for _, ours := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var label func(*link.Datagram) uint32
			if !ours {
				label = func(*link.Datagram) uint32 { return 0 }
			}
			x, y, greeted := labelledPair(t, label)
			talk(x, y, 20)
			before := greeted()
			out := y.impl().out
			forged := uint32(0)
			if !ours {
				forged = out.flow.Label()
			}
			far := expectedPSN(x).Add(1 << 20)
			for i := range 100 {
				p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: uint32(x.qp.QPN()), PSN: far.Add(i)}}
				b := p.AppendTo(nil)
				out.flow.Seal(0, b)
				l := out.eng.link
				if r, ok := l.(*relabelled); ok {
					l = r.Link
				}
				x.must(l.Send([]link.Datagram{{Src: out.src, Dst: out.dst, Payload: b, FlowLabel: forged}}))
				synctest.Wait()
			}
			if n := counters(x).OutOfOrder; n != 100 {
				t.Fatalf("%d forged packets counted as out of order, want 100", n)
			}
			if sure := x.impl().peer.IsSurelyAdverb(); sure != ours {
				t.Errorf("an adverb: %v; after forged packets it is taken for one: %v, want what it is", ours, sure)
			}
			if n := greeted(); n != before {
				t.Errorf("an adverb: %v; %d greetings by forged packets, want none", ours, n-before)
			}
			talk(x, y, 1)
		})
	}
}

// TestLabelsOfPaths: over IPv6 a QP fills several paths too, each by its source port and that one's label, and its peer
// knows it by all of them.
func TestLabelsOfPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[uint16]uint32{}
		x, y, _ := labelledPair(t, func(d *link.Datagram) uint32 {
			seen[d.Src.Port()] = d.FlowLabel
			return d.FlowLabel
		})
		for _, e := range []*end{x, y} {
			e.must(e.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Paths: 4}))
		}
		talk(x, y, 20) // they get to know each other
		const size = 1 << 20
		src, dst := y.mr(size), x.mr(size)
		fill(src.Bytes(), 1)
		y.transfer(src, dst)
		if len(seen) != 4 {
			t.Errorf("the QP sends from %d ports, want 4", len(seen))
		}
		labels := map[uint32]bool{}
		for port, label := range seen {
			if want := labelOf(netip.AddrPortFrom(simAddr6(2), port), simAddr6(1)); label != want || label == 0 {
				t.Errorf("what leaves from port %d has flow label %#05x, want %#05x", port, label, want)
			}
			labels[label] = true
		}
		if len(labels) != len(seen) {
			t.Errorf("%d ports have %d labels, want as many", len(seen), len(labels))
		}
		if !x.impl().peer.IsSurelyAdverb() {
			t.Error("a peer that sends from several ports is not known as an adverb")
		}
		if d := stats(t, x.dev).Drops; d != (Drops{}) {
			t.Errorf("drops %+v, want none", d)
		}
	})
}
