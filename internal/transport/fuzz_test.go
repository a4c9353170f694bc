package transport

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Layout of the fuzzed QP's memory. Only the parts that peers may reach, and that work requests name, may change.
const (
	fuzzRemote = 1 << 12 // 4 KiB, by a key of their own
	fuzzRecv   = 1 << 13 // 4 KiB
	fuzzRead   = 1 << 14 // 4 KiB
	fuzzEnd    = 1 << 15
	fuzzFirst  = 0xfffff0 // PSN, both ways
)

// FuzzHandlePacket gives arbitrary packets to a QP in RTS that has work requests outstanding. Nothing panics or grows
// without bound, no work request is done twice, and only memory that a work request or a key names changes.
func FuzzHandlePacket(f *testing.F) {
	f.Add([]byte{})
	for op := range byte(0x1e) {
		f.Add([]byte{2, op, 0, 0x80, 0, 0, 1, 2, op, 1, 0x80, 0, 0, 1, 0, 1, 2, op, 2, 0x80, 3, 2, 1})
		f.Add([]byte{0, 2, op, 0xf0, 0x1f, 0, 0, 1, 1, 2, op, 0xf1, 0x60, 0, 0, 2, 3, 0, 1, 0})
	}
	f.Add([]byte{2, 0x0a, 2, 0xc0, 0, 0, 8, 2, 0x0a, 1, 0xc0, 0, 0, 16, 1, 0xfa, 2, 0x0a, 0, 0xc0, 0, 0, 8, 0})
	for _, op := range []byte{byte(wire.RCHello), byte(wire.RCAckRanges)} {
		f.Add([]byte{2, op, 0, 0x80, 0, 0, 1, 2, op, 1, 0x80, 0, 0, 1, 0, 1, 2, 0x0a, 2, 0x80, 3, 2, 1, 2, 0x04, 3, 0x80, 3, 2, 1})
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		z := newFuzzed(t, verbs.QPTypeRC)
		z.a.rc().responder.reorder.peerSACKs = len(in)%2 == 0
		if len(in)%4 >= 2 {
			z.a.qp.SetAdaptiveRouting(routed)
		}
		z.run(in)
	})
}

// FuzzUnreliable does the same with a QP of UC or UD.
func FuzzUnreliable(f *testing.F) {
	for op := range byte(0x0c) {
		f.Add(false, []byte{2, 0x20 + op, 0, 0x80, 0, 0, 1, 2, 0x20 + op, 1, 0x80, 0, 0, 1, 0, 1, 2, 0x20 + op, 2, 0x80, 3, 2, 1})
	}
	f.Add(true, []byte{2, 0x64, 0, 0x80, 0, 0, 8, 2, 0x65, 1, 0, 0, 0, 200, 0, 7, 4, 3, 4, 4, 4, 9, 0})
	f.Fuzz(func(t *testing.T, ud bool, in []byte) {
		if len(in) > 4096 {
			return
		}
		if ud {
			newFuzzed(t, verbs.QPTypeUD).run(in)
		} else {
			newFuzzed(t, verbs.QPTypeUC).run(in)
		}
	})
}

func (z *fuzzed) run(in []byte) {
	for z.in = in; len(z.in) > 0; {
		z.step()
		checkBounds(z.t, z.a.qp)
	}
	z.check()
}

// fuzzed is a QP and the rest of the input.
type fuzzed struct {
	*pair
	in     []byte
	remote *region
	before []byte
	posted uint64
	recvs  uint64
}

