package wire

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// samplePacket is the packet for which the specification works out an ICRC: a WRITE of 14 bytes behind an LRH.
const samplePacket = "7012375c000e17d2" + "0a2024870087b1b3000dec2a" + "01710a1c015d400238f27a050000000e" +
	"bb884d85fd5cfba4728bc0690ed40000" + "9625b75a"

func TestLocalICRC(t *testing.T) {
	b, err := hex.DecodeString(samplePacket)
	if err != nil {
		t.Fatal(err)
	}
	h, err := DecodeLRH(b)
	want := LRH{VL: 7, SL: 1, LNH: LNHLocal, DLID: 0x375c, Length: 14, SLID: 0x17d2}
	if err != nil || h != want {
		t.Fatalf("LRH %+v, %v; want %+v", h, err, want)
	}
	if int(h.Length)*4 != len(b) {
		t.Fatalf("the LRH says %d words of %d bytes", h.Length, len(b))
	}
	f := NewLocalFlow(h.SLID, h.DLID, h.SL)
	if !f.Verify(0, b[LRHSize:]) {
		t.Errorf("the ICRC is %x, want %x", f.ICRC(0, b[LRHSize:]), b[len(b)-ICRCSize:])
	}
	for _, f := range []Flow{NewLocalFlow(h.SLID+1, h.DLID, h.SL), NewLocalFlow(h.SLID, h.DLID^1, h.SL), NewLocalFlow(h.SLID, h.DLID, h.SL+1)} {
		if f.Verify(0, b[LRHSize:]) {
			t.Errorf("the ICRC fits flow %+v", f)
		}
	}
	for bit := range 8 * LRHSize { // all of the LRH is covered but the virtual lane
		damaged := bytes.Clone(b)
		damaged[bit/8] ^= 0x80 >> (bit % 8)
		h, err := DecodeLRH(damaged)
		if err != nil || h.LNH != LNHLocal || int(h.Length)*4 != len(b) || bit/8 == 1 && bit%8 >= 4 || bit/8 == 4 {
			continue
		}
		f := NewLocalFlow(h.SLID, h.DLID, h.SL)
		if got, want := f.Verify(0, damaged[LRHSize:]), bit < 4; got != want {
			t.Errorf("bit %d of the LRH flips: the ICRC fits: %v, want %v", bit, got, want)
		}
	}
	c := append(bytes.Clone(b), b...)
	for n := MinDatagramLen; n <= len(b); n += 4 { // all lengths, whose bytes the ICRC covers
		d := c[:n]
		f.Seal(0, d)
		h.VL, h.Length = 0xf, uint16(LRHSize+n)/4
		whole := h.AppendTo(nil)
		whole = append(whole, d[:n-ICRCSize]...)
		whole[LRHSize+bthCongestion] = 0xff
		if got, want := foundICRC(d), crcOf(whole); got != want {
			t.Errorf("%d bytes: ICRC %#x, want %#x", n, got, want)
		}
	}
}

func TestGlobalICRC(t *testing.T) {
	g := GRH{TrafficClass: 0x12, FlowLabel: 0x34567, NextHeader: GRHNextHeader, HopLimit: 64, SGID: [16]byte{0xfe, 0x80, 15: 1}, DGID: [16]byte{0xfe, 0x80, 15: 2}}
	f := NewGlobalFlow(g.SGID, g.DGID, 5, g.FlowLabel)
	if label, sl := LinkLabel(f.Label()); label != g.FlowLabel || sl != 5 {
		t.Errorf("flow label %#x and SL %d, want %#x and 5", label, sl, g.FlowLabel)
	}
	d := make([]byte, 60)
	copy(d, "\x04\x00\xff\xff\x00\x12\x34\x56\x80\x00\x00\x01payload of a packet")
	f.Seal(0, d)
	g.Length, g.TrafficClass, g.FlowLabel, g.HopLimit = uint16(len(d)), 0xff, 1<<20-1, 0xff
	whole := g.AppendTo(bytes.Repeat([]byte{0xff}, LRHSize))
	whole = append(whole, d[:len(d)-ICRCSize]...)
	whole[LRHSize+GRHSize+bthCongestion] = 0xff
	if got, want := foundICRC(d), crcOf(whole); got != want {
		t.Errorf("ICRC %#x, want %#x", got, want)
	}
	if id, df, ok := f.SolveID(d); id != 0 || df || !ok {
		t.Errorf("SolveID returns %d, %v, %v; want that InfiniBand has no identification", id, df, ok)
	}
}

func TestVCRC(t *testing.T) {
	b, _ := hex.DecodeString(samplePacket)
	p := AppendVCRC(bytes.Clone(b))
	if rest, ok := CutVCRC(p); !ok || !bytes.Equal(rest, b) {
		t.Errorf("the VCRC that was appended is wrong")
	}
	// The remainder over a packet and its CRC is the same for all packets.
	rest := VCRC(p)
	if other := VCRC(AppendVCRC([]byte("another packet"))); other != rest {
		t.Errorf("remainders %#x and %#x, want one", rest, other)
	}
	for bit := range 8 * len(p) {
		p[bit/8] ^= 1 << (bit % 8)
		if _, ok := CutVCRC(p); ok {
			t.Errorf("bit %d flips unseen", bit)
		}
		p[bit/8] ^= 1 << (bit % 8)
	}
	if _, ok := CutVCRC(p[:LRHSize+1]); ok {
		t.Error("a packet without room for a VCRC has one")
	}
}

func FuzzLRH(f *testing.F) {
	b, _ := hex.DecodeString(samplePacket)
	f.Add(b)
	f.Add(append([]byte{0, 3, 0, 1, 0, 14, 0, 2, 0x60, 0, 0, 0, 0, 16, 0x1b, 64}, make([]byte, 48)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeLRH(b); err == nil {
			if again, err := DecodeLRH(h.AppendTo(nil)); err != nil || again != h {
				t.Errorf("%+v comes back as %+v, %v", h, again, err)
			}
		}
		if h, err := DecodeGRH(b); err == nil {
			if again := h.AppendTo(nil); !bytes.Equal(again, b[:GRHSize]) {
				t.Errorf("GRH % x comes back as % x", b[:GRHSize], again)
			}
		}
		CutVCRC(b)
	})
}
