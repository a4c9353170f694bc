package transport

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLateReadKeepsLaterOnes: the responses of a READ come behind those of later work requests with the same target.
// Each byte in the end is from the latest work request that has it as target.
func TestLateReadKeepsLaterOnes(t *testing.T) {
	const mtu = 256
	p := newPair(t, setup{mtu: verbs.MTU256, rd: 4})
	p.cutAfter(0)
	target := func(off, n int) verbs.SGE { return p.a.mem.sge(off, n) }
	p.post(p.a,
		readWR(1, p.b.mem.remote(0), target(0, 4*mtu)),                    // PSNs 0 to 3
		readWR(2, p.b.mem.remote(0), target(mtu, mtu), target(16, 2*mtu)), // PSNs 4 to 6
		addWR(3, p.b.mem.remote(0), 1, target(4*mtu-8, 8)))                // PSN 7
	p.transmit()
	p.now += 10 * time.Microsecond
	answer := func(psn wire.PSN, op wire.Opcode, with byte) {
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1}, Payload: bytes.Repeat([]byte{with}, mtu)})
	}
	answer(4, wire.RCRDMAReadResponseFirst, 0x24)
	answer(6, wire.RCRDMAReadResponseLast, 0x26) // 5 is missing
	orig := bytes.Repeat([]byte{0x33}, 8)
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAtomicAcknowledge, PSN: 7}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1},
		AtomicAckETH: wire.AtomicAckETH{Orig: binary.NativeEndian.Uint64(orig)}})
	for psn, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast} {
		answer(wire.PSN(psn), op, byte(0x10+psn))
	}
	want := append(bytes.Repeat([]byte{0x10}, mtu), bytes.Repeat([]byte{0x24}, mtu)...)
	want = append(want, bytes.Repeat([]byte{0x12}, mtu)...)
	want = append(want, bytes.Repeat([]byte{0x13}, mtu-8)...)
	want = append(want, orig...)
	check := func() {
		t.Helper()
		copy(want[16+mtu:16+2*mtu], bytes.Repeat([]byte{0x26}, mtu))
		for i, got := range p.a.mem.data[:4*mtu] {
			if got != want[i] {
				t.Fatalf("byte %d is %#x, want %#x", i, got, want[i])
			}
		}
	}
	check()
	answer(5, wire.RCRDMAReadResponseMiddle, 0x25)
	for i := range mtu {
		want[16+i] = 0x25
	}
	check()
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess})
	p.a.wantUnused("READs that came late", p.a.mem)
}