func newFuzzed(t *testing.T, typ verbs.QPType) *fuzzed {
	p := &pair{t: t, buf: make([]byte, MaxDatagram)}
	p.a = &node{testHost: newHost(t, "a", Config{Type: typ, QPN: 0x11, Turn: 5, Cap: verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 2, MaxInlineData: 16}}, nil)}
	p.b = &node{testHost: newHost(t, "b", Config{Type: typ, QPN: 0x22}, nil)} // only its QPN is used
	p.a.peer, p.b.peer = p.b, p.a
	p.a.mem = p.a.register(memBaseA, fuzzEnd, allAccess)
	z := &fuzzed{pair: p}
	// A second region opens the remote part alone. The peer does not know the key of the first.
	z.remote = p.a.registerBytes(memBaseB, p.a.mem.data[fuzzRemote:][:1<<12], allAccess)
	copy(p.a.mem.data, pattern)
	z.before = bytes.Clone(p.a.mem.data)
	p.connect(p.a, setup{mtu: verbs.MTU256, rd: 3}.attr(p.a, p.b, fuzzFirst, fuzzFirst))
	for range 4 {
		z.post(0)
		z.post(byte(2 + 8*z.posted))
	}
	return z
}

// byte returns the next of the input, or 0 at its end.
func (z *fuzzed) byte() byte {
	if len(z.in) == 0 {
		return 0
	}
	b := z.in[0]
	z.in = z.in[1:]
	return b
}

func (z *fuzzed) word() uint16 { return uint16(z.byte())<<8 | uint16(z.byte()) }

func (z *fuzzed) step() {
	q := z.a.qp
	defer z.a.collect()
	op := z.byte()
	if r := routed; op >= 0xf8 && q.cfg.Type == verbs.QPTypeRC { // from now on
		r.Send, r.Accept = op&1 == 0, op&2 == 0
		q.SetAdaptiveRouting(r)
		return
	}
	switch op % 8 {
	case 0:
		q.Turn()
		for n := 0; q.Transmit(z.now, z.buf) > 0; n++ {
			if n > 1<<16 {
				z.t.Fatal("transmits without end")
			}
		}
	case 1:
		if at := q.NextTimeout(); at != Never {
			z.now = at
			q.HandleTimeout(z.now)
		}
	case 2, 3:
		z.packet()
	case 4:
		z.post(z.byte())
	case 5: // any packet from the wire
		n := min(int(z.byte()), len(z.in))
		var pkt wire.Packet
		if pkt.Decode(z.in[:n]) == nil {
			z.handle(&pkt)
		}
		z.in = z.in[n:]
	case 6:
		if n := len(z.a.sends); n > 0 {
			z.a.polled(n)
		}
	case 7:
		if n := q.Transmit(z.now, z.buf); n > 0 {
			var pkt wire.Packet
			if err := pkt.Decode(z.buf[:n]); err != nil {
				z.t.Fatalf("sent a packet that does not decode: %v, want no error", err)
			}
		}
	}
}

// packet makes a packet that is not always refused at once.
func (z *fuzzed) packet() {
	op := wire.Opcode(z.byte())
	delta, syndrome := int8(z.byte()), z.byte()
	p := wire.Packet{BTH: wire.BTH{Opcode: op, AckReq: syndrome&0x80 != 0}}
	p.PSN = z.a.qp.receiver.epsn.Add(int(delta))
	if c, ok := z.a.qp.service.(*rc); ok && op.IsResponse() {
		p.PSN = psn(c.recovery.Una()).Add(int(delta))
	}
	if syndrome&0x40 != 0 {
		p.Resv7 = verbs.DefaultRoutingMark
	}
	p.AETH = wire.AETH{Syndrome: wire.Syndrome(syndrome), MSN: uint32(z.byte())}
	size := z.word()
	p.RETH = wire.RETH{VA: z.remote.base + uint64(syndrome), RKey: z.remote.key, Length: uint32(size)}
	switch size >> 13 {
	case 1:
		p.RETH.VA = binary.BigEndian.Uint64(append(z.before[:6:6], byte(size), z.byte()))
	case 2:
		p.RETH.RKey = uint32(size)
	case 3:
		p.RETH.Length <<= 16
	}
	p.AtomicETH = wire.AtomicETH{VA: p.RETH.VA, RKey: p.RETH.RKey, SwapAdd: uint64(size), Compare: uint64(syndrome)}
	n := int(size) % 300
	if size&1 == 0 { // mostly the length that fits
		n = min(n, 256)
		if op.IsFirst() || op.IsMiddle() {
			n = 256
		}
	}
	if op.HasPayload() || size%7 == 0 {
		p.Payload = make([]byte, n)
	}
	p.DETH = wire.DETH{QKey: testQKey ^ uint32(size>>15), SrcQP: uint32(size)}
	p.InvalidateRKey = uint32(z.a.keyOf(windowKey + verbs.RKey(size%4)))
	z.handle(&p)
}

