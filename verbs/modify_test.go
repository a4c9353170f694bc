package verbs_test

import (
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestModifyWalk takes a QP through its states twice, and queries it after each step.
func TestModifyWalk(t *testing.T) {
	d := device(t)
	qp := newQP(t, d, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4})
	want := verbs.QPAttr{State: verbs.QPStateReset}
	look := func() {
		t.Helper()
		got, _, err := qp.Query()
		want.CurState, want.Cap = want.State, got.Cap
		if err != nil || got != want {
			t.Fatalf("in %v: %v\n got %+v\nwant %+v", want.State, err, got, want)
		}
		if qp.State() != want.State {
			t.Fatalf("State is %v, Query says %v, want the same", qp.State(), want.State)
		}
	}
	modify := func(a verbs.QPAttr, mask verbs.QPAttrMask) {
		t.Helper()
		check(t, qp.Modify(&a, mask))
	}
	look()
	for range 2 {
		check(t, qp.Init(1, rdmatest.Access))
		want.State, want.Port, want.Access = verbs.QPStateInit, 1, rdmatest.Access
		look()
		modify(verbs.QPAttr{Access: verbs.AccessRemoteRead}, verbs.MaskAccessFlags)
		want.Access = verbs.AccessRemoteRead
		look()

		check(t, qp.RTR(verbs.Peer{QPN: 0x123456, PSN: 0xfffffe, GID: gid(t, d)}, verbs.Path{MTU: verbs.MTU512, TrafficClass: 104}))
		want.State, want.PathMTU, want.DestQPN, want.RQPSN = verbs.QPStateRTR, verbs.MTU512, 0x123456, 0xfffffe
		want.AH = verbs.AHAttr{DGID: gid(t, d), HopLimit: 64, TrafficClass: 104}
		want.MaxDestRDAtomic, want.MinRNRTimer = 128, 12
		look()

		check(t, qp.RTS(0xabcdef, verbs.Retry{Timeout: 17, RetryCount: 3, RNRRetryCount: 5, MaxRDAtomic: 2}))
		want.State, want.SQPSN, want.Timeout = verbs.QPStateRTS, 0xabcdef, 17
		want.RetryCnt, want.RNRRetry, want.MaxRDAtomic = 3, 5, 2
		look()
		modify(verbs.QPAttr{MinRNRTimer: 31, Access: verbs.AccessRemoteWrite}, verbs.MaskMinRNRTimer|verbs.MaskAccessFlags)
		want.MinRNRTimer, want.Access = 31, verbs.AccessRemoteWrite
		look()

		modify(verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
		want.State, want.EnSQDAsyncNotify = verbs.QPStateSQD, true
		look()
		modify(verbs.QPAttr{Timeout: 9, MaxRDAtomic: 128}, verbs.MaskTimeout|verbs.MaskMaxRDAtomic)
		want.Timeout, want.MaxRDAtomic = 9, 128
		look()
		modify(verbs.QPAttr{State: verbs.QPStateRTS, CurState: verbs.QPStateSQD}, verbs.MaskState|verbs.MaskCurState)
		want.State = verbs.QPStateRTS
		look()

		modify(verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
		want.State = verbs.QPStateErr
		look()
		modify(verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
		look()
		modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
		want = verbs.QPAttr{State: verbs.QPStateReset}
		look()
		modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
		look()
	}
}

// A refused Modify changes nothing.
func TestModifyRefused(t *testing.T) {
	d := device(t)
	qp := newQP(t, d, verbs.QPCap{})
	name := fmt.Sprintf("modify qp %v: ", qp.QPN())

	err := qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
	wantErr(t, "RESET to ERR", err, verbs.ErrState, name+"RESET->ERR: no such transition", "from RESET a QP goes to INIT")
	err = qp.RTS(0, verbs.DefaultRetry)
	wantErr(t, "RESET to RTS", err, verbs.ErrState, name+"RESET->RTS: no such transition")
	check(t, qp.Init(1, 0))
	before, _, _ := qp.Query()
	err = qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, Access: verbs.AccessRemoteRead},
		verbs.MaskState|verbs.MaskAccessFlags|verbs.MaskMinRNRTimer)
	wantErr(t, "RTR without most", err, verbs.ErrInvalid, name+"INIT->RTR: missing AV, PATH_MTU, RQ_PSN, MAX_DEST_RD_ATOMIC, DEST_QPN")
	err = qp.Modify(&verbs.QPAttr{Access: verbs.AccessRemoteRead, Port: 1, AltAH: verbs.AHAttr{DGID: gid(t, d)}},
		verbs.MaskAccessFlags|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAltPath)
	wantErr(t, "INIT to INIT with an alternate path", err, verbs.ErrInvalid, "not allowed: ALT_PATH")
	if after, _, _ := qp.Query(); after != before {
		t.Errorf("a refused Modify changed the QP from %+v to %+v, want no change", before, after)
	}
}

// TestModifyValues gives the changes to RTR and RTS one value out of range at a time.
func TestModifyValues(t *testing.T) {
	d := device(t)
	attr := must(d.Query())(t)
	good := verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: 5, MaxDestRDAtomic: 1, MinRNRTimer: 1,
		AH: verbs.AHAttr{DGID: gid(t, d)},
	}
	const rtr = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	const rts = verbs.MaskState | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic
	tests := []struct {
		name string
		set  func(*verbs.QPAttr)
		mask verbs.QPAttrMask
		kind error
		text string
	}{
		{"state", func(a *verbs.QPAttr) { a.State = 7 }, rtr, verbs.ErrInvalid, "STATE 7"},
		{"MTU 0", func(a *verbs.QPAttr) { a.PathMTU = 0 }, rtr, verbs.ErrInvalid, "PATH_MTU 0"},
		{"MTU 6", func(a *verbs.QPAttr) { a.PathMTU = 6 }, rtr, verbs.ErrInvalid, "PATH_MTU 6"},
		{"RQ PSN", func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, rtr, verbs.ErrInvalid, "RQ_PSN 0x1000000 has more than 24 bits"},
		{"QPN", func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }, rtr, verbs.ErrInvalid, "DEST_QPN 0x1000000 has more than 24 bits"},
		{"RNR timer", func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }, rtr, verbs.ErrInvalid, "MIN_RNR_TIMER 32: codes are 0 to 31"},
		{"depth", func(a *verbs.QPAttr) { a.MaxDestRDAtomic = attr.MaxQPRdAtom + 1 }, rtr, verbs.ErrLimit, "MAX_DEST_RD_ATOMIC 129: the device allows 0 to 128"},
		{"depth -1", func(a *verbs.QPAttr) { a.MaxDestRDAtomic = -1 }, rtr, verbs.ErrLimit, "MAX_DEST_RD_ATOMIC -1"},
		{"no GID", func(a *verbs.QPAttr) { a.AH.DGID = verbs.GID{} }, rtr, verbs.ErrInvalid, "DGID"},
		{"other IP version", func(a *verbs.QPAttr) { a.AH.SGIDIndex = 1 }, rtr, verbs.ErrInvalid, "different IP versions"},
		{"free GID index", func(a *verbs.QPAttr) { a.AH.SGIDIndex = 2 }, rtr, verbs.ErrNotFound, "GID index 2 is empty"},
		{"GID index", func(a *verbs.QPAttr) { a.AH.SGIDIndex = -1 }, rtr, verbs.ErrNotFound, "GID index -1"},
		{"multicast", func(a *verbs.QPAttr) { a.AH.DGID = must(verbs.ParseGID("224.0.0.1"))(t) }, rtr, verbs.ErrInvalid, "no single host"},
		{"P_Key index", func(a *verbs.QPAttr) { a.PKeyIndex = 1 }, rtr | verbs.MaskPKeyIndex, verbs.ErrInvalid, "PKEY_INDEX 1"},
		{"P_Key index -1", func(a *verbs.QPAttr) { a.PKeyIndex = -1 }, rtr | verbs.MaskPKeyIndex, verbs.ErrInvalid, "PKEY_INDEX -1"},
		{"access", func(a *verbs.QPAttr) { a.Access = verbs.AccessZeroBased }, rtr | verbs.MaskAccessFlags, verbs.ErrInvalid, "ACCESS_FLAGS ACCESS_ZERO_BASED"},
		{"alternate path", func(a *verbs.QPAttr) { a.AltAH.DGID = gid(t, d) }, rtr | verbs.MaskAltPath, verbs.ErrUnsupported, "ALT_PATH"},
		{"good", func(*verbs.QPAttr) {}, rtr, nil, ""},

		{"timeout", func(a *verbs.QPAttr) { a.Timeout = 32 }, rts, verbs.ErrInvalid, "TIMEOUT 32: codes are 0 to 31"},
		{"retries", func(a *verbs.QPAttr) { a.RetryCnt = 8 }, rts, verbs.ErrInvalid, "RETRY_CNT 8: 0 to 7"},
		{"RNR retries", func(a *verbs.QPAttr) { a.RNRRetry = 8 }, rts, verbs.ErrInvalid, "RNR_RETRY 8: 0 to 7"},
		{"SQ PSN", func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }, rts, verbs.ErrInvalid, "SQ_PSN 0x1000000 has more than 24 bits"},
		{"outstanding", func(a *verbs.QPAttr) { a.MaxRDAtomic = 129 }, rts, verbs.ErrLimit, "MAX_QP_RD_ATOMIC 129: the device allows 0 to 128"},
		{"outstanding -1", func(a *verbs.QPAttr) { a.MaxRDAtomic = -1 }, rts, verbs.ErrLimit, "MAX_QP_RD_ATOMIC -1"},
		{"migration state", func(a *verbs.QPAttr) { a.PathMigState = 3 }, rts | verbs.MaskPathMigState, verbs.ErrInvalid, "PATH_MIG_STATE 3 is none of"},
		{"rearm", func(a *verbs.QPAttr) { a.PathMigState = verbs.MigRearm }, rts | verbs.MaskPathMigState, verbs.ErrUnsupported, "PATH_MIG_STATE 1: RoCE has no automatic path migration"},
		{"all at their largest", func(a *verbs.QPAttr) {
			a.Timeout, a.RetryCnt, a.RNRRetry, a.SQPSN, a.MaxRDAtomic = 31, 7, 7, 1<<24-1, 128
		}, rts | verbs.MaskPathMigState, nil, ""},
	}
	qp := newQP(t, d, verbs.QPCap{})
	for _, port := range []int{-1, 0, 2} {
		wantErr(t, "INIT", qp.Init(port, 0), verbs.ErrInvalid, fmt.Sprintf("PORT %d: ports are 1 to 1", port))
	}
	check(t, qp.Init(1, 0))
	for _, tt := range tests {
		a := good
		if tt.mask&verbs.MaskSQPSN != 0 {
			a = verbs.QPAttr{State: verbs.QPStateRTS}
		}
		tt.set(&a)
		before := qp.State()
		err := qp.Modify(&a, tt.mask)
		if tt.kind == nil {
			check(t, err)
			continue
		}
		wantErr(t, tt.name, err, tt.kind, "modify qp ", tt.text)
		if qp.State() != before {
			t.Fatalf("%s: went to %v, want it to stay in %v", tt.name, qp.State(), before)
		}
	}
	// Attributes that the mask does not name are not looked at.
	check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, Timeout: 99, PathMTU: 99, Port: 99, DestQPN: 1 << 30}, verbs.MaskState))
	wantErr(t, "port in SQD", qp.Modify(&verbs.QPAttr{Port: 2}, verbs.MaskPort), verbs.ErrInvalid, "PORT 2")
}

