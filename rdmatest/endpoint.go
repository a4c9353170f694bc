package rdmatest

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Patience is how long the helpers of this package wait for a completion before they fail the test.
const Patience = 30 * time.Second

// Access is what the regions of Endpoint.MR and the QPs of Connect allow: everything.
const Access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// Options say what Connect makes. The comment at each field gives the default for its zero value.
type Options struct {
	Cap      verbs.QPCap // 64 work requests and 4 SGEs in each queue, 64 bytes inline
	CQ       int         // entries of the CQ that both queues share; as many as Cap can fill
	GIDIndex int
	Path     verbs.Path  // the defaults of verbs.Path; SGIDIndex is GIDIndex
	Retry    verbs.Retry // verbs.DefaultRetry
	PSN      verbs.PSN   // the first PSN of both ends; one from which the PSNs soon wrap around
}

// Endpoint is one end of a connection: a QP, and the objects that it uses.
type Endpoint struct {
	Device *verbs.Device
	PD     *verbs.PD
	CQ     *verbs.CQ // of the send queue and of the receive queue
	QP     *verbs.QP

	t testing.TB
}

// Connect makes an RC QP on each device and connects the two. It takes at most one Options. The
// devices may be of any provider, and may be the same device.
func Connect(t testing.TB, a, b *verbs.Device, options ...Options) (x, y *Endpoint) {
	t.Helper()
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	x, y = newEndpoint(t, a, o), newEndpoint(t, b, o)
	x.connect(y, o)
	y.connect(x, o)
	x.ready(o)
	y.ready(o)
	return x, y
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
	e := &Endpoint{Device: d, t: t}
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
	e.QP, err = e.PD.CreateQP(verbs.QPInitAttr{SendCQ: e.CQ, RecvCQ: e.CQ, Cap: c})
	e.must(err)
	e.must(e.QP.Init(1, Access))
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
	gid, err := peer.Device.GID(1, o.GIDIndex)
	e.must(err)
	path := o.Path
	path.SGIDIndex = o.GIDIndex
	e.must(e.QP.RTR(verbs.Peer{QPN: peer.QP.QPN(), PSN: o.psn(), GID: gid.GID}, path))
}

func (e *Endpoint) ready(o Options) {
	e.t.Helper()
	r := o.Retry
	if r == (verbs.Retry{}) {
		r = verbs.DefaultRetry
	}
	e.must(e.QP.RTS(o.psn(), r))
}

// MR allocates a memory region of n bytes, which allows all access.
func (e *Endpoint) MR(n int) *verbs.MR {
	e.t.Helper()
	mr, err := e.PD.AllocMR(n, Access)
	e.must(err)
	return mr
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
