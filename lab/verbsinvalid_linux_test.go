package lab

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// invalidPacket is a packet that no requester may send. It is made from a packet that a requester
// has sent, and has a right ICRC.
type invalidPacket struct {
	variant string
	op      verbs.Opcode
	of      wire.Opcode // which packet is changed
	change  func(b []byte)
	recv    bool // the receive fails with an error of its own, and is not merely flushed
}

const (
	bthOpcode  = 0 // these are offsets from the start of the BTH
	atomicVA   = 12
	rethLength = 12 + 12
)

var invalidPackets = []invalidPacket{
	{"FETCH_ADD at an address not divisible by 8", verbs.OpAtomicFetchAdd, wire.RCFetchAdd, func(b []byte) { b[atomicVA+7] |= 4 }, false},
	{"SEND MIDDLE without FIRST", verbs.OpSend, wire.RCSendFirst, func(b []byte) { b[bthOpcode] = byte(wire.RCSendMiddle) }, false},
	{"SEND FIRST inside a SEND", verbs.OpSend, wire.RCSendMiddle, func(b []byte) { b[bthOpcode] = byte(wire.RCSendFirst) }, true},
	{"WRITE MIDDLE inside a SEND", verbs.OpSend, wire.RCSendMiddle, func(b []byte) { b[bthOpcode] = byte(wire.RCRDMAWriteMiddle) }, true},
	{"WRITE of fewer bytes than announced", verbs.OpRDMAWrite, wire.RCRDMAWriteFirst,
		func(b []byte) { binary.BigEndian.PutUint32(b[rethLength:], 5000) }, false},
	{"WRITE of more bytes than announced", verbs.OpRDMAWrite, wire.RCRDMAWriteFirst,
		func(b []byte) { binary.BigEndian.PutUint32(b[rethLength:], 2000) }, false},
}

// The responder refuses packets that were changed on their way. The scenarios use IPv6: there a
// socket tells all that the ICRC covers, so the test can compute it.
func TestVerbsInvalidRequest(t *testing.T) {
	needLab(t)
	for _, c := range invalidPackets {
		for _, responder := range []string{"kernel", "adverb"} {
			s := scenario{family: "Verbs", program: "RC NAKs", server: responder, mtu: 1500, v6: true, variant: c.variant}
			forge := rewrite(towards(false, responder), once(c.of), func(d *link.Datagram) {
				c.change(d.Payload)
				flow := wire.NewFlow(d.Src, netip.AddrPortFrom(d.Dst.Addr(), link.Port))
				flow.Seal(0, d.Payload)
			})
			s.pair(t, pairOptions{middleware: []link.Middleware{forge}}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				const size = 4000
				src, dst := word(from, 0), to.mem(2*size, everything)
				n := 8
				if c.op != verbs.OpAtomicFetchAdd {
					src, _ = filled(from, size, 7)
					n = size
				}
				to.recv(verbs.RecvWR{ID: 2, SGList: []verbs.SGE{dst.sge(0, size)}})
				from.send(verbs.SendWR{ID: 1, Op: c.op, Flags: signaled, SGList: []verbs.SGE{src.sge(0, n)}, Remote: dst.remote(0)})
				failed(t, from, 1, verbs.WCRemInvReqErr)
				recv := verbs.WCFlushErr
				if c.recv {
					recv = verbs.WCRemInvReqErr
				}
				failed(t, to, 2, recv)
				p.wantNAK(t, nakInvalid)
				wantState(t, verbs.QPStateErr, from, to)
			})
		}
	}
}
