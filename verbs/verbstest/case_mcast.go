package verbstest

import (
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/verbs"
)

// multicastQPN is the QPN that datagrams to a multicast group are sent to.
const multicastQPN verbs.QPN = 0xffffff

// group returns a multicast group of the GID's IP version. Hardly anybody else uses it at the time. On InfiniBand it has a LID.
func (s *Side) group() peer {
	r := s.rand.Uint32()
	a := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x12, 12: byte(r >> 24), 13: byte(r >> 16), 14: byte(r >> 8), 15: byte(r)})
	if s.gid().Addr().Is4() {
		a = netip.AddrFrom4([4]byte{239, 192 | byte(r>>16)&63, byte(r >> 8), byte(r)})
	}
	g := peer{QKey: testQKey}
	g.GID, g.QPN = verbs.GIDFromAddr(a), multicastQPN
	if !s.ethernet() {
		g.LID = s.mlid
	}
	return g
}

func (e *end) attach(g peer) {
	if !e.ethernet() && g.LID == 0 {
		e.Unsupported(Multicast, errors.New("on InfiniBand a group has a LID too, which the subnet manager gives: Config.MLID is 0"))
	}
	err := e.qp.AttachMcastLID(g.GID, g.LID)
	if errors.Is(err, errors.ErrUnsupported) { // from the network underneath
		err = errors.Join(verbs.ErrUnsupported, err)
	}
	e.need(Multicast, err)
	e.Cleanup(func() { e.qp.DetachMcast(g.GID) }) // or the QP could not be closed
}

var multicastCases = []Case{
	// A datagram to a group comes to every QP that is attached to it, the sender's included.
	{
		Name: "ud/multicast", Needs: UD | Multicast,
		A: func(s *Side) {
			e := s.ud()
			g := s.group()
			Exchange(s, g)
			in, src := e.mr(1000), e.filled(500, 1)
			e.attach(g)
			s.Barrier()
			e.recv(recv(1, in.SGE(0, 1000)), recv(2, in.SGE(0, 1000)), recv(3, in.SGE(0, 1000)))
			ah := e.addressOf(g)
			e.send(g.datagram(ah, sendImm(1, 1, src.SGE(0, 500))))
			e.sent(1, verbs.WCSend)
			me := e.self()
			want(s, "immediate", e.datagramFrom(me, 1, 500, verbs.WCFlagWithImm).Imm, 1)
			s.checkGRH(in.Bytes(), me.GID, g.GID)
			s.verify("own datagram", in.Bytes()[verbs.GRHSize:][:500], 1)
			s.Barrier() // the other side has received it too, and has left the group
			e.send(g.datagram(ah, sendImm(2, 2)))
			e.sent(2, verbs.WCSend)
			want(s, "immediate", e.datagramFrom(me, 2, 0, verbs.WCFlagWithImm).Imm, 2)
			direct := e.addressOf(e.to)
			e.send(e.to.datagram(direct, sendImm(3, 3)))
			e.sent(3, verbs.WCSend)
			want(s, "immediate", e.datagramFrom(e.to, 3, 10, verbs.WCFlagWithImm).Imm, 4)
			s.must(e.qp.DetachMcast(g.GID))
		},
		B: func(s *Side) {
			e := s.ud()
			g := Exchange(s, peer{})
			in := e.mr(1000)
			e.recv(recv(1, in.SGE(0, 1000)), recv(2, in.SGE(0, 1000)))
			e.attach(g)
			s.Barrier()
			want(s, "immediate", e.datagramFrom(e.to, 1, 500, verbs.WCFlagWithImm).Imm, 1)
			s.checkGRH(in.Bytes(), e.to.GID, g.GID)
			s.verify("payload", in.Bytes()[verbs.GRHSize:][:500], 1)
			s.must(e.qp.DetachMcast(g.GID))
			s.Barrier()
			// Other datagrams still come. The second one to the group, which was sent before, does not.
			want(s, "immediate", e.datagramFrom(e.to, 2, 0, verbs.WCFlagWithImm).Imm, 3)
			e.send(e.to.datagram(e.addressOf(e.to), sendImm(5, 4, in.SGE(0, 10))))
			e.sent(5, verbs.WCSend)
		},
	},
	// Each QP of a device that is attached gets a copy.
	{
		Name: "ud/multicast to many QPs", Needs: UD | Multicast,
		A: func(s *Side) {
			e := s.ud()
			g := s.group()
			Exchange(s, g)
			s.Barrier()
			ah := e.addressOf(g)
			e.send(g.datagram(ah, send(1)))
			e.sent(1, verbs.WCSend)
			s.Barrier()
			bad := g.datagram(ah, send(2))
			bad.RemoteQKey++
			e.send(bad, g.datagram(ah, sendImm(3, 3)))
			e.sent(2, verbs.WCSend)
			e.sent(3, verbs.WCSend)
		},
		B: func(s *Side) {
			e := s.ud()
			from, g := e.to, Exchange(s, peer{})
			ends := []*end{e}
			for range 3 {
				o := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: testQKey, pd: e.pd})
				o.rtr()
				ends = append(ends, o)
			}
			in := e.mr(64)
			for _, e := range ends {
				e.recv(recv(1, in.SGE(0, 64)), recv(2, in.SGE(0, 64)))
				e.attach(g)
			}
			ends[1].attach(g) // which brings no second copy
			s.Barrier()
			for _, e := range ends {
				e.datagramFrom(from, 1, 0, 0)
			}
			s.must(ends[0].qp.DetachMcast(g.GID))
			s.Barrier()
			for _, e := range ends[1:] {
				want(s, "immediate", e.datagramFrom(from, 2, 0, verbs.WCFlagWithImm).Imm, 3)
			}
			s.empty(ends[0].rcq)
		},
	},
	both("ud/multicast errors", UD|Multicast, func(s *Side) {
		e := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: 1})
		e.rtr()
		g := s.group()
		s.wantErr("a group that is none", e.qp.AttachMcast(s.gid()), verbs.ErrInvalid)
		s.wantErr("the LID of a port", e.qp.AttachMcastLID(g.GID, 0xbfff), verbs.ErrInvalid)
		if err := e.qp.DetachMcast(g.GID); err == nil {
			s.Errorf("detached from a group without being attached")
		}
		e.attach(g)
		e.attach(g)
		s.wantErr("close an attached QP", e.qp.Close(), verbs.ErrBusy)
		e.rts()
		one, many := e.self(), g
		one.QPN, many.QPN = multicastQPN, e.self().QPN
		for what, to := range map[string]peer{"the QPN of groups at a single host": one, "a QP's number at a group": many} {
			_, err := e.qp.PostSend([]verbs.SendWR{to.datagram(e.addressOf(to), send(1))})
			s.wantErr(what, err, verbs.ErrInvalid)
		}
		s.must(e.qp.DetachMcast(g.GID))
		s.must(e.qp.Close())
		rc := s.newEnd(setup{})
		s.wantErr("attach an RC QP", rc.qp.AttachMcast(g.GID), verbs.ErrUnsupported)
	}),
}
