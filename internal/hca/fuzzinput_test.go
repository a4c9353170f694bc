package hca

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// fuzzLink is a link to which datagrams come from the input. It checks the datagrams that leave.
type fuzzLink struct {
	link.Link
	z       *fuzzed
	arrived []link.Datagram
}

func (z *fuzzed) link(l link.Link) link.Link {
	f := &fuzzLink{Link: l, z: z}
	z.arriving[l.Addr().Addr()] = f
	return f
}

func (l *fuzzLink) Join(group netip.Addr) error  { return link.Join(l.Link, group) }
func (l *fuzzLink) Leave(group netip.Addr) error { return link.Leave(l.Link, group) }

func (l *fuzzLink) Recv(batch []link.Datagram) (int, error) {
	n := copy(batch, l.arrived)
	l.arrived = l.arrived[n:]
	return n, nil
}

// arrived reports whether all datagrams were received.
func (z *fuzzed) arrived() bool {
	for _, l := range z.arriving {
		if len(l.arrived) > 0 {
			return false
		}
	}
	return true
}

// Send has each packet checked: it is whole, goes to the peer, and holds nothing that nobody may read.
func (l *fuzzLink) Send(batch []link.Datagram) error {
	z := l.z
	hidden := bytes.Repeat([]byte{secret}, 8)
	for i := range batch {
		d := &batch[i]
		if d.Src.Addr() != fuzzLocal || d.Dst != netip.AddrPortFrom(fuzzPeer, link.Port) {
			z.t.Fatalf("step %d: a datagram from %v to %v, want it from %v to the peer", z.steps, d.Src, d.Dst, fuzzLocal)
		}
		flow := wire.NewFlow(d.Src, d.Dst)
		for s := range d.Segments() {
			b := d.Segment(s)
			var p wire.Packet
			if err := p.Decode(b); err != nil || !flow.Verify(uint16(s), b) {
				z.t.Fatalf("step %d: a packet left that is not whole: %v: %x, want it whole", z.steps, err, b)
			}
			z.left(&p, b, hidden)
		}
	}
	return nil
}

func (z *fuzzed) left(p *wire.Packet, b, hidden []byte) {
	if p.Opcode != wire.Secured && bytes.Contains(b, hidden) {
		z.t.Fatalf("step %d: a packet with bytes that nobody may read: %x, want none", z.steps, b)
	}
	n := int(p.DestQP) - peerQPN
	if n < 0 || n >= fuzzQPCount {
		z.t.Fatalf("step %d: a packet to QP %#x, which nobody named, want one of the known QPs", z.steps, p.DestQP)
	}
	if (n == fuzzSecured) != (p.Opcode == wire.Secured) {
		z.t.Fatalf("step %d: a packet %v to QP %d, want secured packets to QP %d alone", z.steps, p.Opcode, n, fuzzSecured)
	}
	z.seen[fuzzSeen{n, byte(p.Opcode), sent}]++
	if q := z.qps[n]; q != nil && (p.Opcode.IsRequest() || p.Opcode == wire.Secured) {
		q.psn = p.PSN
	}
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

// step executes the next step of the input.
func (z *fuzzed) step() {
	kind := z.byte()
	switch kind % 8 {
	case 0, 1, 2, 3:
		z.datagrams(kind)
	case 4:
		z.post()
	case 5:
		z.recv(z.qp(int(z.byte()) % fuzzQPCount))
	case 6:
		z.wait(kind >> 3)
	case 7:
		z.manage(kind >> 3)
	}
}

// work lets the device receive: by the program's poll, or in its own time.
func (z *fuzzed) work(kind byte) {
	switch kind % 4 {
	case 0:
		z.hca.Drive(false)
		z.poll()
	case 1:
		z.poll()
	case 2:
		z.hca.Drive(true) // and from now on the program's polls do it
	case 3:
		z.hca.Drive(false)
	}
}

// wait lets time pass: until a timer is due, or for a while.
func (z *fuzzed) wait(kind byte) {
	if kind%2 == 0 {
		if d, ok := z.hca.NextDrive(); ok {
			z.sleep(d)
		}
	} else {
		z.sleep(time.Microsecond << (z.byte() % 25)) // 16 s at most
	}
	z.hca.Drive(false)
	if kind&2 != 0 {
		z.poll()
	}
}

// manage calls the verbs other than posts.
func (z *fuzzed) manage(kind byte) {
	q := z.qp(int(z.byte()) % fuzzQPCount)
	switch kind % 8 {
	case 0:
		z.close(q)
	case 1, 2: // a program that goes on after an error
		if q.closed {
			return
		}
		z.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		z.forget(q)
		z.connect(q)
	case 3:
		if !q.closed {
			z.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		}
	case 4:
		if i := []int{areaOpen, areaReadable, areaForeign, areaLocked, areaSecret}[int(kind>>3)%5]; q.n%2 == 0 {
			z.deregister(i)
		}
	case 5:
		z.bind()
	case 6:
		z.send(z.qp(fuzzRC), verbs.SendWR{Op: verbs.OpLocalInv, InvalidateRKey: z.mw.RKey()})
	case 7:
		for {
			if _, err := z.dev.NextEvent(past); err != nil {
				break
			}
		}
	}
}

var fuzzSends = []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpSwap, verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm, verbs.OpSendWithInv}

