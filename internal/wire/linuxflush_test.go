package wire

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
)

// TestLinuxFlush: a FLUSH of 8 bytes as Linux 6.12 has sent it, between 10.47.0.2 and 10.47.0.1, with identification 0x60e8.
func TestLinuxFlush(t *testing.T) {
	got, err := hex.DecodeString("1c00ffff009c4a37802ff3400000000100007fb2f7da90108975910d00000008a9a26857")
	if err != nil {
		t.Fatal(err)
	}
	const id = 0x60e8
	f := NewFlow(netip.MustParseAddrPort("10.47.0.2:57812"), netip.MustParseAddrPort("10.47.0.1:4791"))
	if f.Verify(id, got) {
		t.Error("the ICRC is as the specification has it")
	}
	b := slices.Clone(got)
	if !UnsealLinuxFlush(b) || !f.Verify(id, b) {
		t.Fatalf("not verified: %x, want %08x", b, f.ICRC(id, b))
	}
	if i, df, ok := f.SolveID(b); i != id || !df || !ok {
		t.Errorf("identification %#x, %v, %v; want %#x", i, df, ok, id)
	}
	if SealLinuxFlush(b); !bytes.Equal(b, got) {
		t.Errorf("sealed anew: %x, want %x", b, got)
	}
	var p Packet
	if err := p.Decode(got); err != nil || p.Opcode != RCFlush || p.FETH.Placement != 1 || p.FETH.Selectivity != 0 || p.RETH.Length != 8 || p.RETH.RKey != 0x8975910d {
		t.Errorf("decoded: %+v, %v", p, err)
	}
	for i := range got {
		bad := slices.Clone(got)
		bad[i] ^= 1
		if i != bthCongestion && UnsealLinuxFlush(bad) && f.Verify(id, bad) {
			t.Errorf("damage of byte %d is not noticed", i)
		}
	}
	if UnsealLinuxFlush(got[:FlushLen-1]) || UnsealLinuxFlush(append([]byte{byte(RCAcknowledge)}, got[1:]...)) {
		t.Error("another packet is taken for a FLUSH")
	}
}
