package hca

// Floods that come from anybody, and floods of a peer that misbehaves: they cost the receives
// that the program has posted, and nothing else.

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const attackedQKey = 7

// datagramEnd makes a UD QP in RTR with n receives of 128 bytes.
func datagramEnd(t *testing.T, net *sim.Network, i, n int) (*end, *verbs.MR) {
	t.Helper()
	y := newEnd(t, simDevice(t, net, i), options{typ: verbs.QPTypeUD})
	y.must(y.qp.Modify(&verbs.QPAttr{QKey: attackedQKey}, verbs.MaskQKey))
	y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	mr := y.mr(128 * n)
	for i := range n {
		y.recv(verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{mr.SGE(128*i, 128)}})
	}
	return y, mr
}

// datagram sends a UD SEND from the station, with a payload of so many bytes.
func (s *station) datagram(dst netip.Addr, qpn, qkey uint32, size int) {
	s.t.Helper()
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: qpn, PSN: s.psn}, DETH: wire.DETH{QKey: qkey, SrcQP: 0x123456}}
	s.psn = s.psn.Add(1)
	b := append(p.AppendHeaders(nil), make([]byte, size+wire.ICRCSize)...)
	src, to := s.link.Source(s.flow), netip.AddrPortFrom(dst, link.Port)
	flow := wire.NewFlow(src, to)
	flow.Seal(0, b)
	if err := s.link.Send([]link.Datagram{{Src: src, Dst: to, Payload: b}}); err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
}

// received returns how many successful completions wait.
func (e *end) received() (n int) {
	e.t.Helper()
	var wcs [16]verbs.WC
	for {
		got, err := e.cq.Poll(wcs[:])
		e.must(err)
		for _, wc := range wcs[:got] {
			e.must(wc.Err())
		}
		if n += got; got == 0 {
			return n
		}
	}
}

// A stranger who knows a multicast group takes receives only with the Q_Key too, and only of QPs in the
// group. A datagram to the group's QPN at the host's own address is for nobody.
func TestMulticastStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		y, _ := datagramEnd(t, net, 2, 4)
		group, other := netip.MustParseAddr("239.7.7.7"), netip.MustParseAddr("239.7.7.8")
		y.must(y.qp.AttachMcast(verbs.GIDFromAddr(group)))
		s := newStation(t, net, 1)
		const n = 500
		b := burdened(t, y.dev)
		for i := range n {
			s.datagram(group, multicastQPN, attackedQKey+1+uint32(i), 64)
			s.datagram(other, multicastQPN, attackedQKey, 64)
			s.datagram(simAddr(2), multicastQPN, attackedQKey, 64)
		}
		if got := y.received(); got != 0 {
			t.Errorf("%d receives taken, want none", got)
		}
		if d := impl(y.dev).Stats()[0].Drops; d != (Drops{QKey: n, NoQP: n}) { // over IPv4
			t.Errorf("drops %+v, want %d for the Q_Key and as many for no QP", d, n)
		}
		b.check(0)
		s.datagram(group, multicastQPN, attackedQKey, 64)
		if got := y.received(); got != 1 {
			t.Errorf("%d receives taken by one datagram with the Q_Key, want 1", got)
		}
		if ops := s.answers(); len(ops) != 0 {
			t.Errorf("%d answers, want none: a group would multiply them", len(ops))
		}
	})
}

// A flood of datagrams with the right Q_Key takes the receives that are posted. The rest is counted, and
// not answered. The next receive works again.
func TestDatagramFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		const receives, n = 4, 5000
		y, mr := datagramEnd(t, net, 2, receives)
		s := newStation(t, net, 1)
		s.datagram(simAddr(2), uint32(y.qp.QPN()), attackedQKey, 0)
		b := burdened(t, y.dev)
		for i := range n - 1 {
			s.datagram(simAddr(2), uint32(y.qp.QPN()), attackedQKey, i%20*4)
		}
		b.check(0)
		if got := y.received(); got != receives {
			t.Errorf("%d receives completed, want %d", got, receives)
		}
		if c := counters(y); c.NoReceive != n-receives {
			t.Errorf("%d datagrams counted that found no receive, want %d", c.NoReceive, n-receives)
		}
		if ops := s.answers(); len(ops) != 0 || y.qp.State() != verbs.QPStateRTR {
			t.Errorf("%d answers, the QP in %v; want none, and RTR", len(ops), y.qp.State())
		}
		noEvent(t, y.dev)
		y.recv(verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 128)}})
		s.datagram(simAddr(2), uint32(y.qp.QPN()), attackedQKey, 64)
		if got := y.received(); got != 1 {
			t.Errorf("%d receives completed afterwards, want 1", got)
		}
	})
}

// A flood of MADs to QP1 takes the receives that its owner has posted. It grows nothing, and raises
// nothing.
func TestMADFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		y, _ := gsiEnd(t, simDevice(t, net, 2))
		s := newStation(t, net, 1)
		flood := func(n int) {
			for range n {
				s.datagram(simAddr(2), gsiQPN, uint32(verbs.GSIQKey), wire.MADSize)
			}
		}
		flood(100)
		b := burdened(t, y.dev)
		const n = 5000
		flood(n)
		b.check(0)
		if got := y.received(); got != 2 {
			t.Errorf("%d receives completed, want the 2 that were posted", got)
		}
		if c := counters(y); c.NoReceive != 100+n-2 {
			t.Errorf("%d MADs counted that found no receive, want %d", c.NoReceive, 100+n-2)
		}
		noEvent(t, y.dev)
		if ops := s.answers(); len(ops) != 0 {
			t.Errorf("%d answers, want none", len(ops))
		}
	})
}

// A connected peer that sends and sends where no receive is posted gets an answer a packet at most, and
// takes nothing from the device's other connections.
func TestPeerWithoutReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, mr, s, net := byHand(t)
		a := &attacked{t: t}
		a.x, a.y = connect(t, simDevice(t, net, 3), y.dev, options{})
		a.src, a.dst = a.x.mr(1<<16), a.y.mr(1<<16)
		a.works(time.Second)
		const n = 3000
		answers := 0
		var cost *burden
		for i := range n {
			if i == 1 { // the first packet is an event
				cost = burdened(t, y.dev)
			}
			p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: uint32(y.qp.QPN()), AckReq: true, PSN: s.psn}}
			b := append(p.AppendHeaders(nil), make([]byte, 64+wire.ICRCSize)...)
			s.seal(y, b)
			s.send(y, b)
			answers += len(s.answers())
		}
		if answers > n || answers == 0 {
			t.Errorf("%d answers to %d packets, want some and no more than those", answers, n)
		}
		cost.check(n)
		if c := y.impl().counts(); y.qp.State() != verbs.QPStateRTR || !bytes.Equal(mr.Bytes(), make([]byte, 64)) || c.Duplicates != 0 {
			t.Errorf("the QP in %v with %+v, want RTR and its memory as before", y.qp.State(), c)
		}
		a.works(time.Second)
	})
}
