//go:build !adverb_portable

package demo

import (
	"io"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/host"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/verbs"
)

// The demonstration and other programs of the user have 127.0.0.1 at the same time. If it had the address
// to itself, even for a moment, a program that begins to listen in that moment would fail.
func TestSharesAddress(t *testing.T) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	name, err := loopback()
	if err != nil {
		t.Fatal(err)
	}
	u, err := udp.NetdevForAddr(name, addr)
	if err != nil {
		t.Fatal(err)
	}
	other := host.Share(u)
	defer other.Close()
	l, err := other.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := openNetwork(newView(io.Discard, true), flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	if n.serverAddr != addr {
		t.Errorf("got server address %v, want %v, which others use but share", n.serverAddr, addr)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	pd, err := n.server.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	ah, err := pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(n.clientAddr)}) // the device has the address in use from here on
	if err != nil {
		t.Fatal(err)
	}
	defer ah.Close()
	if l, err = other.Open(addr); err != nil {
		t.Fatalf("another program beside the demonstration: got error %v, want none", err)
	}
	l.Close()
}
