package verbstest

import "github.com/adverb-rdma/adverb/verbs"

const (
	rtrMask = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN |
		verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	rtsMask = verbs.MaskState | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic
)

var stateCases = []Case{
	// A QP goes through all its states twice, and Query returns what Modify was given.
	{Name: "state/walk", A: walk, B: walk},
	both("state/missing attributes", ByHand, func(s *Side) {
		e := s.newEnd(setup{})
		qp := e.qp
		s.wantErr("RESET to RTS", qp.RTS(0, verbs.DefaultRetry), verbs.ErrState)
		s.wantErr("RESET to INIT without a port", qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskAccessFlags), verbs.ErrInvalid)
		e.inState(verbs.QPStateReset)
		s.must(qp.Init(s.Port, 0))
		s.wantErr("INIT to RTS", qp.RTS(0, verbs.DefaultRetry), verbs.ErrState)
		good := e.rtrAttr()
		for _, m := range []verbs.QPAttrMask{verbs.MaskAV, verbs.MaskPathMTU, verbs.MaskDestQPN, verbs.MaskRQPSN, verbs.MaskMaxDestRDAtomic, verbs.MaskMinRNRTimer} {
			s.wantErr("RTR without "+m.String(), qp.Modify(&good, rtrMask&^m), verbs.ErrInvalid)
		}
		s.wantErr("RTR with TIMEOUT", qp.Modify(&good, rtrMask|verbs.MaskTimeout), verbs.ErrInvalid)
		e.inState(verbs.QPStateInit)
		s.must(qp.Modify(&good, rtrMask))
		s.wantErr("RTR to SQD", qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState), verbs.ErrState)
		rts := verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1}
		for _, m := range []verbs.QPAttrMask{verbs.MaskTimeout, verbs.MaskRetryCnt, verbs.MaskRNRRetry, verbs.MaskSQPSN, verbs.MaskMaxRDAtomic} {
			s.wantErr("RTS without "+m.String(), qp.Modify(&rts, rtsMask&^m), verbs.ErrInvalid)
		}
		s.wantErr("RTS with a wrong CUR_STATE", qp.Modify(&rts, rtsMask|verbs.MaskCurState), verbs.ErrState)
		e.inState(verbs.QPStateRTR)
		rts.CurState = verbs.QPStateRTR
		s.must(qp.Modify(&rts, rtsMask|verbs.MaskCurState))
		e.inState(verbs.QPStateRTS)
	}),
	both("state/values out of range", ByHand, func(s *Side) {
		dev := s.attr()
		e := s.newEnd(setup{})
		s.wantErr("port", e.qp.Init(dev.PhysPortCnt+1, 0), verbs.ErrInvalid)
		s.wantErr("P_Key index", e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: s.Port, PKeyIndex: 1 << 15},
			verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags), verbs.ErrInvalid)
		s.must(e.qp.Init(s.Port, 0))
		for _, c := range []struct {
			what string
			set  func(*verbs.QPAttr)
		}{
			{"path MTU 0", func(a *verbs.QPAttr) { a.PathMTU = 0 }},
			{"path MTU 6", func(a *verbs.QPAttr) { a.PathMTU = 6 }},
			{"QPN of 25 bits", func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }},
			{"PSN of 25 bits", func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }},
			{"RNR timer 32", func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }},
			{"too many READs", func(a *verbs.QPAttr) { a.MaxDestRDAtomic = dev.MaxQPRdAtom + 1 }},
			{"no address", func(a *verbs.QPAttr) { a.AH.DGID, a.AH.DLID = verbs.GID{}, 0 }},
			{"GID index", func(a *verbs.QPAttr) { a.AH.SGIDIndex = 1 << 20 }},
		} {
			a := e.rtrAttr()
			c.set(&a)
			s.wantErr(c.what, e.qp.Modify(&a, rtrMask), verbs.ErrInvalid, verbs.ErrLimit, verbs.ErrNotFound)
		}
		if mtu := s.activeMTU(); mtu < verbs.MTU4096 {
			a := e.rtrAttr()
			a.PathMTU = mtu + 1
			s.wantErr("path MTU above the active one", e.qp.Modify(&a, rtrMask), verbs.ErrInvalid)
		}
		e.inState(verbs.QPStateInit)
		good := e.rtrAttr()
		s.must(e.qp.Modify(&good, rtrMask))
		for _, r := range []verbs.Retry{{Timeout: 32}, {RetryCount: 8}, {RNRRetryCount: 8}, {MaxRDAtomic: dev.MaxQPInitRdAtom + 1}} {
			s.wantErr("RTS", e.qp.RTS(0, r), verbs.ErrInvalid, verbs.ErrLimit)
		}
		s.wantErr("PSN", e.qp.RTS(1<<24, verbs.DefaultRetry), verbs.ErrInvalid)
		e.inState(verbs.QPStateRTR)
	}),
	// Posting is refused in the states that do not allow it. In ERR what is posted is flushed.
	both("state/posting", ByHand, func(s *Side) {
		e := s.newEnd(setup{})
		postSend := func(what string) {
			_, err := e.qp.PostSend([]verbs.SendWR{send(1)})
			s.wantErr(what, err, verbs.ErrState)
		}
		_, err := e.qp.PostRecv([]verbs.RecvWR{recv(1)})
		s.wantErr("receive in RESET", err, verbs.ErrState)
		postSend("send in RESET")
		s.must(e.qp.Init(s.Port, 0))
		postSend("send in INIT")
		e.recv(recv(2))
		good := e.rtrAttr()
		s.must(e.qp.Modify(&good, rtrMask))
		postSend("send in RTR")
		e.recv(recv(3))
		e.modify(verbs.QPStateErr)
		e.fails(e.rcq, 2, verbs.WCFlushErr)
		e.fails(e.rcq, 3, verbs.WCFlushErr)
		e.recv(recv(4))
		e.fails(e.rcq, 4, verbs.WCFlushErr)
		e.send(unsignaled(send(5)), send(6))
		e.flushed(5, 6) // a flush makes a completion although it is not signaled
		e.modify(verbs.QPStateReset)
		s.empty(e.scq)
		s.empty(e.rcq)
	}),
}

