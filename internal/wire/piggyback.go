package wire

import "encoding/binary"

// An answer can piggyback the acknowledgement of the message that it answers, as TCP's data segments do. Two packets
// in one train cost the host a third of a microsecond more than one. Behind the answer's payload and pad, and before
// the ICRC, stand
//
//	answer's opcode (1) | acknowledged PSN (3) | AETH (4)
//
// and the BTH has the opcode [RCAnswer]. All other bytes are as in the answer alone. [Packet.Decode] gives the packet
// the answer's opcode back, and sets Piggybacks.

// PiggybackSize is how many bytes a piggybacked acknowledgement adds to a packet.
const PiggybackSize = 4 + AETHSize

// MayPiggyback reports whether packets of an opcode can piggyback an acknowledgement: whole messages that take a
// receive.
func (o Opcode) MayPiggyback() bool {
	return o == RCSendOnly || o == RCSendOnlyWithImm || o == RCRDMAWriteOnlyWithImm
}

// PiggybackACK adds an acknowledgement to a datagram whose opcode may piggyback one. The datagram includes space for
// the ICRC. PiggybackACK returns the new length, for which buf must have room.
func PiggybackACK(buf []byte, datagram int, psn PSN, aeth AETH) int {
	at := datagram - ICRCSize
	binary.BigEndian.PutUint32(buf[at:], uint32(buf[0])<<24|uint32(psn&PSNMask))
	aeth.AppendTo(buf[:at+4])
	buf[0] = byte(RCAnswer)
	return datagram + PiggybackSize
}

// decodePiggyback takes the acknowledgement off the end of b, a datagram without ICRC. It returns false if there is
// none.
func (p *Packet) decodePiggyback(b []byte) bool {
	if len(b) < BTHSize+PiggybackSize {
		return false
	}
	b = b[len(b)-PiggybackSize:]
	if p.Opcode = Opcode(b[0]); !p.Opcode.MayPiggyback() {
		return false
	}
	p.Piggybacks, p.PiggybackPSN = true, PSN(binary.BigEndian.Uint32(b))&PSNMask
	p.AETH.decode(b[4:])
	return true
}
