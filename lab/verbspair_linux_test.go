package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/verbs"
)

// verbsEnd is a QP with its CQ. The QP belongs to our device or to the kernel's.
type verbsEnd interface {
	String() string
	mem(n int, access verbs.Access) memory
	send(...verbs.SendWR)
	recv(...verbs.RecvWR)
	next() verbs.WC // the next completion, whatever its status
	state() verbs.QPState
	fail() // takes the QP to the error state
}

// memory is a memory region of our device or of the kernel's.
type memory interface {
	size() int
	sge(off, n int) verbs.SGE
	remote(off int) verbs.RemoteAddr
	put(off int, data []byte)
	get(off, n int) []byte
	dereg()
}

var _, _ verbsEnd = (*ourEnd)(nil), (*puppet)(nil)

const (
	everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	nothing    = verbs.AccessLocalWrite
	signaled   = verbs.SendSignaled

	// lateStart is the first PSN of both ends. PSNs soon wrap around.
	lateStart = 1<<24 - 20

	retryTimeout = 16 // the code of 0.27 s, since emulation is slow
	quickTimeout = 14 // the code of 67 ms, for scenarios in which packets are lost
	labQKey      = 0x11111111
)

// pairOptions say how two QPs are connected. A comment names the meaning of a zero value.
type pairOptions struct {
	typ         verbs.QPType // RC
	middleware  []link.Middleware
	access      verbs.Access // of the QPs; everything
	timeout     uint8        // retryTimeout
	retry       uint8        // 7
	kernelRetry uint8        // of the kernel's QP; that of ours
	rnrRetry    uint8        // 7
	rnrTimer    uint8        // 12
	depth       int          // work requests in each queue; 256
	beside      *verbsPair   // whose device of ours this one uses too
}

// verbsPair is a QP of ours connected to one of the kernel.
type verbsPair struct {
	us     *ourEnd
	kernel *puppet
	far    *watch // sees the packets on the wire
	near   *watch // sees the packets that our device sends and receives
}

// ends returns the requester and the responder.
func (p *verbsPair) ends(responder string) (from, to verbsEnd) {
	if responder == "kernel" {
		return p.us, p.kernel
	}
	return p.kernel, p.us
}

// connectVerbs makes and connects two QPs. They end with the test.
func connectVerbs(ctx context.Context, t testing.TB, l *Lab, s scenario, o pairOptions) *verbsPair {
	t.Helper()
	if o.typ == 0 {
		o.typ = verbs.QPTypeRC
	}
	if o.access == 0 {
		o.access = everything
	}
	o.timeout, o.retry = cmp.Or(o.timeout, retryTimeout), cmp.Or(o.retry, 7)
	o.kernelRetry = cmp.Or(o.kernelRetry, o.retry)
	o.rnrRetry, o.rnrTimer, o.depth = cmp.Or(o.rnrRetry, 7), cmp.Or(o.rnrTimer, 12), cmp.Or(o.depth, 256)
	p := &verbsPair{near: newWatch(), far: newWatch()}
	if o.beside != nil {
		p.near, p.far = o.beside.near, o.beside.far
		us := o.beside.us
		p.us = &ourEnd{t: t, ctx: ctx, hca: us.hca, dev: us.dev, pd: us.pd}
	} else {
		p.us = newEnd(ctx, t, l.Host(), s.v6, append(append([]link.Middleware{p.near.middleware}, o.middleware...), p.far.middleware))
	}
	p.kernel = newPuppet(ctx, t, l.Guest(0))
	qpcap := verbs.QPCap{MaxSendWR: o.depth, MaxRecvWR: o.depth, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	p.us.create(o, qpcap)
	var number verbs.QPN
	p.kernel.do("create", with{"Type": o.typ, "Cap": qpcap, "CQE": 4 * o.depth, "Access": o.access, "QKey": labQKey}, &number)
	mtu, _ := verbs.MTUFromBytes(pathMTU(s.mtu))
	gid := verbs.GIDFromAddr(l.Guest(0).Addr(s.v6))
	p.us.connect(o, verbs.Peer{QPN: number, PSN: lateStart, GID: gid}, mtu)
	hostGID, index := sysfsGID(l.Host().Addr(s.v6)), l.Guest(0).GIDIndex(s.v6)
	p.kernel.do("connect", with{"Type": o.typ, "GID": hostGID, "GIDIndex": index, "QPN": p.us.qp.QPN(), "RQPSN": lateStart, "SQPSN": lateStart,
		"MTU": mtu, "Timeout": o.timeout, "Retry": o.kernelRetry, "RNRRetry": o.rnrRetry, "RNRTimer": o.rnrTimer, "RDAtomic": maxOutstanding}, nil)
	if o.typ == verbs.QPTypeUD {
		p.kernel.do("ah", with{"GID": hostGID, "GIDIndex": index}, nil)
		p.us.destination(gid)
		p.us.peer, p.kernel.peer = number, p.us.qp.QPN()
	}
	return p
}

// maxOutstanding is how many READs and atomics may be outstanding on a QP of either device.
const maxOutstanding = 128

// ourEnd is a QP of a software device.
type ourEnd struct {
	t    testing.TB
	ctx  context.Context
	hca  *hca.Device
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	ah   *verbs.AH
	peer verbs.QPN // the destination of messages, for UD only
}

func newEnd(ctx context.Context, t testing.TB, h *Host, v6 bool, middleware []link.Middleware) *ourEnd {
	t.Helper()
	e := &ourEnd{t: t, ctx: ctx}
	netdev, err := udp.NetdevForAddr(h.Interface, h.Addr(v6))
	e.must(err)
	e.hca, err = hca.Open(netdev, hca.Config{Middleware: middleware})
	e.must(err)
	t.Cleanup(func() { e.hca.Close() })
	e.dev = verbs.NewDevice(e.hca)
	e.pd, err = e.dev.AllocPD()
	e.must(err)
	return e
}

func (e *ourEnd) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("host: %v", err)
	}
}

