package verbstest

import (
	"github.com/adverb-rdma/adverb/verbs"
)

// addressed makes a case in which A writes to a region of B and reads from it. register is how B
// registers the region.
func addressed(name string, register func(e *end, n int) *verbs.MR, check func(s *Side, mr *verbs.MR)) Case {
	const n = 10_001
	return Case{
		Name: name,
		A: func(s *Side) {
			e := s.connect(setup{})
			src, dst := e.filled(n-9, 1), e.mr(n)
			to := Exchange(s, verbs.RemoteAddr{})
			e.send(write(1, to.Add(3), src.SGE(0, n-9)), read(2, to, dst.SGE(0, n)))
			e.sent(1, verbs.WCRDMAWrite)
			e.sent(2, verbs.WCRDMARead)
			s.untouched("before", dst.Bytes()[:3])
			s.verify("read back", dst.Bytes()[3:n-6], 1)
			s.untouched("behind", dst.Bytes()[n-6:])
			e.send(send(3, src.SGE(0, 500)))
			e.sent(3, verbs.WCSend)
			e.send(write(4, to.Add(n), src.SGE(0, 1)))
			e.denied(4, verbs.WCRemAccessErr)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := register(e, n)
			s.closeLater(mr)
			check(s, mr)
			want(s, "length", mr.Len(), n)
			paint(mr.Bytes())
			e.recv(recv(3, mr.SGE(7, 500))) // SGEs use the same addresses
			e.see()
			Exchange(s, mr.Remote(0))
			e.received(3, 500)
			s.verify("received", mr.Bytes()[7:507], 1)
			e.refusedEvent(false)
		},
	}
}