// rtrAttr returns the attributes that connect the QP to itself.
func (e *end) rtrAttr() verbs.QPAttr {
	return verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU256, DestQPN: e.qp.QPN(), MaxDestRDAtomic: 1, MinRNRTimer: 1,
		AH: verbs.AHAttr{DGID: e.gid(), DLID: e.port().LID, SGIDIndex: e.GIDIndex},
	}
}

func walk(s *Side) {
	e := s.newEnd(setup{path: verbs.Path{MTU: verbs.MTU512, MaxDestRDAtomic: 1, MinRNRTimer: 5}, retry: verbs.Retry{Timeout: 17, RetryCount: 3, RNRRetryCount: 5, MaxRDAtomic: 1}})
	query := func() verbs.QPAttr {
		a, _, err := e.qp.Query()
		s.must(err)
		return a
	}
	for range 2 {
		e.inState(verbs.QPStateReset)
		e.introduce()
		e.rtr()
		e.inState(verbs.QPStateRTR)
		a := query()
		if a.Port != s.Port || a.Access != everything || a.PathMTU != verbs.MTU512 || a.DestQPN != e.to.QPN || a.RQPSN != e.to.PSN ||
			a.MaxDestRDAtomic != 1 || a.MinRNRTimer != 5 || a.AH.DGID != e.to.GID || a.AH.SGIDIndex != s.GIDIndex {
			s.Errorf("in RTR: %+v, want what Init and RTR were given", a)
		}
		e.rts()
		e.inState(verbs.QPStateRTS)
		a = query()
		if a.SQPSN != e.psn || a.Timeout != 17 || a.RetryCnt != 3 || a.RNRRetry != 5 || a.MaxRDAtomic != 1 {
			s.Errorf("in RTS: %+v, want what RTS was given", a)
		}
		s.must(e.qp.Modify(&verbs.QPAttr{Access: verbs.AccessRemoteRead, MinRNRTimer: 31}, verbs.MaskAccessFlags|verbs.MaskMinRNRTimer))
		if a = query(); a.Access != verbs.AccessRemoteRead || a.MinRNRTimer != 31 {
			s.Errorf("modified in RTS: %+v, want access %v and MinRNRTimer 31", a, verbs.AccessRemoteRead)
		}
		e.modify(verbs.QPStateSQD)
		e.inState(verbs.QPStateSQD)
		s.must(e.qp.Modify(&verbs.QPAttr{Timeout: 9}, verbs.MaskTimeout))
		e.modify(verbs.QPStateRTS)
		if a = query(); a.Timeout != 9 {
			s.Errorf("modified in SQD: %+v, want Timeout 9", a)
		}
		e.modify(verbs.QPStateErr)
		e.inState(verbs.QPStateErr)
		s.Barrier()
		e.modify(verbs.QPStateReset)
	}
}