// post posts a work request.
func (z *fuzzed) post() {
	b := z.byte()
	q := z.qp(int(b&7) % fuzzQPCount)
	wr := verbs.SendWR{Op: fuzzSends[b>>3&7], Remote: verbs.RemoteAddr{VA: 1 << 20, RKey: 7}, CompareAdd: 1, InvalidateRKey: 9}
	if q.closed || b&0x40 != 0 && wr.Op == verbs.OpSendWithInv {
		return
	}
	wr.SGList = []verbs.SGE{q.own.mr.SGE(ownDataAt, int(z.byte())), q.own.mr.SGE(ownDataAt+64, int(b)&127)}[:1+b>>7]
	if q.Type() == verbs.QPTypeUD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = z.ah, peerQPN+verbs.QPN(q.n), fuzzQKey
	}
	z.send(q, wr)
}

// datagrams lets some packets arrive. The first byte is the step's.
func (z *fuzzed) datagrams(kind byte) {
	how := z.byte()
	local, from := fuzzLocal, fuzzPeer
	if how&0x0f == 0x0f {
		local, from = fuzzLocal6, fuzzPeer6
	}
	if how&0x07 == 0x06 {
		from = fuzzOther
	}
	port := uint16(0xc000)
	if how&0x18 == 0x18 {
		port += uint16(z.byte())
	}
	d := link.Datagram{Src: netip.AddrPortFrom(from, port), Dst: netip.AddrPortFrom(local, link.Port), IDKnown: how&0x20 != 0 && local.Is4()}
	if d.IDKnown || how&0x40 != 0 { // else as of an adverb
		d.ID = uint16(z.byte()) << 6
	}
	if kind&0x08 != 0 {
		d.TrafficClass = link.CE
	}
	for count := 1 + kind>>4&3; count > 0; {
		count = z.train(d, count, how&0x80 != 0)
	}
	z.work(kind >> 6)
}

// train makes a datagram of up to count packets, as far as their lengths fit. It returns how many are left.
// One that does not fit is lost.
func (z *fuzzed) train(d link.Datagram, count byte, damaged bool) byte {
	id := d.ID
	for ; count > 0; count-- {
		b, sealed := z.packet(&d)
		if len(b) >= wire.MinDatagramLen {
			flow := wire.NewFlow(d.Src, d.Dst)
			flow.Seal(id, b)
			if damaged && count == 1 {
				b[len(b)-1] ^= 1
			}
		}
		id++
		z.allow(&d, b, len(d.Payload), sealed)
		if d.SegmentSize == 0 {
			d.SegmentSize = len(b)
		}
		if len(b) > d.SegmentSize || len(b) == 0 {
			break
		}
		d.Payload = append(d.Payload, b...)
		if len(b) < d.SegmentSize || d.Dst.Addr().IsMulticast() {
			count--
			break
		}
	}
	if !d.IDKnown {
		d.ID = 0
	}
	l := z.arriving[fuzzLocal]
	if d.Dst.Addr().Is6() {
		l = z.arriving[fuzzLocal6]
	}
	if l != nil { // else nobody listens there
		l.arrived = append(l.arrived, d)
	}
	return count
}

