package hca

import "testing"

// Whether a QP of a partition takes a packet of a partition. Of two members one must be a full one.
func TestTakesPKey(t *testing.T) {
	for _, c := range []struct {
		own, packet uint16
		takes       bool
	}{
		{0, 0xffff, true}, {0, 0x7fff, true}, {0, 0x8001, false},
		{0x8001, 0x8001, true}, {0x8001, 0x0001, true}, {0x0001, 0x8001, true}, {0x0001, 0x0001, false}, {0x8001, 0x8002, false}, {0x8001, 0xffff, false},
	} {
		o := outbound{path: path{pkey: c.own}}
		if got := o.takes(c.packet); got != c.takes {
			t.Errorf("a QP of partition %#04x takes packets of %#04x: %v, want %v", c.own, c.packet, got, c.takes)
		}
	}
}
