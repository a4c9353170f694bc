package wire

import "encoding/binary"

// A Packet is a datagram taken apart. Only those extended headers mean anything that Opcode has.
// [Packet.Decode] leaves the others as they were, so that one Packet can be used for datagram after
// datagram.
type Packet struct {
	BTH
	DETH           DETH
	XRCETH         XRCETH
	FETH           FETH
	RETH           RETH
	AtomicETH      AtomicETH
	AETH           AETH
	AtomicAckETH   AtomicAckETH
	SETH           SETH
	Imm            uint32 // ImmDt
	InvalidateRKey uint32 // IETH
	Payload        []byte // without pad and ICRC

	// Piggybacks says that the packet has a piggybacked acknowledgement: of PiggybackPSN, with AETH. See
	// [PiggybackACK].
	Piggybacks   bool
	PiggybackPSN PSN
}

// PadCount returns how many bytes of pad follow payloadLen bytes of payload. They are 0 to 3, and
// fill up to a multiple of 4.
func PadCount(payloadLen int) uint8 { return uint8(-payloadLen) & bthPadMask }

// Decode takes a datagram apart, which is a UDP payload from the BTH to the ICRC. It does not verify the ICRC (see
// [Flow.Verify]). Payload aliases datagram. The error is a [DecodeError], after which the packet must not be used.
//
// Decode does not check that the packet makes sense to a queue pair. In particular, a packet whose opcode has no
// payload may have one. A transport ignores or refuses such a packet.
func (p *Packet) Decode(datagram []byte) error {
	if len(datagram) < MinDatagramLen {
		return ErrShort
	}
	p.BTH.decode(datagram)
	if p.TVer != 0 {
		return ErrTVer
	}
	end := len(datagram) - ICRCSize
	p.Piggybacks = false
	info := &opcodes[p.Opcode]
	if info.HeaderLen == 0 {
		if p.Opcode != RCAnswer || !p.decodePiggyback(datagram[:end]) {
			return ErrOpcode
		}
		end -= PiggybackSize
		info = &opcodes[p.Opcode]
	}
	rest := end - info.HeaderLen // payload and pad
	if rest < 0 {
		return ErrShort
	}
	if rest%4 != 0 {
		return ErrLength
	}
	if int(p.PadCount) > rest {
		return ErrPad
	}
	switch info.Headers { // most packets have none, or one of these
	case 0:
	case HeaderRETH:
		p.RETH.decode(datagram[BTHSize:])
	case HeaderAETH:
		p.AETH.decode(datagram[BTHSize:])
	default:
		p.decodeExtended(info.Headers, datagram[BTHSize:info.HeaderLen])
	}
	end -= int(p.PadCount)
	p.Payload = datagram[info.HeaderLen:end:end] // capped, so that an append cannot reach pad and ICRC
	return nil
}

// decodeExtended reads the headers of set from b, which is long enough for them.
func (p *Packet) decodeExtended(set HeaderSet, b []byte) {
	if set&HeaderDETH != 0 {
		p.DETH.decode(b)
		b = b[DETHSize:]
	}
	if set&HeaderXRCETH != 0 {
		p.XRCETH.decode(b)
		b = b[XRCETHSize:]
	}
	if set&HeaderFETH != 0 {
		p.FETH.decode(b)
		b = b[FETHSize:]
	}
	if set&HeaderRETH != 0 {
		p.RETH.decode(b)
		b = b[RETHSize:]
	}
	if set&HeaderAtomicETH != 0 {
		p.AtomicETH.decode(b)
		b = b[AtomicETHSize:]
	}
	if set&HeaderImmDt != 0 {
		p.Imm = binary.BigEndian.Uint32(b)
		b = b[ImmDtSize:]
	}
	if set&HeaderIETH != 0 {
		p.InvalidateRKey = binary.BigEndian.Uint32(b)
		b = b[IETHSize:]
	}
	if set&HeaderAETH != 0 {
		p.AETH.decode(b)
		b = b[AETHSize:]
	}
	if set&HeaderAtomicAckETH != 0 {
		p.AtomicAckETH.decode(b)
	}
	if set&HeaderSETH != 0 {
		p.SETH.decode(b)
	}
}

// HeaderLen returns how many bytes [Packet.AppendHeaders] appends. It is 0 for an invalid opcode.
func (p *Packet) HeaderLen() int { return p.Opcode.HeaderLen() }

// AppendHeaders appends the BTH and the extended headers of Opcode to b. It does not change
// PadCount. For an invalid opcode it appends nothing. It does not allocate if b has room for
// [MaxHeaderLen] bytes more.
func (p *Packet) AppendHeaders(b []byte) []byte {
	info := &opcodes[p.Opcode]
	if info.HeaderLen == 0 {
		return b
	}
	b = p.BTH.AppendTo(b)
	switch info.Headers { // as in Decode: the code for all would fill the CPU's cache
	case 0:
		return b
	case HeaderRETH:
		return p.RETH.AppendTo(b)
	case HeaderAETH:
		return p.AETH.AppendTo(b)
	}
	return p.appendExtended(info.Headers, b)
}

// appendExtended appends the headers of set to b.
func (p *Packet) appendExtended(set HeaderSet, b []byte) []byte {
	if set&HeaderDETH != 0 {
		b = p.DETH.AppendTo(b)
	}
	if set&HeaderXRCETH != 0 {
		b = p.XRCETH.AppendTo(b)
	}
	if set&HeaderFETH != 0 {
		b = p.FETH.AppendTo(b)
	}
	if set&HeaderRETH != 0 {
		b = p.RETH.AppendTo(b)
	}
	if set&HeaderAtomicETH != 0 {
		b = p.AtomicETH.AppendTo(b)
	}
	if set&HeaderImmDt != 0 {
		b = ImmDt(p.Imm).AppendTo(b)
	}
	if set&HeaderIETH != 0 {
		b = IETH{p.InvalidateRKey}.AppendTo(b)
	}
	if set&HeaderAETH != 0 {
		b = p.AETH.AppendTo(b)
	}
	if set&HeaderAtomicAckETH != 0 {
		b = p.AtomicAckETH.AppendTo(b)
	}
	if set&HeaderSETH != 0 {
		b = p.SETH.AppendTo(b)
	}
	if set&HeaderCNP != 0 {
		b = append(b, make([]byte, CNPReservedSize)...)
	}
	return b
}

// AppendTo appends the whole datagram to b: headers, payload, pad and four zero bytes for [Flow.Seal] to fill. It
// sets PadCount to the pad that the payload needs. For an invalid opcode it appends nothing.
func (p *Packet) AppendTo(b []byte) []byte {
	if !p.Opcode.Valid() {
		return b
	}
	p.PadCount = PadCount(len(p.Payload))
	begin := len(b)
	b = p.AppendHeaders(b)
	b = append(b, p.Payload...)
	b = append(b, make([]byte, int(p.PadCount)+ICRCSize)...)
	if p.Piggybacks {
		n := len(b) - begin
		b = append(b, make([]byte, PiggybackSize)...)
		PiggybackACK(b[begin:], n, p.PiggybackPSN, p.AETH)
		clear(b[len(b)-ICRCSize:])
	}
	return b
}
