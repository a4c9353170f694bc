package rdmacm_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestGroupIsNoPeer: a multicast group has no QP to connect to or to ask for. In RDMA_PS_UDP its address
// resolves, which is how programs find the device to join it by.
func TestGroupIsNoPeer(t *testing.T) {
	p := newPair(t)
	a := newScript(t, p.a)
	group := netip.AddrPortFrom(netip.MustParseAddr("239.0.0.1"), 7)
	for _, ps := range []rdmacm.PortSpace{rdmacm.PortSpaceTCP, rdmacm.PortSpaceIB} {
		err := a.id(ps).ResolveAddr(netip.AddrPort{}, group)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "multicast address") {
			t.Errorf("resolving a group in %v: got error %v, want %v that says multicast address", ps, err, verbs.ErrInvalid)
		}
	}
	err := a.id(rdmacm.PortSpaceUDP).ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("255.255.255.255:7"))
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "broadcast address") {
		t.Errorf("resolving a broadcast address: got error %v, want %v that says broadcast address", err, verbs.ErrInvalid)
	}
	id := a.routed(rdmacm.PortSpaceUDP, group)
	a.ok(id.CreateQP(nil, smallQP))
	if err := id.Connect(nil); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "EventMulticastJoin") {
		t.Errorf("asking a group for its QP: got error %v, want %v with EventMulticastJoin in it", err, verbs.ErrInvalid)
	}
	a.quiet()
}
