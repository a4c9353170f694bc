package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A conversation is a list of work requests of a, whose effects check knows.
type conversation struct {
	name    string
	start   func(p *pair)
	written uint64 // bytes
	atomics uint64
	recvs   int
	sends   int
}

const (
	convSource = 1 << 10 // in a's memory
	convTarget = 1 << 16 // in both
	convRead   = 1 << 18
	convWord   = 1 << 19
)

func conversations() []conversation {
	recv := func(p *pair, id uint64, off, n int) { p.b.postRecv(id, p.b.mem.sge(convTarget+off, n)) }
	const mtu = 256
	return []conversation{
		{"SEND of one packet", func(p *pair) {
			recv(p, 1, 0, 100)
			p.post(p.a, sendWR(1, p.a.mem.sge(convSource, 100)))
		}, 0, 0, 1, 1},
		{"SEND of four packets", func(p *pair) {
			recv(p, 1, 0, 1000)
			p.post(p.a, sendWR(1, p.a.mem.sge(convSource, 1000)))
		}, 0, 0, 1, 1},
		{"three SENDs with immediate", func(p *pair) {
			for i := range 3 {
				recv(p, uint64(i+1), i*300, 300)
				p.post(p.a, withImm(sendWR(uint64(i+1), p.a.mem.sge(convSource+i*300, 300)), 5))
			}
		}, 0, 0, 3, 3},
		{"SEND without a receive at first", func(p *pair) {
			p.post(p.a, sendWR(1, p.a.mem.sge(convSource, 1000)))
			p.runUntil(1 * us)
			recv(p, 1, 0, 1000)
		}, 0, 0, 1, 1},
		{"WRITE of one packet", func(p *pair) {
			p.post(p.a, writeWR(1, p.b.mem.remote(convTarget), p.a.mem.sge(convSource, 99)))
		}, 99, 0, 0, 1},
		{"WRITE of five packets with immediate", func(p *pair) {
			recv(p, 1, 0, 0)
			p.post(p.a, withImm(writeWR(1, p.b.mem.remote(convTarget), p.a.mem.sge(convSource, 5*mtu)), 5))
		}, 5 * mtu, 0, 1, 1},
		{"overlapping WRITEs", func(p *pair) {
			p.post(p.a, writeWR(1, p.b.mem.remote(convTarget), p.a.mem.sge(convSource+7, 3*mtu)),
				writeWR(2, p.b.mem.remote(convTarget), p.a.mem.sge(convSource, 3*mtu)))
		}, 6 * mtu, 0, 0, 2},
		{"READ of one packet", func(p *pair) {
			p.post(p.a, readWR(1, p.b.mem.remote(convRead), p.a.mem.sge(convTarget, 17)))
		}, 0, 0, 0, 1},
		{"READ of six packets", func(p *pair) {
			p.post(p.a, readWR(1, p.b.mem.remote(convRead), p.a.mem.sge(convTarget, 6*mtu-3)))
		}, 0, 0, 0, 1},
		{"READ of two requests", func(p *pair) {
			p.post(p.a, readWR(1, p.b.mem.remote(convRead), p.a.mem.sge(convTarget, (readChunk+3)*mtu-3)))
		}, 0, 0, 0, 1},
		{"atomics", func(p *pair) {
			p.post(p.a, addWR(1, p.b.mem.remote(convWord), 1, p.a.mem.sge(convTarget, 8)),
				casWR(2, p.b.mem.remote(convWord), 1, 10, p.a.mem.sge(convTarget+8, 8)),
				addWR(3, p.b.mem.remote(convWord), 100, p.a.mem.sge(convTarget+16, 8)))
		}, 0, 3, 0, 3},
		{"all kinds", func(p *pair) {
			recv(p, 1, 2*mtu, 2*mtu)
			p.post(p.a, writeWR(1, p.b.mem.remote(convTarget), p.a.mem.sge(convSource, 2*mtu)),
				readWR(2, p.b.mem.remote(convTarget), p.a.mem.sge(convTarget, 3*mtu)),
				addWR(3, p.b.mem.remote(convWord), 1, p.a.mem.sge(convTarget+1<<12, 8)),
				withFlags(sendWR(4, p.a.mem.sge(convSource+2*mtu, 2*mtu)), verbs.SendSignaled|verbs.SendFence),
				readWR(5, p.b.mem.remote(convRead), p.a.mem.sge(convTarget+1<<13, 2*mtu)),
				casWR(6, p.b.mem.remote(convWord), 1, 2, p.a.mem.sge(convTarget+1<<12+8, 8)))
		}, 2 * mtu, 2, 1, 6},
	}
}

