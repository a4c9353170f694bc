package transport

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestForeignReadRepeatedFromItsGap: Linux refuses a repeat of a READ that begins before an earlier repeat of the
// same READ. So each repeat begins with the first response that is missing, and none before that is requested again.
func TestForeignReadRepeatedFromItsGap(t *testing.T) {
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
	if len(begins) != 2 || !begins[0] || !begins[3] {
		t.Errorf("the repeated READs begin at PSNs %v, want 0 and 3, where the second READ's first gap is", begins)
	}
}

// linuxReads is a network whose end b answers READs as Linux does: it drops a repeat of a READ that begins before an
// earlier repeat of the same one. drops counts the dropped requests.
type linuxReads struct {
	begins map[wire.PSN]wire.PSN // where the latest repeat of a READ begins, by the READ's first PSN
	sizes  map[wire.PSN]int
	drops  int
}

// takes reports whether Linux takes a packet.
func (l *linuxReads) takes(pkt *wire.Packet, mtu int) bool {
	if pkt.Opcode != wire.RCRDMAReadRequest {
		return true
	}
	for first, latest := range l.begins {
		if d := pkt.PSN.Diff(first); d >= 0 && d < l.sizes[first] {
			if pkt.PSN.Less(latest) {
				l.drops++
				return false
			}
			l.begins[first] = pkt.PSN
			return true
		}
	}
	l.begins[pkt.PSN], l.sizes[pkt.PSN] = pkt.PSN, (int(pkt.RETH.Length)+mtu-1)/mtu
	return true
}

// TestForeignReadsAskForGaps: of a READ from Linux that has lost some responses the missing ones are requested again,
// with few others. Linux takes each of these requests, and all data arrive.
func TestForeignReadsAskForGaps(t *testing.T) {
	for _, tt := range []struct {
		loss float64
		most float64 // responses that come twice, per lost one
	}{{.01, 6}, {.03, 12}} {
		lost, twice := 0, uint64(0)
		for seed := range uint64(8) {
			p := newPair(t, setup{mtu: verbs.MTU256, rd: 16, timeout: 14, fresh: true})
			rnd := rand.New(rand.NewPCG(seed, 0x72656164))
			linux := &linuxReads{begins: map[wire.PSN]wire.PSN{}, sizes: map[wire.PSN]int{}}
			busy := [2]time.Duration{}
			p.route = func(from *node, _ int, pkt *wire.Packet) []delay {
				if from == p.a && !linux.takes(pkt, 256) {
					return nil
				}
				way := &busy[0]
				if from == p.b {
					way = &busy[1]
				}
				if rnd.Float64() < tt.loss {
					if from == p.b {
						lost++
					}
					return nil
				}
				*way = max(*way, p.now) + us
				return []delay{*way - p.now + 50*us}
			}
			const reads, size = 24, 200 * 256
			for id := range uint64(reads) {
				off := int(id%8) * size
				p.post(p.a, readWR(id, p.b.mem.remote(off), p.a.mem.sge(off, size)))
			}
			p.run()
			for _, s := range p.a.sends {
				if s.wc.Status != verbs.WCSuccess {
					t.Fatalf("seed %d, %g lost: %v, want success", seed, tt.loss, s.wc.Err())
				}
			}
			if len(p.a.sends) != reads || !bytes.Equal(p.a.mem.data[:8*size], p.b.mem.data[:8*size]) {
				t.Fatalf("seed %d, %g lost: %d READs, or other data; want %d and b's data", seed, tt.loss, len(p.a.sends), reads)
			}
			if linux.drops != 0 {
				t.Errorf("seed %d, %g lost: Linux drops %d requests, want none", seed, tt.loss, linux.drops)
			}
			if c := p.a.qp.Counters(); c.Unexpected != 0 {
				t.Errorf("seed %d, %g lost: %d packets nobody expected, want the %d that came twice apart", seed, tt.loss, c.Unexpected, c.RepeatedResponses)
			}
			twice += p.a.qp.Counters().RepeatedResponses
		}
		if got := float64(twice) / float64(lost); got > tt.most {
			t.Errorf("%g lost: %.1f responses come twice for a lost one, want %g at most", tt.loss, got, tt.most)
		} else {
			t.Logf("%g lost: %.1f responses come twice for a lost one", tt.loss, got)
		}
	}
}
