package ucma

import (
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLoopback: an ID that is bound to a loopback address shows no device before it has a peer.
func TestLoopback(t *testing.T) {
	d, err := hca.Open(sim.New(sim.Config{}).Netdev("lo", netip.MustParseAddr("127.0.0.1")), hca.Config{Name: "lo"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	a := newProgram(t, newManager(t, verbs.NewDevice(d)))
	attr, err := a.dev().Query()
	if err != nil {
		t.Fatal(err)
	}
	shows := func(id uint32, guid verbs.GUID, port uint8) {
		t.Helper()
		var (
			route     uapi.CMQueryRouteResp
			addr, gid uapi.CMQueryAddrResp
		)
		a.do(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: id}, &route)
		a.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryAddr}, &addr)
		a.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryGID}, &gid)
		for _, got := range []struct {
			guid verbs.GUID
			port uint8
		}{{route.NodeGUID, route.PortNum}, {addr.NodeGUID, addr.PortNum}, {gid.NodeGUID, gid.PortNum}} {
			if got.guid != guid || got.port != port {
				t.Errorf("got device %v and port %d, want %v and %d", got.guid, got.port, guid, port)
			}
		}
		at, err := address(addr.SrcAddr[:])
		if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
			t.Errorf("got the address %v and error %v", at, err)
		}
	}

	l, at := a.listener(uapi.PSTCP, 0)
	shows(l, verbs.GUID{}, 0)
	x := a.routed(uapi.PSTCP, at)
	shows(x, attr.NodeGUID, 1)
	a.connect(x, a.qp(verbs.QPTypeRC), "ping")
	ev := a.next(rdmacm.EventConnectRequest)
	shows(ev.ID, attr.NodeGUID, 1)
	shows(l, verbs.GUID{}, 0)
}
