//go:build !adverb_portable

package soft_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// The address that a listener on all addresses returns can be dialed, whichever IP version the host has.
func TestDialOwnAddr(t *testing.T) {
	runFollow(t, "TestDialOwnAddrInside")
}

func TestDialOwnAddrInside(t *testing.T) {
	inFollow(t)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	for _, c := range []struct {
		without netip.Addr
		listen  string
		dial    []string
	}{
		{netip.Addr{}, ":0", []string{"[::]", "0.0.0.0", ""}},
		{v6, ":0", []string{"[::]", "0.0.0.0", ""}},
		{v6, "0.0.0.0:0", []string{"[::]", "0.0.0.0", ""}},
		{v4, ":0", []string{"[::]", "0.0.0.0", ""}},
		{v4, "[::]:0", []string{"[::]", "0.0.0.0", ""}},
	} {
		if c.without.IsValid() {
			setAddress(t, lo, c.without, false)
		}
		l, err := rsocket.Listen("rsocket", c.listen)
		if err != nil {
			t.Fatalf("without %v: listening on %s: %v", c.without, c.listen, err)
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range append(c.dial, strings.TrimSuffix(l.Addr().String(), ":"+port)) {
			dialOwn(t, l, to+":"+port, c.without)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if c.without.IsValid() {
			setAddress(t, lo, c.without, true)
		}
	}
}

// dialOwn dials a listener, and has a byte come back.
func dialOwn(t *testing.T, l net.Listener, to string, without netip.Addr) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(c, c, 1)
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	c, err := rsocket.Dial("rsocket", to)
	// Devices and listeners hear of an address a moment after the kernel has it.
	early := func() bool { return errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ECONNREFUSED) }
	for limit := time.Now().Add(patience); early() && time.Now().Before(limit); runtime.Gosched() {
		c, err = rsocket.Dial("rsocket", to)
	}
	if err != nil {
		t.Fatalf("without %v: dialing %s of a listener on %v: got error %v, want none", without, to, l.Addr(), err)
	}
	b := []byte{7}
	_, err = c.Write(b)
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err = errors.Join(err, <-done, c.Close()); err != nil || b[0] != 7 {
		t.Errorf("without %v: from %s of a listener on %v came %v, %v, want 7", without, to, l.Addr(), b, err)
	}
}

// A port is shared by those alone who have the option, on RoCE and on iWARP, within a process and between devices.
func TestReuseAddr(t *testing.T) {
	lo := loopback(t)[len("soft_"):]
	for i, kind := range []string{"soft_", "iw_"} {
		t.Run(kind, func(t *testing.T) {
			addr := loopAddr(60 + i)
			var devs [2]*verbs.Device
			for i := range devs {
				devs[i] = open(t, kind+lo+"@"+addr).Device()
			}
			at := netip.AddrPortFrom(netip.MustParseAddr(addr), 0)
			bind := func(dev int, reuse bool, want error) *rdmacm.ID {
				t.Helper()
				id, err := rdmacm.NewID(rdmacm.NewEventChannel(devs[dev]), rdmacm.PortSpaceTCP)
				if err == nil {
					err = id.SetReuseAddr(reuse)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { id.Close() })
				if err = id.BindAddr(at); !errors.Is(err, want) {
					t.Errorf("binding with the option: %v: got error %v, want %v", reuse, err, want)
				}
				return id
			}
			x := bind(0, true, nil)
			at = x.LocalAddr()
			bind(0, false, rdmacm.ErrAddrInUse)
			bind(1, false, rdmacm.ErrAddrInUse)
			y := bind(1, true, nil)
			if err := x.Listen(0); !errors.Is(err, rdmacm.ErrAddrInUse) {
				t.Errorf("listening where another device shares the port: got error %v, want %v", err, rdmacm.ErrAddrInUse)
			}
			bind(1, false, rdmacm.ErrAddrInUse)
			if err := y.Close(); err != nil {
				t.Fatal(err)
			}
			if err := x.Listen(0); err != nil {
				t.Fatalf("listening where nobody else has the port: got error %v, want none", err)
			}
			bind(0, true, rdmacm.ErrAddrInUse)
			bind(1, true, rdmacm.ErrAddrInUse)
			bind(1, false, rdmacm.ErrAddrInUse)
			_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{devs[1]}}).Dial(t.Context(), netip.AddrPortFrom(at.Addr(), at.Port()+1), nil)
			if !errors.Is(err, rdmacm.ErrRefused) {
				t.Errorf("dialing another port: got error %v, want %v", err, rdmacm.ErrRefused)
			}
		})
	}
}

// A link-local address is one of many networks: without its zone the error names the missing zone.
func TestListenWithoutZone(t *testing.T) {
	for _, listen := range []func(string) error{
		func(a string) error { _, err := rdmacm.Listen(netip.MustParseAddrPort(a)); return err },
		func(a string) error { _, err := rsocket.Listen("rsocket", a); return err },
	} {
		err := listen("[fe80::77]:0")
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "name the interface, as in fe80::77%eth0") {
			t.Errorf("listening on a link-local address without a zone: got error %v, want %v that says how to name the interface", err, verbs.ErrInvalid)
		}
	}
}

// Where two interfaces have one link-local address, its zone says which of them is meant, at both ends.
func TestZones(t *testing.T) {
	runFollow(t, "TestZonesInside")
}

func TestZonesInside(t *testing.T) {
	kind := inFollow(t)
	const addr = "fe80::77"
	netdevs := []string{"zone1", "zone2"}
	for _, name := range netdevs {
		defer unix.Close(makeNetdev(t, name, unix.IFF_TUN))
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			t.Fatal(err)
		}
		setAddress(t, ifi, netip.MustParseAddr(addr), true)
	}
	for _, name := range netdevs {
		l := listenOn(t, "["+addr+"%"+name+"]:0")
		go func() {
			if r, err := l.Accept(t.Context()); err == nil {
				r.Reject([]byte(r.Device().Name()))
			}
		}()
		_, err := rdmacm.Dial(t.Context(), l.Addr(), nil)
		var rej *rdmacm.RejectError
		if !errors.As(err, &rej) || !strings.HasPrefix(string(rej.PrivateData), kind+name) {
			t.Errorf("dialing %v: got error %v, want the no of %s", l.Addr(), err, kind+name)
		}
	}
}
