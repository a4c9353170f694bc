package wire

import "encoding/binary"

// An answer can carry the acknowledgement of the message that it answers. Two packets in one train cost the host a
// third of a microsecond more than one. Behind the answer's payload and pad, and before the ICRC, stand
//
//	answer's opcode (1) | acknowledged PSN (3) | AETH (4)
//
// and the BTH has the opcode [RCAnswer]. All else is as without. [Packet.Decode] undoes it: the packet has the answer's
// opcode then, and Piggybacks is true.

// PiggybackSize is how many bytes an acknowledgement adds to the packet that carries it.
const PiggybackSize = 4 + AETHSize

// CarriesACK reports whether packets of an opcode can carry an acknowledgement: whole messages that take a receive.
func (o Opcode) MayPiggyback() bool {
	return o == RCSendOnly || o == RCSendOnlyWithImm || o == RCRDMAWriteOnlyWithImm
}

// PiggybackACK makes a datagram, which CarriesACK, carry an acknowledgement. The datagram includes space for the ICRC. It
// returns the new length, for which buf must have room.
func PiggybackACK(buf []byte, datagram int, psn PSN, aeth AETH) int {
	at := datagram - ICRCSize
	binary.BigEndian.PutUint32(buf[at:], uint32(buf[0])<<24|uint32(psn&PSNMask))
	aeth.AppendTo(buf[:at+4])
	buf[0] = byte(RCAnswer)
	return datagram + PiggybackSize
}

// decodePiggyback takes the acknowledgement off the end of b, a datagram without ICRC. It returns false where there is
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
