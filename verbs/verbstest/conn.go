package verbstest

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// everything is what QPs and regions allow unless a case says otherwise.
const everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// quick gives up after a few milliseconds. It is for cases that wait for the failure.
var quick = verbs.Retry{Timeout: 8, RetryCount: 1, RNRRetryCount: 0, MaxRDAtomic: 1}

// patient gives up after 4.3 s without a sign of life. On a machine with many more runnable threads than
// cores, the process of the other end may not run for half a second, which is what verbs.DefaultRetry waits.
var patient = verbs.Retry{Timeout: 17, RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: 16}

// setup says how an end is made. A zero field has the default that its comment names.
type setup struct {
	typ       verbs.QPType // RC
	cap       verbs.QPCap  // 64 work requests and 4 SGEs in each queue
	cqe       int          // entries of each CQ: as many as cap can fill, and one
	signalAll bool
	access    verbs.Access // of the QP: everything
	deny      bool         // access 0 means no access
	retry     verbs.Retry  // patient
	path      verbs.Path   // the smaller active MTU of the two ports
	stay      bool         // connect leaves the QP in RTR
	qkey      verbs.QKey   // UD
	srq       *verbs.SRQ
	pd        *verbs.PD   // one of its own
	scq, rcq  *verbs.CQ   // of its own
	xrcd      *verbs.XRCD // of an XRC target
}

// end is a QP of a side, with its PD and its CQs.
type end struct {
	*Side
	pd       *verbs.PD
	scq, rcq *verbs.CQ
	qp       *verbs.QP
	psn      verbs.PSN
	key      verbs.SecurityKey // of its next connection, if the suite runs so
	mtu      int               // bytes of the path MTU, once connected
	to       peer
	o        setup
}

// peer is what the sides tell each other of their ends.
type peer struct {
	verbs.Peer
	MTU   verbs.MTU
	QKey  verbs.QKey
	Depth int  // READs and atomics that the end answers at a time
	Exact bool // its device guarantees ExactStatus

	Key verbs.SecurityKey
}

// newEnd makes a QP in RESET.
func (s *Side) newEnd(o setup) *end {
	if o.typ == 0 {
		o.typ = verbs.QPTypeRC
	}
	if o.cap == (verbs.QPCap{}) {
		o.cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4}
	}
	if o.access == 0 && !o.deny {
		o.access = everything
	}
	if o.retry == (verbs.Retry{}) {
		o.retry = patient
	}
	e := &end{Side: s, pd: o.pd, scq: o.scq, rcq: o.rcq, o: o, psn: verbs.PSN(s.rand.Uint32() >> 8)}
	if e.pd == nil {
		e.pd = s.allocPD()
	}
	if e.scq == nil {
		e.scq = s.createCQ(max(o.cqe, o.cap.MaxSendWR+1))
	}
	if e.rcq == nil {
		e.rcq = s.createCQ(max(o.cqe, o.cap.MaxRecvWR+1))
	}
	var err error
	init := verbs.QPInitAttr{Type: o.typ, SendCQ: e.scq, RecvCQ: e.rcq, SRQ: o.srq, Cap: o.cap, SignalAll: o.signalAll}
	switch o.typ {
	case verbs.QPTypeXRCRecv:
		e.qp, err = o.xrcd.CreateQP(verbs.QPInitAttr{})
	case verbs.QPTypeXRCSend:
		init.RecvCQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = nil, 0, 0
		fallthrough
	default:
		e.qp, err = e.pd.CreateQP(init)
	}
	s.need(map[verbs.QPType]Capability{verbs.QPTypeUC: UC, verbs.QPTypeUD: UD, verbs.QPTypeXRCSend: XRC}[o.typ], err)
	s.closeLater(e.qp)
	return e
}

// connect makes a QP, and connects it to the one that the other side makes by the same call.
func (s *Side) connect(o setup) *end {
	e := s.newEnd(o)
	e.join()
	return e
}

// join connects a QP in RESET to the other side's. Both are ready when it returns.
func (e *end) join() {
	e.introduce()
	if !e.has(ByHand) {
		e.meet()
		e.Barrier()
		return
	}
	e.rtr()
	if !e.o.stay {
		e.rts()
	}
	e.Barrier()
}

// introduce tells the other side of this end, and learns of its end.
func (e *end) introduce() {
	me := e.self()
	e.to = Exchange(e.Side, me)
	if !e.ethernet() && !e.to.GID.IsZero() && [8]byte(e.to.GID[:]) != [8]byte(me.GID[:]) {
		e.to.LID = e.routerTo(e.to.GID)
	}
	e.mtu = min(me.MTU, e.to.MTU).Bytes()
}

// routerTo returns the LID of the router that leads to a port in another subnet of InfiniBand.
func (s *Side) routerTo(to verbs.GID) uint16 {
	id := s.cm().routed(rdmacm.PortSpaceTCP, netip.AddrPortFrom(to.Addr(), 1))
	p, err := id.Path()
	s.must(err)
	return p.DLID
}

