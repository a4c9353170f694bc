package transport

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// narrow loses the packets with more than n bytes of data, in both directions.
func (p *pair) narrow(n int) {
	p.routeWith(func(_ *node, _ int, pkt *wire.Packet) bool { return len(pkt.Payload) > n })
}

// TestMTUSearch: on a network that loses large packets a QP fails, and the error has the size that gets through. The
// peer executes none of the probes.
func TestMTUSearch(t *testing.T) {
	const mtu = verbs.MTU4096
	write := func(p *pair, n int) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, n)) }
	read := func(p *pair, n int) verbs.SendWR { return readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, n)) }
	send := func(p *pair, n int) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, n)) }
	for _, c := range []struct {
		name  string
		set   setup
		limit int // bytes of data that the network carries
		first func(p *pair) []verbs.SendWR
		n     int
		wr    func(p *pair, n int) verbs.SendWR
		want  verbs.PathMTUError // PathMTU is 4096
	}{
		{"a WRITE", setup{}, 1400, nil, 64 << 10, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU1024}},
		{"a WRITE that ends by a small packet", setup{}, 2100, nil, 16<<10 + 8, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU2048}},
		{"a WRITE among adverbs that ends by a small packet", setup{selective: true}, 600, nil, 16<<10 + 8, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU512}},
		{"a short SEND", setup{}, 1024, nil, 1025, send, verbs.PathMTUError{Lost: 1025, Fits: verbs.MTU1024}},
		{"a READ", setup{}, 1400, nil, 64 << 10, read, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU1024, Response: true}},
		{"a READ among adverbs", setup{selective: true}, 300, nil, 8 << 10, read, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU256, Response: true}},
		{"a READ that ends by a small packet", setup{}, 2048, nil, 8<<10 + 8, read, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU2048, Response: true}},
		{"behind small ones", setup{psnA: 1<<24 - 1}, 1400, func(p *pair) []verbs.SendWR { return []verbs.SendWR{sendWR(1, p.a.mem.sge(0, 64))} },
			64 << 10, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU1024}},
		{"before small ones", setup{}, 1400, nil, 4096, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU1024}},
		{"3 retries", setup{retry: 3}, 1400, nil, 4096, write, verbs.PathMTUError{Lost: 4096, Fits: verbs.MTU1024}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.set.mtu = mtu
			p := newPair(t, c.set)
			for id := range uint64(8) {
				p.b.postRecv(100+id, p.b.mem.sge(64<<10, 4096))
			}
			received := 0
			if c.first != nil {
				p.post(p.a, c.first(p)...)
				p.run()
				received = len(p.b.recvd)
				p.a.sends = nil
			}
			p.narrow(c.limit)
			p.post(p.a, c.wr(p, c.n))
			if strings.HasPrefix(c.name, "before") {
				p.post(p.a, sendWR(3, p.a.mem.sge(0, 8)), readWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
			}
			p.run()
			if len(p.a.sends) == 0 || p.a.sends[0].wc.ID != 2 || p.a.sends[0].wc.Status != verbs.WCRetryExceeded {
				t.Fatalf("got %v, want work request 2 to fail with %v", p.a.sends, verbs.WCRetryExceeded)
			}
			want := c.want
			want.PathMTU = mtu
			for _, err := range []error{p.a.sends[0].wc.Cause, p.a.qp.Failure()} {
				if hole, ok := errors.AsType[*verbs.PathMTUError](err); !ok || *hole != want {
					t.Errorf("got %v, want %+v in it", err, want)
				}
			}
			if n := p.a.qp.Counters().BlackHoles; n != 1 {
				t.Errorf("counted %d times, want once", n)
			}
			for _, s := range p.packets(p.a, 0) {
				if s.Opcode == wire.RCSendOnly && len(s.Payload) >= 256 && s.PSN == psn(p.a.rc().recovery.Una()-1) && len(bytes.Trim(s.Payload, "\x00")) > 0 {
					t.Fatalf("the probe of %d bytes has the buffer's earlier content, want zeros", len(s.Payload))
				}
			}
			if len(p.b.recvd) != received {
				t.Errorf("the peer has received %v, want none of the probes", p.b.recvd)
			}
		})
	}
}

