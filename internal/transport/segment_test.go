package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var allMTUs = []verbs.MTU{verbs.MTU256, verbs.MTU512, verbs.MTU1024, verbs.MTU2048, verbs.MTU4096}

func lengthsFor(mtu int) []int {
	return []int{0, 1, 2, 3, 4, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 3 * mtu, 3*mtu + 2, 70*mtu + 5}
}

// wantOpcode returns the opcode of packet i of n.
func wantOpcode(op verbs.Opcode, i, n int) wire.Opcode {
	pos := posMiddle
	if i == 0 {
		pos |= posFirst
	}
	if i == n-1 {
		pos |= posLast
	}
	return map[verbs.Opcode]map[int]wire.Opcode{
		verbs.OpSend:             {posFirst: 0x00, posMiddle: 0x01, posLast: 0x02, posOnly: 0x04},
		verbs.OpSendWithImm:      {posFirst: 0x00, posMiddle: 0x01, posLast: 0x03, posOnly: 0x05},
		verbs.OpRDMAWrite:        {posFirst: 0x06, posMiddle: 0x07, posLast: 0x08, posOnly: 0x0a},
		verbs.OpRDMAWriteWithImm: {posFirst: 0x06, posMiddle: 0x07, posLast: 0x09, posOnly: 0x0b},
		verbs.OpRDMARead:         {posFirst: 0x0d, posMiddle: 0x0e, posLast: 0x0f, posOnly: 0x10},
	}[op][pos]
}

// TestSegmentation checks every header of every packet of SENDs and WRITEs.
func TestSegmentation(t *testing.T) {
	const firstPSN, imm, at = 0xfffffe, 0xa1b2c3d4, 4096
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
		for _, mtu := range allMTUs {
			for _, length := range lengthsFor(mtu.Bytes()) {
				p := newPair(t, setup{mtu: mtu, psnA: firstPSN})
				p.b.postRecv(70, p.b.mem.sge(at, length))
				src := p.a.mem.data[8:][:length]
				p.post(p.a, verbs.SendWR{ID: 1, Op: op, Flags: verbs.SendSignaled | verbs.SendSolicited,
					SGList: []verbs.SGE{p.a.mem.sge(8, length)}, Remote: p.b.mem.remote(at), Imm: imm})
				p.run()

				name := fmt.Sprintf("%v of %d at %v", op, length, mtu)
				sent := p.packets(p.a, 0)
				n := max(1, (length+mtu.Bytes()-1)/mtu.Bytes())
				if len(sent) != n {
					t.Fatalf("%s: %d packets, want %d", name, len(sent), n)
				}
				write := op == verbs.OpRDMAWrite || op == verbs.OpRDMAWriteWithImm
				for i, s := range sent {
					last := i == n-1
					chunk := src[i*mtu.Bytes() : min(length, (i+1)*mtu.Bytes())]
					if s.Opcode != wantOpcode(op, i, n) || s.PSN != wire.PSN(firstPSN).Add(i) || s.PadCount != uint8(-len(chunk)&3) ||
						s.Solicited != (last && op != verbs.OpRDMAWrite) || !bytes.Equal(s.Payload, chunk) {
						t.Errorf("%s: packet %d: %+v, want %v, PSN %v and %d bytes of the source", name, i, s.BTH, wantOpcode(op, i, n), wire.PSN(firstPSN).Add(i), len(chunk))
					}
					if ask := last || i > 0 && i%(maxWindow/ackParts) == 0; s.AckReq != ask {
						t.Errorf("%s: packet %d: AckReq %v, want %v", name, i, s.AckReq, ask)
					}
					if want := (wire.RETH{VA: p.b.mem.base + at, RKey: p.b.mem.key, Length: uint32(length)}); write && i == 0 && s.RETH != want {
						t.Errorf("%s: RETH %+v, want %+v", name, s.RETH, want)
					}
					if s.Opcode.HasImm() && s.Imm != imm {
						t.Errorf("%s: immediate %#x, want %#x", name, s.Imm, uint32(imm))
					}
				}
				if !bytes.Equal(p.b.mem.data[at:][:length], src) {
					t.Errorf("%s: the data differ, want those of the source", name)
				}
				p.a.wantSends(wc{1, verbs.WCSuccess})
				if op == verbs.OpRDMAWrite {
					p.b.wantRecvs()
					continue
				}
				p.b.wantRecvs(wc{70, verbs.WCSuccess})
				got := p.b.recvd[0]
				want := verbs.WC{ID: 70, Op: verbs.WCRecv, ByteLen: uint32(length), QPN: 0x22, SrcQPN: 0x11}
				if write {
					want.Op = verbs.WCRecvRDMAWithImm
				}
				if op != verbs.OpSend {
					want.Flags, want.Imm = verbs.WCFlagWithImm, imm
				}
				if got.wc != want || !got.solicited {
					t.Errorf("%s: %+v, want %+v", name, got, want)
				}
			}
		}
	}
}

