package transport

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSplit: while others are in flight, a short WRITE goes as WRITE ONLYs, of one length but for the last.
func TestSplit(t *testing.T) {
	const size = 3*1024 + 100
	p, post := inFlightPair(t, setup{mtu: verbs.MTU1024, selective: true}, corkFrom)
	dst := p.b.mem.data[4096:][:size]
	clear(dst)
	mark := len(p.log)
	for i := range 2 { // as many packets as leave at once
		post(writeWR(uint64(i), p.b.mem.remote(4096), p.a.mem.sge(8192, size)))
	}
	p.run()
	sent := p.packets(p.a, mark)
	if len(sent) != 8 {
		t.Fatalf("2 WRITEs of %d bytes take %d packets, want 8", size, len(sent))
	}
	for i, s := range sent {
		k := i % 4
		want := wire.RETH{VA: p.b.mem.remote(4096).VA + uint64(1024*k), RKey: uint32(p.b.mem.remote(0).RKey), Length: 1024}
		if k == 3 {
			want.Length = 100
		}
		if s.Opcode != wire.RCRDMAWriteOnly || s.RETH != want || s.AckReq != (k == 3) {
			t.Errorf("packet %d: %v of %+v, AckReq %v; want %v of %+v, AckReq %v", i, s.Opcode, s.RETH, s.AckReq, wire.RCRDMAWriteOnly, want, k == 3)
		}
	}
	if !bytes.Equal(dst, p.a.mem.data[8192:][:size]) {
		t.Error("the data differ")
	}
	p.a.polled(corkFrom + 2)
}

// TestSplitCredits: a WRITE that goes as several messages is counted as so many, so that the peer's MSN fits.
func TestSplitCredits(t *testing.T) {
	p, post := inFlightPair(t, setup{mtu: verbs.MTU1024, selective: true}, corkFrom)
	post(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4096)))
	post(writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 4096)))
	for i := range 4 {
		p.b.postRecv(uint64(i), p.b.mem.sge(0, 8))
	}
	p.run()
	p.b.credit = true
	post(sendWR(3, p.a.mem.sge(0, 8)))
	p.run()
	r, sq := &p.a.rc().requester, &p.a.qp.sq
	if got, want := r.creditLimit-sq.messages, uint64(3); got != want {
		t.Errorf("credits for %d more messages, want %d: the receives that are left", got, want)
	}
}

// TestSplitNot: these WRITEs go as one message.
func TestSplitNot(t *testing.T) {
	whole := []wire.Opcode{wire.RCRDMAWriteFirst, wire.RCRDMAWriteLast}
	for _, tt := range []struct {
		name   string
		s      setup
		flying int
		wr     func(p *pair) verbs.SendWR
		want   []wire.Opcode
	}{
		{"few on their way", setup{selective: true}, corkFrom - 1, func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1500)) }, whole},
		{"to a foreign peer", setup{}, corkFrom, func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1500)) }, whole},
		{"with immediate data", setup{selective: true}, corkFrom, func(p *pair) verbs.SendWR {
			p.b.postRecv(1, p.b.mem.sge(0, 8))
			wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1500))
			wr.Op = verbs.OpRDMAWriteWithImm
			return wr
		}, []wire.Opcode{wire.RCRDMAWriteFirst, wire.RCRDMAWriteLastWithImm}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.s.mtu = verbs.MTU1024
			p, _ := inFlightPair(t, tt.s, tt.flying)
			mark := len(p.log)
			p.post(p.a, tt.wr(p))
			p.run()
			if got := p.opcodes(p.a, mark); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("a long one", func(t *testing.T) {
		p, _ := inFlightPair(t, setup{mtu: verbs.MTU1024, selective: true}, corkFrom)
		mark := len(p.log)
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, splitMost+1)))
		p.run()
		if got := p.opcodes(p.a, mark); got[0] != wire.RCRDMAWriteFirst || got[len(got)-1] != wire.RCRDMAWriteLast {
			t.Errorf("got %v, want one message", got)
		}
	})
}