// The path MTU may not be larger than the network's MTU allows.
func TestPathMTUAboveActive(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{MTU: 1500})
	d := net.Device()
	if p := must(d.QueryPort(1))(t); p.ActiveMTU != verbs.MTU1024 || p.MaxMTU != verbs.MTU4096 {
		t.Errorf("on a network of 1500 bytes: active %v, max %v; want MTU_1024 and MTU_4096", p.ActiveMTU, p.MaxMTU)
	}
	qp := newQP(t, d, verbs.QPCap{})
	check(t, qp.Init(1, 0))
	peer := verbs.Peer{QPN: 9, GID: gid(t, d)}
	err := qp.RTR(peer, verbs.Path{MTU: verbs.MTU2048})
	wantErr(t, "RTR", err, verbs.ErrInvalid, "PATH_MTU MTU_2048 is above the port's active MTU, MTU_1024", "sim0")
	check(t, qp.RTR(peer, verbs.Path{}))
	if a, _, _ := qp.Query(); a.PathMTU != verbs.MTU1024 {
		t.Errorf("chose path MTU %v, want the active one, MTU_1024", a.PathMTU)
	}
}

func TestCreateQPLimits(t *testing.T) {
	d := device(t)
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(8))(t)
	const most, sges, inline = 1 << 15, 32, 1024
	tests := []struct {
		name string
		cap  verbs.QPCap
	}{
		{"max_send_wr 32769: the device allows 0 to 32768", verbs.QPCap{MaxSendWR: most + 1}},
		{"max_recv_wr 32769", verbs.QPCap{MaxRecvWR: most + 1}},
		{"max_send_sge 33: the device allows 0 to 32", verbs.QPCap{MaxSendSGE: sges + 1}},
		{"max_recv_sge 33", verbs.QPCap{MaxRecvSGE: sges + 1}},
		{"max_inline_data 1025: the device allows 0 to 1024", verbs.QPCap{MaxInlineData: inline + 1}},
		{"max_send_wr -1", verbs.QPCap{MaxSendWR: -1}},
		{"max_recv_wr -1", verbs.QPCap{MaxRecvWR: -1}},
		{"max_inline_data -1", verbs.QPCap{MaxInlineData: -1}},
	}
	for _, tt := range tests {
		_, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: tt.cap})
		wantErr(t, tt.name, err, verbs.ErrLimit, "create qp in pd 1: "+tt.name)
	}
	for _, asked := range []verbs.QPCap{
		{}, {MaxSendWR: 1, MaxRecvWR: 3, MaxSendSGE: 3, MaxRecvSGE: 5, MaxInlineData: 7},
		{MaxSendWR: 1000, MaxRecvWR: 100}, {most, most, sges, sges, inline},
	} {
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: asked})
		check(t, err)
		_, init, err := qp.Query()
		check(t, err)
		got := init.Cap
		if got.MaxSendWR < asked.MaxSendWR || got.MaxRecvWR < asked.MaxRecvWR || got.MaxSendSGE < asked.MaxSendSGE ||
			got.MaxRecvSGE < asked.MaxRecvSGE || got.MaxInlineData < asked.MaxInlineData {
			t.Errorf("asked for %+v, got %+v, want as much at least", asked, got)
		}
		if init.SendCQ != cq || init.RecvCQ != cq || init.Type != verbs.QPTypeRC || init.SignalAll {
			t.Errorf("Query says %+v, want an RC QP with both queues on the CQ, and not SignalAll", init)
		}
		check(t, qp.Close())
	}
}

