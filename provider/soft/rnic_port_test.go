package soft_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestPortTaken: if another socket has the port that an ID of iWARP was to connect from, TCP gives it another one.
// Both ends know which.
func TestPortTaken(t *testing.T) {
	na, nb := rnics(t, 45, 46)
	var chs [2]*rdmacm.EventChannel
	for i, name := range []string{na, nb} {
		d, err := verbs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		chs[i] = rdmacm.NewEventChannel(d)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func(i int, want rdmacm.EventType) *rdmacm.ID {
		t.Helper()
		ev, err := chs[i].Next(t.Context())
		ok(err)
		if ev.Type != want {
			t.Fatalf("got event %v, %v, want %v", ev.Type, ev.Err, want)
		}
		return ev.ID
	}
	newID := func(i int) *rdmacm.ID {
		t.Helper()
		id, err := rdmacm.NewID(chs[i], rdmacm.PortSpaceTCP)
		ok(err)
		t.Cleanup(func() { id.Close() })
		return id
	}
	l, x := newID(1), newID(0)
	ok(l.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(46)), 0)))
	ok(l.Listen(0))
	ok(x.ResolveAddr(netip.AddrPort{}, l.LocalAddr()))
	next(0, rdmacm.EventAddrResolved)
	ok(x.ResolveRoute())
	next(0, rdmacm.EventRouteResolved)
	taken := x.LocalAddr()
	other, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(taken))
	ok(err)
	defer other.Close()
	qp := verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	ok(x.CreateQP(nil, qp))
	ok(x.Connect(nil))
	y := next(1, rdmacm.EventConnectRequest)
	t.Cleanup(func() { y.Close() })
	ok(y.CreateQP(nil, qp))
	ok(y.Accept(nil))
	next(0, rdmacm.EventEstablished)
	next(1, rdmacm.EventEstablished)
	if x.LocalAddr() == taken || x.LocalAddr() != y.RemoteAddr() {
		t.Errorf("%v is taken: this end connects from %v, and the peer sees %v", taken, x.LocalAddr(), y.RemoteAddr())
	}
}

// TestParamsOfRNIC: the connecting end knows the peer's resources, with private data and without.
func TestParamsOfRNIC(t *testing.T) {
	for _, data := range []string{"", "data"} {
		x, y, _, _ := iwarpPair(t, 64, func(c *rdmacm.Config) { c.PrivateData = []byte(data) })
		got, want := x.Param(), y.Param() // both ends have the same default
		if string(got.PrivateData) != data || got.InitiatorDepth == 0 || got.InitiatorDepth != want.InitiatorDepth || got.ResponderResources != want.ResponderResources {
			t.Errorf("private data %q: the connecting end has %+v, want resources as in %+v", data, got, want)
		}
	}
}
