package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestDeferACK: a deferred acknowledgement follows a train of SENDs, or of WRITEs with immediate data, but at most
// one train. It does not follow a WRITE, which is no answer, and which the peer may refuse. If another packet leaves
// anyway, the acknowledgement does not wait.
func TestDeferACK(t *testing.T) {
	for _, tt := range []struct {
		name   string
		posts  int // of b, after a's SEND came
		write  int // which of the posts is a WRITE, from 1
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

// TestDeferACKTimer: an acknowledgement is deferred only where the acknowledge timeout is long, or there is none.
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

// TestAnswerPiggybacksACK: between ends that have exchanged hellos, an answer that leaves alone piggybacks the
// deferred acknowledgement, which completes the peer's message first.
func TestAnswerPiggybacksACK(t *testing.T) {
	for _, tt := range []struct {
		name    string
		strange bool   // the ends have exchanged no hellos
		shown   string // the devices with these names show their packets
		answers []int
		carries int // which of b's packets piggybacks the acknowledgement, or -1
		packets int // sent by b
		mtu     verbs.MTU
	}{
		{"one", false, "", []int{8}, 0, 1, verbs.MTU2048},
		{"nothing", false, "", []int{0}, 0, 1, verbs.MTU2048},
		{"a long one", false, "", []int{piggybackMost}, -1, 2, verbs.MTU2048},
		{"one that fills the path MTU", false, "", []int{256}, -1, 2, verbs.MTU256},
		{"a train", false, "", []int{8, 8}, -1, 3, verbs.MTU2048},
		{"to a stranger", true, "", []int{8}, -1, 2, verbs.MTU2048},
		{"shown there", false, "a", []int{8}, -1, 2, verbs.MTU2048},
		{"shown here", false, "b", []int{8}, -1, 2, verbs.MTU2048},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, setup{mtu: tt.mtu})
			p.a.qp.cfg.Shown, p.b.qp.cfg.Shown = tt.shown == "a", tt.shown == "b"
			if !tt.strange {
				p.greet()
			}
			for i := range tt.answers {
				p.a.postRecv(uint64(i), p.a.mem.sge(0, 2048))
			}
			p.b.postRecv(1, p.b.mem.sge(0, 8))
			p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
			p.transmit()
			mark, f := len(p.log), p.flight[0]
			p.flight, p.now = nil, f.at
			p.receive(f.to, f.data, f.loan)
			if !p.b.qp.DeferACK(0) {
				t.Fatal("the acknowledgement is not deferred, want it deferred")
			}
			for i, n := range tt.answers {
				p.post(p.b, sendWR(uint64(i), p.b.mem.sge(0, n)))
			}
			p.run()
			sent := p.packets(p.b, mark)
			if len(sent) != tt.packets {
				t.Errorf("b sent %d packets, want %d", len(sent), tt.packets)
			}
			for i, s := range sent {
				if s.Piggybacks != (i == tt.carries) {
					t.Errorf("packet %d, %v, piggybacks an acknowledgement: %v, want one in packet %d", i, s.Opcode, s.Piggybacks, tt.carries)
				}
			}
			p.a.polled(1)
			if n := len(p.a.recvd); n != len(tt.answers) {
				t.Errorf("a received %d messages, want %d", n, len(tt.answers))
			}
		})
	}
}

// TestPiggybackedACKLost: an answer that is lost with its piggybacked acknowledgement comes again, and the message
// that it answered is acknowledged.
func TestPiggybackedACKLost(t *testing.T) {
	p := newPair(t, setup{selective: true})
	p.a.postRecv(1, p.a.mem.sge(0, 8))
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	lost := false
	p.route = func(_ *node, _ int, s *wire.Packet) []delay {
		if s.Piggybacks {
			lost = true
			return nil
		}
		return []delay{testDelay}
	}
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
	p.transmit()
	f := p.flight[0]
	p.flight, p.now = nil, f.at
	if p.receive(f.to, f.data, f.loan); !p.b.qp.DeferACK(0) {
		t.Fatal("the acknowledgement is not deferred, want it deferred")
	}
	p.post(p.b, sendWR(2, p.b.mem.sge(0, 8)))
	if p.run(); !lost {
		t.Fatal("nothing carried an acknowledgement, want the answer to")
	}
	p.a.polled(1)
	p.b.polled(1)
}

// TestPiggybackedNAK: only an acknowledgement may be piggybacked. Anything else is ignored, and the message is taken.
func TestPiggybackedNAK(t *testing.T) {
	p := newPair(t, setup{})
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	p.post(p.b, sendWR(1, p.b.mem.sge(0, 8)))
	p.transmit()
	p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}, Payload: make([]byte, 8),
		Piggybacks: true, AETH: wire.AETH{Syndrome: wire.SyndromeNAK(wire.NAKRemoteAccessError)}})
	if s, n := p.b.qp.State(), p.b.qp.Counters().Unexpected; s != verbs.QPStateRTS || n != 1 || len(p.b.recvd) != 1 {
		t.Errorf("the QP is in %v, %d packets were unexpected, %d messages came; want RTS, 1 and 1", s, n, len(p.b.recvd))
	}
}