// An SRQ's limit is a number of receives that the queue has room for.
func TestSRQLimit(t *testing.T) {
	srq := must(must(device(t).AllocPD())(t).CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))(t)
	attr := must(srq.Query())(t)
	for _, limit := range []int{-1, attr.MaxWR + 1} {
		err := srq.Modify(verbs.SRQAttr{Limit: limit}, verbs.SRQMaskLimit)
		wantErr(t, "Modify", err, verbs.ErrInvalid, fmt.Sprintf("srq_limit %d: the queue holds %d", limit, attr.MaxWR))
	}
	check(t, srq.Modify(verbs.SRQAttr{Limit: attr.MaxWR}, verbs.SRQMaskLimit))
}

// The capacities of a receive queue do not count for a QP that takes its receives from an SRQ.
func TestCreateQPWithSRQ(t *testing.T) {
	d := device(t)
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(4))(t)
	srq := must(pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4}))(t)
	for _, c := range []verbs.QPCap{{}, {MaxRecvWR: 1 << 30, MaxRecvSGE: 1 << 30}, {MaxRecvWR: -1, MaxRecvSGE: -1}} {
		qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: c}))(t)
		_, init, err := qp.Query()
		check(t, err)
		if init.Cap.MaxRecvWR != 0 || init.Cap.MaxRecvSGE != 0 {
			t.Errorf("asked for %+v with an SRQ, got %+v; want no receive queue", c, init.Cap)
		}
	}
}

