package wire

import (
	"bytes"
	"testing"
)

// checkShort fails unless decode refuses everything shorter than size with ErrShort and takes size
// bytes.
func checkShort(t *testing.T, name string, size int, decode func([]byte) error) {
	t.Helper()
	for n := range size {
		if err := decode(make([]byte, n)); err != ErrShort {
			t.Errorf("%s of %d bytes: %v, want ErrShort", name, n, err)
		}
	}
	if err := decode(make([]byte, size)); err != nil {
		t.Errorf("%s of %d bytes: got error %v, want none", name, size, err)
	}
}

func TestHeadersRefuseShort(t *testing.T) {
	checkShort(t, "BTH", BTHSize, func(b []byte) error { _, err := DecodeBTH(b); return err })
	checkShort(t, "DETH", DETHSize, func(b []byte) error { _, err := DecodeDETH(b); return err })
	checkShort(t, "XRCETH", XRCETHSize, func(b []byte) error { _, err := DecodeXRCETH(b); return err })
	checkShort(t, "FETH", FETHSize, func(b []byte) error { _, err := DecodeFETH(b); return err })
	checkShort(t, "RETH", RETHSize, func(b []byte) error { _, err := DecodeRETH(b); return err })
	checkShort(t, "AtomicETH", AtomicETHSize, func(b []byte) error { _, err := DecodeAtomicETH(b); return err })
	checkShort(t, "ImmDt", ImmDtSize, func(b []byte) error { _, err := DecodeImmDt(b); return err })
	checkShort(t, "IETH", IETHSize, func(b []byte) error { _, err := DecodeIETH(b); return err })
	checkShort(t, "AETH", AETHSize, func(b []byte) error { _, err := DecodeAETH(b); return err })
	checkShort(t, "SETH", SETHSize, func(b []byte) error { _, err := DecodeSETH(b); return err })
	checkShort(t, "AtomicAckETH", AtomicAckETHSize, func(b []byte) error { _, err := DecodeAtomicAckETH(b); return err })
}