// hold runs a conversation on a network that route describes. The memory of both ends must then equal that of want,
// which ran without faults. Nothing may have been done twice.
func (c *conversation) hold(t *testing.T, s setup, single bool, want *pair, route func(from *node, n int, p *wire.Packet) []delay) *pair {
	t.Helper()
	s.mtu = verbs.MTU256
	p := newPair(t, s)
	p.single, p.route = single, route
	for _, e := range []*node{p.a, p.b} {
		clear(e.mem.data[convWord:][:64])
	}
	c.start(p)
	p.run()
	done := p.b.qp.Work()
	if len(p.a.sends) != c.sends || len(p.b.recvd) != c.recvs || done.WriteBytes != c.written || done.Atomics != c.atomics {
		t.Errorf("%d sends completed, %d receives, %d bytes written, %d atomics; want %d, %d, %d, %d",
			len(p.a.sends), len(p.b.recvd), done.WriteBytes, done.Atomics, c.sends, c.recvs, c.written, c.atomics)
	}
	for i, s := range p.a.sends {
		if s.wc.ID != uint64(i+1) || s.wc.Status != verbs.WCSuccess {
			t.Errorf("send completion %+v, want the success of %d", s.wc, i+1)
		}
	}
	for i, r := range p.b.recvd {
		if r.wc.ID != uint64(i+1) || r.wc.Status != verbs.WCSuccess {
			t.Errorf("receive completion %+v, want the success of %d", r.wc, i+1)
		}
	}
	if want != nil && (!bytes.Equal(p.a.mem.data, want.a.mem.data) || !bytes.Equal(p.b.mem.data, want.b.mem.data)) {
		t.Error("memory differs from that of a run without faults")
	}
	return p
}

// TestSingleFaults runs every conversation once for each packet that can be lost, repeated, late
// or overtaken by the next, at every PSN around the wrap.
func TestSingleFaults(t *testing.T) {
	faults := []struct {
		name   string
		delays []delay
	}{
		{"lost", nil},
		{"twice at once", []delay{testDelay, testDelay}},
		{"twice", []delay{testDelay, 3 * testDelay}},
		{"late", []delay{3 * testDelay}},
		{"much too late", []delay{testDelay, 6 * ms}},
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for _, c := range conversations() {
		for mode := range 4 {
			single, selective := mode&1 != 0, mode&2 != 0
			s := setup{psnA: 0xfffffe, psnB: 0x7fffff, selective: selective}
			clean := c.hold(t, s, single, nil, nil)
			for _, e := range []*node{clean.a, clean.b} {
				for n := 0; n < e.sent; n += step {
					for _, f := range faults {
						s.psnA = verbs.PSN(-1-n%4) & 0xffffff
						ok := t.Run(fmt.Sprintf("%s/%s%d %s single=%v selective=%v", c.name, e.name, n, f.name, single, selective), func(t *testing.T) {
							c.hold(t, s, single, clean, func(from *node, k int, _ *wire.Packet) []delay {
								if from.name == e.name && k == n {
									return f.delays
								}
								return []delay{testDelay}
							})
						})
						if !ok {
							return
						}
					}
				}
			}
		}
	}
}

// TestLossOfTwo loses each pair of packets of the conversation that has all kinds of work requests.
func TestLossOfTwo(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	cs := conversations()
	c := cs[len(cs)-1]
	clean := c.hold(t, setup{}, false, nil, nil)
	total := clean.a.sent + clean.b.sent + 6
	for i := range total {
		for k := i + 1; k < total; k++ {
			n := 0
			c.hold(t, setup{}, false, clean, func(*node, int, *wire.Packet) []delay {
				if n++; n-1 == i || n-1 == k {
					return nil
				}
				return []delay{testDelay}
			})
			if t.Failed() {
				t.Fatalf("packets %d and %d of both ends are lost, want the conversation to end well", i, k)
			}
		}
	}
}

// TestPSNWrap starts every conversation at each PSN shortly before the wrap.
func TestPSNWrap(t *testing.T) {
	for _, c := range conversations() {
		clean := c.hold(t, setup{}, false, nil, nil)
		for k := range verbs.PSN(9) {
			p := c.hold(t, setup{psnA: 0xffffff - k, psnB: k}, false, clean, nil)
			if n := p.a.qp.Counters(); n != (Counters{}) && n.RNRNAKs == 0 {
				t.Errorf("%s from PSN 0xffffff-%d: counters %+v, want zeros or RNR NAKs", c.name, k, n)
			}
		}
	}
}