// TestSegmentationRead checks READ requests and responses, chunk by chunk.
func TestSegmentationRead(t *testing.T) {
	const firstPSN, at, to = 0xfffff0, 100, 256
	for _, mtu := range allMTUs {
		for _, length := range lengthsFor(mtu.Bytes()) {
			p := newPair(t, setup{mtu: mtu, psnA: firstPSN})
			want := bytes.Clone(p.b.mem.data[at:][:length])
			p.post(p.a, readWR(1, p.b.mem.remote(at), p.a.mem.sge(to, length)))
			p.run()

			name := fmt.Sprintf("READ of %d at %v", length, mtu)
			p.a.wantSends(wc{1, verbs.WCSuccess})
			if got := p.a.sends[0].wc; got.ByteLen != uint32(length) || got.Op != verbs.WCRDMARead || got.QPN != 0x11 {
				t.Errorf("%s: completion %+v, want WC_RDMA_READ of %d bytes by QP 0x11", name, got, length)
			}
			if !bytes.Equal(p.a.mem.data[to:][:length], want) {
				t.Errorf("%s: the data differ, want those of the source", name)
			}
			psn, off, responses := wire.PSN(firstPSN), 0, p.packets(p.b, 0)
			for i, s := range p.packets(p.a, 0) {
				size := min(length-off, readChunk*mtu.Bytes())
				n := max(1, (size+mtu.Bytes()-1)/mtu.Bytes())
				reth := wire.RETH{VA: p.b.mem.base + at + uint64(off), RKey: p.b.mem.key, Length: uint32(size)}
				if s.Opcode != wire.RCRDMAReadRequest || s.PSN != psn || s.RETH != reth || len(s.Payload) != 0 || s.Solicited {
					t.Errorf("%s: request %d: %+v %+v, want PSN %v and %+v", name, i, s.BTH, s.RETH, psn, reth)
				}
				for k, r := range responses[:n] {
					if r.Opcode != wantOpcode(verbs.OpRDMARead, k, n) || r.PSN != psn.Add(k) || r.AckReq || r.Solicited {
						t.Errorf("%s: response %d of request %d: %+v, want %v with PSN %v", name, k, i, r.BTH, wantOpcode(verbs.OpRDMARead, k, n), psn.Add(k))
					}
					if r.Opcode.Headers()&wire.HeaderAETH != 0 && (r.AETH.Syndrome != 0x1f || r.AETH.MSN == 0) {
						t.Errorf("%s: response %d: %+v, want an ACK with an MSN", name, k, r.AETH)
					}
				}
				responses = responses[n:]
				psn, off = psn.Add(n), off+size
			}
			if off != length || len(responses) != 0 {
				t.Errorf("%s: %d bytes were asked for, and %d responses are left; want %d and none", name, off, len(responses), length)
			}
		}
	}
}

// TestSegmentationAtomic checks requests, responses and results of atomics.
func TestSegmentationAtomic(t *testing.T) {
	p := newPair(t, setup{psnA: 0xffffff})
	word := func() uint64 { return nativeWord(p.b.mem.data[64:]) }
	first := word()
	add := addWR(1, p.b.mem.remote(64), 5, p.a.mem.sge(0, 8))
	add.Swap = 99 // that says nothing
	p.post(p.a, add, casWR(2, p.b.mem.remote(64), first+5, 77, p.a.mem.sge(8, 8)),
		casWR(3, p.b.mem.remote(64), first+5, 99, p.a.mem.sge(16, 8)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess})
	for i, want := range []verbs.WCOpcode{verbs.WCFetchAdd, verbs.WCCompSwap, verbs.WCCompSwap} {
		if got := p.a.sends[i].wc; got.Op != want || got.ByteLen != 8 {
			t.Errorf("completion %+v, want %v of 8 bytes", got, want)
		}
	}
	for i, want := range []uint64{first, first + 5, 77} {
		if got := nativeWord(p.a.mem.data[8*i:]); got != want {
			t.Errorf("atomic %d returned %#x, want %#x", i, got, want)
		}
	}
	if word() != 77 {
		t.Errorf("the word is %d, want 77", word())
	}
	va := p.b.mem.base + 64
	for i, want := range []wire.AtomicETH{
		{VA: va, RKey: p.b.mem.key, SwapAdd: 5}, {VA: va, RKey: p.b.mem.key, SwapAdd: 77, Compare: first + 5}, {VA: va, RKey: p.b.mem.key, SwapAdd: 99, Compare: first + 5},
	} {
		s, r := p.packets(p.a, 0)[i], p.packets(p.b, 0)[i]
		op := wire.RCCompareSwap
		if i == 0 {
			op = wire.RCFetchAdd
		}
		psn := wire.PSN(0xffffff).Add(i)
		if s.AtomicETH != want || s.Opcode != op || s.PSN != psn || !s.AckReq {
			t.Errorf("request %d: %+v %+v, want %v with PSN %v and %+v", i, s.BTH, s.AtomicETH, op, psn, want)
		}
		if r.Opcode != wire.RCAtomicAcknowledge || r.PSN != psn || r.AETH.Syndrome != 0x1f || r.AETH.MSN != 3 && r.AETH.MSN != uint32(i+1) {
			t.Errorf("response %d: %+v %+v, want an ACK of PSN %v with MSN %d or 3", i, r.BTH, r.AETH, psn, i+1)
		}
	}
}

