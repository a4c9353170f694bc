package wire

import (
	"bytes"
	"errors"
	"testing"
)

func TestPadCount(t *testing.T) {
	for n, want := range []uint8{0, 3, 2, 1, 0, 3, 2, 1, 0} {
		if got := PadCount(n); got != want {
			t.Errorf("PadCount(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	ack := Packet{BTH: BTH{Opcode: RCAcknowledge}}
	send := Packet{BTH: BTH{Opcode: RCSendOnly}, Payload: []byte{1, 2, 3, 4}}
	edit := func(p Packet, at int, v byte) []byte {
		b := p.AppendTo(nil)
		b[at] = v
		return b
	}
	whole := func(p Packet) []byte { return p.AppendTo(nil) }
	for _, tt := range []struct {
		name     string
		datagram []byte
		want     error
	}{
		{"whole", whole(ack), nil},
		{"empty", nil, ErrShort},
		{"shorter than any", make([]byte, MinDatagramLen-1), ErrShort},
		{"no room for the AETH", whole(ack)[:MinDatagramLen], ErrShort},
		{"no room for the ICRC", whole(ack)[:BTHSize+AETHSize], ErrShort},
		{"unknown opcode", edit(ack, 0, 0x15), ErrOpcode},
		{"reliable datagram", edit(ack, 0, 0x44), ErrOpcode},
		{"version 1", edit(ack, 1, 0x01), ErrTVer},
		{"version 15 of an unknown opcode", edit(Packet{BTH: BTH{Opcode: RCSendOnly, TVer: 15}}, 0, 0xff), ErrTVer},
		{"pad without payload", edit(ack, 1, 0x10), ErrPad},
		{"pad that is all there is", edit(send, 1, 0x30), nil},
		{"odd length", append(whole(send), 0), ErrLength},
		{"truncated by one", whole(send)[:len(whole(send))-1], ErrLength},
	} {
		var p Packet
		if err := p.Decode(tt.datagram); err != tt.want {
			t.Errorf("%s: Decode(%x) = %v, want %v", tt.name, tt.datagram, err, tt.want)
		}
	}
	for e := ErrShort; e <= ErrIPCMVersion; e++ {
		var target DecodeError
		if !errors.As(error(e), &target) || e.Error() == DecodeError(0).Error() {
			t.Errorf("DecodeError(%d) has no text, want one of its own", e)
		}
	}
	if got, want := DecodeError(99).Error(), DecodeError(0).Error(); got != want {
		t.Errorf("DecodeError(99) = %q, want %q", got, want)
	}
}

// TestPacketEveryOpcode sends each opcode with every length of pad through encoder and decoder.
func TestPacketEveryOpcode(t *testing.T) {
	rnd, seed := newRand(t)
	for i := range 256 {
		op := Opcode(i)
		want := Packet{
			BTH: BTH{Opcode: op, Solicited: rnd.IntN(2) == 1, MigReq: rnd.IntN(2) == 1, PKey: uint16(rnd.Uint32()),
				DestQP: rnd.Uint32() & MaxQPN, AckReq: rnd.IntN(2) == 1, PSN: PSN(rnd.Uint32()) & PSNMask},
			DETH:           DETH{QKey: rnd.Uint32(), SrcQP: rnd.Uint32() & MaxQPN},
			XRCETH:         XRCETH{SRQN: rnd.Uint32() & MaxQPN},
			FETH:           FETH{Placement: FlushGlobal | FlushPersistent, Selectivity: FlushMR},
			RETH:           RETH{VA: rnd.Uint64(), RKey: rnd.Uint32(), Length: rnd.Uint32()},
			AtomicETH:      AtomicETH{VA: rnd.Uint64(), RKey: rnd.Uint32(), SwapAdd: rnd.Uint64(), Compare: rnd.Uint64()},
			AETH:           AETH{Syndrome: Syndrome(rnd.Uint32()), MSN: rnd.Uint32() & MaxMSN},
			AtomicAckETH:   AtomicAckETH{Orig: rnd.Uint64()},
			Imm:            rnd.Uint32(),
			InvalidateRKey: rnd.Uint32(),
		}
		if !op.Valid() {
			if b := want.AppendTo(want.AppendHeaders(nil)); len(b) != 0 {
				t.Errorf("invalid opcode %#02x: got %x, want nothing", i, b)
			}
			continue
		}
		for n := range 6 {
			if n > 0 && !op.HasPayload() {
				break
			}
			want.Payload = seq(n)
			b := want.AppendTo(nil)
			// A header that Decode skips would go unnoticed if Decode overwrote the wanted values. So start from an
			// empty packet and compare the encoded one.
			var got Packet
			if err := got.Decode(b); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, &want, err)
			}
			if got.BTH != want.BTH || !bytes.Equal(got.Payload, want.Payload) || !bytes.Equal(got.AppendTo(nil), b) {
				t.Errorf("seed %d: decoded %v, want %v", seed, &got, &want)
			}
			if cap(got.Payload) != len(got.Payload) {
				t.Errorf("%v: an append to the payload can reach %d bytes of pad and ICRC, want none", &got, cap(got.Payload)-len(got.Payload))
			}
			h := op.Headers()
			check := func(header HeaderSet, name string, same, zero bool) {
				if h&header != 0 && !same || h&header == 0 && !zero {
					t.Errorf("seed %d: %v: %s is wrong: decoded %+v, want %+v", seed, op, name, got, want)
				}
			}
			check(HeaderDETH, "DETH", got.DETH == want.DETH, got.DETH == DETH{})
			check(HeaderXRCETH, "XRCETH", got.XRCETH == want.XRCETH, got.XRCETH == XRCETH{})
			check(HeaderFETH, "FETH", got.FETH == want.FETH, got.FETH == FETH{})
			check(HeaderRETH, "RETH", got.RETH == want.RETH, got.RETH == RETH{})
			check(HeaderAtomicETH, "AtomicETH", got.AtomicETH == want.AtomicETH, got.AtomicETH == AtomicETH{})
			check(HeaderAETH, "AETH", got.AETH == want.AETH, got.AETH == AETH{})
			check(HeaderAtomicAckETH, "AtomicAckETH", got.AtomicAckETH == want.AtomicAckETH, got.AtomicAckETH == AtomicAckETH{})
			check(HeaderImmDt, "ImmDt", got.Imm == want.Imm, got.Imm == 0)
			check(HeaderIETH, "IETH", got.InvalidateRKey == want.InvalidateRKey, got.InvalidateRKey == 0)
		}
	}
}

// TestPacketHeaderOrder pins where each header stands when an opcode has two.
func TestPacketHeaderOrder(t *testing.T) {
	for _, tt := range []struct {
		p    Packet
		want []byte // behind the BTH
	}{
		{
			Packet{BTH: BTH{Opcode: UDSendOnlyWithImm}, DETH: DETH{QKey: 0x01020304, Resv: 5, SrcQP: 0x060708}, Imm: 0x090a0b0c},
			seq(12),
		}, {
			Packet{BTH: BTH{Opcode: XRC | RCRDMAWriteOnlyWithImm}, Imm: 0x15161718, XRCETH: XRCETH{Resv: 1, SRQN: 0x020304},
				RETH: RETH{VA: 0x05060708090a0b0c, RKey: 0x0d0e0f10, Length: 0x11121314}},
			seq(24),
		}, {
			Packet{BTH: BTH{Opcode: RCRDMAWriteOnlyWithImm}, Imm: 0x11121314,
				RETH: RETH{VA: 0x0102030405060708, RKey: 0x090a0b0c, Length: 0x0d0e0f10}},
			seq(20),
		}, {
			Packet{BTH: BTH{Opcode: RCAtomicAcknowledge}, AETH: AETH{Syndrome: 1, MSN: 0x020304},
				AtomicAckETH: AtomicAckETH{Orig: 0x05060708090a0b0c}},
			seq(12),
		}, {
			Packet{BTH: BTH{Opcode: RCFlush}, FETH: FETH{Placement: 4, Resv: 0x01020304 >> 6},
				RETH: RETH{VA: 0x05060708090a0b0c, RKey: 0x0d0e0f10, Length: 0x11121314}},
			seq(20),
		},
	} {
		if got := tt.p.AppendHeaders(nil)[BTHSize:]; !bytes.Equal(got, tt.want) {
			t.Errorf("%v: extended headers %x, want %x", tt.p.Opcode, got, tt.want)
		}
	}
}

func TestCNP(t *testing.T) {
	cnp := NewCNP(0x123456, DefaultPKey)
	want := append([]byte{0x81, 0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0, 0, 0, 0}, make([]byte, CNPReservedSize+ICRCSize)...)
	b := cnp.AppendTo(nil)
	if !bytes.Equal(b, want) {
		t.Fatalf("CNP encodes to %x, want %x", b, want)
	}
	b[20] = 0xee // reserved: to be ignored
	var p Packet
	if err := p.Decode(b); err != nil || p.BTH != cnp.BTH || len(p.Payload) != 0 {
		t.Errorf("CNP decodes to %v, %v, want %v", &p, err, &cnp)
	}
	if err := p.Decode(b[:len(b)-4]); err != ErrShort {
		t.Errorf("CNP with 12 reserved bytes: %v, want ErrShort", err)
	}
}

func TestPacketAllocs(t *testing.T) {
	packets := loadGolden(t)
	buf := make([]byte, 0, 8192)
	var p Packet
	var failed int
	allocs := testing.AllocsPerRun(10, func() {
		for i := range packets {
			if err := p.Decode(packets[i].datagram); err != nil {
				failed++
			}
			_ = p.AppendHeaders(buf)
			_ = p.AppendTo(buf)
			_ = p.AppendSummary(buf)
			if err := p.Decode(packets[i].datagram[:MinDatagramLen-1]); err != ErrShort {
				failed++
			}
		}
	})
	if allocs != 0 || failed != 0 {
		t.Errorf("%v allocations, %d failures, want none", allocs, failed)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, op := range []Opcode{RCSendMiddle, RCRDMAWriteFirst, RCAcknowledge, UDSendOnly} {
		b.Run(op.String(), func(b *testing.B) {
			p := Packet{BTH: BTH{Opcode: op, PKey: DefaultPKey}, Payload: make([]byte, 1024)}
			datagram := p.AppendTo(nil)
			for b.Loop() {
				if err := p.Decode(datagram); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendHeaders(b *testing.B) {
	for _, op := range []Opcode{RCSendMiddle, RCRDMAWriteFirst, RCAcknowledge, UDSendOnly} {
		b.Run(op.String(), func(b *testing.B) {
			p := Packet{BTH: BTH{Opcode: op, PKey: DefaultPKey}}
			buf := make([]byte, 0, MaxHeaderLen)
			for b.Loop() {
				buf = p.AppendHeaders(buf[:0])
			}
		})
	}
}
