package wire

import "testing"

func TestAETH(t *testing.T) {
	want := AETH{Syndrome: 0x01, MSN: 0x020304}
	if got, err := DecodeAETH(seq(AETHSize)); err != nil || got != want {
		t.Errorf("DecodeAETH = %+v, %v, want %+v", got, err, want)
	}
	checkEncodes(t, "AETH", want.AppendTo, seq(AETHSize))
}

func TestSyndrome(t *testing.T) {
	for _, tt := range []struct {
		s     Syndrome
		wire  uint8
		kind  SyndromeKind
		value uint8
		str   string
	}{
		{SyndromeACK(0), 0x00, KindACK, 0, "ACK credits=0"},
		{SyndromeACK(CreditsUnlimited), 0x1f, KindACK, 31, "ACK credits=31"},
		{SyndromeRNR(0), 0x20, KindRNR, 0, "RNR NAK timer=655.36ms"},
		{SyndromeRNR(12), 0x2c, KindRNR, 12, "RNR NAK timer=0.64ms"},
		{SyndromeRNR(31), 0x3f, KindRNR, 31, "RNR NAK timer=491.52ms"},
		{SyndromeNAK(NAKSequenceError), 0x60, KindNAK, 0, "NAK PSN sequence error"},
		{SyndromeNAK(NAKInvalidRequest), 0x61, KindNAK, 1, "NAK invalid request"},
		{SyndromeNAK(NAKRemoteAccessError), 0x62, KindNAK, 2, "NAK remote access error"},
		{SyndromeNAK(NAKRemoteOperationalError), 0x63, KindNAK, 3, "NAK remote operational error"},
		{SyndromeNAK(NAKInvalidRDRequest), 0x64, KindNAK, 4, "NAK invalid RD request"},
		{SyndromeNAK(5), 0x65, KindNAK, 5, "NAK reserved NAK code 5"},
		{0x5a, 0x5a, KindReserved, 0x1a, "reserved syndrome 0x5a"},
		{0xe2, 0xe2, KindNAK, 2, "NAK remote access error"}, // the reserved bit is none of our business
		{SyndromeACK(0xff), 0x1f, KindACK, 31, "ACK credits=31"},
	} {
		if uint8(tt.s) != tt.wire || tt.s.Kind() != tt.kind || tt.s.Value() != tt.value || tt.s.String() != tt.str {
			t.Errorf("syndrome %#02x: kind %d, value %d, %q; want %#02x, %d, %d, %q",
				uint8(tt.s), tt.s.Kind(), tt.s.Value(), tt.s, tt.wire, tt.kind, tt.value, tt.str)
		}
	}
	if got := SyndromeNAK(NAKRemoteAccessError).NAKCode(); got != NAKRemoteAccessError {
		t.Errorf("NAKCode = %v, want %v", got, NAKRemoteAccessError)
	}
}

func TestCredits(t *testing.T) {
	// From code 4 on, each even step doubles: 4, 6, 8, 12, 16, 24, …
	want := []int{0, 1, 2, 3}
	for n := 4; len(want) < CreditsUnlimited; n *= 2 {
		want = append(want, n, n+n/2)
	}
	want = want[:CreditsUnlimited]
	for code, w := range want {
		if n, valid := DecodeCredits(uint8(code)); n != w || !valid {
			t.Errorf("DecodeCredits(%d) = %d, %v, want %d", code, n, valid, w)
		}
		if got := EncodeCredits(w); got != uint8(code) {
			t.Errorf("EncodeCredits(%d) = %d, want %d", w, got, code)
		}
		if got := EncodeCredits(w - 1); code > 0 && got != uint8(code-1) {
			t.Errorf("EncodeCredits(%d) = %d, want %d", w-1, got, code-1)
		}
	}
	for _, code := range []uint8{CreditsUnlimited, 32, 255} {
		if n, valid := DecodeCredits(code); valid || n != 0 {
			t.Errorf("DecodeCredits(%d) = %d, %v, want not valid", code, n, valid)
		}
	}
	for n, want := range map[int]uint8{-1: 0, 5: 4, 7: 5, 33: 10, 32767: 29, 32768: 30, 1 << 30: 30} {
		if got := EncodeCredits(n); got != want {
			t.Errorf("EncodeCredits(%d) = %d, want %d", n, got, want)
		}
	}
}
