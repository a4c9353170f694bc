package link

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// A link without multicast.
type plain struct{ Link }

func (plain) Addr() netip.AddrPort { return netip.MustParseAddrPort("10.0.0.1:4791") }

func TestUnsupported(t *testing.T) {
	group := netip.MustParseAddr("239.1.2.3")
	for verb, f := range map[string]func(Link, netip.Addr) error{"join": Join, "leave": Leave} {
		err := f(plain{}, group)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), verb+" multicast group 239.1.2.3 on 10.0.0.1: ") {
			t.Errorf("%s: error %v, want one that names verb, group and link and is %v", verb, err, errors.ErrUnsupported)
		}
	}
}

func TestCheckGroup(t *testing.T) {
	for _, c := range []struct{ addr, group, cause string }{
		{"10.0.0.1", "239.1.2.3", ""},
		{"10.0.0.1", "224.0.0.1", ""},
		{"fd00::1", "ff12::1", ""},
		{"::1", "ff02::1", ""},
		{"10.0.0.1", "10.0.0.2", "not a multicast address"},
		{"fd00::1", "fd00::2", "not a multicast address"},
		{"10.0.0.1", "::ffff:239.1.2.3", "the group's own address is 239.1.2.3"},
		{"fd00::1", "::ffff:239.1.2.3", "the group's own address is 239.1.2.3"},
		{"fd00::1", "ff02::1%eth0", "zone"},
		{"fd00::1", "239.1.2.3", "use an IPv4 address"},
		{"10.0.0.1", "ff12::1", "use an IPv6 address"},
	} {
		err := CheckGroup(netip.MustParseAddr(c.addr), netip.MustParseAddr(c.group))
		if (err == nil) != (c.cause == "") || err != nil && !strings.Contains(err.Error(), c.cause) {
			t.Errorf("CheckGroup(%s, %s) = %v, want %q", c.addr, c.group, err, c.cause)
		}
	}
	if CheckGroup(netip.MustParseAddr("10.0.0.1"), netip.Addr{}) == nil {
		t.Error("the zero address is a group")
	}
}
