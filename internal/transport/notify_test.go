package transport

import (
	"bytes"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// mark makes e's QP take a packet of its peer that came with a mark.
func (p *pair) mark(e *node, pkt wire.Packet) {
	pkt.DestQP, pkt.PKey = uint32(e.qp.cfg.QPN), wire.DefaultPKey
	e.qp.HandlePacket(p.now, &pkt, CongestionExperienced)
	e.collect()
}

// cnps returns how many CNPs an end has sent.
func (p *pair) cnps(e *node) (n int) {
	for _, op := range p.opcodes(e, 0) {
		if op == wire.CNP {
			n++
		}
	}
	return n
}

// TestMarksAnswered: packets that come marked are answered by congestion notifications, one in an interval. These go
// before all other packets, and nothing answers them.
func TestMarksAnswered(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		p := newPair(t, setup{typ: typ})
		op := wire.RCRDMAWriteOnly
		if typ == verbs.QPTypeUC {
			op = wire.UCRDMAWriteOnly
		}
		psn := wire.PSN(0)
		write := func() {
			p.mark(p.b, rdma(req(op, psn, 8), memBaseB, keyB, 8))
			psn++
		}
		want := func(when string, n int) {
			t.Helper()
			p.transmit()
			if got := p.cnps(p.b); got != n {
				t.Errorf("%v, %s: %d CNPs, want %d", typ, when, got, n)
			}
		}
		write()
		write()
		if !p.b.qp.HasPackets() {
			t.Errorf("%v: a QP with a CNP has nothing to send, want something", typ)
		}
		want("two marks", 1)
		first := p.last(p.b)
		for i := len(p.log) - 1; i >= 0 && p.log[i].from == p.b; i-- {
			first = p.log[i]
		}
		cnp := wire.NewCNP(uint32(p.a.qp.cfg.QPN), wire.DefaultPKey)
		if got := first.AppendTo(nil); !bytes.Equal(got, cnp.AppendTo(nil)) {
			t.Errorf("%v: the first packet is % x, want the CNP % x", typ, got, cnp.AppendTo(nil))
		}
		p.now += recovery.NotifyInterval - 1
		write()
		want("within the interval", 1)
		p.now++
		want("after it, without a mark", 1)
		write()
		want("and with one", 2)
		p.now += time.Second
		p.mark(p.b, wire.NewCNP(0, 0))
		want("a CNP that is marked", 2)
		if got := p.b.qp.Counters(); got.SentNotifications != 2 || got.CongestionMarks != 5 {
			t.Errorf("%v: %+v, want 5 marks and 2 notifications sent", typ, got)
		}
	}
}

// TestMarksStates: a QP that may not send answers no marks.
func TestMarksStates(t *testing.T) {
	for s, n := range map[verbs.QPState]int{verbs.QPStateInit: 0, verbs.QPStateRTR: 1, verbs.QPStateRTS: 1, verbs.QPStateErr: 0, verbs.QPStateReset: 0} {
		p := newPair(t, setup{unconnected: true})
		attr := setup{}.attr(p.a, p.b, 0, 0)
		for i, mask := range connectMasks[verbs.QPTypeRC] {
			if attr.State = verbs.QPStateInit + verbs.QPState(i); attr.State <= s {
				p.modify(p.a, attr, mask)
			}
		}
		p.mark(p.a, rdma(req(wire.RCRDMAWriteOnly, 0, 0), 0, 0, 0))
		if s == verbs.QPStateErr || s == verbs.QPStateReset {
			p.state(p.a, s) // a notification that is due is dropped
		}
		p.transmit()
		if got := p.cnps(p.a); got != n {
			t.Errorf("%v: %d CNPs, want %d", s, got, n)
		}
	}
}