func (z *fuzzed) handle(p *wire.Packet) {
	if z.a.qp.cfg.Type == verbs.QPTypeUD {
		z.a.qp.HandleDatagram(p, &testGRH)
	} else {
		z.a.qp.HandlePacket(z.now, p, 0)
	}
	z.a.collect()
}

// post posts a receive or a work request.
func (z *fuzzed) post(kind byte) {
	m := z.a.mem
	if kind%8 == 0 {
		if z.a.qp.State() == verbs.QPStateErr || z.a.waiting() == testRecvs-1 {
			return
		}
		z.a.postRecv(z.recvs, m.sge(fuzzRecv, 300), m.sge(fuzzRecv+1000, 500))
		z.recvs++
		return
	}
	ops := simKinds[z.a.qp.cfg.Type]
	wr := verbs.SendWR{ID: z.posted, Op: ops[int(kind/8)%len(ops)], Flags: verbs.SendSignaled | verbs.SendFlags(kind>>7),
		SGList: []verbs.SGE{m.sge(fuzzRead, 100), m.sge(fuzzRead+200, int(kind)*3)}, Remote: z.remote.remote(0)}
	if wr.Op == verbs.OpAtomicCmpSwap || wr.Op == verbs.OpAtomicFetchAdd {
		wr.SGList = []verbs.SGE{m.sge(fuzzRead, 8)}
	}
	switch key := windowKey + verbs.RKey(kind%4); wr.Op {
	case verbs.OpLocalInv, verbs.OpBindMW:
		wr.SGList, wr.Bind, wr.InvalidateRKey = nil, &verbs.MWBind{RKey: key, Access: verbs.AccessRemoteRead}, key
	case verbs.OpSendWithInv:
		wr.InvalidateRKey = key
	}
	if z.a.qp.State() == verbs.QPStateSQE {
		z.state(z.a, verbs.QPStateRTS)
	}
	z.a.resolve(&wr)
	if z.a.qp.Post(&wr) == nil {
		z.posted++
	}
	z.a.collect()
}

func (z *fuzzed) check() {
	a, t := z.a, z.t
	if a.qp.State() != verbs.QPStateErr {
		z.state(a, verbs.QPStateErr)
	}
	if a.receives.taken != 0 || uint64(len(a.recvd)) != z.recvs {
		t.Fatalf("%d receives are completed and %d taken for ever, want %d and none", len(a.recvd), a.receives.taken, z.recvs)
	}
	for i, r := range a.recvd {
		if r.wc.ID != uint64(i) {
			t.Fatalf("receive %d completes, want %d", r.wc.ID, i)
		}
	}
	if uint64(len(a.sends)) != z.posted {
		t.Fatalf("%d work requests are completed, want %d", len(a.sends), z.posted)
	}
	for i, s := range a.sends {
		if s.wc.ID != uint64(i) {
			t.Fatalf("work request %d completes, want %d", s.wc.ID, i)
		}
	}
	for _, r := range [][2]int{{0, fuzzRemote}, {fuzzRecv + 1500, fuzzRead}, {fuzzRead + 200 + 3*256, fuzzEnd}} {
		if !bytes.Equal(a.mem.data[r[0]:r[1]], z.before[r[0]:r[1]]) {
			t.Fatalf("memory between %#x and %#x has changed, want it as before", r[0], r[1])
		}
	}
	if a.qp.NextTimeout() != Never {
		t.Fatal("a QP in error has a timer")
	}
}
