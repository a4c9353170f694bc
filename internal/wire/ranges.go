package wire

import (
	"encoding/binary"
	"math/bits"
)

// What two devices of ours say to each other beyond the specification: that both repeat selectively, and
// what has come of what was sent.

// Hello is the payload of an RCHello: a mark by which it is known, and a version.
type Hello struct{ Version uint8 }

const helloMark = "adverb\x00"

// HelloSize is the length of a Hello in bytes.
const HelloSize = len(helloMark) + 1

// AppendTo appends the payload to b.
func (h Hello) AppendTo(b []byte) []byte { return append(append(b, helloMark...), h.Version) }

// DecodeHello reads the payload of an RCHello. It returns false for somebody else's.
func DecodeHello(b []byte) (h Hello, ok bool) {
	if len(b) < HelloSize || string(b[:len(helloMark)]) != helloMark {
		return h, false
	}
	return Hello{b[len(helloMark)]}, true
}

// Ranges is the payload of an RCAckRanges. The packet's PSN is the first that is missing, its AETH that of an
// acknowledgement of all before. Bit i of Bits, which begins with the lowest bit of its first byte, says
// whether the PSN i behind the missing one has come.
type Ranges struct {
	Latest PSN  // of the packet that made the receiver answer
	Again  bool // it had come before
	Bits   []byte
}

// MaxRanges is how many PSNs Bits covers at most.
const MaxRanges = 1024

// MaxRangesSize is the longest payload of an RCAckRanges in bytes.
const MaxRangesSize = 4 + MaxRanges/8

// AppendTo appends the payload to b. Bits has whole words of 4 bytes.
func (r *Ranges) AppendTo(b []byte) []byte {
	head := uint32(r.Latest & PSNMask)
	if r.Again {
		head |= 1 << 31
	}
	return append(binary.BigEndian.AppendUint32(b, head), r.Bits...)
}

// DecodeRanges reads the payload of an RCAckRanges. Bits aliases b. It returns false where the length is
// none that AppendTo makes.
func DecodeRanges(b []byte) (r Ranges, ok bool) {
	if len(b) < 4 || len(b) > MaxRangesSize || len(b)%4 != 0 {
		return r, false
	}
	head := binary.BigEndian.Uint32(b)
	return Ranges{Latest: PSN(head) & PSNMask, Again: head>>31 != 0, Bits: b[4:]}, true
}

// Next returns the first run of PSNs from i on that have come: [from, to). There is none if from is to.
func (r *Ranges) Next(i int) (from, to int) {
	from = r.find(i, 0)
	return from, r.find(from, 0xff)
}

// find returns the first bit from i on that differs from those of skip, or the number of bits.
func (r *Ranges) find(i int, skip byte) int {
	for i < 8*len(r.Bits) {
		if rest := (r.Bits[i/8] ^ skip) >> (i % 8); rest != 0 {
			return i + bits.TrailingZeros8(rest)
		}
		i += 8 - i%8
	}
	return i
}
