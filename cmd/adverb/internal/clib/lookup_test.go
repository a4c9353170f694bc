package clib

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestLookup: an address is itself, and its zone stays.
func TestLookup(t *testing.T) {
	for _, host := range []string{"192.0.2.7", "2001:db8::7", "fe80::7%eth0", "fe80::7%3", "fe80::7"} {
		if got, err := Lookup(t.Context(), host); err != nil || !slices.Equal(got, []netip.Addr{netip.MustParseAddr(host)}) {
			t.Errorf("%s: got %v, %v, want it alone", host, got, err)
		}
	}
	if got, err := Lookup(t.Context(), "::ffff:192.0.2.7"); err != nil || len(got) != 1 || !got[0].Is4() {
		t.Errorf("an IPv4 address in IPv6: got %v, %v, want the IPv4 address", got, err)
	}
	if got, err := Lookup(t.Context(), "no.such.host.invalid"); err == nil {
		t.Errorf("a host that does not exist: got %v, want an error", got)
	}
}

// A host may have an address at which the server does not listen, or one that nobody can dial.
func TestDialSecondAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	conn, err := dialFirst(t.Context(), new(net.Dialer), []netip.Addr{netip.IPv6Loopback(), netip.MustParseAddr("fe80::7"), netip.MustParseAddr("127.0.0.1")}, port)
	if err != nil {
		t.Fatalf("got %v, want a connection to the last address", err)
	}
	conn.Close()
	for _, c := range []struct{ host, source string }{{"fe80::7", ""}, {"127.0.0.1", "fe80::7"}} {
		source, _ := netip.ParseAddr(c.source)
		if _, lookup, err := DialTCP(t.Context(), c.host, port, source); lookup != nil || err == nil || !strings.Contains(err.Error(), "as in fe80::7%eth0") {
			t.Errorf("%s from %q: got %v, %v, want an error that says how to name the interface", c.host, c.source, lookup, err)
		}
	}
}