func (e *ourEnd) create(o pairOptions, qpcap verbs.QPCap) {
	e.t.Helper()
	var err error
	e.cq, err = e.dev.CreateCQ(4 * o.depth)
	e.must(err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: o.typ, SendCQ: e.cq, RecvCQ: e.cq, Cap: qpcap})
	e.must(err)
	attr := verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: o.access, QKey: labQKey}
	mask := verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort
	if o.typ == verbs.QPTypeUD {
		mask |= verbs.MaskQKey
	} else {
		mask |= verbs.MaskAccessFlags
	}
	e.must(e.qp.Modify(&attr, mask))
}

func (e *ourEnd) connect(o pairOptions, peer verbs.Peer, mtu verbs.MTU) {
	e.t.Helper()
	switch o.typ {
	case verbs.QPTypeUD:
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: lateStart}, verbs.MaskState|verbs.MaskSQPSN))
	default:
		e.must(e.qp.RTR(peer, verbs.Path{MTU: mtu, MaxDestRDAtomic: maxOutstanding, MinRNRTimer: o.rnrTimer}))
		e.must(e.qp.RTS(lateStart, verbs.Retry{Timeout: o.timeout, RetryCount: o.retry, RNRRetryCount: o.rnrRetry, MaxRDAtomic: maxOutstanding}))
	}
}

func (e *ourEnd) destination(gid verbs.GID) {
	e.t.Helper()
	var err error
	e.ah, err = e.pd.CreateAH(verbs.AHAttr{DGID: gid, Port: 1})
	e.must(err)
}

func (e *ourEnd) String() string { return "adverb" }

func (e *ourEnd) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	for i := range wrs {
		if e.ah != nil {
			wrs[i].AH, wrs[i].RemoteQPN, wrs[i].RemoteQKey = e.ah, e.peer, labQKey
		}
	}
	_, err := e.qp.PostSend(wrs)
	e.must(err)
}

func (e *ourEnd) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	_, err := e.qp.PostRecv(wrs)
	e.must(err)
}

func (e *ourEnd) next() verbs.WC {
	e.t.Helper()
	var wc [1]verbs.WC
	_, err := e.cq.Wait(e.ctx, wc[:])
	e.must(err)
	return wc[0]
}

func (e *ourEnd) state() verbs.QPState { return e.qp.State() }

// probes returns how often the QP has looked whether its peer still has what was sent last.
func (e *ourEnd) probes() int { return e.count("loss_probes") }

// count returns a counter of the QP.
func (e *ourEnd) count(name string) int {
	e.t.Helper()
	cs, err := e.qp.Counters()
	e.must(err)
	n, ok := cs.Get(name)
	if !ok {
		e.t.Fatalf("a QP has no counter %q", name)
	}
	return int(n)
}

