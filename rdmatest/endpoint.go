package rdmatest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Patience is how long the helpers of this package wait for a completion before they fail the test.
const Patience = 30 * time.Second

// Access is the access to the regions of Endpoint.MR and through the QPs of Connect: all of it.
const Access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// Options configure the QPs of Connect. The comment at each field gives the default for its zero value.
type Options struct {
	Type     verbs.QPType // of Connect's QPs: verbs.QPTypeRC or QPTypeUC; RC
	Cap      verbs.QPCap  // 64 work requests and 4 SGEs in each queue, 64 bytes inline
	CQ       int          // entries of the CQ that both queues share; as many as Cap can fill
	GIDIndex int
	Path     verbs.Path  // the defaults of verbs.Path; SGIDIndex is GIDIndex
	Retry    verbs.Retry // of each field that is 0, that of verbs.DefaultRetry; Zero is for a 0
	GRH      bool        // on InfiniBand: packets bear a GRH, as on other networks they always do
	PSN      verbs.PSN   // the first PSN of both ends; one from which the PSNs soon wrap around
}

// Zero stands for 0 in a field of Options.Retry: no retry, or a timeout that never ends.
const Zero = 0xff

// retry fills in the fields that Options.Retry leaves empty. READs and atomics are as many as the device can have
// outstanding.
func (e *Endpoint) retry(r verbs.Retry) verbs.Retry {
	e.t.Helper()
	d := verbs.DefaultRetry
	if r == (verbs.Retry{}) {
		return d
	}
	attr, err := e.Device.Query()
	e.must(err)
	d.MaxRDAtomic = min(d.MaxRDAtomic, attr.MaxQPInitRdAtom)
	r.Timeout, r.RetryCount = orDefault(r.Timeout, d.Timeout), orDefault(r.RetryCount, d.RetryCount)
	r.RNRRetryCount, r.MaxRDAtomic = orDefault(r.RNRRetryCount, d.RNRRetryCount), orDefault(r.MaxRDAtomic, d.MaxRDAtomic)
	return r
}

// orDefault returns the value for which a field of Options.Retry stands.
func orDefault[T uint8 | int](v, usual T) T {
	switch v {
	case 0:
		return usual
	case Zero:
		return 0
	}
	return v
}

// Endpoint is one end of a connection: a QP, and the objects that it uses.
type Endpoint struct {
	Device *verbs.Device
	PD     *verbs.PD
	CQ     *verbs.CQ // of the send queue and of the receive queue
	QP     *verbs.QP

	AH *verbs.AH // of Datagrams: the way to the other end

	t    testing.TB
	net  *regions
	peer *Endpoint
}

// Connect makes an RC QP, or a UC QP, on each device and connects the two. It takes at most one Options.
// The devices may be of any provider, and may be the same device.
func Connect(t testing.TB, a, b *verbs.Device, options ...Options) (x, y *Endpoint) {
	t.Helper()
	o := only(options)
	x, y = newPair(t, a, b, o)
	x.connect(y, o)
	y.connect(x, o)
	x.ready(o)
	y.ready(o)
	return x, y
}

// only returns the one Options of a call, or none.
func only(options []Options) (o Options) {
	if len(options) > 0 {
		o = options[0]
	}
	return o
}

func newPair(t testing.TB, a, b *verbs.Device, o Options) (x, y *Endpoint) {
	t.Helper()
	x, y = newEndpoint(t, a, o), newEndpoint(t, b, o)
	x.peer, y.peer = y, x
	return x, y
}

// QKey is that of the QPs of Datagrams.
const QKey verbs.QKey = 0x11111111

// Datagrams makes a UD QP on each device, in RTS, and gives each end the way to the other: see To. It
// takes at most one Options, of which Type, Retry and all of Path but TrafficClass mean nothing.
func Datagrams(t testing.TB, a, b *verbs.Device, options ...Options) (x, y *Endpoint) {
	t.Helper()
	o := only(options)
	o.Type = verbs.QPTypeUD
	x, y = newPair(t, a, b, o)
	for _, e := range []*Endpoint{x, y} {
		e.must(e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
		e.must(e.QP.RTS(o.psn(), verbs.Retry{}))
	}
	for _, e := range []*Endpoint{x, y} {
		gid, lid := e.toward(e.peer, o)
		var err error
		e.AH, err = e.PD.CreateAH(verbs.AHAttr{DGID: gid, DLID: lid, SL: o.Path.SL, SrcPathBits: o.Path.SrcPathBits,
			SGIDIndex: o.GIDIndex, TrafficClass: o.Path.TrafficClass})
		e.must(err)
	}
	return x, y
}

// To returns wr addressed to the other end of Datagrams. Its receive needs verbs.GRHSize bytes more than
// the message has.
func (e *Endpoint) To(wr verbs.SendWR) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.AH, e.peer.QP.QPN(), QKey
	return wr
}

// firstPSN is 40 packets before the PSNs wrap around, because mistakes show there.
const firstPSN = 1<<24 - 40

func (o *Options) cap() verbs.QPCap {
	c := o.Cap
	if c == (verbs.QPCap{}) {
		c = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	}
	return c
}

func (o *Options) psn() verbs.PSN {
	if o.PSN == 0 {
		return firstPSN
	}
	return o.PSN
}

