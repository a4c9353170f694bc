package verbstest

import (
	"github.com/adverb-rdma/adverb/verbs"
)

const testQKey verbs.QKey = 0x11223344

// oneToMany is how many QPs of each side the one QP sends to.
const oneToMany = 4

// addressOf makes an address handle for a peer. It returns nil for a QP that is not UD.
func (e *end) addressOf(p peer) *verbs.AH {
	if e.o.typ != verbs.QPTypeUD {
		return nil
	}
	return e.createAH(verbs.AHAttr{DGID: p.GID, DLID: p.LID, SGIDIndex: e.GIDIndex, Port: e.Port})
}

func (e *end) createAH(attr verbs.AHAttr) *verbs.AH {
	ah, err := e.pd.CreateAH(attr)
	e.need(UD, err)
	e.closeLater(ah)
	return ah
}

// datagram returns wr, addressed to the peer.
func (p peer) datagram(ah *verbs.AH, wr verbs.SendWR) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, p.QPN, p.QKey
	return wr
}

// ud makes a UD QP and learns the number of the one that the other side makes.
func (s *Side) ud() *end { return s.connect(setup{typ: verbs.QPTypeUD, qkey: testQKey}) }

// datagramFrom waits for a datagram of n bytes from p.
func (e *end) datagramFrom(p peer, id uint64, n int, flags verbs.WCFlags) verbs.WC {
	wc := e.receivedAs(id, verbs.GRHSize+n, verbs.WCRecv, verbs.WCFlagGRH|flags)
	want(e.Side, "sender's QPN", wc.SrcQPN, p.QPN)
	return wc
}

// checkGRH verifies the addresses in a GRH.
func (s *Side) checkGRH(grh []byte, from, to verbs.GID) {
	src, dst := from[:], to[:]
	at := 8
	if e, err := s.Device.GID(s.Port, s.GIDIndex); err == nil && e.Type == verbs.GIDTypeRoCEv1 {
		want(s, "IP version and next header of the GRH", [2]byte{grh[0] >> 4, grh[6]}, [2]byte{6, 0x1b})
	} else if from.Addr().Is4() {
		src, dst, at = from[12:], to[12:], 32
		want(s, "first byte of the IPv4 header", grh[20], 0x45)
	} else {
		want(s, "IP version", grh[0]>>4, 6)
	}
	s.same("source in the GRH", grh[at:at+len(src)], src)
	s.same("destination in the GRH", grh[at+len(src):at+2*len(src)], dst)
}

