package transport

import (
	"errors"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestEventCause: the event of a refused request says which rule was broken, by a kind and in words, and
// the refusal is counted by its kind.
func TestEventCause(t *testing.T) {
	const mtu = 256
	write := func(n int, va uint64, key uint32, length uint32) wire.Packet {
		return rdma(req(wire.RCRDMAWriteOnly, 0, n), va, key, length)
	}
	invalid := Counters{RefusedInvalid: 1}
	denied := Counters{RefusedAccess: 1}
	for _, tt := range []struct {
		name  string
		pkt   wire.Packet
		set   setup
		event verbs.EventType
		kind  error
		words string
		want  Counters
	}{
		{"packet of a larger path MTU", rdma(req(wire.RCRDMAWriteFirst, 0, 4*mtu), memBaseB, keyB, 8*mtu), setup{}, verbs.EventQPReqErr, verbs.ErrPathMTU, "the peer's path MTU is 1024, and here it is 256", invalid},
		{"message of a larger path MTU", write(2*mtu+1, memBaseB, keyB, 2*mtu+1), setup{}, verbs.EventQPReqErr, verbs.ErrPathMTU, "513 bytes, and the path MTU here is 256", invalid},
		{"packet of a smaller path MTU", rdma(req(wire.RCRDMAWriteFirst, 0, mtu), memBaseB, keyB, 8*mtu), setup{mtu: verbs.MTU512}, verbs.EventQPReqErr, verbs.ErrPathMTU, "the peer's path MTU is 256, and here it is 512", invalid},
		{"packet of no path MTU", rdma(req(wire.RCRDMAWriteFirst, 0, mtu-1), memBaseB, keyB, 8*mtu), setup{}, verbs.EventQPReqErr, verbs.ErrMalformed, "255 bytes at a path MTU of 256", invalid},
		{"WRITE that the QP does not allow", write(8, memBaseB, keyB, 8), setup{access: verbs.AccessRemoteRead}, verbs.EventQPReqErr, verbs.ErrQPAccess, "the QP does not allow ACCESS_REMOTE_WRITE", invalid},
		{"atomic that the QP does not allow", rdma(req(wire.RCFetchAdd, 0, 0), memBaseB, keyB, 8), setup{access: verbs.AccessRemoteRead}, verbs.EventQPReqErr, verbs.ErrQPAccess, "the QP does not allow ACCESS_REMOTE_ATOMIC", invalid},
		{"opcode out of place", req(wire.RCSendMiddle, 0, mtu), setup{}, verbs.EventQPReqErr, verbs.ErrMalformed, "without a first packet", invalid},
		{"key that nobody has", write(8, memBaseB, 0x156, 8), setup{}, verbs.EventQPAccessErr, verbs.ErrNotFound, "no such memory region", denied},
		{"bytes out of bounds", write(9, memBaseB+memSize-8, keyB, 9), setup{}, verbs.EventQPAccessErr, verbs.ErrInvalid, "outside the memory region", denied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.set.mtu == 0 {
				tt.set.mtu = verbs.MTU256
			}
			p := newPair(t, tt.set)
			p.inject(p.b, tt.pkt)
			p.b.wantEvents(tt.event)
			if len(p.b.causes) != 1 {
				t.Fatalf("%d events, want 1", len(p.b.causes))
			}
			if cause := p.b.causes[0]; !errors.Is(cause, tt.kind) || !strings.Contains(cause.Error(), tt.words) {
				t.Errorf("cause %v, want one that is %q and says %q", cause, tt.kind, tt.words)
			}
			if c := p.b.qp.Counters(); c != tt.want {
				t.Errorf("counters %+v, want %+v", c, tt.want)
			}
		})
	}
}