func newEndpoint(t testing.TB, d *verbs.Device, o Options) *Endpoint {
	t.Helper()
	e := &Endpoint{Device: d, t: t, net: regionsOf(d)}
	c := o.cap()
	entries := o.CQ
	if entries == 0 {
		entries = 2 * (c.MaxSendWR + c.MaxRecvWR)
	}
	var err error
	e.PD, err = d.AllocPD()
	e.must(err)
	e.CQ, err = d.CreateCQ(max(1, entries))
	e.must(err)
	e.QP, err = e.PD.CreateQP(verbs.QPInitAttr{Type: o.Type, SendCQ: e.CQ, RecvCQ: e.CQ, Cap: c})
	e.must(err)
	if o.Type == verbs.QPTypeUD {
		e.must(e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: QKey},
			verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	} else {
		e.must(e.QP.Init(1, Access))
	}
	return e
}

func (e *Endpoint) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("rdmatest: %s: %v", e.Device.Name(), err)
	}
}

func (e *Endpoint) connect(peer *Endpoint, o Options) {
	e.t.Helper()
	gid, lid := e.toward(peer, o)
	path := o.Path
	path.SGIDIndex = o.GIDIndex
	if path.MTU == 0 {
		path.MTU = e.pathMTU(peer, o)
	}
	e.must(e.QP.RTR(verbs.Peer{QPN: peer.QP.QPN(), PSN: o.psn(), GID: gid, LID: lid}, path))
}

// pathMTU returns the MTU of the path to the peer's port, as subnet administration tells it; 0 stands for the port's, on
// other networks and where nobody tells.
func (e *Endpoint) pathMTU(peer *Endpoint, o Options) verbs.MTU {
	e.t.Helper()
	d, ok := e.Device.Provider().(*device)
	if !ok {
		return 0
	}
	there, err := peer.Device.GID(1, o.GIDIndex)
	e.must(err)
	if p, ok, err := d.IBPath(there.GID.Addr(), 0); ok && err == nil {
		return verbs.MTU(p.MTU)
	}
	return 0
}

// toward returns the GID and the LID of a path to the peer's port, as far as a path in its network has them.
func (e *Endpoint) toward(peer *Endpoint, o Options) (gid verbs.GID, lid uint16) {
	e.t.Helper()
	port, err := peer.Device.QueryPort(1)
	e.must(err)
	there, err := peer.Device.GID(1, o.GIDIndex)
	e.must(err)
	if port.LinkLayer != verbs.LinkLayerInfiniBand {
		return there.GID, port.LID
	}
	here, err := e.Device.GID(1, o.GIDIndex)
	e.must(err)
	switch d, ok := e.Device.Provider().(*device); {
	case ok && [8]byte(here.GID[:]) != [8]byte(there.GID[:]): // in another subnet
		p, _, err := d.IBPath(there.GID.Addr(), 0)
		e.must(err)
		return there.GID, p.DLID
	case o.GRH:
		gid = there.GID
	}
	if e.QP.Type() != verbs.QPTypeUD {
		lid = uint16(o.Path.SrcPathBits) // both ends send from the LID of these bits
	}
	return gid, lid + port.LID
}

func (e *Endpoint) ready(o Options) {
	e.t.Helper()
	e.must(e.QP.RTS(o.psn(), e.retry(o.Retry)))
}

// MR allocates a memory region of n bytes, which allows all access. On a device of a Network its address
// is not that of the memory, but follows from the order in which the device's regions are made, so that a
// test sends the same bytes at each run.
func (e *Endpoint) MR(n int) *verbs.MR {
	e.t.Helper()
	var mr *verbs.MR
	var err error
	e.net.during(n, func() { mr, err = e.PD.AllocMR(n, Access) })
	e.must(err)
	return mr
}

// Regions begin at multiples of pageSize.
const pageSize = 4096

// regions gives the regions of Endpoint.MR addresses.
type regions struct {
	mu   sync.Mutex // held while a region is made
	last uint64
	now  atomic.Uint64 // the address of the region that is being made, or 0
}

// firstRegion is the address of a device's first region, and so far apart from any real one that a mix-up
// of the two is noticed.
const firstRegion = 1 << 40

// regionsOf returns the allocator of addresses for regions of a device, or nil for a device of no Network.
func regionsOf(d *verbs.Device) *regions {
	if p, ok := d.Provider().(*device); ok {
		return &p.regions
	}
	return nil
}

// during calls f, which makes a region of n bytes, and gives that its address.
func (r *regions) during(n int, f func()) {
	if r == nil {
		f()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Store(firstRegion + r.last)
	r.last += uint64(max(n, 0)+2*pageSize-1) &^ (pageSize - 1) // one page between
	defer r.now.Store(0)
	f()
}

// iova is the address of the region that is being made. Another region of the device that the program
// makes at the same time may get it in its place, which does it no harm.
func (r *regions) iova() (uint64, bool) {
	at := r.now.Swap(0)
	return at, at != 0
}

// Send posts send work requests.
func (e *Endpoint) Send(wrs ...verbs.SendWR) {
	e.t.Helper()
	_, err := e.QP.PostSend(wrs)
	e.must(err)
}

// Recv posts receives.
func (e *Endpoint) Recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	_, err := e.QP.PostRecv(wrs)
	e.must(err)
}

// Next returns the next completion, whatever its status.
func (e *Endpoint) Next() verbs.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var wc [1]verbs.WC
	_, err := e.CQ.Wait(ctx, wc[:])
	e.must(err)
	return wc[0]
}

// Done returns the next completion and fails the test unless it is a success.
func (e *Endpoint) Done() verbs.WC {
	e.t.Helper()
	wc := e.Next()
	if err := wc.Err(); err != nil {
		e.t.Fatalf("rdmatest: %s: %v", e.Device.Name(), err)
	}
	return wc
}
