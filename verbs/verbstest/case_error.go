package verbstest

import "github.com/adverb-rdma/adverb/verbs"

// refused makes a case in which B's device refuses a request of A, for the region or for the QP that the
// request is for. The work request at A must fail with one of statuses. Both QPs go to ERR, and all that
// is posted to them is flushed. B's device raises an event, if it promises one.
func refused(name string, needs Capability, o setup, region verbs.Access, wr func(to verbs.RemoteAddr, n int, local verbs.SGE) verbs.SendWR, statuses ...verbs.WCStatus) Case {
	const n = 64
	return Case{
		Name: name, Needs: needs,
		A: func(s *Side) {
			e := s.connect(setup{})
			local := e.filled(n, 2)
			to := Exchange(s, verbs.RemoteAddr{})
			bad := wr(to, n, local.SGE(0, n))
			bad.ID, bad.Flags = 1, 0 // a failure makes a completion although it is not signaled
			e.send(bad, unsignaled(send(2)), send(3))
			if bad.Op == verbs.OpRDMAWrite && !s.has(Acknowledged) {
				e.denied(1, statuses[len(statuses)-1], 2, 3)
			} else {
				e.failed(1, statuses...)
				e.flushed(2, 3)
			}
			e.recv(recv(4))
			e.fails(e.rcq, 4, verbs.WCFlushErr)
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(o)
			mr := s.allocMR(e.pd, n, region)
			fill(mr.Bytes(), 1)
			e.recv(recv(1), recv(2))
			Exchange(s, mr.Remote(0))
			e.refusedEvent(true)
			e.fails(e.rcq, 1, verbs.WCFlushErr)
			e.fails(e.rcq, 2, verbs.WCFlushErr)
			e.inState(verbs.QPStateErr)
			s.Barrier()
			s.verify("the memory that was refused", mr.Bytes(), 1)
		},
	}
}

func writeAll(to verbs.RemoteAddr, _ int, l verbs.SGE) verbs.SendWR { return write(0, to, l) }
func readAll(to verbs.RemoteAddr, _ int, l verbs.SGE) verbs.SendWR  { return read(0, to, l) }
func addOne(to verbs.RemoteAddr, _ int, l verbs.SGE) verbs.SendWR {
	l.Length = 8
	return fetchAdd(0, to, 1, l)
}