func (s *Side) gid() verbs.GID {
	g, err := s.Device.GID(s.Port, s.GIDIndex)
	s.must(err)
	return g.GID
}

func (s *Side) port() verbs.PortAttr {
	a, err := s.Device.QueryPort(s.Port)
	s.must(err)
	return a
}

func (s *Side) activeMTU() verbs.MTU { return s.port().ActiveMTU }

// ethernet reports whether the port's link is Ethernet.
func (s *Side) ethernet() bool { return s.port().LinkLayer == verbs.LinkLayerEthernet }

// self returns what the QP's peer needs to know. On InfiniBand the LID is part of it.
func (e *end) self() peer {
	port := e.port()
	p := peer{verbs.Peer{QPN: e.qp.QPN(), PSN: e.psn, GID: e.gid(), LID: port.LID}, port.ActiveMTU, e.o.qkey, e.o.path.MaxDestRDAtomic, e.has(ExactStatus), verbs.SecurityKey{}}
	if e.secured && e.o.typ != verbs.QPTypeUD {
		var err error
		e.key, err = e.qp.NewSecurityKey()
		e.must(err)
		p.Key = e.key
	}
	if p.Depth == 0 {
		p.Depth = e.attr().MaxQPRdAtom
	}
	return p
}

func (e *end) rtr() {
	e.mustHave(ByHand)
	if e.o.typ == verbs.QPTypeUD {
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: e.Port, QKey: e.o.qkey},
			verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
		return
	}
	e.must(e.qp.Init(e.Port, e.o.access))
	if e.secured && e.to.Key != e.key && e.to.Key != (verbs.SecurityKey{}) { // a QP that is its own peer has no second key
		e.must(e.qp.SetSecurity(verbs.PacketSecurity{Peer: e.to.Key}))
	}
	path := e.o.path
	path.SGIDIndex = e.GIDIndex
	if path.MTU == 0 {
		path.MTU, _ = verbs.MTUFromBytes(e.mtu)
	}
	e.mtu = path.MTU.Bytes()
	e.must(e.qp.RTR(e.to.Peer, path))
}

func (e *end) rts() {
	r := e.o.retry
	r.MaxRDAtomic = min(r.MaxRDAtomic, e.to.Depth, e.attr().MaxQPInitRdAtom)
	e.must(e.qp.RTS(e.psn, r))
}

func (s *Side) attr() verbs.DeviceAttr {
	a, err := s.Device.Query()
	s.must(err)
	return a
}

func (e *end) modify(to verbs.QPState) {
	e.must(e.qp.Modify(&verbs.QPAttr{State: to}, verbs.MaskState))
}

type closer interface{ Close() error }

// closeLater has c closed when the case is over. The script may close it before.
func (s *Side) closeLater(c closer) {
	s.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.Errorf("at the end: %v", err)
		}
	})
}

func (s *Side) allocPD() *verbs.PD {
	pd, err := s.Device.AllocPD()
	s.must(err)
	s.closeLater(pd)
	return pd
}

func (s *Side) createCQ(entries int) *verbs.CQ {
	cq, err := s.Device.CreateCQ(entries)
	s.must(err)
	s.closeLater(cq)
	return cq
}

func (s *Side) allocMR(pd *verbs.PD, n int, a verbs.Access) *verbs.MR {
	mr, err := pd.AllocMR(n, a)
	s.must(err)
	s.closeLater(mr)
	return mr
}

// mr allocates a region of n bytes with all access.
func (e *end) mr(n int) *verbs.MR { return e.allocMR(e.pd, n, everything) }

// filled allocates a region as mr does, and fills it with the pattern of a seed.
func (e *end) filled(n int, seed uint64) *verbs.MR {
	mr := e.mr(n)
	fill(mr.Bytes(), seed)
	return mr
}

func (e *end) send(wrs ...verbs.SendWR) {
	_, err := e.qp.PostSend(wrs)
	e.must(err)
}

func (e *end) recv(wrs ...verbs.RecvWR) {
	_, err := e.qp.PostRecv(wrs)
	e.must(err)
}

// next returns the next completion of a CQ.
func (s *Side) next(cq *verbs.CQ) verbs.WC {
	var wcs [1]verbs.WC
	_, err := cq.Wait(s.ctx, wcs[:])
	s.must(err)
	if wc := &wcs[0]; wc.QP == nil || wc.QP.QPN() != wc.QPN {
		s.Fatalf("completion %d of qp %v: its QP is %v, want the one with that number", wc.ID, wc.QPN, wc.QP)
	}
	return wcs[0]
}

// sent waits for the next completion of the send queue, which must be the success of work request id.
func (e *end) sent(id uint64, op verbs.WCOpcode) verbs.WC {
	wc := e.next(e.scq)
	if wc.Status != verbs.WCSuccess {
		e.Fatalf("work request %d: %v, want success", id, wc.Err())
	}
	if wc.ID != id || wc.Op != op || wc.QP != e.qp {
		e.Fatalf("completion %d, %v, of qp %v; want %d, %v, of qp %v", wc.ID, wc.Op, wc.QPN, id, op, e.qp.QPN())
	}
	return wc
}

