package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
)

// loopAddr returns an address of 127.0.0.0/8 that two test processes hardly share.
func loopAddr(i byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 64 | byte(pid>>8)&63, byte(pid), i})
}

// claim takes a free port.
func claim(t *testing.T, addr netip.Addr) (*Port, netip.AddrPort) {
	t.Helper()
	for n := uint16(20000); n < 21000; n++ {
		at := netip.AddrPortFrom(addr, n)
		p, err := Claim(at)
		if err == nil {
			t.Cleanup(p.Close)
			return p, at
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Skipf("no port of %v: %v", addr, err)
		}
	}
	t.Fatal("no port is free")
	return nil, netip.AddrPort{}
}

// echo accepts a connection and checks that bytes pass both ways.
func echo(t *testing.T, p *Port, c net.Conn) net.Conn {
	t.Helper()
	s, err := p.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	for _, d := range [][2]net.Conn{{c, s}, {s, c}} {
		b := make([]byte, 2)
		if _, err := d[0].Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d[1], b); err != nil || string(b) != "hi" {
			t.Fatalf("got %q, %v, want hi", b, err)
		}
	}
	return s
}

// TestClaim checks that a port has one owner, until it is closed.
func TestClaim(t *testing.T) {
	p, at := claim(t, loopAddr(1))
	if _, err := Claim(at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second claim: %v, want %v", err, syscall.EADDRINUSE)
	}
	other, err := Claim(netip.AddrPortFrom(loopAddr(3), at.Port()))
	if err != nil {
		t.Errorf("the same port of another address: %v", err)
	} else {
		other.Close()
	}
	p.Close()
	p.Close()
	if _, err := p.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed port: %v, want %v", err, net.ErrClosed)
	}
	again, err := Claim(at)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	again.Close()
}

// TestCloseEndsAccept checks that a listener that waits is woken.
func TestCloseEndsAccept(t *testing.T) {
	p, _ := claim(t, loopAddr(1))
	done := make(chan error)
	go func() {
		_, err := p.Accept()
		done <- err
	}()
	p.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want %v", err, net.ErrClosed)
	}
}

// TestDial connects over IPv4 and IPv6: from a claimed port, which becomes the connection's, and from one that
// somebody has, in place of which another is taken.
func TestDial(t *testing.T) {
	for _, addrs := range [][2]netip.Addr{{loopAddr(1), loopAddr(2)}, {netip.IPv6Loopback(), netip.IPv6Loopback()}} {
		l, at := claim(t, addrs[0])
		from, own := claim(t, addrs[1])
		c, err := from.Dial(context.Background(), at)
		if err != nil {
			t.Fatal(err)
		}
		s := echo(t, l, c)
		if got := s.RemoteAddr().(*net.TCPAddr).AddrPort(); got != own {
			t.Errorf("the listener sees %v, want the claimed %v", got, own)
		}
		_, taken := claim(t, addrs[1])
		c, err = Dial(context.Background(), taken, at)
		if err != nil {
			t.Fatal(err)
		}
		s = echo(t, l, c)
		if got := s.RemoteAddr().(*net.TCPAddr).AddrPort(); got.Addr() != addrs[1] || got.Port() == taken.Port() {
			t.Errorf("the listener sees %v, want another port of %v", got, addrs[1])
		}
	}
}

// TestDialFails checks the errors of a peer that does not listen and of a context that has ended.
func TestDialFails(t *testing.T) {
	p, at := claim(t, loopAddr(1))
	p.Close()
	local := netip.AddrPortFrom(loopAddr(2), 0)
	if _, err := Dial(context.Background(), local, at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v, want %v", err, syscall.ECONNREFUSED)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Dial(ctx, local, at); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: %v, want %v", err, context.Canceled)
	}
}
