package soft_test

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/rnic"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestForgottenRegion: a region that the program has forgotten does no harm once its device is closed, of either kind.
// The runtime ends a process that forgets pinned memory.
func TestForgottenRegion(t *testing.T) {
	for name, open := range map[string]func(link.Netdev) (verbs.ProviderDevice, error){
		"RoCE":  func(n link.Netdev) (verbs.ProviderDevice, error) { return hca.Open(n, hca.Config{}) },
		"iWARP": func(n link.Netdev) (verbs.ProviderDevice, error) { return rnic.Open(n, rnic.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			forgetRegion(t, open)
			for range 2 { // objects that the first collection has found are dealt with by the end of the second
				ended := make(chan struct{})
				runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, ended)
				runtime.GC()
				<-ended
			}
		})
	}
}

// forgetRegion closes a device that has a region, and keeps neither.
func forgetRegion(t *testing.T, open func(link.Netdev) (verbs.ProviderDevice, error)) {
	d, err := open(sim.New(sim.Config{}).Netdev("sim", netip.AddrFrom4([4]byte{10, 0, 0, 1})))
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.RegMR(verbs.MRAttr{Buf: make([]byte, 1<<12)}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
