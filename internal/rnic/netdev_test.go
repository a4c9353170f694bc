package rnic

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestNetdevReplaced: an address that is added or removed is told. Another interface that takes the name of a device's is
// not the device's, whether or not the device has seen that there was none in between.
func TestNetdevReplaced(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprintf("Seen=%v", seen), func(t *testing.T) {
			addrs := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 0, 2})}
			r := sim.New(sim.Config{}).Netdev("eth0", addrs[0])
			d, err := Open(r, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			events := func(want ...verbs.EventType) {
				t.Helper()
				for _, w := range want {
					if ev, err := d.NextEvent(ctx); err != nil || ev.Type != w {
						t.Fatalf("event %v, %v; want %v", ev.Type, err, w)
					}
				}
			}
			r.AddAddr(addrs[1])
			events(verbs.EventGIDChange)
			r.RemoveAddr(addrs[0])
			events(verbs.EventGIDChange)
			if got := d.Addrs(); len(got) != 1 || got[0] != addrs[1] {
				t.Errorf("addresses %v, want %v", got, addrs[1])
			}
			end := []verbs.EventType{verbs.EventDeviceFatal, verbs.EventGIDChange, verbs.EventPortErr}
			if seen {
				r.Remove()
				d.refresh()
				events(end...)
			}
			r.Replace()
			if d.refresh(); !seen {
				events(end...)
			}
			select {
			case <-d.Gone():
			default:
				t.Error("the device goes on, want it gone")
			}
			if got := d.Addrs(); len(got) > 0 {
				t.Errorf("addresses %v of another interface, want none", got)
			}
		})
	}
}
