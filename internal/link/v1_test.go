package link_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
)

// TestV1: an address of RoCEv1 is another than the same of IP, and tells its GID and, if it can, its MAC address.
func TestV1(t *testing.T) {
	for addr, mac := range map[string]string{
		"10.0.0.1": "", "fd00::1": "",
		"fe80::ff:fe00:102":         "020000000102",
		"fe80::7efe:90ff:fe75:3cd8": "7cfe90753cd8",
		"239.129.2.3":               "01005e010203",
		"ff0e::ffff:ef01:203":       "3333ef010203",
	} {
		ip := netip.MustParseAddr(addr)
		a := link.V1(ip)
		if !link.IsV1(a) || link.IsV1(ip) || link.IsV1(ip.WithZone("eth0")) || a == ip || link.V1(a) != a || link.GIDAddr(a) != ip || a.As16() != ip.As16() {
			t.Errorf("%v: %v, %v, of the GID %v", addr, a, link.IsV1(a), link.GIDAddr(a))
		}
		if link.PortOf(a) != link.PortV1 || link.PortOf(ip) != link.Port || link.Like(a, ip) != a || link.Like(ip, ip) != ip {
			t.Errorf("%v: ports %d and %d, like %v and %v", addr, link.PortOf(a), link.PortOf(ip), link.Like(a, ip), link.Like(ip, ip))
		}
		got, ok := link.MACOf(a)
		if ok != (mac != "") || ok && fmt.Sprintf("%x", got) != mac {
			t.Errorf("%v: MAC address %x, %v, want %q", addr, got, ok, mac)
		}
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			if own, ok := link.LinkLocalV1(got[:]); !ok || own != a {
				t.Errorf("of %x: %v, %v, want %v", got, own, ok, a)
			}
		}
	}
	for _, mac := range [][]byte{nil, make([]byte, 6), make([]byte, 20)} {
		if a, ok := link.LinkLocalV1(mac); ok {
			t.Errorf("of %x: %v, want none", mac, a)
		}
	}
}

// TestGroupV1: groups of IPv4 have GIDs of their own on RoCEv1, by which other MAC addresses follow.
func TestGroupV1(t *testing.T) {
	for group, want := range map[string]string{"239.129.2.3": "ff0e::ffff:ef81:203", "224.0.0.1": "ff0e::ffff:e000:1", "ff12::7": "ff12::7", "ff0e::ffff:a00:1": "ff0e::ffff:a00:1"} {
		ip := netip.MustParseAddr(group)
		if got := link.GroupV1(ip); got != netip.MustParseAddr(want) || link.IsGroupV1(got) != ip.Is4() || link.IsGroupV1(ip) {
			t.Errorf("%s: got %v, want %s; one of RoCEv1's for IPv4: %v", group, got, want, link.IsGroupV1(got))
		}
	}
}

// TestGRH: a GRH is read as it was written, and nothing else is taken for one.
func TestGRH(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.AddrPortFrom(link.V1(netip.MustParseAddr(s)), link.PortV1) }
	want := link.Datagram{Src: at("10.0.0.1"), Dst: at("fd00::2"), TrafficClass: 0xb9, FlowLabel: 0x9abcd}
	body := []byte("from the BTH to the ICRC")
	packet := append(link.AppendGRH([]byte{}, &want, len(body)), body...)
	fill := append(bytes.Clone(packet), make([]byte, 9)...) // as Ethernet fills short frames up
	for _, p := range [][]byte{packet, fill} {
		var d link.Datagram
		got, ok := link.CutGRH(p, &d)
		if !ok || !bytes.Equal(got, body) || cap(got) != len(got) || d.Src != want.Src || d.Dst != want.Dst || d.TrafficClass != want.TrafficClass || d.FlowLabel != want.FlowLabel {
			t.Errorf("%q of %+v, %v, want %q of %+v", got, d, ok, body, want)
		}
	}
	for n := range packet {
		if _, ok := link.CutGRH(packet[:n], new(link.Datagram)); ok {
			t.Errorf("cut to %d bytes it still passes", n)
		}
	}
	for i, v := range map[int]byte{0: 0x45, 6: 17} {
		other := bytes.Clone(packet)
		other[i] = v
		if _, ok := link.CutGRH(other, new(link.Datagram)); ok {
			t.Errorf("with byte %d %#x it passes", i, v)
		}
	}
}
