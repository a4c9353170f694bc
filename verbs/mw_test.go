package verbs_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// bindable is a region of the endpoint that takes windows.
func bindable(t testing.TB, e *rdmatest.Endpoint) *verbs.MR {
	t.Helper()
	return must(e.PD.AllocMR(4096, rdmatest.Access|verbs.AccessMWBind))(t)
}

// TestBindMWLooksAtIDAndFlags: of the work request of BindMW only the ID and the flags count, whatever else it names.
func TestBindMWLooksAtIDAndFlags(t *testing.T) {
	x, _ := pair(t)
	mr, mw := bindable(t, x), must(x.PD.AllocMW(verbs.MWType1))(t)
	bind := verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteRead}
	for id, wr := range []verbs.SendWR{
		{SGList: make([]verbs.SGE, 20)},
		{SGList: []verbs.SGE{mr.SGE(0, 4096)}, Flags: verbs.SendInline},
		{InlineData: make([]byte, 1<<20)},
		{InlineData: make([]byte, 1<<20), Flags: verbs.SendInline},
		{Op: verbs.OpSend, Bind: &verbs.MWBind{}},
	} {
		wr.ID = uint64(id)
		wr.Flags |= verbs.SendSignaled
		check(t, x.QP.BindMW(wr, bind))
		if wc := x.Done(); wc.ID != wr.ID || wc.Op != verbs.WCBindMW {
			t.Errorf("completion %+v, want bind %d", wc, id)
		}
	}
	wantErr(t, "unknown flag", x.QP.BindMW(verbs.SendWR{Flags: 1 << 7}, bind), verbs.ErrInvalid, "bind mw by qp", "unknown send flags 0x80")
	nothing(t, x)
}

// TestBindMWByUD: datagrams cannot name memory, so a UD QP binds no windows.
func TestBindMWByUD(t *testing.T) {
	net := rdmatest.New(t)
	x, _ := rdmatest.Datagrams(t, net.Device(), net.Device())
	mr, mw := bindable(t, x), must(x.PD.AllocMW(verbs.MWType1))(t)
	err := x.QP.BindMW(verbs.SendWR{Flags: verbs.SendSignaled}, verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr(), Length: 64})
	wantErr(t, "BindMW", err, verbs.ErrUnsupported, "bind mw by qp", "WR_BIND_MW is no operation of a QPT_UD QP")
	nothing(t, x)
}

// TestPostBindInline: a bind has no data. Inline data beyond the QP's room is refused as with any work request.
func TestPostBindInline(t *testing.T) {
	x, _ := pair(t)
	mr, mw := bindable(t, x), must(x.PD.AllocMW(verbs.MWType2))(t)
	key := mw.RKey()
	bind := verbs.MWBind{MW: mw, RKey: verbs.IncRKey(key), MR: mr, Addr: mr.Addr(), Length: 64}
	for _, wr := range []verbs.SendWR{{InlineData: make([]byte, 1<<20)}, {SGList: []verbs.SGE{mr.SGE(0, 4096)}}} {
		wr.Op, wr.Flags, wr.Bind = verbs.OpBindMW, verbs.SendInline|verbs.SendSignaled, &bind
		_, err := x.QP.PostSend([]verbs.SendWR{wr})
		wantErr(t, "PostSend", err, verbs.ErrLimit, "bytes of inline data: the QP was created for")
	}
	if mw.RKey() != key {
		t.Errorf("the window has key %v, want %v still", mw.RKey(), key)
	}
	nothing(t, x)
	_, err := x.QP.PostSend([]verbs.SendWR{{ID: 1, Op: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: &bind}})
	check(t, err)
	x.Done()
}