// allow takes note of the changes that a packet may make which is about to arrive behind so many bytes of its train.
func (z *fuzzed) allow(d *link.Datagram, b []byte, behind int, sealed bool) {
	if len(b) < wire.MinDatagramLen {
		return
	}
	segment := 0
	if d.SegmentSize > 0 {
		segment = behind / d.SegmentSize
	}
	one := *d
	one.Payload, one.SegmentSize = b, 0
	flow := wire.NewFlow(d.Src, d.Dst)
	if !peer.VerifyAny(&flow, &one, segment, b) {
		return
	}
	to := binary.BigEndian.Uint32(b[4:]) & (1<<24 - 1)
	for _, q := range z.made() {
		switch {
		case q.closed:
		case q.Type() == verbs.QPTypeUD:
			z.may[q.n] = z.may[q.n] || to == uint32(q.QPN()) || to == multicastQPN && q.n == fuzzUD && d.Dst.Addr() == fuzzGroup
		case to == uint32(q.QPN()) && d.Src.Addr() == fuzzPeer && d.Dst.Addr() == fuzzLocal && (q.n != fuzzSecured || sealed):
			z.may[q.n] = true
			if sealed && d.IDKnown {
				z.sealed = bytes.Clone(b)
			}
		}
	}
}

// packet makes a packet. It reports whether it is a genuine one to the secured QP.
func (z *fuzzed) packet(d *link.Datagram) (b []byte, sealed bool) {
	to := z.byte()
	n := int(to & 7)
	switch {
	case to&0xf8 == 0xf8: // noise
		k := min(int(z.byte()), len(z.in))
		b, z.in = bytes.Clone(z.in[:k]), z.in[k:]
		return b, false
	case n == 6: // that to the secured QP once more
		return bytes.Clone(z.sealed), false
	}
	p := wire.Packet{BTH: wire.BTH{PKey: wire.DefaultPKey, MigReq: true, AckReq: to&8 != 0}}
	q := z.qp([...]int{fuzzRC, fuzzReader, fuzzSecured, fuzzUC, fuzzUD, fuzzGSI, fuzzRC, fuzzUD}[n])
	p.DestQP = uint32(q.QPN())
	if n == 7 {
		p.DestQP = multicastQPN
		if to&8 != 0 && d.Payload == nil && d.Dst.Addr().Is4() {
			d.Dst = netip.AddrPortFrom(fuzzGroup, link.Port)
		}
	}
	p.Opcode = fuzzOpcode(q, z.byte())
	z.fill(&p, q)
	if to&0xf0 == 0xe0 {
		p.PKey ^= 1 << 3
	}
	if !p.Opcode.Valid() {
		return append([]byte{byte(p.Opcode), 0, 0xff, 0xff, 0, byte(p.DestQP >> 16), byte(p.DestQP >> 8), byte(p.DestQP)}, make([]byte, 12)...), false
	}
	if q.n != fuzzSecured || to&0xf0 == 0xd0 || q.closed {
		return p.AppendTo(nil), false
	}
	b = p.AppendTo(make([]byte, secure.Lead))
	size := len(b) - secure.Lead
	b = append(b, make([]byte, secure.Overhead)...)
	b = b[:q.seal.Seal(b, size)]
	if to&0xf0 == 0xc0 {
		b[wire.BTHSize+int(z.byte())%(len(b)-wire.BTHSize-wire.ICRCSize)] ^= 1 << (to & 7)
		return b, false
	}
	return b, true
}

// fuzzOpcode makes most bytes an opcode of the QP's service.
func fuzzOpcode(q *fuzzQP, b byte) wire.Opcode {
	switch q.n {
	case fuzzUC:
		if b < 0x20 {
			b |= 0x20
		}
	case fuzzUD, fuzzGSI:
		if b < 0x40 {
			b = byte(wire.UDSendOnly) + b&1
		}
	}
	return wire.Opcode(b)
}

// fill fills in the headers and the payload, so that the packet is not always refused at once.
func (z *fuzzed) fill(p *wire.Packet, q *fuzzQP) {
	attr, _, err := q.Query()
	if q.closed {
		attr.RQPSN = firstPSN
	} else {
		z.must(err)
	}
	delta := int(int8(z.byte()))
	p.PSN = wire.PSN(attr.RQPSN).Add(delta)
	if p.Opcode.IsResponse() {
		p.PSN = q.psn.Add(delta)
	}
	size := int(z.byte())
	if size > 250 || p.Opcode.IsFirst() && size > 8 || p.Opcode.IsMiddle() && size > 8 {
		size = 256
	}
	if p.Opcode.HasPayload() {
		p.Payload = make([]byte, size)
		pattern(p.Payload, z.byte())
	}
	p.DETH = wire.DETH{QKey: fuzzQKey, SrcQP: uint32(size)}
	if q.n == fuzzGSI {
		p.DETH.QKey = wire.GSIQKey
	}
	if p.Opcode.Headers()&(wire.HeaderRETH|wire.HeaderAtomicETH) != 0 {
		z.target(p, size)
	}
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		p.AETH = wire.AETH{Syndrome: wire.Syndrome(z.byte()), MSN: uint32(z.byte())}
		p.AtomicAckETH = wire.AtomicAckETH{Orig: uint64(size)}
	}
	p.Imm = uint32(size)
	p.InvalidateRKey = uint32(z.mw.RKey()) ^ uint32(size>>7)
	if p.Opcode == wire.UDSendOnly && size == 7 {
		p.DETH.QKey++
	}
}

