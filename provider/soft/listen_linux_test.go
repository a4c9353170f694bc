//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// envListen makes the tests run that need the loopback addresses to themselves: a network namespace of
// their own.
const envListen = "ADVERB_TEST_LISTEN"

func runListenTest(t *testing.T, name string) {
	t.Helper()
	runInOwnNetwork(t, name, envListen)
}

// A listener that could not hear its clients is refused, though the device can receive at other
// addresses: the port is claimed, and requests would come to nobody.
func TestListenWhereHeld(t *testing.T) { runListenTest(t, "TestListenWhereHeldInside") }

func TestListenWhereHeldInside(t *testing.T) {
	if os.Getenv(envListen) == "" {
		t.Skip("TestListenWhereHeld runs this one")
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	setAddress(t, lo, outageAddrs[0], true)
	held, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4791})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"127.0.0.1:7471", "127.0.0.1:0", "0.0.0.0:7471", "0.0.0.0:0"} {
		l, err := rdmacm.Listen(netip.MustParseAddrPort(at))
		if err == nil {
			l.Close()
		}
		if !errors.Is(err, rdmacm.ErrAddrInUse) || !strings.Contains(err.Error(), "UDP port 4791 of this address is held") {
			t.Errorf("listening on %s while somebody holds the UDP port of 127.0.0.1: got error %v, want %v that says so", at, err, rdmacm.ErrAddrInUse)
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"127.0.0.1:7471", "0.0.0.0:7472"} {
		dialBy(t, listenOn(t, at), "127.0.0.1")
	}
}

// An address that cannot be used yet, as the kernel still asks whether others have it, does not keep a
// listener from the other addresses.
func TestListenBesideTentative(t *testing.T) { runListenTest(t, "TestListenBesideTentativeInside") }

func TestListenBesideTentativeInside(t *testing.T) {
	if os.Getenv(envListen) == "" {
		t.Skip("TestListenBesideTentative runs this one")
	}
	const name = "silent" // it has no carrier, so the kernel goes on to ask
	defer unix.Close(makeNetdev(t, name, unix.IFF_TAP))
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	tentative := netip.MustParseAddr("fd00:47::1")
	setTentative(t, ifi, tentative)
	if l, err := rdmacm.Listen(netip.AddrPortFrom(tentative, 0)); !errors.Is(err, unix.EADDRNOTAVAIL) {
		if err == nil {
			l.Close()
		}
		t.Errorf("listening on the address alone: got error %v, want %v", err, unix.EADDRNOTAVAIL)
	}
	l := listenOn(t, "[::]:0")
	dialBy(t, l, "::1")
	dialBy(t, l, "10.47.9.1")
}

// A device none of whose addresses can be used yet does not keep an ID from the other devices that the program has named.
// The ID serves the device once an address can be used.
func TestListenBesideUnready(t *testing.T) { runListenTest(t, "TestListenBesideUnreadyInside") }

func TestListenBesideUnreadyInside(t *testing.T) {
	if os.Getenv(envListen) == "" {
		t.Skip("TestListenBesideUnready runs this one")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const name = "silent" // it has no carrier, so the kernel goes on to ask
	defer unix.Close(makeNetdev(t, name, unix.IFF_TAP))
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	tentative := netip.MustParseAddr("fd00:47::1")
	setTentative(t, ifi, tentative)
	if err := linktest.SetAddress(name, netip.MustParsePrefix("10.47.9.1/8"), 0, false); err != nil {
		t.Fatal(err)
	}
	silent, lo := open(t, "soft_"+name).Device(), open(t, "soft_lo").Device()
	for dev, want := range map[*verbs.Device]error{silent: unix.EADDRNOTAVAIL, lo: nil} {
		id, err := rdmacm.NewID(rdmacm.NewEventChannel(dev), rdmacm.PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.BindAddr(netip.MustParseAddrPort("[::]:0")); !errors.Is(err, want) {
			t.Errorf("binding to all addresses of %s alone: got error %v, want %v", dev.Name(), err, want)
		}
		id.Close()
	}
	ch := rdmacm.NewEventChannel(silent, lo)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.BindAddr(netip.MustParseAddrPort("[::]:0")); err != nil {
		t.Fatal(err)
	}
	if err := id.Listen(0); err != nil {
		t.Fatal(err)
	}
	changeAddress(t, ifi, tentative, 0, false)
	setAddress(t, ifi, tentative, true)
	if ev, err := ch.Next(ctx); err != nil || ev.Type != rdmacm.EventAddrChange {
		t.Errorf("after the address can be used: got event %v, error %v, want %v", ev, err, rdmacm.EventAddrChange)
	}
}

// dialBy connects to a listener at an address.
func dialBy(t *testing.T, l *rdmacm.Listener, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			accepted <- err
			return
		}
		c, err := r.Accept(ctx, nil)
		if err == nil {
			defer c.Close()
		}
		accepted <- err
	}()
	c, err := rdmacm.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(host), l.Addr().Port()), nil)
	if err != nil {
		t.Fatalf("dialing the listener on %v at %s: got error %v, want none", l.Addr(), host, err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Errorf("accepting at %s: got error %v, want none", host, err)
	}
}