// split cuts [off, off+n) of r into pieces of odd sizes, some empty, at most 32.
func split(r *region, off, n, seed int) []verbs.SGE {
	var sg []verbs.SGE
	for i := 0; n > 0 && len(sg) < 31; i++ {
		k := min(n, (i*37+seed*11)%97)
		sg = append(sg, r.sge(off, k))
		off, n = off+k, n-k
	}
	return append(sg, r.sge(off, n))
}

// TestScatterGather: lists of any shape serve all operations.
func TestScatterGather(t *testing.T) {
	for seed := range 40 {
		p := newPair(t, setup{mtu: verbs.MTU256})
		n := seed * 67
		writeTo, readFrom := p.b.mem.remote(1<<17), p.b.mem.remote(1<<18)
		p.b.postRecv(7, split(p.b.mem, 1<<16, n, seed+3)...)
		want := bytes.Clone(p.a.mem.data[5:][:n])
		p.post(p.a, sendWR(1, split(p.a.mem, 5, n, seed)...), writeWR(2, writeTo, split(p.a.mem, 5, n, seed+1)...),
			readWR(3, readFrom, split(p.a.mem, 1<<19, n, seed+2)...))
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
		p.b.wantRecvs(wc{7, 0})
		if !bytes.Equal(p.b.mem.data[1<<16:][:n], want) || !bytes.Equal(p.b.mem.data[1<<17:][:n], want) ||
			!bytes.Equal(p.a.mem.data[1<<19:][:n], p.b.mem.data[1<<18:][:n]) {
			t.Errorf("seed %d: the data differ, want those of the source", seed)
		}
	}
}

// TestInline: inline data are copied when the work request is posted.
func TestInline(t *testing.T) {
	p := newPair(t, setup{})
	own := []byte("no region")
	p.b.postRecv(7, p.b.mem.sge(0, 64))
	byList := withFlags(writeWR(2, p.b.mem.remote(64), p.a.mem.sge(0, 30), p.a.mem.sge(40, 20)), verbs.SendSignaled|verbs.SendInline)
	want := append(bytes.Clone(p.a.mem.data[0:30]), p.a.mem.data[40:60]...)
	p.post(p.a, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: own}, byList,
		verbs.SendWR{ID: 3, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: []byte{}})
	clear(own)
	clear(p.a.mem.data[:64])
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
	if got := string(p.b.mem.data[:9]); got != "no region" {
		t.Errorf("received %q, want %q", got, "no region")
	}
	if !bytes.Equal(p.b.mem.data[64:][:50], want) {
		t.Error("the inline WRITE differs")
	}
	bad := byList
	bad.SGList = []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}}
	trace := func() [4]uint64 {
		sq := &p.a.qp.sq
		return [4]uint64{sq.tail, sq.nextSeq, sq.messages, sq.lastSignaled}
	}
	before := trace()
	if err := p.a.qp.Post(&bad); err == nil {
		t.Error("inline data from memory without a region were taken")
	}
	if after := trace(); after != before {
		t.Errorf("the refused post left a trace: %v, want %v as before", after, before)
	}
}

// TestMigrationState: all packets say that the path is the one migrated to, as cards do. Either state is accepted.
func TestMigrationState(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
		p := newPair(t, setup{typ: typ})
		p.b.postRecv(1, p.b.mem.sge(0, 4096))
		p.b.postRecv(2, p.b.mem.sge(0, 4096))
		again := wire.Packet{BTH: wire.BTH{Opcode: wire.UCSendOnly, PSN: 3, AckReq: true}}
		switch typ {
		case verbs.QPTypeUD:
			p.post(p.a, udWR(1, p.b, p.a.mem.sge(0, 8)))
			again = datagram(wire.UDSendOnly, 0)
		case verbs.QPTypeUC:
			p.post(p.a, ucWR(1, verbs.OpSend, verbs.RemoteAddr{}, p.a.mem.sge(0, 3000)))
		default:
			p.post(p.a, sendWR(1, p.a.mem.sge(0, 3000)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 3000)), addWR(3, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
			again = req(wire.RCSendOnly, 7, 0)
		}
		p.run()
		p.inject(p.b, again) // with the bit clear
		p.run()
		p.b.wantRecvs(wc{1, 0}, wc{2, 0})
		for i, s := range p.log {
			if !s.MigReq {
				t.Errorf("%v: packet %d, %v, has a migration bit of 0, want 1", typ, i, s.Opcode)
			}
		}
		if typ == verbs.QPTypeRC && len(p.log) != 5+3+1+1 {
			t.Errorf("%d packets in all, want 5 requests, 3 READ responses, an atomic's and an ACK", len(p.log))
		}
	}
}