// seq returns the bytes 1, 2, … n, so that a field read from a wrong place shows.
func seq(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

// checkEncodes compares the bytes that a header appends with want, and that it appends rather than overwrites.
func checkEncodes(t *testing.T, name string, appendTo func([]byte) []byte, want []byte) {
	t.Helper()
	prefix := []byte("before")
	if got := appendTo(prefix[:len(prefix):len(prefix)]); !bytes.Equal(got, append(prefix, want...)) {
		t.Errorf("%s encodes to %x, want %x", name, got[len(prefix):], want)
	}
}

func TestBTH(t *testing.T) {
	for _, tt := range []struct {
		wire [BTHSize]byte
		want BTH
	}{
		{
			[...]byte{0x04, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0x05, 0xd5, 0x92},
			BTH{Opcode: RCSendOnly, PKey: DefaultPKey, DestQP: 0x11, AckReq: true, PSN: 0x05d592},
		}, {
			[...]byte{0xff, 0xff, 0x12, 0x34, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			BTH{Opcode: 0xff, Solicited: true, MigReq: true, PadCount: 3, TVer: 15, PKey: 0x1234, FECN: true, BECN: true,
				Resv6: 0x3f, DestQP: MaxQPN, AckReq: true, Resv7: 0x7f, PSN: PSNMask},
		},
		{[BTHSize]byte{1: 0x80}, BTH{Solicited: true}},
		{[BTHSize]byte{1: 0x40}, BTH{MigReq: true}},
		{[BTHSize]byte{1: 0x20}, BTH{PadCount: 2}},
		{[BTHSize]byte{1: 0x01}, BTH{TVer: 1}},
		{[BTHSize]byte{4: 0x80}, BTH{FECN: true}},
		{[BTHSize]byte{4: 0x40}, BTH{BECN: true}},
		{[BTHSize]byte{4: 0x20}, BTH{Resv6: 0x20}},
		{[BTHSize]byte{8: 0x80}, BTH{AckReq: true}},
		{[BTHSize]byte{8: 0x40}, BTH{Resv7: ResvAdaptiveRouting}},
	} {
		got, err := DecodeBTH(tt.wire[:])
		if err != nil || got != tt.want {
			t.Errorf("DecodeBTH(%x) = %+v, %v, want %+v", tt.wire, got, err, tt.want)
		}
		checkEncodes(t, "BTH", tt.want.AppendTo, tt.wire[:])
	}
}

// TestFieldsTooLarge checks that a value which does not fit its field does not spill into the next
// one.
func TestFieldsTooLarge(t *testing.T) {
	big := BTH{PadCount: 0xff, TVer: 0xff, Resv6: 0xff, DestQP: 1<<32 - 1, Resv7: 0xff, PSN: 1<<32 - 1}
	checkEncodes(t, "BTH", big.AppendTo, []byte{0, 0x3f, 0, 0, 0x3f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff})
	aeth := AETH{MSN: 1<<32 - 1}
	checkEncodes(t, "AETH", aeth.AppendTo, []byte{0, 0xff, 0xff, 0xff})
	deth := DETH{SrcQP: 1<<32 - 1}
	checkEncodes(t, "DETH", deth.AppendTo, []byte{0, 0, 0, 0, 0, 0xff, 0xff, 0xff})
	feth := FETH{Placement: 0xff}
	checkEncodes(t, "FETH", feth.AppendTo, []byte{0, 0, 0, 0x0f})
	feth = FETH{Selectivity: 0xff}
	checkEncodes(t, "FETH", feth.AppendTo, []byte{0, 0, 0, 0x30})
}

func TestRETH(t *testing.T) {
	want := RETH{VA: 0x0102030405060708, RKey: 0x090a0b0c, Length: 0x0d0e0f10}
	if got, err := DecodeRETH(seq(RETHSize)); err != nil || got != want {
		t.Errorf("DecodeRETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "RETH", want.AppendTo, seq(RETHSize))
}

func TestFETH(t *testing.T) {
	wire := []byte{0x80, 0, 0, 0x52}
	want := FETH{Placement: FlushPersistent, Selectivity: FlushMR, Resv: 1<<25 | 1}
	if got, err := DecodeFETH(wire); err != nil || got != want {
		t.Errorf("DecodeFETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "FETH", want.AppendTo, wire)
}

func TestAtomicETH(t *testing.T) {
	want := AtomicETH{VA: 0x0102030405060708, RKey: 0x090a0b0c, SwapAdd: 0x0d0e0f1011121314, Compare: 0x15161718191a1b1c}
	if got, err := DecodeAtomicETH(seq(AtomicETHSize)); err != nil || got != want {
		t.Errorf("DecodeAtomicETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "AtomicETH", want.AppendTo, seq(AtomicETHSize))
}

func TestAtomicAckETH(t *testing.T) {
	want := AtomicAckETH{Orig: 0x0102030405060708}
	if got, err := DecodeAtomicAckETH(seq(AtomicAckETHSize)); err != nil || got != want {
		t.Errorf("DecodeAtomicAckETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "AtomicAckETH", want.AppendTo, seq(AtomicAckETHSize))
}

func TestDETH(t *testing.T) {
	want := DETH{QKey: 0x01020304, Resv: 0x05, SrcQP: 0x060708}
	if got, err := DecodeDETH(seq(DETHSize)); err != nil || got != want {
		t.Errorf("DecodeDETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "DETH", want.AppendTo, seq(DETHSize))
}

func TestImmDtAndIETH(t *testing.T) {
	if got, err := DecodeImmDt(seq(ImmDtSize)); err != nil || got != 0x01020304 {
		t.Errorf("DecodeImmDt = %#x, %v, want 0x01020304", uint32(got), err)
	}
	checkEncodes(t, "ImmDt", ImmDt(0x01020304).AppendTo, seq(ImmDtSize))
	if got, err := DecodeIETH(seq(IETHSize)); err != nil || got.RKey != 0x01020304 {
		t.Errorf("DecodeIETH = %+v, %v, want 0x01020304", got, err)
	}
	checkEncodes(t, "IETH", IETH{0x01020304}.AppendTo, seq(IETHSize))
}
