package wire

import (
	"bytes"
	"testing"
)

// TestPiggybackACK: a message with a piggybacked acknowledgement decodes to the same message, and the
// acknowledgement.
func TestPiggybackACK(t *testing.T) {
	ack := AETH{Syndrome: SyndromeACK(5), MSN: 0x123456}
	for op := range Opcode(255) {
		if !op.MayPiggyback() {
			continue
		}
		plain := Packet{BTH: BTH{Opcode: op, DestQP: 7, PSN: 9, AckReq: true, Solicited: true}, RETH: RETH{VA: 1, RKey: 2, Length: 3}, Imm: 4,
			Payload: []byte{1, 2, 3, 4, 5}}
		b := plain.AppendTo(nil)
		whole := append(bytes.Clone(b), make([]byte, PiggybackSize)...)
		n := PiggybackACK(whole, len(b), 0xabcdef, ack)
		if n != len(b)+PiggybackSize || Opcode(whole[0]) != RCAnswer {
			t.Fatalf("%v: %d bytes of opcode %#x, want %d of %#x", op, n, whole[0], len(b)+PiggybackSize, RCAnswer)
		}
		if want := []byte{byte(op), 0xab, 0xcd, 0xef, byte(ack.Syndrome), 0x12, 0x34, 0x56}; !bytes.Equal(whole[len(b)-ICRCSize:n-ICRCSize], want) {
			t.Errorf("%v: it ends with % x, want % x", op, whole[len(b)-ICRCSize:n-ICRCSize], want)
		}
		var p Packet
		if err := p.Decode(whole); err != nil {
			t.Fatalf("%v: %v", op, err)
		}
		if !p.Piggybacks || p.PiggybackPSN != 0xabcdef || p.AETH != ack || p.BTH != plain.BTH || p.Imm != plain.Imm && op.HasImm() || !bytes.Equal(p.Payload, plain.Payload) {
			t.Errorf("%v: decoded %+v, want %+v with psn 0xabcdef and %+v", op, p, plain, ack)
		}
		if again := p.AppendTo(nil); !bytes.Equal(again, whole) {
			t.Errorf("%v: encoded again\n% x, want\n% x", op, again, whole)
		}
		if p.Decode(b); p.Piggybacks {
			t.Errorf("%v: the next packet carries an acknowledgement too, want none", op)
		}
	}
	if !RCSendOnly.MayPiggyback() {
		t.Error("a SEND carries no acknowledgement, want one")
	}
}

// TestPiggybackNonsense: a packet is malformed if its opcode may piggyback nothing, or if it is too short.
func TestPiggybackNonsense(t *testing.T) {
	for op := range 256 {
		b := make([]byte, BTHSize+RETHSize+ImmDtSize+PiggybackSize+ICRCSize)
		b[0], b[len(b)-ICRCSize-PiggybackSize] = byte(RCAnswer), byte(op)
		var p Packet
		if err := p.Decode(b); (err == nil) != Opcode(op).MayPiggyback() {
			t.Errorf("an answer that is %v: %v, want success only for opcodes that may piggyback one", Opcode(op), err)
		}
	}
	for n := range BTHSize + PiggybackSize + ICRCSize {
		b := make([]byte, n)
		if n > 0 {
			b[0] = byte(RCAnswer)
		}
		if n > PiggybackSize+ICRCSize {
			b[n-ICRCSize-PiggybackSize] = byte(RCSendOnly)
		}
		var p Packet
		if p.Decode(b) == nil {
			t.Errorf("an answer of %d bytes is taken, want an error", n)
		}
	}
}
