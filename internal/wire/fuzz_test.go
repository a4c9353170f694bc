package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// fuzzHeader checks that a decoded header encodes to the same bytes. decode returns the encoded header.
func fuzzHeader(f *testing.F, size int, decode func(b []byte) ([]byte, error)) {
	f.Add(make([]byte, size))
	f.Add(seq(size))
	f.Add(bytes.Repeat([]byte{0xff}, size))
	f.Add(seq(size - 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if len(b) < size {
			if err != ErrShort {
				t.Fatalf("%d bytes: %v, want ErrShort", len(b), err)
			}
			return
		}
		if err != nil || !bytes.Equal(got, b[:size]) {
			t.Fatalf("%x decodes and encodes to %x, %v, want the same", b[:size], got, err)
		}
	})
}

func FuzzBTH(f *testing.F) {
	fuzzHeader(f, BTHSize, func(b []byte) ([]byte, error) { h, err := DecodeBTH(b); return h.AppendTo(nil), err })
}

func FuzzDETH(f *testing.F) {
	fuzzHeader(f, DETHSize, func(b []byte) ([]byte, error) { h, err := DecodeDETH(b); return h.AppendTo(nil), err })
}

func FuzzXRCETH(f *testing.F) {
	fuzzHeader(f, XRCETHSize, func(b []byte) ([]byte, error) { h, err := DecodeXRCETH(b); return h.AppendTo(nil), err })
}

func FuzzFETH(f *testing.F) {
	fuzzHeader(f, FETHSize, func(b []byte) ([]byte, error) { h, err := DecodeFETH(b); return h.AppendTo(nil), err })
}

func FuzzRETH(f *testing.F) {
	fuzzHeader(f, RETHSize, func(b []byte) ([]byte, error) { h, err := DecodeRETH(b); return h.AppendTo(nil), err })
}

func FuzzAtomicETH(f *testing.F) {
	fuzzHeader(f, AtomicETHSize, func(b []byte) ([]byte, error) { h, err := DecodeAtomicETH(b); return h.AppendTo(nil), err })
}

func FuzzAtomicAckETH(f *testing.F) {
	fuzzHeader(f, AtomicAckETHSize, func(b []byte) ([]byte, error) { h, err := DecodeAtomicAckETH(b); return h.AppendTo(nil), err })
}

func FuzzImmDt(f *testing.F) {
	fuzzHeader(f, ImmDtSize, func(b []byte) ([]byte, error) { h, err := DecodeImmDt(b); return h.AppendTo(nil), err })
}

func FuzzIETH(f *testing.F) {
	fuzzHeader(f, IETHSize, func(b []byte) ([]byte, error) { h, err := DecodeIETH(b); return h.AppendTo(nil), err })
}

func FuzzSETH(f *testing.F) {
	fuzzHeader(f, SETHSize, func(b []byte) ([]byte, error) { h, err := DecodeSETH(b); return h.AppendTo(nil), err })
}

func FuzzAETH(f *testing.F) {
	fuzzHeader(f, AETHSize, func(b []byte) ([]byte, error) {
		h, err := DecodeAETH(b)
		if h.Syndrome.String() == "" {
			return nil, errors.New("the syndrome has no words")
		}
		return h.AppendTo(nil), err
	})
}

// fuzzSeeds adds one golden packet of each opcode.
func fuzzSeeds(f *testing.F) {
	seen := make(map[Opcode]bool)
	for _, g := range loadGolden(f) {
		if op := Opcode(g.datagram[0]); !seen[op] {
			seen[op] = true
			f.Add(g.datagram)
		}
	}
	cnp := NewCNP(0x17, DefaultPKey)
	f.Add(cnp.AppendTo(nil))
	secured := Packet{BTH: BTH{Opcode: Secured, DestQP: 0x17, PSN: 9}, SETH: SETH{Number: 1 << 40}, Payload: seq(24)}
	f.Add(secured.AppendTo(nil))
	flush := Packet{BTH: BTH{Opcode: RCFlush}, FETH: FETH{Placement: FlushGlobal}, RETH: RETH{VA: 1 << 40, Length: 1}}
	f.Add(flush.AppendTo(nil))
	invalidate := Packet{BTH: BTH{Opcode: RCSendOnlyWithInvalidate}, InvalidateRKey: 7, Payload: []byte("odd")}
	f.Add(invalidate.AppendTo(nil))
}

