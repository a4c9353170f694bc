package transport

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// paced gives an end a rate that nothing changes.
func paced(e *node, rate uint64) {
	e.qp.rate.Fix(rate)
}

// dataFrom returns the packets with data that an end has sent, and their times.
func (p *pair) dataFrom(e *node) (at []time.Duration, bytes int) {
	for _, s := range p.packets(e, 0) {
		if len(s.Payload) > 0 {
			at = append(at, s.at)
			bytes += len(s.Payload)
		}
	}
	return at, bytes
}

// TestPace: requests, READ responses and UC packets of a QP with a rate leave at that rate, in trains of paceQuantum.
// No acknowledgement is late because of the rate, and no packet is taken for lost.
func TestPace(t *testing.T) {
	const size = 512 << 10
	const slowest = 10e6 / 8 // bytes in a second
	for name, tt := range map[string]struct {
		typ  verbs.QPType
		op   verbs.Opcode
		rate uint64
		most int // packets at once
	}{
		"a WRITE":               {op: verbs.OpRDMAWrite, rate: 400e6, most: 20},
		"a slow WRITE":          {op: verbs.OpRDMAWrite, rate: slowest, most: 1},
		"READ responses":        {op: verbs.OpRDMARead, rate: 400e6, most: 20},
		"slow READ responses":   {op: verbs.OpRDMARead, rate: slowest, most: 1},
		"a WRITE of UC":         {typ: verbs.QPTypeUC, op: verbs.OpRDMAWrite, rate: 400e6, most: 20},
		"trains of a fast QP":   {op: verbs.OpRDMAWrite, rate: 10e9, most: trainBytes/1024 + 2},
		"trains of READs":       {op: verbs.OpRDMARead, rate: 10e9, most: 16}, // a turn
		"slow with a long pace": {typ: verbs.QPTypeUC, op: verbs.OpRDMAWrite, rate: 100e3, most: 1},
	} {
		p := newPair(t, setup{typ: tt.typ, timeout: 14, turn: 16})
		from := p.a
		if tt.op == verbs.OpRDMARead {
			from = p.b
		}
		paced(from, tt.rate)
		wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, size))
		wr.Op = tt.op
		p.post(p.a, wr)
		p.run()
		p.a.wantSends(wc{1, 0})
		at, bytes := p.dataFrom(from)
		if bytes != size {
			t.Errorf("%s: %d bytes are sent, want %d once", name, bytes, size)
		}
		took := at[len(at)-1].Seconds()
		if got := float64(bytes) / took; got < .9*float64(tt.rate) && tt.rate < 1e9 || got > 1.15*float64(tt.rate) && tt.rate < 1e9 {
			t.Errorf("%s: sent at %.0f bytes in a second, want %d", name, got, tt.rate)
		}
		most, n := 0, 0
		for i := range at {
			if i > 0 && at[i] != at[i-1] {
				n = 0
			}
			n++
			most = max(most, n)
		}
		if most > tt.most+tt.most/8 || most < tt.most*3/4 && tt.most > 1 {
			t.Errorf("%s: up to %d packets go at once, want %d", name, most, tt.most)
		}
		if c := p.a.qp.Counters(); c.Timeouts+c.Retransmits+c.Probes > 0 {
			t.Errorf("%s: %+v, want nothing sent again", name, c)
		}
	}
}

// TestPaceAnswers: acknowledgements and notifications go while the pace holds all other packets back. When the rate
// ends, so does the wait.
func TestPaceAnswers(t *testing.T) {
	p := newPair(t, setup{})
	paced(p.a, 1e3)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4096)))
	p.wantSent(1)
	p.mark(p.a, rdma(req(wire.RCRDMAWriteOnly, 0, 8), memBaseA, p.a.mem.key, 8))
	p.inject(p.a, rdma(req(wire.RCRDMAReadRequest, 1, 0), memBaseA, p.a.mem.key, 8))
	p.transmit()
	if got := p.opcodes(p.a, 0); len(got) != 2 || got[1] != wire.CNP {
		t.Errorf("sent %v, want a WRITE and a CNP: answers behind the READ wait with its response", got)
	}
	if at := p.a.qp.NextTimeout(); at > p.a.qp.rate.PauseEnds() || p.a.qp.rate.NextTimeout() != p.a.qp.rate.PauseEnds() {
		t.Errorf("the next timeout is at %v, and the pace's at %v, want %v at the latest", at, p.a.qp.rate.NextTimeout(), p.a.qp.rate.PauseEnds())
	}
	p.a.qp.rate.Fix(0)
	p.run()
	p.a.wantSends(wc{1, 0})
}