// target names memory: an area and the way to a place in it, or near its end.
func (z *fuzzed) target(p *wire.Packet, size int) {
	which, off := z.byte(), int(z.byte())
	a := &z.areas[int(which&7)%areaOwn]
	rkey := a.rkey
	switch which & 7 {
	case 6:
		a = &z.areas[areaOwn+int(which>>3)%fuzzQPCount]
		rkey = a.rkey
	case 7:
		a = &z.areas[areaOpen]
		rkey ^= verbs.RKey(1) << (which >> 3)
	case areaWindowed:
		if which&0x08 != 0 {
			rkey = z.mw.RKey()
		}
	}
	length := size
	if p.Opcode.IsFirst() || p.Opcode == wire.RCRDMAReadRequest {
		length = size * (1 + int(which>>6))
	}
	if p.Opcode.IsAtomic() {
		length = 8
	}
	va := a.addr
	switch which >> 4 & 3 {
	case 0:
		va += uint64(off) * 8
	case 1: // about the end
		va += uint64(a.n - length + int(int8(off)))
	case 2: // before the beginning
		va -= uint64(off)
	case 3: // about the window's bounds
		va += uint64(windowAt + windowLen - length + int(int8(off)))
	}
	p.RETH = wire.RETH{VA: va, RKey: uint32(rkey), Length: uint32(length)}
	p.AtomicETH = wire.AtomicETH{VA: va, RKey: uint32(rkey), SwapAdd: uint64(off), Compare: uint64(size)}
}

// fuzzPacket is the input for a packet. rest names memory, or is the syndrome and the MSN of an acknowledgement.
func fuzzPacket(to byte, op wire.Opcode, delta, size byte, rest ...byte) []byte {
	b := []byte{to, byte(op), delta, size}
	if op.HasPayload() {
		b = append(b, 1)
	}
	return append(b, rest...)
}

