package wire

import "encoding/binary"

// Bits of a Flow's label that say which of InfiniBand's headers its packets have. Flows of RoCEv2 have none of them.
const (
	flowLocal  = 1 << 21
	flowGlobal = 1 << 22
	flowSL     = 24 // the first bit of the service level

	behindLRHLength = 2           // bytes between the LRH's length and the BTH: the source LID
	behindGRHLength = GRHSize - 6 // next header and all that follows
)

// NewLocalFlow returns the flow of packets with an LRH alone. The ICRC covers the LRH but for the virtual lane, which
// switches may change.
func NewLocalFlow(slid, dlid uint16, sl uint8) Flow {
	h := LRH{VL: 0xf, SL: sl, LNH: LNHLocal, SLID: slid, DLID: dlid}
	var buf [LRHSize]byte
	return Flow{base: crcOf(h.AppendTo(buf[:0])), label: flowLocal | uint32(sl&0xf)<<flowSL}
}

// NewGlobalFlow returns the flow of packets with a GRH. The ICRC covers none of the LRH, which each router makes anew,
// and of the GRH all but traffic class, flow label and hop limit. sl and label are for [Flow.Label].
func NewGlobalFlow(sgid, dgid [16]byte, sl uint8, label uint32) Flow {
	var buf [icrcLRHSize + GRHSize]byte
	b := binary.BigEndian.AppendUint64(buf[:0], 1<<64-1)
	h := GRH{TrafficClass: 0xff, FlowLabel: 1<<flowLabelBits - 1, NextHeader: GRHNextHeader, HopLimit: 0xff, SGID: sgid, DGID: dgid}
	return Flow{base: crcOf(h.AppendTo(b)), label: flowGlobal | uint32(sl&0xf)<<flowSL | label&(1<<flowLabelBits-1)}
}

// crcOf returns the CRC of b, byte by byte. hash/crc32 calls its implementation through a variable, for which the
// callers' buffers would move to the heap, and an unknown peer can make a receiver come here for each packet.
func crcOf(b []byte) uint32 {
	c := ^uint32(0)
	for _, v := range b {
		c = shift1(c ^ uint32(v))
	}
	return ^c
}

// upToBTHOnIB is upToBTH for InfiniBand's own headers.
func (f *Flow) upToBTHOnIB(n int) uint32 {
	if f.label&flowGlobal != 0 {
		return f.base ^ crcHalfBehind(uint16(n), behindGRHLength)
	}
	return f.base ^ crcHalfBehind(uint16(LRHSize+n)/4, behindLRHLength)
}

// LinkLabel returns the flow label and the service level that the label of a datagram on InfiniBand is made of.
func LinkLabel(label uint32) (flow uint32, sl uint8) {
	return label & (1<<flowLabelBits - 1), uint8(label >> flowSL & 0xf)
}

// LinkLabelOf is the inverse of [LinkLabel].
func LinkLabelOf(flow uint32, sl uint8) uint32 {
	return uint32(sl&0xf)<<flowSL | flow&(1<<flowLabelBits-1)
}