func (e *ourEnd) fail() {
	e.t.Helper()
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
}

// drops returns the numbers of packets that our device has dropped.
func (e *ourEnd) drops() (d hca.Drops) {
	for _, s := range e.hca.Stats() {
		d = s.Drops // the device has one address only
	}
	return d
}

// ourMemory is a region of our device.
type ourMemory struct {
	t  testing.TB
	mr *verbs.MR
}

func (e *ourEnd) mem(n int, access verbs.Access) memory {
	e.t.Helper()
	mr, err := e.pd.AllocMR(n, access)
	e.must(err)
	return &ourMemory{e.t, mr}
}

func (m *ourMemory) size() int                       { return m.mr.Len() }
func (m *ourMemory) sge(off, n int) verbs.SGE        { return m.mr.SGE(off, n) }
func (m *ourMemory) remote(off int) verbs.RemoteAddr { return m.mr.Remote(off) }
func (m *ourMemory) put(off int, data []byte)        { copy(m.mr.Bytes()[off:], data) }
func (m *ourMemory) get(off, n int) []byte           { return bytes.Clone(m.mr.Bytes()[off : off+n]) }

func (m *ourMemory) dereg() {
	m.t.Helper()
	if err := m.mr.Close(); err != nil {
		m.t.Fatal(err)
	}
}

// filled returns a region and its contents, which depend on the seed.
func filled(e verbsEnd, n int, seed byte) (memory, []byte) {
	m := e.mem(n, everything)
	data := content(n, seed)
	m.put(0, data)
	return m, data
}

func content(n int, seed byte) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

// done takes the next completion. The completion must be a success of that work request.
func done(t testing.TB, e verbsEnd, id uint64, op verbs.WCOpcode) verbs.WC {
	t.Helper()
	wc := e.next()
	if wc.Status != verbs.WCSuccess || wc.ID != id || wc.Op != op {
		t.Fatalf("%v: completion %d with status %v, operation %v (%v); want %d, success, %v", e, wc.ID, wc.Status, wc.Op, wc.Cause, id, op)
	}
	return wc
}

// failed takes the next completion. The completion must have that status.
func failed(t testing.TB, e verbsEnd, id uint64, status verbs.WCStatus) {
	t.Helper()
	if wc := e.next(); wc.Status != status || wc.ID != id {
		t.Errorf("%v: completion %d with status %v (%v), want %d with %v", e, wc.ID, wc.Status, wc.Cause, id, status)
	}
}

// wantState checks the state of QPs.
func wantState(t testing.TB, want verbs.QPState, ends ...verbsEnd) {
	t.Helper()
	for _, e := range ends {
		if got := e.state(); got != want {
			t.Errorf("%v: the QP is in %v, want %v", e, got, want)
		}
	}
}

// wantNAK checks that a NAK with a syndrome has passed in either direction.
func (p *verbsPair) wantNAK(t testing.TB, syndrome byte) {
	t.Helper()
	if p.near.nak(syndrome) == 0 {
		t.Errorf("no NAK with syndrome %#x has passed, want one", syndrome)
	}
}

// same compares contents.
func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	wrong := 0
	first := 0
	for i := range got {
		if got[i] != want[i] {
			if wrong++; wrong == 1 {
				first = i
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%s: %d of %d bytes are wrong, from byte %d on", what, wrong, len(want), first)
	}
}

// pair runs a scenario between two connected QPs.
func (s scenario) pair(t *testing.T, o pairOptions, f func(ctx context.Context, t *testing.T, p *verbsPair)) {
	s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		p := connectVerbs(ctx, t, l, s, o)
		defer p.explain(t) // t.Fatal runs the deferred call too
		f(ctx, t, p)
	})
}

// explain logs the state of the two ends after a failure.
func (p *verbsPair) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	t.Logf("adverb: the QP is in %v; %+v", p.us.state(), p.us.hca.Stats())
	var state verbs.QPState
	var wcs []verbs.WC
	var counters map[string]uint64
	err := errors.Join(
		p.kernel.try("state", nil, &state),
		p.kernel.try("poll", with{"Max": 1000, "Seconds": 0}, &wcs),
		p.kernel.try("counters", nil, &counters))
	t.Logf("kernel: the QP is in %v; %v; %v", state, counters, err)
	for _, wc := range wcs {
		t.Logf("kernel: also completion %d with status %v, operation %v", wc.ID, wc.Status, wc.Op)
	}
}