// TestMTUSearchDuplicate: an acknowledgement that the network duplicates does not count for the next size, which was
// not sent yet.
func TestMTUSearchDuplicate(t *testing.T) {
	l := mtuSearch{size: verbs.MTU256, largest: verbs.MTU4096, inFlight: true}
	if !l.probeAnswered() || l.fits != verbs.MTU256 {
		t.Errorf("the largest answered size is %v, want %v", l.fits, verbs.MTU256)
	}
	if l.probeAnswered() || l.fits != verbs.MTU256 {
		t.Errorf("answered twice: the largest answered size is %v, want %v", l.fits, verbs.MTU256)
	}
}

// TestMTUSearchSilent: without answered probes the error proposes no size, and only repeats and probes are sent.
func TestMTUSearchSilent(t *testing.T) {
	for _, c := range []struct {
		name string
		set  setup
		wr   func(p *pair) verbs.SendWR
		lose func(p *pair, from *node, n int, pkt *wire.Packet) bool
		none bool // no packet asks
	}{
		{"a peer that is gone", setup{}, func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8192)) },
			func(*pair, *node, int, *wire.Packet) bool { return true }, false},
		{"small packets", setup{}, func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 256)) },
			func(*pair, *node, int, *wire.Packet) bool { return true }, true},
		{"an atomic", setup{}, func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) },
			func(p *pair, from *node, _ int, _ *wire.Packet) bool { return from == p.b }, true},
		{"a peer that goes meanwhile", setup{}, func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8192)) },
			func(p *pair, _ *node, _ int, pkt *wire.Packet) bool {
				return len(pkt.Payload) > 1024 || p.now > 7*wire.ACKTimeout(testTimeout)
			}, false},
		{"too few retries", setup{retry: 1}, func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8192)) },
			func(_ *pair, _ *node, _ int, pkt *wire.Packet) bool { return len(pkt.Payload) > 1024 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.set.mtu = verbs.MTU4096
			p := newPair(t, c.set)
			p.routeWith(func(from *node, n int, pkt *wire.Packet) bool { return c.lose(p, from, n, pkt) })
			p.post(p.a, c.wr(p))
			p.run()
			p.a.wantSends(wc{2, verbs.WCRetryExceeded})
			if _, ok := errors.AsType[*verbs.PathMTUError](p.a.qp.Failure()); ok || p.a.qp.Counters().BlackHoles != 0 {
				t.Errorf("got %v, want nothing about sizes", p.a.qp.Failure())
			}
			asks := slices.ContainsFunc(p.packets(p.a, 0), func(s sentPacket) bool { return s.PSN == wire.PSNMask })
			if c.none && asks {
				t.Error("a packet asks for sizes, want none")
			}
		})
	}
}

// TestMTUSearchGoesOn: a packet that arrives in the end ends the search. Its result does not count for the next lost
// packet, whose own search begins anew.
func TestMTUSearchGoesOn(t *testing.T) {
	for _, gone := range []bool{true, false} {
		p := newPair(t, setup{mtu: verbs.MTU4096})
		after := 6 * wire.ACKTimeout(testTimeout)
		p.routeWith(func(_ *node, _ int, pkt *wire.Packet) bool { return len(pkt.Payload) > 1024 && p.now < after })
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 64<<10)))
		p.run()
		p.a.wantSends(wc{1, verbs.WCSuccess})
		if n := p.a.qp.Counters(); n.BlackHoles != 0 || n.Unexpected != 0 {
			t.Errorf("%+v, want no black hole and nothing unexpected", n)
		}
		if gone {
			p.cutAfter(0)
		} else {
			p.narrow(600)
		}
		p.post(p.a, writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 64<<10)))
		p.run()
		hole, ok := errors.AsType[*verbs.PathMTUError](p.a.qp.Failure())
		if ok == gone || ok && hole.Fits != verbs.MTU512 {
			t.Errorf("the peer is gone: %t; got %v, want a path MTU of 512 if it is not, and nothing about sizes if it is", gone, p.a.qp.Failure())
		}
	}
}

// TestMTUSearchEnds: an acknowledge timeout leaves nothing behind once the packet is acknowledged.
func TestMTUSearchEnds(t *testing.T) {
	p := newPair(t, setup{})
	p.loseNth(p.a, 0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess})
	if c, l := p.a.qp.Counters(), p.a.rc().mtuSearch; c.Timeouts != 1 || l != (mtuSearch{}) {
		t.Errorf("after %d timeouts and an acknowledgement: got the search %+v, want one, and none", c.Timeouts, l)
	}
}
