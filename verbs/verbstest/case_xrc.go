package verbstest

import (
	"errors"
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// xrcTarget is a side with an XRC domain, two SRQs in it with a PD and a CQ each, and a target.
type xrcTarget struct {
	*end
	xrcd *verbs.XRCD
	srqs [2]*verbs.SRQ
	cqs  [2]*verbs.CQ
}

func (s *Side) openXRCD(attr verbs.XRCDAttr) *verbs.XRCD {
	x, err := s.Device.OpenXRCD(attr)
	s.need(XRC, err)
	s.closeLater(x)
	return x
}

func (s *Side) createXRCSRQ(x *verbs.XRCD, pd *verbs.PD, cq *verbs.CQ) *verbs.SRQ {
	q, err := x.CreateSRQ(pd, cq, verbs.SRQAttr{MaxWR: srqSize, MaxSGE: 2})
	s.must(err)
	s.closeLater(q)
	return q
}

// target makes the objects, and connects the target to the other side's initiator. It tells the other side the numbers of the SRQs.
func (s *Side) target() *xrcTarget { return s.targetWith(setup{}) }

func (s *Side) targetWith(o setup) *xrcTarget {
	t := &xrcTarget{xrcd: s.openXRCD(verbs.XRCDAttr{})}
	for i := range t.srqs {
		t.cqs[i] = s.createCQ(2 * srqSize)
		t.srqs[i] = s.createXRCSRQ(t.xrcd, s.allocPD(), t.cqs[i])
	}
	o.typ, o.xrcd = verbs.QPTypeXRCRecv, t.xrcd
	t.end = s.connect(o)
	Exchange(s, [2]verbs.SRQN{t.srqs[0].Num(), t.srqs[1].Num()})
	return t
}

// initiator makes an initiator, and learns the numbers of the other side's SRQs.
func (s *Side) initiator(o setup) (*end, [2]verbs.SRQN) {
	o.typ = verbs.QPTypeXRCSend
	e := s.connect(o)
	return e, Exchange(s, [2]verbs.SRQN{})
}

// to has a work request go to an SRQ.
func to(n verbs.SRQN, wr verbs.SendWR) verbs.SendWR {
	wr.RemoteSRQN = n
	return wr
}

// refusedXRC is a case about a request that the target refuses. at says what the initiator sends, by the numbers of the SRQs
// and memory of the first SRQ's PD.
func refusedXRC(name string, at func(srqs [2]verbs.SRQN, mem verbs.RemoteAddr, l verbs.SGE) verbs.SendWR, status ...verbs.WCStatus) Case {
	return Case{
		Name: name, Needs: XRC | ByHand,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			mem := Exchange(s, verbs.RemoteAddr{})
			e.send(at(srqs, mem, e.mr(8).SGE(0, 8)))
			wc := e.next(e.scq)
			for _, st := range status {
				if wc.Status == st {
					return
				}
			}
			e.Errorf("%v, want one of %v", wc.Status, status)
		},
		B: func(s *Side) {
			t := s.target()
			for _, q := range t.srqs {
				mr := s.allocMR(q.PD(), 8, everything)
				s.postSRQ(q, recv(1, mr.SGE(0, 8)))
			}
			mem := s.allocMR(t.srqs[0].PD(), 8, everything)
			Exchange(s, mem.Remote(0))
		},
	}
}

