package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestResolveAgain: a ResolveAddr that has bound the ID to its source, and then finds no way, leaves the ID bound,
// as BindAddr does. Another binding took the place of that one, and the port and the device were held for ever.
func TestResolveAgain(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1) // which has no IPv6 address
	ch := NewEventChannel(d)
	resolve := func(id *ID, src, dst string, want EventType) {
		t.Helper()
		from, _ := netip.ParseAddrPort(src)
		if err := id.ResolveAddr(from, netip.MustParseAddrPort(dst)); err != nil {
			t.Fatal(err)
		}
		if ev, err := ch.Next(context.Background()); err != nil || ev.Type != want {
			t.Fatalf("resolving %s: got event %v, %v, want %v", dst, ev.Type, err, want)
		}
	}
	newID := func() *ID {
		t.Helper()
		id, err := NewID(ch, PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}

	id := newID()
	resolve(id, "[::]:7471", "[2001:db8::9]:7", EventAddrError)
	if err := id.BindAddr(netip.MustParseAddrPort("10.0.0.1:7472")); !errors.Is(err, verbs.ErrState) {
		t.Errorf("binding an ID that is bound: got error %v, want %v", err, verbs.ErrState)
	}
	if err := id.ResolveAddr(netip.MustParseAddrPort("10.0.0.1:7472"), netip.MustParseAddrPort("10.0.0.9:7")); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("another source for an ID that is bound: got error %v, want %v", err, verbs.ErrInvalid)
	}
	resolve(id, "[::]:7471", "[2001:db8::9]:7", EventAddrError) // a program may try again
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}

	next := newID()
	if err := next.BindAddr(netip.MustParseAddrPort("10.0.0.1:7471")); err != nil {
		t.Errorf("the port of an ID that is closed: got error %v, want none", err)
	}
	next.Close()

	// A source without a port binds nothing, and is forgotten.
	id = newID()
	resolve(id, "[2001:db8::1]:0", "[2001:db8::9]:7", EventAddrError)
	resolve(id, "", "10.0.0.9:7", EventAddrResolved)
	if got := id.LocalAddr().Addr().String(); got != "10.0.0.1" {
		t.Errorf("resolved from %v, want 10.0.0.1", got)
	}
	id.Close()
	if n := len(agents.of); n != 0 {
		t.Errorf("%d agents are left, want none", n)
	}
}
