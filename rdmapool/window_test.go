package rdmapool

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestWindow checks that an idle region counts while a window is bound to it: the device does not deregister it, so other
// memory may not take its place within the limit.
func TestWindow(t *testing.T) {
	const limit = 1 << 20
	net := rdmatest.New(t)
	x, _ := rdmatest.Connect(t, net.Device(), net.Device())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := New(x.PD, &Config{Limit: limit, Access: DefaultAccess | verbs.AccessMWBind})
	must(err)
	b, err := p.Get(t.Context(), 100)
	must(err)
	mw, err := x.PD.AllocMW(verbs.MWType1)
	must(err)
	must(x.QP.BindMW(verbs.SendWR{Flags: verbs.SendSignaled}, verbs.MWBind{MW: mw, MR: b.slab.mr, Addr: b.Remote(0).VA, Length: 100, Access: verbs.AccessRemoteRead}))
	x.Done()
	b.Release()
	if all := p.TryGet(limit); all != nil {
		t.Error("all of the limit was had while a window is bound to a region, want none of it")
		all.Release()
	}
	if s := p.Stats(); s.Registered != slabSize {
		t.Errorf("%d bytes are registered, want the %d of the region with the window", s.Registered, slabSize)
	}
	must(mw.Close())
	all := p.TryGet(limit)
	if all == nil {
		t.Fatal("there is no room without the window, want all of the limit")
	}
	all.Release()
	must(p.Close())
}
