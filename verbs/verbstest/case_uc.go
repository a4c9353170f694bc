package verbstest

import "github.com/adverb-rdma/adverb/verbs"

var ucCases = []Case{
	sendCase("uc/send", verbs.QPTypeUC, UC, false),
	sendCase("uc/send with immediate", verbs.QPTypeUC, UC, true),
	writeCase("uc/write", verbs.QPTypeUC, UC, false),
	writeCase("uc/write with immediate", verbs.QPTypeUC, UC, true),
	// Messages of all kinds and sizes come in the order of posting.
	{
		Name: "uc/order", Needs: UC,
		A: func(s *Side) {
			e := s.connect(setup{typ: verbs.QPTypeUC})
			const n, rounds = 5000, 8
			src, to := e.mr(n), Exchange(s, verbs.RemoteAddr{})
			for r := range rounds {
				fill(src.Bytes(), uint64(r))
				for i := range 6 {
					id := uint64(r*6 + i)
					wr := sendImm(id, uint32(id), src.SGE(0, i*999))
					if i%2 == 0 {
						wr = writeImm(id, uint32(id), to, src.SGE(0, n))
					}
					e.send(unsignaled(write(99, to.Add(n), src.SGE(0, n))), wr)
					e.sent(id, []verbs.WCOpcode{verbs.WCRDMAWrite, verbs.WCSend}[i%2])
				}
				s.Barrier()
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{typ: verbs.QPTypeUC})
			const n, rounds = 5000, 8
			mr, in := e.mr(2*n), e.mr(n)
			for id := range uint64(rounds * 6) {
				e.recv(recv(id, in.SGE(0, n)))
			}
			Exchange(s, mr.Remote(0))
			for r := range rounds {
				for i := range 6 {
					id, op, size := uint64(r*6+i), verbs.WCRecv, i*999
					if i%2 == 0 {
						op, size = verbs.WCRecvRDMAWithImm, n
					}
					if wc := e.receivedAs(id, size, op, verbs.WCFlagWithImm); wc.Imm != uint32(id) {
						s.Fatalf("message %d, want %d", wc.Imm, id)
					}
					if i%2 == 0 {
						s.verify("written", mr.Bytes()[:n], uint64(r))
					}
					s.verify("written before the message", mr.Bytes()[n:], uint64(r))
				}
				s.Barrier()
			}
		},
	},
	// A message that finds no receive is lost, and so is one that is refused. The QP works on.
	{
		Name: "uc/what is lost is lost", Needs: UC,
		A: func(s *Side) {
			e := s.connect(setup{typ: verbs.QPTypeUC})
			src, to := e.filled(64, 1), Exchange(s, verbs.RemoteAddr{})
			bad := to
			bad.RKey ^= 0x5a
			e.send(send(1, src.SGE(0, 64)), write(2, bad, src.SGE(0, 64)), writeImm(3, 3, to))
			e.sent(1, verbs.WCSend)
			e.sent(2, verbs.WCRDMAWrite)
			e.sent(3, verbs.WCRDMAWrite)
			e.send(write(4, to.Add(64), src.SGE(0, 8)))
			e.sent(4, verbs.WCRDMAWrite)
			s.Barrier()
			e.send(send(5, src.SGE(0, 64)))
			e.sent(5, verbs.WCSend)
			e.inState(verbs.QPStateRTS)
		},
		B: func(s *Side) {
			e := s.connect(setup{typ: verbs.QPTypeUC})
			mr, in := e.mr(72), e.mr(64)
			Exchange(s, mr.Remote(0))
			e.watch("the write behind what is lost", func() bool { return mr.Load64(64) != 0 })
			e.recv(recv(1, in.SGE(0, 64)))
			s.Barrier()
			e.received(1, 64)
			s.verify("received", in.Bytes(), 1)
			s.same("the memory that was refused", mr.Bytes()[:64], make([]byte, 64))
			s.empty(e.rcq)
			e.inState(verbs.QPStateRTS)
		},
	},
	// A local error stops the send queue alone. Modify starts it again.
	{Name: "uc/send queue error", Needs: UC, A: func(s *Side) { sqe(s, verbs.QPTypeUC) }, B: func(s *Side) { sqePeer(s, verbs.QPTypeUC) }},
	{
		Name: "uc/operations", Needs: UC,
		A: func(s *Side) {
			e := s.connect(setup{typ: verbs.QPTypeUC})
			mr := e.mr(8)
			for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpSwap, verbs.OpSendWithInv} {
				_, err := e.qp.PostSend([]verbs.SendWR{{Op: op, SGList: []verbs.SGE{mr.SGE(0, 8)}}})
				s.wantErr(op.String(), err, verbs.ErrUnsupported)
			}
		},
		B: func(s *Side) { s.connect(setup{typ: verbs.QPTypeUC}) },
	},
}

// sqe is side A of the cases in which the send queue of an unreliable QP fails.
func sqe(s *Side, typ verbs.QPType) {
	e := s.connect(setup{typ: typ, qkey: 1})
	ah := e.addressOf(e.to)
	src := e.filled(64, 1)
	bad := src.SGE(0, 64)
	bad.LKey ^= 0x5a
	s.Barrier()
	e.send(e.to.datagram(ah, send(1, bad)), e.to.datagram(ah, unsignaled(send(2))))
	e.fails(e.scq, 1, verbs.WCLocProtErr)
	e.flushed(2)
	e.inState(verbs.QPStateSQE)
	in := e.mr(64 + verbs.GRHSize)
	e.recv(recv(3, in.SGE(0, 64+verbs.GRHSize)))
	s.Barrier()
	wc := e.next(e.rcq) // the receive queue works on
	s.must(wc.Err())
	e.modify(verbs.QPStateRTS)
	e.send(e.to.datagram(ah, send(4, src.SGE(0, 64))))
	e.sent(4, verbs.WCSend)
}

func sqePeer(s *Side, typ verbs.QPType) {
	e := s.connect(setup{typ: typ, qkey: 1})
	ah := e.addressOf(e.to)
	in := e.mr(64 + verbs.GRHSize)
	e.recv(recv(1, in.SGE(0, 64+verbs.GRHSize)))
	s.Barrier()
	s.Barrier()
	e.send(e.to.datagram(ah, send(2)))
	e.sent(2, verbs.WCSend)
	wc := e.next(e.rcq)
	s.must(wc.Err())
	s.verify("received", in.Bytes()[wc.ByteLen-64:wc.ByteLen], 1)
}
