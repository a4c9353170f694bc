package device

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

func TestFirstGID(t *testing.T) {
	entry := func(addr string, index int, kind verbs.GIDType) verbs.GIDEntry {
		g, err := verbs.ParseGID(addr)
		if err != nil {
			t.Fatal(err)
		}
		return verbs.GIDEntry{GID: g, Index: index, Port: 1, Type: kind}
	}
	ipv6, ipv4 := entry("fe80::98:ff:fe00:1001", 0, verbs.GIDTypeRoCEv2), entry("10.98.0.2", 1, verbs.GIDTypeRoCEv2)
	v1 := entry("10.98.0.2", 7, verbs.GIDTypeRoCEv1)
	for _, tt := range []struct {
		name    string
		entries []verbs.GIDEntry
		index   int
		ok      bool
	}{
		{"IPv4 after IPv6", []verbs.GIDEntry{ipv6, ipv4}, 1, true},
		{"IPv6 only", []verbs.GIDEntry{ipv6}, 0, true},
		{"none of RoCE v2", []verbs.GIDEntry{v1}, -1, false},
		{"empty", nil, -1, false},
	} {
		if index, ok := FirstGID(tt.entries); index != tt.index || ok != tt.ok {
			t.Errorf("%s: got %d, %v; want %d, %v", tt.name, index, ok, tt.index, tt.ok)
		}
	}
}
