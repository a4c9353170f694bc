package wire

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
)

// framesV1 are two frames of RoCEv1 between QPs of one card (by its MAC address one of Mellanox's), from the tests of
// Scapy: a WRITE of 5 bytes, and an acknowledgement.
var framesV1 = map[string]string{
	"write": "7cfe90753cd87cfe90753cd88915" + "6020000000281b40" + "00000000000000000000ffff0f000002" + "00000000000000000000ffff0f000002" +
		"0a70ffff0000010a80a788bc" + "000055d4c0726000000047b300000005" + "0000000001000000" + "e3d856bb",
	"ack": "7cfe90753cd87cfe90753cd88915" + "6020000000141b40" + "00000000000000000000ffff0f000002" + "00000000000000000000ffff0f000002" +
		"1140ffff0000010900a788c0" + "00000005" + "25f0c038",
}

// TestICRCv1 checks the ICRCs of a card's packets. Of the fields that the ICRC covers each bit counts, and of the others
// none.
func TestICRCv1(t *testing.T) {
	for name, text := range framesV1 {
		frame, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		const grh, bth = 14, 14 + ipv6Size
		verify := func(frame []byte) bool {
			at := func(b []byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), 0) }
			flow := NewFlow(at(frame[grh+8:]), at(frame[grh+24:]))
			if id, df, ok := flow.SolveID(frame[bth:]); ok && (id != 0 || df) || ok != flow.Verify(0, frame[bth:]) {
				t.Errorf("%s: SolveID = %d, %v, %v", name, id, df, ok)
			}
			return flow.Verify(7, frame[bth:]) // RoCEv1 has no identification
		}
		if !verify(frame) {
			t.Errorf("%s: the ICRC counts as wrong", name)
			continue
		}
		for bit := range 8 * (len(frame) - grh) {
			at := grh + bit/8
			if at < grh+8 {
				continue // not in the Flow: version, length and next header are those that RoCEv1 fixes
			}
			b := slices.Clone(frame)
			b[at] ^= 1 << (bit % 8)
			if got, want := verify(b), at == bth+bthCongestion; got != want {
				t.Errorf("%s: bit %d of byte %d flipped: the ICRC is right: %v, want %v", name, bit%8, at, got, want)
			}
		}
		if verify(append(slices.Clone(frame[:len(frame)-ICRCSize]), frame[len(frame)-ICRCSize-4:]...)) {
			t.Errorf("%s: the ICRC counts as right with another length", name)
		}
		sealed := slices.Clone(frame[bth:])
		clear(sealed[len(sealed)-ICRCSize:])
		at := netip.MustParseAddrPort("15.0.0.2:0")
		flow := NewFlow(at, at)
		flow.Seal(9, sealed)
		if !slices.Equal(sealed, frame[bth:]) {
			t.Errorf("%s: sealed %x, want the card's %x", name, sealed, frame[bth:])
		}
		if l := flow.Label(); l == 0 || l >= 1<<20 {
			t.Errorf("flow label %#x, want one of 20 bits", l)
		}
	}
	if flow := NewFlow(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:0")); flow.Valid() || flow.Verify(0, make([]byte, 16)) {
		t.Error("a flow from nobody is valid")
	}
}
