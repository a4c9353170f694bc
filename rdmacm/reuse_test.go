package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// TestReuseAddr: a port is shared by those alone who all have the option, and a listener shares with nobody: as Linux has
// it. A bind with the option claimed nothing, so that all of these succeeded.
func TestReuseAddr(t *testing.T) {
	for _, port := range []uint16{7000, 0} {
		p := newPair(t)
		b := newScript(t, p.b)
		at := addr(t, p.b, false, port)
		bind := func(reuse bool) (*rdmacm.ID, error) {
			id := b.id(rdmacm.PortSpaceTCP)
			b.ok(id.SetReuseAddr(reuse))
			return id, id.BindAddr(at)
		}
		bound := func(reuse bool) *rdmacm.ID {
			t.Helper()
			id, err := bind(reuse)
			b.ok(err)
			at = id.LocalAddr()
			return id
		}
		refused := func(what string, reuse bool) {
			t.Helper()
			id, err := bind(reuse)
			b.ok(id.Close())
			if !errors.Is(err, rdmacm.ErrAddrInUse) {
				t.Errorf("port %d: %s: got error %v, want %v", port, what, err, rdmacm.ErrAddrInUse)
			}
		}
		plain := bound(false)
		refused("with the option where one without it is", true)
		b.ok(plain.Close())
		x := bound(true)
		refused("without the option where one with it is", false)
		y := bound(true)
		if err := x.Listen(0); !errors.Is(err, rdmacm.ErrAddrInUse) {
			t.Errorf("port %d: listening at a port that is shared: got error %v, want %v", port, err, rdmacm.ErrAddrInUse)
		}
		b.ok(y.Close())
		refused("without the option after an attempt to listen", false)
		b.ok(x.Listen(0))
		refused("with the option where one listens", true)
		refused("without the option where one listens", false)
		b.ok(x.Close())
		b.ok(bound(false).Close())
		at = addr(t, p.b, false, port)
	}
}

// TestReuseAddrConnections: connections from one port keep those off it who do not share it.
func TestReuseAddrConnections(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	to := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0)).LocalAddr()
	from := addr(t, p.a, false, 7100)
	for range 2 {
		x := a.id(rdmacm.PortSpaceTCP)
		a.ok(x.SetReuseAddr(true))
		a.ok(x.ResolveAddr(from, to))
		a.next(rdmacm.EventAddrResolved)
		a.ok(x.ResolveRoute())
		a.next(rdmacm.EventRouteResolved)
		establish(a, b, x)
	}
	if err := a.id(rdmacm.PortSpaceTCP).BindAddr(from); !errors.Is(err, rdmacm.ErrAddrInUse) {
		t.Errorf("binding to a port that connections share: got error %v, want %v", err, rdmacm.ErrAddrInUse)
	}
}

// TestReuseAddrTaken: one ADDR_ERROR says by its status and its error what is wrong, where it said that an argument was.
func TestReuseAddrTaken(t *testing.T) {
	p := newPair(t)
	a, b := newScript(t, p.a), newScript(t, p.b)
	to := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0)).LocalAddr()
	taken := a.listener(rdmacm.PortSpaceTCP, addr(t, p.a, false, 0)).LocalAddr()
	x := a.id(rdmacm.PortSpaceTCP)
	a.ok(x.ResolveAddr(taken, to))
	if ev := a.next(rdmacm.EventAddrError); ev.Status != -98 || !errors.Is(ev.Err, rdmacm.ErrAddrInUse) {
		t.Errorf("a source port that is taken: got status %d, %v, want -98, %v", ev.Status, ev.Err, rdmacm.ErrAddrInUse)
	}
}

// TestReuseAddrFree: a port that is given out is nobody's, also to an ID that would share it.
func TestReuseAddrFree(t *testing.T) {
	p := newPair(t)
	b := newScript(t, p.b)
	at := addr(t, p.b, false, 0)
	given := map[uint16]bool{}
	for i := range 1000 {
		id := b.id(rdmacm.PortSpaceTCP)
		b.ok(id.SetReuseAddr(true))
		b.ok(id.BindAddr(at))
		port := id.LocalAddr().Port()
		if given[port] {
			t.Fatalf("port %d was given out twice to %d IDs", port, i+1)
		}
		given[port] = true
	}
}
