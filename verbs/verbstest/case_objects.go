package verbstest

import "github.com/adverb-rdma/adverb/verbs"

var objectCases = []Case{
	// An object does not close while others depend on it. Nothing can be done with a closed one.
	both("objects/lifecycle", 0, func(s *Side) {
		pd := s.allocPD()
		cq := s.createCQ(8)
		s.wantErr("close a device with a PD", s.Device.Close(), verbs.ErrBusy)
		mr := s.allocMR(pd, 4096, everything)
		s.wantErr("close a PD with an MR", pd.Close(), verbs.ErrBusy)
		e := s.newEnd(setup{pd: pd, scq: cq, rcq: cq})
		s.must(mr.Close())
		s.wantErr("close a PD with a QP", pd.Close(), verbs.ErrBusy)
		s.wantErr("close a CQ with a QP", cq.Close(), verbs.ErrBusy)
		for _, c := range []closer{e.qp, cq, pd} {
			s.must(c.Close())
			s.must(c.Close()) // a second time does nothing
		}

		_, err := pd.AllocMR(8, 0)
		s.wantErr("AllocMR in a closed PD", err, verbs.ErrClosed)
		other := s.createCQ(1)
		_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: other, RecvCQ: other})
		s.wantErr("CreateQP in a closed PD", err, verbs.ErrClosed)
		_, err = s.allocPD().CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
		s.wantErr("CreateQP with a closed CQ", err, verbs.ErrClosed)
		_, err = cq.Poll(make([]verbs.WC, 1))
		s.wantErr("Poll a closed CQ", err, verbs.ErrClosed)
		s.wantErr("Notify of a closed CQ", cq.Notify(false), verbs.ErrClosed)
		s.wantErr("Resize a closed CQ", cq.Resize(9), verbs.ErrClosed)
		s.wantErr("Modify a closed QP", e.qp.Init(s.Port, 0), verbs.ErrClosed)
		_, _, err = e.qp.Query()
		s.wantErr("Query a closed QP", err, verbs.ErrClosed)
		_, err = e.qp.PostSend([]verbs.SendWR{send(1)})
		s.wantErr("PostSend to a closed QP", err, verbs.ErrClosed)
		_, err = e.qp.PostRecv([]verbs.RecvWR{recv(1)})
		s.wantErr("PostRecv to a closed QP", err, verbs.ErrClosed)
	}),
	both("objects/arguments", 0, func(s *Side) {
		a := s.attr()
		pd, cq := s.allocPD(), s.createCQ(1)
		_, err := s.Device.CreateCQ(0)
		s.wantErr("CreateCQ(0)", err, verbs.ErrInvalid)
		_, err = s.Device.CreateCQ(a.MaxCQE + 1)
		s.wantErr("CreateCQ(max_cqe + 1)", err, verbs.ErrLimit)
		_, err = pd.RegMR(nil, 0)
		s.wantErr("RegMR(nil)", err, verbs.ErrInvalid)
		_, err = pd.AllocMR(0, 0)
		s.wantErr("AllocMR(0)", err, verbs.ErrInvalid)
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic, 1 << 31} {
			_, err = pd.AllocMR(8, access)
			s.wantErr("AllocMR with "+access.String(), err, verbs.ErrInvalid)
		}
		_, err = pd.RegMRIOVA(make([]byte, 8), 1<<64-7, 0)
		s.wantErr("an IOVA range past 2^64", err, verbs.ErrInvalid)
		_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq})
		s.wantErr("CreateQP without RecvCQ", err, verbs.ErrInvalid)
		_, err = pd.CreateQP(verbs.QPInitAttr{Type: 200, SendCQ: cq, RecvCQ: cq})
		s.wantErr("CreateQP of no type", err, verbs.ErrUnsupported)
		caps := []verbs.QPCap{
			{MaxSendWR: a.MaxQPWR + 1}, {MaxRecvWR: a.MaxQPWR + 1}, {MaxSendSGE: a.MaxSGE + 1}, {MaxRecvSGE: a.MaxSGE + 1},
			{MaxSendWR: -1}, {MaxInlineData: -1},
		}
		if a.MaxInline != verbs.MaxInlineUnknown {
			caps = append(caps, verbs.QPCap{MaxInlineData: a.MaxInline + 1})
		}
		for _, c := range caps {
			_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: c})
			s.wantErr("CreateQP beyond the limits", err, verbs.ErrLimit)
		}
		s.must(pd.Close()) // what failed has left nothing in it
	}),
	// A QP has the capacities that were asked for, or larger ones, and Query tells them.
	both("objects/capacities", 0, func(s *Side) {
		if cq := s.createCQ(37); cq.Cap() < 37 {
			s.Errorf("a CQ of 37 has room for %d, want 37 at least", cq.Cap())
		}
		for _, asked := range []verbs.QPCap{{}, {MaxSendWR: 1, MaxRecvWR: 3, MaxSendSGE: 1, MaxRecvSGE: 1}, {MaxSendWR: 33, MaxRecvWR: 64}} {
			e := s.newEnd(setup{cap: asked, cqe: 8, signalAll: true})
			_, init, err := e.qp.Query()
			s.must(err)
			if c := init.Cap; c.MaxSendWR < asked.MaxSendWR || c.MaxRecvWR < asked.MaxRecvWR || c.MaxSendSGE < asked.MaxSendSGE ||
				c.MaxRecvSGE < asked.MaxRecvSGE || c.MaxInlineData < asked.MaxInlineData {
				s.Errorf("asked for %+v, got %+v, want as much at least", asked, c)
			}
			if init.Type != verbs.QPTypeRC || init.SendCQ != e.scq || init.RecvCQ != e.rcq || !init.SignalAll || init.SRQ != nil {
				s.Errorf("Query says %+v, want what the QP was created with", init)
			}
		}
	}),
	both("objects/numbers", 0, func(s *Side) {
		qpns, keys := map[verbs.QPN]bool{}, map[verbs.RKey]bool{}
		pd := s.allocPD()
		for range 8 {
			e := s.newEnd(setup{pd: pd})
			mr := s.allocMR(pd, 64, everything)
			n := e.qp.QPN()
			if qpns[n] {
				s.Errorf("QPN %v is used twice", n)
			}
			if s.Device.Info().Transport != verbs.TransportIWARP && (n < 2 || n > 1<<24-2) {
				s.Errorf("QPN %v has more than 24 bits, or is a special one: 0, 1 or 0xffffff", n)
			}
			if keys[mr.RKey()] {
				s.Errorf("rkey %v is used twice", mr.RKey())
			}
			qpns[e.qp.QPN()], keys[mr.RKey()] = true, true
		}
	}),
}
