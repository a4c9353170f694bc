package wire

import "strconv"

// AppendSummary appends the packet on one line to b, for traces:
//
//	RC RDMA_WRITE_FIRST qp=0x000017 psn=0x05d592 va=0x7f52c0a81000 rkey=0x000004d2 len=8192 payload=1024
//	RC ACKNOWLEDGE qp=0x000011 psn=0x05d593 ACK credits=31 msn=3
//	RC ACKNOWLEDGE qp=0x000011 psn=0x05d594 NAK remote access error msn=3
//
// For a datagram to the GSI the line names the CM message:
//
//	UD SEND_ONLY qp=0x000001 psn=0x000000 ack srcqp=0x000001 qkey=0x80010000 payload=256 CM RTU id=0xc8dd8688 remote=0x05f5cd70
//
// Of a secured packet the line names the fields that are not secret, and its payload is the encrypted bytes, with the
// tag:
//
//	SECURED qp=0x000017 psn=0x05d592 ack number=12 payload=1060
//
// The line of a message with a piggybacked acknowledgement ends with the acknowledgement:
//
//	RC SEND_ONLY qp=0x000017 psn=0x05d592 ack payload=64 acknowledges=0x05d593 ACK credits=31 msn=3
//
// After the PSN come the bits that are set: ack (acknowledge request), se (solicited event), fecn, becn, mig, ar
// (adaptive routing, see [ResvAdaptiveRouting]). credits is the code on the wire, where 31 means no limit.
func (p *Packet) AppendSummary(b []byte) []byte {
	info := &opcodes[p.Opcode]
	if info.Name == "" {
		b = append(b, p.Opcode.String()...)
	} else {
		b = append(b, info.Name...)
	}
	b = appendHexField(b, "qp", uint64(p.DestQP), 6)
	b = appendHexField(b, "psn", uint64(p.PSN), 6)
	b = p.appendBits(b)

	set := info.Headers
	if set&HeaderDETH != 0 {
		b = appendHexField(b, "srcqp", uint64(p.DETH.SrcQP), 6)
		b = appendHexField(b, "qkey", uint64(p.DETH.QKey), 8)
	}
	if set&HeaderXRCETH != 0 {
		b = appendHexField(b, "srqn", uint64(p.XRCETH.SRQN), 6)
	}
	if set&HeaderFETH != 0 {
		b = appendHexField(b, "placement", uint64(p.FETH.Placement), 1)
		b = appendHexField(b, "selectivity", uint64(p.FETH.Selectivity), 1)
	}
	if set&HeaderRETH != 0 {
		b = appendHexField(b, "va", p.RETH.VA, 1)
		b = appendHexField(b, "rkey", uint64(p.RETH.RKey), 8)
		b = appendDecField(b, "len", uint64(p.RETH.Length))
	}
	if set&HeaderAtomicETH != 0 {
		b = appendHexField(b, "va", p.AtomicETH.VA, 1)
		b = appendHexField(b, "rkey", uint64(p.AtomicETH.RKey), 8)
		if p.Opcode&^XRC == RCFetchAdd {
			b = appendHexField(b, "add", p.AtomicETH.SwapAdd, 1)
		} else {
			b = appendHexField(b, "compare", p.AtomicETH.Compare, 1)
			b = appendHexField(b, "swap", p.AtomicETH.SwapAdd, 1)
		}
	}
	if set&HeaderImmDt != 0 {
		b = appendHexField(b, "imm", uint64(p.Imm), 8)
	}
	if set&HeaderIETH != 0 {
		b = appendHexField(b, "invalidate", uint64(p.InvalidateRKey), 8)
	}
	if set&HeaderAETH != 0 {
		b = p.AETH.appendTo(b)
	}
	if set&HeaderAtomicAckETH != 0 {
		b = appendHexField(b, "orig", p.AtomicAckETH.Orig, 1)
	}
	if set&HeaderSETH != 0 {
		b = appendDecField(b, "number", p.SETH.Number)
	}
	if info.Flags&FlagPayload != 0 || len(p.Payload) != 0 {
		b = appendDecField(b, "payload", uint64(len(p.Payload)))
	}
	if p.Piggybacks {
		b = appendHexField(b, "acknowledges", uint64(p.PiggybackPSN), 6)
		b = p.AETH.appendTo(b)
	}
	if set&HeaderDETH != 0 && p.DestQP == GSIQPN {
		b = appendCM(b, p.Payload)
	}
	return b
}

func (h AETH) appendTo(b []byte) []byte {
	return appendDecField(h.Syndrome.appendTo(append(b, ' ')), "msn", uint64(h.MSN))
}

func (p *Packet) appendBits(b []byte) []byte {
	if p.AckReq {
		b = append(b, " ack"...)
	}
	if p.Solicited {
		b = append(b, " se"...)
	}
	if p.FECN {
		b = append(b, " fecn"...)
	}
	if p.BECN {
		b = append(b, " becn"...)
	}
	if p.MigReq {
		b = append(b, " mig"...)
	}
	if p.Resv7&ResvAdaptiveRouting != 0 {
		b = append(b, " ar"...)
	}
	return b
}

// String returns the line that [Packet.AppendSummary] appends.
func (p *Packet) String() string { return string(p.AppendSummary(nil)) }

func appendHexField(b []byte, name string, v uint64, digits int) []byte {
	return appendHex(append(append(append(b, ' '), name...), '='), v, digits)
}

func appendDecField(b []byte, name string, v uint64) []byte {
	return strconv.AppendUint(append(append(append(b, ' '), name...), '='), v, 10)
}
