package connector

import (
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestPathMTUs: the path MTU of an address counts for a while, and of many addresses those of the latest.
func TestPathMTUs(t *testing.T) {
	var n pathMTUs
	var dev verbs.Device
	var start time.Time
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	want := func(now time.Duration, i int, ask, mtu verbs.MTU) {
		t.Helper()
		if got := n.limit(start.Add(now), &dev, at(i), ask); got != mtu {
			t.Errorf("address %d at %v: got %v where %v would be asked for, want %v", i, now, got, ask, mtu)
		}
	}
	want(0, 0, verbs.MTU4096, verbs.MTU4096)
	n.found(start.Add(time.Second), &dev, at(0), verbs.MTU1024)
	want(time.Second, 0, verbs.MTU4096, verbs.MTU1024)
	want(time.Second, 0, verbs.MTU512, verbs.MTU512)
	want(time.Second, 1, verbs.MTU4096, verbs.MTU4096)
	want(pathMTUExpires, 0, verbs.MTU4096, verbs.MTU1024)
	if got := n.limit(start, new(verbs.Device), at(0), verbs.MTU4096); got != verbs.MTU4096 {
		t.Errorf("another device: got %v, want what it would ask for", got)
	}
	want(time.Second+pathMTUExpires, 0, verbs.MTU4096, verbs.MTU4096)
	if len(n.of) != 0 {
		t.Errorf("%d addresses are remembered, want what is old forgotten", len(n.of))
	}
	for i := range 3 * maxPathMTUs {
		n.found(start.Add(time.Duration(i)), &dev, at(i), verbs.MTU1024)
	}
	if len(n.of) != maxPathMTUs {
		t.Errorf("%d addresses are remembered, want %d", len(n.of), maxPathMTUs)
	}
	want(0, 2*maxPathMTUs-1, verbs.MTU4096, verbs.MTU4096)
	want(0, 2*maxPathMTUs, verbs.MTU4096, verbs.MTU1024)
}
