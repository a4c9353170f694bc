package verbstest

import "github.com/adverb-rdma/adverb/verbs"

// srqSize is how many receives the SRQs of the cases hold.
const srqSize = 32

func (s *Side) createSRQ(pd *verbs.PD, n int) *verbs.SRQ {
	q, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: n, MaxSGE: 2})
	s.need(SRQ, err)
	s.closeLater(q)
	return q
}

func (s *Side) postSRQ(q *verbs.SRQ, wrs ...verbs.RecvWR) {
	n, err := q.PostRecv(wrs)
	s.must(err)
	want(s, "receives posted", n, len(wrs))
}

// senders makes n QPs. They are connected to those that the other side makes by shared.
func (s *Side) senders(n int) (ends []*end) {
	for range n {
		ends = append(ends, s.connect(setup{}))
	}
	return ends
}

// shared makes n QPs that take their receives from q. Their receives complete in one CQ.
func (s *Side) shared(n int, q *verbs.SRQ, o setup) (ends []*end) {
	o.pd, o.srq, o.rcq = q.PD(), q, s.createCQ(2*srqSize)
	for range n {
		ends = append(ends, s.connect(o))
	}
	return ends
}

var srqCases = []Case{
	// The messages to four QPs take the receives of one queue, and each receive serves one message.
	{
		Name: "srq/shared by QPs", Needs: SRQ | SendImm,
		A: func(s *Side) {
			ends := s.senders(4)
			s.Barrier()
			for i, e := range ends {
				src := e.filled(100, uint64(i))
				for r := range 6 {
					e.send(sendImm(uint64(r), uint32(i), src.SGE(0, 100)))
				}
				e.send(writeImm(6, uint32(i), verbs.RemoteAddr{}))
			}
			for _, e := range ends {
				for r := range 6 {
					e.sent(uint64(r), verbs.WCSend)
				}
				e.sent(6, verbs.WCRDMAWrite)
			}
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q := s.createSRQ(pd, srqSize)
			ends := s.shared(4, q, setup{})
			index := map[verbs.QPN]int{}
			for i, e := range ends {
				index[e.qp.QPN()] = i
			}
			in := s.allocMR(pd, srqSize*100, everything)
			var wrs []verbs.RecvWR
			for id := range srqSize {
				wrs = append(wrs, recv(uint64(id), in.SGE(id*100, 60), in.SGE(id*100+60, 40)))
			}
			s.postSRQ(q, wrs...)
			s.Barrier()
			seen, count := map[uint64]bool{}, [4]int{}
			for range 28 {
				wc := s.next(ends[0].rcq)
				s.must(wc.Err())
				i, ok := index[wc.QPN]
				if !ok || int(wc.Imm) != i || seen[wc.ID] || wc.ID >= srqSize {
					s.Fatalf("receive %d (seen: %v) of qp %v with immediate %d; want a new one, with the number of the QP", wc.ID, seen[wc.ID], wc.QPN, wc.Imm)
				}
				seen[wc.ID] = true
				count[i]++
				if wc.Op == verbs.WCRecvRDMAWithImm {
					want(s, "messages before the last", count[i], 7)
					continue
				}
				want(s, "ByteLen", wc.ByteLen, 100)
				s.verify("message", in.Bytes()[wc.ID*100:][:100], uint64(i))
			}
			s.empty(ends[0].rcq)
		},
	},
	// The event of the limit comes once each time that the limit is armed.
	{
		Name: "srq/limit", Needs: SRQ,
		A: func(s *Side) {
			ends := s.senders(2)
			for {
				n := Exchange(s, 0)
				e := ends[0]
				if n == 0 {
					n, e = 1, ends[1]
				}
				for range n {
					e.send(send(1))
					e.sent(1, verbs.WCSend)
				}
				s.Barrier()
				if e == ends[1] {
					return
				}
			}
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q, other := s.createSRQ(pd, srqSize), s.createSRQ(pd, srqSize)
			e := s.shared(1, q, setup{})[0]
			last := s.shared(1, other, setup{})[0]
			s.postSRQ(q, make([]verbs.RecvWR, 10)...)
			limit := func() int {
				a, err := q.Query()
				s.must(err)
				return a.Limit
			}
			take := func(n int) {
				Exchange(s, n)
				s.Barrier()
				for range n {
					e.received(0, 0)
				}
			}
			s.must(q.Modify(verbs.SRQAttr{Limit: 5}, verbs.SRQMaskLimit))
			want(s, "limit", limit(), 5)
			take(5) // five are left
			want(s, "limit at the limit", limit(), 5)
			take(1)
			if ev := s.event(verbs.EventSRQLimitReached); ev.SRQ != q {
				s.Errorf("the event is of SRQ %p, want %p", ev.SRQ, q)
			}
			want(s, "limit after the event", limit(), 0)
			take(2)
			s.postSRQ(q, make([]verbs.RecvWR, 6)...)
			s.must(q.Modify(verbs.SRQAttr{Limit: 3}, verbs.SRQMaskLimit))
			take(6)
			want(s, "SRQ of the event", s.event(verbs.EventSRQLimitReached).SRQ, q)
			// The next event is the other SRQ's, so the limit raised no further one.
			s.postSRQ(other, recv(0))
			s.must(other.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQMaskLimit))
			Exchange(s, 0)
			s.Barrier()
			last.received(0, 0)
			want(s, "SRQ of the last event", s.event(verbs.EventSRQLimitReached).SRQ, other)
		},
	},
	// A message that finds the SRQ empty waits, or fails if the sender does not retry.
	{
		Name: "srq/empty", Needs: SRQ | RNR,
		A: func(s *Side) {
			e := s.connect(setup{})
			hasty := s.connect(setup{retry: verbs.Retry{Timeout: 17, RetryCount: 7, RNRRetryCount: 1, MaxRDAtomic: 1}})
			hasty.send(send(1))
			hasty.failed(1, verbs.WCRNRRetryExceeded)
			e.send(send(2))
			s.Barrier()
			e.sent(2, verbs.WCSend)
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q := s.createSRQ(pd, srqSize)
			ends := s.shared(2, q, setup{path: verbs.Path{MinRNRTimer: 1}})
			s.Barrier()
			s.empty(ends[0].rcq)
			s.postSRQ(q, recv(7))
			ends[0].received(7, 0)
		},
	},
	// When a QP fails, an event says that it takes no more receives. Those in the SRQ serve other QPs.
	{
		Name: "srq/last WQE", Needs: SRQ,
		A: func(s *Side) {
			ends := s.senders(2)
			s.Barrier()
			ends[1].send(send(1))
			ends[1].sent(1, verbs.WCSend)
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q := s.createSRQ(pd, srqSize)
			ends := s.shared(2, q, setup{})
			s.postSRQ(q, recv(1), recv(2))
			ends[0].modify(verbs.QPStateErr)
			want(s, "QP of the event", s.event(verbs.EventQPLastWQEReached).QP, ends[0].qp)
			s.empty(ends[0].rcq)
			s.Barrier()
			ends[1].received(1, 0)
			s.empty(ends[1].rcq)
		},
	},
	// A receive that is too short fails with its message and its QP. Other QPs of the SRQ work on.
	{
		Name: "srq/message too long", Needs: SRQ,
		A: func(s *Side) {
			ends := s.senders(2)
			s.Barrier()
			ends[0].send(send(1, ends[0].mr(64).SGE(0, 64)))
			ends[0].denied(1, verbs.WCRemInvReqErr)
			ends[1].send(send(2))
			ends[1].sent(2, verbs.WCSend)
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q := s.createSRQ(pd, srqSize)
			ends := s.shared(2, q, setup{})
			s.postSRQ(q, recv(1), recv(2))
			s.Barrier()
			ends[0].recvFailed(1, verbs.WCLocLenErr)
			want(s, "QP of the event", s.event(verbs.EventQPLastWQEReached).QP, ends[0].qp)
			ends[1].received(2, 0)
			s.empty(ends[0].rcq)
		},
	},
	// UD and UC QPs can share an SRQ.
	{
		Name: "srq/datagrams", Needs: SRQ | UD | UC,
		A: func(s *Side) {
			x := s.ud()
			y := s.connect(setup{typ: verbs.QPTypeUC, pd: x.pd})
			src := x.filled(100, 1)
			ah := x.addressOf(x.to)
			s.Barrier()
			for id := range uint64(4) {
				x.send(x.to.datagram(ah, sendImm(id, uint32(id), src.SGE(0, 100))))
				x.sent(id, verbs.WCSend)
				y.send(sendImm(id, uint32(100+id), src.SGE(0, 100)))
				y.sent(id, verbs.WCSend)
			}
		},
		B: func(s *Side) {
			pd := s.allocPD()
			q, rcq := s.createSRQ(pd, srqSize), s.createCQ(srqSize)
			x := s.connect(setup{typ: verbs.QPTypeUD, qkey: testQKey, pd: pd, srq: q, rcq: rcq})
			y := s.connect(setup{typ: verbs.QPTypeUC, pd: pd, srq: q, rcq: rcq})
			in := s.allocMR(pd, 8*200, everything)
			for id := range uint64(8) {
				s.postSRQ(q, recv(id, in.SGE(int(id)*200, 200)))
			}
			s.Barrier()
			seen := map[uint64]bool{}
			next := map[verbs.QPN]uint32{x.qp.QPN(): 0, y.qp.QPN(): 100}
			for range 8 {
				wc := s.next(rcq)
				s.must(wc.Err())
				if seen[wc.ID] || wc.Imm != next[wc.QPN] {
					s.Fatalf("receive %d (seen: %v) of qp %v with immediate %d, want %d", wc.ID, seen[wc.ID], wc.QPN, wc.Imm, next[wc.QPN])
				}
				seen[wc.ID] = true
				next[wc.QPN]++
				s.verify("payload", in.Bytes()[wc.ID*200:][:wc.ByteLen][wc.ByteLen-100:], 1)
			}
			s.empty(rcq)
		},
	},
	both("srq/attributes", SRQ, func(s *Side) {
		pd := s.allocPD()
		dev := s.attr()
		for _, a := range []verbs.SRQAttr{{}, {MaxWR: dev.MaxSRQWR + 1}, {MaxWR: 1, MaxSGE: dev.MaxSRQSGE + 1}, {MaxWR: -1}} {
			_, err := pd.CreateSRQ(a)
			s.wantErr("CreateSRQ", err, verbs.ErrLimit, verbs.ErrInvalid)
		}
		q := s.createSRQ(pd, 4)
		a, err := q.Query()
		s.must(err)
		if a.MaxWR < 4 || a.MaxSGE < 2 || a.Limit != 0 {
			s.Errorf("asked for 4 receives of 2 SGEs, got %+v, want as much at least, and no limit", a)
		}
		s.wantErr("a limit beyond the size", q.Modify(verbs.SRQAttr{Limit: a.MaxWR + 1}, verbs.SRQMaskLimit), verbs.ErrInvalid)
		n, err := q.PostRecv([]verbs.RecvWR{recv(1), {SGList: make([]verbs.SGE, a.MaxSGE+1)}, recv(2)})
		want(s, "posted before one with too many SGEs", n, 1)
		s.wantErr("too many SGEs", err, verbs.ErrLimit)
		n, err = q.PostRecv(make([]verbs.RecvWR, a.MaxWR+5))
		want(s, "posted to a queue with one", n, a.MaxWR-1)
		s.wantErr("a full SRQ", err, verbs.ErrQueueFull)
		if dev.DeviceCapFlags&verbs.DeviceSRQResize != 0 {
			s.must(q.Modify(verbs.SRQAttr{MaxWR: a.MaxWR + 10}, verbs.SRQMaskMaxWR))
			s.postSRQ(q, make([]verbs.RecvWR, 10)...)
		}
		e := s.newEnd(setup{pd: pd, srq: q})
		s.wantErr("close an SRQ with a QP", q.Close(), verbs.ErrBusy)
		s.wantErr("close a PD with an SRQ", pd.Close(), verbs.ErrBusy)
		s.must(e.qp.Init(s.Port, 0))
		_, err = e.qp.PostRecv([]verbs.RecvWR{recv(1)})
		s.wantErr("a receive to a QP with an SRQ", err, verbs.ErrInvalid)
		_, init, err := e.qp.Query()
		s.must(err)
		if init.SRQ != q {
			s.Errorf("Query says SRQ %p, want %p", init.SRQ, q)
		}
		s.must(e.qp.Close())
		_, err = e.qp.PostRecv([]verbs.RecvWR{recv(1)})
		s.wantErr("a receive to a closed QP", err, verbs.ErrClosed)
		s.must(q.Close())
		_, err = q.Query()
		s.wantErr("a closed SRQ", err, verbs.ErrClosed)
		_, err = q.PostRecv([]verbs.RecvWR{recv(1)})
		s.wantErr("a receive to a closed SRQ", err, verbs.ErrClosed)
	}),
}
