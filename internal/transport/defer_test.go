package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestDeferACK: an acknowledgement that was deferred follows a train of SENDs, or of WRITEs with immediate data, and
// no more, also when there are more. It does not follow a WRITE, which is no answer, and which the peer may refuse.
// One that has company does not wait.
func TestDeferACK(t *testing.T) {
	for _, tt := range []struct {
		name   string
		posts  int // of b, after a's SEND came
		write  int // which of them is a WRITE, from 1
		at     int // the place of the acknowledgement among b's packets
		read   bool
		defers bool
		imm    bool // b posts WRITEs with immediate data, and no SENDs
	}{
		{"no request", 0, 0, 0, false, true, false},
		{"one", 1, 0, 1, false, true, false},
		{"a train", deferBehind, 0, deferBehind, false, true, false},
		{"more", 3 * deferBehind, 0, deferBehind, false, true, false},
		{"a WRITE", 3, 1, 0, false, true, false},
		{"a WRITE after a SEND", 3, 2, 1, false, true, false},
		{"a train with immediate data", deferBehind, 0, deferBehind, false, true, true},
		{"behind a READ", 1, 0, 0, true, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, setup{})
			p.b.postRecv(1, p.b.mem.sge(0, 8))
			p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}, Payload: make([]byte, 8)})
			if tt.read {
				r := p.b.mem.remote(0)
				p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, PSN: 1, AckReq: true},
					RETH: wire.RETH{VA: r.VA, RKey: uint32(r.RKey), Length: 8}})
			}
			if got := p.b.qp.DeferACK(0); got != tt.defers {
				t.Fatalf("DeferACK: %v, want %v", got, tt.defers)
			}
			for i := range tt.posts {
				if i == tt.write-1 {
					p.post(p.b, writeWR(uint64(i), p.a.mem.remote(0), p.b.mem.sge(0, 8)))
				} else if tt.imm {
					wr := writeWR(uint64(i), p.a.mem.remote(0), p.b.mem.sge(0, 8))
					wr.Op = verbs.OpRDMAWriteWithImm
					p.post(p.b, wr)
				} else {
					p.post(p.b, sendWR(uint64(i), p.b.mem.sge(0, 8)))
				}
			}
			p.transmit()
			for i, op := range p.opcodes(p.b, 0) {
				if isAnswer := op == wire.RCAcknowledge || op.IsRead(); isAnswer != (i == tt.at) {
					t.Errorf("packet %d is %v, want the answer to be packet %d", i, op, tt.at)
				}
			}
			if n := len(p.packets(p.b, 0)); n != tt.posts+1 {
				t.Errorf("%d packets, want %d", n, tt.posts+1)
			}
		})
	}
}

// TestDeferACKTimer: an acknowledgement waits only where the timeout bears it, or there is none.
func TestDeferACKTimer(t *testing.T) {
	for _, tt := range []struct {
		s    setup
		want bool
	}{{setup{timeout: 10}, true}, {setup{timeout: 9}, false}, {setup{noTimeout: true}, true}} {
		p := newPair(t, tt.s)
		p.b.postRecv(1)
		p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}})
		if got := p.b.qp.DeferACK(wire.ACKTimeout(10)); got != tt.want {
			t.Errorf("timeout %v: DeferACK %v, want %v", tt.s.timeout, got, tt.want)
		}
	}
	if p := newPair(t, setup{typ: verbs.QPTypeUC}); p.b.qp.DeferACK(0) {
		t.Error("UC: DeferACK is true, want false: it acknowledges nothing")
	}
}

// TestDeferredACKOutlives: the acknowledgement of a message that was taken leaves even if the answer fails
// at this end.
func TestDeferredACKOutlives(t *testing.T) {
	p := newPair(t, setup{})
	p.b.postRecv(1)
	p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}})
	if !p.b.qp.DeferACK(0) {
		t.Fatal("DeferACK is false, want true")
	}
	p.post(p.b, sendWR(1, badSGE))
	p.transmit()
	p.transmit()
	if p.b.qp.State() != verbs.QPStateErr {
		t.Fatalf("the QP is in %v, want ERR", p.b.qp.State())
	}
	if ops := p.opcodes(p.b, 0); len(ops) != 1 || ops[0] != wire.RCAcknowledge {
		t.Errorf("b sent %v, want the acknowledgement", ops)
	}
}