func FuzzPacketDecode(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, datagram []byte) {
		before := bytes.Clone(datagram)
		var p Packet
		err := p.Decode(datagram)
		if !bytes.Equal(datagram, before) {
			t.Fatal("Decode changed the datagram")
		}
		if err != nil {
			return
		}
		n := p.HeaderLen() + len(p.Payload) + int(p.PadCount) + ICRCSize
		want := bytes.Clone(datagram[:p.HeaderLen()])
		if p.Piggybacks {
			n, want[0] = n+PiggybackSize, byte(p.Opcode)
		}
		if n != len(datagram) {
			t.Fatalf("%v: got parts of %d bytes, want the datagram's %d", &p, n, len(datagram))
		}
		headers := p.AppendHeaders(nil)
		if p.Opcode == CNP {
			clear(want[BTHSize:]) // reserved bytes are ignored
		}
		if !bytes.Equal(headers, want) {
			t.Fatalf("%v: headers encode to\n%x, want\n%x", &p, headers, want)
		}

		// A peer need not send the pad that the payload asks for, but AppendTo makes the right one.
		again := p
		whole := again.AppendTo(nil)
		var q Packet
		if err := q.Decode(whole); err != nil {
			t.Fatalf("%v: encoded, does not decode: %v", &p, err)
		}
		p.PadCount = q.PadCount
		if p.String() != q.String() || !bytes.Equal(p.Payload, q.Payload) || p.BTH != q.BTH {
			t.Fatalf("encoded and decoded: got %v, want %v", &q, &p)
		}
	})
}

// FuzzICRCSolve seals a datagram with any identification and flags, and solves for them.
func FuzzICRCSolve(f *testing.F) {
	f.Add(make([]byte, MinDatagramLen), uint16(0), true)
	f.Add(seq(64), uint16(0xffff), false)
	for _, g := range loadGoldenFile(f, "pad.pcap") {
		f.Add(g.datagram, g.id, g.df)
	}
	f.Fuzz(func(t *testing.T, datagram []byte, id uint16, df bool) {
		flow4.SolveID(datagram) // the result may be any, but SolveID must not panic
		flow4.Verify(id, datagram)
		flow6.SolveID(datagram)
		if len(datagram) < MinDatagramLen || len(datagram) > maxDatagramLen || len(datagram)%4 != 0 {
			return
		}

		datagram = bytes.Clone(datagram)
		if df {
			flow4.Seal(id, datagram)
		} else {
			binary.LittleEndian.PutUint32(datagram[len(datagram)-ICRCSize:], slowICRC(flow4Src, flow4Dst, id, 0, datagram))
		}
		if gotID, gotDF, ok := flow4.SolveID(datagram); gotID != id || gotDF != df || !ok {
			t.Fatalf("%d bytes sealed with %#x, %v: SolveID = %#x, %v, %v, want the id and df of the seal", len(datagram), id, df, gotID, gotDF, ok)
		}
		if flow4.Verify(id, datagram) != df {
			t.Fatalf("%d bytes sealed with %#x, %v: Verify = %v, want %v", len(datagram), id, df, !df, df)
		}
		datagram[4] ^= byte(id) // routers may change it
		if _, _, ok := flow4.SolveID(datagram); !ok {
			t.Fatalf("byte 4 is not masked")
		}
		flow6.Seal(id, datagram)
		if _, _, ok := flow6.SolveID(datagram); !ok || !flow6.Verify(id+1, datagram) {
			t.Fatalf("%d bytes sealed over IPv6 do not verify, want them to", len(datagram))
		}
	})
}