func TestCreateQPArguments(t *testing.T) {
	net := rdmatest.New(t)
	d, other := net.Device(), net.Device()
	pd, cq, foreign := must(d.AllocPD())(t), must(d.CreateCQ(8))(t), must(other.CreateCQ(8))(t)
	_, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq})
	wantErr(t, "no receive CQ", err, verbs.ErrInvalid, "SendCQ and RecvCQ are both needed")
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: foreign})
	wantErr(t, "foreign CQ", err, verbs.ErrInvalid, "the RecvCQ is of device sim1, and the PD of device sim0: make it by Device.CreateCQ of PD.Device")
	again := verbs.NewDevice(d.Provider()) // as another Open makes
	twin, twinPD := must(again.CreateCQ(8))(t), must(again.AllocPD())(t)
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: twin, RecvCQ: cq})
	wantErr(t, "a CQ of another Open", err, verbs.ErrInvalid, "the SendCQ is of another Open of device sim0 than the PD", "make it by Device.CreateCQ of PD.Device")
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: must(twinPD.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}))(t)})
	wantErr(t, "an SRQ of another Open", err, verbs.ErrInvalid, "the SRQ is of another Open of device sim0 than the PD", "make it by CreateSRQ")
	for _, typ := range []verbs.QPType{1, 8, 11, 255} {
		_, err = pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq})
		wantErr(t, typ.String(), err, verbs.ErrUnsupported, "type "+typ.String())
	}
	for _, n := range []int{-1, 0} {
		_, err = d.CreateCQ(n)
		wantErr(t, "CreateCQ", err, verbs.ErrInvalid, fmt.Sprintf("%d entries: ask for at least one", n))
	}
	_, err = d.CreateCQ(1 << 22)
	wantErr(t, "CreateCQ", err, verbs.ErrLimit, "create cq on device sim0: 4194304 entries", "max_cqe", "4194303")
	wantErr(t, "Resize", cq.Resize(0), verbs.ErrInvalid, "resize cq 1: 0 entries")
	wantErr(t, "Resize", cq.Resize(1<<22), verbs.ErrLimit, "resize cq 1: 4194304 entries")
	check(t, pd.Close()) // the call that failed has left nothing behind
}