// receiveSeeds are inputs that reach the main ways.
func receiveSeeds() [][]byte {
	const (
		asked          = 8                // for an acknowledgement
		ours           = 0                // identifications as of an adverb
		known          = 0x20             // the link has seen the identification
		other          = 0x06             // the sender is a stranger
		group          = 7 | 8            // multicast
		again          = 6                // to the secured QP, the latest packet
		bound          = areaWindowed | 8 // by the window's key
		end            = 0x10             // of the area
		wend           = 0x30             // of the window
		send           = 0                // work requests
		read           = 2 << 3           //
		add            = 3 << 3           //
		lots           = 255              // of payload: the path MTU
		wait           = 6                // for a timer
		err            = 7 | 3<<3         // manage: to the error state
		anew           = 7 | 1<<3         // manage: another connection
		rebind, unbind = 7 | 5<<3, 7 | 6<<3
	)
	// alone has a packet arrive, and the program poll.
	alone := func(how byte, packet []byte) []byte {
		if how&known != 0 {
			return slices.Concat([]byte{0, how, 3}, packet)
		}
		return slices.Concat([]byte{0, how}, packet)
	}
	// row has packets arrive one after the other.
	row := func(packets ...[]byte) (in []byte) {
		for _, p := range packets {
			in = append(in, alone(ours, p)...)
		}
		return in
	}
	train := func(packets ...[]byte) []byte {
		return append([]byte{byte(len(packets)-1) << 4, known, 0}, slices.Concat(packets...)...)
	}
	p := fuzzPacket
	return [][]byte{
		nil,
		row(p(asked, wire.RCSendOnly, 0, 100), p(asked, wire.RCSendOnlyWithImm, 0, 0), p(asked, wire.RCSendOnly, 0, 9)), // the third finds no receive
		row(p(asked, wire.RCRDMAWriteOnly, 0, 100, areaOpen, 2), p(0, wire.RCRDMAReadRequest, 0, 100, areaOpen, 2), p(0, wire.RCRDMAReadRequest, 0, 200, areaReadable|end, 0)),
		row(p(0, wire.RCCompareSwap, 0, 1, areaOpen, 2), p(0, wire.RCFetchAdd, 0, 1, areaOpen, 2), p(0, wire.RCFetchAdd, 255, 1, areaOpen, 2)),
		row(p(0, wire.RCSendFirst, 0, lots), p(0, wire.RCSendMiddle, 0, lots), p(asked, wire.RCSendLast, 0, 70)),
		row(p(0, wire.RCRDMAWriteFirst, 0, lots, areaOpen|0x40, 0), p(asked, wire.RCRDMAWriteLastWithImm, 0, lots)),
		row(p(0, wire.RCSendOnlyWithInvalidate, 0, 9), p(0, wire.RCAtomicWrite, 0, 8, areaOpen, 0), p(0, wire.RCFlush, 0, 8, areaOpen, 0)),
		row(p(asked, wire.RCRDMAWriteOnly, 0, 8, areaOpen, 0), p(0, wire.RCHello, 0, 0, 0, 0), p(0, wire.RCAckRanges, 0, 9, 0, 0), p(0, wire.CNP, 0, 0)),
		slices.Concat(alone(known, p(fuzzUD, wire.UDSendOnly, 0, 64)), alone(ours, p(fuzzGSI, wire.UDSendOnly, 0, lots)), // a datagram, a MAD
			alone(known, p(group, wire.UDSendOnlyWithImm, 0, 64)), []byte{4, fuzzUD, 9, 4, fuzzGSI, 9}),
		slices.Concat(alone(known|other, p(0, wire.RCRDMAWriteOnly, 0, 9, areaOpen, 0)), alone(0x80, p(0, wire.RCRDMAWriteOnly, 0, 9, areaOpen, 0))),
		train(p(0, wire.RCRDMAWriteOnly, 0, 100, areaOpen, 0), p(0, wire.RCRDMAWriteOnly, 1, 100, areaOpen, 16), p(asked, wire.RCSendOnly, 2, 50)),
		train(p(fuzzUC, wire.UCRDMAWriteFirst, 0, lots, areaOpen|0x80, 0), p(fuzzUC, wire.UCRDMAWriteMiddle, 1, lots), p(fuzzUC, wire.UCRDMAWriteLast, 2, lots)),
		row(p(fuzzUC, wire.UCSendOnly, 0, 33), p(fuzzUC, wire.UCSendFirst, 0, lots), p(fuzzUC, wire.UCSendLast, 0, 33)),
		slices.Concat(alone(known, p(fuzzSecured|asked, wire.RCRDMAWriteOnly, 0, 64, areaSecret, 0)), alone(known, []byte{again}),
			alone(known, append(p(0xc0|fuzzSecured, wire.RCRDMAWriteOnly, 0, 64, areaSecret, 0), 17)), alone(known, p(0xd0|fuzzSecured, wire.RCRDMAWriteOnly, 0, 64, areaSecret, 0))),
		row(p(fuzzReader|asked, wire.RCRDMAReadRequest, 0, 64, areaLocked, 0), p(fuzzReader, wire.RCRDMAWriteOnly, 0, 64, areaLocked, 0)),
		append([]byte{4, read, 0}, row(p(0, wire.RCRDMAReadResponseFirst, 0, lots, 0x1f, 0), p(0, wire.RCRDMAReadResponseLast, 1, 64, 0x1f, 1))...),
		slices.Concat([]byte{4, add, 0}, row(p(0, wire.RCAtomicAcknowledge, 0, 9, 0x1f, 1)), []byte{4, send, 9}, row(p(0, wire.RCAcknowledge, 0, 0, 0x1f, 2))),
		slices.Concat([]byte{4, send, 9, wait, wait, wait, wait, anew, fuzzRC, 4, send, 9}, row(p(0, wire.RCAcknowledge, 0, 0, 0x60, 0))), // timeouts, and a NAK
		row(p(asked, wire.RCRDMAWriteOnly, 0, 200, bound|wend, 0), p(asked, wire.RCRDMAWriteOnly, 0, 9, areaWindowed, 0)),
		slices.Concat([]byte{unbind, 0, rebind, 0, 5, 0}, row(p(asked, wire.RCRDMAWriteOnly, 0, 9, bound|wend, 0), p(asked, wire.RCRDMAWriteOnly, 0, 9, areaOpen|end, 1))),
		{5, 0, err, 0, 7, 1, 7, 2, 7, 3, 7, 4, 7, 5, 7 | 4<<3, 0},
		alone(known, []byte{0xff, 16, 0x04, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4}), // noise
	}
}
