package transport

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestForeignReadRepeatedFromItsBegin: Linux refuses a repeat of a READ that begins before an earlier repeat of it.
// So one that is repeated while something before it is missing is repeated as a whole, though a part has come.
func TestForeignReadRepeatedFromItsBegin(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, rd: 4})
	p.cutAfter(0)
	src := p.b.mem.remote(0)
	p.post(p.a, readWR(1, src, p.a.mem.sge(0, 8)), readWR(2, src, p.a.mem.sge(0, 5*256)), readWR(3, src, p.a.mem.sge(0, 8)))
	p.transmit()
	asked := len(p.log)
	p.now += 10 * time.Microsecond
	for _, r := range []struct {
		psn  wire.PSN
		op   wire.Opcode
		size int
	}{{1, wire.RCRDMAReadResponseFirst, 256}, {2, wire.RCRDMAReadResponseMiddle, 256}, {6, wire.RCRDMAReadResponseOnly, 8}} {
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: r.op, PSN: r.psn}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1}, Payload: make([]byte, r.size)})
	}
	p.transmit()
	p.runUntil(p.now + time.Second)
	begins := map[wire.PSN]bool{}
	for _, s := range p.packets(p.a, asked) {
		begins[s.PSN] = true
	}
	if !begins[0] || !begins[1] || begins[2] || begins[3] || begins[4] || begins[5] {
		t.Errorf("what was asked for again begins at PSNs %v, want 0 and 1, and none of 2 to 5", begins)
	}
}