var udCases = []Case{
	// Datagrams up to the MTU arrive behind a GRH. The receiver answers to the address that the GRH and
	// the completion give.
	{
		Name: "ud/send and answer", Needs: UD,
		A: func(s *Side) {
			e := s.ud()
			ah := e.addressOf(e.to)
			sizes := []int{0, 1, 3, 1000, e.mtu - 1, e.mtu}
			src, in := e.mr(e.mtu), e.mr(verbs.GRHSize+8)
			for i, n := range sizes {
				fill(src.Bytes()[:n], uint64(i))
				e.recv(recv(uint64(i), in.SGE(0, verbs.GRHSize+8)))
				s.Barrier()
				wr := send(uint64(i), src.SGE(0, n))
				if i%2 == 1 {
					wr = sendImm(uint64(i), immOf(i), src.SGE(0, n))
				}
				e.send(e.to.datagram(ah, wr))
				e.sent(uint64(i), verbs.WCSend)
				if wc := e.datagramFrom(e.to, uint64(i), 8, verbs.WCFlagWithImm); wc.Imm != immOf(i) {
					s.Errorf("immediate of the answer %#x, want %#x", wc.Imm, immOf(i))
				}
				s.verify("answer", in.Bytes()[verbs.GRHSize:], uint64(100+i))
			}
		},
		B: func(s *Side) {
			e := s.ud()
			sizes := []int{0, 1, 3, 1000, e.mtu - 1, e.mtu}
			src, in := e.mr(8), e.mr(verbs.GRHSize+e.mtu+gap)
			for i, n := range sizes {
				paint(in.Bytes())
				e.recv(recv(uint64(i), in.SGE(0, 1), in.SGE(1, verbs.GRHSize+e.mtu-1)))
				s.Barrier()
				flags := verbs.WCFlags(0)
				if i%2 == 1 {
					flags = verbs.WCFlagWithImm
				}
				wc := e.datagramFrom(e.to, uint64(i), n, flags)
				if i%2 == 1 {
					want(s, "immediate", wc.Imm, immOf(i))
				}
				grh := in.Bytes()[:verbs.GRHSize]
				s.checkGRH(grh, e.to.GID, e.gid())
				s.verify("payload", in.Bytes()[verbs.GRHSize:][:n], uint64(i))
				s.untouched("behind the payload", in.Bytes()[verbs.GRHSize+n:])
				ah, err := e.pd.CreateAHFromWC(s.Port, &wc, grh)
				s.must(err)
				s.closeLater(ah)
				want(s, "GID of the handle made from a completion", ah.Attr().DGID, e.to.GID)
				want(s, "its GID index", ah.Attr().SGIDIndex, s.GIDIndex)
				fill(src.Bytes(), uint64(100+i))
				answer := sendImm(9, immOf(i), src.SGE(0, 8))
				answer.AH, answer.RemoteQPN, answer.RemoteQKey = ah, wc.SrcQPN, testQKey
				e.send(answer)
				e.sent(9, verbs.WCSend)
				s.must(ah.Close())
			}
		},
	},
	{
		Name: "ud/too large", Needs: UD,
		A: func(s *Side) {
			e := s.ud()
			ah := e.addressOf(e.to)
			sizes := []int{8192}
			if s.has(DatagramLimit) {
				sizes = append(sizes, s.activeMTU().Bytes()+1)
			}
			for _, n := range sizes {
				_, err := e.qp.PostSend([]verbs.SendWR{e.to.datagram(ah, send(1, e.mr(n).SGE(0, n)))})
				s.wantErr("a datagram larger than the MTU", err, verbs.ErrLimit)
			}
			s.empty(e.scq)
			s.Barrier()
			e.send(e.to.datagram(ah, send(2)))
			e.sent(2, verbs.WCSend)
		},
		B: func(s *Side) {
			e := s.ud()
			e.recv(recv(1, e.mr(16<<10).SGE(0, 16<<10)))
			s.Barrier()
			e.datagramFrom(e.to, 1, 0, 0)
		},
	},
	// A datagram is dropped, and counted, if its Q_Key is not the QP's. A Q_Key whose top bit is set
	// stands for that of the sender's QP.
	{
		Name: "ud/Q_Key", Needs: UD,
		A: func(s *Side) {
			e := s.ud()
			ah := e.addressOf(e.to)
			src := e.filled(8, 1)
			s.Barrier()
			bad := e.to.datagram(ah, send(1))
			bad.RemoteQKey++
			own := e.to.datagram(ah, send(2, src.SGE(0, 8)))
			own.RemoteQKey = 1<<31 | 0x777
			e.send(bad, own)
			e.sent(1, verbs.WCSend)
			e.sent(2, verbs.WCSend)
			// The sender's own Q_Key is no longer the peer's, so number 3 is dropped.
			s.Barrier()
			s.must(e.qp.Modify(&verbs.QPAttr{QKey: 5}, verbs.MaskQKey))
			own.ID = 3
			e.send(own, e.to.datagram(ah, send(4)))
			e.sent(3, verbs.WCSend)
			e.sent(4, verbs.WCSend)
		},
		B: func(s *Side) {
			e := s.ud()
			in := e.mr(64)
			count := func() uint32 {
				a, err := s.Device.QueryPort(s.Port)
				s.must(err)
				return a.QKeyViolCntr
			}
			before := count()
			e.recv(recv(1, in.SGE(0, 64)), recv(2, in.SGE(0, 64)))
			s.Barrier()
			e.datagramFrom(e.to, 1, 8, 0)
			s.verify("payload", in.Bytes()[verbs.GRHSize:][:8], 1)
			s.Barrier()
			e.datagramFrom(e.to, 2, 0, 0)
			s.empty(e.rcq)
			if s.attr().DeviceCapFlags&verbs.DeviceBadQKeyCntr != 0 {
				want(s, "Q_Key violations counted", count()-before, 2)
			}
		},
	},
	// Datagrams to a QP that does not exist, or has no receive, are lost. The sender is not told.
	{
		Name: "ud/what is lost is lost", Needs: UD,
		A: func(s *Side) {
			e, witness := s.ud(), s.ud()
			ah := e.addressOf(e.to)
			gone := e.to
			gone.QPN = Exchange(s, verbs.QPN(0))
			s.Barrier()
			e.send(gone.datagram(ah, send(1)), e.to.datagram(ah, sendImm(2, 2)))
			e.sent(1, verbs.WCSend)
			e.sent(2, verbs.WCSend)
			witness.send(witness.to.datagram(witness.addressOf(witness.to), send(3)))
			witness.sent(3, verbs.WCSend)
			s.Barrier()
			s.Barrier()
			e.send(e.to.datagram(ah, sendImm(4, 4)))
			e.sent(4, verbs.WCSend)
		},
		B: func(s *Side) {
			e, witness := s.ud(), s.ud()
			gone := s.newEnd(setup{typ: verbs.QPTypeUD})
			Exchange(s, gone.qp.QPN())
			witness.recv(recv(3, witness.mr(64).SGE(0, 64)))
			s.Barrier()
			witness.datagramFrom(witness.to, 3, 0, 0) // it came by the same way, so what went before has arrived
			s.Barrier()
			e.recv(recv(1, e.mr(64).SGE(0, 64)))
			s.Barrier()
			want(s, "immediate", e.datagramFrom(e.to, 1, 0, verbs.WCFlagWithImm).Imm, 4)
		},
	},
	// Many QPs send to one.
	{
		Name: "ud/many to one", Needs: UD,
		A: func(s *Side) {
			e := s.ud()
			to, pd := e.to, e.pd
			ah := e.addressOf(to)
			src := e.mr(8 * 100)
			ends := []*end{e}
			for range 7 {
				o := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: testQKey, pd: pd})
				o.rtr()
				o.rts()
				ends = append(ends, o)
			}
			s.Barrier()
			for i, e := range ends {
				fill(src.Bytes()[i*100:][:100], uint64(i))
				for range 4 {
					e.send(to.datagram(ah, sendImm(1, uint32(i), src.SGE(i*100, 100))))
					e.sent(1, verbs.WCSend)
				}
				Exchange(s, e.qp.QPN())
			}
		},
		B: func(s *Side) {
			e := s.ud()
			in := e.mr(32 * 200)
			for id := range uint64(32) {
				e.recv(recv(id, in.SGE(int(id)*200, 200)))
			}
			s.Barrier()
			for i := range 8 {
				from := peer{}
				from.QPN = Exchange(s, verbs.QPN(0))
				for r := range 4 {
					id := i*4 + r
					want(s, "immediate", e.datagramFrom(from, uint64(id), 100, verbs.WCFlagWithImm).Imm, uint32(i))
					s.verify("payload", in.Bytes()[id*200+verbs.GRHSize:][:100], uint64(i))
				}
			}
		},
	},
	// One QP sends to many, on both devices, by one list of datagrams that all have the same length.
	{
		Name: "ud/one to many", Needs: UD,
		A: func(s *Side) {
			e := s.ud()
			there := e.addressOf(e.to)
			var others, own [oneToMany]verbs.QPN
			var ends [oneToMany]*end
			in, src := e.mr(oneToMany*200), e.mr(2*oneToMany*100)
			for i := range ends {
				o := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: testQKey, pd: e.pd})
				o.rtr()
				o.recv(recv(uint64(i), in.SGE(i*200, 200)))
				ends[i], own[i] = o, o.qp.QPN()
			}
			here := e.addressOf(ends[0].self())
			others = Exchange(s, own)
			var wrs []verbs.SendWR
			for i := range 2 * oneToMany {
				fill(src.Bytes()[i*100:][:100], uint64(i))
				wr := send(uint64(i), src.SGE(i*100, 100))
				wr.RemoteQKey = testQKey
				if wr.AH, wr.RemoteQPN = there, others[i/2]; i%2 == 1 {
					wr.AH, wr.RemoteQPN = here, own[i/2]
				}
				wrs = append(wrs, wr)
			}
			e.send(wrs...)
			for i := range wrs {
				e.sent(uint64(i), verbs.WCSend)
			}
			for i, o := range ends {
				o.datagramFrom(e.self(), uint64(i), 100, 0)
				s.verify("payload", in.Bytes()[i*200+verbs.GRHSize:][:100], uint64(2*i+1))
			}
		},
		B: func(s *Side) {
			e := s.ud()
			var own [oneToMany]verbs.QPN
			var ends [oneToMany]*end
			in := e.mr(oneToMany * 200)
			for i := range ends {
				o := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: testQKey, pd: e.pd})
				o.rtr()
				o.recv(recv(uint64(i), in.SGE(i*200, 200)))
				ends[i], own[i] = o, o.qp.QPN()
			}
			Exchange(s, own)
			for i, o := range ends {
				o.datagramFrom(e.to, uint64(i), 100, 0)
				s.verify("payload", in.Bytes()[i*200+verbs.GRHSize:][:100], uint64(2*i))
			}
		},
	},
	{Name: "ud/send queue error", Needs: UD, A: func(s *Side) { sqe(s, verbs.QPTypeUD) }, B: func(s *Side) { sqePeer(s, verbs.QPTypeUD) }},
	both("ud/address handles", UD, func(s *Side) {
		e := s.newEnd(setup{typ: verbs.QPTypeUD, qkey: 1})
		e.rtr()
		e.rts()
		me := e.self()
		ah := e.addressOf(me)
		s.wantErr("close a PD with an AH", e.pd.Close(), verbs.ErrBusy)
		for what, attr := range map[string]verbs.AHAttr{
			"no address": {}, "port": {DGID: me.GID, DLID: me.LID, Port: 200},
			"GID index": {DGID: me.GID, DLID: me.LID, SGIDIndex: 1 << 20},
		} {
			_, err := e.pd.CreateAH(attr)
			s.wantErr("AH: "+what, err, verbs.ErrInvalid, verbs.ErrNotFound)
		}
		other := s.allocPD()
		foreign, err := other.CreateAH(verbs.AHAttr{DGID: me.GID, DLID: me.LID, SGIDIndex: s.GIDIndex, Port: s.Port})
		s.must(err)
		s.closeLater(foreign)
		for what, wr := range map[string]verbs.SendWR{
			"no AH": me.datagram(nil, send(1)), "an AH of another PD": me.datagram(foreign, send(1)),
			"a WRITE": me.datagram(ah, write(1, verbs.RemoteAddr{})), "a READ": me.datagram(ah, read(1, verbs.RemoteAddr{})),
		} {
			_, err := e.qp.PostSend([]verbs.SendWR{wr})
			s.wantErr(what, err, verbs.ErrInvalid, verbs.ErrUnsupported)
		}
		_, err = e.pd.CreateAHFromWC(s.Port, &verbs.WC{}, make([]byte, verbs.GRHSize))
		s.wantErr("an AH from a completion without GRH", err, verbs.ErrInvalid)
		// A message that was posted goes out although its handle is closed.
		in := e.mr(64)
		e.recv(recv(1, in.SGE(0, 64)))
		e.send(me.datagram(ah, send(1)))
		s.must(ah.Close())
		_, err = e.qp.PostSend([]verbs.SendWR{me.datagram(ah, send(2))})
		s.wantErr("a closed AH", err, verbs.ErrClosed)
		e.sent(1, verbs.WCSend)
		e.datagramFrom(me, 1, 0, 0)
		e.inState(verbs.QPStateRTS)
	}),
}
