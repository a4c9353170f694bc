package tcp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// TestShare: only Shares share a port, and one of them owns it once the others are gone.
func TestShare(t *testing.T) {
	first, at := claim(t, loopAddr(20))
	take := func(what string, shared bool, want error) *Port {
		t.Helper()
		f := Claim
		if shared {
			f = Share
		}
		p, err := f(at)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Fatalf("%s: got error %v, want %v", what, err, want)
		}
		if p != nil {
			t.Cleanup(p.Close)
		}
		return p
	}
	take("shared where one has it alone", true, syscall.EADDRINUSE)

	// Connections of a listener that has ended keep nobody off its port, also while their end is remembered.
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	s := echo(t, first, c)
	first.Close()
	s.Close()
	c.Close()

	x := take("shared where nobody has it", true, nil)
	take("alone where one shares it", false, syscall.EADDRINUSE)
	y := take("shared where one shares it", true, nil)
	for range 2 {
		if err := x.Own(); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("owned while another shares it: got error %v, want %v", err, syscall.EADDRINUSE)
		}
		take("alone after an attempt to own it", false, syscall.EADDRINUSE)
	}
	take("shared after an attempt to own it", true, nil).Close()
	if _, err := net.Dial("tcp", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing a port that is shared: got error %v, want %v", err, syscall.ECONNREFUSED)
	}
	y.Close()
	if err := x.Own(); err != nil {
		t.Fatalf("owned by the last who shares it: got error %v, want none", err)
	}
	take("shared where one owns it", true, syscall.EADDRINUSE)
	take("alone where one owns it", false, syscall.EADDRINUSE)
	if c, err = net.Dial("tcp", at.String()); err != nil {
		t.Fatal(err)
	}
	echo(t, x, c)
	x.Close()
}

// TestShareDial: several connect from a port that they share, and keep it from others.
func TestShareDial(t *testing.T) {
	_, at := claim(t, loopAddr(21))
	var own *Port
	var err error
	for n := at.Port() + 1; n < 21000; n++ {
		if own, err = Share(netip.AddrPortFrom(at.Addr(), n)); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for i := range byte(2) { // to two ports: the ends of two connections differ
		l, to := claim(t, loopAddr(22+i))
		p, err := Share(own.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		c, err := p.Dial(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.LocalAddr().String(); got != own.addr.String() {
			t.Errorf("connected from %v, want %v", got, own.addr)
		}
		echo(t, l, c)
	}
	if p, err := Claim(own.addr); !errors.Is(err, syscall.EADDRINUSE) {
		p.Close()
		t.Errorf("alone where connections share the port: got error %v, want %v", err, syscall.EADDRINUSE)
	}
}