// received waits for the next completion of the receive queue, which must be the success of receive id
// with n bytes.
func (e *end) received(id uint64, n int) verbs.WC {
	return e.receivedAs(id, n, verbs.WCRecv, 0)
}

func (e *end) receivedAs(id uint64, n int, op verbs.WCOpcode, flags verbs.WCFlags) verbs.WC {
	wc := e.next(e.rcq)
	if wc.Status != verbs.WCSuccess {
		e.Fatalf("receive %d: %v, want success", id, wc.Err())
	}
	if wc.ID != id || wc.Op != op || wc.QP != e.qp || wc.Flags != flags || int(wc.ByteLen) != n {
		e.Fatalf("receive completion %d, %v, flags %v, of qp %v, %d bytes; want %d, %v, flags %v, of qp %v, %d bytes",
			wc.ID, wc.Op, wc.Flags, wc.QPN, wc.ByteLen, id, op, flags, e.qp.QPN(), n)
	}
	return wc
}

// fails waits for the next completion in cq, which must be the failure of work request id with one of the
// statuses.
func (e *end) fails(cq *verbs.CQ, id uint64, statuses ...verbs.WCStatus) {
	wc := e.next(cq)
	if wc.ID != id || wc.QP != e.qp || !e.isStatus(wc.Status, statuses...) {
		e.Fatalf("completion %d of qp %v with %v; want %d of qp %v with %v", wc.ID, wc.QPN, wc.Status, id, e.qp.QPN(), statuses)
	}
	if wc.Err() == nil {
		e.Errorf("Err of a completion with %v is nil, want an error", wc.Status)
	}
}

// isStatus reports whether got is one of the statuses of a failure. What the first failure of a QP is called depends on both
// ends: where one of them does not promise to call it by its name, it may have another, but neither that of success nor that
// of those behind it.
func (e *end) isStatus(got verbs.WCStatus, statuses ...verbs.WCStatus) bool {
	if slices.Contains(statuses, got) {
		return true
	}
	introduced := e.to.QPN != 0
	exact := e.has(ExactStatus) && (e.to.Exact || !introduced)
	return !exact && got != verbs.WCSuccess && got != verbs.WCFlushErr && !slices.Contains(statuses, verbs.WCFlushErr)
}

// failed waits for the failure of a send, which takes the QP to ERR.
func (e *end) failed(id uint64, statuses ...verbs.WCStatus) {
	e.fails(e.scq, id, statuses...)
	e.inState(verbs.QPStateErr)
}

// flushed waits for the completions of sends that were flushed.
func (e *end) flushed(ids ...uint64) {
	for _, id := range ids {
		e.fails(e.scq, id, verbs.WCFlushErr)
	}
}

// recvFailed waits for the failure of a receive, which takes the QP to ERR.
func (e *end) recvFailed(id uint64, st verbs.WCStatus) {
	e.fails(e.rcq, id, st)
	e.inState(verbs.QPStateErr)
}

func (e *end) inState(want verbs.QPState) {
	if got := e.qp.State(); got != want {
		e.Errorf("the QP is in %v, want %v", got, want)
	}
	a, _, err := e.qp.Query()
	e.must(err)
	if a.State != want {
		e.Errorf("Query says %v, want %v", a.State, want)
	}
}

// empty fails the case if cq has a completion. The caller has seen to it that one would be there by now.
func (s *Side) empty(cq *verbs.CQ) {
	var wcs [1]verbs.WC
	if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
		s.Errorf("completion %+v, %v; want none", wcs[0], err)
	}
}

// watch polls memory until f is true. Some devices make progress only when somebody polls a queue too.
func (e *end) watch(what string, f func() bool) {
	e.spin(what, func() bool {
		_, err := e.rcq.Poll(nil)
		e.must(err)
		return f()
	})
}

// see is for the race detector, which does not see the network. The control channel has told the script
// that the peer's writes are done, or is about to tell the peer that ours are; see orders them by a verb.
func (e *end) see() {
	_, _, err := e.qp.Query()
	e.must(err)
}

// The work requests that the functions below return make completions.

func write(id uint64, to verbs.RemoteAddr, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: sges, Remote: to}
}

func read(id uint64, from verbs.RemoteAddr, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: sges, Remote: from}
}

func send(id uint64, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: sges}
}

func sendImm(id uint64, imm uint32, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSendWithImm, Flags: verbs.SendSignaled, SGList: sges, Imm: imm}
}

func writeImm(id uint64, imm uint32, to verbs.RemoteAddr, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, SGList: sges, Imm: imm, Remote: to}
}

func recv(id uint64, sges ...verbs.SGE) verbs.RecvWR { return verbs.RecvWR{ID: id, SGList: sges} }

// unsignaled returns wr without its completion.
func unsignaled(wr verbs.SendWR) verbs.SendWR {
	wr.Flags &^= verbs.SendSignaled
	return wr
}