var mrCases = []Case{
	addressed("mr/registered", func(e *end, n int) *verbs.MR {
		mr, err := e.pd.RegMR(make([]byte, n+5)[5:], everything) // at an odd address
		e.must(err)
		return mr
	}, func(s *Side, mr *verbs.MR) { want(s, "access", mr.Access(), everything) }),
	addressed("mr/allocated", func(e *end, n int) *verbs.MR {
		mr, err := e.pd.AllocMR(n, everything)
		e.must(err)
		return mr
	}, func(s *Side, mr *verbs.MR) {
		s.same("fresh memory", mr.Bytes(), make([]byte, mr.Len()))
		want(s, "address within its page", mr.Addr()%4096, 0)
	}),
	addressed("mr/zero based", func(e *end, n int) *verbs.MR {
		mr, err := e.pd.RegMR(make([]byte, n), everything|verbs.AccessZeroBased)
		e.must(err)
		return mr
	}, func(s *Side, mr *verbs.MR) { want(s, "address", mr.Addr(), 0) }),
	addressed("mr/iova", func(e *end, n int) *verbs.MR {
		mr, err := e.pd.RegMRIOVA(make([]byte, n), 0x7654_3210_0000, everything)
		e.must(err)
		return mr
	}, func(s *Side, mr *verbs.MR) { want(s, "address", mr.Addr(), 0x7654_3210_0000) }),
	// Of two regions over the same memory, one works on when the other is closed.
	{
		Name: "mr/overlapping",
		A: func(s *Side) {
			for range 2 {
				e := s.connect(setup{})
				src := e.filled(64, 1)
				closed, open := Exchange(s, verbs.RemoteAddr{}), Exchange(s, verbs.RemoteAddr{})
				e.send(write(1, open, src.SGE(0, 64)), write(2, closed, src.SGE(0, 64)))
				e.sent(1, verbs.WCRDMAWrite)
				e.denied(2, verbs.WCRemAccessErr)
				s.Barrier()
			}
		},
		B: func(s *Side) {
			for range 2 {
				e := s.connect(setup{})
				open := e.mr(64)
				mr, err := e.pd.RegMR(open.Bytes(), everything)
				s.must(err)
				s.must(mr.Close())
				Exchange(s, mr.Remote(0))
				Exchange(s, open.Remote(0))
				e.refusedEvent(false)
				s.Barrier()
				s.verify("written", open.Bytes(), 1)
			}
		},
	},
	// A region is closed while a peer writes to it. After Close has returned its memory does not change.
	{
		Name: "mr/close in flight",
		A: func(s *Side) {
			const n = 64 << 10
			for range 3 {
				e := s.connect(setup{})
				src, to := e.filled(n, 1), Exchange(s, verbs.RemoteAddr{})
				posted, done := uint64(0), uint64(0)
				for {
					for ; posted < done+4; posted++ {
						e.send(write(posted, to, src.SGE(0, n)))
					}
					wc := s.next(e.scq)
					want(s, "ID", wc.ID, done)
					done++
					if wc.Status == verbs.WCSuccess {
						continue
					}
					if wc.Status != verbs.WCFlushErr || s.has(Acknowledged) {
						want(s, "status is that of a refusal", e.isStatus(wc.Status, verbs.WCRemAccessErr), true)
					}
					for ; done < posted; done++ {
						e.flushed(done)
					}
					break
				}
				s.Barrier()
			}
		},
		B: func(s *Side) {
			const n = 64 << 10
			for range 3 {
				e := s.connect(setup{})
				buf := make([]byte, n) // not AllocMR's memory, which goes with the region
				mr, err := e.pd.RegMR(buf, everything)
				s.must(err)
				s.closeLater(mr)
				Exchange(s, mr.Remote(0))
				e.watch("the first write", func() bool { return mr.Load64(n-8) != 0 })
				s.must(mr.Close())
				then := append([]byte(nil), buf...)
				s.Barrier()
				s.same("the memory, some time after Close", buf, then)
			}
		},
	},
	both("mr/slices", 0, func(s *Side) {
		mr := s.allocMR(s.allocPD(), 100, everything)
		if sge := mr.SGE(10, 20); sge != (verbs.SGE{Addr: mr.Addr() + 10, Length: 20, LKey: mr.LKey()}) {
			s.Errorf("SGE: %+v, want the bytes from 10 to 29", sge)
		}
		if r := mr.Remote(10); r != (verbs.RemoteAddr{VA: mr.Addr() + 10, RKey: mr.RKey()}) {
			s.Errorf("Remote: %+v, want byte 10", r)
		}
		for _, f := range []func(){
			func() { mr.SGE(0, 101) }, func() { mr.SGE(-1, 1) }, func() { mr.Remote(101) }, func() { mr.Load64(96) }, func() { mr.Load64(1) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						s.Errorf("no panic outside the region, want one")
					}
				}()
				f()
			}()
		}
	}),
	reregCase("mr/rereg access", everything&^verbs.AccessRemoteWrite, false, func(s *Side, e *end, mr *verbs.MR) {
		s.must(mr.Rereg(verbs.ReregAccess, nil, nil, everything))
		want(s, "access", mr.Access(), everything)
	}),
	reregCase("mr/rereg memory", everything, false, func(s *Side, e *end, mr *verbs.MR) {
		old := mr.Bytes()
		paint(old)
		s.must(mr.Rereg(verbs.ReregTranslation, nil, make([]byte, 5000), 0))
		want(s, "length", mr.Len(), 5000)
		want(s, "access", mr.Access(), everything)
		s.Cleanup(func() { s.untouched("the old memory", old) })
	}),
	reregCase("mr/rereg PD", everything, true, func(s *Side, e *end, mr *verbs.MR) {
		old := mr.PD()
		s.must(mr.Rereg(verbs.ReregPD, e.pd, nil, 0))
		if mr.PD() != e.pd {
			s.Errorf("the region is in the PD it was in before, want it in the new one")
		}
		s.must(old.Close())
		s.wantErr("close the new PD", e.pd.Close(), verbs.ErrBusy)
	}),
	reregCase("mr/rereg all", verbs.AccessRemoteRead, true, func(s *Side, e *end, mr *verbs.MR) {
		s.must(mr.Rereg(verbs.ReregTranslation|verbs.ReregPD|verbs.ReregAccess, e.pd, make([]byte, 9000), everything))
	}),
	both("mr/rereg keeps addresses", Rereg, func(s *Side) {
		pd, mem := s.allocPD(), make([]byte, 64)
		there, err := pd.RegMR(mem, 0)
		s.must(err)
		s.closeLater(there)
		iova := 0x7654_3210_0000 + there.Addr()%4096 // some kernels want the distance into a page that the memory has
		mr, err := pd.RegMRIOVA(mem, iova, 0)
		s.must(err)
		s.closeLater(mr)
		s.need(Rereg, mr.Rereg(verbs.ReregAccess, nil, nil, everything))
		want(s, "address", mr.Addr(), iova)
		want(s, "remote address", mr.Remote(3).VA, iova+3)
	}),
	both("mr/rereg errors", Rereg, func(s *Side) {
		pd := s.allocPD()
		mr := s.allocMR(pd, 64, 0)
		err := mr.Rereg(verbs.ReregAccess, nil, nil, everything)
		s.need(Rereg, err)
		s.wantErr("no flags", mr.Rereg(0, nil, nil, 0), verbs.ErrInvalid)
		s.wantErr("no memory", mr.Rereg(verbs.ReregTranslation, nil, nil, 0), verbs.ErrInvalid)
		s.wantErr("no PD", mr.Rereg(verbs.ReregPD, nil, nil, 0), verbs.ErrInvalid)
		s.wantErr("bad access", mr.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessRemoteWrite), verbs.ErrInvalid)
		want(s, "access", mr.Access(), everything)
		s.must(mr.Close())
		s.wantErr("closed", mr.Rereg(verbs.ReregAccess, nil, nil, 0), verbs.ErrClosed)
	}),
}

// reregCase makes a case in which A writes to a region of B. The region is registered with the access
// before and, if elsewhere is true, in another PD than the QP's; rereg then changes what keeps A from
// writing to it.
func reregCase(name string, before verbs.Access, elsewhere bool, rereg func(s *Side, e *end, mr *verbs.MR)) Case {
	return Case{
		Name: name, Needs: Rereg,
		A: func(s *Side) {
			e := s.connect(setup{})
			src := e.filled(4096, 1)
			e.send(write(1, Exchange(s, verbs.RemoteAddr{}), src.SGE(0, 4096)))
			e.sent(1, verbs.WCRDMAWrite)
			e.placed()
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			probe := s.allocMR(e.pd, 8, 0)
			s.need(Rereg, probe.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
			pd := e.pd
			if elsewhere {
				pd = s.allocPD()
			}
			mr, err := pd.RegMR(make([]byte, 4096), before)
			s.must(err)
			s.closeLater(mr)
			rereg(s, e, mr)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			e.see()
			s.verify("written", mr.Bytes()[:4096], 1)
		},
	}
}
