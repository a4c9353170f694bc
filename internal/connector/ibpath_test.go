package connector

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A REQ within a subnet has LIDs, and one across a router has none.
func TestWayTo(t *testing.T) {
	net := rdmatest.New(t, rdmatest.InfiniBand())
	left, right := net.Subnet(0xfec0_0000_0000_0001), net.Subnet(0xfec0_0000_0000_0002)
	net.Router(left.Switch("left"), right.Switch("right"))
	a, b, c := left.Device(), left.Device(), right.Device()
	gb, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	gc, err := c.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	pb, _ := b.QueryPort(1)
	if w, _, err := wayTo(a, gb.GID.Addr(), 0, verbs.MTU4096); err != nil || w.Routed || w.RemoteLID != pb.LID {
		t.Errorf("within the subnet: %+v, %v; want LID %d", w, err, pb.LID)
	}
	if w, _, err := wayTo(a, gc.GID.Addr(), 0, verbs.MTU4096); err != nil || !w.Routed {
		t.Errorf("across the router: %+v, %v; want it routed", w, err)
	}
	if w, mtu, err := wayTo(rdmatest.New(t).Device(), gc.GID.Addr(), 0, verbs.MTU1024); err != nil || w.Routed || w.RemoteLID != 0 || mtu != verbs.MTU1024 {
		t.Errorf("on Ethernet: %+v, %v; want none, and the MTU as it was", w, err)
	}
}