// xrcCases are about the extended reliable connections of annex A14.
var xrcCases = []Case{
	// Messages of one connection take receives of the SRQs that they name, and complete in the CQs of these.
	{
		Name: "xrc/send to two SRQs", Needs: XRC | ByHand | SendImm,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			src := e.filled(3*4096, 3)
			mem := Exchange(s, [2]verbs.RemoteAddr{})
			s.Barrier()
			for i := range 10 {
				e.send(to(srqs[i%2], sendImm(uint64(i), uint32(i), src.SGE(0, 3*4096-i))))
			}
			for i := range 2 {
				e.send(to(srqs[i], writeImm(uint64(10+i), uint32(10+i), mem[i], src.SGE(0, 100))))
			}
			for i := range 10 {
				e.sent(uint64(i), verbs.WCSend)
			}
			e.sent(10, verbs.WCRDMAWrite)
			e.sent(11, verbs.WCRDMAWrite)
			s.Barrier()
		},
		B: func(s *Side) {
			t := s.target()
			var mrs [2]*verbs.MR
			var mem [2]verbs.RemoteAddr
			for i, q := range t.srqs {
				mrs[i] = s.allocMR(q.PD(), 8*3*4096, everything)
				for r := range 6 {
					s.postSRQ(q, recv(uint64(r), mrs[i].SGE(r*3*4096, 3*4096)))
				}
				mem[i] = mrs[i].Remote(7 * 3 * 4096)
			}
			Exchange(s, mem)
			s.Barrier()
			for i, cq := range t.cqs {
				for r := range 6 {
					wc := s.next(cq)
					imm, length, op := uint32(2*r+i), uint32(3*4096-(2*r+i)), verbs.WCRecv
					if r == 5 {
						imm, length, op = uint32(10+i), 100, verbs.WCRecvRDMAWithImm
					}
					if wc.Status != verbs.WCSuccess || wc.ID != uint64(r) || wc.Imm != imm || wc.ByteLen != length || wc.Op != op || wc.QP != t.qp {
						s.Errorf("SRQ %d: completion %+v; want receive %d, %v of %d bytes with immediate data %d, of the target", i, wc, r, op, length, imm)
					}
					if r < 5 {
						s.verify("a message", mrs[i].Bytes()[r*3*4096:][:length], 3)
					}
				}
				s.verify("what was written", mrs[i].Bytes()[7*3*4096:][:100], 3)
			}
			s.Barrier()
		},
	},
	// The SRQ that a request names decides in which protection domain its memory is.
	{
		Name: "xrc/memory", Needs: XRC | ByHand | Atomics,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			mem := Exchange(s, [2]verbs.RemoteAddr{})
			src, dst := e.filled(10000, 5), e.mr(10000)
			for i, n := range srqs {
				e.send(to(n, write(1, mem[i], src.SGE(0, 10000))))
			}
			for range srqs {
				e.sent(1, verbs.WCRDMAWrite)
			}
			for i, n := range srqs {
				e.send(to(n, verbs.SendWR{ID: 2, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: mem[i], SGList: []verbs.SGE{dst.SGE(0, 10000)}}))
				e.sent(2, verbs.WCRDMARead)
				s.verify("what was read", dst.Bytes(), 5)
				clear(dst.Bytes())
				e.send(to(n, verbs.SendWR{ID: 3, Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, Remote: mem[i], CompareAdd: 1, SGList: []verbs.SGE{dst.SGE(0, 8)}}))
				e.sent(3, verbs.WCFetchAdd)
				want(s, "the word before", dst.Load64(0), src.Load64(0))
			}
			s.Barrier()
		},
		B: func(s *Side) {
			t := s.target()
			var mem [2]verbs.RemoteAddr
			var mrs [2]*verbs.MR
			for i, q := range t.srqs {
				mrs[i] = s.allocMR(q.PD(), 10000, everything)
				mem[i] = mrs[i].Remote(0)
			}
			Exchange(s, mem)
			s.Barrier()
			expect := make([]byte, 10000)
			fill(expect, 5)
			for _, mr := range mrs {
				s.same("the memory behind the word", mr.Bytes()[8:], expect[8:])
			}
		},
	},
	// A FLUSH is of the memory of the SRQ that it names.
	{
		Name: "xrc/flush", Needs: XRC | ByHand | FlushGlobal,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			src, mem := e.filled(4096, 7), Exchange(s, [2]verbs.RemoteAddr{})
			for i, n := range srqs {
				e.send(unsignaled(to(n, write(1, mem[i], src.SGE(0, 4096)))))
				_, err := e.qp.PostSend([]verbs.SendWR{to(n, flush(uint64(2+i), mem[i], 4096, verbs.FlushGlobal))})
				s.need(XRCFlush, err)
			}
			e.sent(2, verbs.WCFlush)
			e.sent(3, verbs.WCFlush)
			// No manual names ATOMIC WRITE among the operations of XRC.
			if n, err := e.qp.PostSend([]verbs.SendWR{to(srqs[0], atomicWrite(4, mem[0], src.SGE(0, 8)))}); n != 0 || !errors.Is(err, verbs.ErrUnsupported) {
				s.Errorf("an ATOMIC WRITE: %d, %v; want ErrUnsupported", n, err)
			}
			s.Barrier()
		},
		B: func(s *Side) {
			t := s.targetWith(setup{access: flushable})
			var mrs [2]*verbs.MR
			var mem [2]verbs.RemoteAddr
			for i, q := range t.srqs {
				mrs[i] = s.allocMR(q.PD(), 4096, flushable)
				mem[i] = mrs[i].Remote(0)
			}
			Exchange(s, mem)
			s.Barrier()
			t.see()
			for _, mr := range mrs {
				s.verify("the memory", mr.Bytes(), 7)
			}
		},
	},
	// A message to an SRQ without receives waits for one.
	{
		Name: "xrc/empty SRQ", Needs: XRC | ByHand | RNR,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			e.send(to(srqs[1], send(1)))
			s.Barrier()
			e.sent(1, verbs.WCSend)
			e.send(to(srqs[0], send(2)))
			e.sent(2, verbs.WCSend)
		},
		B: func(s *Side) {
			t := s.target()
			s.postSRQ(t.srqs[0], recv(1))
			s.Barrier()
			s.postSRQ(t.srqs[1], recv(2))
			want(s, "the receive of the second SRQ", s.next(t.cqs[1]).ID, 2)
			want(s, "the receive of the first SRQ", s.next(t.cqs[0]).ID, 1)
		},
	},
	// A target is shared by its number: it lives until its last handle is closed.
	{
		Name: "xrc/open QP", Needs: XRC | ByHand,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			s.Barrier()
			e.send(to(srqs[0], send(1)))
			e.sent(1, verbs.WCSend)
			s.Barrier()
		},
		B: func(s *Side) {
			t := s.target()
			again, err := t.xrcd.OpenQP(t.qp.QPN(), "context")
			s.must(err)
			s.closeLater(again)
			if again.Context() != "context" || again.State() != verbs.QPStateRTS || again.QPN() != t.qp.QPN() {
				s.Errorf("context %v, state %v, number %v; want those of the target", again.Context(), again.State(), again.QPN())
			}
			if _, err := s.openXRCD(verbs.XRCDAttr{}).OpenQP(t.qp.QPN(), nil); !errors.Is(err, verbs.ErrNotFound) {
				s.Errorf("the target opened in another domain: %v, want ErrNotFound", err)
			}
			s.must(t.qp.Close())
			s.postSRQ(t.srqs[0], recv(1))
			s.Barrier()
			var wcs [1]verbs.WC
			_, err = t.cqs[0].Wait(s.ctx, wcs[:])
			s.must(err)
			want(s, "the status", wcs[0].Status, verbs.WCSuccess)
			s.Barrier()
		},
	},
	// Who opens the same file opens the same domain.
	{
		Name: "xrc/domains", Needs: XRC | ByHand,
		A: func(s *Side) {
			f, err := os.CreateTemp("", "verbstest-")
			s.must(err)
			s.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
			if _, err := s.Device.OpenXRCD(verbs.XRCDAttr{File: f}); !errors.Is(err, verbs.ErrNotFound) {
				s.Errorf("a domain that nobody has made: %v, want ErrNotFound", err)
			}
			x := s.openXRCD(verbs.XRCDAttr{File: f, Create: true, Exclusive: true})
			again, err := os.Open(f.Name())
			s.must(err)
			defer again.Close()
			if _, err := s.Device.OpenXRCD(verbs.XRCDAttr{File: again, Create: true, Exclusive: true}); !errors.Is(err, verbs.ErrBusy) {
				s.Errorf("the domain made again: %v, want ErrBusy", err)
			}
			y, err := s.Device.OpenXRCD(verbs.XRCDAttr{File: again})
			s.must(err)
			s.closeLater(y)
			qp, err := x.CreateQP(verbs.QPInitAttr{})
			s.must(err)
			s.closeLater(qp)
			same, err := y.OpenQP(qp.QPN(), nil)
			s.must(err)
			s.must(same.Close())
			if n, err := qp.PostSend([]verbs.SendWR{send(1)}); n != 0 || !errors.Is(err, verbs.ErrUnsupported) {
				s.Errorf("a SEND by a target: %d, %v; want ErrUnsupported", n, err)
			}
			if n, err := qp.PostRecv([]verbs.RecvWR{recv(1)}); n != 0 || !errors.Is(err, verbs.ErrUnsupported) {
				s.Errorf("a receive of a target: %d, %v; want ErrUnsupported", n, err)
			}
			if err := x.Close(); !errors.Is(err, verbs.ErrBusy) {
				s.Errorf("a domain with a QP is closed: %v, want ErrBusy", err)
			}
			pd, cq := s.allocPD(), s.createCQ(4)
			if _, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCRecv, SendCQ: cq, RecvCQ: cq}); !errors.Is(err, verbs.ErrInvalid) {
				s.Errorf("a target of a PD: %v, want ErrInvalid", err)
			}
			if _, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: s.createXRCSRQ(x, pd, cq)}); !errors.Is(err, verbs.ErrInvalid) {
				s.Errorf("an RC QP with an XRC SRQ: %v, want ErrInvalid", err)
			}
		},
		B: func(s *Side) {},
	},
	refusedXRC("xrc/error: unknown SRQ", func(srqs [2]verbs.SRQN, _ verbs.RemoteAddr, l verbs.SGE) verbs.SendWR {
		return to(max(srqs[0], srqs[1])^0x800000, send(1, l))
	}, verbs.WCRemInvReqErr),
	refusedXRC("xrc/error: memory of another SRQ's domain", func(srqs [2]verbs.SRQN, mem verbs.RemoteAddr, l verbs.SGE) verbs.SendWR {
		return to(srqs[1], write(1, mem, l))
	}, verbs.WCRemAccessErr),
	{
		Name: "xrc/error: SRQ of another XRC domain", Needs: XRC | ByHand,
		A: func(s *Side) {
			e, _ := s.initiator(setup{})
			e.send(to(Exchange(s, verbs.SRQN(0)), send(1)))
			want(s, "the status", e.next(e.scq).Status, verbs.WCRemInvReqErr)
			s.Barrier()
		},
		B: func(s *Side) {
			s.target()
			other := s.createXRCSRQ(s.openXRCD(verbs.XRCDAttr{}), s.allocPD(), s.createCQ(4))
			s.postSRQ(other, recv(1))
			Exchange(s, other.Num())
			s.Barrier()
		},
	},
	// An SRQ that is closed has no receives any more, and the QPs of its domain go on until a message names it.
	{
		Name: "xrc/closed SRQ", Needs: XRC | ByHand,
		A: func(s *Side) {
			e, srqs := s.initiator(setup{})
			s.Barrier()
			e.send(to(srqs[1], send(1)))
			e.sent(1, verbs.WCSend)
			e.send(to(srqs[0], send(2)))
			want(s, "the status", e.next(e.scq).Status, verbs.WCRemInvReqErr)
			s.Barrier()
		},
		B: func(s *Side) {
			t := s.target()
			s.postSRQ(t.srqs[0], recv(1))
			s.postSRQ(t.srqs[1], recv(2))
			s.must(t.srqs[0].Close())
			s.Barrier()
			want(s, "the receive", s.next(t.cqs[1]).ID, 2)
			s.Barrier()
		},
	},
}