var errorCases = []Case{
	refused("rc/error: write with a bad rkey", 0, setup{}, everything, func(to verbs.RemoteAddr, n int, l verbs.SGE) verbs.SendWR {
		to.RKey ^= 0x5a
		return write(0, to, l)
	}, verbs.WCRemAccessErr),
	refused("rc/error: write beyond the region", 0, setup{}, everything, func(to verbs.RemoteAddr, n int, l verbs.SGE) verbs.SendWR {
		return write(0, to.Add(1), l)
	}, verbs.WCRemAccessErr),
	refused("rc/error: write before the region", 0, setup{}, everything, func(to verbs.RemoteAddr, n int, l verbs.SGE) verbs.SendWR {
		return write(0, to.Add(-1), l)
	}, verbs.WCRemAccessErr),
	refused("rc/error: read beyond the region", 0, setup{}, everything, func(to verbs.RemoteAddr, n int, l verbs.SGE) verbs.SendWR {
		return read(0, to.Add(1), l)
	}, verbs.WCRemAccessErr),
	refused("rc/error: write to a region without access", 0, setup{}, everything&^verbs.AccessRemoteWrite, writeAll, verbs.WCRemAccessErr),
	refused("rc/error: read of a region without access", 0, setup{}, everything&^verbs.AccessRemoteRead, readAll, verbs.WCRemAccessErr),
	refused("rc/error: atomic in a region without access", Atomics, setup{}, everything&^verbs.AccessRemoteAtomic, addOne, verbs.WCRemAccessErr),
	// If the QP does not allow a request, devices differ in the status that the requester gets.
	refused("rc/error: write to a QP without access", 0, setup{access: everything &^ verbs.AccessRemoteWrite}, everything, writeAll, verbs.WCRemInvReqErr, verbs.WCRemAccessErr),
	refused("rc/error: read by a QP without access", 0, setup{access: everything &^ verbs.AccessRemoteRead}, everything, readAll, verbs.WCRemInvReqErr, verbs.WCRemAccessErr),
	refused("rc/error: atomic by a QP without access", Atomics, setup{access: everything &^ verbs.AccessRemoteAtomic}, everything, addOne, verbs.WCRemInvReqErr, verbs.WCRemAccessErr),
	{
		Name: "rc/error: write to a region of another PD",
		A: func(s *Side) {
			e := s.connect(setup{})
			e.send(write(1, Exchange(s, verbs.RemoteAddr{}), e.mr(8).SGE(0, 8)))
			e.denied(1, verbs.WCRemAccessErr)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			Exchange(s, s.allocMR(s.allocPD(), 8, everything).Remote(0))
			e.refusedEvent(false)
		},
	},
	// A message that is longer than its receive fails at both ends.
	{
		Name: "rc/error: message too long",
		A: func(s *Side) {
			e := s.connect(setup{})
			n := 2*e.mtu + 1
			src := e.mr(n)
			s.Barrier()
			e.send(send(1, src.SGE(0, n)), send(2))
			e.denied(1, verbs.WCRemInvReqErr, 2)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			in := e.mr(3 * e.mtu)
			paint(in.Bytes())
			e.recv(recv(1, in.SGE(0, e.mtu), in.SGE(e.mtu, e.mtu)), recv(2))
			s.Barrier()
			e.recvFailed(1, verbs.WCLocLenErr)
			e.fails(e.rcq, 2, verbs.WCFlushErr)
			s.untouched("behind the receive", in.Bytes()[2*e.mtu:])
		},
	},
	// A bad SGE of a send fails at the sender alone; the peer's QP lives on.
	{
		Name: "rc/error: bad lkey of a send",
		A: func(s *Side) {
			for i := range 4 {
				e := s.connect(setup{})
				mr := e.mr(64)
				good := mr.SGE(0, 64)
				bad := good
				wr := send(1, bad)
				switch i {
				case 0: // the key
					bad.LKey ^= 0x5a
				case 1: // the range
					bad.Addr++
				case 2: // the PD
					bad = s.allocMR(s.allocPD(), 64, everything).SGE(0, 64)
				case 3: // the right to write
					ro := s.allocMR(e.pd, 64, 0)
					bad = ro.SGE(0, 64)
				}
				to := Exchange(s, verbs.RemoteAddr{})
				wr.SGList = []verbs.SGE{bad}
				if i == 3 {
					wr = read(1, to, bad)
				}
				e.send(write(0, to, good), wr, write(2, to, good))
				e.sent(0, verbs.WCRDMAWrite)
				e.failed(1, verbs.WCLocProtErr)
				e.flushed(2)
				s.Barrier()
			}
		},
		B: func(s *Side) {
			for range 4 {
				e := s.connect(setup{})
				e.recv(recv(1))
				Exchange(s, e.mr(64).Remote(0))
				s.Barrier()
				if s.iwarp() { // where the stream ends with the sender's QP
					continue
				}
				s.empty(e.rcq)
				e.inState(verbs.QPStateRTS)
			}
		},
	},
	// A bad SGE of a receive fails at both ends.
	{
		Name: "rc/error: bad lkey of a receive",
		A: func(s *Side) {
			for range 2 {
				e := s.connect(setup{})
				src := e.mr(64)
				s.Barrier()
				e.send(send(1, src.SGE(0, 64)), send(2))
				e.denied(1, verbs.WCRemOpErr, 2)
			}
		},
		B: func(s *Side) {
			for i := range 2 {
				e := s.connect(setup{})
				bad := e.mr(64).SGE(0, 64)
				if i == 0 {
					bad.LKey ^= 0x5a
				} else {
					bad = s.allocMR(e.pd, 64, verbs.AccessRemoteRead).SGE(0, 64)
				}
				e.recv(recv(1, bad), recv(2))
				s.Barrier()
				e.recvFailed(1, verbs.WCLocProtErr)
				e.fails(e.rcq, 2, verbs.WCFlushErr)
			}
		},
	},
	// A message that finds no receive, and is not retried, fails at the sender alone.
	{
		Name: "rc/error: no receive", Needs: RNR,
		A: func(s *Side) {
			e := s.connect(setup{retry: verbs.Retry{Timeout: 17, RetryCount: 7, RNRRetryCount: 1, MaxRDAtomic: 1}})
			e.send(send(1), write(2, verbs.RemoteAddr{}))
			e.failed(1, verbs.WCRNRRetryExceeded)
			e.flushed(2)
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{path: verbs.Path{MinRNRTimer: 1}})
			s.Barrier()
			s.empty(e.rcq)
			e.inState(verbs.QPStateRTS)
		},
	},
	// A request to a QPN that does not exist fails for lack of an answer.
	{
		Name: "rc/error: no such QP", Needs: ByHand,
		A: func(s *Side) {
			e := s.newEnd(setup{retry: quick})
			e.introduce()
			s.Barrier()
			e.rtr()
			e.rts()
			e.send(write(1, verbs.RemoteAddr{}), send(2))
			e.failed(1, verbs.WCRetryExceeded)
			e.flushed(2)
		},
		B: func(s *Side) {
			e := s.newEnd(setup{})
			e.introduce()
			s.must(e.qp.Close())
			s.Barrier()
		},
	},
	// In ERR each queue is flushed in its order. After RESET the QP works as a new one.
	{
		Name: "rc/error: flush and start anew", Needs: RNR,
		A: func(s *Side) {
			e := s.connect(setup{retry: verbs.Retry{Timeout: 20, RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: 1}})
			s.Barrier()
			for id := range uint64(10) { // the peer has no receive for these
				e.send(unsignaled(send(id)))
				e.recv(recv(100 + id))
			}
			e.modify(verbs.QPStateErr)
			for id := range uint64(10) {
				e.flushed(id)
				e.fails(e.rcq, 100+id, verbs.WCFlushErr)
			}
			s.Barrier()
			e.modify(verbs.QPStateReset)
			e.psn ^= 1 << 23
			e.join()
			src := e.filled(1000, 1)
			s.Barrier()
			e.send(send(1, src.SGE(0, 1000)))
			e.sent(1, verbs.WCSend)
		},
		B: func(s *Side) {
			e := s.connect(setup{path: verbs.Path{MinRNRTimer: 1}})
			s.Barrier()
			s.Barrier()
			e.modify(verbs.QPStateReset)
			e.join()
			in := e.mr(1000)
			e.recv(recv(1, in.SGE(0, 1000)))
			s.Barrier()
			e.received(1, 1000)
			s.verify("received", in.Bytes(), 1)
		},
	},
}
