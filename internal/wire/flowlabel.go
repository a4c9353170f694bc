package wire

import "encoding/binary"

// Label returns the IPv6 flow label by which adverbs know each other: the label of an adverb's datagrams on the flow.
// It is never 0, so that a sender without labels is not taken for an adverb. All datagrams of a flow have the same
// label, as routers that spread flows by it expect (RFC 6437), and it looks random. Anybody can compute it. The ICRC
// does not cover it. Over IPv4 it is 0, and RoCEv1 has it in the GRH. Over InfiniBand it is [LinkLabelOf] the flow's.
func (f *Flow) Label() uint32 { return f.label &^ (flowIPv4 | flowLocal | flowGlobal) }

func flowLabel(src, dst [16]byte, port uint16) uint32 {
	h := uint64(port)
	for _, a := range [...]*[16]byte{&src, &dst} {
		h = mixLabel(h, binary.BigEndian.Uint64(a[:8]))
		h = mixLabel(h, binary.BigEndian.Uint64(a[8:]))
	}
	return uint32(max(1, h>>(64-flowLabelBits)))
}

const (
	flowLabelBits = 20
	labelFactor   = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio: multiplicative hashing
)

func mixLabel(h, word uint64) uint64 {
	h = (h ^ word) * labelFactor
	return (h ^ h>>32) * labelFactor
}
